//! Why a tree cannot be read.

/// Errors of [`crate::Tree`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A structure is wrong or the volume is not ours.
    #[error(transparent)]
    Format(#[from] silt_format::Error),
    /// A block cannot be read, or what is in it makes no sense.
    #[error("{0}")]
    Damaged(String),
    /// There is no such checkpoint.
    #[error("there is no checkpoint {0}")]
    NoCheckpoint(u64),
    /// There is no such inode.
    #[error("there is no inode {0}")]
    NoInode(u64),
    /// There is no such name.
    #[error("{0}: not found")]
    NotFound(String),
}
