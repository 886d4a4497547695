//! Reading files: at once, or as a plan whose parts are fetched without holding any lock.

use std::ops::Range;

use silt_engine::{Block, Piece, Tree};
use silt_format::Ino;

use crate::Fs;
use crate::error::{FsError, Of, Result};
use crate::files::MAX_READ;

/// Where the bytes of a part of a read come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A hole.
    Zeroes,
    /// These bytes of a block in memory.
    Memory(Block, Range<usize>),
    /// The device, from this byte on. Blocks there stay as they are until the cleaner has moved
    /// them and their segment is written again.
    Device(u64),
}

/// A part of a read: `len` bytes, behind those of the part before.
#[derive(Debug, Clone)]
pub struct ReadPiece {
    pub len: usize,
    pub source: Source,
}

impl Fs {
    /// How to read `len` bytes from `offset` of a regular file: parts in order, fewer bytes at
    /// the end of the file, at most [`MAX_READ`]. Blocks that lie together on the device are one
    /// part. EISDIR, EINVAL for what holds no bytes.
    pub fn read_plan(&mut self, tree: Tree, ino: Ino, offset: u64, len: usize) -> Result<Vec<ReadPiece>> {
        let attr = match tree {
            Tree::Live => self.live(ino)?,
            Tree::Past(_) => self.attr(tree, ino)?,
        };
        self.check_regular(&attr)?;
        let size = attr.size.min(self.volume.geometry().max_file_size());
        let len = len.min(MAX_READ).min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(Vec::new());
        }
        let g = *self.volume.geometry();
        let bs = g.bs();
        let end = offset + len as u64;
        let keys = offset >> g.block_bits..((end - 1) >> g.block_bits) + 1;
        let pieces = self.volume.locate_range(tree, ino, keys).of(ino)?;
        let mut plan: Vec<ReadPiece> = Vec::with_capacity(pieces.len().min(64));
        let mut at = (offset & (bs as u64 - 1)) as usize;
        let mut left = len;
        for piece in pieces {
            let n = left.min(bs - at);
            let source = match piece {
                Piece::Hole => Source::Zeroes,
                Piece::Memory(block) => Source::Memory(block, at..at + n),
                Piece::Disk(block) => Source::Device(g.byte_of(block) + at as u64),
            };
            match (plan.last_mut(), &source) {
                (Some(ReadPiece { len, source: Source::Zeroes }), Source::Zeroes) => *len += n,
                (Some(ReadPiece { len, source: Source::Device(from) }), Source::Device(here))
                    if *from + *len as u64 == *here =>
                {
                    *len += n;
                }
                _ => plan.push(ReadPiece { len: n, source }),
            }
            left -= n;
            at = 0;
        }
        Ok(plan)
    }

    /// Reads `len` bytes from `offset` of a regular file, waiting for the device; fewer at its
    /// end, at most [`MAX_READ`].
    pub fn read(&mut self, tree: Tree, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let plan = self.read_plan(tree, ino, offset, len)?;
        let mut data = vec![0; plan.iter().map(|p| p.len).sum()];
        let mut at = 0;
        for piece in plan {
            let to = &mut data[at..at + piece.len];
            match piece.source {
                Source::Zeroes => {}
                Source::Memory(block, range) => to.copy_from_slice(&block[range]),
                Source::Device(from) => {
                    let read = self.volume.device().read_at(from, to);
                    read.map_err(|e| FsError::damaged(ino, e.to_string()))?;
                }
            }
            at += piece.len;
        }
        Ok(data)
    }
}
