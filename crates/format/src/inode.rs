//! The on-disk inode (spec 8.1).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::btree::{self, ROOT_BYTES};
use crate::{Error, Result, direct};

/// Bytes of the part of an entry that has a meaning.
pub const SIZE: usize = 128;
/// Most links of an inode.
pub const LINK_MAX: u16 = 32000;

/// `i_flags` bits with an effect or a name.
pub mod flags {
    pub const SECRM: u32 = 0x1;
    pub const UNRM: u32 = 0x2;
    pub const COMPR: u32 = 0x4;
    pub const SYNC: u32 = 0x8;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const NODUMP: u32 = 0x40;
    pub const NOATIME: u32 = 0x80;
    pub const DIRTY: u32 = 0x100;
    pub const COMPRBLK: u32 = 0x200;
    pub const NOCOMP: u32 = 0x400;
    pub const NOTAIL: u32 = 0x8000;
    pub const DIRSYNC: u32 = 0x10000;
    pub const TOPDIR: u32 = 0x20000;
    /// What users may set.
    pub const USER_MODIFIABLE: u32 = 0x0003_80FF;
    /// What the format has a name for.
    pub const KNOWN: u32 = USER_MODIFIABLE | DIRTY | COMPRBLK | NOCOMP;
    /// What a new inode takes over from its directory.
    pub const INHERITED: u32 = SECRM
        | UNRM
        | COMPR
        | SYNC
        | IMMUTABLE
        | APPEND
        | NODUMP
        | NOATIME
        | COMPRBLK
        | NOCOMP
        | NOTAIL
        | DIRSYNC;

    /// Removes what an inode of this type cannot carry (spec 8.1).
    pub fn mask(mode: u32, flags: u32) -> u32 {
        match mode & 0o170_000 {
            0o040_000 => flags,
            0o100_000 => flags & !(DIRSYNC | TOPDIR),
            _ => flags & (NODUMP | NOATIME),
        }
    }
}

/// One inode as it lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawInode {
    /// 512-byte units occupied by data and node blocks.
    pub blocks: U64,
    pub size: U64,
    pub ctime: U64,
    pub mtime: U64,
    pub ctime_nsec: U32,
    pub mtime_nsec: U32,
    pub uid: U32,
    pub gid: U32,
    pub mode: U16,
    pub links_count: U16,
    pub flags: U32,
    pub bmap: [u8; ROOT_BYTES],
    pub xattr: U64,
    pub generation: U32,
    pub pad: U32,
}

impl RawInode {
    /// An inode with every byte zero.
    pub fn zeroed() -> Self {
        <Self as zerocopy::FromZeros>::new_zeroed()
    }

    /// Reads the first 128 bytes of an entry.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        RawInode::read_from_prefix(bytes).map(|(i, _)| i).map_err(|_| Error::corrupt("inode", "short entry"))
    }

    /// Writes the 128 bytes; bytes of the entry past them stay as they are.
    pub fn store(&self, entry: &mut [u8]) {
        if let Some(to) = entry.get_mut(..SIZE) {
            to.copy_from_slice(self.as_bytes());
        }
    }

    /// File type bits of the mode.
    pub fn file_type(&self) -> u32 {
        u32::from(self.mode.get()) & 0o170_000
    }

    /// Whether inodes of this type own blocks (regular files, directories, symlinks).
    pub fn has_map(&self) -> bool {
        matches!(self.file_type(), 0o100_000 | 0o040_000 | 0o120_000)
    }

    /// The device number of a device node as (major, minor) (spec 8.1, "huge" encoding).
    pub fn device(&self) -> (u32, u32) {
        let mut code = [0; 8];
        code.copy_from_slice(&self.bmap[..8]);
        decode_device(u64::from_le_bytes(code))
    }

    /// Stores the device number of a device node.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.bmap = [0; ROOT_BYTES];
        self.bmap[..8].copy_from_slice(&encode_device(major, minor).to_le_bytes());
    }

    /// Checks what must hold of an inode in use: type known, map root sane.
    pub fn check(&self) -> Result<()> {
        match self.file_type() {
            0o100_000 | 0o040_000 | 0o120_000 => {
                if btree::is_btree(&self.bmap) {
                    btree::check_root(&self.bmap)
                } else {
                    direct::check(&self.bmap)
                }
            }
            0o010_000 | 0o020_000 | 0o060_000 | 0o140_000 => Ok(()),
            t => Err(Error::corrupt("inode", format!("file type {t:#o}"))),
        }
    }

    /// Checks the inode of a metadata file (spec 8.5).
    pub fn check_metadata(&self, name: &'static str) -> Result<()> {
        if self.file_type() != 0o100_000 || self.links_count.get() == 0 {
            return Err(Error::corrupt(name, "its inode is not that of a metadata file"));
        }
        self.check()
    }
}

/// `(minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)`
pub fn encode_device(major: u32, minor: u32) -> u64 {
    u64::from(minor & 0xff) | u64::from(major) << 8 | u64::from(minor & !0xff) << 12
}

/// The inverse of [`encode_device`] for 12-bit majors and 20-bit minors.
pub fn decode_device(code: u64) -> (u32, u32) {
    let major = (code >> 8) & 0xfff;
    let minor = (code & 0xff) | ((code >> 12) & 0xfff_ff00);
    (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_places_are_the_formats() {
        assert_eq!(size_of::<RawInode>(), SIZE);
        assert_eq!(std::mem::offset_of!(RawInode, mode), 48);
        assert_eq!(std::mem::offset_of!(RawInode, bmap), 56);
        assert_eq!(std::mem::offset_of!(RawInode, generation), 120);
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (4095, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }
}
