//! Why a volume could not be mounted or served.

use std::path::PathBuf;

/// An error of [`crate::run`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device or image.
    #[error(transparent)]
    Device(#[from] silt_device::Error),
    /// The volume.
    #[error("{volume}: {source}", volume = .volume.display())]
    Volume { volume: PathBuf, source: silt_engine::Error },
    /// The mount.
    #[error(transparent)]
    Fuse(#[from] silt_fuse::Error),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] silt_control::ControlError),
    /// A thread or signal handler.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A request that cannot be met.
    #[error("{0}")]
    Invalid(String),
    /// Written data could not be made durable at the end.
    #[error("{volume}: what was written last may be lost: {why}", volume = .volume.display())]
    Unclean { volume: PathBuf, why: String },
}
