//! What can go wrong below the format.

use std::fmt;
use std::io;

/// Result of a device request.
pub type Result<T> = std::result::Result<T, Error>;

/// Which request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
        })
    }
}

/// An error of a device. Places are byte offsets on it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The range does not lie on the device.
    #[error("{operation} of {len} bytes at byte {offset} is past the end of the device ({size} bytes)")]
    OutOfRange { operation: Operation, offset: u64, len: u64, size: u64 },
    /// The device cannot be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// The file system below an image has no room for the write.
    #[error("no space left below the image for {len} bytes at byte {offset}")]
    NoSpace { offset: u64, len: u64 },
    /// Whatever else the operating system said.
    #[error("{operation} of {len} bytes at byte {offset} failed: {source}")]
    Io { operation: Operation, offset: u64, len: u64, source: io::Error },
    /// The device or image could not be opened or asked about.
    #[error("{path}: {source}")]
    Open { path: String, source: io::Error },
    /// Somebody else uses it.
    #[error("{path} is in use{}", .by.as_ref().map(|b| format!(" ({b})")).unwrap_or_default())]
    Busy { path: String, by: Option<String> },
}

impl Error {
    /// True when waiting for space below the image may help.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. })
    }
}
