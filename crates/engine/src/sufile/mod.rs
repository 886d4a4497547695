//! The segment usage file: which segments are clean, in use, or bad (spec section 11).
//!
//! Invariant: `ncleansegs` equals the clean entries among the volume's segments, holes included.

use std::ops::Range;

use rangemap::RangeSet;
use silt_format::inode::RawInode;
use silt_format::segment_usage::{self as su, SuEntry, SuHeader};
use silt_format::{Geometry, Ino, SegNr};

mod allocate;
mod audit;

use crate::dat::Dat;
use crate::meta::MetaFile;
use crate::store::Store;
use crate::virt::Change;
use crate::{At, Error, Result};

/// The segments whose entries a block holds.
fn segments_in(g: &Geometry, block: u64) -> Range<u64> {
    let first = |block: u64| {
        block.saturating_mul(su::per_block(g)).saturating_sub(su::first_offset(g)).min(g.nsegments)
    };
    first(block)..first(block.saturating_add(1))
}

/// Clean and used segments among the entries of a block; `None` where it cannot be right.
fn count(g: &Geometry, block: &[u8], segments: Range<u64>) -> Option<(u64, u64)> {
    let (mut clean, mut dirty) = (0, 0);
    for s in segments {
        let e = SuEntry::read(block, su::place(g, SegNr(s)).1).ok()?;
        if e.flags.get() & !(su::ACTIVE | su::DIRTY | su::ERROR) != 0
            || e.nblocks.get() > g.blocks_per_segment
        {
            return None;
        }
        clean += u64::from(e.is_clean());
        dirty += u64::from(e.is_dirty());
    }
    Some((clean, dirty))
}

/// The sufile of a volume; its header is kept parsed and stored with every change.
#[derive(Clone)]
pub struct SuFile {
    pub file: MetaFile,
    header: SuHeader,
    /// Segments known not to be clean: the search for a clean one goes over them at once. As many
    /// ranges as clean segments lie between them.
    busy: RangeSet<u64>,
    /// Segments from this one on are not handed out.
    limit: Option<u64>,
    /// Clean ones among those.
    beyond: u64,
    /// Segments that the last search passed over, since it cannot be told which of them are clean.
    passed_over: u64,
}

impl SuFile {
    /// From its inode; reads the header, whose counters cannot exceed the volume.
    pub fn open(geometry: &Geometry, store: &Store, dat: &Dat, raw: RawInode) -> Result<Self> {
        Self::of(geometry, store, dat, MetaFile::new(Ino::SUFILE, raw))
    }

    /// The same, of a file with changes.
    pub(crate) fn of(geometry: &Geometry, store: &Store, dat: &Dat, file: MetaFile) -> Result<Self> {
        let block = file
            .block(store, dat, 0)?
            .ok_or_else(|| Error::corrupt("sufile block 0", "sufile", "missing"))?;
        let header = su::header(&block).at(|| "sufile block 0".into())?;
        let n = geometry.nsegments;
        if header.ncleansegs.get() > n || header.ndirtysegs.get() > n {
            return Err(Error::corrupt(
                "sufile block 0",
                "sufile",
                format!("{} clean and {} dirty of {n} segments", header.ncleansegs, header.ndirtysegs),
            ));
        }
        Ok(SuFile { file, header, busy: RangeSet::new(), limit: None, beyond: 0, passed_over: 0 })
    }

    /// From its inode alone, where the header cannot be read: its counters are zero.
    pub fn bare(raw: RawInode) -> Self {
        let header = SuHeader { ncleansegs: 0.into(), ndirtysegs: 0.into(), last_alloc: 0.into() };
        let file = MetaFile::new(Ino::SUFILE, raw);
        SuFile { file, header, busy: RangeSet::new(), limit: None, beyond: 0, passed_over: 0 }
    }

    /// Counters and the segment that was allocated last.
    pub fn header(&self) -> SuHeader {
        self.header
    }

    /// Sets the segment that was allocated last.
    pub fn set_last_alloc(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        self.header.last_alloc = segment.0.into();
        self.store_header(store, dat)
    }

    /// Clean segments.
    pub fn clean(&self) -> u64 {
        self.header.ncleansegs.get()
    }

    /// Clean segments that are not handed out, because they lie behind the limit.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Segments that may count as clean and cannot be handed out at present; from above.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Whether segments are kept from being handed out.
    pub fn is_confined(&self) -> bool {
        self.limit.is_some()
    }

    /// Has no segment from `limit` on handed out.
    pub fn confine(&mut self, store: &Store, dat: &Dat, limit: u64) -> Result<()> {
        let runs = self.clean_runs(store, dat, limit..store.geometry.nsegments)?;
        let beyond = runs.iter().map(|r| r.end - r.start).sum();
        self.confine_again((Some(limit), beyond));
        Ok(())
    }

    /// What [`SuFile::confine`] keeps from use at present, for [`SuFile::confine_again`].
    pub fn confined(&self) -> (Option<u64>, u64) {
        (self.limit, self.beyond)
    }

    /// Keeps from use what was kept when [`SuFile::confined`] was asked, as long as nothing was handed out or freed since.
    pub fn confine_again(&mut self, kept: (Option<u64>, u64)) {
        (self.limit, self.beyond) = kept;
    }

    /// All segments may be handed out again.
    pub fn unconfine(&mut self) {
        (self.limit, self.beyond) = (None, 0);
    }

    /// Cuts segments off behind so many, all of which must be clean (spec section 15). The volume's number of segments
    /// is still that of before.
    pub fn cut(&mut self, change: &mut Change<'_>, nsegments: u64) -> Result<()> {
        let g = change.store.geometry;
        let runs = self.clean_runs(change.store, change.dat, nsegments..g.nsegments)?;
        let clean: u64 = runs.iter().map(|r| r.end - r.start).sum();
        if clean != g.nsegments.saturating_sub(nsegments) {
            return Err(Error::Invalid("a segment behind the new end is in use".into()));
        }
        let last = su::place(&g, SegNr(nsegments.saturating_sub(1))).0;
        // In the block that stays nothing is left of them.
        for s in nsegments..segments_in(&g, last).end {
            self.clear_slot(change.store, change.dat, SegNr(s))?;
        }
        let end = self.file.last_block(change.store, change.dat)?.unwrap_or(0);
        for block in last + 1..=end.min(su::place(&g, SegNr(g.nsegments)).0) {
            self.file.data.remove(&block);
            change.unmap(&mut self.file.map, block)?;
        }
        self.header.ncleansegs = self.clean().saturating_sub(clean).into();
        if self.header.last_alloc.get() >= nsegments {
            self.header.last_alloc = nsegments.saturating_sub(1).into();
        }
        self.busy.remove(nsegments..u64::MAX);
        self.unconfine();
        self.store_header(change.store, change.dat)
    }

    /// Segments in use.
    pub fn dirty(&self) -> u64 {
        self.header.ndirtysegs.get()
    }

    /// A segment's entry.
    pub fn entry(&self, store: &Store, dat: &Dat, segment: SegNr) -> Result<SuEntry> {
        if segment.0 >= store.geometry.nsegments {
            return Err(Error::Invalid(format!("there is no segment {segment}")));
        }
        let (block, byte) = su::place(&store.geometry, segment);
        match self.file.block(store, dat, block)? {
            Some(b) => SuEntry::read(&b, byte).at(|| format!("sufile block {block}")),
            None => Ok(SuEntry::CLEAN),
        }
    }

    /// Runs of clean segments of a range, ascending; those of blocks that make no sense count as in use.
    pub fn clean_runs(&self, store: &Store, dat: &Dat, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let g = &store.geometry;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |more: Range<u64>| match runs.last_mut() {
            Some(run) if run.end == more.start => run.end = more.end,
            _ => runs.push(more),
        };
        let (mut at, end) = (range.start, range.end.min(g.nsegments));
        while at < end {
            let (block, _) = su::place(g, SegNr(at));
            let here = segments_in(g, block);
            let mut part = at..here.end.clamp(at + 1, end);
            let there = self.file.block(store, dat, block)?;
            if there.is_none() {
                // However many there are, nothing is known of them.
                let next = self.file.next_block(store, dat, block)?;
                part.end = next.map_or(end, |b| segments_in(g, b).start.clamp(part.end, end));
            }
            at = part.end;
            match there {
                None => self.busy.gaps(&part).for_each(&mut add),
                Some(b) if count(g, &b, here).is_some() => {
                    for s in part.filter(|s| !self.busy.contains(s)) {
                        let e = SuEntry::read(&b, su::place(g, SegNr(s)).1);
                        if e.at(|| format!("sufile block {block}"))?.is_clean() {
                            add(s..s + 1);
                        }
                    }
                }
                Some(_) => {}
            }
        }
        Ok(runs)
    }

    /// Segments in use in which no log was written, ascending; none of blocks that make no sense or cannot be read.
    pub fn unwritten(&self, store: &Store, dat: &Dat) -> Vec<SegNr> {
        let g = &store.geometry;
        let mut found = Vec::new();
        for block in 0..=su::place(g, SegNr(g.nsegments.saturating_sub(1))).0 {
            let segments = segments_in(g, block);
            let Ok(Some(b)) = self.file.block(store, dat, block) else { continue };
            if count(g, &b, segments.clone()).is_none() {
                continue;
            }
            let entry = |s: u64| SuEntry::read(&b, su::place(g, SegNr(s)).1).ok();
            let unwritten = |e: SuEntry| e.is_dirty() && !e.is_error() && e.nblocks.get() == 0;
            found.extend(segments.filter(|s| entry(*s).is_some_and(unwritten)).map(SegNr));
        }
        found
    }

    /// Changes a segment's entry and the counters with it; its block is part of the next log.
    pub fn change(
        &mut self,
        store: &Store,
        dat: &Dat,
        segment: SegNr,
        f: impl FnOnce(&mut SuEntry),
    ) -> Result<SuEntry> {
        let before = self.entry(store, dat, segment)?;
        // The header's block is at hand before anything changes.
        self.file.block_mut(store, dat, 0, |_| {})?;
        let mut after = before;
        f(&mut after);
        let (block, byte) = su::place(&store.geometry, segment);
        after.store(self.file.block_mut(store, dat, block, |_| {})?, byte);
        let count = |n: u64, was: bool, is: bool| match (was, is) {
            (true, false) => n.saturating_sub(1),
            (false, true) => n.saturating_add(1),
            _ => n,
        };
        self.header.ncleansegs = count(self.clean(), before.is_clean(), after.is_clean()).into();
        self.header.ndirtysegs = count(self.dirty(), before.is_dirty(), after.is_dirty()).into();
        if self.limit.is_some_and(|limit| segment.0 >= limit) {
            self.beyond = count(self.beyond, before.is_clean(), after.is_clean());
        }
        if after.is_clean() {
            self.busy.remove(segment.0..segment.0 + 1);
        }
        self.store_header(store, dat)?;
        Ok(before)
    }

    /// Makes the counters part of the next log.
    pub(crate) fn store_header(&mut self, store: &Store, dat: &Dat) -> Result<()> {
        su::store_header(self.file.block_mut(store, dat, 0, |_| {})?, &self.header);
        Ok(())
    }

    /// Makes a segment's entry part of the next log and marks it in use.
    pub fn touch(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        let before = self.change(store, dat, segment, |e| e.flags = (e.flags.get() | su::DIRTY).into())?;
        if before.is_error() {
            return Err(Error::corrupt(
                format!("segment {segment}"),
                "sufile",
                "the writer's segment is marked bad",
            ));
        }
        Ok(())
    }

    /// Makes a segment clean.
    pub fn free(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        self.change(store, dat, segment, |e| *e = SuEntry::CLEAN).map(|_| ())
    }

    /// Marks a segment as garbage that may not be allocated yet (spec 4.5, 11.2).
    pub fn scrap(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        self.change(store, dat, segment, |e| {
            *e = SuEntry::CLEAN;
            e.flags = su::DIRTY.into();
        })
        .map(|_| ())
    }

    /// Marks a segment that holds nothing as one never to be used (spec 11.2, 12.10).
    pub fn set_error(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        self.change(store, dat, segment, |e| {
            *e = SuEntry::CLEAN;
            e.flags = su::ERROR.into();
        })
        .map(|_| ())
    }

    /// Zeroes the slot of a segment that does not exist yet, where its block exists.
    pub fn clear_slot(&mut self, store: &Store, dat: &Dat, segment: SegNr) -> Result<()> {
        let (block, byte) = su::place(&store.geometry, segment);
        if let Some(b) = self.file.block(store, dat, block)?
            && SuEntry::read(&b, byte).at(|| format!("sufile block {block}"))? != SuEntry::CLEAN
        {
            SuEntry::CLEAN.store(self.file.block_mut(store, dat, block, |_| {})?, byte);
        }
        Ok(())
    }

    /// Counts clean and used segments from their entries.
    pub fn recount(&mut self, store: &Store, dat: &Dat) -> Result<()> {
        let (mut clean, mut dirty) = (0u64, 0u64);
        for segment in (0..store.geometry.nsegments).map(SegNr) {
            let e = self.entry(store, dat, segment)?;
            clean += u64::from(e.is_clean());
            dirty += u64::from(e.is_dirty());
        }
        self.header.ncleansegs = clean.into();
        self.header.ndirtysegs = dirty.into();
        self.store_header(store, dat)
    }

    /// Adds `n` clean segments to the counter (growing, spec section 15).
    pub fn grow(&mut self, store: &Store, dat: &Dat, n: u64) -> Result<()> {
        self.header.ncleansegs = self.clean().saturating_add(n).into();
        self.store_header(store, dat)
    }
}
