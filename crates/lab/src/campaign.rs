//! Many workloads on all processors: plays, cuts, looks, judges and counts.
//!
//! Workload number `n` of a seed is always the same, so a failure is told by both. A state counts once, however often
//! its bytes come up, in whatever workload.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use silt_device::{
    CrashOptions, CrashState, CrashStates, Cut, Device, Landing, MemoryDevice, Order, Recorder,
};
use silt_format::super_block;
use silt_model::manifest::Columns;
use silt_model::rng::mix;

use crate::ace::{Ace, Sequences};
use crate::bare;
use crate::driver;
use crate::failing::failing;
use crate::history::{History, Progress};
use crate::mending;
use crate::oracle::{self, Look, Seen};
use crate::random::{KINDS, random};
use crate::workload::{Step, Workload};
use crate::{During, Failure, Result};

/// One state in so many is mounted with the power cut again.
const TWICE: u64 = 16;
/// In one of so many one of the super blocks cannot be used besides.
const SPOILED: u64 = 16;
/// Failures after which a campaign ends.
const ENOUGH: usize = 3;

/// What a campaign shall do.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Ends after so many distinct states ...
    pub states: Option<u64>,
    /// ... of at least so many workloads, and no more than it takes, or
    pub workloads: u64,
    /// after this time.
    pub time: Option<Duration>,
    /// Only volumes with blocks of so many bytes.
    pub block_size: Option<u32>,
    /// Begins with this workload.
    pub from: u64,
    /// Threads; 0 for one a processor.
    pub threads: usize,
    /// Only workloads in which the device fails.
    pub failing: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub workloads: u64,
    /// Distinct disks that were looked at.
    pub states: u64,
    /// Of these: all that was flushed, and nothing after.
    pub flushed: u64,
    /// Of these: everything or a first part of what was not flushed, wholly.
    pub in_order: u64,
    /// Of these: besides, the first sectors of the next request.
    pub torn: u64,
    /// Of these: bytes that writing in order leaves at no time: a sector is there and an earlier one is not.
    pub reordered: u64,
    /// Of the reordered: something of a request is there, and something of one before it is not.
    pub across: u64,
    /// Of these: the recovery of another state was cut.
    pub twice: u64,
    /// Disks that came up before.
    pub repeated: u64,
}

/// A state that is not as it should be.
#[derive(Debug, Clone)]
pub struct Failed {
    /// Number of the workload.
    pub number: u64,
    pub workload: Option<Workload>,
    /// What is wrong.
    pub what: Failure,
    /// Distinct states that were looked at before.
    pub after: u64,
}

/// What is begun next.
struct Next {
    number: u64,
    /// Workloads that were begun.
    begun: u64,
}

/// What a number stands for.
enum Task {
    Mkfs,
    Repair,
    Files(Workload),
}

/// A campaign under way.
pub struct Campaign {
    plan: Plan,
    pairs: Ace,
    triples: Ace,
    every_pair: Ace,
    known: Mutex<HashSet<u64>>,
    tally: Mutex<Tally>,
    failed: Mutex<Vec<Failed>>,
    next: Mutex<Next>,
    stop: AtomicBool,
    begun: Instant,
}

impl Campaign {
    /// Nothing is done yet.
    pub fn new(plan: Plan) -> Result<Self> {
        let seed = plan.seed;
        let ace = |length, every_call| Ace::new(Sequences { length, every_call }, seed);
        Ok(Campaign {
            pairs: ace(2, false)?,
            triples: ace(3, true)?,
            every_pair: ace(2, true)?,
            known: Mutex::default(),
            tally: Mutex::default(),
            failed: Mutex::default(),
            next: Mutex::new(Next { number: plan.from, begun: 0 }),
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            plan,
        })
    }

    /// Runs to the end; what failed, the first first.
    pub fn run(&self, watch: &(dyn Fn(Tally) + Sync)) -> Vec<Failed> {
        let threads = match self.plan.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((number, task)) = self.begin() {
                        self.one(number, task);
                        watch(self.tally());
                    }
                });
            }
        });
        let mut failed = std::mem::take(&mut *self.failed.lock());
        failed.sort_by_key(|f| f.number);
        failed
    }

    /// So far.
    pub fn tally(&self) -> Tally {
        *self.tally.lock()
    }

    /// Ends it when the workloads that were begun are done.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The next workload; none: it is over. What others have begun counts, so that no more are done than were asked for.
    fn begin(&self) -> Option<(u64, Task)> {
        let mut next = self.next.lock();
        while !self.is_over(next.begun) {
            let number = next.number;
            next.number += 1;
            if let Some(task) = self.task(number) {
                next.begun += 1;
                return Some((number, task));
            }
        }
        None
    }

    fn task(&self, number: u64) -> Option<Task> {
        match special(number).filter(|_| !self.plan.failing) {
            Some(MKFS) => Some(Task::Mkfs),
            Some(_) => Some(Task::Repair),
            None => self.workload(number).map(Task::Files),
        }
    }

    fn is_over(&self, begun: u64) -> bool {
        let t = self.tally();
        let enough = self.plan.states.is_some_and(|n| t.states >= n) && begun >= self.plan.workloads;
        let late = self.plan.time.is_some_and(|time| self.begun.elapsed() >= time);
        self.stop.load(Ordering::Relaxed) || enough || late
    }

    /// Workload number `n`: twelve of twenty are pairs, until each was there once, then with every way to make them
    /// durable; four are triples, four long ones, one of
    /// them mkfs, repair or one on a device that fails. `None`: there is none of this number.
    pub fn workload(&self, n: u64) -> Option<Workload> {
        let (round, place) = (n / 20, n % 20);
        let found = match place {
            _ if self.plan.failing || matches!(n % 100, 19 | 59 | 79) => {
                Some(failing(mix(self.plan.seed) ^ n))
            }
            0..12 => {
                let nth = round * 12 + place;
                match nth.checked_sub(self.pairs.count()) {
                    None => self.pairs.get(nth),
                    Some(nth) => self.every_pair.get(nth),
                }
            }
            12..16 => self.triples.get(round * 4 + place - 12),
            _ => {
                let nth = round * 4 + place - 16;
                let kind = KINDS.get(usize::try_from(nth % KINDS.len() as u64).unwrap_or(0))?;
                Some(random(*kind, mix(self.plan.seed) ^ nth))
            }
        };
        found.filter(|w| self.plan.block_size.is_none_or(|b| b == w.block_size))
    }

    fn one(&self, number: u64, task: Task) {
        let seed = mix(self.plan.seed ^ number);
        let mut new = |fingerprint, cut: &Cut| self.is_new(fingerprint, cut, false);
        let (made, result) = match task {
            Task::Mkfs => (None, guarded(|| bare::examine(seed, &mut new))),
            Task::Repair => (None, guarded(|| mending::examine(seed, &mut new).map(|_| ()))),
            Task::Files(workload) => {
                let mut see = |fingerprint, cut: &Cut, twice| self.is_new(fingerprint, cut, twice);
                let result = guarded(|| examine(&workload, cuts_of(&workload), &mut see));
                (Some(workload), result)
            }
        };
        self.tally.lock().workloads += 1;
        if let Err(what) = result {
            let mut failed = self.failed.lock();
            failed.push(Failed { number, workload: made, what, after: self.tally().states });
            if failed.len() >= ENOUGH {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Counts a state; whether its bytes are new.
    fn is_new(&self, fingerprint: u64, cut: &Cut, twice: bool) -> bool {
        let new = self.known.lock().insert(fingerprint);
        let mut t = self.tally.lock();
        if !new {
            t.repeated += 1;
            return false;
        }
        t.states += 1;
        t.twice += u64::from(twice);
        match (cut.landing, cut.order) {
            (Landing::Nothing, _) => t.flushed += 1,
            (_, Order::Changes) => t.in_order += 1,
            (_, Order::Sectors) => t.torn += 1,
            (_, Order::OutOfOrder | Order::AcrossChanges) => t.reordered += 1,
        }
        t.across += u64::from(cut.order == Order::AcrossChanges);
        true
    }
}

const MKFS: &str = "mkfs";
const REPAIR: &str = "repair";

/// Numbers that are not a file system's work, but that of making one or of mending one.
pub fn special(number: u64) -> Option<&'static str> {
    match number % 100 {
        39 => Some(REPAIR),
        99 => Some(MKFS),
        _ => None,
    }
}

/// A panic is a failure like others.
pub fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(Failure(format!("it panicked: {}", text.unwrap_or_default())))
    })
}

/// Where a workload is cut in a campaign.
pub fn cuts_of(workload: &Workload) -> CrashOptions {
    let (max_states, per_flush) = match workload {
        w if w.name.starts_with("ace") => (60, if w.barrier { 12 } else { 40 }),
        // Nothing but super blocks divides it, and more is pending.
        w if !w.barrier => (300, 40),
        _ => (200, 8),
    };
    CrashOptions { seed: workload.seed, max_states, per_flush }
}

/// What is told of each state: fingerprint, how it was cut, whether for the second time. Answers whether it is new.
pub type See<'a> = dyn FnMut(u64, &Cut, bool) -> bool + 'a;

/// Plays a workload and judges what cuts leave of it; the first that is wrong is told.
pub fn examine(workload: &Workload, options: CrashOptions, see: &mut See<'_>) -> Result<()> {
    let history = driver::play(workload)?;
    let mut known: HashMap<u64, Arc<Seen>> = HashMap::new();
    for (_, state) in history.states(options) {
        let state = state.during("making a crash state")?;
        see(state.fingerprint, &state.cut, false);
        let seen = match known.get(&state.fingerprint) {
            Some(seen) => seen.clone(),
            None => {
                let seen = oracle::look(oracle::disk(&state.device), how(workload, &history, &state));
                let seen = Arc::new(seen.map_err(|e| e.at(&state.cut.to_string()))?);
                known.insert(state.fingerprint, seen.clone());
                if workload.barrier && mix(state.fingerprint ^ 1).is_multiple_of(SPOILED) {
                    let place = || format!("{}, and a super block lost", state.cut);
                    without_a_super_block(&history, &state).map_err(|e| e.at(&place()))?;
                }
                if mix(state.fingerprint).is_multiple_of(TWICE) {
                    cut_again(workload, &history, &state, &seen, see)
                        .map_err(|e| e.at(&state.cut.to_string()))?;
                }
                seen
            }
        };
        judge(workload, &history, &state, &seen).map_err(|e| e.at(&state.cut.to_string()))?;
    }
    Ok(())
}

/// One super block is enough: whichever is lost, the other leads to what was promised.
fn without_a_super_block(history: &History, state: &CrashState) -> Result<()> {
    let device = state.device.fork();
    let at = match mix(state.fingerprint) % 2 {
        0 => super_block::PRIMARY_OFFSET,
        _ => super_block::secondary_offset(device.len()),
    };
    device.write_at(at, &[&[0; super_block::SIZE]]).during("writing")?;
    // A full volume is not written, and the copy stays lost.
    let look = Look { before: false, after: false, ..oracle::ALL };
    let seen = oracle::look(oracle::disk(&device), look)?;
    oracle::judge(history, Progress::of(&state.acknowledged), &seen, true)
}

/// How a state of a workload is looked at.
///
/// Settings are in both super blocks, which cannot be written at once. Without barriers the first reader must be one
/// that knows a super root behind a torn log for what it is (the format, 4.2): Silt's mount does, and what it leaves
/// is sound for everybody.
pub fn how(workload: &Workload, history: &History, state: &CrashState) -> Look {
    let progress = Progress::of(&state.acknowledged);
    let before = history.done.get(progress.answered);
    let sound = history.damaged.is_none_or(|step| progress.begun < step);
    let settings =
        matches!(under_way(workload, state), Some(Step::Label(_))) || before.is_some_and(|d| d.half_set);
    Look { before: workload.barrier && sound, settings, after: sound, write: true, seed: 0 }
}

/// The step that the cut fell into.
fn under_way<'a>(workload: &'a Workload, state: &CrashState) -> Option<&'a Step> {
    let progress = Progress::of(&state.acknowledged);
    let under_way = progress.begun.checked_sub(1).filter(|_| progress.begun > progress.answered);
    under_way.and_then(|i| workload.steps.get(i))
}

/// Whether that changes what both super blocks say. That a resize was cut off is marked in them until somebody has begun to
/// put it right.
fn changes_settings(workload: &Workload, state: &CrashState) -> bool {
    matches!(under_way(workload, state), Some(Step::Label(_) | Step::Grow | Step::Shrink(_)))
}

/// Judges a state by what its marks say.
pub fn judge(workload: &Workload, history: &History, state: &CrashState, seen: &Seen) -> Result<()> {
    oracle::judge(history, Progress::of(&state.acknowledged), seen, workload.barrier)
}

/// The mount after the cut is cut itself, and what follows it: the one after it must find the same.
fn cut_again(
    workload: &Workload,
    history: &History,
    state: &CrashState,
    first: &Seen,
    see: &mut See<'_>,
) -> Result<()> {
    let disk = Arc::new(Recorder::new(state.device.fork()));
    let device: Arc<dyn Device> = disk.clone();
    oracle::look(device, Look { before: false, after: false, seed: 1, ..oracle::ALL })?;
    let options = CrashOptions { seed: state.fingerprint, max_states: 12, per_flush: 3 };
    for again in CrashStates::new(&state.device, disk.record().events(), options) {
        let again = again.during("making a crash state")?;
        if !see(again.fingerprint, &again.cut, true) {
            continue;
        }
        let place = format!("recovery cut off, {}", again.cut);
        let before = how(workload, history, state);
        // What was half set, or was being set, the mount that was cut here had begun to put right.
        let how = Look { settings: before.settings || changes_settings(workload, state), ..before };
        let seen = oracle::look(oracle::disk(&again.device), how).map_err(|e| e.at(&place))?;
        let (before, after) = (oracle::without_probe(&first.live), oracle::without_probe(&seen.live));
        oracle::same(&before, &after, Columns::ALL).map_err(|e| e.at(&place))?;
        if seen.cno < first.cno || seen.snapshots != first.snapshots {
            return Err(Failure(format!("{place}: checkpoint {} became {}", first.cno, seen.cno)));
        }
    }
    Ok(())
}

/// A disk for another judge, with what Silt finds on it.
pub struct Sample {
    /// Workload and cut, in words.
    pub what: String,
    pub device: MemoryDevice,
    /// Bytes of a block.
    pub block_size: u32,
    pub seen: Arc<Seen>,
    pub order: Order,
    /// The cut fell into a change of what both super blocks say: only Silt puts that right.
    pub settings: bool,
    /// Where data far out in files may be, as (offset, length) in bytes.
    pub deep: Vec<(u64, u64)>,
}

impl Campaign {
    /// So many states of many workloads, more of long ones than a campaign has of them; torn ones, ones with synced data
    /// to be put in place and ones with snapshots above all. Those of whom nothing is promised, and full ones, are left out.
    pub fn sample(&self, count: usize) -> Result<Vec<Sample>> {
        let mut samples: Vec<Sample> = Vec::new();
        let mut numbers = (self.plan.from..).filter(|n| matches!(n % 20, 0 | 5 | 12 | 16..));
        while samples.len() < count {
            let workload = numbers.next().and_then(|n| self.workload(n)).filter(|w| w.barrier);
            let Some(workload) = workload else { continue };
            let history = driver::play(&workload)?;
            let states = history.states(cuts_of(&workload)).map(|(_, state)| state);
            let states = states.collect::<silt_device::Result<Vec<_>>>().during("making crash states")?;
            for state in choose(&workload, &states) {
                let seen = oracle::look(oracle::disk(&state.device), how(&workload, &history, state))?;
                judge(&workload, &history, state, &seen)?;
                // Other judges may not read it without writing.
                if seen.full {
                    continue;
                }
                samples.push(Sample {
                    what: format!("{}, {}", workload.name, state.cut),
                    device: state.device.fork(),
                    block_size: workload.block_size,
                    seen: Arc::new(seen),
                    order: state.cut.order,
                    settings: changes_settings(&workload, state),
                    deep: history.deep.clone(),
                });
            }
        }
        samples.truncate(count);
        Ok(samples)
    }
}

/// Some states of one workload that differ.
fn choose<'a>(workload: &Workload, states: &'a [CrashState]) -> Vec<&'a CrashState> {
    let at = usize::try_from(mix(workload.seed) % states.len().max(1) as u64).unwrap_or(0);
    let from = || states.iter().cycle().skip(at).take(states.len());
    let torn = from().find(|s| s.cut.order != Order::Changes);
    let synced = from()
        .take(40)
        .find(|s| silt_verify::check(&s.device, &silt_verify::Options::default()).stats.pending_blocks > 0);
    let mut known = HashSet::new();
    let chosen = torn.into_iter().chain(synced).chain(states.last());
    chosen.filter(|s| known.insert(s.fingerprint)).collect()
}
