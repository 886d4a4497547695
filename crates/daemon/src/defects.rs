//! A thread that others wait for and that panics: a defect, whatever it is. Half a change may be in memory, so nothing of it
//! may reach the disk, and nobody may wait for what will not come.

use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::Core;

/// Runs the work of the thread `name`. Where it panics writing ends, who waits gets EIO, and so does who comes later; what
/// was durable stays as it is.
pub fn contain(core: &Arc<Core>, name: &str, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_ok() {
        return;
    }
    let what = format!("internal error in the thread \"{name}\"");
    tracing::error!("{what}; nothing more is written");
    core.fs.lock().volume_mut().fail(what);
    core.stalled.store(libc::EIO, Ordering::Relaxed);
    core.space.enable(false);
    let (waiters, paced, parts) = {
        let mut queue = core.queue.lock();
        queue.stop = true;
        queue.jobs.clear();
        core.wake.notify_all();
        core.room.notify_all();
        let queue = &mut *queue;
        (take(&mut queue.waiters), take(&mut queue.paced), take(&mut queue.parts))
    };
    for waiter in waiters {
        (waiter.answer)(Err(libc::EIO));
    }
    // What is not answered is answered with EIO.
    drop((paced, parts));
}
