//! The checkpoint file made to agree with itself: counts, the list of snapshots, entries that hold nothing
//! (format 10).

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use silt_format::checkpoint::{self as cp, CpEntry, CpHeader};
use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Cno, Ino, SegNr};

use super::mapped::{Role, Seen};
use crate::block;
use crate::bmap;
use crate::cpfile::CpFile;
use crate::dat::Dat;
use crate::ifile::IFile;
use crate::meta::NodeReader;
use crate::store::Store;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{At, Error, Result};

impl CpFile {
    /// Offsets of the file's blocks, as far as its map can be read.
    fn offsets(&self, store: &Store, dat: &Dat) -> Vec<u64> {
        let mut offsets: Vec<u64> = self.file.data.keys().copied().collect();
        let reader = NodeReader { nodes: &self.file.map.nodes, store, resolve: dat };
        bmap::for_each_sound(&self.file.map.root, &reader, 0, |seen| {
            if let bmap::Seen::Entry(key, _) = seen {
                offsets.push(key);
            }
            ControlFlow::Continue(())
        });
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// Every entry that holds a checkpoint and can be read.
    pub(crate) fn every(&self, store: &Store, dat: &Dat) -> Vec<CpEntry> {
        let mut all = Vec::new();
        for offset in self.offsets(store, dat) {
            let Ok(Some(b)) = self.file.block(store, dat, offset) else { continue };
            for slot in 0..cp::per_block(&store.geometry) {
                let byte = (slot * u64::from(store.geometry.checkpoint_size)) as usize;
                let Some(cno) = cp::cno_at(&store.geometry, offset, slot) else { continue };
                if let Ok(e) = cp::entry(&b, byte)
                    && !e.is_invalid()
                    && e.cno.get() == cno.0
                {
                    all.push(e);
                }
            }
        }
        all
    }
}

/// Counts inodes and blocks of a tree.
#[derive(Default)]
struct Count {
    blocks: u64,
}

impl Seen for Count {
    fn block(&mut self, _: Ino, _: u64, _: Role) -> bool {
        self.blocks += 1;
        true
    }
    fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {}
}

impl Volume {
    /// Calls `f` for every number that an inode file's bitmaps say is a file's.
    pub(crate) fn each_taken(&self, ifile: &IFile, mut f: impl FnMut(u64)) -> Result<()> {
        let layout = ifile.palloc.layout;
        let reader = NodeReader { nodes: &ifile.file.map.nodes, store: &self.store, resolve: &self.dat };
        let mut keys = Vec::new();
        bmap::for_each(&ifile.file.map.root, &reader, 0, |key, _| {
            if matches!(layout.kind(key), silt_format::palloc::Kind::Bitmap { .. }) {
                keys.push(key);
            }
            ControlFlow::Continue(())
        })?;
        for key in keys {
            let silt_format::palloc::Kind::Bitmap { group } = layout.kind(key) else { continue };
            let Some(b) = ifile.file.block(&self.store, &self.dat, key)? else { continue };
            for (i, byte) in b.iter().enumerate().filter(|(_, b)| **b != 0) {
                for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                    let nr = group * layout.entries_per_group() + i as u64 * 8 + bit;
                    if nr == Ino::ROOT.0 || nr >= self.store.geometry.first_ino {
                        f(nr);
                    }
                }
            }
        }
        Ok(())
    }

    /// Inodes and blocks of a tree, counted. Nothing of it may wait in memory.
    pub(crate) fn count_tree_of(&self, ifile: &IFile) -> Result<(u64, u64)> {
        let mut inodes = 0u64;
        self.each_taken(ifile, |_| inodes += 1)?;
        let mut count = Count::default();
        self.see_tree(ifile, &mut count);
        Ok((inodes, count.blocks))
    }

    /// Makes entries, counts and the list of snapshots agree; `drop` are given up. Returns what was wrong, in
    /// words.
    pub(crate) fn mend_checkpoints(&mut self, drop: &BTreeSet<u64>) -> Result<Vec<String>> {
        let g = self.store.geometry;
        let mut said = Vec::new();
        let drop = &self.with_alike(drop);
        let mut snapshots: Vec<u64> = Vec::new();
        let mut total = 0u64;
        let mut empty = Vec::new();
        let last = cp::place(&g, Cno(self.last.cno)).at(|| "cpfile".into())?.0;
        let mut offsets = self.cpfile.offsets(&self.store, &self.dat);
        if !offsets.contains(&0) {
            offsets.insert(0, 0);
        }
        for offset in offsets {
            let b = match self.cpfile.file.block(&self.store, &self.dat, offset) {
                Ok(Some(b)) => b,
                other => {
                    if let Err(e) = other {
                        said.push(format!(
                            "block {offset} of the checkpoint file is lost with its checkpoints ({e})"
                        ));
                    }
                    let mut b = block::zeroed(g.bs());
                    cp::init_block(&g, block::writable(&mut b), offset);
                    b
                }
            };
            let mut new = b.clone();
            let mut here = 0u32;
            for slot in 0..cp::per_block(&g) {
                let byte = (slot * u64::from(g.checkpoint_size)) as usize;
                let Some(cno) = cp::cno_at(&g, offset, slot) else { continue };
                let mut e = cp::entry(&b, byte).at(|| format!("cpfile block {offset}"))?;
                let before = e;
                let known = cp::SNAPSHOT | cp::INVALID | cp::SKETCH | cp::MINOR;
                e.flags = (e.flags.get() & known).into();
                if !e.is_invalid() {
                    let why = if cno.0 > self.last.cno {
                        Some("it is later than the latest".to_owned())
                    } else if drop.contains(&cno.0) {
                        Some("it cannot be read".to_owned())
                    } else {
                        e.ifile_inode.check_metadata("ifile").err().map(|e| e.to_string())
                    };
                    if let Some(why) = why {
                        said.push(format!("checkpoint {cno} is dropped: {why}"));
                        e.flags = (e.flags.get() | cp::INVALID).into();
                    } else if e.cno.get() != cno.0 {
                        said.push(format!("the entry of checkpoint {cno} says {}", e.cno));
                        e.cno = cno.0.into();
                    }
                }
                if e.is_invalid() {
                    e.flags = (e.flags.get() & !cp::SNAPSHOT).into();
                    (e.list_next, e.list_prev) = (0.into(), 0.into());
                    // What else an entry without a checkpoint says means nothing.
                    if before.is_invalid() {
                        continue;
                    }
                } else {
                    here += 1;
                    if e.is_snapshot() {
                        snapshots.push(cno.0);
                    } else {
                        (e.list_next, e.list_prev) = (0.into(), 0.into());
                    }
                }
                if zerocopy::IntoBytes::as_bytes(&e) != zerocopy::IntoBytes::as_bytes(&before) {
                    cp::store_entry(block::writable(&mut new), byte, &e);
                }
            }
            total += u64::from(here);
            if offset > 0 {
                let mut first = cp::entry(&new, 0).at(|| format!("cpfile block {offset}"))?;
                if here == 0 && offset != last {
                    empty.push(offset);
                }
                if first.checkpoints_count.get() != here {
                    said.push(format!(
                        "block {offset} of the checkpoint file holds {here} checkpoints, not {}",
                        first.checkpoints_count
                    ));
                    first.checkpoints_count = here.into();
                    cp::store_entry(block::writable(&mut new), 0, &first);
                }
            }
            if new[..] != b[..]
                || self.cpfile.file.block(&self.store, &self.dat, offset).ok().flatten().is_none()
            {
                self.cpfile.file.data.insert(offset, new);
            }
        }
        for offset in empty {
            self.cpfile.file.data.remove(&offset);
            let mut change = Change::dead(&mut self.store, &mut self.dat, self.cno);
            change.unmap(&mut self.cpfile.file.map, offset)?;
        }
        for c in self.named_by_the_list(&snapshots)? {
            self.cpfile.change(&self.store, &self.dat, Cno(c), |e| {
                e.flags = (e.flags.get() | cp::SNAPSHOT).into();
            })?;
            said.push(format!(
                "checkpoint {c} is a snapshot again: those before and behind it in the list name it"
            ));
            snapshots.push(c);
        }
        snapshots.sort_unstable();
        self.link_snapshots(&snapshots, total, &mut said)?;
        Ok(said)
    }

    /// Checkpoints that the list of snapshots names where a gap is between two of `snapshots`, its ends included, and whose
    /// entries say that they are none: they were when the neighbours were written. Where each is named by one neighbour
    /// alone, only if the header counts them all.
    fn named_by_the_list(&self, snapshots: &[u64]) -> Result<Vec<u64>> {
        let (oldest, newest) = self.cpfile.ends_of_list();
        let mut links = vec![(0, oldest, 0)];
        for c in snapshots {
            let Some(e) = self.cpfile.get(&self.store, &self.dat, Cno(*c))? else { continue };
            links.push((*c, e.list_next.get(), e.list_prev.get()));
        }
        links.push((u64::MAX, 0, newest));
        let (mut named, mut sure) = (Vec::new(), true);
        for pair in links.windows(2) {
            let [(before, next, _), (behind, _, prev)] = *pair else { continue };
            let between = before < next && next <= prev && prev < behind && prev <= self.last.cno;
            let is_there =
                |c: u64| self.cpfile.get(&self.store, &self.dat, Cno(c)).is_ok_and(|e| e.is_some());
            if between && is_there(next) && is_there(prev) {
                sure &= next == prev;
                named.extend([next].into_iter().chain((prev > next).then_some(prev)));
            }
        }
        let counted = self.cpfile.snapshots() == (snapshots.len() + named.len()) as u64;
        Ok(if sure || counted { named } else { Vec::new() })
    }

    /// Whether a block of the file holds what such a block can: at most one entry is wrong. Of a checkpoint that was deleted,
    /// or never made, an entry has the number or 0; that means nothing (10.1), and counts only where none tells of a
    /// checkpoint that is here.
    fn is_checkpoint_block(&self, offset: u64, b: &[u8]) -> bool {
        let g = &self.store.geometry;
        let (mut wrong, mut strange, mut here) = (0, 0, false);
        for slot in 0..cp::per_block(g) {
            let byte = (slot * u64::from(g.checkpoint_size)) as usize;
            let (Some(cno), Ok(e)) = (cp::cno_at(g, offset, slot), cp::entry(b, byte)) else { continue };
            let known = cp::SNAPSHOT | cp::INVALID | cp::SKETCH | cp::MINOR;
            let other = e.cno.get() != cno.0;
            let bad = e.flags.get() & !known != 0
                || (!e.is_invalid() && (other || e.ifile_inode.check_metadata("ifile").is_err()));
            wrong += u32::from(bad);
            strange += u32::from(!bad && other && e.cno.get() != 0);
            here |= !bad && !e.is_invalid();
        }
        wrong + if here { 0 } else { strange } <= 1
    }

    /// Puts the newest older version that is still on the disk in the place of each block of the cpfile that makes
    /// no sense. What it does not have are the checkpoints made since.
    pub(crate) fn older_checkpoint_blocks(&mut self, end_of_log: (SegNr, u64)) -> Vec<String> {
        let (mut offsets, mut said) = (self.cpfile.offsets(&self.store, &self.dat), Vec::new());
        offsets.push(0);
        offsets.sort_unstable();
        offsets.dedup();
        for offset in offsets {
            let now = self.cpfile.file.block(&self.store, &self.dat, offset).ok().flatten();
            if now.is_some_and(|b| self.is_checkpoint_block(offset, &b)) {
                continue;
            }
            let mut places = Vec::new();
            self.each_record(end_of_log, |log, p, at| {
                if p.ino == Ino::CPFILE
                    && let BlockInfo::Data { offset: o, .. } = p.info
                    && o == offset
                {
                    places.push((log.header.cno.get(), at));
                }
            });
            places.sort_unstable();
            for (cno, at) in places.into_iter().rev() {
                let Ok(b) = self.store.read(silt_device::Kind::Tables, BlockNr(at)) else { continue };
                if !self.is_checkpoint_block(offset, &b) {
                    continue;
                }
                if offset == 0
                    && let Ok(header) = cp::header(&b)
                {
                    let _ = self.cpfile.set_header(&self.store, &self.dat, header);
                }
                self.cpfile.file.data.insert(offset, b);
                said.push(format!(
                    "block {offset} of the checkpoint file is put back to its version of checkpoint {cno}"
                ));
                break;
            }
        }
        said
    }

    /// Adds the plain checkpoints that have the same tree as those that are dropped.
    fn with_alike(&self, drop: &BTreeSet<u64>) -> BTreeSet<u64> {
        let all = self.cpfile.every(&self.store, &self.dat);
        let trees: BTreeSet<[u8; 56]> =
            all.iter().filter(|e| drop.contains(&e.cno.get())).map(|e| e.ifile_inode.bmap).collect();
        let alike = |e: &&CpEntry| {
            !e.is_snapshot() && e.cno.get() != self.last.cno && trees.contains(&e.ifile_inode.bmap)
        };
        drop.iter().copied().chain(all.iter().filter(alike).map(|e| e.cno.get())).collect()
    }

    fn link_snapshots(&mut self, snapshots: &[u64], total: u64, said: &mut Vec<String>) -> Result<()> {
        let mut relinked = 0;
        for (i, c) in snapshots.iter().enumerate() {
            let prev = i.checked_sub(1).and_then(|i| snapshots.get(i)).copied().unwrap_or(0);
            let next = snapshots.get(i + 1).copied().unwrap_or(0);
            let Some(e) = self.cpfile.get(&self.store, &self.dat, Cno(*c))? else { continue };
            if (e.list_prev.get(), e.list_next.get()) != (prev, next) {
                relinked += 1;
                self.cpfile.change(&self.store, &self.dat, Cno(*c), |e| {
                    (e.list_prev, e.list_next) = (prev.into(), next.into());
                })?;
            }
        }
        let header = CpHeader {
            ncheckpoints: total.into(),
            nsnapshots: (snapshots.len() as u64).into(),
            list_next: snapshots.first().copied().unwrap_or(0).into(),
            list_prev: snapshots.last().copied().unwrap_or(0).into(),
        };
        if self.cpfile.set_header(&self.store, &self.dat, header)? {
            said.push(format!("{total} checkpoints and {} snapshots are counted", snapshots.len()));
        }
        if relinked > 0 {
            said.push(format!("{relinked} links of the list of snapshots are set right"));
        }
        Ok(())
    }

    /// Counts the inodes and blocks of checkpoints again.
    pub(crate) fn mend_tree_counts(&mut self, which: &BTreeSet<u64>) -> Result<Vec<String>> {
        let mut said = Vec::new();
        // Checkpoints of one tree have the same counts.
        let all = self.cpfile.every(&self.store, &self.dat);
        let trees: BTreeSet<[u8; 56]> =
            all.iter().filter(|e| which.contains(&e.cno.get())).map(|e| e.ifile_inode.bmap).collect();
        let alike = all.iter().filter(|e| trees.contains(&e.ifile_inode.bmap)).map(|e| e.cno.get());
        for c in &alike.collect::<BTreeSet<u64>>() {
            let Some(e) = self.cpfile.get(&self.store, &self.dat, Cno(*c))? else { continue };
            // What cannot be read is counted when it is mended.
            let Ok(ifile) = IFile::new(&self.store.geometry, e.ifile_inode) else { continue };
            let Ok((inodes, blocks)) = self.count_tree_of(&ifile) else { continue };
            if (inodes, blocks) == (e.inodes_count.get(), e.blocks_count.get()) {
                continue;
            }
            said.push(format!(
                "checkpoint {c} has {inodes} inodes in {blocks} blocks, not {} in {}",
                e.inodes_count, e.blocks_count
            ));
            self.cpfile.change(&self.store, &self.dat, Cno(*c), |e| {
                e.inodes_count = inodes.into();
                e.blocks_count = blocks.into();
            })?;
            if *c == self.last.cno {
                self.inodes_count = inodes;
                self.tree_blocks = blocks;
            }
        }
        Ok(said)
    }
}
