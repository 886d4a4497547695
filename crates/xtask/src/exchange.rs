//! What host and guest tell each other: files in a directory that both see.
//!
//! ```text
//! DIR/job.json            what to do                      (host)
//! DIR/V/ops               operations, a line each         (host)
//! DIR/V/replies           their outcomes, a line each     (guest)
//! DIR/V/MOMENT.live       manifest of the live tree       (guest)
//! DIR/V/MOMENT.ID         manifest of snapshot ID         (guest)
//! DIR/V/result.json       how it went                     (guest)
//! DIR/V/tools             what the tools printed          (guest)
//! ```
//! V is the volume's place in the job; MOMENT is `before`, `after` or `cleaned`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// How many images one guest can have.
pub const DEVICES: usize = 16;

/// The block device that image `index` is in the guest, as the kernel's log names it: `ubda`, `ubdb`, ...
pub fn device(index: usize) -> String {
    let letter = u8::try_from(index).ok().and_then(|index| b'a'.checked_add(index)).unwrap_or(b'?');
    format!("ubd{}", char::from(letter))
}

/// When a tree was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// After mounting, before anything was done.
    Before,
    /// After all operations, still mounted.
    After,
    /// After cleaning, unmounting and mounting again, or just the latter two.
    Cleaned,
}

impl Moment {
    fn word(self) -> &'static str {
        match self {
            Moment::Before => "before",
            Moment::After => "after",
            Moment::Cleaned => "cleaned",
        }
    }
}

/// What one boot of the guest shall do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Images on the host, at most [`DEVICES`]; the guest sees them as the devices of [`device`].
    pub images: Vec<PathBuf>,
    /// Kernel modules to load, in order: path on the host and parameters.
    pub modules: Vec<(PathBuf, String)>,
    /// Environment of everything that is started.
    pub environment: Vec<(String, String)>,
    /// The task.
    pub task: Task,
}

/// The tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// A shell script; what it leaves in `$OUT` stays.
    Shell {
        /// The script.
        script: String,
        /// Where `$OUT` is on the host.
        out: PathBuf,
    },
    /// The kernel's turn on the volumes, in the order of the devices.
    Turns {
        /// What to do with each.
        volumes: Vec<VolumeJob>,
        /// Power off without unmounting or syncing anything.
        cut: bool,
    },
}

/// The kernel's turn on one volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeJob {
    /// Mount read-only and only look.
    pub read_only: bool,
    /// Snapshots there are: number in the model and checkpoint number.
    pub snapshots: BTreeMap<u32, u64>,
    /// How many snapshots the model ever made.
    pub snapshots_made: u32,
    /// Bytes of a block.
    pub block_size: usize,
    /// Where data far out in files may be: (offset, length).
    pub probes: Vec<(u64, u64)>,
    /// Look at everything between working and cleaning, too.
    pub thorough: bool,
    /// Grow the volume to the size of its image first.
    pub grow: bool,
    /// Run the cleaner to its end.
    pub clean: bool,
    /// Run the listing tools.
    pub tools: bool,
}

/// How the kernel's turn on one volume went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeResult {
    /// What kept it from being finished, if anything.
    pub error: Option<String>,
    /// What was not as it should be, a sentence each.
    pub complaints: Vec<String>,
    /// Snapshots there are now.
    pub snapshots: BTreeMap<u32, u64>,
    /// Seconds spent, by phase.
    pub seconds: BTreeMap<String, f64>,
    /// Segments in use before and after cleaning.
    pub segments: Option<(usize, usize)>,
}

/// The directory of one volume.
#[derive(Clone, Debug)]
pub struct VolumeDir(PathBuf);

impl VolumeDir {
    /// The directory of volume `index` below `exchange`.
    pub fn new(exchange: &Path, index: usize) -> Self {
        Self(exchange.join(index.to_string()))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where a manifest is: of the live tree, or of a snapshot.
    pub fn manifest(&self, moment: Moment, snapshot: Option<u32>) -> PathBuf {
        match snapshot {
            None => self.0.join(format!("{}.live", moment.word())),
            Some(id) => self.0.join(format!("{}.{id}", moment.word())),
        }
    }

    /// Writes a file.
    pub fn write(&self, path: &Path, text: &str) -> Result<()> {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Reads a file.
    pub fn read(&self, path: &Path) -> Result<String> {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    }
}
