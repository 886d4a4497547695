//! How much of each segment is needed, by one pass over the DAT.
//!
//! What the entries do not tell, the blocks of the DAT itself, is counted by its map. Nothing else of a segment is
//! ever needed: summaries, super roots, and blocks whose numbers lead elsewhere.

use std::ops::{ControlFlow, RangeInclusive};

use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::Kind;
use silt_format::{BlockNr, Geometry, SegNr};

use crate::Result;
use crate::bmap;
use crate::live::Keep;
use crate::meta::{NodeReader, Physical};
use crate::volume::Volume;

/// Blocks of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentUsage {
    /// Needed by the newest tree, metadata included.
    pub live: u32,
    /// Needed by nothing but what is kept of the past.
    pub kept: u32,
    /// Not needed by anything that is kept; their numbers are taken still.
    pub dead: u32,
    /// From its first block to behind the last one that is needed.
    pub end: u32,
}

impl SegmentUsage {
    fn reach(&mut self, behind: u64) {
        self.end = self.end.max(u32::try_from(behind).unwrap_or(u32::MAX));
    }
}

/// A count of what is needed. Memory: 16 bytes a segment.
#[derive(Debug, Clone)]
pub struct Usage {
    keep: Keep,
    segments: Vec<SegmentUsage>,
    /// Block of the DAT that comes next.
    next: Option<u64>,
    /// Entries of blocks that could not be read are not counted.
    damaged: u64,
}

impl Usage {
    /// Nothing is counted yet.
    pub fn new(geometry: &Geometry, keep: Keep) -> Self {
        let n = usize::try_from(geometry.nsegments).unwrap_or(0);
        Usage { keep, segments: vec![SegmentUsage::default(); n], next: Some(0), damaged: 0 }
    }

    /// Whether all entries were looked at.
    pub fn is_complete(&self) -> bool {
        self.next.is_none()
    }

    /// What was counted so far of a segment.
    pub fn of(&self, segment: SegNr) -> SegmentUsage {
        usize::try_from(segment.0).ok().and_then(|s| self.segments.get(s)).copied().unwrap_or_default()
    }

    /// What is kept according to this count.
    pub fn keep(&self) -> &Keep {
        &self.keep
    }

    /// Blocks of the DAT whose entries are not counted, because they cannot be read.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    fn at(&mut self, g: &Geometry, block: u64) -> Option<&mut SegmentUsage> {
        if !g.holds(BlockNr(block)) {
            return None;
        }
        usize::try_from(g.segment_of(BlockNr(block)).0).ok().and_then(|s| self.segments.get_mut(s))
    }
}

/// Blocks from the beginning of its segment to behind a block.
fn behind(g: &Geometry, block: u64) -> u64 {
    let start = g.segment_start(g.segment_of(BlockNr(block))).0;
    block.saturating_sub(start).saturating_add(1)
}

impl Volume {
    /// Goes on with a count, over at most about `most` blocks of the DAT. What changes meanwhile may be counted as it
    /// was or as it is.
    pub fn count_usage(&self, usage: &mut Usage, most: usize) -> Result<()> {
        let Some(from) = usage.next else { return Ok(()) };
        let g = self.store.geometry;
        let dat = &self.dat;
        let mut blocks = Vec::new();
        let reader = NodeReader { nodes: &dat.file.map.nodes, store: &self.store, resolve: &Physical };
        let mut next = None;
        bmap::for_each(&dat.file.map.root, &reader, from, |key, ptr| {
            if blocks.len() >= most.max(1) {
                next = Some(key);
                return ControlFlow::Break(());
            }
            blocks.push((key, ptr));
            ControlFlow::Continue(())
        })?;
        let layout = dat.palloc.layout;
        for (key, ptr) in blocks {
            if let Some(s) = usage.at(&g, ptr) {
                s.live = s.live.saturating_add(1);
                s.reach(behind(&g, ptr));
            }
            let Kind::Entries { first } = layout.kind(key) else { continue };
            let last = layout.last_of_block(first);
            if self.count_entries(usage, key, first..=last).is_err() {
                usage.damaged += 1;
            }
        }
        usage.next = next;
        Ok(())
    }

    /// Where blocks lie that [`Volume::count_usage`] reads next, as [`Volume::dat_ahead`] tells it.
    pub fn count_ahead(&self, usage: &Usage, most: usize) -> Vec<BlockNr> {
        usage.next.map_or_else(Vec::new, |from| self.dat_ahead(from, most))
    }

    fn count_entries(&self, usage: &mut Usage, key: u64, numbers: RangeInclusive<u64>) -> Result<()> {
        let g = self.store.geometry;
        let dat = &self.dat;
        let layout = dat.palloc.layout;
        let Some(entries) = dat.file.block(&self.store, &Physical, key)? else { return Ok(()) };
        let bitmap =
            dat.file.block(&self.store, &Physical, layout.bitmap_block(layout.group(*numbers.start())))?;
        for nr in numbers {
            let bit = layout.bit(nr);
            let taken = bitmap.as_ref().and_then(|b| b.get(bit / 8)).is_some_and(|b| b >> (bit % 8) & 1 == 1);
            let Ok(e) = DatEntry::read(&entries, layout.entry(nr).byte) else { continue };
            if !taken || e.blocknr.get() == 0 {
                continue;
            }
            let period = e.start.get()..e.end.get();
            let kept = !period.is_empty() && usage.keep.any_in(&period);
            let Some(s) = usage.at(&g, e.blocknr.get()) else { continue };
            let field = match (period.end == LIVE, kept) {
                (true, _) => &mut s.live,
                (false, true) => &mut s.kept,
                (false, false) => &mut s.dead,
            };
            *field = field.saturating_add(1);
            if kept || period.end == LIVE {
                s.reach(behind(&g, e.blocknr.get()));
            }
        }
        Ok(())
    }
}
