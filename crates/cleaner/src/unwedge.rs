//! A volume that has no room for a step of the cleaner, as other writers leave it, gets some.

use std::collections::BTreeSet;

use silt_engine::clean::{Cleaned, Usage};
use silt_engine::{Error, Result, Volume};
use silt_format::SegNr;

use crate::gather::{Gatherer, Limits, SetAside};
use crate::policy::{Candidate, Policy, candidates};
use crate::run::{Options, Outcome, Whole, count};

/// Segments that are looked at, those first of which least is needed.
const LOOKED_AT: usize = 32;
/// How many go at once, if they fit.
const AT_ONCE: [usize; 4] = [16, 4, 2, 1];
/// Steps in a row that leave no more room than there was.
const IN_VAIN: u32 = 8;

/// Empties segments until an ordinary step of the cleaner fits ([`Volume::is_wedged`]), or nothing can be gained any
/// more. `options` say what is kept. The volume is one that was just opened for writing, and not taken over; `reopen` opens
/// it again in the same way after a step that did not fit: nothing of that is on the device.
pub fn unwedge(
    mut volume: Volume,
    options: &Options,
    reopen: &mut dyn FnMut() -> Result<Volume>,
) -> Result<(Volume, Outcome)> {
    let (mut outcome, mut in_vain) = (Outcome::default(), 0);
    let mut most = volume.blocks_left();
    while volume.is_wedged() && in_vain < IN_VAIN {
        let done;
        (volume, done) = step(volume, options, reopen, &mut outcome.aside)?;
        let Some(done) = done else { break };
        outcome.steps += 1;
        outcome.cleaned.segments += done.segments;
        outcome.cleaned.moved += done.moved;
        outcome.cleaned.dead += done.dead;
        outcome.cleaned.checkpoints += done.checkpoints;
        let left = volume.blocks_left();
        in_vain = if left > most { 0 } else { in_vain + 1 };
        most = most.max(left);
    }
    outcome.out_of_room = volume.is_wedged();
    Ok((volume, outcome))
}

/// One checkpoint, of as many segments as fit; none where not even one does.
fn step(
    mut volume: Volume,
    options: &Options,
    reopen: &mut dyn FnMut() -> Result<Volume>,
    aside: &mut Vec<SetAside>,
) -> Result<(Volume, Option<Cleaned>)> {
    let size = u64::from(volume.geometry().blocks_per_segment);
    let mut keep = volume.keep(options.oldest)?;
    keep.also(options.moments.iter().copied());
    let usage = count(&Whole::new(&mut volume, options.now), keep)?;
    let mut all = candidates(&volume, &usage, options.range.clone(), options.least.max(1))?;
    let known: BTreeSet<u64> =
        aside.iter().map(|a| a.segment.0).chain(options.aside.iter().copied()).collect();
    all.retain(|c| !known.contains(&c.segment.0));
    Candidate::sort(&mut all, Policy::Greedy, options.now, size);
    let order: Vec<SegNr> = all.iter().map(|c| c.segment).take(LOOKED_AT).collect();
    for at_once in AT_ONCE {
        // All that differ by more than their number: of one each, else the first ones.
        let starts = if at_once == 1 { order.len() } else { 1 };
        for start in 0..starts {
            let segments = order.get(start..).unwrap_or_default();
            let (tried, done) = attempt(&mut volume, options, &usage, segments, at_once, aside)?;
            if done.is_some() {
                return Ok((volume, done));
            }
            if tried {
                volume = reopen()?;
            }
        }
    }
    Ok((volume, None))
}

/// Tries to empty some of these segments; whether that has spoilt the volume in memory.
fn attempt(
    volume: &mut Volume,
    options: &Options,
    usage: &Usage,
    segments: &[SegNr],
    at_once: usize,
    aside: &mut Vec<SetAside>,
) -> Result<(bool, Option<Cleaned>)> {
    let size = usize::try_from(volume.geometry().blocks_per_segment).unwrap_or(usize::MAX);
    let limits = Limits { moves: size, segments: at_once, salvage: options.limits.salvage, ahead: false };
    let order = segments.iter().copied().take(at_once);
    let mut gatherer = Gatherer::new(usage.keep().clone(), order, limits);
    gatherer.compare(usage.clone(), volume.freed());
    let plan = gatherer.next(&Whole::new(volume, options.now))?;
    aside.extend(plan.aside);
    if plan.cleaning.frees() == 0 {
        return Ok((false, None));
    }
    match volume.last_resort(plan.cleaning, options.now) {
        Ok(done) => Ok((true, Some(done))),
        Err(Error::NoSpace | Error::Stale) => Ok((true, None)),
        Err(e) => Err(e),
    }
}
