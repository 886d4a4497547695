//! Segments that are clean and may not be written yet.
//!
//! ```text
//! freed by a checkpoint -> the checkpoint is durable -> nobody reads at places known before -> may be written
//! ```
//!
//! A segment that was freed still holds what the newest durable checkpoint needs until its successor is durable, and
//! what readers look at who learned a place under the lock and read it outside. Each of them holds a [`Guard`].
//! On disk the segments are clean all along: after a crash nobody reads at old places.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rangemap::RangeSet;
use silt_format::SegNr;

use crate::backed::Backed;
use crate::discard::Unwanted;

/// Keeps segments from being written that are freed while it exists. For whoever reads from the device what was
/// looked up before, without the lock.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    _epoch: Arc<()>,
}

/// Segments freed last that are remembered, some 64 KiB: many times what is freed between the judging of a cleaning and its
/// beginning.
const REMEMBERED: usize = 8192;

/// Segments freed together.
#[derive(Debug)]
struct Batch {
    epoch: Guard,
    segments: Vec<SegNr>,
}

/// Segments that are held back.
#[derive(Debug, Default)]
pub struct Held {
    /// Guards of now.
    epoch: Guard,
    /// Freed by a checkpoint that may not be durable yet.
    fresh: Vec<SegNr>,
    /// Durably free, oldest first: readers may still be there.
    read: VecDeque<Batch>,
    all: RangeSet<u64>,
    len: u64,
    /// How many were ever freed, and the last of them, the newest at the end.
    ever: u64,
    freed: VecDeque<SegNr>,
    /// Held by every [`Discard`](crate::discard::Discard) as well: one that is dropped unfinished is not waited for.
    discards: Arc<()>,
    /// No discard is to begin any more.
    pub(crate) ends: bool,
    /// Remembers what may be written, for discarding.
    pub(crate) unwanted: Option<Unwanted>,
    /// Knows what the storage below holds space for.
    pub(crate) backed: Option<Backed>,
    /// Where nothing else is clean, logs may name a segment as the next that their own checkpoint frees
    /// ([`Volume::last_resort`](crate::Volume::last_resort)).
    pub(crate) lends: bool,
    /// It is named so, and may not be written yet.
    lent: Option<SegNr>,
}

impl Held {
    /// A guard of now.
    pub fn guard(&self) -> Guard {
        self.epoch.clone()
    }

    /// The range of held segments around this one.
    pub fn get(&self, segment: u64) -> Option<&Range<u64>> {
        self.all.get(&segment)
    }

    /// The first range of held segments that ends behind this one.
    pub(crate) fn from(&self, segment: u64) -> Option<Range<u64>> {
        self.all.overlapping(segment..u64::MAX).next().cloned()
    }

    /// Segments held.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Segments that are free on the medium and wait for those who read.
    pub fn read(&self) -> u64 {
        self.read.iter().map(|batch| batch.segments.len() as u64).sum()
    }

    /// How many segments were ever freed: a time for [`Held::was_freed_since`].
    pub(crate) fn freed(&self) -> u64 {
        self.ever
    }

    /// Whether a segment was freed, and perhaps written again, since that many were; also where that is not known any more.
    pub(crate) fn was_freed_since(&self, segment: SegNr, then: u64) -> bool {
        let since = usize::try_from(self.ever.saturating_sub(then)).unwrap_or(usize::MAX);
        since > self.freed.len() || self.freed.iter().rev().take(since).any(|s| *s == segment)
    }

    /// Makes [`Held::was_freed_since`] true of every segment and all times before: what was found out then may not hold any more.
    pub(crate) fn forget_times(&mut self) {
        self.freed.clear();
        self.ever += 1;
    }

    /// Holds a segment that the checkpoint under construction frees.
    pub fn hold(&mut self, segment: SegNr) {
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        self.freed.push_back(segment);
        self.ever += 1;
        if !self.all.contains(&segment.0) {
            self.all.insert(segment.0..segment.0 + 1);
            self.len += 1;
            self.fresh.push(segment);
        }
    }

    /// Hands out a segment that the checkpoint under construction frees, to be named as the next one, not to be written.
    pub(crate) fn lend(&mut self) -> Option<SegNr> {
        if !self.lends || self.lent.is_some() {
            return None;
        }
        let segment = self.fresh.pop()?;
        self.all.remove(segment.0..segment.0 + 1);
        self.len -= 1;
        self.lent = Some(segment);
        self.lent
    }

    /// The segment that is lent.
    pub(crate) fn lent(&self) -> Option<SegNr> {
        self.lent
    }

    /// Whether a segment is lent: still what the newest durable checkpoint needs.
    pub(crate) fn is_lent(&self, segment: SegNr) -> bool {
        self.lent == Some(segment)
    }

    /// It was not needed after all.
    pub(crate) fn give_back(&mut self, segment: SegNr) {
        if self.is_lent(segment) {
            self.lent = None;
            self.hold(segment);
        }
    }

    /// Whether anybody may read at places learned before.
    pub(crate) fn is_read(&self) -> bool {
        Arc::strong_count(&self.epoch._epoch) > 1 || !self.read.is_empty()
    }

    /// Everything freed so far is free on the medium.
    pub fn durable(&mut self) {
        (self.lends, self.lent) = (false, None);
        if !self.fresh.is_empty() {
            let epoch = std::mem::take(&mut self.epoch);
            self.read.push_back(Batch { epoch, segments: std::mem::take(&mut self.fresh) });
        }
        self.release();
    }

    /// Lets go of what no reader can be at any more; returns how many.
    pub fn release(&mut self) -> u64 {
        let before = self.len;
        // In order: who holds an older guard may be anywhere.
        while let Some(batch) = self.read.front()
            && Arc::strong_count(&batch.epoch._epoch) == 1
        {
            for s in &batch.segments {
                self.all.remove(s.0..s.0 + 1);
                if let Some(u) = &mut self.unwanted {
                    u.add(s.0);
                }
                if let Some(b) = &mut self.backed {
                    b.released(s.0);
                }
            }
            self.len -= batch.segments.len() as u64;
            self.read.pop_front();
        }
        before - self.len
    }

    /// Holds clean segments that are held by nobody, while they are discarded.
    pub(crate) fn hold_for_discard(&mut self, segments: Range<u64>) {
        self.len += segments.end - segments.start;
        self.all.insert(segments);
    }

    /// They may be written again.
    pub(crate) fn discarded(&mut self, segments: Range<u64>) {
        self.len -= segments.end - segments.start;
        self.all.remove(segments);
    }

    /// For a discard that begins.
    pub(crate) fn discard(&self) -> Arc<()> {
        self.discards.clone()
    }

    /// Whether anything is being discarded.
    pub(crate) fn is_discarding(&self) -> bool {
        Arc::strong_count(&self.discards) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_held_until_durable_and_unread() {
        let mut held = Held::default();
        let early = held.guard();
        held.hold(SegNr(5));
        assert!(held.get(5).is_some());
        held.durable();
        assert_eq!((held.len(), held.release()), (1, 0), "a reader is there");
        let late = held.guard();
        held.hold(SegNr(9));
        held.hold(SegNr(9));
        assert_eq!(held.len(), 2);
        drop(late);
        held.durable();
        assert_eq!(held.len(), 2, "the early reader may be at any place");
        drop(early);
        assert_eq!(held.release(), 2);
        assert!(held.get(5).is_none() && held.get(9).is_none() && held.len() == 0);
        let guard = held.guard();
        held.hold(SegNr(1));
        drop(guard);
        assert_eq!((held.release(), held.len()), (0, 1), "not durable yet");
        held.durable();
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn one_segment_is_lent_at_most_and_only_where_that_is_wanted() {
        let mut held = Held::default();
        held.hold(SegNr(3));
        held.hold(SegNr(4));
        assert_eq!(held.lend(), None);
        held.lends = true;
        assert_eq!((held.lend(), held.lend(), held.len()), (Some(SegNr(4)), None, 1));
        assert!(held.is_lent(SegNr(4)) && held.get(4).is_none(), "it is taken");
        held.give_back(SegNr(3));
        assert!(held.is_lent(SegNr(4)));
        held.give_back(SegNr(4));
        assert!(!held.is_lent(SegNr(4)) && held.get(4).is_some() && held.len() == 2);
        assert!(held.lend().is_some());
        held.durable();
        assert!(!held.is_lent(SegNr(4)) && held.len() == 0 && held.lend().is_none());
    }

    #[test]
    fn what_was_freed_is_known_for_a_while() {
        let mut held = Held::default();
        held.hold(SegNr(1));
        let then = held.freed();
        assert!(!held.was_freed_since(SegNr(1), then) && held.was_freed_since(SegNr(1), then - 1));
        held.hold(SegNr(2));
        assert!(held.was_freed_since(SegNr(2), then) && !held.was_freed_since(SegNr(1), then));
        (0..REMEMBERED as u64).for_each(|n| held.hold(SegNr(10 + n)));
        assert!(held.was_freed_since(SegNr(3), then), "nobody knows any more");
        assert!(!held.was_freed_since(SegNr(3), held.freed()));
        assert_eq!(held.freed.len(), REMEMBERED);
        let then = held.freed();
        held.forget_times();
        assert!(held.was_freed_since(SegNr(3), then) && !held.was_freed_since(SegNr(3), held.freed()));
        held.hold(SegNr(4));
        assert!(held.was_freed_since(SegNr(3), then) && !held.was_freed_since(SegNr(3), held.freed() - 1));
    }
}
