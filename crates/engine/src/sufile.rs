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
use crate::virt::Change;
use crate::{At, Error, Result};

/// Blocks that are read when a volume is opened for writing, to count: 16,000 segments at 4 KiB.
const AUDITED: u64 = 64;

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

    /// Holds the counters against the entries, where that takes a moment only ([`AUDITED`] blocks). Segments of
    /// damaged blocks count as in use as long as this is open: what they hold cannot be told. What is wrong, in
    /// words, and whether `writers` (the segments of the log writer) are among them.
    ///
    /// `resizing`: a resize was cut off, so that the clean ones are counted anew, however many there are.
    pub fn audit(
        &mut self,
        store: &Store,
        dat: &Dat,
        writers: [SegNr; 2],
        resizing: bool,
    ) -> (Option<String>, bool) {
        let g = &store.geometry;
        let n = g.nsegments;
        let last = su::place(g, SegNr(n - 1)).0;
        if last >= AUDITED && !resizing {
            return (None, false);
        }
        let (mut clean, mut dirty, mut bad) = (0, 0, Vec::new());
        let mut blank = Vec::new();
        for block in 0..=last {
            let segments = segments_in(g, block);
            let len = segments.end - segments.start;
            match self.file.block(store, dat, block) {
                Ok(None) => clean += len,
                Ok(Some(b)) => match count(g, &b, segments.clone()) {
                    Some((c, d)) => {
                        if c == len {
                            blank.push((block, segments));
                        }
                        clean += c;
                        dirty += d;
                    }
                    None => bad.push((block, segments)),
                },
                Err(_) => bad.push((block, segments)),
            }
        }
        let (said_clean, said_dirty) = (self.clean(), self.dirty());
        if bad.is_empty() && dirty == said_dirty && (resizing || clean == said_clean) {
            self.header.ncleansegs = clean.into();
            return (None, false);
        }
        let size = |blocks: &[(u64, Range<u64>)]| blocks.iter().map(|(_, s)| s.end - s.start).sum::<u64>();
        let fewer = said_dirty.saturating_sub(dirty);
        let lost = if resizing || !bad.is_empty() {
            // How many should be clean is not known.
            fewer > size(&bad)
        } else {
            // As many more clean ones as there are fewer in use: a block was blanked.
            (clean > said_clean && clean - said_clean == fewer) || (said_clean, said_dirty) == (0, 0)
        };
        if lost {
            clean -= size(&blank);
            bad.extend(blank);
        }
        self.header.ncleansegs = clean.into();
        self.header.ndirtysegs = dirty.into();
        let mut writers_lost = false;
        for (_, segments) in &bad {
            writers_lost |= writers.iter().any(|s| segments.contains(&s.0));
            self.busy.insert(segments.clone());
        }
        let what = match bad.first() {
            Some((block, s)) => format!(
                "the table of segments is damaged ({} of its blocks, the first is {block}): segments {} to {} and \
                 others like them count as in use",
                bad.len(),
                s.start,
                s.end - 1
            ),
            None => format!(
                "the table of segments says that {said_clean} are clean and {said_dirty} in use; counted: {clean} and {dirty}"
            ),
        };
        (Some(what), writers_lost)
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

    /// Finds a clean segment by cyclic first fit and marks it in use (spec 11.4).
    pub fn allocate(&mut self, store: &mut Store, dat: &Dat) -> Result<SegNr> {
        store.held.release();
        let n = self.limit.unwrap_or(u64::MAX).min(store.geometry.nsegments);
        let start = self.header.last_alloc.get().wrapping_add(1);
        let start = if start >= n { 0 } else { start };
        self.passed_over = 0;
        let mut found = self.find_backed(store, dat, start, n)?;
        if found.is_none() {
            found = self.find_clean(store, dat, start..n)?;
        }
        if found.is_none() {
            found = self.find_clean(store, dat, 0..start)?;
        }
        let segment = found.or_else(|| store.held.lend()).ok_or(Error::NoSpace)?;
        self.change(store, dat, segment, |e| {
            *e = SuEntry::CLEAN;
            e.flags = su::DIRTY.into();
        })?;
        self.busy.insert(segment.0..segment.0 + 1);
        self.header.last_alloc = segment.0.into();
        self.store_header(store, dat)?;
        if let Some(u) = &mut store.held.unwanted {
            u.taken(segment.0);
        }
        if let Some(b) = &mut store.held.backed {
            b.taken(segment.0);
        }
        let blocks = store.geometry.segment_start(segment).0..store.geometry.segment_end(segment).0;
        store.forget_physical(blocks);
        Ok(segment)
    }

    /// The first clean segment for which the storage below has space, where that is little.
    fn find_backed(&mut self, store: &Store, dat: &Dat, start: u64, n: u64) -> Result<Option<SegNr>> {
        let Some(backed) = store.held.backed.as_ref().filter(|b| b.is_near()) else { return Ok(None) };
        for run in backed.from(start, n) {
            if let Some(found) = self.find_clean(store, dat, run)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first clean segment of a range. What is passed over is remembered: each segment is looked
    /// at once for each time it is taken.
    fn find_clean(&mut self, store: &Store, dat: &Dat, range: Range<u64>) -> Result<Option<SegNr>> {
        let g = &store.geometry;
        let mut at = range.start;
        while at < range.end {
            if let Some(taken) = self.busy.get(&at).or_else(|| store.held.get(at)) {
                at = taken.end;
                continue;
            }
            // To the end of this block's entries, with one look-up of the block.
            let (block, _) = su::place(g, SegNr(at));
            let stop = range.end.min((block + 1) * su::per_block(g) - su::first_offset(g));
            let b = match self.file.block(store, dat, block) {
                Ok(Some(b)) if count(g, &b, segments_in(g, block)).is_some() => b,
                Ok(None) => return Ok(Some(SegNr(at))),
                // What its segments hold cannot be told: they count as in use. A device may give it the next time.
                _ => {
                    self.passed_over = self.passed_over.saturating_add(stop - at);
                    at = stop;
                    continue;
                }
            };
            let first = at;
            let mut clean = false;
            while at < stop {
                let e =
                    SuEntry::read(&b, su::place(g, SegNr(at)).1).at(|| format!("sufile block {block}"))?;
                clean = e.is_clean();
                if clean {
                    break;
                }
                at += 1;
            }
            if first < at {
                self.busy.insert(first..at);
            }
            if clean && store.held.get(at).is_none() {
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

    use silt_device::{Fault, MemoryDevice, Times};
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

    /// A volume of 2,000 small segments, the first `used` of them in use.
    fn partly_used(used: u64) -> Volume {
        let size = 16 * 1024 * 2000;
        let device = Arc::new(MemoryDevice::new(size));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device, &OpenOptions::default()).unwrap();
        for _ in 0..used {
            v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        }
        v
    }

    const NOWHERE: [SegNr; 2] = [SegNr(1999), SegNr(1999)];

    #[test]
    fn sound_counters_are_left_alone() {
        let mut v = partly_used(300);
        let counts = (v.sufile.clean(), v.sufile.dirty());
        assert_eq!(v.sufile.audit(&v.store, &v.dat, NOWHERE, false), (None, false));
        assert_eq!((v.sufile.clean(), v.sufile.dirty()), counts);
    }

    /// Zeroes say that all segments of a block are clean: they are not handed out.
    #[test]
    fn a_block_that_lost_its_entries_counts_as_in_use() {
        for (byte, resizing) in [(0u8, false), (0xa5, false), (0, true), (0xa5, true)] {
            let mut v = partly_used(300);
            let lost = super::segments_in(&v.store.geometry, 2);
            assert!(lost.end <= 300, "all of them in use");
            v.sufile.file.block_mut(&v.store, &v.dat, 2, |_| {}).unwrap().fill(byte);
            v.sufile.busy.clear();
            let (what, writers) =
                v.sufile.audit(&v.store, &v.dat, [SegNr(lost.start), SegNr(1999)], resizing);
            assert!(what.unwrap().contains("count as in use") && writers, "{byte}");
            for _ in 0..v.sufile.clean() {
                let segment = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
                assert!(!lost.contains(&segment.0), "{byte}: segment {segment} was in use");
            }
        }
    }

    /// One that reads as garbage hides no other.
    #[test]
    fn a_blank_block_beside_a_garbled_one_counts_as_in_use() {
        let mut v = partly_used(300);
        for (block, byte) in [(1, 0xa5u8), (2, 0)] {
            v.sufile.file.block_mut(&v.store, &v.dat, block, |_| {}).unwrap().fill(byte);
        }
        v.sufile.busy.clear();
        assert!(v.sufile.audit(&v.store, &v.dat, NOWHERE, false).0.is_some());
        for _ in 0..v.sufile.clean() {
            assert!(v.sufile.allocate(&mut v.store, &v.dat).unwrap().0 >= 300);
        }
    }

    /// It may be over before long; until then nobody counts on what lies there.
    #[test]
    fn a_read_that_fails_costs_no_segment_for_good() {
        let size = 16 * 1024 * 2000;
        let device = Arc::new(Fault::new(MemoryDevice::new(size)));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let options = OpenOptions { cache_bytes: 0, ..OpenOptions::default() };
        let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
        v.take_over(2000).unwrap();
        // Every block is there, and none in memory.
        for segment in (200..2000).step_by(50) {
            v.sufile.free(&v.store, &v.dat, SegNr(segment)).unwrap();
        }
        v.meta_dirty = true;
        v.checkpoint(3000).unwrap();
        device.fail_reads(0..size, Times::Always);
        let before = v.sufile.clean();
        assert!(v.sufile.allocate(&mut v.store, &v.dat).is_err());
        assert!(v.available_segments() + 1700 < before, "{} of {before}", v.available_segments());
        device.heal();
        let mut found = 0;
        while v.sufile.allocate(&mut v.store, &v.dat).is_ok() {
            found += 1;
        }
        assert_eq!((found, v.sufile.clean()), (before, 0));
    }

    /// A resize that was cut off leaves a count of clean ones from before it.
    #[test]
    fn clean_ones_are_counted_anew_after_a_resize() {
        let mut v = partly_used(300);
        let counts = (v.sufile.clean(), v.sufile.dirty());
        v.sufile.header.ncleansegs = (counts.0 - 70).into();
        assert_eq!(v.sufile.audit(&v.store, &v.dat, NOWHERE, true), (None, false));
        assert_eq!((v.sufile.clean(), v.sufile.dirty()), counts);
    }

    /// Counters alone that are wrong are counted anew.
    #[test]
    fn wrong_counters_are_counted_anew() {
        let mut v = partly_used(300);
        let counts = (v.sufile.clean(), v.sufile.dirty());
        v.sufile.header.ncleansegs = (counts.0 - 70).into();
        let (what, writers) = v.sufile.audit(&v.store, &v.dat, NOWHERE, false);
        assert!(what.is_some() && !writers);
        assert_eq!((v.sufile.clean(), v.sufile.dirty()), counts);
    }
}
