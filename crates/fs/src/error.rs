//! What a request can come to besides success, and the error number each has on Linux.

use silt_engine as engine;
use silt_format::Ino;

/// Result of a request.
pub type Result<T> = std::result::Result<T, FsError>;

/// Why a request failed. Unless a variant says otherwise, nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDir,
    /// EISDIR
    #[error("is a directory")]
    IsDir,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG: a name of more than 255 bytes, a symlink target of a block or more.
    #[error("the name is too long")]
    NameTooLong,
    /// EMLINK: the format's limit of 32,000, which subdirectories count against, too.
    #[error("too many links")]
    TooManyLinks,
    /// ENOSPC
    #[error("no space left on the volume")]
    NoSpace,
    /// EFBIG
    #[error("the file would be too large")]
    FileTooBig,
    /// EROFS
    #[error("read-only")]
    ReadOnly,
    /// EPERM: immutable and append-only inodes, and what needs privilege.
    #[error("not permitted")]
    NotPermitted,
    /// EACCES
    #[error("access denied")]
    Access,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// ESTALE: there is no such inode any more.
    #[error("the inode is gone")]
    Stale,
    /// EBUSY
    #[error("busy")]
    Busy,
    /// EXDEV
    #[error("on another file system")]
    CrossDevice,
    /// ELOOP
    #[error("too many symbolic links")]
    Loop,
    /// ENXIO: no data (or hole) from the offset on.
    #[error("nothing there")]
    NoData,
    /// EOPNOTSUPP
    #[error("not supported")]
    NotSupported,
    /// EAGAIN: so much is to be cut away that it goes in parts. One is done, and as much of the request as that comes to; it is
    /// to be made again when the next checkpoint is written, and again, until something else comes of it.
    #[error("a part of it is done")]
    InParts,
    /// EIO at the end of a listing that began elsewhere: something before was left out, which was told then.
    #[error("part of the directory could not be read")]
    LeftOut,
    /// EIO: the device failed or what is on it cannot be right; `what` says where. What concerns
    /// several blocks may be done in part.
    #[error("inode {ino}: {what}")]
    Io {
        /// The inode that suffers.
        ino: u64,
        /// The place and what is wrong there.
        what: String,
        /// The device did not give it: what is there is not known, and another time it may.
        device: bool,
    },
}

impl FsError {
    /// The error number of Linux, positive.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotPermitted => 1,
            FsError::NotFound => 2,
            FsError::Io { .. } | FsError::LeftOut => 5,
            FsError::NoData => 6,
            FsError::InParts => 11,
            FsError::Access => 13,
            FsError::Busy => 16,
            FsError::Exists => 17,
            FsError::CrossDevice => 18,
            FsError::NotDir => 20,
            FsError::IsDir => 21,
            FsError::Invalid => 22,
            FsError::FileTooBig => 27,
            FsError::NoSpace => 28,
            FsError::ReadOnly => 30,
            FsError::TooManyLinks => 31,
            FsError::NameTooLong => 36,
            FsError::NotEmpty => 39,
            FsError::Loop => 40,
            FsError::NotSupported => 95,
            FsError::Stale => 116,
        }
    }

    /// An `Io` error made on the spot.
    pub(crate) fn damaged(ino: Ino, what: impl Into<String>) -> Self {
        FsError::Io { ino: ino.0, what: what.into(), device: false }
    }

    /// An error of the engine as one of an inode.
    pub(crate) fn of_engine(ino: Ino, e: &engine::Error) -> Self {
        match e {
            engine::Error::NoSpace => FsError::NoSpace,
            engine::Error::ReadOnly => FsError::ReadOnly,
            engine::Error::NoInode(_) | engine::Error::NoCheckpoint(_) => FsError::Stale,
            engine::Error::Constructing | engine::Error::CheckpointBusy(..) => FsError::Busy,
            e => {
                let device = matches!(e, engine::Error::Device(_));
                FsError::Io { ino: ino.0, what: e.to_string(), device }
            }
        }
    }

    /// Whether the device did not give what was wanted.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self, FsError::Io { device: true, .. })
    }
}

/// Gives errors of the layers below their inode.
pub(crate) trait Of<T> {
    /// The error as one of `ino`.
    fn of(self, ino: Ino) -> Result<T>;
}

impl<T> Of<T> for engine::Result<T> {
    fn of(self, ino: Ino) -> Result<T> {
        self.map_err(|e| FsError::of_engine(ino, &e))
    }
}

impl<T> Of<T> for silt_format::Result<T> {
    fn of(self, ino: Ino) -> Result<T> {
        self.map_err(|e| FsError::damaged(ino, e.to_string()))
    }
}
