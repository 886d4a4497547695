//! Errors of a volume, each with the place that is wrong.

use silt_format as format;

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A structure on disk cannot be right; `place` says where it was met.
    #[error("{place}: {source}")]
    Format { place: String, source: format::Error },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] silt_device::Error),
    /// Not a volume, or one that must not be touched.
    #[error(transparent)]
    Unusable(format::Error),
    /// No clean segment is left.
    #[error("no space left on the volume")]
    NoSpace,
    /// There is no such checkpoint.
    #[error("there is no checkpoint {0}")]
    NoCheckpoint(u64),
    /// The checkpoint is needed: a snapshot, mounted, or the newest.
    #[error("checkpoint {0} is in use ({1})")]
    CheckpointBusy(u64, &'static str),
    /// There is no such inode (or it was deleted).
    #[error("there is no inode {0}")]
    NoInode(u64),
    /// The volume is open for reading only.
    #[error("the volume is open for reading only")]
    ReadOnly,
    /// A checkpoint is being written, or what waits has to be written first; try again after it.
    #[error("a checkpoint is being written, or has to be first")]
    Constructing,
    /// What a cleaning was planned on is no longer so; plan it again.
    #[error("the volume changed while a cleaning was planned")]
    Stale,
    /// Writing to the volume has ended; the words say why.
    #[error("{0}")]
    Failed(String),
    /// The volume has features that only allow reading, of which the bits are given (spec 2.4).
    #[error("the volume has features that only allow reading ({0:#x}); mount it with -o ro")]
    ReadOnlyFeatures(u64),
    /// The volume was not cleanly unmounted, and opening it for writing was to leave out recovery.
    #[error("the volume was not cleanly unmounted: norecovery needs ro as well")]
    Unclean,
    /// Opening for writing: the log at `block`, which a super block names as that of checkpoint `named`, is damaged, and the other
    /// super block leads to an older checkpoint, `found` (spec 4.2).
    #[error(
        "the log at block {block} is damaged, which a super block names as that of the newest checkpoint, {named}: checkpoint \
         {found}, to which the other super block leads, can only be read, since writing behind it would give up what came \
         after; silt repair mends this"
    )]
    Older { block: u64, named: u64, found: u64 },
    /// A request that cannot be met, in words.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// A `Format` error.
    pub fn at(place: impl Into<String>, source: format::Error) -> Self {
        Error::Format { place: place.into(), source }
    }

    /// A `Format` error made on the spot.
    pub fn corrupt(place: impl Into<String>, structure: &'static str, what: impl Into<String>) -> Self {
        Error::Format { place: place.into(), source: format::Error::corrupt(structure, what) }
    }
}

/// Adds the place to errors of the format.
pub trait At<T> {
    /// Names the place of an error.
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T> At<T> for std::result::Result<T, format::Error> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Format { place: place(), source })
    }
}
