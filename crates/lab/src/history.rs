//! What a workload's player remembers, so that any disk that a cut leaves can be judged.
//!
//! A mount that ended without all being written is followed by one that finds what is there: of the checkpoints that were
//! made before it, those that it did not find may be there until it is done and never again. A number may be used twice.
//!
//! Marks in the record: `2 i` before step `i`, `2 i + 1` after it was answered. A cut thus knows which steps had
//! begun and which were answered; the first says what may be there, the second what must.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use silt_device::{CrashOptions, CrashState, CrashStates, Event, MemoryDevice};
use silt_model::manifest::{Body, Manifest};
use silt_model::model::{Id, Model};
use silt_model::path::TreePath;

/// The tree at one moment.
#[derive(Debug, Clone)]
pub struct State {
    pub tree: Manifest,
    /// Which object lies under each name.
    pub objects: BTreeMap<TreePath, Id>,
    /// What it is the tree of.
    pub model: Rc<Model>,
}

/// One file's data, as fdatasync promises it.
#[derive(Debug, Clone)]
pub struct Synced {
    pub object: Id,
    /// What the file holds.
    pub body: Body,
    /// Bytes.
    pub size: Option<u64>,
    /// The state it is of.
    pub state: Rc<State>,
}

/// What the answer to a step promises.
#[derive(Debug, Clone)]
pub enum Promise {
    Nothing,
    /// Everything up to the checkpoint that is the newest after the step.
    All,
    /// These files' data.
    Data(Vec<Synced>),
}

/// What is known after a step.
#[derive(Debug, Clone)]
pub struct Done {
    pub state: Rc<State>,
    /// Newest checkpoint that is written.
    pub cno: u64,
    pub promise: Promise,
    /// It was answered with success.
    pub answered: bool,
    /// A change of what both super blocks say failed half-way, so that they may differ.
    pub half_set: bool,
}

/// A checkpoint that was written, or may have been.
#[derive(Debug, Clone)]
pub struct Made {
    /// The step in which it was; 0 for what was there before the first.
    pub step: usize,
    /// The step of the mount that did not find it: once that is done it is not there.
    pub until: usize,
    /// What it holds.
    pub state: Rc<State>,
    /// Or one of these: it could not be written at first, and may have been begun anew since.
    pub or: Vec<Rc<State>>,
    /// The snapshots it knows.
    pub snapshots: BTreeSet<u64>,
    /// The checkpoint alone holds all of the state, without synced data behind it.
    pub whole: bool,
    /// Content could not be taken into it, and whoever asked was told so: which is not known.
    pub lossy: bool,
}

impl Made {
    /// All that it may hold.
    pub fn states(&self) -> impl Iterator<Item = &Rc<State>> {
        std::iter::once(&self.state).chain(&self.or)
    }
}

/// Checkpoints by number.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints(BTreeMap<u64, Vec<Made>>);

impl Checkpoints {
    /// Notes a checkpoint, in place of what was known of it since the last mount.
    pub fn put(&mut self, cno: u64, made: Made) {
        let all = self.0.entry(cno).or_default();
        all.retain(|m| m.until != usize::MAX);
        all.push(made);
    }

    /// A mount in this step found the checkpoint `found`, and none that is newer.
    pub fn end(&mut self, found: u64, step: usize) {
        let newer = self.0.range_mut(found + 1..).flat_map(|(_, all)| all);
        newer.filter(|m| m.until == usize::MAX).for_each(|m| m.until = step);
    }

    /// What was found was told apart from what else it might have been.
    pub fn tell_apart(&mut self, found: u64, step: usize, made: Made) {
        let all = self.0.entry(found).or_default();
        all.iter_mut().filter(|m| m.until == usize::MAX).for_each(|m| m.until = step);
        all.push(Made { until: usize::MAX, ..made });
    }

    /// Whether there ever was one of this number.
    pub fn is_known(&self, cno: u64) -> bool {
        self.0.contains_key(&cno)
    }

    /// What a checkpoint may be for whoever looks at this time.
    pub fn at(&self, cno: u64, progress: Progress) -> impl Iterator<Item = &Made> {
        let all = self.0.get(&cno).into_iter().flatten();
        all.filter(move |m| m.step <= progress.begun && m.until > progress.answered)
    }

    /// The one of this number that was made last.
    pub fn last(&self, cno: u64) -> Option<&Made> {
        self.0.get(&cno).and_then(|all| all.last())
    }
}

/// What was done to a device between two power cuts that are part of the workload.
pub struct Life {
    /// The device when the record began.
    pub base: MemoryDevice,
    pub events: Vec<Event>,
}

/// A workload that was played.
pub struct History {
    pub lives: Vec<Life>,
    /// After each step; the first entry is the state before the first step.
    pub done: Vec<Done>,
    pub checkpoints: Checkpoints,
    /// Steps that mounted a volume that was not unmounted.
    pub mounts: Vec<usize>,
    /// The step in which a checkpoint could not take or give back something for want of what it had to read: from there on
    /// a check finds that.
    pub damaged: Option<usize>,
    /// Where data far out in files may be, as (offset, length) in bytes.
    pub deep: Vec<(u64, u64)>,
    /// Parts that ended with a checkpoint, of operations that go in several.
    pub parts: u64,
}

impl History {
    /// What cuts leave, of each life as many.
    pub fn states(
        &self,
        options: CrashOptions,
    ) -> impl Iterator<Item = (&Life, silt_device::Result<CrashState>)> {
        let share = options.max_states.div_ceil(self.lives.len().max(1));
        let options = CrashOptions { max_states: share, ..options };
        self.lives.iter().flat_map(move |life| {
            CrashStates::new(&life.base, life.events.clone(), options).map(move |state| (life, state))
        })
    }

    /// All that is flushed at the end, and nothing else.
    pub fn end(&self, seed: u64) -> Option<silt_device::Result<CrashState>> {
        let life = self.lives.last()?;
        let whole = CrashOptions { seed, max_states: usize::MAX, per_flush: 1 };
        CrashStates::new(&life.base, life.events.clone(), whole).last()
    }
}

/// How far a workload had come when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Steps begun.
    pub begun: usize,
    /// Steps answered.
    pub answered: usize,
}

impl Progress {
    /// From the marks before a cut.
    pub fn of(marks: &[u64]) -> Self {
        let last = |odd: u64| marks.iter().filter(|m| **m % 2 == odd).max().map(|m| m / 2);
        let count = |n: Option<u64>| usize::try_from(n.unwrap_or(0)).unwrap_or(usize::MAX);
        Progress { begun: count(last(0)), answered: count(last(1)) }
    }
}
