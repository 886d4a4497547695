//! What is kept in memory of one directory, so that finding a name and room for one takes the
//! same time whatever its size.
//!
//! ```text
//! hash of name -> place = position of its chunk * (chunk size / 4) + offset in it / 4
//! position     -> file block offset of the chunk, bound of its room
//! ```
//!
//! Names are not kept: whoever looks one up reads its entry and compares. That costs about 10 to
//! 20 bytes an entry. Invariants: every entry in use but "." and ".." has a slot; a chunk that
//! cannot be right is in `bad` and has no room.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hashbrown::HashTable;

use crate::gaps::Gaps;

/// Bytes an index takes whatever it holds.
const FIXED: usize = 256;
/// So many times what it took to make it an index of what could not be read in whole counts, at least.
const REST: u32 = 20;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    place: u32,
}

/// Where an entry is known to be split next: the one with the free tail.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    pub position: usize,
    pub offset: usize,
}

/// The index of one directory.
pub struct DirIndex {
    table: HashTable<Slot>,
    /// File block offsets of the chunks, ascending.
    chunks: Vec<u64>,
    /// Entries in each, "." and ".." not counted.
    counts: Vec<u16>,
    pub gaps: Gaps,
    bad: BTreeSet<usize>,
    pub hint: Option<Hint>,
    /// Some of the directory could not be read, so what is in it is not known.
    pub unreadable: bool,
    /// When what could not be read is to be read again.
    again: Option<Instant>,
    /// Places a chunk has.
    units: u32,
}

/// A keyed hash of a name: collisions cannot be made on purpose without knowing `seed`.
pub fn hash_name(seed: u64, name: &[u8]) -> u32 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mut h = seed ^ (name.len() as u64).wrapping_mul(MULTIPLIER);
    for part in name.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        h = fold(h ^ u64::from_le_bytes(word), MULTIPLIER ^ seed.rotate_left(32) | 1);
    }
    (fold(h, 0xD6E8_FEB8_6659_FD93) >> 16) as u32
}

/// The table wants its bits at both ends.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(MULTIPLIER)
}

impl DirIndex {
    /// An empty index of a directory with chunks of `chunk_size` bytes.
    pub fn new(chunk_size: u32) -> Self {
        DirIndex {
            table: HashTable::new(),
            chunks: Vec::new(),
            counts: Vec::new(),
            gaps: Gaps::new(),
            bad: BTreeSet::new(),
            hint: None,
            unreadable: false,
            again: None,
            units: chunk_size / 4,
        }
    }

    /// Adds the chunk at file block offset `key`, which lies behind all others, and returns its
    /// position; `None` where places run out.
    pub fn push_chunk(&mut self, key: u64, class: u8) -> Option<usize> {
        let position = self.chunks.len();
        if self.chunks.last().is_some_and(|last| *last >= key) {
            return None;
        }
        u32::try_from(position + 1).ok()?.checked_mul(self.units)?;
        self.chunks.push(key);
        self.counts.push(0);
        self.gaps.push(class);
        Some(position)
    }

    /// File block offset of a chunk.
    pub fn key(&self, position: usize) -> Option<u64> {
        self.chunks.get(position).copied()
    }

    /// Position of the chunk at a file block offset.
    pub fn position(&self, key: u64) -> Option<usize> {
        // Directories without holes, which is all sound ones, need no search.
        if let Ok(guess) = usize::try_from(key)
            && self.chunks.get(guess) == Some(&key)
        {
            return Some(guess);
        }
        self.chunks.binary_search(&key).ok()
    }

    /// Chunks at the end of which nobody has an entry; not the first, which has "." and "..". None of a directory that is
    /// damaged: an entry may be where it cannot be seen.
    pub fn empty_at_end(&self) -> usize {
        if self.is_damaged() {
            return 0;
        }
        self.counts.iter().skip(1).rev().take_while(|n| **n == 0).count()
    }

    /// Takes so many chunks, which are empty, off the end.
    pub fn pop_chunks(&mut self, n: usize) {
        for _ in 0..n.min(self.chunks.len()) {
            self.chunks.pop();
            self.counts.pop();
            self.gaps.pop();
        }
        self.hint = self.hint.filter(|h| h.position < self.chunks.len());
    }

    /// Marks a chunk as one that cannot be right.
    pub fn set_bad(&mut self, position: usize) {
        self.gaps.set(position, 0);
        self.bad.insert(position);
    }

    pub fn is_bad(&self, position: usize) -> bool {
        self.bad.contains(&position)
    }

    /// Whether part of the directory cannot be read or understood.
    pub fn is_damaged(&self) -> bool {
        self.unreadable || !self.bad.is_empty()
    }

    /// Some of the directory could not be read; it `took` so long to find out, and counts for `pause` at least.
    pub fn set_unreadable(&mut self, took: Duration, pause: Duration) {
        self.unreadable = true;
        self.again = Instant::now().checked_add(pause.max(took.saturating_mul(REST)));
    }

    /// Whether it is time to read the directory again, because what could not be read may be readable now.
    pub fn is_stale(&self) -> bool {
        self.unreadable && self.again.is_none_or(|at| Instant::now() >= at)
    }

    fn place(&self, position: usize, offset: usize) -> Option<u32> {
        let place = position.checked_mul(self.units as usize)?.checked_add(offset / 4)?;
        u32::try_from(place).ok()
    }

    /// Adds an entry; `false` where places run out.
    pub fn insert(&mut self, hash: u32, position: usize, offset: usize) -> bool {
        let Some(place) = self.place(position, offset) else { return false };
        self.table.insert_unique(spread(hash), Slot { hash, place }, |s| spread(s.hash));
        if let Some(n) = self.counts.get_mut(position) {
            *n = n.saturating_add(1);
        }
        true
    }

    /// Removes an entry.
    pub fn remove(&mut self, hash: u32, position: usize, offset: usize) {
        let Some(place) = self.place(position, offset) else { return };
        if let Ok(found) = self.table.find_entry(spread(hash), |s| s.hash == hash && s.place == place) {
            found.remove();
            if let Some(n) = self.counts.get_mut(position) {
                *n = n.saturating_sub(1);
            }
        }
    }

    /// Where entries with this hash are: position and offset in the chunk.
    pub fn candidates(&self, hash: u32) -> impl Iterator<Item = (usize, usize)> {
        let units = self.units.max(1);
        self.table
            .iter_hash(spread(hash))
            .filter(move |s| s.hash == hash)
            .map(move |s| ((s.place / units) as usize, (s.place % units) as usize * 4))
    }

    /// Entries, "." and ".." not counted.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        FIXED
            + self.table.allocation_size()
            + self.chunks.capacity() * 8
            + self.counts.capacity() * 2
            + self.gaps.bytes()
            + self.bad.len() * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive() {
        for size in [1024u32, 4096, 65536] {
            let mut ix = DirIndex::new(size);
            assert_eq!(ix.push_chunk(0, 5), Some(0));
            assert_eq!(ix.push_chunk(9, 5), Some(1));
            assert_eq!(ix.push_chunk(9, 5), None, "keys ascend");
            let last = size as usize - 16;
            assert!(ix.insert(7, 1, last) && ix.insert(7, 0, 32) && ix.insert(8, 0, 48));
            let mut found: Vec<_> = ix.candidates(7).collect();
            found.sort_unstable();
            assert_eq!(found, [(0, 32), (1, last)]);
            ix.remove(7, 0, 32);
            ix.remove(7, 0, 36);
            assert_eq!(ix.candidates(7).collect::<Vec<_>>(), [(1, last)]);
            assert_eq!((ix.len(), ix.position(9), ix.position(1), ix.key(1)), (2, Some(1), None, Some(9)));
        }
    }

    #[test]
    fn chunks_at_the_end_without_entries_are_told() {
        let mut ix = DirIndex::new(1024);
        for key in 0..5 {
            ix.push_chunk(key, 9);
        }
        assert_eq!(ix.empty_at_end(), 4, "the first stays");
        assert!(ix.insert(7, 2, 16) && ix.insert(8, 2, 32) && ix.insert(9, 0, 32));
        ix.hint = Some(Hint { position: 4, offset: 16 });
        assert_eq!(ix.empty_at_end(), 2);
        ix.remove(7, 2, 16);
        ix.remove(7, 2, 16);
        assert_eq!(ix.empty_at_end(), 2, "one is left, and what is not there counts for nothing");
        ix.pop_chunks(2);
        assert_eq!(
            (ix.empty_at_end(), ix.key(3), ix.gaps.first(9), ix.hint.is_none()),
            (0, None, Some(0), true)
        );
        ix.remove(8, 2, 32);
        assert_eq!(ix.empty_at_end(), 2);
        ix.unreadable = true;
        assert_eq!(ix.empty_at_end(), 0);
    }

    #[test]
    fn an_entry_costs_few_bytes() {
        let mut ix = DirIndex::new(4096);
        ix.push_chunk(0, 0);
        for i in 0..1_000_000u32 {
            ix.insert(hash_name(1, &i.to_le_bytes()), 0, 0);
        }
        assert!(ix.bytes() < 20_000_000, "{}", ix.bytes());
    }

    #[test]
    fn hashes_differ_by_name_and_seed() {
        let mut seen = std::collections::HashSet::new();
        for i in 0..50_000 {
            seen.insert(hash_name(5, format!("file{i}").as_bytes()));
        }
        assert!(seen.len() > 49_980, "{}", seen.len());
        assert_ne!(hash_name(5, b"a"), hash_name(6, b"a"));
        assert_ne!(hash_name(5, b"a"), hash_name(5, b"a\0"));
    }
}
