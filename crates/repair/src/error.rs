//! Errors of a repair.

/// Result of a repair.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume could not be worked on.
    #[error(transparent)]
    Engine(#[from] silt_engine::Error),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] silt_device::Error),
    /// Whoever watched asked to end before the plan was made.
    #[error("ended before it was done; nothing was written")]
    Stopped,
    /// In words.
    #[error("{0}")]
    Hopeless(String),
}
