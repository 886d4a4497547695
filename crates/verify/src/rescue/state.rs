//! The state that one super root describes: its DAT, and maps read through it, with summaries in place of what is lost.
//!
//! Three sources in this order: what verifies (the log's checksum matches) is believed; what does not verify but
//! agrees with a summary is believed; else the summaries decide. A lifetime in a sound DAT entry makes that exact: a
//! record is a file's block at a checkpoint where the entry has its place and lives then (spec 7.1).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use parking_lot::Mutex;
use silt_format::btree::{self, LEVEL_MAX, Node, ROOT_BYTES};
use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::Layout;
use silt_format::summary::SYNDT;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Ino};

use super::Rescue;
use super::extents::{Extent, Mapped};
use super::records::{Candidate, Role};
use crate::invariants::Invariant;
use crate::map::{self, NodeRef, Visitor};
use crate::reader::Block;
use crate::report::Severity;
use crate::sparse::SparseBits;

/// What the DAT says of a number.
enum Said {
    /// From a block that verifies.
    Sound(DatEntry),
    /// From one that does not.
    Doubtful(DatEntry),
    Nothing,
}

/// Where a block was found.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub block: u64,
    pub by_offset: bool,
}

/// One super root and its DAT.
pub struct State<'r, 'd> {
    pub(super) rescue: &'r Rescue<'d>,
    pub(super) root: SuperRoot,
    /// Records of later logs are none of this state's.
    order: (u64, u64),
    layout: Layout,
    /// Disk block by offset.
    dat: BTreeMap<u64, u64>,
    /// Offsets of those of which a log that is lost may have had a newer version.
    maybe_older: BTreeSet<u64>,
    /// Owner by disk block of map nodes that were walked: a node has one owner, which bounds the time of all walks.
    claimed: Mutex<HashMap<u64, u64>>,
}

/// Ranges of keys that nodes would have told.
#[derive(Default)]
struct Gaps {
    open: Option<u64>,
    all: Vec<Range<u64>>,
}

impl Gaps {
    /// The walk is at a key: an open gap ends here.
    fn reach(&mut self, key: u64) {
        if let Some(from) = self.open.take()
            && from < key
        {
            self.all.push(from..key);
        }
    }
    fn begin(&mut self, key: u64) {
        self.reach(key);
        self.open = Some(key);
    }
    fn finish(mut self) -> Vec<Range<u64>> {
        self.reach(u64::MAX);
        self.all
    }
}

/// What there is of a block at a checkpoint.
#[derive(Clone, Copy)]
pub(super) enum Version {
    At(Candidate),
    /// It is not known whether there is one; the newest that is known of, which is none, is of this checkpoint.
    Lost {
        newest: u64,
    },
}

/// Of one offset: the version that lives, else the newest of those of which nothing is known.
#[derive(Default)]
struct Best {
    offset: u64,
    /// Whether it is known to live, and the version.
    found: Option<(bool, Candidate)>,
    /// The newest checkpoint that wrote a version, dead or not: those before it ended with it.
    newest: u64,
}

impl Best {
    fn take(&mut self, c: Candidate, lives: Option<bool>) {
        self.newest = self.newest.max(c.cno);
        let better = match (&self.found, lives) {
            (_, Some(false)) | (Some((true, _)), _) => None,
            (_, Some(true)) => Some(true),
            (None, None) => Some(false),
            (Some((_, old)), None) => ((c.cno, c.order) > (old.cno, old.order)).then_some(false),
        };
        if let Some(certain) = better {
            self.found = Some((certain, c));
        }
    }

    fn found(self) -> Option<(u64, Version)> {
        let (certain, c) = self.found?;
        let ended = !certain && c.cno < self.newest;
        Some((self.offset, if ended { Version::Lost { newest: self.newest } } else { Version::At(c) }))
    }
}

/// Files of which the newest version alone matters (spec 1.2).
pub(super) fn is_single(ino: u64) -> bool {
    ino == Ino::CPFILE.0 || ino == Ino::SUFILE.0
}

impl<'r, 'd> State<'r, 'd> {
    /// Loads the DAT of a super root whose log has this order.
    pub(super) fn load(rescue: &'r Rescue<'d>, root: SuperRoot, order: (u64, u64)) -> Self {
        let g = rescue.geometry();
        let mut state = State {
            rescue,
            root,
            order,
            layout: Layout::dat(g),
            dat: BTreeMap::new(),
            maybe_older: BTreeSet::new(),
            claimed: Mutex::default(),
        };
        let bmap = state.root.dat.bmap;
        let mut walk = DatWalk {
            rescue,
            blocks: BTreeMap::new(),
            seen: SparseBits::default(),
            gaps: Gaps::default(),
            doubtful: false,
            log_lost: false,
        };
        map::walk(&bmap, &mut walk);
        let DatWalk { mut blocks, gaps, doubtful, log_lost, .. } = walk;
        let newest = |offset: u64| {
            let mut all = rescue.records().dat_block(offset);
            all.find(|c| c.order <= order).map(|c| c.block)
        };
        for (offset, block) in blocks.iter_mut().filter(|_| doubtful || rescue.misplaced) {
            let named = rescue.records().at(*block);
            // Where no summary speaks, that of its log is lost. A whole log may lie where another should, and the node be
            // an older one, if its log does not verify: the newest version of a block is the right one.
            let other = named.is_some_and(|c| doubtful || c.ino != Ino::DAT.0 || c.offset() != Some(*offset));
            if other || rescue.survey.is_frame(*block) {
                *block = newest(*offset).unwrap_or(*block);
            }
        }
        // A block is written once a checkpoint.
        let newest_cno = rescue.roots().iter().find(|r| r.order == order).map(|r| r.cno);
        let is_newest =
            |block: u64| rescue.survey.log_at(block).is_some_and(|log| Some(log.cno) == newest_cno);
        for gap in gaps.finish() {
            for c in rescue.records().blocks_of(Ino::DAT.0, gap, u64::MAX) {
                if let Some(offset) = c.offset().filter(|_| c.order <= order)
                    && let Entry::Vacant(place) = blocks.entry(offset)
                {
                    place.insert(c.block);
                    if log_lost && !is_newest(c.block) {
                        state.maybe_older.insert(offset);
                    }
                }
            }
        }
        state.dat = blocks;
        state
    }

    /// Whether no newer version of a block of the DAT may have been in a log that is lost.
    pub(super) fn is_complete(&self) -> bool {
        self.maybe_older.is_empty()
    }

    /// Disk block of each block of the DAT, by offset.
    pub(super) fn dat(&self) -> &BTreeMap<u64, u64> {
        &self.dat
    }

    /// The entry of a virtual block, from a block that verifies.
    pub(super) fn entry(&self, v: u64) -> Option<DatEntry> {
        match self.said(v) {
            Said::Sound(entry) => Some(entry),
            Said::Doubtful(_) | Said::Nothing => None,
        }
    }

    fn said(&self, v: u64) -> Said {
        if self.layout.check("DAT", v).is_err() {
            return Said::Nothing;
        }
        let place = self.layout.entry(v);
        let Some(block) = self.dat.get(&place.block).copied() else { return Said::Nothing };
        let Ok(bytes) = self.rescue.block(block) else { return Said::Nothing };
        let Ok(entry) = DatEntry::read(&bytes, place.byte) else { return Said::Nothing };
        let place = entry.blocknr.get();
        let holds = self.rescue.geometry().holds(BlockNr(place));
        let lives = entry.start.get() > 0 && entry.start.get() <= entry.end.get() && entry.rsv.get() == 0;
        // A whole log may lie where another should, and have anything there.
        if self.rescue.survey.is_sound(block) && (place == 0 || (holds && lives)) {
            return Said::Sound(entry);
        }
        if holds && lives { Said::Doubtful(entry) } else { Said::Nothing }
    }

    /// Whether a record is a block of its owner at a checkpoint; `None` where that is not known.
    pub(super) fn lives(&self, c: &Candidate, cno: u64) -> Option<bool> {
        let e = match self.said(c.vblock) {
            Said::Sound(e) => e,
            Said::Doubtful(e) if self.agrees(&e, c.vblock) => e,
            // A number that no DAT block covers was never used.
            _ => return None,
        };
        let there = e.blocknr.get() == c.block;
        let then = if is_single(c.ino) { e.end.get() == LIVE } else { e.contains(cno) };
        // It may have been moved since, or have ended.
        if self.maybe_older(c.vblock) && (!there || then) { None } else { Some(there && then) }
    }

    /// Whether the entry of a virtual block is from a version of its block that may not be the newest.
    pub(super) fn maybe_older(&self, v: u64) -> bool {
        !self.maybe_older.is_empty() && self.maybe_older.contains(&self.layout.entry(v).block)
    }

    /// Whether the summary of the log at an entry's place says the same of it: its number, and the checkpoint that wrote
    /// it first. A damaged block makes its whole log fail to verify, and all other entries of that are as they were.
    fn agrees(&self, e: &DatEntry, vblock: u64) -> bool {
        let there = self.rescue.records().at(e.blocknr.get());
        there.is_some_and(|r| r.vblock == vblock && (is_single(r.ino) || r.cno == e.start.get()))
    }

    /// Finds a virtual block that `ino` has in the place `offset` (`None`: a node). `trusted`: the pointer is from a
    /// block that verifies.
    pub(super) fn resolve(
        &self,
        v: u64,
        ino: u64,
        offset: Option<u64>,
        cno: u64,
        trusted: bool,
    ) -> Option<Spot> {
        let rescue = self.rescue;
        let holds = |block: u64| rescue.geometry().holds(BlockNr(block));
        let fits = |c: &Candidate| {
            c.vblock == v && c.ino == ino && c.offset() == offset && (is_single(ino) || c.cno <= cno)
        };
        let said = self.said(v);
        match &said {
            Said::Sound(e) if holds(e.blocknr.get()) => {
                let block = e.blocknr.get();
                // What was written later than a log is not in it.
                let older = rescue.survey.log_at(block).is_some_and(|l| l.cno < e.start.get());
                // A whole log may lie where another should: what it says is in it tells.
                let own = |c: Candidate| c.vblock == v && c.ino == ino && c.offset() == offset;
                let fit = if trusted {
                    !rescue.misplaced
                        || (!rescue.survey.is_frame(block) && rescue.records().at(block).is_none_or(own))
                } else {
                    !rescue.survey.is_frame(block) && rescue.records().at(block).is_none_or(|c| fits(&c))
                };
                if fit && !older && !rescue.survey.is_sound(block) && !is_single(ino) {
                    let mine = |c: &Candidate| fits(c) && c.cno == e.start.get();
                    let copy = self.whole_copy(rescue.records().places_of(v).filter(mine), block);
                    let block = copy.map_or(block, |c| c.block);
                    return Some(Spot { block, by_offset: false });
                }
                if fit && !older {
                    return Some(Spot { block, by_offset: false });
                }
            }
            Said::Doubtful(e) => {
                let block = e.blocknr.get();
                if rescue.records().at(block).is_some_and(|c| fits(&c)) {
                    return Some(Spot { block, by_offset: false });
                }
            }
            _ => {}
        }
        let newest = rescue.records().places_of(v).find(|c| fits(c) && c.order <= self.order);
        if let Some(c) = newest {
            return Some(Spot { block: c.block, by_offset: false });
        }
        match said {
            // Nothing speaks against it: the summary there is lost.
            Said::Doubtful(e) if rescue.records().at(e.blocknr.get()).is_none() => {
                Some(Spot { block: e.blocknr.get(), by_offset: false })
            }
            _ => None,
        }
    }

    /// Of the places of one version, newest first, one that is whole besides `here`: where a cleaner moved it from or to. What
    /// was synced and written again before its checkpoint was complete is another version of the same number.
    fn whole_copy(&self, places: impl Iterator<Item = Candidate>, here: u64) -> Option<Candidate> {
        let log = |c: &Candidate| self.rescue.survey.log_at(c.block);
        let original = |c: &Candidate| log(c).is_none_or(|l| l.cno == c.cno);
        let places: Vec<Candidate> = places.take(64).collect();
        let known = places.iter().any(|c| c.block == here);
        let newest = places.iter().find(|c| original(c)).map(|c| c.block);
        let same = |c: &Candidate| {
            !original(c) || (Some(c.block) == newest && (known || log(c).is_some_and(|l| !l.has(SYNDT))))
        };
        places.into_iter().find(|c| c.whole && c.block != here && same(c))
    }

    /// Data blocks of a file at a checkpoint with offsets in a range, by what summaries say.
    pub(super) fn fill(&self, ino: u64, range: Range<u64>, cno: u64) -> Vec<(u64, Version)> {
        let mut out = Vec::new();
        let limit = if is_single(ino) { u64::MAX } else { cno };
        let mut best = Best::default();
        for c in self.rescue.records().blocks_of(ino, range, limit) {
            let Role::Data { offset } = c.role else { continue };
            if offset > self.rescue.geometry().max_key() || c.order > self.order {
                continue;
            }
            if best.offset != offset {
                out.extend(std::mem::take(&mut best).found());
                best.offset = offset;
            }
            best.take(c, self.lives(&c, cno));
        }
        out.extend(best.found());
        out
    }

    pub(super) fn extent(&self, offset: u64, spot: Spot) -> Extent {
        let sound = self.rescue.survey.is_sound(spot.block);
        Extent { offset, block: spot.block, len: 1, sound, by_offset: spot.by_offset }
    }

    /// The map of a file by what summaries say alone.
    pub(super) fn map_from_records(&self, ino: u64, cno: u64) -> Mapped {
        let mut mapped = Mapped { doubtful: true, ..Mapped::default() };
        for (offset, c) in self.fill(ino, 0..u64::MAX, cno) {
            match c {
                Version::At(c) => mapped.push(self.extent(offset, Spot { block: c.block, by_offset: true })),
                Version::Lost { .. } => mapped.push_lost(offset..offset.saturating_add(1)),
            }
        }
        mapped
    }

    /// The map of a file at a checkpoint. `trusted`: the inode is from a block that verifies.
    pub(super) fn map(&self, bmap: &[u8; ROOT_BYTES], ino: u64, cno: u64, trusted: bool) -> Mapped {
        let mut sound = [trusted; LEVEL_MAX as usize + 1];
        // Above the root's level there is nothing but the inode.
        sound.iter_mut().for_each(|s| *s = trusted);
        let mut walk = MapWalk {
            state: self,
            ino,
            cno,
            trusted: sound,
            seen: SparseBits::default(),
            gaps: Gaps::default(),
            mapped: Mapped { doubtful: !trusted, ..Mapped::default() },
            missing: Vec::new(),
        };
        map::walk(bmap, &mut walk);
        let MapWalk { mut mapped, gaps, missing, .. } = walk;
        let gaps = gaps.finish();
        mapped.doubtful |= !gaps.is_empty() || !missing.is_empty();
        let mut found: Vec<Extent> = Vec::new();
        for range in gaps.into_iter().chain(missing) {
            let filled = self.fill(ino, range.clone(), cno);
            // A single block that is mapped and not found is lost; of what a lost node covered, the summaries of all
            // logs in use tell all that there is, holes included.
            if range.end - range.start == 1 && filled.is_empty() {
                mapped.lost.push(range);
            }
            let spot = |c: Candidate| Spot { block: c.block, by_offset: true };
            for (offset, c) in filled {
                match c {
                    Version::At(c) => found.push(self.extent(offset, spot(c))),
                    Version::Lost { .. } => mapped.lost.push(offset..offset.saturating_add(1)),
                }
            }
        }
        mapped.lost.sort_unstable_by_key(|r| r.start);
        if !found.is_empty() {
            found.sort_unstable_by_key(|e| e.offset);
            found.dedup_by_key(|e| e.offset);
            mapped.overlay(&found);
        }
        mapped
    }
}

/// Walks the map of the DAT.
struct DatWalk<'r, 'd> {
    rescue: &'r Rescue<'d>,
    blocks: BTreeMap<u64, u64>,
    seen: SparseBits,
    gaps: Gaps,
    doubtful: bool,
    /// No log is left where a node lay.
    log_lost: bool,
}

/// A node where its parent says, if it is one.
fn node_at(rescue: &Rescue<'_>, block: u64, node: NodeRef) -> Option<Block> {
    let bytes = rescue.block(block).ok()?;
    let sound = btree::check_node(&bytes, Some(node.level)).is_ok() && Node::block(&bytes).key(0) == node.key;
    sound.then_some(bytes)
}

impl Visitor for DatWalk<'_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        self.gaps.reach(node.key);
        let usable = self.rescue.geometry().holds(BlockNr(node.ptr)) && self.seen.insert(node.ptr);
        let bytes = usable.then(|| node_at(self.rescue, node.ptr, node)).flatten();
        self.doubtful |= !self.rescue.survey.is_sound(node.ptr);
        if bytes.is_none() {
            self.gaps.begin(node.key);
            self.log_lost |= self.rescue.survey.log_at(node.ptr).is_none_or(|log| log.stale);
        }
        bytes
    }

    fn data(&mut self, key: u64, ptr: u64) {
        self.gaps.reach(key);
        if key <= self.rescue.geometry().max_key() && self.rescue.geometry().holds(BlockNr(ptr)) {
            self.blocks.insert(key, ptr);
        }
    }

    fn bad(&mut self, _: &'static Invariant, _: Option<NodeRef>, _: String) {}
}

/// Walks the map of a file.
struct MapWalk<'s, 'r, 'd> {
    state: &'s State<'r, 'd>,
    ino: u64,
    cno: u64,
    /// By level: whether the node that is walked there verifies; above the root's children, the inode.
    trusted: [bool; LEVEL_MAX as usize + 1],
    seen: SparseBits,
    gaps: Gaps,
    mapped: Mapped,
    missing: Vec<Range<u64>>,
}

impl MapWalk<'_, '_, '_> {
    /// A node is walked once, and by one owner.
    fn claim(&mut self, block: u64) -> bool {
        self.seen.insert(block) && *self.state.claimed.lock().entry(block).or_insert(self.ino) == self.ino
    }
}

impl Visitor for MapWalk<'_, '_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        self.gaps.reach(node.key);
        let state = self.state;
        let trusted = self.trusted[(usize::from(node.level) + 1).min(LEVEL_MAX as usize)];
        let mut spot = state.resolve(node.ptr, self.ino, None, self.cno, trusted);
        let mut bytes = spot.and_then(|s| node_at(state.rescue, s.block, node));
        if bytes.is_none() {
            // The translation may be wrong, or there is an older place of the same version.
            let others: Vec<Candidate> = state.rescue.records().places_of(node.ptr).take(8).collect();
            for c in others.into_iter().filter(|c| c.ino == self.ino && c.offset().is_none()) {
                if c.order <= state.order && (is_single(self.ino) || c.cno <= self.cno) {
                    bytes = node_at(state.rescue, c.block, node);
                    spot = Some(Spot { block: c.block, by_offset: false });
                    if bytes.is_some() {
                        break;
                    }
                }
            }
        }
        let (Some(spot), Some(bytes)) = (spot, bytes) else {
            self.gaps.begin(node.key);
            return None;
        };
        if !self.claim(spot.block) {
            self.gaps.begin(node.key);
            return None;
        }
        let sound = state.rescue.survey.is_sound(spot.block);
        self.trusted[usize::from(node.level).min(LEVEL_MAX as usize)] = sound;
        self.mapped.doubtful |= !sound;
        Some(bytes)
    }

    fn data(&mut self, key: u64, ptr: u64) {
        self.gaps.reach(key);
        if key > self.state.rescue.geometry().max_key() {
            return;
        }
        match self.state.resolve(ptr, self.ino, Some(key), self.cno, self.trusted[1]) {
            Some(spot) => self.mapped.push(self.state.extent(key, spot)),
            // Whatever else logs have for this offset is another version.
            None if self.trusted[1] => self.mapped.push_lost(key..key + 1),
            None => match self.missing.last_mut() {
                // One at a time, so that each that is not found is known to be lost.
                _ if self.missing.len() > 1 << 20 => self.mapped.push_lost(key..key + 1),
                _ => self.missing.push(key..key + 1),
            },
        }
    }

    fn bad(&mut self, invariant: &'static Invariant, _: Option<NodeRef>, _: String) {
        self.mapped.doubtful |= invariant.severity == Severity::Error;
    }
}
