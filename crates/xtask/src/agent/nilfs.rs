//! Checkpoints and snapshots of a mounted nilfs2 volume: by the driver's requests and by its tools.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use silt_model::errno::Errno;
use silt_model::syscalls::Moments;
use silt_model::target::Tree;

/// The argument of a change between checkpoint and snapshot.
#[repr(C)]
struct CpMode {
    cno: u64,
    mode: u32,
    pad: u32,
}

const CHANGE_CPMODE: Opcode = opcode::write::<CpMode>(b'n', 0x80);
const SYNC: Opcode = opcode::read::<u64>(b'n', 0x8A);

/// Makes a checkpoint if anything is dirty; the number of the latest one.
fn sync(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    // SAFETY: the request stores one 64-bit number.
    unsafe { ioctl(fd, Getter::<SYNC, u64>::new()) }
}

fn change(fd: BorrowedFd<'_>, cno: u64, snapshot: bool) -> rustix::io::Result<()> {
    let argument = CpMode { cno, mode: u32::from(snapshot), pad: 0 };
    // SAFETY: the request reads the structure that its code is made from.
    unsafe { ioctl(fd, Setter::<CHANGE_CPMODE, CpMode>::new(argument)) }
}

/// Makes a checkpoint although nothing is dirty. A change of the root's mode to what it was changes nothing but its
/// change time.
pub(super) fn renew(root: BorrowedFd<'_>) -> Result<()> {
    let mode = rustix::fs::Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o7777);
    rustix::fs::fchmod(root, mode).context("touching the root")?;
    sync(root).context("making a checkpoint")?;
    Ok(())
}

/// Runs a tool and returns what it printed.
pub(super) fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(name).args(arguments).output().with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} {} ended with {}: {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The moments of one volume. The first snapshot and the first removal go through the tools, the others through
/// the driver's requests, which are what the tools use.
pub(super) struct Volume {
    device: String,
    /// Snapshots: number in the model and checkpoint number.
    pub(super) snapshots: BTreeMap<u32, u64>,
    tool_made: bool,
    tool_removed: bool,
    /// What went wrong beyond an error number.
    pub(super) complaints: Vec<String>,
}

impl Volume {
    pub(super) fn new(device: &str, snapshots: BTreeMap<u32, u64>) -> Self {
        Self {
            device: device.to_owned(),
            snapshots,
            tool_made: false,
            tool_removed: false,
            complaints: Vec::new(),
        }
    }

    fn complain<T>(&mut self, result: Result<T>) -> Result<T, Errno> {
        result.map_err(|error| {
            self.complaints.push(format!("{error:#}"));
            Errno::EIO
        })
    }

    fn make(&mut self, root: BorrowedFd<'_>) -> Result<u64> {
        if !self.tool_made {
            self.tool_made = true;
            return Ok(tool("mkcp", &["-s", "-p", &self.device])?.trim().parse()?);
        }
        let cno = sync(root).context("making a checkpoint")?;
        change(root, cno, true).with_context(|| format!("making checkpoint {cno} a snapshot"))?;
        Ok(cno)
    }

    fn remove(&mut self, root: BorrowedFd<'_>, cno: u64) -> Result<()> {
        // The latest checkpoint is always in use; a newer one sets it free.
        renew(root)?;
        if !self.tool_removed {
            self.tool_removed = true;
            return tool("chcp", &["cp", &self.device, &cno.to_string()]).map(|_| ());
        }
        change(root, cno, false).with_context(|| format!("making snapshot {cno} a checkpoint"))
    }
}

impl Moments for Volume {
    fn checkpoint(&mut self, root: BorrowedFd<'_>) -> Result<(), Errno> {
        let made = sync(root).context("making a checkpoint");
        self.complain(made).map(|_| ())
    }

    fn snapshot(&mut self, root: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
        let made = self.make(root);
        let cno = self.complain(made)?;
        self.snapshots.insert(id, cno);
        Ok(())
    }

    fn remove_snapshot(&mut self, root: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
        let cno = *self.snapshots.get(&id).ok_or(Errno::ENOENT)?;
        let removed = self.remove(root, cno);
        self.complain(removed)?;
        self.snapshots.remove(&id);
        Ok(())
    }

    fn open_tree(&mut self, tree: Tree) -> Result<OwnedFd, String> {
        Err(format!("{tree:?} is mounted by itself"))
    }
}
