//! Space promised to files by `fallocate`: kept in memory, lost at unmount (the format has no
//! unwritten extents).
//!
//! What is reserved are blocks of a file that hold no data yet. Invariant: `total` is the number
//! of blocks in all ranges. Memory is bounded by [`MAX_RANGES`].

use std::ops::Range;

use hashbrown::HashMap;
use rangemap::RangeSet;

/// Ranges kept over all files.
pub const MAX_RANGES: usize = 100_000;

/// The reservations of all files.
#[derive(Default)]
pub struct Reservations {
    files: HashMap<u64, RangeSet<u64>>,
    total: u64,
    ranges: usize,
}

impl Reservations {
    /// Blocks promised.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Blocks of a range that are promised already.
    pub fn covered(&self, ino: u64, keys: &Range<u64>) -> u64 {
        let Some(set) = self.files.get(&ino) else { return 0 };
        set.overlapping(keys).map(|r| r.end.min(keys.end) - r.start.max(keys.start)).sum()
    }

    /// What is promised of these.
    pub fn within(&self, ino: u64, keys: &Range<u64>) -> Vec<Range<u64>> {
        let Some(set) = self.files.get(&ino) else { return Vec::new() };
        set.overlapping(keys).map(|r| r.start.max(keys.start)..r.end.min(keys.end)).collect()
    }

    /// Promises ranges; `false` where there are too many to remember.
    pub fn add(&mut self, ino: u64, ranges: &[Range<u64>]) -> bool {
        if self.ranges + ranges.len() > MAX_RANGES {
            return false;
        }
        let set = self.files.entry(ino).or_default();
        let before = set.iter().count();
        for range in ranges.iter().filter(|r| !r.is_empty()) {
            let had: u64 =
                set.overlapping(range).map(|r| r.end.min(range.end) - r.start.max(range.start)).sum();
            self.total += range.end - range.start - had;
            set.insert(range.clone());
        }
        self.ranges = self.ranges + set.iter().count() - before;
        if set.is_empty() {
            self.files.remove(&ino);
        }
        true
    }

    /// Ends the promise for a range: it is written, or cut off. Where that would leave too many
    /// pieces to remember, all promises of the file end.
    pub fn release(&mut self, ino: u64, keys: Range<u64>) {
        let Some(set) = self.files.get_mut(&ino).filter(|_| !keys.is_empty()) else { return };
        let (mut had, mut pieces, mut rest) = (0, 0, 0);
        for r in set.overlapping(&keys) {
            had += r.end.min(keys.end) - r.start.max(keys.start);
            pieces += 1;
            rest += usize::from(r.start < keys.start) + usize::from(r.end > keys.end);
        }
        if pieces == 0 {
            return;
        }
        set.remove(keys);
        self.ranges = self.ranges + rest - pieces;
        self.total -= had;
        if set.is_empty() {
            self.files.remove(&ino);
        } else if self.ranges > MAX_RANGES {
            self.release_all(ino);
        }
    }

    /// Ends what was promised of a range since this much of it was ([`Reservations::within`]). What was written or cut off
    /// meanwhile is not promised again, and no more ranges are left than there were.
    pub fn go_back(&mut self, ino: u64, keys: &Range<u64>, before: &[Range<u64>]) {
        let mut next = keys.start;
        for kept in before {
            self.release(ino, next..kept.start);
            next = kept.end;
        }
        self.release(ino, next..keys.end);
    }

    /// Ends all promises of a file.
    pub fn release_all(&mut self, ino: u64) {
        if let Some(set) = self.files.remove(&ino) {
            self.ranges -= set.iter().count();
            self.total -= set.iter().map(|r| r.end - r.start).sum::<u64>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // a list of one range is meant
    fn totals_follow_the_ranges() {
        let mut r = Reservations::default();
        assert!(r.add(1, &[0..10, 20..30]));
        assert!(r.add(1, &[5..25]));
        assert!(r.add(2, &[0..1]));
        assert_eq!((r.total(), r.ranges), (31, 2));
        assert_eq!((r.covered(1, &(8..100)), r.covered(2, &(0..1)), r.covered(3, &(0..9))), (22, 1, 0));
        r.release(1, 3..4);
        assert_eq!((r.total(), r.ranges), (30, 3));
        r.release(1, 3..4);
        r.release(1, 0..u64::MAX);
        assert_eq!((r.total(), r.ranges), (1, 1));
        r.release_all(2);
        assert_eq!((r.total(), r.ranges, r.files.len()), (0, 0, 0));
        assert!(r.add(1, &[2..4, 6..9, 20..30]));
        let before = r.within(1, &(3..25));
        assert!(r.add(1, &[0..40]));
        r.release(1, 7..8);
        r.go_back(1, &(3..25), &before);
        assert_eq!((r.within(1, &(0..50)), r.total()), (vec![0..4, 6..7, 8..9, 20..40], 26));
        r.release_all(1);
        let many: Vec<_> = (0..=MAX_RANGES as u64).map(|i| 2 * i..2 * i + 1).collect();
        assert!(!r.add(3, &many));
        assert_eq!(r.total(), 0);
    }
}
