//! The segment usage file made to say what is true (format 11).
//!
//! What is true: a segment that holds a block somebody claims is in use, at least up to that block; so
//! are the writer's two. This is looked at before anything is written, whatever was found wrong: a
//! segment that passes for clean here holds nothing that is wanted.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use hashbrown::HashMap;
use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::Kind as Part;
use silt_format::segment_usage::{self as su, SuEntry};
use silt_format::{BlockNr, SegNr};

use super::records::logs_of;
use crate::Result;
use crate::block::{self, Block};
use crate::bmap::{self, ReadNodes};
use crate::meta::{NodeReader, Physical};
use crate::volume::Volume;

/// Notes which nodes are read.
struct Noting<'a> {
    reader: NodeReader<'a, Physical>,
    read: std::cell::RefCell<Vec<u64>>,
}

impl ReadNodes for Noting<'_> {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        // Those in memory have no place yet.
        if !self.reader.nodes.contains_key(&ptr) {
            self.read.borrow_mut().push(ptr);
        }
        self.reader.read(ptr, level)
    }
}

impl Volume {
    /// Calls `f` for every disk block of the DAT: (block, file offset of a data block).
    pub(crate) fn each_dat_block(&self, mut f: impl FnMut(u64, Option<u64>)) -> Result<()> {
        let map = &self.dat.file.map;
        let reader = NodeReader { nodes: &map.nodes, store: &self.store, resolve: &Physical };
        let noting = Noting { reader, read: std::cell::RefCell::default() };
        bmap::for_each(&map.root, &noting, 0, |key, ptr| {
            f(ptr, Some(key));
            ControlFlow::Continue(())
        })?;
        noting.read.into_inner().into_iter().for_each(|ptr| f(ptr, None));
        Ok(())
    }

    /// Calls `f` for every allocated virtual block and its entry. Returns how many blocks of entries cannot be read,
    /// or say nothing of what is allocated: where there are any, what they claim is not known.
    pub(crate) fn each_entry(&self, mut f: impl FnMut(u64, &DatEntry)) -> Result<u64> {
        let mut passed_over = 0;
        let layout = self.dat.palloc.layout;
        let mut keys = Vec::new();
        self.each_dat_block(|_, key| keys.extend(key))?;
        keys.extend(self.dat.file.data.keys());
        keys.sort_unstable();
        keys.dedup();
        let size = self.store.geometry.dat_entry_size as usize;
        for key in keys {
            let Part::Entries { first } = layout.kind(key) else { continue };
            if !layout.has_block(key) {
                continue;
            }
            let bits = layout.bitmap_block(layout.group(first));
            let read = |offset| self.dat.file.block(&self.store, &Physical, offset);
            let (Ok(Some(b)), Ok(bits)) = (read(key), read(bits)) else {
                passed_over += u64::from(!self.is_unused_by_table(key));
                continue;
            };
            // Without a bitmap all of the group are free.
            let Some(bits) = bits else { continue };
            for (v, bytes) in (first..=layout.last_of_block(first)).zip(b.chunks_exact(size)) {
                let bit = layout.bit(v);
                if bits.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
                    && let Ok(e) = DatEntry::read(bytes, 0)
                {
                    f(v, &e);
                }
            }
        }
        Ok(passed_over)
    }

    /// Whether a block of the DAT is one of entries of which none is taken: what is in it is nothing to anybody.
    pub(crate) fn is_unused_by_table(&self, key: u64) -> bool {
        let layout = self.dat.palloc.layout;
        let Part::Entries { first } = layout.kind(key) else { return false };
        let bits = self.dat.file.block(&self.store, &Physical, layout.bitmap_block(layout.group(first)));
        let Ok(Some(bits)) = bits else { return false };
        let taken = |v: u64| bits.get(layout.bit(v) / 8).is_none_or(|b| b >> (layout.bit(v) % 8) & 1 == 1);
        !(first..=layout.last_of_block(first)).any(taken)
    }

    /// Puts zeroes in the place of blocks of the sufile that cannot be read; which, and that in words.
    fn clear_unreadable_usage(&mut self) -> Result<(Vec<u64>, Vec<String>)> {
        let (mut cleared, mut said) = (Vec::new(), Vec::new());
        let g = self.store.geometry;
        let last = su::place(&g, SegNr(g.nsegments.saturating_sub(1))).0;
        for offset in 0..=last {
            if let Err(e) = self.sufile.file.block(&self.store, &self.dat, offset) {
                said.push(format!("block {offset} of the segment usage file is made anew ({e})"));
                self.sufile.file.data.insert(offset, block::zeroed(g.bs()));
                cleared.push(offset);
            }
        }
        Ok((cleared, said))
    }

    /// Segments but `spared` that are free, where the whole file agrees with its counts; else none.
    pub(crate) fn surely_free(&self, spared: &BTreeSet<u64>) -> BTreeSet<u64> {
        let (mut free, mut dirty) = (BTreeSet::new(), 0u64);
        for s in (0..self.store.geometry.nsegments).map(SegNr) {
            match self.sufile.entry(&self.store, &self.dat, s) {
                Ok(e) if e.is_clean() => _ = free.insert(s.0),
                Ok(e) => dirty += u64::from(e.is_dirty()),
                Err(_) => return BTreeSet::new(),
            }
        }
        let header = self.sufile.header();
        if (header.ncleansegs.get(), header.ndirtysegs.get()) != (free.len() as u64, dirty) {
            return BTreeSet::new();
        }
        free.retain(|s| !spared.contains(s));
        free
    }

    /// Segments that are free, and, where no synced data follows (`ends`), the one that comes next.
    pub(crate) fn free_segments(&self, ends: bool) -> Result<BTreeSet<u64>> {
        let mut free = BTreeSet::new();
        for s in (0..self.store.geometry.nsegments).map(SegNr) {
            let e = self.sufile.entry(&self.store, &self.dat, s)?;
            let next = ends && s == self.cursor.next && s != self.cursor.segment;
            if e.is_clean() || (next && e.nblocks.get() == 0 && !e.is_error()) {
                free.insert(s.0);
            }
        }
        Ok(free)
    }

    /// Makes every entry right, and the counters. With `doubted` bits of the DAT, entries claim nothing that no checkpoint
    /// has: what was freed keeps its last place. Returns what was wrong, in words.
    pub(crate) fn mend_usage(&mut self, doubted: bool) -> Result<Vec<String>> {
        let g = self.store.geometry;
        let (cleared, mut said) = self.clear_unreadable_usage()?;
        let (mut claimed, mut doubtful): (HashMap<u64, u64>, HashMap<u64, u64>) = Default::default();
        let claim = |claimed: &mut HashMap<u64, u64>, block: u64| {
            if g.holds(BlockNr(block)) {
                let s = g.segment_of(BlockNr(block));
                let top = claimed.entry(s.0).or_insert(0);
                *top = (*top).max(block - g.segment_start(s).0 + 1);
            }
        };
        self.each_dat_block(|block, _| claim(&mut claimed, block))?;
        // One with a flipped bit still has its block; noise does not have what is free. Neither has what was freed, and
        // keeps its last place, where a bit that is noise says that it is taken.
        let next = self.cno.0;
        let possible = |e: &DatEntry| {
            e.rsv.get() == 0 && (1..=next).contains(&e.start.get()) && e.start.get() <= e.end.get()
        };
        let all: BTreeSet<u64> =
            self.cpfile.every(&self.store, &self.dat).iter().map(|e| e.cno.get()).collect();
        let all_known = all.len() as u64 == self.cpfile.checkpoints();
        let wanted = |e: &DatEntry| {
            let (start, end) = (e.start.get(), e.end.get());
            end == LIVE || (start < end && all.range(start..end).next().is_some())
        };
        let unknown = self.each_entry(|_, e| {
            let (wanted, at) = (wanted(e), e.blocknr.get());
            if wanted || !doubted {
                let sure = possible(e) && (wanted || !all_known);
                claim(if sure { &mut claimed } else { &mut doubtful }, at);
            }
        })?;
        if unknown > 0 {
            said.push(format!(
                "{unknown} blocks of the translation table cannot be read: what they claim is not known"
            ));
        }
        let whole = unknown == 0 && self.table_is_whole()?;
        for s in (0..g.nsegments).map(SegNr) {
            let e = self.sufile.entry(&self.store, &self.dat, s)?;
            let lost = cleared.contains(&su::place(&g, s).0);
            let maybe = doubtful.get(&s.0).filter(|_| lost || !e.is_clean());
            let mut wanted = self.usage_of(s, &e, claimed.get(&s.0).max(maybe).copied(), whole);
            if !whole && wanted.is_clean() && lost {
                // Nothing says that it is free.
                wanted.flags = su::DIRTY.into();
            }
            if wanted != e {
                said.push(format!("segment {s}: {} instead of {}", words(&wanted), words(&e)));
                self.sufile.change(&self.store, &self.dat, s, |e| *e = wanted)?;
            }
        }
        // Entries behind the last segment that share its block.
        let per_block = su::per_block(&g);
        let end = su::place(&g, SegNr(g.nsegments.saturating_sub(1))).0 + 1;
        for s in g.nsegments..(end * per_block).saturating_sub(su::first_offset(&g)) {
            self.sufile.clear_slot(&self.store, &self.dat, SegNr(s))?;
        }
        let before = self.sufile.header();
        self.sufile.recount(&self.store, &self.dat)?;
        let after = self.sufile.header();
        if before.ncleansegs != after.ncleansegs || before.ndirtysegs != after.ndirtysegs {
            said.push(format!(
                "{} clean and {} used segments are counted instead of {} and {}",
                after.ncleansegs, after.ndirtysegs, before.ncleansegs, before.ndirtysegs
            ));
        }
        if after.last_alloc.get() >= g.nsegments {
            self.sufile.set_last_alloc(&self.store, &self.dat, self.cursor.next)?;
            said.push("the segment allocated last is set to one that exists".into());
        }
        Ok(said)
    }

    /// Whether every block of the DAT can be read: only then is what it does not claim nobody's.
    fn table_is_whole(&self) -> Result<bool> {
        let mut keys = Vec::new();
        self.each_dat_block(|_, key| keys.extend(key))?;
        Ok(keys.into_iter().all(|key| self.dat.file.block(&self.store, &Physical, key).is_ok()))
    }

    /// What the entry of a segment must be; `top` is how far somebody claims its blocks, `whole` whether everybody
    /// who claims some was asked.
    fn usage_of(&self, s: SegNr, e: &SuEntry, top: Option<u64>, whole: bool) -> SuEntry {
        let g = &self.store.geometry;
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).into();
        let known = su::ACTIVE | su::DIRTY | su::ERROR;
        // No flag of an entry is believed that makes no sense.
        let senseless = e.flags.get() & !known != 0 || u64::from(e.nblocks.get()) > g.segment_blocks(s);
        let flags = if senseless { 0 } else { e.flags.get() & known };
        if s == self.cursor.segment {
            let nblocks = count(self.cursor.offset);
            let lastmod = if e.nblocks == nblocks { e.lastmod.get() } else { self.last_create };
            return SuEntry {
                lastmod: lastmod.into(),
                nblocks,
                flags: ((flags | su::DIRTY) & !su::ERROR).into(),
            };
        }
        if s == self.cursor.next {
            let flags = (flags | su::DIRTY) & !su::ERROR;
            return SuEntry { flags: flags.into(), ..SuEntry::CLEAN };
        }
        let unused = top.is_none();
        if unused && flags & su::DIRTY == 0 {
            let bad = flags & su::ERROR;
            return SuEntry { flags: bad.into(), ..SuEntry::CLEAN };
        }
        if unused && e.nblocks.get() == 0 {
            return SuEntry { flags: flags.into(), ..*e };
        }
        let top = top.unwrap_or(0);
        let said = if senseless { 0 } else { u64::from(e.nblocks.get()) };
        let mut last = None;
        let mut found = false;
        logs_of(&*self.store.device, g, s, u64::MAX, |log, _| {
            if log.header.seq.get().wrapping_sub(self.last.seq).cast_signed() > 0 {
                return;
            }
            let end = log.end() - g.segment_start(s).0;
            found |= end == said;
            last = Some((end, log.header.create.get()));
        });
        let flags = flags | su::DIRTY;
        if found && said >= top {
            return SuEntry { flags: flags.into(), ..*e };
        }
        match last {
            // What is left in a segment is not to be read by a cleaner: the numbers of its blocks were given to others.
            _ if unused && whole => SuEntry { flags: (flags & su::ERROR).into(), ..SuEntry::CLEAN },
            // Garbage that may not be handed out: a cleaner takes it, unread.
            _ if unused => SuEntry { flags: flags.into(), ..SuEntry::CLEAN },
            None => SuEntry {
                lastmod: e.lastmod,
                nblocks: count(top.max(said.min(g.segment_blocks(s)))),
                flags: flags.into(),
            },
            Some((end, create)) => {
                SuEntry { lastmod: create.into(), nblocks: count(end.max(top)), flags: flags.into() }
            }
        }
    }
}

fn words(e: &SuEntry) -> String {
    match (e.is_error(), e.is_dirty()) {
        (true, _) => "bad".into(),
        (false, true) => format!("in use, {} blocks", e.nblocks),
        (false, false) if *e == SuEntry::CLEAN => "clean".into(),
        (false, false) => "clean with traces of use".into(),
    }
}
