//! Names for the bytes of a device.

use super::SECTOR;
use crate::random::Random;
use crate::{Device, MemoryDevice, Result};

/// Names the bytes of a device: the exclusive or over a hash of each sector that is not zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fingerprint(pub u64);

impl Fingerprint {
    pub(super) fn of(device: &MemoryDevice) -> Self {
        let mut print = 0;
        device.for_each_chunk(|at, bytes| print ^= hash(at / SECTOR, bytes));
        Fingerprint(print)
    }

    /// Takes the sectors of a range out, or puts them in.
    pub(super) fn toggle(&mut self, device: &MemoryDevice, start: u64, end: u64) -> Result<()> {
        let (mut at, end) =
            (start / SECTOR * SECTOR, end.div_ceil(SECTOR).saturating_mul(SECTOR).min(device.len()));
        let mut buf = [0; 16 * SECTOR as usize];
        while at < end {
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
            let part = buf.get_mut(..n).unwrap_or_default();
            device.read_at(at, part)?;
            self.0 ^= hash(at / SECTOR, part);
            at += n as u64;
        }
        Ok(())
    }
}

/// Of sectors from number `first` on.
fn hash(first: u64, bytes: &[u8]) -> u64 {
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        #[allow(clippy::cast_possible_truncation)] // both halves are used
        let folded = (wide as u64) ^ ((wide >> 64) as u64);
        folded
    };
    let mut all = 0;
    for (number, sector) in (first..).zip(bytes.chunks(SECTOR as usize)) {
        if sector.iter().all(|b| *b == 0) {
            continue;
        }
        let mut h = number ^ 0x9e37_79b9_7f4a_7c15;
        for word in sector.chunks(8) {
            let mut w = [0; 8];
            w.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
            h = fold(h ^ u64::from_le_bytes(w) ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db)
                .rotate_left(29)
                ^ h;
        }
        all ^= Random::new(h).next();
    }
    all
}
