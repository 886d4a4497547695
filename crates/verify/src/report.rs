//! What a check says: findings, each with the invariant it breaks and the place where.
//!
//! Memory: per invariant at most [`crate::Options::findings_per_invariant`] findings are kept, the
//! rest is counted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::invariants::Invariant;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Allowed or harmless, but worth knowing.
    Note,
    /// The volume breaks the format.
    Error,
}

/// A block in a log that does not verify, from which a pointer was read, while what the pointer is held against is in
/// one that does: the block may not be what was written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Disk block of the inode.
    Inode(u64),
    /// Disk block of a node of its map.
    Node(u64),
}

/// Where a finding lies. Block numbers count file system blocks of the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    pub segment: Option<u64>,
    /// Disk block.
    pub block: Option<u64>,
    /// Virtual block number.
    pub vblock: Option<u64>,
    pub ino: Option<u64>,
    /// Block offset in the file `ino`.
    pub offset: Option<u64>,
    /// Block offset behind the part of the file that a map node covers, from `offset` on; none: one block, or what
    /// `ino` is as a whole.
    pub end: Option<u64>,
    /// Checkpoint.
    pub cno: Option<u64>,
    /// What a wrong pointer was read from, where that is likelier to be wrong than what it points at.
    pub held: Option<Held>,
}

impl Place {
    /// Nowhere in particular.
    pub fn none() -> Self {
        Place::default()
    }
    /// At a disk block.
    pub fn block(block: u64) -> Self {
        Place { block: Some(block), ..Place::default() }
    }
    /// In a segment.
    pub fn segment(segment: u64) -> Self {
        Place { segment: Some(segment), ..Place::default() }
    }
    /// In a file.
    pub fn ino(ino: u64) -> Self {
        Place { ino: Some(ino), ..Place::default() }
    }
    /// In a checkpoint.
    pub fn cno(cno: u64) -> Self {
        Place { cno: Some(cno), ..Place::default() }
    }
    /// At a virtual block.
    pub fn vblock(vblock: u64) -> Self {
        Place { vblock: Some(vblock), ..Place::default() }
    }
    /// The same, and at a disk block.
    #[must_use]
    pub fn at_block(self, block: u64) -> Self {
        Place { block: Some(block), ..self }
    }
    /// The same, and at a block of the file.
    #[must_use]
    pub fn at_offset(self, offset: u64) -> Self {
        Place { offset: Some(offset), ..self }
    }
    /// The same, and for the blocks of the file from `offset` to `end`.
    #[must_use]
    pub fn at_span(self, offset: u64, end: u64) -> Self {
        Place { offset: Some(offset), end: Some(end), ..self }
    }
    /// The same, and at a virtual block.
    #[must_use]
    pub fn at_vblock(self, vblock: u64) -> Self {
        Place { vblock: Some(vblock), ..self }
    }
    /// The same, and in a checkpoint.
    #[must_use]
    pub fn at_cno(self, cno: u64) -> Self {
        Place { cno: Some(cno), ..self }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("checkpoint", self.cno),
            ("inode", self.ino),
            ("offset", self.offset),
            ("vblock", self.vblock),
            ("segment", self.segment),
            ("block", self.block),
        ];
        let mut first = true;
        for (name, value) in parts {
            if let Some(v) = value {
                write!(f, "{}{name} {v}", if first { "" } else { " " })?;
                first = false;
            }
        }
        if first { f.write_str("volume") } else { Ok(()) }
    }
}

/// One broken invariant at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant's stable identifier.
    pub id: &'static str,
    pub severity: Severity,
    pub place: Place,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        write!(f, "{kind} [{}] {}: {}", self.id, self.place, self.message)
    }
}

/// Counts of what was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of the latest checkpoint.
    pub last_cno: u64,
    /// Whether the volume was cleanly unmounted.
    pub clean: bool,
    pub checkpoints: u64,
    pub snapshots: u64,
    /// Checkpoints whose whole tree was walked.
    pub trees_walked: u64,
    /// Of them those of which only what differs from another one was looked at.
    pub trees_compared: u64,
    /// Segments in use.
    pub segments: u64,
    pub logs: u64,
    /// Data-sync logs behind the latest super root that a mount would apply.
    pub pending_logs: u64,
    /// Blocks that those logs hold for files.
    pub pending_blocks: u64,
    /// Allocated DAT entries.
    pub dat_entries: u64,
    /// Of them those of the current tree and metadata.
    pub live_blocks: u64,
    /// Inodes of the latest checkpoint.
    pub inodes: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order they were found; see [`Report::counts`] for those left out.
    pub findings: Vec<Finding>,
    /// Where the device is shorter than the volume: by how much, in a sentence.
    pub cut_short: Option<String>,
    /// How often each invariant was found broken, also where no finding was kept.
    pub counts: BTreeMap<&'static str, u64>,
    pub stats: Stats,
    /// Logs whose checksum does not match, as (first block, block behind the last); at most 65,536 of them.
    pub unverified: Vec<(u64, u64)>,
    /// Whether it was ended early ([`crate::Watch::stop`]): what was not found may be there all the same.
    pub stopped: bool,
}

impl Report {
    /// Findings that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Error)
    }

    /// Whether no error was found.
    pub fn is_clean(&self) -> bool {
        self.errors().next().is_none()
    }

    /// Whether an invariant was found broken.
    pub fn has(&self, id: &str) -> bool {
        self.counts.contains_key(id)
    }

    /// All errors as lines of text, for the message of a failed assertion.
    pub fn error_text(&self) -> String {
        self.errors().map(|f| format!("{f}\n")).collect()
    }
}

/// Logs that [`Report::unverified`] holds.
const UNVERIFIED_LIMIT: usize = 1 << 16;

/// Notes that are put aside; more count as an error.
const ASIDE_LIMIT: usize = 10_000;

/// What was found while something was tried.
#[derive(Default)]
struct Aside {
    notes: Vec<(&'static Invariant, Place, String)>,
    error: bool,
}

/// Collects findings while the check runs. Locks are held only to push.
pub(crate) struct Sink {
    strict: bool,
    per_invariant: usize,
    inner: Mutex<Report>,
    /// What is found while something is only tried; none: nothing is.
    aside: Mutex<Option<Aside>>,
    /// Findings so far, those put aside included.
    added: AtomicU64,
    /// Errors so far, without those put aside.
    errors: AtomicU64,
    /// Which part of which file virtual blocks are, of which findings do not know it.
    owners: Mutex<BTreeMap<u64, Place>>,
}

impl Sink {
    pub fn new(strict: bool, per_invariant: usize) -> Self {
        Sink {
            strict,
            per_invariant: per_invariant.max(1),
            inner: Mutex::default(),
            aside: Mutex::default(),
            added: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            owners: Mutex::default(),
        }
    }

    /// Adds a finding.
    pub fn add(&self, invariant: &'static Invariant, place: Place, message: impl Into<String>) {
        let severity = if self.strict && invariant.strict { Severity::Error } else { invariant.severity };
        self.added.fetch_add(1, Ordering::Relaxed);
        if let Some(aside) = &mut *self.aside.lock() {
            aside.error |= severity == Severity::Error || aside.notes.len() >= ASIDE_LIMIT;
            if !aside.error {
                aside.notes.push((invariant, place, message.into()));
            }
            return;
        }
        if severity == Severity::Error {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        let mut report = self.inner.lock();
        let count = report.counts.entry(invariant.id).or_insert(0);
        *count += 1;
        if *count <= self.per_invariant as u64 {
            report.findings.push(Finding { id: invariant.id, severity, place, message: message.into() });
        }
    }

    /// How often something was found so far.
    pub fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// Whether an error was found so far.
    pub fn has_errors(&self) -> bool {
        self.errors.load(Ordering::Relaxed) > 0
    }

    /// Tries something. Where it comes to nothing, or an error is found on the way, nothing of it is told.
    pub fn attempt<T>(&self, f: impl FnOnce() -> Option<T>) -> Option<T> {
        *self.aside.lock() = Some(Aside::default());
        let result = f();
        let aside = self.aside.lock().take().unwrap_or_default();
        let result = result.filter(|_| !aside.error)?;
        for (invariant, place, message) in aside.notes {
            self.add(invariant, place, message);
        }
        Some(result)
    }

    /// Whether what is being tried has come to an error, which is not told.
    pub fn is_failing(&self) -> bool {
        self.aside.lock().as_ref().is_some_and(|aside| aside.error)
    }

    /// Virtual blocks of findings that name no file.
    pub fn ownerless(&self) -> Vec<u64> {
        let report = self.inner.lock();
        report.findings.iter().filter(|f| f.place.ino.is_none()).filter_map(|f| f.place.vblock).collect()
    }

    /// Says which part of which file a virtual block is; the first answer counts.
    pub fn owner(&self, vblock: u64, place: Place) {
        self.owners.lock().entry(vblock).or_insert(place);
    }

    /// Remembers a log whose checksum does not match.
    pub fn unverified(&self, first: u64, end: u64) {
        let mut report = self.inner.lock();
        if report.unverified.len() < UNVERIFIED_LIMIT {
            report.unverified.push((first, end));
        }
    }

    /// Remembers that the check was ended early.
    pub fn stopped(&self) {
        self.inner.lock().stopped = true;
    }

    /// What is missing of the volume, in a sentence.
    pub fn cut_short(&self, sentence: Option<String>) {
        self.inner.lock().cut_short = sentence;
    }

    /// Changes the statistics.
    pub fn stats(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.inner.lock().stats);
    }

    pub fn into_report(self) -> Report {
        let owners = self.owners.into_inner();
        let mut report = self.inner.into_inner();
        for place in report.findings.iter_mut().map(|f| &mut f.place).filter(|p| p.ino.is_none()) {
            if let Some(of) = place.vblock.and_then(|v| owners.get(&v)) {
                *place = Place {
                    ino: of.ino,
                    offset: of.offset,
                    end: of.end,
                    cno: of.cno,
                    held: of.held,
                    ..*place
                };
            }
        }
        report
    }
}
