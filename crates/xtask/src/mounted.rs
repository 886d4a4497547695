//! A volume mounted by the real daemon.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::scratch;

/// A process that was killed is gone by then.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command; its failure is an error with what it said.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = scratch::output(command)?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// Fails unless the checker finds the volume sound; it may have been left in any way.
pub fn judge(image: &Path) -> Result<()> {
    let options = silt_device::OpenOptions::default();
    let device = silt_device::open(image, silt_device::Access::ReadOnly, &options)?;
    let report = silt_verify::check(&device, &silt_verify::Options::default());
    if report.is_clean() { Ok(()) } else { bail!("the volume is not sound:\n{}", report.error_text()) }
}

/// Waits until nobody has an image any more: programs in the mount of a killed daemon keep its loop device.
pub fn wait_free(image: &Path) -> Result<()> {
    let started = Instant::now();
    while let Some(by) = silt_device::usage(image)? {
        if started.elapsed() > PATIENCE {
            bail!("{} is still in use: {by}", image.display());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Makes a sparse image with an empty volume.
pub fn mkfs(silt: &Path, image: &Path, size: &str, more: &[&str]) -> Result<()> {
    run(Command::new(silt).args(["mkfs", "-q", "--size", size]).args(more).arg(image)).map(|_| ())
}

/// A mounted volume. Dropped, it is detached: that is for failures.
pub struct Mounted {
    silt: PathBuf,
    dir: PathBuf,
    pid: Pid,
    up: bool,
}

impl Mounted {
    /// Mounts `image` on `dir`, which is made if need be.
    pub fn new(silt: &Path, image: &Path, dir: &Path, options: &[&str]) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        run(Command::new(silt).arg("mount").args(options).arg(image).arg(dir))?;
        // From here on it is to be taken away again.
        let mut mounted = Self { silt: silt.to_owned(), dir: dir.to_owned(), pid: Pid::INIT, up: true };
        let status = run(Command::new(silt).args(["status", "--json"]).arg(dir))?;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout)?;
        let pid = status.get("pid").and_then(serde_json::Value::as_i64);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        mounted.pid = pid.filter(|pid| *pid != Pid::INIT).context("status tells no pid")?;
        Ok(mounted)
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kills the daemon by SIGKILL and takes the mount away. `before` is called just before.
    pub fn kill(mut self, before: impl FnOnce()) -> Result<()> {
        before();
        kill_process(self.pid, Signal::KILL).context("killing the daemon")?;
        self.up = false;
        unmount(&self.dir, UnmountFlags::DETACH).context("detaching the mount of a killed daemon")?;
        // It holds the volume until it is gone.
        let started = Instant::now();
        let stat = PathBuf::from(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            if started.elapsed() > PATIENCE {
                bail!("the daemon was killed {PATIENCE:?} ago and is still there");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Unmounts; the volume is closed then.
    pub fn unmount(mut self) -> Result<()> {
        run(Command::new(&self.silt).arg("umount").arg(&self.dir))?;
        self.up = false;
        Ok(())
    }

    /// Fails unless the daemon serves rings.
    pub fn wants_rings(&self) -> Result<()> {
        let tasks = format!("/proc/{}/task", self.pid.as_raw_nonzero());
        let names = std::fs::read_dir(&tasks)?
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        if names.into_iter().any(|name| name.starts_with("ring-")) {
            Ok(())
        } else {
            bail!("requests do not come through io_uring")
        }
    }

    /// The most memory that the daemon has had in use, in KiB.
    pub fn peak_memory(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let text = std::fs::read_to_string(&path)?;
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("{path}: no VmHWM"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.up
            && let Err(e) = unmount(&self.dir, UnmountFlags::DETACH)
        {
            eprintln!("xtask: {} stays mounted: {e}", self.dir.display());
        }
    }
}
