//! Which segment is written next (spec 11.4).

use std::ops::Range;

use silt_format::SegNr;
use silt_format::segment_usage::{self as su, SuEntry};

use super::{SuFile, count, segments_in};
use crate::dat::Dat;
use crate::store::Store;
use crate::{At, Error, Result};

impl SuFile {
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::time::Instant;

    use silt_device::{Fault, MemoryDevice, Times};
    use silt_format::segment_usage::{self as su, SuEntry};
    use silt_format::{BlockNr, SegNr};
    use silt_verify::surgeon::Surgeon;

    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    /// The same few segments are given back and taken again while all others are in use.
    #[test]
    fn a_clean_segment_is_found_at_once_on_a_nearly_full_volume() {
        let size = 16 * 1024 * 200_000;
        let device = Arc::new(MemoryDevice::new(size));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: 16, now: 1000, ..Parameters::default() };
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

    /// Segments that the log lies in, of which the table says that they are clean, with counters that agree.
    #[test]
    fn what_the_log_lies_in_is_never_handed_out() {
        let size = 16 * 1024 * 2000;
        let device = Arc::new(MemoryDevice::new(size));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        v.take_over(2000).unwrap();
        let mut now = 3000;
        let log = loop {
            v.meta_dirty = true;
            v.checkpoint(now).unwrap();
            now += 1;
            let root = v.geometry().segment_of(BlockNr(v.last_log().pseg));
            // The next log begins another segment.
            if v.cursor.room(v.geometry()) < 2 {
                break [v.cursor.segment, v.cursor.next, root];
            }
        };
        v.close(now).unwrap();
        for damaged in log.map(|s| vec![s]).into_iter().chain([log.to_vec()]) {
            let mut surgeon = Surgeon { device: device.fork() };
            let blocks = surgeon.file(5);
            let g = surgeon.g();
            let mut went = 0;
            for s in &damaged {
                let (offset, byte) = su::place(&g, *s);
                surgeon.patch(blocks[&offset], |b| {
                    went += u64::from(SuEntry::read(b, byte).unwrap().is_dirty());
                    SuEntry::CLEAN.store(b, byte);
                });
            }
            surgeon.patch(blocks[&0], |b| {
                let mut h = su::header(b).unwrap();
                h.ncleansegs = (h.ncleansegs.get() + went).into();
                h.ndirtysegs = (h.ndirtysegs.get() - went).into();
                h.last_alloc = damaged[0].0.wrapping_sub(1).into();
                su::store_header(b, &h);
            });
            assert!(went > 0);
            let (mut v, report) = Volume::open(Arc::new(surgeon.device), &OpenOptions::default()).unwrap();
            let told = report.damage.iter().any(|d| d.contains("in which the log is written"));
            v.take_over(now).unwrap();
            let clean = v.sufile.clean();
            for _ in 0..clean {
                let s = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
                assert!(!log.contains(&s), "{s} of {log:?}, damaged {damaged:?}");
            }
            assert!(v.sufile.allocate(&mut v.store, &v.dat).is_err());
            assert!(told, "{damaged:?}: {report:?}");
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
}
