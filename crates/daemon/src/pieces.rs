//! `fallocate` over much that is written: which of it is a hole only the file's map tells, and reading that takes long.
//! So it goes piece by piece, on a thread of its own, each as a request of its own with the lock let go in between.
//!
//! What the pieces before promised is taken back where one is refused, but for pieces in which something had been
//! promised before.

use std::ops::Range as Bytes;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rangemap::RangeSet;
use silt_fs::{Context, Fs, fallocate_mode};
use silt_fuse::Errno;

use crate::convert::ino;
use crate::core::Core;
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
    let piece = {
        let mut fs = core.fs.lock();
        let wanted = if least == 0 { 0 } else { least.saturating_add(fs.kept_for_promises()) };
        if wanted > 0 && fs.volume().check_space(wanted).is_err() && !fs.could_have(wanted).unwrap_or(false) {
            drop(fs);
            return answer(Err(Errno::ENOSPC));
        }
        PIECE << fs.volume().geometry().block_bits
    };
    let shared = core.clone();
    let all = move || answer(one_after_the_other(&shared, &ctx, range, piece));
    // Where there is no thread its answer is EIO.
    if let Err(e) = std::thread::Builder::new().name("fallocate".into()).spawn(all) {
        tracing::warn!("no thread to reserve space: {e}");
    }
}

fn one_after_the_other(core: &Arc<Core>, ctx: &Context, range: Range, piece: u64) -> Result<(), Errno> {
    let mut promised = RangeSet::new();
    let end = range.offset.saturating_add(range.length);
    let mut at = range.offset;
    while at < end {
        let next = ((at / piece + 1) * piece).min(end);
        // The last one makes the file longer, where it is to be.
        let mode = if next == end { range.mode } else { range.mode | fallocate_mode::KEEP_SIZE };
        let part = Range { node: range.node, mode, offset: at, length: next - at };
        let is_new = core.fs.lock().promised_in(ino(range.node), at..next) == 0;
        if let Err(errno) = one(core, ctx.clone(), part) {
            take_back(core, range, &promised);
            return Err(errno);
        }
        if is_new {
            promised.insert(at..next);
        }
        at = next;
    }
    Ok(())
}

/// Does one and waits for what comes of it.
fn one(core: &Arc<Core>, ctx: Context, part: Range) -> Result<(), Errno> {
    let (told, hears) = channel();
    reserving::fallocate(core, ctx, part, Box::new(move |result| told.send(result).unwrap_or(())));
    // Who was to tell it is gone where the mount ends.
    hears.recv().unwrap_or(Err(Errno::EIO))
}

fn take_back(core: &Arc<Core>, range: Range, promised: &RangeSet<u64>) {
    let mut fs = core.fs.lock();
    let bytes: Vec<Bytes<u64>> = promised.iter().cloned().collect();
    bytes.into_iter().for_each(|bytes| fs.promise_no_more(ino(range.node), bytes));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use silt_format::Ino;
    use silt_fs::WriteFlags;

    use super::*;
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

    #[test]
    fn pieces_promise_what_the_whole_does() {
        let core = Core::new(open(Arc::new(mkfs_of(256 << 20, 64))), MountOptions::default());
        let (whole, parted) = (thirds(&core, b"whole"), thirds(&core, b"parted"));
        let length = 6000 * BS;
        core.fs.lock().fallocate(&ctx(), whole, 0, 5 * BS + 7, length).unwrap();
        one_after_the_other(&core, &ctx(), range(parted, length), 700 * BS).unwrap();
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
            let refused = one_after_the_other(&core, &ctx(), range(file, 60 << 20), 100 * BS);
            over.store(true, Ordering::Relaxed);
            refused
        });
        assert_eq!(refused, Err(Errno::ENOSPC));
        let mut fs = core.fs.lock();
        assert!(
            fs.promised_in(file, 1000 * BS..1010 * BS) >= 6,
            "promised before, and some of the same piece"
        );
        let more = fs.kept_for_promises() - before;
        assert!(more <= 100, "{more} blocks are left promised");
        assert_eq!(fs.getattr(silt_engine::Tree::Live, file).unwrap().size, size);
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
}
