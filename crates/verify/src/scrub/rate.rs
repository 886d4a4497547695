//! Keeps work to a rate: a bucket that fills with time and from which bytes are taken.

use std::time::{Duration, Instant};

/// A rate in bytes a second.
#[derive(Debug, Clone)]
pub struct Rate {
    per_second: u64,
    /// Bytes that may be taken now; below 0 after more was taken.
    tokens: f64,
    filled: Instant,
}

impl Rate {
    /// `per_second` bytes (at least 1) a second. The bucket holds a quarter of a second's worth and starts full.
    pub fn new(per_second: u64, now: Instant) -> Self {
        let per_second = per_second.max(1);
        Rate { per_second, tokens: per_second as f64 / 4.0, filled: now }
    }

    /// Takes bytes at once; how long to rest before the next.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let rate = self.per_second as f64;
        let filled = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        self.filled = now;
        self.tokens = (self.tokens + filled).min(rate / 4.0) - bytes as f64;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / rate).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_time() {
        let start = Instant::now();
        let mut now = start;
        let mut rate = Rate::new(1 << 20, now);
        for _ in 0..100 {
            now += rate.take(1 << 18, now);
        }
        let took = now - start;
        assert!((24.0..25.1).contains(&took.as_secs_f64()), "{took:?}");
        // A long rest does not save up more than a quarter of a second.
        now += Duration::from_secs(60);
        assert_eq!(rate.take(1 << 18, now), Duration::ZERO);
        assert!(rate.take(1 << 20, now) >= Duration::from_millis(900));
    }

    #[test]
    fn no_rate_is_too_small() {
        let now = Instant::now();
        assert!(Rate::new(0, now).take(u64::MAX, now) > Duration::from_secs(1));
    }
}
