//! Looking for the next request again and again before sleeping for it.
//!
//! Who makes requests in a row makes the next one a few microseconds after an answer. To sleep meanwhile costs
//! them more than that: the processor goes idle and has to be woken. So the thread looks again for a while where
//! requests have come in quick succession, and yields its processor each time it looks. If somebody else needs the
//! processor, it sleeps as usual, for ever longer times while that goes on: if yielding takes long, or if there are two
//! processors alone and the next request is there before the last one's maker can have made it, so that there are two.
//!
//! An idle mount costs nothing; a thread that looks in vain stops after [`LOOK`].

use std::time::{Duration, Instant};

/// How long to look.
const LOOK: Duration = Duration::from_micros(50);
/// Requests that came this soon after the answer before, waking included, were worth looking for.
const SOON: Duration = Duration::from_micros(100);
/// As many of the last requests, about, came soon before looking begins; and the most that are remembered.
const BEGIN: u32 = 8;
const MOST: u32 = 16;
/// Yielding takes longer only if somebody else ran: a program, or now and then an interrupt.
const ALONE: Duration = Duration::from_micros(2);
/// Who got an answer has not made the next request within this.
const AT_ONCE: Duration = Duration::from_micros(2);
/// So often, more often than not, it was a program.
const OTHERS: u32 = 4;
/// For how long nothing is tried after that, at first and at most.
const REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_millis(64);
/// Requests looked for undisturbed after which rests become half as long.
const CALM: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Patience {
    /// There is a processor for whoever makes the requests, and a way to look.
    able: bool,
    /// Requests that came soon, those that did not taken off.
    score: u32,
    /// There are two processors alone.
    tight: bool,
    /// How often others were met, waits undisturbed taken off.
    others: u32,
    resting_until: Option<Instant>,
    rest: Duration,
    /// Requests that were looked for undisturbed since `rest` last changed.
    calm: u32,
    /// Since when the next request is waited for.
    since: Instant,
    yielded_at: Option<Instant>,
    /// Times it was looked for in this wait.
    looks: u32,
    /// Others were met in this wait.
    disturbed: bool,
}

impl Patience {
    /// Of a thread that is `able` to look, where there are so many processors.
    pub(crate) fn new(able: bool, processors: usize) -> Self {
        let now = Instant::now();
        Self {
            able,
            tight: processors <= 2,
            score: 0,
            others: 0,
            resting_until: None,
            rest: REST,
            calm: 0,
            since: now,
            yielded_at: None,
            looks: 0,
            disturbed: false,
        }
    }

    /// A request has been served; the next one is waited for.
    pub(crate) fn begin(&mut self, now: Instant) {
        (self.since, self.yielded_at, self.looks, self.disturbed) = (now, None, 0, false);
        if self.resting_until.is_some_and(|until| until <= now) {
            self.resting_until = None;
        }
    }

    /// Whether to look, and not to sleep.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let again = self.able
            && self.score >= BEGIN
            && self.resting_until.is_none()
            && now.saturating_duration_since(self.since) < LOOK;
        self.yielded_at = again.then_some(now);
        self.looks += u32::from(again);
        again
    }

    /// Back from yielding.
    pub(crate) fn yielded(&mut self, now: Instant) {
        let Some(at) = self.yielded_at else { return };
        if now.saturating_duration_since(at) <= ALONE {
            return;
        }
        self.met(now);
    }

    /// Others were met.
    fn met(&mut self, now: Instant) {
        self.disturbed = true;
        self.others += 1;
        if self.others >= OTHERS {
            self.resting_until = Some(now + self.rest);
            (self.others, self.calm, self.rest) = (0, 0, (self.rest * 2).min(LONG_REST));
        }
    }

    /// It has come.
    pub(crate) fn came(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) > SOON {
            self.score = self.score.saturating_sub(4);
            return;
        }
        self.score = (self.score + 1).min(MOST);
        if self.tight && self.looks == 1 && now.saturating_duration_since(self.since) <= AT_ONCE {
            self.met(now);
        }
        // Looked for, and alone.
        if self.yielded_at.is_some() && !self.disturbed {
            self.others = self.others.saturating_sub(1);
            self.calm += 1;
            if self.calm >= CALM {
                (self.calm, self.rest) = (0, (self.rest / 2).max(REST));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Waits for a request that comes after `gap`, where a look takes `look`; how often it was looked for.
    fn wait(patience: &mut Patience, now: &mut Instant, gap: Duration, look: Duration) -> usize {
        let due = *now + gap;
        patience.begin(*now);
        let mut looks = 0;
        while patience.look(*now) {
            looks += 1;
            if *now >= due {
                break;
            }
            *now += look;
            patience.yielded(*now);
        }
        *now = due.max(*now);
        patience.came(*now);
        looks
    }

    #[test]
    fn it_looks_for_what_comes_soon_alone() {
        let (mut patience, mut now) = (Patience::new(true, 2), Instant::now());
        for _ in 0..BEGIN {
            assert_eq!(wait(&mut patience, &mut now, 10 * US, US), 0, "not yet");
        }
        assert_eq!(wait(&mut patience, &mut now, 10 * US, US), 11);
        // In vain, and not for long.
        assert_eq!(wait(&mut patience, &mut now, 10_000 * US, US), 50);
        wait(&mut patience, &mut now, 10_000 * US, US);
        assert_eq!(wait(&mut patience, &mut now, 10_000 * US, US), 0);
        assert_eq!(wait(&mut Patience::new(false, 2), &mut now, 10 * US, US), 0);
    }

    /// Two programs and this thread have work for three processors.
    #[test]
    fn of_two_processors_it_leaves_both_to_two_programs() {
        let looked = |processors| {
            let (mut patience, mut now) = (Patience::new(true, processors), Instant::now());
            // Two of three requests are there at once.
            (0..10_000)
                .map(|n| wait(&mut patience, &mut now, US * (n % 3 / 2 * 10), US))
                .filter(|l| *l > 0)
                .count()
        };
        assert!(looked(2) < 500 && looked(4) > 9_000, "{} {}", looked(2), looked(4));
    }

    #[test]
    fn it_makes_way_for_others() {
        let (mut patience, mut now) = (Patience::new(true, 2), Instant::now());
        for _ in 0..2 * BEGIN {
            wait(&mut patience, &mut now, 10 * US, US);
        }
        let mut looks = Vec::new();
        // Others run whenever it yields; a request comes every 20 us, for 200 ms.
        for _ in 0..10_000 {
            looks.push(wait(&mut patience, &mut now, 20 * US, 30 * US));
        }
        let total: usize = looks.iter().sum();
        // One wait in a hundred at most.
        assert!((4..100).contains(&total), "{total}");
        // Once it is alone again it takes at most the longest rest.
        let again = (0..10_000).position(|_| wait(&mut patience, &mut now, 20 * US, US) > 0);
        assert!(again.is_some_and(|n| n <= 3300), "{again:?}");
    }
}
