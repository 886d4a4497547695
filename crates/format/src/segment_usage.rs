//! The segment usage file's header and entries (spec section 11).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Error, Geometry, Result, SegNr};

/// `su_flags`: held by the writer; virtual, ignored on disk.
pub const ACTIVE: u32 = 1;
/// `su_flags`: in use.
pub const DIRTY: u32 = 2;
/// `su_flags`: not to be used.
pub const ERROR: u32 = 4;

/// Header at the start of block 0.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuHeader {
    pub ncleansegs: U64,
    pub ndirtysegs: U64,
    pub last_alloc: U64,
}

/// One segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuEntry {
    /// Creation time of the last log in it, seconds.
    pub lastmod: U64,
    /// Blocks written, from the segment's first block.
    pub nblocks: U32,
    pub flags: U32,
}

/// Bytes of an entry that have a meaning.
pub const SIZE: usize = 16;

impl SuEntry {
    /// The entry of a clean segment.
    pub const CLEAN: SuEntry = SuEntry { lastmod: U64::ZERO, nblocks: U32::ZERO, flags: U32::ZERO };

    /// Whether the segment can be allocated.
    pub fn is_clean(&self) -> bool {
        self.flags.get() == 0
    }

    /// Whether it is in use.
    pub fn is_dirty(&self) -> bool {
        self.flags.get() & DIRTY != 0
    }

    /// Whether it must not be used.
    pub fn is_error(&self) -> bool {
        self.flags.get() & ERROR != 0
    }

    /// Reads an entry.
    pub fn read(block: &[u8], byte: usize) -> Result<Self> {
        block
            .get(byte..)
            .and_then(|b| SuEntry::read_from_prefix(b).ok())
            .map(|(e, _)| e)
            .ok_or_else(|| Error::corrupt("sufile", "entry outside its block"))
    }

    /// Writes the entry.
    pub fn store(&self, block: &mut [u8], byte: usize) {
        if let Some(to) = block.get_mut(byte..byte + SIZE) {
            to.copy_from_slice(self.as_bytes());
        }
    }
}

/// Reads the header from block 0.
pub fn header(block: &[u8]) -> Result<SuHeader> {
    SuHeader::read_from_prefix(block).map(|(h, _)| h).map_err(|_| Error::corrupt("sufile", "short block"))
}

/// Writes the header into block 0.
pub fn store_header(block: &mut [u8], header: &SuHeader) {
    if let Some(to) = block.get_mut(..size_of::<SuHeader>()) {
        to.copy_from_slice(header.as_bytes());
    }
}

/// Entries one block holds.
pub fn per_block(g: &Geometry) -> u64 {
    u64::from(g.block_size / g.segment_usage_size)
}

/// Slots the header takes.
pub fn first_offset(g: &Geometry) -> u64 {
    24u64.div_ceil(u64::from(g.segment_usage_size))
}

/// File block and byte of a segment's entry; the number must be below `nsegments`.
pub fn place(g: &Geometry, segment: SegNr) -> (u64, usize) {
    let index = segment.0 + first_offset(g);
    (index / per_block(g), ((index % per_block(g)) * u64::from(g.segment_usage_size)) as usize)
}
