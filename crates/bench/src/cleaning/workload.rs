//! The loads, played on a volume in memory; mail syncs for every eight letters here. Each keeps the live data as much as it was
//! at the beginning.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use silt_format::Ino;

use super::bed::{Bed, End};

pub use crate::load::Load as Workload;

const BLOCK: u64 = 4096;
const LARGE: u64 = 1 << 20;

struct File {
    name: String,
    ino: Ino,
    bytes: u64,
}

/// One at work.
pub struct Player {
    workload: Workload,
    rng: StdRng,
    /// The one file, its blocks, or files in the order of their last writing.
    large: Option<(Ino, u64)>,
    files: VecDeque<File>,
    made: u64,
    /// Bytes in files, and how much of that there is to be.
    held: u64,
    live: u64,
    buffer: Vec<u8>,
}

impl Player {
    /// Writes the live data for the first time.
    pub fn fill(bed: &mut Bed, workload: Workload, live: u64) -> Result<Self, End> {
        let rng = StdRng::seed_from_u64(7);
        let buffer = vec![0x5a; LARGE as usize];
        let mut p =
            Player { workload, rng, large: None, files: VecDeque::new(), made: 0, held: 0, live, buffer };
        let one_file = match workload {
            Workload::Uniform | Workload::Skewed => live,
            Workload::Compile => live / 3 * 2,
            Workload::Sequential | Workload::Mail => 0,
        };
        if one_file > 0 {
            let ino = bed.create("large")?;
            let mut at = 0;
            while at < one_file {
                bed.write(ino, at, &p.buffer[..(64 << 10)])?;
                at += 64 << 10;
            }
            p.large = Some((ino, one_file / BLOCK));
        }
        p.held = one_file;
        while p.held < live {
            p.make(bed)?;
        }
        bed.sync()?;
        Ok(p)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n.max(1))
    }

    /// Makes a file.
    fn make(&mut self, bed: &mut Bed) -> Result<(), End> {
        let bytes = match self.workload {
            Workload::Mail => BLOCK * (1 + self.below(5)),
            Workload::Compile => BLOCK * (1 + self.below(16)),
            _ => LARGE,
        };
        self.made += 1;
        let name = self.made.to_string();
        let ino = bed.create(&name)?;
        bed.write(ino, 0, &self.buffer[..bytes as usize])?;
        self.files.push_back(File { name, ino, bytes });
        self.held += bytes;
        Ok(())
    }

    fn remove(&mut self, bed: &mut Bed, f: &File) -> Result<(), End> {
        self.held = self.held.saturating_sub(f.bytes);
        bed.remove(&f.name, f.ino)
    }

    /// Writes some more.
    pub fn go_on(&mut self, bed: &mut Bed) -> Result<(), End> {
        match (self.workload, self.large) {
            (Workload::Uniform, Some((ino, blocks))) => {
                let at = self.below(blocks);
                bed.write(ino, at * BLOCK, &self.buffer[..BLOCK as usize])
            }
            (Workload::Skewed, Some((ino, blocks))) => {
                let hot = (blocks / 10).max(1);
                let at = if self.below(10) < 9 { self.below(hot) } else { hot + self.below(blocks - hot) };
                // The hot ones are spread over the file.
                let at = if at < hot { at * 10 } else { at };
                bed.write(ino, at.min(blocks - 1) * BLOCK, &self.buffer[..BLOCK as usize])
            }
            (Workload::Compile, _) => {
                let all: Vec<File> = self.files.drain(..).collect();
                for f in &all {
                    self.remove(bed, f)?;
                }
                while self.held < self.live {
                    self.make(bed)?;
                }
                bed.sync()
            }
            (Workload::Mail, _) => {
                for _ in 0..8 {
                    self.make(bed)?;
                    while self.held > self.live && !self.files.is_empty() {
                        let which = self.below(self.files.len() as u64) as usize;
                        let Some(f) = self.files.swap_remove_back(which) else { break };
                        self.remove(bed, &f)?;
                    }
                }
                bed.sync()
            }
            _ => {
                let Some(f) = self.files.pop_front() else { return Ok(()) };
                bed.write(f.ino, 0, &self.buffer[..f.bytes as usize])?;
                self.files.push_back(f);
                Ok(())
            }
        }
    }
}
