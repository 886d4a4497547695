//! What operations carry besides the node: typed and checked.

use crate::abi::{ForgetOne, IoctlFlags};
use crate::attr::{NodeId, Timestamp};
use zerocopy::FromBytes;

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The number of the request.
    pub unique: u64,
    /// The caller's user; 0 for writes from the page cache.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The caller's process; 0 for requests of the kernel itself or from another namespace.
    pub pid: u32,
    /// The caller's umask in CREATE, TMPFILE, MKNOD and MKDIR. The kernel has applied it to the mode already,
    /// unless `DONT_MASK` was agreed on.
    pub umask: u32,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the file system's clock.
    Now,
    /// This time.
    At(Timestamp),
}

/// SETATTR: what shall change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions (and type, unchanged).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; only sent where the kernel keeps times itself (writeback cache).
    pub ctime: Option<Timestamp>,
    /// The handle through which it was asked (ftruncate).
    pub fh: Option<u64>,
    /// The owner of mandatory locks.
    pub lock_owner: Option<u64>,
    /// Clear suid, and sgid of group-executable files (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_*` of open(2), without `O_CREAT`, `O_EXCL` and `O_NOCTTY`; `O_TRUNC` only with `ATOMIC_O_TRUNC`.
    pub flags: u32,
    /// Clear suid and sgid (`HANDLE_KILLPRIV_V2` with `O_TRUNC`).
    pub kill_suidgid: bool,
}

/// CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Type and permissions of the new file.
    pub mode: u32,
    /// `O_*` of open(2).
    pub flags: u32,
    /// Clear suid and sgid.
    pub kill_suidgid: bool,
}

/// READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The handle, 0 with no-open.
    pub fh: u64,
    /// Position in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub size: u32,
    /// `O_*` of the handle.
    pub flags: u32,
    /// The owner of mandatory locks.
    pub lock_owner: Option<u64>,
}

/// WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The handle, 0 with no-open.
    pub fh: u64,
    /// Position in bytes.
    pub offset: u64,
    /// The data; it lies in the thread's buffer, page-aligned, only during the call.
    pub data: &'a [u8],
    /// `O_*` of the handle.
    pub flags: u32,
    /// The owner of mandatory locks.
    pub lock_owner: Option<u64>,
    /// From the page cache, some time after the program wrote: user and handle are not the writer's.
    pub cached: bool,
    /// Clear suid and sgid.
    pub kill_suidgid: bool,
}

/// RELEASE and RELEASEDIR: the last use of a handle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The handle.
    pub fh: u64,
    /// `O_*` of the handle.
    pub flags: u32,
    /// Flush as well.
    pub flush: bool,
    /// The owner whose `flock` ends with it.
    pub flock_owner: Option<u64>,
}

/// READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDir {
    /// The handle, 0 with no-opendir.
    pub fh: u64,
    /// 0, or the `next` of the last entry the kernel got.
    pub offset: u64,
}

/// SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// The name with its namespace.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// `XATTR_CREATE` or `XATTR_REPLACE`.
    pub flags: u32,
}

/// A lock: GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The handle.
    pub fh: u64,
    /// Whose lock it is.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for the end of the file wherever it is.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub typ: u32,
    /// The process, for GETLK's answer.
    pub pid: u32,
    /// From flock(2) instead of fcntl(2).
    pub flock: bool,
}

/// IOCTL: a restricted one, whose number tells the sizes of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The handle.
    pub fh: u64,
    /// Where it comes from.
    pub flags: IoctlFlags,
    /// The number of the call.
    pub cmd: u32,
    /// Its argument as given: a number, or a pointer in the caller's memory (of no use here).
    pub arg: u64,
    /// What the caller hands over.
    pub input: &'a [u8],
}

/// FALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The handle.
    pub fh: u64,
    /// Position in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// `FALLOC_FL_*`.
    pub mode: u32,
}

/// LSEEK: only sent for `SEEK_DATA` and `SEEK_HOLE` (and `SEEK_END` of some files).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lseek {
    /// The handle.
    pub fh: u64,
    /// Position in bytes.
    pub offset: u64,
    /// `SEEK_*`.
    pub whence: u32,
}

/// COPY_FILE_RANGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Handle of the source, which is the node of the request.
    pub fh_in: u64,
    /// Position in the source in bytes.
    pub offset_in: u64,
    /// The target.
    pub node_out: NodeId,
    /// Its handle.
    pub fh_out: u64,
    /// Position in the target in bytes.
    pub offset_out: u64,
    /// Length in bytes.
    pub length: u64,
    /// `COPY_FILE_*`.
    pub flags: u64,
}

/// POLL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The handle.
    pub fh: u64,
    /// The kernel's handle, for [`Notifier::poll`](crate::Notifier::poll).
    pub kh: u64,
    /// The events asked for.
    pub events: u32,
    /// The caller waits: a notification is wanted when something becomes ready.
    pub wake: bool,
}

/// RENAME and RENAME2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The old name, in the directory of the request.
    pub name: &'a [u8],
    /// The directory of the new name.
    pub new_parent: NodeId,
    /// The new name.
    pub new_name: &'a [u8],
    /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    pub flags: u32,
}

/// STATX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxArgs {
    /// The handle, if asked through one.
    pub fh: Option<u64>,
    /// `AT_STATX_*`.
    pub flags: u32,
    /// `STATX_*` wanted.
    pub mask: u32,
}

/// One forgotten node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The node.
    pub node: NodeId,
    /// How many lookups are taken back.
    pub lookups: u64,
}

/// The nodes of one FORGET or BATCH_FORGET.
#[derive(Clone, Debug)]
pub struct Forgets<'a> {
    left: u32,
    bytes: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// Of `count` elements, as far as `bytes` holds them.
    pub(crate) fn new(count: u32, bytes: &'a [u8]) -> Self {
        Self { left: count, bytes }
    }
}

impl Iterator for Forgets<'_> {
    type Item = Forget;

    fn next(&mut self) -> Option<Forget> {
        self.left = self.left.checked_sub(1)?;
        let (one, rest) = ForgetOne::read_from_prefix(self.bytes).ok()?;
        self.bytes = rest;
        Some(Forget { node: one.nodeid, lookups: one.nlookup })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn forgets_stop_at_the_count_and_at_the_bytes() {
        let ones = [ForgetOne { nodeid: 1, nlookup: 2 }, ForgetOne { nodeid: 3, nlookup: 4 }];
        let bytes = ones.as_bytes();
        assert_eq!(Forgets::new(2, bytes).map(|f| (f.node, f.lookups)).collect::<Vec<_>>(), [(1, 2), (3, 4)]);
        assert_eq!(Forgets::new(1, bytes).count(), 1);
        assert_eq!(Forgets::new(u32::MAX, bytes).count(), 2);
        assert_eq!(Forgets::new(2, &bytes[..31]).count(), 1);
    }
}
