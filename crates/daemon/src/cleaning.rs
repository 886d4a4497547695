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
use silt_cleaner::{Access, Cleaned, Mover, Options, Outcome, Policy, pass};
use silt_engine::clean::Cleaning;
use silt_engine::{Error, GivenUp, Result, Volume};

use crate::core::{Core, now_secs};
use crate::writer::Writer;

/// How often it is looked whether segments are short.
const LOOK: Duration = Duration::from_secs(5);
/// For so long nothing more is tried once nothing more could be gained, and so many times what finding that took.
const REST: Duration = Duration::from_secs(1);
const REST_TIMES: u32 = 10;
/// Where what is to be kept leaves too little space, checkpoints younger than this are, in seconds; then the next one
/// counts.
const AGES: [u64; 5] = [21_600, 3_600, 600, 60, 0];
/// What is younger is given up only for those who wait, in seconds.
const RECENT: u64 = 3_600;
/// Bytes besides those of a change for which there is to be space: the largest request that may be the next, and what
/// changes besides its data.
const SPARE: u64 = 2 << 20;
/// Longest rest between two steps while nobody waits.
const PAUSE: Duration = Duration::from_millis(200);

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
    /// Seconds since 1970; younger checkpoints were given up for want of space.
    given_up: Option<u64>,
}

/// Since when nothing can be gained.
#[derive(Debug, Clone, Copy)]
struct Nothing {
    then: GivenUp,
    /// Until then it is believed even if a little is given up.
    until: Instant,
}

impl Nothing {
    /// Whether it is still believed.
    fn holds(&self, volume: &Volume) -> bool {
        let now = volume.given_up();
        let segment = u64::from(volume.geometry().blocks_per_segment);
        now == self.then
            || (now.blocks.saturating_sub(self.then.blocks) < segment && Instant::now() < self.until)
    }
}

/// What is known of the cleaner's work.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Segments that stay although they might be emptied, and why.
    pub aside: BTreeMap<u64, String>,
    /// History older than the wish of a day was given up down to here, in seconds since 1970.
    pub given_up: Option<u64>,
}

impl Space {
    /// Whether a change that brings `blocks` may find no space now and should wait, since some may come; or, if it
    /// takes none, should wait because what waits before it takes all there is.
    pub fn may_come(&self, volume: &Volume, blocks: u64) -> bool {
        let spare = SPARE / u64::from(volume.geometry().block_size);
        let tight = volume.is_tight();
        if !tight && volume.check_space(blocks + spare).is_ok() {
            return false;
        }
        // What waits is estimated from above: once it is written, there may be space.
        let waits = volume.has_changes() || volume.is_constructing();
        if waits && (tight || volume.check_space(blocks).is_err()) {
            return true;
        }
        if !self.enabled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if state.stop || state.nothing.is_some_and(|n| n.holds(volume)) {
            return false;
        }
        state.nothing = None;
        let before = state.wanted;
        state.wanted = Some(blocks.max(before.unwrap_or(0)));
        if before.is_none() {
            self.wake.notify_all();
        }
        true
    }

    /// A change with so many blocks was refused: as long as nothing can be gained, so are all others of that size.
    pub fn refused(&self, volume: &mut Volume, blocks: u64) {
        // Not if it is believed for a while only.
        if self.state.lock().nothing.is_some_and(|n| n.then == volume.given_up()) {
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

    fn stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// What was done since the volume was mounted.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        Report { aside: state.aside.clone(), given_up: state.given_up }
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
            let before = core.fs.lock().volume().given_up();
            let enough = clean(core);
            let (available, low, _) = marks(core);
            let mut state = space.state.lock();
            // Or since then.
            wanted |= state.wanted.take().is_some();
            let rest = LOOK.max(REST_TIMES * begin.elapsed());
            state.rest_until = (available < low).then(|| Instant::now() + rest);
            if !enough {
                // What was taken away meanwhile may not have counted.
                let until = Instant::now() + REST.max(REST_TIMES * begin.elapsed());
                state.nothing = Some(Nothing { then: before, until });
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

/// With fewer segments than these that can be written, others are emptied.
fn low(volume: &Volume) -> u64 {
    volume.geometry().reserved_segments() + 2 + volume.geometry().nsegments / 10
}

/// Segments that can be written, how few call for cleaning, and how many end it.
fn marks(core: &Core) -> (u64, u64, u64) {
    let fs = core.fs.lock();
    let (volume, g) = (fs.volume(), fs.volume().geometry());
    (volume.available_segments(), low(volume), g.reserved_segments() + 3 + g.nsegments / 5)
}

/// Cleans, giving up as little of the past as will do; whether there is space then.
fn clean(core: &Arc<Core>) -> bool {
    let (_, low, high) = marks(core);
    let high = high.max({
        let wanted = core.space.state.lock().wanted.unwrap_or(0);
        core.fs.lock().volume().segments_with_space(wanted.saturating_add(2 * SPARE / 1024))
    });
    let mut options = Options { until: Some(high), ..Options::default() };
    let wish = core.options.protection;
    for age in std::iter::once(wish).chain(AGES.into_iter().filter(|age| *age < wish)) {
        options.now = now_secs();
        options.aside.extend(core.space.report().aside.keys());
        let since = options.now.saturating_sub(age);
        let reserve = core.fs.lock().volume().geometry().reserved_segments() + 2;
        if age < wish && age < RECENT && !core.space.is_wanted() && marks(core).0 > reserve {
            // The last hour goes only for who waits.
            return true;
        }
        let since_then =
            if age == 0 { Ok(None) } else { core.fs.lock().volume().first_checkpoint_since(since) };
        options.oldest = match since_then {
            Ok(c) => c,
            Err(e) => {
                tracing::warn!("history cannot be looked at: {e}");
                return false;
            }
        };
        // Passes that hardly gain anything are not worth it before more is given up.
        let size = u64::from(core.fs.lock().volume().geometry().blocks_per_segment);
        options.least = if age == 0 { size / 50 + 1 } else { size / 16 + 1 };
        if age == 0 {
            // Every block counts now, and those that cost most come last.
            options.policy = Policy::Greedy;
        }
        let mut last = Instant::now();
        let outcome = pass(&Mounted(core), &options, |_| {
            let took = last.elapsed();
            if !core.space.is_wanted() && !core.space.stopped() {
                std::thread::sleep(took.min(PAUSE));
            }
            last = Instant::now();
            !core.space.stopped()
        });
        match outcome {
            Ok(outcome) => {
                core.space.note(&outcome);
                for a in &outcome.aside {
                    tracing::warn!("segment {} is set aside: {}", a.segment, a.why);
                }
                if outcome.cleaned.checkpoints > 0 && age < wish {
                    core.space.state.lock().given_up = Some(since);
                }
                if outcome.stopped {
                    return false;
                }
            }
            Err(e) => {
                tracing::warn!("segments cannot be emptied: {e}");
                return false;
            }
        }
        if marks(core).0 >= low && is_enough(core) {
            return true;
        }
    }
    is_enough(core)
}

/// Whether there is as much as those want who wait.
fn is_enough(core: &Core) -> bool {
    let wanted = core.space.state.lock().wanted.unwrap_or(1);
    let fs = core.fs.lock();
    let spare = SPARE / u64::from(fs.volume().geometry().block_size);
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
