//! Emptying the end of a volume, so that it can be cut off.
//!
//! ```text
//! plan: what of the past has room in the new size ──> confine ──> the log leaves the end ──> empty it, as often as
//! something is left ──> the engine cuts it off
//! ```

use silt_engine::clean::Usage;
use silt_engine::{Error, Keep, Result};
use silt_format::SegNr;
use silt_retention::{Ladder, Wish};

use crate::gather::{Gatherer, SetAside};
use crate::history::{History, clock};
use crate::policy::Policy;
use crate::run::{Mover, Options, count, pass};

/// Times that what came to lie at the end meanwhile is looked for.
const ROUNDS: usize = 16;
/// Checkpoints that are waited for until none is being written.
const CONFINING: usize = 50;

/// What is kept of the past in a smaller volume.
#[derive(Debug, Clone)]
pub struct Fit {
    /// How cleaning has to be done.
    pub options: Options,
    /// The words of the wish that fits, where not all of the past does.
    pub down_to: Option<String>,
    /// Segments from this one on are to go.
    pub limit: u64,
    /// 0 where all of the past is kept, else one more than the step of the ladder.
    pub step: usize,
}

/// Why a size is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    /// Bytes that work now.
    pub least: u64,
}

/// What ended it before all was empty.
#[derive(Debug)]
pub enum Stopped {
    /// Whoever watches wanted it.
    Asked,
    /// A segment stays as it is.
    Aside(SetAside),
    /// New segments came to lie there all the time.
    Busy,
    /// An error; nothing is lost.
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(e: Error) -> Self {
        Stopped::Failed(e)
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emptied {
    /// Segments.
    pub done: u64,
    pub total: u64,
    /// Moments that went.
    pub moments: u64,
}

/// Finds how much of the past fits into `size` bytes: all of it, or as much as the wish and ever weaker ones keep, and
/// at least the floor; `from`: steps before this one are not tried. Changes nothing. A pass over the DAT for each that
/// is tried.
pub fn fit(
    mover: &impl Mover,
    size: u64,
    (wish, floor): (&Wish, &Wish),
    now: u64,
    from: usize,
) -> Result<std::result::Result<Fit, TooSmall>> {
    let limit = mover.with(|v| v.segments_with_size(size))?;
    let plain = Options { now, policy: Policy::Greedy, ..Options::default() };
    let all = Options { oldest: Some(0), ..plain.clone() };
    let (mut least, mut bytes) = least(mover, &all)?;
    if from == 0 && least <= limit {
        return Ok(Ok(Fit { options: all, down_to: None, limit, step: 0 }));
    }
    let history = History::read(mover)?;
    let ladder = Ladder::new(wish, floor);
    let clock = clock(mover, now)?;
    let mut before = history.points.len();
    for (step, wish) in ladder.steps().iter().enumerate() {
        let kept = ladder.kept(step, &history.points, &clock);
        // A step is a part of the one before it.
        if kept.len() == before && step > 0 {
            continue;
        }
        before = kept.len();
        let mut options = plain.clone();
        history.keep(&kept, &mut options);
        (least, bytes) = self::least(mover, &options)?;
        if step + 1 >= from && least <= limit {
            return Ok(Ok(Fit { options, down_to: Some(wish.to_string()), limit, step: step + 1 }));
        }
    }
    Ok(Err(TooSmall { least: bytes }))
}

fn keep(mover: &impl Mover, options: &Options) -> Result<Keep> {
    mover.with(|v| -> Result<Keep> {
        let mut keep = v.keep(options.oldest)?;
        keep.also(options.moments.iter().copied());
        Ok(keep)
    })?
}

/// The fewest segments that hold what is kept, and their bytes.
fn least(mover: &impl Mover, options: &Options) -> Result<(u64, u64)> {
    let usage: Usage = count(mover, keep(mover, options)?)?;
    mover.with(|v| {
        let of = |s| usage.of(SegNr(s));
        let needed = (0..v.geometry().nsegments).map(|s| u64::from(of(s).live) + u64::from(of(s).kept)).sum();
        v.least_segments(needed)
    })
}

/// Empties the segments behind the end that a fit names, to which the volume is confined from then on, whatever this comes
/// to ([`confine`]). `watch` ends it with `false`; what was moved until then is durable and in order.
pub fn empty(
    mover: &impl Mover,
    fit: &Fit,
    mut watch: impl FnMut(&Emptied) -> bool,
) -> std::result::Result<Emptied, Stopped> {
    let mut state = Emptied { done: 0, total: 0, moments: 0 };
    confine(mover, Some(fit.limit))?;
    trade(mover, fit.limit)?;
    for _ in 0..ROUNDS {
        let used = used(mover, fit, &mut state, &mut watch)?;
        state.total = state.total.max(state.done + used.len() as u64);
        if !watch(&state) {
            return Err(Stopped::Asked);
        }
        if used.is_empty() {
            // What the volume keeps back has to be clean in its new size.
            let short = kept_back(mover, fit.limit)?.saturating_sub(clean_in_front(mover, fit.limit)?);
            if short == 0 {
                return Ok(state);
            }
            make_room(mover, fit, short, &mut state, &mut watch)?;
            continue;
        }
        round(mover, fit, used, &mut state, &mut watch)?;
    }
    Err(Stopped::Busy)
}

/// Bytes of clean segments that a step of emptying goes by where the storage below has little left.
const STEP: u64 = 32 << 20;

/// Where the storage below has little left, what is clean behind the end gives its space to what is in front.
fn trade(mover: &impl Mover, limit: u64) -> Result<()> {
    let g = mover.with(|v| *v.geometry())?;
    let wanted = (STEP / (u64::from(g.blocks_per_segment) << g.block_bits)).max(4) + 3;
    // A host may show as data what was discarded.
    for _ in 0..g.nsegments.saturating_sub(limit).saturating_add(wanted) {
        if !mover.with(|v| v.trade_end(limit, wanted))?? {
            break;
        }
    }
    Ok(())
}

/// Has the log go on in front of the end.
fn leave(mover: &impl Mover, limit: u64, now: u64) -> Result<()> {
    for _ in 0..ROUNDS {
        // So that little waits when it leaves, which takes a checkpoint under the lock.
        mover.settle()?;
        match mover.with(|v| v.leave_end(limit, now))? {
            Ok(_) => break,
            Err(Error::Constructing) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Segments that have to be clean in a volume of so many, and some for the checkpoints on the way there.
fn kept_back(mover: &impl Mover, segments: u64) -> Result<u64> {
    mover.with(|v| silt_format::reserved_segments(segments, v.geometry().reserved_percent) + 3)
}

fn clean_in_front(mover: &impl Mover, limit: u64) -> Result<u64> {
    let runs = mover.with(|v| v.clean_segments(0..limit))??;
    Ok(runs.iter().map(|r| r.end - r.start).sum())
}

/// Gains so many clean segments in front of the end, by emptying some there that are not full. What moves for it may go
/// anywhere. How many moments went.
fn make_room(
    mover: &impl Mover,
    fit: &Fit,
    more: u64,
    state: &mut Emptied,
    watch: &mut impl FnMut(&Emptied) -> bool,
) -> std::result::Result<(), Stopped> {
    confine(mover, None)?;
    let before = clean_in_front(mover, fit.limit)?;
    let size = mover.with(|v| u64::from(v.geometry().blocks_per_segment))?;
    let options = Options { range: 0..fit.limit, least: size / 50 + 1, ..fit.options.clone() };
    let mut asked = false;
    let outcome = pass(mover, &options, |_, _| {
        asked = !watch(state);
        !asked && clean_in_front(mover, fit.limit).is_ok_and(|n| n < before.saturating_add(more))
    });
    confine(mover, Some(fit.limit))?;
    state.moments += outcome?.cleaned.checkpoints;
    if asked {
        return Err(Stopped::Asked);
    }
    if clean_in_front(mover, fit.limit)? <= before { Err(Error::NoSpace.into()) } else { Ok(()) }
}

/// Confines the volume as soon as no checkpoint is being written; `None` lifts that.
pub fn confine(mover: &impl Mover, limit: Option<u64>) -> Result<()> {
    for _ in 0..CONFINING {
        match mover.with(|v| v.confine(limit))? {
            Err(Error::Constructing) => mover.settle()?,
            other => return other,
        }
    }
    Err(Error::Constructing)
}

/// Segments behind the end that are in use; the log is not there any more.
fn used(
    mover: &impl Mover,
    fit: &Fit,
    state: &mut Emptied,
    watch: &mut impl FnMut(&Emptied) -> bool,
) -> std::result::Result<Vec<SegNr>, Stopped> {
    let limit = fit.limit;
    match leave(mover, limit, fit.options.now) {
        Err(Error::NoSpace) => {
            make_room(mover, fit, 4, state, watch)?;
            leave(mover, limit, fit.options.now)?;
        }
        left => left?,
    }
    mover.settle()?;
    let used = mover.with(|v| {
        let all = v.in_the_way(limit)?.0;
        all.into_iter().map(|s| Ok((s, v.segment_info(s)?.error))).collect::<Result<Vec<_>>>()
    })??;
    Ok(used.into_iter().filter(|(_, bad)| !bad).map(|(s, _)| s).collect())
}

fn round(
    mover: &impl Mover,
    fit: &Fit,
    used: Vec<SegNr>,
    state: &mut Emptied,
    watch: &mut impl FnMut(&Emptied) -> bool,
) -> std::result::Result<(), Stopped> {
    let size = mover.with(|v| u64::from(v.geometry().blocks_per_segment))?;
    let most = fit.options.limits.moves;
    let freed = mover.with(|v| v.freed())?;
    let usage = count(mover, keep(mover, &fit.options)?)?;
    let mut gatherer = Gatherer::new(usage.keep().clone(), used, fit.options.limits);
    gatherer.compare(usage, freed);
    let mut in_vain = 0;
    while !gatherer.is_done() {
        let available = mover.with(|v| v.available_segments())?;
        let room = usize::try_from(available.saturating_sub(3).saturating_mul(size) / 4).unwrap_or(most);
        gatherer.limit(room.min(most));
        let plan = gatherer.next(mover)?;
        if let Some(aside) = plan.aside.first() {
            return Err(Stopped::Aside(aside.clone()));
        }
        if plan.cleaning.is_empty() {
            continue;
        }
        let segments = plan.segments().to_vec();
        match mover.make(plan.cleaning) {
            Ok(done) => {
                in_vain = 0;
                state.done += done.segments;
                state.moments += done.checkpoints;
                trade(mover, fit.limit)?;
            }
            // Somebody looks at a moment that was to go: the next round knows.
            Err(Error::Stale) => return Ok(()),
            Err(Error::NoSpace) if in_vain < ROUNDS => {
                in_vain += 1;
                gatherer.limit_segments(segments.len() / 2);
                gatherer.put_back(&segments);
                make_room(mover, fit, 4 * in_vain as u64, state, watch)?;
                // What was moved to the end for it is found by the next round.
                leave(mover, fit.limit, fit.options.now)?;
            }
            Err(e) => return Err(e.into()),
        }
        if !watch(state) {
            return Err(Stopped::Asked);
        }
    }
    Ok(())
}
