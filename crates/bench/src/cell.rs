//! One cell of the comparison: a workload on a fresh file system on an empty disk.
//!
//! Preparing and running are processes of their own, so that nothing of one is cached by the other, that they
//! can be ended, and that a workload that goes wrong costs one cell.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::disk::counters::Source;
use crate::disk::{Attached, Kind, Shelf};
use crate::measure::{Measured, Meter};
use crate::process::{Child, go_on, own_command, run};
use crate::system::{Mounted, System, Tools};
use crate::workload::{Place, Scale, Workload, all};

/// What a cell is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The workload's name.
    pub workload: String,
    /// The disk.
    pub disk: Kind,
    /// The file system.
    pub system: System,
    /// From 0 on.
    pub round: u64,
}

/// What became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What it is of.
    #[serde(flatten)]
    pub key: Key,
    /// Seconds of all, preparation included.
    pub whole_seconds: f64,
    /// What was measured.
    pub measured: Option<Measured>,
    /// Why nothing was.
    pub error: Option<String>,
}

/// What all cells share.
pub struct Lab {
    /// Programs.
    pub tools: Tools,
    /// A directory on this machine's disk.
    pub scratch: PathBuf,
    /// How much is done.
    pub scale: Scale,
    /// The image of the disk `here` is not sparse.
    pub filled: bool,
}

/// A part of a cell, as told to its process.
#[derive(Serialize, Deserialize)]
struct Job {
    workload: String,
    run: bool,
    dir: PathBuf,
    scale: Scale,
    scratch: PathBuf,
    seed: u64,
    system: System,
    device: Option<PathBuf>,
    daemon: Option<u32>,
    source: Source,
}

impl Lab {
    /// Runs a cell. An error of the cell is part of the result; a signal to this process is an error.
    pub fn run(&self, shelf: &Shelf, workload: &Workload, key: Key) -> Result<Cell> {
        let start = Instant::now();
        let measured = self.measure(shelf, workload, &key);
        go_on()?;
        let (measured, error) = match measured {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        Ok(Cell { key, whole_seconds: start.elapsed().as_secs_f64(), measured, error })
    }

    fn measure(&self, shelf: &Shelf, workload: &Workload, key: &Key) -> Result<Measured> {
        let disk = if key.system.has_disk() { Some(shelf.fresh()?) } else { None };
        let device = disk.as_ref().map_or(Path::new("none"), Attached::path);
        if let Some(mut make) = key.system.make(&self.tools, device, self.filled) {
            run(&mut make)?;
        }
        let dir = self.scratch.join("mnt");
        let mut mounted = Mounted::new(key.system, &self.tools, device, &dir, self.filled)?;
        let inside = dir.join("work");
        fs::create_dir(&inside)?;
        let mut job = Job {
            workload: workload.name.clone(),
            run: false,
            dir: inside,
            scale: self.scale,
            scratch: self.scratch.clone(),
            seed: key.round,
            system: key.system,
            device: disk.as_ref().map(|disk| disk.path().to_owned()),
            daemon: None,
            source: disk.as_ref().map_or(Source::Nobody, |disk| disk.source.clone()),
        };
        self.start(&job)?.1.finish(self.limit()).context("preparing")?;
        if workload.cold {
            if key.system.has_disk() {
                mounted.unmount()?;
                mounted = Mounted::new(key.system, &self.tools, device, &dir, self.filled)?;
            }
            fs::write("/proc/sys/vm/drop_caches", "3")?;
        }
        job.run = true;
        job.daemon = mounted.daemon();
        let (mut output, child) = self.start(&job)?;
        child.finish(self.limit())?;
        let mut text = String::new();
        output.read_to_string(&mut text)?;
        let measured = serde_json::from_str(&text).context("a workload's result")?;
        mounted.unmount()?;
        Ok(measured)
    }

    /// For preparing and for running; what takes longer is a failed cell.
    fn limit(&self) -> Duration {
        Duration::from_secs(if self.scale == Scale::Whole { 1800 } else { 120 })
    }

    fn start(&self, job: &Job) -> Result<(std::process::ChildStdout, Child)> {
        let mut command = own_command()?;
        command.arg("cell").arg(serde_json::to_string(job)?).stdout(Stdio::piped());
        let mut child = Child::spawn(&mut command, &self.scratch.join("cell.log"))?;
        Ok((child.stdout().context("a workload without output")?, child))
    }
}

/// What the process of a part does.
pub fn work(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job)?;
    let workload = all().into_iter().find(|w| w.name == job.workload).context("there is no such workload")?;
    let place = Place {
        dir: job.dir,
        scale: job.scale,
        scratch: job.scratch,
        seed: job.seed,
        system: job.system,
        device: job.device,
    };
    if job.run {
        let mut meter = Meter::new(job.source, job.daemon, workload.unit)?;
        workload.work.run(&place, &mut meter)?;
        println!("{}", serde_json::to_string(&meter.finish()?)?);
        Ok(())
    } else {
        workload.work.prepare(&place)
    }
}
