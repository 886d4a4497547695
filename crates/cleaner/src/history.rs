//! The past as retention sees it, and what giving some of it up would bring.

use std::ops::ControlFlow;

use silt_engine::{Keep, Result, Volume};
use silt_format::{Cno, SegNr};
use silt_retention::{Clock, Point, Step};

use crate::gather::Access;
use crate::run::{Options, count};

/// Checkpoints listed at a time.
const LISTED: usize = 1_000;
/// Most that are listed: of more the oldest, and all others are kept for the time being.
const MOST: usize = 4_000_000;

/// The clock by which checkpoints are as old as they are for certain, at `now` (seconds since 1970): how far it was set, and for
/// how long nobody had the volume, counts for nothing.
pub fn clock(access: &impl Access, now: u64) -> Result<Clock> {
    access.with(|v| {
        let born = v.super_block().ctime.get();
        let steps = v.clock_steps(now).iter().map(|s| Step { after: s.after.0, by: s.by });
        Clock::at(now).born(born).with_steps(steps.collect())
    })
}

/// Plain checkpoints, and which others there are. Memory: 24 bytes each, 8 a snapshot.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Ascending by number.
    pub points: Vec<Point>,
    /// Snapshots: one that is unmade meanwhile counts from the next list on.
    snapshots: Vec<u64>,
    /// Those with this number and later ones are not listed.
    pub end: u64,
}

impl History {
    /// Lists those that there are, the newest included; of more than 4 million the oldest.
    pub fn read(access: &impl Access) -> Result<Self> {
        let mut history = History { end: 1, ..History::default() };
        history.read_on(access)?;
        Ok(history)
    }

    /// Lists those, too, that were made since.
    pub fn read_on(&mut self, access: &impl Access) -> Result<()> {
        while self.points.len() < MOST && access.with(|v| self.read_some(v))?? >= LISTED {}
        Ok(())
    }

    fn read_some(&mut self, volume: &Volume) -> Result<usize> {
        let mut listed = 0;
        volume.for_each_checkpoint(Cno(self.end), |c| {
            self.end = c.cno.saturating_add(1);
            listed += 1;
            if c.snapshot {
                self.snapshots.push(c.cno);
            } else {
                // Of one in which no file changed a cleaner wrote what was written.
                let size = if c.minor { 0 } else { c.blocks_written };
                self.points.push(Point { number: c.cno, time: c.created, size });
            }
            if listed < LISTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(listed)
    }

    /// Snapshots, ascending, of the same range.
    pub fn snapshots(&self) -> &[u64] {
        &self.snapshots
    }

    /// Has a cleaning keep these of the listed checkpoints, and all that are not listed.
    pub fn keep(&self, kept: &[u64], options: &mut Options) {
        options.oldest = Some(self.end);
        options.moments = kept.iter().chain(&self.snapshots).copied().collect();
    }
}

/// What giving moments up would bring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preview {
    /// Plain checkpoints that there are.
    pub moments: u64,
    /// Those of them that would go.
    pub gone: u64,
    /// Blocks that only those need.
    pub blocks: u64,
    /// Blocks of no use to any moment that there is: what a cleaning frees besides.
    pub unused: u64,
}

/// Counts what keeping no more than these of the listed checkpoints would bring: two passes over the DAT.
pub fn preview(access: &impl Access, history: &History, kept: &[u64]) -> Result<Preview> {
    let keep_from = |oldest: u64| access.with(|v| v.keep(Some(oldest)))?;
    let mut keep = keep_from(history.end)?;
    keep.also(kept.iter().copied());
    let gone = history.points.iter().filter(|p| !keep.keeps(p.number)).count() as u64;
    let (after, _) = needed(access, keep)?;
    // What only checkpoints had that were removed serves none that there is.
    let mut all = keep_from(history.end)?;
    all.also(history.points.iter().map(|p| p.number));
    let (before, unused) = needed(access, all)?;
    let moments = history.points.len() as u64;
    Ok(Preview { moments, gone, blocks: before.saturating_sub(after), unused })
}

/// Blocks that are needed, and others in segments that are in use and not being written.
fn needed(access: &impl Access, keep: Keep) -> Result<(u64, u64)> {
    let usage = count(access, keep)?;
    access.with(|v| {
        let (mut needed, mut unused) = (0, 0);
        for segment in 0..v.geometry().nsegments {
            let counted = usage.of(SegNr(segment));
            let here = u64::from(counted.live) + u64::from(counted.kept);
            let info = v.segment_info(SegNr(segment))?;
            needed += here;
            if info.dirty && !info.active && !info.error {
                unused += u64::from(v.geometry().blocks_per_segment).saturating_sub(here);
            }
        }
        Ok((needed, unused))
    })?
}
