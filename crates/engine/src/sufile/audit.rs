//! Whether the counters of the segment usage file agree with its entries.

use std::ops::Range;

use silt_format::SegNr;
use silt_format::segment_usage as su;

use super::{SuFile, count, segments_in};
use crate::dat::Dat;
use crate::store::Store;

/// Blocks that are read when a volume is opened for writing, to count: 16,000 segments at 4 KiB.
const AUDITED: u64 = 64;

impl SuFile {
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
}
