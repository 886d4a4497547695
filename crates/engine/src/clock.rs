//! What the clock did while a volume is open, for those who go by the age of checkpoints.
//!
//! ```text
//! newest checkpoint | absence | opened ................. now
//!                   \_ a step _/        \_ a step, where the clock went on by more or less than the time that passed
//! ```
//!
//! Times of checkpoints are those of the clock of whoever wrote them. That a volume was away for a year, and that the
//! clock is a year ahead, cannot be told apart; nor which of two times is right that a clock showed before and after it
//! was set. So steps are noted, and how old something is goes by what passed for certain.

use silt_format::Cno;

use crate::volume::Volume;

/// By less the clock may be set unnoticed, in seconds; all such steps together while a volume is open.
const STEP: i64 = 300;
/// So many steps are told apart.
const MOST: usize = 256;

/// A step of the clock, forward of more than 0 seconds, behind the checkpoint `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockStep {
    pub after: Cno,
    pub by: i64,
}

/// The steps that there were, in their order.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// Seconds that passed since some moment, however the clock was set.
    running: Option<fn() -> u64>,
    /// By how much the clock is ahead of that.
    ahead: i64,
    steps: Vec<ClockStep>,
}

impl Watch {
    /// Of a volume whose newest checkpoint was made then, opened at `now`.
    pub(crate) fn new(running: Option<fn() -> u64>, newest: Cno, made: u64, now: u64) -> Self {
        let mut watch = Watch { running, ..Watch::default() };
        watch.ahead = watch.ahead_of_what_runs(now).unwrap_or(0);
        // Where the clock is behind, either was wrong.
        let absent = now.checked_sub(made).map_or(0, seconds);
        if absent > STEP {
            watch.steps.push(ClockStep { after: newest, by: absent });
        }
        watch
    }

    fn ahead_of_what_runs(&self, now: u64) -> Option<i64> {
        Some(seconds(now).saturating_sub(seconds(self.running?())))
    }

    fn look(&mut self, now: u64, after: Cno) {
        let Some(ahead) = self.ahead_of_what_runs(now) else { return };
        let by = ahead.saturating_sub(self.ahead);
        if by.saturating_abs() <= STEP {
            return;
        }
        self.ahead = ahead;
        match self.steps.last_mut() {
            Some(last) if last.after == after => last.by = last.by.saturating_add(by),
            _ => self.steps.push(ClockStep { after, by }),
        }
        // What lies between the oldest two passes for younger then, and for no older.
        if self.steps.len() > MOST {
            let oldest = self.steps.remove(0);
            if let Some(next) = self.steps.first_mut() {
                next.by = next.by.saturating_add(oldest.by);
            }
        }
    }
}

fn seconds(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

impl Volume {
    /// Steps of the clock, which shows `now` (seconds since 1970), since the newest checkpoint was made that there was when the
    /// volume was opened; ascending. The first may be the time until then, where that was more than minutes: perhaps it
    /// passed. 256 are told apart; without [`OpenOptions::running`](crate::OpenOptions::running) that is all that is known.
    pub fn clock_steps(&mut self, now: u64) -> &[ClockStep] {
        self.look_at_clock(now);
        &self.clock.steps
    }

    pub(crate) fn look_at_clock(&mut self, now: u64) {
        // One that is being made has the time of before.
        let after = if self.construction.is_some() { self.cno } else { Cno(self.last.cno) };
        self.clock.look(now, after);
    }

    /// What is known of the clock, for the same volume where it is opened anew.
    pub fn watch(&self) -> Watch {
        self.clock.clone()
    }

    /// Goes on with what was known when the volume was opened before.
    pub fn go_on_with(&mut self, watch: Watch) {
        self.clock = watch;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;
    use std::sync::Arc;

    use silt_device::MemoryDevice;

    use super::*;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::OpenOptions;

    const MADE: u64 = 1_000_000;
    const YEAR: u64 = 365 * 86_400;

    thread_local! {
        static RUNNING: Cell<u64> = const { Cell::new(0) };
    }

    fn running() -> u64 {
        RUNNING.get()
    }

    fn opened(device: &Arc<MemoryDevice>, now: u64) -> Volume {
        let options = OpenOptions { now, running: Some(running), ..OpenOptions::default() };
        let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
        v.take_over(now).unwrap();
        v
    }

    fn device() -> Arc<MemoryDevice> {
        let size = 8 << 20;
        let device = Arc::new(MemoryDevice::new(size));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: 64, now: MADE, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        device
    }

    /// What the newest checkpoint says when it was made at `now`.
    fn made(v: &mut Volume, now: u64) -> u64 {
        v.meta_dirty = true;
        let c = v.checkpoint(now).unwrap();
        v.checkpoint_info(c).unwrap().created - MADE
    }

    #[test]
    fn steps_of_the_clock_are_told_from_time_that_passed() {
        let device = device();
        let pass = |seconds| RUNNING.set(RUNNING.get() + seconds);
        let steps = |v: &mut Volume, now: u64| -> Vec<(u64, i64)> {
            v.clock_steps(MADE + now).iter().map(|s| (s.after.0, s.by)).collect()
        };
        let mut v = opened(&device, MADE + 100);
        pass(1_000);
        let first = made(&mut v, MADE + 1_100);
        let newest = v.last_log().cno;
        assert_eq!((first, steps(&mut v, 1_100)), (1_100, vec![]));
        // As much as somebody may set it by; and the next one finds it is more together.
        assert_eq!(steps(&mut v, 1_399), []);
        pass(50);
        let ahead = YEAR.cast_signed();
        assert_eq!(steps(&mut v, 1_150 + YEAR), [(newest, ahead)]);
        made(&mut v, MADE + 1_151 + YEAR);
        pass(60);
        made(&mut v, MADE + 1_210);
        assert_eq!(steps(&mut v, 1_210), [(newest, ahead), (newest + 1, -ahead)]);
        for n in 0..2 * MOST as u64 {
            made(&mut v, MADE + 1_210 + (n + 1) % 2 * 1_000);
        }
        let all = steps(&mut v, 1_210);
        assert_eq!((all.len(), all.iter().map(|s| s.1).sum::<i64>()), (MOST, 0));
        assert!(all[1..].iter().all(|s| s.1.abs() == 1_000), "the newest are told apart");
        v.close(MADE + 1_210).unwrap();
        // For how long it was away nobody knows; where the clock is behind, nothing is known at all.
        let newest = v.last_log().cno;
        let after = 1_151 + YEAR + 500;
        let mut v = opened(&device, MADE + after);
        assert_eq!(steps(&mut v, after), [(newest, 500)]);
        assert_eq!(steps(&mut opened(&device, MADE + 1_000), 1_000), []);
    }
}
