//! Other checkpoints' versions of one inode: which are the same file's.
//!
//! A number is taken again when its file is gone, often within one checkpoint. What tells files apart, the surest
//! first: a block that lives at both moments, the generation (format 8.1), and a moment in between at which the number was
//! free; else the same name in both checkpoints. Where nothing tells, it is not the same.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use silt_format::dir;
use silt_format::inode::RawInode;
use silt_format::{Cno, Ino, VBlockNr};

use super::contents::Content;
use super::doubts::Doubts;
use super::mapped::{Role, Seen};
use crate::ifile::IFile;
use crate::meta::{NodeReader, read_data};
use crate::volume::Volume;
use crate::{Error, bmap, inode};

/// Blocks that are looked up in a version's map.
const LOOKED_UP: usize = 8;

/// Lives of blocks, each with the first and the last block (offset and number) that has it.
type Lives = BTreeMap<(u64, u64), [(u64, VBlockNr); 2]>;

/// A name of an inode in the tree at hand.
#[derive(Debug, Clone)]
pub struct InDirectory {
    /// The inode of its directory.
    pub directory: Ino,
    pub name: Vec<u8>,
}

/// What tells of which file an inode is, besides its blocks.
pub(crate) struct Evidence<'a> {
    pub doubts: &'a Doubts,
    pub name: Option<&'a InDirectory>,
}

/// An inode as another checkpoint has it.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub cno: Cno,
    pub raw: RawInode,
    /// A block of it lives in the tree at hand, too.
    pub linked: bool,
    /// It is what is there now.
    pub same: bool,
}

/// Blocks of data that a map has.
#[derive(Default)]
struct DataBlocks(Vec<u64>);

impl Seen for DataBlocks {
    fn block(&mut self, _: Ino, v: u64, role: Role) -> bool {
        if let Role::Data(_) = role {
            self.0.push(v);
        }
        true
    }
    fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {}
}

/// Holds a map against the blocks that live in a tree.
struct Held<'a> {
    v: &'a Volume,
    own: &'a BTreeMap<u64, VBlockNr>,
    same: usize,
    /// Of the map and of the tree, and not among `own`.
    more: BTreeMap<u64, VBlockNr>,
    other: bool,
}

impl Seen for Held<'_> {
    fn block(&mut self, _: Ino, v: u64, role: Role) -> bool {
        let Role::Data(key) = role else { return true };
        if let Some(own) = self.own.get(&key) {
            self.same += usize::from(own.0 == v);
            self.other |= own.0 != v;
        } else if self.v.lives(VBlockNr(v)) {
            self.more.insert(key, VBlockNr(v));
        } else {
            self.other = true;
        }
        true
    }
    fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {
        self.other = true;
    }
}

impl Volume {
    fn lives(&self, v: VBlockNr) -> bool {
        self.dat.entry(&self.store, v).is_ok_and(|e| self.is_of_tree(e.start.get(), e.end.get()))
    }

    /// From when to when blocks of the content lived, by beginning and end, each with the first and the last one.
    fn lives_of(&self, content: &Content) -> Lives {
        let mut lives = Lives::new();
        for (offset, v) in &content.blocks {
            let Ok(e) = self.dat.entry(&self.store, *v) else { continue };
            let block = (*offset, *v);
            let life = lives.entry((e.start.get(), e.end.get())).or_insert([block; 2]);
            life[1] = block;
        }
        lives
    }

    /// Whether a block of a content lives at a checkpoint, too, in which the inode is `raw`. By the map: after a roll-back
    /// blocks seem to have lived at the checkpoints that were left, in which the number may have been another file's. What
    /// cannot be read of a map does not tell against it.
    fn is_linked(&self, lives: &Lives, cno: Cno, raw: &RawInode) -> bool {
        // Those that began last are the least likely to have come back to life.
        let begun = lives.range(..=(cno.0, u64::MAX)).rev();
        let at_both = begun.filter(|((_, end), _)| *end > cno.0);
        let mut blocks = at_both.flat_map(|(_, blocks)| blocks).take(LOOKED_UP);
        blocks.any(|(offset, v)| self.has_block(raw, *offset, *v))
    }

    /// Whether an inode of some checkpoint has a block of data at an offset, or it cannot be told.
    pub(super) fn has_block(&self, raw: &RawInode, offset: u64, v: VBlockNr) -> bool {
        let nodes = HashMap::new();
        let reader = NodeReader { nodes: &nodes, store: &self.store, resolve: &self.dat };
        raw.has_map() && bmap::lookup(&raw.bmap, &reader, offset).map_or(true, |found| found == Some(v.0))
    }

    /// Versions of an inode, of which nothing is to be believed that is in the tree at hand, in other checkpoints: those first
    /// that are likeliest to be as it was. Left out is what was, or may have been, another file's that had the number before or
    /// later. `content` is what logs have of it.
    pub(super) fn versions(
        &self,
        ino: Ino,
        content: Option<&Content>,
        evidence: &Evidence<'_>,
    ) -> Vec<Version> {
        let g = &self.store.geometry;
        let lives = content.map(|content| self.lives_of(content)).unwrap_or_default();
        let now = self.ifile.get(&self.store, &self.dat, ino).ok();
        let (mut all, mut free) = (Vec::new(), [false; 2]);
        for (cno, ifile) in self.other_ifiles() {
            let side = usize::from(self.is_later(cno));
            if free.get(side).is_none_or(|free| *free) {
                continue;
            }
            match ifile.get(&self.store, &self.dat, ino) {
                Ok(raw) => {
                    let root = ino != Ino::ROOT || raw.file_type() == 0o040_000;
                    let same = now
                        .is_some_and(|now| (now.bmap, now.size, now.mode) == (raw.bmap, raw.size, raw.mode));
                    if root && raw.links_count.get() > 0 && inode::check(g, &raw).is_ok() {
                        let linked = self.is_linked(&lives, cno, &raw);
                        all.push((Version { cno, raw, linked, same }, ifile));
                    }
                }
                Err(Error::NoInode(_)) if !self.is_doubtful(&ifile, ino, evidence.doubts) => {
                    if let Some(free) = free.get_mut(side) {
                        *free = true;
                    }
                }
                Err(_) => {}
            }
        }
        let linked = all.iter().find(|(v, _)| v.linked).map(|(v, _)| v.raw.generation.get());
        let sure = linked.or_else(|| self.told_otherwise(ino, &all, evidence.name));
        // Of what has no name and no content, or too much to know it, nothing tells that it is not the same.
        let mute = evidence.name.is_none() && content.is_none_or(|content| content.blocks.is_empty());
        let any = mute && self.dat.past.is_none();
        let mut all: Vec<Version> = all.into_iter().map(|(v, _)| v).collect();
        all.retain(|v| v.linked || sure.map_or(any, |sure| v.raw.generation.get() == sure));
        all.sort_by_key(|v| !v.linked);
        all
    }

    /// Whether a checkpoint is behind the tree at hand.
    pub(super) fn is_later(&self, cno: Cno) -> bool {
        self.dat.past.is_some_and(|(_, to)| cno >= to)
    }

    /// The generation of the file where no block tells: of the nearest version behind a past tree that was not changed since, or
    /// of the nearest to which the same name leads, in that checkpoint too.
    fn told_otherwise(&self, ino: Ino, all: &[(Version, IFile)], name: Option<&InDirectory>) -> Option<u32> {
        if ino == Ino::ROOT {
            return all.first().map(|(v, _)| v.raw.generation.get());
        }
        if let Some((from, _)) = self.dat.past
            && let Some((later, _)) = all.iter().find(|(v, _)| self.is_later(v.cno))
            && let Some(entry) = self.cpfile.get(&self.store, &self.dat, from).ok().flatten()
            && later.raw.ctime.get() < entry.create.get()
        {
            return Some(later.raw.generation.get());
        }
        let name = name?;
        let mut asked = BTreeSet::new();
        let nearest =
            all.iter().filter(|(v, _)| asked.insert((self.is_later(v.cno), v.raw.generation.get())));
        let mut nearest = nearest.filter(|(_, ifile)| self.is_named(ifile, name, ino));
        nearest.next().map(|(v, _)| v.raw.generation.get())
    }

    /// Whether a name leads to an inode in another checkpoint.
    fn is_named(&self, ifile: &IFile, name: &InDirectory, ino: Ino) -> bool {
        let Ok(raw) = ifile.get(&self.store, &self.dat, name.directory) else { return false };
        if raw.file_type() != 0o040_000 {
            return false;
        }
        let mut blocks = DataBlocks::default();
        self.see_map(name.directory, &raw.bmap, &mut blocks);
        blocks.0.iter().any(|v| {
            let block = read_data(&self.store, &self.dat, silt_device::Kind::Data, *v);
            block.is_ok_and(|b| {
                dir::entries(&b).map_while(Result::ok).any(|e| e.ino == ino && e.name == name.name)
            })
        })
    }

    /// Whether a version's content is that of the tree at hand, of which logs have `content`: block by block, and nothing else.
    pub(super) fn is_content(&self, ino: Ino, raw: &RawInode, content: &Content) -> bool {
        let held = self.held(ino, raw, content);
        !held.other && held.same == content.blocks.len()
    }

    /// Blocks of a version that live in the tree at hand, too, and that logs do not have.
    pub(super) fn more_of(&self, ino: Ino, raw: &RawInode, content: &Content) -> BTreeMap<u64, VBlockNr> {
        self.held(ino, raw, content).more
    }

    fn held<'a>(&'a self, ino: Ino, raw: &RawInode, content: &'a Content) -> Held<'a> {
        let mut held = Held { v: self, own: &content.blocks, same: 0, more: BTreeMap::new(), other: false };
        if raw.has_map() {
            self.see_map(ino, &raw.bmap, &mut held);
        }
        held
    }
}
