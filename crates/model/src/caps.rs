//! What the target of a history can do: the generator makes only what it has, the model judges by its limits.

use crate::manifest::Time;

/// Inode flags (the bits of `FS_IOC_SETFLAGS`).
pub mod flag {
    /// Writes are synchronous.
    pub const SYNC: u32 = 0x8;
    /// Nothing may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// Only appending is allowed.
    pub const APPEND: u32 = 0x20;
    /// `dump` skips it.
    pub const NODUMP: u32 = 0x40;
    /// Access times are not kept.
    pub const NOATIME: u32 = 0x80;
    /// Directory operations are synchronous.
    pub const DIRSYNC: u32 = 0x10000;
    /// Top of a directory hierarchy; directories only.
    pub const TOPDIR: u32 = 0x20000;
    /// What a regular file cannot have.
    pub const DIRECTORY_ONLY: u32 = DIRSYNC | TOPDIR;
}

/// The abilities and limits of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Longest name in bytes.
    pub name_max: usize,
    /// Longest symlink target in bytes.
    pub symlink_max: usize,
    /// Most names of an inode, subdirectories counted; `None` if not known or too many to try.
    pub link_max: Option<u32>,
    /// Largest file in bytes: the first offset that cannot be written.
    pub file_size_max: u64,
    /// Largest offset that the generator goes to, at most `file_size_max`.
    pub sparse_max: u64,
    /// Times that can be stored, inclusive.
    pub time_min: Time,
    /// See `time_min`.
    pub time_max: Time,
    /// Punching holes.
    pub punch: bool,
    /// Zeroing ranges.
    pub zero_range: bool,
    /// `fallocate` without and with keep-size.
    pub allocate: bool,
    /// `RENAME_NOREPLACE`.
    pub noreplace: bool,
    /// `RENAME_EXCHANGE`.
    pub exchange: bool,
    /// Files without a name.
    pub tmpfile: bool,
    /// Shared writable mappings.
    pub mmap: bool,
    /// A page that was written through a mapping and made durable can be written through a mapping again.
    pub map_again: bool,
    /// Character and block devices can be made, owners changed, setuid bits kept: the superuser.
    pub privileged: bool,
    /// A change of owner that names neither owner nor group takes the set-ID bits with it, as Linux does where it comes to
    /// the file system.
    pub chown_of_nothing: bool,
    /// Largest major and minor number that survive.
    pub device_max: (u32, u32),
    /// Inode flags that can be set.
    pub flags: u32,
    /// Flags that a new object takes over from its directory.
    pub flags_inherited: u32,
    /// Explicit checkpoints.
    pub checkpoints: bool,
    /// Snapshots made and removed.
    pub snapshots: bool,
    /// Unmounting and mounting again within a history.
    pub remount: bool,
}

/// Inode flags of nilfs2 that the generator plays with; all are inherited but `TOPDIR`.
const NILFS_FLAGS: u32 =
    flag::SYNC | flag::IMMUTABLE | flag::APPEND | flag::NODUMP | flag::NOATIME | flag::DIRSYNC | flag::TOPDIR;

impl Capabilities {
    /// What the format can hold with blocks of `block_size` bytes, and everything a POSIX file system does.
    pub fn silt(block_size: usize) -> Self {
        Self {
            name_max: 255,
            symlink_max: block_size.saturating_sub(1).min(4095),
            link_max: Some(32_000),
            file_size_max: i64::MAX as u64,
            sparse_max: i64::MAX as u64,
            time_min: Time { sec: i64::MIN, nsec: 0 },
            time_max: Time { sec: i64::MAX, nsec: 999_999_999 },
            punch: true,
            zero_range: true,
            allocate: true,
            noreplace: true,
            exchange: true,
            tmpfile: true,
            mmap: true,
            map_again: true,
            privileged: true,
            chown_of_nothing: true,
            device_max: (0xfff, 0xf_ffff),
            flags: NILFS_FLAGS,
            flags_inherited: NILFS_FLAGS & !flag::TOPDIR,
            checkpoints: true,
            snapshots: true,
            remount: true,
        }
    }

    /// The Linux driver of nilfs2 (6.1), driven by system calls as the superuser. Blocks smaller than a page are
    /// not written through mappings: a file that was read, cut within a page and then written so ends in "broken
    /// bmap" and a read-only volume, also on a volume that no one but the kernel ever wrote. Of larger ones it
    /// forgets the second change through a mapping if there was a checkpoint between, everywhere, too.
    pub fn kernel(block_size: usize) -> Self {
        Self {
            mmap: block_size >= 4096,
            map_again: false,
            punch: false,
            zero_range: false,
            allocate: false,
            exchange: false,
            tmpfile: false,
            ..Self::silt(block_size)
        }
    }
}
