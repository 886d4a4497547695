//! Locks of a whole open file (`F_OFD_SETLK`, fcntl(2)), which rustix has no function for.
//!
//! On the node of a block device they tell one Silt from another. `flock` is not for that: udev asks for it before it
//! looks at a device, and would wait as long as a mount lasts.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};

/// What is locked or asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Beside others that are shared.
    Shared,
    /// Alone.
    Exclusive,
}

fn whole(lock: Lock) -> libc::flock {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    };
    // SAFETY: a structure of integers.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    // Both are small and of types that differ between machines; from 0 to the end is zero, too.
    whole.l_type = kind as _;
    whole.l_whence = libc::SEEK_SET as _;
    whole
}

fn fcntl(fd: impl AsFd, command: libc::c_int, lock: &mut libc::flock) -> Result<()> {
    // SAFETY: both commands read and write one flock, which lives as long as the call.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

/// Takes the lock until the last descriptor of this opening is closed; false where somebody has one that does not go
/// with it. Does not wait.
pub(crate) fn take(fd: impl AsFd, lock: Lock) -> Result<bool> {
    loop {
        return match fcntl(&fd, libc::F_OFD_SETLK, &mut whole(lock)) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e),
        };
    }
}

/// Gives the lock back.
pub(crate) fn release(fd: impl AsFd) -> Result<()> {
    let mut none = whole(Lock::Shared);
    none.l_type = libc::F_UNLCK as _;
    fcntl(fd, libc::F_OFD_SETLK, &mut none)
}

/// Whether another opening has a lock of either kind.
pub(crate) fn is_taken(fd: impl AsFd) -> Result<bool> {
    let mut asked = whole(Lock::Exclusive);
    fcntl(fd, libc::F_OFD_GETLK, &mut asked)?;
    Ok(libc::c_int::from(asked.l_type) != libc::F_UNLCK)
}
