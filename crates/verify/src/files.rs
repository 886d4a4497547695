//! Walks the map of a file whose pointers are virtual, and judges every block it finds.

use std::collections::BTreeMap;

use silt_format::BlockNr;
use silt_format::dat::LIVE;
use silt_format::inode::RawInode;

use crate::context::Context;
use crate::dat::{Dat, NODE, owner_digest};
use crate::invariants::{self as inv, Invariant};
use crate::map::{self, NodeRef, Visitor};
use crate::reader::{Block, Reader};
use crate::report::{Place, Severity};
use crate::sparse::SparseBits;

/// One tree that is walked: its checkpoint and what it has mapped so far.
pub(crate) struct Scope {
    pub cno: u64,
    /// Whether it is the current tree, all of whose blocks must be current.
    pub current: bool,
    pub mapped: SparseBits,
}

/// What a map holds.
#[derive(Default)]
pub(crate) struct Tally {
    pub data: u64,
    pub nodes: u64,
    /// Greatest offset that is mapped.
    pub greatest: Option<u64>,
    /// (offset, disk block) of the data blocks, where asked for.
    pub blocks: Vec<(u64, u64)>,
}

impl Tally {
    /// Data and node blocks.
    pub fn total(&self) -> u64 {
        self.data.saturating_add(self.nodes)
    }

    /// The collected blocks by offset.
    pub fn by_offset(&self) -> BTreeMap<u64, u64> {
        self.blocks.iter().copied().collect()
    }
}

struct Walk<'c, 'a> {
    c: &'c Context<'a>,
    scope: &'c mut Scope,
    ino: u64,
    collect: bool,
    tally: Tally,
}

impl Walk<'_, '_> {
    fn place(&self) -> Place {
        let place = Place::ino(self.ino);
        // The metadata files have one version only.
        if (3..=5).contains(&self.ino) { place } else { place.at_cno(self.scope.cno) }
    }

    /// Disk block of a mapped virtual block; `None` where it has none that can be used.
    fn translate(&mut self, v: u64, offset: u64, place: Place) -> Option<u64> {
        let c = self.c;
        let place = place.at_vblock(v);
        if c.dat.layout.check("DAT", v).is_err() || !c.dat_state.allocated.contains(v) {
            c.out.add(&inv::MAP_VBLOCK, place, "is mapped but not allocated");
            return None;
        }
        if !self.scope.mapped.insert(v) {
            c.out.add(&inv::MAP_TWICE, place, "is mapped twice");
            return None;
        }
        let entry = match c.dat.entry(&c.r, v) {
            Ok(Some(e)) => e,
            Ok(None) => {
                c.out.add(&inv::MAP_UNWRITTEN, place, "is mapped but its DAT block is missing");
                return None;
            }
            Err(e) => {
                c.out.add(&inv::DEVICE_READ, place, e);
                return None;
            }
        };
        let (block, start, end) = (entry.blocknr.get(), entry.start.get(), entry.end.get());
        if block == 0 {
            c.out.add(&inv::MAP_UNWRITTEN, place, "is mapped but was never written");
            return None;
        }
        let place = place.at_block(block);
        if self.scope.current && (end != LIVE || start > self.scope.cno) {
            c.out.add(&inv::MAP_DEAD, place, format!("lives from {start} to {end}"));
        } else if !entry.contains(self.scope.cno) {
            c.out.add(&inv::MAP_LIFETIME, place, format!("lives from {start} to {end}"));
        }
        let owner = c.dat_state.owner.get(v);
        if owner != 0 && owner != owner_digest(self.ino, offset) {
            c.out.add(&inv::MAP_OWNER, place, "the log record there names another file or offset");
        }
        if !c.r.g.holds(BlockNr(block)) {
            return None;
        }
        Some(block)
    }
}

impl Visitor for Walk<'_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        let place = self.place();
        self.tally.nodes += 1;
        let block = self.translate(node.ptr, NODE, place)?;
        match self.c.r.block(BlockNr(block)) {
            Ok(b) => Some(b),
            Err(e) => {
                self.c.out.add(&inv::DEVICE_READ, place.at_vblock(node.ptr).at_block(block), e);
                None
            }
        }
    }

    fn data(&mut self, key: u64, ptr: u64) {
        let place = self.place().at_offset(key);
        self.tally.data += 1;
        self.tally.greatest = Some(key);
        if key > self.c.r.g.max_key() {
            self.c.out.add(&inv::MAP_KEY, place, "lies behind the greatest file size");
            return;
        }
        if let Some(block) = self.translate(ptr, key, place)
            && self.collect
        {
            self.tally.blocks.push((key, block));
        }
    }

    fn bad(&mut self, invariant: &'static Invariant, node: Option<NodeRef>, what: String) {
        let place = Place { vblock: node.map(|n| n.ptr), ..self.place() };
        self.c.out.add(invariant, place, what);
    }
}

/// Walks and judges the map of `ino`; keeps the places of data blocks if `collect`.
pub(crate) fn walk(c: &Context<'_>, scope: &mut Scope, ino: u64, inode: &RawInode, collect: bool) -> Tally {
    let mut walk = Walk { c, scope, ino, collect, tally: Tally::default() };
    map::walk(&inode.bmap, &mut walk);
    walk.tally
}

/// Data blocks of a map, of which only what can be read is wanted and nothing is judged.
struct Plain<'c, 'a> {
    r: &'c Reader<'a>,
    dat: &'c Dat,
    seen: SparseBits,
    blocks: BTreeMap<u64, u64>,
    /// The first thing that was wrong.
    wrong: Option<String>,
}

impl Plain<'_, '_> {
    fn translate(&mut self, v: u64) -> Option<u64> {
        let found = match self.dat.entry(self.r, v) {
            Ok(Some(e)) if self.r.g.holds(BlockNr(e.blocknr.get())) => Ok(e.blocknr.get()),
            Ok(_) => Err(format!("virtual block {v} has no place on disk")),
            Err(e) => Err(e),
        };
        let allocated = self.dat.is_allocated(self.r, v);
        match (found, allocated) {
            (Ok(block), Ok(true)) if self.seen.insert(v) => Some(block),
            (Err(e), _) | (_, Err(e)) => {
                self.wrong.get_or_insert(e);
                None
            }
            _ => {
                self.wrong.get_or_insert(format!("virtual block {v} is free or mapped twice"));
                None
            }
        }
    }
}

impl Visitor for Plain<'_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        let block = self.translate(node.ptr)?;
        self.r.block(BlockNr(block)).map_err(|e| self.wrong.get_or_insert(e).len()).ok()
    }

    fn data(&mut self, key: u64, ptr: u64) {
        if key <= self.r.g.max_key()
            && let Some(block) = self.translate(ptr)
        {
            self.blocks.insert(key, block);
        }
    }

    fn bad(&mut self, invariant: &'static Invariant, _: Option<NodeRef>, what: String) {
        if invariant.severity == Severity::Error {
            self.wrong.get_or_insert(what);
        }
    }
}

/// (Disk block by offset, the first thing that is wrong with the map) of a file with virtual
/// pointers.
pub(crate) fn plain(r: &Reader<'_>, dat: &Dat, inode: &RawInode) -> (BTreeMap<u64, u64>, Option<String>) {
    let mut walk = Plain { r, dat, seen: SparseBits::default(), blocks: BTreeMap::new(), wrong: None };
    map::walk(&inode.bmap, &mut walk);
    (walk.blocks, walk.wrong)
}
