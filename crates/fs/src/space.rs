//! How much there is, how much is left, and whether a request may take some of it.

use std::ops::Range;

use silt_engine::Tree;
use silt_format::Ino;
use silt_format::dir::NAME_MAX;

use crate::Fs;
use crate::error::{Of, Result};
use crate::types::StatFs;

/// Blocks on top of those of a file that a write may take: a last block made clean.
const SLACK: u64 = 2;

/// What the cleaner can make free, as it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimable {
    /// Blocks.
    pub blocks: u64,
    /// Segments that were clean then: those that became clean since are no longer among the blocks.
    pub clean_segments: u64,
    /// [`silt_engine::Volume::rewritten_blocks`] then: what was written since may have left as much behind.
    pub rewritten: u64,
}

/// Of what can be made free, one part in so many is not promised: copies take summaries.
const COPIES: u64 = 32;

impl Fs {
    /// Has what the cleaner can make free counted as free by [`Fs::statfs`], until the next call; none: nothing is.
    pub fn set_reclaimable(&mut self, reclaimable: Option<Reclaimable>) {
        self.reclaimable = reclaimable;
    }

    /// Has `f` take what it takes, which is a few blocks, of what is kept back for those who give space back: it is part of
    /// that.
    pub fn of_the_reserve<T>(&mut self, f: impl FnOnce(&mut Fs) -> T) -> T {
        let before = std::mem::replace(&mut self.of_the_reserve, true);
        let result = f(self);
        self.of_the_reserve = before;
        result
    }

    /// Makes sure that `blocks` more can be written, those promised to others aside.
    pub(crate) fn need(&self, blocks: u64) -> Result<()> {
        if self.of_the_reserve {
            return self.volume.check_change(false, 0).of(Ino::ROOT);
        }
        self.volume.check_space(blocks.saturating_add(self.kept(0))).of(Ino::ROOT)
    }

    /// Makes sure that names or attributes can change: the log takes something for that, too. `cut`: an inode that gives
    /// blocks back with it.
    pub(crate) fn need_for_change(&mut self, cut: Option<Ino>) -> Result<()> {
        // Of more a part goes at a time.
        let most = silt_engine::ends_of_part(self.ends);
        let ends = cut.map_or(0, |ino| self.volume.mapped_blocks(ino).min(most));
        self.volume.check_change(cut.is_some(), ends).of(Ino::ROOT)
    }

    /// Makes sure that the blocks `keys` of a file can be written: those that wait for a log
    /// already take nothing more, those promised to the file may use the promise.
    pub(crate) fn need_for(&mut self, ino: Ino, keys: Range<u64>) -> Result<()> {
        if self.of_the_reserve {
            return self.need(0);
        }
        let all = keys.end - keys.start;
        let waiting = self.waiting_in(ino, &keys)?;
        let new = all.saturating_sub(waiting);
        let covered = self.reserved.covered(ino.0, &keys);
        let kept = if covered >= new { 0 } else { self.kept(covered) };
        self.volume.check_space((new + SLACK).saturating_add(kept)).of(ino)
    }

    /// Blocks kept for what is promised, `covered` of it aside. Logs take more than data, and
    /// changes that are never refused take some, too: two segments on top are for them.
    pub(crate) fn kept(&self, covered: u64) -> u64 {
        match self.reserved.total().saturating_sub(covered) {
            0 => 0,
            n => n.saturating_add(2 * u64::from(self.volume.geometry().blocks_per_segment)),
        }
    }

    /// Blocks that are kept for what `fallocate` promised: who was promised nothing leaves them.
    pub fn kept_for_promises(&self) -> u64 {
        self.kept(0)
    }

    /// Blocks of clean segments that are kept for promises: logs take more than data.
    fn kept_of_clean(&self) -> u64 {
        match self.kept(0) {
            0 => 0,
            kept => {
                let of = |blocks| self.volume.segments_with_space(blocks);
                let segments = of(kept).saturating_sub(of(0));
                segments.saturating_mul(u64::from(self.volume.geometry().blocks_per_segment)).max(kept)
            }
        }
    }

    /// Whether all of a range of a file, in bytes, is promised to it.
    pub fn is_promised(&self, ino: Ino, offset: u64, len: u64) -> bool {
        if self.reserved.total() == 0 || len == 0 {
            return false;
        }
        let bits = self.volume.geometry().block_bits;
        let last = offset.saturating_add(len - 1) >> bits;
        let keys = offset >> bits..last.saturating_add(1);
        self.reserved.covered(ino.0, &keys) == keys.end - keys.start
    }

    /// How many of these blocks wait for a log already.
    fn waiting_in(&mut self, ino: Ino, keys: &Range<u64>) -> Result<u64> {
        let i = self.volume.inode(Tree::Live, ino).of(ino)?;
        Ok(i.current.blocks.range(keys.clone()).count() as u64)
    }

    /// Whether there could be space for so many blocks ([`silt_engine::Volume::check_space`]) if the cleaner made free
    /// what it can, by what [`Fs::statfs`] says of it and what a log of so much takes besides. An estimate from above: what
    /// was written since that was counted may have left as much behind, and may make a segment whole.
    pub fn could_have(&mut self, blocks: u64) -> Result<bool> {
        let s = self.volume.stat().of(Ino::ROOT)?;
        let per_segment = u64::from(s.blocks_per_segment);
        let since = self.reclaimable.filter(|_| !self.volume.is_refusing()).map_or(0, |r| {
            let left_behind = self.volume.rewritten_blocks().saturating_sub(r.rewritten);
            left_behind.saturating_add(per_segment)
        });
        let back = self.back(s.clean_segments);
        let gained = (back - back / COPIES).saturating_add(since) / per_segment;
        let reach = s.clean_segments.saturating_add(gained);
        let available = self.statfs(Tree::Live)?.blocks_available.saturating_add(self.kept_of_clean());
        let available = available.saturating_add(since);
        Ok(blocks <= available && self.volume.segments_with_space(blocks) <= reach)
    }

    /// Blocks that the cleaner can make free, when so many segments are clean.
    fn back(&self, clean_segments: u64) -> u64 {
        let per_segment = u64::from(self.volume.geometry().blocks_per_segment);
        self.reclaimable.filter(|_| !self.volume.is_refusing()).map_or(0, |r| {
            let gained = clean_segments.saturating_sub(r.clean_segments).saturating_mul(per_segment);
            r.blocks.saturating_sub(gained)
        })
    }

    /// Sizes and counts. What is used and what is free adds up to the whole. Free are clean segments, and what the
    /// cleaner can make free ([`Fs::set_reclaimable`]) as long as nobody was refused space. Clean segments are never
    /// more than the storage below the volume can still grow, and the whole shrinks with it.
    pub fn statfs(&mut self, tree: Tree) -> Result<StatFs> {
        let s = self.volume.stat().of(Ino::ROOT)?;
        let per_segment = u64::from(s.blocks_per_segment);
        let whole = s.segments.saturating_mul(per_segment).saturating_sub(s.first_data_block);
        let clean = s.clean_segments.saturating_mul(per_segment).saturating_sub(s.dirty_blocks);
        let back = self.back(s.clean_segments).min(whole.saturating_sub(clean));
        let used = whole.saturating_sub(clean).saturating_sub(back);
        let block = u64::from(s.block_size);
        let (below, kept_below) =
            self.volume.could_be_backed().map_or((u64::MAX, 0), |(b, kept)| (b / block, kept / block));
        // What is used already takes no more of the storage below.
        let free = clean.min(below).saturating_add(back);
        // One segment more than is kept back is where ENOSPC begins.
        let kept_back = self.volume.kept_back_of_clean() + 1;
        let kept = kept_back.saturating_mul(per_segment).saturating_add(self.kept_of_clean());
        // The last blocks are for what a log takes besides data. While changes wait that is an estimate from above.
        let refused =
            !self.volume.has_changes() && self.volume.check_space(1 + SLACK + self.kept(0)).is_err();
        let promised = clean.saturating_add(back - back / COPIES);
        let below = below.saturating_sub(kept_below).saturating_add(back);
        let available =
            if refused && back == 0 { 0 } else { promised.saturating_sub(kept).min(below).min(free) };
        let inodes = match tree {
            Tree::Live => s.inodes,
            Tree::Past(c) => self.volume.view(silt_format::Cno(c)).map_or(s.inodes, |v| v.inodes_count),
        };
        let files = s.inode_limit.max(inodes.saturating_add(1));
        Ok(StatFs {
            block_size: s.block_size,
            blocks: used.saturating_add(free),
            blocks_free: free,
            blocks_available: available,
            files,
            files_free: files - inodes,
            name_max: NAME_MAX as u32,
        })
    }
}
