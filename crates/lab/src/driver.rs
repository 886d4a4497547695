//! Plays a workload on a recorded device.
//!
//! Operations change the tree in this process; what makes them durable is done by the log writer that runs behind a
//! mount, in the same thread, with a clock of our own. So a workload gives the same record each time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_daemon::{MountOptions, Stepped, Want};
use silt_device::{Device, Fault, MemoryDevice, Recorder, Times};
use silt_engine::{OpenOptions, Tune, Volume};
use silt_format::Cno;
use silt_fs::{Fs, Tree};
use silt_fs_model::FsTarget;
use silt_model::caps::Capabilities;
use silt_model::errno::Errno;
use silt_model::model::Model;
use silt_model::op::{FileRef, Op};
use silt_model::run::judge;
use silt_model::target::{Outcome, Reply, Target};

use crate::history::{Done, History, Made, Promise, State, Synced};
use crate::workload::{BEGIN, Step, Workload};
use crate::{During, Failure, Result};

/// Seconds that pass with each step: super blocks are written every few of them.
const PACE: u64 = 4;
/// Without barriers they alone are flushed: between them many logs wait, in any order.
const UNHURRIED: u64 = 1;

type Disk = Recorder<Fault<MemoryDevice>>;

struct Player {
    disk: Arc<Disk>,
    /// Holds the file system while operations are applied.
    target: FsTarget,
    /// Holds it while something is made durable; what it holds else is never used.
    writer: Stepped,
    clock: Arc<AtomicU64>,
    pace: u64,
    model: Model,
    state: Arc<State>,
    checkpoints: BTreeMap<u64, Made>,
    snapshots: BTreeSet<u64>,
    /// Checkpoints of the model's snapshots.
    numbers: BTreeMap<u32, u64>,
    made: u32,
    /// A construction cannot be written: the steps that tried, and the states then.
    stuck: Vec<(usize, Arc<State>)>,
    known: u64,
}

fn state_of(model: &Model) -> Arc<State> {
    let tree = model.tree();
    let objects =
        tree.entries().filter_map(|e| Some((e.path.clone(), model.lookup(&e.path).ok()?))).collect();
    Arc::new(State { tree, objects })
}

/// Opens for writing.
fn open(device: Arc<dyn Device>, now: u64) -> Result<Fs> {
    let options = OpenOptions { now, cache_bytes: 8 << 20, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device, &options).during("opening the volume")?;
    volume.take_over(now).during("taking the volume over")?;
    Ok(Fs::new(volume, &silt_fs::Options::default()))
}

/// Something to put where the file system is not.
fn nobody(workload: &Workload) -> Result<Fs> {
    let small = Workload { size: 2 << 20, device_size: 2 << 20, ..Workload::new("", 0, workload.block_size) };
    let device: Arc<dyn Device> = Arc::new(small.mkfs()?);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (volume, _) = Volume::open(device, &options).during("opening a volume")?;
    Ok(Fs::new(volume, &silt_fs::Options::default()))
}

/// Plays a workload. What does not go as the model says is a failure.
pub fn play(workload: &Workload) -> Result<History> {
    let made = workload.mkfs()?;
    let model = Model::new(Capabilities::silt(usize::try_from(workload.block_size).unwrap_or(4096)));
    // Set up without a record.
    let mut setup = Player::begin(workload, made, model, false)?;
    for op in &workload.setup {
        // What cannot be done is left out.
        let _ = setup.apply(op)?;
    }
    let mut durable = setup.sync(0, &[Want::All]);
    if workload.unclean {
        durable = durable.and_then(|()| setup.leave_synced_data());
    }
    durable.during("setting up")?;
    if !workload.unclean {
        let clock = setup.now();
        setup.target.fs.volume_mut().close(clock).during("closing the volume")?;
    }
    setup.written(0);
    let found = setup.known;
    let Player { disk, mut model, .. } = setup;
    // What was held open is not any more.
    let _ = model.apply(&Op::Remount);
    let before = disk.inner().inner().fork();
    let mut player = Player::begin(workload, before.fork(), model, workload.with_mount)?;
    // What was there before the first step, and what the mount made of it.
    let newest = player.known;
    for cno in found..=newest {
        let made = Made {
            step: 0,
            state: player.state.clone(),
            or: Vec::new(),
            snapshots: BTreeSet::new(),
            whole: !workload.unclean || cno > found,
        };
        player.checkpoints.insert(cno, made);
    }
    let base = if workload.with_mount { before } else { player.disk.inner().inner().fork() };
    let cno = if workload.with_mount { found } else { newest };
    let first = Done { state: player.state.clone(), cno, promise: Promise::All, answered: true };
    let mut done = vec![first];
    for (i, step) in workload.steps.iter().enumerate() {
        let number = i + 1;
        player.disk.mark(2 * number as u64);
        let after = player.step(number, step).map_err(|e| e.at(&format!("step {number}, {step}")))?;
        player.disk.mark(2 * number as u64 + 1);
        done.push(after);
    }
    let events = player.disk.record().events();
    let deep = player.model.deep_ranges();
    Ok(History { base, events, done, checkpoints: player.checkpoints, deep })
}

impl Player {
    fn begin(workload: &Workload, image: MemoryDevice, model: Model, with_mount: bool) -> Result<Self> {
        let disk: Arc<Disk> = Arc::new(Recorder::new(Fault::new(image)));
        let device: Arc<dyn Device> = disk.clone();
        let clock = Arc::new(AtomicU64::new(BEGIN));
        let fs = open(device.clone(), BEGIN)?;
        if !with_mount {
            // All of it is durable.
            disk.record().clear();
        }
        let options = MountOptions {
            barrier: workload.barrier,
            order_strict: workload.strict,
            ..MountOptions::default()
        };
        let told = clock.clone();
        let mut writer = Stepped::new(fs, options, Box::new(move || told.load(Ordering::Relaxed)));
        // Segments are too small here for logs that a mount would write so.
        if workload.seed % 2 == 1 {
            writer = writer.with_overlap();
        }
        let fs = std::mem::replace(&mut *writer.fs(), nobody(workload)?);
        let target = FsTarget::over(fs, device, silt_fs::Options::default(), BEGIN);
        let state = state_of(&model);
        let mut player = Player {
            disk,
            target,
            writer,
            clock,
            pace: if workload.barrier { PACE } else { UNHURRIED },
            model,
            state,
            checkpoints: BTreeMap::new(),
            snapshots: BTreeSet::new(),
            numbers: BTreeMap::new(),
            made: 0,
            stuck: Vec::new(),
            known: 0,
        };
        player.known = player.target.fs.volume().last_log().cno;
        Ok(player)
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.target.fs, &mut *self.writer.fs());
    }

    /// Lets the log writer serve; the first error of all answers.
    fn sync(&mut self, step: usize, wants: &[Want]) -> std::result::Result<(), Failure> {
        self.swap();
        let answers = self.writer.sync(wants);
        self.swap();
        self.written(step);
        match answers.into_iter().find_map(std::result::Result::err) {
            None => Ok(()),
            Some(errno) => Err(Failure(format!("error {errno}"))),
        }
    }

    /// Takes note of the checkpoints that are there now.
    fn written(&mut self, step: usize) {
        let newest = self.target.fs.volume().last_log().cno;
        for cno in self.known + 1..=newest {
            // What could not be written came first. It may have been begun anew, of all that was there then.
            let mut tried = std::mem::take(&mut self.stuck);
            tried.push((step, self.state.clone()));
            self.checkpoints.insert(cno, self.made_of(&tried));
        }
        self.known = self.known.max(newest);
        if self.target.fs.volume().is_constructing() {
            self.stuck.push((step, self.state.clone()));
            // It may be on the device nonetheless.
            self.checkpoints.insert(newest + 1, self.made_of(&self.stuck));
        }
    }

    fn made_of(&self, tried: &[(usize, Arc<State>)]) -> Made {
        let (step, state) = tried.first().cloned().unwrap_or((0, self.state.clone()));
        let or = tried.iter().skip(1).map(|(_, state)| state.clone()).collect();
        Made { step, state, or, snapshots: self.snapshots.clone(), whole: true }
    }

    /// Applies an operation that makes nothing durable.
    fn apply(&mut self, op: &Op) -> Result<Outcome> {
        if let Op::Many { each, dir, prefix, first, count } = op {
            // One at a time: what was done before there was no space stays.
            for n in *first..first.saturating_add(*count) {
                for single in each.ops(dir, prefix, n).into_iter().flatten() {
                    let outcome = self.apply(&single)?;
                    if outcome.is_err() {
                        return Ok(outcome);
                    }
                }
            }
            return Ok(Ok(Reply::Done));
        }
        let got = self.target.apply(op);
        // The model's disk is never full. Where not even the reserve is left, nothing is written any more.
        let ended = got == Err(Errno::EROFS) && self.target.fs.volume().failure().is_some();
        if got == Err(Errno::ENOSPC) || ended && self.target.fs.volume().free_blocks() == 0 {
            return Ok(got);
        }
        let expected = self.model.apply(op);
        if let Some(what) = judge(op, &expected, &got) {
            return Err(Failure(what));
        }
        self.state = state_of(&self.model);
        Ok(got)
    }

    fn inode(&mut self, file: &FileRef) -> Option<silt_format::Ino> {
        match file {
            FileRef::Slot(slot) => self.target.in_slot(*slot),
            FileRef::Path(path) => self.target.fs.resolve(Tree::Live, path.as_bytes()).ok(),
        }
    }

    fn object(&self, file: &FileRef) -> Option<usize> {
        match file {
            FileRef::Slot(slot) => self.model.slot(*slot),
            FileRef::Path(path) => self.model.lookup(path).ok(),
        }
    }

    /// Everything is made durable; an error promises nothing.
    fn all(&mut self, step: usize, want: Want) -> (Promise, bool) {
        match self.sync(step, &[want]) {
            Ok(()) => (Promise::All, true),
            Err(_) => (Promise::Nothing, false),
        }
    }

    fn step(&mut self, number: usize, step: &Step) -> Result<Done> {
        let now = self.clock.fetch_add(self.pace, Ordering::Relaxed) + self.pace;
        let (promise, answered) = match step {
            Step::Op(op) => self.operation(number, op)?,
            Step::DataSyncs(paths) => {
                let files: Vec<_> = paths.iter().map(|p| FileRef::Path(p.clone())).collect();
                self.data_sync(number, &files)
            }
            Step::WriteBack => {
                self.swap();
                self.writer.write_back();
                self.swap();
                self.written(number);
                (Promise::Nothing, true)
            }
            Step::DeleteCheckpoints => {
                let volume = self.target.fs.volume_mut();
                if volume.is_constructing() {
                    (Promise::Nothing, false)
                } else {
                    let newest = volume.last_log().cno;
                    volume.delete_checkpoints(1..newest).during("deleting checkpoints")?;
                    self.all(number, Want::All)
                }
            }
            Step::Grow => {
                self.all(number, Want::All);
                self.target.fs.volume_mut().grow(None, now).during("growing")?;
                self.written(number);
                (Promise::All, true)
            }
            Step::Label(n) => {
                let label = Some(format!("volume-{n}").into_bytes());
                self.target.fs.volume_mut().tune(&Tune { label, ..Tune::default() }).during("tuning")?;
                (Promise::Nothing, true)
            }
            Step::FailWrites(n) => {
                self.disk.inner().fail_writes(0..self.disk.len(), Times::Next(*n));
                (Promise::Nothing, true)
            }
            Step::FailFlushes(n) => {
                self.disk.inner().fail_flushes(Times::Next(*n));
                (Promise::Nothing, true)
            }
            Step::Clean => {
                self.clean(now)?;
                self.written(number);
                (Promise::Nothing, true)
            }
            Step::Shrink(bytes) => {
                self.shrink(*bytes, now)?;
                self.written(number);
                (Promise::Nothing, true)
            }
            Step::Discard => {
                if self.target.fs.volume().failure().is_none() {
                    self.swap();
                    let done = self.writer.discard(true);
                    self.swap();
                    done.during("discarding")?;
                }
                (Promise::Nothing, true)
            }
            Step::Full(full) => {
                self.disk.inner().set_full(*full);
                (Promise::Nothing, true)
            }
        };
        let cno = self.known;
        Ok(Done { state: self.state.clone(), cno, promise, answered })
    }

    /// Has segments emptied, as the daemon does by itself: snapshots and the newest state alone are kept.
    fn clean(&mut self, now: u64) -> Result<()> {
        let volume = self.target.fs.volume();
        if volume.is_constructing() || volume.failure().is_some() {
            return Ok(());
        }
        let mut options = silt_cleaner::Options { now, ..Default::default() };
        // Several steps of some segments each.
        options.limits.segments = 4;
        self.swap();
        let cleaned = self.writer.clean(&options);
        self.swap();
        use silt_engine::Error;
        match cleaned {
            // A log that could not be written is tried again by whoever comes next.
            Ok(_) | Err(Error::NoSpace | Error::Stale | Error::Failed(_)) => Ok(()),
            Err(e) => Err(Failure(e.to_string())),
        }
    }

    /// Makes the volume smaller where it can be.
    fn shrink(&mut self, bytes: u64, now: u64) -> Result<()> {
        use silt_engine::Error;
        let volume = self.target.fs.volume();
        if volume.is_constructing()
            || volume.failure().is_some()
            || bytes >= volume.super_block().dev_size.get()
        {
            return Ok(());
        }
        self.swap();
        let done = self.writer.shrink(bytes, now);
        self.swap();
        match done {
            Ok(_) | Err(Error::NoSpace | Error::Stale | Error::Constructing) => Ok(()),
            Err(e) => Err(Failure(e.to_string()).at("shrinking")),
        }
    }

    fn operation(&mut self, number: usize, op: &Op) -> Result<(Promise, bool)> {
        let done = Ok(Reply::Done);
        match op {
            // What cannot be opened cannot be synced: the target says why not.
            Op::Fsync { file } | Op::Fdatasync { file } if self.model.clone().apply(op) == done => {
                if matches!(op, Op::Fdatasync { .. }) {
                    return Ok(self.data_sync(number, std::slice::from_ref(file)));
                }
                let want = self.inode(file).map_or(Want::All, Want::File);
                Ok(self.all(number, want))
            }
            Op::Sync | Op::Checkpoint => {
                self.model.apply(op).map_err(|e| Failure(format!("{e:?}")))?;
                Ok(self.all(number, Want::All))
            }
            Op::Snapshot => {
                // Only what is durable is made a snapshot.
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                self.model.apply(op).map_err(|e| Failure(format!("{e:?}")))?;
                let cno = self.known;
                self.target.fs.volume_mut().make_snapshot(Cno(cno)).during("making a snapshot")?;
                self.snapshots.insert(cno);
                self.numbers.insert(self.made, cno);
                self.made += 1;
                Ok(self.all(number, Want::All))
            }
            Op::RemoveSnapshot { id } => {
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                self.model.apply(op).map_err(|e| Failure(format!("{e:?}")))?;
                let Some(cno) = self.numbers.remove(id) else { return Ok((Promise::Nothing, true)) };
                // One checkpoint may serve several, and the newest one cannot be unmade.
                if self.numbers.values().any(|c| *c == cno) || cno >= self.known {
                    self.numbers.insert(u32::MAX - id, cno);
                    return Ok((Promise::Nothing, true));
                }
                self.target.fs.volume_mut().unmake_snapshot(Cno(cno)).during("unmaking a snapshot")?;
                self.snapshots.remove(&cno);
                Ok(self.all(number, Want::All))
            }
            Op::Remount => {
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                self.apply(op)?.map_err(|e| Failure(format!("mounting again: {e:?}")))?;
                self.written(number);
                Ok((Promise::All, true))
            }
            _ => {
                let outcome = self.apply(op)?;
                Ok((Promise::Nothing, outcome.is_ok()))
            }
        }
    }

    fn data_sync(&mut self, number: usize, files: &[FileRef]) -> (Promise, bool) {
        let (mut wants, mut synced) = (Vec::new(), Vec::new());
        for file in files {
            let (Some(ino), Some(object)) = (self.inode(file), self.object(file)) else { continue };
            wants.push((ino, Want::Data(ino)));
            let (body, size) = self.content(object);
            synced.push((ino, Synced { object, body, size }));
        }
        // In the order in which the log writer takes them.
        wants.sort_by_key(|(ino, _)| *ino);
        synced.sort_by_key(|(ino, _)| *ino);
        synced.dedup_by_key(|(ino, _)| *ino);
        if wants.is_empty() {
            // Nobody asked: nothing is promised of what earlier callers were refused.
            return (Promise::Nothing, true);
        }
        let wants: Vec<Want> = wants.into_iter().map(|(_, want)| want).collect();
        let answered = self.sync(number, &wants).is_ok();
        (Promise::Data(synced.into_iter().map(|(_, s)| s).collect()), answered)
    }

    fn content(&self, object: usize) -> (silt_model::manifest::Body, Option<u64>) {
        use silt_model::manifest::Body;
        match &self.model.node(object).kind {
            silt_model::model::Kind::File(data) => (Body::Data(data.digest()), Some(data.size())),
            _ => (Body::Nothing, None),
        }
    }

    /// Leaves a volume that was not unmounted, with data behind the newest checkpoint, over several segments.
    fn leave_synced_data(&mut self) -> std::result::Result<(), Failure> {
        let files: Vec<_> = self
            .state
            .tree
            .entries()
            .filter(|e| e.mode & 0o170_000 == 0o100_000)
            .filter_map(|e| Some((e.path.clone(), e.size.filter(|size| *size > 0)?)))
            .collect();
        // So much that segments that nobody knows yet hold some of it.
        let segment = self.target.fs.volume().geometry().blocks_per_segment;
        let count = (5 * files.len()).max(2 * usize::try_from(segment).unwrap_or(0));
        for (seed, (path, size)) in (900..).zip(files.iter().cycle().take(count)) {
            let file = FileRef::Path(path.clone());
            // Beyond the end it would be a checkpoint.
            let write = Op::Write { file: file.clone(), offset: 0, len: 6000.min(*size), seed };
            match self.apply(&write)? {
                // An immutable file, or one that can only grow.
                Err(Errno::EPERM) => continue,
                outcome => outcome.during("writing").map(|_| ())?,
            }
            self.data_sync(0, &[file]);
        }
        Ok(())
    }
}
