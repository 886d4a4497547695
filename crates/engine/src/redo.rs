//! A log that its place does not take goes elsewhere (spec 12.10).
//!
//! ```text
//! .. newest super root | logs of this construction .. bad block | ..
//!                        \___ all of them, composed anew ___> fresh segment, sequence far ahead
//! ```
//!
//! Blocks of files name no places, so their logs are laid out again as they are; what names places
//! (sufile, DAT, super root) is put back to what it was before it was composed, and composed again.
//! A write that failed may have reached the disk all the same, so nothing of it may stay where a
//! search goes on: the new logs do not continue the chain (spec 4.6), and nothing they hold is
//! durable before both super blocks point at them ([`Volume::settle`]).

use silt_format::SegNr;
use silt_format::segment_usage::SuEntry;
use silt_format::summary::BlockInfo;

use crate::construct::{Construction, Kind};
use crate::cpfile::CpFile;
use crate::dat::Dat;
use crate::log::{Cursor, Fit, Item, LogWrite, OpenLog};
use crate::meta::MetaFile;
use crate::room::Extra;
use crate::sufile::SuFile;
use crate::supers;
use crate::volume::Volume;
use crate::{Error, Result};

/// Places tried in a row before the device itself is held to be at fault.
const MOVES: u32 = 4;
/// Places that wait to be tried again, at most.
const PLACES: usize = 16;
/// Distance in sequence numbers from the logs that are left. Recovery takes larger ones: should it come
/// before the logs here are settled, it may begin in the same segment.
const SEQ_JUMP: u64 = 1 << 10;
/// Bytes of zeroes written at once where a bad place is tried again.
const ZEROES: usize = 1 << 20;

/// What becomes of a log that could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redo {
    /// Its construction goes elsewhere: drop the log and go on with [`Volume::step`].
    Elsewhere,
    /// Nothing changed: several places in a row took nothing, or there is no room for another.
    /// Write the same log again.
    SameLog,
}

/// Where the log stood when a construction began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    cursor: Cursor,
    /// Of the cursor's segment.
    usage: SuEntry,
}

impl Begun {
    /// Where the log stood, and where it was to go on.
    pub(crate) fn segments(&self) -> [SegNr; 2] {
        [self.cursor.segment, self.cursor.next]
    }
}

/// What composing changes, as it was before. Blocks are shared until they change.
pub(crate) struct Before {
    ifile: MetaFile,
    cpfile: CpFile,
    sufile: SuFile,
    dat: Dat,
    tree_blocks: u64,
    allocated: usize,
    cursor: Cursor,
    lent: Option<SegNr>,
    /// Logs that were closed, and blocks in them.
    logs: u64,
    blocks: u64,
    /// The log that was open: how full it was, and what it held.
    fit: Option<Fit>,
    items: Vec<Item>,
}

impl Before {
    /// All segments may be handed out again ([`Volume::confine`]).
    pub(crate) fn unconfine(&mut self) {
        self.sufile.unconfine();
    }
}

impl Before {
    pub(crate) fn dat(&self) -> &Dat {
        &self.dat
    }
}

/// A place that took no log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadPlace {
    segment: SegNr,
    /// Byte offset on the device.
    byte: u64,
    /// Bytes.
    len: u64,
}

impl Volume {
    pub(crate) fn begun(&self) -> Result<Begun> {
        let usage = self.sufile.entry(&self.store, &self.dat, self.cursor.segment)?;
        Ok(Begun { cursor: self.cursor, usage })
    }

    pub(crate) fn before(&self, k: &Construction) -> Before {
        Before {
            ifile: self.ifile.file.clone(),
            cpfile: self.cpfile.clone(),
            sufile: self.sufile.clone(),
            dat: self.dat.clone(),
            tree_blocks: self.tree_blocks,
            allocated: k.allocated.len(),
            cursor: self.cursor,
            lent: self.store.held.lent(),
            logs: k.logs,
            blocks: k.blocks,
            fit: k.open.as_ref().map(|log| log.fit.clone()),
            items: k.open.as_ref().map_or_else(Vec::new, |log| log.items.clone()),
        }
    }

    /// Puts everything back that an attempt to compose has changed, so that there can be another.
    pub(crate) fn uncompose(&mut self, k: &mut Construction) {
        for key in k.launched.drain(..) {
            self.store.recall(key);
        }
        let Some(before) = k.before.take() else { return };
        self.ifile.file = before.ifile;
        self.cpfile = before.cpfile;
        self.sufile = before.sufile;
        self.dat = before.dat;
        self.tree_blocks = before.tree_blocks;
        let lent = self.store.held.lent().filter(|_| before.lent.is_none());
        if let Some(segment) = lent {
            self.store.held.give_back(segment);
        }
        k.composed_in.clear();
        let taken = k.allocated.split_off(before.allocated.min(k.allocated.len()));
        // They were clean when they were handed out, and none of them was written.
        for segment in taken.into_iter().chain(std::mem::take(&mut k.planned)).filter(|s| Some(*s) != lent) {
            self.was_not_written(segment);
        }
        // Logs of data that were closed wait to be handed out still.
        let composed = usize::try_from(k.logs.saturating_sub(before.logs)).unwrap_or(0);
        k.ready.truncate(k.ready.len().saturating_sub(composed));
        (k.logs, k.blocks) = (before.logs, before.blocks);
        self.cursor = before.cursor;
        k.open = before.fit.map(|fit| OpenLog { cursor: before.cursor, fit, items: before.items });
    }

    /// Says that a log handed out by [`Volume::step`] cannot be written at its place. For errors of
    /// the device: where there is no space below, the place is not at fault, unless others have theirs
    /// for certain ([`Volume::counts_backed_only`]). No other log of the construction may be on its way.
    ///
    /// After [`Redo::Elsewhere`] a construction is under way, in place of a data-sync log a whole
    /// checkpoint: go on with [`Volume::step`]. Everything the construction had written is written
    /// anew, and [`Volume::settle`] must succeed before any of it counts as durable. An error ends
    /// writing to the volume, as with [`Volume::step`]. `now` in seconds.
    pub fn log_failed(&mut self, log: &LogWrite, now: u64) -> Result<Redo> {
        if let Some(why) = &self.failed {
            return Err(Error::Failed(why.clone()));
        }
        let Some(mut k) = self.construction.take() else {
            return Err(Error::Invalid("no construction is under way".into()));
        };
        if self.moves >= MOVES || self.bad_places.len() >= PLACES || !self.has_room_elsewhere(&k) {
            self.construction = Some(k);
            return Ok(Redo::SameLog);
        }
        self.moves += 1;
        let result = match self.abandon(&mut k, log) {
            Ok(items) if k.kind == Kind::Checkpoint => {
                let laid = self.lay_out_again(&mut k, items);
                self.construction = Some(k);
                laid
            }
            Ok(items) => {
                let thawed = self.thaw(&k, &items);
                let begun = thawed.and_then(|()| self.begin_checkpoint(now)).map(|_| ());
                if let Some(next) = &mut self.construction {
                    next.owed = k.owed;
                }
                begun
            }
            Err(e) => {
                self.construction = Some(k);
                Err(e)
            }
        };
        match result {
            Ok(()) => Ok(Redo::Elsewhere),
            Err(e) => {
                self.fail(format!("moving a log to another segment failed: {e}"));
                Err(e)
            }
        }
    }

    /// Whether the clean segments certainly hold the construction a second time. Without that it would end writing half-way.
    fn has_room_elsewhere(&self, k: &Construction) -> bool {
        let need = match k.kind {
            // How much that is is known then.
            Kind::Checkpoint if k.composed => k.blocks,
            Kind::Checkpoint => k.need,
            // All else that waits goes with it.
            Kind::DataSync => self.need(Extra { data: self.frozen_blocks, ..Extra::default() }),
        };
        // What is left behind, and what is taken instead, changes blocks of the sufile, and with each two of the DAT.
        let left = self.sufile.file.data.len() as u64 + self.segments_for(need) + 2;
        let tables = 3 * left.min(self.blocks_of_sufile() + 2);
        self.available_segments() >= self.segments_for(need.saturating_add(tables)) + 2
    }

    /// Undoes what the construction did to segments and metadata, leaves the place that failed, and
    /// returns the blocks of files that its logs held.
    fn abandon(&mut self, k: &mut Construction, log: &LogWrite) -> Result<Vec<Item>> {
        // Ahead of every log that was handed out.
        let seq = self.cursor.seq.wrapping_add(SEQ_JUMP);
        let mut items = std::mem::take(&mut k.items);
        // Clean as soon as the tables are put back.
        let mut planned = std::mem::take(&mut k.planned);
        let written_in = std::mem::take(&mut k.written_in);
        k.composed_in.clear();
        for key in k.launched.drain(..) {
            self.store.recall(key);
        }
        if let Some(before) = k.before.take() {
            self.ifile.file = before.ifile;
            self.cpfile = before.cpfile;
            self.sufile = before.sufile;
            self.dat = before.dat;
            self.tree_blocks = before.tree_blocks;
            // What was judged by the tables as they were a moment ago is to be judged again.
            self.store.held.forget_times();
            planned.extend(k.allocated.split_off(before.allocated.min(k.allocated.len())));
            items.extend(before.items);
        }
        items.extend(k.open.take().into_iter().flat_map(|log| log.items));
        k.ready.clear();
        k.outstanding = 0;

        let Begun { cursor, usage } = k.begun;
        let (store, dat) = (&self.store, &self.dat);
        let mut left = std::mem::take(&mut k.allocated);
        if cursor.next != cursor.segment {
            left.push(cursor.next);
        }
        if cursor.offset > 0 {
            // It holds earlier logs; the rest of it stays unused.
            self.sufile.change(store, dat, cursor.segment, |e| *e = usage)?;
        } else {
            left.push(cursor.segment);
        }
        for segment in &left {
            self.sufile.free(store, dat, *segment)?;
        }
        if cursor.offset == 0 || log.segment != cursor.segment {
            self.sufile.scrap(store, dat, log.segment)?;
            self.bad_places.push(BadPlace { segment: log.segment, byte: log.byte, len: log.len() });
        }
        let lent = self.store.held.lent();
        for segment in left.into_iter().chain(planned).filter(|s| *s != log.segment && Some(*s) != lent) {
            if written_in.contains(&segment) {
                self.is_clean_again(segment)?;
            } else {
                self.was_not_written(segment);
            }
        }
        let fresh = self.sufile.allocate(&mut self.store, &self.dat)?;
        self.cursor = Cursor { segment: fresh, next: fresh, offset: 0, seq };
        self.discontinued = true;
        self.moved = true;
        Ok(items)
    }

    /// Lays the blocks of files out behind the new cursor.
    fn lay_out_again(&mut self, k: &mut Construction, items: Vec<Item>) -> Result<()> {
        k.begun = self.begun()?;
        if self.counts_backed_only() {
            k.available = self.available_segments();
        }
        k.logs = 0;
        k.blocks = 0;
        k.composed = false;
        for item in items {
            self.add(k, item)?;
        }
        Ok(())
    }

    /// Takes the data of an abandoned data-sync log back among what waits, below what came later.
    /// Its new numbers are in the map; the next checkpoint replaces them.
    fn thaw(&mut self, k: &Construction, items: &[Item]) -> Result<()> {
        for item in items {
            if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = item.info {
                self.dat.unassign(&self.store, vblock)?;
            }
        }
        for nr in &k.all {
            let Some(i) = self.inodes.get_mut(nr) else { continue };
            let Some(f) = i.frozen.take() else { continue };
            self.frozen_blocks = self.frozen_blocks.saturating_sub(f.over.blocks.len() as u64);
            if i.deleted {
                continue;
            }
            if !i.current.emptied {
                i.pending += f.pending;
            }
            for (key, b) in f.over.blocks {
                if i.current.get(key).is_none() {
                    i.current.blocks.insert(key, b);
                    self.dirty_blocks += 1;
                }
            }
        }
        Ok(())
    }

    /// Makes logs that went elsewhere ([`Volume::log_failed`]) reachable: flushes, and points both
    /// super blocks at the newest checkpoint. To be called when a construction is done and before
    /// anybody is told that it is durable; costs nothing where no log was moved. Then the places
    /// that failed are tried again, and those that still fail are marked bad with the next
    /// checkpoint. After an error nothing counts as durable; call it again later. `now` in seconds.
    pub fn settle(&mut self, now: u64) -> Result<()> {
        // The super blocks must not leave a tail that is not recovered yet.
        if self.construction.is_some() || self.read_only || self.recovery.is_some() {
            return Ok(());
        }
        if self.moved {
            if let Some(why) = &self.failed {
                return Err(Error::Failed(why.clone()));
            }
            let (last, free) = (self.last, self.free_blocks());
            let writes = self.supers.write_both(now, |b| supers::set_cursor(b, last, free));
            self.write_supers_or_one(&writes)?;
            self.super_seq = last.seq;
            self.super_written = now;
            self.moved = false;
            self.discontinued = false;
        }
        if self.failed.is_some() {
            // Nothing is owed to anybody, and nothing more is written.
            return Ok(());
        }
        while let Some(place) = self.bad_places.last().copied() {
            // With zeroes: whatever of the log did arrive can no longer be taken for one.
            let zeroed = match self.write_zeroes(place.byte, place.len) {
                // A hole in an image is as good, and takes no space.
                Err(Error::Device(e)) if e.is_no_space() && self.is_backing_counted() => {
                    self.store.device.discard(place.byte, place.len).is_ok()
                        && self.store.device.capabilities().discard
                }
                written => written.is_ok(),
            };
            self.meta_dirty = true;
            self.bad_places.pop();
            if zeroed {
                self.sufile.free(&self.store, &self.dat, place.segment)?;
                self.given_back += 1;
                self.is_not_whole(place.segment);
                self.is_clean_again(place.segment)?;
            } else {
                self.sufile.set_error(&self.store, &self.dat, place.segment)?;
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, mut byte: u64, mut len: u64) -> Result<()> {
        let zeroes = vec![0u8; ZEROES];
        while len > 0 {
            let n = usize::try_from(len).unwrap_or(ZEROES).min(ZEROES);
            self.store.device.write_at(byte, &[&zeroes[..n]])?;
            byte += n as u64;
            len -= n as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // tests: a surprise is a failure

    use silt_device::Device;

    use super::*;
    use crate::fresh::{file, fresh};
    use crate::{Redo, Step};

    #[test]
    fn a_bad_place_is_left_alone_once_writing_has_ended() {
        for failed in [false, true] {
            let (device, mut v) = fresh(16 << 20, 64);
            let segment = SegNr(v.store.geometry.nsegments - 1);
            let byte = v.store.geometry.byte_of(v.store.geometry.segment_start(segment));
            device.write_at(byte, &[&[7; 4096]]).unwrap();
            v.sufile.scrap(&v.store, &v.dat, segment).unwrap();
            v.bad_places.push(BadPlace { segment, byte, len: 4096 });
            if failed {
                v.fail("a test");
            }
            v.settle(3000).unwrap();
            let mut there = [0; 1];
            device.read_at(byte, &mut there).unwrap();
            assert_eq!(there[0] == 7, failed);
        }
    }

    /// With as few clean segments as count as enough, whatever it is and however much of it is written.
    #[test]
    fn what_counts_as_room_for_a_second_writing_is_enough() {
        let mut moved = 0;
        for (size, what) in [16, 64].into_iter().flat_map(|size| (0..5).map(move |what| (size, what))) {
            for n in 0..16 {
                let (device, mut v) = fresh(64 << 20, size);
                let (large, small) = (file(&mut v), (0..300).map(|_| file(&mut v)).collect::<Vec<_>>());
                let write = |v: &mut Volume, ino, keys: std::ops::Range<u64>| {
                    keys.for_each(|key| v.write_block(ino, key, vec![7; 4096].into()).unwrap());
                };
                write(&mut v, large, 0..4000);
                small.iter().for_each(|ino| write(&mut v, *ino, 0..1));
                v.checkpoint(3000).unwrap();
                match what {
                    0 | 1 => write(&mut v, large, 100..600),
                    2 => v.delete_inode(large).unwrap(),
                    3 => (0..4000).step_by(40).for_each(|key| write(&mut v, large, key..key + 1)),
                    _ => small.iter().for_each(|ino| write(&mut v, *ino, 0..3)),
                }
                if what == 0 {
                    assert!(v.begin_data_sync(&[large], 3001).unwrap());
                } else {
                    assert!(v.begin_checkpoint(3001).unwrap());
                }
                // Some of the next one waits as well.
                small.iter().step_by(9).for_each(|ino| write(&mut v, *ino, 0..1));
                let mut logs = 0;
                let log = loop {
                    match v.step(usize::MAX).unwrap() {
                        Step::Write(mut log) => {
                            log.seal();
                            if logs == n {
                                break Some(log);
                            }
                            log.write(&*device).unwrap();
                            v.log_written();
                            logs += 1;
                        }
                        Step::Done(_) => break None,
                        _ => {}
                    }
                };
                let Some(log) = log else { break };
                let has_room = |v: &Volume| v.has_room_elsewhere(v.construction.as_ref().unwrap());
                let clean = v.clean_segments(0..u64::MAX).unwrap().into_iter().flatten();
                let taken: Vec<u64> = clean
                    .take_while(|s| {
                        let room = has_room(&v);
                        if room {
                            v.store.held.hold_for_discard(*s..s + 1);
                        }
                        room
                    })
                    .collect();
                let last = *taken.last().unwrap();
                v.store.held.discarded(last..last + 1);
                assert_eq!(v.log_failed(&log, 3002).unwrap(), Redo::Elsewhere);
                v.finish_construction(3003).unwrap_or_else(|e| panic!("{size} {what} {n}: {e}"));
                moved += 1;
            }
        }
        assert!(moved > 50, "{moved}");
    }
}
