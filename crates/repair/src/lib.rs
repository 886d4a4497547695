//! Repairing a volume: what a check finds becomes a plan, the plan is tried in memory, and only what leaves the
//! volume better is written.
//!
//! ```text
//! check -> which classes of mend -> mend, on an overlay in memory -> check -> .. until nothing is left to do
//! then, if it is wanted: save what is overwritten -> make the same writes on the device
//! ```
//! - A mend writes checkpoints into segments in which nothing is wanted, and super blocks. Every round ends with
//!   the super blocks, so the writes may be cut off anywhere: what is there is the state before or after a round,
//!   and repairing it again finishes the work.
//! - What the plan says is what was seen: the mended volume was checked before the plan is shown.
//!
//! Memory: that of a check of all checkpoints, and twice what is written: no round is begun beyond
//! [`Options::memory_bytes`] of it. Where two plans are compared, since a log in the midst is damaged, what both write.

mod apply;
mod attempt;
mod classes;
mod coming_back;
mod dirs;
mod error;
mod newest_log;
mod past;
mod rescued;
mod rounds;
mod supers;
mod tables;
mod tree;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_format::Geometry;
use silt_verify::{Moment, Report, Tree, Unreached, Unwatched, Watch};

use attempt::{Attempt, attempt};
pub use classes::{CLASSES, Class};
pub use error::{Error, Result};

/// How to repair.
#[derive(Debug, Clone)]
pub struct Options {
    /// Make the tree that of this checkpoint, when all else is sound.
    pub to_checkpoint: Option<u64>,
    /// Give up snapshots that are damaged; else they are left as they are.
    pub drop_snapshots: bool,
    /// Keep the state before files are mended as a snapshot; what is wrong in it stays a finding.
    pub keep: bool,
    /// Put zeroes in the place of file data that the device cannot read, in every checkpoint that has it; else it stays
    /// where it is, and so does its segment.
    pub zero_unreadable: bool,
    /// Cut damaged files out instead of putting older versions in their place.
    pub cut: bool,
    /// Seconds since 1970.
    pub now: u64,
    /// To tell one repair from another.
    pub seed: u64,
    /// Bytes of metadata kept in memory.
    pub cache_bytes: u64,
    /// Bytes of memory that a plan may take: no round is begun beyond that, and no file taken from a rescue.
    pub memory_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            to_checkpoint: None,
            drop_snapshots: false,
            keep: false,
            zero_unreadable: false,
            cut: false,
            now: 0,
            seed: 0,
            cache_bytes: 0,
            memory_bytes: 1 << 30,
        }
    }
}

/// One round of a plan.
#[derive(Debug, Clone)]
pub struct Round {
    /// What kinds of mend, and how many findings each is for.
    pub classes: BTreeMap<&'static str, u64>,
    /// What changes and what is lost, in words.
    pub done: Vec<String>,
}

/// What would be done, tried in memory.
pub struct Plan {
    overlay: Arc<Overlay>,
    geometry: Option<Geometry>,
    /// Segments that held nothing when it was made.
    free: Option<BTreeSet<u64>>,
    /// In the order they are done; none: nothing to mend.
    pub rounds: Vec<Round>,
    /// What a check finds at first.
    pub before: Report,
    /// What a check finds when all is done.
    pub after: Report,
    /// Why it went no further, where an error ended it.
    pub stopped: Option<String>,
    /// Whether something was not done because there is too little free space.
    pub no_space: bool,
    /// Whether it is more than is done at once: another repair goes on with the rest.
    pub more: bool,
    /// Of a volume that was not cleanly unmounted: the checkpoint that is taken for the newest, and a newer one whose
    /// super root is whole behind a log that is broken. What only that has is left out, as by a mount.
    pub unreached: Option<(u64, u64)>,
    /// Synced data behind its newest checkpoint that no mount comes to; nor does a repair.
    pub synced_lost: Option<Unreached>,
    /// Checkpoints that no mount comes to, and no repair, in a sentence.
    pub checkpoints_lost: Option<String>,
    /// Bytes that the volume had, and bytes that are there, where the device is shorter.
    pub cut_short: Option<(u64, u64)>,
    /// Snapshots of the mended volume: what becomes of these is of more weight than of plain checkpoints.
    pub snapshots: BTreeSet<u64>,
}

impl Plan {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.overlay.is_unchanged()
    }

    /// Whether older versions of files take the place of damaged ones, of which logs may have later content.
    pub fn puts_back(&self) -> bool {
        let mut lines = self.rounds.iter().flat_map(|round| &round.done);
        // Those of past checkpoints begin with theirs.
        lines.any(|line| line.starts_with("inode ") && line.ends_with(words::CHANGES_LOST))
    }

    /// Whether blocks of logs that do not verify are moved as they are: nothing tells afterwards that they were in such a log.
    pub fn moves_unverified(&self) -> bool {
        self.rounds.iter().flat_map(|round| &round.done).any(|line| line.starts_with("moved as they are: "))
    }

    /// Every byte range that will be written; for saving what is there.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Bytes that will be written, each place once.
    pub fn bytes(&self) -> u64 {
        self.overlay.ranges().iter().map(|r| r.end - r.start).sum()
    }

    /// Does it. The device must be the one that was planned for, unchanged. Durable when it returns.
    pub fn apply(&self, device: &dyn Device) -> Result<()> {
        apply::apply(&self.overlay, device, self.geometry.as_ref(), self.free.as_ref())
    }
}

/// How many errors a report counts, those that are not kept included.
pub fn errors(report: &Report) -> u64 {
    let ids: BTreeSet<&str> = report.errors().map(|f| f.id).collect();
    report.counts.iter().filter(|(id, _)| ids.contains(*id)).map(|(_, n)| n).sum()
}

/// How many errors of a report are about the latest tree or the volume: what is wrong with past checkpoints is told again for
/// each that comes to be past, whatever a round did.
pub(crate) fn errors_now(report: &Report) -> usize {
    let last = report.stats.last_cno;
    report.errors().filter(|f| f.place.cno.is_none_or(|c| c == last)).count()
}

/// Makes a plan for a volume that nobody uses. Nothing is written. Errors: it is no volume, or a damaged one that must
/// not be written; what cannot be mended is no error but left in [`Plan::after`].
pub fn plan(device: Arc<dyn Device>, options: &Options) -> Result<Plan> {
    plan_watched(device, options, &Unwatched)
}

/// As [`plan`]; `watch` is told what begins, and may end it ([`Error::Stopped`]).
pub fn plan_watched(device: Arc<dyn Device>, options: &Options, watch: &dyn Watch) -> Result<Plan> {
    // Writes that failed may be in the system's memory still: what is read is to be what will be there after a power cut.
    device.forget_cached();
    // What no mount comes to is taken in, unless more can be mended where a mount would go on before it.
    let newest = match attempts(&device, options, watch, true) {
        Ok(Attempt { plan, left: None, .. }) => return Ok(plan),
        Ok(Attempt { plan, left: Some(0), .. }) if !is_patchwork(&plan) => return Ok(plan),
        Err(Error::Stopped) => return Err(Error::Stopped),
        made => made,
    };
    let older = attempts(&device, options, watch, false);
    match (newest, older) {
        // The older one is whole, and nothing has to be guessed.
        (Ok(newest), Ok(older))
            if is_patchwork(&newest.plan) && errors(&older.plan.after) == 0 && !is_patchwork(&older.plan) =>
        {
            Ok(older.plan)
        }
        // Nothing is to be done with what no mount comes to.
        (Ok(newest), Ok(older))
            if newest.plan.is_empty() && errors(&older.plan.after) < errors(&newest.plan.after) =>
        {
            Ok(older.plan)
        }
        (Ok(newest), Ok(older)) if !is_less(&newest.plan, &older.plan) => Ok(newest.plan),
        (Ok(newest), Err(Error::Engine(_) | Error::Hopeless(_))) => Ok(newest.plan),
        (_, older) => Ok(older?.plan),
    }
}

/// Whether more than half of the files of a plan's tree are not what they were, or may not be.
fn is_patchwork(plan: &Plan) -> bool {
    let patched = words::patched(plan.rounds.iter().flat_map(|round| &round.done));
    patched > 0 && names(plan).is_none_or(|names| patched > names / 2)
}

/// How many names a plan's tree has.
fn names(plan: &Plan) -> Option<usize> {
    let tree = Tree::open(&*plan.overlay, Moment::Latest).ok()?;
    Some(tree.walk().ok()?.len())
}

/// Whether a plan that leaves errors is worse than the other: its tree has not even half as many names as the other's, which
/// so many may have lost since by being removed.
fn is_less(plan: &Plan, other: &Plan) -> bool {
    names(plan).is_none_or(|n| n < names(other).unwrap_or(0) / 2)
}

/// Makes a plan; where segments lie over others and errors are left without these copies, another with them.
fn attempts(device: &Arc<dyn Device>, options: &Options, watch: &dyn Watch, ahead: bool) -> Result<Attempt> {
    let made = attempt(device, options, watch, ahead, true);
    let is_good = made.as_ref().is_ok_and(|made| !made.without_twins || errors(&made.plan.after) == 0);
    if is_good || matches!(made, Err(Error::Stopped)) {
        return made;
    }
    let with_twins = attempt(device, options, watch, ahead, false)?;
    let is_better = |made: &Attempt| errors(&made.plan.after) <= errors(&with_twins.plan.after);
    if made.as_ref().is_ok_and(is_better) { made } else { Ok(with_twins) }
}

/// The newest checkpoint that was made no later than `at`, seconds since 1970, where the volume can be read.
pub fn checkpoint_at(device: &Arc<dyn Device>, at: u64) -> Option<u64> {
    silt_engine::mend::checkpoint_at(device.clone(), at).ok().flatten()
}
