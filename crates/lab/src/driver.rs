//! Plays a workload on a recorded device.
//!
//! Operations change the tree in this process; what makes them durable is done by the log writer that runs behind a
//! mount, in the same thread, with a clock of our own. So a workload gives the same record each time.
//!
//! Where the device fails, whoever asks may be refused, and nothing has changed then: tree and snapshots are looked at
//! after each refusal. What a mount finds that was not unmounted is judged as any disk is, and remembered as the state
//! that the next steps go on from.

mod mounting;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use silt_daemon::{Stepped, Want};
use silt_device::{Device, Fault, MemoryDevice, Recorder};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Fs, Tree};
use silt_fs_model::FsTarget;
use silt_model::caps::Capabilities;
use silt_model::errno::Errno;
use silt_model::manifest::Columns;
use silt_model::model::Model;
use silt_model::op::{FileRef, Op};
use silt_model::run::judge;
use silt_model::target::{Outcome, Reply, Target};

use crate::history::{Checkpoints, Done, History, Life, Made, Promise, State};
use crate::workload::{BEGIN, Workload};
use crate::{During, Failure, Result, oracle};

/// Seconds that pass with each step: super blocks are written every few of them.
const PACE: u64 = 4;
/// Without barriers they alone are flushed: between them many logs wait, in any order.
const UNHURRIED: u64 = 1;
/// Whatever the device does, a step ends.
const PATIENCE: Duration = Duration::from_secs(60);

type Disk = Recorder<Fault<MemoryDevice>>;

struct Player<'a> {
    workload: &'a Workload,
    disk: Arc<Disk>,
    /// The device when the record began.
    base: MemoryDevice,
    /// What was done before power cuts that are part of the workload.
    lives: Vec<Life>,
    /// Holds the file system while operations are applied.
    target: FsTarget,
    /// Holds it while something is made durable; what it holds else is never used.
    writer: Stepped,
    clock: Arc<AtomicU64>,
    pace: u64,
    model: Model,
    state: Rc<State>,
    done: Vec<Done>,
    checkpoints: Checkpoints,
    mounts: Vec<usize>,
    snapshots: BTreeSet<u64>,
    /// Checkpoints of the model's snapshots, those that are there and all there ever were.
    numbers: BTreeMap<u32, u64>,
    all_numbers: BTreeMap<u32, u64>,
    made: u32,
    /// A construction cannot be written: the steps that tried, and the states then.
    stuck: Vec<(usize, Rc<State>)>,
    known: u64,
    /// The device was told to fail: until it works again, or is mounted again.
    broken: bool,
    hurt: bool,
    /// A snapshot found no space: those after it have other numbers than the workload thinks.
    fewer_snapshots: bool,
    half_set: bool,
    /// Reads may fail; how many had when the step began, and when the mount did.
    unreadable: bool,
    struck: u64,
    struck_before: u64,
    /// Content was lost that somebody was told of, or damage was: what comes after cannot be foretold.
    ended: bool,
    damaged: Option<usize>,
    /// The step that is played.
    number: usize,
    /// Parts so far of operations that went in several.
    parts: u64,
}

fn state_of(model: &Model) -> Rc<State> {
    let tree = model.tree();
    let objects =
        tree.entries().filter_map(|e| Some((e.path.clone(), model.lookup(&e.path).ok()?))).collect();
    Rc::new(State { tree, objects, model: Rc::new(model.clone()) })
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
    let mut player = Player::begin(workload, before, model, workload.with_mount)?;
    // What was there before the first step, and what the mount made of it.
    let newest = player.known;
    for cno in found..=newest {
        let made = Made {
            snapshots: BTreeSet::new(),
            whole: !workload.unclean || cno > found,
            ..player.made_of(&[])
        };
        player.checkpoints.put(cno, made);
    }
    let cno = if workload.with_mount { found } else { newest };
    player.done.push(Done {
        state: player.state.clone(),
        cno,
        promise: Promise::All,
        answered: true,
        half_set: false,
    });
    for (i, step) in workload.steps.iter().enumerate() {
        let number = i + 1;
        player.disk.mark(2 * number as u64);
        let begun = Instant::now();
        let after = player.step(number, step).map_err(|e| e.at(&format!("step {number}, {step}")))?;
        if begun.elapsed() > PATIENCE {
            return Err(Failure(format!("step {number}, {step}: it took {:?}", begun.elapsed())));
        }
        player.disk.mark(2 * number as u64 + 1);
        player.done.push(after);
        if player.ended {
            break;
        }
    }
    Ok(player.into_history())
}

impl<'a> Player<'a> {
    fn begin(workload: &'a Workload, image: MemoryDevice, model: Model, with_mount: bool) -> Result<Self> {
        let base = image.fork();
        let disk: Arc<Disk> = Arc::new(Recorder::new(Fault::new(image)));
        let clock = Arc::new(AtomicU64::new(BEGIN));
        let (target, writer) = mounting::mount(workload, &disk, &clock)?;
        let base = if with_mount {
            base
        } else {
            // All of it is durable.
            disk.record().clear();
            disk.inner().inner().fork()
        };
        let state = state_of(&model);
        let known = target.fs.volume().last_log().cno;
        Ok(Player {
            workload,
            disk,
            base,
            lives: Vec::new(),
            target,
            writer,
            clock,
            pace: if workload.barrier { PACE } else { UNHURRIED },
            model,
            state,
            done: Vec::new(),
            checkpoints: Checkpoints::default(),
            mounts: Vec::new(),
            snapshots: BTreeSet::new(),
            numbers: BTreeMap::new(),
            all_numbers: BTreeMap::new(),
            made: 0,
            stuck: Vec::new(),
            known,
            broken: false,
            hurt: false,
            fewer_snapshots: false,
            half_set: false,
            unreadable: false,
            struck: 0,
            struck_before: 0,
            ended: false,
            damaged: None,
            number: 0,
            parts: 0,
        })
    }

    fn into_history(mut self) -> History {
        self.end_life();
        let deep = self.model.deep_ranges();
        let Player { lives, done, checkpoints, mounts, damaged, parts, .. } = self;
        History { lives, done, checkpoints, mounts, damaged, deep, parts }
    }

    /// What was done to the device up to now is a life of its own.
    fn end_life(&mut self) {
        self.lives.push(Life { base: self.base.fork(), events: self.disk.record().events() });
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.target.fs, &mut *self.writer.fs());
    }

    /// Lets the log writer serve; the first error of all answers.
    fn sync(&mut self, step: usize, wants: &[Want]) -> std::result::Result<(), Failure> {
        self.served(step, wants).map(drop).map_err(|errno| Failure(format!("error {}", errno.0)))
    }

    /// The same, with the error.
    fn served(&mut self, step: usize, wants: &[Want]) -> Outcome {
        self.swap();
        let answers = self.writer.sync(wants);
        self.swap();
        self.written(step);
        match answers.into_iter().find_map(std::result::Result::err) {
            None => Ok(Reply::Done),
            Some(errno) => Err(Errno(errno)),
        }
    }

    /// Takes note of the checkpoints that are there now.
    fn written(&mut self, step: usize) {
        let volume = self.target.fs.volume();
        let newest = volume.last_log().cno;
        let open = volume.is_constructing() || volume.failure().is_some();
        for cno in self.known + 1..=newest {
            // What could not be written came first. It may have been begun anew, of all that was there then.
            let mut tried = std::mem::take(&mut self.stuck);
            tried.push((step, self.state.clone()));
            self.checkpoints.put(cno, self.made_of(&tried));
        }
        self.known = self.known.max(newest);
        if open {
            self.stuck.push((step, self.state.clone()));
            // It may be on the device nonetheless.
            self.checkpoints.put(newest + 1, self.made_of(&self.stuck));
        }
    }

    fn made_of(&self, tried: &[(usize, Rc<State>)]) -> Made {
        let (step, state) = tried.first().cloned().unwrap_or((0, self.state.clone()));
        let or = tried.iter().skip(1).map(|(_, state)| state.clone()).collect();
        let snapshots = self.snapshots.clone();
        Made { step, until: usize::MAX, state, or, snapshots, whole: true, lossy: false }
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
        let got = self.in_all_parts(op)?;
        // The model's disk is never full. Where not even the reserve is left, nothing is written any more.
        let failed = self.target.fs.volume().failure().is_some();
        let ended = got == Err(Errno::EROFS) && failed;
        if got == Err(Errno::ENOSPC) || ended && self.target.fs.volume().free_blocks() == 0 {
            return Ok(got);
        }
        if self.hurt && (ended || got == Err(Errno::EIO)) {
            self.unchanged(&format!("after {op}"))?;
            return Ok(got);
        }
        let expected = self.model.apply(op);
        if let Some(what) = judge(op, &expected, &got) {
            return Err(Failure(what));
        }
        self.state = state_of(&self.model);
        Ok(got)
    }

    /// Applies an operation in as many parts as it takes, with a checkpoint after each: what a part did is in that.
    fn in_all_parts(&mut self, op: &Op) -> Result<Outcome> {
        let mut got = self.target.apply(op);
        while got == Err(Errno::EAGAIN) {
            self.parts += 1;
            match self.target.done_so_far(op) {
                Ok(None) => {}
                Ok(Some(part)) => {
                    self.model.apply(&part).during("what was done so far")?;
                    self.state = state_of(&self.model);
                }
                // How far it came is not known.
                Err(errno) if self.unreadable => {
                    self.ended = true;
                    return Ok(Err(errno));
                }
                Err(errno) => return Err(Failure(format!("how far an operation came: {errno}"))),
            }
            if let Err(errno) = self.served(self.number, &[Want::All]) {
                return Ok(Err(errno));
            }
            got = self.target.apply(op);
        }
        Ok(got)
    }

    /// What could not be done has changed nothing: tree and snapshots are as remembered, as far as they can be read.
    fn unchanged(&mut self, when: &str) -> Result<()> {
        if self.unreadable {
            return Ok(());
        }
        let Ok(tree) = self.target.tree(Tree::Live, Columns::ALL) else { return Ok(()) };
        let place = format!("the tree {when} (remembered / found)");
        oracle::same(&self.state.tree, &tree, Columns::MODEL).map_err(|e| e.at(&place))?;
        let Ok(found) = self.target.fs.volume().snapshots() else { return Ok(()) };
        let found: BTreeSet<u64> = found.into_iter().map(|c| c.0).collect();
        if found != self.snapshots {
            return Err(Failure(format!("snapshots are {found:?} {when}, should be {:?}", self.snapshots)));
        }
        Ok(())
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
