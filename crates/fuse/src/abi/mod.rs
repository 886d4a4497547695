//! The messages of the FUSE protocol as the kernel lays them out, version 7.31 to 7.39.
//!
//! A request is an [`InHeader`], then the fixed arguments of its opcode, then names (each ended by a NUL) or
//! data. A reply is an [`OutHeader`], then the fixed result, then data. Numbers are in the machine's byte
//! order: both ends are on one machine.
//!
//! ```text
//! request  | InHeader 40 | arguments | name\0 ... or data | extensions (total_extlen * 8) |
//! reply    | OutHeader 16 | result | data |
//! ```
//!
//! Invariants: every structure is free of implicit padding (`IntoBytes` proves it) and its size is pinned by
//! a test. Fields keep the header's names, so that this module can be read beside `linux/fuse.h`.

mod flags;

pub use flags::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version spoken here.
pub const VERSION_MAJOR: u32 = 7;
/// The newest minor version whose messages are understood here.
pub const VERSION_MINOR_MAX: u32 = 39;
/// The oldest minor version that is accepted (Linux 5.4).
pub const VERSION_MINOR_MIN: u32 = 31;
/// The node of the root directory.
pub const ROOT_ID: u64 = 1;
/// The shortest read buffer that the kernel accepts, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;

/// Declares protocol structures with the derives that all of them need.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $ty,)* }
    )*};
}

wire! {
    /// Opens every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Opens every reply and notification (`unique` is 0 and `error` the code in the latter).
    OutHeader { len: u32, error: i32, unique: u64, }
    /// The attributes of a node. Times are signed seconds in unsigned fields.
    FuseAttr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// STATFS result.
    Kstatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// A lock range; `end` is inclusive.
    FileLock { start: u64, end: u64, typ: u32, pid: u32, }
    /// Result of LOOKUP and of everything that makes a node.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: FuseAttr,
    }
    /// FORGET.
    ForgetIn { nlookup: u64, }
    /// One element of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64, }
    /// Head of BATCH_FORGET.
    BatchForgetIn { count: u32, dummy: u32, }
    /// GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    /// Result of GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: FuseAttr, }
    /// MKNOD, followed by the name.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR, followed by the name.
    MkdirIn { mode: u32, umask: u32, }
    /// RENAME, followed by the old and the new name.
    RenameIn { newdir: u64, }
    /// RENAME2, followed by the old and the new name.
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    /// LINK, followed by the new name.
    LinkIn { oldnodeid: u64, }
    /// SETATTR.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32, }
    /// CREATE and TMPFILE, followed by the name.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Result of OPEN and OPENDIR; the second half of the result of CREATE.
    OpenOut { fh: u64, open_flags: u32, padding: u32, }
    /// RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE, followed by the data.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// Result of WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32, }
    /// FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR in its short form, followed by the name and the value.
    SetxattrIn { size: u32, flags: u32, }
    /// GETXATTR (followed by the name) and LISTXATTR.
    GetxattrIn { size: u32, padding: u32, }
    /// Result of GETXATTR and LISTXATTR where only the size was asked for.
    GetxattrOut { size: u32, padding: u32, }
    /// GETLK, SETLK and SETLKW.
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    /// ACCESS.
    AccessIn { mask: u32, padding: u32, }
    /// INIT up to 7.35; the rest of newer ones is [`InitInExt`].
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// What INIT adds with `INIT_EXT` (7.36).
    InitInExt { flags2: u32, unused: [u32; 11], }
    /// Result of INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    /// INTERRUPT: which request the caller gave up.
    InterruptIn { unique: u64, }
    /// BMAP.
    BmapIn { block: u64, blocksize: u32, padding: u32, }
    /// Result of BMAP.
    BmapOut { block: u64, }
    /// IOCTL, followed by the input buffer.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// Result of IOCTL, followed by the output buffer.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// POLL.
    PollIn { fh: u64, kh: u64, flags: u32, events: u32, }
    /// Result of POLL.
    PollOut { revents: u32, padding: u32, }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// Head of a directory entry, followed by the name, padded with zeros to 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, typ: u32, }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// Result of LSEEK.
    LseekOut { offset: u64, }
    /// COPY_FILE_RANGE.
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// STATX (7.39).
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// A time in [`StatxBody`].
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    /// The attributes of a node as statx(2) knows them.
    StatxBody {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Result of STATX.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxBody, }
    /// Notification: a node's attributes and a range of its cached content are stale.
    NotifyInvalInode { ino: u64, off: i64, len: i64, }
    /// Notification: a name is stale; followed by the name and a NUL.
    NotifyInvalEntry { parent: u64, namelen: u32, flags: u32, }
    /// Notification: a name was removed; followed by the name and a NUL.
    NotifyDelete { parent: u64, child: u64, namelen: u32, padding: u32, }
    /// Notification: content for the page cache; followed by the data.
    NotifyStore { nodeid: u64, offset: u64, size: u32, padding: u32, }
    /// Notification: a polled file became ready.
    NotifyPollWakeup { kh: u64, }
    /// What a ring entry's request and answer carry besides header and data.
    RingEntry { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// The first buffer of a ring entry: [`InHeader`] or [`OutHeader`], the fixed arguments of the opcode. All
    /// else, an answer's fixed result too, is in the second buffer.
    RingHead { in_out: [u64; 16], op_in: [u64; 16], entry: RingEntry, }
    /// The command part of a submission.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are the kernel's; a mistake in a field shifts everything after it.
    #[test]
    fn sizes_match_the_header() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<FuseAttr>(), 88),
            (size_of::<Kstatfs>(), 80),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<CreateIn>(), 16),
            (size_of::<OpenOut>(), 16),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<LkIn>(), 48),
            (size_of::<InitIn>() + size_of::<InitInExt>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<IoctlIn>(), 32),
            (size_of::<FallocateIn>(), 32),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Dirent>(), 24),
            (size_of::<StatxIn>(), 24),
            (size_of::<StatxBody>(), 256),
            (size_of::<StatxOut>(), 288),
            (size_of::<NotifyInvalInode>(), 24),
            (size_of::<NotifyInvalEntry>(), 16),
            (size_of::<NotifyDelete>(), 24),
            (size_of::<NotifyStore>(), 24),
            (size_of::<RingEntry>(), 32),
            (size_of::<RingHead>(), 288),
            (size_of::<RingCommand>(), 24),
        ];
        for (index, (got, want)) in sizes.into_iter().enumerate() {
            assert_eq!(got, want, "structure number {index}");
        }
    }
}
