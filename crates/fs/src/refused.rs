//! Directories that the device does not give: for a while that is no reason to take what is in them for lost.
//!
//! A device may be away for a moment, and come back with everything. So whoever wants such a directory removed, or something else
//! in its place, is refused at first; later what is in it counts as lost, or nothing could ever remove it.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::error::{FsError, Result};
use crate::{Fs, Ino};

/// Times that of a device's patience after which a refusal has nothing to do with the next one.
const FORGOTTEN: u32 = 20;
/// Directories that are remembered.
const MOST: usize = 4096;

/// By inode number when one was first refused.
#[derive(Debug)]
pub(crate) struct Refused {
    since: HashMap<u64, Instant>,
    patience: Duration,
}

impl Refused {
    pub fn new(patience: Duration) -> Self {
        Refused { since: HashMap::new(), patience }
    }

    /// The device has just not given something of a directory; whether it has been so for long enough.
    fn is_lost(&mut self, dir: Ino, now: Instant) -> bool {
        let passed = |since: &Instant| now.saturating_duration_since(*since);
        let is_of_now = |since: &Instant| passed(since) <= self.patience.saturating_mul(FORGOTTEN);
        if let Some(since) = self.since.get(&dir.0).filter(|since| is_of_now(since)) {
            return passed(since) >= self.patience;
        }
        if self.since.len() >= MOST {
            self.since.retain(|_, since| is_of_now(since));
        }
        // Those that are remembered go first, and leave room for others.
        if self.since.len() < MOST {
            self.since.insert(dir.0, now);
        }
        self.patience.is_zero()
    }

    /// That one is gone, or was read.
    pub fn forget(&mut self, dir: Ino) {
        self.since.remove(&dir.0);
    }
}

impl Fs {
    /// Says that something of a directory that is to go could not be read (`e`). The error, unless what it tells of is there for
    /// good: bytes that make no sense, or a device that has not given them for a while.
    pub(crate) fn count_as_lost(&mut self, dir: Ino, e: FsError) -> Result<()> {
        if e.is_of_device() && !self.refused.is_lost(dir, Instant::now()) { Err(e) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn patience_ends_and_refusals_are_forgotten() {
        let (mut r, d, begin) = (Refused::new(PATIENCE), Ino(20), Instant::now());
        let mut is_lost = |secs| r.is_lost(d, begin + Duration::from_secs(secs));
        assert!(!is_lost(0) && !is_lost(9));
        assert!(is_lost(10) && is_lost(200));
        assert!(!is_lost(201), "that one is another outage");
        assert!(is_lost(211));
        r.forget(d);
        assert!(!r.is_lost(d, begin + Duration::from_secs(212)));
        assert!(Refused::new(Duration::ZERO).is_lost(d, begin));
    }

    /// However many there are: each look at all of them lets some go.
    #[test]
    fn memory_is_bounded_and_nobody_waits_for_ever() {
        let (mut r, begin) = (Refused::new(PATIENCE), Instant::now());
        let mut left: Vec<u64> = (0..3 * MOST as u64).collect();
        for round in 0..4 {
            left.retain(|d| {
                let gone = r.is_lost(Ino(*d), begin + round * PATIENCE);
                if gone {
                    r.forget(Ino(*d));
                }
                !gone
            });
            assert!(r.since.len() <= MOST);
        }
        assert!(left.is_empty(), "{}", left.len());
    }
}
