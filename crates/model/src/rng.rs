//! A small seeded random generator (xoshiro256\*\*, seeded by splitmix64).
//!
//! It is fixed for good: a seed names a history, in test reports and in regressions, so the sequence
//! must not change with a dependency. Not for cryptography.

/// Turns one 64-bit word into another; a bijection. Also the finisher of hashes here.
pub fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A deterministic stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let state = std::array::from_fn(|_| {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(word)
        });
        Self { state }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        // The high half of a 64x64-bit product is below `bound`, so it fits.
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number in `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.checked_sub(low).map(|width| width.checked_add(1)) {
            None => low,
            Some(None) => self.next_u64(),
            Some(Some(width)) => low + self.below(width),
        }
    }

    /// A small number in `low..=high`.
    pub fn between_u32(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(u64::from(low), u64::from(high))).unwrap_or(low)
    }

    /// An index below `len`; 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }

    /// A number below 2^`bits`, all magnitudes equally likely: small ones are as frequent as large ones.
    pub fn magnitude(&mut self, bits: u32) -> u64 {
        let width = self.between_u32(0, bits.min(63));
        self.below(1 << width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed() {
        let mut rng = Rng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [18001451845637162709, 15091038358276433251, 7540168338507695658]);
        assert_ne!(Rng::new(2).next_u64(), Rng::new(1).next_u64());
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(7);
        for _ in 0..10_000 {
            assert!(rng.below(7) < 7);
            assert!((5..=9).contains(&rng.between(5, 9)));
            assert!(rng.magnitude(20) < 1 << 20);
        }
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.between(9, 5), 9);
        assert!(rng.pick::<u8>(&[]).is_none());
    }
}
