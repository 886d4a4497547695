//! Clean segments that the storage below holds space for.
//!
//! A sparse image grows on its host where segments are first written, or written again after they were discarded, and a host
//! may be full. So that deleting and cleaning go on there, as many segments as those need are kept allocated below while they
//! are clean, in front of the log; where the host has little left, so are as many as all that waits will take, and no others
//! count as clean.
//!
//! ```text
//! unknown -> told to be whole below -> ready (clean, may be written) -> handed out -> written -> freed -> ready again
//!                                         ^    \____ discarded: unknown   |
//!                                         \_ given back, not written _____/
//! ```
//!
//! Who tells is the caller: the device is asked without the volume's lock, since the host may take its time
//! ([`Volume::next_backing`]); before a log is written there, and of those in use afterwards, since logs do not fill a segment
//! to its last block. On a host that writes elsewhere what is written over (btrfs), a segment that was in use is whole again only
//! after it was discarded and asked for anew: nothing in a segment is written twice before it is freed. Where the host cannot tell,
//! none of this is done.
//!
//! Memory: 16 bytes a run of segments.

use std::ops::Range;

use rangemap::RangeSet;

/// Segments by what is known of their space below.
#[derive(Debug, Default)]
pub(crate) struct Backed {
    /// In use or not, whole below.
    pub whole: RangeSet<u64>,
    /// Those of them that may be written.
    pub ready: RangeSet<u64>,
    pub ready_len: u64,
    /// Handed out when they were ready, and perhaps not written yet.
    pub handed: RangeSet<u64>,
    /// Handed out, and not known to be whole.
    pub begun: RangeSet<u64>,
    /// Freed, and not known to be whole: hardly anything can be missing.
    pub freed: RangeSet<u64>,
    /// Discards that began so far: what was asked before says nothing of what was discarded since.
    pub discards: u64,
    /// So many that are ready are not discarded.
    pub keep: u64,
    /// The host has little left: what is ready is handed out first.
    pub near: bool,
    /// No others count as clean.
    pub only: bool,
    /// The host had nothing more when it was asked last.
    pub full: bool,
    /// The host writes elsewhere what is written over: what was asked for in one piece it has back only when all of that was
    /// discarded.
    pub once: bool,
    /// It writes in place.
    pub in_place: bool,
}

impl Backed {
    pub fn put(&mut self, segments: Range<u64>) {
        let new: u64 = self.ready.gaps(&segments).map(|gap| gap.end - gap.start).sum();
        self.ready_len += new;
        self.ready.insert(segments);
    }

    fn drop_ready(&mut self, segments: Range<u64>) {
        let had: u64 = self
            .ready
            .overlapping(&segments)
            .map(|r| r.end.min(segments.end).saturating_sub(r.start.max(segments.start)))
            .sum();
        self.ready_len = self.ready_len.saturating_sub(had);
        self.ready.remove(segments);
    }

    /// A segment was handed out.
    pub fn taken(&mut self, segment: u64) {
        let range = segment..segment + 1;
        if self.ready.contains(&segment) {
            self.handed.insert(range.clone());
        }
        self.drop_ready(range.clone());
        self.freed.remove(range.clone());
        if !self.whole.contains(&segment) {
            self.begun.insert(range);
        }
    }

    /// A segment that was handed out was not written, and may be: it has below what it had. May be told again.
    pub fn given_back(&mut self, segment: u64) {
        if self.ready.contains(&segment) {
            return;
        }
        if self.handed.contains(&segment) && self.whole.contains(&segment) {
            self.handed.remove(segment..segment + 1);
            self.put(segment..segment + 1);
        } else {
            self.released(segment);
        }
    }

    /// All that was handed out was written, but for what of these was not.
    pub fn written_but(&mut self, segments: [u64; 2]) {
        let kept = segments.into_iter().filter(|s| self.handed.contains(s)).map(|s| s..s + 1);
        self.handed = kept.collect();
    }

    /// A segment that was in use may be written.
    pub fn released(&mut self, segment: u64) {
        let range = segment..segment + 1;
        self.begun.remove(range.clone());
        self.handed.remove(range.clone());
        if self.once {
            self.whole.remove(range.clone());
        }
        if self.whole.contains(&segment) { self.put(range) } else { self.freed.insert(range) }
    }

    /// Segments lose what they have below.
    pub fn discarded(&mut self, segments: Range<u64>) {
        self.discards += 1;
        self.drop_ready(segments.clone());
        for set in [&mut self.whole, &mut self.handed, &mut self.begun, &mut self.freed] {
            set.remove(segments.clone());
        }
    }

    /// There are no more segments than these.
    pub fn cut(&mut self, nsegments: u64) {
        if nsegments < u64::MAX {
            self.discarded(nsegments..u64::MAX);
        }
    }

    /// Whether the host has little left: what is ready is handed out first.
    pub fn is_near(&self) -> bool {
        self.near
    }

    /// Ready ones, from `from` on and around, below `limit`.
    pub fn from(&self, from: u64, limit: u64) -> impl Iterator<Item = Range<u64>> {
        let (first, second) = (from.min(limit)..limit, 0..from.min(limit));
        let part = move |half: Range<u64>| {
            let within = half.clone();
            let found = (half.start < half.end).then(|| self.ready.overlapping(half));
            found.into_iter().flatten().map(move |r| r.start.max(within.start)..r.end.min(within.end))
        };
        part(first).chain(part(second))
    }

    /// The first ones that are ready, from `from` on and around, which are not discarded.
    pub fn kept(&self, from: u64, least: u64) -> RangeSet<u64> {
        let (mut left, mut kept) = (self.keep.max(least), RangeSet::new());
        for run in self.from(from, u64::MAX) {
            let end = run.end.min(run.start.saturating_add(left));
            if run.start == end {
                break;
            }
            left -= end - run.start;
            kept.insert(run.start..end);
        }
        kept
    }

    /// Ready ones below a limit.
    pub fn count(&self, limit: Option<u64>) -> u64 {
        limit.map_or(self.ready_len, |limit| self.from(0, limit).map(|r| r.end - r.start).sum())
    }

    /// Freed ones that the device was not asked for yet.
    pub fn unasked(&self) -> u64 {
        self.freed.iter().map(|r| r.end - r.start).sum()
    }

    /// How many count as clean at most: none where that is no question.
    pub fn most(&self, limit: Option<u64>) -> Option<u64> {
        self.only.then(|| self.count(limit))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    #[test]
    fn segments_go_from_state_to_state() {
        let mut b = Backed::default();
        b.put(3..6);
        b.put(5..8);
        assert_eq!((b.count(None), b.count(Some(6)), b.most(None)), (5, 3, None));
        b.whole.insert(3..8);
        b.taken(4);
        assert_eq!((b.count(None), b.begun.is_empty()), (4, true), "it is whole");
        b.taken(20);
        assert!(b.begun.contains(&20));
        b.released(4);
        b.released(20);
        assert_eq!(b.count(None), 5);
        assert!(b.freed.contains(&20) && !b.begun.contains(&20));
        assert_eq!(b.from(5, 7).collect::<Vec<_>>(), [5..7, 3..5]);
        b.keep = 3;
        assert_eq!(b.kept(6, 0).iter().cloned().collect::<Vec<_>>(), [3..4, 6..8]);
        b.discarded(4..7);
        assert_eq!(b.count(None), 2);
        b.released(4);
        assert_eq!(b.count(None), 2, "nothing of it is left below");
        b.only = true;
        b.cut(5);
        assert_eq!((b.count(None), b.most(None)), (1, Some(1)));
    }

    #[test]
    fn what_was_not_written_is_ready_as_before() {
        for once in [false, true] {
            let mut b = Backed { once, ..Backed::default() };
            b.whole.insert(3..8);
            b.put(3..8);
            (3..7).for_each(|s| b.taken(s));
            b.taken(20);
            // A host that writes elsewhere has nothing for what was there before.
            b.whole.insert(20..21);
            b.begun.remove(20..21);
            for s in [3, 3, 20] {
                b.given_back(s);
            }
            assert_eq!((b.count(None), b.freed.contains(&20)), (if once { 2 } else { 3 }, once));
            b.written_but([4, 7]);
            b.discarded(6..7);
            for s in [4, 5, 6] {
                b.given_back(s);
            }
            assert_eq!([4, 5, 6].map(|s| b.ready.contains(&s)), [true, !once, false]);
        }
    }
}
