//! Sockets that daemons left behind: whoever finds one removes it, where it lies in a directory of his own.
//!
//! A daemon that was killed leaves its socket, and nothing but a refused connection tells that it is dead. One that has
//! just been bound refuses, too, until its daemon listens, and between a look and the removal a successor may take its
//! place. So both are done with a lock held, by which whoever binds one holds all others off until it listens: what
//! refuses then is dead, and stays what it is. The lock lies in a file that only the directory's owner can open, so that
//! nobody else can keep daemons waiting.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::remote::PATIENCE;
use crate::{ControlError, Kind, Result, socket};

/// The file with the lock. It stays: who waits for it would hold one that nobody else finds.
const LOCK: &str = ".lock";
/// Between two tries to get it.
const PAUSE: Duration = Duration::from_millis(5);
/// So long who removes one waits for it: whoever comes next does as well.
const SHORT: Duration = Duration::from_millis(100);
/// Names in a directory that are looked at.
const MOST: usize = 1000;

/// Nobody else binds or removes sockets in a directory.
pub(crate) struct Alone(OwnedFd);

impl Alone {
    /// For who binds one. Errors: somebody has it for too long, or it cannot be had at all.
    pub(crate) fn to_bind(dir: &Path) -> Result<Self> {
        let file = dir.join(LOCK);
        Alone::within(dir, PATIENCE).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => {
                let message = format!("another program holds {} and does not let go", file.display());
                ControlError::new(Kind::Busy, message).hint("end it, then try again")
            }
            _ => ControlError::io(file.display(), &e),
        })
    }

    fn within(dir: &Path, most: Duration) -> io::Result<Self> {
        let until = Instant::now() + most;
        loop {
            match Alone::get(dir) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    fn get(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(dir.join(LOCK), flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Alone(file))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // A child that was just forked has the file as well, and would hold it on.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Removes a socket that refused a connection, if it still does. Where that may not be or somebody else is at it, it stays.
pub(crate) fn remove(dir: &Path, path: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    if fs::symlink_metadata(dir).is_ok_and(|m| m.uid() == uid)
        && let Ok(_alone) = Alone::within(dir, SHORT)
        && refuses(path)
    {
        // Whoever comes next finds it again.
        let _ = fs::remove_file(path);
    }
}

/// Removes all that lie where daemons of the caller's listen.
pub fn remove_all() {
    for dir in socket::own_dirs() {
        let names = fs::read_dir(&dir).into_iter().flatten().flatten().take(MOST);
        let sockets = names.filter(|entry| entry.file_type().is_ok_and(|t| t.is_socket()));
        for path in sockets.map(|entry| entry.path()).filter(|path| path.extension() == Some("sock".as_ref()))
        {
            if refuses(&path) {
                remove(&dir, &path);
            }
        }
    }
}

/// Whether nobody listens there. One that has no time just now listens.
fn refuses(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .is_ok_and(|socket| rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED))
}
