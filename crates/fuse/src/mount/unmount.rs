//! Unmounting.

use super::{find_mount, helper, locate_mount};
use crate::error::{Error, Result};
use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nothing uses it. On `fuseblk` this returns when the file system has finished.
    #[default]
    Strict,
    /// Out of sight at once, gone when its last user is.
    Lazy,
}

/// Unmounts what is mounted on `path`: by umount(2) as root, else by fusermount3.
///
/// Not to be called from the only thread that serves a `fuseblk` mount: the kernel waits for its answer.
pub fn unmount(path: &Path, how: Unmount) -> Result<()> {
    let fail = |source: io::Error| Error::Unmount { path: path.to_owned(), source };
    let path = locate_mount(path).map_err(fail)?;
    let fail = |source: io::Error| Error::Unmount { path: path.clone(), source };
    if find_mount(&path).map_err(fail)?.is_none() {
        return Err(Error::NotMounted(path));
    }
    let lazy = how == Unmount::Lazy;
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(&path, lazy);
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(&path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy(path)),
        // Unmounted by someone else since it was looked up.
        Err(rustix::io::Errno::INVAL) => Err(Error::NotMounted(path)),
        Err(error) => Err(fail(error.into())),
    }
}
