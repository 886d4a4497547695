//! The control file system of FUSE: the way to end a connection whose daemon hangs or is gone.
//!
//! After an abort every request under way fails, and so does every later one; the mount stays and can be
//! unmounted without waiting. A `fuseblk` mount needs this before its daemon is killed: its unmount, and any
//! sync(2) on the machine, may otherwise wait for the daemon for ever.

use super::find_mount;
use crate::error::{Error, Result};
use rustix::mount::{MountFlags, mount};
use std::io;
use std::path::Path;

/// Where the control file system belongs.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of what is mounted on `path`. Needs to be root or who mounted it, and the control
/// file system, which is mounted if it is not and the caller is root (it stays mounted). Never touches the
/// mounted file system itself, so that it works where that hangs.
pub fn abort_connection(path: &Path) -> Result<()> {
    let fail = |source: io::Error| Error::Abort { path: path.to_owned(), source };
    match find_mount(path).map_err(fail)? {
        Some(entry) if entry.is_fuse() => abort(entry.connection()).map_err(fail),
        _ => Err(Error::NotMounted(path.to_owned())),
    }
}

/// Aborts a connection by number. One that is gone is no error.
pub(crate) fn abort(connection: u64) -> io::Result<()> {
    let root = Path::new(CONNECTIONS);
    let mounted = find_mount(root)?.is_some();
    if !mounted {
        mount("none", root, "fusectl", MountFlags::empty(), None)?;
    }
    match std::fs::write(root.join(connection.to_string()).join("abort"), b"1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
