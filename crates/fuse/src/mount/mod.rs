//! Mounting: a descriptor of `/dev/fuse` becomes a directory.
//!
//! Root calls mount(2) itself (`direct`); others ask fusermount3, which is set-uid root, mounts, and hands
//! the descriptor over (`helper`).
//!
//! | kind | type in /proc/mounts | source | at unmount | sync(2) arrives |
//! |---|---|---|---|---|
//! | plain | `fuse.silt` | any text | the connection just ends | no |
//! | block | `fuseblk.silt` | a block device | waits for DESTROY | from Linux 6.18 on |

pub(crate) mod control;
mod direct;
mod helper;
mod options;
mod place;
mod read_ahead;
mod table;
mod unmount;

pub use control::{abort_connection, is_connected, open_abort, set_max_background};
pub use options::{BlockDevice, MountOptions};
pub use place::Place;
pub use read_ahead::set_read_ahead;
pub use table::{MountEntry, find_mount, locate_mount, mounts};
pub use unmount::{Unmount, unmount};

use crate::error::{Error, Result};
use rustix::fd::OwnedFd;
use std::io;
use std::path::{Path, PathBuf};

/// A mounted directory.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) fd: OwnedFd,
    pub(crate) place: Place,
}

/// Mounts on `path`.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<Mounted> {
    options.check()?;
    let path = resolve(path)?;
    let fd = if rustix::process::geteuid().is_root() {
        direct::mount(&path, options)?
    } else {
        helper::mount(&path, options)?
    };
    let connection = find_mount(&path).ok().flatten().map(|entry| entry.connection());
    Ok(Mounted { fd, place: Place { path, connection } })
}

/// The absolute path of a mount point that shall be mounted on.
fn resolve(path: &Path) -> Result<PathBuf> {
    let fail = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => Error::StaleMount(path.to_owned()),
        _ => Error::MountPoint { path: path.to_owned(), source },
    };
    let path = path.canonicalize().map_err(fail)?;
    if path.metadata().map_err(fail)?.is_dir() {
        Ok(path)
    } else {
        Err(Error::MountPoint { path, source: io::ErrorKind::NotADirectory.into() })
    }
}
