//! The disk address translation file: finding its blocks, translating, and checking it.
//!
//! Memory: 16 bytes a block of the DAT, and sets of a bit or four bytes a used entry.

use std::collections::{BTreeMap, HashMap};

use silt_format::dat::{DatEntry, LIVE};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Geometry, Ino};

use crate::context::Context;
use crate::invariants::{self as inv, Invariant};
use crate::map::{self, NodeRef, Visitor};
use crate::palloc;
use crate::reader::{Block, Reader};
use crate::report::Place;
use crate::sparse::{SparseArray, SparseBits};

/// The DAT's blocks.
pub struct Dat {
    pub layout: Layout,
    /// Disk block by file block offset.
    pub blocks: BTreeMap<u64, u64>,
    /// (first key, level) by disk block, of its B-tree nodes.
    pub nodes: HashMap<u64, (u64, u8)>,
}

/// Collects the DAT's map. `complain` is called with what is wrong.
struct Walk<'a, 'b, F> {
    r: &'a Reader<'b>,
    dat: Dat,
    seen: SparseBits,
    complain: F,
}

impl<F: FnMut(&'static Invariant, Place, String)> Walk<'_, '_, F> {
    fn claim(&mut self, block: u64) -> bool {
        let place = Place::ino(Ino::DAT.0).at_block(block);
        if !self.r.g.holds(BlockNr(block)) {
            (self.complain)(&inv::DAT_OWN_PLACE, place, "lies outside the segments".into());
            return false;
        }
        if !self.seen.insert(block) {
            (self.complain)(&inv::DAT_OWN_PLACE, place, "is used twice by the DAT".into());
            return false;
        }
        true
    }
}

impl<F: FnMut(&'static Invariant, Place, String)> Visitor for Walk<'_, '_, F> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        if !self.claim(node.ptr) {
            return None;
        }
        self.dat.nodes.insert(node.ptr, (node.key, node.level));
        match self.r.block(BlockNr(node.ptr)) {
            Ok(b) => Some(b),
            Err(e) => {
                (self.complain)(&inv::DEVICE_READ, Place::ino(Ino::DAT.0).at_block(node.ptr), e);
                None
            }
        }
    }

    fn data(&mut self, key: u64, ptr: u64) {
        if !self.dat.layout.has_block(key) {
            let place = Place::ino(Ino::DAT.0).at_offset(key);
            (self.complain)(&inv::PALLOC_KEY, place, "no group reaches this offset".into());
        } else if self.claim(ptr) {
            self.dat.blocks.insert(key, ptr);
        }
    }

    fn bad(&mut self, invariant: &'static Invariant, node: Option<NodeRef>, what: String) {
        let place = Place { block: node.map(|n| n.ptr), ..Place::ino(Ino::DAT.0) };
        (self.complain)(invariant, place, what);
    }
}

impl Dat {
    /// Finds all blocks of the DAT.
    pub(crate) fn load(
        r: &Reader<'_>,
        inode: &RawInode,
        complain: impl FnMut(&'static Invariant, Place, String),
    ) -> Dat {
        let layout = Layout::dat(&r.g);
        let dat = Dat { layout, blocks: BTreeMap::new(), nodes: HashMap::new() };
        let mut walk = Walk { r, dat, seen: SparseBits::default(), complain };
        map::walk(&inode.bmap, &mut walk);
        walk.dat
    }

    /// The entry of a virtual block as it lies on disk; `Ok(None)` where its block is a hole.
    pub(crate) fn entry(&self, r: &Reader<'_>, vblock: u64) -> Result<Option<DatEntry>, String> {
        self.layout.check("DAT", vblock).map_err(|e| e.to_string())?;
        let place = self.layout.entry(vblock);
        let Some(block) = self.blocks.get(&place.block) else { return Ok(None) };
        let bytes = r.block(BlockNr(*block))?;
        DatEntry::read(&bytes, place.byte).map(Some).map_err(|e| e.to_string())
    }

    /// Whether the entry's bit is set.
    pub(crate) fn is_allocated(&self, r: &Reader<'_>, vblock: u64) -> Result<bool, String> {
        self.layout.check("DAT", vblock).map_err(|e| e.to_string())?;
        let bitmap = self.layout.bitmap_block(self.layout.group(vblock));
        let Some(block) = self.blocks.get(&bitmap) else { return Ok(false) };
        let bytes = r.block(BlockNr(*block))?;
        let bit = self.layout.bit(vblock);
        Ok(bytes.get(bit / 8).is_some_and(|b| b & (1 << (bit % 8)) != 0))
    }
}

/// What the check knows of virtual blocks.
#[derive(Default)]
pub(crate) struct DatState {
    /// Bits set in the DAT.
    pub allocated: SparseBits,
    /// Allocated, and current (end = MAX).
    pub live: SparseBits,
    /// Mapped by the current tree or metadata.
    pub mapped: SparseBits,
    /// Digest of (inode, offset or node) in the log record at the entry's disk block; 0 = no such
    /// record.
    pub owner: SparseArray<u32>,
    /// Blocks of which something was found and not yet whose they are.
    pub troubled: SparseBits,
    /// Disk blocks that the DAT or an allocated entry claims.
    pub claimed: SparseBits,
    /// Disk blocks of the DAT whose log record is right.
    pub own_attributed: SparseBits,
    /// Blocks of which no summary tells what they are, since it is lost: first ones, and those behind the last.
    pub silent: BTreeMap<u64, u64>,
    /// Logs that do not verify: first blocks, and those behind the last.
    pub unverified: BTreeMap<u64, u64>,
}

fn is_in(ranges: &BTreeMap<u64, u64>, block: u64) -> bool {
    ranges.range(..=block).next_back().is_some_and(|(_, end)| block < *end)
}

impl DatState {
    fn is_silent(&self, block: u64) -> bool {
        is_in(&self.silent, block)
    }

    /// Whether a block is in a log that does not verify.
    pub fn is_unverified(&self, block: u64) -> bool {
        is_in(&self.unverified, block)
    }
}

/// Offset that stands for "a node" in [`owner_digest`].
pub(crate) const NODE: u64 = u64::MAX;

/// A digest that is never 0.
pub(crate) fn owner_digest(ino: u64, offset: u64) -> u32 {
    let mixed = (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.rotate_left(32))
        .wrapping_mul(0xD6E8_FEB8_6659_FD93);
    ((mixed >> 32) as u32).max(1)
}

/// Bitmaps and counts.
pub(crate) fn check_bitmaps(c: &mut Context<'_>) {
    let mut state = std::mem::take(&mut c.dat_state);
    palloc::check(c, &c.dat.layout, &c.dat.blocks, Ino::DAT.0, None, &mut state.allocated);
    c.out.stats(|s| s.dat_entries = state.allocated.len());
    c.dat_state = state;
}

/// Whether the DAT's own blocks lie where they may. The sufile has been read.
pub(crate) fn check_places(c: &mut Context<'_>) {
    let mut state = std::mem::take(&mut c.dat_state);
    for block in c.dat.blocks.values().chain(c.dat.nodes.keys()) {
        state.claimed.insert(*block);
        if !c.segments.covers(&c.r.g, *block) {
            let place = Place::ino(Ino::DAT.0).at_block(*block);
            c.out.add(&inv::DAT_OWN_PLACE, place, "is not in the used part of a dirty segment");
        }
    }
    c.dat_state = state;
}

/// Every allocated entry by itself. Logs have been read: `owner` is known.
pub(crate) fn check_entries(c: &mut Context<'_>) {
    let mut state = std::mem::take(&mut c.dat_state);
    if !state.allocated.contains(0) {
        c.out.add(&inv::DAT_ZERO, Place::vblock(0), "entry 0 is free: the next allocation would use it");
    }
    let mut live = std::mem::take(&mut state.live);
    c.watch.stage("checking the block table", state.allocated.len());
    for (i, v) in state.allocated.iter().enumerate() {
        if i % 4096 == 0 {
            c.watch.done(if i == 0 { 0 } else { 4096 });
            if c.stop() {
                break;
            }
        }
        let place = Place::vblock(v);
        let entry = match c.dat.entry(&c.r, v) {
            Ok(Some(e)) => e,
            Ok(None) => {
                c.out.add(&inv::DAT_ENTRY_HOLE, place, "is allocated but its block is missing");
                continue;
            }
            Err(e) => {
                c.out.add(&inv::DEVICE_READ, place, e);
                continue;
            }
        };
        let (block, start, end) = (entry.blocknr.get(), entry.start.get(), entry.end.get());
        if v == 0 {
            if block != 0 {
                c.out.add(&inv::DAT_ZERO, place, format!("entry 0 translates to block {block}"));
            }
            continue;
        }
        if entry.rsv.get() != 0 {
            c.out.add(&inv::DAT_RSV, place, format!("reserved bytes are {:#x}", entry.rsv));
        }
        if block == 0 {
            c.out.add(&inv::DAT_UNWRITTEN, place, "is allocated but was never written");
            if end == LIVE {
                live.insert(v);
            }
            continue;
        }
        let place = place.at_block(block);
        if start == 0 || start > end || start > c.cno || (end != LIVE && end > c.cno) {
            let message = format!("lives from {start} to {end}; the latest checkpoint is {}", c.cno);
            c.out.add(&inv::DAT_LIFETIME, place, message);
        }
        if end == LIVE {
            live.insert(v);
        }
        if !c.segments.covers(&c.r.g, block) {
            c.out.add(&inv::DAT_BLOCKNR, place, "is not in the used part of a dirty segment");
            continue;
        }
        if !state.claimed.insert(block) {
            c.out.add(&inv::DAT_SHARED, place, "another entry or the DAT itself claims this block");
        }
        if state.owner.get(v) == 0 && !state.is_silent(block) {
            c.out.add(&inv::DAT_ATTRIBUTION, place, "no log record at this block names it");
        }
    }
    for block in c.dat.blocks.values().chain(c.dat.nodes.keys()) {
        let told = state.own_attributed.contains(*block) || state.is_silent(*block);
        if !told && c.segments.covers(&c.r.g, *block) {
            let place = Place::ino(Ino::DAT.0).at_block(*block);
            c.out.add(&inv::DAT_OWN_BLOCK, place, "the log record there describes something else");
        }
    }
    c.out.stats(|s| s.live_blocks = live.len());
    for v in c.out.ownerless() {
        state.troubled.insert(v);
    }
    state.live = live;
    c.dat_state = state;
}

/// Current entries that nothing maps. To be called when all current maps have been walked.
pub(crate) fn check_unmapped(c: &Context<'_>) {
    let state = &c.dat_state;
    for v in state.live.iter().filter(|v| !state.mapped.contains(*v)) {
        c.out.add(&inv::DAT_UNMAPPED, Place::vblock(v), "is current but nothing maps it");
    }
}

/// What a log record says of a virtual block at `block`; called for every record of every log.
pub(crate) fn note_record(c: &mut Context<'_>, block: u64, ino: u64, fi_cno: u64, v: u64, offset: u64) {
    let allocated = c.dat_state.allocated.contains(v);
    let entry = if allocated { c.dat.entry(&c.r, v) } else { Ok(None) };
    let here = matches!(&entry, Ok(Some(e)) if e.blocknr.get() == block);
    // What has one version only gives its number back at once, and a number that cannot be looked up is told elsewhere.
    if !here && fi_cno != 0 && (!allocated || matches!(entry, Ok(Some(_)))) {
        c.segments.leave(&c.r.g, block);
    }
    let Ok(Some(entry)) = entry else { return };
    if !here {
        return;
    }
    *c.dat_state.owner.slot(v) = owner_digest(ino, offset);
    let (start, end) = (entry.start.get(), entry.end.get());
    let place = Place::ino(ino).at_vblock(v).at_block(block);
    let single = ino == Ino::CPFILE.0 || ino == Ino::SUFILE.0;
    // mkfs.nilfs2 writes 1 in all records of the first log.
    let right = if single { fi_cno == 0 || (fi_cno == 1 && start == 1) } else { fi_cno == start };
    if !right {
        let message = format!("its record belongs to checkpoint {fi_cno}, the block begins at {start}");
        c.out.add(&inv::DAT_FI_CNO, place, message);
    }
    if single && end != LIVE && end != start {
        c.out.add(&inv::DAT_VS_END, place, format!("lives from {start} to {end}"));
    }
}

/// What a log record says of a block of the DAT.
pub(crate) fn note_own_record(c: &mut Context<'_>, block: u64, key: u64, level: u8) {
    let right = if level == 0 {
        c.dat.blocks.get(&key) == Some(&block)
    } else {
        c.dat.nodes.get(&block) == Some(&(key, level))
    };
    if right {
        c.dat_state.own_attributed.insert(block);
    }
}

/// Whether a number can be that of a virtual block.
pub(crate) fn is_possible(g: &Geometry, vblock: u64) -> bool {
    Layout::dat(g).check("DAT", vblock).is_ok()
}
