//! Opcodes, flag words and notification codes.
//!
//! Unknown bits from the kernel are kept where they are looked at (`from_bits_retain`) and never sent back.

use bitflags::bitflags;

/// Declares the opcodes together with their names for messages.
macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        /// What a request asks for.
        #[allow(missing_docs)]
        pub mod opcode {
            $(pub const $name: u32 = $value;)*
        }

        /// The name of an opcode, for messages.
        pub fn opcode_name(opcode: u32) -> &'static str {
            match opcode {
                $($value => stringify!($name),)*
                _ => "UNKNOWN",
            }
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
}

bitflags! {
    /// What kernel and daemon agree on at INIT. Bits above 31 travel in `flags2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Reads of one file may be in flight together.
        const ASYNC_READ = 1 << 0;
        /// `fcntl` locks are sent here; without it the kernel keeps them itself.
        const POSIX_LOCKS = 1 << 1;
        /// `O_TRUNC` comes with OPEN instead of as a SETATTR. Not together with no-open, which sends no OPEN.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of "." and ".." by node works, so that file handles (NFS) survive eviction.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes may be larger than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The umask is left to the file system.
        const DONT_MASK = 1 << 6;
        /// `flock` locks are sent here.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl on directories is sent.
        const IOCTL_DIR = 1 << 11;
        /// Cached content is dropped when size or mtime of a reply differ from the known ones.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS may be sent.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O may be in flight asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// Writes are collected in the page cache; size and times are the kernel's meanwhile.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN means: never ask again, no handles for files.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// LOOKUP and READDIR of one directory may be in flight together.
        const PARALLEL_DIROPS = 1 << 18;
        /// The file system clears suid and sgid on write, truncate and chown by itself.
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs as extended attributes.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives ECONNABORTED instead of ENODEV.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` of the INIT reply is valid.
        const MAX_PAGES = 1 << 22;
        /// READLINK results are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR means: never ask again, no handles for directories.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached content is dropped only when told by a notification.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Sub-mounts (not negotiated here).
        const SUBMOUNTS = 1 << 27;
        /// As `HANDLE_KILLPRIV`, but each request says whether to clear (`kill_suidgid`).
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The long form of SETXATTR (not negotiated here).
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Security contexts after names (not negotiated here).
        const SECURITY_CTX = 1 << 32;
        /// Supplementary groups of the caller as an extension (not negotiated here).
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files opened with `DIRECT_IO` are allowed.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests and answers go through io_uring, in the kernel since 6.14.
        const OVER_IO_URING = 1 << 41;
    }
}

impl InitFlags {
    /// What this crate implements fully; other bits are dropped from a reply.
    pub const SUPPORTED: Self = Self::from_bits_truncate(
        Self::ASYNC_READ.bits()
            | Self::POSIX_LOCKS.bits()
            | Self::ATOMIC_O_TRUNC.bits()
            | Self::EXPORT_SUPPORT.bits()
            | Self::BIG_WRITES.bits()
            | Self::DONT_MASK.bits()
            | Self::FLOCK_LOCKS.bits()
            | Self::IOCTL_DIR.bits()
            | Self::AUTO_INVAL_DATA.bits()
            | Self::DO_READDIRPLUS.bits()
            | Self::READDIRPLUS_AUTO.bits()
            | Self::ASYNC_DIO.bits()
            | Self::WRITEBACK_CACHE.bits()
            | Self::NO_OPEN_SUPPORT.bits()
            | Self::PARALLEL_DIROPS.bits()
            | Self::HANDLE_KILLPRIV.bits()
            | Self::POSIX_ACL.bits()
            | Self::ABORT_ERROR.bits()
            | Self::MAX_PAGES.bits()
            | Self::CACHE_SYMLINKS.bits()
            | Self::NO_OPENDIR_SUPPORT.bits()
            | Self::EXPLICIT_INVAL_DATA.bits()
            | Self::HANDLE_KILLPRIV_V2.bits()
            | Self::INIT_EXT.bits()
            | Self::HAS_EXPIRE_ONLY.bits()
            | Self::DIRECT_IO_ALLOW_MMAP.bits()
            | Self::OVER_IO_URING.bits(),
    );
}

bitflags! {
    /// How the kernel shall treat an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep what is cached of the file from before.
        const KEEP_CACHE = 1 << 1;
        /// The file has no position.
        const NONSEEKABLE = 1 << 2;
        /// Cache the listing of this directory.
        const CACHE_DIR = 1 << 3;
        /// The file is a stream.
        const STREAM = 1 << 4;
        /// No FLUSH at close (unless writes are cached).
        const NOFLUSH = 1 << 5;
        /// Direct writes of one file may be in flight together.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

bitflags! {
    /// Where an ioctl comes from.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IoctlFlags: u32 {
        /// From a 32-bit program on a 64-bit kernel.
        const COMPAT = 1 << 0;
        /// From a 32-bit program.
        const BITS_32 = 1 << 3;
        /// On a directory.
        const DIR = 1 << 4;
    }
}

/// Which fields of SETATTR are valid.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// GETATTR: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// OPEN and CREATE: clear suid and sgid.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// READ: the lock owner is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE: from the page cache, the handle is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: the lock owner is valid.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE: clear suid and sgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// RELEASE: flush as well.
pub const RELEASE_FLUSH: u32 = 1 << 0;
/// RELEASE: the last flock of the handle ends.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Locks: flock instead of fcntl.
pub const LK_FLOCK: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// POLL: a wake-up is wanted.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// Notification of a stale name: expire it, do not drop it.
pub const NOTIFY_EXPIRE_ONLY: u32 = 1 << 0;

/// Notification codes.
#[allow(missing_docs)]
pub mod notify {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
}

/// Commands to the device through io_uring.
#[allow(missing_docs)]
pub mod ring_command {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_unimplemented_is_supported() {
        for flag in [
            InitFlags::SUBMOUNTS,
            InitFlags::SETXATTR_EXT,
            InitFlags::SECURITY_CTX,
            InitFlags::CREATE_SUPP_GROUP,
        ] {
            assert!(!InitFlags::SUPPORTED.intersects(flag), "{flag:?}");
        }
    }

    #[test]
    fn opcodes_have_names() {
        assert_eq!(opcode_name(opcode::SYNCFS), "SYNCFS");
        assert_eq!(opcode_name(7), "UNKNOWN");
    }
}
