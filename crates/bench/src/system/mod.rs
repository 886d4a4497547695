//! The file systems that are compared: how each is made, mounted, synced and unmounted. All take their
//! defaults; those of the kernel are mounted with `noatime`, since Silt stores no access times.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::process::{Child, go_on, run};

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// This project's
    Silt,
    /// The same with requests through io_uring; only if asked for
    #[value(name = "silt-uring")]
    #[serde(rename = "silt-uring")]
    SiltUring,
    /// The same with `-o verify`; only if asked for
    #[value(name = "silt-verify")]
    #[serde(rename = "silt-verify")]
    SiltVerify,
    /// The same with `-o noallow_other`: only root gets in, and the kernel checks no permissions; only if asked for
    #[value(name = "silt-root")]
    #[serde(rename = "silt-root")]
    SiltRoot,
    /// The kernel's
    Ext4,
    /// The kernel's
    Xfs,
    /// The kernel's
    Btrfs,
    /// NTFS through FUSE
    #[value(name = "ntfs-3g")]
    #[serde(rename = "ntfs-3g")]
    Ntfs3g,
    /// The same with `-o permissions`: modes and owners count, as they do in Silt; only if asked for
    #[value(name = "ntfs-3g-permissions")]
    #[serde(rename = "ntfs-3g-permissions")]
    Ntfs3gPermissions,
    /// ext4 through FUSE
    Fuse2fs,
    /// Memory through FUSE: what FUSE itself costs
    Memfs,
    /// The same where the kernel writes back from its cache; only if asked for
    #[value(name = "memfs-writeback")]
    #[serde(rename = "memfs-writeback")]
    MemfsWriteback,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Programs of this workspace.
pub struct Tools {
    /// The command.
    pub silt: PathBuf,
    /// The example of the crate `fuse`.
    pub memfs: PathBuf,
}

impl Tools {
    /// Beside this program.
    pub fn find() -> Result<Self> {
        let own = std::env::current_exe()?;
        let dir = own.parent().context("this program is nowhere")?;
        let tools = Tools { silt: dir.join("silt"), memfs: dir.join("examples/memfs") };
        for tool in [&tools.silt, &tools.memfs] {
            if !tool.exists() {
                bail!("{} is missing; `cargo xtask bench` builds it", tool.display());
            }
        }
        Ok(tools)
    }
}

impl System {
    /// Whether it takes part where nobody asks for it.
    pub fn is_usual(self) -> bool {
        matches!(self, System::Silt | System::Memfs | System::Ntfs3g | System::Fuse2fs) || !self.has_daemon()
    }

    fn is_silt(self) -> bool {
        matches!(self, System::Silt | System::SiltUring | System::SiltVerify | System::SiltRoot)
    }

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            System::Silt => "silt",
            System::SiltUring => "silt-uring",
            System::SiltVerify => "silt-verify",
            System::SiltRoot => "silt-root",
            System::Ext4 => "ext4",
            System::Xfs => "xfs",
            System::Btrfs => "btrfs",
            System::Ntfs3g => "ntfs-3g",
            System::Ntfs3gPermissions => "ntfs-3g-permissions",
            System::Fuse2fs => "fuse2fs",
            System::Memfs => "memfs",
            System::MemfsWriteback => "memfs-writeback",
        }
    }

    /// Whether it keeps anything on a disk.
    pub fn has_disk(self) -> bool {
        !matches!(self, System::Memfs | System::MemfsWriteback)
    }

    /// The command that makes one on a device, if any; with `keep` it discards nothing.
    pub fn make(self, tools: &Tools, device: &Path, keep: bool) -> Option<Command> {
        let (program, arguments): (&Path, &[&str]) = match self {
            System::Silt | System::SiltUring | System::SiltVerify | System::SiltRoot => {
                (&tools.silt, &["mkfs", "-q", "-f"])
            }
            // Tables written now and not by the kernel during the first minutes.
            System::Ext4 | System::Fuse2fs => {
                ("mkfs.ext4".as_ref(), &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            }
            System::Xfs => ("mkfs.xfs".as_ref(), &["-q", "-f"]),
            System::Btrfs => ("mkfs.btrfs".as_ref(), &["-q", "-f"]),
            System::Ntfs3g | System::Ntfs3gPermissions => ("mkntfs".as_ref(), &["-q", "-Q", "-F"]),
            System::Memfs | System::MemfsWriteback => return None,
        };
        let mut command = Command::new(program);
        command.args(arguments);
        match self {
            _ if !keep => {}
            System::Ext4 | System::Fuse2fs => {
                command.args(["-E", "nodiscard"]);
            }
            System::Xfs | System::Btrfs => {
                command.arg("-K");
            }
            _ if self.is_silt() => {
                command.arg("-K");
            }
            _ => {}
        }
        command.arg(device);
        Some(command)
    }

    /// The command that mounts it; for those with a daemon it runs as long as that is mounted.
    pub fn mount(self, tools: &Tools, device: &Path, dir: &Path, keep: bool) -> Command {
        let (program, arguments): (&Path, &[&str]) = match self {
            System::Silt => (&tools.silt, &["mount", "-f"]),
            System::SiltUring => (&tools.silt, &["mount", "-f", "-o", "io_uring"]),
            System::SiltVerify => (&tools.silt, &["mount", "-f", "-o", "verify"]),
            System::SiltRoot => (&tools.silt, &["mount", "-f", "-o", "noallow_other"]),
            // The only one that discards by default.
            System::Btrfs if keep => ("mount".as_ref(), &["-o", "noatime,nodiscard", "-t", "btrfs"]),
            System::Ext4 | System::Xfs | System::Btrfs => {
                ("mount".as_ref(), &["-o", "noatime", "-t", self.name()])
            }
            System::Ntfs3g => ("ntfs-3g".as_ref(), &["-o", "no_detach"]),
            System::Ntfs3gPermissions => ("ntfs-3g".as_ref(), &["-o", "no_detach,permissions"]),
            System::Fuse2fs => ("fuse2fs".as_ref(), &["-f"]),
            System::Memfs => (&tools.memfs, &["--threads", "1", "--no-create", "--allow-other"]),
            System::MemfsWriteback => {
                (&tools.memfs, &["--threads", "1", "--no-create", "--allow-other", "--writeback"])
            }
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if self.has_disk() {
            command.arg(device);
        }
        command.arg(dir);
        command
    }

    fn has_daemon(self) -> bool {
        !matches!(self, System::Ext4 | System::Xfs | System::Btrfs)
    }
}

/// A mounted file system; unmounted when dropped.
pub struct Mounted<'a> {
    system: System,
    tools: &'a Tools,
    dir: PathBuf,
    daemon: Option<Child>,
    mounted: bool,
}

impl<'a> Mounted<'a> {
    /// Mounts and waits until it answers.
    pub fn new(system: System, tools: &'a Tools, device: &Path, dir: &Path, keep: bool) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let below = dir.metadata()?.dev();
        let mut command = system.mount(tools, device, dir, keep);
        let mut mounted =
            Mounted { system, tools, dir: dir.to_owned(), daemon: None, mounted: !system.has_daemon() };
        if !system.has_daemon() {
            run(&mut command)?;
        } else {
            command.stdout(Stdio::null());
            let mut daemon = Child::spawn(&mut command, &dir.with_extension("log"))?;
            let deadline = Instant::now() + Duration::from_secs(60);
            while silt_fuse::find_mount(dir)?.is_none() {
                go_on()?;
                if let Some(said) = daemon.ended()? {
                    bail!("{system} did not mount: {said}");
                }
                if Instant::now() > deadline {
                    bail!("{system} did not mount within a minute");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            mounted.daemon = Some(daemon);
            mounted.mounted = true;
        }
        // A workload must never run on what lies below the mount.
        if dir.metadata().with_context(|| format!("{system} does not answer"))?.dev() == below {
            bail!("{system} is not mounted on {}", dir.display());
        }
        Ok(mounted)
    }

    /// The number of its daemon's process.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Unmounts and waits until the device is free again.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        let mut command = if self.system.is_silt() {
            let mut command = Command::new(&self.tools.silt);
            command.arg("umount");
            command
        } else {
            Command::new("umount")
        };
        command.arg(&self.dir).stdout(Stdio::null());
        // Who looks into every mount may be in it for a moment.
        let mut result = run(&mut command);
        for _ in 0..20 {
            if result.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            result = run(&mut command);
        }
        if let Err(error) = result {
            let _ = silt_fuse::abort_connection(&self.dir);
            let _ = run(Command::new("umount").arg("-l").arg(&self.dir));
            return Err(error);
        }
        if let Some(daemon) = &mut self.daemon
            && !daemon.wait_for(Duration::from_secs(120))
        {
            bail!("the daemon of {} did not end after it was unmounted", self.system);
        }
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Makes everything durable that was written below a mount's root, by the means that reaches each.
pub fn sync(system: System, root: &Path, device: Option<&Path>) -> Result<()> {
    let dir = File::open(root)?;
    rustix::fs::syncfs(dir.as_fd())?;
    match (system, device) {
        // syncfs does not reach these daemons: an fsync makes them write, through the cache of the device.
        (System::Ntfs3g | System::Ntfs3gPermissions | System::Fuse2fs, Some(device)) => {
            dir.sync_all()?;
            File::open(device)?.sync_all()?;
        }
        // Where the kernel does not pass syncfs on.
        _ if system.is_silt() => dir.sync_all()?,
        _ => {}
    }
    Ok(())
}
