//! Cleaning, pass by pass: until there is nothing left that is worth it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use silt_engine::clean::{Cleaned, Cleaning, Salvage, Usage};
use silt_engine::{Error, Keep, Result, Volume};
use silt_format::{BlockNr, SegNr};

use crate::gather::{Access, Gatherer, Limits, Medium, SetAside};
use crate::policy::{Candidate, Policy, all_candidates};
use crate::rotation::Rotation;

/// Blocks of the DAT counted at a time: some 30 us, for which others wait.
const COUNTED: usize = 16;
/// As long as recovery may walk less than this part of the volume, the rest of it is enough to choose from.
const SETTLED_PART: u64 = 64;

/// Where there is no room for so many segments in a row, there is none.
const REFUSED: usize = 8;
/// After so many steps in a row that left no more clean than there was, what others wrote aside, the rest is left: moving takes
/// as much.
const IN_VAIN: u32 = 8;
/// Or when they left so many segments less.
const LOST: u64 = 2;

/// Makes what is planned.
pub trait Mover: Access {
    /// Makes a cleaning a checkpoint, durable on return. [`Error::Stale`] and [`Error::NoSpace`] leave all as it was.
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned>;

    /// Makes what waits a checkpoint and has both super blocks point at it, durable on return.
    fn settle(&self) -> Result<()>;
}

/// What is cleaned.
#[derive(Debug, Clone)]
pub struct Options {
    pub policy: Policy,
    /// Checkpoints from this number on are kept, besides snapshots; `None`: snapshots and the newest alone.
    pub oldest: Option<u64>,
    /// Single checkpoints that are kept besides those.
    pub moments: Arc<[u64]>,
    /// Ends when so many segments can be written.
    pub until: Option<u64>,
    /// Segments with fewer blocks to gain are left.
    pub least: u64,
    /// For even wear: a segment was left alone for long when the log went round so often since it was written.
    pub rounds: u64,
    /// Segments that may be taken.
    pub range: Range<u64>,
    /// Segments of those that are never taken.
    pub aside: BTreeSet<u64>,
    pub limits: Limits,
    /// A pass begins with a checkpoint of what waits, so that what was given up in it counts. Otherwise only where recovery may
    /// walk so much that little of the volume is left to choose from.
    pub settle: bool,
    /// Seconds since 1970.
    pub now: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            policy: Policy::default(),
            oldest: None,
            moments: Arc::default(),
            until: None,
            least: 1,
            rounds: 2,
            range: 0..u64::MAX,
            aside: BTreeSet::new(),
            limits: Limits { moves: 4096, segments: 64, salvage: Salvage::No, ahead: false },
            settle: true,
            now: 0,
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Candidates looked at and all there are, of this pass.
    pub done: u64,
    pub total: u64,
    /// Blocks that were needed of the best of them and of the next one, when they were counted.
    pub best: u64,
    pub next: u64,
    pub cleaned: Cleaned,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub cleaned: Cleaned,
    /// Checkpoints made.
    pub steps: u64,
    /// Segments that were emptied because they had been left alone for long.
    pub turned: u64,
    pub aside: Vec<SetAside>,
    pub unverified: Vec<(SegNr, BlockNr)>,
    /// It was told to stop.
    pub stopped: bool,
    /// As many segments are clean as were asked for.
    pub enough: bool,
    /// There was no room to go on, although more could have been gained.
    pub out_of_room: bool,
}

/// A volume that nobody else has.
pub struct Whole<'a> {
    volume: RefCell<&'a mut Volume>,
    now: u64,
}

impl<'a> Whole<'a> {
    /// `now` in seconds since 1970.
    pub fn new(volume: &'a mut Volume, now: u64) -> Self {
        Whole { volume: RefCell::new(volume), now }
    }
}

impl Access for Whole<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        Ok(f(&mut self.volume.borrow_mut()))
    }
}

impl Mover for Whole<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        let mut volume = self.volume.borrow_mut();
        let done = volume.begin_cleaning(cleaning, self.now)?;
        volume.finish_construction(self.now)?;
        volume.flush_logs()?;
        volume.freed_are_durable();
        Ok(done)
    }

    fn settle(&self) -> Result<()> {
        let mut volume = self.volume.borrow_mut();
        volume.checkpoint(self.now)?;
        volume.flush_logs()?;
        let writes = volume.advance_super_blocks(self.now);
        volume.write_supers_or_one(&writes)
    }
}

fn add(sum: &mut Cleaned, more: Cleaned) {
    sum.segments += more.segments;
    sum.moved += more.moved;
    sum.dead += more.dead;
    sum.checkpoints += more.checkpoints;
}

impl Outcome {
    fn add(&mut self, more: Outcome) {
        add(&mut self.cleaned, more.cleaned);
        self.steps += more.steps;
        self.turned += more.turned;
        self.aside.extend(more.aside);
        self.unverified.extend(more.unverified);
        self.stopped = more.stopped;
        self.out_of_room = more.out_of_room;
        self.enough = more.enough;
    }
}

/// Cleans in passes, until one gains hardly anything, `until` is reached or `watch` breaks. All of it is durable when
/// this returns.
pub fn run(mover: &impl Mover, options: &Options, watch: impl FnMut(&Progress) -> bool) -> Result<Outcome> {
    run_as_wished(mover, options, |_| Ok(false), watch)
}

/// The same while what is to be kept may change: `renew` is asked after each step whether it did, and puts it into the
/// options; it counts from the next step on.
pub fn run_as_wished(
    mover: &impl Mover,
    options: &Options,
    mut renew: impl FnMut(&mut Options) -> Result<bool>,
    mut watch: impl FnMut(&Progress) -> bool,
) -> Result<Outcome> {
    let mut sum = Outcome::default();
    let mut options = options.clone();
    loop {
        let before = mover.with(|v| v.stat())??;
        let mut next = options.clone();
        let mut changed = Ok(false);
        let mut one = pass(mover, &options, |progress, _| {
            let mut all = sum.cleaned;
            add(&mut all, progress.cleaned);
            if !watch(&Progress { cleaned: all, ..*progress }) {
                return false;
            }
            changed = renew(&mut next);
            matches!(changed, Ok(false))
        })?;
        let after = mover.with(|v| v.stat())??;
        next.aside.extend(one.aside.iter().map(|a| a.segment.0));
        options = next;
        if changed? {
            one.stopped = false;
            sum.add(one);
            continue;
        }
        let ended = one.stopped || one.enough || one.out_of_room;
        sum.add(one);
        // One that gains less than a segment in a hundred would go round for nothing.
        if ended || after.clean_segments <= before.clean_segments + before.segments / 100 {
            return Ok(sum);
        }
    }
}

/// Counts how much of each segment is needed: one pass over the DAT, some blocks of it at a time. Nobody waits for the
/// medium meanwhile: what is read next is brought where it is at hand before.
pub fn count(access: &impl Access, keep: Keep) -> Result<Usage> {
    let (mut usage, mut ahead, medium) = access.with(|v| {
        let usage = Usage::new(v.geometry(), keep);
        let ahead = v.count_ahead(&usage, COUNTED);
        (usage, ahead, Medium::of(v))
    })?;
    while !usage.is_complete() {
        medium.bring(&ahead);
        ahead = access.with(|v| {
            v.count_usage(&mut usage, COUNTED)?;
            Ok::<_, Error>(v.count_ahead(&usage, COUNTED))
        })??;
    }
    Ok(usage)
}

/// Counts what is needed once, and empties the segments that are worth it. `watch` may set other limits for the steps to
/// come.
pub fn pass(
    mover: &impl Mover,
    options: &Options,
    mut watch: impl FnMut(&Progress, &mut Limits) -> bool,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    // What lies before the newest checkpoint is not needed by recovery then.
    if options.settle || mover.with(|v| v.unsettled_segments() > v.geometry().nsegments / SETTLED_PART)? {
        mover.settle()?;
    }
    let (keep, size, freed) = mover.with(|v| -> Result<_> {
        let mut keep = v.keep(options.oldest)?;
        keep.also(options.moments.iter().copied());
        Ok((keep, u64::from(v.geometry().blocks_per_segment), v.freed()))
    })??;
    let usage = count(mover, keep)?;
    let least = options.least.max(1);
    let mut all = all_candidates(mover, &usage, options.range.clone(), least)?;
    all.retain(|c| !options.aside.contains(&c.segment.0));
    Candidate::sort(&mut all, options.policy, options.now, size);
    let total = all.len() as u64;
    let mut rotation = Rotation::new(mover, &usage, options, &all)?;
    let needed: HashMap<SegNr, u64> = all.iter().map(|c| (c.segment, c.needed)).collect();
    let best = all.first().map_or(0, |c| c.needed);
    let keep = usage.keep().clone();
    let mut gatherer = Gatherer::new(keep, all.iter().map(|c| c.segment), options.limits);
    gatherer.compare(usage, freed);
    let mut limits = options.limits;
    let (mut most, mut segments_at_once) = (usize::MAX, usize::MAX);
    // For these there was no room; where others become clean, there may be.
    let mut refused: Vec<SegNr> = Vec::new();
    // What was emptied is gained, though somebody may read there for a while, and others may take it at once.
    let begun = mover.with(|v| v.data_written())?;
    let gained =
        |v: &mut Volume| v.available_when_read() + v.data_written().saturating_sub(begun).div_ceil(size);
    let (mut highest, mut in_vain) = (mover.with(gained)?, 0);
    while !gatherer.is_done() {
        // Copies take clean segments before others become clean. As many as fit at once: what a step writes besides
        // is much the same for few as for many.
        let (available, room) = mover.with(|v| (v.available_when_read(), v.room_for_cleaning()))?;
        let of = |room: u64| usize::try_from(room).unwrap_or(usize::MAX);
        gatherer.limit(of(room.0).min(most).min(limits.moves));
        gatherer.read_ahead(limits.ahead);
        gatherer.limit_segments(of(room.1).min(segments_at_once).min(limits.segments));
        if options.until.is_some_and(|n| available >= n) {
            outcome.enough = true;
            return Ok(outcome);
        }
        if let Some(segment) = rotation.next(mover, outcome.cleaned.segments)? {
            gatherer.first(segment);
        }
        let plan = gatherer.next(mover)?;
        let segments = plan.segments().to_vec();
        let turned = rotation.of(&segments);
        outcome.aside.extend(plan.aside);
        outcome.unverified.extend(plan.unverified);
        if plan.cleaning.is_empty() {
            continue;
        }
        // What is salvaged is worth it anyway, and so is even wear.
        let anyway = options.limits.salvage == Salvage::Readable || turned > 0;
        let gains = anyway || mover.with(|v| v.gain(&plan.cleaning))? > 0;
        if !gains {
            in_vain += 1;
            if in_vain >= IN_VAIN {
                break;
            }
            continue;
        }
        match mover.make(plan.cleaning) {
            Ok(done) => {
                add(&mut outcome.cleaned, done);
                outcome.steps += 1;
                outcome.turned += turned;
                let clean = mover.with(gained)?;
                in_vain = if clean > highest { 0 } else { in_vain + 1 };
                highest = highest.max(clean);
                if done.segments > 0 {
                    gatherer.put_back(&std::mem::take(&mut refused));
                }
            }
            // Somebody looks at a moment that was to go, or a segment was taken otherwise: the next pass knows.
            Err(Error::Stale) => {}
            // Even wear has to wait.
            Err(Error::NoSpace) if turned > 0 => gatherer.put_back(&rotation.without(segments)),
            // It takes less at a time, as long as that is less: segments of which nothing is needed come in any number.
            Err(Error::NoSpace) if segments.len() / 2 < segments_at_once && segments.len() > 1 => {
                most = most.min(limits.moves) / 4;
                segments_at_once = segments.len() / 2;
                gatherer.put_back(&segments);
            }
            Err(Error::NoSpace) => {
                refused.extend(segments);
                if refused.len() >= REFUSED {
                    break;
                }
            }
            Err(e) => return Err(e),
        }
        if in_vain >= IN_VAIN || mover.with(gained)? + LOST <= highest {
            break;
        }
        let done = total.saturating_sub(gatherer.left());
        let next = gatherer.peek().and_then(|s| needed.get(&s)).copied().unwrap_or(best);
        if !watch(&Progress { done, total, best, next, cleaned: outcome.cleaned }, &mut limits) {
            outcome.stopped = true;
            return Ok(outcome);
        }
    }
    outcome.out_of_room = !refused.is_empty();
    Ok(outcome)
}
