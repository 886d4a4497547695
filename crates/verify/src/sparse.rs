//! Sets and arrays over 64-bit numbers of which few are used: memory grows with the used ones.

use hashbrown::HashMap;

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

    /// Adds the numbers `first + n`, of which there are 64, for which bit `n` is set. `first` is a multiple of 64.
    pub fn insert_word(&mut self, first: u64, bits: u64) {
        if bits == 0 {
            return;
        }
        let (chunk, word, _) = split(first);
        let words = self.chunks.entry(chunk).or_insert_with(|| Box::new([0; WORDS]));
        self.len += u64::from((bits & !words[word]).count_ones());
        words[word] |= bits;
    }

    /// The numbers that are in one of two sets and not in the other, in no order.
    pub fn differing<'s>(&'s self, other: &'s SparseBits) -> impl Iterator<Item = u64> + 's {
        const NONE: [u64; WORDS] = [0; WORDS];
        let of = |set: &'s SparseBits, k: u64| set.chunks.get(&k).map_or(&NONE, |w| w);
        let more = other.chunks.keys().filter(|k| !self.chunks.contains_key(*k));
        self.chunks.keys().chain(more).flat_map(move |k| {
            let (a, b) = (of(self, *k), of(other, *k));
            a.iter().zip(b).enumerate().flat_map(move |(i, (a, b))| ones(*k, i, a ^ b))
        })
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
            words.into_iter().enumerate().flat_map(move |(i, word)| ones(k, i, word))
        })
    }
}

/// The numbers that the bits of a word of a chunk stand for, ascending.
fn ones(chunk: u64, word: usize, mut bits: u64) -> impl Iterator<Item = u64> {
    let first = chunk * BITS + word as u64 * 64;
    std::iter::from_fn(move || {
        let bit = u64::from(bits.trailing_zeros());
        (bits != 0).then(|| {
            bits &= bits - 1;
            first + bit
        })
    })
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
    fn words_are_numbers() {
        let mut s = SparseBits::default();
        s.insert(65);
        s.insert_word(64, 0b1011);
        s.insert_word(1 << 20, 1 << 63);
        s.insert_word(128, 0);
        assert_eq!((s.iter().collect::<Vec<_>>(), s.len()), (vec![64, 65, 67, (1 << 20) + 63], 4));
        let mut t = SparseBits::default();
        assert!([65, 68, 5000].map(|i| t.insert(i)).iter().all(|new| *new));
        for (a, b) in [(&s, &t), (&t, &s)] {
            let mut d: Vec<u64> = a.differing(b).collect();
            d.sort_unstable();
            assert_eq!(d, [64, 67, 68, 5000, (1 << 20) + 63]);
        }
        assert_eq!(s.differing(&s).count(), 0);
    }

    #[test]
    fn an_array_is_default_where_untouched() {
        let mut a: SparseArray<u32> = SparseArray::default();
        *a.slot(u64::MAX) = 7;
        assert_eq!((a.get(u64::MAX), a.get(u64::MAX - 1), a.get(5)), (7, 0, 0));
    }
}
