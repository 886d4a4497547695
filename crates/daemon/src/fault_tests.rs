//! The log writer on devices that fail: nothing acknowledged is lost, callers hear of what is not written,
//! and it goes on when the device does.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use silt_device::{Capabilities, Device, Fault, MemoryDevice, Times};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::Ino;
use silt_format::super_block::{Copy, PRIMARY_OFFSET, secondary_offset};
use silt_fs::{Context, Fs, FsError, WriteFlags};

use crate::changing::Change;
use crate::config::{MountOptions, OnError};
use crate::core::{Core, Want};
use crate::damage::Met;
use crate::writer::Writer;

const SIZE: u64 = 48 << 20;

/// A file on a host with a page cache: writes land in memory, and a flush that fails drops what it could not
/// write, once: the next flush knows nothing of it.
struct PageCache {
    shown: MemoryDevice,
    medium: Fault<MemoryDevice>,
    waiting: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Flushes that fail whatever they have to write.
    bad_flushes: AtomicU32,
    failed_flushes: AtomicU64,
    /// Flushes before which somebody else's fails.
    stolen: AtomicU32,
    /// Flushes before those.
    spared: AtomicU32,
}

impl PageCache {
    fn new(base: &MemoryDevice) -> Self {
        PageCache {
            shown: base.fork(),
            medium: Fault::new(base.fork()),
            waiting: Mutex::default(),
            bad_flushes: AtomicU32::new(0),
            failed_flushes: AtomicU64::new(0),
            stolen: AtomicU32::new(0),
            spared: AtomicU32::new(0),
        }
    }
}

impl Device for PageCache {
    fn len(&self) -> u64 {
        self.shown.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.shown.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.shown.write_at(offset, bufs)?;
        self.waiting.lock().push((offset, bufs.concat()));
        Ok(())
    }
    fn flush(&self) -> silt_device::Result<()> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let less = |n: u32| n.checked_sub(1);
        let spared = self.spared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !spared && self.stolen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.failed_flushes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if !spared && self.bad_flushes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            let broken = Fault::new(MemoryDevice::new(1));
            broken.fail_flushes(Times::Always);
            self.failed_flushes.fetch_add(1, Ordering::Relaxed);
            return broken.flush();
        }
        let mut result = Ok(());
        for (offset, bytes) in waiting {
            result = result.and(self.medium.write_at(offset, &[&bytes]));
        }
        if result.is_err() {
            self.failed_flushes.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
    fn write_durably(&self, offset: u64, buf: &[u8]) -> silt_device::Result<()> {
        self.flush()?;
        self.shown.write_at(offset, &[buf])?;
        let written = self.medium.write_at(offset, &[buf]);
        if written.is_err() && !self.waiting.lock().is_empty() {
            self.failed_flushes.fetch_add(1, Ordering::Relaxed);
        }
        written
    }
    fn failed_flushes(&self) -> u64 {
        self.failed_flushes.load(Ordering::Relaxed)
    }
    fn discard(&self, _: u64, _: u64) -> silt_device::Result<()> {
        Ok(())
    }
    fn capabilities(&self) -> Capabilities {
        self.shown.capabilities()
    }
}

fn mkfs() -> MemoryDevice {
    mkfs_of(SIZE, 64)
}

pub(crate) fn mkfs_of(size: u64, blocks_per_segment: u32) -> MemoryDevice {
    mkfs_with(size, blocks_per_segment, 4096)
}

/// The same with blocks of so many bytes.
pub(crate) fn mkfs_with(size: u64, blocks_per_segment: u32, block_size: u32) -> MemoryDevice {
    let device = MemoryDevice::new(size);
    let parameters = Parameters {
        block_size,
        blocks_per_segment,
        uuid: [1; 16],
        crc_seed: 77,
        now: 1000,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, size).unwrap().write(&device, false).unwrap();
    device
}

pub(crate) fn open(device: Arc<dyn Device>) -> Fs {
    let (mut volume, _) = Volume::open(device, &OpenOptions { now: 2000, ..OpenOptions::default() }).unwrap();
    volume.take_over(2000).unwrap();
    Fs::new(volume, &silt_fs::Options::default())
}

/// A core with its log writer.
pub(crate) struct Served {
    pub core: Arc<Core>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    pub fn new(device: Arc<dyn Device>, options: MountOptions) -> Self {
        let core = Core::new(open(device), options);
        let writer = Writer::new(core.clone(), Duration::from_secs(3600));
        Served { core, writer: Some(std::thread::spawn(move || writer.run())) }
    }

    fn ctx() -> Context {
        Context { privileged: true, ..Context::default() }
    }

    pub fn write(&self, name: &str, fill: u8, blocks: usize) -> Result<Ino, FsError> {
        let mut fs = self.core.fs.lock();
        let ino = match fs.lookup(Tree::Live, Ino::ROOT, name.as_bytes()) {
            Ok(s) => s.ino,
            Err(_) => fs.create(&Self::ctx(), Ino::ROOT, name.as_bytes(), 0o644)?.ino,
        };
        fs.write(&Self::ctx(), ino, 0, &vec![fill; blocks * 4096], WriteFlags::default())?;
        drop(fs);
        self.core.touched();
        Ok(ino)
    }

    pub fn sync(&self) -> Result<(), i32> {
        self.core.sync_and_wait(Want::All)
    }

    /// Syncs until it works, as a caller would that does not give up.
    #[track_caller]
    pub fn sync_at_last(&self) {
        let begin = Instant::now();
        while self.sync().is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it never works again");
        }
    }

    pub fn stop(&mut self) {
        self.core.queue.lock().stop = true;
        self.core.wake.notify_all();
        self.core.room.notify_all();
        if let Some(writer) = self.writer.take() {
            writer.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is on a device is sound, and files hold what they shall.
#[track_caller]
pub(crate) fn check(device: MemoryDevice, files: &[(&str, u8, usize)]) {
    let device = Arc::new(device);
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert!(report.is_clean(), "{}", report.error_text());
    let mut fs = open(device.clone());
    for (name, fill, blocks) in files {
        let ino = fs.lookup(Tree::Live, Ino::ROOT, name.as_bytes()).unwrap().ino;
        assert_eq!(fs.read(Tree::Live, ino, 0, usize::MAX).unwrap(), vec![*fill; blocks * 4096], "{name}");
    }
    fs.volume_mut().close(9000).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert!(report.is_clean(), "after recovery: {}", report.error_text());
}

/// After a flush that failed the host has forgotten what it could not write. Whatever is acknowledged later
/// is on the medium all the same.
#[test]
fn a_failed_flush_loses_nothing() {
    for failures in [1, 2, 3, 7] {
        // Small: one log. Large: logs in several segments, with a flush of their own in between.
        for blocks in [3, 300] {
            let device = Arc::new(PageCache::new(&mkfs()));
            let mut served = Served::new(device.clone(), MountOptions::default());
            served.write("before", 1, 4).unwrap();
            served.sync().unwrap();
            served.write("f", 2, blocks).unwrap();
            device.bad_flushes.store(failures, Ordering::Relaxed);
            served.sync_at_last();
            let files = [("before", 1, 4), ("f", 2, blocks)];
            check(device.medium.inner().fork(), &files);
            served.write("before", 3, 4).unwrap();
            served.write("after", 4, 4).unwrap();
            served.sync_at_last();
            check(device.medium.inner().fork(), &[("before", 3, 4), ("f", 2, blocks), ("after", 4, 4)]);
            served.stop();
        }
    }
}

/// Somebody else, who writes a super block, is told that a flush failed; the log writer's own, after it, has nothing to
/// complain of.
#[test]
fn a_flush_that_failed_for_somebody_else_loses_nothing() {
    for (stolen, blocks) in [(1, 3), (2, 3), (1, 300)] {
        let device = Arc::new(PageCache::new(&mkfs()));
        let mut served = Served::new(device.clone(), MountOptions::default());
        served.write("before", 1, 4).unwrap();
        served.sync().unwrap();
        served.write("f", 2, blocks).unwrap();
        device.stolen.store(stolen, Ordering::Relaxed);
        served.sync_at_last();
        check(device.medium.inner().fork(), &[("before", 1, 4), ("f", 2, blocks)]);
        served.stop();
    }
}

/// Several files' data under one flush that fails.
#[test]
fn a_failed_flush_of_several_files_data_loses_nothing() {
    for failures in [1, 2, 5] {
        let device = Arc::new(PageCache::new(&mkfs()));
        let core = Core::new(open(device.clone()), MountOptions::default());
        let mut served = Served { core: core.clone(), writer: None };
        let inos = ["a", "b", "c"].map(|n| served.write(n, 1, 4).unwrap());
        core.fs.lock().sync_all(3000).unwrap();
        core.fs.lock().volume_mut().flush_logs().unwrap();
        for name in ["a", "b", "c"] {
            served.write(name, 2, 4).unwrap();
        }
        device.bad_flushes.store(failures, Ordering::Relaxed);
        // All three wait before the writer begins.
        let (tx, rx) = crossbeam_channel::unbounded();
        for ino in inos {
            let tx = tx.clone();
            core.sync(Want::Data(ino), Box::new(move |r| tx.send(r).unwrap()));
        }
        let writer = Writer::new(core.clone(), Duration::from_secs(3600));
        served.writer = Some(std::thread::spawn(move || writer.run()));
        let answers: Vec<_> = (0..3).map(|_| rx.recv().unwrap()).collect();
        if answers.iter().any(Result::is_err) {
            served.sync_at_last();
        }
        check(device.medium.inner().fork(), &[("a", 2, 4), ("b", 2, 4), ("c", 2, 4)]);
        served.stop();
    }
}

/// Segments of 64 blocks; the first ones hold the new volume.
fn segment(n: u64) -> Range<u64> {
    n * 64 * 4096..(n + 1) * 64 * 4096
}

/// One bad place: the log goes elsewhere, callers hear nothing of it.
#[test]
fn a_bad_place_is_left_out() {
    for bad in [segment(1), segment(2), segment(3), segment(1).start + 40_960..segment(1).end] {
        let base = mkfs();
        let device = Arc::new(Fault::new(base));
        let mut served = Served::new(device.clone(), MountOptions::default());
        served.write("before", 1, 4).unwrap();
        served.sync().unwrap();
        device.fail_writes(bad.clone(), Times::Always);
        for round in 2..12u8 {
            served.write("f", round, 30).unwrap();
            assert_eq!(served.sync(), Ok(()), "bad {bad:?}, round {round}");
            check(device.inner().fork(), &[("before", 1, 4), ("f", round, 30)]);
        }
        served.stop();
    }
}

/// The same where the host tells only at a flush.
#[test]
fn a_bad_place_under_a_page_cache_is_left_out() {
    for bad in [segment(1), segment(2), segment(3)] {
        let device = Arc::new(PageCache::new(&mkfs()));
        let mut served = Served::new(device.clone(), MountOptions::default());
        served.write("before", 1, 4).unwrap();
        served.sync().unwrap();
        device.medium.fail_writes(bad.clone(), Times::Always);
        for round in 2..12u8 {
            served.write("f", round, 30).unwrap();
            served.sync_at_last();
            check(device.medium.inner().fork(), &[("before", 1, 4), ("f", round, 30)]);
        }
        served.stop();
    }
}

/// A device that takes nothing for a while: callers get the error, and then it goes on.
#[test]
fn a_device_that_comes_back_has_everything() {
    for how in ["gone", "full", "flush"] {
        let device = Arc::new(Fault::new(mkfs()));
        let mut served = Served::new(device.clone(), MountOptions::default());
        served.write("before", 1, 4).unwrap();
        served.sync().unwrap();
        match how {
            "gone" => device.fail_writes(0..SIZE, Times::Always),
            "full" => device.set_full(true),
            _ => device.fail_flushes(Times::Always),
        }
        served.write("f", 2, 100).unwrap();
        let code = if how == "full" { libc::ENOSPC } else { libc::EIO };
        for _ in 0..3 {
            assert_eq!(served.sync(), Err(code), "{how}");
        }
        assert_eq!(served.core.stall(), Some(code));
        served.write("g", 3, 4).unwrap();
        assert_eq!(served.sync(), Err(code), "{how}");
        device.heal();
        served.sync_at_last();
        assert_eq!(served.core.stall(), None);
        check(device.inner().fork(), &[("before", 1, 4), ("f", 2, 100), ("g", 3, 4)]);
        served.stop();
    }
}

/// It comes back by itself, without anybody asking.
#[test]
fn what_could_not_be_written_is_tried_again_by_the_clock() {
    let device = Arc::new(Fault::new(mkfs()));
    let mut served = Served::new(device.clone(), MountOptions::default());
    device.set_full(true);
    served.write("f", 2, 10).unwrap();
    assert_eq!(served.sync(), Err(libc::ENOSPC));
    device.set_full(false);
    let begin = Instant::now();
    while served.core.stall().is_some() {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    check(device.inner().fork(), &[("f", 2, 10)]);
    served.stop();
}

/// A device that never comes back: with errors=remount-ro writing ends; in any case what was acknowledged
/// is there.
#[test]
fn a_dead_device_ends_as_was_asked_for() {
    for on_error in [OnError::Continue, OnError::RemountReadOnly] {
        let device = Arc::new(Fault::new(mkfs()));
        let mut served = Served::new(device.clone(), MountOptions { on_error, ..MountOptions::default() });
        served.write("before", 1, 4).unwrap();
        served.sync().unwrap();
        device.cut_power();
        let _ = served.write("f", 2, 10);
        assert_eq!(served.sync(), Err(libc::EIO));
        let after = served.write("before", 3, 4);
        match on_error {
            OnError::Continue => assert!(after.is_ok()),
            OnError::RemountReadOnly => assert_eq!(after.unwrap_err(), FsError::ReadOnly),
        }
        assert_eq!(served.sync(), Err(libc::EIO));
        served.stop();
        check(device.inner().fork(), &[("before", 1, 4)]);
    }
}

/// Where damage ends writing, what was changed before is written, and nothing is taken that cannot be any more.
#[test]
fn nothing_is_taken_that_will_not_be_written() {
    for round in 0..20u32 {
        let device = mkfs();
        let options = MountOptions { on_error: OnError::RemountReadOnly, ..MountOptions::default() };
        let mut served = Served::new(Arc::new(device.fork()), options);
        let mut taken = 0u32;
        loop {
            let (tx, rx) = crossbeam_channel::bounded(1);
            let name = format!("f{taken}").into_bytes();
            Change {
                names: vec![(1, name.clone())],
                node: None,
                takes: crate::changing::Takes::NAMES,
                run: move |fs: &mut Fs| Ok((fs.create(&Served::ctx(), Ino::ROOT, &name, 0o644)?, None)),
                answer: move |result: Result<silt_fs::Stat, silt_fuse::Errno>| tx.send(result).unwrap(),
                begun: false,
            }
            .start(&served.core);
            match rx.recv().unwrap() {
                Ok(_) => taken += 1,
                Err(e) => {
                    assert_eq!(e, silt_fuse::Errno::from_raw(libc::EROFS));
                    break;
                }
            }
            if taken == 10 + round {
                served.core.met_damage(Met::of(Tree::Live, Ino::ROOT, "a test"));
            }
            assert!(taken < 1_000_000, "it goes on and on");
        }
        let begin = Instant::now();
        while served.core.fs.lock().volume().failure().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let fs = served.core.fs.lock();
        assert!(!fs.volume().has_changes(), "{taken} were taken");
        drop(fs);
        served.stop();
    }
}

/// A change that asks for it is answered behind its log and a flush, and those that wait at the same time
/// share one.
#[test]
fn synchronous_changes_are_durable_and_share_a_log() {
    use silt_device::{Event, Recorder};
    let device = Arc::new(Recorder::new(mkfs()));
    let options = MountOptions { dirsync: true, ..MountOptions::default() };
    let core = Core::new(open(device.clone()), options);
    let mut served = Served { core: core.clone(), writer: None };
    let before = core.fs.lock().volume().last_log().cno;
    for i in 0..20u8 {
        let device = device.clone();
        let own = vec![b'a' + i];
        Change {
            names: vec![(1, own.clone())],
            node: None,
            takes: crate::changing::Takes::NAMES,
            run: move |fs: &mut Fs| Ok((fs.create(&Served::ctx(), Ino::ROOT, &own, 0o644)?, None)),
            answer: move |result: Result<silt_fs::Stat, silt_fuse::Errno>| {
                result.unwrap();
                device.mark(u64::from(i));
            },
            begun: false,
        }
        .start(&core);
    }
    assert!(!device.record().events().iter().any(|e| matches!(e, Event::Mark(_))), "too early");
    let writer = Writer::new(core.clone(), Duration::from_secs(3600));
    served.writer = Some(std::thread::spawn(move || writer.run()));
    served.sync().unwrap();
    served.stop();
    let (mut unflushed, mut marks) = (false, 0);
    for event in device.record().events() {
        match event {
            Event::Change(_) => unflushed = true,
            Event::Flush { .. } | Event::Durable { .. } => unflushed = false,
            Event::Mark(_) => {
                assert!(!unflushed);
                marks += 1;
            }
            Event::FlushFailed { .. } => panic!("no flush fails here"),
        }
    }
    assert_eq!((marks, core.fs.lock().volume().last_log().cno), (20, before + 1));
}

/// Where no log can be written, changes of names take a bounded amount of memory, too.
#[test]
fn names_wait_for_room_as_data_does() {
    let device = Arc::new(Fault::new(mkfs()));
    let options = MountOptions { dirty: 4 << 20, ..MountOptions::default() };
    let mut served = Served::new(device.clone(), options);
    device.set_full(true);
    let (tx, rx) = crossbeam_channel::unbounded();
    let make = |n: u32| {
        let (tx, own) = (tx.clone(), n.to_string().into_bytes());
        Change {
            names: vec![(1, own.clone())],
            node: None,
            takes: crate::changing::Takes::NAMES,
            run: move |fs: &mut Fs| Ok((fs.create(&Served::ctx(), Ino::ROOT, &own, 0o644)?, None)),
            answer: move |result: Result<silt_fs::Stat, silt_fuse::Errno>| {
                tx.send(result.map(drop).map_err(|e| e.raw())).unwrap();
            },
            begun: false,
        }
        .start(&served.core);
        rx.recv_timeout(Duration::from_secs(20)).unwrap()
    };
    let made = (0..20_000).take_while(|n| make(*n).is_ok()).count();
    assert!((1000..10_000).contains(&made), "{made} were made");
    assert_eq!(make(30_000), Err(libc::ENOSPC));
    device.set_full(false);
    served.sync_at_last();
    assert_eq!(make(30_001), Ok(()));
    served.stop();
}

/// Files whose data is synced together lie in one log: a bad place under one of them costs none.
#[test]
fn a_bad_place_under_data_that_is_synced_together_is_left_out() {
    for named in ["clean", "without data"] {
        let device = Arc::new(PageCache::new(&mkfs()));
        let core = Core::new(open(device.clone()), MountOptions::default());
        let mut served = Served { core: core.clone(), writer: None };
        let inos = ["a", "b"].map(|n| served.write(n, 1, 4).unwrap());
        core.fs.lock().sync_all(3000).unwrap();
        core.fs.lock().volume_mut().flush_logs().unwrap();
        served.write("a", 2, 4).unwrap();
        if named == "clean" {
            served.write("b", 2, 4).unwrap();
        }
        {
            let fs = core.fs.lock();
            let segment = silt_format::SegNr(fs.volume().stat().unwrap().current_segment);
            let info = fs.volume().segment_info(segment).unwrap();
            let at = (fs.volume().geometry().segment_start(segment).0 + u64::from(info.blocks)) * 4096;
            device.medium.fail_writes(at..at + 4096, Times::Always);
        }
        let (tx, rx) = crossbeam_channel::unbounded();
        for ino in inos {
            let tx = tx.clone();
            core.sync(Want::Data(ino), Box::new(move |r| tx.send(r).unwrap()));
        }
        let writer = Writer::new(core.clone(), Duration::from_secs(3600));
        served.writer = Some(std::thread::spawn(move || writer.run()));
        assert_eq!([rx.recv().unwrap(), rx.recv().unwrap()], [Ok(()), Ok(())], "{named}");
        let b = if named == "clean" { 2 } else { 1 };
        check(device.medium.inner().fork(), &[("a", 2, 4), ("b", b, 4)]);
        served.stop();
    }
}

/// Without barriers nothing is kept to be written again: after a flush that failed nothing is built on what may be nowhere.
#[test]
fn without_barriers_a_failed_flush_ends_writing() {
    let device = Arc::new(PageCache::new(&mkfs()));
    let options = MountOptions { barrier: false, ..MountOptions::default() };
    let mut served = Served::new(device.clone(), options);
    served.write("f", 1, 4).unwrap();
    served.sync().unwrap();
    device.bad_flushes.store(1, Ordering::Relaxed);
    assert!(device.flush().is_err());
    served.write("f", 2, 4).unwrap();
    assert_eq!(served.sync(), Err(libc::EIO));
    assert!(served.core.fs.lock().volume().failure().is_some());
    served.stop();
}

/// The same where that flush was a super block's, which costs its own write alone otherwise: whoever closes the volume would
/// point both of them at logs that are perhaps nowhere.
#[test]
fn without_barriers_a_failed_flush_of_a_super_block_ends_writing() {
    let device = Arc::new(PageCache::new(&mkfs()));
    let options = MountOptions { barrier: false, ..MountOptions::default() };
    let mut served = Served::new(device.clone(), options);
    served.write("f", 1, 4).unwrap();
    device.bad_flushes.store(1, Ordering::Relaxed);
    // The last round takes the log, and a super block is due.
    served.stop();
    assert_eq!(device.bad_flushes.load(Ordering::Relaxed), 0, "no super block was due");
    assert!(served.core.fs.lock().volume().failure().is_some());
}

/// Where the flush before it went well, a super block that its place refuses tells of nothing else: the other is enough.
#[test]
fn without_barriers_a_super_block_that_its_place_refuses_is_given_up() {
    for copy in [Copy::Primary, Copy::Secondary] {
        let device = Arc::new(PageCache::new(&mkfs()));
        let options = MountOptions { barrier: false, ..MountOptions::default() };
        let core = Core::new(open(device.clone()), options);
        let clock = AtomicU64::new(3000);
        // One is due after each round.
        let clock = Box::new(move || clock.fetch_add(100, Ordering::Relaxed));
        let mut served = Served { core: core.clone(), writer: None };
        let mut writer = Writer::new(core, Duration::from_secs(3600)).with_clock(clock);
        let at = if copy == Copy::Primary { PRIMARY_OFFSET } else { secondary_offset(SIZE) };
        device.medium.fail_writes(at..at + 1024, Times::Always);
        for round in 0..10 {
            served.write("f", round, 4).unwrap();
            writer.serve(Vec::new(), true);
            assert_eq!(
                (served.core.fs.lock().volume().failure(), served.core.stall()),
                (None, None),
                "{round}"
            );
        }
        assert_eq!(served.core.fs.lock().volume().super_block_given_up(), Some(copy));
        served.stop();
        check(device.medium.inner().fork(), &[("f", 9, 4)]);
    }
}

/// A checkpoint that somebody else made under the lock and could not write is gone on with by the log writer.
#[test]
fn a_checkpoint_that_a_resize_could_not_write_is_written_later() {
    for how in ["smaller", "larger"] {
        let base = mkfs();
        let device = Arc::new(Fault::new(base));
        let mut served = Served::new(device.clone(), MountOptions::default());
        for round in 0..20u8 {
            served.write("f", round, 300).unwrap();
            served.sync().unwrap();
        }
        {
            let mut fs = served.core.fs.lock();
            let volume = fs.volume_mut();
            let options = silt_cleaner::Options { now: 3000, ..Default::default() };
            silt_cleaner::run(&silt_cleaner::Whole::new(volume, 3000), &options, |_| true).unwrap();
            volume.freed_are_durable();
        }
        served.write("g", 7, 200).unwrap();
        let failed = {
            let mut fs = served.core.fs.lock();
            let volume = fs.volume_mut();
            if how == "smaller" {
                let limit = volume.stat().unwrap().current_segment;
                volume.confine(Some(limit)).unwrap();
                device.set_full(true);
                volume.leave_end(limit, 4000).map(|_| 0)
            } else {
                device.inner().grow(SIZE + (8 << 20));
                device.limit_space(Some(64 << 10));
                volume.grow(None, 4000)
            }
        };
        assert!(failed.is_err(), "{how}: {failed:?}");
        assert!(served.core.fs.lock().volume().is_left_open(), "{how}: no log of it was refused");
        device.heal();
        let (tx, rx) = crossbeam_channel::bounded(1);
        served.core.sync(Want::All, Box::new(move |r| tx.send(r).unwrap()));
        let answer = rx.recv_timeout(Duration::from_secs(10));
        assert_eq!(answer, Ok(Ok(())), "{how}: nobody writes any more");
        served.core.fs.lock().volume_mut().confine(None).unwrap();
        check(device.inner().fork(), &[("f", 19, 300), ("g", 7, 200)]);
        served.stop();
    }
}

/// A checkpoint that somebody else makes under the lock: where a flush may have lost it, that is no success, whoever was
/// told of it.
#[test]
fn a_resize_does_not_answer_for_what_a_failed_flush_lost() {
    for how in ["smaller", "larger"] {
        for whose in ["its own", "somebody else's"] {
            let (mut spared, mut refused) = (0, 0);
            loop {
                let device = Arc::new(PageCache::new(&mkfs()));
                let mut served = Served::new(device.clone(), MountOptions::default());
                served.write("f", 1, 40).unwrap();
                served.sync().unwrap();
                device.flush().unwrap();
                let mut fs = served.core.fs.lock();
                let ino = fs.lookup(Tree::Live, Ino::ROOT, b"f").unwrap().ino;
                fs.write(&Served::ctx(), ino, 0, &vec![2; 40 * 4096], WriteFlags::default()).unwrap();
                let volume = fs.volume_mut();
                device.spared.store(spared, Ordering::Relaxed);
                let failing = if whose == "its own" { &device.bad_flushes } else { &device.stolen };
                failing.store(1, Ordering::Relaxed);
                let done = if how == "smaller" {
                    let limit = volume.geometry().nsegments - 10;
                    let size = (limit * 64 + 2) * 4096;
                    assert!(volume.checkpoint(4000).is_ok() || volume.failure().is_some());
                    volume.shrink(size, 4000)
                } else {
                    volume.grow(None, 4000)
                };
                let left = failing.swap(0, Ordering::Relaxed);
                drop(fs);
                served.stop();
                let found = [("f", 2, 40)];
                check(device.medium.inner().fork(), if done.is_ok() { &found } else { &[] });
                if left > 0 {
                    break;
                }
                refused += u32::from(done.is_err());
                spared += 1;
            }
            assert!(refused > 0, "{how}, {whose}");
        }
    }
}

/// A device whose writes panic from now on.
struct Panicking {
    inner: MemoryDevice,
    now: std::sync::atomic::AtomicBool,
}

impl Device for Panicking {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        assert!(!self.now.load(Ordering::Relaxed), "a defect");
        self.inner.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, _: u64, _: u64) -> silt_device::Result<()> {
        Ok(())
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

/// A defect of the log writer: who waits hears of it, who comes later as well, and what was durable stays.
#[test]
fn nobody_waits_for_a_writer_that_is_gone() {
    let device = Arc::new(Panicking { inner: mkfs(), now: std::sync::atomic::AtomicBool::new(false) });
    let mut served = Served::new(device.clone(), MountOptions::default());
    served.write("f", 1, 4).unwrap();
    served.sync().unwrap();
    served.write("f", 2, 4).unwrap();
    device.now.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(served.sync(), Err(libc::EIO));
    }
    assert!(served.core.fs.lock().volume().failure().is_some());
    served.stop();
    check(device.inner.fork(), &[("f", 1, 4)]);
}
