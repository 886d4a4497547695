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
use crate::report::{Held, Place, Severity};
use crate::shared::Part;
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
    /// The checkpoints in which all blocks are alive, from the first to before the second; (0, 0) if anything is wrong.
    pub lives: (u64, u64),
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
    /// Disk block of the inode, where it is one of a tree.
    inode: Option<u64>,
    /// What was met of the root, of the node below it that is being walked, and so on down; with their disk blocks.
    open: Vec<(u64, Part)>,
    blocks: Vec<(u64, u64)>,
}

impl Walk<'_, '_> {
    fn place(&self) -> Place {
        let place = Place::ino(self.ino);
        // The metadata files have one version only.
        if (3..=5).contains(&self.ino) { place } else { place.at_cno(self.scope.cno) }
    }

    /// What a pointer was read from, where that is likelier to be wrong than the table.
    fn held(&self, v: u64) -> Option<Held> {
        let state = &self.c.dat_state;
        if state.unverified.is_empty() {
            return None;
        }
        let table = self.c.dat.layout.check("DAT", v).ok().map(|v| self.c.dat.layout.entry(v).block);
        if table.and_then(|t| self.c.dat.blocks.get(&t)).is_some_and(|b| state.is_unverified(*b)) {
            return None;
        }
        // From the root down: what a wrong one leads to may verify, as part of something else.
        let inode = self.inode.filter(|b| state.is_unverified(*b)).map(Held::Inode);
        let node = |(b, _): &&(u64, Part)| *b != 0 && state.is_unverified(*b);
        inode.or_else(|| self.open.iter().find(node).map(|(b, _)| Held::Node(*b)))
    }

    fn top(&mut self) -> &mut Part {
        if self.open.is_empty() {
            self.open.push((0, Part::EMPTY));
        }
        let last = self.open.len() - 1;
        &mut self.open[last].1
    }

    fn wrong(&mut self, invariant: &'static Invariant, place: Place, what: impl Into<String>) {
        self.top().spoil();
        self.c.out.add(invariant, place, what);
    }

    /// Disk block of a mapped virtual block; `None` where it has none that can be used.
    fn translate(&mut self, v: u64, offset: u64, place: Place) -> Option<u64> {
        let c = self.c;
        let place = Place { held: self.held(v), ..place.at_vblock(v) };
        if c.dat_state.troubled.contains(v) {
            c.out.owner(v, place);
        }
        if c.dat.layout.check("DAT", v).is_err() || !c.dat_state.allocated.contains(v) {
            self.wrong(&inv::MAP_VBLOCK, place, "is mapped but not allocated");
            return None;
        }
        let owner = c.dat_state.owner.get(v);
        let mine = owner_digest(self.ino, offset);
        // Of two, the one that the log names is right; the other is told as such.
        if !self.scope.mapped.insert(v) && owner != mine {
            self.wrong(&inv::MAP_TWICE, place, "is mapped twice");
            return None;
        }
        let entry = match c.dat.entry(&c.r, v) {
            Ok(Some(e)) => e,
            Ok(None) => {
                self.wrong(&inv::MAP_UNWRITTEN, place, "is mapped but its DAT block is missing");
                return None;
            }
            Err(e) => {
                self.wrong(&inv::DEVICE_READ, place, e);
                return None;
            }
        };
        let (block, start, end) = (entry.blocknr.get(), entry.start.get(), entry.end.get());
        if block == 0 {
            self.wrong(&inv::MAP_UNWRITTEN, place, "is mapped but was never written");
            return None;
        }
        let place = place.at_block(block);
        self.top().lives(start, end);
        if self.scope.current && (end != LIVE || start > self.scope.cno) {
            self.wrong(&inv::MAP_DEAD, place, format!("lives from {start} to {end}"));
        } else if !entry.contains(self.scope.cno) {
            self.wrong(&inv::MAP_LIFETIME, place, format!("lives from {start} to {end}"));
        }
        if owner != 0 && owner != mine {
            self.wrong(&inv::MAP_OWNER, place, "the log record there names another file or offset");
        }
        if !c.r.g.holds(BlockNr(block)) {
            self.top().spoil();
            return None;
        }
        Some(block)
    }
}

/// The part of the file that a node covers.
fn span(place: Place, node: NodeRef) -> Place {
    place.at_span(node.key, node.bound.unwrap_or(u64::MAX))
}

impl Visitor for Walk<'_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        let place = span(self.place(), node);
        self.top().nodes += 1;
        let block = self.translate(node.ptr, NODE, place)?;
        match self.c.r.block(BlockNr(block)) {
            Ok(b) => {
                self.open.push((block, Part::EMPTY));
                Some(b)
            }
            Err(e) => {
                self.wrong(&inv::DEVICE_READ, place.at_vblock(node.ptr).at_block(block), e);
                None
            }
        }
    }

    fn known(&mut self, _: NodeRef) -> bool {
        // What the current tree maps must all be seen, and so must blocks that are wanted.
        if self.scope.current || self.collect {
            return false;
        }
        let Some((block, own)) = self.open.last_mut() else { return false };
        let Some(part) = self.c.shared.get(*block, self.scope.cno) else { return false };
        own.add(&part);
        true
    }

    fn leave(&mut self, _: NodeRef) {
        let Some((block, part)) = self.open.pop() else { return };
        self.c.shared.put(block, part);
        self.top().add(&part);
    }

    fn data(&mut self, key: u64, ptr: u64) {
        let place = self.place().at_offset(key);
        let top = self.top();
        top.data += 1;
        top.greatest = Some(key);
        if key > self.c.r.g.max_key() {
            self.wrong(&inv::MAP_KEY, place, "lies behind the greatest file size");
            return;
        }
        if let Some(block) = self.translate(ptr, key, place)
            && self.collect
        {
            self.blocks.push((key, block));
        }
    }

    fn bad(&mut self, invariant: &'static Invariant, node: Option<NodeRef>, what: String) {
        let place = match node {
            Some(node) => span(self.place(), node).at_vblock(node.ptr),
            None => self.place(),
        };
        self.wrong(invariant, place, what);
    }
}

/// An inode, and the disk block that it was read from where it is one of a tree.
pub(crate) struct Owner<'i> {
    pub ino: u64,
    pub raw: &'i RawInode,
    pub block: Option<u64>,
}

/// Walks and judges the map of an inode; keeps the places of data blocks if `collect`. Of a past tree, what was found
/// sound in another one is not walked again.
pub(crate) fn walk(c: &Context<'_>, scope: &mut Scope, of: &Owner<'_>, collect: bool) -> Tally {
    let open = vec![(0, Part::EMPTY)];
    let mut walk = Walk { c, scope, ino: of.ino, collect, inode: of.block, open, blocks: Vec::new() };
    map::walk(&of.raw.bmap, &mut walk);
    let part = *walk.top();
    let lives = if part.to == 0 { (0, 0) } else { (part.from, part.to) };
    Tally { data: part.data, nodes: part.nodes, greatest: part.greatest, blocks: walk.blocks, lives }
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
