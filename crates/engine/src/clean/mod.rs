//! Emptying segments: what is still needed of them moves, and they are clean with the checkpoint that says so
//! (spec section 13).
//!
//! ```text
//! without the lock: records of the segment's logs ──> under it: the fate of each block ──> without it:
//! checksums of the logs that hold wanted blocks, their bytes ──> under it: [`Volume::begin_cleaning`], then steps
//! as for every checkpoint ──> durable: [`Volume::freed_are_durable`]
//! ```
//!
//! Which segments, and what of the past is kept, is for the caller to say. Invariants: nothing is copied whose log
//! does not match its checksum, unless the caller takes what there is; a block judged dead stays dead, for the only
//! ways back, snapshots and views, are looked at again when the cleaning begins; a freed segment is not written
//! before that is durable and nobody reads there ([`crate::held`]).

mod arranged;
mod resort;
mod usage;
mod victim;
mod window;

use std::collections::BTreeSet;
use std::ops::Range;

use hashbrown::HashSet;
use silt_format::summary::BlockInfo;
use silt_format::{SegNr, VBlockNr};

use crate::block::Block;
use crate::live::{Fate, Keep, LogBlock};
use crate::log::{Content, Item};
use crate::meta::Physical;
use crate::room::Extra;
use crate::supers::SuperWrite;
use crate::volume::Volume;
use crate::{Error, Result};

pub use arranged::Arranged;
pub use usage::{SegmentUsage, Usage};
pub use victim::{Salvage, Victim};
pub use window::Reused;

/// Blocks that the smallest checkpoint takes: summary, super root, and one at least of each table.
const LEAST: u64 = 8;

/// A segment that is emptied, as it was when that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken {
    segment: SegNr,
    lastmod: u64,
    nblocks: u32,
    /// Of its first log.
    sequence: Option<u64>,
    /// How many segments had been freed then: others clean, too, and one that was freed and written full again within
    /// a second looks the same.
    freed: u64,
}

/// A block that nobody needs and whose number is to be given back.
#[derive(Debug, Clone)]
struct Dead {
    v: VBlockNr,
    block: LogBlock,
    /// Checkpoints that cannot be read any more then.
    period: Range<u64>,
}

/// What one checkpoint does for the cleaner. Memory: the moved blocks, and about 100 bytes a dead one.
#[derive(Debug, Default)]
pub struct Cleaning {
    live: Vec<(LogBlock, Block)>,
    table: Vec<LogBlock>,
    dead: Vec<Dead>,
    segments: Vec<Taken>,
    /// Segments that are marked bad: what cannot be read stays there.
    bad: Vec<Taken>,
}

/// What a cleaning did, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Segments that are clean now.
    pub segments: u64,
    /// Blocks that were copied, those of the DAT excepted.
    pub moved: u64,
    /// Numbers given back.
    pub dead: u64,
    /// Checkpoints that went with them.
    pub checkpoints: u64,
}

impl Cleaning {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let nothing_moves = self.live.is_empty() && self.table.is_empty() && self.dead.is_empty();
        nothing_moves && self.segments.is_empty() && self.bad.is_empty()
    }

    /// Blocks that are copied, those of the DAT included.
    pub fn moves(&self) -> usize {
        self.live.len() + self.table.len()
    }

    /// Segments that are clean afterwards.
    pub fn frees(&self) -> usize {
        self.segments.len()
    }

    /// How much is in it, for [`Cleaning::back_to`].
    pub fn mark(&self) -> [usize; 5] {
        [self.live.len(), self.table.len(), self.dead.len(), self.segments.len(), self.bad.len()]
    }

    /// Drops what was added since.
    pub fn back_to(&mut self, mark: [usize; 5]) {
        let [live, table, dead, segments, bad] = mark;
        self.live.truncate(live);
        self.table.truncate(table);
        self.dead.truncate(dead);
        self.segments.truncate(segments);
        self.bad.truncate(bad);
    }

    fn infos(&self) -> impl Iterator<Item = BlockInfo> {
        let live = self.live.iter().map(|(b, _)| b);
        let all = live.chain(self.dead.iter().map(|d| &d.block)).chain(&self.table);
        all.map(|b| b.payload.info)
    }
}

impl Volume {
    /// A segment for emptying; says in words why it cannot be.
    pub fn victim(&self, segment: SegNr) -> Result<Victim> {
        let info = self.segment_info(segment)?;
        let refuse = |why: &str| Err(Error::Invalid(format!("segment {segment} {why}")));
        if info.active {
            return refuse("is being written");
        }
        // Its logs may not be there yet, and those of an earlier use would be taken for them.
        if self.construction.as_ref().is_some_and(|k| k.writes(segment)) {
            return refuse("is being written");
        }
        if info.error {
            return refuse("is marked bad");
        }
        if !info.dirty {
            return refuse("is clean");
        }
        Ok(Victim::new(self.store.device.clone(), &self.store.geometry, &info, self.store.held.freed()))
    }

    /// What blocks of a segment are to the checkpoints that are kept. An error where the DAT does not say.
    pub fn fates(&self, keep: &Keep, blocks: &[LogBlock]) -> Result<Vec<Fate>> {
        blocks.iter().map(|b| self.fate(keep, b)).collect()
    }

    /// Begins a checkpoint that moves blocks and frees segments; go on with [`Volume::step`], and when it is durable,
    /// with [`Volume::freed_are_durable`]. Everything that waits becomes part of it.
    ///
    /// Errors, with nothing changed that matters: [`Error::Stale`] where a snapshot or a look at the past came between
    /// (judge again); [`Error::NoSpace`] where the clean segments may not hold it; damage of the tables.
    pub fn begin_cleaning(&mut self, cleaning: impl Into<Arranged>, now: u64) -> Result<Cleaned> {
        let cleaning = cleaning.into();
        self.ready_to_begin()?;
        self.check_still_so(&cleaning)?;
        let need = self.need(self.extra(&cleaning));
        if self.available_segments() < self.segments_for(need) {
            return Err(Error::NoSpace);
        }
        self.begin_moves(cleaning, need, now)
    }

    fn begin_moves(&mut self, cleaning: Arranged, need: u64, now: u64) -> Result<Cleaned> {
        let lost = self.touch(&cleaning)?;
        let mut gone = Vec::new();
        for period in cleaning.periods.iter() {
            gone.extend(self.have_to_drop(period.clone())?.0);
        }
        // From here on nothing may stop it before the moves are under way: what they leave is free.
        let begun = self.begun()?;
        let mut done = Cleaned { checkpoints: gone.len() as u64, ..Cleaned::default() };
        let given_up = self.given_up;
        self.drop_checkpoints(&gone)?;
        // What nobody asked for tells nobody to look again.
        self.given_up = given_up;
        // In a damaged group nothing is given back: it stays taken, which repair puts right.
        let numbers = cleaning.dead.iter().map(|d| d.v);
        let dead: Vec<VBlockNr> =
            numbers.filter(|v| !lost.contains(&self.dat.palloc.layout.group(v.0))).collect();
        done.dead += self.dat.release_all(&mut self.store, &dead)?;
        for taken in &cleaning.segments {
            self.sufile.free(&self.store, &self.dat, taken.segment)?;
            self.store.held.hold(taken.segment);
            done.segments += 1;
        }
        for taken in &cleaning.bad {
            self.sufile.change(&self.store, &self.dat, taken.segment, |e| {
                e.flags = (e.flags.get() | silt_format::segment_usage::ERROR).into();
            })?;
        }
        done.moved = cleaning.live.len() as u64;
        self.launch_moves(&cleaning.live);
        self.begin_moving(cleaning.live.into(), begun, need, now);
        if let Some(k) = &mut self.construction {
            k.cleaning = true;
        }
        Ok(done)
    }

    /// Blocks that a cleaning gains, from above, what it writes of the DAT among it; negative where it takes more than
    /// it frees.
    pub fn gain(&self, cleaning: &Cleaning) -> i64 {
        let frees = cleaning.segments.len() as u64 * u64::from(self.store.geometry.blocks_per_segment);
        let takes = cleaning.live.len() as u64 + self.table_blocks(cleaning.infos()) + LEAST;
        frees.cast_signed().saturating_sub(takes.cast_signed())
    }

    /// Says that everything written so far is on the medium: segments that were freed may be written as soon as nobody
    /// reads there ([`Volume::guard`]).
    pub fn freed_are_durable(&mut self) {
        // Logs that were moved are found only when the super blocks say so.
        if self.construction.is_none() && !self.moved {
            self.store.held.durable();
            self.ask_for_freed();
        }
    }

    /// For whoever looks places up and reads there later without the lock: while it exists, no segment freed from now
    /// on is written.
    pub fn guard(&self) -> crate::held::Guard {
        self.store.held.guard()
    }

    /// Whether all logs of a segment are on the device, as far as it is in use.
    pub fn is_settled(&self, segment: SegNr) -> bool {
        let written = self.construction.as_ref().is_some_and(|k| k.writes(segment));
        !written && self.segment_info(segment).is_ok_and(|s| s.dirty)
    }

    /// Segments that are held back: just freed, being discarded, or free on the medium and held for those who read.
    pub fn held_segments(&self) -> u64 {
        self.store.held.len()
    }

    /// Of those, the last: free on the medium and held for those who read.
    pub fn segments_held_for_readers(&mut self) -> u64 {
        self.store.held.release();
        self.store.held.read()
    }

    /// Whether a segment was freed since it was looked at, and perhaps written again: what was read of it says nothing.
    pub fn is_stale(&self, victim: &Victim) -> bool {
        self.was_freed_since(victim.segment(), victim.freed())
    }

    /// How many segments were ever freed, for [`Volume::was_freed_since`].
    pub fn freed(&self) -> u64 {
        self.store.held.freed()
    }

    /// Whether a segment was freed, and perhaps written again, since so many segments had been
    /// ([`Volume::freed`], [`Watched::next`](crate::Watched::next)); also where that is not known any more.
    pub fn was_freed_since(&self, segment: SegNr, freed: u64) -> bool {
        self.store.held.was_freed_since(segment, freed)
    }

    /// Points both super blocks at the newest checkpoint, which must be durable: what lies before it is no longer part
    /// of any recovery (spec 2.7). To be written without the lock, in their order; none where nothing would change.
    pub fn advance_super_blocks(&mut self, now: u64) -> Vec<SuperWrite> {
        let busy = self.construction.is_some() || self.recovery.is_some() || self.moved;
        if self.is_read_only() || busy || self.protected_sequence() == self.last.seq {
            return Vec::new();
        }
        let (last, free) = (self.last, self.free_blocks());
        self.super_seq = last.seq;
        self.super_written = now;
        self.supers.write_both(now, |b| crate::supers::set_cursor(b, last, free))
    }

    /// Segments in use that no cleaning may take before [`Volume::advance_super_blocks`]: recovery may walk them.
    pub fn unsettled_segments(&self) -> u64 {
        self.last.seq.wrapping_sub(self.protected_sequence())
    }

    fn check_still_so(&self, cleaning: &Arranged) -> Result<()> {
        let keep = self.keep(None)?;
        if cleaning.periods.iter().any(|p| keep.any_in(p)) {
            return Err(Error::Stale);
        }
        let protected = self.protected_sequence();
        for taken in cleaning.segments.iter().chain(&cleaning.bad) {
            // Meanwhile the volume may have become smaller.
            if taken.segment.0 >= self.store.geometry.nsegments {
                return Err(Error::Stale);
            }
            let info = self.segment_info(taken.segment)?;
            let same = (info.modified, info.blocks) == (taken.lastmod, taken.nblocks);
            let recovery = taken.sequence.is_some_and(|s| s.wrapping_sub(protected).cast_signed() >= 0);
            let again = self.store.held.was_freed_since(taken.segment, taken.freed);
            if !same || again || !info.dirty || info.active || info.error || recovery {
                return Err(Error::Stale);
            }
        }
        self.dat.entries(&self.store, cleaning.dead.iter().map(|d| (d.v, d)), |d, e| {
            let same = e.blocknr.get() == d.block.at.0 && e.end.get() != silt_format::dat::LIVE;
            if same { Ok(()) } else { Err(Error::Stale) }
        })
    }

    /// Blocks of the DAT that change with these blocks; bitmaps and what is above them aside.
    fn table_blocks(&self, infos: impl Iterator<Item = BlockInfo>) -> u64 {
        let layout = &self.dat.palloc.layout;
        let blocks: HashSet<(bool, u64)> = infos
            .map(|info| match info {
                BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } => {
                    (true, layout.entry(vblock.0).block)
                }
                BlockInfo::DatData { offset } => (true, offset),
                // One node and the block below it.
                BlockInfo::DatNode { key, .. } => (false, key),
            })
            .collect();
        blocks.len() as u64
    }

    /// What it brings besides what waits.
    fn extra(&self, cleaning: &Arranged) -> Extra {
        // An entry takes up to a sixteenth of a block.
        let checkpoints: u64 = cleaning.periods.iter().map(|p| (p.end - p.start) / 4 + 2).sum();
        Extra {
            moves: cleaning.live.len() as u64,
            // A bitmap and its descriptor for each group.
            table: 2 * self.table_blocks(cleaning.infos()) + 2,
            checkpoints: checkpoints.min(self.cpfile_blocks()),
            frees: cleaning.segments.len() as u64,
            ..Extra::default()
        }
    }

    fn cpfile_blocks(&self) -> u64 {
        self.cpfile.file.map.blocks / u64::from(self.store.geometry.block_size / 512) + 1
    }

    /// Has every block in memory that will change, so that nothing fails half-way. The groups of dead blocks' numbers whose
    /// bitmap or descriptor is not to be had: one bad block there keeps no segment from being emptied.
    fn touch(&mut self, cleaning: &Arranged) -> Result<BTreeSet<u64>> {
        for b in &cleaning.table {
            self.touch_table(b)?;
        }
        let layout = self.dat.palloc.layout;
        let mut lost: BTreeSet<u64> = cleaning.dead.iter().map(|d| layout.group(d.v.0)).collect();
        lost.retain(|group| {
            let blocks = [layout.bitmap_block(*group), layout.desc(*group).0];
            !blocks
                .into_iter()
                .all(|block| matches!(self.dat.file.take(&self.store, &Physical, block), Ok(true)))
        });
        let mut touched = HashSet::new();
        for item in &cleaning.live {
            let (BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock }) = item.info else { continue };
            let block = self.dat.palloc.layout.entry(vblock.0).block;
            if touched.insert(block) && !self.dat.file.take(&self.store, &Physical, block)? {
                return Err(Error::corrupt(format!("virtual block {vblock}"), "DAT", "has no entry"));
            }
        }
        for taken in cleaning.segments.iter().chain(&cleaning.bad) {
            self.sufile.change(&self.store, &self.dat, taken.segment, |_| {})?;
        }
        Ok(lost)
    }

    /// Makes a block of the DAT part of the next log, if it still lies there.
    fn touch_table(&mut self, b: &LogBlock) -> Result<()> {
        let offset = match b.payload.info {
            BlockInfo::DatData { offset } => offset,
            // The first block below a node: what is above it is written with it.
            BlockInfo::DatNode { key, .. } => key,
            _ => return Ok(()),
        };
        let none = Keep::default();
        if self.fate(&none, b)? != Fate::Table {
            return Ok(());
        }
        if !self.dat.file.take(&self.store, &Physical, offset)? {
            return Err(Error::corrupt(format!("block {}", b.at), "DAT", "a node without its first block"));
        }
        Ok(())
    }

    /// Until they are in their new places they are read from memory.
    fn launch_moves(&mut self, items: &[Item]) {
        let moved = items.iter().filter_map(|i| match (&i.info, &i.content) {
            (BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock }, Content::Ready(bytes)) => {
                Some((vblock.0, bytes.clone()))
            }
            _ => None,
        });
        self.store.launch_moved(moved);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::collections::BTreeSet;
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use silt_device::{Device, Fault, MemoryDevice, Times};
    use silt_format::Cno;

    use super::Arranged;
    use crate::construct::Step;
    use crate::fresh::{file, fresh};
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    /// Whatever cannot be read when one begins: either it is under way, or no checkpoint is gone.
    #[test]
    fn a_cleaning_that_cannot_read_has_dropped_nothing() {
        let image = Arc::new(MemoryDevice::new(64 << 20));
        let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
        Plan::new(parameters, image.len()).unwrap().write(&*image, false).unwrap();
        let (mut v, _) = Volume::open(image.clone(), &OpenOptions::default()).unwrap();
        v.take_over(2000).unwrap();
        while v.cno.0 < 400 {
            v.meta_dirty = true;
            v.checkpoint(3000).unwrap();
        }
        v.close(3001).unwrap();
        let options = OpenOptions { cache_bytes: 0, ..OpenOptions::default() };
        let mut failed = 0;
        for after in 0.. {
            let device = Arc::new(Fault::new(image.fork()));
            let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
            v.take_over(4000).unwrap();
            let counted = |v: &Volume| {
                let mut n = 0;
                v.for_each_checkpoint(Cno(1), |_| {
                    n += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(v.cpfile.checkpoints(), n, "read {after}");
                n
            };
            let before = counted(&v);
            let periods = [3..9, 100..101, 130..190, 300..330].into_iter().collect();
            device.fail_reads(0..u64::MAX, Times::Later { after, times: 1 });
            let begun = v.begin_cleaning(Arranged { periods, ..Arranged::default() }, 5000);
            let struck = device.struck().reads > 0;
            device.heal();
            match begun {
                Ok(done) => {
                    assert_eq!((done.checkpoints, counted(&v)), (97, before - 97), "read {after}");
                    v.finish_construction(5001).unwrap();
                }
                Err(e) => {
                    assert!(matches!(e, crate::Error::Device(_)), "{e}");
                    failed += 1;
                    assert_eq!(counted(&v), before, "read {after}");
                    v.checkpoint(5001).unwrap();
                }
            }
            // A number that could not be given back stays taken; that is told.
            let told = !v.take_damage().is_empty();
            v.close(5002).unwrap();
            let report = silt_verify::check(device.inner(), &silt_verify::Options::default());
            let is_right = report.errors().all(|e| told && e.id == "dat-live-unmapped");
            assert!(is_right, "read {after}: {}", report.error_text());
            if !struck {
                break;
            }
        }
        assert!(failed > 5, "{failed}");
    }

    /// What a segment's new logs hold is not on the device before they are written; logs of an earlier use may be.
    #[test]
    fn segments_of_logs_under_way_are_no_victims() {
        let (device, mut v) = fresh(64 << 20, 64);
        let ino = file(&mut v);
        let bs = v.geometry().bs();
        for key in 0..400 {
            v.write_block(ino, key, vec![7; bs].into()).unwrap();
        }
        assert!(v.begin_checkpoint(3000).unwrap());
        let (mut late, mut refused) = (Vec::new(), BTreeSet::new());
        loop {
            match v.step(50).unwrap() {
                Step::Write(log) => {
                    // None of the segments whose logs lie here only may be emptied.
                    late.push(log);
                    for log in &late {
                        assert!(v.victim(log.segment).is_err(), "segment {}", log.segment);
                        refused.insert(log.segment);
                    }
                }
                Step::Working => {}
                Step::Waiting => {
                    for mut log in late.drain(..) {
                        log.seal();
                        log.write(&*device).unwrap();
                        v.log_written();
                    }
                }
                Step::Done(_) => break,
            }
        }
        assert!(refused.len() > 5);
        let empty = refused.iter().filter(|s| v.victim(**s).is_ok()).count();
        assert!(empty > 5, "they may be now");
    }
}
