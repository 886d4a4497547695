//! The fixed numbers of one volume, checked once, and the arithmetic on them (spec 3.1).

use crate::{BlockNr, Error, Ino, Result, SegNr};

/// Numbers of a volume that hold for all its life but for resize. Sizes in bytes unless named
/// blocks. Invariant: `nsegments * blocks_per_segment * block_size` fits in an i64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Block size, a power of two, 1024 to 65536.
    pub block_size: u32,
    /// log2 of `block_size`.
    pub block_bits: u32,
    /// Blocks a segment, at least 16.
    pub blocks_per_segment: u32,
    /// Number of segments, at least 1.
    pub nsegments: u64,
    /// First block of segment 0.
    pub first_data_block: u64,
    /// Stride of the ifile's entries.
    pub inode_size: u32,
    /// Stride of the DAT's entries.
    pub dat_entry_size: u32,
    /// Stride of the cpfile's entries.
    pub checkpoint_size: u32,
    /// Stride of the sufile's entries.
    pub segment_usage_size: u32,
    /// Seed of every checksum.
    pub crc_seed: u32,
    /// First inode number for users' files.
    pub first_ino: u64,
    /// Reserved segments in percent, 1 to 99.
    pub reserved_percent: u32,
}

impl Geometry {
    /// Whether a file or directory may have this number.
    pub fn is_for_files(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || ino.0 >= self.first_ino
    }

    /// Whether blocks of this file belong to checkpoints, as those of files, directories and inode files do; all others have
    /// only a newest version.
    pub fn has_lifetimes(&self, ino: Ino) -> bool {
        ino == Ino::IFILE || self.is_for_files(ino)
    }

    /// Block size as an index.
    pub fn bs(&self) -> usize {
        self.block_size as usize
    }

    /// First block behind the segment array.
    pub fn end_block(&self) -> u64 {
        self.nsegments * u64::from(self.blocks_per_segment)
    }

    /// The segment that holds `block`.
    pub fn segment_of(&self, block: BlockNr) -> SegNr {
        SegNr(block.0 / u64::from(self.blocks_per_segment))
    }

    /// First usable block of a segment; the value of `ss_next`.
    pub fn segment_start(&self, segment: SegNr) -> BlockNr {
        if segment.0 == 0 {
            BlockNr(self.first_data_block)
        } else {
            BlockNr(segment.0.saturating_mul(u64::from(self.blocks_per_segment)))
        }
    }

    /// First block behind a segment.
    pub fn segment_end(&self, segment: SegNr) -> BlockNr {
        BlockNr(segment.0.saturating_add(1).saturating_mul(u64::from(self.blocks_per_segment)))
    }

    /// Usable blocks of a segment.
    pub fn segment_blocks(&self, segment: SegNr) -> u64 {
        self.segment_end(segment).0 - self.segment_start(segment).0
    }

    /// Whether a block number can be that of a payload block.
    pub fn holds(&self, block: BlockNr) -> bool {
        block.0 >= self.first_data_block && block.0 < self.end_block()
    }

    /// `block`, or an error that names `structure`.
    pub fn check_block(&self, structure: &'static str, block: BlockNr) -> Result<BlockNr> {
        if self.holds(block) {
            Ok(block)
        } else {
            Err(Error::corrupt(structure, format!("block number {block} lies outside the segments")))
        }
    }

    /// Byte offset of a block on the device.
    pub fn byte_of(&self, block: BlockNr) -> u64 {
        block.0 << self.block_bits
    }

    /// Segments kept back from users (spec 14.1).
    pub fn reserved_segments(&self) -> u64 {
        reserved_segments(self.nsegments, self.reserved_percent)
    }

    /// Fewest segments mkfs accepts where the device holds `nsegments` (spec 16.1).
    pub fn minimum_segments(nsegments: u64, percent: u32) -> u64 {
        reserved_segments(nsegments, percent).saturating_add(8)
    }

    /// Greatest file size in bytes: the page-cache limit of the kernel (spec 14.3).
    pub fn max_file_size(&self) -> u64 {
        i64::MAX as u64
    }

    /// Greatest block offset of a file's data.
    pub fn max_key(&self) -> u64 {
        (i64::MAX as u64) >> self.block_bits
    }
}

/// Segments kept back from users on a volume of `nsegments` (spec 14.1).
pub fn reserved_segments(nsegments: u64, percent: u32) -> u64 {
    let wanted = (u128::from(nsegments) * u128::from(percent)).div_ceil(100);
    u64::try_from(wanted).unwrap_or(u64::MAX).max(8)
}
