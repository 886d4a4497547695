//! Listing segments, and counting what of them is still in use.

use silt_engine::{Keep, SegmentWalk};
use silt_format::{Geometry, SegNr};

use super::checkpoints::Walk;
use super::{BATCH, Out};
use crate::host::{Host, with};
use crate::response::Segment;
use crate::{Response, Result, SegmentQuery};

/// Segments looked at before an answer goes out, where their blocks are counted.
const COUNTED: u64 = 16;

/// Lists segments; clean ones only if asked.
pub fn list(host: &dyn Host, query: &SegmentQuery, out: Out<'_>) -> Result<()> {
    let total = with(host, |v| v.geometry().nsegments)?;
    let end = query.count.map_or(total, |n| query.from.saturating_add(n).min(total));
    let count = query.live.map(|period| Count::new(host, period)).transpose()?;
    let step = if count.is_some() { COUNTED } else { BATCH as u64 };
    let mut from = query.from;
    while from < end {
        let stop = from.saturating_add(step).min(end);
        let mut batch = with(host, |v| -> silt_engine::Result<Vec<Segment>> {
            let mut batch = Vec::new();
            for number in from..stop {
                let s = v.segment_info(SegNr(number))?;
                if !(query.all || s.active || s.dirty || s.error) {
                    continue;
                }
                batch.push(Segment {
                    number,
                    modified: s.modified,
                    active: s.active,
                    dirty: s.dirty,
                    error: s.error,
                    blocks: s.blocks,
                    live_blocks: None,
                    live_percent: None,
                    protected: None,
                });
            }
            Ok(batch)
        })??;
        if let Some(count) = &count {
            batch.iter_mut().try_for_each(|segment| count.count(host, segment))?;
        }
        if !batch.is_empty() {
            out(Response::Segments(batch))?;
        }
        from = stop;
    }
    Ok(())
}

/// Counts blocks in use. What is kept is fixed when it begins.
struct Count {
    geometry: Geometry,
    keep: Keep,
    /// Segments that were written since, in seconds, are not reclaimed now.
    since: u64,
    now: u64,
    /// Nor are those with this sequence number and later ones.
    sequence: u64,
}

impl Count {
    /// With checkpoints younger than `period` seconds kept.
    fn new(host: &dyn Host, period: u64) -> Result<Self> {
        let now = host.now();
        let since = now.saturating_sub(period);
        let mut oldest = None;
        let mut walk = Walk::back(None);
        'all: while let Some(batch) = walk.next(host)? {
            for c in batch {
                if c.created < since {
                    break 'all;
                }
                oldest = Some(c.number);
            }
        }
        let (geometry, keep, sequence) = with(host, |v| -> silt_engine::Result<_> {
            Ok((*v.geometry(), v.keep(oldest)?, v.protected_sequence()))
        })??;
        Ok(Count { geometry, keep, since, now, sequence })
    }

    /// Fills in what of a segment is in use. As lssu has it: what the log writer or recovery needs
    /// counts as full.
    fn count(&self, host: &dyn Host, s: &mut Segment) -> Result<()> {
        let mut live = 0;
        let mut percent = 0;
        let mut protected = false;
        if s.active || s.error {
            (live, percent, protected) = (u64::from(s.blocks), 100, true);
        } else if s.dirty {
            let segment = SegNr(s.number);
            let mut walk = SegmentWalk::new(host.device(), &self.geometry, segment, u64::from(s.blocks));
            let needed =
                |sequence: u64| sequence.wrapping_sub(self.sequence).cast_signed() >= 0 && s.blocks > 0;
            if walk.sequence()?.is_some_and(needed) {
                (live, percent, protected) = (u64::from(s.blocks), 100, true);
            } else {
                loop {
                    let blocks = walk.next(BATCH)?;
                    if blocks.is_empty() {
                        break;
                    }
                    live += with(host, |v| v.count_live(&self.keep, &blocks))??;
                }
                // The rounding is lssu's.
                percent = (live * 100 + 99) / u64::from(self.geometry.blocks_per_segment);
                protected = (self.since..=self.now).contains(&s.modified);
            }
        }
        s.live_blocks = Some(live);
        s.live_percent = Some(percent);
        s.protected = Some(protected);
        Ok(())
    }
}
