//! Mending the tree of a past checkpoint.
//!
//! A past tree is mended as the current one is: it takes its place for a while, what is written of it gets new
//! numbers, and then its checkpoint's entry is pointed at the new inode file. Other checkpoints keep the blocks they
//! shared with it.
//!
//! ```text
//! checkpoint c: entry -> ifile -> files          (blocks with lifetimes around c)
//!        after: entry -> new ifile blocks [c, c + 1) -> new blocks [c, c + 1), old ones that are sound
//! ```
//! New blocks live in this checkpoint alone, and their records say that they began with it (format 3.4, 7.1): a
//! cleaner keeps them as long as it keeps the checkpoint. Nothing ends: what was replaced is another checkpoint's, or,
//! where no other needs it, dead (format 7.2). Checkpoints between which nothing changed share their ifile and are
//! mended as one.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use rangemap::RangeSet;
use silt_format::checkpoint::CpEntry;
use silt_format::dat::LIVE;
use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Cno, Ino, SegNr, VBlockNr};

use super::bits::Bits;
use super::mapped::Whole;
use super::moves::Moved;
use super::{Mender, Wounds};
use crate::construct::Construction;
use crate::dat::Dat;
use crate::ifile::IFile;
use crate::inode::Inode;
use crate::log::sorted_nodes;
use crate::meta::Physical;
use crate::store::Key;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// The current tree while a past one is in its place.
pub(crate) struct Aside {
    pub ifile: IFile,
    inodes: HashMap<u64, Box<Inode>>,
    new_numbers: RangeSet<u64>,
    next_ino: u64,
    inodes_count: u64,
    tree_blocks: u64,
    /// As it was: for giving up.
    dat: Dat,
    /// The checkpoints that share the past tree, ascending.
    alike: Vec<u64>,
    /// What the past tree mapped.
    before: Bits,
    /// Entries of other checkpoints, in the order in which versions of a file are looked for.
    versions: Vec<CpEntry>,
}

/// Segments that are emptied at once: what they hold is in memory until it is written.
pub(super) const SEGMENTS: usize = 16;

/// Checkpoints that are looked at for another version of a file of a past tree.
const VERSIONS: usize = 64;

/// What was done to past trees.
#[derive(Default)]
pub(crate) struct Written {
    /// Blocks that a tree had and has no more.
    replaced: Bits,
    /// New blocks of files, with the checkpoint they begin with.
    made: HashMap<(Ino, u64), Vec<(u64, u64)>>,
}

impl Mender {
    /// Puts the tree of checkpoint `c` in the place of the current one; what is done to files from now on is done to
    /// it, until [`Mender::leave_past`] or [`Mender::give_up_past`]. Mends of its inode file that `wounds` name are
    /// made. Checkpoints of `kept` stay as they are, even if they share the tree. Whether there is such a tree: not
    /// where it is the current one's, or the checkpoint is gone.
    pub fn enter_past(
        &mut self,
        c: Cno,
        rebuild: bool,
        wounds: &Wounds,
        kept: &BTreeSet<u64>,
        now: u64,
    ) -> Result<bool> {
        if !self.volume.dirty.is_empty() {
            // Synced data that was taken in when the volume was opened.
            self.volume.checkpoint_with(std::mem::take(&mut self.moved), now)?;
        }
        if !self.volume.enter_past(c, kept, wounds.ifile_root)? {
            return Ok(false);
        }
        let ready = (|| {
            if wounds.ifile_root {
                let end_of_log = self.end_of_log;
                let v = &mut self.volume;
                let entry = v.cpfile.get(&v.store, &v.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
                let (ifile, unsure) = v.whole_ifile_from_logs(end_of_log, &entry)?;
                v.ifile = ifile;
                self.said.push("its inode file is put together from the logs".into());
                self.said.extend(unsure.words());
            } else if rebuild {
                let end_of_log = self.end_of_log;
                (self.volume.ifile, _) = self.volume.ifile_from_logs(end_of_log)?;
            }
            self.mend_ifile(wounds)
        })();
        if ready.is_err() {
            self.give_up_past();
        }
        ready.map(|()| true)
    }

    /// Writes the past tree and puts the current one back. Nothing points at what is written before
    /// [`Mender::finish`]. Errors end the work with this volume.
    pub fn leave_past(&mut self, now: u64) -> Result<()> {
        self.volume.write_past(&mut self.past, now)
    }

    /// When the past trees that are mended are written: what nothing has any more is dead, and versions of one block
    /// do not begin with the same checkpoint.
    pub fn settle_past(&mut self, now: u64) -> Result<()> {
        let past = std::mem::take(&mut self.past);
        if past.made.is_empty() && past.replaced.is_empty() {
            return Ok(());
        }
        let later = self.volume.settle_past(&past, self.end_of_log)?;
        // A cleaner goes by records: where one says the old beginning, nothing may be left that it takes.
        let g = self.volume.store.geometry;
        let mut segments: BTreeMap<u64, Vec<Moved>> = BTreeMap::new();
        for m in later {
            let at = self.volume.dat.entry(&self.volume.store, VBlockNr(m.v))?.blocknr.get();
            segments.entry(g.segment_of(BlockNr(at)).0).or_default().push(m);
        }
        let mut all = segments.into_iter().peekable();
        while all.peek().is_some() {
            let (some, moved): (BTreeSet<u64>, Vec<Vec<Moved>>) = all.by_ref().take(SEGMENTS).unzip();
            self.moved.extend(moved.into_iter().flatten());
            self.empty_segments(&some, (false, false))?;
            self.volume.checkpoint_with(std::mem::take(&mut self.moved), now)?;
        }
        Ok(())
    }

    /// Puts the current tree back; nothing of the past one is changed.
    pub fn give_up_past(&mut self) {
        if let Some(aside) = self.volume.aside.take() {
            self.volume.dat = aside.dat.clone();
            self.volume.put_back(*aside);
        }
    }
}

impl Volume {
    /// With `lost` the entry does not say where the tree is: it is empty until its blocks are put together.
    fn enter_past(&mut self, c: Cno, kept: &BTreeSet<u64>, lost: bool) -> Result<bool> {
        let all = self.cpfile.every(&self.store, &self.dat);
        let Some(entry) = all.iter().find(|e| e.cno.get() == c.0) else { return Ok(false) };
        let map = entry.ifile_inode.bmap;
        let mut alike: Vec<u64> =
            all.iter().filter(|e| e.ifile_inode.bmap == map).map(|e| e.cno.get()).collect();
        // A root that is lost is nobody else's.
        alike.retain(|other| !kept.contains(other) && (!lost || *other == c.0));
        alike.sort_unstable();
        let (Some(first), Some(last)) = (alike.first().copied(), alike.last().copied()) else {
            return Ok(false);
        };
        // One that shares the tree says where it is.
        let sound = |e: &&CpEntry| IFile::new(&self.store.geometry, e.ifile_inode).is_ok();
        if lost
            && map != [0; 56]
            && !sound(&entry)
            && let Some(other) = all.iter().filter(|e| e.ifile_inode.bmap == map).find(sound)
        {
            let inode = other.ifile_inode;
            self.cpfile.change(&self.store, &self.dat, c, |e| e.ifile_inode = inode)?;
            self.meta_dirty = true;
            return Ok(false);
        }
        if (self.ifile.file.map.root == map && !lost) || c.0 >= self.cno.0 {
            return Ok(false);
        }
        let g = &self.store.geometry;
        let ifile = if lost { IFile::none(g) } else { IFile::new(g, entry.ifile_inode)? };
        let (inodes, blocks) = (entry.inodes_count.get(), entry.blocks_count.get());
        let mut before = Whole::default();
        self.see_tree(&ifile, &mut before);
        let mut versions: Vec<CpEntry> =
            all.iter().filter(|e| e.ifile_inode.bmap != map && e.cno.get() < self.cno.0).copied().collect();
        versions.sort_by_key(|e| (e.cno.get() < first, e.cno.get().abs_diff(first)));
        let older = versions.iter().position(|e| e.cno.get() < first).unwrap_or(versions.len());
        // As many of both sides.
        let surplus = older.saturating_sub(VERSIONS / 2);
        versions.drain(older - surplus..older);
        versions.truncate(VERSIONS);
        let dat = self.dat.clone();
        self.dat.past = Some((Cno(first), Cno(last + 1)));
        self.aside = Some(Box::new(Aside {
            ifile: std::mem::replace(&mut self.ifile, ifile),
            inodes: std::mem::take(&mut self.inodes),
            new_numbers: std::mem::take(&mut self.new_numbers),
            next_ino: std::mem::replace(&mut self.next_ino, self.store.geometry.first_ino),
            inodes_count: std::mem::replace(&mut self.inodes_count, inodes),
            tree_blocks: std::mem::replace(&mut self.tree_blocks, blocks),
            dat,
            alike,
            before: before.blocks,
            versions,
        }));
        Ok(true)
    }

    fn put_back(&mut self, aside: Aside) {
        self.dat.past = None;
        self.ifile = aside.ifile;
        self.inodes = aside.inodes;
        self.new_numbers = aside.new_numbers;
        self.next_ino = aside.next_ino;
        self.inodes_count = aside.inodes_count;
        self.tree_blocks = aside.tree_blocks;
        self.dirty.take();
        (self.dirty_blocks, self.frozen_blocks) = (0, 0);
    }

    /// Makes a checkpoint of the current tree with the past one's new blocks in front.
    fn write_past(&mut self, written: &mut Written, now: u64) -> Result<()> {
        let gone = || Error::Invalid("no past tree is being mended".into());
        self.meta_dirty = true;
        if self.aside.is_none() || !self.begin_checkpoint(now)? {
            return Err(gone());
        }
        let Some(mut k) = self.construction.take() else { return Err(Error::Constructing) };
        while let Some(nr) = k.files.front().copied() {
            self.advance_file(&mut k, nr, usize::MAX)?;
        }
        // Those that wait for each other get their places here, too, with the lifetimes of the past.
        for node in std::mem::take(&mut k.nodes) {
            self.add(&mut k, node)?;
        }
        self.write_past_ifile(&mut k)?;
        let mut aside = self.aside.take().ok_or_else(gone)?;
        let ifile = self.ifile.file.inode();
        let past = IFile::new(&self.store.geometry, ifile)?;
        // What was counted before may have been damage.
        let counted = (self.inodes_count, self.tree_blocks);
        let (inodes, blocks) = self.count_tree_of(&past).unwrap_or(counted);
        for c in &aside.alike {
            self.cpfile.change(&self.store, &self.dat, Cno(*c), |e| {
                (e.inodes_count, e.blocks_count) = (inodes.into(), blocks.into());
                e.ifile_inode = ifile;
            })?;
        }
        let (before, alike) = (std::mem::take(&mut aside.before), std::mem::take(&mut aside.alike));
        let mut after = Whole::default();
        self.see_tree(&past, &mut after);
        self.put_back(*aside);
        k.all.clear();
        k.inodes_count = self.inodes_count;
        k.tree_changed = false;
        if after.broken == 0 {
            before.iter().filter(|v| !after.blocks.contains(*v)).for_each(|v| {
                written.replaced.insert(v);
            });
        }
        for item in &k.items {
            if let (BlockInfo::Data { vblock, offset }, Some(from)) = (item.info, alike.first()) {
                written.made.entry((item.ino, offset)).or_default().push((*from, vblock.0));
            }
        }
        self.construction = Some(k);
        self.finish_construction(now)
    }

    /// The changed blocks of the past tree's inode file get numbers and places.
    fn write_past_ifile(&mut self, k: &mut Construction) -> Result<()> {
        let mut fresh = HashMap::new();
        let delta = {
            let mut change = Change::new(&mut self.store, &mut self.dat, self.cno);
            change.propagate(&mut self.ifile.file, &mut fresh)?;
            change.delta
        };
        self.count_tree(delta);
        for (offset, b) in std::mem::take(&mut self.ifile.file.data) {
            let Some(vblock) = fresh.get(&offset).copied() else { continue };
            self.store.launch(Key::Virtual(vblock.0), b.clone());
            self.add_new(k, Ino::IFILE, BlockInfo::Data { vblock, offset }, b)?;
        }
        for (ptr, b) in sorted_nodes(&self.ifile.file.map.nodes) {
            self.store.launch(Key::Virtual(ptr), b.clone());
            self.add_new(k, Ino::IFILE, BlockInfo::Node { vblock: VBlockNr(ptr) }, b)?;
        }
        self.ifile.file.map.nodes.clear();
        // While the past is at hand: places are given with its lifetimes.
        match k.open.take() {
            Some(log) => self.close_data_log(k, log, false),
            None => Ok(()),
        }
    }

    /// Blocks that no tree has any more are dead. And a cleaner takes no two blocks of one file and offset that began
    /// with the same checkpoint (format 13.5): other versions of new blocks that did begin with the next one that may
    /// have them from now on, and move, since records say when a block began. What has to be moved.
    fn settle_past(&mut self, past: &Written, end_of_log: (SegNr, u64)) -> Result<Vec<Moved>> {
        let mut versions: HashMap<u64, (Ino, u64, u64)> = HashMap::new();
        self.each_record(end_of_log, |_, p, at| {
            if let BlockInfo::Data { vblock, offset } = p.info
                && past.made.get(&(p.ino, offset)).is_some_and(|new| new.iter().all(|(_, v)| *v != vblock.0))
                && self.dat.entry(&self.store, vblock).is_ok_and(|e| e.blocknr.get() == at)
            {
                versions.insert(vblock.0, (p.ino, offset, at));
            }
        });
        let palloc = self.dat.palloc;
        versions.retain(|v, _| palloc.bit(&self.dat.file, &self.store, &Physical, *v).unwrap_or(false));
        let mut wanted = past.replaced.clone();
        versions.keys().for_each(|v| {
            wanted.insert(*v);
        });
        let mappers = self.mappers(wanted.clone());
        for v in wanted.iter().filter(|v| mappers.broken.is_empty() && !mappers.newest.contains_key(v)) {
            let Ok(e) = self.dat.entry(&self.store, VBlockNr(v)) else { continue };
            if e.end.get() != LIVE && e.start.get() < e.end.get() {
                self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
                    e.end = e.start;
                    Ok(())
                })?;
            }
        }
        let all = self.cpfile.every(&self.store, &self.dat);
        let all: BTreeSet<u64> = all.iter().map(|e: &CpEntry| e.cno.get()).collect();
        let mut moved = Vec::new();
        for (v, (ino, offset, _)) in versions {
            let Ok(e) = self.dat.entry(&self.store, VBlockNr(v)) else { continue };
            let (start, end) = (e.start.get(), e.end.get());
            let taken =
                |c: u64| past.made.get(&(ino, offset)).is_some_and(|new| new.iter().any(|(s, _)| *s == c));
            if start >= end || !taken(start) {
                continue;
            }
            // A checkpoint with which a new one begins has that one.
            let next = all.range(start..end).copied().find(|c| !taken(*c));
            let next = next.or((end == LIVE).then_some(self.cno.0));
            let Some(next) = next else {
                // Every checkpoint of its life has a new one.
                self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
                    e.end = e.start;
                    Ok(())
                })?;
                continue;
            };
            let Ok(bytes) = self.bytes_of(v) else { continue };
            self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
                e.start = next.into();
                Ok(())
            })?;
            moved.push(Moved { v, ino, offset: Some(offset), bytes });
        }
        Ok(moved)
    }

    /// The inode files of other checkpoints than the tree at hand, those first that are likely to have a file as it
    /// is there: for the current tree the newest; for a past one those behind it, then those before it, the nearest
    /// first, at most [`VERSIONS`].
    pub(crate) fn other_ifiles(&self) -> Vec<(Cno, IFile)> {
        let Some(aside) = &self.aside else {
            let mut all = self.ifiles();
            all.retain(|(c, _)| self.mended_from.is_none_or(|newest| *c <= newest));
            return all;
        };
        let ifile =
            |e: &CpEntry| Some((Cno(e.cno.get()), IFile::new(&self.store.geometry, e.ifile_inode).ok()?));
        aside.versions.iter().filter_map(ifile).collect()
    }

    /// Makes blocks of another checkpoint part of the past tree at hand. Errors: one of them began later.
    pub(crate) fn take_into_past(&mut self, blocks: &Bits) -> Result<()> {
        let Some((from, to)) = self.dat.past else { return Ok(()) };
        for v in blocks.iter() {
            let e = self.dat.entry(&self.store, VBlockNr(v))?;
            if e.start.get() > from.0 {
                return Err(Error::corrupt(
                    format!("virtual block {v}"),
                    "translation table",
                    format!("begins at {}, after checkpoint {from}", e.start),
                ));
            }
        }
        for v in blocks.iter() {
            self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
                if e.end.get() < to.0 {
                    e.end = to.0.into();
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
