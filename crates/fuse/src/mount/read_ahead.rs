//! How far ahead of a program the kernel reads. It starts with 128 KiB whatever a file system says at INIT, which is
//! one request at a time; root may set more.

use std::io;
use std::path::Path;

use super::find_mount;

/// Has the kernel read up to `kib` KiB ahead of whoever reads a file of what is mounted on `path`, root only. Takes
/// effect once INIT was answered.
pub fn set_read_ahead(path: &Path, kib: u32) -> io::Result<()> {
    let entry = find_mount(path)?.filter(|entry| entry.is_fuse()).ok_or(io::ErrorKind::NotFound)?;
    let suffix = if entry.fs_type.starts_with("fuseblk") { "-fuseblk" } else { "" };
    let bdi = format!("/sys/class/bdi/{}:{}{suffix}/read_ahead_kb", entry.major, entry.minor);
    std::fs::write(bdi, kib.to_string())
}
