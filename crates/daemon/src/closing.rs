//! The end of a mount: what waits is written, what has no name any more ends, and the volume is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use silt_engine::Tree;

use crate::core::{Core, now_secs};
use crate::damage::Met;

/// For so long at most the end of a mount waits for what ends in parts.
const LATE: Duration = Duration::from_secs(20);

/// Ends writing and closes the volume, once.
pub struct Closer {
    core: Arc<Core>,
    writer: Mutex<Option<JoinHandle<()>>>,
    result: Mutex<Option<Result<(), String>>>,
}

impl Closer {
    /// For a volume that `writer` writes to.
    pub fn new(core: Arc<Core>, writer: JoinHandle<()>) -> Self {
        Closer { core, writer: Mutex::new(Some(writer)), result: Mutex::new(None) }
    }

    /// Whether that is done.
    pub fn is_closed(&self) -> bool {
        self.result.lock().is_some()
    }

    /// The first call does it; every call returns what came of it.
    pub fn close(&self) -> Result<(), String> {
        let mut result = self.result.lock();
        if let Some(r) = &*result {
            return r.clone();
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
        *result = Some(done.clone());
        done
    }
}
