//! The account of space of a mount, kept in the background.
//!
//! It is counted after mounting, and again when enough has changed: a snapshot was made or unmade, a moment mounted or
//! unmounted, the wish is another, a hundredth of the segments was written or freed, or something was written and the
//! account is ten minutes old, or it is an hour old, since moments age. Between two counts the thread rests 20 times as long as one took, at least five
//! seconds; when the volume has another size it counts at once.
//!
//! Locks: the state's own, held for moments and with no other; the tree's for a step of a count, some 60 us where the
//! tables are in memory, and as long as that is held the thread sleeps after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use silt_cleaner::{Access, Counting, Moments};
use silt_control::Account;
use silt_control::account::Kept;
use silt_engine::{Result, Volume};
use silt_retention::Ladder;

use crate::core::{Core, now_secs};

/// Time between looks at what has changed, and the least rest between counts.
const LOOK: Duration = Duration::from_secs(5);
/// A count rests the thread so many times as long as it took.
const REST: u32 = 20;
/// An account this old is counted anew if anything was written since.
const OLD: Duration = Duration::from_secs(600);
/// One this old in any case: moments have aged.
const AGED: Duration = Duration::from_secs(3600);
/// Longest sleep after a step.
const NAP: Duration = Duration::from_millis(5);

/// What an account depends on, for telling whether it is old.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    sequence: u64,
    clean: u64,
    rewritten: u64,
    checkpoint: u64,
    snapshots: Vec<u64>,
    mounted: Vec<u64>,
    wish: String,
    floor: String,
}

#[derive(Default)]
struct State {
    kept: Kept,
    /// No thread keeps it yet.
    running: bool,
    stop: bool,
    /// How often a count was asked for, and how often as the last one began that is over.
    asked: u64,
    answered: u64,
}

/// See the module.
#[derive(Default)]
pub struct Keeper {
    state: Mutex<State>,
    wake: Condvar,
}

impl Keeper {
    /// As counted last; none where nobody counts.
    pub fn kept(&self) -> Option<Kept> {
        let state = self.state.lock();
        state.running.then(|| state.kept.clone())
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// Has it counted at once, and waits for that for so long at most.
    pub fn recount(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        state.asked += 1;
        let mine = state.asked;
        self.wake.notify_all();
        while state.running
            && !state.stop
            && state.answered < mine
            && !self.wake.wait_until(&mut state, until).timed_out()
        {}
    }

    /// Waits, until somebody asks for a count or it is to stop at most; whether it is to stop.
    fn rest(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.stop
            && state.asked == state.answered
            && !self.wake.wait_until(&mut state, until).timed_out()
        {}
        state.stop
    }

    /// How often a count was asked for, and whether one was since the last.
    fn asked(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.asked, state.asked != state.answered)
    }
}

/// The volume of a mount, for somebody who is in no hurry.
struct Gentle<'a>(&'a Core);

impl Access for Gentle<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        let mut fs = self.0.fs.lock();
        let begin = Instant::now();
        let result = f(fs.volume_mut());
        drop(fs);
        std::thread::sleep(begin.elapsed().min(NAP));
        Ok(result)
    }
}

/// The thread's work, until [`Keeper::stop`].
pub fn run(core: &Arc<Core>) {
    let keeper = &core.account;
    {
        let mut state = keeper.state.lock();
        state.running = true;
        state.kept.counting = true;
    }
    let mut counted: Option<(Seen, Instant)> = None;
    let mut glance = None;
    loop {
        // Where nothing was written, nothing is looked for.
        let now = {
            let fs = core.fs.lock();
            Some((fs.volume().last_log().cno, fs.volume().viewed()))
        };
        let aged = counted.as_ref().is_some_and(|(_, when)| when.elapsed() >= AGED);
        let (asked, wanted) = keeper.asked();
        if now == glance && !aged && !wanted {
            if keeper.rest(LOOK) {
                return;
            }
            continue;
        }
        let (seen, ladder) = look(core);
        let mut pause = LOOK;
        let old = |(then, when): &(Seen, Instant)| is_old(core, then, &seen, when.elapsed());
        if wanted || counted.as_ref().is_none_or(old) {
            let begin = Instant::now();
            let result = count(core, &ladder);
            promise(core, result.as_ref().ok().and_then(Option::as_ref), &seen);
            let mut state = keeper.state.lock();
            state.kept.counting = false;
            state.answered = asked;
            keeper.wake.notify_all();
            match result {
                Ok(Some(a)) => {
                    let account = Account::new(&a, seen.wish.clone(), seen.floor.clone());
                    state.kept = Kept { account: Some(account), ..Kept::default() };
                }
                // It was told to stop.
                Ok(None) => return,
                Err(e) => state.kept.problem = Some(e.to_string()),
            }
            drop(state);
            pause = pause.max(begin.elapsed() * REST);
            counted = Some((seen, Instant::now()));
            glance = now;
        }
        if keeper.rest(pause) {
            return;
        }
    }
}

/// Has df count as free what the cleaner can make free, if there is one. `seen`: how things were before it was counted.
fn promise(core: &Arc<Core>, account: Option<&silt_cleaner::Account>, seen: &Seen) {
    let mut fs = core.fs.lock();
    let cleans = core.options.gc && !fs.volume().is_read_only();
    let room = account.map(|a| {
        let blocks = a.free.saturating_add(a.reclaimable).saturating_add(a.history_loose);
        blocks / a.blocks_per_segment.max(1)
    });
    core.space.counted(room);
    let reclaimable = account.filter(|_| cleans).map(|a| {
        let blocks = a.reclaimable.saturating_add(a.history_loose);
        silt_fs::Reclaimable { blocks, clean_segments: seen.clean, rewritten: seen.rewritten }
    });
    fs.set_reclaimable(reclaimable);
}

/// How things are.
fn look(core: &Arc<Core>) -> (Seen, Ladder) {
    let e = crate::ladder::effective(core);
    let ladder = Ladder::new(&e.wish, &e.floor);
    let fs = core.fs.lock();
    let v = fs.volume();
    let last = v.last_log();
    let seen = Seen {
        sequence: last.seq,
        clean: v.free_blocks() / u64::from(v.geometry().blocks_per_segment),
        rewritten: v.rewritten_blocks(),
        checkpoint: last.cno,
        snapshots: v.snapshots().unwrap_or_default().into_iter().map(|c| c.0).collect(),
        mounted: v.viewed().into_iter().map(|c| c.0).collect(),
        wish: e.wish.to_string(),
        floor: e.floor.to_string(),
    };
    (seen, ladder)
}

/// Whether an account that was counted when things were `then` is to be counted anew.
fn is_old(core: &Arc<Core>, then: &Seen, now: &Seen, age: Duration) -> bool {
    let much = (core.fs.lock().volume().geometry().nsegments / 100).max(1);
    let held = |s: &Seen| (s.snapshots.clone(), s.mounted.clone(), s.wish.clone(), s.floor.clone());
    held(then) != held(now)
        || now.sequence.wrapping_sub(then.sequence) >= much
        || now.clean.abs_diff(then.clean) >= much
        || (age >= OLD && then.checkpoint != now.checkpoint)
        || age >= AGED
}

/// One count; none where it is told to stop.
fn count(core: &Arc<Core>, ladder: &Ladder) -> Result<Option<silt_cleaner::Account>> {
    let access = Gentle(core);
    let keeper = &core.account;
    {
        let mut state = keeper.state.lock();
        state.kept.counting = true;
        state.kept.percent = 0;
    }
    let moments = Moments::read(&access, ladder, now_secs())?;
    let mut counting = access.with(|v| Counting::new(v, moments))?;
    while !counting.is_done() {
        let part = counting.advance(&access)?;
        let mut state = keeper.state.lock();
        if state.stop {
            return Ok(None);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
        {
            state.kept.percent = (part.clamp(0.0, 1.0) * 100.0) as u8;
        }
    }
    counting.finish(&access, || !keeper.state.lock().stop)
}
