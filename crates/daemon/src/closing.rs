//! The end of a mount: what waits is written, what has no name any more ends, and the volume is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use silt_engine::Tree;

use crate::core::{Core, now_secs};
use crate::damage::Met;

/// For so long at most the end of a mount waits for what ends in parts.
const LATE: Duration = Duration::from_secs(20);

/// Ends writing and closes the volume, once.
pub struct Closer {
    core: Arc<Core>,
    writer: Mutex<Option<JoinHandle<()>>>,
    end: Mutex<Option<End>>,
    closed: Condvar,
}

/// What came of it.
struct End {
    result: Result<(), String>,
    /// What programs did was in no checkpoint before it.
    unwritten: bool,
}

impl Closer {
    /// For a volume that `writer` writes to.
    pub fn new(core: Arc<Core>, writer: JoinHandle<()>) -> Self {
        Closer { core, writer: Mutex::new(Some(writer)), end: Mutex::new(None), closed: Condvar::new() }
    }

    /// Whether that is done.
    pub fn is_closed(&self) -> bool {
        self.end.lock().is_some()
    }

    /// Waits until it is; why what programs did since it was synced last is lost, where it is.
    pub fn wait(&self) -> Option<String> {
        let mut end = self.end.lock();
        loop {
            match &*end {
                Some(End { result: Err(why), unwritten: true }) => return Some(why.clone()),
                Some(_) => return None,
                None => self.closed.wait(&mut end),
            }
        }
    }

    /// The first call does it; every call returns what came of it.
    pub fn close(&self) -> Result<(), String> {
        let mut end = self.end.lock();
        if let Some(end) = &*end {
            return end.result.clone();
        }
        // Who waits for space hears that there is none.
        self.core.space.stop();
        self.core.space.host.stop();
        self.core.account.stop();
        // What waits may need what somebody wants to cut off.
        let _ = self.core.fs.lock().volume_mut().confine(None);
        {
            let mut queue = self.core.queue.lock();
            queue.stop = true;
            self.core.wake.notify_all();
            self.core.room.notify_all();
        }
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
        let stalled = self.core.stalled.load(Ordering::Relaxed);
        crate::discarder::end(&self.core);
        let mut fs = self.core.fs.lock();
        // What comes now no program did.
        let unwritten = fs.volume().is_unwritten();
        // Nobody holds files any more: those without a name can go.
        if let Err(e) = fs.forget_all() {
            tracing::warn!("{e}");
        }
        // What had no room to end may have it once the rest is written, and large files end in parts; what is left the next
        // mount ends.
        if stalled == 0
            && fs.volume().failure().is_none()
            && let Err(e) = fs.end_late(now_secs(), LATE)
        {
            tracing::warn!("{e}");
        }
        let volume = fs.volume_mut();
        if let Some(watched) = volume.verifier() {
            watched.stop();
        }
        let done = match volume.failure() {
            Some(why) => Err(why.to_owned()),
            None if stalled != 0 => Err(std::io::Error::from_raw_os_error(stalled).to_string()),
            None => volume.close(now_secs()).map_err(|e| e.to_string()),
        };
        // Nothing may change what is closed.
        volume.fail("the volume is unmounted");
        // What the last checkpoint could not take is said, too.
        let met = volume.take_damage();
        drop(fs);
        crate::host_space::end(&self.core);
        for (ino, what) in met {
            self.core.met_damage(Met::of(Tree::Live, ino, what));
        }
        self.core.damages.name_all(&self.core.fs);
        self.core.damages.stop();
        *end = Some(End { result: done.clone(), unwritten });
        self.closed.notify_all();
        done
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Fault, Times};
    use silt_format::Ino;
    use silt_fs::{Context, WriteFlags};

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::{check, mkfs_of, open};
    use crate::writer::Writer;

    const SIZE: u64 = 16 << 20;

    /// Where all was synced nothing is lost, though the volume cannot be closed.
    #[test]
    fn what_the_last_checkpoint_could_not_take_is_told() {
        for (full, fails, writes) in
            [(false, false, true), (false, true, false), (true, false, true), (false, true, true)]
        {
            let device = Arc::new(Fault::new(mkfs_of(SIZE, 64)));
            let core = Core::new(open(device.clone()), MountOptions::default());
            let ctx = Context { privileged: true, ..Context::default() };
            let write = |name: &[u8]| {
                let mut fs = core.fs.lock();
                let ino = fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap().ino;
                fs.write(&ctx, ino, 0, &[7; 40 * 4096], WriteFlags::default()).unwrap();
            };
            write(b"synced");
            core.fs.lock().sync_all(3000).unwrap();
            if writes {
                write(b"late");
            }
            device.set_full(full);
            if fails {
                device.fail_writes(0..SIZE, Times::Always);
            }
            let writer = Writer::new(core.clone(), Duration::from_secs(3600)).without_pauses();
            let closer = Closer::new(core.clone(), std::thread::spawn(move || writer.run()));
            let told = std::thread::scope(|scope| {
                let waits = scope.spawn(|| closer.wait());
                assert_eq!(closer.close().is_err(), full || fails);
                waits.join().unwrap()
            });
            assert_eq!(told.is_some(), (full || fails) && writes, "{told:?}");
            assert_eq!(closer.wait(), told);
            device.heal();
            check(device.inner().fork(), &[("synced", 7, 40)]);
        }
    }
}
