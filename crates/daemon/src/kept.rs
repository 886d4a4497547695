//! Requests that are answered late, where the kernel has few open.
//!
//! Through `/dev/fuse` it has as many open as there are. With io_uring it puts what is asked on a processor into one of 32 entries
//! until that is answered, and all else that is asked there waits for one: reads, the deletion that would make the space that
//! others wait for, the writes that come before an answer that rests on them. So few are kept there for anything but the medium:
//! at most [`MOST`] that wait for space, and two times [`crate::workers::ON_RINGS`] that wait for the kernel.

use std::sync::atomic::Ordering;

use crate::changing::Takes;
use crate::core::Core;

/// Requests of a mount that wait for space together, where they come through io_uring.
pub const MOST: usize = 16;

impl Core {
    /// Whether the kernel has few requests open at a time.
    pub fn has_rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed)
    }

    /// Whether no further request is to be kept until there is space.
    pub fn keeps_enough(&self) -> bool {
        if !self.has_rings() {
            return false;
        }
        let queued = {
            let queue = self.queue.lock();
            queue.paced.len() + queue.parts.len()
        };
        queued + self.beside.space.pending() >= MOST
    }

    /// Whether a change that is to wait would wait for space, itself or behind others that do.
    pub fn waits_for_space(&self, takes: Takes) -> bool {
        let first = self.queue.lock().paced.first();
        let fs = self.fs.lock();
        let all = [Some(takes), first].into_iter().flatten();
        all.filter(|takes| takes.space).any(|takes| self.space.may_come(fs.volume(), takes.blocks(&fs)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use silt_format::Ino;
    use silt_fs::{Context, Fs};
    use silt_fuse::Errno;

    use super::*;
    use crate::changing::Change;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, open};
    use crate::reserving::{self, Range};
    use crate::writer::Writer;

    type Told = Arc<Mutex<Vec<Result<(), i32>>>>;

    /// A volume with a file `f`, of which so much is kept from use that there is no space.
    fn without_space() -> (Arc<Core>, Told) {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        {
            let ctx = Context { privileged: true, ..Context::default() };
            let mut fs = core.fs.lock();
            fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap();
            fs.sync_all(3000).unwrap();
            let mut sizes = (2..40).rev();
            assert!(sizes.any(|n| {
                let v = fs.volume_mut();
                v.confine(Some(n)).is_ok() && v.check_space(2).is_err()
            }));
        }
        core.space.enable(true);
        (core, Told::default())
    }

    fn start(core: &Arc<Core>, told: &Told, takes: Takes, run: impl Fn(&mut Fs, &Context) + Send + 'static) {
        let told = told.clone();
        let run = move |fs: &mut Fs| {
            // What waits for space finds none.
            if takes.space {
                fs.volume().check_space(2).map_err(|_| silt_fs::FsError::NoSpace)?;
            }
            run(fs, &Context { privileged: true, ..Context::default() });
            Ok(((), None))
        };
        let answer = move |result: Result<(), Errno>| told.lock().push(result.map_err(|e| e.raw()));
        Change { names: Vec::new(), node: None, takes, run, answer, begun: false }.start(core);
    }

    #[test]
    fn of_those_who_wait_for_space_few_are_kept_on_rings() {
        for rings in [false, true] {
            let (core, told) = without_space();
            core.rings.store(rings, Ordering::Relaxed);
            (0..40).for_each(|_| start(&core, &told, Takes::NAMES, |_, _| {}));
            let refused = if rings { 40 - MOST } else { 0 };
            assert_eq!(*told.lock(), vec![Err(libc::ENOSPC); refused]);
            assert_eq!(core.queue.lock().paced.len(), 40 - refused);
            // One that is promised space is one of them.
            let answer = {
                let told = told.clone();
                move |result: Result<(), Errno>| told.lock().push(result.map_err(|e| e.raw()))
            };
            let file = {
                let mut fs = core.fs.lock();
                let clean_segments = fs.volume().stat().unwrap().clean_segments;
                let rewritten = fs.volume().rewritten_blocks();
                fs.set_reclaimable(Some(silt_fs::Reclaimable { blocks: 2000, clean_segments, rewritten }));
                fs.lookup(silt_engine::Tree::Live, Ino::ROOT, b"f").unwrap().ino
            };
            let range = Range { node: file.0, mode: 0, offset: 0, length: 16 << 12 };
            let ctx = Context { privileged: true, ..Context::default() };
            reserving::fallocate(&core, ctx, range, Box::new(answer));
            assert_eq!(told.lock().len(), refused + usize::from(rings));
            // Who deletes is not refused, and what he leaves is for those who were kept.
            start(&core, &told, Takes::NOTHING, |fs, ctx| {
                fs.unlink(ctx, Ino::ROOT, b"f").map(|_| ()).unwrap()
            });
            assert_eq!(told.lock().last(), Some(&Ok(())));
            core.queue.lock().stop = true;
        }
    }

    /// They came while there was no room, and now there is no space.
    #[test]
    fn those_who_waited_for_room_do_not_all_wait_for_space() {
        for rings in [false, true] {
            let (core, told) = without_space();
            (0..40).for_each(|_| start(&core, &told, Takes::NAMES, |_, _| {}));
            core.rings.store(rings, Ordering::Relaxed);
            let writer = Writer::new(core.clone(), Duration::from_secs(3600));
            writer.let_paced_run();
            let refused = if rings { 40 - MOST } else { 0 };
            assert_eq!(*told.lock(), vec![Err(libc::ENOSPC); refused]);
            assert_eq!(core.queue.lock().paced.len(), 40 - refused);
        }
    }

    #[test]
    fn who_waits_for_the_kernel_is_one_of_few_on_rings() {
        let core = Core::new(open(Arc::new(mkfs_of(16 << 20, 64))), MountOptions::default());
        let seek = &core.beside.seek;
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let begin = || {
            let wait = wait.clone();
            seek.start(&core, Box::new(move |_| _ = wait.lock().recv()))
        };
        for rings in [true, false] {
            core.rings.store(rings, Ordering::Relaxed);
            let kept = (0..20).take_while(|_| seek.may_keep(&core) && begin()).count();
            assert_eq!(kept, if rings { crate::workers::ON_RINGS } else { 20 });
        }
        drop(go);
    }
}
