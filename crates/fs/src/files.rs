//! Content of regular files: writing, sizes, zeroing, symlink targets.
//!
//! Bytes of the last block behind the end of a file are zero in what is written here, and made
//! zero when a file grows over them: whoever wrote the block may have left something there.

use silt_engine::{Attr, Block, Part, Tree, writable, zeroed};
use silt_format::Ino;

use crate::Fs;
use crate::error::{FsError, Of, Result};
use crate::types::{Context, Seek, SetAttr, WriteFlags, is_append_only, is_immutable, without_suidgid};

/// Most bytes one [`Fs::read`] returns.
pub const MAX_READ: usize = 64 << 20;

/// What [`Fs::seek_within`] came to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    At(u64),
    /// It goes on from here.
    More(u64),
}

impl Fs {
    /// The target of a symbolic link. EINVAL: it is none.
    pub fn readlink(&mut self, tree: Tree, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.attr(tree, ino)?;
        if attr.file_type() != crate::types::S_IFLNK {
            return Err(FsError::Invalid);
        }
        let bad = || FsError::damaged(ino, format!("a symbolic link of {} bytes", attr.size));
        let len = usize::try_from(attr.size).map_err(|_| bad())?;
        let block = self.volume.read_block(tree, ino, 0).of(ino)?.ok_or_else(bad)?;
        // The rest of its block is zero, and no target holds a NUL (spec 9.4).
        match block.split_at_checked(len) {
            Some((target, rest)) if len > 0 && !rest.is_empty() => {
                if target.contains(&0) || rest.iter().any(|b| *b != 0) {
                    return Err(FsError::damaged(ino, "the block of a symbolic link holds something else"));
                }
                Ok(target.to_vec())
            }
            _ => Err(bad()),
        }
    }

    /// Block `key` of a file of `size` bytes with `data` put at byte `at` of it; reads what is
    /// there only if some of it stays.
    fn merged(&mut self, ino: Ino, size: u64, key: u64, at: usize, data: &[u8]) -> Result<Block> {
        let g = self.volume.geometry();
        let (bs, start) = (g.bs(), key << g.block_bits);
        let old = usize::try_from(size.saturating_sub(start)).unwrap_or(bs).min(bs);
        let stays = at.min(old) > 0 || old > at + data.len();
        let kept = if stays { self.volume.read_block(Tree::Live, ino, key).of(ino)? } else { None };
        let mut block = kept.unwrap_or_else(|| zeroed(bs));
        let bytes = writable(&mut block);
        bytes[old..].fill(0);
        bytes[at..at + data.len()].copy_from_slice(data);
        // The kernel has these bytes and not those around them.
        Ok(block.to_be_read())
    }

    /// Block `key` with a range of bytes zeroed; `None` if they are zero already.
    pub(crate) fn zeroed_part(
        &mut self,
        ino: Ino,
        key: u64,
        range: std::ops::Range<usize>,
    ) -> Result<Option<Block>> {
        let Some(mut block) = self.volume.read_block(Tree::Live, ino, key).of(ino)? else {
            return Ok(None);
        };
        if block[range.clone()].iter().all(|b| *b == 0) {
            return Ok(None);
        }
        writable(&mut block)[range].fill(0);
        Ok(Some(block))
    }

    /// The last block of a file of `size` bytes with all behind the end zeroed, if anything there
    /// is not zero, and its key.
    pub(crate) fn clean_tail(&mut self, ino: Ino, size: u64) -> Result<Option<(u64, Block)>> {
        let g = self.volume.geometry();
        let (bits, bs) = (g.block_bits, g.bs());
        let inside = size & (bs as u64 - 1);
        if inside == 0 {
            return Ok(None);
        }
        let key = size >> bits;
        Ok(self.zeroed_part(ino, key, inside as usize..bs)?.map(|b| (key, b)))
    }

    /// Writes at `offset` and returns how many bytes, which is less than asked for only if the
    /// device failed half-way. EFBIG beyond the format's file size, EPERM for what inode flags
    /// forbid, ENOSPC.
    pub fn write(
        &mut self,
        ctx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.writable()?;
        let before = self.live(ino)?;
        self.check_regular(&before)?;
        // A handle that appends can be made to write elsewhere (`RWF_NOAPPEND`).
        let appends = flags.append
            && !flags.cached
            && (offset >= before.size
                || self.appends.allow(ino.0, &(offset..offset.saturating_add(data.len() as u64))));
        if !flags.late && (is_immutable(&before) || (is_append_only(&before) && !appends)) {
            return Err(FsError::NotPermitted);
        }
        if data.is_empty() {
            return Ok(0);
        }
        let g = *self.volume.geometry();
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= g.max_file_size());
        let end = end.ok_or(FsError::FileTooBig)?;
        let (first, last) = (offset >> g.block_bits, (end - 1) >> g.block_bits);
        self.need_for(ino, first..last + 1)?;
        if offset > before.size
            && before.size >> g.block_bits < first
            && let Some((key, block)) = self.clean_tail(ino, before.size)?
        {
            self.put_block(ino, key, block)?;
        }
        // What is changed in part is prepared first: reading can fail, and then nothing is done.
        let bs = g.bs();
        let at = (offset & (bs as u64 - 1)) as usize;
        let (mut head, mut whole) = (None, data);
        if at > 0 || data.len() < bs {
            let (part, rest) = data.split_at(data.len().min(bs - at));
            (head, whole) = (Some(self.merged(ino, before.size, first, at, part)?), rest);
        }
        let (whole, part) = whole.split_at(whole.len() - whole.len() % bs);
        let tail = if part.is_empty() { None } else { Some(self.merged(ino, before.size, last, 0, part)?) };
        let whole = self.volume.cut_into_blocks(whole);
        let (mut done, mut result) = (0, Ok(()));
        for (key, block) in (first..).zip(head.into_iter().chain(whole).chain(tail)) {
            result = self.put_block(ino, key, block);
            if result.is_err() {
                break;
            }
            done =
                usize::try_from(((key + 1) << g.block_bits) - offset).unwrap_or(usize::MAX).min(data.len());
        }
        if done == 0 {
            result?;
        }
        // What was not written keeps what was promised.
        let written = (offset + done.max(1) as u64 - 1) >> g.block_bits;
        self.reserved.release(ino.0, first..written + 1);
        if is_append_only(&before) {
            self.appends.fill(ino.0, offset..offset + done as u64);
            self.appends.leave(ino.0, before.size..offset.max(before.size));
        }
        let mut after = before.clone();
        after.size = after.size.max(offset + done as u64);
        after.mtime = ctx.now;
        after.ctime = ctx.now;
        if flags.kill_suidgid {
            after.mode = without_suidgid(after.mode);
        }
        self.store(ino, &before, after)?;
        Ok(done)
    }

    /// Whether an inode has set-id bits that a change of its content takes away, see [`WriteFlags::kill_suidgid`].
    pub fn is_set_id(&mut self, ino: Ino) -> bool {
        self.live(ino).is_ok_and(|attr| without_suidgid(attr.mode) != attr.mode)
    }

    /// Changes the size of a regular file from `old` to `new` bytes: its blocks only. Growth
    /// leaves a hole. EFBIG.
    pub(crate) fn resize(&mut self, ino: Ino, old: u64, new: u64) -> Result<()> {
        let g = *self.volume.geometry();
        if new > g.max_file_size() {
            return Err(FsError::FileTooBig);
        }
        let bs = u64::from(g.block_size);
        let smaller = new.min(old);
        let tail = if new == old { None } else { self.clean_tail(ino, smaller)? };
        if new < old {
            let cut = new.div_ceil(bs)..u64::MAX;
            self.volume.cut(ino, cut.clone()).of(ino)?;
            self.reserved.release(ino.0, cut);
        }
        if let Some((key, block)) = tail {
            self.put_block(ino, key, block)?;
        }
        Ok(())
    }

    /// Makes sure that what lies behind `size` can be cut off. Where that is more than ends at once: makes the file a part shorter,
    /// [`FsError::InParts`].
    pub(crate) fn shorten_in_parts(
        &mut self,
        ctx: &Context,
        ino: Ino,
        before: &Attr,
        set: &SetAttr,
        size: u64,
    ) -> Result<()> {
        let g = *self.volume.geometry();
        let keys = size.div_ceil(u64::from(g.block_size))..u64::MAX;
        let from = match self.part_with_room(ino, &keys)? {
            Part::Whole => return Ok(()),
            Part::Waits => return Err(FsError::InParts),
            Part::From(from) => from,
        };
        // What could go wrong with the last part does so before the first.
        self.clean_tail(ino, size)?;
        self.volume.cut(ino, from..u64::MAX).of(ino)?;
        self.reserved.release(ino.0, from..u64::MAX);
        let size = before.size.min(from << g.block_bits);
        let mode = if set.kill_suidgid { without_suidgid(before.mode) } else { before.mode };
        let after = Attr { size, mode, mtime: ctx.now, ctime: ctx.now, ..before.clone() };
        self.store(ino, before, after)?;
        Err(FsError::InParts)
    }

    /// The first byte from `offset` on that is data (a block that is mapped) or in a hole; the
    /// end of the file counts as a hole. ENXIO: none, or `offset` at or behind the end.
    pub fn seek(&mut self, tree: Tree, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let mut from = offset;
        loop {
            match self.seek_within(tree, ino, from, what, u64::MAX)? {
                Sought::At(found) => return Ok(found),
                Sought::More(on) => from = on,
            }
        }
    }

    /// The same, looking at `most` blocks: the map of a large file without holes takes long to read.
    pub fn seek_within(
        &mut self,
        tree: Tree,
        ino: Ino,
        offset: u64,
        what: Seek,
        most: u64,
    ) -> Result<Sought> {
        let attr = self.attr(tree, ino)?;
        self.check_regular(&attr)?;
        if offset >= attr.size {
            return Err(FsError::NoData);
        }
        let bits = self.volume.geometry().block_bits;
        let from = offset >> bits;
        let last = (attr.size - 1) >> bits;
        let mut found = None;
        let mut hole = from;
        let mut more = false;
        self.volume
            .for_each_data(tree, ino, from, |key| {
                use std::ops::ControlFlow::{Break, Continue};
                match what {
                    Seek::Hole if hole - from >= most.max(1) => {
                        more = true;
                        Break(())
                    }
                    Seek::Data => {
                        found = Some(key);
                        Break(())
                    }
                    Seek::Hole if key == hole && key <= last => {
                        hole += 1;
                        Continue(())
                    }
                    Seek::Hole => Break(()),
                }
            })
            .of(ino)?;
        Ok(match what {
            Seek::Data => match found {
                Some(key) if key <= last => Sought::At(offset.max(key << bits)),
                _ => return Err(FsError::NoData),
            },
            Seek::Hole if hole > last => Sought::At(attr.size),
            Seek::Hole if more => Sought::More(hole << bits),
            Seek::Hole => Sought::At(offset.max(hole << bits)),
        })
    }
}
