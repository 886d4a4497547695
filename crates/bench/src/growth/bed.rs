//! A volume on a sparse image, made and mounted as its users do: `silt mkfs`, `silt mount` in the background.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::timed;
use crate::measure::peak_memory;
use crate::process::{go_on, run};
use crate::system::Tools;

/// A volume, mounted or not; unmounted and removed when dropped.
pub struct Bed<'a> {
    tools: &'a Tools,
    image: PathBuf,
    dir: PathBuf,
    /// Of `silt mount`.
    options: Option<String>,
    daemon: Option<u32>,
}

/// Segments that the cleaner emptied, and bytes that it copied.
#[derive(Clone, Copy, Default)]
pub struct Did {
    pub segments: u64,
    /// Bytes.
    pub segment_size: u64,
    pub copied: u64,
}

impl Did {
    /// What was done after `before`.
    pub fn since(self, before: Did) -> Self {
        Did {
            segment_size: self.segment_size,
            segments: self.segments.saturating_sub(before.segments),
            copied: self.copied.saturating_sub(before.copied),
        }
    }
}

impl<'a> Bed<'a> {
    /// Makes a volume of `size` bytes.
    pub fn new(tools: &'a Tools, scratch: &Path, size: u64) -> Result<Self> {
        let (image, dir) = (scratch.join("v.img"), scratch.join("mnt"));
        let bed = Bed { tools, image, dir, options: None, daemon: None };
        fs::create_dir_all(&bed.dir)?;
        run(bed.silt("mkfs").args(["-q", "--size", &size.to_string()]).arg(&bed.image))?;
        Ok(bed)
    }

    /// The same, to be mounted with these options.
    pub fn with(mut self, options: &str) -> Self {
        self.options = Some(options.to_owned());
        self
    }

    /// What `silt status` says of it while it is mounted.
    pub fn status(&self) -> Result<serde_json::Value> {
        let status = run(self.silt("status").arg("--json").arg(&self.dir))?;
        Ok(serde_json::from_slice(&status.stdout)?)
    }

    /// A verb of the program.
    pub fn silt(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.tools.silt);
        command.arg(verb);
        command
    }

    /// The image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path on it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Mounts it; seconds until the command returned.
    pub fn mount(&mut self) -> Result<f64> {
        go_on()?;
        let mut mount = self.silt("mount");
        if let Some(options) = &self.options {
            mount.args(["-o", options]);
        }
        let seconds = timed(|| run(mount.args([&self.image, &self.dir])))?;
        let status = self.status()?;
        let pid = status.get("pid").and_then(serde_json::Value::as_u64).context("no number of the daemon")?;
        self.daemon = Some(u32::try_from(pid)?);
        Ok(seconds)
    }

    /// Unmounts it; seconds until all was written.
    pub fn unmount(&mut self) -> Result<f64> {
        let seconds = timed(|| run(self.silt("umount").arg(&self.dir)))?;
        self.daemon = None;
        Ok(seconds)
    }

    /// Kills the daemon, as if the power went for it alone.
    pub fn kill(&mut self) -> Result<()> {
        let pid = self.daemon.take().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let process = pidfd_open(pid.context("it is not mounted")?, PidfdFlags::empty())?;
        pidfd_send_signal(&process, Signal::KILL)?;
        // When all of its threads have ended: until then its sockets take connections.
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? == 0 {
            bail!("the daemon does not end");
        }
        run(self.silt("umount").arg(&self.dir)).map(|_| ())
    }

    /// Unmounts, has the host forget what it read, and mounts; seconds of mounting.
    pub fn mount_cold(&mut self) -> Result<f64> {
        if self.daemon.is_some() {
            self.unmount()?;
        }
        drop_caches()?;
        self.mount()
    }

    /// As [`Bed::mount_cold`] after the daemon was killed.
    pub fn mount_killed(&mut self) -> Result<f64> {
        self.kill()?;
        drop_caches()?;
        self.mount()
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        let dir = File::open(&self.dir)?;
        rustix::fs::syncfs(dir.as_fd())?;
        // Where the kernel does not pass syncfs on.
        Ok(dir.sync_all()?)
    }

    /// What its cleaner did since it was mounted.
    pub fn work(&self) -> Result<Did> {
        let status = self.status()?;
        let number = |v: Option<&serde_json::Value>| v.and_then(serde_json::Value::as_u64);
        let work = status.get("cleaner").and_then(|c| c.get("work")).context("no word of the cleaner")?;
        let block = number(status.get("block_size")).context("no block size")?;
        let of = |name| number(work.get(name)).with_context(|| format!("no {name} of the cleaner"));
        let segment_size = number(status.get("segment_size")).context("no segment size")?;
        Ok(Did { segments: of("segments")?, segment_size, copied: of("moved")? * block })
    }

    /// Bytes that the daemon has written since it began: to the image, and answers to the kernel, which are few beside them.
    pub fn written(&self) -> Result<u64> {
        let pid = self.daemon.context("it is not mounted")?;
        let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
        let word = text.lines().find_map(|line| line.strip_prefix("wchar: ")).context("no wchar")?;
        Ok(word.parse()?)
    }

    /// The daemon's memory is watched from now on.
    pub fn watch(&self) -> Result<()> {
        let pid = self.daemon.context("it is not mounted")?;
        Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
    }

    /// The most bytes that the daemon had resident since [`Bed::watch`].
    pub fn peak(&self) -> Result<u64> {
        peak_memory(self.daemon.context("it is not mounted")?)
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        if self.daemon.is_some() && self.unmount().is_err() {
            let _ = self.kill();
        }
        let _ = fs::remove_file(&self.image);
    }
}

/// The kernel forgets what it can.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}
