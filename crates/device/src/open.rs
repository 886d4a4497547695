//! Opening a volume's file so that nobody else uses it meanwhile, and making image files.
//!
//! Who writes has the volume alone; readers share it. On an image that is a lock on the file
//! (`flock`), shared or exclusive. On a block device it is the kernel's exclusive claim (`O_EXCL`), which keeps
//! out every mount and `mkfs`, and a lock on its node, which tells one Silt from another: of several readers the first
//! has the claim, and a mount on the device (`fuseblk`) has it in the writer's place.
//! On top of both the tables of mounts and loop devices are asked (see [`crate::usage`](mod@crate::usage)), since
//! a mount through a loop device does not lock the file. The tables are asked after the lock is
//! held, so of two openings at once at most one succeeds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::file::{Descriptors, Kind};
use crate::ofd;
use crate::usage::{self, Usage};
use crate::{Device, Error, FileDevice, Result};

/// How often a lock or claim is tried that somebody may hold for a moment only, and the time between.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(40);

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading, beside other readers.
    ReadOnly,
    /// Reading and writing, alone.
    ReadWrite,
}

/// How a device is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Bypass the page cache (`O_DIRECT`). Fails where the file system below cannot.
    pub direct: bool,
    /// Numbers of loop devices that do not count as use: those the caller attached itself.
    pub ignore_loops: Vec<u32>,
    /// With [`Access::ReadOnly`]: take no lock and do not ask who else uses the volume. For a look
    /// at a volume that somebody may be writing; what is read may be half new, half old.
    /// Without effect on [`Access::ReadWrite`].
    pub without_lock: bool,
}

/// Opens an image file or block device.
///
/// Errors: [`Error::Busy`] when it is in use in a way that does not go with `access`;
/// [`Error::Open`] for everything else, also for what is neither a regular file nor a block device.
pub fn open(path: impl AsRef<Path>, access: Access, options: &OpenOptions) -> Result<FileDevice> {
    let path = path.as_ref();
    // Asked before opening: opening a FIFO or a tape has effects.
    let stat = rustix::fs::stat(path).map_err(|e| Error::of_path(path, e))?;
    kind_of(path, &stat)?;
    let fd = open_fd(path, access_flags(access)).map_err(|e| match e {
        Errno::BUSY | Errno::TXTBSY => busy(path, None),
        e => Error::of_path(path, e),
    })?;
    finish(path, fd, access, options)
}

/// Makes a sparse image file of `size` bytes, readable and writable by its owner only, and opens
/// it for writing. A file that exists is an error (`AlreadyExists`) unless `overwrite` is set; then
/// it loses what it held, unless it is in use.
pub fn create_image(path: impl AsRef<Path>, size: u64, overwrite: bool) -> Result<FileDevice> {
    let path = path.as_ref();
    let flags = access_flags(Access::ReadWrite) | OFlags::CREATE | OFlags::EXCL;
    let options = OpenOptions::default();
    match retry_on_intr(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)) {
        Ok(fd) => {
            let device = finish(path, fd, Access::ReadWrite, &options);
            let sized = device.and_then(|d| d.set_size(size).map(|()| d));
            if sized.is_err() {
                // Ours and empty: leave nothing behind. The first error is the one to tell.
                let _ = std::fs::remove_file(path);
            }
            sized
        }
        Err(Errno::EXIST) if overwrite => {
            let device = open(path, Access::ReadWrite, &options)?;
            if device.is_block_device() {
                let why = io::Error::new(io::ErrorKind::InvalidInput, "is a block device, not an image file");
                return Err(Error::of_path(path, why));
            }
            // What cannot be that large keeps what it holds.
            if size > device.len() {
                device.set_size(size)?;
            }
            device.set_size(0)?;
            device.set_size(size)?;
            Ok(device)
        }
        Err(e) => Err(Error::of_path(path, e)),
    }
}

fn access_flags(access: Access) -> OFlags {
    let mode = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    mode | OFlags::CLOEXEC
}

fn open_fd(path: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
}

fn kind_of(path: &Path, stat: &rustix::fs::Stat) -> Result<Kind> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Kind::Image),
        FileType::BlockDevice => Ok(Kind::Block),
        FileType::Directory => Err(Error::of_path(path, Errno::ISDIR)),
        _ => {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "neither an image file nor a block device");
            Err(Error::of_path(path, why))
        }
    }
}

fn busy(path: &Path, by: Option<String>) -> Error {
    Error::Busy { path: path.display().to_string(), by }
}

/// Opens the file behind `main` once more, with other flags; that it is the same is checked.
fn reopen(path: &Path, main: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = open_fd(path, flags)?;
    let (a, b) = (rustix::fs::fstat(main)?, rustix::fs::fstat(&fd)?);
    if (a.st_dev, a.st_ino, a.st_rdev) != (b.st_dev, b.st_ino, b.st_rdev) {
        return Err(io::Error::other("was replaced while it was being opened"));
    }
    Ok(fd)
}

/// Claims what `main` is open on and makes a device of it.
fn finish(path: &Path, main: OwnedFd, access: Access, options: &OpenOptions) -> Result<FileDevice> {
    let stat = rustix::fs::fstat(&main).map_err(|e| Error::of_path(path, e))?;
    let kind = kind_of(path, &stat)?;
    let read_only = access == Access::ReadOnly;
    if kind == Kind::Block && !read_only && crate::ioctl::read_only(&main).unwrap_or(false) {
        return Err(Error::of_path(path, Errno::ROFS));
    }
    let mut claim = None;
    if !(read_only && options.without_lock) {
        claim = match kind {
            Kind::Image => lock(path, &main, access, options).map(|()| None)?,
            Kind::Block => {
                lock_node(path, &main, access)?;
                claim_block(path, &main, access, options)?
            }
        };
        let used = usage::find(path, &stat, &options.ignore_loops, false)?;
        if let Some(u) = used.filter(|u| !(read_only && u.is_read_only())) {
            return Err(busy(path, Some(u.to_string())));
        }
    }
    let direct = match options.direct {
        false => None,
        true => Some(reopen(path, &main, access_flags(access) | OFlags::DIRECT).map_err(|e| {
            if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) {
                let why = "the file system below does not do direct I/O";
                return Error::of_path(path, io::Error::new(io::ErrorKind::Unsupported, why));
            }
            Error::of_path(path, e)
        })?),
    };
    // Not everything below can do it, and nothing depends on it.
    let large =
        direct.is_none().then(|| reopen(path, &main, access_flags(access) | OFlags::DIRECT).ok()).flatten();
    FileDevice::new(path, kind, Descriptors { main, direct, large, claim }, read_only)
}

/// Locks an image, as far as the file system below knows locks.
fn lock(path: &Path, main: &OwnedFd, access: Access, options: &OpenOptions) -> Result<()> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    let mut patience = TRIES;
    let mut known = None;
    loop {
        match retry_on_intr(|| rustix::fs::flock(main.as_fd(), operation)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => return Ok(()),
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(Error::of_path(path, e)),
        }
        let stat = rustix::fs::fstat(main).map_err(|e| Error::of_path(path, e))?;
        known = usage::find(path, &stat, &options.ignore_loops, true)?.or(known);
        // A program that is being started holds its parent's locks until it runs.
        patience -= 1;
        if patience == 0 || known.as_ref().is_some_and(|u| !matches!(u, Usage::Locked { .. })) {
            let by = known.unwrap_or(Usage::Locked { pid: None, program: None, shared: false });
            return Err(busy(path, Some(by.to_string())));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Claims the block device that `main` is open on, for writing, where its node is locked already.
pub(crate) fn claim(path: &Path, main: &OwnedFd) -> Result<Option<OwnedFd>> {
    claim_block(path, main, Access::ReadWrite, &OpenOptions::default())
}

/// The same where nobody has it at this moment.
pub(crate) fn claim_now(path: &Path, main: &OwnedFd) -> Result<Option<OwnedFd>> {
    match reopen(path, main, access_flags(Access::ReadOnly) | OFlags::EXCL) {
        Ok(fd) => Ok(Some(fd)),
        Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(None),
        Err(e) => Err(Error::of_path(path, e)),
    }
}

/// Locks the node of a block device, as far as the file system that it is in knows locks.
fn lock_node(path: &Path, main: &OwnedFd, access: Access) -> Result<()> {
    let kind = match access {
        Access::ReadOnly => ofd::Lock::Shared,
        Access::ReadWrite => ofd::Lock::Exclusive,
    };
    for patience in (0..TRIES).rev() {
        match ofd::take(main, kind) {
            Ok(true) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => return Ok(()),
            Ok(false) => {}
            Err(e) => return Err(Error::of_path(path, e)),
        }
        if patience > 0 {
            std::thread::sleep(PAUSE);
        }
    }
    // The tables name a mount; they do not tell who has such a lock.
    let stat = rustix::fs::fstat(main).map_err(|e| Error::of_path(path, e))?;
    let by = usage::find(path, &stat, &[], false)?;
    Err(busy(path, Some(by.map_or_else(|| "used by another silt".to_owned(), |u| u.to_string()))))
}

/// Claims a block device until the claim is dropped. For reading `None` where another reader has it: a read-only mount
/// of the kernel's, or another Silt.
fn claim_block(
    path: &Path,
    main: &OwnedFd,
    access: Access,
    options: &OpenOptions,
) -> Result<Option<OwnedFd>> {
    let mut patience = TRIES;
    loop {
        match reopen(path, main, access_flags(Access::ReadOnly) | OFlags::EXCL) {
            Ok(fd) => return Ok(Some(fd)),
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(e) => return Err(Error::of_path(path, e)),
        }
        let stat = rustix::fs::fstat(main).map_err(|e| Error::of_path(path, e))?;
        match usage::find(path, &stat, &options.ignore_loops, false)? {
            Some(u) if access == Access::ReadOnly && u.is_read_only() => return Ok(None),
            Some(u) => return Err(busy(path, Some(u.to_string()))),
            // Beside our shared lock there are none but shared ones.
            None if access == Access::ReadOnly && ofd::is_taken(main).unwrap_or(false) => return Ok(None),
            None => {}
        }
        // Whoever sets up a loop device, or looks only what is on it, has it for a moment.
        patience -= 1;
        if patience == 0 {
            return Err(busy(path, Some("claimed by the kernel or another program".to_owned())));
        }
        std::thread::sleep(PAUSE);
    }
}
