//! The DAT made right: its own map, lost blocks, entries and bits (format 7, 19.14 to 19.26).
//!
//! Where a block lies is written twice: in the DAT, and in the summary of the log that holds it. So what the DAT
//! has lost is read from the logs, and who maps a block, from the trees, says how long it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hashbrown::HashMap;
use silt_format::BlockNr;
use silt_format::Ino;
use silt_format::SegNr;
use silt_format::VBlockNr;
use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::Kind as Part;
use silt_format::summary::BlockInfo;

use super::bits::Bits;
use super::doubts::Doubts;
use super::evacuate::File;
use super::mapped::{Mappers, Role};
use super::records::{Record, logs_in};
use crate::Result;
use crate::block;
use crate::meta::{Map, Physical};
use crate::volume::Volume;

impl Volume {
    /// Builds the DAT's own map from the newest records of its blocks.
    pub(crate) fn mend_table_map(&mut self, end_of_log: (SegNr, u64)) -> Result<String> {
        let mut newest: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        self.each_record(end_of_log, |log, p, at| {
            if let BlockInfo::DatData { offset } = p.info {
                let new = (log.header.seq.get(), at);
                let known = newest.entry(offset).or_insert(new);
                *known = (*known).max(new);
            }
        });
        let layout = self.dat.palloc.layout;
        self.dat.file.map = Map::empty();
        let mut blocks = 0u64;
        for (offset, (_, at)) in &newest {
            let (offset, at) = (*offset, *at);
            if layout.has_block(offset) && !self.is_given_up(offset, &newest) {
                self.dat.adopt(&self.store, offset, BlockNr(at))?;
                blocks += 1;
            }
        }
        Ok(format!("the map of the translation table is built anew from the logs: {blocks} blocks"))
    }

    /// Whether a block of the DAT holds nothing that is in use, by its group's descriptor and bitmap: such blocks
    /// are taken out of the file, and their last records lie in segments that were given back since.
    fn is_given_up(&self, offset: u64, newest: &BTreeMap<u64, (u64, u64)>) -> bool {
        let layout = self.dat.palloc.layout;
        let read = |offset: u64| {
            let at = newest.get(&offset)?.1;
            self.store.read(silt_device::Kind::Tables, BlockNr(at)).ok()
        };
        let (group, first) = match layout.kind(offset) {
            Part::Descriptor { .. } => return false,
            Part::Bitmap { group } => (group, None),
            Part::Entries { first } => (layout.group(first), Some(first)),
        };
        let (desc, byte) = layout.desc(group);
        if let Some(Ok(free)) = read(desc).map(|b| b.get(byte..byte + 4).unwrap_or(&[]).try_into())
            && u64::from(u32::from_le_bytes(free)) == layout.entries_per_group()
        {
            return true;
        }
        let Some(bits) = read(layout.bitmap_block(group)) else { return false };
        let taken = |v: u64| bits.get(layout.bit(v) / 8).is_none_or(|b| b >> (layout.bit(v) % 8) & 1 == 1);
        first.is_some_and(|first| !(first..=layout.last_of_block(first)).any(taken))
    }

    /// Puts zeroes in the place of blocks of the DAT that cannot be read, or that are asked for; returns their
    /// offsets, and adds the numbers whose entries or bits were there to `suspects`.
    pub(crate) fn clear_lost_table_blocks(
        &mut self,
        lost: &[u64],
        suspects: &mut Bits,
        end_of_log: (SegNr, u64),
    ) -> Result<Vec<u64>> {
        let mut offsets: Vec<u64> = lost.to_vec();
        self.each_dat_block(|_, key| offsets.extend(key))?;
        offsets.sort_unstable();
        offsets.dedup();
        let lost: Vec<u64> = offsets
            .into_iter()
            .filter(|o| lost.contains(o) || self.dat.file.block(&self.store, &Physical, *o).is_err())
            .collect();
        let layout = self.dat.palloc.layout;
        let mut groups = Vec::new();
        for offset in &lost {
            self.dat.file.data.insert(*offset, block::zeroed(self.store.geometry.bs()));
            match layout.kind(*offset) {
                Part::Entries { first } => {
                    (first..=layout.last_of_block(first)).for_each(|v| {
                        suspects.insert(v);
                    });
                }
                Part::Bitmap { group } => groups.push(group),
                Part::Descriptor { .. } => {}
            }
        }
        if !groups.is_empty() {
            self.each_record(end_of_log, |_, p, _| {
                if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = p.info
                    && groups.contains(&layout.group(vblock.0))
                {
                    suspects.insert(vblock.0);
                }
            });
            if groups.contains(&0) {
                suspects.insert(0);
            }
        }
        Ok(lost)
    }

    /// Takes the numbers that logs have blocks for, where a bitmap lies in a log that does not verify and its count does not
    /// agree: a number in use would be handed out again. Those that nobody maps are freed later.
    pub(crate) fn keep_numbers(&mut self, doubts: &Doubts, end_of_log: (SegNr, u64)) -> Result<()> {
        let (layout, g) = (self.dat.palloc.layout, self.store.geometry);
        let mut groups = Vec::new();
        self.each_dat_block(|at, key| {
            if let Some(Part::Bitmap { group }) = key.map(|key| layout.kind(key))
                && doubts.is_bad(&g, BlockNr(at))
            {
                groups.push(group);
            }
        })?;
        let read = |offset: u64| self.dat.file.block(&self.store, &Physical, offset).ok().flatten();
        groups.retain(|group| {
            let ones: Option<u64> =
                read(layout.bitmap_block(*group)).map(|b| b.iter().map(|b| u64::from(b.count_ones())).sum());
            let (desc, byte) = layout.desc(*group);
            let free =
                read(desc).and_then(|b| Some(u32::from_le_bytes(b.get(byte..byte + 4)?.try_into().ok()?)));
            ones.zip(free)
                .is_none_or(|(ones, free)| u64::from(free) != layout.entries_per_group().saturating_sub(ones))
        });
        if groups.is_empty() {
            return Ok(());
        }
        let mut used = Bits::default();
        self.each_record(end_of_log, |_, p, _| {
            if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = p.info
                && layout.check("DAT", vblock.0).is_ok()
                && groups.contains(&layout.group(vblock.0))
            {
                used.insert(vblock.0);
            }
        });
        for v in used.iter().filter(|v| *v != 0) {
            self.set_taken(v, true)?;
        }
        Ok(())
    }

    /// Blocks of entries, by offset, that lie in logs that do not verify and of which several entries cannot be.
    pub(crate) fn noisy_entries(&self, doubts: &Doubts) -> Result<Vec<u64>> {
        const MANY: usize = 3;
        let (layout, g) = (self.dat.palloc.layout, self.store.geometry);
        let mut keys = Vec::new();
        self.each_dat_block(|at, key| keys.extend(key.map(|key| (key, at))))?;
        keys.retain(|(key, at)| {
            matches!(layout.kind(*key), Part::Entries { .. }) && doubts.is_bad(&g, BlockNr(*at))
        });
        let impossible = |e: &DatEntry| {
            let at = e.blocknr.get();
            (at != 0 && !g.holds(BlockNr(at))) || e.start.get() > self.last.cno || e.rsv.get() != 0
        };
        keys.retain(|(key, _)| {
            let Ok(Some(b)) = self.dat.file.block(&self.store, &Physical, *key) else { return false };
            let all = b.chunks_exact(g.dat_entry_size as usize).filter_map(|e| DatEntry::read(e, 0).ok());
            all.filter(impossible).count() >= MANY
        });
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    /// First step for suspect entries: where a log has a record of the block, its place and its beginning; ends
    /// are for [`Volume::mend_lifetimes`]. Only entries that say nothing sensible are changed.
    pub(crate) fn mend_places(
        &mut self,
        suspects: &Bits,
        end_of_log: (SegNr, u64),
    ) -> Result<HashMap<u64, Record>> {
        let records = self.records_of(suspects, end_of_log);
        for v in suspects.iter().filter(|v| *v != 0) {
            if self.dat.palloc.layout.check("DAT", v).is_err() {
                continue;
            }
            let Some(r) = records.get(&v) else { continue };
            let e = self.dat.entry(&self.store, VBlockNr(v)).ok();
            let start = self.start_of(r, e.as_ref());
            let taken = self.dat.palloc.bit(&self.dat.file, &self.store, &Physical, v).unwrap_or(false);
            if !taken || e.is_none_or(|e| e.blocknr.get() == 0 || e.end.get() < start) {
                self.unsure.insert(v);
            }
            let new = DatEntry {
                blocknr: r.at.into(),
                start: start.into(),
                end: e.map_or(LIVE, |e| if e.end.get() >= start { e.end.get() } else { LIVE }).into(),
                rsv: 0.into(),
            };
            if e != Some(new) {
                self.set_entry(v, new)?;
            }
            self.set_taken(v, true)?;
        }
        Ok(records)
    }

    /// The checkpoint a block begins at: its record says, but for cpfile and sufile.
    fn start_of(&self, r: &Record, e: Option<&DatEntry>) -> u64 {
        if r.cno != 0 && r.cno <= self.last.cno {
            return r.cno;
        }
        match e.map(|e| e.start.get()) {
            Some(start) if start > 0 && start <= self.last.cno => start,
            _ => r.log_cno.min(self.last.cno).max(1),
        }
    }

    fn set_entry(&mut self, v: u64, new: DatEntry) -> Result<()> {
        self.dat.entry_mut(&self.store, VBlockNr(v), |e| {
            *e = new;
            Ok(())
        })?;
        self.store.forget(crate::store::Key::Virtual(v));
        Ok(())
    }

    fn set_taken(&mut self, v: u64, taken: bool) -> Result<()> {
        let palloc = self.dat.palloc;
        if palloc.bit(&self.dat.file, &self.store, &Physical, v)? == taken {
            return Ok(());
        }
        if taken {
            palloc.set(&mut self.dat.file, &self.store, &Physical, v)
        } else {
            palloc.unset(&mut self.dat.file, &self.store, &Physical, v).map(|_| ())
        }
    }

    /// Whether the table has a block for this number's entry, or may have one.
    fn has_entry(&self, v: u64) -> bool {
        let place = self.dat.palloc.layout.entry(v);
        !matches!(self.dat.file.block(&self.store, &Physical, place.block), Ok(None))
    }

    /// Whether the segment usage file says that a block is in use.
    fn is_in_use(&self, at: BlockNr) -> bool {
        let g = self.store.geometry;
        if !g.holds(at) {
            return false;
        }
        let s = g.segment_of(at);
        let used = |e: silt_format::segment_usage::SuEntry| {
            e.is_dirty() && at.0 - g.segment_start(s).0 < u64::from(e.nblocks.get())
        };
        s == self.cursor.segment || self.sufile.entry(&self.store, &self.dat, s).is_ok_and(used)
    }

    /// Ends the life of an entry that is current with the checkpoint that is made next; whether it was.
    fn end_now(&mut self, v: u64) -> Result<bool> {
        let Ok(e) = self.dat.entry(&self.store, VBlockNr(v)) else { return Ok(false) };
        let possible = (1..=self.last.cno).contains(&e.start.get());
        if e.end.get() != LIVE || e.blocknr.get() == 0 || !possible {
            return Ok(false);
        }
        self.set_entry(v, DatEntry { end: self.cno.0.into(), ..e })?;
        Ok(true)
    }

    /// Whether all that is known of a number is a record in a segment that is surely free: it is of the use before.
    fn is_of_old(&self, v: u64, records: &HashMap<u64, Record>, free: &BTreeSet<u64>) -> bool {
        let g = &self.store.geometry;
        self.unsure.contains(v)
            && records.get(&v).is_some_and(|r| {
                let at = self.dat.entry(&self.store, VBlockNr(v)).map(|e| e.blocknr.get());
                at.is_ok_and(|at| at == r.at) && free.contains(&g.segment_of(BlockNr(r.at)).0)
            })
    }

    /// Whether an entry may be what the table says of a block that is mapped at a checkpoint (`u64::MAX`: now): it makes
    /// sense, and no log tells of something else in its place.
    fn could_be(&self, e: &DatEntry, at: u64, logs: &mut HashMap<u64, Vec<Range<u64>>>) -> bool {
        let g = &self.store.geometry;
        let (start, end, place) = (e.start.get(), e.end.get(), BlockNr(e.blocknr.get()));
        let possible = (1..=self.last.cno).contains(&start) && start <= at && (end == LIVE || end > at);
        if !possible || !g.holds(place) {
            return false;
        }
        let s = g.segment_of(place);
        let logs = logs.entry(s.0).or_insert_with(|| logs_in(&*self.store.device, g, s));
        !logs.iter().any(|log| log.contains(&place.0))
    }

    /// Second step for suspect entries: who maps the block says how long it lives; what nothing maps is free,
    /// unless part of the maps cannot be read and the block does not lie in a segment of `free`. But where a segment in use still has a record of the block, its number
    /// stays taken by a block that is dead since it was born: cleaners go by records, and would take an old copy for
    /// the block that got the number since (13.4).
    pub(crate) fn mend_lifetimes(
        &mut self,
        suspects: &Bits,
        (records, next): (&HashMap<u64, Record>, &HashMap<u64, u64>),
        mappers: &Mappers,
        free: &BTreeSet<u64>,
    ) -> Result<Vec<String>> {
        let (mut strangers, mut silent): (BTreeMap<File, u64>, BTreeMap<File, u64>) = Default::default();
        let (mut freed, mut ended, mut set, mut hopeless, mut foreign) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let mut logs = HashMap::new();
        if suspects.contains(0) {
            self.set_entry(0, DatEntry { blocknr: 0.into(), start: 0.into(), end: 0.into(), rsv: 0.into() })?;
            self.set_taken(0, true)?;
        }
        for v in suspects.iter().filter(|v| *v != 0) {
            if self.dat.palloc.layout.check("DAT", v).is_err() {
                continue;
            }
            let Some((newest, ino, role)) = mappers.newest.get(&v).copied() else {
                // What has neither an entry nor a record is nobody's, whatever maps cannot be read.
                let nothing = !records.contains_key(&v) && !self.has_entry(v);
                if !mappers.broken.is_empty() && !nothing && !self.is_of_old(v, records, free) {
                    // A past tree that cannot be read may have it, but nothing current.
                    if !mappers.broken_now && self.end_now(v)? {
                        ended += 1;
                    }
                    continue;
                }
                if let Some(r) = records.get(&v).copied().filter(|r| self.is_in_use(BlockNr(r.at))) {
                    let e = self.dat.entry(&self.store, VBlockNr(v)).ok();
                    let at = self.start_of(&r, e.as_ref());
                    let dead =
                        DatEntry { blocknr: r.at.into(), start: at.into(), end: at.into(), rsv: 0.into() };
                    self.set_entry(v, dead)?;
                    self.set_taken(v, true)?;
                    ended += 1;
                } else if self.has_entry(v) {
                    let e = DatEntry { blocknr: 0.into(), start: 1.into(), end: 1.into(), rsv: 0.into() };
                    self.set_entry(v, e)?;
                    self.set_taken(v, false)?;
                    freed += 1;
                } else {
                    // Noise names it, a map or the bits.
                    let palloc = self.dat.palloc;
                    freed += u64::from(palloc.bit(&self.dat.file, &self.store, &Physical, v)?);
                    self.set_taken(v, false)?;
                }
                continue;
            };
            let Ok(e) = self.dat.entry(&self.store, VBlockNr(v)) else { continue };
            // While part of the current tree cannot be read, what only a past one is seen to have may be its, too.
            let file = self.file_of(if mappers.broken_now { u64::MAX } else { newest }, ino);
            // A map that names another file's block is wrong itself. Where the summary is lost, nothing speaks against the table.
            let offset = if let Role::Data(key) = role { Some(key) } else { None };
            let record = records.get(&v);
            if record.is_none() && self.could_be(&e, newest, &mut logs) {
                if offset.is_some() {
                    *silent.entry(file).or_insert(0) += 1;
                }
            } else if record.is_none_or(|r| (r.ino, r.offset) != (ino, offset)) {
                foreign += 1;
                *strangers.entry(file).or_insert(0) += 1;
                continue;
            }
            // While part of the current tree cannot be read, nothing current is taken for past.
            if newest != u64::MAX && e.end.get() == LIVE && !mappers.broken.is_empty() {
                // Unless another block was written in its place after the newest checkpoint that has it.
                if let Some(next) = next.get(&v).filter(|next| **next > newest) {
                    self.set_entry(v, DatEntry { end: (*next).into(), ..e })?;
                    set += 1;
                } else if !mappers.broken_now && self.end_now(v)? {
                    set += 1;
                }
                continue;
            }
            if !self.store.geometry.holds(BlockNr(e.blocknr.get())) {
                hopeless += 1;
                continue;
            }
            let end = if newest == u64::MAX {
                LIVE
            } else if e.end.get() > newest && e.end.get() <= self.last.cno {
                e.end.get()
            } else {
                newest.saturating_add(1)
            };
            let single = ino == Ino::CPFILE || ino == Ino::SUFILE;
            let start = match (records.get(&v), e.start.get()) {
                (_, s) if s > 0 && s <= self.last.cno && s <= newest => s,
                (Some(r), _) => self.start_of(r, None),
                (None, _) => 1,
            };
            let end = if single && end != LIVE { start } else { end };
            let new = DatEntry { blocknr: e.blocknr, start: start.into(), end: end.into(), rsv: 0.into() };
            if new != e {
                self.set_entry(v, new)?;
            }
            self.unsure.remove(v);
            self.set_taken(v, true)?;
            set += 1;
        }
        let mut said = Vec::new();
        let mut say = |n: u64, what: &str| {
            if n > 0 {
                said.push(format!("{n} entries of the translation table {what}"));
            }
        };
        say(set, "get the place and the lifetime that logs and trees say");
        say(freed, "that nothing maps are freed");
        say(ended, "that nothing maps are dead from now on, for a cleaner to take");
        say(foreign, "are left: no log has the blocks for the files that map them");
        say(hopeless, "are lost: no log says where their blocks are");
        for (file, blocks) in silent {
            let (lies, they) =
                if blocks == 1 { ("block lies", "it may be") } else { ("blocks lie", "they may be") };
            said.push(format!(
                "{file}: {blocks} {lies} where the table says, and no log tells what is there: {they} another file's"
            ));
        }
        for (file, blocks) in strangers {
            let (is, they) = if blocks == 1 { ("block is", "it holds") } else { ("blocks are", "they hold") };
            said.push(format!(
                "{file}: {blocks} {is} not where the table says, and no log has them: what {they} may be another file's"
            ));
        }
        Ok(said)
    }
}
