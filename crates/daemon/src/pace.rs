//! How much of the log writer's time the cleaner takes, so that it is not felt.
//!
//! Who syncs while a step is written waits for it. So steps are rare while somebody does, and as large as is bearable, as long
//! as space allows it, and after each the cleaner rests the longer the more is still clean. Large steps are cheaper, since what
//! one writes of the DAT grows less than what it copies.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What a step may take of the log writer's time while somebody syncs. Rare long ones rather than many short ones: each is met
/// by one sync of a program that syncs again and again, and what it writes of the tables grows less than what it copies.
const FELT: Duration = Duration::from_millis(50);
/// Blocks that one step copies: most, and least. A segment goes as a whole, so that it may be more.
const MOST: usize = 16_384;
const LEAST: usize = 64;
/// Bytes of those at most: they are held in memory until the step is written.
const HELD: u64 = 64 << 20;
/// Segments that one step frees at most, and blocks copied to one of them, where both get fewer.
const SEGMENTS: usize = 64;
/// So much of its own work the cleaner does at a time while somebody syncs. Then it pauses: so many times as long as it had the
/// volume's lock, and as long as it worked beside it.
const SLICE: Duration = Duration::from_micros(200);
const PAUSES: u32 = 4;
/// Longest pause.
const LONGEST: Duration = Duration::from_millis(25);
/// For so long after a sync somebody syncs.
const SYNCS: Duration = Duration::from_secs(2);
/// Longest rest between two steps.
const PAUSE: Duration = Duration::from_millis(700);
/// A step begins so many times as long before it is needed as it takes: others write faster while nothing keeps them.
const EARLY: u32 = 2;
/// So many times as long as a step took, with all that came before it, the cleaner rests at most while somebody syncs.
const RESTS: u32 = 72;

/// What happened lately, for [`Pace::in_time`].
#[derive(Debug, Clone, Copy)]
pub struct Lately {
    /// What a step takes, with all that comes before it.
    pub work: Duration,
    /// Blocks that others wrote within `time`.
    pub written: u64,
    pub time: Duration,
    /// Others had to wait again and again.
    pub outrun: bool,
}

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

    /// Blocks of so many bytes that one step copies at most.
    pub fn most_moves(block_size: u32) -> usize {
        usize::try_from(HELD / u64::from(block_size.max(1))).unwrap_or(MOST).min(MOST)
    }
}

#[derive(Debug)]
struct State {
    moves: usize,
    /// Blocks that the last two steps copied: ends of the log cost little, older segments much, and they come by turns.
    copied: [u64; 2],
    /// When somebody synced last.
    synced: Option<Instant>,
    /// What the cleaner owes for what it did since it paused, and how long that took.
    owed: Duration,
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
            state: Mutex::new(State {
                moves: MOST,
                copied: [0; 2],
                synced: None,
                owed: Duration::ZERO,
                worked: Duration::ZERO,
                hurries: false,
            }),
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

    /// Whether the cleaner lets others have the processor wherever it can.
    pub fn gives_way(&self, now: Instant) -> bool {
        self.is_felt(now) && !self.state.lock().hurries
    }

    /// How long the cleaner pauses that had the volume's lock for so long just now, and before worked for so long without it:
    /// while somebody syncs, others want the processor, too.
    pub fn pause(&self, held: Duration, beside: Duration, now: Instant) -> Duration {
        let owed = {
            let mut state = self.state.lock();
            state.worked += held + beside;
            state.owed += held * PAUSES + beside;
            if state.worked < SLICE {
                return Duration::ZERO;
            }
            state.worked = Duration::ZERO;
            let owed = std::mem::take(&mut state.owed);
            if state.hurries {
                return Duration::ZERO;
            }
            owed
        };
        if self.is_felt(now) { owed.min(LONGEST) } else { Duration::ZERO }
    }

    /// A step that copied so many blocks took so much of the log writer's time.
    pub fn took(&self, time: Duration, copied: u64, now: Instant) {
        let felt = self.is_felt(now);
        let mut state = self.state.lock();
        state.copied = [copied, state.copied[0]];
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

    /// Of a rest what is left where the next step is to be made before others have written what is clean, `blocks`; and what
    /// the step copies takes room while what it frees is not there yet. Resting until somebody waits would have those who write
    /// and the cleaner take turns. Where nothing is left although others had to wait, it does not pause either.
    pub fn in_time(&self, rest: Duration, blocks: u64, lately: &Lately) -> Duration {
        let mut state = self.state.lock();
        let copied = state.copied[0].max(state.copied[1]);
        let blocks = blocks.saturating_sub(copied) as f64;
        let left =
            (lately.written > 0).then(|| lately.time.mul_f64((blocks / lately.written as f64).min(1e6)));
        let rest = left.map_or(rest, |left| rest.min(left.saturating_sub(lately.work * EARLY)));
        state.hurries = lately.outrun && left.is_some() && rest.is_zero();
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
            pace.took(millis * MS, 0, now);
            pace.step()
        };
        assert_eq!(after(100, now), Step::MOST, "nobody minds");
        pace.synced(now);
        assert_eq!(after(100, now), Step { moves: MOST / 2, segments: SEGMENTS / 2 });
        (0..20).for_each(|_| pace.took(100 * MS, 0, now));
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
        let lately = Lately { work: 100 * MS, written: 0, time: second, outrun: true };
        let rest = |blocks, written| pace.in_time(500 * MS, blocks, &Lately { written, ..lately });
        assert_eq!(rest(1000, 0), 500 * MS, "nobody writes");
        assert_eq!(rest(1000, 100), 500 * MS, "they need ten seconds for what is clean");
        assert_eq!(rest(1000, 2000), 300 * MS, "half a second, of which twice 100 ms are for the step");
        let pause = || pace.pause(SLICE, Duration::ZERO, Instant::now());
        assert!(!pause().is_zero() && pace.gives_way(Instant::now()));
        assert_eq!(rest(1000, 6000), Duration::ZERO);
        assert_eq!(pause(), Duration::ZERO, "nor does it pause");
        assert!(!pace.gives_way(Instant::now()));
        let calm = Lately { written: 6000, outrun: false, ..lately };
        assert_eq!(pace.in_time(500 * MS, 1000, &calm), Duration::ZERO);
        assert!(!pause().is_zero(), "nobody had to wait");
        assert_eq!(rest(0, 1), Duration::ZERO);
        assert_eq!(rest(u64::MAX, 1), 500 * MS);
    }

    #[test]
    fn what_a_step_copies_needs_room_meanwhile() {
        let pace = Pace::default();
        let lately = Lately { work: 100 * MS, written: 2000, time: Duration::from_secs(1), outrun: false };
        let rest = || pace.in_time(500 * MS, 1000, &lately);
        let took = |copied| pace.took(10 * MS, copied, Instant::now());
        assert_eq!(rest(), 300 * MS);
        took(400);
        assert_eq!(rest(), 100 * MS, "what others write in 200 ms");
        took(100);
        assert_eq!(rest(), 100 * MS, "the next may be like the one before");
        took(100);
        assert_eq!(rest(), 250 * MS);
        took(5000);
        assert_eq!(rest(), Duration::ZERO);
    }

    #[test]
    fn it_pauses_while_somebody_syncs() {
        let (pace, now) = (Pace::default(), Instant::now());
        let none = Duration::ZERO;
        assert_eq!(pace.pause(5 * MS, none, now), none, "nobody minds");
        pace.synced(now);
        assert_eq!(pace.pause(SLICE / 2, none, now), none);
        assert_eq!(pace.pause(SLICE / 2, none, now), PAUSES * SLICE);
        assert_eq!(pace.pause(SLICE / 2, none, now), none, "begins anew");
        assert_eq!(pace.pause(1000 * MS, none, now), LONGEST);
        assert_eq!(pace.pause(none, SLICE, now), SLICE, "beside the lock it takes nothing but a processor");
        assert_eq!(pace.pause(SLICE, 3 * SLICE, now), (PAUSES + 3) * SLICE);
        assert_eq!(pace.pause(5 * MS, none, now + SYNCS), none);
    }

    #[test]
    fn what_a_step_holds_is_bounded() {
        assert_eq!(Step::most_moves(1024), MOST);
        assert_eq!(Step::most_moves(4096), MOST);
        assert_eq!(Step::most_moves(65_536), 1024);
    }
}
