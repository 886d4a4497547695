//! The disks that file systems are compared on. Each cell gets an empty one, as a loop device.

pub mod counters;
pub mod loopdev;
pub mod served;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use silt_device::Disk;

use crate::process::{go_on, run};
use counters::Source;
use loopdev::{Loop, Queue};
use served::Served;

/// Where the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A sparse image file on this machine's disk
    Here,
    /// Memory that takes the time of a disk of 7200 turns a minute
    Spinning,
    /// Memory whose every flush takes 2 ms
    Flush2ms,
}

impl Kind {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Here => "here",
            Kind::Spinning => "spinning",
            Kind::Flush2ms => "flush2ms",
        }
    }

    /// The model, of those that are one.
    pub fn model(self) -> Option<Disk> {
        match self {
            Kind::Here => None,
            Kind::Spinning => Some(Disk::spinning()),
            Kind::Flush2ms => Some(Disk::slow_flush()),
        }
    }

    /// What it is, for the report.
    pub fn about(self) -> &'static str {
        match self {
            Kind::Here => "a sparse image file on this machine's disk",
            Kind::Spinning => {
                "a model of a disk of 7200 turns a minute: seeks of 0.8 to 16 ms, 160 MB/s, write cache of 64 MiB, \
                 under mq-deadline"
            }
            Kind::Flush2ms => "a model of a fast disk: 20 us a request, 2 GB/s, 2 ms a flush",
        }
    }

    fn queue(self) -> Queue {
        let rotational = self == Kind::Spinning;
        Queue {
            // What Debian's kernels choose for each.
            scheduler: if rotational { "mq-deadline" } else { "none" },
            rotational,
            // What a request to a served file can hold.
            max_sectors_kb: 1024,
        }
    }
}

/// Writes an image full, with bytes that are not zero.
fn fill(path: &Path, size: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let piece = vec![0x5A; 1 << 20];
    for _ in 0..size >> 20 {
        go_on()?;
        file.write_all(&piece).with_context(|| path.display().to_string())?;
    }
    Ok(file.sync_all()?)
}

/// A disk that stays for a run, made empty for every cell.
pub struct Shelf {
    kind: Kind,
    size: u64,
    image: PathBuf,
    served: Option<Served>,
    filled: bool,
}

impl Shelf {
    /// Images go below `scratch`. Models take `size` bytes of memory. With `filled` the image is not sparse: it is
    /// written once, and mkfs must discard nothing, so that no block is ever new to the file system below it.
    pub fn new(kind: Kind, size: u64, scratch: &Path, filled: bool) -> Result<Self> {
        let served = match kind.model() {
            Some(_) => Some(Served::start(kind, size, scratch)?),
            None => None,
        };
        let image = match &served {
            Some(served) => served.image(),
            None => scratch.join("disk.img"),
        };
        let filled = filled && served.is_none();
        if filled {
            fill(&image, size)?;
        }
        Ok(Shelf { kind, size, image, served, filled })
    }

    /// An empty disk, attached.
    pub fn fresh(&self) -> Result<Attached> {
        if self.served.is_none() && !self.filled {
            let _ = std::fs::remove_file(&self.image);
            let file = File::create(&self.image).with_context(|| self.image.display().to_string())?;
            file.set_len(self.size)?;
            file.sync_all()?;
        }
        let device = Loop::attach(&self.image, &self.kind.queue())?;
        if self.served.is_some() {
            run(Command::new("blkdiscard").arg("-f").arg(device.path()))?;
        }
        let source = match &self.served {
            Some(served) => Source::Served(served.counters()),
            None => Source::Kernel(device.statistics()),
        };
        Ok(Attached { device, source })
    }
}

/// A disk in use.
pub struct Attached {
    device: Loop,
    /// Who counts what reaches it.
    pub source: Source,
}

impl Attached {
    /// Its path.
    pub fn path(&self) -> &Path {
        self.device.path()
    }
}
