//! Directories that the device does not give: for a while that is no reason to take what is in them for lost.
//!
//! A device may be away for a moment, and come back with everything. So whoever wants such a directory removed, or something
//! else in its place, is refused at first; later it counts as lost, or nothing could ever remove it.

use hashbrown::HashMap;

use crate::error::{FsError, Result};
use crate::{Fs, Ino};

/// Seconds that a device has to come back.
const PATIENCE: i64 = 10;
/// Seconds after which a refusal has nothing to do with the next one.
const FORGOTTEN: i64 = 600;
/// Directories that are remembered.
const MOST: usize = 4096;

/// By inode number the time, in seconds, at which one was first refused.
#[derive(Debug, Default)]
pub(crate) struct Refused(HashMap<u64, i64>);

impl Refused {
    /// The device has just not given something of a directory; whether it has been so for long enough.
    fn is_lost(&mut self, dir: Ino, now: i64) -> bool {
        let is_of_now = |since: &i64| (0..=FORGOTTEN).contains(&now.saturating_sub(*since));
        if let Some(since) = self.0.get(&dir.0).filter(|since| is_of_now(since)) {
            return now.saturating_sub(*since) >= PATIENCE;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, since| is_of_now(since));
        }
        // Those that are remembered go first, and leave room for others.
        if self.0.len() < MOST {
            self.0.insert(dir.0, now);
        }
        false
    }

    /// That one is gone, or was read.
    pub fn forget(&mut self, dir: Ino) {
        self.0.remove(&dir.0);
    }
}

impl Fs {
    /// Says that something of a directory that is to go could not be read (`e`). The error, unless what it tells of is there for
    /// good: bytes that make no sense, or a device that has not given them for a while. `now` in seconds.
    pub(crate) fn count_as_lost(&mut self, dir: Ino, e: FsError, now: i64) -> Result<()> {
        if e.is_of_device() && !self.refused.is_lost(dir, now) { Err(e) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_and_refusals_are_forgotten() {
        let (mut r, d) = (Refused::default(), Ino(20));
        assert!(!r.is_lost(d, 1000) && !r.is_lost(d, 1009));
        assert!(r.is_lost(d, 1010) && r.is_lost(d, 1600));
        assert!(!r.is_lost(d, 1601), "that one is another outage");
        assert!(!r.is_lost(d, 1500), "the clock was put back");
        assert!(r.is_lost(d, 1510));
        r.forget(d);
        assert!(!r.is_lost(d, 1510));
    }

    /// However many there are: each look at all of them lets some go.
    #[test]
    fn memory_is_bounded_and_nobody_waits_for_ever() {
        let mut r = Refused::default();
        let mut left: Vec<u64> = (0..3 * MOST as u64).collect();
        for round in 0..4 {
            left.retain(|d| {
                let gone = r.is_lost(Ino(*d), 1000 + round * PATIENCE);
                if gone {
                    r.forget(Ino(*d));
                }
                !gone
            });
            assert!(r.0.len() <= MOST);
        }
        assert!(left.is_empty(), "{}", left.len());
    }
}
