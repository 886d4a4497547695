//! The trait that a file system implements: one method an operation.
//!
//! Methods are called from the session's threads, several at once if there are several, and may keep their
//! reply object and return before they answer. Every method has a default that the kernel understands: most
//! answer ENOSYS, which the kernel remembers for many operations and never asks again.

use crate::attr::{NodeId, Statfs};
use crate::errno::Errno;
use crate::init::{Config, KernelInfo};
use crate::ops::{
    Context, CopyFileRange, Create, Fallocate, Forgets, Ioctl, Lock, Lseek, Open, Poll, Read, ReadDir,
    Release, Rename, SetAttr, SetXattr, StatxArgs, Write,
};
use crate::reply::{
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyInterrupt, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr,
};

/// How a session came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destroy {
    /// The kernel's DESTROY. A `fuseblk` unmount waits for the answer, and the block device is claimed until then.
    Asked,
    /// The session ended without one: a plain mount's always does, a `fuseblk` mount's when it is aborted or unmounted by
    /// force. Nobody may have a claim on the block device any more.
    Unasked,
}

/// See the module. Names are bytes without slash and NUL, never empty; only [`Self::lookup`] gets "." and
/// "..", and only with `EXPORT_SUPPORT`.
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync + 'static {
    /// Called once before anything else: look at what the kernel offers, choose in `config`. An error ends
    /// the session, and every access to the mount fails.
    fn init(&self, kernel: &KernelInfo, config: &mut Config) -> Result<(), Errno> {
        Ok(())
    }

    /// Requests come through io_uring from now on: the kernel has few of each processor open at a time.
    fn rings_begin(&self) {}

    /// Called once at the end. Nothing is asked afterwards, though replies may still be unanswered.
    fn destroy(&self, how: Destroy) {}

    /// A handler panicked; its caller got EIO. What the file system has in memory may be half changed.
    fn panicked(&self, operation: &'static str) {}

    /// Finds a name. Adds 1 to the node's lookup count.
    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// Takes lookups back. At 0 the kernel holds nothing of the node any more, not even an open file. After
    /// an unmount the rest is forgotten without being told.
    fn forget(&self, node: NodeId, lookups: u64) {}

    /// Many of [`Self::forget`] at once.
    fn batch_forget(&self, forgets: Forgets<'_>) {
        for one in forgets {
            self.forget(one.node, one.lookups);
        }
    }

    /// Attributes of a node.
    fn getattr(&self, ctx: &Context, node: NodeId, fh: Option<u64>, reply: ReplyAttr) {
        reply.error(Errno::ENOSYS);
    }

    /// Changes attributes: chmod, chown, truncate, utimensat.
    fn setattr(&self, ctx: &Context, node: NodeId, set: &SetAttr, reply: ReplyAttr) {
        reply.error(Errno::ENOSYS);
    }

    /// The target of a symbolic link, without a NUL.
    fn readlink(&self, ctx: &Context, node: NodeId, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a symbolic link `name` that points to `target`.
    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8], reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a file, FIFO, socket or device. `rdev` is in the encoding of [`Attr::rdev`](crate::Attr::rdev).
    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, rdev: u32, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a directory. `mode` may lack the type bits.
    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// Removes the name of something that is not a directory.
    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Renames; also renameat2 with its flags. ENOSYS to one with flags is EINVAL for the program.
    fn rename(&self, ctx: &Context, parent: NodeId, rename: &Rename<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a further name of `node`. Adds 1 to its lookup count.
    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// Opens a file. ENOSYS: no handles, never ask again; opens succeed.
    fn open(&self, ctx: &Context, node: NodeId, open: &Open, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes and opens a file. ENOSYS: the kernel uses MKNOD and OPEN from now on.
    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8], create: &Create, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes and opens a file without a name (`O_TMPFILE`). ENOSYS is EOPNOTSUPP for the program.
    fn tmpfile(&self, ctx: &Context, parent: NodeId, create: &Create, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    /// Reads; shorter than asked for means the end of the file.
    fn read(&self, ctx: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    /// Writes.
    fn write(&self, ctx: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        reply.error(Errno::ENOSYS);
    }

    /// A descriptor was closed (there may be others of the handle). ENOSYS: never asked again.
    fn flush(&self, ctx: &Context, node: NodeId, fh: u64, lock_owner: u64, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// The last use of a handle ended. Nobody sees the answer.
    fn release(&self, ctx: &Context, node: NodeId, release: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a file durable; `datasync` for fdatasync. ENOSYS: never asked again, and fsync *succeeds*.
    fn fsync(&self, ctx: &Context, node: NodeId, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Opens a directory. ENOSYS: no handles, never ask again; opens succeed and listings are cached.
    fn opendir(&self, ctx: &Context, node: NodeId, open: &Open, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// Lists a directory from an offset on.
    fn readdir(&self, ctx: &Context, node: NodeId, read: &ReadDir, reply: ReplyDirectory) {
        reply.error(Errno::ENOSYS);
    }

    /// Lists a directory and looks its entries up. Only with `DO_READDIRPLUS`.
    fn readdirplus(&self, ctx: &Context, node: NodeId, read: &ReadDir, reply: ReplyDirectoryPlus) {
        reply.error(Errno::ENOSYS);
    }

    /// The last use of a directory handle ended.
    fn releasedir(&self, ctx: &Context, node: NodeId, release: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a directory durable. ENOSYS: never asked again, and fsync *succeeds*.
    fn fsyncdir(&self, ctx: &Context, node: NodeId, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Sizes and counts.
    fn statfs(&self, ctx: &Context, node: NodeId, reply: ReplyStatfs) {
        reply.statfs(&Statfs::default());
    }

    /// Sets an extended attribute. ENOSYS: never asked again, EOPNOTSUPP for programs.
    fn setxattr(&self, ctx: &Context, node: NodeId, set: &SetXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Gets an extended attribute. ENOSYS: never asked again, EOPNOTSUPP for programs.
    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// Lists extended attributes: names, each ended by a NUL. ENOSYS: never asked again.
    fn listxattr(&self, ctx: &Context, node: NodeId, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// Removes an extended attribute. ENOSYS: never asked again, EOPNOTSUPP for programs.
    fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Checks permission (`R_OK`, `W_OK`, `X_OK`). ENOSYS: never asked again, all is allowed. Not sent with
    /// the mount option `default_permissions`.
    fn access(&self, ctx: &Context, node: NodeId, mask: u32, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Looks for a lock in the way. Only with `POSIX_LOCKS`.
    fn getlk(&self, ctx: &Context, node: NodeId, lock: &Lock, reply: ReplyLock) {
        reply.error(Errno::ENOSYS);
    }

    /// Sets or removes a lock; `wait` means until it can be had (or [`Self::interrupt`] ends it: EINTR). Only
    /// with `POSIX_LOCKS` or `FLOCK_LOCKS`.
    fn setlk(&self, ctx: &Context, node: NodeId, lock: &Lock, wait: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Where a block of a file lies on the device. Only on `fuseblk`.
    fn bmap(&self, ctx: &Context, node: NodeId, block: u64, block_size: u32, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    /// Device control. lsattr comes here as `FS_IOC_GETFLAGS`; chattr as `FS_IOC_FSGETXATTR` (the kernel asks
    /// by that first), then `FS_IOC_SETFLAGS`. For these an answer shorter than the reply's limit is EIO.
    fn ioctl(&self, ctx: &Context, node: NodeId, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.error(Errno::ENOTTY);
    }

    /// Readiness. ENOSYS: never asked again, always ready.
    fn poll(&self, ctx: &Context, node: NodeId, poll: &Poll, reply: ReplyPoll) {
        reply.error(Errno::ENOSYS);
    }

    /// Reserves, punches or zeroes. ENOSYS: never asked again, EOPNOTSUPP for programs.
    fn fallocate(&self, ctx: &Context, node: NodeId, fallocate: &Fallocate, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Finds data or a hole. ENOSYS: never asked again, files have no holes.
    fn lseek(&self, ctx: &Context, node: NodeId, lseek: &Lseek, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    /// Copies between two files. ENOSYS: never asked again, the kernel reads and writes.
    fn copy_file_range(&self, ctx: &Context, node: NodeId, copy: &CopyFileRange, reply: ReplyWrite) {
        reply.error(Errno::ENOSYS);
    }

    /// sync(2) or syncfs(2). Sent on `fuseblk` mounts by newer kernels (seen with 6.18, not with 6.1).
    /// ENOSYS: never asked again, and the call *succeeds*.
    fn syncfs(&self, ctx: &Context, node: NodeId, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Attributes that GETATTR lacks (birth time). ENOSYS: never asked again, GETATTR is used.
    fn statx(&self, ctx: &Context, node: NodeId, args: &StatxArgs, reply: ReplyStatx) {
        reply.error(Errno::ENOSYS);
    }

    /// The caller of request `unique` got a signal. If it waits, answer it with EINTR; with several threads
    /// the request may not have arrived yet.
    fn interrupt(&self, ctx: &Context, unique: u64, reply: ReplyInterrupt) {
        reply.never();
    }
}
