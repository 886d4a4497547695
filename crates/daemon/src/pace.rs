//! How much of the log writer's time the cleaner takes, so that it is not felt.
//!
//! Who syncs while a step is written waits for it. So steps are small while somebody does, as long as space allows it,
//! and after each the cleaner rests the longer the more is still clean. Large steps are cheaper, since what one writes
//! of the DAT is much the same for few blocks as for many.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What a step may take of the log writer's time while somebody syncs. Rare long ones rather than many short ones: each is met
/// by one sync of a program that syncs again and again, and half of it is for the tables, however little is copied.
const FELT: Duration = Duration::from_millis(25);
/// Blocks that one step copies: most, and least. A segment goes as a whole, so that it may be more.
const MOST: usize = 8192;
const LEAST: usize = 64;
/// Segments that one step frees at most, and blocks copied to one of them, where both get fewer.
const SEGMENTS: usize = 64;
/// So much of its own work the cleaner does at a time while somebody syncs, and pauses so many times as long.
const SLICE: Duration = Duration::from_micros(200);
const PAUSES: u32 = 4;
/// For so long after a sync somebody syncs.
const SYNCS: Duration = Duration::from_secs(2);
/// Longest rest between two steps.
const PAUSE: Duration = Duration::from_millis(700);
/// A step begins so many times as long before it is needed as it takes: others write faster while nothing keeps them.
const EARLY: u32 = 2;
/// So many times as long as a step took, with all that came before it, the cleaner rests at most while somebody syncs.
const RESTS: u32 = 72;

/// How much goes into a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Blocks that are copied.
    pub moves: usize,
    /// Segments that are freed.
    pub segments: usize,
}

impl Step {
    /// Where nobody minds.
    pub const MOST: Step = Step { moves: MOST, segments: SEGMENTS };
}

#[derive(Debug)]
struct State {
    moves: usize,
    /// When somebody synced last.
    synced: Option<Instant>,
    /// What the cleaner did since it paused.
    worked: Duration,
    /// Others write faster than it cleans.
    hurries: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Pace {
    state: Mutex<State>,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            state: Mutex::new(State { moves: MOST, synced: None, worked: Duration::ZERO, hurries: false }),
        }
    }
}

impl Pace {
    /// Somebody syncs.
    pub fn synced(&self, now: Instant) {
        self.state.lock().synced = Some(now);
    }

    /// Whether somebody does so now and again.
    pub fn is_felt(&self, now: Instant) -> bool {
        let synced = self.state.lock().synced;
        synced.is_some_and(|then| now.saturating_duration_since(then) < SYNCS)
    }

    /// How long the cleaner pauses that worked for so long just now, under the volume's lock: while somebody syncs, others
    /// want the processor, too.
    pub fn pause(&self, worked: Duration, now: Instant) -> Duration {
        let owed = {
            let mut state = self.state.lock();
            state.worked += worked;
            if state.worked < SLICE {
                return Duration::ZERO;
            }
            let owed = std::mem::take(&mut state.worked);
            if state.hurries {
                return Duration::ZERO;
            }
            owed
        };
        if self.is_felt(now) { (owed * PAUSES).min(FELT) } else { Duration::ZERO }
    }

    /// A step took so much of the log writer's time.
    pub fn took(&self, time: Duration, now: Instant) {
        let felt = self.is_felt(now);
        let mut state = self.state.lock();
        let before = state.moves;
        if !felt {
            state.moves = MOST;
        } else if time > FELT {
            state.moves = (before / 2).max(LEAST);
        } else if time < FELT / 4 {
            state.moves = (before * 2).min(MOST);
        }
    }

    /// How much goes into a step now.
    pub fn step(&self) -> Step {
        let moves = self.state.lock().moves;
        Step { moves, segments: (moves * SEGMENTS / MOST).max(1) }
    }

    /// Of a rest what is left where the next step, which takes `work` with all that comes before it, is to be there before
    /// others have written what is clean: `blocks`, of which they wrote `written` in the last `time`. Resting until somebody
    /// waits would have those who write and the cleaner take turns. Where nothing is left, it does not pause either.
    pub fn in_time(
        &self,
        rest: Duration,
        work: Duration,
        blocks: u64,
        written: u64,
        time: Duration,
    ) -> Duration {
        let left = (written > 0).then(|| time.mul_f64((blocks as f64 / written as f64).min(1e6)));
        let rest = left.map_or(rest, |left| rest.min(left.saturating_sub(work * EARLY)));
        self.state.lock().hurries = left.is_some() && rest.is_zero();
        rest
    }

    /// Rest after a step that took so long, with `clean` segments beyond what is kept back where cleaning began with
    /// `low`: none where hardly any are left.
    pub fn rest(&self, took: Duration, clean: u64, low: u64, now: Instant) -> Duration {
        if !self.is_felt(now) {
            return took.min(PAUSE);
        }
        let share = clean.min(low) as f64 / low.max(1) as f64;
        (took * RESTS).mul_f64(share).min(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn steps_get_smaller_while_somebody_syncs() {
        let (pace, now) = (Pace::default(), Instant::now());
        let after = |millis: u32, now| {
            pace.took(millis * MS, now);
            pace.step()
        };
        assert_eq!(after(100, now), Step::MOST, "nobody minds");
        pace.synced(now);
        assert_eq!(after(100, now), Step { moves: MOST / 2, segments: SEGMENTS / 2 });
        (0..20).for_each(|_| pace.took(100 * MS, now));
        assert_eq!(after(100, now), Step { moves: LEAST, segments: 1 });
        assert_eq!(after(20, now).moves, LEAST, "that will do");
        assert_eq!(after(1, now).moves, 2 * LEAST);
        assert_eq!(after(100, now + SYNCS), Step::MOST, "nobody syncs any more");
    }

    #[test]
    fn it_rests_the_longer_the_more_is_clean() {
        let (pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.rest(20 * MS, 5, 10, now), 20 * MS);
        assert_eq!(pace.rest(2000 * MS, 5, 10, now), PAUSE);
        pace.synced(now);
        assert_eq!(pace.rest(20 * MS, 0, 10, now), Duration::ZERO);
        assert_eq!(pace.rest(5 * MS, 5, 10, now), 180 * MS);
        assert_eq!(pace.rest(5 * MS, 10, 10, now), 360 * MS);
        assert_eq!(pace.rest(5 * MS, 50, 10, now), 360 * MS);
        assert_eq!(pace.rest(20 * MS, 0, 0, now), Duration::ZERO);
    }

    #[test]
    fn it_is_there_before_what_is_clean_is_written() {
        let second = Duration::from_secs(1);
        let pace = Pace::default();
        pace.synced(Instant::now());
        let rest = |blocks, written| pace.in_time(500 * MS, 100 * MS, blocks, written, second);
        assert_eq!(rest(1000, 0), 500 * MS, "nobody writes");
        assert_eq!(rest(1000, 100), 500 * MS, "they need ten seconds for what is clean");
        assert_eq!(rest(1000, 2000), 300 * MS, "half a second, of which twice 100 ms are for the step");
        assert!(!pace.pause(SLICE, Instant::now()).is_zero());
        assert_eq!(rest(1000, 6000), Duration::ZERO);
        assert_eq!(pace.pause(SLICE, Instant::now()), Duration::ZERO, "nor does it pause");
        assert_eq!(rest(0, 1), Duration::ZERO);
        assert_eq!(rest(u64::MAX, 1), 500 * MS);
    }

    #[test]
    fn it_pauses_while_somebody_syncs() {
        let (pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.pause(5 * MS, now), Duration::ZERO, "nobody minds");
        pace.synced(now);
        assert_eq!(pace.pause(SLICE / 2, now), Duration::ZERO);
        assert_eq!(pace.pause(SLICE / 2, now), PAUSES * SLICE);
        assert_eq!(pace.pause(SLICE / 2, now), Duration::ZERO, "begins anew");
        assert_eq!(pace.pause(1000 * MS, now), FELT);
        assert_eq!(pace.pause(5 * MS, now + SYNCS), Duration::ZERO);
    }
}
