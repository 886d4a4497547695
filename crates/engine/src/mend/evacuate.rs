//! Segments whose logs do not verify are emptied: what is wanted of them goes elsewhere as it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hashbrown::HashMap;
use silt_format::btree::Node;
use silt_format::inode::RawInode;
use silt_format::palloc::{Kind, Layout};
use silt_format::segment_usage::{self as su, SuEntry};
use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Cno, Geometry, Ino, SegNr, VBlockNr};

use super::bits::Bits;
use super::mapped::{Mappers, Role};
use super::moves::Moved;
use crate::Result;
use crate::block;
use crate::ifile::IFile;
use crate::meta::Physical;
use crate::verify_log::{LogState, Verifier};
use crate::volume::Volume;

/// A file of the current tree, or of the newest checkpoint that has what is told of: its number may be another's since. Those of
/// the current tree come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct File {
    newest: Reverse<u64>,
    ino: u64,
}

impl File {
    /// A file of the current tree.
    pub fn current(ino: Ino) -> Self {
        File { newest: Reverse(u64::MAX), ino: ino.0 }
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.newest.0 {
            u64::MAX => write!(f, "inode {}", self.ino),
            c => write!(f, "checkpoint {c}: inode {}", self.ino),
        }
    }
}

/// What becomes of segments that are emptied.
#[derive(Default)]
pub(crate) struct Evacuated {
    /// What has to be moved.
    pub moved: Vec<Moved>,
    /// Segments that nothing holds back.
    pub free: BTreeSet<u64>,
    /// Files of which blocks lie in a log that does not verify, or in none, and how many.
    pub suspects: BTreeMap<File, u64>,
    /// Files of which the inode lies in such a log.
    pub attributes: BTreeSet<u64>,
    /// Blocks of inode files, by offset, in such logs.
    pub inode_blocks: BTreeSet<u64>,
    /// Files in the place of whose blocks a log lies that has other ones, and how many.
    pub strangers: BTreeMap<File, u64>,
    /// Blocks of file data, as file and offset, that cannot be read and are zeroes from now on.
    pub zeroed: BTreeSet<(File, u64)>,
    /// Those that cannot be read and stay.
    pub unreadable: BTreeSet<(File, u64)>,
}

/// What a whole summary says of a block.
#[derive(Clone, Copy)]
struct Described {
    /// 0: nothing that a file has.
    v: u64,
    ino: Ino,
    /// `None` for a node.
    offset: Option<u64>,
}

/// Files whose blocks are listed in words; of more they are counted.
pub(super) const LISTED: usize = 10_000;

impl Evacuated {
    /// What cannot be read, and what may be wrong, in words.
    pub(crate) fn words(&self, g: &Geometry) -> Vec<String> {
        let mut said = Vec::new();
        let kinds = [
            (&self.zeroed, "cannot be read: they are zeroes from now on"),
            (&self.unreadable, "cannot be read and stay where they are"),
        ];
        for (blocks, what) in kinds {
            let all: Vec<_> = blocks.iter().copied().collect();
            let runs: Vec<_> = all.chunk_by(|a, b| a.0 == b.0 && a.1.checked_add(1) == Some(b.1)).collect();
            for run in runs.iter().take(LISTED) {
                let (Some((file, first)), Some((_, last))) = (run.first(), run.last()) else { continue };
                let byte = |offset: u64| offset.saturating_mul(g.block_size.into());
                let (from, to) = (byte(*first), byte(last.saturating_add(1)).saturating_sub(1));
                said.push(format!("{file}: bytes {from} to {to} {what}"));
            }
            if runs.len() > LISTED {
                said.push(format!("and {} more ranges of bytes {what}", runs.len() - LISTED));
            }
        }
        said.extend(suspects(&self.suspects, &self.attributes));
        for (file, blocks) in self.strangers.iter().take(LISTED) {
            let (were, they) =
                if *blocks == 1 { ("block was", "it is") } else { ("blocks were", "they are") };
            said.push(format!(
                "{file}: {blocks} {were} overwritten with another log: {they} lost, and nothing tells of that from now on"
            ));
        }
        said
    }
}

/// Files of which so many blocks may be wrong, and those of which the attributes may be, in words.
pub(crate) fn suspects(files: &BTreeMap<File, u64>, attributes: &BTreeSet<u64>) -> Vec<String> {
    let mut said = Vec::new();
    for (file, blocks) in files.iter().take(LISTED) {
        let (lie, they) = if *blocks == 1 { ("block lies", "it") } else { ("blocks lie", "they") };
        said.push(format!(
            "{file}: {blocks} {lie} in a log that does not verify: {they} may be wrong, and nothing tells of that \
             from now on"
        ));
    }
    if files.len() > LISTED {
        said.push(format!("and {} more files with such blocks", files.len() - LISTED));
    }
    for ino in attributes.iter().take(LISTED) {
        said.push(format!(
            "inode {ino}: its attributes lie in a log that does not verify: they may be wrong, and nothing tells of that \
             from now on"
        ));
    }
    if attributes.len() > LISTED {
        said.push(format!("and {} more files with such attributes", attributes.len() - LISTED));
    }
    said
}

/// Files whose inodes are in a block of an inode file.
pub(crate) fn inodes_in(g: &Geometry, offset: u64, block: &[u8]) -> Vec<u64> {
    let layout = Layout::ifile(g);
    let Kind::Entries { first } = layout.kind(offset) else { return Vec::new() };
    let size = u64::from(g.inode_size);
    let at = |n: u64| usize::try_from(n.checked_mul(size)?).ok();
    let raw = |n: u64| RawInode::read(block.get(at(n)?..)?).ok();
    let used = |n: &u64| raw(*n).is_some_and(|r| r.links_count.get() != 0 && r.mode.get() != 0);
    let all = (0..layout.entries_per_block()).filter(used).filter_map(|n| first.checked_add(n));
    all.filter(|ino| *ino == Ino::ROOT.0 || *ino >= Ino::FIRST_USER.0).collect()
}

impl Volume {
    /// A file of the current tree, where `newest` is `u64::MAX`, or of a checkpoint. What this repair makes are no checkpoints of
    /// the volume's: what these have from before is that of the one it began with.
    pub(super) fn file_of(&self, newest: u64, ino: Ino) -> File {
        let ours = newest != u64::MAX && self.mended_from.is_some_and(|c| c.0 < newest);
        let newest = if ours { self.mended_from.map_or(newest, |c| c.0) } else { newest };
        File { newest: Reverse(newest), ino: ino.0 }
    }

    /// Makes everything that is wanted of these segments part of the next logs; with `zero`, zeroes in the place of
    /// file data that cannot be read, in every checkpoint that has it; with `unowned`, what no checkpoint maps is nobody's.
    pub(crate) fn evacuate(
        &mut self,
        segments: &BTreeSet<u64>,
        already: &Bits,
        (zero, unowned): (bool, bool),
        end_of_log: (SegNr, u64),
    ) -> Result<Evacuated> {
        let g = self.store.geometry;
        let segment = |block: u64| g.segment_of(BlockNr(block)).0;
        let inside = |block: u64| g.holds(BlockNr(block)) && segments.contains(&segment(block));
        let free = segments.iter().copied().filter(|s| *s < g.nsegments && *s != self.cursor.next.0);
        let mut out = Evacuated { free: free.collect(), ..Evacuated::default() };
        let mut wanted = Bits::default();
        let mut places = Vec::new();
        let unknown = self.each_entry(|v, e| {
            if v != 0 && inside(e.blocknr.get()) {
                wanted.insert(v);
                places.push((v, e.blocknr.get()));
            }
        })?;
        let mappers = self.mappers(wanted);
        let verifier = Verifier::new(self.store.device.clone(), g);
        let mut described: HashMap<u64, Described> = HashMap::new();
        self.each_record(end_of_log, |log, p, at| {
            if !inside(at) {
                return;
            }
            let (v, offset) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock.0, Some(offset)),
                BlockInfo::Node { vblock } => (vblock.0, None),
                _ => (0, None),
            };
            described.insert(at, Described { v, ino: p.ino, offset });
            if p.index == 0 {
                let frame = Described { v: 0, ino: Ino(0), offset: None };
                described.extend((log.at..at).map(|block| (block, frame)));
            }
        });
        let every = self.cpfile.every(&self.store, &self.dat);
        let every: BTreeSet<u64> = every.iter().map(|e| e.cno.get()).collect();
        for (v, block) in places {
            if already.contains(v) {
                continue;
            }
            if described.get(&block).is_some_and(|other| other.v != v)
                && let Some((newest, ino, _)) = mappers.newest.get(&v)
                && !(Ino::DAT.0..=Ino::IFILE.0).contains(&ino.0)
            {
                *out.strangers.entry(self.file_of(*newest, *ino)).or_insert(0) += 1;
            }
            // A whole log beside its place, a block further, is none that counts.
            let is_sure =
                || described.contains_key(&block) && verifier.verify(BlockNr(block)).1 == LogState::Whole;
            let gone = if mappers.newest.contains_key(&v) {
                self.evacuate_one(v, block, &mappers, is_sure, zero, &mut out)?
            } else if mappers.broken.is_empty() {
                self.evacuate_unmapped(v, block, described.get(&block), &every, unowned, &mut out)?
            } else {
                false
            };
            if !gone {
                out.free.remove(&segment(block));
            }
        }
        self.evacuate_table(inside, segment, &mut out.free)?;
        if unknown > 0 {
            // What is not seen cannot be moved.
            out.free.clear();
        }
        Ok(out)
    }

    /// The same for a block that nothing maps. Where it lived at a checkpoint that is here, an inode of that may have lost it,
    /// and is mended later: it moves, if a summary says that it is data, and stays otherwise till it is `unowned` for good. Nodes go:
    /// maps are made anew of data, and a cleaner of Linux stops at a node that makes no sense.
    fn evacuate_unmapped(
        &mut self,
        v: u64,
        at: u64,
        described: Option<&Described>,
        every: &BTreeSet<u64>,
        unowned: bool,
        out: &mut Evacuated,
    ) -> Result<bool> {
        let e = self.dat.entry(&self.store, VBlockNr(v))?;
        let (start, end) = (e.start.get(), e.end.get());
        let lived = start < end && every.range(start..end).next().is_some();
        let known = described.filter(|d| d.v == v && self.store.geometry.has_lifetimes(d.ino));
        let is_node = known.is_some_and(|of| of.offset.is_none());
        if lived
            && let Some(Described { ino, offset: Some(offset), .. }) = known
            && let Ok(bytes) = self.store.read(silt_device::Kind::Data, BlockNr(at))
        {
            out.moved.push(Moved { v, ino: *ino, offset: Some(*offset), bytes });
            return Ok(true);
        }
        if lived && !unowned && !is_node {
            return Ok(false);
        }
        // No checkpoint has it: garbage that a cleaner would have taken.
        self.dat.palloc.unset(&mut self.dat.file, &self.store, &Physical, v)?;
        Ok(true)
    }

    /// Whether the block will be gone from its place. `is_sure`: a log that verifies says what is there.
    fn evacuate_one(
        &mut self,
        v: u64,
        at: u64,
        mappers: &Mappers,
        is_sure: impl Fn() -> bool,
        zero: bool,
        out: &mut Evacuated,
    ) -> Result<bool> {
        let Some((newest, ino, role)) = mappers.newest.get(&v).copied() else { return Ok(false) };
        let key = match role {
            Role::Data(key) | Role::Node(_, key, _) => key,
        };
        let file = match ino {
            Ino::CPFILE => &mut self.cpfile.file,
            Ino::SUFILE => &mut self.sufile.file,
            _ => {
                let offset = if let Role::Data(key) = role { Some(key) } else { None };
                let bytes = match (self.store.read(silt_device::Kind::Data, BlockNr(at)), offset) {
                    (Ok(bytes), _) => {
                        if !is_sure() {
                            if ino == Ino::IFILE {
                                out.inode_blocks.extend(offset);
                            }
                            match offset {
                                Some(offset) if ino == Ino::IFILE && newest == u64::MAX => {
                                    out.attributes.extend(inodes_in(&self.store.geometry, offset, &bytes));
                                }
                                _ if ino == Ino::IFILE => {}
                                _ => *out.suspects.entry(self.file_of(newest, ino)).or_insert(0) += 1,
                            }
                        }
                        bytes
                    }
                    // Directories and symlinks are mended as such.
                    (Err(_), Some(offset)) if self.is_regular(ino, newest) => {
                        if !zero {
                            out.unreadable.insert((self.file_of(newest, ino), offset));
                            return Ok(false);
                        }
                        out.zeroed.insert((self.file_of(newest, ino), offset));
                        block::zeroed(self.store.geometry.bs())
                    }
                    (Err(_), Some(offset)) if zero && ino == Ino::IFILE && self.is_unused(newest, offset) => {
                        block::zeroed(self.store.geometry.bs())
                    }
                    (Err(_), _) => return Ok(false),
                };
                out.moved.push(Moved { v, ino, offset, bytes });
                return Ok(true);
            }
        };
        // Of these only the newest version counts: writing a block anew writes the nodes above it, too.
        Ok(file.block_mut(&self.store, &self.dat, key, |_| {}).is_ok())
    }

    /// Whether an inode is a regular file in the current tree (`u64::MAX`) or at a checkpoint.
    fn is_regular(&self, ino: Ino, c: u64) -> bool {
        let raw = self.in_ifile(c, |ifile| ifile.get(&self.store, &self.dat, ino).ok()).flatten();
        raw.is_some_and(|raw| raw.file_type() == 0o100_000)
    }

    /// Whether a block of the inode file has entries, and none is in use in the current tree (`u64::MAX`) or at a checkpoint.
    fn is_unused(&self, c: u64, offset: u64) -> bool {
        let none = |ifile: &IFile| {
            let layout = ifile.palloc.layout;
            let Kind::Entries { first } = layout.kind(offset) else { return false };
            let taken = |nr| ifile.palloc.bit(&ifile.file, &self.store, &self.dat, nr).unwrap_or(true);
            !(first..=layout.last_of_block(first)).any(taken)
        };
        self.in_ifile(c, none).unwrap_or(false)
    }

    fn in_ifile<T>(&self, c: u64, f: impl Fn(&IFile) -> T) -> Option<T> {
        if c == u64::MAX {
            return Some(f(&self.ifile));
        }
        let entry = self.cpfile.get(&self.store, &self.dat, Cno(c)).ok().flatten();
        entry.and_then(|e| IFile::new(&self.store.geometry, e.ifile_inode).ok()).map(|ifile| f(&ifile))
    }

    fn evacuate_table(
        &mut self,
        inside: impl Fn(u64) -> bool,
        segment: impl Fn(u64) -> u64,
        free: &mut BTreeSet<u64>,
    ) -> Result<()> {
        let mut own = Vec::new();
        self.each_dat_block(|block, key| {
            if inside(block) {
                own.push((block, key));
            }
        })?;
        for (block, key) in own {
            let key = match key {
                Some(key) => key,
                None => match self.store.read(silt_device::Kind::Tables, BlockNr(block)) {
                    Ok(b) => Node::block(&b).key(0),
                    Err(_) => {
                        free.remove(&segment(block));
                        continue;
                    }
                },
            };
            if self.dat.file.block_mut(&self.store, &Physical, key, |_| {}).is_ok() {
            } else if self.is_unused_by_table(key) {
                self.dat.file.data.insert(key, block::zeroed(self.store.geometry.bs()));
            } else {
                free.remove(&segment(block));
            }
        }
        Ok(())
    }

    /// Gives segments back that nothing is wanted of any more. Only when the state that no longer needs them is
    /// durable.
    pub(crate) fn give_back(&mut self, segments: &BTreeSet<u64>) -> Result<()> {
        for s in segments {
            let bad = self.sufile.entry(&self.store, &self.dat, SegNr(*s))?.is_error();
            if SegNr(*s) != self.cursor.segment && SegNr(*s) != self.cursor.next {
                if bad {
                    self.sufile.set_error(&self.store, &self.dat, SegNr(*s))?;
                } else {
                    self.sufile.free(&self.store, &self.dat, SegNr(*s))?;
                }
                self.meta_dirty = true;
            }
        }
        Ok(())
    }

    /// Marks segments as bad: nobody takes them for new logs, and none that holds something is cleaned.
    pub(crate) fn mark_bad(&mut self, segments: impl Iterator<Item = u64>) -> Result<()> {
        for s in segments.map(SegNr) {
            if self.sufile.entry(&self.store, &self.dat, s)?.nblocks.get() == 0 {
                self.sufile.set_error(&self.store, &self.dat, s)?;
            } else {
                let bad = |e: &mut SuEntry| e.flags = (e.flags.get() | su::ERROR | su::DIRTY).into();
                self.sufile.change(&self.store, &self.dat, s, bad)?;
            }
            self.meta_dirty = true;
        }
        Ok(())
    }
}
