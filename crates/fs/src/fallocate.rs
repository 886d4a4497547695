//! Reserving, punching and zeroing.
//!
//! The format has no blocks that are allocated but not written. So what is reserved is promised
//! in memory ([`crate::reserve`]) and lost at unmount, and zeroes are holes.

use std::ops::{ControlFlow, Range};

use silt_engine::{Attr, Block, Part, Tree};
use silt_format::Ino;

use crate::Fs;
use crate::error::{FsError, Of, Result};
use crate::reserve::MAX_RANGES;
use crate::types::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use crate::types::{Context, is_append_only, is_immutable, without_suidgid};

/// Blocks that go, and others as they are to be, with their keys.
type Edges = (Range<u64>, Vec<(u64, Block)>);

impl Fs {
    /// `fallocate` with modes of [`crate::fallocate_mode`]: 0 and `KEEP_SIZE` reserve, `ZERO_RANGE` with
    /// or without `KEEP_SIZE` zeroes and reserves, `PUNCH_HOLE | KEEP_SIZE` makes a hole.
    /// Callers without
    /// privilege take set-id bits away, as by a write. EOPNOTSUPP: others. EINVAL: nothing asked for. EFBIG, ENOSPC, EPERM by inode flags.
    pub fn fallocate(&mut self, ctx: &Context, ino: Ino, mode: u32, offset: u64, len: u64) -> Result<()> {
        let (before, end) = self.may_allocate(ino, mode, offset, len)?;
        let what = mode & !KEEP_SIZE;
        let size = if mode & KEEP_SIZE != 0 { before.size } else { before.size.max(end) };
        let changed = |size| {
            let mode = if ctx.privileged { before.mode } else { without_suidgid(before.mode) };
            Attr { size, mtime: ctx.now, ctime: ctx.now, mode, ..before.clone() }
        };
        // What is there or promised takes no space; that the times change does.
        if what == 0 {
            self.need_for_change(None)?;
        }
        let part = if what == 0 { Part::Whole } else { self.part_to_punch(ino, offset..end)? };
        if part == Part::Waits {
            return Err(FsError::InParts);
        }
        let promised = self.reserved.within(ino.0, &self.keys(&(offset..end)));
        if what != PUNCH_HOLE {
            self.reserve(ino, before.uid, offset..end, what == ZERO_RANGE)?;
        }
        if let Part::From(from) = part {
            let done = self
                .punch_part(ino, before.size, offset..end, from)
                .and_then(|()| self.store(ino, &before, changed(before.size)));
            if done.is_err() && what != PUNCH_HOLE {
                self.reserved.go_back(ino.0, &self.keys(&(offset..end)), &promised);
            }
            // What is promised by now stays so.
            return done.and(Err(FsError::InParts));
        }
        let zeroed = if what == 0 { Ok(()) } else { self.punch(ino, before.size, offset..end) };
        let grown = match zeroed {
            Ok(()) if size > before.size => self.resize(ino, before.size, size),
            other => other,
        };
        if let Err(e) = grown {
            // What was promised before stays so.
            if what != PUNCH_HOLE {
                self.reserved.go_back(ino.0, &self.keys(&(offset..end)), &promised);
            }
            return Err(e);
        }
        if what == PUNCH_HOLE {
            let bs = u64::from(self.volume.geometry().block_size);
            self.reserved.release(ino.0, offset.div_ceil(bs)..end / bs);
        }
        self.store(ino, &before, changed(size))
    }

    /// Makes a hole of the blocks from one on, the last ones of a range that goes in parts.
    fn punch_part(&mut self, ino: Ino, size: u64, range: Range<u64>, from: u64) -> Result<()> {
        // What could go wrong with the last part does so before the first.
        let (_, edges) = self.edges(ino, size, &range)?;
        if !edges.is_empty() {
            let first = range.start >> self.volume.geometry().block_bits;
            self.need_for(ino, first..first + 2)?;
        }
        self.volume.cut(ino, from..self.whole_blocks(&range).end).of(ino)
    }

    /// Blocks for which there must be space ([`silt_engine::Volume::check_space`]) where [`Fs::fallocate`] is to find
    /// what it promises, with what is kept for promises that were made; 0 where it promises nothing new. Errors as there,
    /// but ENOSPC.
    pub fn lacks(&mut self, ino: Ino, mode: u32, offset: u64, len: u64) -> Result<u64> {
        let (_, end) = self.may_allocate(ino, mode, offset, len)?;
        let what = mode & !KEEP_SIZE;
        if what == PUNCH_HOLE {
            return Ok(0);
        }
        let holes = self.holes(ino, offset..end, what == ZERO_RANGE)?;
        Ok(match self.unpromised(ino, &holes) {
            0 => 0,
            wanted => wanted.saturating_add(self.kept(0)),
        })
    }

    /// Blocks of data that [`Fs::fallocate`] has to look at, at most, to find what it is to promise, and blocks that it has to
    /// promise at least. Looks at none itself. Errors as there, but ENOSPC.
    pub fn looks_at(&mut self, ino: Ino, mode: u32, offset: u64, len: u64) -> Result<(u64, u64)> {
        let (_, end) = self.may_allocate(ino, mode, offset, len)?;
        if mode & !KEEP_SIZE != 0 {
            return Ok((0, 0));
        }
        let keys = self.keys(&(offset..end));
        let all = keys.end - keys.start;
        let data = self.volume.data_blocks_at_most(ino).min(all);
        Ok((data, (all - data).saturating_sub(self.reserved.covered(ino.0, &keys))))
    }

    /// Blocks of a range of bytes that are promised to a file.
    pub fn promised_in(&self, ino: Ino, bytes: Range<u64>) -> u64 {
        if bytes.is_empty() { 0 } else { self.reserved.covered(ino.0, &self.keys(&bytes)) }
    }

    /// The same, as ranges of blocks.
    pub fn promised(&self, ino: Ino, bytes: Range<u64>) -> Vec<Range<u64>> {
        if bytes.is_empty() { Vec::new() } else { self.reserved.within(ino.0, &self.keys(&bytes)) }
    }

    /// Takes back what was promised of a range of bytes since this much of it was ([`Fs::promised`]).
    pub fn promised_no_more_than(&mut self, ino: Ino, bytes: Range<u64>, before: &[Range<u64>]) {
        if !bytes.is_empty() {
            self.reserved.go_back(ino.0, &self.keys(&bytes), before);
        }
    }

    /// The attributes of a file that may be changed so, and where the range ends.
    fn may_allocate(&mut self, ino: Ino, mode: u32, offset: u64, len: u64) -> Result<(Attr, u64)> {
        let what = mode & !KEEP_SIZE;
        if !matches!(what, 0 | ZERO_RANGE | PUNCH_HOLE) || (what == PUNCH_HOLE && mode & KEEP_SIZE == 0) {
            return Err(FsError::NotSupported);
        }
        self.writable()?;
        let before = self.live(ino)?;
        self.check_regular(&before)?;
        if is_immutable(&before) || (is_append_only(&before) && what != 0) {
            return Err(FsError::NotPermitted);
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let max = self.volume.geometry().max_file_size();
        let end = offset.checked_add(len).filter(|end| *end <= max).ok_or(FsError::FileTooBig)?;
        Ok((before, end))
    }

    /// Blocks that a range of bytes touches.
    fn keys(&self, bytes: &Range<u64>) -> Range<u64> {
        let bits = self.volume.geometry().block_bits;
        bytes.start >> bits..((bytes.end - 1) >> bits) + 1
    }

    /// Promises the blocks of a range that hold no data; with `all`, those that do, too, because
    /// they are about to become a hole.
    fn reserve(&mut self, ino: Ino, owner: u32, bytes: Range<u64>, all: bool) -> Result<()> {
        let holes = self.holes(ino, bytes, all)?;
        let wanted = self.unpromised(ino, &holes);
        if wanted > 0 {
            self.need(wanted)?;
        }
        if self.reserved.add(ino.0, owner, &holes) { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// How many of these blocks are not promised to the file.
    fn unpromised(&self, ino: Ino, holes: &[Range<u64>]) -> u64 {
        holes.iter().map(|r| r.end - r.start - self.reserved.covered(ino.0, r)).sum()
    }

    /// What of a range is to be promised, see [`Fs::reserve`]; of too many holes to remember, some more than those.
    fn holes(&mut self, ino: Ino, bytes: Range<u64>, all: bool) -> Result<Vec<Range<u64>>> {
        let keys = self.keys(&bytes);
        let mut holes = Vec::new();
        if all {
            holes.push(keys);
            return Ok(holes);
        }
        let mut next = keys.start;
        self.volume
            .for_each_data(Tree::Live, ino, keys.start, |key| {
                if key >= keys.end {
                    return ControlFlow::Break(());
                }
                if key > next {
                    holes.push(next..key);
                }
                next = key + 1;
                if holes.len() > MAX_RANGES {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .of(ino)?;
        if next < keys.end {
            holes.push(next..keys.end);
        }
        Ok(holes)
    }

    /// Blocks that lie in a range of bytes wholly.
    fn whole_blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        let bs = u64::from(self.volume.geometry().block_size);
        bytes.start.div_ceil(bs)..bytes.end / bs
    }

    /// How the blocks of a range are to become a hole. There is room for it; ENOSPC.
    fn part_to_punch(&mut self, ino: Ino, bytes: Range<u64>) -> Result<Part> {
        let whole = self.whole_blocks(&bytes);
        if whole.is_empty() {
            return self.need_for_change(None).map(|()| Part::Whole);
        }
        self.part_with_room(ino, &whole)
    }

    /// Makes a range of a file of `size` bytes zero: whole blocks become holes, the rest is
    /// written. The size stays.
    fn punch(&mut self, ino: Ino, size: u64, bytes: Range<u64>) -> Result<()> {
        let start = bytes.start;
        if start >= size {
            return Ok(());
        }
        let bits = self.volume.geometry().block_bits;
        // Read first: that can fail.
        let (whole, blocks) = self.edges(ino, size, &bytes)?;
        if !blocks.is_empty() {
            self.need_for(ino, start >> bits..(start >> bits) + 2)?;
        }
        if whole.start < whole.end {
            self.volume.cut(ino, whole).of(ino)?;
        }
        for (key, block) in blocks {
            self.put_block(ino, key, block)?;
        }
        Ok(())
    }

    /// The blocks of a range that go wholly, and those at its edges with what lies in it zeroed.
    fn edges(&mut self, ino: Ino, size: u64, bytes: &Range<u64>) -> Result<Edges> {
        let g = *self.volume.geometry();
        let bs = u64::from(g.block_size);
        let start = bytes.start;
        // What lies behind the end of the file need not stay.
        let end = if bytes.end >= size { size.div_ceil(bs).saturating_mul(bs) } else { bytes.end };
        let whole = start.div_ceil(bs)..end / bs;
        let inside = |at: u64| (at & (bs - 1)) as usize;
        let mut parts = Vec::new();
        if whole.start > whole.end {
            parts.push((start >> g.block_bits, inside(start)..inside(end)));
        } else {
            if inside(start) != 0 {
                parts.push((start >> g.block_bits, inside(start)..g.bs()));
            }
            if inside(end) != 0 {
                parts.push((end >> g.block_bits, 0..inside(end)));
            }
        }
        let mut blocks = Vec::new();
        for (key, range) in parts {
            if let Some(block) = self.zeroed_part(ino, key, range)? {
                blocks.push((key, block));
            }
        }
        Ok((whole, blocks))
    }
}
