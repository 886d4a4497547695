//! The kernel's turn on many volumes. One volume is worked on at a time, while the cleaners of earlier ones
//! still run.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use silt_model::caps::Capabilities;
use silt_model::manifest::Columns;
use silt_model::op::Op;
use silt_model::syscalls::{Look, PathTarget, tree_manifest};
use silt_model::target::{Target, outcome_text};

use super::cleaner::Cleaner;
use super::mounts::Mounted;
use super::nilfs::{self, Volume, tool};
use super::syslog::Syslog;
use crate::exchange::{Moment, VolumeDir, VolumeJob, VolumeResult, device};

/// How many volumes may be open at once, most of them with their cleaners at work.
const OPEN: usize = 6;
/// How many segments are dumped to see that the tool accepts them.
const DUMPED: usize = 3;

/// A volume in its turn.
struct Turn<'a> {
    job: &'a VolumeJob,
    dir: VolumeDir,
    index: usize,
    /// Path of the block device.
    device: String,
    live: Option<Mounted>,
    cleaner: Option<Cleaner>,
    /// When the last operation was done.
    changed: Instant,
    result: VolumeResult,
    flags: u32,
}

/// The driver keeps segment times in whole seconds, and its cleaner leaves alone what is not older than the last
/// change: nothing written so lately is cleaned.
const AGE: Duration = Duration::from_millis(1100);

/// Does all turns and leaves the volumes mounted and as they are, for the power to be cut.
pub(super) fn run_to_cut(exchange: &Path, jobs: &[VolumeJob]) -> Result<()> {
    for (index, job) in jobs.iter().enumerate() {
        let dir = VolumeDir::new(exchange, index);
        match Turn::start(job, dir.clone(), index).work() {
            Ok(turn) => report(&dir, turn.result, None)?,
            Err((error, result)) => report(&dir, *result, Some(error))?,
        }
    }
    Ok(())
}

/// Does all turns; each volume's result lies in its directory then.
pub(super) fn run(exchange: &Path, jobs: &[VolumeJob]) -> Result<()> {
    let log = Syslog::listen()?;
    let mut open: VecDeque<Turn> = VecDeque::new();
    for (index, job) in jobs.iter().enumerate() {
        let dir = VolumeDir::new(exchange, index);
        if open.len() >= OPEN {
            finish_one(&mut open, &log)?;
        }
        match Turn::start(job, dir.clone(), index).work() {
            Ok(turn) => open.push_back(turn),
            Err((error, result)) => report(&dir, *result, Some(error))?,
        }
        for turn in open.iter_mut().filter(|turn| turn.changed.elapsed() >= AGE) {
            // An error is told when the turn is finished, which tries again.
            let _ = turn.start_cleaner();
        }
    }
    while !open.is_empty() {
        finish_one(&mut open, &log)?;
        for turn in open.iter_mut().filter(|turn| turn.changed.elapsed() >= AGE) {
            let _ = turn.start_cleaner();
        }
    }
    Ok(())
}

/// Ends the turn of the volume that is open longest.
fn finish_one(open: &mut VecDeque<Turn>, log: &Syslog) -> Result<()> {
    let Some(mut turn) = open.pop_front() else { return Ok(()) };
    let error = turn.finish().err();
    let mut result = std::mem::take(&mut turn.result);
    // Others may have told it, but the log does not say who.
    result.complaints.extend(log.drain());
    report(&turn.dir, result, error)
}

fn report(dir: &VolumeDir, mut result: VolumeResult, error: Option<anyhow::Error>) -> Result<()> {
    result.error = error.map(|error| format!("{error:#}"));
    dir.write(&dir.file("result.json"), &serde_json::to_string_pretty(&result)?)
}

type Failed = (anyhow::Error, Box<VolumeResult>);

impl<'a> Turn<'a> {
    fn start(job: &'a VolumeJob, dir: VolumeDir, index: usize) -> Self {
        let result = VolumeResult { snapshots: job.snapshots.clone(), ..VolumeResult::default() };
        let device = format!("/dev/{}", device(index));
        let flags = Capabilities::kernel(job.block_size).flags;
        Self { job, dir, index, device, live: None, cleaner: None, changed: Instant::now(), result, flags }
    }

    /// Everything up to the start of the cleaner.
    fn work(mut self) -> Result<Self, Failed> {
        match self.try_work() {
            Ok(()) => Ok(self),
            Err(error) => Err((error, Box::new(self.result))),
        }
    }

    /// Runs `act` and notes how long it took.
    fn timed<T>(&mut self, phase: &str, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = act(self);
        *self.result.seconds.entry(phase.to_owned()).or_default() += start.elapsed().as_secs_f64();
        result
    }

    fn try_work(&mut self) -> Result<()> {
        let name = format!("v{}", self.index);
        let read_only = self.job.read_only;
        self.timed("mount", |turn| {
            turn.live = Some(Mounted::new(&turn.device, &name, read_only, "")?);
            Ok(())
        })?;
        self.timed("look", |turn| turn.look(Moment::Before))?;
        if read_only {
            return Ok(());
        }
        if self.job.grow {
            let device = self.device.clone();
            self.timed("grow", |turn| turn.note("nilfs-resize", &["-y", &device]))?;
        }
        self.timed("operate", Self::operate)?;
        self.changed = Instant::now();
        if self.job.thorough {
            self.start_cleaner_after(|turn| turn.timed("look", |turn| turn.look(Moment::After)))?;
        }
        Ok(())
    }

    fn start_cleaner(&mut self) -> Result<()> {
        self.start_cleaner_after(|_| Ok(()))
    }

    /// Starts the cleaner, if it shall run and does not yet. What was written must be [`AGE`] old and a checkpoint
    /// newer than it must exist; so waits and makes one. `act` comes after everything that changes the tree.
    fn start_cleaner_after(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if !self.job.clean || self.cleaner.is_some() {
            return act(self);
        }
        self.timed("wait for age", |turn| {
            std::thread::sleep(AGE.saturating_sub(turn.changed.elapsed()));
            Ok(())
        })?;
        let live = self.live.as_ref().ok_or_else(|| anyhow!("not mounted"))?;
        nilfs::renew(live.root()?.as_fd())?;
        act(self)?;
        let before = self.segments()?;
        self.result.segments = Some((before, before));
        self.cleaner = Some(Cleaner::start(&self.device)?);
        Ok(())
    }

    /// Lists the live tree and all snapshots.
    fn look(&mut self, moment: Moment) -> Result<()> {
        let live = self.live.as_ref().ok_or_else(|| anyhow!("not mounted"))?;
        self.list(live, moment, None)?;
        for (&id, &cno) in &self.result.snapshots {
            let name = format!("v{}-{id}", self.index);
            let past = Mounted::new(&self.device, &name, true, &format!("cp={cno}"))?;
            self.list(&past, moment, Some(id))?;
            past.unmount()?;
        }
        Ok(())
    }

    fn list(&self, mounted: &Mounted, moment: Moment, snapshot: Option<u32>) -> Result<()> {
        let root = mounted.root()?;
        let look = Look { columns: Columns::ALL, flags: self.flags, probes: Some(&self.job.probes) };
        let manifest = tree_manifest(root.as_fd(), &look)
            .map_err(|e| anyhow!("{moment:?}, snapshot {snapshot:?}: {e}"))?;
        self.dir.write(&self.dir.manifest(moment, snapshot), &manifest.to_text())
    }

    fn operate(&mut self) -> Result<()> {
        let text = self.dir.read(&self.dir.file("ops"))?;
        let ops = Op::parse_all(&text).map_err(|line| anyhow!("line {line} of the operations is bad"))?;
        let live = self.live.as_ref().ok_or_else(|| anyhow!("not mounted"))?;
        let volume = Volume::new(&self.device, self.result.snapshots.clone());
        let caps = Capabilities::kernel(self.job.block_size);
        let mut target = PathTarget::continued(live.root()?, caps, volume, self.job.snapshots_made);
        let mut replies = String::new();
        for op in &ops {
            replies.push_str(&outcome_text(&target.apply(op)));
            replies.push('\n');
        }
        let volume = target.into_moments();
        self.result.snapshots = volume.snapshots;
        self.result.complaints.extend(volume.complaints);
        self.dir.write(&self.dir.file("replies"), &replies)
    }

    /// Number of segments in use, as `lssu` lists them below its heading.
    fn segments(&self) -> Result<usize> {
        Ok(tool("lssu", &[&self.device])?.lines().count().saturating_sub(1))
    }

    /// Everything from the end of the cleaner on.
    fn finish(&mut self) -> Result<()> {
        if !self.job.read_only {
            self.start_cleaner()?;
        }
        if let Some(mut cleaner) = self.cleaner.take() {
            let start = Instant::now();
            while !cleaner.rests()? {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.result.seconds.insert("wait for cleaner".to_owned(), start.elapsed().as_secs_f64());
            let ran = cleaner.stop()?;
            self.result.seconds.insert("cleaner".to_owned(), ran.as_secs_f64());
            let after = self.segments()?;
            self.result.segments = self.result.segments.map(|(before, _)| (before, after));
        }
        if self.job.tools {
            self.timed("tools", Self::tools)?;
        }
        let Some(live) = self.live.take() else { return Ok(()) };
        self.timed("unmount", |_| live.unmount())?;
        if self.job.tools {
            self.timed("tools", |turn| turn.note("nilfs-tune", &["-l", &turn.device.clone()]))?;
        }
        if self.job.read_only {
            return Ok(());
        }
        let name = format!("v{}", self.index);
        self.timed("mount", |turn| {
            turn.live = Some(Mounted::new(&turn.device, &name, true, "")?);
            Ok(())
        })?;
        self.timed("look", |turn| turn.look(Moment::Cleaned))?;
        match self.live.take() {
            Some(live) => self.timed("unmount", |_| live.unmount()),
            None => Ok(()),
        }
    }

    /// The listing tools must accept the volume, and see the snapshots that there are.
    fn tools(&mut self) -> Result<()> {
        let device = &self.device.clone();
        self.note("lscp", &["-a", device])?;
        let listed = tool("lscp", &["-s", device])?;
        let listed: Vec<u64> =
            listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        let known: Vec<u64> = self.result.snapshots.values().copied().collect();
        if listed != known {
            self.result.complaints.push(format!("lscp lists snapshots {listed:?}, there are {known:?}"));
        }
        self.note("lssu", &["-a", device])?;
        let in_use = tool("lssu", &[device])?;
        let numbers = in_use.lines().skip(1).filter_map(|line| {
            let mut words = line.split_whitespace();
            let number = words.next()?;
            // The segment that is being filled may hold nothing yet.
            (words.next_back()? != "0").then_some(number)
        });
        for number in numbers.take(DUMPED) {
            self.note("dumpseg", &[device, number])?;
        }
        Ok(())
    }

    /// Runs a tool, which must succeed, and keeps what it printed.
    fn note(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        use std::io::Write as _;
        let printed = tool(name, arguments);
        let path = self.dir.file("tools");
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
        match printed {
            Ok(text) => write!(file, "$ {name} {}\n{text}", arguments.join(" "))
                .with_context(|| format!("writing {}", path.display())),
            Err(error) => {
                self.result.complaints.push(format!("{error:#}"));
                Ok(())
            }
        }
    }
}
