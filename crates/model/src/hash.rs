//! The fingerprint of a file's bytes that every reader of a volume computes alike.
//!
//! The content is cut into pieces of [`PIECE`] bytes at multiples of [`PIECE`]; a short last piece is filled up
//! with zeroes. Pieces that are all zero do not count, so a hole, a block of zeroes and a never-written tail
//! are the same, and a reader may skip whatever it knows to be a hole. Every other piece is hashed together
//! with its offset, and the fingerprint is the sum of these hashes: the order of reading does not matter.
//! The size of the file is not part of it. 128 bits; made for telling accidents apart, not attackers.

use std::fmt;

use crate::rng::mix;

/// Bytes in a piece.
pub const PIECE: usize = 1024;

/// The fingerprint of a content; zero for an empty or all-zero one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(u64, u64);

impl Digest {
    /// Adds the bytes found at `offset` (a multiple of [`PIECE`]). Every piece must come whole in one call, or end
    /// with the file.
    pub fn add(&mut self, offset: u64, data: &[u8]) {
        assert!(offset.is_multiple_of(PIECE as u64), "a piece must start at a multiple of its size");
        let mut at = offset;
        let (pieces, tail) = data.as_chunks::<PIECE>();
        for piece in pieces {
            self.add_piece(at, piece);
            at = at.wrapping_add(PIECE as u64);
        }
        if !tail.is_empty() {
            let mut piece = [0; PIECE];
            piece[..tail.len()].copy_from_slice(tail);
            self.add_piece(at, &piece);
        }
    }

    fn add_piece(&mut self, offset: u64, piece: &[u8; PIECE]) {
        let (words, _) = piece.as_chunks::<8>();
        if words.iter().all(|w| *w == [0; 8]) {
            return;
        }
        let mut a = mix(offset);
        let mut b = mix(!offset);
        for pair in words.chunks_exact(2) {
            a = (a ^ u64::from_le_bytes(pair[0])).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
            b = (b ^ u64::from_le_bytes(pair[1])).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(31);
        }
        self.0 = self.0.wrapping_add(mix(a ^ b.rotate_left(17)));
        self.1 = self.1.wrapping_add(mix(b.wrapping_add(a.rotate_left(41))));
    }

    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let (high, low) = text.split_at(16);
        Some(Self(u64::from_str_radix(high, 16).ok()?, u64::from_str_radix(low, 16).ok()?))
    }

    /// The fingerprint of `data` as the content of a whole file.
    pub fn of(data: &[u8]) -> Self {
        let mut digest = Self::default();
        digest.add(0, data);
        digest
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0, self.1)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_do_not_count_and_order_does_not_matter() {
        let mut data = vec![0u8; 8192];
        assert_eq!(Digest::of(&data), Digest::default());
        data[5000] = 1;
        data[17] = 9;
        let whole = Digest::of(&data);
        let mut parts = Digest::default();
        parts.add(4096, &data[4096..6144]);
        parts.add(0, &data[..1024]);
        assert_eq!(whole, parts);
        assert_eq!(Digest::of(&data[..5001]), whole, "a tail of zeroes does not count");
    }

    #[test]
    fn place_and_value_count() {
        let mut data = vec![0u8; 4096];
        data[0] = 1;
        let first = Digest::of(&data);
        for at in [1, 8, 1023, 1024, 4095] {
            let mut other = vec![0u8; 4096];
            other[at] = 1;
            assert_ne!(Digest::of(&other), first);
        }
        assert_ne!(Digest::of(&[1; 1024]), Digest::of(&[1; 2048]));
        assert_eq!(Digest::parse(&first.to_string()), Some(first));
        assert_eq!(Digest::parse("12"), None);
    }
}
