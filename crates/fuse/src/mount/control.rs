//! The control file system of FUSE: the way to end a connection whose daemon hangs or is gone.
//!
//! After an abort every request under way fails, and so does every later one; the mount stays and can be
//! unmounted without waiting. A `fuseblk` mount needs this before its daemon is killed: its unmount, and any
//! sync(2) on the machine, may otherwise wait for the daemon for ever.

use super::find_mount;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, fsconfig_create, fsmount, fsopen, mount,
};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
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
    match open_abort(connection).and_then(|mut file| file.write_all(b"1")) {
        // Where there is no control file system, that tells nothing.
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_there() => Ok(()),
        result => result,
    }
}

fn is_there() -> bool {
    find_mount(Path::new(CONNECTIONS))
        .is_ok_and(|there| there.is_some_and(|entry| entry.fs_type == "fusectl"))
}

/// Whether the kernel has a connection, wherever its mount is, or out of sight. Needs to be root, and nothing to be mounted
/// where the control file system belongs.
pub fn is_connected(connection: u64) -> io::Result<bool> {
    match statat(&unseen()?, connection.to_string(), AtFlags::empty()) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The root of the control file system, which is to be seen nowhere and goes with the descriptor.
fn unseen() -> io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Has the kernel send so many requests of a connection at most without waiting for their answers, as [`Config::max_background`]
/// does at first; where the caller is not root, no more than the kernel allows others. Needs to be root, or who mounted it and the
/// control file system to be mounted.
///
/// [`Config::max_background`]: crate::Config::max_background
pub fn set_max_background(connection: u64, most: u16) -> io::Result<()> {
    let name = Path::new(&connection.to_string()).join("max_background");
    let open = |root: OwnedFd| openat(root, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let mut file = match unseen().and_then(|root| Ok(open(root)?)) {
        Ok(file) => File::from(file),
        Err(_) => File::options().write(true).open(Path::new(CONNECTIONS).join(&name))?,
    };
    match file.write_all(most.to_string().as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let allowed = std::fs::read_to_string("/sys/module/fuse/parameters/max_user_bgreq")?;
            file.write_all(allowed.trim().as_bytes())
        }
        done => done,
    }
}

/// The file that aborts a connection when anything is written to it. The control file system is mounted if it is not and
/// the caller is root.
pub fn open_abort(connection: u64) -> io::Result<File> {
    let root = Path::new(CONNECTIONS);
    if find_mount(root)?.is_none() {
        match mount("none", root, "fusectl", MountFlags::empty(), None) {
            // Somebody else did at the same time.
            Err(Errno::BUSY) => {}
            result => result?,
        }
    }
    File::options().write(true).open(root.join(connection.to_string()).join("abort"))
}
