//! Carrying out a plan, so that it takes effect at once where that can be.
//!
//! ```text
//! logs in segments that were free | super blocks | what is changed in place (a log that was taken in is made invalid)
//! ```
//! Each part is durable before the next. Till the super blocks are written the volume is what it was, synced data behind
//! its newest checkpoint included: what a repair writes has other sequence numbers, and no log of before leads there.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_format::super_block::{PRIMARY_OFFSET, SIZE, secondary_offset};
use silt_format::{BlockNr, Geometry};

use crate::Result;

/// A part of a plan's writes.
type Writes = Vec<(u64, Arc<[u8]>)>;

/// The writes of a plan, if they can take effect at once.
struct Parts {
    logs: Writes,
    supers: Vec<Range<u64>>,
    in_place: Writes,
}

/// Does what a plan says. `free`: segments that held nothing before. Durable when it returns.
pub(crate) fn apply(
    overlay: &Overlay,
    device: &dyn Device,
    geometry: Option<&Geometry>,
    free: Option<&BTreeSet<u64>>,
) -> Result<()> {
    let Some(parts) = geometry.zip(free).and_then(|(g, free)| parts(overlay, g, free)) else {
        return Ok(overlay.apply(device)?);
    };
    for (at, bytes) in &parts.logs {
        device.write_at(*at, &[bytes])?;
    }
    device.flush()?;
    for range in parts.supers {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        overlay.read_at(range.start, &mut bytes)?;
        device.write_at(range.start, &[&bytes])?;
        device.flush()?;
    }
    for (at, bytes) in &parts.in_place {
        device.write_at(*at, &[bytes])?;
    }
    Ok(device.flush()?)
}

/// `None` where what was before is written over by logs, or super blocks are put right before anything else.
fn parts(overlay: &Overlay, g: &Geometry, free: &BTreeSet<u64>) -> Option<Parts> {
    let area = |at: u64| at..at.saturating_add(SIZE as u64);
    let supers = [area(PRIMARY_OFFSET), area(secondary_offset(overlay.len()))];
    let mut parts = Parts { logs: Vec::new(), supers: Vec::new(), in_place: Vec::new() };
    for (at, bytes) in overlay.writes() {
        let end = at.checked_add(bytes.len() as u64)?;
        if let Some(range) = supers.iter().find(|r| r.start <= at && end <= r.end) {
            if parts.logs.is_empty() {
                return None;
            }
            if !parts.supers.contains(range) {
                parts.supers.push(range.clone());
            }
            continue;
        }
        let (first, last) = (at >> g.block_bits, end.checked_sub(1)? >> g.block_bits);
        if !g.holds(BlockNr(first)) || !g.holds(BlockNr(last)) {
            return None;
        }
        let segments = g.segment_of(BlockNr(first)).0..=g.segment_of(BlockNr(last)).0;
        if segments.clone().all(|s| free.contains(&s)) {
            parts.logs.push((at, bytes));
        } else if first == last && segments.clone().all(|s| !free.contains(&s)) {
            parts.in_place.push((at, bytes));
        } else {
            return None;
        }
    }
    // A log has two blocks at least.
    let mut places: Vec<u64> = parts.in_place.iter().map(|(at, _)| at >> g.block_bits).collect();
    places.sort_unstable();
    places.dedup();
    let adjoin = places.iter().zip(places.iter().skip(1)).any(|(a, b)| a + 1 == *b);
    (!adjoin && !parts.supers.is_empty()).then_some(parts)
}
