//! Where the persistent-object allocator keeps things in the DAT and the ifile (spec section 6).

use crate::{Error, Geometry, Result};

/// Layout of one allocator file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    entry_size: u64,
    entries_per_block: u64,
    entries_per_group: u64,
    blocks_per_group: u64,
    groups_per_desc: u64,
    blocks_per_desc: u64,
    ngroups: u64,
}

/// An entry's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace {
    /// File block offset of the entry block.
    pub block: u64,
    /// Byte in that block.
    pub byte: usize,
}

impl Layout {
    /// Of the DAT. Every number can exist: the kernel hands out those next below 2^64, too (spec 5.7).
    pub fn dat(geometry: &Geometry) -> Self {
        Self::new(geometry, geometry.dat_entry_size, u64::MAX)
    }

    /// Of the ifile, which reaches no further than any file's data.
    pub fn ifile(geometry: &Geometry) -> Self {
        Self::new(geometry, geometry.inode_size, geometry.max_key())
    }

    /// Entries of `entry_size` bytes in file blocks up to `max_block`.
    fn new(geometry: &Geometry, entry_size: u32, max_block: u64) -> Self {
        let b = u64::from(geometry.block_size);
        let entry_size = u64::from(entry_size);
        let entries_per_block = b / entry_size;
        let entries_per_group = b * 8;
        let blocks_per_group = entries_per_group.div_ceil(entries_per_block) + 1;
        let groups_per_desc = b / 4;
        let blocks_per_desc = groups_per_desc * blocks_per_group + 1;
        // 2^(64 - log2(B) - 3) groups, as far as there are blocks for them.
        let ngroups =
            (1u64 << (64 - geometry.block_bits - 3)).min(max_block / blocks_per_desc * groups_per_desc);
        Layout {
            entry_size,
            entries_per_block,
            entries_per_group,
            blocks_per_group,
            groups_per_desc,
            blocks_per_desc,
            ngroups,
        }
    }

    /// Entries a group (bits of one bitmap block).
    pub fn entries_per_group(&self) -> u64 {
        self.entries_per_group
    }

    /// Entries one entry block holds.
    pub fn entries_per_block(&self) -> u64 {
        self.entries_per_block
    }

    /// Groups one descriptor block describes.
    pub fn groups_per_desc(&self) -> u64 {
        self.groups_per_desc
    }

    /// File blocks one descriptor block and its groups take.
    pub fn blocks_per_desc(&self) -> u64 {
        self.blocks_per_desc
    }

    /// Groups there can be.
    pub fn ngroups(&self) -> u64 {
        self.ngroups
    }

    /// Whether an entry number can exist.
    pub fn check(&self, structure: &'static str, nr: u64) -> Result<u64> {
        if nr / self.entries_per_group < self.ngroups {
            Ok(nr)
        } else {
            Err(Error::corrupt(structure, format!("entry number {nr} is impossible")))
        }
    }

    /// Group of an entry.
    pub fn group(&self, nr: u64) -> u64 {
        nr / self.entries_per_group
    }

    /// Bit of an entry in its group's bitmap.
    pub fn bit(&self, nr: u64) -> usize {
        (nr % self.entries_per_group) as usize
    }

    /// Descriptor block of a group and the byte of its 4-byte slot.
    pub fn desc(&self, group: u64) -> (u64, usize) {
        ((group / self.groups_per_desc) * self.blocks_per_desc, ((group % self.groups_per_desc) * 4) as usize)
    }

    /// Bitmap block of a group.
    pub fn bitmap_block(&self, group: u64) -> u64 {
        self.desc(group).0 + 1 + (group % self.groups_per_desc) * self.blocks_per_group
    }

    /// Place of an entry.
    pub fn entry(&self, nr: u64) -> EntryPlace {
        let off = nr % self.entries_per_group;
        EntryPlace {
            block: self.bitmap_block(self.group(nr)) + 1 + off / self.entries_per_block,
            byte: ((off % self.entries_per_block) * self.entry_size) as usize,
        }
    }

    /// The last entry of the block that holds `nr`.
    pub fn last_of_block(&self, nr: u64) -> u64 {
        let within = nr % self.entries_per_group;
        let next = within - within % self.entries_per_block + self.entries_per_block;
        nr - within + (next.min(self.entries_per_group) - 1)
    }

    /// Whether a file block offset belongs to a group that can exist.
    pub fn has_block(&self, block: u64) -> bool {
        let desc = block / self.blocks_per_desc;
        desc.checked_mul(self.groups_per_desc).is_some_and(|group| group < self.ngroups)
    }

    /// What a file block offset holds.
    pub fn kind(&self, block: u64) -> Kind {
        let (desc, rest) = (block / self.blocks_per_desc, block % self.blocks_per_desc);
        if rest == 0 {
            return Kind::Descriptor { first_group: desc * self.groups_per_desc };
        }
        let group = desc * self.groups_per_desc + (rest - 1) / self.blocks_per_group;
        match (rest - 1) % self.blocks_per_group {
            0 => Kind::Bitmap { group },
            n => {
                let first = group.saturating_mul(self.entries_per_group);
                Kind::Entries { first: first.saturating_add((n - 1) * self.entries_per_block) }
            }
        }
    }
}

/// What a block of an allocator file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Descriptor { first_group: u64 },
    Bitmap { group: u64 },
    Entries { first: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(bits: u32) -> Geometry {
        Geometry {
            block_size: 1 << bits,
            block_bits: bits,
            blocks_per_segment: 2048,
            nsegments: 8,
            first_data_block: 1,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
            crc_seed: 0,
            first_ino: 11,
            reserved_percent: 5,
        }
    }

    #[test]
    fn numbers_equal_the_specifications_examples() {
        let dat = Layout::dat(&geometry(12));
        assert_eq!((dat.entries_per_block, dat.entries_per_group, dat.blocks_per_group), (128, 32768, 257));
        assert_eq!((dat.groups_per_desc, dat.blocks_per_desc), (1024, 263_169));
        let ifile = Layout::ifile(&geometry(10));
        assert_eq!(
            (ifile.entries_per_block, ifile.blocks_per_group, ifile.blocks_per_desc),
            (8, 1025, 262_401)
        );
    }

    /// Where the kernel puts the entries of its greatest numbers (spec 5.7), seen on a volume of its own.
    #[test]
    fn the_greatest_numbers_have_a_place() {
        let dat = Layout::dat(&geometry(12));
        let place = dat.entry(u64::MAX - 3);
        assert_eq!((place.block, place.byte), (144_678_687_785_091_071, 124 * 32));
        assert_eq!(dat.bitmap_block(dat.group(u64::MAX)), 144_678_687_785_090_815);
        assert_eq!(dat.desc(dat.group(u64::MAX)).0, 144_678_687_784_827_903);
        assert!(!dat.has_block(place.block + 1));
    }

    #[test]
    fn any_block_offset_has_a_kind() {
        for bits in [10, 12, 16] {
            let l = Layout::dat(&geometry(bits));
            for block in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) + 1] {
                let _ = l.kind(block);
            }
        }
    }

    #[test]
    fn place_and_kind_are_inverse() {
        for bits in [10, 12, 16] {
            let l = Layout::dat(&geometry(bits));
            for nr in [0, 1, 31, 32, 127, 128, 40_000, 1 << 27, (1 << 33) + 12345, u64::MAX - 3, u64::MAX] {
                assert_eq!(l.check("DAT", nr).unwrap(), nr);
                let e = l.entry(nr);
                let Kind::Entries { first } = l.kind(e.block) else { panic!("not an entry block") };
                assert_eq!(first + e.byte as u64 / 32, nr);
                assert!(l.has_block(e.block) && l.last_of_block(nr) >= nr);
                assert_eq!(l.last_of_block(nr) - first, l.entries_per_block() - 1);
                assert_eq!(l.kind(l.bitmap_block(l.group(nr))), Kind::Bitmap { group: l.group(nr) });
            }
        }
    }
}
