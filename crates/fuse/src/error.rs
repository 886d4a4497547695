//! What can go wrong with mounts and sessions.

use crate::errno::Errno;
use std::io;
use std::path::PathBuf;

/// An error of mounting, serving or unmounting. The texts say what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0}; is FUSE enabled in this kernel?")]
    Device(#[source] io::Error),
    /// The mount point is missing, is not a directory, or cannot be looked at.
    #[error("cannot use {path} as a mount point: {source}")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something dead is mounted there.
    #[error("{0} holds a mount whose daemon is gone; unmount it first")]
    StaleMount(PathBuf),
    /// An option makes no sense or cannot be passed on.
    #[error("mount option {name}: {reason}")]
    BadOption {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// mount(2) failed.
    #[error("mounting on {path} failed: {source}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fusermount3 is not installed.
    #[error("mounting without root needs fusermount3 (Debian package fuse3): {0}")]
    HelperMissing(#[source] io::Error),
    /// fusermount3 refused; the text is its own.
    #[error("{0}")]
    Helper(String),
    /// Nothing is mounted there.
    #[error("nothing is mounted on {0}")]
    NotMounted(PathBuf),
    /// The mount is in use.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// Something else lies over the mount, and would be unmounted in its stead.
    #[error("{0} is covered by another mount")]
    Covered(PathBuf),
    /// umount(2) failed.
    #[error("unmounting {path} failed: {source}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel speaks a version that cannot be served.
    #[error(
        "the kernel speaks FUSE {major}.{minor}, at least 7.{} is needed (Linux 5.4)",
        crate::abi::VERSION_MINOR_MIN
    )]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The file system refused to start.
    #[error("the file system refused to start: {0}")]
    Init(#[source] Errno),
    /// Reading requests failed in a way that cannot be continued from.
    #[error("reading requests from /dev/fuse failed: {0}")]
    Read(#[source] io::Error),
    /// A ring of io_uring could not be set up or used.
    #[error("requests cannot go through io_uring: {0}")]
    Ring(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The control file system could not be used.
    #[error("cannot abort the connection of {path}: {source}")]
    Abort {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A notification could not be delivered.
    #[error("notification failed: {0}")]
    Notify(#[source] io::Error),
}

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
