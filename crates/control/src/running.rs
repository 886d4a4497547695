//! A clock that nobody sets.

use rustix::time::{ClockId, clock_gettime};

/// Seconds since the system was started, those included that it slept.
pub fn running() -> u64 {
    u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(0)
}
