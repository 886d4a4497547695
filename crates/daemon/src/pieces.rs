//! `fallocate` over much that is written: which of it is a hole only the file's map tells, and reading that takes long.
//! So it goes piece by piece, each as a request of its own with the lock let go in between. One thread does that, and whoever
//! asks for such gets his turn for a piece: all of them need the lock, and more threads would do no more.
//!
//! What the pieces before promised is taken back where one is refused.

use std::sync::Arc;

use silt_fs::{Context, Fs, fallocate_mode};
use silt_fuse::Errno;

use crate::convert::ino;
use crate::core::Core;
use crate::promise::Promise;
use crate::reserving::{self, Answer, Range};

/// Blocks of a piece: some milliseconds of reading a map.
const PIECE: u64 = 16_384;

/// Does it, now or when there is space, and answers.
pub fn fallocate(
    core: &Arc<Core>,
    ctx: Context,
    range: Range,
    answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
) {
    let long = is_long(&mut core.fs.lock(), &range);
    match long {
        Some(least) => in_pieces(core, ctx, range, least, Box::new(answer)),
        None => reserving::fallocate(core, ctx, range, Box::new(answer)),
    }
}

/// Where a range is to go in pieces: blocks that are lacking at least.
fn is_long(fs: &mut Fs, range: &Range) -> Option<u64> {
    // What is wrong with it is told when it is done.
    let (looks, least) = fs.looks_at(ino(range.node), range.mode, range.offset, range.length).ok()?;
    (looks > PIECE).then_some(least)
}

/// Does it in pieces. Nobody waits for, or is made to give up the past for, what cannot come: `least` blocks.
fn in_pieces(core: &Arc<Core>, ctx: Context, range: Range, least: u64, answer: Answer) {
    let (piece, promise) = {
        let mut fs = core.fs.lock();
        let wanted = if least == 0 { 0 } else { least.saturating_add(fs.kept_for_promises()) };
        if wanted > 0 && fs.volume().check_space(wanted).is_err() && !fs.could_have(wanted).unwrap_or(false) {
            drop(fs);
            return answer(Err(Errno::ENOSPC));
        }
        (PIECE << fs.volume().geometry().block_bits, Promise::begin(core, &fs, &range))
    };
    Pieces { ctx, range, piece, at: range.offset, promise, answer }.turn(core);
}

/// One that is under way.
struct Pieces {
    ctx: Context,
    range: Range,
    /// Bytes of a piece.
    piece: u64,
    /// Where the next one begins.
    at: u64,
    /// What those before promised.
    promise: Promise,
    answer: Answer,
}

impl Pieces {
    /// Goes on when the pieces had their turn that others wait for. Where there is no thread, and where the mount ends, its
    /// answer is EIO.
    fn turn(self, core: &Arc<Core>) {
        core.beside.pieces.start(core, Box::new(move |core| self.go_on(core)));
    }

    fn go_on(mut self, core: &Arc<Core>) {
        let Range { node, mode, offset, length } = self.range;
        let end = offset.saturating_add(length);
        if self.at >= end {
            self.promise.keep();
            return (self.answer)(Ok(()));
        }
        let bytes = self.at..((self.at / self.piece + 1) * self.piece).min(end);
        // The last one makes the file longer, where it is to be.
        let mode = if bytes.end == end { mode } else { mode | fallocate_mode::KEEP_SIZE };
        let part = Range { node, mode, offset: bytes.start, length: bytes.end - bytes.start };
        let (ctx, shared) = (self.ctx.clone(), core.clone());
        let told = move |result| {
            if let Err(errno) = result {
                drop(self.promise);
                return (self.answer)(Err(errno));
            }
            self.at = bytes.end;
            self.turn(&shared);
        };
        reserving::fallocate(core, ctx, part, Box::new(told));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use silt_format::Ino;
    use silt_fs::WriteFlags;

    use super::*;
    use crate::changing::Takes;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, open};
    use crate::writer::Writer;

    const BS: u64 = 4096;

    fn ctx() -> Context {
        Context { privileged: true, ..Context::default() }
    }

    /// Blocks 0, 3, 6, ... of 3000 are written.
    fn thirds(core: &Arc<Core>, name: &[u8]) -> Ino {
        let mut fs = core.fs.lock();
        let file = fs.create(&ctx(), Ino::ROOT, name, 0o644).unwrap().ino;
        for at in (0..3000).step_by(3) {
            fs.write(&ctx(), file, at * BS, &[1; BS as usize], WriteFlags::default()).unwrap();
        }
        fs.sync_all(3000).unwrap();
        file
    }

    fn range(file: Ino, length: u64) -> Range {
        Range { node: file.0, mode: 0, offset: 5 * BS + 7, length }
    }

    /// What comes of one in pieces of so many bytes.
    fn all_of_it(core: &Arc<Core>, range: Range, piece: u64) -> Result<(), Errno> {
        let (tell, told) = std::sync::mpsc::channel();
        let answer: Answer = Box::new(move |result| tell.send(result).unwrap());
        let (at, promise) = (range.offset, Promise::begin(core, &core.fs.lock(), &range));
        Pieces { ctx: ctx(), range, piece, at, promise, answer }.turn(core);
        told.recv().unwrap()
    }

    #[test]
    fn pieces_promise_what_the_whole_does() {
        let core = Core::new(open(Arc::new(mkfs_of(256 << 20, 64))), MountOptions::default());
        let (whole, parted) = (thirds(&core, b"whole"), thirds(&core, b"parted"));
        let length = 6000 * BS;
        core.fs.lock().fallocate(&ctx(), whole, 0, 5 * BS + 7, length).unwrap();
        all_of_it(&core, range(parted, length), 700 * BS).unwrap();
        let mut fs = core.fs.lock();
        let mut told = |file: Ino| {
            let each: Vec<u64> = (0..6100).map(|n| fs.promised_in(file, n * BS..(n + 1) * BS)).collect();
            (fs.getattr(silt_engine::Tree::Live, file).unwrap().size, each)
        };
        let (a, b) = (told(whole), told(parted));
        assert_eq!(a, b);
        assert_eq!((a.0, a.1.iter().sum::<u64>()), (5 * BS + 7 + length, 6001 - 998));
    }

    #[test]
    fn what_a_refused_piece_leaves_is_what_was_promised_before() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let file = thirds(&core, b"f");
        core.fs.lock().fallocate(&ctx(), file, fallocate_mode::KEEP_SIZE, 1000 * BS, 10 * BS).unwrap();
        let before = core.fs.lock().kept_for_promises();
        let promised = core.fs.lock().promised_in(file, 0..60 << 20);
        let size = 2998 * BS;
        // More than there is, and what is lacking at least could be had.
        let over = AtomicBool::new(false);
        let mut writer = Writer::new(core.clone(), Duration::from_secs(5));
        let refused = std::thread::scope(|scope| {
            // What waits for room goes on when something was written.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    writer.serve(Vec::new(), true);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let refused = all_of_it(&core, range(file, 60 << 20), 100 * BS);
            over.store(true, Ordering::Relaxed);
            refused
        });
        assert_eq!(refused, Err(Errno::ENOSPC));
        let mut fs = core.fs.lock();
        assert_eq!(fs.promised_in(file, 0..60 << 20), promised);
        assert_eq!(fs.kept_for_promises(), before);
        assert_eq!(fs.getattr(silt_engine::Tree::Live, file).unwrap().size, size);
    }

    /// As where no thread can be begun, or the mount ends.
    #[test]
    fn what_is_let_go_of_between_two_pieces_leaves_nothing_promised() {
        let core = Core::new(open(Arc::new(mkfs_of(256 << 20, 64))), MountOptions::default());
        let file = thirds(&core, b"f");
        core.fs.lock().fallocate(&ctx(), file, fallocate_mode::KEEP_SIZE, 1000 * BS, 10 * BS).unwrap();
        let before = core.fs.lock().kept_for_promises();
        let stop = || {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            core.beside.pieces.start(&core, Box::new(move |_| wait.recv().unwrap_or(())));
            go
        };
        let first = stop();
        let (tell, told) = std::sync::mpsc::channel();
        let answer: Answer = Box::new(move |result| tell.send(result).unwrap());
        in_pieces(&core, ctx(), range(file, 2 * PIECE * BS), 0, answer);
        let second = stop();
        drop(first);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while core.fs.lock().kept_for_promises() == before {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        // The next one is to wait for room, and nobody waits any more.
        core.pace(Takes::NAMES, Box::new(|_| {}));
        core.queue.lock().stop = true;
        drop(second);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
        assert_eq!(core.fs.lock().kept_for_promises(), before);
    }

    /// Where nothing is to be looked at it is done at once.
    #[test]
    fn only_what_is_written_is_looked_at() {
        let core = Core::new(open(Arc::new(mkfs_of(256 << 20, 64))), MountOptions::default());
        let file = thirds(&core, b"f");
        let mut fs = core.fs.lock();
        assert_eq!(is_long(&mut fs, &range(file, 200 << 20)), None);
        let all = 16_400 * BS;
        for at in (3000 * BS..all).step_by(1 << 16) {
            fs.write(&ctx(), file, at, &[1; 1 << 16], WriteFlags::default()).unwrap();
        }
        fs.sync_all(3001).unwrap();
        assert_eq!(is_long(&mut fs, &range(file, all)), None, "a third of the first 3000");
        for at in (all..all + 3000 * BS).step_by(1 << 16) {
            fs.write(&ctx(), file, at, &[1; 1 << 16], WriteFlags::default()).unwrap();
        }
        assert!(is_long(&mut fs, &range(file, 2 * all)).is_some());
        assert_eq!(is_long(&mut fs, &Range { mode: 3, ..range(file, 2 * all) }), None);
    }

    /// Threads of this process with that name.
    fn threads(name: &str) -> usize {
        let is_one = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok).filter(is_one).count()
    }

    /// Any number can be asked for, by anybody who may write a file; at the end all have their answer.
    #[test]
    fn few_threads_do_what_many_ask_for() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let file = {
            let mut fs = core.fs.lock();
            let file = fs.create(&ctx(), Ino::ROOT, b"f", 0o644).unwrap().ino;
            let mut at = 0;
            while fs.write(&ctx(), file, at, &[1; 1 << 16], WriteFlags::default()).is_ok() {
                at += 1 << 16;
                fs.sync_all(3000).unwrap();
            }
            let clean_segments = fs.volume().stat().unwrap().clean_segments;
            let rewritten = fs.volume().rewritten_blocks();
            let reclaimable = silt_fs::Reclaimable { blocks: 2000, clean_segments, rewritten };
            fs.set_reclaimable(Some(reclaimable));
            file
        };
        core.space.enable(true);
        let (tell, told) = std::sync::mpsc::channel();
        for n in 0..200 {
            let tell = tell.clone();
            let range = Range { node: file.0, mode: 0, offset: 1 << 40, length: 1500 * BS };
            let answer: Answer = Box::new(move |result| tell.send(result).unwrap());
            match n % 2 {
                0 => reserving::fallocate(&core, ctx(), range, answer),
                _ => in_pieces(&core, ctx(), range, 0, answer),
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        let threads = threads("fallocate");
        // Those of other tests count as well.
        assert!((1..10).contains(&threads), "{threads}");
        assert!(told.try_recv().is_err() && core.space.is_wanted());
        core.space.stop();
        core.queue.lock().stop = true;
        for _ in 0..200 {
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Err(Errno::ENOSPC)));
        }
    }
}
