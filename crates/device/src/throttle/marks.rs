//! Which parts of a disk lie in its write cache: a bit for each unit, made once, so that a request
//! allocates nothing.

/// Smallest unit in bytes.
const UNIT: u64 = 4096;
/// Most units; larger disks get larger units.
const MOST: u64 = 1 << 25;

/// A set of units of a disk.
pub(super) struct Marks {
    words: Vec<u64>,
    unit: u64,
    count: u64,
}

impl Marks {
    /// None marked, on a disk of `size` bytes.
    pub fn new(size: u64) -> Self {
        let unit = UNIT.max((size / MOST).next_power_of_two());
        let words = vec![0; usize::try_from(size.div_ceil(unit).div_ceil(64)).unwrap_or(0)];
        Marks { words, unit, count: 0 }
    }

    /// Bytes marked.
    pub fn bytes(&self) -> u64 {
        self.count * self.unit
    }

    fn units(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let most = self.words.len() as u64 * 64;
        (offset / self.unit).min(most)..offset.saturating_add(len).div_ceil(self.unit).min(most)
    }

    fn at(&self, unit: u64) -> Option<(&u64, u64)> {
        let word = self.words.get(usize::try_from(unit / 64).ok()?)?;
        Some((word, 1 << (unit % 64)))
    }

    fn change(&mut self, unit: u64, mark: bool) {
        let bit = 1u64 << (unit % 64);
        let Some(word) = usize::try_from(unit / 64).ok().and_then(|i| self.words.get_mut(i)) else { return };
        match (*word & bit != 0, mark) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => return,
        }
        *word ^= bit;
    }

    /// Marks every unit that the range touches.
    pub fn mark(&mut self, offset: u64, len: u64) {
        self.units(offset, len).for_each(|unit| self.change(unit, true));
    }

    /// Unmarks every unit that the range touches.
    pub fn clear(&mut self, offset: u64, len: u64) {
        self.units(offset, len).for_each(|unit| self.change(unit, false));
    }

    /// Whether every unit of a range is marked.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        self.count > 0
            && self.units(offset, len).all(|unit| self.at(unit).is_some_and(|(word, bit)| word & bit != 0))
    }

    /// The first marked run at or after `offset`, else the first of all: offset and length in bytes,
    /// of at most `most` bytes.
    pub fn next(&self, offset: u64, most: u64) -> Option<(u64, u64)> {
        if self.count == 0 {
            return None;
        }
        let from = offset / self.unit;
        let first = self.first(from).or_else(|| self.first(0))?;
        let limit = (most / self.unit).max(1);
        let run = (first..first + limit)
            .take_while(|unit| self.at(*unit).is_some_and(|(word, bit)| word & bit != 0))
            .count() as u64;
        Some((first * self.unit, run * self.unit))
    }

    /// The first marked unit from one on.
    fn first(&self, from: u64) -> Option<u64> {
        let start = usize::try_from(from / 64).ok()?;
        let rest = self.words.get(start..)?;
        rest.iter().enumerate().find_map(|(i, word)| {
            let word = if i == 0 { word & (u64::MAX << (from % 64)) } else { *word };
            (word != 0).then(|| (start + i) as u64 * 64 + u64::from(word.trailing_zeros()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_ascending_and_from_the_start_again() {
        let mut marks = Marks::new(1000 * UNIT);
        marks.mark(10 * UNIT, 3 * UNIT);
        marks.mark(200 * UNIT, UNIT);
        marks.mark(200 * UNIT, UNIT);
        assert_eq!(marks.bytes(), 4 * UNIT);
        assert_eq!(marks.next(0, u64::MAX), Some((10 * UNIT, 3 * UNIT)));
        assert_eq!(marks.next(11 * UNIT, UNIT), Some((11 * UNIT, UNIT)));
        assert_eq!(marks.next(13 * UNIT, u64::MAX), Some((200 * UNIT, UNIT)));
        assert_eq!(marks.next(201 * UNIT, u64::MAX), Some((10 * UNIT, 3 * UNIT)));
        assert!(marks.holds(10 * UNIT + 5, 2 * UNIT) && !marks.holds(12 * UNIT, 2 * UNIT));
        marks.clear(0, 1000 * UNIT);
        assert_eq!((marks.bytes(), marks.next(0, 1)), (0, None));
    }

    #[test]
    fn ends_and_sizes() {
        let mut marks = Marks::new(65 * UNIT);
        marks.mark(64 * UNIT, 10 * UNIT);
        assert_eq!(marks.next(0, u64::MAX).map(|(at, _)| at), Some(64 * UNIT));
        marks.mark(u64::MAX - 5, 100);
        let mut empty = Marks::new(0);
        empty.mark(0, 10);
        assert_eq!(empty.next(0, 1), None);
        let huge = Marks::new(1 << 50);
        assert!(huge.words.len() <= 1 << 20, "{}", huge.words.len());
    }
}
