//! Entries of the disk address translation file (spec section 7).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Error, Result};

/// `de_end` of a block that is still current.
pub const LIVE: u64 = u64::MAX;

/// One entry. Lifetime: checkpoints c with `start <= c < end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DatEntry {
    /// Disk block; 0 = not written yet.
    pub blocknr: U64,
    /// First checkpoint that contains this version.
    pub start: U64,
    /// First checkpoint that no longer does.
    pub end: U64,
    pub rsv: U64,
}

/// Bytes of an entry that have a meaning.
pub const SIZE: usize = 32;

impl DatEntry {
    /// Reads an entry at `byte` of an entry block.
    pub fn read(block: &[u8], byte: usize) -> Result<Self> {
        block
            .get(byte..)
            .and_then(|b| DatEntry::read_from_prefix(b).ok())
            .map(|(e, _)| e)
            .ok_or_else(|| Error::corrupt("DAT", "entry outside its block"))
    }

    /// Writes the entry at `byte` of an entry block; `false` if it does not fit.
    pub fn store(&self, block: &mut [u8], byte: usize) -> bool {
        match block.get_mut(byte..byte + SIZE) {
            Some(to) => {
                to.copy_from_slice(self.as_bytes());
                true
            }
            None => false,
        }
    }

    /// A fresh allocation (spec 7.3), keeping the reserved bytes found.
    pub fn allocated(rsv: u64) -> Self {
        DatEntry { blocknr: U64::ZERO, start: 1.into(), end: LIVE.into(), rsv: rsv.into() }
    }

    /// Whether checkpoint `cno` contains this version.
    pub fn contains(&self, cno: u64) -> bool {
        self.start.get() <= cno && cno < self.end.get()
    }
}
