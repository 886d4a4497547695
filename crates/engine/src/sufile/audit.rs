//! Whether the counters of the segment usage file agree with its entries.
//!
//! A block of the table that was zeroed says that all of its segments are clean. The counters tell: they are held against
//! all entries, when a volume is opened as far as that takes a moment, and else some more with each segment that is handed out.
//! Until all are counted, no segment is taken for clean out of a block without any that is not.

use std::ops::Range;

use rangemap::RangeSet;
use silt_format::SegNr;
use silt_format::segment_usage as su;

use super::{SuFile, count, segments_in};
use crate::dat::Dat;
use crate::store::Store;

/// Blocks that are read when a volume is opened for writing, to count: 16,000 segments at 4 KiB.
const AUDITED: u64 = 64;
/// And with each segment that is handed out.
const MORE: u64 = 2;

/// An audit that is under way. Memory: the blocks that are wrong or without a segment in use, as ranges.
#[derive(Debug, Clone, Default)]
pub(super) struct Audit {
    /// Blocks before this one are counted.
    next: u64,
    clean: u64,
    dirty: u64,
    /// Blocks that make no sense or cannot be read.
    bad: RangeSet<u64>,
    /// Blocks that say that all of their segments are clean.
    blank: RangeSet<u64>,
    /// One of those lost entries for certain.
    lost: bool,
}

impl Audit {
    /// An entry was changed: what is counted of its block changes with it.
    pub fn changed(&mut self, block: u64, clean: (bool, bool), dirty: (bool, bool)) {
        if block < self.next && !self.bad.contains(&block) {
            let count = |n: u64, (was, is): (bool, bool)| (n + u64::from(is)).saturating_sub(u64::from(was));
            (self.clean, self.dirty) = (count(self.clean, clean), count(self.dirty, dirty));
        }
    }
}

/// Segments in these blocks of the table.
fn size(g: &silt_format::Geometry, blocks: &RangeSet<u64>) -> u64 {
    let of = |r: &Range<u64>| segments_in(g, r.end - 1).end.saturating_sub(segments_in(g, r.start).start);
    blocks.iter().map(of).sum()
}

impl SuFile {
    /// Holds the counters against the entries, where that takes a moment only ([`AUDITED`] blocks), and else begins to.
    /// Segments of damaged blocks count as in use as long as this is open: what they hold cannot be told. What is
    /// wrong, in words, and whether `writers` (the segments of the log writer) are among them.
    ///
    /// `resizing`: a resize was cut off, so that the clean ones are counted anew, however many there are.
    pub fn audit(
        &mut self,
        store: &Store,
        dat: &Dat,
        writers: [SegNr; 2],
        resizing: bool,
    ) -> (Option<String>, bool) {
        let last = su::place(&store.geometry, SegNr(store.geometry.nsegments - 1)).0;
        self.audit = Some(Box::default());
        if last < AUDITED || resizing {
            self.count_on(store, dat, u64::MAX);
            return self.end_audit(store, dat, writers, resizing);
        }
        let wrong = self.audit_writers(store, dat, writers);
        self.count_on(store, dat, AUDITED);
        let lost = wrong.is_some();
        (wrong, lost)
    }

    /// The blocks with the entries of the writer's segments are never without one in use.
    fn audit_writers(&mut self, store: &Store, dat: &Dat, writers: [SegNr; 2]) -> Option<String> {
        let g = &store.geometry;
        let mut wrong = None;
        for (block, _) in writers.map(|s| su::place(g, s)) {
            let segments = segments_in(g, block);
            let there = self.file.block(store, dat, block).ok().flatten();
            let counted = there.and_then(|b| count(g, &b, segments.clone()));
            if counted.is_some_and(|(clean, _)| clean < segments.end - segments.start) {
                continue;
            }
            if let (Some(audit), Some(_)) = (&mut self.audit, counted) {
                audit.lost = true;
            }
            self.busy.insert(segments.clone());
            wrong.get_or_insert_with(|| damaged(1, block, &segments));
        }
        wrong
    }

    /// Has these never handed out, which the log lies in or goes on in: whatever the table says they are in use. What is wrong with
    /// it, in words, and of which of them it says that they are clean.
    pub fn keep_for_log(
        &mut self,
        store: &Store,
        dat: &Dat,
        log: [SegNr; 3],
    ) -> (Option<String>, Vec<SegNr>) {
        let g = &store.geometry;
        let mut wrong = Vec::new();
        for s in log.into_iter().filter(|s| s.0 < g.nsegments) {
            let block = su::place(g, s).0;
            let is_sane = |b: &[u8]| count(g, b, segments_in(g, block)).is_some();
            let there = self.file.block(store, dat, block);
            // Of one that makes no sense all count as in use.
            let is_told = there.is_ok_and(|b| b.as_ref().is_none_or(|b| is_sane(b)));
            if is_told && self.entry(store, dat, s).is_ok_and(|e| e.is_clean()) {
                wrong.push(s);
                // Where that cannot be read it is in use all the same.
                let _ = self.change(store, dat, s, |e| e.flags = su::DIRTY.into());
            }
            self.busy.insert(s.0..s.0 + 1);
        }
        let first = wrong.first();
        let what = first.map(|s| {
            format!("the table of segments is damaged: it says that segment {s} is clean, in which the log is written")
        });
        (what, wrong)
    }

    /// Whether it cannot be told yet of a block whose entries say that so many of its segments are clean.
    pub(super) fn is_suspect(&self, segments: &Range<u64>, clean: u64) -> bool {
        self.audit.is_some() && clean == segments.end.saturating_sub(segments.start)
    }

    /// Goes on with an audit by a little, for somebody who takes a segment.
    pub(super) fn audit_more(&mut self, store: &Store, dat: &Dat) {
        self.audit_some(store, dat, MORE);
    }

    /// Goes on with an audit by so many blocks; whether none is under way any more.
    pub fn audit_some(&mut self, store: &Store, dat: &Dat, blocks: u64) -> bool {
        if self.audit.is_some() && self.count_on(store, dat, blocks) {
            self.complete_audit(store, dat);
        }
        self.audit.is_none()
    }

    /// Ends an audit that is under way, however much is left of it; whether one was.
    pub fn complete_audit(&mut self, store: &Store, dat: &Dat) -> bool {
        let is_under_way = self.audit.is_some();
        if is_under_way {
            self.count_on(store, dat, u64::MAX);
            // Where the log is was looked at when it began.
            let nowhere = [SegNr(u64::MAX); 2];
            let (what, _) = self.end_audit(store, dat, nowhere, false);
            self.found = self.found.take().or(what);
        }
        is_under_way
    }

    /// Takes what an audit found that went on since the volume was opened, in words.
    pub fn take_found(&mut self) -> Option<String> {
        self.found.take()
    }

    /// Counts at most so many blocks more; whether that was all.
    fn count_on(&mut self, store: &Store, dat: &Dat, blocks: u64) -> bool {
        let g = &store.geometry;
        let end = su::place(g, SegNr(g.nsegments - 1)).0.saturating_add(1);
        let Some(mut audit) = self.audit.take() else { return true };
        let mut left = blocks;
        while audit.next < end && left > 0 {
            left -= 1;
            let block = audit.next;
            let segments = segments_in(g, block);
            let len = segments.end - segments.start;
            audit.next += 1;
            match self.file.block(store, dat, block) {
                Ok(None) => {
                    // However many there are, nothing is known of them.
                    let next = self.file.next_block(store, dat, block).unwrap_or(Some(audit.next));
                    audit.next = next.unwrap_or(end).clamp(audit.next, end);
                    audit.clean += segments_in(g, audit.next - 1).end.saturating_sub(segments.start);
                }
                Ok(Some(b)) => match count(g, &b, segments) {
                    Some((clean, dirty)) => {
                        if clean == len {
                            audit.blank.insert(block..block + 1);
                        }
                        audit.clean += clean;
                        audit.dirty += dirty;
                    }
                    None => audit.bad.insert(block..block + 1),
                },
                Err(_) => audit.bad.insert(block..block + 1),
            }
        }
        let is_all = audit.next >= end;
        self.audit = Some(audit);
        is_all
    }

    /// All is counted: says what it came to, as [`SuFile::audit`].
    fn end_audit(
        &mut self,
        store: &Store,
        dat: &Dat,
        writers: [SegNr; 2],
        resizing: bool,
    ) -> (Option<String>, bool) {
        let g = &store.geometry;
        let Some(audit) = self.audit.take() else { return (None, false) };
        let Audit { mut clean, dirty, mut bad, blank, lost, .. } = *audit;
        let (said_clean, said_dirty) = (self.clean(), self.dirty());
        if bad.is_empty() && !lost && dirty == said_dirty && (resizing || clean == said_clean) {
            self.header.ncleansegs = clean.into();
            return (None, false);
        }
        let fewer = said_dirty.saturating_sub(dirty);
        let lost = lost
            || if resizing || !bad.is_empty() {
                // How many should be clean is not known.
                fewer > size(g, &bad)
            } else {
                // As many more clean ones as there are fewer in use: a block was blanked.
                (clean > said_clean && clean - said_clean == fewer) || (said_clean, said_dirty) == (0, 0)
            };
        if lost {
            for block in blank.iter().cloned().flatten() {
                // Of one that was used meanwhile more is known.
                let there = self.file.block(store, dat, block).ok().flatten();
                let counted = there.and_then(|b| count(g, &b, segments_in(g, block)));
                clean = clean.saturating_sub(counted.map_or(0, |(clean, _)| clean));
            }
            bad.extend(blank);
        }
        self.header.ncleansegs = clean.into();
        self.header.ndirtysegs = dirty.into();
        let mut writers_lost = false;
        for blocks in bad.iter() {
            let segments = segments_in(g, blocks.start).start..segments_in(g, blocks.end - 1).end;
            writers_lost |= writers.iter().any(|s| segments.contains(&s.0));
            self.busy.insert(segments);
        }
        let number = bad.iter().map(|r| r.end - r.start).sum();
        let what = match bad.iter().next() {
            Some(first) => damaged(number, first.start, &segments_in(g, first.start)),
            None => format!(
                "the table of segments says that {said_clean} are clean and {said_dirty} in use; counted: {clean} and {dirty}"
            ),
        };
        (Some(what), writers_lost)
    }
}

fn damaged(number: u64, block: u64, segments: &Range<u64>) -> String {
    format!(
        "the table of segments is damaged ({number} of its blocks, the first is {block}): segments {} to {} and \
         others like them count as in use",
        segments.start,
        segments.end.saturating_sub(1)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use silt_device::MemoryDevice;
    use silt_format::SegNr;

    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    /// A volume of 2,000 small segments, the first `used` of them in use.
    fn partly_used(used: u64) -> Volume {
        partly_used_of(2000, used)
    }

    fn partly_used_of(segments: u64, used: u64) -> Volume {
        let size = 16 * 1024 * segments;
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
            let lost = super::super::segments_in(&v.store.geometry, 2);
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

    /// Blocks of 64 segments.
    const LARGE: u64 = 9000;

    /// Of a table that is too large to be counted at once, too: none of a zeroed block is handed out, and it is told.
    #[test]
    fn a_large_table_is_counted_bit_by_bit() {
        for (damaged, byte) in [(80u64, 0u8), (80, 0xa5), (20, 0)] {
            let mut v = partly_used_of(LARGE, 6000);
            let lost = super::super::segments_in(&v.store.geometry, damaged);
            v.sufile.file.block_mut(&v.store, &v.dat, damaged, |_| {}).unwrap().fill(byte);
            v.sufile.busy.clear();
            assert_eq!(v.sufile.audit(&v.store, &v.dat, NOWHERE, false), (None, false));
            // The search begins there.
            v.sufile.header.last_alloc = lost.start.into();
            assert!(v.clean_segments(lost.clone()).unwrap().is_empty(), "nor discarded");
            let mut taken = 0;
            while let Ok(segment) = v.sufile.allocate(&mut v.store, &v.dat) {
                assert!(!lost.contains(&segment.0), "{damaged}, {byte}: segment {segment} was in use");
                taken += 1;
            }
            assert!((2900..3000).contains(&taken), "all that is clean: {taken}");
            assert!(v.sufile.take_found().unwrap().contains("count as in use"));
            assert_eq!((v.available_segments(), v.sufile.clean()), (0, 0));
        }
    }

    /// What is clean in truth is not lost, whatever happens while it is counted.
    #[test]
    fn a_sound_large_table_gives_all_that_is_clean() {
        let mut v = partly_used_of(LARGE, 6000);
        // Four blocks with nothing in use, of which it cannot be told yet.
        for segment in 5000..5300 {
            v.sufile.free(&v.store, &v.dat, SegNr(segment)).unwrap();
        }
        assert_eq!(v.sufile.audit(&v.store, &v.dat, NOWHERE, false), (None, false));
        let clean = v.sufile.clean();
        assert_eq!(v.available_segments(), clean);
        for segment in (0..50).chain(5900..5950) {
            v.sufile.free(&v.store, &v.dat, SegNr(segment)).unwrap();
        }
        v.sufile.header.last_alloc = 4990.into();
        let mut taken = Vec::new();
        while let Ok(segment) = v.sufile.allocate(&mut v.store, &v.dat) {
            taken.push(segment.0);
        }
        assert_eq!(taken.len() as u64, clean + 100);
        assert_eq!((v.sufile.take_found(), v.sufile.clean(), v.sufile.dirty()), (None, 0, LARGE - 1));
        assert!((5000..5300).all(|s| taken.contains(&s)), "those as well");
    }

    /// The segment that the log lies in is in use for certain: no counters are needed to tell.
    #[test]
    fn a_large_table_that_lost_the_writers_entries_is_told_at_once() {
        let mut v = partly_used_of(LARGE, 6000);
        let lost = super::super::segments_in(&v.store.geometry, 80);
        v.sufile.file.block_mut(&v.store, &v.dat, 80, |_| {}).unwrap().fill(0);
        v.sufile.busy.clear();
        let (what, writers) = v.sufile.audit(&v.store, &v.dat, [SegNr(lost.start), SegNr(3)], false);
        assert!(writers && what.unwrap().contains("block"));
    }
}
