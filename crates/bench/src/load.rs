//! Who writes as fast as it goes. Each keeps as much data as there was at the beginning.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// A kind of writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// 4 KiB anywhere in a large file
    Uniform,
    /// 4 KiB in a large file, nine of ten in a tenth of it
    Skewed,
    /// Files of a mebibyte, written over one after the other
    Sequential,
    /// Files of 4 to 64 KiB that are all removed and made anew; on a full volume twice as much stays beside them
    Compile,
    /// Files of 4 to 20 KiB, new ones come and any of the old ones go; a sync for some of them
    Mail,
}

const BLOCK: u64 = 4096;
const LARGE: u64 = 1 << 20;
/// Files of a directory.
const DIRECTORY: u64 = 1000;

impl Load {
    pub const ALL: [Load; 5] = [Load::Uniform, Load::Skewed, Load::Sequential, Load::Compile, Load::Mail];

    pub fn name(self) -> &'static str {
        match self {
            Load::Uniform => "4 KiB anywhere",
            Load::Skewed => "nine of ten in a tenth",
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
    /// Blocks of the one file of those that have one.
    large: u64,
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
        let mut p = Player { load, dir, rng, large: 0, files: VecDeque::new(), made: 0, content, written: 0 };
        if rest > 0 {
            p.stream("rest", rest)?;
        }
        let mut held = 0;
        if matches!(load, Load::Uniform | Load::Skewed) {
            p.stream("large", bytes)?;
            p.large = (bytes / BLOCK).max(1);
            held = bytes;
        }
        while held < bytes {
            held += p.make()?;
        }
        p.sync()?;
        Ok(p)
    }

    /// A new file of about so many bytes.
    fn stream(&self, name: &str, bytes: u64) -> Result<()> {
        let file = File::create_new(self.dir.join(name))?;
        (0..bytes.div_ceil(LARGE)).try_for_each(|n| Ok(file.write_all_at(&self.content, n * LARGE)?))
    }

    /// Writes so many blocks of the one file.
    fn over(&mut self, blocks: u64) -> Result<()> {
        let file = File::options().write(true).open(self.dir.join("large"))?;
        for _ in 0..blocks {
            let any = self.rng.random_range(0..self.large.max(1));
            // The hot ones are spread over the file.
            let hot = self.load == Load::Skewed && self.rng.random_range(0..10) < 9;
            let at = if hot { any / 10 * 10 } else { any };
            file.write_all_at(self.content.get(..BLOCK as usize).unwrap_or_default(), at * BLOCK)?;
            self.written += BLOCK;
        }
        Ok(())
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
            Load::Uniform | Load::Skewed | Load::Sequential => LARGE,
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
            // As many as a mebibyte has.
            Load::Uniform | Load::Skewed => self.over(LARGE / BLOCK)?,
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
