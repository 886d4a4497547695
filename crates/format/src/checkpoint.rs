//! The checkpoint file's header and entries (spec section 10).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inode::RawInode;
use crate::{Cno, Error, Geometry, Result};

/// `cp_flags`: a snapshot.
pub const SNAPSHOT: u32 = 1;
/// `cp_flags`: the slot holds no checkpoint.
pub const INVALID: u32 = 2;
/// `cp_flags`: unused.
pub const SKETCH: u32 = 4;
/// `cp_flags`: no block of the tree changed.
pub const MINOR: u32 = 8;

/// Header at the start of block 0.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CpHeader {
    pub ncheckpoints: U64,
    pub nsnapshots: U64,
    /// Lowest snapshot, 0 = none.
    pub list_next: U64,
    /// Highest snapshot, 0 = none.
    pub list_prev: U64,
}

/// One checkpoint.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CpEntry {
    pub flags: U32,
    /// In slot 0 of every block but block 0: entries of the block that are not INVALID.
    pub checkpoints_count: U32,
    pub list_next: U64,
    pub list_prev: U64,
    pub cno: U64,
    /// Seconds.
    pub create: U64,
    /// Blocks written by the logical segment that made it.
    pub nblk_inc: U64,
    pub inodes_count: U64,
    pub blocks_count: U64,
    pub ifile_inode: RawInode,
}

/// Bytes of an entry that have a meaning.
pub const SIZE: usize = 192;

/// Reads the header from block 0.
pub fn header(block: &[u8]) -> Result<CpHeader> {
    CpHeader::read_from_prefix(block).map(|(h, _)| h).map_err(|_| Error::corrupt("cpfile", "short block"))
}

/// Writes the header into block 0.
pub fn store_header(block: &mut [u8], header: &CpHeader) {
    if let Some(to) = block.get_mut(..size_of::<CpHeader>()) {
        to.copy_from_slice(header.as_bytes());
    }
}

/// Slots one block holds.
pub fn per_block(g: &Geometry) -> u64 {
    u64::from(g.block_size / g.checkpoint_size)
}

/// Slots the header takes.
pub fn first_offset(g: &Geometry) -> u64 {
    32u64.div_ceil(u64::from(g.checkpoint_size))
}

/// File block and byte of a checkpoint's entry.
pub fn place(g: &Geometry, cno: Cno) -> Result<(u64, usize)> {
    if cno.0 == 0 {
        return Err(Error::corrupt("cpfile", "checkpoint number 0"));
    }
    let index = cno
        .0
        .checked_add(first_offset(g) - 1)
        .filter(|i| i / per_block(g) <= g.max_key())
        .ok_or_else(|| Error::corrupt("cpfile", format!("checkpoint number {cno} is impossible")))?;
    Ok((index / per_block(g), ((index % per_block(g)) * u64::from(g.checkpoint_size)) as usize))
}

/// Checkpoint number of slot `slot` of file block `block`; `None` for the header's slots.
pub fn cno_at(g: &Geometry, block: u64, slot: u64) -> Option<Cno> {
    let index = block.checked_mul(per_block(g))?.checked_add(slot)?;
    index.checked_sub(first_offset(g) - 1).filter(|c| *c > 0).map(Cno)
}

/// Reads an entry.
pub fn entry(block: &[u8], byte: usize) -> Result<CpEntry> {
    block
        .get(byte..)
        .and_then(|b| CpEntry::read_from_prefix(b).ok())
        .map(|(e, _)| e)
        .ok_or_else(|| Error::corrupt("cpfile", "entry outside its block"))
}

/// Writes an entry.
pub fn store_entry(block: &mut [u8], byte: usize, entry: &CpEntry) {
    if let Some(to) = block.get_mut(byte..byte + SIZE) {
        to.copy_from_slice(entry.as_bytes());
    }
}

/// A new block: zero, every slot INVALID (the header's slots of block 0 excepted).
pub fn init_block(g: &Geometry, block: &mut [u8], number: u64) {
    block.fill(0);
    for slot in 0..per_block(g) {
        if number == 0 && slot < first_offset(g) {
            continue;
        }
        let byte = (slot * u64::from(g.checkpoint_size)) as usize;
        if let Some(to) = block.get_mut(byte..byte + 4) {
            to.copy_from_slice(&INVALID.to_le_bytes());
        }
    }
}

impl CpEntry {
    /// An entry with every byte zero.
    pub fn zeroed() -> Self {
        <Self as FromZeros>::new_zeroed()
    }

    /// Whether there is no checkpoint in this slot.
    pub fn is_invalid(&self) -> bool {
        self.flags.get() & INVALID != 0
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.flags.get() & SNAPSHOT != 0
    }

    /// Whether no block of the tree changed in it.
    pub fn is_minor(&self) -> bool {
        self.flags.get() & MINOR != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_formats() {
        assert_eq!(size_of::<CpEntry>(), SIZE);
        assert_eq!(size_of::<CpHeader>(), 32);
    }
}
