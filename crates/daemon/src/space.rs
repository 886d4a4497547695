//! Whether there is space, as requests see it, and what they and the cleaner tell each other.
//!
//! Changes that find no space wait as long as more may come. Nothing more comes when a pass that kept nothing but
//! snapshots and the newest state found no segment to gain from: then they are told that there is no space, and for
//! a while so is everybody. While the end of the volume is kept from use, since somebody wants to cut it off, they wait for
//! what that comes to.
//!
//! Locks: [`Space`] has one of its own, held for moments, taken after all others.

mod nothing;
mod sweep;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use silt_cleaner::{Cleaned, Outcome};
use silt_control::GivenUp;
use silt_control::cleaner::Work;
use silt_engine::Volume;

use crate::aside::Aside;
use crate::core::Core;
use crate::host_space::HostSpace;
use crate::space::nothing::{BESIDES, Nothing};
use crate::space::sweep::Sweep;
use crate::tuning::Marks;

/// Bytes besides those of a change for which there is to be space: the largest request that may be the next, and what
/// changes besides its data.
const SPARE: u64 = 2 << 20;
/// No more of a small volume than this part.
const SPARE_PART: u64 = 128;
/// Where somebody had to wait so many times within so long, the cleaner tries to be ahead of those who write. Who waits but now
/// and then is served best by one large step.
const OUTRUN_TIMES: usize = 3;
const OUTRUN: Duration = Duration::from_secs(2);
/// What requests and the cleaner tell each other.
#[derive(Default)]
pub struct Space {
    /// Whether there is a cleaner.
    enabled: AtomicBool,
    /// Segments that can be clean besides those kept back, and one: nothing is known with 0.
    room: AtomicU64,
    /// What the storage below has space for.
    pub host: HostSpace,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody waits for space, for so many blocks at most.
    wanted: Option<u64>,
    /// One of them takes none: he deletes.
    deletes: bool,
    /// Nothing is left to be gained but what is held for those who read.
    read: bool,
    /// When the next of the moments goes that the floor kept in the last pass, where that is a matter of time.
    ages: Option<Duration>,
    /// When somebody began to wait the last times, the last one first.
    waited: [Option<Instant>; OUTRUN_TIMES],
    /// Few segments are clean.
    short: bool,
    /// Nothing more could be gained when it was last tried.
    nothing: Option<Nothing>,
    /// Before this nobody cleans who does not wait for space: the last time did not come to enough.
    rest_until: Option<Instant>,
    stop: bool,
    aside: Aside,
    /// Why the last run of the cleaner failed.
    failing: Option<String>,
    /// What of the past went.
    given_up: GivenUp,
    sweep: Sweep,
    /// What was wrong with the wish when that was told last.
    told: Option<String>,
    work: Work,
}

/// What the cleaner is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// End.
    Stop,
    /// Wait again.
    Wait,
    /// Look how much is clean; whether somebody waits for space.
    Look { wanted: bool },
}

/// What is known of the cleaner's work.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Segments that stay although they might be emptied, and why.
    pub aside: BTreeMap<u64, String>,
    /// Why nothing can be emptied.
    pub failing: Option<String>,
    /// What of the past went.
    pub given_up: GivenUp,
    pub work: Work,
}

impl Space {
    /// Blocks that somebody waits for, at most; 0: nobody does.
    pub fn wanted(&self) -> u64 {
        self.state.lock().wanted.unwrap_or(0)
    }

    /// From now on there is a cleaner, or none any more.
    pub fn enable(&self, on: bool) {
        self.enabled.store(on, Ordering::Relaxed);
    }

    /// Whether there is a cleaner.
    pub fn cleans(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// So many segments can be clean besides those kept back, as was counted.
    pub fn counted(&self, room: Option<u64>) {
        self.room.store(room.map_or(0, |n| n.saturating_add(1)), Ordering::Relaxed);
    }

    /// The same, where it was counted.
    pub fn room(&self) -> Option<u64> {
        self.room.load(Ordering::Relaxed).checked_sub(1)
    }

    /// A step was made.
    pub fn worked(&self, did: &Cleaned) {
        let work = &mut self.state.lock().work;
        work.steps += 1;
        work.segments += did.segments;
        work.moved += did.moved;
    }

    /// For the cleaner: waits until somebody wants space, little is clean, or for so long.
    pub fn wait(&self, look: Duration) -> Call {
        let mut state = self.state.lock();
        let rest = state.rest_until.map_or(Duration::ZERO, |t| t.saturating_duration_since(Instant::now()));
        if state.wanted.is_none() && !state.stop && (!rest.is_zero() || !state.short) {
            self.wake.wait_for(&mut state, if rest.is_zero() { look } else { rest });
        }
        if state.stop {
            return Call::Stop;
        }
        if state.wanted.is_none() && state.rest_until.is_some_and(|t| Instant::now() < t) {
            return Call::Wait;
        }
        state.short = false;
        Call::Look { wanted: state.wanted.is_some() }
    }

    /// For the cleaner: rests so long between two steps, or until somebody wants space.
    pub fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while state.wanted.is_none() && !state.stop && !self.wake.wait_until(&mut state, until).timed_out() {}
    }

    /// For the cleaner: there is space for those who waited.
    pub fn served(&self) {
        let mut state = self.state.lock();
        (state.wanted, state.deletes, state.read) = (None, false, false);
    }

    /// For the cleaner: whether all that is left to be gained is held for those who read.
    pub fn lacks_what_is_read(&self, read: bool) {
        self.state.lock().read = read;
    }

    /// For the cleaner, at the end of a pass that found too little: when the floor keeps less.
    pub fn ages(&self, after: Option<Duration>) {
        self.state.lock().ages = after;
    }

    /// Whether somebody waits whom only those can help who read, or who wants to delete.
    pub fn is_pressing(&self) -> bool {
        let state = self.state.lock();
        state.wanted.is_some() && (state.deletes || state.read)
    }

    /// A run of the cleaner is over: for so long none begins unless somebody waits, the next one does at once where that
    /// is no time, and for so long nothing more can be gained than when it began, where that is so. Whether somebody
    /// waited meanwhile.
    pub fn ran(
        &self,
        rest: Option<Duration>,
        nothing: Option<(silt_engine::GivenUp, u64, Duration)>,
    ) -> bool {
        let mut state = self.state.lock();
        state.short |= rest.is_some_and(|t| t.is_zero());
        let wanted = state.wanted.take().is_some();
        (state.deletes, state.read) = (false, false);
        let ages = state.ages.take();
        let now = Instant::now();
        state.rest_until = rest.map(|t| now + t);
        if let Some((then, rewritten, time)) = nothing {
            let failed = state.failing.is_some();
            // Not more often than others look.
            let ages = ages.and_then(|after| now.checked_add(after.max(time)));
            state.nothing = Some(Nothing { then, rewritten, until: now + time, failed, ages });
        }
        wanted
    }

    /// Whether a change that takes `blocks` may find no space now and should wait, since some may come; or, if it
    /// takes none, should wait because what waits before it takes all there is.
    pub fn may_come(&self, volume: &Volume, blocks: u64) -> bool {
        let has_space = |besides| {
            if blocks == 0 {
                !volume.is_short()
            } else {
                volume.check_space(blocks + BESIDES + besides).is_ok()
            }
        };
        let tight = volume.is_tight();
        if !tight && has_space(spare(volume)) {
            return false;
        }
        // Whoever cuts the end off is done some time, and if he gives up it is there for all.
        if volume.is_confined() && volume.failure().is_none() {
            return blocks > 0 || tight;
        }
        let cleans = self.enabled.load(Ordering::Relaxed);
        // What waits is estimated from above: once it is written, there may be space. A checkpoint for every change
        // would take more than it is worth.
        let waits = if cleans { volume.waits_for_much() } else { volume.has_changes() };
        if (waits || volume.is_constructing()) && (tight || !has_space(0)) {
            return true;
        }
        // The host may have what is lacking.
        let asked = blocks.saturating_add(BESIDES + spare(volume));
        if volume.may_be_backed(asked) && self.host.ask(asked) {
            return true;
        }
        if !cleans {
            return false;
        }
        let mut state = self.state.lock();
        if state.stop || state.nothing.is_some_and(|n| n.holds(volume, blocks)) {
            return false;
        }
        state.nothing = None;
        let before = state.wanted;
        let with = if blocks == 0 { 0 } else { blocks + BESIDES };
        state.wanted = Some(with.max(before.unwrap_or(0)));
        state.deletes |= blocks == 0;
        if before.is_none() {
            state.waited.rotate_right(1);
            state.waited[0] = Some(Instant::now());
            self.wake.notify_all();
        }
        true
    }

    /// A change that takes `blocks` was refused: whether it is to wait for a pass, and be tried again, since something was
    /// given up since the last one that found nothing. Where it takes none, what was or will be rewritten counts as well: it
    /// may be all that it lacks.
    pub fn may_help(&self, volume: &Volume, blocks: u64) -> bool {
        let mut state = self.state.lock();
        let same = |n: &Nothing| {
            n.then == volume.given_up()
                && !n.has_aged()
                && (blocks > 0 || (n.rewritten == volume.rewritten_blocks() && !volume.has_changes()))
        };
        let known = state.nothing.as_ref().is_some_and(same);
        let helps = self.enabled.load(Ordering::Relaxed)
            && !state.stop
            && volume.failure().is_none()
            && (blocks > 0 || volume.is_tight() || volume.is_short())
            && !known;
        if helps {
            state.nothing = None;
        }
        helps
    }

    /// A change with so many blocks was refused: as long as nothing can be gained, so are all others of that size.
    pub fn refused(&self, volume: &mut Volume, blocks: u64) {
        // Not if it is believed for a while only.
        let for_good = |n: Nothing| !n.failed && n.ages.is_none() && n.then == volume.given_up();
        if blocks > 0 && self.state.lock().nothing.is_some_and(for_good) {
            volume.refuse_from(blocks);
        }
    }

    /// A checkpoint was made: where few segments are clean now, or some may be empty, the cleaner looks at once.
    pub fn look(&self, volume: &Volume, marks: &Marks) {
        if self.enabled.load(Ordering::Relaxed)
            && volume.available_segments() < marks.high.unwrap_or(marks.short)
        {
            let mut state = self.state.lock();
            let is_due = volume.available_segments() < marks.short || state.sweep.is_due(volume);
            if !state.short && is_due {
                state.short = true;
                self.wake.notify_all();
            }
        }
    }

    /// Whether segments may be empty that nobody looked at yet.
    pub fn may_be_empty(&self, volume: &Volume) -> bool {
        self.state.lock().sweep.is_due(volume)
    }

    /// It was looked for what is empty when checkpoints had rewritten so many blocks; whether hardly anything was.
    pub fn swept(&self, rewritten: u64, in_vain: bool) {
        self.state.lock().sweep.looked(rewritten, in_vain);
    }

    /// Whether somebody had to wait again and again: others write faster than is cleaned.
    pub fn is_outrun(&self) -> bool {
        let waited = self.state.lock().waited;
        waited.iter().all(|then| then.is_some_and(|then| then.elapsed() < OUTRUN))
    }

    /// Whether somebody waits for space.
    pub fn is_wanted(&self) -> bool {
        self.state.lock().wanted.is_some()
    }

    /// Ends the cleaner after the step under way; who waits is told that there is no space.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// Whether the cleaner is to end.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// What was done since the volume was mounted.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        Report {
            aside: state.aside.reasons(),
            failing: state.failing.clone(),
            given_up: state.given_up.clone(),
            work: state.work,
        }
    }

    /// Something else is to be kept from now on: what could not be gained before may be now.
    pub fn think_again(&self) {
        let mut state = self.state.lock();
        state.nothing = None;
        state.rest_until = None;
        state.short = true;
        self.wake.notify_all();
    }

    /// Notes that moments went: as wished, or beyond that, when all that was kept is said by `down_to`.
    pub fn note_given_up(&self, moments: u64, now: u64, down_to: Option<String>) {
        let given = &mut self.state.lock().given_up;
        if moments == 0 {
            return;
        }
        if down_to.is_some() {
            given.beyond += moments;
            (given.when, given.down_to) = (Some(now), down_to);
        } else {
            given.as_wished += moments;
        }
    }

    /// Whether this is new to who reads the log.
    pub fn is_news(&self, problem: Option<&String>) -> bool {
        let mut state = self.state.lock();
        let news = problem.is_some() && state.told.as_ref() != problem;
        state.told = problem.cloned();
        news
    }

    /// Notes what a run of the cleaner came to.
    pub fn note(&self, outcome: &Outcome) {
        let mut state = self.state.lock();
        for a in &outcome.aside {
            let why = a.log.map_or_else(|| a.why.clone(), |log| format!("{} (block {log})", a.why));
            state.aside.add(a.segment.0, why, Instant::now());
        }
    }

    /// Segments that are not tried now.
    pub fn left_alone(&self, now: Instant) -> Vec<u64> {
        self.state.lock().aside.left_alone(now)
    }

    /// Somebody emptied segments by hand: all may be tried again.
    pub fn try_all(&self) {
        self.state.lock().aside = Aside::default();
    }

    /// Why a run of the cleaner failed, or that it did not; whether that is news.
    pub fn failed(&self, why: Option<String>) -> bool {
        let mut state = self.state.lock();
        let news = why.is_some() && state.failing != why;
        state.failing = why;
        news
    }
}

/// Segments that are to be clean for those who wait.
pub fn wanted_segments(core: &Core) -> u64 {
    let wanted = core.space.state.lock().wanted.unwrap_or(0);
    let fs = core.fs.lock();
    let spare = spare(fs.volume());
    fs.volume().segments_with_space(wanted.saturating_add(2 * spare))
}

/// Whether there is as much as those want who wait.
pub fn is_enough(core: &Core) -> bool {
    let wanted = core.space.state.lock().wanted.unwrap_or(1);
    let fs = core.fs.lock();
    let spare = spare(fs.volume());
    if wanted == 0 {
        return !fs.volume().is_short();
    }
    fs.volume().check_space(wanted.max(spare) + spare).is_ok() && !fs.volume().is_tight()
}

/// Segments with which users wait for more: the reserve, what is being written, and what the next checkpoint may take.
pub fn kept(volume: &Volume) -> u64 {
    let kept = crate::tuning::kept_back(volume.geometry()).saturating_sub(volume.unbacked_segments());
    kept.max(volume.segments_with_space(2 * spare(volume)))
}

/// Blocks for which there is to be space besides those of a change.
fn spare(volume: &Volume) -> u64 {
    let g = volume.geometry();
    let whole = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
    (SPARE / u64::from(g.block_size)).min(whole / SPARE_PART)
}

#[cfg(test)]
mod tests;
