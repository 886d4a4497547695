//! Making a volume smaller (spec section 15).
//!
//! ```text
//! confine: no segment behind the new end is chosen any more ──> the log leaves them ──> they are emptied
//! ──> super blocks: a resize is under way ──> checkpoint with the shorter sufile ──> super blocks: the new size
//! ```
//!
//! Until the last step the volume has its old size, and a crash leaves it so; one between the last steps leaves a
//! volume that knows that its clean segments are to be counted again. Emptying is the cleaner's.

use std::ops::Range;

use silt_format::super_block::{self as sb, Copy, STATE_RESIZE};
use silt_format::{Geometry, SegNr};

use crate::log::Cursor;
use crate::room::{BETWEEN, Extra};
use crate::supers;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// Distance in sequence numbers from the logs that are left, as where a log goes elsewhere.
const SEQ_JUMP: u64 = 1 << 10;

/// Segments that a device of so many bytes has room for.
fn segments_in(g: &Geometry, bytes: u64) -> u64 {
    (sb::secondary_offset(bytes) >> g.block_bits) / u64::from(g.blocks_per_segment)
}

impl Volume {
    /// Segments that the volume would have with so many bytes, no more than it has.
    pub fn segments_with_size(&self, bytes: u64) -> u64 {
        segments_in(&self.store.geometry, bytes).min(self.store.geometry.nsegments)
    }

    /// The fewest segments in which so many blocks that are needed have room, with what is kept back and what waits; and
    /// the bytes of such a volume. From above.
    pub fn least_segments(&self, needed: u64) -> (u64, u64) {
        let g = &self.store.geometry;
        let fixed = self
            .segments_for(needed)
            .saturating_add(self.segments_for(self.need(Extra::default())))
            .saturating_add(2);
        let kept = |n: u64| silt_format::reserved_segments(n, g.reserved_percent).max(self.floor() + BETWEEN);
        // What is kept back grows more slowly than the volume.
        let (mut low, mut high) = (fixed, fixed.saturating_add(g.nsegments).saturating_mul(100));
        while low < high {
            let middle = low + (high - low) / 2;
            if fixed.saturating_add(kept(middle)) <= middle { high = middle } else { low = middle + 1 }
        }
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        (low, low.saturating_mul(segment).saturating_add(8192))
    }

    /// Whether segments at the end are kept from use ([`Volume::confine`]).
    pub fn is_confined(&self) -> bool {
        self.sufile.is_confined()
    }

    /// From now on no segment from this one on is chosen for a log, and clean ones there do not count as available;
    /// `None` lifts that, whatever is under way. Not kept over mounts. [`Error::Constructing`], with nothing changed, while a
    /// checkpoint is being written, and where what waits would have no room: try again when it is written.
    pub fn confine(&mut self, limit: Option<u64>) -> Result<()> {
        let before = self.available_segments();
        let done = self.confine_to(limit);
        // A pass that found nothing may have found nothing for want of that.
        let back = self.available_segments().saturating_sub(before);
        if back > 0 {
            self.gave_up(back.saturating_mul(u64::from(self.store.geometry.blocks_per_segment)));
        }
        done
    }

    fn confine_to(&mut self, limit: Option<u64>) -> Result<()> {
        let Some(limit) = limit else {
            self.sufile.unconfine();
            // What was refused was refused for the smaller size.
            self.refuse_nothing();
            // What a failed checkpoint goes back to.
            if let Some(before) = self.construction.as_mut().and_then(|k| k.before.as_mut()) {
                before.unconfine();
            }
            return Ok(());
        };
        if self.construction.is_some() {
            return Err(Error::Constructing);
        }
        let before = self.sufile.confined();
        self.sufile.confine(&self.store, &self.dat, limit)?;
        if self.has_changes() && self.check_room_for_checkpoint().is_err() {
            self.sufile.confine_again(before);
            return Err(Error::Constructing);
        }
        Ok(())
    }

    /// Has the log go on in front of the limit of [`Volume::confine`] where it stands behind it, or would go there next;
    /// whether it did. It takes a checkpoint and both super blocks, durable on return: nothing behind the limit is part of
    /// a recovery then but what lies there of earlier logs.
    pub fn leave_end(&mut self, limit: u64, now: u64) -> Result<bool> {
        self.ready_to_begin()?;
        let c = self.cursor;
        if c.segment.0 < limit && c.next.0 < limit {
            return Ok(false);
        }
        if self.moved || self.recovery.is_some() {
            return Err(Error::Constructing);
        }
        // With two to go on in: from here on nothing may find that there is no room.
        if self.available_segments() < self.segments_for(self.need(Extra::default())) + 3 {
            return Err(Error::NoSpace);
        }
        let fresh = self.sufile.allocate(&mut self.store, &self.dat)?;
        let mut left = Vec::new();
        if c.next != c.segment {
            left.push(c.next);
        }
        if c.offset == 0 {
            left.push(c.segment);
        }
        for segment in left {
            self.sufile.free(&self.store, &self.dat, segment)?;
            // Until all of it is durable, recovery looks there for the next log.
            self.store.held.hold(segment);
        }
        self.cursor = Cursor { segment: fresh, next: fresh, offset: 0, seq: c.seq.wrapping_add(SEQ_JUMP) };
        (self.discontinued, self.moved, self.meta_dirty) = (true, true, true);
        let made = self.checkpoint(now);
        if self.construction.is_none() && self.moved {
            // What comes next would be written where nobody finds it. One that is left open the log writer goes on with.
            self.fail("leaving the end of the volume failed");
        }
        made?;
        self.freed_are_durable();
        Ok(true)
    }

    /// The segment from which on none is chosen, if there is one.
    pub(crate) fn confined(&self) -> Option<u64> {
        self.sufile.confined().0
    }

    /// What of the segments from `limit` on is in the way of cutting them off: segments in use, and whether some are
    /// held for those who read, or being written.
    pub fn in_the_way(&mut self, limit: u64) -> Result<(Vec<SegNr>, bool)> {
        self.store.held.release();
        let mut used = Vec::new();
        for s in (limit..self.store.geometry.nsegments).map(SegNr) {
            let e = self.sufile.entry(&self.store, &self.dat, s)?;
            if !e.is_clean() {
                used.push(s);
            }
        }
        let writes = self.cursor.segment.0 >= limit || self.cursor.next.0 >= limit;
        Ok((used, writes || self.store.held.from(limit).is_some()))
    }

    /// Makes the volume `size` bytes large, no larger than it is; returns how many segments went. All of those must be
    /// clean, or marked bad with nothing in them that is needed, and nobody may read there. Durable when it returns; the
    /// device may be cut off at `size` then, and [`Volume::device_was_cut`] is to be told.
    ///
    /// Errors before anything is changed: [`Error::NoSpace`] where too few segments would be left clean,
    /// [`Error::Invalid`] where segments are in the way.
    pub fn shrink(&mut self, size: u64, now: u64) -> Result<u64> {
        self.ready_to_begin()?;
        // Somebody else may have lifted the limit, or have one of their own: what lies behind the end counts as room no more.
        let before = self.confined();
        let limit = self.segments_with_size(size);
        if before != Some(limit) && limit < self.store.geometry.nsegments {
            self.confine(Some(limit))?;
        }
        let done = self.cut_end(size, now);
        if self.confined() != before && self.confine(before).is_err() {
            self.sufile.unconfine();
        }
        done
    }

    fn cut_end(&mut self, size: u64, now: u64) -> Result<u64> {
        if self.moved || self.recovery.is_some() {
            return Err(Error::Constructing);
        }
        self.prove_super_blocks()?;
        let before = self.store.geometry;
        let device = self.store.device.refresh_len()?;
        let nsegments = self.segments_with_size(size);
        if size > device || nsegments == 0 {
            return Err(Error::Invalid(format!("{size} bytes are no smaller size of the volume")));
        }
        let (used, held) = self.in_the_way(nsegments)?;
        let mut bad = Vec::new();
        for s in used {
            if !self.sufile.entry(&self.store, &self.dat, s)?.is_error() {
                return Err(Error::Invalid(format!("segment {s} behind the new end is in use")));
            }
            bad.push(s);
        }
        if held {
            return Err(Error::Invalid("segments behind the new end are being read or written".into()));
        }
        let gone = before.nsegments - nsegments;
        let clean_there: u64 = self
            .sufile
            .clean_runs(&self.store, &self.dat, nsegments..before.nsegments)?
            .iter()
            .map(len)
            .sum();
        if clean_there + bad.len() as u64 != gone {
            return Err(Error::Invalid(
                "the table of segments is damaged behind the new end: what lies there cannot be told".into(),
            ));
        }
        let left = self.sufile.clean().saturating_sub(clean_there);
        if left < silt_format::reserved_segments(nsegments, before.reserved_percent) {
            return Err(Error::NoSpace);
        }
        self.make_way_for_end(nsegments, self.where_cut(size, nsegments))?;
        // What the cut changes itself comes on top of what waits.
        self.check_checkpoint(0, self.blocks_of_sufile())?;
        let kept = self.supers.clone();
        self.mark_size(now, None, STATE_RESIZE).inspect_err(|_| self.supers = kept)?;
        self.cut_sufile(nsegments, &bad, now)
            .and_then(|()| self.mark_size(now, Some((size, nsegments)), 0))
            .inspect_err(
                // Half of it is in memory: what is on the device is whole, in one size or the other.
                |e| self.fail(format!("making the volume smaller failed: {e}")),
            )?;
        Ok(gone)
    }

    fn cut_sufile(&mut self, nsegments: u64, bad: &[SegNr], now: u64) -> Result<()> {
        for s in bad {
            self.sufile.free(&self.store, &self.dat, *s)?;
        }
        let mut change = Change::dead(&mut self.store, &mut self.dat, self.cno);
        self.sufile.cut(&mut change, nsegments)?;
        if let Some(u) = &mut self.store.held.unwanted {
            u.cut(nsegments);
        }
        if let Some(b) = &mut self.store.held.backed {
            b.cut(nsegments);
        }
        self.store.geometry.nsegments = nsegments;
        self.meta_dirty = true;
        self.checkpoint(now).map(|_| ())
    }

    /// Writes all super blocks, with the newest checkpoint, which is durable then; and a size, also where the second copy
    /// will be looked for when the device has it.
    fn mark_size(&mut self, now: u64, size: Option<(u64, u64)>, resizing: u16) -> Result<()> {
        let (last, free) = (self.last, self.free_blocks());
        let writes = self.supers.write_both(now, |b| {
            supers::set_cursor(b, last, free);
            if let Some((bytes, nsegments)) = size {
                b.dev_size = bytes.into();
                b.nsegments = nsegments.into();
            }
            b.state = ((b.state.get() & !STATE_RESIZE) | resizing).into();
        });
        // First: it is of no use before the device is cut off.
        if size.is_some() {
            self.flush_logs()?;
            self.write_where_cut()?;
        }
        self.write_supers(&writes)?;
        (self.super_seq, self.super_written) = (last.seq, now);
        Ok(())
    }

    /// Where the volume is smaller than its device, writes the preferred super block where the second copy will lie when
    /// the device is cut off.
    pub(crate) fn write_where_cut(&mut self) -> Result<()> {
        let mut block = self.supers.first.1.clone();
        if let Some(at) = self.where_cut(block.dev_size.get(), self.store.geometry.nsegments) {
            self.store.device.write_durably(at, &block.to_disk())?;
        }
        Ok(())
    }

    /// Where that is with a size in bytes and in segments: none where it is there already, or cannot be written.
    pub(crate) fn where_cut(&self, size: u64, nsegments: u64) -> Option<u64> {
        let g = Geometry { nsegments, ..self.store.geometry };
        let at = sb::secondary_offset(size);
        let end = at.saturating_add(sb::SIZE as u64);
        let inside = at >> g.block_bits < g.end_block() || end > self.store.device.len();
        (!inside && at != self.supers.offset(Copy::Secondary)).then_some(at)
    }

    /// The device was cut off at the volume's size, or not: the second super block lies where its length says.
    pub fn device_was_cut(&mut self) -> Result<()> {
        let len = self.store.device.refresh_len()?;
        self.supers.move_secondary(len);
        Ok(())
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fresh::fresh;
    use crate::volume::OpenOptions;

    /// One of three blocks of the table of segments that have segments in use is zeroed; its segments, and the segments in use.
    fn blanked(v: &mut Volume) -> (Range<u64>, u64) {
        while v.sufile.dirty() < 600 {
            v.sufile.allocate(&mut v.store, &v.dat).unwrap();
        }
        v.sufile.file.block_mut(&v.store, &v.dat, 1, |_| {}).unwrap().fill(0);
        // That block is there, and all of its segments are clean.
        v.sufile.free(&v.store, &v.dat, SegNr(900)).unwrap();
        v.meta_dirty = true;
        v.checkpoint(3000).unwrap();
        (256..500, 600)
    }

    /// What lies in its segments, or in those of a block that holds nothing, cannot be told.
    #[test]
    fn nothing_is_changed_where_the_table_of_segments_lost_entries() {
        let (device, mut v) = fresh(64 << 20, 16);
        blanked(&mut v);
        v.close(3000).unwrap();
        let (mut v, report) = Volume::open(device, &OpenOptions::default()).unwrap();
        assert!(!report.damage.is_empty());
        let mut counts = (v.sufile.clean(), v.supers.first.1.clone());
        let end = (800 * 16) << 12;
        assert!(v.segments_with_size(end + 8192) >= 800);
        let refused = v.shrink(end + 8192, 3001);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert!(v.failure().is_none());
        assert!(counts.0 == v.sufile.clean() && counts.1.to_disk() == v.supers.first.1.to_disk());
    }

    /// Neither is anything of it handed out after a resize that was cut off.
    #[test]
    fn a_resize_that_was_cut_off_does_not_make_lost_segments_clean() {
        let (device, mut v) = fresh(64 << 20, 16);
        let (lost, used) = blanked(&mut v);
        v.mark_size(3000, None, STATE_RESIZE).unwrap();
        drop(v);
        let (mut v, report) = Volume::open(device, &OpenOptions::default()).unwrap();
        assert!(!report.damage.is_empty());
        for _ in 0..v.sufile.clean() {
            let segment = v.sufile.allocate(&mut v.store, &v.dat).unwrap();
            assert!(!lost.contains(&segment.0) && segment.0 > used - 5, "segment {segment} was in use");
        }
        assert_eq!(v.supers.state_at_open & STATE_RESIZE, 0);
    }
}
