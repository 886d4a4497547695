//! How much others may have waiting for the next log while somebody syncs.
//!
//! A checkpoint takes everything that waits, so that whoever syncs waits for all of it, and for the log on its way
//! before. Nobody minds as long as nobody syncs; while somebody does, what waits is kept to what the device takes in
//! a moment. The rate is that of the logs before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For so long after a sync the next one is expected.
const EXPECTED: Duration = Duration::from_secs(2);
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
    /// Bytes a second that were written lately.
    rate: AtomicU64,
}

impl Default for Burst {
    fn default() -> Self {
        Burst { begin: OnceLock::new(), until: AtomicU64::new(0), rate: AtomicU64::new(FIRST) }
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Burst {
    /// Somebody syncs.
    pub fn synced(&self, now: Instant) {
        let begin = *self.begin.get_or_init(|| now);
        self.until.fetch_max(millis(now - begin + EXPECTED), Ordering::Relaxed);
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

    /// Bytes that may wait for the next log now.
    pub fn limit(&self, now: Instant) -> u64 {
        let Some(begin) = self.begin.get() else { return u64::MAX };
        if millis(now.saturating_duration_since(*begin)) >= self.until.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        let rate = self.rate.load(Ordering::Relaxed);
        (rate / 1000).saturating_mul(millis(MOMENT)).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_while_somebody_syncs() {
        let (burst, now) = (Burst::default(), Instant::now());
        assert_eq!(burst.limit(now), u64::MAX);
        burst.synced(now);
        assert!(burst.limit(now) < 16 << 20);
        assert!(burst.limit(now + EXPECTED / 2) < 16 << 20);
        assert_eq!(burst.limit(now + EXPECTED), u64::MAX);
        burst.synced(now + EXPECTED);
        assert!(burst.limit(now + EXPECTED) < 16 << 20);
    }

    #[test]
    fn it_follows_the_device() {
        let (burst, now) = (Burst::default(), Instant::now());
        burst.synced(now);
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
