//! Sets and arrays over 64-bit numbers of which few are used: memory grows with the used ones.

use std::collections::HashMap;

const BITS: u64 = 1024;
const WORDS: usize = 16;

/// A set of u64.
#[derive(Default, Clone)]
pub(crate) struct SparseBits {
    chunks: HashMap<u64, Box<[u64; WORDS]>>,
    len: u64,
}

#[allow(clippy::cast_possible_truncation)] // the remainder is below BITS
fn split(i: u64) -> (u64, usize, u64) {
    (i / BITS, ((i % BITS) / 64) as usize, 1 << (i % 64))
}

impl SparseBits {
    /// Adds a number; false if it was there already.
    pub fn insert(&mut self, i: u64) -> bool {
        let (chunk, word, bit) = split(i);
        let words = self.chunks.entry(chunk).or_insert_with(|| Box::new([0; WORDS]));
        let new = words[word] & bit == 0;
        words[word] |= bit;
        self.len += u64::from(new);
        new
    }

    pub fn contains(&self, i: u64) -> bool {
        let (chunk, word, bit) = split(i);
        self.chunks.get(&chunk).is_some_and(|w| w[word] & bit != 0)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// All members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut keys: Vec<u64> = self.chunks.keys().copied().collect();
        keys.sort_unstable();
        keys.into_iter().flat_map(move |k| {
            let words = self.chunks.get(&k).map_or([0; WORDS], |w| **w);
            (0..BITS)
                .filter(move |i| {
                    let (_, word, bit) = split(*i);
                    words[word] & bit != 0
                })
                .map(move |i| k * BITS + i)
        })
    }
}

/// An array of `T`, default where nothing was stored.
#[derive(Default)]
pub(crate) struct SparseArray<T> {
    chunks: HashMap<u64, Box<[T]>>,
}

const ITEMS: u64 = 256;

impl<T: Copy + Default> SparseArray<T> {
    #[allow(clippy::cast_possible_truncation)] // the remainder is below ITEMS
    fn place(i: u64) -> (u64, usize) {
        (i / ITEMS, (i % ITEMS) as usize)
    }

    pub fn get(&self, i: u64) -> T {
        let (chunk, at) = Self::place(i);
        self.chunks.get(&chunk).and_then(|c| c.get(at)).copied().unwrap_or_default()
    }

    /// The place of `i`, made if it is not there.
    pub fn slot(&mut self, i: u64) -> &mut T {
        let (chunk, at) = Self::place(i);
        let c =
            self.chunks.entry(chunk).or_insert_with(|| vec![T::default(); ITEMS as usize].into_boxed_slice());
        &mut c[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_remembers_and_lists_in_order() {
        let mut s = SparseBits::default();
        let members = [0, 1, 63, 64, 1023, 1024, 1 << 40, u64::MAX];
        for m in members.iter().rev() {
            assert!(s.insert(*m));
            assert!(!s.insert(*m));
        }
        assert_eq!(s.iter().collect::<Vec<_>>(), members);
        assert_eq!(s.len(), 8);
        assert!(s.contains(64) && !s.contains(65));
    }

    #[test]
    fn an_array_is_default_where_untouched() {
        let mut a: SparseArray<u32> = SparseArray::default();
        *a.slot(u64::MAX) = 7;
        assert_eq!((a.get(u64::MAX), a.get(u64::MAX - 1), a.get(5)), (7, 0, 0));
    }
}
