//! Making a plan: a round, a check of what it left, and the next one, until nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_verify::{Behind, Moment, Report, Tree, Watch};

use crate::rounds::{Kind, State, Step};
use crate::{Error, Options, Plan, Result, Round, errors, errors_now, newest_log, rescued, supers, words};

/// Most rounds of checking and mending, and how many more there are for each past checkpoint that is mended: those that
/// share what is damaged show one after another.
const ROUNDS: usize = 40;
const ROUNDS_OF_PAST: usize = 2;
/// Most rounds on top of these that mend a few past trees at a time, where there is little space.
const IN_PARTS: usize = 100;
/// Most rounds on top of these in which segments are emptied.
const EMPTYING: usize = 6;
/// Rounds in which checkpoints are dropped and as much is wrong as before.
const SAME: u32 = 16;
/// Rounds of a kind that may follow each other and leave no less errors.
const FRUITLESS: u32 = 4;
/// Of these rounds the last ones, in which past trees that are still damaged are not mended but dropped.
const LAST: usize = 8;
/// Why nothing more is done of what could be.
const MORE_LATER: &str = "this is as much as is done at once: repair it again for the rest";
/// Why synced data is not taken in.
const NO_PLACE: &str = "there is no place for what was synced last: silt rescue copies it out, do that first";

/// A plan that may pass over a damaged log to whole ones behind it.
pub(crate) struct Attempt {
    pub plan: Plan,
    /// Where it does: what is left but file data that cannot be read; `u64::MAX` where the checkpoint is lost to which a
    /// mount comes.
    pub left: Option<u64>,
    /// Copies of segments were made invalid.
    pub without_twins: bool,
}

/// Makes a plan, with `ahead` also of what lies behind a damaged log, and making invalid what was written over other segments
/// with `without_twins`.
pub(crate) fn attempt(
    device: &Arc<dyn Device>,
    options: &Options,
    watch: &dyn Watch,
    ahead: bool,
    without_twins: bool,
) -> Result<Attempt> {
    let overlay = Arc::new(Overlay::new(device.clone()));
    let mut state = State::new(options, watch, device, overlay.clone(), ahead);
    if !without_twins {
        state.given_up.insert(Kind::Twins);
    }
    let mut making = Making::begin(device, options, watch, overlay, state)?;
    while making.rounds_left() > 0 {
        let Some(step) = making.next()? else { return Ok(making.end()) };
        if making.round(&step)?.is_end() {
            return Ok(making.end());
        }
    }
    making.stopped.get_or_insert_with(|| MORE_LATER.into());
    Ok(making.end())
}

/// Whether rounds go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Go,
    End,
}

impl After {
    fn is_end(self) -> bool {
        self == After::End
    }
}

/// What the rounds so far were, for ending those that lead nowhere.
#[derive(Default)]
struct Counts {
    all: usize,
    /// Segments are emptied a few at once, each a few times at most.
    emptying: usize,
    /// That dropped checkpoints and left as much wrong.
    same: u32,
    /// Of a kind, the least errors that one left, and how many since left no less.
    fruitless: BTreeMap<Kind, (u64, u32)>,
}

impl Counts {
    /// Notes what a round of a kind left; whether so many of them led nowhere that there is no use in another.
    fn leave(&mut self, kind: Kind, left: u64) -> bool {
        let (least, times) = self.fruitless.entry(kind).or_insert((u64::MAX, 0));
        *times = if left < *least { 0 } else { *times + 1 };
        *least = left.min(*least);
        *times >= FRUITLESS
    }

    /// Whether rounds of this kind led nowhere, and less was left by one of them than there is now.
    fn is_stuck(&self, kind: Kind, left: u64) -> bool {
        self.fruitless.get(&kind).is_some_and(|f| f.1 >= FRUITLESS && left >= f.0)
    }
}

/// A plan while it is made.
struct Making<'a> {
    device: &'a Arc<dyn Device>,
    options: &'a Options,
    watch: &'a dyn Watch,
    overlay: Arc<Overlay>,
    state: State<'a>,
    /// What a check found at first.
    before: Report,
    /// What one finds in what there is so far.
    now: Report,
    rounds: Vec<Round>,
    counts: Counts,
    /// The newest super root that is whole, mount or no.
    newest: Option<u64>,
    /// What no mount comes to of the volume, or of what it was pointed at.
    behind: Behind,
    /// The checkpoint that a mount came to, where it was passed over and is still there.
    passed: Option<u64>,
    /// Why it went no further.
    stopped: Option<String>,
    /// There was too little space for something.
    no_space: bool,
    /// Past checkpoints are not dropped for want of space.
    past_stays: bool,
    /// It is more than is done at once.
    more: bool,
    /// Copies of segments were made invalid.
    invalid: bool,
}

impl<'a> Making<'a> {
    fn begin(
        device: &'a Arc<dyn Device>,
        options: &'a Options,
        watch: &'a dyn Watch,
        overlay: Arc<Overlay>,
        state: State<'a>,
    ) -> Result<Self> {
        stage(watch, "checking")?;
        let behind = silt_verify::behind(&*overlay).unwrap_or_default();
        let before = state.check()?;
        if errors(&before) > 0
            && let Some(e) = supers::unknown_features(&*overlay)
        {
            return Err(e.into());
        }
        let is_whole = before.stats.clean && before.is_clean();
        let newest = if is_whole { None } else { supers::newest(&*overlay) };
        Ok(Making {
            now: before.clone(),
            device,
            options,
            watch,
            overlay,
            state,
            before,
            rounds: Vec::new(),
            counts: Counts::default(),
            newest,
            behind,
            passed: None,
            stopped: None,
            no_space: false,
            past_stays: false,
            more: false,
            invalid: false,
        })
    }

    fn rounds_left(&self) -> usize {
        let most = ROUNDS
            + ROUNDS_OF_PAST * self.state.past_mended()
            + self.counts.emptying.min(EMPTYING)
            + self.state.in_parts.min(IN_PARTS);
        most.saturating_sub(self.counts.all)
    }

    /// The next round, if there is anything to do.
    fn next(&mut self) -> Result<Option<Step>> {
        if self.rounds_left() <= LAST {
            self.state.given_up.insert(Kind::PastTrees);
        }
        self.counts.all += 1;
        if self.state.is_tight(&self.now) && self.state.make_room(&self.now) {
            self.now = self.state.check()?;
        }
        self.state.left = errors_now(&self.now);
        self.state.next(&self.now)
    }

    fn has(&self, checkpoint: u64) -> bool {
        silt_engine::mend::checkpoints(self.overlay.clone()).is_ok_and(|all| all.contains_key(&checkpoint))
    }

    /// Does a round and checks what it left.
    fn round(&mut self, step: &Step) -> Result<After> {
        let cut = self.now.errors().any(|f| f.id == "recovery-reached");
        if !matches!(step.kind, Kind::Supers | Kind::Twins) || cut {
            self.state.known.mended_from.get_or_insert(self.now.stats.last_cno);
        }
        stage(self.watch, "mending")?;
        self.counts.emptying += usize::from(step.kind == Kind::Copies || step.kind.empties());
        self.invalid |= step.kind == Kind::Twins;
        let passed = self.state.passed;
        let silent = match self.state.mend(step) {
            Ok(done) if done.is_empty() && step.kind.may_be_idle() => return Ok(After::Go),
            Ok(done) => {
                let silent = done.is_empty();
                self.note(step, done, self.state.passed != passed);
                silent
            }
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(e) => return Ok(self.fail(step, &e)),
        };
        if self.overlay.memory() > self.options.memory_bytes {
            self.leave_off()?;
            return Ok(After::End);
        }
        stage(self.watch, "checking again")?;
        let after = self.state.check()?;
        let changed = signature(&after) != signature(&self.now) || self.state.passed != passed;
        self.now = after;
        self.judge(step, changed, silent);
        Ok(After::Go)
    }

    /// Notes what a round did.
    fn note(&mut self, step: &Step, mut done: Vec<String>, passed: bool) {
        if passed {
            self.behind = silt_verify::behind(&*self.overlay).unwrap_or_default();
            self.passed = self.passed.or(self.state.passed.filter(|c| self.has(*c)));
        } else {
            if step.kind == Kind::Supers && self.state.known.own && step.classes.contains_key("recovery") {
                done.push(format!(
                    "the volume goes on behind checkpoint {}, with the synced data that a mount comes to; logs behind \
                     that are given up",
                    self.now.stats.last_cno
                ));
            }
            let newest = self.state.known.mended_from;
            done.retain(|line| newest.is_none_or(|newest| words::is_of_volume(line, newest)));
            self.state.told.extend(words::inodes(&done, |_| true));
            self.state.put_back.extend(words::inodes(&done, words::is_patched));
        }
        self.rounds.push(Round { classes: step.classes.clone(), done });
    }

    /// A round ended with an error, and nothing of it is done.
    fn fail(&mut self, step: &Step, e: &Error) -> After {
        let no_space = matches!(e, Error::Engine(silt_engine::Error::NoSpace));
        if no_space && self.state.make_room(&self.now) {
            // What was tried is tried again.
            self.counts.all -= 1;
            self.state.not_tried(step);
            self.state.given_up.remove(&step.kind);
            return After::Go;
        }
        if no_space && self.state.with_less(step) {
            self.state.given_up.remove(&step.kind);
            return After::Go;
        }
        if no_space {
            self.no_space = true;
            if step.kind == Kind::Rescued {
                let first = rescued::FIRST;
                let said = format!("what a rescue reads besides does not fit into the free space: {first}");
                self.rounds.push(Round { classes: step.classes.clone(), done: vec![said] });
            }
            // What could be mended with more space is not given up for want of it, but for what a cleaner would take for
            // want of it, too.
            if step.kind == Kind::PastTrees {
                self.state.plain_only = true;
            } else {
                self.past_stays = true;
                self.state.given_up.insert(Kind::Past);
            }
        }
        // The others are tried all the same.
        self.stopped = Some(e.to_string());
        let again = !matches!(step.kind, Kind::Root | Kind::Back) && !self.state.given_up.insert(step.kind);
        if again { After::End } else { After::Go }
    }

    /// No further round is begun for want of memory.
    fn leave_off(&mut self) -> Result<()> {
        self.more = true;
        // What was set aside would be lost.
        if let Some(step) = self.state.synced_step() {
            let done = self.state.mend(&step)?;
            self.rounds.push(Round { classes: step.classes, done });
        }
        self.stopped = Some(MORE_LATER.into());
        self.now = self.state.check()?;
        Ok(())
    }

    /// Which kinds of round have no use any more after this one. `changed`: it left something else wrong than before;
    /// `silent`: nothing is to be said of it.
    fn judge(&mut self, step: &Step, changed: bool, silent: bool) {
        let left = errors(&self.now);
        if matches!(step.kind, Kind::Tables(_)) && self.counts.leave(step.kind, left) {
            self.state.given_up.insert(step.kind);
        }
        if changed && step.in_parts {
            // The other past trees first.
        } else if changed {
            // What could not be done before may be possible now.
            let once = |k: Kind| {
                self.counts.is_stuck(k, left)
                    || matches!(
                        k,
                        Kind::Twins | Kind::Root | Kind::Rescued | Kind::Back | Kind::Anew | Kind::Flag
                    )
                    || (self.past_stays && k == Kind::Past)
            };
            self.state.given_up.retain(|k| once(*k));
        } else if (silent && !step.in_parts)
            || !matches!(step.kind, Kind::Past | Kind::PastTrees | Kind::Tree)
        {
            self.state.given_up.insert(step.kind);
        } else if step.kind == Kind::Past {
            // One after the other shows the same damage.
            self.counts.same += 1;
            if self.counts.same >= SAME {
                self.state.given_up.insert(Kind::Past);
            }
        }
    }

    /// Whether what there is now can be mounted and walked.
    fn is_readable(&self) -> bool {
        silt_engine::mend::checkpoints(self.overlay.clone()).is_ok()
            && Tree::open(&*self.overlay, Moment::Latest).and_then(|tree| tree.walk()).is_ok()
    }

    /// Says what was synced and found no place.
    fn tell_aside(&mut self) {
        let lost = self.state.known.aside.inodes();
        if lost.is_empty() || self.rounds.is_empty() {
            return;
        }
        let first = rescued::FIRST;
        let done = lost
            .iter()
            .map(|ino| format!("inode {ino}: what was synced last finds no place: {first}"))
            .collect();
        self.rounds.push(Round { classes: BTreeMap::from([("recovery", 0)]), done });
        self.stopped.get_or_insert_with(|| NO_PLACE.into());
    }

    fn end(mut self) -> Attempt {
        let back = self.options.to_checkpoint.is_some()
            && !self.rounds.iter().any(|r| r.classes.contains_key("roll-back"));
        if errors(&self.now) == 0 && !back {
            self.stopped = None;
        }
        self.no_space &= self.stopped.is_some() || !self.state.known.aside.is_empty();
        self.tell_aside();
        let more = self.stopped.is_some() && (self.more || self.rounds_left() == 0);
        words::name_files(self.rounds.iter_mut().flat_map(|r| &mut r.done), &*self.overlay, self.device);
        let base = self.state.known.mended_from.unwrap_or(self.now.stats.last_cno);
        let given_up = self.passed.is_some_and(|passed| !self.has(passed));
        if errors(&self.now) > 0 && !self.more && !self.is_readable() {
            // It is no better than before, and what is there now may be what rescue reads.
            self.overlay = Arc::new(Overlay::new(self.device.clone()));
            (self.rounds, self.now) = (Vec::new(), self.before.clone());
            self.stopped = Some(
                "what can be mended cannot be mounted afterwards, so nothing is written; silt rescue copies out what can be \
                 read"
                    .into(),
            );
        }
        let plan = Plan {
            snapshots: silt_engine::mend::snapshots(self.overlay.clone()).unwrap_or_default(),
            geometry: supers::geometry(&*self.overlay),
            free: self.state.known.free.clone(),
            overlay: self.overlay,
            rounds: self.rounds,
            before: self.before,
            after: self.now,
            stopped: self.stopped,
            no_space: self.no_space,
            more,
            unreached: self.newest.filter(|n| *n > base).map(|n| (base, n)),
            synced_lost: self.behind.synced,
            checkpoints_lost: self.behind.logs,
            cut_short: supers::cut_short(&**self.device),
        };
        let errors_left = || newest_log::errors_but_of_data(&plan.after, None, &BTreeSet::new());
        let left = self.state.passed.map(|_| if given_up { u64::MAX } else { errors_left() });
        Attempt { plan, left, without_twins: self.invalid }
    }
}

/// Tells what begins, unless the whole is to end.
fn stage(watch: &dyn Watch, what: &'static str) -> Result<()> {
    if watch.stop() {
        return Err(Error::Stopped);
    }
    watch.stage(what, 0);
    Ok(())
}

/// What tells two reports apart.
fn signature(report: &Report) -> BTreeMap<&'static str, u64> {
    let ids: BTreeSet<&str> = report.errors().map(|f| f.id).collect();
    report.counts.iter().filter(|(id, _)| ids.contains(*id)).map(|(id, n)| (*id, *n)).collect()
}
