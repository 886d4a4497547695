//! Rolling synced data forward and leaving the log it was found in (spec 4.4 to 4.6).
//!
//! Recovery may be cut off at any point: until a super block points at the checkpoint it makes,
//! the next mount finds the old super root and the same tail again, untouched, because no segment
//! of the tail is handed out before that. Logs and checkpoints made on the way lie off the old chain: nobody
//! finds them before the super blocks point at the last one.
//!
//! The room that was left for it ([`Volume::check_room_for_recovery`]) is that of one checkpoint. Where the data is more than memory
//! is to hold, it is therefore written alone; what leads to it is not, as long as there is no room to write that more than once.

use std::collections::BTreeSet;

use silt_device::{Device, Kind};
use silt_format::summary::{self, BlockInfo};
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use crate::files::Tree;
use crate::inventory::Owned;
use crate::log::Cursor;
use crate::room::Extra;
use crate::search::{self, Reached, Tail, Walk};
use crate::volume::{OpenOptions, Volume};
use crate::{Error, Result};

/// Least distance in sequence numbers from any log a crash may have left behind. Logs that reached the
/// disk out of order lie at most as many segments ahead as a device can hold back.
const SEQ_JUMP: u64 = 1 << 16;

/// Blocks of the DAT that are looked at in one go.
const AT_A_TIME: usize = 256;

/// What is left to do once the recovered state is durable.
pub(crate) struct Recovery {
    /// First log of the tail, to be made invalid.
    start: Option<u64>,
    /// Segments of the tail, to be given back.
    scrapped: Vec<SegNr>,
}

/// Calls `f` with (inode, offset in blocks, disk block) of everything in complete data-sync logs behind a super root, in
/// their order. Memory: what one data-sync says of its blocks.
pub(crate) fn each_synced(
    device: &dyn Device,
    g: &Geometry,
    tail: &Tail,
    mut f: impl FnMut(Ino, u64, BlockNr) -> Result<()>,
) -> Result<()> {
    let mut collected: Option<Vec<(Ino, u64, BlockNr)>> = None;
    let mut walk = Walk::again(device, g, tail);
    while let Some(Reached { pos, header: h, .. }) = walk.next()? {
        if h.has(summary::SR) {
            return Err(Error::corrupt(
                format!("block {pos}"),
                "segment summary",
                "a super root in the tail",
            ));
        }
        if h.has(summary::LOGBGN) {
            // What was begun before it has no end: nobody was told that it was done.
            collected = h.has(summary::SYNDT).then(Vec::new);
        }
        if let Some(list) = &mut collected {
            if !h.has(summary::SYNDT) {
                return Err(Error::corrupt(
                    format!("block {pos}"),
                    "segment summary",
                    "a data-sync log is continued by another kind",
                ));
            }
            let first = pos.0 + u64::from(h.summary_blocks(g));
            for p in search::payloads(device, g, pos, &h)? {
                if let BlockInfo::Data { offset, .. } = p.info {
                    list.push((p.ino, offset, BlockNr(first + u64::from(p.index))));
                }
            }
            if h.has(summary::LOGEND) {
                collected
                    .take()
                    .unwrap_or_default()
                    .into_iter()
                    .try_for_each(|(i, key, at)| f(i, key, at))?;
            }
        }
        if pos.0 == tail.end {
            break;
        }
    }
    Ok(())
}

impl Volume {
    /// Applies complete data-sync logs behind the super root, in their order, and returns the number
    /// of blocks. Inodes that cannot be opened are passed over. Memory: what one data-sync says of its
    /// blocks, the data that `options` allow, and as much of maps and tables, or where little is clean all that changes of them.
    /// For writing the tail must have been left before.
    pub(crate) fn roll_forward(&mut self, tail: &Tail, options: &OpenOptions) -> Result<u64> {
        let g = self.store.geometry;
        let device = self.store.device.clone();
        let most = options.cache_bytes / u64::from(g.block_size);
        let (mut applied, mut left) = (0, tail.blocks);
        each_synced(&*device, &g, tail, |ino, key, at| {
            applied += u64::from(self.recover(ino, key, at)?);
            left = left.saturating_sub(1);
            if self.dirty_blocks > most {
                self.write_data_ahead(options.now)?;
                if self.changed_metadata() > most && self.has_room_on_the_way(left) {
                    self.checkpoint(options.now)?;
                }
            }
            Ok(())
        })?;
        Ok(applied)
    }

    /// Writes the data that waits and none of what leads to it: in logs that nobody finds before the next checkpoint.
    fn write_data_ahead(&mut self, now: u64) -> Result<()> {
        self.ready_to_begin()?;
        // With all that is written after it.
        self.seek_room_for_checkpoint()?;
        let all: Vec<u64> = self.dirty.inodes().collect();
        if self.begin_data(all.into_iter(), now)? {
            self.finish_construction(now)?;
        }
        Ok(())
    }

    /// Puts one synced block into its file; tells whether there is such a file. Read-only, the map in
    /// memory says where the block lies; for writing, its bytes wait for a checkpoint.
    pub(crate) fn recover(&mut self, ino: Ino, key: u64, at: BlockNr) -> Result<bool> {
        let known = self.inode(Tree::Live, ino).is_ok_and(|i| i.attr.is_regular());
        if !known || key > self.store.geometry.max_key() {
            return Ok(false);
        }
        if !self.read_only {
            let block = self.store.read(Kind::Data, at)?;
            self.recover_block(ino, key, block)?;
            return Ok(true);
        }
        let Some(mut inode) = self.inodes.remove(&ino.0) else { return Ok(false) };
        let mut change = self.change();
        let v = change.replace(&mut inode.map, key);
        let delta = change.delta;
        self.count_tree(delta);
        // Its map must stay in memory.
        inode.dirty = true;
        self.inodes.insert(ino.0, inode);
        match v {
            Ok(v) => self.dat.assign(&self.store, v, at, Some(self.cno)).map(|()| true),
            Err(Error::Format { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Leaves the segment of the newest super root for a fresh one: whatever logs lie behind it,
    /// complete or torn, can never be taken for newer ones.
    ///
    /// Those of the `touched` segments that are `unpromised` as well (ascending) may be written at once. What a checkpoint that was
    /// cut off has taken is so part of the room that was left for this. Whoever comes to them from the old logs finds the wrong
    /// numbers there, and nothing else is wanted of them. What is in `unreached` segments ([`OpenOptions::unreached`]) is wanted, if
    /// there is room without them.
    pub(crate) fn leave_tail(
        &mut self,
        tail: Option<&Tail>,
        last_seq: u64,
        touched: &[SegNr],
        unpromised: &[SegNr],
        unreached: &[SegNr],
    ) -> Result<()> {
        let (store, dat) = (&self.store, &self.dat);
        let mut scrapped = Vec::new();
        for s in touched {
            let e = self.sufile.entry(store, dat, *s)?;
            // One that holds something is no segment that was still to be written, whatever a log says.
            let is_next = *s == self.cursor.next && e.nblocks.get() == 0 && !e.is_error();
            if unpromised.binary_search(s).is_ok() {
                if is_next {
                    self.sufile.free(store, dat, *s)?;
                }
            } else if e.is_clean() || is_next {
                self.sufile.scrap(store, dat, *s)?;
                scrapped.push(*s);
            }
        }
        let spared = self.spare_unreached(unreached, tail.map_or(0, |t| t.blocks))?;
        scrapped.extend(spared);
        self.begin_backing();
        let fresh = match self.sufile.allocate(&mut self.store, &self.dat) {
            Ok(s) => s,
            // Full to the last segment: the tail's own are all there is. Without synced data in
            // them they may be used at once.
            Err(Error::NoSpace) if tail.is_none() && !scrapped.is_empty() => scrapped.remove(0),
            Err(Error::NoSpace) if self.free_garbage(touched)? => {
                self.sufile.allocate(&mut self.store, &self.dat)?
            }
            Err(e) => return Err(e),
        };
        // Another recovery, cut off, may have begun in the same segment: not with the same number.
        let jump = SEQ_JUMP + u64::from(self.next_generation()) % SEQ_JUMP;
        self.cursor = Cursor { segment: fresh, next: fresh, offset: 0, seq: last_seq.wrapping_add(jump) };
        self.discontinued = true;
        self.meta_dirty = true;
        self.recovery = Some(Recovery { start: tail.map(|t| t.start), scrapped });
        Ok(())
    }

    /// Keeps segments that are clean from being handed out; which, and none where what is recovered, so many blocks, may not fit
    /// into the others.
    fn spare_unreached(&mut self, segments: &[SegNr], blocks: u64) -> Result<Vec<SegNr>> {
        let (store, dat) = (&self.store, &self.dat);
        let mut spared = Vec::new();
        for s in segments.iter().copied() {
            if s.0 < store.geometry.nsegments && self.sufile.entry(store, dat, s)?.is_clean() {
                self.sufile.scrap(store, dat, s)?;
                spared.push(s);
            }
        }
        if !self.has_room_on_the_way(blocks) {
            for s in spared.drain(..) {
                self.sufile.free(&self.store, &self.dat, s)?;
            }
        }
        Ok(spared)
    }

    /// Gives back segments in use in which nothing lies, as a recovery that another writer made before leaves them for a cleaner (spec
    /// 4.5); whether there were any. The table of segments says that no log was written there, and the DAT, all of which is read,
    /// has no block there for any checkpoint, and none of its own: either alone may be wrong. None are where a part of it cannot be
    /// read. Those of the tail are among `touched`.
    fn free_garbage(&mut self, touched: &[SegNr]) -> Result<bool> {
        let unwritten = self.sufile.unwritten(&self.store, &self.dat).into_iter();
        let of_the_log = [self.cursor.segment, self.cursor.next];
        let mut garbage: BTreeSet<SegNr> =
            unwritten.filter(|s| !touched.contains(s) && !of_the_log.contains(s)).collect();
        let (g, mut all_known, mut from) = (self.store.geometry, true, Some(0));
        while let Some(at) = from.filter(|_| all_known && !garbage.is_empty()) {
            from = self.for_each_owned(at, AT_A_TIME, |owned| match owned {
                Owned::Table(at) | Owned::Numbered { at, .. } => _ = garbage.remove(&g.segment_of(at)),
                Owned::Unknown => all_known = false,
            })?;
        }
        if !all_known {
            return Ok(false);
        }
        for s in &garbage {
            self.sufile.free(&self.store, &self.dat, *s)?;
        }
        Ok(!garbage.is_empty())
    }

    /// The tail's segments are not given back when the state is durable: what lies in them is still wanted.
    pub(crate) fn hold_tail(&mut self) {
        if let Some(r) = &mut self.recovery {
            r.scrapped.clear();
        }
    }

    /// Segments that [`Volume::forget_tail`] will give back.
    pub(crate) fn given_by_recovery(&self) -> u64 {
        self.recovery.as_ref().map_or(0, |r| r.scrapped.len() as u64)
    }

    /// Clean segments that the checkpoint of what was recovered takes, besides the one that the log goes on in.
    pub(crate) fn taken_by_recovery(&self) -> u64 {
        match self.recovery {
            Some(_) => self.segments_for(self.need(Extra::default())).saturating_sub(1),
            None => 0,
        }
    }

    /// After the recovered state is durable: the tail becomes invalid and its segments free.
    pub(crate) fn forget_tail(&mut self) -> Result<()> {
        let Some(r) = self.recovery.take() else { return Ok(()) };
        if let Some(start) = r.start {
            let g = &self.store.geometry;
            let zero = vec![0u8; g.bs()];
            self.store.device.write_at(g.byte_of(BlockNr(start)), &[&zero])?;
            self.store.device.flush()?;
        }
        for s in r.scrapped {
            // Where hardly any was clean it may have been emptied meanwhile, and the log go on in it.
            let usage = self.sufile.entry(&self.store, &self.dat, s)?;
            let is_of_the_log =
                [self.cursor.segment, self.cursor.next].contains(&s) || usage.nblocks.get() > 0;
            if is_of_the_log || !usage.is_dirty() {
                continue;
            }
            self.sufile.free(&self.store, &self.dat, s)?;
            self.given_back += 1;
            self.meta_dirty = true;
        }
        Ok(())
    }
}
