//! What a workload's player remembers, so that any disk that a cut leaves can be judged.
//!
//! Marks in the record: `2 i` before step `i`, `2 i + 1` after it was answered. A cut thus knows which steps had
//! begun and which were answered; the first says what may be there, the second what must.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Event, MemoryDevice};
use silt_model::manifest::{Body, Manifest};
use silt_model::model::Id;
use silt_model::path::TreePath;

/// The tree at one moment.
#[derive(Debug, Clone)]
pub struct State {
    pub tree: Manifest,
    /// Which object lies under each name.
    pub objects: BTreeMap<TreePath, Id>,
}

/// One file's data, as fdatasync promises it.
#[derive(Debug, Clone)]
pub struct Synced {
    pub object: Id,
    /// What the file holds.
    pub body: Body,
    /// Bytes.
    pub size: Option<u64>,
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
    pub state: Arc<State>,
    /// Newest checkpoint that is written.
    pub cno: u64,
    pub promise: Promise,
    /// It was answered with success.
    pub answered: bool,
}

/// A checkpoint that was written, or may have been.
#[derive(Debug, Clone)]
pub struct Made {
    /// The step in which it was; 0 for what was there before the first.
    pub step: usize,
    /// What it holds.
    pub state: Arc<State>,
    /// Or one of these: it could not be written at first, and may have been begun anew since.
    pub or: Vec<Arc<State>>,
    /// The snapshots it knows.
    pub snapshots: BTreeSet<u64>,
    /// The checkpoint alone holds all of the state, without synced data behind it.
    pub whole: bool,
}

impl Made {
    /// All that it may hold.
    pub fn states(&self) -> impl Iterator<Item = &State> {
        std::iter::once(&self.state).chain(&self.or).map(Arc::as_ref)
    }
}

/// A workload that was played.
pub struct History {
    /// The device when the record began.
    pub base: MemoryDevice,
    pub events: Vec<Event>,
    /// After each step; the first entry is the state before the first step.
    pub done: Vec<Done>,
    /// By number.
    pub checkpoints: BTreeMap<u64, Made>,
    /// Where data far out in files may be, as (offset, length) in bytes.
    pub deep: Vec<(u64, u64)>,
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
