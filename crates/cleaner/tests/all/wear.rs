//! Even wear: what never changes moves from time to time, and never where space is short

use std::sync::Arc;

use crate::common::{self, file};
use silt_cleaner::{Options, Outcome, Policy, Whole, pass};
use silt_device::MemoryDevice;
use silt_engine::mkfs::Parameters;
use silt_engine::{Piece, Tree, Volume};
use silt_format::Ino;

const SIZE: u64 = 12 << 20;
/// Blocks a segment.
const PER_SEGMENT: u32 = 32;
/// Blocks of a file that never changes, and of one that does all the time: three quarters of the volume.
const STILL: u64 = 1500;
const BUSY: u64 = 750;
/// Segments that are clean after cleaning.
const CLEAN: u64 = 18;
/// Blocks that a segment has to give: more than a full one's summaries.
const LEAST: u64 = 4;

struct Bed {
    device: Arc<MemoryDevice>,
    v: Volume,
    still: Ino,
    busy: Ino,
    now: u64,
    /// Blocks that a step copies.
    moves: usize,
}

impl Bed {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let mut v =
            common::volume(&device, Parameters { blocks_per_segment: PER_SEGMENT, ..Parameters::default() });
        let (still, busy) = (file(&mut v), file(&mut v));
        let mut bed = Bed { device, v, still, busy, now: 3000, moves: 4096 };
        bed.write(still, 0..STILL, 7);
        bed
    }

    fn write(&mut self, ino: Ino, keys: std::ops::Range<u64>, byte: u8) {
        let bs = self.v.geometry().bs();
        for key in keys {
            self.v.write_block(ino, key, vec![byte; bs].into()).unwrap();
        }
        self.now += 1;
        self.v.checkpoint(self.now).unwrap();
    }

    fn pass(&mut self, policy: Policy, until: Option<u64>, most: u64) -> Outcome {
        let mut options = Options { policy, until, least: LEAST, now: self.now, ..Options::default() };
        options.limits.moves = self.moves;
        let mut steps = 0;
        let outcome = pass(&Whole::new(&mut self.v, self.now), &options, |_, _| {
            steps += 1;
            steps < most
        })
        .unwrap();
        assert_eq!(outcome.aside, []);
        outcome
    }

    /// Writes the busy file over and over, with cleaning between; segments that were emptied and turned.
    fn churn(&mut self, policy: Policy, times: u64) -> (u64, u64) {
        let mut sum = (0, 0);
        for n in 0..times {
            for part in 0..BUSY / 50 {
                self.write(self.busy, part * 50..(part + 1) * 50, u8::try_from(n % 200).unwrap());
                let done = self.pass(policy, Some(CLEAN), u64::MAX);
                sum = (sum.0 + done.cleaned.segments, sum.1 + done.turned);
            }
        }
        sum
    }

    /// Where the blocks of the file lie that never changes, which must be what they are.
    fn places(&mut self) -> Vec<u64> {
        let mut places = Vec::new();
        for key in 0..STILL {
            let block = self.v.read_block(Tree::Live, self.still, key).unwrap().expect("data");
            assert!(block.iter().all(|b| *b == 7), "block {key}");
            match self.v.locate(Tree::Live, self.still, key).unwrap() {
                Piece::Disk(at) => places.push(at.0),
                _ => panic!("block {key} lies nowhere"),
            }
        }
        places
    }

    fn check(&self) {
        let options = silt_verify::Options { all_checkpoints: true, ..silt_verify::Options::default() };
        let all = silt_verify::check(&*self.device, &options).error_text();
        // The files have no names and no sizes.
        let known = ["error [inode-size]", "error [inode-lost]"];
        let wrong: Vec<&str> = all.lines().filter(|l| !known.iter().any(|k| l.starts_with(k))).collect();
        assert_eq!(wrong, [""; 0]);
    }
}

fn moved(before: &[u64], after: &[u64]) -> usize {
    before.iter().zip(after).filter(|(a, b)| a != b).count()
}

#[test]
fn what_never_changes_moves_with_wear_levelling_alone() {
    for policy in [Policy::CostBenefit, Policy::WearLevelling] {
        let mut bed = Bed::new();
        let before = bed.places();
        let (emptied, turned) = bed.churn(policy, 20);
        let part = moved(&before, &bed.places());
        bed.check();
        if policy == Policy::WearLevelling {
            assert!(part as u64 == STILL, "{part} blocks of {STILL} moved");
            // One of eight at most, and each segment that is left alone once at least.
            assert!(
                turned * 8 <= emptied + 8 && turned * u64::from(PER_SEGMENT) >= STILL,
                "{turned} of {emptied} for their age"
            );
        } else {
            assert!((part as u64) < STILL / 4, "{}: {part} blocks moved", policy.name());
            assert_eq!(turned, 0);
        }
    }
}

/// A full segment by itself gains nothing, and goes all the same.
#[test]
fn one_segment_at_a_time() {
    let mut bed = Bed::new();
    bed.moves = 1;
    let before = bed.places();
    let (emptied, turned) = bed.churn(Policy::WearLevelling, 8);
    let part = moved(&before, &bed.places());
    assert!(part as u64 > STILL / 4, "{part} blocks of {STILL} moved");
    assert!(turned > 8 && turned * 8 <= emptied + 8, "{turned} of {emptied} for their age");
    bed.check();
}

/// Before the log went round twice nothing was left alone for long.
#[test]
fn not_what_was_written_lately() {
    let mut bed = Bed::new();
    let (emptied, turned) = bed.churn(Policy::WearLevelling, 2);
    assert!(emptied > 16, "{emptied} segments");
    assert_eq!(turned, 0);
}

/// What gives nothing waits while hardly more is clean than what is kept back, and goes when there is more.
#[test]
fn not_where_space_is_short() {
    let mut bed = Bed::new();
    bed.churn(Policy::CostBenefit, 6);
    let other = file(&mut bed.v);
    let mut at = 0;
    while bed.v.available_segments() >= bed.v.kept_back() + 3 {
        bed.write(other, at..at + 30, 5);
        at += 30;
    }
    bed.write(bed.busy, 0..BUSY / 8, 1);
    assert!(bed.v.available_segments() < bed.v.kept_back() + 3);
    let first = bed.pass(Policy::WearLevelling, None, 1);
    assert!(first.cleaned.segments > 0);
    assert_eq!(first.turned, 0);
    // The other file gives its place back.
    bed.v.cut(other, 0..at).unwrap();
    let (emptied, turned) = bed.churn(Policy::WearLevelling, 2);
    assert!(turned > 0 && turned * 4 < emptied, "{turned} of {emptied}");
    bed.places();
    bed.check();
}

/// A pass ends, whatever is full and old: nothing but data that never changes.
#[test]
fn a_pass_over_full_segments_ends() {
    let mut bed = Bed::new();
    bed.churn(Policy::CostBenefit, 6);
    bed.pass(Policy::Greedy, None, u64::MAX);
    let before = bed.v.available_segments();
    let mut steps = 0;
    for _ in 0..3 {
        steps += bed.pass(Policy::WearLevelling, None, u64::MAX).steps;
    }
    assert!(steps < 60, "{steps} steps");
    assert!(bed.v.available_segments() + 3 >= before, "{} of {before}", bed.v.available_segments());
    bed.check();
}
