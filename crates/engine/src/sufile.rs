//! The segment usage file: which segments are clean, in use, or bad (spec section 11).
//!
//! Invariant: `ncleansegs` equals the clean entries among the volume's segments, holes included.

use std::ops::Range;

use rangemap::RangeSet;
use silt_format::inode::RawInode;
use silt_format::segment_usage::{self as su, SuEntry, SuHeader};
use silt_format::{Geometry, Ino, SegNr};

use crate::dat::Dat;
use crate::meta::MetaFile;
use crate::store::Store;
use crate::{At, Error, Result};

/// The sufile of a volume; its header is kept parsed and stored with every change.
#[derive(Clone)]
pub struct SuFile {
    pub file: MetaFile,
    header: SuHeader,
    /// Segments known not to be clean: the search for a clean one goes over them at once. As many
    /// ranges as clean segments lie between them.
    busy: RangeSet<u64>,
}

impl SuFile {
    /// From its inode; reads the header, whose counters cannot exceed the volume.
    pub fn open(geometry: &Geometry, store: &Store, dat: &Dat, raw: RawInode) -> Result<Self> {
        let file = MetaFile::new(Ino::SUFILE, raw);
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
        Ok(SuFile { file, header, busy: RangeSet::new() })
    }

    /// From its inode alone, where the header cannot be read: its counters are zero.
    pub fn bare(raw: RawInode) -> Self {
        let header = SuHeader { ncleansegs: 0.into(), ndirtysegs: 0.into(), last_alloc: 0.into() };
        SuFile { file: MetaFile::new(Ino::SUFILE, raw), header, busy: RangeSet::new() }
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

    /// Changes a segment's entry and the counters with it; its block is part of the next log.
    pub fn change(
        &mut self,
        store: &Store,
        dat: &Dat,
        segment: SegNr,
        f: impl FnOnce(&mut SuEntry),
    ) -> Result<SuEntry> {
        let before = self.entry(store, dat, segment)?;
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
        if after.is_clean() {
            self.busy.remove(segment.0..segment.0 + 1);
        }
        self.store_header(store, dat)?;
        Ok(before)
    }

    fn store_header(&mut self, store: &Store, dat: &Dat) -> Result<()> {
        su::store_header(self.file.block_mut(store, dat, 0, |_| {})?, &self.header);
        Ok(())
    }

    /// Finds a clean segment by cyclic first fit and marks it in use (spec 11.4).
    pub fn allocate(&mut self, store: &mut Store, dat: &Dat) -> Result<SegNr> {
        let n = store.geometry.nsegments;
        let start = self.header.last_alloc.get().wrapping_add(1);
        let start = if start >= n { 0 } else { start };
        let found = match self.find_clean(store, dat, start..n)? {
            Some(segment) => Some(segment),
            None => self.find_clean(store, dat, 0..start)?,
        };
        let segment = found.ok_or(Error::NoSpace)?;
        self.change(store, dat, segment, |e| {
            *e = SuEntry::CLEAN;
            e.flags = su::DIRTY.into();
        })?;
        self.busy.insert(segment.0..segment.0 + 1);
        self.header.last_alloc = segment.0.into();
        self.store_header(store, dat)?;
        let blocks = store.geometry.segment_start(segment).0..store.geometry.segment_end(segment).0;
        store.forget_physical(blocks);
        Ok(segment)
    }

    /// The first clean segment of a range. What is passed over is remembered: each segment is looked
    /// at once for each time it is taken.
    fn find_clean(&mut self, store: &Store, dat: &Dat, range: Range<u64>) -> Result<Option<SegNr>> {
        let g = &store.geometry;
        let mut at = range.start;
        while at < range.end {
            if let Some(busy) = self.busy.get(&at) {
                at = busy.end;
                continue;
            }
            // To the end of this block's entries, with one look-up of the block.
            let (block, _) = su::place(g, SegNr(at));
            let stop = range.end.min((block + 1) * su::per_block(g) - su::first_offset(g));
            let Some(b) = self.file.block(store, dat, block)? else { return Ok(Some(SegNr(at))) };
            let first = at;
            while at < stop {
                let e =
                    SuEntry::read(&b, su::place(g, SegNr(at)).1).at(|| format!("sufile block {block}"))?;
                if e.is_clean() {
                    break;
                }
                at += 1;
            }
            if first < at {
                self.busy.insert(first..at);
            }
            if at < stop {
                return Ok(Some(SegNr(at)));
            }
        }
        Ok(None)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::time::Instant;

    use silt_device::MemoryDevice;
    use silt_format::SegNr;

    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    /// The same few segments are given back and taken again while all others are in use.
    #[test]
    fn a_clean_segment_is_found_at_once_on_a_nearly_full_volume() {
        let size = 16 * 1024 * 200_000;
        let device = Arc::new(MemoryDevice::new(size));
        let parameters = Parameters {
            block_size: 1024,
            blocks_per_segment: 16,
            reserved_percent: 5,
            label: Vec::new(),
            uuid: [7; 16],
            crc_seed: 1,
            now: 1000,
            block_count: true,
            owner: (0, 0),
        };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device, &OpenOptions::default()).unwrap();
        while v.sufile.clean() > 0 {
            v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        }
        assert!(matches!(v.sufile.allocate(&mut v.store, &v.dat), Err(crate::Error::NoSpace)));
        let started = Instant::now();
        for round in 0..2000u64 {
            // Just below the last one: the search goes around the whole volume.
            let segment = SegNr(199_000 - round);
            v.sufile.free(&v.store, &v.dat, segment).unwrap();
            assert_eq!(v.sufile.allocate(&mut v.store, &v.dat).unwrap(), segment);
        }
        let took = started.elapsed();
        println!("{:?} an allocation", took / 2000);
        assert_eq!(v.sufile.clean(), 0);
        // Looking at each segment it took milliseconds.
        assert!(took.as_millis() < 2000, "{took:?}");
    }
}
