//! Space promised to files by `fallocate`: kept in memory, lost at unmount (the format has no
//! unwritten extents).
//!
//! What is reserved are blocks of a file that hold no data yet. Invariants: `total` is the number of blocks in all ranges,
//! `ranges` that of the ranges, which `owners` says of each user. Memory is bounded by [`MAX_RANGES`], over all files: where
//! there would be more, promises end of the user who has the most.

use std::cmp::Reverse;
use std::ops::Range;

use hashbrown::HashMap;
use rangemap::RangeSet;

/// Ranges kept over all files.
pub const MAX_RANGES: usize = 100_000;

/// What is promised to a file.
struct Promised {
    /// Who owned it when that began.
    owner: u32,
    set: RangeSet<u64>,
    /// Ranges in it.
    ranges: usize,
}

/// The reservations of all files.
#[derive(Default)]
pub struct Reservations {
    files: HashMap<u64, Promised>,
    owners: HashMap<u32, usize>,
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
        self.within(ino, keys).into_iter().map(|r| r.end - r.start).sum()
    }

    /// What is promised of these.
    pub fn within(&self, ino: u64, keys: &Range<u64>) -> Vec<Range<u64>> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        file.set.overlapping(keys).map(|r| r.start.max(keys.start)..r.end.min(keys.end)).collect()
    }

    /// Promises ranges to a file of a user; `false` where there are too many to remember, and nobody has more than this user.
    pub fn add(&mut self, ino: u64, owner: u32, ranges: &[Range<u64>]) -> bool {
        let too_many = (self.ranges + ranges.len()).saturating_sub(MAX_RANGES);
        if too_many > 0 && !self.take_from_others(owner, ranges.len(), too_many) {
            return false;
        }
        for range in ranges.iter().filter(|r| !r.is_empty()) {
            let had = self.covered(ino, range);
            let file =
                self.files.entry(ino).or_insert_with(|| Promised { owner, set: RangeSet::new(), ranges: 0 });
            // They become one with it.
            let touched = range.start.saturating_sub(1)..range.end.saturating_add(1);
            let merged = file.set.overlapping(&touched).count();
            file.set.insert(range.clone());
            self.total += range.end - range.start - had;
            self.count(ino, 1, merged);
        }
        true
    }

    /// Notes that a file has some ranges more and some less.
    fn count(&mut self, ino: u64, more: usize, less: usize) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let owner = file.owner;
        let owned = self.owners.entry(owner).or_default();
        for n in [&mut file.ranges, &mut *owned, &mut self.ranges] {
            *n = (*n + more).saturating_sub(less);
        }
        if *owned == 0 {
            self.owners.remove(&owner);
        }
        if file.ranges == 0 {
            self.files.remove(&ino);
        }
    }

    /// Who has the most ranges, and how many.
    fn most(&self) -> Option<(u32, usize)> {
        self.owners.iter().map(|(owner, ranges)| (*owner, *ranges)).max_by_key(|(_, ranges)| *ranges)
    }

    /// Ends promises until so many ranges less are kept, of others who have more than this user would have with `new` ones. Whether
    /// there were enough of those; else none ends.
    fn take_from_others(&mut self, owner: u32, new: usize, mut wanted: usize) -> bool {
        let own = self.owners.get(&owner).copied().unwrap_or(0) + new;
        let mut others: Vec<_> = self.owners.iter().map(|(other, had)| (Reverse(*had), *other)).collect();
        others.retain(|(Reverse(had), other)| *other != owner && *had > own);
        if others.iter().map(|(Reverse(had), _)| had).sum::<usize>() < wanted {
            return false;
        }
        others.sort_unstable();
        for (Reverse(had), other) in others {
            self.take_from(other, wanted);
            wanted = wanted.saturating_sub(had - self.owners.get(&other).copied().unwrap_or(0));
        }
        true
    }

    /// Ends promises of a user until so many ranges less are kept, or none: all of a file at a time, the most scattered first.
    fn take_from(&mut self, owner: u32, wanted: usize) {
        let files = self.files.iter().filter(|(_, file)| file.owner == owner);
        let mut files: Vec<_> = files.map(|(ino, file)| (Reverse(file.ranges), *ino)).collect();
        files.sort_unstable();
        let mut ended = 0;
        for (Reverse(ranges), ino) in files {
            if ended >= wanted {
                return;
            }
            self.release_all(ino);
            ended += ranges;
        }
    }

    /// Ends the promise for a range: it is written, or cut off. Where that would leave too many pieces to remember, promises
    /// end of the user who has the most.
    pub fn release(&mut self, ino: u64, keys: Range<u64>) {
        let Some(file) = self.files.get_mut(&ino).filter(|_| !keys.is_empty()) else { return };
        let (mut had, mut pieces, mut rest) = (0, 0, 0);
        for r in file.set.overlapping(&keys) {
            had += r.end.min(keys.end) - r.start.max(keys.start);
            pieces += 1;
            rest += usize::from(r.start < keys.start) + usize::from(r.end > keys.end);
        }
        if pieces == 0 {
            return;
        }
        file.set.remove(keys);
        self.total -= had;
        self.count(ino, rest, pieces);
        let too_many = self.ranges.saturating_sub(MAX_RANGES);
        if let Some((most, _)) = self.most().filter(|_| too_many > 0) {
            self.take_from(most, too_many);
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
        let Some(file) = self.files.get(&ino) else { return };
        self.total -= file.set.iter().map(|r| r.end - r.start).sum::<u64>();
        self.count(ino, 0, file.ranges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // a list of one range is meant
    fn totals_follow_the_ranges() {
        let mut r = Reservations::default();
        assert!(r.add(1, 7, &[0..10, 20..30]));
        assert!(r.add(1, 7, &[5..25]));
        assert!(r.add(2, 8, &[0..1]));
        assert_eq!((r.total(), r.ranges), (31, 2));
        assert_eq!((r.covered(1, &(8..100)), r.covered(2, &(0..1)), r.covered(3, &(0..9))), (22, 1, 0));
        r.release(1, 3..4);
        assert_eq!((r.total(), r.ranges), (30, 3));
        r.release(1, 3..4);
        r.release(1, 0..u64::MAX);
        assert_eq!((r.total(), r.ranges), (1, 1));
        r.release_all(2);
        assert_eq!((r.total(), r.ranges, r.files.len()), (0, 0, 0));
        assert!(r.add(1, 7, &[2..4, 6..9, 20..30]));
        let before = r.within(1, &(3..25));
        assert!(r.add(1, 7, &[0..40]));
        r.release(1, 7..8);
        r.go_back(1, &(3..25), &before);
        assert_eq!((r.within(1, &(0..50)), r.total()), (vec![0..4, 6..7, 8..9, 20..40], 26));
        r.release_all(1);
        let many: Vec<_> = (0..=MAX_RANGES as u64).map(|i| 2 * i..2 * i + 1).collect();
        assert!(!r.add(3, 7, &many));
        assert_eq!((r.total(), r.ranges, r.owners.len()), (0, 0, 0));
    }

    /// A range of a block at every second one.
    fn scattered(ranges: usize) -> Vec<Range<u64>> {
        (0..ranges as u64).map(|i| 2 * i..2 * i + 1).collect()
    }

    /// One who has asked for more than is remembered takes nothing from others: not what they ask for, nor what they have.
    #[test]
    #[allow(clippy::single_range_in_vec_init)] // a list of one range is meant
    fn promises_end_of_who_has_the_most() {
        let mut r = Reservations::default();
        assert!(r.add(1, 1000, &[0..1000]));
        assert!(r.add(2, 2000, &scattered(60_000)));
        assert!(r.add(3, 2000, &scattered(39_999)));
        assert!(!r.add(4, 2000, &scattered(1)), "nobody has more");
        assert_eq!(r.ranges, MAX_RANGES);
        // One range becomes two.
        r.release(1, 500..501);
        assert_eq!((r.covered(1, &(0..1000)), r.covered(2, &(0..1 << 20))), (999, 0));
        assert_eq!(r.covered(3, &(0..1 << 20)), 39_999);
        assert!(!r.add(7, 3000, &scattered(80_000)), "more than others have");
        assert_eq!(r.covered(3, &(0..1 << 20)), 39_999);
        assert!(r.add(5, 2000, &scattered(59_000)));
        assert!(r.add(6, 3000, &scattered(2000)));
        assert_eq!((r.covered(5, &(0..1 << 20)), r.covered(6, &(0..1 << 20))), (0, 2000));
        assert_eq!((r.covered(1, &(0..1000)), r.covered(3, &(0..1 << 20))), (999, 39_999));
        assert_eq!((r.ranges, r.owners.len()), (42_001, 3));
    }

    proptest::proptest! {
        /// What is counted is what there is.
        #[test]
        fn counts_are_right(steps in proptest::collection::vec((0u64..4, 0u64..40, 0u64..9, 0u8..5), 0..60)) {
            let mut r = Reservations::default();
            for (ino, start, len, what) in steps {
                match what {
                    0 => r.release_all(ino),
                    1 | 2 => r.release(ino, start..start + len),
                    _ => assert!(r.add(ino, ino as u32 / 2, &[start..start + len, start + 5..start + 5 + len])),
                }
                let sets = || r.files.values().map(|file| &file.set);
                assert_eq!(r.ranges, sets().map(|set| set.iter().count()).sum::<usize>());
                assert_eq!(r.total, sets().flat_map(|set| set.iter().map(|r| r.end - r.start)).sum::<u64>());
                assert!(r.files.values().all(|file| file.ranges == file.set.iter().count() && file.ranges > 0));
                assert_eq!(r.owners.values().sum::<usize>(), r.ranges);
            }
        }
    }
}
