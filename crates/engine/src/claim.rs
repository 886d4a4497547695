//! What the super blocks say of a volume that is open: who has claimed it, how it was left, which log is its newest.

use silt_format::super_block::{Copy, STATE_ERROR, STATE_VALID};

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
        self.write_supers_or_one(&writes)?;
        if self.supers.given_up() == Some(Copy::Primary) {
            self.outdo_primary(now)?;
        }
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
        self.write_supers_or_one(&writes)?;
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
        let before = self.supers.clone();
        let second = self.supers.second.clone();
        let mut writes = self.supers.write_both(now, |b| b.state = (b.state.get() | STATE_ERROR).into());
        if let Some((copy, mut block)) = second {
            // The other copy keeps pointing at its own, earlier log.
            block.state = (block.state.get() | STATE_ERROR).into();
            writes.truncate(1);
            writes.push(self.supers.emit(copy, &block));
            self.supers.second = Some((copy, block));
        }
        // What was not told is tried again.
        self.write_supers_or_one(&writes).inspect_err(|_| self.supers = before)
    }

    /// As [`Volume::write_supers`], where one copy is enough if the place of the other takes nothing. To be followed by
    /// something that gives the one a later checkpoint, unless it is the primary: of two with the same that is chosen.
    pub fn write_supers_or_one(&mut self, writes: &[SuperWrite]) -> Result<()> {
        // Those behind one that failed are tried as well, and a place that fails once may take the next.
        let mut tries = 0;
        loop {
            tries += 1;
            let mut failed = None;
            for w in writes {
                match self.write_supers(std::slice::from_ref(w)) {
                    Ok(()) => {}
                    Err(e) if w.is_refused(&e) => failed = Some((w.copy(), e)),
                    Err(e) => return Err(e),
                }
            }
            match failed {
                None => return Ok(()),
                // The last that failed, and so the only one: one is given up only where the other can be written.
                Some((copy, _)) if self.supers.given_up() == Some(copy) => return Ok(()),
                Some((_, e)) if tries > supers::TRIES => return Err(e),
                Some(_) => {}
            }
        }
    }

    /// The primary copy cannot be written and may say that the volume is unmounted: it is chosen as long as the secondary
    /// one has no later checkpoint.
    fn outdo_primary(&mut self, now: u64) -> Result<()> {
        self.meta_dirty = true;
        self.checkpoint(now)?;
        let write = self.supers.write_one(Copy::Secondary, now, self.last, self.free_blocks());
        self.write_supers(&[write])
    }

    /// Which super block cannot be written, where there is one, after some tries. The other is enough.
    pub fn super_block_given_up(&self) -> Option<Copy> {
        self.supers.given_up()
    }

    /// That in words.
    pub fn super_block_note(&self) -> Option<String> {
        let (lost, used) = match self.supers.given_up()? {
            Copy::Primary => ("primary", "secondary"),
            Copy::Secondary => ("secondary", "primary"),
        };
        Some(format!(
            "the {lost} super block cannot be written; all hangs on the {used} one: copy what is here elsewhere"
        ))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ops::Range;
    use std::sync::Arc;

    use silt_device::{Fault, MemoryDevice, Times};
    use silt_format::inode::RawInode;
    use silt_format::super_block as sb;

    use super::*;
    use crate::inode::Attr;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::OpenOptions;

    const SIZE: u64 = 60 * 16 * 4096;

    type Disk = Arc<Fault<MemoryDevice>>;

    fn disk() -> Disk {
        let device = Arc::new(Fault::new(MemoryDevice::new(SIZE)));
        let parameters = Parameters { blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
        device
    }

    fn place(copy: Copy) -> Range<u64> {
        let at = match copy {
            Copy::Primary => sb::PRIMARY_OFFSET,
            Copy::Secondary => sb::secondary_offset(SIZE),
        };
        at..at + sb::SIZE as u64
    }

    fn open(device: &Disk) -> Volume {
        Volume::open(device.clone(), &OpenOptions::default()).unwrap().0
    }

    /// Makes as many files, each in a checkpoint.
    fn work(v: &mut Volume, files: u64) {
        for n in 0..files {
            let attr = Attr { mode: 0o100_644, links: 1, ..Attr::of(&RawInode::zeroed()) };
            v.create_inode(attr).unwrap();
            v.checkpoint(3000 + n).unwrap();
        }
        v.flush_logs().unwrap();
    }

    fn inodes(v: &Volume) -> u64 {
        v.stat().unwrap().inodes
    }

    /// The copy that stays as it was says that the volume is unmounted.
    #[test]
    fn one_super_block_is_enough_after_a_power_cut() {
        for copy in [Copy::Primary, Copy::Secondary] {
            for closed in [false, true] {
                let device = disk();
                device.fail_writes(place(copy), Times::Always);
                let mut v = open(&device);
                let before = inodes(&v);
                v.take_over(2000).unwrap();
                assert_eq!(v.super_block_given_up(), Some(copy));
                work(&mut v, 3);
                if closed {
                    v.close(4000).unwrap();
                }
                drop(v);
                // Later it is written again.
                device.heal();
                let mut v = open(&device);
                assert_eq!(inodes(&v), before + 3, "{copy:?}, closed: {closed}");
                v.take_over(5000).unwrap();
                assert_eq!(v.super_block_given_up(), None);
                v.close(6000).unwrap();
            }
        }
    }

    #[test]
    fn what_a_super_block_leads_to_that_cannot_be_written_is_reclaimed() {
        for copy in [Copy::Primary, Copy::Secondary] {
            let device = disk();
            let mut v = open(&device);
            v.take_over(2000).unwrap();
            device.fail_writes(place(copy), Times::Always);
            let before = v.protected_sequence();
            for n in 1..=3 {
                work(&mut v, 10);
                assert_eq!(v.protected_sequence(), before, "after {} tries", n - 1);
                let writes = v.advance_super_blocks(4000);
                assert_eq!(writes.iter().filter(|w| w.write(&*device).is_err()).count(), 1);
            }
            assert_eq!(v.super_block_given_up(), Some(copy));
            assert_eq!(v.protected_sequence(), v.last_log().seq);
            let files = inodes(&v);
            drop(v);
            // Who mounts it then does not go by the old one.
            let mut v = open(&device);
            assert_eq!(inodes(&v), files);
            device.heal();
            v.take_over(5000).unwrap();
            assert_eq!((v.super_block_given_up(), v.protected_sequence()), (None, v.last_log().seq));
        }
    }

    /// A log that goes elsewhere is reached by the super blocks alone.
    #[test]
    fn one_super_block_is_enough_for_a_log_that_goes_elsewhere() {
        for copy in [Copy::Primary, Copy::Secondary] {
            let device = disk();
            let mut v = open(&device);
            v.take_over(2000).unwrap();
            device.fail_writes(place(copy), Times::Always);
            let before = inodes(&v);
            work(&mut v, 2);
            device.fail_writes(8192..SIZE - 8192, Times::Next(1));
            work(&mut v, 2);
            assert_eq!(v.super_block_given_up(), Some(copy), "the log did go elsewhere");
            drop(v);
            let mut v = open(&device);
            assert_eq!(inodes(&v), before + 4, "{copy:?}");
            v.take_over(4000).unwrap();
            work(&mut v, 1);
            v.close(5000).unwrap();
        }
    }

    /// Where the second copy lies follows from the size: with the first alone a change of it may lead nowhere.
    #[test]
    fn a_volume_with_one_super_block_is_not_resized() {
        for (copy, late) in [Copy::Primary, Copy::Secondary].into_iter().flat_map(|c| [(c, false), (c, true)])
        {
            let device = disk();
            let mut v = open(&device);
            if late {
                v.take_over(2000).unwrap();
            }
            device.fail_writes(place(copy), Times::Always);
            if !late {
                v.take_over(2000).unwrap();
            }
            let before = inodes(&v);
            work(&mut v, 2);
            assert!(v.grow(None, 3000).is_err());
            assert_eq!(v.failure(), None, "{copy:?}, late: {late}");
            work(&mut v, 2);
            v.close(4000).unwrap();
            assert_eq!(inodes(&open(&device)), before + 4);
        }
    }

    #[test]
    fn one_is_not_given_up_for_what_is_wrong_with_both() {
        let device = disk();
        let mut v = open(&device);
        v.take_over(2000).unwrap();
        device.fail_writes(0..SIZE, Times::Always);
        for _ in 0..5 {
            assert!(v.set_error_flag(3000).is_err());
        }
        assert_eq!(v.super_block_given_up(), None);
        device.heal();
        let mut v = open(&device);
        device.set_full(true);
        assert!(v.take_over(4000).is_err());
        assert_eq!(v.super_block_given_up(), None, "a full host is no bad place");
    }
}
