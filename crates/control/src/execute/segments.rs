//! Listing segments.

use silt_format::SegNr;

use super::{BATCH, Out};
use crate::host::{Host, with};
use crate::response::Segment;
use crate::{ControlError, Kind, Response, Result, SegmentQuery};

/// Lists segments; clean ones only if asked.
pub fn list(host: &dyn Host, query: &SegmentQuery, out: Out<'_>) -> Result<()> {
    if query.live.is_some() {
        return Err(ControlError::new(
            Kind::Unavailable,
            "counting the blocks in use comes with the cleaner, which is not there yet",
        )
        .hint("leave out -l"));
    }
    let total = with(host, |v| v.geometry().nsegments)?;
    let end = query.count.map_or(total, |n| query.from.saturating_add(n).min(total));
    let mut from = query.from;
    while from < end {
        let stop = from.saturating_add(BATCH as u64).min(end);
        let batch = with(host, |v| -> silt_engine::Result<Vec<Segment>> {
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
                    protected: None,
                });
            }
            Ok(batch)
        })??;
        if !batch.is_empty() {
            out(Response::Segments(batch))?;
        }
        from = stop;
    }
    Ok(())
}
