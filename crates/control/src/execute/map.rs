//! What lies in each segment, and who needs it.

use silt_cleaner::{Access as _, History, Medium, Usage};
use silt_format::SegNr;
use silt_retention::Ladder;

use super::clean::Via;
use super::retain::effective;
use super::{BATCH, Out};
use crate::Result;
use crate::host::{Host, with};
use crate::response::{MapHead, MapSegment, Response, SegmentState};

/// Blocks of the DAT counted under the lock at a time.
const COUNTED: usize = 256;

/// Counts by one pass over the DAT, two counters side by side: 32 bytes a segment, and 24 a checkpoint for what
/// retention keeps. What changes meanwhile is counted as it was or as it is.
pub fn map(host: &dyn Host, out: Out<'_>) -> Result<()> {
    let via = Via(host);
    let counts = effective(host);
    let history = History::read(&via)?;
    let now = host.now();
    let kept =
        Ladder::new(&counts.wish, &counts.floor).kept(0, &history.points, &silt_cleaner::clock(&via, now)?);
    let mut options = silt_cleaner::Options::default();
    history.keep(&kept, &mut options);
    // By the newest and by snapshots; and by what is kept besides.
    let (mut fixed, mut all) = via.with(|v| -> silt_engine::Result<_> {
        let fixed = v.keep(None)?;
        let mut all = v.keep(options.oldest)?;
        all.also(options.moments.iter().copied());
        Ok((Usage::new(v.geometry(), fixed), Usage::new(v.geometry(), all)))
    })??;
    drop((history, kept, options));
    let medium = via.with(|v| Medium::of(v))?;
    while !(fixed.is_complete() && all.is_complete()) {
        // Nobody waits for the medium meanwhile.
        medium.bring(&via.with(|v| v.count_ahead(&fixed, COUNTED))?);
        // The second one finds the blocks in the cache.
        via.with(|v| v.count_usage(&mut fixed, COUNTED).and_then(|()| v.count_usage(&mut all, COUNTED)))??;
    }
    let head = with(host, |v| {
        let g = v.geometry();
        MapHead {
            segments: g.nsegments,
            block_size: g.block_size,
            blocks_per_segment: g.blocks_per_segment,
            now,
            uncounted: all.damaged(),
        }
    })?;
    out(Response::Map(head))?;
    let mut from = 0;
    while from < head.segments {
        let end = from.saturating_add(BATCH as u64).min(head.segments);
        let batch = with(host, |v| {
            (from..end.min(v.geometry().nsegments)).map(|s| segment(v, s, &fixed, &all)).collect()
        })?;
        let batch: silt_engine::Result<Vec<MapSegment>> = batch;
        out(Response::MapSegments(batch?))?;
        from = end;
    }
    Ok(())
}

fn segment(
    v: &silt_engine::Volume,
    number: u64,
    fixed: &Usage,
    all: &Usage,
) -> silt_engine::Result<MapSegment> {
    let info = v.segment_info(SegNr(number))?;
    let (fixed, all) = (fixed.of(SegNr(number)), all.of(SegNr(number)));
    let state = match () {
        () if info.active => SegmentState::Current,
        () if info.error => SegmentState::Bad,
        () if info.dirty => SegmentState::Used,
        () => SegmentState::Free,
    };
    let past = all.kept.saturating_sub(fixed.kept);
    let mut shown = MapSegment { number, state, modified: info.modified, ..MapSegment::default() };
    if state != SegmentState::Free {
        // Each is counted at another moment: together they are no more than was written.
        let mut left = info.blocks;
        let mut part = |n: u32| {
            let n = n.min(left);
            left -= n;
            n
        };
        (shown.live, shown.snapshots, shown.past) = (part(fixed.live), part(fixed.kept), part(past));
        shown.dead = left;
    }
    Ok(shown)
}
