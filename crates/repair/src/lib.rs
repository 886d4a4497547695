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
//! Memory: that of a check of all checkpoints, and twice what is written: no round is begun beyond 1 GiB of it. Where
//! two plans are compared, since a log in the midst is damaged, what both write.

mod classes;
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
use silt_verify::{Moment, Report, Tree, Unreached, Unwatched, Watch};

pub use classes::{CLASSES, Class};
pub use error::{Error, Result};
use rounds::{Kind, State};

/// Most rounds of checking and mending, and how many more there are for each past checkpoint that is mended: those that
/// share what is damaged show one after another.
const ROUNDS: usize = 40;
const ROUNDS_OF_PAST: usize = 2;
/// Most rounds on top of these that mend a few past trees at a time, where there is little space.
const IN_PARTS: usize = 100;
/// Rounds in which checkpoints are dropped and as much is wrong as before.
const SAME: u32 = 16;
/// Most rounds on top of these in which segments are emptied.
const EMPTYING: usize = 6;
/// Rounds of a kind that may follow each other and leave no less errors.
const FRUITLESS: u32 = 4;
/// Bytes of a plan in memory from which on no further round is begun.
const MEMORY: u64 = 1 << 30;

/// How to repair.
#[derive(Debug, Clone, Default)]
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
        Ok(self.overlay.apply(device)?)
    }
}

/// How many errors a report counts, those that are not kept included.
pub fn errors(report: &Report) -> u64 {
    let ids: BTreeSet<&str> = report.errors().map(|f| f.id).collect();
    report.counts.iter().filter(|(id, _)| ids.contains(*id)).map(|(_, n)| n).sum()
}

/// Makes a plan for a volume that nobody uses. Nothing is written. Errors: it is no volume, or a damaged one that must
/// not be written; what cannot be mended is no error but left in [`Plan::after`].
pub fn plan(device: Arc<dyn Device>, options: &Options) -> Result<Plan> {
    plan_watched(device, options, &Unwatched)
}

/// As [`plan`]; `watch` is told what begins, and may end it ([`Error::Stopped`]).
pub fn plan_watched(device: Arc<dyn Device>, options: &Options, watch: &dyn Watch) -> Result<Plan> {
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

/// A plan that may pass over a damaged log to whole ones behind it.
struct Attempt {
    plan: Plan,
    /// Where it does: what is left but file data that cannot be read; `u64::MAX` where the checkpoint is lost to which a
    /// mount comes.
    left: Option<u64>,
    /// Copies of segments were made invalid.
    without_twins: bool,
}

fn errors_but_of_data(plan: &Plan) -> u64 {
    newest_log::errors_but_of_data(&plan.after, None, &BTreeSet::new())
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

/// Makes a plan, with `ahead` also of what lies behind a damaged log, and making invalid what was written over other segments
/// with `without_twins`.
fn attempt(
    device: &Arc<dyn Device>,
    options: &Options,
    watch: &dyn Watch,
    ahead: bool,
    without_twins: bool,
) -> Result<Attempt> {
    let stage = |what| {
        if watch.stop() {
            return Err(Error::Stopped);
        }
        watch.stage(what, 0);
        Ok(())
    };
    let overlay = Arc::new(Overlay::new(device.clone()));
    let mut state = State::new(options, watch, device, overlay.clone(), ahead);
    if !without_twins {
        state.given_up.insert(Kind::Twins);
    }
    stage("checking")?;
    let mut lost = silt_verify::lost(&*overlay).unwrap_or_default();
    let before = state.check()?;
    if errors(&before) > 0
        && let Some(e) = supers::unknown_features(&*overlay)
    {
        return Err(e.into());
    }
    let mut invalid = false;
    let (mut no_space, mut past_stays) = (false, false);
    let mut now = before.clone();
    let newest = (!before.stats.clean || !before.is_clean()).then(|| supers::newest(&*overlay)).flatten();
    // The newest checkpoint once the super blocks are right, before anything is written.
    let mut base = None;
    // The checkpoint that a mount came to, where it was passed over and is still there.
    let mut passed: Option<u64> = None;
    let has = |c: u64| silt_engine::mend::checkpoints(overlay.clone()).is_ok_and(|all| all.contains_key(&c));
    let mut rounds = Vec::new();
    let mut stopped = None;
    let mut more = false;
    // Of rounds of a kind, the least errors that one left, and how many since left no less.
    let mut fruitless: BTreeMap<Kind, (u64, u32)> = BTreeMap::new();
    let mut round = 0;
    // Segments are emptied a few at once, each a few times at most.
    let mut emptying: usize = 0;
    let mut same = 0;
    while round
        < ROUNDS
            + ROUNDS_OF_PAST * state.past_mended()
            + emptying.min(EMPTYING)
            + state.in_parts.min(IN_PARTS)
    {
        round += 1;
        if state.is_tight(&now) && state.make_room(&now) {
            now = state.check()?;
        }
        state.left = errors(&now);
        let in_parts = state.in_parts;
        let step = match state.next(&now) {
            Ok(Some(step)) => step,
            Ok(None) => break,
            Err(e) => return Err(e),
        };
        let cut = now.errors().any(|f| f.id == "recovery-reached");
        if !matches!(step.kind, Kind::Supers | Kind::Twins) || cut {
            base.get_or_insert(now.stats.last_cno);
        }
        stage("mending")?;
        emptying += usize::from(step.kind == Kind::Copies || step.kind.empties());
        invalid |= step.kind == Kind::Twins;
        let before_it = state.passed;
        let mut silent = false;
        match state.mend(&step, base) {
            Ok(done) if state.passed != before_it => {
                (base, lost) = (None, silt_verify::lost(&*overlay).unwrap_or_default());
                passed = passed.or(state.passed.filter(|c| has(*c)));
                rounds.push(Round { classes: step.classes, done });
            }
            Ok(done) if done.is_empty() && step.kind.may_be_idle() => continue,
            Ok(mut done) => {
                silent = done.is_empty();
                if step.kind == Kind::Supers && state.known.own && step.classes.contains_key("recovery") {
                    done.push(format!(
                        "the volume goes on behind checkpoint {}, with the synced data that a mount comes to; logs behind \
                         that are given up",
                        now.stats.last_cno
                    ));
                }
                base = base.or(state.base);
                done.retain(|line| base.is_none_or(|newest| words::is_of_volume(line, newest)));
                state.told.extend(words::inodes(&done, |_| true));
                state.put_back.extend(words::inodes(&done, words::is_patched));
                rounds.push(Round { classes: step.classes, done });
            }
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(Error::Engine(silt_engine::Error::NoSpace)) if state.make_room(&now) => {
                // What was tried is tried again.
                round -= 1;
                state.not_tried(&step);
                state.given_up.remove(&step.kind);
                continue;
            }
            Err(Error::Engine(silt_engine::Error::NoSpace)) if state.with_less(&step) => continue,
            Err(e) => {
                if matches!(e, Error::Engine(silt_engine::Error::NoSpace)) {
                    no_space = true;
                    if step.kind == Kind::Rescued {
                        let said = format!(
                            "what a rescue reads besides does not fit into the free space: {}",
                            rescued::FIRST
                        );
                        rounds.push(Round { classes: step.classes.clone(), done: vec![said] });
                    }
                    // What could be mended with more space is not given up for want of it, but for what a cleaner would
                    // take for want of it, too.
                    if step.kind == Kind::PastTrees {
                        state.plain_only = true;
                    } else {
                        past_stays = true;
                        state.given_up.insert(Kind::Past);
                    }
                }
                // The others are tried all the same.
                stopped = Some(e.to_string());
                if !matches!(step.kind, Kind::Root | Kind::Back) && !state.given_up.insert(step.kind) {
                    break;
                }
                continue;
            }
        }
        if overlay.memory() > MEMORY {
            more = true;
            // What was set aside would be lost.
            if let Some(step) = state.synced_step() {
                let done = state.mend(&step, base)?;
                rounds.push(Round { classes: step.classes, done });
            }
            stopped = Some("this is as much as is done at once: repair it again for the rest".into());
            now = state.check()?;
            break;
        }
        stage("checking again")?;
        let after = state.check()?;
        if matches!(step.kind, Kind::Tables(_)) {
            let (least, times) = fruitless.entry(step.kind).or_insert((u64::MAX, 0));
            let left = errors(&after);
            *times = if left < *least { 0 } else { *times + 1 };
            *least = left.min(*least);
        }
        let changed = signature(&after) != signature(&now) || state.passed != before_it;
        now = after;
        if fruitless.get(&step.kind).is_some_and(|f| f.1 >= FRUITLESS) {
            state.given_up.insert(step.kind);
        }
        if changed && state.in_parts > in_parts {
            // The other past trees first.
        } else if changed {
            // What could not be done before may be possible now.
            let left = errors(&now);
            let stuck = |k: &Kind| fruitless.get(k).is_some_and(|f| f.1 >= FRUITLESS && left >= f.0);
            let once = |k: &Kind| {
                stuck(k) || matches!(k, Kind::Twins | Kind::Root | Kind::Rescued | Kind::Back | Kind::Flag)
            };
            state.given_up.retain(|k| once(k) || (past_stays && *k == Kind::Past));
        } else if (silent && state.in_parts == in_parts)
            || !matches!(step.kind, Kind::Past | Kind::PastTrees | Kind::Tree)
        {
            state.given_up.insert(step.kind);
        } else if step.kind == Kind::Past {
            // One after the other shows the same damage.
            same += 1;
            if same >= SAME {
                state.given_up.insert(Kind::Past);
            }
        }
    }
    let back = options.to_checkpoint.is_some()
        && !rounds.iter().any(|r: &Round| r.classes.contains_key("roll-back"));
    if errors(&now) == 0 && !back {
        stopped = None;
    }
    no_space &= stopped.is_some();
    words::name_files(rounds.iter_mut().flat_map(|round| &mut round.done), &*overlay, device);
    let base = base.unwrap_or(now.stats.last_cno);
    let unreached = newest.filter(|n| *n > base).map(|n| (base, n));
    let given_up = passed.is_some_and(|passed| !has(passed));
    let (mut overlay, mut rounds) = (overlay, rounds);
    let is_readable = || {
        silt_engine::mend::checkpoints(overlay.clone()).is_ok()
            && Tree::open(&*overlay, Moment::Latest).and_then(|tree| tree.walk()).is_ok()
    };
    if errors(&now) > 0 && !more && !is_readable() {
        // It is no better than before, and what is there now may be what rescue reads.
        (overlay, rounds, now) = (Arc::new(Overlay::new(device.clone())), Vec::new(), before.clone());
        stopped = Some(
            "what can be mended cannot be mounted afterwards, so nothing is written; silt rescue copies out what can be read"
                .into(),
        );
    }
    let snapshots = silt_engine::mend::snapshots(overlay.clone()).unwrap_or_default();
    let plan = Plan {
        overlay,
        rounds,
        before,
        after: now,
        stopped,
        no_space,
        unreached,
        synced_lost: lost.synced,
        checkpoints_lost: lost.logs,
        cut_short: supers::cut_short(&**device),
        snapshots,
    };
    let left = || if given_up { u64::MAX } else { errors_but_of_data(&plan) };
    let left = state.passed.map(|_| left());
    Ok(Attempt { plan, left, without_twins: invalid })
}

/// The newest checkpoint that was made no later than `at`, seconds since 1970, where the volume can be read.
pub fn checkpoint_at(device: &Arc<dyn Device>, at: u64) -> Option<u64> {
    silt_engine::mend::checkpoint_at(device.clone(), at).ok().flatten()
}

/// What tells two reports apart.
fn signature(report: &Report) -> BTreeMap<&'static str, u64> {
    let ids: BTreeSet<&str> = report.errors().map(|f| f.id).collect();
    report.counts.iter().filter(|(id, _)| ids.contains(*id)).map(|(id, n)| (*id, *n)).collect()
}
