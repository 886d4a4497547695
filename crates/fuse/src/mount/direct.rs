//! Mounting by mount(2), as root.

use super::MountOptions;
use crate::channel::is_unconnected;
use crate::error::{Error, Result};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::io;
use std::path::Path;

/// Mounts on an absolute path; the descriptor that serves it.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(crate::DEVICE, flags, Mode::empty()).map_err(|e| Error::Device(e.into()))?;
    let fail = |source: io::Error| Error::Mount { path: path.to_owned(), source };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}{}",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.data(),
    );
    let data = CString::new(data).map_err(|error| fail(error.into()))?;
    let source = match &options.block_device {
        Some(device) => device.path.as_path(),
        None => Path::new(&options.source),
    };
    rustix::mount::mount(source, path, options.fs_type(), options.flags(), data.as_c_str())
        .map_err(|error| fail(error.into()))?;
    if is_unconnected(&fd) {
        // The device was mounted already: the kernel has shown that mount here too, and our descriptor
        // belongs to nothing. Taking ours away leaves the other alone.
        if let Err(error) = rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            tracing::warn!(%error, "a second mount of a device was left behind");
        }
        return Err(fail(rustix::io::Errno::BUSY.into()));
    }
    Ok(fd)
}
