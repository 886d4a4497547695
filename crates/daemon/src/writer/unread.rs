//! A checkpoint for which something cannot be read that it needs: blocks of the tables, nodes of files' maps.
//!
//! It is read again at once a few times, then by the next round, as a log that cannot be written is written again; callers
//! get the error meanwhile. After a while it costs what it hits: the file, or all writing where it belongs to all files.

use std::time::{Duration, Instant};

use silt_engine::Error as EngineError;

use super::Writer;
use super::output::TRIES;

/// For so long a checkpoint is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

/// What cannot be read at present.
pub(super) struct Unread {
    since: Option<Instant>,
    /// Failures since the round began or something was read.
    tries: u32,
    pub(super) patience: Duration,
}

impl Default for Unread {
    fn default() -> Self {
        Unread { since: None, tries: 0, patience: PATIENCE }
    }
}

impl Writer {
    /// Whether the step that met this error is to be tried again at once. If not, the round ends, and writing too where the
    /// volume says so.
    pub(super) fn is_read_again(&mut self, e: &EngineError) -> bool {
        let mut fs = self.core.fs.lock();
        if fs.volume().failure().is_some() {
            drop(fs);
            tracing::error!("{e}");
            self.end();
            return false;
        }
        let (unread, pause) = (&mut self.unread, self.pause);
        unread.tries += 1;
        if unread.tries < TRIES {
            drop(fs);
            std::thread::sleep(pause);
            return true;
        }
        unread.tries = 0;
        if unread.since.is_none() {
            tracing::error!("no checkpoint can be made as long as what it needs cannot be read: {e}");
        }
        if unread.since.get_or_insert_with(Instant::now).elapsed() >= unread.patience {
            fs.volume_mut().be_patient(false);
        }
        false
    }

    /// A construction is complete.
    pub(super) fn everything_was_read(&mut self) {
        self.unread.tries = 0;
        if self.unread.since.take().is_some() {
            self.core.fs.lock().volume_mut().be_patient(true);
            tracing::info!("checkpoints are made again");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use silt_device::{Device, Fault, MemoryDevice, Times};
    use silt_engine::{OpenOptions, Tree, Volume};
    use silt_format::Ino;
    use silt_fs::{Context, Fs, WriteFlags};

    use super::*;
    use crate::config::MountOptions;
    use crate::core::{Core, Waiter, Want};
    use crate::fault_tests::{check, mkfs_of, open};

    const SIZE: u64 = 32 << 20;
    /// Blocks of a file whose map has nodes, and of one without.
    const MANY: usize = 40;
    const FEW: usize = 3;

    fn write(fs: &mut Fs, name: &str, fill: u8, blocks: usize) {
        let ctx = Context { privileged: true, ..Context::default() };
        let ino = match fs.lookup(Tree::Live, Ino::ROOT, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(_) => fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644).unwrap().ino,
        };
        fs.write(&ctx, ino, 0, &vec![fill; blocks * 4096], WriteFlags::default()).unwrap();
    }

    /// A volume with a past of many segments, closed.
    fn base(blocks: usize) -> MemoryDevice {
        let device = Arc::new(mkfs_of(SIZE, 64));
        let mut fs = open(device.clone());
        for round in 1..30 {
            write(&mut fs, "f", round, blocks);
            fs.sync_all(2000).unwrap();
        }
        fs.volume_mut().close(2001).unwrap();
        device.fork()
    }

    /// A copy of a volume, on a device that can fail, of which next to nothing stays in memory.
    fn opened(base: &MemoryDevice) -> (Arc<Fault<MemoryDevice>>, Fs) {
        let device = Arc::new(Fault::new(base.fork()));
        let options = OpenOptions { cache_bytes: 4096, now: 3000, ..OpenOptions::default() };
        let (mut volume, _) = Volume::open(device.clone(), &options).unwrap();
        volume.take_over(3000).unwrap();
        (device, Fs::new(volume, &silt_fs::Options::default()))
    }

    /// A log writer, without its thread, over a volume of which next to nothing stays in memory, and something to write.
    fn prepared(base: &MemoryDevice, blocks: usize) -> (Arc<Fault<MemoryDevice>>, Writer) {
        let (device, mut fs) = opened(base);
        write(&mut fs, "f", 77, blocks);
        write(&mut fs, "g", 78, blocks);
        let core = Core::new(fs, MountOptions::default());
        (device, Writer::new(core, Duration::from_secs(3600)))
    }

    fn sync(writer: &mut Writer) -> Result<(), i32> {
        sync_for(writer, Want::All)
    }

    fn sync_for(writer: &mut Writer, want: Want) -> Result<(), i32> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        let answer = move |result| tx.send(result).unwrap();
        writer.serve(vec![Waiter { want, answer: Box::new(answer) }], true);
        rx.try_recv().unwrap()
    }

    /// Who hears that the host is full, and who only made a name, does not use up what another is to hear.
    #[test]
    fn lost_content_is_told_once_the_stall_is_over_to_who_syncs_everything() {
        let (device, mut writer) = prepared(&base(FEW), FEW);
        sync(&mut writer).unwrap();
        writer.lost = true;
        write(&mut writer.core.fs.lock(), "h", 79, FEW);
        device.limit_space(Some(0));
        assert_eq!(sync(&mut writer), Err(libc::ENOSPC));
        device.heal();
        assert_eq!(sync_for(&mut writer, Want::Changes), Ok(()));
        assert_eq!(sync(&mut writer), Err(libc::EIO));
        assert_eq!(sync(&mut writer), Ok(()));
    }

    /// Whether the one read that was to fail after so many has come.
    fn has_struck(device: &Fault<MemoryDevice>, reads: u32) -> bool {
        (0..=reads).all(|_| device.read_at(0, &mut [0]).is_ok())
    }

    /// Whatever a checkpoint reads, it is read again.
    #[test]
    fn a_read_that_fails_once_costs_nothing() {
        for blocks in [FEW, MANY] {
            let base = base(blocks);
            let mut reads = 0;
            loop {
                let (device, mut writer) = prepared(&base, blocks);
                device.fail_reads(0..u64::MAX, Times::Later { after: reads, times: 1 });
                let first = sync(&mut writer);
                if !has_struck(&device, reads) {
                    break;
                }
                assert!(first.is_ok() || sync(&mut writer).is_ok(), "read {reads}");
                check(device.inner().fork(), &[("f", 77, blocks), ("g", 78, blocks)]);
                reads += 1;
            }
            assert!(reads > 5, "only {reads} are needed");
        }
    }

    /// A device that cannot be read for a while: whoever syncs hears of it, and nothing is lost.
    #[test]
    fn a_device_that_is_read_again_later_has_everything() {
        let base = base(FEW);
        let (mut reads, mut kept) = (0, 0);
        loop {
            let (device, mut writer) = prepared(&base, FEW);
            device.fail_reads(0..u64::MAX, Times::Later { after: reads, times: u32::MAX });
            if sync(&mut writer).is_ok() {
                break;
            }
            assert_eq!(
                (sync(&mut writer), writer.core.stall()),
                (Err(libc::EIO), Some(libc::EIO)),
                "read {reads}"
            );
            let begun = writer.core.fs.lock().volume().is_constructing();
            device.heal();
            // What is a file's alone is waited for in the round only: then it is told that it is lost.
            let lost = sync(&mut writer).is_err();
            assert!(begun || !lost, "read {reads}");
            assert_eq!((sync(&mut writer), writer.core.stall()), (Ok(()), None), "read {reads}");
            let all = [("f", 77, FEW), ("g", 78, FEW)];
            check(device.inner().fork(), if lost { &[] } else { &all });
            kept += u64::from(begun && !lost);
            reads += 1;
        }
        println!("{kept} of {reads}");
        assert!(kept > 3, "{kept} of {reads}");
    }

    /// One that is refused before it begins waits for the clock as before, whatever else succeeds meanwhile.
    #[test]
    fn the_clock_does_not_forget_a_checkpoint_that_was_refused() {
        let (device, mut writer) = prepared(&base(FEW), FEW);
        writer.core.touched();
        device.fail_reads(0..u64::MAX, Times::Always);
        assert_eq!(sync(&mut writer), Err(libc::EIO));
        assert!(!writer.core.fs.lock().volume().is_constructing());
        device.heal();
        // A data-sync log of another file, say.
        writer.note(None);
        assert!(writer.core.changed.load(Ordering::Relaxed), "nobody would come again");
        writer.interval = Duration::ZERO;
        let task = writer.next();
        assert!(task.all);
        writer.round(task);
        check(device.inner().fork(), &[("f", 77, FEW), ("g", 78, FEW)]);
    }

    /// Where it does not pass writing ends, which is said, and what is there is read all the same.
    #[test]
    fn what_can_never_be_read_ends_writing_in_the_end() {
        let base = base(FEW);
        let (mut device, mut writer) = prepared(&base, FEW);
        // Behind what a checkpoint reads before it begins.
        let mut reads = 0;
        while !writer.core.fs.lock().volume().is_constructing() {
            (device, writer) = prepared(&base, FEW);
            device.fail_reads(0..u64::MAX, Times::Later { after: reads, times: u32::MAX });
            assert_eq!(sync(&mut writer), Err(libc::EIO));
            reads += 1;
        }
        for _ in 0..3 {
            assert_eq!(sync(&mut writer), Err(libc::EIO));
        }
        assert_eq!(writer.core.fs.lock().volume().failure(), None, "it may pass yet");
        writer.unread.patience = Duration::ZERO;
        for _ in 0..2 {
            assert_eq!(sync(&mut writer), Err(libc::EIO));
        }
        device.heal();
        assert_eq!(sync(&mut writer), Err(libc::EIO));
        let mut fs = writer.core.fs.lock();
        assert!(fs.volume().failure().unwrap().contains("writing a checkpoint failed"));
        let ino = fs.lookup(Tree::Live, Ino::ROOT, b"f").unwrap().ino;
        assert_eq!(fs.read(Tree::Live, ino, 0, usize::MAX).unwrap(), vec![77; FEW * 4096]);
        drop(fs);
        check(device.inner().fork(), &[("f", 29, FEW)]);
    }

    /// Blocks of a file with a map of several leaves, and what each is filled with.
    const MAPPED: usize = 900;

    fn pattern(block: usize) -> u8 {
        (block % 251 + 1) as u8
    }

    /// A file of so many blocks, one leaf after the other, closed.
    fn mapped(blocks: usize) -> MemoryDevice {
        let device = Arc::new(mkfs_of(64 << 20, 64));
        let mut fs = open(device.clone());
        let ctx = Context { privileged: true, ..Context::default() };
        let ino = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        let data: Vec<u8> = (0..blocks).flat_map(|k| vec![pattern(k); 4096]).collect();
        fs.write(&ctx, ino, 0, &data, WriteFlags::default()).unwrap();
        fs.sync_all(2000).unwrap();
        fs.volume_mut().close(2001).unwrap();
        device.fork()
    }

    /// Something is done to that file, and each single read of the checkpoint fails once: it is as it was to be, and the volume
    /// is sound. `zero`: the blocks that are holes then, before the end or behind it.
    fn with_each_read_failing_once(
        blocks: usize,
        zero: std::ops::Range<usize>,
        change: impl Fn(&mut Fs, &Context, Ino),
    ) -> u32 {
        let base = mapped(blocks);
        let ctx = Context { privileged: true, ..Context::default() };
        let mut reads = 0;
        loop {
            let (device, mut fs) = opened(&base);
            let ino = fs.lookup(Tree::Live, Ino::ROOT, b"f").unwrap().ino;
            change(&mut fs, &ctx, ino);
            let mut writer = Writer::new(Core::new(fs, MountOptions::default()), Duration::from_secs(3600));
            device.fail_reads(0..u64::MAX, Times::Later { after: reads, times: 1 });
            let first = sync(&mut writer);
            if !has_struck(&device, reads) {
                return reads;
            }
            device.heal();
            assert!(first.is_ok() || sync(&mut writer).is_ok(), "read {reads}");
            drop(writer);
            let device = Arc::new(device.inner().fork());
            let report = silt_verify::check(&*device, &silt_verify::Options::default());
            assert!(report.is_clean(), "read {reads}: {}", report.error_text());
            let mut fs = open(device);
            let Ok(found) = fs.lookup(Tree::Live, Ino::ROOT, b"f") else {
                assert_eq!(zero, 0..0, "read {reads}");
                reads += 1;
                continue;
            };
            for k in 0..blocks {
                let read = fs.read(Tree::Live, found.ino, k as u64 * 4096, 4096);
                let expected = if zero.contains(&k) { 0 } else { pattern(k) };
                let whole = read.as_ref().is_ok_and(|data| data.iter().all(|b| *b == expected));
                assert!(whole, "read {reads}, block {k}");
            }
            reads += 1;
        }
    }

    fn punch(fs: &mut Fs, ctx: &Context, ino: Ino, blocks: &std::ops::Range<usize>) {
        let mode = silt_fs::fallocate_mode::PUNCH_HOLE | silt_fs::fallocate_mode::KEEP_SIZE;
        let (from, len) = (blocks.start as u64 * 4096, blocks.len() as u64 * 4096);
        fs.fallocate(ctx, ino, mode, from, len).unwrap();
    }

    #[test]
    fn holes_are_made_though_a_read_fails_once() {
        for hole in [256..509, 300..450, 1..201] {
            let change = |fs: &mut Fs, ctx: &Context, ino| punch(fs, ctx, ino, &hole);
            assert!(with_each_read_failing_once(MAPPED, hole.clone(), change) > 10);
        }
        // Its leaf holds nothing else.
        let change = |fs: &mut Fs, ctx: &Context, ino| punch(fs, ctx, ino, &(255..256));
        assert!(with_each_read_failing_once(256, 255..256, change) > 5);
    }

    #[test]
    fn files_are_cut_off_and_deleted_though_a_read_fails_once() {
        let change = |fs: &mut Fs, ctx: &Context, ino| {
            for blocks in [300, MAPPED as u64] {
                let set = silt_fs::SetAttr { size: Some(blocks * 4096), ..Default::default() };
                fs.setattr(ctx, ino, &set).unwrap();
            }
        };
        assert!(with_each_read_failing_once(MAPPED, 300..MAPPED, change) > 10);
        let change = |fs: &mut Fs, ctx: &Context, _| {
            fs.unlink(ctx, Ino::ROOT, b"f").unwrap();
            fs.forget_all().unwrap();
        };
        assert!(with_each_read_failing_once(MAPPED, 0..0, change) > 10);
    }

    /// What cannot be cut away is content that is lost: whoever syncs hears of it.
    #[test]
    fn a_hole_that_cannot_be_made_is_told() {
        let base = mapped(MAPPED);
        let ctx = Context { privileged: true, ..Context::default() };
        let mut left = 0;
        for reads in 0..60 {
            let (device, mut fs) = opened(&base);
            let ino = fs.lookup(Tree::Live, Ino::ROOT, b"f").unwrap().ino;
            punch(&mut fs, &ctx, ino, &(300..450));
            let core = Core::new(fs, MountOptions::default());
            let mut writer = Writer::new(core.clone(), Duration::from_secs(3600));
            device.fail_reads(0..u64::MAX, Times::Later { after: reads, times: u32::MAX });
            let first = sync(&mut writer);
            device.heal();
            let again = sync(&mut writer);
            let mut fs = core.fs.lock();
            let old = (300..450u64)
                .filter(|k| !fs.read(Tree::Live, ino, k * 4096, 4096).is_ok_and(|data| data[0] == 0))
                .count();
            assert!(old == 0 || first.is_err() || again.is_err(), "read {reads}: {old} blocks are left");
            left += u32::from(old > 0);
        }
        assert!(left > 0, "nothing was left anywhere");
    }
}
