//! What the super blocks say of a volume that is open: who has claimed it, how it was left, which log is its newest.

use silt_format::super_block::{STATE_ERROR, STATE_VALID};

use crate::supers::{self, SuperWrite};
use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// Claims a volume opened for writing: recovered data becomes a checkpoint, the mount is
    /// counted, and the super blocks say that the volume is in use. Returns when all is durable.
    pub fn take_over(&mut self, now: u64) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.checkpoint(now)?;
        let (last, free) = (self.last, self.free_blocks());
        let discontinued = std::mem::take(&mut self.discontinued);
        self.supers.state_at_open |= STATE_VALID;
        let writes = self.supers.write_both(now, |b| {
            if discontinued {
                supers::set_cursor(b, last, free);
            }
            b.mnt_count = b.mnt_count.get().wrapping_add(1).into();
            b.mtime = now.into();
            if b.max_mnt_count.get() == 0 {
                b.max_mnt_count = 50.into();
            }
            b.state = (b.state.get() & !STATE_VALID).into();
        });
        self.write_supers(&writes)?;
        self.super_seq = self.supers.first.1.last_seq.get();
        self.super_written = now;
        self.moved = false;
        self.forget_tail()?;
        self.settle(now)
    }

    /// Writes what waits and marks the volume cleanly unmounted. Nothing may be pinned.
    pub fn close(&mut self, now: u64) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        // Nobody comes again later: what cannot be read costs what it hits.
        self.patient = false;
        self.finish_construction(now)?;
        self.checkpoint(now)?;
        if self.has_changes() {
            // Places found bad meanwhile.
            self.checkpoint(now)?;
        }
        let (last, free) = (self.last, self.free_blocks());
        let state = self.supers.state_at_open;
        let writes = self.supers.write_both(now, |b| {
            supers::set_cursor(b, last, free);
            b.state = (state | (b.state.get() & STATE_ERROR)).into();
        });
        self.write_supers(&writes)?;
        self.write_where_cut()
    }

    /// Writes super blocks, durably, after what they name; where the storage below has no space for them, in the place of a
    /// clean segment ([`Volume::give_way_below`]).
    pub fn write_supers(&mut self, writes: &[SuperWrite]) -> Result<()> {
        // They name logs that are there.
        self.flush_logs()?;
        let device = self.store.device.clone();
        let write = |w: &SuperWrite| w.write(&*device);
        let mut given = self.give_way_below(false);
        let mut written = writes.iter().try_for_each(write);
        if given.is_none() && matches!(&written, Err(Error::Device(e)) if e.is_no_space()) {
            given = self.give_way_below(true);
            if given.is_some() {
                written = writes.iter().try_for_each(write);
            }
        }
        if let Some(backing) = given {
            let asked = backing.ask(&*device).ok();
            if self.told_of_backing(&backing, asked).is_err() {
                self.forget_backing();
            }
        }
        written
    }

    /// Records in both super blocks that an error was met.
    pub fn set_error_flag(&mut self, now: u64) -> Result<()> {
        if self.read_only || self.supers.first.1.state.get() & STATE_ERROR != 0 {
            return Ok(());
        }
        self.check_writing()?;
        let second = self.supers.second.clone();
        let mut writes = self.supers.write_both(now, |b| b.state = (b.state.get() | STATE_ERROR).into());
        if let Some((copy, mut block)) = second {
            // The other copy keeps pointing at its own, earlier log.
            block.state = (block.state.get() | STATE_ERROR).into();
            writes.truncate(1);
            writes.push(self.supers.emit(copy, &block));
            self.supers.second = Some((copy, block));
        }
        self.write_supers(&writes)
    }

    /// The super block write that is due after a checkpoint, if any: there is one that no super block points at, and
    /// either ten seconds passed, or the clock went backwards, or the tail of the log behind the older copy has grown to
    /// 64 MiB. What lies before that checkpoint is no part of a recovery then: damage there costs what it hits. (Linux
    /// writes only where the log is in another segment; spec 2.7.) Write it outside the lock, log first (its durable
    /// write flushes).
    pub fn due_super_write(&mut self, now: u64) -> Option<SuperWrite> {
        if self.is_read_only() || self.moved || self.supers.first.1.last_cno.get() == self.last.cno {
            return None;
        }
        let segment_bytes =
            u64::from(self.store.geometry.blocks_per_segment) << self.store.geometry.block_bits;
        let behind = self.last.seq.wrapping_sub(self.super_seq).saturating_mul(segment_bytes);
        let waited = now.wrapping_sub(self.super_written);
        if waited < 10 && behind < 64 << 20 {
            return None;
        }
        self.super_written = now;
        self.super_seq = self.last.seq;
        let free = self.free_blocks();
        Some(self.supers.write_older(now, self.last, free))
    }
}
