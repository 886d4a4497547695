//! The kernel's cleaner, driven to its end: `nilfs_cleanerd` with nothing protected and no wish to pause.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::nilfs::tool;

/// Everything is garbage that no snapshot needs, and every segment is worth cleaning.
const CONFIGURATION: &str = "protection_period 0
min_clean_segments 0
max_clean_segments 0
clean_check_interval 0.02
selection_policy timestamp
nsegments_per_clean 32
mc_nsegments_per_clean 32
cleaning_interval 0.002
mc_cleaning_interval 0.002
retry_interval 0.05
min_reclaimable_blocks 0
mc_min_reclaimable_blocks 0
use_mmap
log_priority info
";

const CONFIGURATION_FILE: &str = "/mnt/cleanerd.conf";
/// A cleaner that has not come to rest by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cleaner that does not answer by then is none.
const STARTING: Duration = Duration::from_secs(5);

/// A running cleaner.
pub(super) struct Cleaner {
    device: String,
    started: Instant,
    idle_seen: u32,
}

impl Cleaner {
    /// Starts the daemon for a mounted volume.
    pub(super) fn start(device: &str) -> Result<Self> {
        std::fs::write(CONFIGURATION_FILE, CONFIGURATION)?;
        tool("nilfs_cleanerd", &["-c", CONFIGURATION_FILE, device])?;
        Ok(Self { device: device.to_owned(), started: Instant::now(), idle_seen: 0 })
    }

    /// Whether it has come to rest. The error says that it died or never rests.
    pub(super) fn rests(&mut self) -> Result<bool> {
        let status = match tool("nilfs-clean", &["-l", &self.device]).context("asking the cleaner") {
            // It detaches itself before it listens.
            Err(_) if self.started.elapsed() < STARTING => return Ok(false),
            other => other?,
        };
        match status.trim() {
            "idle" => self.idle_seen += 1,
            _ => self.idle_seen = 0,
        }
        if self.started.elapsed() > PATIENCE {
            bail!("the cleaner does not come to rest ({})", status.trim());
        }
        // Once could be before it began.
        Ok(self.idle_seen >= 2)
    }

    /// Ends the daemon and waits for it.
    pub(super) fn stop(self) -> Result<Duration> {
        tool("nilfs-clean", &["-q", &self.device]).context("stopping the cleaner")?;
        Ok(self.started.elapsed())
    }
}
