//! Mounting things.

use std::ffi::CString;
use std::fs::create_dir_all;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use silt_model::syscalls::{NoMoments, PathTarget};

/// A cleaner that was told to quit has let go by then.
const ENDING: Duration = Duration::from_secs(10);

fn mount_at(source: &str, target: &str, kind: &str, flags: MountFlags, data: &str) -> Result<()> {
    let data = CString::new(data)?;
    mount(source, target, kind, flags, data.as_c_str())
        .with_context(|| format!("mounting {kind} at {target}"))
}

/// proc, sys, shared memory, a place for mount points, and the host's tree for writing.
pub(super) fn virtual_file_systems() -> Result<()> {
    let none = MountFlags::empty();
    mount_at("proc", "/proc", "proc", none, "")?;
    mount_at("sys", "/sys", "sysfs", none, "")?;
    mount_at("tmpfs", "/mnt", "tmpfs", none, "")?;
    create_dir_all("/dev/shm")?;
    mount_at("tmpfs", "/dev/shm", "tmpfs", none, "")?;
    create_dir_all(super::HOST)?;
    mount_at("none", super::HOST, "hostfs", none, "/")
}

/// A mounted nilfs2 volume.
pub(super) struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Mounts `device` on a new directory named `name`; `data` are the driver's options.
    pub(super) fn new(device: &str, name: &str, read_only: bool, data: &str) -> Result<Self> {
        let at = Path::new("/mnt").join(name);
        create_dir_all(&at)?;
        let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
        if read_only {
            flags |= MountFlags::RDONLY;
        }
        let data = CString::new(data)?;
        mount(device, &at, "nilfs2", flags, data.as_c_str())
            .with_context(|| format!("mounting {device} ({data:?})"))?;
        Ok(Self { at })
    }

    /// The root directory.
    pub(super) fn root(&self) -> Result<OwnedFd> {
        PathTarget::<NoMoments>::open_root(&self.at).with_context(|| format!("opening {}", self.at.display()))
    }

    /// Unmounts. No descriptor may be open, but those of a cleaner that is about to end.
    pub(super) fn unmount(self) -> Result<()> {
        let started = Instant::now();
        loop {
            match unmount(&self.at, UnmountFlags::empty()) {
                Err(Errno::BUSY) if started.elapsed() < ENDING => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                result => return result.with_context(|| format!("unmounting {}", self.at.display())),
            }
        }
    }
}
