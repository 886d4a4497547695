//! Space that a repair took for itself. Each of its rounds is a checkpoint, which nobody asked for; where too little space is
//! left to go on, they go again, and segments that hold little else are emptied.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::dat::LIVE;
use silt_format::{BlockNr, SegNr, VBlockNr};

use super::Mender;
use super::start::sound;
use crate::Result;

/// Bytes that are moved at most.
const MOVED: u64 = 64 << 20;

/// A segment that was begun since the repair was.
#[derive(Default)]
struct Own {
    /// Blocks that somebody wants.
    wanted: u64,
    /// Numbers of blocks that only checkpoints of the repair have.
    unwanted: Vec<VBlockNr>,
}

impl Mender {
    /// Deletes plain checkpoints that menders before made, and has segments emptied of which at most half is wanted
    /// besides; whether there are such. Memory: 8 bytes for each block that goes, and what is moved.
    pub fn make_room(&mut self) -> Result<bool> {
        let v = &mut self.volume;
        let (Some(base), Ok(snapshots)) = (v.mended_from, v.snapshots()) else { return Ok(false) };
        let snapshots: BTreeSet<u64> = snapshots.into_iter().map(|c| c.0).collect();
        let (g, newest) = (v.store.geometry, v.last.cno);
        let mut own: BTreeMap<u64, Own> = BTreeMap::new();
        for s in (0..g.nsegments).map(SegNr).filter(|s| *s != v.cursor.segment && *s != v.cursor.next) {
            let usage = v.sufile.entry(&v.store, &v.dat, s)?;
            if !usage.is_dirty() || usage.is_error() || usage.nblocks.get() == 0 {
                continue;
            }
            let first = sound(&*v.store.device, &g, g.segment_start(s), g.segment_end(s).0);
            if first.is_some_and(|h| h.seq.get().wrapping_sub(self.since).cast_signed() > 0) {
                own.insert(s.0, Own::default());
            }
        }
        if own.is_empty() {
            return Ok(false);
        }
        let place = |block: u64| Some(BlockNr(block)).filter(|b| g.holds(*b)).map(|b| g.segment_of(b).0);
        let unknown = v.each_entry(|nr, e| {
            let Some(own) = place(e.blocknr.get()).and_then(|s| own.get_mut(&s)).filter(|_| nr != 0) else {
                return;
            };
            let (start, end) = (e.start.get(), e.end.get());
            let past = start > base.0 && end != LIVE && (start..=newest).contains(&end);
            if past && snapshots.range(start..end).next().is_none() {
                own.unwanted.push(VBlockNr(nr));
            } else {
                own.wanted += 1;
            }
        })?;
        v.each_dat_block(|block, _| {
            if let Some(own) = place(block).and_then(|s| own.get_mut(&s)) {
                own.wanted += 1;
            }
        })?;
        if unknown > 0 {
            return Ok(false);
        }
        let size = u64::from(g.blocks_per_segment);
        // The tables are written with it.
        let room = v.available_segments().saturating_sub(1).saturating_mul(size / 2);
        let room = room.min(MOVED >> g.block_bits);
        let mut all: Vec<(u64, Own)> = own.into_iter().filter(|(_, own)| own.wanted <= size / 2).collect();
        all.sort_by_key(|(_, own)| own.wanted);
        let mut moved = 0;
        all.retain(|(_, own)| {
            moved += own.wanted;
            moved <= room
        });
        if all.is_empty() {
            return Ok(false);
        }
        v.delete_checkpoints(base.0.saturating_add(1)..newest)?;
        let mut gone: Vec<VBlockNr> = all.iter().flat_map(|(_, own)| &own.unwanted).copied().collect();
        gone.sort_unstable();
        v.dat.release_all(&mut v.store, &gone)?;
        let segments = all.into_iter().map(|(s, _)| s).collect();
        self.empty_segments(&segments, (false, false))?;
        Ok(true)
    }
}
