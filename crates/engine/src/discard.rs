//! Discarding clean segments: telling the device that nobody wants their bytes any more.
//!
//! ```text
//! may be written (clean, durably free, unread) -> fresh -> ripe -> discarded
//!                                                   \________\____ unless the log comes first
//! ```
//!
//! What may be written may be discarded, and nothing else: the same rule keeps the newest durable checkpoint, what
//! recovery walks, and readers at old places from both ([`crate::held`]). A discard is done without the volume's lock;
//! meanwhile its segments are held, so that no log is written under it. A power cut may leave a discarded place as it
//! was, zeroes, or any mix: nobody reads a clean segment.
//!
//! Memory: 32 bytes a run of segments that waits.

use std::ops::Range;
use std::sync::Arc;

use rangemap::RangeSet;
use silt_device::Device;
use silt_format::{Geometry, SegNr};

use crate::volume::Volume;
use crate::{Error, Result};

/// Bytes in front of the log that are not discarded by themselves: a hole would be filled again at once, which costs
/// the host an allocation.
const AHEAD: u64 = 64 << 20;

/// Segments that wait to be discarded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwanted {
    /// Since the last [`Volume::ripen`].
    fresh: RangeSet<u64>,
    /// Before.
    ripe: RangeSet<u64>,
}

impl Unwanted {
    /// A segment may be written from now on.
    pub fn add(&mut self, segment: u64) {
        self.fresh.insert(segment..segment + 1);
    }

    /// It is written again.
    pub fn taken(&mut self, segment: u64) {
        self.fresh.remove(segment..segment + 1);
        self.ripe.remove(segment..segment + 1);
    }

    /// There are no more segments than these.
    pub fn cut(&mut self, nsegments: u64) {
        self.fresh.remove(nsegments..u64::MAX);
        self.ripe.remove(nsegments..u64::MAX);
    }

    fn len(&self) -> u64 {
        self.fresh.iter().chain(self.ripe.iter()).map(|r| r.end - r.start).sum()
    }

    /// Up to `most` ripe segments in a row, from `from` on and around; the first `ahead` that wait are passed over, and those
    /// that are `kept`.
    fn next(&self, from: u64, mut ahead: u64, most: u64, kept: &RangeSet<u64>) -> Option<Range<u64>> {
        let halves = [from..u64::MAX, 0..from];
        for half in halves {
            for run in self.ripe.overlapping(half.clone()) {
                let run = run.start.max(half.start)..run.end.min(half.end);
                let skipped = ahead.min(run.end - run.start);
                ahead -= skipped;
                let rest = run.start + skipped..run.end;
                if let Some(rest) = kept.gaps(&rest).next() {
                    return Some(rest.start..rest.end.min(rest.start.saturating_add(most.max(1))));
                }
            }
        }
        None
    }
}

/// Segments that are being discarded, as byte ranges. To be given back with [`Volume::end_discard`] in any case.
#[derive(Debug)]
#[must_use]
pub struct Discard {
    segments: Vec<Range<u64>>,
    bytes: Vec<Range<u64>>,
    /// They were done under the lock.
    done: bool,
    /// Who closes the volume waits for whatever holds this.
    _under_way: Arc<()>,
}

impl Discard {
    /// Discards them, without the volume's lock. Errors are those of the device; what was done before stays done.
    pub fn run(&self, device: &dyn Device) -> Result<()> {
        if self.done {
            return Ok(());
        }
        self.bytes.iter().try_for_each(|r| device.discard(r.start, r.end - r.start))?;
        Ok(())
    }

    /// The segment behind the last one; none where there is nothing in it.
    pub fn end(&self) -> Option<u64> {
        self.segments.last().map(|r| r.end)
    }

    /// The runs in it.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments.iter().cloned()
    }

    /// Bytes of all of it.
    pub fn len(&self) -> u64 {
        self.bytes.iter().map(|r| r.end - r.start).sum()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

pub(crate) fn bytes_of(g: &Geometry, segments: &Range<u64>) -> Range<u64> {
    let last = segments.end.saturating_sub(1);
    g.byte_of(g.segment_start(SegNr(segments.start)))..g.byte_of(g.segment_end(SegNr(last)))
}

impl Volume {
    /// From now on segments that become free are remembered, for [`Volume::next_discard`]; with `all` also those that
    /// are clean now.
    pub fn remember_unwanted(&mut self, all: bool) -> Result<()> {
        let mut unwanted = Unwanted::default();
        if all {
            for run in self.clean_segments(0..self.store.geometry.nsegments)? {
                unwanted.fresh.insert(run);
            }
        }
        self.store.held.unwanted = Some(unwanted);
        Ok(())
    }

    /// Bytes that wait to be discarded.
    pub fn unwanted_bytes(&self) -> u64 {
        let g = &self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        self.store.held.unwanted.as_ref().map_or(0, Unwanted::len).saturating_mul(segment)
    }

    /// What waits has waited long enough: [`Volume::next_discard`] gives it out.
    pub fn ripen(&mut self) {
        self.store.held.release();
        if let Some(u) = &mut self.store.held.unwanted {
            let fresh = std::mem::take(&mut u.fresh);
            u.ripe.extend(fresh);
        }
    }

    /// Segments that the log is in or goes on in. They are not clean, whatever the table says: it may be damaged.
    fn of_the_log(&self) -> RangeSet<u64> {
        let under_way = self.construction.iter().flat_map(|k| k.segments());
        let all = [self.cursor.segment, self.cursor.next].into_iter().chain(under_way);
        all.map(|s| s.0..s.0.saturating_add(1)).collect()
    }

    /// Runs of segments of a range that may be written now, ascending.
    pub fn clean_segments(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut free = Vec::new();
        let log = self.of_the_log();
        for run in self.sufile.clean_runs(&self.store, &self.dat, range)? {
            let mut at = run.start;
            while at < run.end {
                // Up to the next one that is held.
                let held = self.store.held.from(at);
                let stop = held.as_ref().map_or(run.end, |h| h.start.clamp(at, run.end));
                if at < stop {
                    free.extend(log.gaps(&(at..stop)));
                }
                at = held.map_or(run.end, |h| h.end).max(stop);
            }
        }
        Ok(free)
    }

    /// Takes segments of a range for discarding, as far as they may be written: nobody writes them before
    /// [`Volume::end_discard`]. As many as can be spared; where none can, the first is discarded here and now, under
    /// the lock.
    pub fn begin_discard(&mut self, wanted: Range<u64>) -> Result<Discard> {
        let _under_way = self.store.held.discard();
        let mut discard = Discard { segments: Vec::new(), bytes: Vec::new(), done: false, _under_way };
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if self.recovery.is_some() || self.store.held.ends {
            return Ok(discard);
        }
        // Half of what nobody counts on: what is held counts as in use.
        let mut left = self.segments_left().saturating_sub(self.segments_with_space(0)) / 2;
        let tight = left == 0;
        left = left.max(1);
        // What counts as clean is not to become less where it is all there is.
        let kept = if tight { self.all_backed() } else { self.kept_backed() };
        let runs = self.clean_segments(wanted)?.into_iter();
        let runs: Vec<_> = runs.flat_map(|run| kept.gaps(&run).collect::<Vec<_>>()).collect();
        for mut run in runs {
            run.end = run.end.min(run.start.saturating_add(left));
            left -= run.end - run.start;
            discard.bytes.push(bytes_of(&self.store.geometry, &run));
            discard.segments.push(run);
            if left == 0 {
                break;
            }
        }
        if tight {
            discard.run(&*self.store.device)?;
            discard.done = true;
        }
        for run in &discard.segments {
            if let Some(u) = &mut self.store.held.unwanted {
                run.clone().for_each(|s| u.taken(s));
            }
            if let Some(b) = &mut self.store.held.backed {
                b.discarded(run.clone());
            }
            if !tight {
                self.store.held.hold_for_discard(run.clone());
            }
        }
        Ok(discard)
    }

    /// The next ripe segments, about `bytes` of them; none where nothing is left but what lies in front of the log. As
    /// [`Volume::begin_discard`].
    pub fn next_discard(&mut self, bytes: u64) -> Result<Option<Discard>> {
        let g = self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let after = self.sufile.header().last_alloc.get().wrapping_add(1);
        // No more of a small volume than a sixteenth.
        let ahead = (AHEAD / segment).min(g.nsegments / 16);
        let kept = self.kept_backed();
        let unwanted = self.store.held.unwanted.as_ref();
        let next = unwanted.and_then(|u| u.next(after, ahead, bytes / segment, &kept));
        let Some(range) = next else { return Ok(None) };
        let discard = self.begin_discard(range.clone())?;
        if discard.is_empty() {
            // They are held again, or not clean.
            if let Some(u) = &mut self.store.held.unwanted {
                range.for_each(|s| u.taken(s));
            }
        }
        Ok(Some(discard))
    }

    /// The segments may be written again.
    pub fn end_discard(&mut self, discard: Discard) {
        if !discard.done {
            discard.segments.into_iter().for_each(|run| self.store.held.discarded(run));
        }
    }

    /// No discard begins from now on; whether none is under way. To be asked before the volume is closed: who comes
    /// next may write there. One that was dropped, by a thread that panicked, is none.
    pub fn end_discards(&mut self) -> bool {
        self.store.held.ends = true;
        !self.store.held.is_discarding()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use std::sync::Arc;

    use silt_device::{Counter, MemoryDevice};

    use super::*;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::OpenOptions;

    const SEGMENT: u64 = 16 * 4096;

    fn volume(segments: u64) -> (Arc<Counter<MemoryDevice>>, Volume) {
        let size = (segments + 1) * SEGMENT;
        let device = Arc::new(Counter::new(MemoryDevice::new(size)));
        let parameters = Parameters { blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        v.take_over(2000).unwrap();
        (device, v)
    }

    fn discarded(device: &Counter<MemoryDevice>) -> u64 {
        device.counts().discards.bytes
    }

    #[test]
    fn segments_under_a_discard_are_not_handed_out() {
        let (device, mut v) = volume(100);
        let clean = v.clean_segments(0..u64::MAX).unwrap();
        let all: u64 = clean.iter().map(|r| r.end - r.start).sum();
        assert_eq!(all, v.available_segments());
        let last = clean.last().unwrap().clone();
        let d = v.begin_discard(last.clone()).unwrap();
        let held = d.len() / SEGMENT;
        assert!(held > 20 && held < all, "{held}: what others count on stays");
        assert_eq!(v.available_segments(), all - held);
        let taken = d.segments.clone();
        for _ in 0..v.available_segments() {
            let s = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
            assert!(!taken.iter().any(|r| r.contains(&s.0)), "segment {s} is being discarded");
        }
        assert!(v.sufile.allocate(&mut v.store, &v.dat).is_err());
        d.run(&*device).unwrap();
        assert_eq!(discarded(&device), held * SEGMENT);
        assert!(!v.end_discards(), "one is under way");
        v.end_discard(d);
        assert!(v.end_discards() && v.available_segments() == held);
        let s = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        assert!(taken.iter().any(|r| r.contains(&s.0)));
        assert!(v.begin_discard(0..u64::MAX).unwrap().is_empty(), "no more of them");
    }

    /// A checkpoint that has begun was promised its segments, though nothing waits any more.
    #[test]
    fn what_a_checkpoint_takes_is_not_spare() {
        use crate::inode::Attr;
        let (_, mut v) = volume(100);
        let plain = Attr::of(&silt_format::inode::RawInode::zeroed());
        let ino = v.create_inode(Attr { mode: 0o100_644, links: 1, ..plain }).unwrap();
        let mut key = 0;
        while v.check_space(1).is_ok() {
            v.write_block(ino, key, vec![1; 4096].into()).unwrap();
            key += 1;
        }
        assert!(key > 500, "{key}");
        assert!(v.begin_checkpoint(3000).unwrap());
        let d = v.begin_discard(0..u64::MAX).unwrap();
        v.finish_construction(3000).unwrap();
        v.end_discard(d);
    }

    /// Where none can be spared it is one at a time, and nobody misses it meanwhile.
    #[test]
    fn few_clean_segments_are_discarded_under_the_lock() {
        let (device, mut v) = volume(100);
        while v.available_segments() > v.segments_with_space(0) + 1 {
            v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        }
        let before = v.available_segments();
        let d = v.begin_discard(0..u64::MAX).unwrap();
        assert_eq!((d.len(), v.available_segments(), discarded(&device)), (SEGMENT, before, SEGMENT));
        d.run(&*device).unwrap();
        assert_eq!(discarded(&device), SEGMENT, "once");
        v.end_discard(d);
        assert_eq!(v.available_segments(), before);
    }

    /// What was freed is not discarded before that is durable, nor while somebody reads; and not in front of the log.
    #[test]
    fn what_waits_ripens() {
        let (device, mut v) = volume(200);
        v.remember_unwanted(false).unwrap();
        let used: Vec<SegNr> = (0..100).map(|_| v.sufile.allocate(&mut v.store, &v.dat).unwrap()).collect();
        let guard = v.guard();
        for s in &used {
            v.sufile.free(&v.store, &v.dat, *s).unwrap();
            v.store.held.hold(*s);
        }
        v.ripen();
        assert!(v.next_discard(u64::MAX).unwrap().is_none(), "not durable");
        v.freed_are_durable();
        v.ripen();
        assert!(v.next_discard(u64::MAX).unwrap().is_none(), "somebody reads");
        drop(guard);
        v.ripen();
        assert_eq!(v.unwanted_bytes(), 100 * SEGMENT);
        // The log comes first to these.
        let next = v.sufile.header().last_alloc.get() + 1;
        assert!(!used.iter().any(|s| s.0 == next));
        let mut done = 0;
        while let Some(d) = v.next_discard(8 * SEGMENT).unwrap() {
            assert!(d.len() <= 8 * SEGMENT);
            d.run(&*device).unwrap();
            done += d.len();
            v.end_discard(d);
        }
        assert_eq!((done, discarded(&device)), (88 * SEGMENT, 88 * SEGMENT), "a sixteenth waits");
        assert_eq!(v.unwanted_bytes(), 12 * SEGMENT);
    }

    #[test]
    fn what_is_written_again_is_not_discarded() {
        let (_, mut v) = volume(200);
        v.remember_unwanted(true).unwrap();
        v.ripen();
        let all = v.unwanted_bytes();
        let s = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        assert_eq!(v.unwanted_bytes(), all - SEGMENT);
        v.ripen();
        while let Some(d) = v.next_discard(u64::MAX).unwrap() {
            assert!(!d.segments.iter().any(|r| r.contains(&s.0)));
            v.end_discard(d);
        }
    }

    /// Whatever the table says of the segments that the log is written in and goes on in.
    #[test]
    fn what_the_log_is_written_in_is_never_discarded() {
        for under_way in [false, true] {
            let (_, mut v) = volume(100);
            v.meta_dirty = true;
            v.checkpoint(3000).unwrap();
            let log = [v.cursor.segment, v.cursor.next];
            if under_way {
                v.meta_dirty = true;
                assert!(v.begin_checkpoint(3001).unwrap());
            }
            log.iter().for_each(|s| v.sufile.free(&v.store, &v.dat, *s).unwrap());
            let runs = v.clean_segments(0..u64::MAX).unwrap();
            assert!(!runs.iter().any(|r| log.iter().any(|s| r.contains(&s.0))), "{log:?}: {runs:?}");
            for s in log {
                assert!(v.begin_discard(s.0..s.0 + 1).unwrap().is_empty(), "{s}");
            }
            v.remember_unwanted(true).unwrap();
            v.ripen();
            while let Some(d) = v.next_discard(u64::MAX).unwrap() {
                assert!(!d.segments.iter().any(|r| log.iter().any(|s| r.contains(&s.0))), "{log:?}");
                v.end_discard(d);
            }
        }
    }

    #[test]
    fn the_first_segment_keeps_its_super_block() {
        let (_, v) = volume(20);
        let g = v.geometry();
        assert_eq!(bytes_of(g, &(0..2)), 4096..2 * SEGMENT);
    }

    #[test]
    fn ripe_ones_are_taken_round_from_the_log_on() {
        let mut u = Unwanted::default();
        u.ripe.extend([2..5, 8..20]);
        let none = RangeSet::new();
        assert_eq!(u.next(10, 0, 4, &none), Some(10..14));
        assert_eq!(u.next(10, 3, 100, &none), Some(13..20));
        assert_eq!(u.next(10, 10, 100, &none), Some(2..5));
        assert_eq!(u.next(10, 11, 1, &none), Some(3..4));
        assert_eq!(u.next(10, 15, 1, &none), None);
        let kept = [10..18, 19..20, 3..5].into_iter().collect();
        assert_eq!(u.next(10, 0, 4, &kept), Some(18..19));
        assert_eq!(u.next(19, 1, 4, &kept), Some(2..3));
    }
}
