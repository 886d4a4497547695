//! The bytes of one file in memory: sparse, exact, cheap to clone.
//!
//! Chunks of 4 KiB by index; a chunk that is all zero is not kept (a hole and zeroes read the same).
//! Bytes behind the size are always zero, so growing needs no work.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hash::Digest;
use crate::rng::mix;

const CHUNK: u64 = 4096;

/// Bytes from the start of a file behind which data counts as far out; a multiple of 4 KiB.
pub const DEEP: u64 = 4 << 20;

type Chunk = [u8; 4096];

/// Fills `out` with the pattern that `seed` names, from its byte `start` on. Seed 0 is all zeroes: data that looks
/// like a hole.
pub fn pattern(seed: u64, start: u64, out: &mut [u8]) {
    if seed == 0 {
        out.fill(0);
        return;
    }
    let key = mix(seed);
    let mut at = start;
    let mut rest = out;
    while !rest.is_empty() {
        let word = mix(key ^ (at / 8)).to_le_bytes();
        // The remainder of a division by 8 fits.
        let skip = usize::try_from(at % 8).unwrap_or(0);
        let take = rest.len().min(8 - skip);
        rest[..take].copy_from_slice(&word[skip..skip + take]);
        rest = &mut rest[take..];
        at += take as u64;
    }
}

/// `len` bytes of the pattern of `seed`.
pub fn pattern_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    pattern(seed, 0, &mut data);
    data
}

/// The content of a file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, Arc<Chunk>>,
    digest: Cell<Option<Digest>>,
}

/// Cuts `offset..offset + len` at chunk borders: (chunk index, offset in chunk, offset in range, length).
fn cut(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, u64, usize)> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let inner = at % CHUNK;
        let take = (CHUNK - inner).min(end - at);
        // Both are at most CHUNK.
        let part = (
            at / CHUNK,
            usize::try_from(inner).unwrap_or(0),
            at - offset,
            usize::try_from(take).unwrap_or(0),
        );
        at += take;
        Some(part)
    })
}

impl Content {
    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of chunks that hold something; at most this much memory, and about this much of a device.
    pub fn allocated(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK
    }

    /// Numbers of the 4 KiB chunks behind the first [`DEEP`] bytes that hold something.
    pub fn deep_chunks(&self) -> impl Iterator<Item = u64> {
        self.chunks.range(DEEP / CHUNK..).map(|(&index, _)| index)
    }

    /// Puts `len` bytes of the pattern `seed` at `offset`; grows the file as needed.
    pub fn write(&mut self, offset: u64, len: u64, seed: u64) {
        self.digest.set(None);
        for (index, inner, done, take) in cut(offset, len) {
            let slot = self.chunks.entry(index).or_insert_with(|| Arc::new([0; 4096]));
            let chunk = Arc::make_mut(slot);
            pattern(seed, done, &mut chunk[inner..inner + take]);
            if chunk.iter().all(|&b| b == 0) {
                self.chunks.remove(&index);
            }
        }
        self.size = self.size.max(offset.saturating_add(len));
    }

    /// Makes `len` bytes at `offset` zero; never grows the file.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.digest.set(None);
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return;
        }
        let (first, last) = (offset / CHUNK, (end - 1) / CHUNK);
        for index in [first, last] {
            let Some(slot) = self.chunks.get_mut(&index) else { continue };
            let chunk = Arc::make_mut(slot);
            let from = offset.saturating_sub(index * CHUNK).min(CHUNK);
            let to = (end - index * CHUNK).min(CHUNK);
            // Both are at most CHUNK.
            chunk[usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0)].fill(0);
            if chunk.iter().all(|&b| b == 0) {
                self.chunks.remove(&index);
            }
        }
        if last > first {
            let inside: Vec<u64> = self.chunks.range(first + 1..last).map(|(&index, _)| index).collect();
            for index in inside {
                self.chunks.remove(&index);
            }
        }
    }

    /// Sets the size; what is cut off is gone, what is added reads as zeroes.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// The bytes from `offset` on, at most `len`, fewer at the end of the file.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let len = len.min(self.size.saturating_sub(offset));
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        for (index, inner, done, take) in cut(offset, len) {
            if let Some(chunk) = self.chunks.get(&index) {
                let start = usize::try_from(done).unwrap_or(0);
                data[start..start + take].copy_from_slice(&chunk[inner..inner + take]);
            }
        }
        data
    }

    /// The fingerprint of the whole content.
    pub fn digest(&self) -> Digest {
        if let Some(known) = self.digest.get() {
            return known;
        }
        let mut digest = Digest::default();
        for (index, chunk) in &self.chunks {
            digest.add(index * CHUNK, &chunk[..]);
        }
        self.digest.set(Some(digest));
        digest
    }
}

/// Ascending numbers of 4 KiB chunks as stretches of bytes, (offset, length).
pub fn chunk_ranges(chunks: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for index in chunks {
        let start = index * CHUNK;
        match ranges.last_mut() {
            Some((from, len)) if *from + *len == start => *len += CHUNK,
            _ => ranges.push((start, CHUNK)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn behaves_like_a_plain_vector() {
        let mut rng = Rng::new(3);
        let mut content = Content::default();
        let mut plain: Vec<u8> = Vec::new();
        for _ in 0..2000 {
            let offset = rng.below(40_000);
            let len = rng.below(12_000);
            let (start, end) = (offset as usize, (offset + len) as usize);
            match rng.below(4) {
                0 | 1 => {
                    let seed = rng.below(4);
                    content.write(offset, len, seed);
                    if plain.len() < end {
                        plain.resize(end, 0);
                    }
                    plain[start..end].copy_from_slice(&pattern_bytes(seed, len as usize));
                }
                2 => {
                    content.zero(offset, len);
                    let end = end.min(plain.len());
                    if start < end {
                        plain[start..end].fill(0);
                    }
                }
                _ => {
                    content.truncate(offset);
                    plain.resize(start, 0);
                }
            }
            assert_eq!(content.size(), plain.len() as u64);
            assert_eq!(content.digest(), Digest::of(&plain));
            let (from, len) = (rng.below(50_000), rng.below(9000));
            let tail = plain.get(from as usize..).unwrap_or(&[]);
            assert_eq!(content.read(from, len), &tail[..tail.len().min(len as usize)]);
        }
    }

    #[test]
    fn far_offsets_cost_nothing() {
        let mut content = Content::default();
        let far = (i64::MAX as u64) - 10;
        content.write(far, 10, 5);
        assert_eq!((content.size(), content.allocated()), (i64::MAX as u64, 4096));
        assert_eq!(content.read(far, 100), pattern_bytes(5, 10));
        let last = (i64::MAX as u64) / CHUNK * CHUNK;
        assert_eq!(chunk_ranges(content.deep_chunks()), [(last, CHUNK)]);
        assert_eq!(chunk_ranges([1, 2, 5, 6, 7]), [(4096, 8192), (5 * 4096, 3 * 4096)]);
        content.zero(0, u64::MAX);
        assert_eq!((content.allocated(), content.digest()), (0, Digest::default()));
    }

    #[test]
    fn a_pattern_does_not_depend_on_how_it_is_cut() {
        let whole = pattern_bytes(9, 100);
        let mut part = [0; 33];
        pattern(9, 13, &mut part);
        assert_eq!(part, whole[13..46]);
        assert_ne!(pattern_bytes(8, 100), whole);
    }
}
