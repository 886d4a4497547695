//! What of the past goes, and what stays, when segments are held or the wish changes meanwhile.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use silt_cleaner::{Access, Gatherer, Mover};
use silt_control::retention::{PlannedBy, Source, store};
use silt_device::{Device, Fault, Times};
use silt_engine::{OpenOptions, Volume};
use silt_format::checkpoint;
use silt_format::{Cno, Ino, SegNr};
use silt_fs::{Context, Fs, SetAttr, WriteFlags};
use silt_fuse::Errno;
use silt_retention::{Settings, Wish};

use crate::changing::{Change, Takes};
use crate::cleaning::Planner;
use crate::config::MountOptions;
use crate::core::{Core, Want, now_secs};
use crate::fault_tests::mkfs_of;
use crate::ladder::{Came, clean, effective};
use crate::space::is_enough;
use crate::writer::Writer;

const HOUR: u64 = 3600;

/// A mounted volume of 128 segments with its log writer and without a cleaner.
pub(crate) struct Kept {
    pub(crate) core: Arc<Core>,
    device: Arc<Fault<silt_device::MemoryDevice>>,
    file: Ino,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Kept {
    /// Of what was written three days ago most goes as the wish has it; what was written five hours ago it keeps. Fewer
    /// segments are clean than cleaning begins with.
    pub(crate) fn new() -> Self {
        Self::with(MountOptions::default())
    }

    fn with(options: MountOptions) -> Self {
        Self::opened(options, &OpenOptions::default())
    }

    fn opened(options: MountOptions, how: &OpenOptions) -> Self {
        Self::made(now_secs(), options, how)
    }

    /// The same as if it had been done at another time.
    fn made(now: u64, options: MountOptions, how: &OpenOptions) -> Self {
        let device = Arc::new(Fault::new(mkfs_of(32 << 20, 64)));
        let (mut volume, _) = Volume::open(device.clone(), how).unwrap();
        volume.take_over(now - 80 * HOUR).unwrap();
        let mut fs = Fs::new(volume, &silt_fs::Options::default());
        let file = fs.create(&ctx(), Ino::ROOT, b"f", 0o644).unwrap().ino;
        let core = Core::new(fs, options);
        let low = crate::cleaning::marks(&core).1.low.unwrap();
        for (until, from) in [(60, now - 72 * HOUR), (low, now - 5 * HOUR)] {
            let mut n = 0;
            while available(&core) >= until {
                write(&core, file, n as u8, 100);
                core.fs.lock().sync_all(from + n * 600).unwrap();
                n += 1;
            }
            assert!(n > 3, "{n}");
        }
        let writer = Some(written(&core));
        Kept { core, device, file, writer }
    }

    /// Mounted anew, with nothing of it in memory.
    fn again(&mut self) {
        self.again_with(MountOptions::default(), &OpenOptions::default());
    }

    fn again_with(&mut self, options: MountOptions, how: &OpenOptions) {
        self.stop();
        let (mut volume, _) = Volume::open(self.device.clone(), how).unwrap();
        volume.take_over(now_secs()).unwrap();
        self.core = Core::new(Fs::new(volume, &silt_fs::Options::default()), options);
        self.writer = Some(written(&self.core));
    }

    fn stop(&mut self) {
        self.core.queue.lock().stop = true;
        self.core.wake.notify_all();
        self.writer.take().unwrap().join().unwrap();
    }

    /// Where blocks begin like this.
    fn places(&self, with: &[u8]) -> Vec<u64> {
        let mut block = vec![0; 4096];
        let blocks = (0..self.device.len()).step_by(4096);
        let has = |at: &u64| self.device.inner().read_at(*at, &mut block).is_ok() && block.starts_with(with);
        blocks.filter(has).collect()
    }

    fn given_up(&self) -> (u64, u64) {
        let given = self.core.space.report().given_up;
        (given.as_wished, given.beyond)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop();
    }
}

fn written(core: &Arc<Core>) -> std::thread::JoinHandle<()> {
    let writer = Writer::new(core.clone(), Duration::from_secs(3600));
    std::thread::spawn(move || writer.run())
}

fn ctx() -> Context {
    Context { privileged: true, ..Context::default() }
}

fn write(core: &Core, file: Ino, fill: u8, blocks: usize) {
    let mut fs = core.fs.lock();
    fs.write(&ctx(), file, 0, &vec![fill; blocks * 4096], WriteFlags::default()).unwrap();
}

/// Checkpoints that are there, up to this one.
fn moments(fs: &Fs, last: u64) -> Vec<u64> {
    (1..=last).filter(|n| fs.volume().checkpoint_info(silt_format::Cno(*n)).is_ok()).collect()
}

fn available(core: &Core) -> u64 {
    core.fs.lock().volume().available_segments()
}

/// What was emptied is gained, though somebody reads there: nothing beyond the wish goes for it.
#[test]
fn nothing_more_goes_for_segments_that_somebody_reads() {
    let kept = Kept::new();
    let core = &kept.core;
    let guard = core.fs.lock().volume().guard();
    assert_eq!(clean(core), Came::Space);
    let (wished, beyond) = kept.given_up();
    assert!(wished > 10 && beyond == 0, "{wished} as wished, {beyond} beyond");
    assert!(core.fs.lock().volume_mut().segments_held_for_readers() > 10);
    // Who waits for space waits for the reader.
    core.space.enable(true);
    let wanted = core.fs.lock().volume().free_blocks() / 2;
    assert!(core.space.may_come(core.fs.lock().volume(), wanted) && !is_enough(core));
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(guard);
    });
    let begin = Instant::now();
    assert_eq!(clean(core), Came::Space);
    assert!(is_enough(core) && begin.elapsed() > Duration::from_millis(300));
    assert_eq!(kept.given_up().1, 0);
    letting_go.join().unwrap();
}

/// Mounted again after a year, or with a clock that is a year ahead: that cannot be told apart, and what the floor kept then is
/// kept, however short space is.
#[test]
fn a_floor_outlives_a_year_that_perhaps_did_not_pass() {
    const YEAR: u64 = 365 * 24 * HOUR;
    let mut kept = Kept::made(now_secs() - YEAR, MountOptions::default(), &OpenOptions::default());
    let made = kept.core.fs.lock().volume().stat().unwrap().last_checkpoint_time;
    let mut options = MountOptions::default();
    options.retention.floor = Some("all for 2 hours".parse().unwrap());
    let how = OpenOptions { now: now_secs(), running: Some(silt_control::running), ..OpenOptions::default() };
    kept.again_with(options, &how);
    let core = kept.core.clone();
    let (there, young) = {
        let fs = core.fs.lock();
        let there = moments(&fs, fs.volume().last_log().cno);
        let time = |n: &u64| fs.volume().checkpoint_info(Cno(*n)).unwrap().created;
        let young: Vec<u64> = there.iter().copied().filter(|n| time(n) + 2 * HOUR > made).collect();
        (there, young)
    };
    assert!(young.len() > 10 && there.len() > 2 * young.len(), "{young:?} of {there:?}");
    core.space.enable(true);
    let wanted = core.fs.lock().volume().free_blocks() * 100;
    assert!(core.space.may_come(core.fs.lock().volume(), wanted));
    assert_eq!(clean(&core), Came::Nothing);
    let left = moments(&core.fs.lock(), *there.last().unwrap());
    assert!(young.iter().all(|n| left.contains(n)), "{young:?} were to be kept, left is {left:?}");
    assert!(left.len() < young.len() + 5, "and nothing else: {left:?}");
}

/// A reader that stays is no proof that nothing can be gained.
#[test]
fn who_waits_for_a_reader_is_not_told_that_there_is_no_space() {
    let kept = Kept::new();
    let core = &kept.core;
    let _guard = core.fs.lock().volume().guard();
    assert_eq!(clean(core), Came::Space);
    core.space.enable(true);
    let wanted = core.fs.lock().volume().free_blocks() / 2;
    assert!(core.space.may_come(core.fs.lock().volume(), wanted));
    assert_eq!(clean(core), Came::Unknown);
    assert_eq!(kept.given_up().1, 0);
}

/// Neither where more is wanted than it holds, and whoever reads is told that nothing else is left: there may be no place to
/// copy to but his.
#[test]
fn as_long_as_somebody_reads_it_is_not_known_that_there_is_no_space() {
    let kept = Kept::new();
    let core = &kept.core;
    let guard = core.fs.lock().volume().guard();
    assert_eq!(clean(core), Came::Space);
    core.space.enable(true);
    let wanted = core.fs.lock().volume().free_blocks() * 100;
    assert!(core.space.may_come(core.fs.lock().volume(), wanted) && !core.space.is_pressing());
    let shared = core.clone();
    let letting_go = std::thread::spawn(move || {
        let begin = Instant::now();
        while !shared.space.is_pressing() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(guard);
    });
    assert_eq!(clean(core), Came::Unknown);
    letting_go.join().unwrap();
    assert!(!core.space.is_pressing());
    assert_eq!(clean(core), Came::Nothing);
}

/// Nor is a step that the device did not take.
#[test]
fn a_step_that_failed_is_no_proof_that_nothing_can_be_gained() {
    let kept = Kept::new();
    write(&kept.core, kept.file, 1, 1);
    kept.device.set_full(true);
    assert_eq!(clean(&kept.core), Came::Failed);
    kept.device.heal();
    assert_eq!(clean(&kept.core), Came::Space);
}

/// Has reads of the oldest checkpoints fail.
fn lose_old_checkpoints(device: &Fault<silt_device::MemoryDevice>, g: &silt_format::Geometry) -> usize {
    let mut lost = 0;
    let (block, _) = checkpoint::place(g, Cno(30)).unwrap();
    assert!(block > 0);
    let bs = g.bs();
    let mut bytes = vec![0; bs];
    let places: Vec<(usize, u64)> = (1..60)
        .filter_map(|n| checkpoint::place(g, Cno(n)).ok().map(|(b, at)| (b, at, n)))
        .filter_map(|(b, at, n)| (b == block).then_some((at, n)))
        .collect();
    for at in 0..device.len() / bs as u64 {
        device.inner().read_at(at * bs as u64, &mut bytes).unwrap();
        let holds = |(at, n): &(usize, u64)| {
            checkpoint::entry(&bytes, *at).is_ok_and(|e| e.cno.get() == *n && !e.is_invalid())
        };
        if places.len() > 5 && places.iter().all(holds) {
            device.fail_reads(at * bs as u64..(at + 1) * bs as u64, Times::Always);
            lost += 1;
        }
    }
    lost
}

/// Where it can never be told what is kept, who waits for space hears that there is none, who deletes does not wait, and once
/// it can be told again there is space.
#[test]
fn nobody_waits_for_ever_for_a_cleaner_that_cannot_work() {
    let little = OpenOptions { cache_bytes: 64 << 10, ..OpenOptions::default() };
    let kept = Kept::opened(MountOptions::default(), &little);
    let core = kept.core.clone();
    let g = *core.fs.lock().volume().geometry();
    assert!(lose_old_checkpoints(&kept.device, &g) > 0);
    assert_eq!(clean(&core), Came::Failed);
    let cleaner = core.clone();
    let cleaner = std::thread::spawn(move || crate::cleaning::run(&cleaner));
    let change = |what: &'static str| {
        let (tell, told) = std::sync::mpsc::channel();
        let file = kept.file;
        let run = move |fs: &mut Fs| match what {
            "write" => {
                fs.write(&ctx(), file, 0, &vec![7; 100 * 4096], WriteFlags::default()).map(|_| ((), None))
            }
            _ => fs.unlink(&ctx(), Ino::ROOT, b"f").map(|_| ((), None)),
        };
        let takes = if what == "write" { Takes::data(100 * 4096) } else { Takes::NOTHING };
        let answer = move |result: Result<(), Errno>| tell.send(result.map_err(|e| e.raw())).unwrap();
        Change { names: Vec::new(), node: None, takes, run, answer, begun: false }.start(&core);
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    let begin = Instant::now();
    let refused = loop {
        match change("write") {
            Ok(()) => {
                let (tell, told) = std::sync::mpsc::channel();
                core.sync(Want::All, Box::new(move |r| tell.send(r).unwrap()));
                told.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
            }
            Err(e) => break e,
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(refused, libc::ENOSPC);
    assert!(core.space.report().failing.is_some());
    kept.device.heal();
    let begin = Instant::now();
    while change("write").is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(change("unlink"), Ok(()));
    core.space.stop();
    cleaner.join().unwrap();
}

/// A floor that is set while a pass runs holds for its next step.
#[test]
fn a_floor_that_is_set_meanwhile_is_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("conf");
    let text = "min_clean_segments 30%\nmax_clean_segments 90%\nclean_check_interval 10\nnsegments_per_clean 2\n\
                cleaning_interval 0.5\nmc_nsegments_per_clean 2\nmc_cleaning_interval 0.5\n";
    std::fs::write(&conf, text).unwrap();
    let mut options = MountOptions::default();
    options.cleaner.conf = Some(crate::cleanerd_conf::Conf::read(&conf).unwrap());
    let kept = Kept::with(options);
    let core = kept.core.clone();
    let steps = core.space.report().work.steps;
    let setting = std::thread::spawn(move || {
        while core.space.report().work.steps < steps + 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut fs = core.fs.lock();
        let dir = fs.mkdir(&ctx(), Ino::ROOT, b".silt", 0o755).unwrap().ino;
        let file = fs.create(&ctx(), dir, b"retention", 0o644).unwrap().ino;
        fs.write(&ctx(), file, 0, b"keep: all for ever\n", WriteFlags::default()).unwrap();
        let there = moments(&fs, fs.volume().last_log().cno);
        drop(fs);
        (core.space.report().work.steps, there)
    });
    clean(&kept.core);
    let (steps, there) = setting.join().unwrap();
    assert!(kept.core.space.report().work.steps >= steps && there.len() > 10, "{there:?}");
    assert_eq!(moments(&kept.core.fs.lock(), *there.last().unwrap()), there);
}

/// A plan that was made before a floor was stored, and that told, is none any more: it is asked for in the round of the log
/// writer that stores the floor.
#[test]
fn what_was_planned_before_a_floor_was_stored_is_planned_anew() {
    let kept = Kept::new();
    let core = &kept.core;
    let planned = |planner: &Planner<'_>| {
        planner.settle().unwrap();
        let (keep, n) = planner.with(|v| (v.keep(None).unwrap(), v.geometry().nsegments)).unwrap();
        let limits = silt_cleaner::Options::default().limits;
        let plan = Gatherer::new(keep, (0..n).map(SegNr), limits).next(planner).unwrap();
        assert!(plan.cleaning.frees() > 3);
        plan.cleaning
    };
    let by = PlannedBy::all_of(&effective(core));
    let planner = Planner(core, &by);
    let plan = planned(&planner);
    let newest = core.fs.lock().volume().last_log().cno;
    let there = moments(&core.fs.lock(), newest);
    let settings = Settings { wish: None, floor: Some(Wish::everything()) };
    store(&mut core.fs.lock(), &settings, crate::core::now()).unwrap();
    let (tx, stored) = crossbeam_channel::bounded(1);
    core.sync(Want::All, Box::new(move |result| tx.send(result).unwrap()));
    let made = planner.make(plan);
    assert_eq!(stored.recv(), Ok(Ok(())));
    assert_eq!(moments(&core.fs.lock(), newest), there, "{made:?}");
    assert!(matches!(made, Err(silt_engine::Error::Stale)), "{made:?}");
    // It would have taken some.
    let by = PlannedBy::all_of(&effective(core));
    let planner = Planner(core, &by);
    let done = planner.make(planned(&planner)).unwrap();
    assert!(done.checkpoints > 3 && moments(&core.fs.lock(), newest).len() < there.len(), "{done:?}");
}

/// A mounted volume with a floor that keeps everything, whose file can be read no more, and its moments. `is_known`: it was
/// read before.
fn with_an_unreadable_floor(is_known: bool) -> (Kept, Vec<u64>) {
    let mut kept = Kept::new();
    let floor = Settings { wish: Some(Wish::nothing()), floor: Some(Wish::everything()) };
    store(&mut kept.core.fs.lock(), &floor, crate::core::now()).unwrap();
    kept.core.sync_and_wait(Want::All).unwrap();
    kept.again();
    if is_known {
        assert_eq!(effective(&kept.core).problem, None);
    }
    let places = kept.places(floor.text().as_bytes());
    assert!(!places.is_empty());
    for at in places {
        kept.device.fail_reads(at..at + 4096, Times::Always);
    }
    assert!(effective(&kept.core).problem.is_some(), "it is read from the device");
    let fs = kept.core.fs.lock();
    let there = moments(&fs, fs.volume().last_log().cno);
    drop(fs);
    assert!(there.len() > 10);
    (kept, there)
}

/// What cleaning comes to where more space is wanted than there is.
fn short(core: &Arc<Core>) -> Came {
    core.space.enable(true);
    let wanted = core.fs.lock().volume().free_blocks() * 100;
    assert!(core.space.may_come(core.fs.lock().volume(), wanted));
    clean(core)
}

/// A floor that was read once holds while its file cannot be; one that is not known may be anything, and all is kept. Who
/// deletes is answered all the same, and once the file is gone for good the default counts.
#[test]
fn a_floor_is_not_lost_with_a_read_of_its_file() {
    for is_known in [true, false] {
        let (kept, there) = with_an_unreadable_floor(is_known);
        let core = &kept.core;
        assert_eq!(short(core), Came::Nothing);
        let counts = effective(core);
        let all = Wish::everything();
        let firm = if is_known { all } else { all.up_to(*there.last().unwrap()) };
        assert_eq!((&counts.floor, counts.wish.is_nothing()), (&firm, is_known));
        assert_eq!(counts.floor_from, if is_known { Source::Volume } else { Source::Unknown });
        let is_there = || moments(&core.fs.lock(), *there.last().unwrap());
        assert_eq!((is_there(), kept.given_up()), (there.clone(), (0, 0)), "known: {is_known}");
        let (tell, told) = std::sync::mpsc::channel();
        let unlink = |fs: &mut Fs| {
            let dir = fs.lookup(silt_engine::Tree::Live, Ino::ROOT, b".silt")?.ino;
            fs.unlink(&ctx(), dir, b"retention").map(|_| ((), None))
        };
        let answer = move |result: Result<(), Errno>| tell.send(result.map_err(|e| e.raw())).unwrap();
        Change { names: Vec::new(), node: None, takes: Takes::NOTHING, run: unlink, answer, begun: false }
            .start(core);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
        if is_known {
            // It may be back in a moment.
            assert_eq!(short(core), Came::Nothing);
            assert!(effective(core).floor_from == Source::Volume && is_there() == there);
            assert!(core.retention.may_be_away_for().is_some());
            core.retention.last();
            core.retention.while_away(Instant::now() - Duration::from_secs(11));
        }
        let counts = effective(core);
        assert_eq!((counts.floor_from, counts.problem), (Source::Default, None));
        assert_eq!(core.retention.may_be_away_for(), None);
        assert_eq!(short(core), Came::Nothing);
        assert!(is_there().len() < there.len());
    }
}

/// Where nobody knows the floor, only what there was by then is kept whatever comes: or those who delete, who make
/// checkpoints, would use up all that is kept for them.
#[test]
fn what_is_made_under_an_unknown_floor_goes_when_space_is_short() {
    let (kept, there) = with_an_unreadable_floor(false);
    let core = &kept.core;
    let begin = available(core);
    for n in 0..60 {
        let mode = SetAttr { mode: Some(0o600 + n), ..SetAttr::default() };
        core.fs.lock().setattr(&ctx(), kept.file, &mode).unwrap();
        core.sync_and_wait(Want::All).unwrap();
    }
    let last = core.fs.lock().volume().last_log().cno;
    let made = moments(&core.fs.lock(), last).len();
    assert!(made >= there.len() + 60, "{made}");
    let full = available(core);
    short(core);
    let left = moments(&core.fs.lock(), last);
    assert_eq!(left.iter().copied().filter(|c| *c <= *there.last().unwrap()).collect::<Vec<_>>(), there);
    assert!(left.len() < there.len() + 10, "{} of {made}", left.len());
    assert!(available(core) > full && available(core) + 2 >= begin, "{begin} {full} {}", available(core));
}

/// Nor for longer than it lasts.
#[test]
fn a_file_that_can_be_read_again_counts() {
    let (kept, _) = with_an_unreadable_floor(false);
    kept.device.heal();
    let counts = effective(&kept.core);
    assert_eq!((counts.wish_from, counts.floor_from), (Source::Volume, Source::Volume));
    assert_eq!(counts.problem, None);
    // What makes no sense is no change.
    let mut fs = kept.core.fs.lock();
    let dir = fs.lookup(silt_engine::Tree::Live, Ino::ROOT, b".silt").unwrap().ino;
    let file = fs.lookup(silt_engine::Tree::Live, dir, b"retention").unwrap().ino;
    fs.write(&ctx(), file, 0, b"kep", WriteFlags::default()).unwrap();
    drop(fs);
    let held = effective(&kept.core);
    assert_eq!((held.wish, held.floor), (counts.wish, counts.floor));
    assert!(held.problem.is_some_and(|p| p.ends_with("; what it said before holds")));
}
