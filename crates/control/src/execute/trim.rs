//! Giving clean segments back to the device for somebody who asks.

use super::Out;
use crate::host::{Host, with};
use crate::response::{Progress, TrimReport};
use crate::{ControlError, Kind, Response, Result};

/// Bytes discarded at a time.
const BATCH: u64 = 32 << 20;
/// Segments looked at under the lock at a time.
const LOOKED: u64 = 16_384;

/// Discards all segments that may be written, in runs of at least `minimum` bytes.
pub fn trim(host: &dyn Host, minimum: u64, out: Out<'_>) -> Result<()> {
    // As the volume has it: that may be held up.
    let device = with(host, |v| v.device().clone())?;
    if !device.capabilities().discard {
        return Err(cannot(host));
    }
    let (segments, size) = with(host, |v| {
        let g = v.geometry();
        (g.nsegments, u64::from(g.blocks_per_segment).saturating_mul(u64::from(g.block_size)))
    })?;
    // So that deleting and cleaning go on when the host is full.
    // Where that cannot be had, it is as before.
    let _ = with(host, |v| v.secure_backing())?;
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    let mut at = 0;
    while at < segments {
        let end = at.saturating_add(LOOKED).min(segments);
        for run in with(host, |v| v.clean_segments(at..end))?? {
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        at = end;
    }
    let small = |r: &std::ops::Range<u64>| (r.end - r.start).saturating_mul(size) < minimum;
    let count = |r: &std::ops::Range<u64>| r.end - r.start;
    let mut report = TrimReport { segment_size: size, ..TrimReport::default() };
    report.too_small = runs.iter().filter(|r| small(r)).map(count).sum::<u64>().saturating_mul(size);
    runs.retain(|r| !small(r));
    let total = runs.iter().map(count).sum::<u64>().saturating_mul(size);
    let mut done = 0u64;
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = at.saturating_add((BATCH / size.max(1)).max(1)).min(run.end);
            let (bytes, next) = some(host, &*device, at..end)?;
            report.discarded = report.discarded.saturating_add(bytes);
            done = done.saturating_add((next - at).saturating_mul(size));
            at = next;
            out(Response::Progress(Progress { done, total }))?;
        }
    }
    // What the system below cannot do turns out with the first request.
    if !device.capabilities().discard {
        return Err(cannot(host));
    }
    report.held = with(host, |v| v.held_segments())?.saturating_mul(size);
    host.discarded(report.discarded);
    out(Response::Trimmed(report))
}

/// Discards of a range what may be written; how many bytes, and the segment to go on with.
fn some(
    host: &dyn Host,
    device: &dyn silt_device::Device,
    range: std::ops::Range<u64>,
) -> Result<(u64, u64)> {
    let discard = with(host, |v| v.begin_discard(range.clone()))??;
    let done = discard.run(device);
    let (bytes, next) = (discard.len(), discard.end().unwrap_or(range.end));
    let mut discard = Some(discard);
    with(host, |v| discard.take().into_iter().for_each(|d| v.end_discard(d)))?;
    done?;
    Ok((bytes, next))
}

fn cannot(host: &dyn Host) -> ControlError {
    let what = host.volume().display();
    ControlError::new(
        Kind::Unavailable,
        format!("what holds {what} cannot discard, so nothing was given back"),
    )
    .hint("the volume is as it was; a device without discard has no use for it")
}
