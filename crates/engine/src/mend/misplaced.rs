//! Segments that lie in the place of others: exchanged ones, or a copy that was put together in the wrong order. What lies
//! in a segment that passes for free may be what another one held, and is not to be written over until that is known.

use std::collections::BTreeSet;

use silt_device::Device;
use silt_format::segment_usage as su;
use silt_format::{BlockNr, Geometry, SegNr};

use super::twins::by_sequence;
use crate::Result;
use crate::volume::Volume;

/// Segments to which the one before in the order of the log does not lead, and where it leads another one lies. After a
/// crash that may be so, too. Reads the head of every segment. Memory: 24 bytes a segment.
pub fn misplaced(device: &dyn Device, g: &Geometry) -> BTreeSet<u64> {
    let all = by_sequence(device, g);
    let mut found = BTreeSet::new();
    for (sequence, here) in &all {
        let Some(before) = sequence.checked_sub(1).and_then(|n| all.get(&n)) else { continue };
        let named = before.iter().filter(|(_, next)| g.holds(BlockNr(*next)));
        let named: BTreeSet<u64> = named.map(|(_, next)| g.segment_of(BlockNr(*next)).0).collect();
        if !named.is_empty() && !here.iter().any(|(s, _)| named.contains(s)) {
            found.extend(here.iter().map(|(s, _)| *s));
        }
    }
    found
}

impl Volume {
    /// Keeps segments that pass for free from being written: they are in use and hold nothing that is known of.
    pub(crate) fn spare(&mut self, segments: &BTreeSet<u64>) -> Result<()> {
        for s in segments.iter().copied().map(SegNr) {
            if s.0 >= self.store.geometry.nsegments || s == self.cursor.segment || s == self.cursor.next {
                continue;
            }
            if self.sufile.entry(&self.store, &self.dat, s)?.is_clean() {
                self.sufile.change(&self.store, &self.dat, s, |e| e.flags = su::DIRTY.into())?;
                self.meta_dirty = true;
            }
        }
        Ok(())
    }
}
