//! Who writes as fast as it goes. Each keeps as much data as there was at the beginning.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A kind of writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Files of a mebibyte, written over one after the other
    Sequential,
    /// Files of 4 to 64 KiB that are all removed and made anew; on a full volume twice as much stays beside them
    Compile,
    /// Files of 4 to 20 KiB, new ones come and any of the old ones go; a sync for every 64
    Mail,
}

const BLOCK: u64 = 4096;
const LARGE: u64 = 1 << 20;
/// Files of a directory.
const DIRECTORY: u64 = 1000;

impl Load {
    pub const ALL: [Load; 3] = [Load::Sequential, Load::Compile, Load::Mail];

    pub fn name(self) -> &'static str {
        match self {
            Load::Sequential => "sequential rewrite",
            Load::Compile => "compile",
            Load::Mail => "mailboxes",
        }
    }
}

/// One at work.
pub struct Player {
    load: Load,
    dir: PathBuf,
    rng: StdRng,
    /// Numbers and bytes, in the order of their last writing.
    files: VecDeque<(u64, u64)>,
    made: u64,
    content: Vec<u8>,
    /// Bytes written so far.
    pub written: u64,
}

impl Player {
    /// Writes `bytes` for the first time, and as much again twice that stays, where `rest` says so.
    pub fn fill(dir: &Path, load: Load, bytes: u64, rest: u64) -> Result<Self> {
        let content = vec![0x5a; LARGE as usize];
        let (dir, rng) = (dir.to_owned(), StdRng::seed_from_u64(7));
        let mut p = Player { load, dir, rng, files: VecDeque::new(), made: 0, content, written: 0 };
        if rest > 0 {
            let file = File::create_new(p.dir.join("rest"))?;
            (0..rest / LARGE).try_for_each(|n| file.write_all_at(&p.content, n * LARGE))?;
        }
        let mut held = 0;
        while held < bytes {
            held += p.make()?;
        }
        p.sync()?;
        Ok(p)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{}/{number}", number / DIRECTORY))
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        Ok(File::open(&self.dir)?.sync_all()?)
    }

    fn make(&mut self) -> Result<u64> {
        let bytes = match self.load {
            Load::Sequential => LARGE,
            Load::Compile => BLOCK * self.rng.random_range(1..=16),
            Load::Mail => BLOCK * self.rng.random_range(1..=5),
        };
        let number = self.made;
        self.made += 1;
        if number.is_multiple_of(DIRECTORY) {
            fs::create_dir(self.dir.join((number / DIRECTORY).to_string()))?;
        }
        self.write(number, bytes)?;
        self.files.push_back((number, bytes));
        Ok(bytes)
    }

    fn write(&mut self, number: u64, bytes: u64) -> Result<()> {
        let file = File::options().write(true).create(true).truncate(false).open(self.path(number))?;
        let len = usize::try_from(bytes)?;
        file.write_all_at(self.content.get(..len).unwrap_or(&self.content), 0)?;
        self.written += bytes;
        Ok(())
    }

    /// Writes some more.
    pub fn go_on(&mut self) -> Result<()> {
        match self.load {
            Load::Sequential => {
                let Some((number, bytes)) = self.files.pop_front() else { return Ok(()) };
                self.write(number, bytes)?;
                self.files.push_back((number, bytes));
            }
            Load::Compile => {
                let all: Vec<(u64, u64)> = self.files.drain(..).collect();
                let bytes: u64 = all.iter().map(|f| f.1).sum();
                for (number, _) in all {
                    fs::remove_file(self.path(number))?;
                }
                let mut made = 0;
                while made < bytes {
                    made += self.make()?;
                }
            }
            Load::Mail => {
                for _ in 0..64 {
                    let mut room = self.make()?;
                    while room > 0 && !self.files.is_empty() {
                        let which = self.rng.random_range(0..self.files.len());
                        let Some((number, bytes)) = self.files.swap_remove_back(which) else { break };
                        fs::remove_file(self.path(number))?;
                        room = room.saturating_sub(bytes);
                    }
                }
                self.sync()?;
            }
        }
        Ok(())
    }
}
