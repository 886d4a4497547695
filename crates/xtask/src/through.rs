//! A volume in the hands of the daemon as a target of the model: system calls in the mounted directory, and the
//! `silt` command for what those cannot do.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use silt_model::caps::Capabilities;
use silt_model::errno::Errno;
use silt_model::syscalls::{Moments, NoMoments, PathTarget, probe};
use silt_model::target::Tree;

use crate::mounted::{Mounted, mkfs, run};
use crate::scratch::Scratch;

/// Checkpoints and snapshots by the `silt` command.
pub struct Commands {
    silt: PathBuf,
    dir: PathBuf,
    /// Where moments are mounted for the time of a look.
    past: PathBuf,
    /// Snapshots: number in the model and checkpoint number.
    pub snapshots: BTreeMap<u32, u64>,
    /// What went wrong beyond an error number.
    pub complaints: Vec<String>,
}

impl Commands {
    fn complain<T>(&mut self, result: Result<T>) -> Result<T, Errno> {
        result.map_err(|e| {
            self.complaints.push(format!("{e:#}"));
            Errno::EIO
        })
    }

    fn silt(&self, arguments: &[&str]) -> Result<String> {
        Ok(String::from_utf8(run(Command::new(&self.silt).args(arguments))?.stdout)?)
    }

    fn dir(&self) -> Result<&str> {
        self.dir.to_str().context("the directory has no text for a name")
    }

    fn make(&self) -> Result<u64> {
        let printed = self.silt(&["mkcp", "-s", "-p", self.dir()?])?;
        printed.trim().parse().with_context(|| format!("silt mkcp printed {printed:?}"))
    }

    fn unmake(&self, cno: u64) -> Result<()> {
        // The newest checkpoint stays: what waits makes a newer one.
        self.silt(&["mkcp", self.dir()?])?;
        self.silt(&["chcp", "cp", self.dir()?, &cno.to_string()]).map(|_| ())
    }

    fn look(&mut self, cno: u64) -> Result<OwnedFd> {
        // One place for all, though the one before may still be in use.
        std::fs::create_dir_all(&self.past)?;
        let root = self.past.clone();
        let past = self.past.to_str().context("the directory has no text for a name")?;
        self.silt(&["mount", "-o", &format!("ro,cp={cno}"), self.dir()?, past])?;
        let root = PathTarget::<NoMoments>::open_root(&root);
        // Whoever has it open keeps it.
        self.silt(&["umount", "-l", past])?;
        root.with_context(|| format!("opening checkpoint {cno}"))
    }
}

impl Moments for Commands {
    fn checkpoint(&mut self, _root: BorrowedFd<'_>) -> Result<(), Errno> {
        let made = self.dir().and_then(|dir| self.silt(&["mkcp", dir]));
        self.complain(made).map(|_| ())
    }

    fn snapshot(&mut self, _root: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
        let made = self.make();
        let cno = self.complain(made)?;
        self.snapshots.insert(id, cno);
        Ok(())
    }

    fn remove_snapshot(&mut self, _root: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
        let cno = self.snapshots.remove(&id).ok_or(Errno::ENOENT)?;
        // One checkpoint may serve several snapshots of the model.
        if self.snapshots.values().any(|other| *other == cno) {
            return Ok(());
        }
        let unmade = self.unmake(cno);
        self.complain(unmade)
    }

    fn open_tree(&mut self, tree: Tree) -> Result<OwnedFd, String> {
        let Tree::Snapshot(id) = tree else { return Err(format!("{tree:?} is not kept")) };
        let cno = *self.snapshots.get(&id).ok_or("there is no such snapshot")?;
        self.look(cno).map_err(|e| format!("{e:#}"))
    }
}

/// Mounts `image` below `place` and goes on in it as a target.
pub fn open(
    silt: &Path,
    image: &Path,
    place: &Path,
    caps: Capabilities,
    snapshots: BTreeMap<u32, u64>,
    made: u32,
) -> Result<(Mounted, PathTarget<Commands>)> {
    let dir = place.join("live");
    let mounted = Mounted::new(silt, image, &dir, &[])?;
    let past = place.join("past");
    let commands =
        Commands { silt: silt.to_owned(), dir: dir.clone(), past, snapshots, complaints: Vec::new() };
    let root = PathTarget::<Commands>::open_root(&dir).context("opening the mounted directory")?;
    Ok((mounted, PathTarget::continued(root, caps, commands, made)))
}

static PROBED: Mutex<BTreeMap<usize, Capabilities>> = Mutex::new(BTreeMap::new());

/// What a mounted volume with such blocks can do: found by trying, once, on a volume of its own.
pub fn capabilities(silt: &Path, block_size: usize) -> Result<Capabilities> {
    let mut probed = PROBED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(caps) = probed.get(&block_size) {
        return Ok(caps.clone());
    }
    let scratch = Scratch::new("probe")?;
    let (image, dir) = (scratch.join("v.img"), scratch.join("mnt"));
    mkfs(silt, &image, "256M", &["-b", &block_size.to_string()])?;
    let mounted = Mounted::new(silt, &image, &dir, &[])?;
    let found = probe(&dir)?;
    mounted.unmount()?;
    let caps = Capabilities { checkpoints: true, snapshots: true, link_max: Some(32_000), ..found };
    probed.insert(block_size, caps.clone());
    Ok(caps)
}
