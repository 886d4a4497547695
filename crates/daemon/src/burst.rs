//! How much others may have waiting for the next log while somebody syncs.
//!
//! A checkpoint takes everything that waits, so that whoever syncs waits for all of it, and for the log on its way
//! before. Nobody minds as long as nobody syncs; while somebody does, what waits is kept to what the device takes in
//! a moment. The rate is that of the logs before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For so long after a sync the next one is expected, once there were so many in a row: a few at the beginning or
/// the end of some work say nothing of what comes.
const EXPECTED: Duration = Duration::from_secs(2);
const ROW: u64 = 4;
/// What the device takes in this time may wait.
const MOMENT: Duration = Duration::from_millis(25);
/// So much may wait however slow the device is, in bytes: smaller logs waste its time.
const LEAST: u64 = 4 << 20;
/// Logs of fewer bytes say little about the rate.
const TELLING: u64 = 1 << 20;
/// Bytes a second that are assumed at first.
const FIRST: u64 = 400 << 20;

/// See the module.
#[derive(Debug)]
pub struct Burst {
    begin: OnceLock<Instant>,
    /// Milliseconds from `begin` to the end of the time in which a sync is expected.
    until: AtomicU64,
    /// When the last sync came, in the same measure.
    last: AtomicU64,
    /// Syncs in a row.
    row: AtomicU64,
    /// Bytes a second that were written lately.
    rate: AtomicU64,
}

impl Default for Burst {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Burst {
            begin: OnceLock::new(),
            until: zero(),
            last: zero(),
            row: zero(),
            rate: AtomicU64::new(FIRST),
        }
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Burst {
    /// Somebody syncs.
    pub fn synced(&self, now: Instant) {
        let begin = *self.begin.get_or_init(|| now);
        let at = millis(now.saturating_duration_since(begin));
        let before = self.last.swap(at, Ordering::Relaxed);
        let row = if at.saturating_sub(before) < millis(EXPECTED) {
            self.row.load(Ordering::Relaxed).saturating_add(1)
        } else {
            1
        };
        self.row.store(row, Ordering::Relaxed);
        if row >= ROW {
            self.until.fetch_max(at + millis(EXPECTED), Ordering::Relaxed);
        }
    }

    /// `bytes` of log became durable within `time`.
    pub fn wrote(&self, bytes: u64, time: Duration) {
        if bytes < TELLING {
            return;
        }
        let rate = (bytes as f64 / time.as_secs_f64().max(1e-6)) as u64;
        // One slow moment of the device shall not decide alone.
        let old = self.rate.load(Ordering::Relaxed);
        self.rate.store(old / 4 * 3 + rate / 4, Ordering::Relaxed);
    }

    /// Whether somebody will sync soon.
    fn expects(&self, now: Instant) -> bool {
        self.begin.get().is_some_and(|begin| {
            millis(now.saturating_duration_since(*begin)) < self.until.load(Ordering::Relaxed)
        })
    }

    /// Bytes that may wait for the next log now.
    pub fn limit(&self, now: Instant) -> u64 {
        if !self.expects(now) {
            return u64::MAX;
        }
        let rate = self.rate.load(Ordering::Relaxed);
        (rate / 1000).saturating_mul(millis(MOMENT)).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of syncs, the last one at `now`.
    fn row(burst: &Burst, now: Instant) {
        (0..ROW).for_each(|_| burst.synced(now));
    }

    #[test]
    fn only_while_somebody_syncs() {
        let (burst, now) = (Burst::default(), Instant::now());
        assert_eq!(burst.limit(now), u64::MAX);
        row(&burst, now);
        assert!(burst.limit(now) < 16 << 20);
        assert!(burst.limit(now + EXPECTED / 2) < 16 << 20);
        assert_eq!(burst.limit(now + EXPECTED), u64::MAX);
        row(&burst, now + EXPECTED);
        assert!(burst.limit(now + EXPECTED) < 16 << 20);
    }

    #[test]
    fn a_few_syncs_say_nothing() {
        let (burst, now) = (Burst::default(), Instant::now());
        for n in 0..20 {
            (1..ROW).for_each(|_| burst.synced(now + n * EXPECTED));
            assert!(!burst.expects(now + n * EXPECTED));
        }
        let later = now + 20 * EXPECTED;
        (0..ROW).for_each(|n| burst.synced(later + EXPECTED / 2 * n as u32));
        assert!(burst.expects(later + EXPECTED / 2 * ROW as u32));
    }

    #[test]
    fn it_follows_the_device() {
        let (burst, now) = (Burst::default(), Instant::now());
        row(&burst, now);
        let first = burst.limit(now);
        for _ in 0..20 {
            burst.wrote(100 << 20, Duration::from_millis(50));
        }
        assert!(burst.limit(now) > 4 * first);
        for _ in 0..40 {
            burst.wrote(10 << 20, Duration::from_secs(1));
        }
        assert_eq!(burst.limit(now), LEAST);
        // One small log is not asked.
        let before = burst.limit(now);
        burst.wrote(4096, Duration::from_micros(1));
        assert_eq!(burst.limit(now), before);
    }
}
