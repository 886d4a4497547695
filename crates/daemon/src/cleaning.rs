//! Getting space back while mounted: a thread that plans, and the log writer that makes what is planned.
//!
//! ```text
//! little is clean, or somebody waits for space -> count, order, gather (this thread, the lock for moments)
//!     -> Job -> log writer: one checkpoint, durable -> segments may be written -> who waits runs
//! ```
//!
//! Changes that find no space wait as long as more may come. Nothing more comes when a pass that kept nothing but
//! snapshots and the newest state found no segment to gain from: then they are told that there is no space, and for
//! a while so is everybody.
//!
//! Locks: [`Space`] has one of its own, held for moments, taken after all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};
use silt_cleaner::{Access, Cleaned, Mover, Outcome};
use silt_control::GivenUp;
use silt_engine::clean::Cleaning;
use silt_engine::{Error, Result, Volume};

use crate::core::Core;
use crate::writer::Writer;

/// How often it is looked whether segments are short.
const LOOK: Duration = Duration::from_secs(5);
/// For so long nothing more is tried once nothing more could be gained, and so many times what finding that took.
const REST: Duration = Duration::from_secs(1);
const REST_TIMES: u32 = 10;
/// Bytes besides those of a change for which there is to be space: the largest request that may be the next, and what
/// changes besides its data.
const SPARE: u64 = 2 << 20;
/// No more of a small volume than this part.
const SPARE_PART: u64 = 128;
/// After so many bytes were written, what they took the place of is worth a pass even if nothing was given up; of a
/// small volume after this part, but a segment at least.
const REWRITTEN: u64 = 64 << 20;
const REWRITTEN_PART: u64 = 64;
/// Blocks that a change takes besides its data at most.
const BESIDES: u64 = 16;

/// What the cleaner wants of the log writer.
pub enum Job {
    /// Make this a checkpoint.
    Clean(Box<Cleaning>, Sender<Result<Cleaned>>),
    /// Make what waits a checkpoint, and have the super blocks point at it.
    Settle(Sender<Result<()>>),
}

/// What requests and the cleaner tell each other.
#[derive(Default)]
pub struct Space {
    /// Whether there is a cleaner.
    enabled: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody waits for space, for so many blocks at most.
    wanted: Option<u64>,
    /// Few segments are clean.
    short: bool,
    /// Nothing more could be gained when it was last tried.
    nothing: Option<Nothing>,
    /// Before this nobody cleans who does not wait for space: the last time did not come to enough.
    rest_until: Option<Instant>,
    stop: bool,
    aside: BTreeMap<u64, String>,
    /// What of the past went.
    given_up: GivenUp,
    /// What was wrong with the wish when that was told last.
    told: Option<String>,
}

/// Since when nothing can be gained.
#[derive(Debug, Clone, Copy)]
struct Nothing {
    then: silt_engine::GivenUp,
    /// What checkpoints had rewritten then, in blocks.
    rewritten: u64,
    /// Until then it is believed even if a little is given up, as long as nobody who takes space is refused for it.
    until: Instant,
}

impl Nothing {
    /// Whether it is still believed, when so many blocks are asked for.
    fn holds(&self, volume: &Volume, blocks: u64) -> bool {
        let now = volume.given_up();
        let g = volume.geometry();
        let segment = u64::from(g.blocks_per_segment);
        let part = g.nsegments.saturating_mul(segment) / REWRITTEN_PART;
        // What was in the place of that can be reclaimed.
        let much = segment.max(part.min(REWRITTEN / u64::from(g.block_size)));
        if volume.rewritten_blocks().saturating_sub(self.rewritten) >= much {
            return false;
        }
        now == self.then
            || (now.blocks.saturating_sub(self.then.blocks) < segment
                && Instant::now() < self.until
                && (blocks == 0 || volume.check_space(blocks).is_ok()))
    }
}

/// What is known of the cleaner's work.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Segments that stay although they might be emptied, and why.
    pub aside: BTreeMap<u64, String>,
    /// What of the past went.
    pub given_up: GivenUp,
}

impl Space {
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
        let cleans = self.enabled.load(Ordering::Relaxed);
        // What waits is estimated from above: once it is written, there may be space. A checkpoint for every change
        // would take more than it is worth.
        let waits = if cleans { volume.waits_for_much() } else { volume.has_changes() };
        if (waits || volume.is_constructing()) && (tight || !has_space(0)) {
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
        if before.is_none() {
            self.wake.notify_all();
        }
        true
    }

    /// A change with so many blocks was refused: as long as nothing can be gained, so are all others of that size.
    pub fn refused(&self, volume: &mut Volume, blocks: u64) {
        // Not if it is believed for a while only.
        if blocks > 0 && self.state.lock().nothing.is_some_and(|n| n.then == volume.given_up()) {
            volume.refuse_from(blocks);
        }
    }

    /// A checkpoint was made: where little is clean now, the cleaner looks at once.
    pub fn look(&self, volume: &Volume) {
        if self.enabled.load(Ordering::Relaxed) && volume.available_segments() < low(volume) {
            let mut state = self.state.lock();
            if !state.short {
                state.short = true;
                self.wake.notify_all();
            }
        }
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
        Report { aside: state.aside.clone(), given_up: state.given_up.clone() }
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
            state.aside.insert(a.segment.0, why);
        }
    }
}

/// The volume of a mount, for whoever cleans it.
pub struct Mounted<'a>(pub &'a Core);

impl Mounted<'_> {
    fn ask<T>(&self, job: impl FnOnce(Sender<Result<T>>) -> Job) -> Result<T> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        {
            let mut queue = self.0.queue.lock();
            // What is not queued is dropped, and with it the other end.
            if queue.stop {
                drop(tx);
            } else {
                queue.jobs.push_back(job(tx));
                self.0.wake.notify_one();
            }
        }
        rx.recv().unwrap_or_else(|_| Err(Error::Failed("the volume is being closed".into())))
    }
}

impl Access for Mounted<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        Ok(f(self.0.fs.lock().volume_mut()))
    }
}

impl Mover for Mounted<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        self.ask(|tx| Job::Clean(Box::new(cleaning), tx))
    }

    fn settle(&self) -> Result<()> {
        self.ask(Job::Settle)
    }
}

/// The thread's work, until [`Space::stop`].
pub fn run(core: &Arc<Core>) {
    let space = &core.space;
    space.enabled.store(true, Ordering::Relaxed);
    // A wish that makes no sense is told before it matters.
    crate::ladder::effective(core);
    loop {
        let mut wanted = {
            let mut state = space.state.lock();
            let rest =
                state.rest_until.map_or(Duration::ZERO, |t| t.saturating_duration_since(Instant::now()));
            if state.wanted.is_none() && !state.stop && (!rest.is_zero() || !state.short) {
                space.wake.wait_for(&mut state, if rest.is_zero() { LOOK } else { rest });
            }
            if state.stop {
                break;
            }
            if state.wanted.is_none() && state.rest_until.is_some_and(|t| Instant::now() < t) {
                continue;
            }
            state.short = false;
            state.wanted.is_some()
        };
        let (available, low, _) = marks(core);
        if wanted || available < low {
            let begin = Instant::now();
            let (before, rewritten) = {
                let fs = core.fs.lock();
                (fs.volume().given_up(), fs.volume().rewritten_blocks())
            };
            let enough = crate::ladder::clean(core);
            let (available, low, _) = marks(core);
            let mut state = space.state.lock();
            // Or since then.
            wanted |= state.wanted.take().is_some();
            let rest = LOOK.max(REST_TIMES * begin.elapsed());
            state.rest_until = (available < low).then(|| Instant::now() + rest);
            if !enough {
                // What was taken away meanwhile may not have counted.
                let until = Instant::now() + REST.max(REST_TIMES * begin.elapsed());
                state.nothing = Some(Nothing { then: before, rewritten, until });
            }
        }
        if wanted {
            // Who waited runs, whether there is space or not.
            core.queue.lock().write_back = true;
            core.wake.notify_one();
        }
    }
    space.enabled.store(false, Ordering::Relaxed);
}

/// Blocks for which there is to be space besides those of a change.
fn spare(volume: &Volume) -> u64 {
    let g = volume.geometry();
    let whole = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
    (SPARE / u64::from(g.block_size)).min(whole / SPARE_PART)
}

/// With fewer segments than these that can be written, others are emptied.
fn low(volume: &Volume) -> u64 {
    volume.geometry().reserved_segments() + 2 + volume.geometry().nsegments / 10
}

/// Segments that can be written, how few call for cleaning, and how many end it.
pub fn marks(core: &Core) -> (u64, u64, u64) {
    let fs = core.fs.lock();
    let (volume, g) = (fs.volume(), fs.volume().geometry());
    (volume.available_segments(), low(volume), g.reserved_segments() + 3 + g.nsegments / 5)
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

impl Writer {
    /// Does what the cleaner wants. `before`: what became of the round that it was part of.
    pub(crate) fn serve_cleaner(
        &mut self,
        job: Job,
        before: std::result::Result<(), i32>,
    ) -> std::result::Result<(), i32> {
        let failed = |e: i32| {
            Error::Failed(format!("the log cannot be written: {}", std::io::Error::from_raw_os_error(e)))
        };
        match job {
            Job::Settle(answer) => {
                let settled = match before {
                    Ok(()) => self.advance_super_blocks(),
                    Err(e) => Err(failed(e)),
                };
                let _ = answer.send(settled);
                before
            }
            Job::Clean(cleaning, answer) => {
                if let Err(e) = before {
                    let _ = answer.send(Err(failed(e)));
                    return before;
                }
                let begun = {
                    let mut fs = self.core.fs.lock();
                    let begun = fs.volume_mut().begin_cleaning(*cleaning, (self.clock)());
                    if begun.is_ok() {
                        self.core.changed.store(false, Ordering::Relaxed);
                        self.core.freeze_changes();
                        self.dirty_since = None;
                    }
                    begun
                };
                let made = match begun {
                    Ok(done) => {
                        let made = self.finish(true).and_then(|()| self.make_durable());
                        let made = made.and_then(|()| self.make_reachable());
                        made.and_then(|()| self.release_freed()).map(|()| done).map_err(failed)
                    }
                    Err(e) => Err(e),
                };
                let result = match &made {
                    Err(Error::Failed(_)) => Err(libc::EIO),
                    _ => Ok(()),
                };
                let _ = answer.send(made);
                result
            }
        }
    }

    /// Lets segments be written that are free on the medium. `nobarrier` leaves flushes to the device for speed: here
    /// one is needed, or the old state would be overwritten before there is a new one.
    pub(crate) fn release_freed(&mut self) -> std::result::Result<(), i32> {
        if self.core.fs.lock().volume().held_segments() == 0 {
            return Ok(());
        }
        if !self.core.options.barrier {
            self.core.device.flush().map_err(|e| crate::writer::errno(&e.into()))?;
        }
        self.core.fs.lock().volume_mut().freed_are_durable();
        Ok(())
    }

    fn advance_super_blocks(&mut self) -> Result<()> {
        let writes = self.core.fs.lock().volume_mut().advance_super_blocks((self.clock)());
        writes.iter().try_for_each(|w| w.write(&*self.core.device))
    }
}
