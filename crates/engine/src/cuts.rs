//! Cutting blocks away: truncations, holes, deletions.
//!
//! ```text
//! request:     a range in the overlay hides what is below it; blocks that go are counted or guessed
//! checkpoint:  a range inside the file -> its keys, some at a time
//!              a range to the end      -> taken off the map at once (bmap::sever), and what was
//!                                         severed ends some at a time
//! ```
//!
//! However large a file is, a request and a step do a bounded amount of work, so that nobody waits long
//! for the volume's lock. Invariants: readers see the cut from the request on; the map is whole after
//! every step; what is damaged is told with the inode and keeps nothing else from going.

use std::ops::{ControlFlow, Range};

use silt_format::Ino;

use crate::bmap::{self, Seen};
use crate::construct::{Construction, Stage};
use crate::files::{Tree, path_to};
use crate::inode::{Frozen, Inode, Overlay};
use crate::meta::{Map, NodeReader};
use crate::volume::Volume;
use crate::{Error, Result};

/// Blocks that a request counts at most; beyond that it estimates.
const LOOKED_AT: usize = 256;
/// Pieces that an estimate is made of at most.
const PARTS: usize = 16;
/// Nodes that cannot be read before a step ends.
const FAILURES: u32 = 32;

/// How what is cut away is to go, as [`Volume::part_to_cut`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What lies from this block on with the next checkpoint.
    From(u64),
    /// The part before is not gone yet: a checkpoint comes first.
    Waits,
    /// So little is left that it can go as a whole.
    Whole,
}

/// Blocks that lie on the device and end where `gone` blocks of a file are cut away, which is an estimate.
fn ends_of(i: &Inode, units: u64, everything: bool, gone: u64) -> u64 {
    let mapped = i.map.blocks / units;
    if i.map.is_empty() && i.frozen.is_none() {
        0
    } else if everything {
        mapped
    } else {
        // An inode may say that it has any number of blocks.
        mapped.min(gone.saturating_mul(2).saturating_add(2))
    }
}

impl Volume {
    /// Unmaps a range of blocks; they read as zeroes from now on. Takes the same time whatever is in
    /// the range: how many blocks go is an estimate until the next checkpoint, where they are many.
    pub fn cut(&mut self, ino: Ino, keys: Range<u64>) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.writable()?;
        self.load(ino)?;
        let max = self.store.geometry.max_key();
        let everything = keys.start == 0 && keys.end > max;
        let gone = if everything { 0 } else { self.count_cut_off(self.loaded(Tree::Live, ino)?, &keys)? };
        if gone == 0 && !everything {
            return Ok(());
        }
        let units = u64::from(self.store.geometry.block_size / 512);
        let (has_tree, nodes) = path_to(self.loaded(Tree::Live, ino)?, 0, self.store.geometry.bs());
        let i = self.live_mut(ino)?;
        let below = !i.map.is_empty() || i.frozen.is_some();
        let before = i.current.blocks.len();
        if everything {
            i.current.blocks.clear();
        } else {
            let cut_off: Vec<u64> = i.current.blocks.range(keys.clone()).map(|(key, _)| *key).collect();
            for key in cut_off {
                i.current.blocks.remove(&key);
            }
        }
        let left = i.current.blocks.len();
        let ends = ends_of(i, units, everything, gone);
        i.pending = i.pending.saturating_sub_unsigned(gone);
        let mut edges = 0;
        if below {
            let ranges = i.current.cuts.len();
            let inside = if keys.end > max { 1 } else { 2 };
            i.current.cuts.insert(keys);
            if has_tree && !everything {
                edges = nodes * inside * i.current.cuts.len().saturating_sub(ranges) as u64;
            }
            i.current.emptied |= i.current.cuts.get(&0).is_some_and(|cut| cut.end > max);
        }
        if !below || i.current.emptied {
            i.pending = i64::try_from(left).unwrap_or(i64::MAX);
        }
        i.needs_checkpoint = true;
        self.dirty_blocks -= (before - left) as u64;
        self.dirty.edges(edges);
        self.dirty.ends(ends);
        self.gave_up(ends + (before - left) as u64);
        Ok(())
    }

    /// Blocks whose lives a [`Volume::cut`] of the range would end with the next checkpoint, as it reckons: what has to fit
    /// ([`Volume::check_change`]).
    pub fn ends_of_cut(&mut self, ino: Ino, keys: &Range<u64>) -> Result<u64> {
        if keys.is_empty() {
            return Ok(0);
        }
        self.load(ino)?;
        let everything = keys.start == 0 && keys.end > self.store.geometry.max_key();
        let units = u64::from(self.store.geometry.block_size / 512);
        let i = self.loaded(Tree::Live, ino)?;
        let gone = if everything { 0 } else { self.count_cut_off(i, keys)? };
        Ok(if gone == 0 && !everything { 0 } else { ends_of(i, units, everything, gone) })
    }

    /// Where about `most` blocks at the end of a range begin: all of a large one at once would have as much of the DAT in memory,
    /// and in one checkpoint, as its blocks have entries. What is damaged goes as a whole, too. Changes nothing.
    pub fn part_to_cut(&mut self, ino: Ino, keys: &Range<u64>, most: u64) -> Result<Part> {
        self.load(ino)?;
        let i = self.loaded(Tree::Live, ino)?;
        let g = &self.store.geometry;
        // An inode may say that it has any number of them.
        let whole = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
        let mapped = (i.map.blocks / u64::from(g.block_size / 512)).min(whole);
        let little = most.saturating_add(most / 2);
        let keys = keys.start..keys.end.min(g.max_key().saturating_add(1));
        if mapped <= little || keys.is_empty() {
            return Ok(Part::Whole);
        }
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        let below = |key| bmap::part_below(&i.map.root, &reader, key);
        let (Ok(begin), Ok(end)) = (below(keys.start), below(keys.end)) else { return Ok(Part::Whole) };
        if mapped as f64 * (end - begin) <= little as f64 {
            return Ok(Part::Whole);
        }
        if i.frozen.is_some() || !i.current.cuts.is_empty() {
            return Ok(Part::Waits);
        }
        let Ok(from) = bmap::key_at(&i.map.root, &reader, end - most as f64 / mapped as f64) else {
            return Ok(Part::Whole);
        };
        if !(keys.start..keys.end).contains(&from) {
            return Ok(Part::Whole);
        }
        // Where that is much less than it should be, its count is wrong.
        let ends = self.ends_of_cut(ino, &(from..keys.end))?;
        Ok(if ends > most / 4 { Part::From(from) } else { Part::Whole })
    }

    /// How many blocks of a live file a cut unmaps: 0 only if there are none, an estimate if there are
    /// more than [`LOOKED_AT`].
    fn count_cut_off(&self, i: &Inode, keys: &Range<u64>) -> Result<u64> {
        let (known, whole) = self.count_data(i, keys)?;
        if whole {
            return Ok(known);
        }
        let block_size = self.store.geometry.block_size;
        let all = i.blocks_512(block_size) / u64::from(block_size / 512);
        if keys.end > self.store.geometry.max_key() {
            // What stays may be little.
            let (stays, whole) = self.count_data(i, &(0..keys.start))?;
            if whole {
                return Ok(all.saturating_sub(stays).max(known));
            }
        }
        Ok(self.guess_data(i, keys)?.min(all).max(known))
    }

    /// Blocks of a live file in a range that hold data, and whether those are all: no more than
    /// [`LOOKED_AT`] are looked at.
    fn count_data(&self, i: &Inode, keys: &Range<u64>) -> Result<(u64, bool)> {
        let (mut known, mut looked) = (0, 0);
        let mut whole = true;
        self.walk_data(i, keys.start, |key| {
            if key.is_some_and(|key| key >= keys.end) {
                return ControlFlow::Break(());
            }
            if looked == LOOKED_AT {
                whole = false;
                return ControlFlow::Break(());
            }
            looked += 1;
            known += u64::from(key.is_some());
            ControlFlow::Continue(())
        })?;
        // What was passed over only may hide some.
        Ok((if whole { known } else { known.max(1) }, whole))
    }

    /// About how many blocks of a live file hold data in a range, told from the upper nodes of its map.
    fn guess_data(&self, i: &Inode, keys: &Range<u64>) -> Result<u64> {
        let per_block = u64::from(self.store.geometry.block_size / 512);
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        let mut part = 0.0;
        let mut at = keys.start;
        let mut looked = 0;
        while at < keys.end {
            let mut stop = keys.end;
            looked += 1;
            if looked < PARTS {
                if let Some(hidden) = i.hidden(at) {
                    at = hidden.end;
                    continue;
                }
                stop = stop.min(i.next_hidden(at));
            }
            let end = bmap::part_below(&i.map.root, &reader, stop)?;
            part += end - bmap::part_below(&i.map.root, &reader, at)?;
            at = stop;
        }
        let waiting = |over: &Overlay| over.blocks.range(keys.clone()).count() as u64;
        let fresh = i.pending.saturating_add(i.frozen.as_ref().map_or(0, |f| f.pending));
        let memory = waiting(&i.current) + i.frozen.as_ref().map_or(0, |f| waiting(&f.over));
        let mapped = (i.map.blocks / per_block) as f64 * part.clamp(0.0, 1.0);
        Ok(mapped as u64 + memory.min(u64::try_from(fresh).unwrap_or(0)))
    }

    /// Takes everything from `from` on off the map of the file at work. Errors: the device's, where they may pass; the same call
    /// goes on.
    pub(crate) fn sever(
        &mut self,
        k: &mut Construction,
        inode: &mut Inode,
        frozen: &mut Frozen,
        from: u64,
    ) -> Result<()> {
        let wait = self.waits_for_map(k);
        let mut change = self.change();
        let severed = change.sever(&mut inode.map, from, &mut k.severed, wait);
        k.owe(inode.ino, &mut change.owed);
        let (delta, damage) = (change.delta, change.damage.take());
        self.count_cut(frozen, delta);
        match severed {
            Err(e @ Error::Device(_)) if wait => return Err(e),
            // What stays mapped is content that was to go.
            severed => severed.err().or(damage).iter().for_each(|e| inode.lose(e)),
        }
        Ok(())
    }

    /// Accounts for blocks that a cut took from the map.
    fn count_cut(&mut self, frozen: &mut Frozen, delta: i64) {
        self.count_tree(delta);
        if !frozen.over.emptied {
            // They were counted when they were cut.
            frozen.pending -= delta;
        }
    }

    /// Goes on with what was cut away, from the key `from` on: unmaps about `most` blocks and returns
    /// how much work it was. What is damaged stays mapped or taken, and is told with the inode. Errors: the device's, where they
    /// may pass; the stage says where to go on.
    pub(crate) fn apply_cuts(
        &mut self,
        k: &mut Construction,
        inode: &mut Inode,
        frozen: &mut Frozen,
        mut from: u64,
        most: usize,
    ) -> Result<usize> {
        let max = self.store.geometry.max_key();
        let wait = self.waits_for_map(k);
        let most = most.max(64);
        let mut took = 1;
        while took < most {
            let Some(cut) = frozen.over.cuts.overlapping(from..u64::MAX).next().cloned() else {
                k.stage = Stage::Data { from: 0 };
                return Ok(took);
            };
            from = from.max(cut.start);
            // What fails is tried again from here: what is unmapped by then is not found again.
            k.stage = Stage::Cuts { from };
            if cut.end > max {
                k.stage = Stage::Sever { from };
                return Ok(took);
            }
            let (keys, behind, error) = self.mapped_keys(&inode.map, from..cut.end, most - took);
            took += 1 + keys.len();
            match error {
                Some(e @ Error::Device(_)) if wait => return Err(e),
                error => error.iter().for_each(|e| inode.lose(e)),
            }
            // From the top, as a truncation does: nodes empty one after the other.
            for key in keys.into_iter().rev() {
                let mut change = self.change();
                let unmapped = change.unmap(&mut inode.map, key);
                let (delta, damage) = (change.delta, change.damage.take());
                k.owe(inode.ino, &mut change.owed);
                self.count_cut(frozen, delta);
                // It is unmapped, and stays taken.
                damage.iter().for_each(|e| inode.hurt(e));
                match unmapped {
                    Ok(_) => {}
                    Err(e @ Error::Device(_)) if wait => return Err(e),
                    Err(e) => inode.lose(&e),
                }
            }
            from = behind;
        }
        k.stage = Stage::Cuts { from };
        Ok(took)
    }

    /// The first keys of a range that are mapped, at most `most`; where to go on; and what was wrong on
    /// the way.
    fn mapped_keys(&self, map: &Map, range: Range<u64>, most: usize) -> (Vec<u64>, u64, Option<Error>) {
        let reader = NodeReader { nodes: &map.nodes, store: &self.store, resolve: &self.dat };
        let mut keys = Vec::new();
        let mut behind = range.end;
        let mut wrong = None;
        let mut failed = 0;
        bmap::for_each_sound(&map.root, &reader, range.start, |seen| {
            match seen {
                Seen::Entry(key, _) if key >= range.end => return ControlFlow::Break(()),
                Seen::Entry(key, _) => {
                    keys.push(key);
                    if keys.len() >= most {
                        behind = key.saturating_add(1);
                        return ControlFlow::Break(());
                    }
                }
                Seen::Damage { error, behind: next } => {
                    wrong.get_or_insert(error);
                    failed += 1;
                    // It may have taken the device a while to fail. A damaged map may lead back.
                    if failed >= FAILURES {
                        behind = next.filter(|n| *n > range.start).map_or(range.end, |n| n.min(range.end));
                        return ControlFlow::Break(());
                    }
                }
            }
            ControlFlow::Continue(())
        });
        (keys, behind, wrong)
    }

    /// Ends about `most` of the blocks that were severed and returns how much work it was. Errors: the device's, where they may
    /// pass; the same call goes on.
    pub(crate) fn end_severed(
        &mut self,
        k: &mut Construction,
        inode: &mut Inode,
        frozen: &mut Frozen,
        most: usize,
    ) -> Result<usize> {
        let wait = self.waits_for_map(k);
        let mut change = self.change();
        let took = change.unravel(&mut inode.map, &mut k.severed, most, wait);
        k.owe(inode.ino, &mut change.owed);
        let (delta, damage) = (change.delta, change.damage.take());
        self.count_cut(frozen, delta);
        damage.iter().for_each(|e| inode.hurt(e));
        let took = took?;
        if k.severed.is_empty() && (frozen.deleted || frozen.over.emptied) {
            // What could not be walked is left to repair.
            inode.map = Map::empty();
            frozen.over.emptied = false;
        }
        Ok(took)
    }
}
