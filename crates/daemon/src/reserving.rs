//! `fallocate`: what it wants promised may be space that the cleaner has to make first.
//!
//! It does not wait among the requests that wait for room: much space may take long, and others go on meanwhile with what
//! little they take. One thread looks after all that wait, in turns. Nobody waits for what cannot come, since the past would
//! be given up for it in vain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use silt_engine::Volume;
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError};
use silt_fuse::{Errno, NodeId};

use crate::changing::{Change, Takes, Undone};
use crate::cleaning::let_run;
use crate::convert::ino;
use crate::core::Core;
use crate::notices::attributes_changed;
use crate::promise::Promise;

/// Between two looks whether there is space.
const PAUSE: Duration = Duration::from_millis(20);
/// And between any two of those who wait, at least: a look takes the lock, and there may be many.
const GAP: Duration = Duration::from_millis(1);
/// After so many looks what waits is written: what it takes is estimated from above until then.
const LOOKS: u32 = 50;

/// Checkpoints after which what can be had is told as it seems: one may be under way, the next one holds what waited.
const CHECKPOINTS: u64 = 2;

/// Parts that may leave a file as large as it was: one may wait for the one before.
const IN_VAIN: u32 = 8;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub node: NodeId,
    /// [`silt_fs::fallocate_mode`].
    pub mode: u32,
    /// Bytes, as is the length.
    pub offset: u64,
    pub length: u64,
}

/// What is to be done.
enum Next {
    /// It.
    Do(Takes),
    /// Wait: there may be space soon.
    Wait,
    /// Refuse it for want of space.
    Refuse,
}

/// Hears what came of it.
pub type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// What is known of whether there can be space for it.
#[derive(Debug, Clone, Copy, Default)]
struct Hope {
    /// It was found once that it could come. What is counted of that is old while the cleaner is at work.
    found: bool,
    /// The newest checkpoint when somebody first wanted to refuse it.
    first: Option<u64>,
}

impl Hope {
    /// Whether to wait for what is written before it is told: what that takes is estimated from above until then, and there may be
    /// more space than it seems. Not for ever where others go on writing.
    fn waits_for_log(&mut self, volume: &Volume) -> bool {
        let newest = volume.last_log().cno;
        let first = *self.first.get_or_insert(newest);
        newest < first.saturating_add(CHECKPOINTS) && (volume.is_constructing() || volume.has_changes())
    }
}

impl Range {
    fn next(&self, core: &Core, fs: &mut Fs, hope: &mut Hope) -> Next {
        // What is wrong with it is told when it is done.
        let lacks = fs.lacks(ino(self.node), self.mode, self.offset, self.length).unwrap_or(0);
        if lacks == 0 {
            let takes = if self.mode & libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned() == 0 {
                Takes::NAMES
            } else {
                Takes::NOTHING
            };
            return Next::Do(takes);
        }
        let takes = Takes::reserving(lacks);
        // While the device takes nothing, or writing ends, nothing comes.
        let ends = core.stall().is_some() || core.ending.load(Ordering::Relaxed) || core.queue.lock().stop;
        // More than the volume will never come.
        let may_wait = !ends && lacks <= fs.volume().geometry().end_block();
        if !hope.found && fs.volume().check_space(lacks).is_err() {
            if fs.could_have(lacks).unwrap_or(false) {
                hope.found = true;
            } else if may_wait && hope.waits_for_log(fs.volume()) {
                return Next::Wait;
            } else {
                return Next::Refuse;
            }
        }
        if !ends && core.space.may_come(fs.volume(), takes.blocks(fs)) {
            return Next::Wait;
        }
        // The cleaner has no more, but what it had may be in the log that is next.
        if may_wait && fs.volume().check_space(lacks).is_err() && hope.waits_for_log(fs.volume()) {
            return Next::Wait;
        }
        Next::Do(takes)
    }
}

/// What goes in parts, and whether it goes on: what damage keeps in a file would be cut away again and again.
#[derive(Default)]
struct Parts {
    /// The fewest blocks that the file had, and tries since that left it no fewer.
    least: Option<u64>,
    in_vain: u32,
}

impl Parts {
    /// The next part; all that is left where the last ones came to nothing.
    fn next<T>(
        &mut self,
        fs: &mut Fs,
        ino: Ino,
        part: impl FnOnce(&mut Fs) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        if self.in_vain >= IN_VAIN {
            return fs.at_once(part);
        }
        let done = part(fs);
        if matches!(done, Err(FsError::InParts)) {
            let left = fs.volume_mut().mapped_blocks(ino);
            self.in_vain = if self.least.is_none_or(|least| left < least) { 0 } else { self.in_vain + 1 };
            self.least = Some(self.least.map_or(left, |least| least.min(left)));
        }
        done
    }
}

/// Does it, now or when there is space, and answers. What is written already is looked at under one lock.
pub fn fallocate(core: &Arc<Core>, ctx: Context, range: Range, answer: Answer) {
    let Range { node, mode, offset, length } = range;
    let mut parts = Parts::default();
    let run = move |fs: &mut Fs| {
        let loses = !ctx.privileged && fs.is_set_id(ino(node));
        let punch = |fs: &mut Fs| fs.fallocate(&ctx, ino(node), mode, offset, length);
        parts.next(fs, ino(node), punch).map(|()| (loses, None))
    };
    let mut hope = Hope::default();
    let (next, promise) = {
        let mut fs = core.fs.lock();
        (range.next(core, &mut fs, &mut hope), Promise::begin(core, &fs, &range))
    };
    let shared = core.clone();
    let answer = move |result: Result<bool, Errno>| {
        // Who is refused has no use for what the parts before promised.
        if result.is_ok() {
            promise.keep()
        } else {
            drop(promise)
        }
        if result == Ok(true) {
            attributes_changed(shared.notifier.get(), node);
        }
        answer(result.map(|_| ()));
    };
    let takes = match next {
        Next::Refuse => return answer(Err(Errno::ENOSPC)),
        Next::Do(takes) => takes,
        Next::Wait => Takes::NAMES,
    };
    let change = Change { names: Vec::new(), node: Some(node), takes, run, answer, begun: false };
    if matches!(next, Next::Do(_)) {
        return change.start(core);
    }
    let due = Instant::now() + PAUSE;
    Waiting { range, hope, change, may_be_old: true, looks: 0, due, took: GAP }.turn(core);
}

/// One that waits for space.
struct Waiting<F, A> {
    range: Range,
    hope: Hope,
    change: Change<F, A>,
    /// A pass that had begun before knew of less that is wanted, and ended early: that it found nothing more says little.
    may_be_old: bool,
    looks: u32,
    /// When it is to be looked at, and how long that took the last time.
    due: Instant,
    took: Duration,
}

impl<F, A> Waiting<F, A>
where
    F: FnMut(&mut Fs) -> Result<(bool, Option<Ino>), FsError> + Send + 'static,
    A: FnOnce(Result<bool, Errno>) + Send + 'static,
{
    /// Looks when those did who came before. Where there is no thread its answer is EIO.
    fn turn(self, core: &Arc<Core>) {
        core.beside.space.start(core, Box::new(move |core| self.look(core)));
    }

    /// Does it if there is space.
    fn look(mut self, core: &Arc<Core>) {
        if self.looks.is_multiple_of(LOOKS) {
            let_run(core);
        }
        self.looks = self.looks.wrapping_add(1);
        // At the end nobody has to wait long for his answer.
        let is_over = core.queue.lock().stop;
        let left = self.due.saturating_duration_since(Instant::now()).max(self.took);
        std::thread::sleep(if is_over { GAP } else { left });
        let begin = Instant::now();
        let mut fs = core.fs.lock();
        let next = self.range.next(core, &mut fs, &mut self.hope);
        self.due = begin + PAUSE;
        self.took = begin.elapsed().clamp(GAP, PAUSE);
        let takes = match next {
            Next::Wait => {
                drop(fs);
                return self.turn(core);
            }
            Next::Refuse => {
                drop(fs);
                return (self.change.answer)(Err(Errno::ENOSPC));
            }
            Next::Do(takes) => takes,
        };
        if std::mem::take(&mut self.may_be_old) && fs.volume().check_space(takes.reserves).is_err() {
            core.space.think_again();
            drop(fs);
            return self.turn(core);
        }
        match (Change { takes, ..self.change }).attempt(core, fs) {
            Some(Undone::Refused(change)) => Waiting { change, ..self }.turn(core),
            Some(Undone::InPart(change)) => change.go_on_with_parts(core),
            Some(Undone::Confined(change)) => change.go_on(core, false),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use parking_lot::Mutex;
    use silt_fs::{Reclaimable, WriteFlags};

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, open};

    /// Where nothing goes, as what damage keeps, no end would come of it.
    #[test]
    fn what_comes_to_nothing_in_parts_goes_as_a_whole() {
        let mut fs = open(Arc::new(mkfs_of(64 << 20, 64)));
        let ctx = Context { privileged: true, ..Context::default() };
        let f = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.write(&ctx, f, 0, &vec![1; 4 << 20], WriteFlags::default()).unwrap();
        fs.sync_all(3000).unwrap();
        fs.set_ends(100);
        let mut parts = Parts::default();
        let mut next = |fs: &mut Fs| {
            parts.next(fs, f, |fs| {
                let mode = silt_fs::fallocate_mode::PUNCH_HOLE | silt_fs::fallocate_mode::KEEP_SIZE;
                fs.fallocate(&ctx, f, mode, 0, 4 << 20)
            })
        };
        for at in 0..4 {
            assert_eq!(next(&mut fs), Err(FsError::InParts));
            fs.sync_all(3001 + at).unwrap();
        }
        // No checkpoint is made from here on.
        let tries = (0..100).take_while(|_| next(&mut fs) == Err(FsError::InParts)).count();
        assert!((8..=10).contains(&tries), "{tries}");
        assert_eq!(fs.set_ends(100), 100);
        assert!(fs.read(silt_engine::Tree::Live, f, 0, 4 << 20).unwrap().iter().all(|b| *b == 0));
    }

    /// A zeroing of much that is written goes in parts; whether it is refused by itself or since the device takes nothing.
    #[test]
    fn a_part_that_is_refused_takes_back_what_its_own_call_promised_alone() {
        use silt_format::inode::flags::IMMUTABLE;
        const BS: u64 = 4096;
        for stalls in [false, true] {
            let options = MountOptions { dirty: 0, ..MountOptions::default() };
            let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), options);
            let ctx = Context { privileged: true, ..Context::default() };
            let file = {
                let mut fs = core.fs.lock();
                let file = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
                fs.write(&ctx, file, 0, &vec![1; 4 << 20], WriteFlags::default()).unwrap();
                fs.sync_all(3000).unwrap();
                fs.fallocate(&ctx, file, silt_fs::fallocate_mode::KEEP_SIZE, 5 << 20, 10 * BS).unwrap();
                fs.set_ends(100);
                file
            };
            let (tell, told) = std::sync::mpsc::channel();
            let answer = move |result: Result<(), Errno>| tell.send(result.map_err(|e| e.raw())).unwrap();
            let mode = silt_fs::fallocate_mode::ZERO_RANGE | silt_fs::fallocate_mode::KEEP_SIZE;
            let range = Range { node: file.0, mode, offset: 0, length: 6 << 20 };
            fallocate(&core, ctx.clone(), range, Box::new(answer));
            let waits = core.queue.lock().paced.pop();
            waits.unwrap()(&core);
            let part = core.queue.lock().parts.pop().unwrap();
            assert_eq!(core.fs.lock().promised_in(file, 0..6 << 20), (6 << 20) / BS);
            if stalls {
                // As much waits as may.
                core.fs.lock().write(&ctx, file, 8 << 20, &[1; 4096], WriteFlags::default()).unwrap();
                core.stalled.store(libc::EIO, Ordering::Relaxed);
            } else {
                core.fs.lock().set_flags(&ctx, file, IMMUTABLE).unwrap();
            }
            part(&core);
            assert_eq!(told.try_recv(), Ok(Err(if stalls { libc::EIO } else { libc::EPERM })));
            let fs = core.fs.lock();
            let left = (fs.promised_in(file, 5 << 20..(5 << 20) + 10 * BS), fs.promised_in(file, 0..6 << 20));
            assert_eq!(left, (10, 10), "stalls: {stalls}");
        }
    }

    /// Who waits makes the cleaner give up the past.
    #[test]
    fn nobody_waits_for_what_cannot_come() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        let file = {
            let mut fs = core.fs.lock();
            let file = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
            let mut at = 0;
            while fs.write(&ctx, file, at, &[1; 1 << 16], WriteFlags::default()).is_ok() {
                at += 1 << 16;
                fs.sync_all(3000).unwrap();
            }
            let clean_segments = fs.volume().stat().unwrap().clean_segments;
            let rewritten = fs.volume().rewritten_blocks();
            fs.set_reclaimable(Some(Reclaimable { blocks: 2000, clean_segments, rewritten }));
            file
        };
        core.space.enable(true);
        let told = Arc::new(Mutex::new(Vec::new()));
        let reserve = |blocks: u64| {
            let told = told.clone();
            let range = Range { node: file.0, mode: 0, offset: 1 << 40, length: blocks << 12 };
            let answer = move |result: Result<(), Errno>| told.lock().push(result.map_err(|e| e.raw()));
            fallocate(&core, ctx.clone(), range, Box::new(answer));
        };
        reserve(3000);
        assert_eq!(*told.lock(), [Err(libc::ENOSPC)]);
        assert!(!core.space.is_wanted());
        reserve(1500);
        assert!(told.lock().len() == 1 && core.space.is_wanted());
        assert!(core.queue.lock().paced.is_empty(), "it keeps nobody from going on");
        let found_nothing = || {
            let now = {
                let fs = core.fs.lock();
                (fs.volume().given_up(), fs.volume().rewritten_blocks(), Duration::from_secs(3600))
            };
            core.space.ran(None, Some(now));
        };
        let wait_for = |what: &dyn Fn() -> bool| {
            let until = Instant::now() + Duration::from_secs(60);
            while !what() {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // The pass that found nothing may have been under way before.
        found_nothing();
        wait_for(&|| core.space.is_wanted());
        assert_eq!(told.lock().len(), 1);
        found_nothing();
        wait_for(&|| told.lock().len() == 2);
        assert_eq!(*told.lock(), [Err(libc::ENOSPC); 2]);
        assert!(core.fs.lock().volume().check_space(1).is_ok(), "who wants less is not refused");
    }
}
