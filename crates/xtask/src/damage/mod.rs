//! `cargo xtask damage`: volumes with a past, damaged at random; what check, rescue and repair make of each is held
//! against what was on it. The same numbers are the same cases.

mod hurt;
mod judge;
mod volume;

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use silt_device::{Device, MemoryDevice};

use self::hurt::{KINDS, Knife};
use self::judge::{Verdict, judge};
use self::volume::Aged;
use crate::scratch::Scratch;

/// How a campaign goes.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// First volume.
    pub seed: u64,
    /// How many volumes.
    pub volumes: u64,
    /// Cases of each kind on each volume.
    pub cases: u64,
    /// This case of this kind alone.
    pub only: Option<(String, u64)>,
    /// Tell everything of each case.
    pub explained: bool,
    /// At once.
    pub jobs: u64,
}

/// Cases in which something was once wrong: volume, kind, number.
const ONCE_WRONG: [(u64, &str, u64); 49] = [
    (16, "newest blocks", 0),
    (16, "two kinds", 1),
    (1001, "run of zeros", 1),
    (1008, "unreadable sectors", 0),
    (1010, "the beginning", 1),
    (1013, "shifted run", 0),
    (1014, "newest blocks", 0),
    (1018, "newest blocks", 2),
    (1025, "shifted run", 2),
    (1029, "stale newest block", 1),
    (4000, "bits", 1),
    (4020, "misplaced segment", 1),
    (4033, "segment of zeros", 0),
    (4044, "newest blocks", 0),
    (5004, "newest blocks", 1),
    (5015, "segment of zeros", 1),
    (7007, "segment", 1),
    (9003, "run of zeros", 0),
    (9003, "segment of zeros", 1),
    (9015, "two kinds", 1),
    (11003, "run of zeros", 0),
    (11008, "cut short", 1),
    (11009, "bits", 1),
    (11014, "unreadable sectors", 0),
    (13010, "segment", 1),
    (5007, "shifted run", 0),
    (21011, "misplaced segment", 0),
    (23009, "unreadable run", 0),
    (33007, "segment of zeros", 1),
    (33007, "stale segment", 0),
    (35015, "two kinds", 1),
    (19007, "unreadable run", 0),
    (37004, "newest blocks", 0),
    (43009, "run of zeros", 1),
    (45012, "newest blocks", 0),
    (47008, "newest blocks", 1),
    (47008, "bits", 0),
    (53004, "segment of zeros", 1),
    (55004, "segment of zeros", 0),
    (25002, "two kinds", 0),
    (25014, "exchanged segments", 0),
    (17014, "exchanged segments", 0),
    (17013, "the beginning", 0),
    (17015, "blocks", 0),
    (63004, "shifted run", 1),
    (63013, "shifted run", 0),
    (67010, "run of zeros", 0),
    (71001, "shifted run", 0),
    (2, "misplaced segment", 0),
];

impl Campaign {
    /// What is run with all other tests.
    pub fn ci() -> Vec<Self> {
        let common = Campaign { seed: 0, volumes: 16, cases: 2, only: None, explained: false, jobs: 2 };
        let once = |(seed, kind, case): &(u64, &str, u64)| Campaign {
            seed: *seed,
            volumes: 1,
            cases: case + 1,
            only: Some(((*kind).to_owned(), *case)),
            explained: false,
            jobs: 1,
        };
        ONCE_WRONG.iter().map(once).chain([common]).collect()
    }
}

/// A damaged volume for others to judge: the case of a number of a kind. An error where there is no such kind, or sectors
/// of it cannot be read.
pub fn image(number: u64, kind: &str, case: u64) -> Result<MemoryDevice> {
    let at = KINDS.iter().position(|(name, _)| *name == kind);
    let Some((at, (_, hurt))) = at.and_then(|at| Some((at, KINDS.get(at)?))) else {
        bail!("there is no kind of damage {kind:?}")
    };
    let volume = Aged::new(number)?;
    let mut knife = Knife::new(&volume, seed_of(number, at, case));
    hurt(&mut knife);
    knife.image().ok_or_else(|| anyhow!("volume {number}, {kind}: sectors cannot be read"))
}

/// Writes one, or without a kind the sound volume, into a file, for looking at it by hand.
pub fn write_image(number: u64, kind: Option<&str>, case: u64, file: &Path) -> Result<()> {
    let device = match kind {
        Some(kind) => image(number, kind, case)?,
        None => Aged::new(number)?.device,
    };
    let mut bytes = vec![0; usize::try_from(device.len())?];
    device.read_at(0, &mut bytes)?;
    std::fs::write(file, bytes).with_context(|| file.display().to_string())
}

/// Damaged volumes for others to judge: of these volumes one of every `step`-th kind, by name. Those of which sectors cannot
/// be read, or of which the end is missing, are left out.
pub fn images(volumes: Range<u64>, step: usize) -> Result<Vec<(String, MemoryDevice)>> {
    let mut all = Vec::new();
    for number in volumes {
        let volume = Aged::new(number)?;
        for (kind, (name, hurt)) in KINDS.iter().enumerate().step_by(step.max(1)) {
            let mut knife = Knife::new(&volume, seed_of(number, kind, 0));
            hurt(&mut knife);
            let whole = |image: &MemoryDevice| image.len() == volume.device.len();
            all.extend(knife.image().filter(whole).map(|image| (format!("volume {number}, {name}"), image)));
        }
    }
    Ok(all)
}

fn seed_of(volume: u64, kind: usize, case: u64) -> u64 {
    volume << 32 | (kind as u64) << 16 | case
}

#[derive(Default)]
struct Sum {
    cases: u64,
    bad: u64,
    given_up: u64,
    cleaned: u64,
    left_in_snapshots: u64,
    older: u64,
    /// Names that are not as they were after repairs, all of which is told.
    lost: u64,
    /// Cases by the beginning of their findings.
    by: BTreeMap<String, u64>,
    slowest: Duration,
}

fn case(volume: &Aged, number: u64, kind: usize, seed: u64, dir: &Path, explained: bool) -> Verdict {
    let (_, hurt) = KINDS[kind];
    let mut knife = Knife::new(volume, seed_of(number, kind, seed));
    hurt(&mut knife);
    let changed = knife.changed();
    let verdict = judge(volume, &|| knife.broken(), &changed, dir);
    if explained {
        println!(
            "blocks of {}, {} a segment, checkpoint {}, crashed: {}, logs end at {}",
            volume.geometry.block_size,
            volume.geometry.blocks_per_segment,
            volume.cno,
            volume.crashed,
            volume.end
        );
        let snapshots: Vec<u64> = volume.snapshots.iter().map(|(c, _)| *c).collect();
        println!("segments: {}; snapshots: {snapshots:?}", volume.free);
        println!("changed: {}", volume.whose(&changed));
        verdict.rescued.iter().chain(&verdict.said).for_each(|line| println!("  {line}"));
    }
    verdict
}

fn volume(campaign: &Campaign, number: u64, dir: &Path, sum: &Mutex<Sum>) -> Result<()> {
    let volume = Aged::new(number)?;
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        for seed in 0..campaign.cases {
            if campaign.only.as_ref().is_some_and(|(k, s)| (k.as_str(), *s) != (*name, seed)) {
                continue;
            }
            let dir = dir.join(format!("{number}-{kind}-{seed}"));
            let verdict = catch_unwind(AssertUnwindSafe(|| {
                case(&volume, number, kind, seed, &dir, campaign.explained)
            }));
            let verdict =
                verdict.unwrap_or_else(|_| Verdict { findings: vec!["PANIC".into()], ..Verdict::default() });
            let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            sum.cases += 1;
            sum.slowest = sum.slowest.max(verdict.slowest);
            sum.given_up += u64::from(verdict.given_up);
            sum.cleaned += u64::from(verdict.cleaned);
            sum.left_in_snapshots += u64::from(verdict.left_in_snapshots);
            sum.older += u64::from(verdict.older);
            sum.lost += if verdict.older { 0 } else { verdict.lost as u64 };
            sum.bad += u64::from(!verdict.findings.is_empty());
            for finding in &verdict.findings {
                println!("{number} \"{name}\" {seed}: {finding}");
                let class: String = finding.chars().filter(|c| !c.is_ascii_digit()).take(34).collect();
                *sum.by.entry(class).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Runs it; fails where a promise was not kept.
pub fn damage(campaign: &Campaign) -> Result<()> {
    let scratch = Scratch::in_memory("damage")?;
    let (next, sum) = (AtomicU64::new(campaign.seed), Mutex::new(Sum::default()));
    let end = campaign.seed + campaign.volumes;
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Ok(());
                }
                volume(campaign, number, scratch.path(), &sum)?;
            }
        };
        let all: Vec<_> = (0..campaign.jobs).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| bail!("a volume could not be made")))
    })?;
    let sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (class, n) in &sum.by {
        println!("{n:6} {class}");
    }
    println!(
        "{} cases, {} with a finding, {} taken back to an older state, {} not mended, which is said, {} cleaned for want of \
         space, {} with snapshots for which there is too little even so; in the others {} names are not as they were, which is said; the slowest step {:.1?}",
        sum.cases,
        sum.bad,
        sum.older,
        sum.given_up,
        sum.cleaned,
        sum.left_in_snapshots,
        sum.lost,
        sum.slowest
    );
    if sum.bad > 0 { bail!("{} cases with a finding", sum.bad) } else { Ok(()) }
}
