//! Finds a single flipped bit from the checksum alone.
//!
//! The checksum (spec section 1) is linear: the difference of the stored and the computed one, the *syndrome*, depends
//! on which bits differ and not on the message or the seed. A bit that is followed by `m - 1` more bits leaves the
//! register at 1 shifted `m` times, so the place of a single flipped bit is found by shifting until the syndrome
//! appears. Shifts of 1 repeat after 2^32 - 1 bits: in a shorter message at most one bit answers.
//!
//! Damage of another kind answers too, by chance: in a message of n bits with a probability of n in 2^32. Who has a
//! second checksum over the place should ask it.

/// The polynomial, reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Longest message that is looked at, in bytes: some seconds, and far from where places repeat.
pub(crate) const LONGEST: u64 = 256 << 20;

/// Where a bit is flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the stored checksum: which bit.
    Stored(u8),
    /// In the message: byte, and bit in it, the least significant first.
    Message(u64, u8),
}

/// The bit that, flipped, explains why `computed` over a message of `bytes` bytes is not `stored`. None: no single one
/// does, the two are equal, or the message is longer than [`LONGEST`].
pub(crate) fn flipped_bit(stored: u32, computed: u32, bytes: u64) -> Option<Place> {
    let syndrome = stored ^ computed;
    if syndrome == 0 || bytes > LONGEST {
        return None;
    }
    if syndrome.is_power_of_two() {
        return u8::try_from(syndrome.trailing_zeros()).ok().map(Place::Stored);
    }
    let bits = bytes * 8;
    let mut register = 1u32;
    for behind in 1..=bits {
        register = (register >> 1) ^ (POLYNOMIAL & (register & 1).wrapping_neg());
        if register == syndrome {
            let bit = bits - behind;
            return u8::try_from(bit % 8).ok().map(|in_byte| Place::Message(bit / 8, in_byte));
        }
    }
    None
}

/// Of so many messages of `bytes` bytes with other damage one looks as if a single bit were flipped.
pub(crate) fn one_in(bytes: u64) -> u64 {
    (1u64 << 32) / (bytes * 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use silt_format::crc32;

    #[test]
    fn every_bit_of_a_message_and_of_its_checksum() {
        let message: Vec<u8> = (0..700u32).map(|i| (i * 31 + 5) as u8).collect();
        let stored = crc32(0xDEAD_BEEF, &message);
        for bit in 0..message.len() * 8 {
            let mut bad = message.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = flipped_bit(stored, crc32(0xDEAD_BEEF, &bad), 700);
            assert_eq!(found, Some(Place::Message(bit as u64 / 8, (bit % 8) as u8)), "bit {bit}");
        }
        for bit in 0..32u8 {
            assert_eq!(flipped_bit(stored ^ (1 << bit), stored, 700), Some(Place::Stored(bit)));
        }
        assert_eq!(flipped_bit(stored, stored, 700), None);
        assert_eq!(flipped_bit(stored, !stored, LONGEST + 1), None);
    }

    #[test]
    fn the_first_bit_of_a_whole_segment() {
        let mut message = vec![0x5a; 8 << 20];
        let stored = crc32(7, &message);
        message[0] ^= 1;
        assert_eq!(flipped_bit(stored, crc32(7, &message), 8 << 20), Some(Place::Message(0, 0)));
        assert_eq!(one_in(8 << 20), 64);
    }

    proptest! {
        #[test]
        fn two_flipped_bits_are_no_single_one_of_a_short_message(
            message in prop::collection::vec(any::<u8>(), 8..400), seed: u32, a: usize, b: usize,
        ) {
            let bits = message.len() * 8;
            let (a, b) = (a % bits, b % bits);
            prop_assume!(a != b);
            let mut bad = message.clone();
            for bit in [a, b] {
                bad[bit / 8] ^= 1 << (bit % 8);
            }
            // In messages of up to 11 KiB the polynomial finds every error of three bits, so two never act as one.
            let found = flipped_bit(crc32(seed, &message), crc32(seed, &bad), message.len() as u64);
            prop_assert_eq!(found, None);
        }
    }
}
