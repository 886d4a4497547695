//! Segments that were written a second time, over another one (by a disk or a cable that took the wrong address): their logs
//! verify in both places, and what was in the other is lost.

use std::collections::{BTreeMap, BTreeSet};

use silt_device::Device;
use silt_format::{BlockNr, Geometry, SegNr};

use super::start::{each_sound, sound};
use crate::Result;

/// A segment and its copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twin {
    /// Where it belongs, as the log before it says.
    pub right: u64,
    /// Where it lies over another one.
    pub wrong: u64,
    /// Blocks there at which logs begin.
    heads: Vec<u64>,
}

/// Segments that are there twice, where the log before them says which is the right one. Reads the head of every segment, and
/// all heads of those that have one number. Memory: 24 bytes a segment.
pub fn twins(device: &dyn Device, g: &Geometry) -> Vec<Twin> {
    let by_sequence = by_sequence(device, g);
    let mut found = Vec::new();
    for (sequence, all) in by_sequence.iter().filter(|(_, all)| all.len() > 1) {
        let before = by_sequence.get(&sequence.wrapping_sub(1)).into_iter().flatten();
        let named: BTreeSet<u64> = before
            .filter(|(_, next)| g.holds(BlockNr(*next)))
            .map(|(_, next)| g.segment_of(BlockNr(*next)).0)
            .collect();
        let mut right = all.iter().map(|(s, _)| *s).filter(|s| named.contains(s));
        let (Some(right), None) = (right.next(), right.next()) else { continue };
        for wrong in all.iter().map(|(s, _)| *s).filter(|s| *s != right) {
            let heads = common_heads(device, g, right, wrong);
            if !heads.is_empty() {
                found.push(Twin { right, wrong, heads });
            }
        }
    }
    found
}

/// Segments by the sequence number of their first log, each with the block to which that leads.
pub(super) fn by_sequence(device: &dyn Device, g: &Geometry) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut all: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for s in (0..g.nsegments).map(SegNr) {
        if let Some(h) = sound(device, g, g.segment_start(s), g.segment_end(s).0) {
            all.entry(h.seq.get()).or_default().push((s.0, h.next.get()));
        }
    }
    all
}

/// Blocks of one segment at which a log begins as it does in the other.
fn common_heads(device: &dyn Device, g: &Geometry, right: u64, wrong: u64) -> Vec<u64> {
    let heads = |s: u64| {
        let first = g.segment_start(SegNr(s)).0;
        let mut all = Vec::new();
        each_sound(device, g, SegNr(s), None, |at, h, _| {
            all.push((at - first, h.datasum.get(), h.create.get()))
        });
        all
    };
    let of_right = heads(right);
    let first = g.segment_start(SegNr(wrong)).0;
    heads(wrong).iter().filter(|head| of_right.contains(head)).map(|(at, ..)| first + at).collect()
}

/// Makes the logs of a copy invalid: what was there before is damaged then like anything that was overwritten.
pub fn forget_twin(device: &dyn Device, g: &Geometry, twin: &Twin) -> Result<()> {
    let zero = vec![0; g.bs()];
    for head in &twin.heads {
        device.write_at(g.byte_of(BlockNr(*head)), &[&zero])?;
    }
    device.flush()?;
    Ok(())
}
