//! Settings of the machine that are made for a run and put back: how idle processors wait, and FUSE over io_uring.
//!
//! Where a virtual machine has idle processors sleep at once, waking another one costs some 50 us, and whatever takes
//! two processes turns into a measurement of that: a request through FUSE wakes twice.

use std::fs;

use anyhow::{Context, Result};
use silt_fuse::IO_URING_SWITCH as SWITCH;

/// The switch is on, until this is dropped.
pub struct Rings {
    before: String,
}

impl Rings {
    /// Fails where the kernel has none.
    pub fn start() -> Result<Self> {
        let before = fs::read_to_string(SWITCH).context("FUSE over io_uring needs Linux 6.14")?;
        fs::write(SWITCH, "Y").context(SWITCH)?;
        Ok(Rings { before })
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, self.before.trim()) {
            eprintln!("{SWITCH} stays on: {error}");
        }
    }
}

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
