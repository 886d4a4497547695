//! What a wrong clock does to the past: nothing that a floor keeps goes.

use std::cell::Cell;
use std::sync::Arc;

use silt_cleaner::{History, Moments, Options, Whole, clock, run};
use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_format::{Cno, Ino};
use silt_retention::{Ladder, Wish};

use crate::common::file;

const BEGIN: u64 = 2_000_000_000;
const YEAR: u64 = 365 * 86_400;

thread_local! {
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

fn passed() -> u64 {
    PASSED.get()
}

/// A volume with a clock that may be wrong.
struct Story {
    device: Arc<MemoryDevice>,
    volume: Volume,
    file: Ino,
    /// By how much the clock is ahead of what it should show.
    ahead: i64,
    /// Checkpoints, and when they were really made.
    made: Vec<(u64, u64)>,
}

impl Story {
    fn new() -> Self {
        PASSED.set(0);
        let device = Arc::new(MemoryDevice::new(32 << 20));
        let parameters = Parameters { blocks_per_segment: 64, now: BEGIN, ..Parameters::default() };
        Plan::new(parameters, 32 << 20).unwrap().write(&*device, false).unwrap();
        let mut volume = open(&device, BEGIN);
        let file = file(&mut volume);
        Story { device, volume, file, ahead: 0, made: Vec::new() }
    }

    fn now(&self) -> u64 {
        (BEGIN + PASSED.get()).saturating_add_signed(self.ahead)
    }

    /// A minute in which all of the file is written.
    fn minute(&mut self) {
        PASSED.set(PASSED.get() + 60);
        let (bs, now) = (self.volume.geometry().bs(), self.now());
        for key in 0..40 {
            self.volume.write_block(self.file, key, vec![now as u8; bs].into()).unwrap();
        }
        let c = self.volume.checkpoint(now).unwrap();
        self.made.push((c.0, PASSED.get()));
    }

    fn minutes(&mut self, n: u64) {
        (0..n).for_each(|_| self.minute());
    }

    /// Gives up all but the floor, and says how many moments went.
    #[track_caller]
    fn clean(&mut self, floor: &str) -> u64 {
        let now = self.now();
        let whole = Whole::new(&mut self.volume, now);
        let history = History::read(&whole).unwrap();
        let ladder = Ladder::new(&Wish::nothing(), &floor.parse().unwrap());
        let kept = ladder.kept(0, &history.points, &clock(&whole, now).unwrap());
        let firm = Moments::read(&whole, &ladder, now).unwrap().firm;
        assert_eq!(firm, kept, "df goes by the same");
        let mut options = Options { now, ..Options::default() };
        history.keep(&kept, &mut options);
        run(&whole, &options, |_| true).unwrap().cleaned.checkpoints
    }

    /// How many of the moments that are no older than this are gone.
    fn gone(&self, seconds: u64) -> usize {
        let young = self.made.iter().filter(|(_, then)| PASSED.get() - then <= seconds);
        young.filter(|(c, _)| self.volume.checkpoint_info(Cno(*c)).is_err()).count()
    }

    /// Unmounted, and mounted again after so long.
    fn again(&mut self, later: u64, ahead: i64) {
        self.volume.close(self.now()).unwrap();
        PASSED.set(PASSED.get() + later);
        self.ahead = ahead;
        self.volume = open(&self.device, self.now());
    }
}

fn open(device: &Arc<MemoryDevice>, now: u64) -> Volume {
    let options = OpenOptions { now, running: Some(passed), ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone(), &options).unwrap();
    volume.take_over(now).unwrap();
    volume
}

const FLOOR: &str = "all for 1 hour";

/// Set forward by a year for a minute, or for long; and back again.
#[test]
fn a_clock_that_is_set_forward_takes_nothing_of_a_floor() {
    for wrong in [1, 30] {
        let mut story = Story::new();
        story.minutes(70);
        assert!(story.clean(FLOOR) > 5 && story.gone(3_600) == 0);
        story.ahead = YEAR.cast_signed();
        story.clean(FLOOR);
        assert_eq!(story.gone(3_600), 0, "before anything is written");
        for _ in 0..wrong {
            story.minute();
            story.clean(FLOOR);
            assert_eq!(story.gone(3_600), 0);
        }
        story.ahead = 0;
        for n in 0..90 {
            story.minute();
            let went = story.clean(FLOOR);
            assert_eq!(story.gone(3_600), 0, "minute {n}");
            assert!(went > 0 || !(10..60).contains(&n), "minute {n}: what is older goes");
        }
        // What has a time to come is young as long as that is so.
        assert!(story.gone(u64::MAX) >= 70, "{}", story.gone(u64::MAX));
    }
}

/// And where it is wrong, or right, when the volume is mounted.
#[test]
fn a_clock_that_is_ahead_at_a_mount_takes_nothing_of_a_floor() {
    let mut story = Story::new();
    story.minutes(70);
    story.again(600, YEAR.cast_signed());
    story.clean(FLOOR);
    assert_eq!(story.gone(3_600), 0, "before anything is written");
    story.minutes(3);
    story.clean(FLOOR);
    assert_eq!(story.gone(3_600), 0);
    story.ahead = 0;
    story.minutes(3);
    story.clean(FLOOR);
    assert_eq!(story.gone(3_600), 0);
    // Nobody knows any more that it was wrong.
    story.again(60, 0);
    story.clean(FLOOR);
    assert_eq!(story.gone(3_600), 0);
    story.minutes(90);
    story.clean(FLOOR);
    assert_eq!(story.gone(3_600), 0);
    assert!(story.gone(u64::MAX) > 60, "{} from before are old", story.gone(u64::MAX));
}

/// A battery is empty: the clock stands at the beginning of time until it is set.
#[test]
fn a_clock_that_is_behind_takes_nothing_of_a_floor() {
    for behind in [BEGIN, YEAR, 1_800] {
        let mut story = Story::new();
        story.minutes(70);
        story.again(600, -behind.cast_signed());
        for _ in 0..20 {
            story.minute();
            story.clean(FLOOR);
            assert_eq!(story.gone(3_600), 0, "{behind} behind");
        }
        story.ahead = 0;
        for _ in 0..10 {
            story.minute();
            story.clean(FLOOR);
            assert_eq!(story.gone(3_600), 0, "{behind} behind, and no longer");
        }
        story.again(600, 0);
        story.clean(FLOOR);
        assert_eq!(story.gone(3_600), 0, "{behind} behind, once");
        story.minutes(90);
        story.clean(FLOOR);
        assert!(story.gone(3_600) == 0 && story.gone(u64::MAX) >= 100, "{behind}: {}", story.gone(u64::MAX));
    }
}

/// Nobody had it for a year: what was young then goes once it is mounted for as long as the floor says, or mounted anew.
#[test]
fn an_absence_holds_nothing_for_ever() {
    for anew in [false, true] {
        let mut story = Story::new();
        story.minutes(70);
        story.clean(FLOOR);
        let there = 70 - story.gone(u64::MAX);
        story.again(YEAR, 0);
        story.clean(FLOOR);
        assert!(there >= 60 && 70 - story.gone(u64::MAX) == there, "perhaps it is the clock");
        story.minutes(if anew { 2 } else { 61 });
        if anew {
            story.again(60, 0);
        }
        story.clean(FLOOR);
        let gone = (story.gone(u64::MAX), story.gone(3_600));
        assert!(gone.0 + 5 > 70 && gone.1 == 0, "{anew}: {gone:?} gone, and {there} were there");
    }
}
