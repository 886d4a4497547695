//! Emptying segments for somebody who asks.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use silt_cleaner::{Access, History, Limits, Mover, Options, Salvage, run_as_wished};
use silt_engine::clean::{Cleaned, Cleaning};
use silt_engine::{Error, Volume};
use silt_format::{BlockNr, SegNr};
use silt_retention::{Ladder, Wish};

use super::Out;
use super::retain::{effective, tell_problem, wish};
use super::status::{for_users, not_for_users};
use crate::host::{Host, with};
use crate::request::MAX_LIST;
use crate::response::{CleanProgress, CleanReport, SetAside};
use crate::retention::PlannedBy;
use crate::{Clean, ControlError, Kind, Least, Response, Result};

/// Why what is salvaged of a log is told.
const UNVERIFIED: &str = "the log does not match its checksum";

/// A host as the cleaner sees it.
pub(super) struct Via<'a>(pub &'a dyn Host);

impl Access for Via<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> silt_engine::Result<R> {
        let mut f = Some(f);
        let mut result = None;
        self.0.with_volume(&mut |volume| result = f.take().map(|f| f(volume)));
        result.ok_or_else(|| Error::Failed("the volume is being closed".into()))
    }
}

/// The same for a cleaning, with what it is planned by.
pub(super) struct Planner<'a> {
    host: &'a dyn Host,
    by: RefCell<PlannedBy>,
}

impl<'a> Planner<'a> {
    pub fn new(host: &'a dyn Host, by: PlannedBy) -> Self {
        Planner { host, by: RefCell::new(by) }
    }
}

impl Access for Planner<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> silt_engine::Result<R> {
        Via(self.host).with(f)
    }
}

impl Mover for Planner<'_> {
    fn make(&self, cleaning: Cleaning) -> silt_engine::Result<Cleaned> {
        self.host.clean(cleaning, &self.by.borrow())
    }

    fn settle(&self) -> silt_engine::Result<()> {
        self.host.settle()
    }
}

/// What is wished for, and the floor.
fn wishes(host: &dyn Host, clean: &Clean) -> Result<(Wish, Wish)> {
    let counts = effective(host);
    let wish = match clean.retain.as_deref() {
        Some("") => counts.wish,
        Some(words) => wish(words)?,
        None => Wish::nothing(),
    };
    Ok((wish, counts.floor))
}

/// What of that may change while it runs.
fn planned_by(clean: &Clean, (wish, floor): &(Wish, Wish)) -> PlannedBy {
    let of_the_volume = clean.retain.as_deref() == Some("");
    PlannedBy { wish: of_the_volume.then(|| wish.clone()), floor: floor.clone() }
}

/// Has a cleaning keep what is wished for, and every checkpoint from `oldest` on: what only removed ones had is not kept for
/// having been young.
fn keep(
    host: &dyn Host,
    clean: &Clean,
    (wish, floor): &(Wish, Wish),
    oldest: Option<u64>,
    options: &mut Options,
) -> silt_engine::Result<()> {
    (options.oldest, options.moments) = (oldest, Arc::default());
    if clean.retain.is_some() || oldest.is_some() || !floor.is_nothing() {
        let history = History::read(&Via(host))?;
        let clock = silt_cleaner::clock(&Via(host), options.now)?;
        let mut kept = Ladder::new(wish, floor).kept(0, &history.points, &clock);
        let young = oldest.unwrap_or(u64::MAX);
        kept.extend(history.points.iter().map(|p| p.number).filter(|n| *n >= young));
        history.keep(&kept, options);
    }
    Ok(())
}

/// Cleans until nothing is left that is worth it, or whoever asked is gone.
pub fn clean(host: &dyn Host, clean: &Clean, out: Out<'_>) -> Result<()> {
    let policy = match &clean.policy {
        Some(name) => name.parse().map_err(|e: String| ControlError::new(Kind::Invalid, e))?,
        None => silt_cleaner::Policy::default(),
    };
    let now = host.now();
    let oldest = match clean.protection {
        _ if clean.retain.is_some() => None,
        0 => None,
        seconds => with(host, |v| v.first_checkpoint_since(now.saturating_sub(seconds)))??,
    };
    let salvage = if clean.salvage { Salvage::Readable } else { Salvage::No };
    let defaults = Options::default();
    let (blocks, segment_size, not_for_users) = with(host, |v| {
        let g = v.geometry();
        let blocks = u64::from(g.blocks_per_segment);
        (blocks, blocks * u64::from(g.block_size), not_for_users(v))
    })?;
    let least = match clean.least {
        // Copying nearly all of a segment to gain nearly nothing is no way to get space.
        None => blocks / 20 + 1,
        Some(Least::Blocks(n)) => n.max(1),
        Some(Least::Percent(n)) => (blocks * n.min(100) / 100).max(1),
    };
    let most = defaults.limits.segments;
    let segments = clean.at_once.map_or(most, |n| usize::try_from(n).unwrap_or(most).clamp(1, most));
    // One more, for what is kept back grows with the tables, which the cleaning itself writes.
    let beyond = not_for_users.saturating_add(1);
    let mut options = Options {
        policy,
        oldest,
        until: clean.until.map(|b| b.div_ceil(segment_size.max(1)).saturating_add(beyond)),
        least,
        limits: Limits { salvage, segments, ahead: true, ..defaults.limits },
        now,
        ..defaults
    };
    tell_problem(host, out)?;
    let mut wishes = wishes(host, clean)?;
    keep(host, clean, &wishes, oldest, &mut options)?;
    let planner = Planner::new(host, planned_by(clean, &wishes));
    // A floor that is set meanwhile holds for the rest of it.
    let renew = |options: &mut Options| {
        let now = self::wishes(host, clean).map_err(|e| Error::Invalid(e.message))?;
        if now == wishes {
            return Ok(false);
        }
        wishes = now;
        planner.by.replace(planned_by(clean, &wishes));
        options.now = host.now();
        keep(host, clean, &wishes, oldest, options).map(|()| true)
    };
    let mut gone = None;
    let outcome = run_as_wished(&planner, &options, renew, |p| {
        std::thread::sleep(Duration::from_millis(clean.rest.min(60_000)));
        let progress = CleanProgress { done: p.done, total: p.total, freed: p.cleaned.segments };
        out(Response::CleanProgress(progress)).inspect_err(|e| gone = Some(e.clone())).is_ok()
    })?;
    host.cleaned(&outcome);
    if let Some(e) = gone {
        return Err(e);
    }
    let (clean_segments, available) = with(host, |v| {
        let clean = v.available_segments();
        (clean, for_users(v, v.stat().map_or(clean, |s| s.clean_segments)))
    })?;
    out(Response::Cleaned(Box::new(CleanReport {
        freed: outcome.cleaned.segments,
        moved: outcome.cleaned.moved,
        checkpoints: outcome.cleaned.checkpoints,
        clean_segments,
        available,
        segment_size,
        set_aside: each_once(outcome.aside.iter().map(|a| (a.segment, a.log, a.why.as_str()))),
        unverified: each_once(outcome.unverified.iter().map(|(s, log)| (*s, Some(*log), UNVERIFIED))),
        out_of_room: outcome.out_of_room,
    })))
}

/// What is told of logs, in order and once of each: a step for which there was no room is tried again, and meets them again.
fn each_once<'a>(met: impl Iterator<Item = (SegNr, Option<BlockNr>, &'a str)>) -> Vec<SetAside> {
    let mut told = HashSet::new();
    met.filter(|(segment, log, _)| told.insert((*segment, *log)))
        .take(MAX_LIST)
        .map(|(segment, log, why)| SetAside { segment: segment.0, block: log.map(|b| b.0), why: why.into() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_again_is_told_once() {
        let log = |segment, block| (SegNr(segment), Some(BlockNr(block)), UNVERIFIED);
        let told = each_once([log(3, 192), log(7, 448), log(3, 192), log(3, 200)].into_iter());
        let places: Vec<_> = told.iter().map(|a| (a.segment, a.block)).collect();
        assert_eq!(places, [(3, Some(192)), (7, Some(448)), (3, Some(200))]);
    }
}
