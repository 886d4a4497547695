//! Whose the block device is once the session on a `fuseblk` mount has ended.
//!
//! The mount held the kernel's claim for us. At an unmount it does so until we have answered; where the connection was
//! aborted, or the unmount forced, the mount may be gone, and the device free for everybody, while the last checkpoint
//! is still to be written. Another Silt is kept out by the lock on the node, which stays ours.
//!
//! Nothing is written while it is asked whose it is. Nobody else's files are looked at for that, nor any lock of the volume
//! taken: they may lie in what we serve, or wait for what is held up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use silt_device::{Error, FileDevice, Gate};
use silt_fuse::is_connected;

use crate::closing::Closer;
use crate::core::Core;
use crate::first::{First, Seen};

/// A forced unmount aborts first, and the mount goes a moment later.
const GOING: Duration = Duration::from_secs(1);
/// For so long the kernel may take to let go of it then.
const LETTING_GO: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A block device behind its gate.
pub type Gated = Gate<Arc<FileDevice>>;

/// The end of a mount, whoever brings it about: the kernel, a signal, or that it could not be served.
pub struct Ending {
    core: Arc<Core>,
    closer: Closer,
    device: Arc<FileDevice>,
    gate: Option<Arc<Gated>>,
    /// The mount that has the claim, and its number; none where the claim is ours all the time.
    holder: OnceLock<(Arc<First>, Option<u64>)>,
    /// Who comes second finds the volume closed.
    once: Mutex<()>,
}

impl Ending {
    /// Of a volume on a device that lies behind a gate where it is a block device.
    pub fn new(core: Arc<Core>, closer: Closer, device: Arc<FileDevice>, gate: Option<Arc<Gated>>) -> Self {
        Ending { core, closer, device, gate, holder: OnceLock::new(), once: Mutex::new(()) }
    }

    /// Has `mount` take the claim over; where it does not, we have it again. Errors: somebody else was quicker, and nothing more
    /// is written.
    pub fn hand_over<T>(&self, mount: impl FnOnce() -> Option<T>) -> Result<Option<T>, Error> {
        let gate = self.gate.as_deref();
        gate.iter().for_each(|gate| gate.hold());
        self.device.release_claim();
        let mounted = mount();
        if mounted.is_none()
            && let Err(e) = self.device.claim_again()
        {
            gate.iter().for_each(|gate| gate.shut());
            self.core.fs.lock().volume_mut().fail(e.to_string());
            return Err(e);
        }
        gate.iter().for_each(|gate| gate.open());
        Ok(mounted)
    }

    /// The mount has it from here on; that of an image stays ours.
    pub fn is_held_by(&self, first: &Arc<First>) {
        if self.gate.is_some() {
            let _ = self.holder.set((first.clone(), first.connection().flatten()));
        }
    }

    /// The image or device.
    pub fn device(&self) -> &Arc<FileDevice> {
        &self.device
    }

    /// As [`Closer::wait`].
    pub fn wait(&self) -> Option<String> {
        self.closer.wait()
    }

    /// Whether the mount is there for all we know: where it was unmounted by force nothing is to be written before it is asked whose
    /// the device is.
    pub fn is_in_sight(&self) -> bool {
        self.holder.get().is_none_or(|(first, _)| matches!(first.seen(), Some(Seen::Ours) | None))
    }

    /// Holds writing up until the volume is closed, where the mount goes before.
    fn hold(&self) {
        if let (Some(gate), Some(_)) = (&self.gate, self.holder.get()) {
            gate.hold();
        }
    }

    /// Has the mount served by `begin`, which takes it away where it fails.
    pub fn serve<T, E>(&self, begin: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let _once = self.once.lock();
        self.hold();
        let begun = begin();
        if let (Some(gate), Ok(_)) = (&self.gate, &begun) {
            gate.open();
        }
        begun
    }

    /// Closes the volume, after `before`; what came of it, also where it is closed already. `has_claim`: the mount is there
    /// until we have answered.
    pub fn close(&self, has_claim: bool, before: impl FnOnce()) -> Result<(), String> {
        let _once = self.once.lock();
        let close = || {
            before();
            self.closer.close()
        };
        match (&self.gate, self.holder.get()) {
            (Some(gate), Some((first, connection))) if !has_claim && !self.closer.is_closed() => {
                Claim { device: &self.device, gate, first, connection: *connection }.close(&self.core, close)
            }
            _ => close(),
        }
    }
}

/// A mount that nobody serves yet: writing is held up before it goes.
pub struct Unserved<'a> {
    pub ending: &'a Ending,
    pub is_served: bool,
}

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        if !self.is_served {
            self.ending.hold();
        }
    }
}

/// What is asked after a session that ended without being asked to.
struct Claim<'a> {
    device: &'a FileDevice,
    gate: &'a Gated,
    first: &'a First,
    /// The kernel's number of the mount, where it is known.
    connection: Option<u64>,
}

/// Does something when dropped, by a panic as well.
struct Last<F: Fn()>(F);

impl<F: Fn()> Drop for Last<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Who has the claim.
enum Holder {
    We,
    Mount,
}

impl Claim<'_> {
    /// Closes the volume, with the claim or while the mount has it. Where somebody else has the device, nothing of ours is
    /// written any more, and the volume says why.
    fn close<T>(&self, core: &Core, close: impl FnOnce() -> T) -> T {
        // Whatever comes later, and nobody waits for it.
        let _shut = Last(|| self.gate.shut());
        self.gate.hold();
        match self.take_back() {
            Ok(Holder::We) => {
                self.gate.open();
                close()
            }
            Ok(Holder::Mount) => {
                self.gate.open();
                let over = AtomicBool::new(false);
                scope(|scope| {
                    let watch = Builder::new().name("claim".into());
                    if let Err(e) = watch.spawn_scoped(scope, || self.watch(&over)) {
                        tracing::warn!("no thread to watch the device: {e}");
                    }
                    // The scope waits for it.
                    let _over = Last(|| over.store(true, Ordering::Relaxed));
                    close()
                })
            }
            Err(e) => {
                self.gate.shut();
                core.fs.lock().volume_mut().fail(e.to_string());
                close()
            }
        }
    }

    fn take_back(&self) -> Result<Holder, Error> {
        let begin = Instant::now();
        loop {
            let claimed = self.device.try_claim();
            if let Ok(true) = claimed {
                return Ok(Holder::We);
            }
            if begin.elapsed() > GOING && self.mount_has_it() {
                return Ok(Holder::Mount);
            }
            if begin.elapsed() > GOING + LETTING_GO {
                let path = self.device.path().display().to_string();
                return Err(claimed.err().unwrap_or(Error::Busy { path, by: None }));
            }
            sleep(PAUSE);
        }
    }

    /// Claims the device as soon as the mount lets go of it.
    fn watch(&self, over: &AtomicBool) {
        let mut gone = None;
        while !over.load(Ordering::Relaxed) {
            if let Ok(true) = self.device.try_claim() {
                return self.gate.open();
            }
            if self.mount_has_it() {
                if gone.take().is_some() {
                    self.gate.open();
                }
            } else {
                let since = *gone.get_or_insert_with(|| {
                    self.gate.hold();
                    Instant::now()
                });
                if since.elapsed() > LETTING_GO {
                    return self.gate.shut();
                }
            }
            sleep(PAUSE);
        }
    }

    /// Out of sight a mount lasts as long as programs have files open in it.
    fn mount_has_it(&self) -> bool {
        match self.first.seen() {
            // Where that cannot be told, as before.
            Some(Seen::Ours) | None => true,
            Some(Seen::Other) => false,
            Some(Seen::Nowhere) => {
                self.connection.is_some_and(|number| is_connected(number).unwrap_or(false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use silt_device::{Access, OpenOptions};
    use silt_engine::mkfs::{Parameters, Plan};
    use silt_format::Ino;
    use silt_fs::Context;
    use silt_fuse::Place;

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::open;
    use crate::loop_handle::LoopHandle;
    use crate::writer::Writer;

    const SIZE: u64 = 16 << 20;

    /// A volume on a loop device whose claim was given up, with a file that waits to be written; `None` where there are no
    /// such devices.
    struct Bench {
        core: Arc<Core>,
        device: Arc<FileDevice>,
        gate: Arc<Gated>,
        /// The device goes with it.
        at: LoopHandle,
        _dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Option<Bench> {
            let dir = tempfile::tempdir().unwrap();
            let image = dir.path().join("v.img");
            File::create(&image).unwrap().set_len(SIZE).unwrap();
            let Ok(at) = LoopHandle::attach(&image) else {
                eprintln!("left out: no loop devices here");
                return None;
            };
            let device = silt_device::open(at.path(), Access::ReadWrite, &OpenOptions::default());
            let device = Arc::new(device.unwrap());
            let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
            Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
            let gate = Arc::new(Gated::new(device.clone()));
            let mut fs = open(gate.clone());
            let ctx = Context { privileged: true, ..Context::default() };
            fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap();
            device.release_claim();
            let core = Core::new(fs, MountOptions::default());
            Some(Bench { core, device, gate, at, _dir: dir })
        }

        /// Somebody else's claim.
        fn claimed(&self) -> File {
            let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
            File::options().read(true).custom_flags(exclusive).open(self.at.path()).unwrap()
        }
    }

    fn first(connection: Option<u64>) -> First {
        First::new(Place { path: "/nowhere".into(), connection }, false)
    }

    fn ending(b: &Bench) -> Ending {
        let writer = Writer::new(b.core.clone(), Duration::from_secs(3600));
        let writer = std::thread::spawn(move || writer.run());
        let closer = Closer::new(b.core.clone(), writer);
        Ending::new(b.core.clone(), closer, b.device.clone(), Some(b.gate.clone()))
    }

    #[test]
    fn whoever_closes_it_asks_whose_the_device_is() {
        for is_free in [true, false] {
            let Some(b) = Bench::new() else { return };
            let ending = ending(&b);
            assert!(ending.is_in_sight(), "there is none that could be gone");
            ending.is_held_by(&Arc::new(first(Some(u64::MAX))));
            assert!(!ending.is_in_sight());
            let other = (!is_free).then(|| b.claimed());
            let before = std::fs::read(b.at.path()).unwrap();
            // The mount ends with the session, unserved.
            drop(Unserved { ending: &ending, is_served: false });
            let closed = ending.close(false, || {});
            assert_eq!((closed.is_ok(), ending.close(true, || {})), (is_free, closed));
            assert_eq!(std::fs::read(b.at.path()).unwrap() == before, !is_free);
            drop(other);
        }
    }

    #[test]
    fn a_mount_that_does_not_take_the_claim_over_leaves_it_ours_or_ends_writing() {
        let Some(b) = Bench::new() else { return };
        let ending = ending(&b);
        let write = || silt_device::Device::write_at(&*b.gate, 0, &[&[0; 512]]).is_ok();
        assert!(b.device.try_claim().unwrap());
        assert_eq!(ending.hand_over(|| Some(7)).unwrap(), Some(7));
        assert!(b.device.try_claim().unwrap() && write());
        assert_eq!(ending.hand_over(|| None::<()>).unwrap(), None);
        assert!(write(), "it is ours again");
        let mut other = None;
        let failed = ending.hand_over(|| {
            other = Some(b.claimed());
            None::<()>
        });
        assert!(failed.is_err() && !write());
        assert!(ending.close(false, || {}).is_err());
    }

    #[test]
    fn a_closing_that_panics_beside_the_watch_ends() {
        let Some(b) = Bench::new() else { return };
        // Where it cannot be told whether the mount is there, it is taken to be.
        let (other, first) = (b.claimed(), first(None));
        let (tell, told) = std::sync::mpsc::channel();
        let (device, gate, core) = (b.device.clone(), b.gate.clone(), b.core.clone());
        std::thread::spawn(move || {
            let claim = Claim { device: &device, gate: &gate, first: &first, connection: None };
            let ended = catch_unwind(AssertUnwindSafe(|| claim.close(&core, || panic!("on purpose"))));
            tell.send(ended.is_err()).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(true));
        assert!(silt_device::Device::write_at(&*b.gate, 0, &[&[0; 512]]).is_err(), "nothing comes after it");
        drop(other);
    }
}
