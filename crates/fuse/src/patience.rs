//! Looking for the next request again and again before sleeping for it.
//!
//! Who makes requests in a row makes the next one a few microseconds after an answer. To sleep meanwhile costs
//! them more than that: the processor goes idle and has to be woken. So the thread looks again for a while where
//! requests have come in quick succession, and yields its processor each time it looks. If somebody else needs the
//! processor, yielding takes long: then it sleeps as usual, for ever longer times while that goes on.
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
/// Yielding takes longer only if somebody else ran.
const ALONE: Duration = Duration::from_micros(8);
/// For how long nothing is tried after that, at first and at most.
const REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_millis(64);
/// Requests looked for undisturbed after which rests become half as long.
const CALM: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Patience {
    /// There is a processor for whoever makes the requests.
    able: bool,
    /// Requests that came soon, those that did not taken off.
    score: u32,
    resting_until: Option<Instant>,
    rest: Duration,
    /// Requests that were looked for undisturbed since `rest` last changed.
    calm: u32,
    /// Since when the next request is waited for.
    since: Instant,
    yielded_at: Option<Instant>,
}

impl Patience {
    /// With `processors` that this process may run on.
    pub(crate) fn new(processors: usize) -> Self {
        let now = Instant::now();
        let able = processors > 1;
        Self { able, score: 0, resting_until: None, rest: REST, calm: 0, since: now, yielded_at: None }
    }

    /// False if it will never look twice.
    pub(crate) fn is_able(&self) -> bool {
        self.able
    }

    /// A request has been served; the next one is waited for.
    pub(crate) fn begin(&mut self, now: Instant) {
        (self.since, self.yielded_at) = (now, None);
        if self.resting_until.is_some_and(|until| until <= now) {
            self.resting_until = None;
        }
    }

    /// There is none yet: whether to yield and look again, and not to sleep.
    pub(crate) fn look_again(&mut self, now: Instant) -> bool {
        let again = self.able
            && self.score >= BEGIN
            && self.resting_until.is_none()
            && now.saturating_duration_since(self.since) < LOOK;
        self.yielded_at = again.then_some(now);
        again
    }

    /// Back from yielding.
    pub(crate) fn yielded(&mut self, now: Instant) {
        let Some(at) = self.yielded_at else { return };
        if now.saturating_duration_since(at) > ALONE {
            self.resting_until = Some(now + self.rest);
            (self.calm, self.rest) = (0, (self.rest * 2).min(LONG_REST));
        }
    }

    /// It has come.
    pub(crate) fn came(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) > SOON {
            self.score = self.score.saturating_sub(4);
            return;
        }
        self.score = (self.score + 1).min(MOST);
        // Looked for, and alone.
        if self.yielded_at.is_some() && self.resting_until.is_none() {
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
        while *now < due && patience.look_again(*now) {
            looks += 1;
            *now += look;
            patience.yielded(*now);
        }
        *now = due.max(*now);
        patience.came(*now);
        looks
    }

    #[test]
    fn it_looks_for_what_comes_soon_alone() {
        let (mut patience, mut now) = (Patience::new(2), Instant::now());
        for _ in 0..BEGIN {
            assert_eq!(wait(&mut patience, &mut now, 10 * US, US), 0, "not yet");
        }
        assert_eq!(wait(&mut patience, &mut now, 10 * US, US), 10);
        // In vain, and not for long.
        assert_eq!(wait(&mut patience, &mut now, 10_000 * US, US), 50);
        wait(&mut patience, &mut now, 10_000 * US, US);
        assert_eq!(wait(&mut patience, &mut now, 10_000 * US, US), 0);
        assert_eq!(wait(&mut Patience::new(1), &mut now, 10 * US, US), 0);
    }

    #[test]
    fn it_makes_way_for_others() {
        let (mut patience, mut now) = (Patience::new(2), Instant::now());
        for _ in 0..2 * BEGIN {
            wait(&mut patience, &mut now, 10 * US, US);
        }
        let mut looks = Vec::new();
        // Others run whenever it yields; a request comes every 20 us, for 200 ms.
        for _ in 0..10_000 {
            looks.push(wait(&mut patience, &mut now, 20 * US, 30 * US));
        }
        let total: usize = looks.iter().sum();
        assert!((2..30).contains(&total), "{total}");
        // Once it is alone again it takes at most the longest rest.
        let again = (0..10_000).position(|_| wait(&mut patience, &mut now, 20 * US, US) > 0);
        assert!(again.is_some_and(|n| n <= 3300), "{again:?}");
    }
}
