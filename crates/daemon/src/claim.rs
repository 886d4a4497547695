//! Whose the block device is once the session on a `fuseblk` mount has ended.
//!
//! The mount held the kernel's claim for us. At an unmount it does so until we have answered; where the connection was
//! aborted, or the unmount forced, the mount may be gone, and the device free for everybody, while the last checkpoint
//! is still to be written. Another Silt is kept out by the lock on the node, which stays ours.
//!
//! Nothing is written while it is asked whose it is. Nobody else's files are looked at for that, nor any lock of the volume
//! taken: they may lie in what we serve, or wait for what is held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

use silt_device::{Error, FileDevice, Gate};
use silt_fuse::open_abort;

use crate::core::Core;
use crate::first::{First, Seen};

/// A forced unmount aborts first, and the mount goes a moment later.
const GOING: Duration = Duration::from_secs(1);
/// For so long the kernel may take to let go of it then.
const LETTING_GO: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A block device behind its gate.
pub type Gated = Gate<Arc<FileDevice>>;

/// What is asked after a session that ended without being asked to.
pub struct Claim<'a> {
    pub device: &'a FileDevice,
    pub gate: &'a Gated,
    pub first: &'a First,
    /// The kernel's number of the mount, where it is known.
    pub connection: Option<u64>,
}

/// Who has the claim.
enum Holder {
    We,
    Mount,
}

impl Claim<'_> {
    /// Closes the volume, with the claim or while the mount has it. Where somebody else has the device, nothing of ours is
    /// written any more, and the volume says why.
    pub fn close(&self, core: &Core, close: impl FnOnce()) {
        self.gate.hold();
        match self.take_back() {
            Ok(Holder::We) => {
                self.gate.open();
                close();
            }
            Ok(Holder::Mount) => {
                self.gate.open();
                let over = AtomicBool::new(false);
                scope(|scope| {
                    let watch = Builder::new().name("claim".into());
                    if let Err(e) = watch.spawn_scoped(scope, || self.watch(&over)) {
                        tracing::warn!("no thread to watch the device: {e}");
                    }
                    close();
                    over.store(true, Ordering::Relaxed);
                });
            }
            Err(e) => {
                self.gate.shut();
                core.fs.lock().volume_mut().fail(e.to_string());
                close();
            }
        }
        // Whatever comes later, and nobody waits for it.
        self.gate.shut();
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
            Some(Seen::Nowhere) => self.connection.is_some_and(|number| open_abort(number).is_ok()),
        }
    }
}
