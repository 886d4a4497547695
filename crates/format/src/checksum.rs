//! The format's CRC: reflected CRC-32, seeded, with neither inversion (spec section 1).

/// CRC of `bytes` with `seed` as the initial register.
pub fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = Crc::new(seed);
    crc.update(bytes);
    crc.finish()
}

/// The same over several buffers.
#[derive(Clone)]
pub struct Crc(crc32fast::Hasher);

impl Crc {
    /// Starts with `seed` as the register.
    pub fn new(seed: u32) -> Self {
        Crc(crc32fast::Hasher::new_with_initial(!seed))
    }

    /// Goes on over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The register's value.
    pub fn finish(self) -> u32 {
        !self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, from the definition.
    fn reference(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |mut r, b| {
            r ^= u32::from(*b);
            for _ in 0..8 {
                r = if r & 1 == 1 { (r >> 1) ^ 0xEDB8_8320 } else { r >> 1 };
            }
            r
        })
    }

    #[test]
    fn equals_the_definition_and_continues() {
        let data: Vec<u8> = (0..5000u32).map(|i| (i * 7 + 3) as u8).collect();
        for seed in [0, 1, 0xDEAD_BEEF, u32::MAX] {
            assert_eq!(crc32(seed, &data), reference(seed, &data));
            let first = crc32(seed, &data[..1234]);
            assert_eq!(crc32(first, &data[1234..]), reference(seed, &data));
        }
    }
}
