//! The disk blocks that somebody needs: a set that answers for ranges.
//!
//! Memory: 128 bytes and a tree's overhead for every 1024 blocks of which one is needed; a bit a block where most are.

use std::collections::BTreeMap;
use std::ops::Range;

const BITS: u64 = 1024;

/// A set of disk blocks.
#[derive(Default)]
pub(crate) struct Needed {
    chunks: BTreeMap<u64, [u64; 16]>,
    /// Nothing is known: all blocks count.
    all: bool,
}

#[allow(clippy::cast_possible_truncation)] // the remainder is below BITS
fn split(block: u64) -> (u64, usize, u64) {
    (block / BITS, ((block % BITS) / 64) as usize, 1 << (block % 64))
}

impl Needed {
    /// Adds a block.
    pub fn insert(&mut self, block: u64) {
        let (chunk, word, bit) = split(block);
        self.chunks.entry(chunk).or_insert([0; 16])[word] |= bit;
    }

    /// From here on every block counts as needed.
    pub fn set_all(&mut self) {
        self.all = true;
    }

    /// Whether a block is needed.
    pub fn contains(&self, block: u64) -> bool {
        let (chunk, word, bit) = split(block);
        self.all || self.chunks.get(&chunk).is_some_and(|w| w[word] & bit != 0)
    }

    /// Whether any of a range is.
    pub fn any(&self, range: Range<u64>) -> bool {
        if self.all {
            return !range.is_empty();
        }
        self.known(range).next().is_some()
    }

    /// The last of a range that is known to be needed.
    pub fn last(&self, range: Range<u64>) -> Option<u64> {
        self.known(range).next_back()
    }

    /// Those of a range that are known to be needed, ascending.
    pub fn known(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let chunks = range.start / BITS..range.end.div_ceil(BITS).max(range.start / BITS);
        self.chunks
            .range(chunks)
            .flat_map(|(chunk, words)| {
                (0..BITS)
                    .filter(|i| {
                        let (_, word, bit) = split(*i);
                        words[word] & bit != 0
                    })
                    .map(move |i| chunk * BITS + i)
            })
            .filter(move |block| range.contains(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let mut n = Needed::default();
        assert!(!n.any(0..u64::MAX));
        for block in [5, 1023, 1024, 9000] {
            n.insert(block);
        }
        assert!(n.contains(5) && !n.contains(6));
        assert!(n.any(5..6) && !n.any(6..1023) && n.any(6..1024) && !n.any(1025..9000));
        assert_eq!(n.known(6..9001).collect::<Vec<_>>(), [1023, 1024, 9000]);
        assert_eq!((n.last(0..9000), n.last(0..5)), (Some(1024), None));
        n.set_all();
        assert!(n.any(6..7) && !n.any(6..6) && n.contains(77));
        assert_eq!(n.last(0..2000), Some(1024), "only what is known");
    }
}
