//! What can go wrong below the format.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Result of a device request.
pub type Result<T> = std::result::Result<T, Error>;

/// Which request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    Allocate,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
            Operation::Allocate => "allocate",
        })
    }
}

/// Names a range; a flush, of length 0, has none.
fn place(word: &str, offset: u64, len: u64) -> String {
    if len == 0 { String::new() } else { format!("{word}{len} bytes at byte {offset}") }
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
    #[error("no space left below the image{}", place(" for ", *.offset, *.len))]
    NoSpace { offset: u64, len: u64 },
    /// It was made shorter by others while it is in use, and ends within the range or before it.
    #[error("{operation}{} failed: the device is {size} bytes long now, shorter than the volume", place(" of ", *.offset, *.len))]
    Shorter { operation: Operation, offset: u64, len: u64, size: u64 },
    /// Whatever else the operating system said.
    #[error("{operation}{} failed: {source}", place(" of ", *.offset, *.len))]
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

    /// An error of the operating system during a request; a full file system or an exhausted
    /// quota is told apart from the rest.
    pub(crate) fn of_request(operation: Operation, offset: u64, len: u64, source: io::Error) -> Self {
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Error::NoSpace { offset, len },
            _ => Error::Io { operation, offset, len, source },
        }
    }

    /// An error about `path` as a whole.
    pub(crate) fn of_path(path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Open { path: path.display().to_string(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_told_apart() {
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let e = Error::of_request(Operation::Write, 4096, 512, errno.into());
            assert!(e.is_no_space(), "{e}");
        }
        assert!(!Error::of_request(Operation::Write, 4096, 512, Errno::IO.into()).is_no_space());
    }

    #[test]
    fn messages_name_the_range_where_there_is_one() {
        let write = Error::of_request(Operation::Write, 4096, 512, Errno::IO.into()).to_string();
        assert!(write.starts_with("write of 512 bytes at byte 4096 failed: "), "{write}");
        let flush = Error::of_request(Operation::Flush, 0, 0, Errno::IO.into()).to_string();
        assert!(flush.starts_with("flush failed: "), "{flush}");
        let full = Error::NoSpace { offset: 0, len: 0 }.to_string();
        assert_eq!(full, "no space left below the image");
    }
}
