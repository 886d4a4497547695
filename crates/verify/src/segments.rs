//! The sufile: flags, fill levels and counters of segments (spec section 11).
//!
//! Memory: some 40 bytes a segment in use.

use std::collections::BTreeMap;

use silt_format::segment_usage::{self, ACTIVE, DIRTY, ERROR, SuEntry};
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use crate::context::Context;
use crate::invariants as inv;
use crate::report::{Place, Sink};

/// A segment that is not clean.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub flags: u32,
    /// Used blocks from the segment's first block on, no more than it has.
    pub nblocks: u64,
    pub lastmod: u64,
}

/// All segments that are not clean.
#[derive(Default)]
pub(crate) struct Segments {
    pub used: BTreeMap<u64, Usage>,
    /// Blocks whose numbers belong elsewhere, by segment: how many, and the first of them.
    left_behind: BTreeMap<u64, (u64, u64)>,
}

impl Segments {
    /// Whether a disk block lies in the used part of a dirty segment.
    pub fn covers(&self, g: &Geometry, block: u64) -> bool {
        if !g.holds(BlockNr(block)) {
            return false;
        }
        let segment = g.segment_of(BlockNr(block));
        self.used
            .get(&segment.0)
            .is_some_and(|u| u.flags & DIRTY != 0 && block - g.segment_start(segment).0 < u.nblocks)
    }

    /// Notes a block that a log describes under a number that leads elsewhere, or is free.
    pub fn leave(&mut self, g: &Geometry, block: u64) {
        let (count, _) = self.left_behind.entry(g.segment_of(BlockNr(block)).0).or_insert((0, block));
        *count += 1;
    }

    /// Tells of segments that a cleaner would take such blocks from (13.4): nothing but a repair leaves them in use.
    pub fn check_left_behind(&self, out: &Sink) {
        for (segment, (count, first)) in &self.left_behind {
            if self.used.get(segment).is_some_and(|u| u.flags & ERROR == 0) {
                let message =
                    format!("{count} blocks that its logs describe lie elsewhere by now, or nowhere");
                out.add(&inv::LOG_STALE, Place::segment(*segment).at_block(*first), message);
            }
        }
    }
}

/// Reads and checks the sufile; `blocks` are (file offset, disk block). `resizing`: a resize was cut off, the next mount
/// counts the clean segments again.
pub(crate) fn check(c: &mut Context<'_>, blocks: &[(u64, u64)], resizing: bool) {
    let g = c.r.g;
    let me = Place::ino(Ino::SUFILE.0);
    let (per_block, first) = (segment_usage::per_block(&g), segment_usage::first_offset(&g));
    let mut header = None;
    let (mut unclean, mut dirty) = (0u64, 0u64);
    let mut used = BTreeMap::new();
    for (offset, block) in blocks {
        let place = me.at_offset(*offset).at_block(*block);
        let bytes = match c.r.block(BlockNr(*block)) {
            Ok(b) => b,
            Err(e) => {
                c.out.add(&inv::DEVICE_READ, place, e);
                continue;
            }
        };
        if *offset == 0 {
            header = segment_usage::header(&bytes).ok();
        }
        for slot in 0..per_block {
            let Some(index) = offset.checked_mul(per_block).and_then(|i| i.checked_add(slot)) else { break };
            let Some(segment) = index.checked_sub(first) else { continue };
            let byte = usize::try_from(slot).unwrap_or(0) * g.segment_usage_size as usize;
            let Ok(entry) = SuEntry::read(&bytes, byte) else { continue };
            if entry == SuEntry::CLEAN {
                continue;
            }
            let place = Place { segment: Some(segment), ..place };
            if segment >= g.nsegments {
                c.out.add(&inv::SU_TAIL, place, format!("the volume has {} segments", g.nsegments));
                continue;
            }
            if let Some(u) = check_entry(c, &g, segment, &entry, place) {
                unclean += 1;
                dirty += u64::from(entry.is_dirty());
                used.insert(segment, u);
            }
        }
    }
    c.out.stats(|s| s.segments = unclean);
    c.segments = Segments { used, ..Segments::default() };
    let Some(header) = header else {
        c.out.add(&inv::SU_BLOCK0, me.at_offset(0), "the first block is missing");
        return;
    };
    let place = me.at_offset(0);
    let (clean, found) = (g.nsegments.saturating_sub(unclean), header.ncleansegs.get());
    if clean != found {
        let said = format!("says {found} clean segments, {clean} are");
        if resizing {
            c.out.add(&inv::SUPER_STATE, place, format!("{said}, a resize was not finished"));
        } else {
            c.out.add(&inv::SU_CLEAN_COUNT, place, said);
        }
    }
    if header.ndirtysegs.get() != dirty {
        let message = format!("says {} dirty segments, {dirty} are", header.ndirtysegs);
        c.out.add(&inv::SU_DIRTY_COUNT, place, message);
    }
    if header.last_alloc.get() >= g.nsegments {
        let message = format!("segment {} was allocated last", header.last_alloc);
        c.out.add(&inv::SU_LAST_ALLOC, place, message);
    }
    check_writer(c, &g);
}

/// One entry that is not all zero; `None` if the segment is clean nevertheless.
fn check_entry(c: &Context<'_>, g: &Geometry, segment: u64, e: &SuEntry, place: Place) -> Option<Usage> {
    let (flags, nblocks) = (e.flags.get(), u64::from(e.nblocks.get()));
    if flags == 0 {
        let message = format!("is clean but has {nblocks} blocks and time {}", e.lastmod);
        c.out.add(&inv::SU_CLEAN_ZERO, place, message);
        return None;
    }
    if flags & !(ACTIVE | DIRTY | ERROR) != 0 || flags & (DIRTY | ERROR) == 0 {
        c.out.add(&inv::SU_FLAGS, place, format!("flags {flags:#x}"));
    }
    if flags & ACTIVE != 0 {
        c.out.add(&inv::SU_ACTIVE, place, "is marked as active");
    }
    if e.is_error() {
        c.out.add(&inv::SU_ERROR, place, "is marked as bad");
    }
    let most = g.segment_blocks(SegNr(segment));
    if nblocks > most {
        c.out.add(&inv::SU_NBLOCKS, place, format!("claims {nblocks} used blocks of {most}"));
    }
    Some(Usage { flags, nblocks: nblocks.min(most), lastmod: e.lastmod.get() })
}

/// The writer's two segments, and empty ones.
fn check_writer(c: &Context<'_>, g: &Geometry) {
    let current = g.segment_of(c.latest.pos);
    let next = g.segment_of(BlockNr(c.latest.header.next.get()));
    let fill = c.latest.end() - g.segment_start(current).0;
    match c.segments.used.get(&current.0) {
        Some(u) if u.flags & DIRTY != 0 && u.nblocks == fill => {}
        Some(u) => {
            let message = format!("flags {:#x} and {} used blocks, {fill} are", u.flags, u.nblocks);
            c.out.add(&inv::SU_CURRENT, Place::segment(current.0), message);
        }
        None => c.out.add(&inv::SU_CURRENT, Place::segment(current.0), "the writer's segment is clean"),
    }
    match c.segments.used.get(&next.0) {
        Some(u) if u.flags & DIRTY != 0 && u.nblocks == 0 && next != current => {}
        Some(u) => {
            let message = format!("flags {:#x} and {} used blocks", u.flags, u.nblocks);
            c.out.add(&inv::SU_NEXT, Place::segment(next.0), message);
        }
        None => c.out.add(&inv::SU_NEXT, Place::segment(next.0), "the writer's next segment is clean"),
    }
    for (segment, u) in &c.segments.used {
        if u.nblocks == 0 && u.flags & ERROR == 0 && *segment != next.0 {
            c.out.add(&inv::SU_SCRAPPED, Place::segment(*segment), "is in use but holds nothing");
        }
    }
}
