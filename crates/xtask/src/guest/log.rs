//! What a guest printed: the kernel's messages and the agent's.

use std::path::Path;

use anyhow::{Context, Result};

use crate::exchange::{DEVICES, device};

/// What the nilfs2 driver says in the course of things; everything else from it is a complaint.
const HARMLESS: &[&str] = &["segctord starting."];
/// What it says when it takes over a volume that was not unmounted.
const RECOVERY: &[&str] = &["mounting unchecked fs", "recovery complete", "salvaged"];
/// What no kernel should ever say.
const ALARMS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Call Trace",
    "Oops",
    "Kernel panic",
    "I/O error",
    "blocked for more than",
    "soft lockup",
    "segfault",
    "Out of memory",
    "kernel BUG",
];

/// The text of a guest's console.
#[derive(Clone, Debug)]
pub struct GuestLog {
    lines: Vec<String>,
}

impl GuestLog {
    /// Reads a console file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(Self { lines: text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect() })
    }

    /// All lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    pub(super) fn has_line(&self, wanted: &str) -> bool {
        self.lines.iter().any(|line| line == wanted)
    }

    pub(super) fn tail(&self) -> String {
        let from = self.lines.len().saturating_sub(30);
        self.lines[from..].join("\n")
    }

    pub(super) fn shell_code(&self) -> Option<i32> {
        self.lines.iter().rev().find_map(|line| line.strip_prefix("agent: shell ended with ")?.parse().ok())
    }

    /// How many blocks of synced data the kernel put in place in an image, in all its mounts.
    pub fn salvaged(&self, image: usize) -> u64 {
        let device = format!("({})", device(image));
        let mine = self.lines.iter().filter(|line| line.contains("NILFS") && line.contains(&device));
        mine.filter_map(|line| line.split_once("salvaged ")?.1.split(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// What the kernel had to complain about, recovery after an unclean end left out: by the number of the image
    /// if the message names its device, else `None`.
    pub fn complaints(&self) -> Vec<(Option<usize>, String)> {
        self.lines
            .iter()
            .filter(|line| complains(line))
            .map(|line| ((0..DEVICES).find(|&index| line.contains(&device(index))), line.clone()))
            .collect()
    }
}

fn complains(line: &str) -> bool {
    let holds = |words: &[&str]| words.iter().any(|word| line.contains(word));
    let driver = line.contains("NILFS") && !line.contains("NILFS version");
    if driver { !holds(HARMLESS) && !holds(RECOVERY) } else { holds(ALARMS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(text: &str) -> GuestLog {
        GuestLog { lines: text.lines().map(str::to_owned).collect() }
    }

    #[test]
    fn complaints_find_their_volume() {
        let log = log("[    1.620000] NILFS version 2 loaded
[    1.730000] NILFS (ubda): segctord starting. Construction interval = 5 seconds
[    1.740000] NILFS (ubdb): mounting unchecked fs
[    1.750000] NILFS (ubdb): bad btree node (ino=6, blocknr=5)
[    2.000000] NILFS error (device ubdp): something
[    2.100000] NILFS (ubda): nilfs_get_block: a race condition
[    2.200000] WARNING: CPU: 0 PID: 1 at fs/x.c:1 f+0x1/0x2
[    2.300000] NILFS (ubdc): salvaged 12 blocks
[    2.300000] NILFS (ubdc): recovery complete
agent: shell ended with 3");
        assert_eq!((log.salvaged(2), log.salvaged(1)), (12, 0));
        let found = log.complaints();
        let volumes: Vec<_> = found.iter().map(|(volume, _)| *volume).collect();
        assert_eq!(volumes, [Some(1), Some(15), Some(0), None], "{found:?}");
        assert_eq!(log.shell_code(), Some(3));
    }
}
