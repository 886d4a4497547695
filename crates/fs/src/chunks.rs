//! The chunks of a directory, one after the other, whatever is damaged.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use silt_engine::{Block, Error, Tree, Volume};
use silt_format::{Ino, dir};

use crate::error::{FsError, Of, Result};

/// Unreadable places skipped one by one before the rest of a directory is given up.
const MAX_SKIPPED: u32 = 512;

/// How long a walk may wait in all for what the device does not give in the end: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(20);

/// Walks over the chunks of a directory below block offset `end`, ascending. Holes, which only
/// damaged directories have, are leapt over; a part of the map that cannot be read is given up
/// after [`MAX_SKIPPED`] tries, and all of the rest where the device is slow to fail.
pub(crate) struct Chunks {
    tree: Tree,
    dir: Ino,
    next: u64,
    end: u64,
    skipped: u32,
    /// Part of the map could not be read.
    pub damaged: bool,
    /// It was the device that did not give it: what is there is not known.
    pub unread: Option<FsError>,
    /// How long the device took over what it did not give.
    waited: Duration,
    patience: Duration,
    /// The last error of the device.
    failed: Option<FsError>,
    /// The rest was given up for that.
    pub cut_short: bool,
}

impl Chunks {
    pub fn new(tree: Tree, dir: Ino, from: u64, end: u64) -> Self {
        Chunks {
            tree,
            dir,
            next: from,
            end,
            skipped: 0,
            damaged: false,
            unread: None,
            waited: Duration::ZERO,
            patience: PATIENCE,
            failed: None,
            cut_short: false,
        }
    }

    /// The directory.
    pub fn dir(&self) -> Ino {
        self.dir
    }

    /// To the end, however long that takes.
    pub fn patient(self) -> Self {
        Chunks { patience: Duration::MAX, ..self }
    }

    /// The next chunk that is mapped, and its block offset.
    pub fn next(&mut self, volume: &mut Volume) -> Option<(u64, Result<Block>)> {
        while self.next < self.end {
            if self.waited > self.patience {
                self.unread = self.failed.take();
                (self.damaged, self.cut_short) = (true, true);
                self.next = self.end;
                break;
            }
            let begin = Instant::now();
            let key = self.next;
            match volume.read_block(self.tree, self.dir, key) {
                Ok(Some(block)) => {
                    self.next = key + 1;
                    return Some((key, check_owner(self.dir, key, &block).map(|()| block)));
                }
                Ok(None) => self.leap(volume),
                Err(e) => {
                    self.next = key + 1;
                    let e = self.failure(&e, begin);
                    // The map tells where the chunk is, so it is the chunk that cannot be read.
                    if volume.locate(self.tree, self.dir, key).is_ok() {
                        return Some((key, Err(e)));
                    }
                    self.skip(e);
                }
            }
        }
        None
    }

    /// Goes on with the next mapped block.
    fn leap(&mut self, volume: &mut Volume) {
        let (key, mut found, begin) = (self.next, None, Instant::now());
        let walked = volume.for_each_data(self.tree, self.dir, key, |k| {
            found = Some(k);
            ControlFlow::Break(())
        });
        match (walked, found) {
            (_, Some(k)) if k > key => self.next = k,
            (Err(e), _) => {
                self.next = key + 1;
                let e = self.failure(&e, begin);
                self.skip(e);
            }
            _ => self.next = self.end,
        }
    }

    fn failure(&mut self, e: &Error, begin: Instant) -> FsError {
        let e = FsError::of_engine(self.dir, e);
        if e.is_of_device() {
            self.waited += begin.elapsed();
            self.failed = Some(e.clone());
        }
        e
    }

    fn skip(&mut self, e: FsError) {
        if e.is_of_device() {
            self.unread = Some(e);
        }
        self.damaged = true;
        self.skipped += 1;
        if self.skipped > MAX_SKIPPED {
            self.next = self.end;
        }
    }
}

/// Reads a chunk; a hole is damage, because directories have none.
pub(crate) fn read_chunk(volume: &mut Volume, tree: Tree, dir: Ino, key: u64) -> Result<Block> {
    let block = volume.read_block(tree, dir, key).of(dir)?;
    let block = block.ok_or_else(|| FsError::damaged(dir, format!("directory block {key} is missing")))?;
    check_owner(dir, key, &block).map(|()| block)
}

/// Whether a chunk may be that of the directory: "." comes first, there and nowhere else, and names it.
fn check_owner(dir: Ino, key: u64, chunk: &[u8]) -> Result<()> {
    let owner = match dir::entry_at(chunk, 0) {
        Ok(first) if first.name == b"." && first.ino.0 != 0 => Some(first.ino),
        // Who reads it finds out what is wrong with it.
        Err(_) => return Ok(()),
        Ok(_) => None,
    };
    match owner {
        Some(ino) if key == 0 && ino == dir => Ok(()),
        None if key > 0 => Ok(()),
        Some(ino) => Err(FsError::damaged(dir, format!("directory block {key} is that of inode {ino}"))),
        None => Err(FsError::damaged(dir, "the directory does not begin with \".\"")),
    }
}
