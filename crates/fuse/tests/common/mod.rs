//! Mounts for tests that clean up after themselves, whatever happens.
//!
//! A rig aborts its connection before anything of it goes away, and a watchdog does so after a minute, so
//! that a mistake fails a test instead of hanging it (or `sync` on the whole machine).

#![allow(dead_code)] // Each test binary uses a part.

use silt_fuse::{
    Ended, Error, Filesystem, MountOptions, Notifier, Running, Session, Unmount, abort_connection,
    find_mount, unmount,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a test may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// True if this machine lets us mount; says so if not.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match device {
        Ok(_) if root => true,
        Ok(_) => {
            println!("skipped: mounting needs root");
            false
        }
        Err(error) => {
            println!("skipped: /dev/fuse: {error}");
            false
        }
    }
}

/// What to ask for so that requests come through io_uring, where `SILT_TEST_IO_URING` is set: `cargo xtask test` runs
/// these tests both ways.
pub fn rings() -> silt_fuse::InitFlags {
    let wanted = std::env::var_os("SILT_TEST_IO_URING").is_some();
    assert!(!wanted || silt_fuse::io_uring_is_on(), "the kernel's switch is off");
    if wanted { silt_fuse::InitFlags::OVER_IO_URING } else { silt_fuse::InitFlags::empty() }
}

/// True if a program is installed; says so if not.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    if !found {
        println!("skipped: {name} is not installed");
    }
    found
}

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A directory to mount on, with a watchdog. Ends every mount on it when dropped.
pub struct Place {
    directory: Option<tempfile::TempDir>,
    path: PathBuf,
    watchdog: Option<Sender<()>>,
}

impl Place {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("mnt");
        std::fs::create_dir(&path).unwrap();
        let (watchdog, alive) = channel();
        let watched = path.clone();
        std::thread::spawn(move || {
            if alive.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the watchdog aborts {}", watched.display());
                let _ = abort_connection(&watched);
            }
        });
        Self { directory: Some(directory), path, watchdog: Some(watchdog) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path beside the mount point, not on it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.path.with_file_name(name)
    }

    pub fn is_mounted(&self) -> bool {
        find_mount(&self.path).unwrap().is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while let Ok(Some(_)) = find_mount(&self.path) {
            let _ = abort_connection(&self.path);
            if let Err(error) = unmount(&self.path, Unmount::Lazy) {
                eprintln!("{} is left behind: {error}", self.path.display());
                if let Some(directory) = self.directory.take() {
                    // Nothing below a mount must be removed.
                    let _ = directory.keep();
                }
                break;
            }
        }
        drop(self.watchdog.take());
    }
}

/// A file system mounted and served in this process.
pub struct Rig<F> {
    pub fs: Arc<F>,
    running: Option<Running>,
    place: Place,
}

impl<F: Filesystem> Rig<F> {
    pub fn new(fs: F) -> Self {
        Self::with(fs, &MountOptions::default(), 1)
    }

    pub fn with(fs: F, options: &MountOptions, threads: usize) -> Self {
        let place = Place::new();
        let fs = Arc::new(fs);
        let session = Session::mount(place.path(), options).unwrap();
        let running = session.spawn(Arc::clone(&fs), threads).unwrap();
        Self { fs, running: Some(running), place }
    }

    pub fn root(&self) -> &Path {
        self.place.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn notifier(&self) -> Notifier {
        self.running.as_ref().unwrap().notifier()
    }

    pub fn is_mounted(&self) -> bool {
        self.place.is_mounted()
    }

    /// Unmounts and waits for the end.
    pub fn finish(mut self) -> Ended {
        // A child process that another test starts just now holds our files until it calls exec.
        wait_for("the unmount", || match unmount(self.root(), Unmount::Strict) {
            Err(Error::Busy(_)) => false,
            result => result.map(|()| true).unwrap(),
        });
        self.join().unwrap()
    }

    /// Waits for the end.
    pub fn join(&mut self) -> silt_fuse::Result<Ended> {
        self.running.take().unwrap().join()
    }
}

impl<F> Drop for Rig<F> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = abort_connection(self.place.path());
            let _ = running.join();
        }
    }
}

/// A loop device over a new image. It goes away by itself with its last user.
pub struct Loop {
    pub device: PathBuf,
    _image: tempfile::NamedTempFile,
}

impl Loop {
    pub fn new(size: u64) -> Option<Self> {
        if !has_program("losetup") {
            return None;
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(size).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output().unwrap();
        if !output.status.success() {
            println!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        let device = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        Some(Self { device, _image: image })
    }

    /// Gives the device up: it lasts as long as it is mounted, even if this process is killed.
    pub fn release(&self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.release();
    }
}
