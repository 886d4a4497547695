//! The account of space against an independent count, in every class and to the block.

use std::sync::Arc;

use silt_cleaner::{Moments, Whole, account, agree};
use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Time, Volume};
use silt_format::{Cno, Ino};
use silt_fs::{Context, Fs, WriteFlags};
use silt_retention::{Ladder, Wish};
use silt_verify::golden;

fn wishes() -> Vec<Wish> {
    [
        "nothing",
        "all for ever",
        "all for 10 minutes, one every 5 minutes for 3 hours",
        "one an hour for 1 day",
    ]
    .iter()
    .map(|w| w.parse().unwrap())
    .collect()
}

/// Volumes that the kernel wrote, cleaned ones among them.
#[test]
fn golden_volumes() {
    let mut past = 0;
    for name in golden::NAMES {
        let device: Arc<dyn Device> = Arc::new(golden::open(name));
        let time = {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            let (volume, report) = Volume::open(device.clone(), &options).unwrap();
            let time = volume.stat().unwrap().last_checkpoint_time;
            if report.was_unclean {
                // What was synced becomes a checkpoint: the independent count knows no others.
                let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
                volume.take_over(time).unwrap();
                volume.close(time).unwrap();
            }
            time
        };
        for wish in wishes() {
            let a = agree::check(&device, &wish, &Wish::nothing(), time + 60);
            assert!(a.live > 0 && a.metadata > 5 && a.unreadable == 0 && a.overfull == 0, "{name}: {a:?}");
            past += a.history + a.snapshots;
        }
    }
    assert!(past > 1_000, "{past}");
}

struct Story {
    device: Arc<dyn Device>,
    random: u64,
    now: u64,
}

impl Story {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Opens the volume, changes files and snapshots and makes checkpoints; sometimes cleans; closes it.
    fn turn(&mut self) {
        let (mut volume, _) = Volume::open(self.device.clone(), &OpenOptions::default()).unwrap();
        volume.take_over(self.now).unwrap();
        let mut fs = Fs::new(volume, &silt_fs::Options::default());
        for _ in 0..30 {
            self.now += if self.random(6) == 0 { self.random(4_000) } else { self.random(90) };
            let now = Time { secs: self.now.cast_signed(), nanos: 0 };
            let ctx = Context { now, privileged: true, ..Context::default() };
            let name = format!("f{}", self.random(12));
            if self.random(2) == 0 {
                let _ = fs.unlink(&ctx, Ino::ROOT, name.as_bytes());
            }
            let made = fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644);
            let ino = made.map_or_else(
                |_| fs.lookup(silt_fs::Tree::Live, Ino::ROOT, name.as_bytes()).unwrap().ino,
                |f| f.ino,
            );
            let (at, len) = (self.random(400_000), self.random(60_000));
            fs.write(&ctx, ino, at, &vec![self.random as u8; len as usize], WriteFlags::default()).unwrap();
            let cno = fs.sync_all(self.now).unwrap();
            match self.random(8) {
                0 => fs.volume_mut().make_snapshot(Cno(cno)).unwrap(),
                1 => {
                    let first = fs.volume().snapshots().unwrap().first().copied();
                    let _ = first.map(|s| fs.volume_mut().unmake_snapshot(s));
                }
                _ => {}
            }
        }
        if self.random(2) == 0 {
            let whole = Whole::new(fs.volume_mut(), self.now);
            let oldest = Some(whole_newest(&whole).saturating_sub(20));
            let options = silt_cleaner::Options { oldest, now: self.now, ..Default::default() };
            silt_cleaner::run(&whole, &options, |_| true).unwrap();
        }
        fs.into_volume().close(self.now).unwrap();
    }
}

fn whole_newest(whole: &Whole<'_>) -> u64 {
    silt_cleaner::Access::with(whole, |v| v.last_log().cno).unwrap()
}

/// Random histories of small volumes: after each turn, with every wish, and as somebody looks at moments.
#[test]
fn random_histories() {
    let (mut soon, mut shared, mut alone, mut mounted, mut shown) = (0, 0, 0, 0, 0);
    for seed in 1..5 {
        let device = Arc::new(MemoryDevice::new(48 << 20));
        let block_size = if seed % 2 == 0 { 1024 } else { 4096 };
        let parameters =
            Parameters { block_size, blocks_per_segment: 128, now: 1_000, ..Parameters::default() };
        Plan::new(parameters, 48 << 20).unwrap().write(&*device, false).unwrap();
        let mut story = Story { device, random: seed * 77, now: 1_000_000 };
        for turn in 0..6 {
            story.turn();
            for wish in wishes() {
                let a = agree::check(&story.device, &wish, &Wish::nothing(), story.now + turn * 100);
                soon += a.history_soon;
                shared += a.history_shared;
                alone += a.alone.iter().map(|s| s.1).sum::<u64>();
                shown += a.shown;
            }
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            let (mut volume, _) = Volume::open(story.device.clone(), &options).unwrap();
            let newest = volume.last_log().cno;
            for back in 0..20 {
                let _ = volume.open_view(Cno(newest.saturating_sub(back * 3)));
            }
            let whole = Whole::new(&mut volume, story.now);
            for wish in wishes() {
                let ladder = Ladder::new(&wish, &"one an hour for ever".parse().unwrap());
                let moments = Moments::read(&whole, &ladder, story.now).unwrap();
                let a = account(&whole, moments.clone(), |_| true).unwrap().unwrap();
                mounted += a.mounted;
                let wrong = agree::differences(&a, &moments, &*story.device, 0);
                assert!(wrong.is_empty(), "seed {seed}, turn {turn}: {wrong:#?}");
            }
        }
    }
    // Every class was met.
    assert!(
        [soon, shared, alone, mounted, shown].iter().all(|n| *n > 50),
        "{soon} {shared} {alone} {mounted} {shown}"
    );
}

/// What is said to come back does, and what a snapshot alone holds comes back with it.
#[test]
fn what_is_reclaimable_comes_back() {
    let device = Arc::new(MemoryDevice::new(48 << 20));
    let parameters =
        Parameters { block_size: 1024, blocks_per_segment: 128, now: 1_000, ..Parameters::default() };
    Plan::new(parameters, 48 << 20).unwrap().write(&*device, false).unwrap();
    let mut story = Story { device, random: 5, now: 1_000_000 };
    (0..4).for_each(|_| story.turn());
    let nothing = Wish::nothing();
    let before = agree::check(&story.device, &nothing, &nothing, story.now);
    let (mut volume, _) = Volume::open(story.device.clone(), &OpenOptions::default()).unwrap();
    volume.take_over(story.now).unwrap();
    let most = before.alone.iter().copied().max_by_key(|s| s.1).unwrap();
    assert!(most.1 > 256, "{:?}", before.alone);
    volume.unmake_snapshot(Cno(most.0)).unwrap();
    volume.checkpoint(story.now).unwrap();
    let options = silt_cleaner::Options { now: story.now, ..Default::default() };
    silt_cleaner::run(&Whole::new(&mut volume, story.now), &options, |_| true).unwrap();
    volume.close(story.now).unwrap();
    let after = agree::check(&story.device, &nothing, &nothing, story.now);
    let back = (after.free + after.reserve) - (before.free + before.reserve);
    let said = before.reclaimable + most.1;
    // Copies take summaries, and their segments have ends.
    assert!(back.abs_diff(said) <= said / 10 + 128, "{back} blocks came back, {said} were promised");
    assert_eq!(after.snapshots + most.1, before.snapshots);
}
