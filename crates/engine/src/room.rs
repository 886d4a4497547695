//! Whether the clean segments hold what is to be written. Estimates from above: a checkpoint that runs out of segments
//! half-way ends writing to the volume.
//!
//! ```text
//! clean segments: [ floor: a step of the cleaner | what gives space back | free for all ]
//!                 0                            floor                 kept back
//! ```
//!
//! Whoever takes space leaves `kept back` clean, with what waits written. Whoever gives some back (deletes, cuts off,
//! removes snapshots) leaves the floor, with which the cleaner empties a segment whatever is in it: so each of them
//! can go on when the one before was written and cleaned after (spec 14.1).

use std::collections::BTreeSet;

use silt_format::{Ino, SegNr};

use crate::construct::{Construction, Kind};
use crate::files::Tree;
use crate::meta::MetaFile;
use crate::volume::Volume;
use crate::waiting::PATH;
use crate::{Error, Result};

/// Blocks that every checkpoint takes: super root, and the ways to the roots of the tables.
const FIXED: u64 = 24;
/// Blocks that a change of names or attributes takes at most.
const CHANGE: u64 = 24;
/// Segments between the floor and what is kept back, at least.
pub(crate) const BETWEEN: u64 = 3;

/// Segments that a recovery leaves as they are, besides those of what it recovers: where the log was, and was to go on.
const LEFT_BEHIND: u64 = 2;

/// Bytes in a summary for a file, and for a block of it at most (spec 3.4).
const FILE_RECORD: u64 = silt_format::summary::FINFO_SIZE as u64;
const BLOCK_RECORD: u64 = 16;

/// Segments that one cleaning frees at most, for the estimate of what they change.
const MOST_FREED: u64 = 64;

/// Blocks that may come back where nobody counts them: more than a segment has, and sums of it stay numbers.
pub(crate) const MUCH: u64 = 1 << 40;

/// What comes on top of what waits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extra {
    /// Blocks of data, one behind the other in a file.
    pub data: u64,
    /// Blocks that are moved.
    pub moves: u64,
    /// Blocks of the DAT that change with what is moved and given back.
    pub table: u64,
    /// Blocks of the checkpoint file.
    pub checkpoints: u64,
    /// Segments that become clean.
    pub frees: u64,
}

/// Blocks that end, as [`Volume::cut`] reckons, where about `most` go, or half as much again since that is all.
pub fn ends_of_part(most: u64) -> u64 {
    most.saturating_mul(3).saturating_add(2)
}

impl Volume {
    fn in_blocks(&self, units: u64) -> u64 {
        units / u64::from(self.store.geometry.block_size / 512)
    }

    /// Blocks that a checkpoint of all that waits takes, with this on top; from above.
    pub(crate) fn need(&self, extra: Extra) -> u64 {
        let g = &self.store.geometry;
        // More than there is does not fit, whatever damaged inodes say; sums stay small.
        let whole = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
        let data = self.dirty_blocks.saturating_add(extra.data.min(whole));
        let leaves = extra.data / u64::from(g.block_size / 32) + 2;
        let nodes = self.dirty.nodes_with(data, leaves).min(whole);
        let inodes = self.dirty.inode_blocks();
        let ifile = self.in_blocks(self.ifile.file.map.blocks).min(whole);
        // Nodes, bitmaps and descriptors of the inode file.
        let ifile = inodes + (4 * inodes).min(ifile / 16 + 6);
        let written = data + nodes + ifile;
        let (dat_changed, checkpoints) = self.changed_tables();
        // Each may end a life as well as begin one, and neighbours may be far apart in the DAT; but it has no more
        // blocks than it has, and new ones fill up.
        let changed =
            2 * (written + checkpoints) + self.dirty.ending().min(whole) + dat_changed + extra.table;
        let dat = self.in_blocks(self.dat.file.map.blocks).min(whole);
        let dat = changed.min(dat + written / self.dat.palloc.layout.entries_per_block() + 6);
        let blocks = written + dat + extra.moves + extra.checkpoints + checkpoints + FIXED;
        let segments = blocks / u64::from(g.blocks_per_segment) + 2 + extra.frees;
        blocks + segments.min(self.blocks_of_sufile())
    }

    /// Blocks of the DAT, and of the checkpoint file, that changed since the last checkpoint began: with data that was synced
    /// alone, with snapshots and checkpoints that were made, unmade and removed, and with cleanings that came to nothing.
    fn changed_tables(&self) -> (u64, u64) {
        if self.construction.as_ref().is_some_and(|k| k.kind != Kind::DataSync) {
            // They are part of that one.
            return (0, 0);
        }
        let of = |file: &MetaFile| (file.data.len() + file.map.nodes.len()) as u64;
        (of(&self.dat.file), of(&self.cpfile.file))
    }

    /// Blocks of summaries that so many blocks need; from above. Of small blocks the largest is the summary of those that are each
    /// of another file (spec 3.4).
    fn summaries_of(&self, blocks: u64) -> u64 {
        // What is left at the end of a block may be too little for a record.
        let in_one = u64::from(self.store.geometry.block_size).saturating_sub(FILE_RECORD).max(1);
        (blocks / 32).max(blocks.saturating_mul(FILE_RECORD + BLOCK_RECORD) / in_one)
    }

    /// Blocks that a segment certainly holds: besides them there are summaries, and ends too short for a log.
    fn blocks_in_one(&self) -> u64 {
        let size = u64::from(self.store.geometry.blocks_per_segment);
        size.saturating_sub(self.summaries_of(size) + 2).max(1)
    }

    fn blocks_in(&self, segments: u64) -> u64 {
        segments.saturating_mul(self.blocks_in_one())
    }

    /// Segments that certainly hold so many blocks.
    pub(crate) fn segments_for(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.blocks_in_one()) + 1
    }

    /// Clean segments that a checkpoint under way will leave.
    pub(crate) fn segments_left(&self) -> u64 {
        self.left_of(self.available_segments())
    }

    fn left_of(&self, now: u64) -> u64 {
        self.construction
            .as_ref()
            .map_or(now, |k| k.available.max(now).saturating_sub(self.segments_for(k.need)).min(now))
    }

    /// A checkpoint is complete: holds what was said of it against what it took.
    pub(crate) fn compare_estimate(&mut self, k: &Construction) {
        if k.kind == Kind::DataSync || self.moved {
            return;
        }
        let mut taken: BTreeSet<SegNr> = k.allocated.iter().chain(&k.composed_in).copied().collect();
        // The next one was taken before.
        for begun in k.begun.segments() {
            taken.remove(&begun);
        }
        let (taken, told) = (taken.len() as u64, self.segments_for(k.need));
        let summaries = self.summaries_of(k.need) + 2 * (k.logs + 1);
        if taken > told || k.blocks > k.need.saturating_add(summaries) {
            self.underestimated = Some(Underestimate { need: k.need, blocks: k.blocks, told, taken });
        }
    }

    /// The last checkpoint that took more than was said of it, which must never be. For tests.
    pub fn underestimated(&self) -> Option<Underestimate> {
        self.underestimated
    }

    /// Whether a checkpoint of all that waits certainly fits.
    pub(crate) fn check_room_for_checkpoint(&self) -> Result<()> {
        let needed = self.segments_for(self.need(Extra::default()));
        if self.available_segments() < needed { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// The same, where the storage below is asked first for what it lacks.
    pub(crate) fn seek_room_for_checkpoint(&mut self) -> Result<()> {
        if self.check_room_for_checkpoint().is_err() && self.lacks_backing() {
            // If it has none, that is told in a moment.
            let _ = self.secure_backing();
        }
        self.check_room_for_checkpoint()
    }

    /// Whether what was synced alone since the last checkpoint, and so many blocks more, fits once more into what is clean
    /// then: a recovery writes all of it before it gives anything back.
    pub(crate) fn check_room_for_recovery(&self, more: u64) -> Result<()> {
        // What is to be synced now waits still.
        let again = self.segments_for(self.need(Extra { data: self.synced_alone, ..Extra::default() }));
        let needed = self.segments_for(more).saturating_add(again).saturating_add(LEFT_BEHIND);
        if self.available_segments().saturating_sub(self.given_back) < needed {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Whether a checkpoint of all that waits fits, and behind it one of so many synced blocks more, wherever they belong.
    pub(crate) fn has_room_on_the_way(&self, left: u64) -> bool {
        // Each with the nodes above it, and all of the DAT.
        let data = left.min(MUCH).saturating_mul(1 + PATH);
        let rest = self.need(Extra { data, table: MUCH, ..Extra::default() });
        let now = self.segments_for(self.need(Extra::default()));
        self.available_segments() >= now.saturating_add(self.segments_for(rest))
    }

    /// Blocks of maps and tables that changed since the last checkpoint began, and inodes.
    pub(crate) fn changed_metadata(&self) -> u64 {
        let (dat, checkpoints) = self.changed_tables();
        self.dirty.nodes_with(0, 0).saturating_add(self.dirty.len() as u64 + dat + checkpoints)
    }

    /// Blocks of the segment usage file.
    pub(crate) fn blocks_of_sufile(&self) -> u64 {
        self.in_blocks(self.sufile.file.map.blocks)
    }

    /// Segments with which the cleaner can empty one, whatever is in it.
    pub(crate) fn floor(&self) -> u64 {
        let size = u64::from(self.store.geometry.blocks_per_segment);
        let dat = self.in_blocks(self.dat.file.map.blocks);
        self.segments_for(size + size.min(dat) + FIXED + CHANGE)
    }

    /// Segments that who takes space leaves clean: whatever is deleted then, a checkpoint of that fits, if all of the DAT
    /// changes with it.
    pub fn kept_back(&self) -> u64 {
        // Those for which there is no space below are clean, too, and users have nothing of them.
        let reserved = self.store.geometry.reserved_segments().saturating_sub(self.unbacked_segments());
        reserved.max(self.kept_at_least())
    }

    /// The same where all that is clean counts, whatever the storage below has space for.
    pub fn kept_back_of_clean(&self) -> u64 {
        self.store.geometry.reserved_segments().max(self.kept_at_least())
    }

    /// The same of a volume of any size.
    pub(crate) fn kept_at_least(&self) -> u64 {
        let g = &self.store.geometry;
        let whole = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
        let dat = self.in_blocks(self.dat.file.map.blocks).min(whole);
        let between = BETWEEN.max(self.segments_for(dat + FIXED + CHANGE));
        self.floor() + between
    }

    /// Whether `blocks` more waiting blocks can be promised a place.
    pub fn check_space(&self, blocks: u64) -> Result<()> {
        let refused = self.full.is_some_and(|(given, least)| given == self.given_up.times && blocks >= least);
        let enough = self.segments_left() >= self.segments_with_space(blocks);
        if refused || !enough { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Whether it is only the storage below that has no space for so many blocks more, and may have it when it is asked.
    pub fn may_be_backed(&self, blocks: u64) -> bool {
        let needed = self.segments_for(self.need(Extra { data: blocks, ..Extra::default() }));
        self.lacks_backing() && self.left_of(self.clean_and_free()) >= self.kept_back_of_clean() + needed
    }

    /// How many segments must be clean for [`Volume::check_space`] of so many blocks, with what waits now.
    pub fn segments_with_space(&self, blocks: u64) -> u64 {
        let need = self.need(Extra { data: blocks, ..Extra::default() });
        self.kept_back().saturating_add(self.segments_for(need))
    }

    /// Segments that a checkpoint of what waits takes with one change more, which ends the life of so many blocks.
    fn segments_for_a_change(&self, ends: u64) -> u64 {
        self.segments_for(self.need(Extra { data: CHANGE, table: ends.min(MUCH), ..Extra::default() }))
    }

    /// Whether even a change that takes no space has to wait until what waits is written, and more is clean.
    pub fn is_tight(&self) -> bool {
        self.segments_left() < self.floor() + self.segments_for_a_change(0)
    }

    /// Whether half of what is kept for those who give space back is used up, or so much that not everything may be
    /// deleted at once: the cleaner should go first while it has the room to do much.
    pub fn is_short(&self) -> bool {
        let floor = self.floor();
        let half = floor + self.kept_back().saturating_sub(floor) / 2;
        self.segments_left() < (half + self.segments_for_a_change(0)).max(self.segments_for_a_change(MUCH))
    }

    /// Whether names or attributes may change, which ends the life of so many blocks. Who gives space back may use the
    /// floor as well, as long as the next checkpoint certainly fits: one that does not would end all writing.
    /// [`Error::NoSpace`] if not.
    pub fn check_change(&self, gives_back: bool, ends: u64) -> Result<()> {
        // What gives back less than it takes is no reason to use up what the cleaner needs.
        let keep = if gives_back && ends > 0 && !self.leaves_floor { 0 } else { self.floor() };
        self.check_checkpoint(keep, ends)
    }

    /// Whether the next checkpoint fits, with so many lives of blocks ended by it, and `keep` segments after that.
    pub(crate) fn check_checkpoint(&self, keep: u64, ends: u64) -> Result<()> {
        if self.segments_left() < keep + self.segments_for_a_change(ends) {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Has who gives space back leave the floor, too, as is right where segments are emptied only when somebody asks for it:
    /// deletions that free less than their checkpoints take would leave nothing to copy to.
    pub fn leave_floor(&mut self, leave: bool) {
        self.leaves_floor = leave;
    }

    /// Does `f` with who gives space back leaving the floor, too: what may free nothing is not to use up what the cleaner needs
    /// before that has tried.
    pub fn leaving_floor<R>(&mut self, f: impl FnOnce(&mut Volume) -> R) -> R {
        let before = std::mem::replace(&mut self.leaves_floor, true);
        let done = f(self);
        self.leaves_floor = before;
        done
    }

    /// Whether there is room to end the lives of `first` blocks with one checkpoint and of `rest` with the one after it, if
    /// nothing is clean by then that is not now.
    pub fn has_room_for_both(&self, first: u64, rest: u64) -> bool {
        let both = self.segments_for_a_change(first).saturating_add(self.segments_for_a_change(rest));
        self.segments_left() >= both
    }

    /// Whether an inode without links may end with the next checkpoint, besides what waits; with `keeps_floor` so that the
    /// cleaner has its room after that. Whoever lets go of one last is not asked, so it has to be put off until there is room.
    /// Of a large one no more than `most` blocks or so end at once ([`Volume::part_to_cut`]).
    pub fn has_room_to_end(&mut self, ino: Ino, most: u64, keeps_floor: bool) -> bool {
        let ends = self.mapped_blocks(ino).min(ends_of_part(most)).min(MUCH);
        let extra = Extra { data: 2, table: ends, ..Extra::default() };
        let keep = if keeps_floor || self.leaves_floor { self.floor() } else { 0 };
        self.segments_left() >= keep + self.segments_for(self.need(extra))
    }

    /// Blocks that end with the next checkpoint as it is; from above.
    pub fn ending_blocks(&self) -> u64 {
        self.dirty.ending()
    }

    /// Blocks that a live file's map holds; 0 where it cannot be read.
    pub fn mapped_blocks(&mut self, ino: Ino) -> u64 {
        self.inode(Tree::Live, ino).map_or(0, |i| i.map.blocks)
            / u64::from(self.store.geometry.block_size / 512)
    }

    /// Blocks that hold a live file's data at most, those that wait included, however its map is; 0 where it cannot be read.
    pub fn data_blocks_at_most(&mut self, ino: Ino) -> u64 {
        let mapped = self.mapped_blocks(ino);
        self.inode(Tree::Live, ino).map_or(0, |i| {
            let frozen = i.frozen.as_ref().map_or(0, |f| f.over.blocks.len());
            mapped.saturating_add((i.current.blocks.len() + frozen) as u64)
        })
    }

    /// Whether so much waits that writing it makes the estimate of what it takes much better.
    pub fn waits_for_much(&self) -> bool {
        let half = u64::from(self.store.geometry.blocks_per_segment) / 2;
        self.construction.is_some() || self.need(Extra::default()) >= FIXED + half
    }

    /// How many blocks a cleaning may copy, and how many segments it may free, so that it certainly fits.
    pub fn room_for_cleaning(&self) -> (u64, u64) {
        let size = u64::from(self.store.geometry.blocks_per_segment);
        let room = self.blocks_in(self.available_segments().saturating_sub(1));
        let of = |table, frees| {
            room.saturating_sub(self.need(Extra { table, checkpoints: frees, frees, ..Extra::default() }))
        };
        // Either all of the DAT fits as well, or what the blocks of so many segments may change of it.
        let whole = of(MUCH, MOST_FREED);
        let frees = room / 2 / size.max(1);
        let part = of(frees * size, frees);
        if whole >= part { (whole, MOST_FREED) } else { (part, frees) }
    }

    /// From now on there is no space for so many blocks ([`Volume::check_space`]) until something is given up, even if
    /// a few segments become clean meanwhile: who was refused is not to see others succeed.
    pub fn refuse_from(&mut self, blocks: u64) {
        let least = match self.full {
            Some((given, least)) if given == self.given_up.times => least.min(blocks),
            _ => blocks,
        };
        self.full = Some((self.given_up.times, least));
    }

    /// Takes [`Volume::refuse_from`] back.
    pub fn refuse_nothing(&mut self) {
        self.full = None;
    }

    /// Says that something was given up, by users or by what they looked at.
    pub(crate) fn gave_up(&mut self, blocks: u64) {
        self.given_up.times += 1;
        self.given_up.blocks = self.given_up.blocks.saturating_add(blocks);
    }
}

/// A checkpoint that took more than was said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Underestimate {
    /// Blocks: what was said, summaries aside, and what was written, with those.
    pub need: u64,
    pub blocks: u64,
    /// Segments.
    pub told: u64,
    pub taken: u64,
}

/// What was taken away so far, for whoever wants to know whether there may be more to reclaim than before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenUp {
    pub times: u64,
    /// From above.
    pub blocks: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_format::Cno;

    use super::*;
    use crate::fresh::{file, fresh, fresh_with, write_out};
    use crate::mkfs::Parameters;

    fn write(v: &mut Volume, ino: Ino, keys: impl Iterator<Item = u64>) {
        keys.for_each(|key| v.write_block(ino, key, vec![7; 4096].into()).unwrap());
    }

    /// Where each block is of another file, the summaries are largest; and the smaller blocks are, the more of them it takes.
    #[test]
    fn summaries_of_many_small_files_are_counted() {
        for (files, size) in [(60_000, 1), (20_000, 9)] {
            let parameters =
                Parameters { block_size: 1024, blocks_per_segment: 8192, ..Parameters::default() };
            let (_, mut v) = fresh_with(1 << 30, parameters);
            let files: Vec<_> = (0..files).map(|_| file(&mut v)).collect();
            for time in 0..3 {
                for (nr, ino) in files.iter().enumerate() {
                    let keys = if time == 0 { 0..size } else { nr as u64 % size..nr as u64 % size + 1 };
                    keys.for_each(|key| v.write_block(*ino, key, vec![7; 1024].into()).unwrap());
                }
                v.checkpoint(3000 + time).unwrap();
                assert_eq!(v.underestimated(), None, "files of {size} blocks, for the {time}th time");
            }
        }
    }

    /// The first blocks of a file hang from its inode only as long as there are no others.
    #[test]
    fn nodes_are_counted_wherever_it_is_written() {
        let (_, mut v) = fresh(256 << 20, 64);
        let files: Vec<Ino> = (0..100).map(|_| file(&mut v)).collect();
        files.iter().for_each(|ino| write(&mut v, *ino, (0..300).step_by(2)));
        v.checkpoint(3000).unwrap();
        assert_eq!(v.underestimated(), None);
        files.iter().for_each(|ino| write(&mut v, *ino, 0..1));
        let nodes = v.dirty.nodes_with(1000, 0);
        assert!((100..=300).contains(&nodes), "{nodes}");
        v.checkpoint(3001).unwrap();
        // None of those that have no tree.
        let small: Vec<Ino> = (0..100).map(|_| file(&mut v)).collect();
        small.iter().for_each(|ino| write(&mut v, *ino, 0..6));
        assert_eq!(v.dirty.nodes_with(1000, 0), 0);
        small.iter().for_each(|ino| write(&mut v, *ino, 6..7));
        assert_eq!(v.dirty.nodes_with(1000, 0), 100);
        v.checkpoint(3002).unwrap();
        assert_eq!(v.underestimated(), None);
    }

    /// Who only cuts writes nodes, too.
    #[test]
    fn cuts_inside_of_files_are_counted() {
        let (_, mut v) = fresh(256 << 20, 64);
        let files: Vec<Ino> = (0..1500).map(|_| file(&mut v)).collect();
        files.iter().for_each(|ino| write(&mut v, *ino, 0..9));
        v.checkpoint(3000).unwrap();
        assert_eq!(v.underestimated(), None);
        for ino in &files {
            v.cut(*ino, 8..u64::MAX).unwrap();
        }
        v.checkpoint(3001).unwrap();
        assert_eq!(v.underestimated(), None);
        // Holes in one large file, far from each other.
        write(&mut v, files[0], 8..20_000);
        v.checkpoint(3002).unwrap();
        for hole in (100..20_000).step_by(400) {
            v.cut(files[0], hole..hole + 2).unwrap();
        }
        v.checkpoint(3003).unwrap();
        assert_eq!(v.underestimated(), None);
        // However often one is cut, it has one end.
        let before = v.need(Extra::default());
        for end in (10_000..15_000).rev() {
            v.cut(files[0], end..u64::MAX).unwrap();
        }
        let nodes = v.dirty.nodes_with(0, 0);
        assert!(nodes <= 3, "{nodes} nodes, {before} blocks before");
    }

    /// What data-sync logs leave for the next checkpoint is more than their data.
    #[test]
    fn what_was_synced_alone_is_counted() {
        let (device, mut v) = fresh(256 << 20, 64);
        let ino = file(&mut v);
        write(&mut v, ino, 0..20_000);
        v.checkpoint(3000).unwrap();
        for round in 0..3 {
            write(&mut v, ino, (round..20_000).step_by(300));
            assert!(v.begin_data_sync(&[ino], 3001).unwrap());
            write_out(&*device, &mut v);
        }
        v.checkpoint(3002).unwrap();
        assert_eq!(v.underestimated(), None);
    }

    /// So are snapshots that are made and unmade.
    #[test]
    fn changes_of_many_checkpoints_are_counted() {
        let (_, mut v) = fresh(256 << 20, 64);
        let ino = file(&mut v);
        for n in 0..1500 {
            write(&mut v, ino, n % 3..n % 3 + 1);
            v.checkpoint(3000 + n).unwrap();
        }
        let last = v.last_log().cno;
        for cno in (2..last).step_by(10) {
            v.make_snapshot(Cno(cno)).unwrap();
        }
        v.checkpoint(9000).unwrap();
        assert_eq!(v.underestimated(), None);
    }

    /// A damaged inode may say that it has any number of blocks, and so may the tables.
    #[test]
    fn counts_from_damaged_inodes_do_not_overflow() {
        let (_, mut v) = fresh(16 << 20, 64);
        let before = v.need(Extra::default());
        v.dirty.ends(u64::MAX);
        v.dirty.ends(1);
        for map in [&mut v.dat.file.map, &mut v.ifile.file.map, &mut v.sufile.file.map] {
            map.blocks = u64::MAX;
        }
        let after = v.need(Extra { table: MUCH, data: u64::MAX, ..Extra::default() });
        assert!(before < after && after < 1 << 42, "{before}, {after}");
        assert!(matches!(v.check_space(1), Err(Error::NoSpace)));
    }

    /// What goes by the newest checkpoint finds nothing of what was taken away since.
    #[test]
    fn what_was_given_up_counts_on_disk_from_the_next_checkpoint_on() {
        let (_, mut v) = fresh(64 << 20, 64);
        let files = [file(&mut v), file(&mut v)];
        for ino in files {
            v.write_block(ino, 0, vec![7; 4096].into()).unwrap();
        }
        v.checkpoint(3000).unwrap();
        assert_eq!((v.data_written(), v.given_up()), (2, v.given_up_on_disk()));
        v.delete_inode(files[0]).unwrap();
        let (before, first) = (v.given_up_on_disk(), v.given_up());
        assert!(first.times > before.times);
        assert!(v.begin_checkpoint(3001).unwrap());
        assert_eq!(v.given_up_on_disk(), before);
        // What goes while it is made it does not know.
        v.delete_inode(files[1]).unwrap();
        v.finish_construction(3001).unwrap();
        assert_eq!(v.given_up_on_disk(), first);
        v.checkpoint(3002).unwrap();
        assert!(v.given_up_on_disk() == v.given_up() && v.given_up().times > first.times);
        assert_eq!(v.data_written(), 2);
    }
}
