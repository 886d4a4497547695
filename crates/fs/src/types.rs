//! What requests carry and what they answer.

use std::sync::Arc;

use silt_engine::{Attr, Time};
use silt_format::Ino;

/// Who asks, and when.
#[derive(Debug, Clone, Default)]
pub struct Context {
    pub uid: u32,
    pub gid: u32,
    /// The caller's further groups; `None` where they are not known. Then the set-group-ID rules
    /// that depend on them are taken to be settled by whoever passed the request on, but for new files.
    pub groups: Option<Arc<[u32]>>,
    /// Permission bits that new objects do not get; 0 where they were taken out already.
    pub umask: u32,
    /// What the clock says.
    pub now: Time,
    /// May change immutable and append-only flags and keeps set-id bits.
    pub privileged: bool,
}

impl Context {
    /// Whether the caller is known to be privileged or a member of `gid`.
    pub(crate) fn is_inside(&self, gid: u32) -> bool {
        self.privileged || self.gid == gid || self.groups.as_ref().is_some_and(|g| g.contains(&gid))
    }

    /// Whether the caller is known to be neither privileged nor a member of `gid`.
    pub(crate) fn is_outside(&self, gid: u32) -> bool {
        !self.privileged && self.gid != gid && self.groups.as_ref().is_some_and(|g| !g.contains(&gid))
    }
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub ino: Ino,
    /// Type and permission bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Whether those are exact; else an estimate up to the next checkpoint.
    pub counted: bool,
    /// In memory only: the modification time unless something newer is known.
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// `FS_*_FL` bits.
    pub flags: u32,
    pub generation: u32,
    /// Preferred size of requests in bytes.
    pub block_size: u32,
}

impl Stat {
    /// Type bits of the mode.
    pub fn file_type(&self) -> u32 {
        self.mode & S_IFMT
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == S_IFDIR
    }

    pub fn is_regular(&self) -> bool {
        self.file_type() == S_IFREG
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// That of the request.
    Now,
    At(Time),
}

/// What a setattr shall change; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Bytes; regular files only.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Otherwise every change sets it to the time of the request.
    pub ctime: Option<Time>,
    /// Clear set-user-ID, and set-group-ID of what its group may execute. A change of owner or
    /// group does so in any case, except to directories.
    pub kill_suidgid: bool,
}

/// How to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Through a handle that appends: this may write append-only files, from their end on and where such writes
    /// left something out. The offset counts in any case: who asks knows where the end is, and several parts of one
    /// large write may come in any order.
    pub append: bool,
    /// Through a mapping: whatever the handle, append-only files refuse it.
    pub cached: bool,
    /// Done before flags that forbid it were set: they do not count.
    pub late: bool,
    /// Clear set-user-ID, and set-group-ID of what its group may execute.
    pub kill_suidgid: bool,
}

/// What to look for from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Sizes and counts of the volume. `blocks` is what is used plus `blocks_free`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block, the unit of the next three.
    pub block_size: u32,
    pub blocks: u64,
    /// Blocks not in use, never more than the storage below can grow.
    pub blocks_free: u64,
    /// Blocks that files can still get.
    pub blocks_available: u64,
    /// Inodes there are numbers for.
    pub files: u64,
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// One entry of a listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    /// Type bits of the mode, 0 where unknown.
    pub file_type: u32,
    pub name: &'a [u8],
    /// Where to go on behind this entry.
    pub next: u64,
    /// Attributes, if they were asked for and can be read; never for `.` and `..`.
    pub stat: Option<Stat>,
}

/// `renameat2` flags.
pub mod rename_flags {
    pub const NOREPLACE: u32 = 1;
    pub const EXCHANGE: u32 = 2;
}

/// `fallocate` modes.
pub mod fallocate_mode {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 0x10;
}

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
pub(crate) const S_IXGRP: u32 = 0o0010;

/// The mode after a change that takes set-id bits away. Without group execution, set-group-ID
/// means mandatory locking and stays.
pub(crate) fn without_suidgid(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}

/// Whether an inode refuses a change of its name, owner or mode.
pub(crate) fn is_fixed(attr: &Attr) -> bool {
    use silt_format::inode::flags;
    attr.flags & (flags::IMMUTABLE | flags::APPEND) != 0
}

/// Whether an inode refuses every change.
pub(crate) fn is_immutable(attr: &Attr) -> bool {
    attr.flags & silt_format::inode::flags::IMMUTABLE != 0
}

/// Whether an inode's content may only grow.
pub(crate) fn is_append_only(attr: &Attr) -> bool {
    attr.flags & silt_format::inode::flags::APPEND != 0
}
