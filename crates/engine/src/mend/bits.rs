//! Sets of numbers of which few lie far apart: memory grows with the stretches that are used.

use hashbrown::HashMap;

const BITS: u64 = 1024;
const WORDS: usize = 16;

/// A set of u64.
#[derive(Default, Clone, Debug)]
pub struct Bits {
    chunks: HashMap<u64, Box<[u64; WORDS]>>,
    len: u64,
}

#[allow(clippy::cast_possible_truncation)] // remainders below BITS
fn split(i: u64) -> (u64, usize, u64) {
    (i / BITS, ((i % BITS) / 64) as usize, 1 << (i % 64))
}

impl Bits {
    /// Adds a number; false if it was there already.
    pub fn insert(&mut self, i: u64) -> bool {
        let (chunk, word, bit) = split(i);
        let words = self.chunks.entry(chunk).or_insert_with(|| Box::new([0; WORDS]));
        let new = words[word] & bit == 0;
        words[word] |= bit;
        self.len += u64::from(new);
        new
    }

    /// Whether a number is in it.
    pub fn contains(&self, i: u64) -> bool {
        let (chunk, word, bit) = split(i);
        self.chunks.get(&chunk).is_some_and(|w| w[word] & bit != 0)
    }

    /// Takes a number out.
    pub fn remove(&mut self, i: u64) {
        let (chunk, word, bit) = split(i);
        if let Some(words) = self.chunks.get_mut(&chunk)
            && words[word] & bit != 0
        {
            words[word] &= !bit;
            self.len -= 1;
        }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All, ascending.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_remembers_and_lists_in_order() {
        let mut s = Bits::default();
        let members = [0, 1, 63, 64, 1023, 1024, 1 << 40, u64::MAX];
        for m in members.iter().rev() {
            assert!(s.insert(*m));
            assert!(!s.insert(*m));
        }
        assert_eq!(s.iter().collect::<Vec<_>>(), members);
        assert!(s.len() == 8 && s.contains(64) && !s.contains(65) && !s.is_empty());
        s.remove(64);
        s.remove(65);
        assert!(s.len() == 7 && !s.contains(64));
    }
}
