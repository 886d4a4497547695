//! Attributes, times, entries and sizes as a file system hands them over, and how they become messages.
//!
//! Times are signed: moments before 1970 have negative seconds and nanoseconds that count upwards, as in
//! `struct timespec`.

use crate::abi::{AttrOut, EntryOut, FuseAttr, Kstatfs, StatxBody, StatxOut, SxTime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of a node, chosen by the file system; 1 is the root, 0 is none.
pub type NodeId = u64;

/// A point in time: seconds since 1970 (negative before) plus nanoseconds (0 to 999,999,999).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

impl Timestamp {
    /// Seconds and nanoseconds.
    pub const fn new(secs: i64, nanos: u32) -> Self {
        Self { secs, nanos }
    }

    /// The time of the system's clock.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// From the two fields of a message; none where the nanoseconds are out of range.
    pub(crate) fn from_wire(secs: u64, nanos: u32) -> Option<Self> {
        (nanos < 1_000_000_000).then_some(Self { secs: secs.cast_signed(), nanos })
    }

    fn statx(self) -> SxTime {
        SxTime { tv_sec: self.secs, tv_nsec: self.nanos, reserved: 0 }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                Self { secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX), nanos: after.subsec_nanos() }
            }
            Err(error) => {
                let before = error.duration();
                let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
                match before.subsec_nanos() {
                    0 => Self { secs, nanos: 0 },
                    nanos => Self { secs: secs.saturating_sub(1), nanos: 1_000_000_000 - nanos },
                }
            }
        }
    }
}

/// The type of a node as directory entries carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FileType {
    /// Not told; programs ask by stat.
    Unknown = 0,
    /// A FIFO.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl FileType {
    /// From the type bits of a mode.
    pub const fn from_mode(mode: u32) -> Self {
        match (mode >> 12) & 15 {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => Self::Unknown,
        }
    }
}

/// The attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The inode number that programs see.
    pub ino: u64,
    /// Length in bytes; at most `i64::MAX`.
    pub size: u64,
    /// Space taken in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the node.
    pub ctime: Timestamp,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node in the kernel's 32-bit encoding, as MKNOD gives it.
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl Attr {
    pub(crate) fn wire(&self) -> FuseAttr {
        FuseAttr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.secs.cast_unsigned(),
            mtime: self.mtime.secs.cast_unsigned(),
            ctime: self.ctime.secs.cast_unsigned(),
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }

    pub(crate) fn attr_out(&self, ttl: Duration) -> AttrOut {
        let (attr_valid, attr_valid_nsec) = wire_ttl(ttl);
        AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: self.wire() }
    }
}

/// A validity time as the kernel takes it, cut at 136 years so that it never turns negative there.
fn wire_ttl(ttl: Duration) -> (u64, u32) {
    let most = Duration::from_secs(u64::from(u32::MAX));
    let ttl = ttl.min(most);
    (ttl.as_secs(), ttl.subsec_nanos())
}

/// A name's node with its attributes. Every reply that carries one adds 1 to the node's lookup count, which
/// FORGET takes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node; 0 makes it a cached "no such name".
    pub node: NodeId,
    /// Tells apart nodes that use the same number one after the other.
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may use the attributes without asking.
    pub attr_ttl: Duration,
    /// How long the kernel may use the name without asking.
    pub entry_ttl: Duration,
}

impl Entry {
    /// A cached "no such name".
    pub fn negative(ttl: Duration) -> Self {
        Self { entry_ttl: ttl, ..Self::default() }
    }

    pub(crate) fn wire(&self) -> EntryOut {
        let (attr_valid, attr_valid_nsec) = wire_ttl(self.attr_ttl);
        let (entry_valid, entry_valid_nsec) = wire_ttl(self.entry_ttl);
        EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: self.attr.wire(),
        }
    }
}

/// What statx(2) shows beyond [`Attr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statx {
    /// The ordinary attributes.
    pub attr: Attr,
    /// When the node was made, where known.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that are known.
    pub attributes_mask: u64,
}

impl Statx {
    pub(crate) fn wire(&self, ttl: Duration) -> StatxOut {
        let (attr_valid, attr_valid_nsec) = wire_ttl(ttl);
        let attr = &self.attr;
        let basic = libc::STATX_BASIC_STATS;
        let btime = if self.btime.is_some() { libc::STATX_BTIME } else { 0 };
        let stat = StatxBody {
            mask: basic | btime,
            blksize: attr.blksize,
            attributes: self.attributes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: u16::try_from(attr.mode & 0xffff).unwrap_or(0),
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: self.attributes_mask,
            atime: attr.atime.statx(),
            btime: self.btime.unwrap_or_default().statx(),
            ctime: attr.ctime.statx(),
            mtime: attr.mtime.statx(),
            rdev_major: (attr.rdev & 0x000f_ff00) >> 8,
            rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0x000f_ff00),
            ..StatxBody::default()
        };
        StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
    }
}

/// Sizes and counts of the file system, for statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks in all, in units of `frsize`.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for those who are not root.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Size of the blocks counted, in bytes.
    pub frsize: u32,
}

impl Default for Statfs {
    fn default() -> Self {
        Self { blocks: 0, bfree: 0, bavail: 0, files: 0, ffree: 0, bsize: 4096, namelen: 255, frsize: 4096 }
    }
}

impl Statfs {
    pub(crate) fn wire(&self) -> Kstatfs {
        Kstatfs {
            blocks: self.blocks,
            bfree: self.bfree,
            bavail: self.bavail,
            files: self.files,
            ffree: self.ffree,
            bsize: self.bsize,
            namelen: self.namelen,
            frsize: self.frsize,
            padding: 0,
            spare: [0; 6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        let time = Timestamp::from(UNIX_EPOCH - Duration::from_millis(1_500));
        assert_eq!(time, Timestamp::new(-2, 500_000_000));
        let attr = Attr { mtime: time, ..Attr::default() }.wire();
        assert_eq!(Timestamp::from_wire(attr.mtime, attr.mtimensec), Some(time));
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(3)), Timestamp::new(-3, 0));
    }

    #[test]
    fn nanoseconds_out_of_range_are_refused() {
        assert_eq!(Timestamp::from_wire(1, 1_000_000_000), None);
    }

    #[test]
    fn validity_never_overflows() {
        assert_eq!(wire_ttl(Duration::MAX), (u64::from(u32::MAX), 0));
        assert_eq!(wire_ttl(Duration::from_millis(1_250)), (1, 250_000_000));
    }

    #[test]
    fn statx_splits_device_numbers() {
        // 0x12345 as the minor and 0x678 as the major number, in the kernel's encoding.
        let rdev = 0x45 | (0x678 << 8) | (0x123 << 20);
        let stat = Statx { attr: Attr { rdev, ..Attr::default() }, ..Statx::default() };
        let wire = stat.wire(Duration::ZERO).stat;
        assert_eq!((wire.rdev_major, wire.rdev_minor), (0x678, 0x12345));
        assert_eq!(wire.mask & libc::STATX_BTIME, 0);
    }
}
