//! How idle processors wait. Where a virtual machine has them sleep at once, waking another processor costs some 50 us,
//! and whatever takes two processes turns into a measurement of that: a request through FUSE wakes twice.

use std::fs;

/// The kernel's parameter, in nanoseconds; there where idle processors may poll.
const PARAMETER: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// The kernel's default.
const DEFAULT: u64 = 200_000;

/// Idle processors poll as by default, until this is dropped.
pub struct Polling {
    before: u64,
}

impl Polling {
    /// `None` where there is nothing to set.
    pub fn start() -> Option<Self> {
        let before = fs::read_to_string(PARAMETER).ok()?.trim().parse().ok()?;
        (before < DEFAULT).then(|| fs::write(PARAMETER, DEFAULT.to_string()).ok())??;
        Some(Polling { before })
    }

    /// In words.
    pub fn text(&self) -> String {
        format!(
            "idle processors poll for {} us (set for this run; was {} us)",
            DEFAULT / 1000,
            self.before / 1000
        )
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let Err(error) = fs::write(PARAMETER, self.before.to_string()) {
            eprintln!("{PARAMETER} stays at {DEFAULT}: {error}");
        }
    }
}
