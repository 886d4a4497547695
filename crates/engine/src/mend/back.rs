//! Going back: the tree, or one file of it, becomes what an older checkpoint has (format 4.6, 7.4).
//!
//! What only the present maps dies with the checkpoint under construction, as if it had been deleted. What the
//! older one maps and the present does not lives again: its end is taken back. Checkpoints in between keep all
//! they map, since lives only become longer.

use std::collections::BTreeMap;

use silt_format::dat::LIVE;
use silt_format::inode::RawInode;
use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Cno, Ino, SegNr, VBlockNr};

use super::bits::Bits;
use super::contents::Content;
use super::doubts::{Doubts, Unsure};
use super::mapped::Whole;
use super::versions::Evidence;
use crate::ifile::IFile;
use crate::inode::{self, Inode};
use crate::meta::{MetaFile, Physical};
use crate::volume::Volume;
use crate::{At, Error, Result};

/// What is in the place of an inode that is put back.
pub(crate) enum Present<'a> {
    /// Damaged, but which file it is can be told.
    Known(RawInode),
    /// Nothing of it is to be believed, or there is nothing. With what logs have of it, where that was looked for: `None`
    /// in it where they have more than is kept in memory.
    Doubted(Option<&'a Option<Content>>),
}

impl Volume {
    /// The ends and beginnings of lives when `then` takes the place of `now`.
    fn exchange(&mut self, now: &Bits, then: &Bits) -> Result<(u64, u64)> {
        let (mut die, mut live) = (0, 0);
        if self.dat.past.is_some() {
            self.take_into_past(then)?;
            return Ok((die, live));
        }
        for v in now.iter().filter(|v| !then.contains(*v)) {
            match self.dat.end(&mut self.store, VBlockNr(v), self.cno, false) {
                Ok(()) => die += 1,
                // What is wrong with it is a finding of its own.
                Err(Error::Format { .. } | Error::Device(_)) => {}
                Err(e) => return Err(e),
            }
        }
        for v in then.iter().filter(|v| !now.contains(*v)) {
            let e = self.dat.entry(&self.store, VBlockNr(v))?;
            if e.end.get() != LIVE {
                self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
                    e.end = LIVE.into();
                    Ok(())
                })?;
                live += 1;
            }
        }
        Ok((die, live))
    }

    /// Whether all these blocks were there at checkpoint `c`, and are: one that was given up since may be another's
    /// now, whatever a map says.
    fn lived(&self, blocks: &Bits, c: Cno) -> Result<()> {
        for v in blocks.iter() {
            let e = self.dat.entry(&self.store, VBlockNr(v))?;
            let taken = self.dat.palloc.bit(&self.dat.file, &self.store, &Physical, v)?;
            let there = taken && e.start.get() <= c.0 && c.0 < e.end.get();
            if !there || !self.store.geometry.holds(BlockNr(e.blocknr.get())) {
                let place = format!("virtual block {v}");
                let what = format!("checkpoint {c} needs it and it was not there, or is no more");
                return Err(Error::corrupt(place, "translation table", what));
            }
        }
        Ok(())
    }

    /// Makes checkpoint `c` the current tree. Nothing may wait in memory. Errors: there is no such
    /// checkpoint, or part of its maps cannot be read.
    pub(crate) fn roll_back(&mut self, c: Cno) -> Result<String> {
        if !self.dirty.is_empty() {
            return Err(Error::Invalid("changes wait".into()));
        }
        let entry = self.cpfile.get(&self.store, &self.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
        let ifile = IFile::new(&self.store.geometry, entry.ifile_inode)?;
        let root = ifile.get(&self.store, &self.dat, Ino::ROOT)?;
        root.check().at(|| format!("root directory of checkpoint {c}"))?;
        let (mut now, mut then) = (Whole::default(), Whole::default());
        self.see_tree(&self.ifile, &mut now);
        self.see_tree(&ifile, &mut then);
        if then.broken > 0 {
            return Err(Error::corrupt(
                format!("checkpoint {c}"),
                "checkpoint",
                format!("{} of its blocks cannot be read", then.broken),
            ));
        }
        self.lived(&then.blocks, c)?;
        let (die, live) = self.exchange(&now.blocks, &then.blocks)?;
        let (inodes, blocks) = self.count_tree_of(&ifile)?;
        self.inodes.clear();
        self.new_numbers.clear();
        self.next_ino = self.store.geometry.first_ino;
        self.inodes_count = inodes;
        self.tree_blocks = blocks;
        self.ifile = ifile;
        self.meta_dirty = true;
        Ok(format!(
            "the tree becomes that of checkpoint {c}: {die} blocks belong to the past from now on, {live} live again"
        ))
    }

    /// Puts an inode back to what checkpoint `c` has. Nothing of it may wait. Errors: it is not there, it is
    /// another file's, or part of its map cannot be read. What a `doubted` one maps now may be another's: its lives do not
    /// end, and what nothing maps then is a finding of its own.
    pub(crate) fn restore_inode(&mut self, ino: Ino, c: Cno, doubted: bool) -> Result<()> {
        let entry = self.cpfile.get(&self.store, &self.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
        let ifile = IFile::new(&self.store.geometry, entry.ifile_inode)?;
        let raw = ifile.get(&self.store, &self.dat, ino)?;
        inode::check(&self.store.geometry, &raw).at(|| format!("inode {ino} of checkpoint {c}"))?;
        let root = ino != Ino::ROOT || raw.file_type() == 0o040_000;
        if raw.links_count.get() == 0 || !root {
            return Err(Error::NoInode(ino.0));
        }
        let mut then = Whole::default();
        if raw.has_map() {
            self.see_map(ino, &raw.bmap, &mut then);
        }
        if then.broken > 0 {
            return Err(Error::corrupt(
                format!("inode {ino} of checkpoint {c}"),
                "block map",
                "cannot be read",
            ));
        }
        self.lived(&then.blocks, c)?;
        let mut now = Whole::default();
        let current = self.ifile.get(&self.store, &self.dat, ino);
        let exists = current.is_ok();
        if let Ok(current) = current
            && current.has_map()
        {
            self.see_map(ino, &current.bmap, &mut now);
        }
        let ends = if doubted { &Bits::default() } else { &now.blocks };
        self.exchange(ends, &then.blocks)?;
        let blocks = |b: &Bits| i64::try_from(b.len()).unwrap_or(0);
        self.count_tree(blocks(&then.blocks) - blocks(&now.blocks));
        let mut inode = Inode::load(ino, &raw);
        (inode.dirty, inode.needs_checkpoint, inode.on_disk) = (true, true, exists);
        self.inodes.insert(ino.0, Box::new(inode));
        self.dirty.insert(ino.0);
        if !exists {
            self.inodes_count = self.inodes_count.saturating_add(1);
        }
        Ok(())
    }

    /// Puts an inode back to its newest older version that is whole, another one than the present, and of this type (bits
    /// of a mode), if one is given. Where the present is [`Present::Doubted`] only to one of which a block belongs to the tree
    /// at hand, too, if logs have blocks of it, and where the DAT is sound only to one with that very content: what is exact need not
    /// be given up. Returns the checkpoint that has it.
    pub(crate) fn restore_newest(
        &mut self,
        ino: Ino,
        present: &Present<'_>,
        kind: Option<u32>,
        evidence: &Evidence<'_>,
    ) -> Option<Cno> {
        let of_kind = |raw: &RawInode| kind.is_none_or(|kind| kind == raw.file_type());
        let content = match present {
            Present::Known(present) => return self.restore_known(ino, present, of_kind),
            Present::Doubted(content) => *content,
        };
        let known = content.and_then(Option::as_ref);
        // Unless nothing says when blocks died: then they pass for current.
        let exact = self.unsure.is_empty();
        // What is there now is what is wrong, whichever checkpoints have it, too.
        let versions = self.versions(ino, known, evidence);
        for version in versions.iter().filter(|v| of_kind(&v.raw) && !v.same) {
            let fits = match content {
                Some(Some(own)) if own.blocks.is_empty() => true,
                Some(Some(own)) if exact => self.is_content(ino, &version.raw, own),
                Some(_) => self.shares(ino, &version.raw),
                None => true,
            };
            if fits && self.restore_inode(ino, version.cno, true).is_ok() {
                return Some(version.cno);
            }
        }
        None
    }

    /// The same where the generation tells which file it is.
    fn restore_known(
        &mut self,
        ino: Ino,
        present: &RawInode,
        of_kind: impl Fn(&RawInode) -> bool,
    ) -> Option<Cno> {
        for (c, ifile) in self.other_ifiles() {
            let Ok(raw) = ifile.get(&self.store, &self.dat, ino) else { continue };
            let same = (present.bmap, present.size, present.mode) == (raw.bmap, raw.size, raw.mode);
            // A number may have been another file's.
            let other = present.check().is_ok() && present.generation != raw.generation;
            if of_kind(&raw) && !same && !other && self.restore_inode(ino, c, false).is_ok() {
                return Some(c);
            }
        }
        None
    }

    /// Whether a block of this map belongs to the tree at hand, too.
    fn shares(&self, ino: Ino, raw: &RawInode) -> bool {
        let mut then = Whole::default();
        if raw.has_map() {
            self.see_map(ino, &raw.bmap, &mut then);
        }
        let current = |v: u64| {
            let e = self.dat.entry(&self.store, VBlockNr(v));
            e.is_ok_and(|e| self.is_of_tree(e.start.get(), e.end.get()))
        };
        then.blocks.iter().any(current)
    }

    /// Counts the blocks of an inode again.
    pub(crate) fn recount_blocks(&mut self, ino: Ino) -> Result<()> {
        let units = u64::from(self.store.geometry.block_size / 512);
        let mut whole = Whole::default();
        if let Ino::IFILE | Ino::CPFILE | Ino::SUFILE = ino {
            let file = match ino {
                Ino::IFILE => &self.ifile.file,
                Ino::CPFILE => &self.cpfile.file,
                _ => &self.sufile.file,
            };
            self.see_map(ino, &file.map.root, &mut whole);
            let file = match ino {
                Ino::IFILE => &mut self.ifile.file,
                Ino::CPFILE => &mut self.cpfile.file,
                _ => &mut self.sufile.file,
            };
            file.map.blocks = whole.blocks.len().saturating_mul(units);
            return Ok(());
        }
        if ino == Ino::DAT {
            let mut n = 0u64;
            self.each_dat_block(|_, _| n += 1)?;
            self.dat.file.map.blocks = n.saturating_mul(units);
            return Ok(());
        }
        let root = self.live_mut(ino)?.map.root;
        self.see_map(ino, &root, &mut whole);
        let units = whole.blocks.len().saturating_mul(units);
        let inode = self.live_mut(ino)?;
        inode.map.blocks = units;
        inode.needs_checkpoint = true;
        Ok(())
    }

    /// Builds the map of an inode anew from what logs have of the file: its blocks are those that the DAT has as
    /// current. Returns how many.
    pub(crate) fn rebuild_inode(&mut self, ino: Ino, end_of_log: (SegNr, u64)) -> Result<u64> {
        let mut raw = self.ifile.get(&self.store, &self.dat, ino)?;
        if !raw.has_map() {
            return Err(Error::corrupt(format!("inode {ino}"), "inode", "is of no known type"));
        }
        let Content { blocks, nodes } = self.content_of(ino, end_of_log);
        raw.bmap = [0; 56];
        raw.blocks = 0.into();
        let inode = Inode::load(ino, &raw);
        self.put_together(inode, blocks, &nodes)
    }

    /// The current ifile from what logs have of it, where no checkpoint entry names it: its blocks are those that
    /// the DAT has as current.
    pub(crate) fn ifile_from_logs(&mut self, end_of_log: (SegNr, u64)) -> Result<(IFile, Unsure)> {
        let mut ifile = IFile::none(&self.store.geometry);
        let unsure = self.map_from_logs(Ino::IFILE, &mut ifile.file, end_of_log)?;
        Ok((ifile, unsure))
    }

    /// The checkpoint file or the segment usage file, where no super root says where it is.
    pub(crate) fn table_from_logs(
        &mut self,
        ino: Ino,
        raw: RawInode,
        end_of_log: (SegNr, u64),
    ) -> Result<MetaFile> {
        let mut file = MetaFile::new(ino, raw);
        self.map_from_logs(ino, &mut file, end_of_log)?;
        Ok(file)
    }

    /// Gives blocks of a file their places of which the DAT knows nothing, since what says so lies in logs that do not verify.
    /// What is dead since passes for current then, until it shows that nothing maps it.
    pub(super) fn places_from_logs(
        &mut self,
        ino: Ino,
        end_of_log: (SegNr, u64),
        doubts: &Doubts,
    ) -> Result<()> {
        let layout = self.dat.palloc.layout;
        let known = |v: VBlockNr| {
            let taken = self.dat.palloc.bit(&self.dat.file, &self.store, &Physical, v.0);
            let e = self.dat.entry(&self.store, v);
            taken.is_ok_and(|taken| taken)
                && e.is_ok_and(|e| self.store.geometry.holds(BlockNr(e.blocknr.get())))
        };
        let mut verified: BTreeMap<u64, bool> = BTreeMap::new();
        let mut verifies = |key: u64| {
            *verified.entry(key).or_insert_with(|| match self.dat.file.place(&self.store, &Physical, key) {
                Ok(Some(at)) => !doubts.is_bad(&self.store.geometry, at),
                Ok(None) => true,
                Err(_) => false,
            })
        };
        let mut lost = Bits::default();
        self.each_record(end_of_log, |_, p, _| {
            let (BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock }) = p.info else { return };
            if p.ino != ino || layout.check("DAT", vblock.0).is_err() || known(vblock) {
                return;
            }
            let told_by = [layout.entry(vblock.0).block, layout.bitmap_block(layout.group(vblock.0))];
            if !told_by.into_iter().all(&mut verifies) {
                lost.insert(vblock.0);
            }
        });
        let mut own = Bits::default();
        self.records_of(&lost, end_of_log).iter().filter(|(_, r)| r.ino == ino).for_each(|(v, _)| {
            own.insert(*v);
        });
        self.mend_places(&own, end_of_log).map(|_| ())
    }

    /// Maps what logs have of a file and the DAT as current.
    fn map_from_logs(&mut self, ino: Ino, file: &mut MetaFile, end_of_log: (SegNr, u64)) -> Result<Unsure> {
        let mut unsure = Unsure::default();
        let Content { blocks, nodes } = self.content_of(ino, end_of_log);
        for (offset, v) in &blocks {
            self.note_unsure(ino, *offset, v.0, true, &mut unsure);
        }
        let mut change = self.change();
        for (offset, v) in blocks {
            change.adopt(&mut file.map, offset, v)?;
        }
        for v in nodes.iter() {
            self.dat.end(&mut self.store, VBlockNr(v), self.cno, false)?;
        }
        Ok(unsure)
    }
}
