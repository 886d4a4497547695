//! What reached a disk: counted by the server of a model, or by the kernel.

use std::fs;
use std::ops::Sub;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Requests and bytes since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests that read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests that wrote. The kernel's own count includes flushes that came as empty writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes of the disk's cache.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
            discards: self.discards.saturating_sub(before.discards),
        }
    }
}

/// Who counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Source {
    /// `/sys/block/loopN/stat`.
    Kernel(PathBuf),
    /// The file beside a served image; exact.
    Served(PathBuf),
    /// There is no disk.
    Nobody,
}

impl Source {
    /// Whether an empty write that carries a flush is left out of the writes.
    pub fn exact(&self) -> bool {
        matches!(self, Source::Served(_))
    }

    /// How it stands.
    pub fn read(&self) -> Result<Counters> {
        let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| path.display().to_string());
        match self {
            Source::Kernel(path) => of_kernel(&read(path)?),
            Source::Served(path) => of_server(&read(path)?),
            Source::Nobody => Ok(Counters::default()),
        }
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// See Documentation/block/stat.rst; sectors are of 512 bytes.
fn of_kernel(text: &str) -> Result<Counters> {
    match numbers(text).as_slice() {
        [reads, _, read, _, writes, _, written, _, _, _, _, discards, _, _, _, flushes, ..] => Ok(Counters {
            reads: *reads,
            read_bytes: read * 512,
            writes: *writes,
            write_bytes: written * 512,
            flushes: *flushes,
            discards: *discards,
        }),
        _ => bail!("the kernel's statistics of a disk look different: {text}"),
    }
}

fn of_server(text: &str) -> Result<Counters> {
    match numbers(text.trim_end_matches('\0')).as_slice() {
        [reads, read_bytes, writes, write_bytes, flushes, discards] => Ok(Counters {
            reads: *reads,
            read_bytes: *read_bytes,
            writes: *writes,
            write_bytes: *write_bytes,
            flushes: *flushes,
            discards: *discards,
        }),
        _ => bail!("a served disk's counters look different: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let text = "  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        let counters = of_kernel(text).unwrap();
        assert_eq!((counters.reads, counters.read_bytes, counters.writes), (1, 3 * 512, 5));
        assert_eq!((counters.write_bytes, counters.discards, counters.flushes), (7 * 512, 12, 16));
        assert!(of_kernel("1 2 3").is_err());
        assert_eq!(of_server("1 2 3 4 5 6\n\0\0").unwrap().flushes, 5);
        assert!(of_server("1 2").is_err());
    }
}
