//! Changing what the super block says: label, UUID, commit interval, and the volume's size.

use silt_device::Device;
use silt_format::SegNr;
use silt_format::super_block::{self as sb, STATE_RESIZE, SuperBlock};

use crate::supers::{self, SuperWrite};
use crate::volume::Volume;
use crate::{Error, Result};

/// Changes of a volume's settings; `None` leaves one as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tune {
    /// At most 80 bytes.
    pub label: Option<Vec<u8>>,
    pub uuid: Option<[u8; 16]>,
    /// Seconds between checkpoints; 0 is the default.
    pub interval: Option<u32>,
    /// Dirty blocks that start a checkpoint; 0 is the default.
    pub block_max: Option<u32>,
    /// The `block_count` feature bit.
    pub block_count: Option<bool>,
}

impl Tune {
    fn apply(&self, block: &mut SuperBlock) {
        if let Some(label) = &self.label {
            block.set_label(label);
        }
        if let Some(uuid) = self.uuid {
            block.uuid = uuid;
        }
        if let Some(interval) = self.interval {
            block.c_interval = interval.into();
        }
        if let Some(block_max) = self.block_max {
            block.c_block_max = block_max.into();
        }
        if let Some(on) = self.block_count {
            let others = block.feature_compat_ro.get() & !sb::FEATURE_RO_BLOCK_COUNT;
            let bit = if on { sb::FEATURE_RO_BLOCK_COUNT } else { 0 };
            block.feature_compat_ro = (others | bit).into();
        }
    }
}

impl Volume {
    /// Changes settings in both super blocks, each of which keeps the log it points at. Durable
    /// when it returns.
    pub fn tune(&mut self, tune: &Tune) -> Result<()> {
        self.check_writing()?;
        let before = self.supers.clone();
        tune.apply(&mut self.supers.first.1);
        if let Some((_, second)) = &mut self.supers.second {
            tune.apply(second);
        }
        let writes = self.supers.both_as_they_are();
        // What one copy may hold by now, the next write of it takes back.
        self.write_supers(&writes).inspect_err(|_| self.supers = before)
    }

    /// Whether both super blocks can be written, by writing them as they are. One alone is no ground to change the size on: where
    /// the second lies, and whether the first fits the device, follows from that. Durable when it returns.
    pub fn prove_super_blocks(&mut self) -> Result<()> {
        self.check_writing()?;
        let writes = self.supers.both_as_they_are();
        match self.write_supers(&writes) {
            // That is seen to where it is done.
            Err(Error::Device(e)) if e.is_no_space() => Ok(()),
            proved => proved,
        }
    }

    /// Makes the volume `wanted` bytes large, or as large as its device has become, and returns
    /// the number of segments gained (spec section 15; the super blocks go first, marked, so that a crash in between
    /// leaves a volume that knows to count its segments again). Durable when it returns.
    pub fn grow(&mut self, wanted: Option<u64>, now: u64) -> Result<u64> {
        self.ready_to_begin()?;
        // What lies behind the limit would count as available, and no log may go there.
        if self.is_confined() {
            return Err(Error::Invalid("the volume is being made smaller".into()));
        }
        self.prove_super_blocks()?;
        let size = self.store.device.refresh_len()?;
        let g = self.store.geometry;
        // The secondary super block lies where the size of the device says: that is the size, and
        // a smaller wish only leaves segments unused.
        let usable = wanted.map_or(size, |w| w.min(size));
        if wanted.is_some_and(|w| w > size) {
            return Err(Error::Invalid(format!("the device has only {size} bytes")));
        }
        let nsegments = (sb::secondary_offset(usable) >> g.block_bits) / u64::from(g.blocks_per_segment);
        if nsegments < g.nsegments {
            return Err(Error::Invalid(format!(
                "the device holds {nsegments} segments, the volume has {}",
                g.nsegments
            )));
        }
        let gained = nsegments - g.nsegments;
        // Entries of new segments may lie in a block that exists: nothing may be left in them.
        for s in g.nsegments..nsegments.min(g.nsegments + 2 * u64::from(g.block_size)) {
            self.sufile.clear_slot(&self.store, &self.dat, SegNr(s))?;
        }
        // On a full host there may be nothing for it, which is told before anything is written.
        if self.is_backing_counted() {
            self.store.device.allocate(sb::secondary_offset(size), sb::SIZE as u64)?;
        }
        // What is changed once the super blocks have the new size is at hand from here on.
        self.sufile.store_header(&self.store, &self.dat)?;
        let before = self.supers.clone();
        self.supers.move_secondary(size);
        if let Err(e) = self.write_size(now, size, nsegments, STATE_RESIZE) {
            self.supers = before;
            // One that has the new size would fit no device that is cut back.
            let writes = self.supers.write_both(now, |_| {});
            // With one alone nothing would be taken back: where the other lies follows from the size.
            if let Err(left) = self.write_supers(&writes) {
                self.fail(format!("making the volume larger failed, and is not taken back: {left}"));
            }
            return Err(e);
        }
        self.store.geometry.nsegments = nsegments;
        self.sufile.grow(&self.store, &self.dat, gained)?;
        self.gave_up(crate::room::MUCH);
        self.meta_dirty = true;
        self.checkpoint(now)?;
        // The checkpoint may not be on the medium, and nobody has its logs to write them again.
        self.write_size(now, size, nsegments, 0)
            .inspect_err(|e| self.fail(format!("making the volume larger failed: {e}")))?;
        Ok(gained)
    }

    fn write_size(&mut self, now: u64, size: u64, nsegments: u64, resizing: u16) -> Result<()> {
        let (last, free) = (self.last, self.free_blocks());
        let writes = self.supers.write_both(now, |b| {
            supers::set_cursor(b, last, free);
            b.dev_size = size.into();
            b.nsegments = nsegments.into();
            b.state = ((b.state.get() & !STATE_RESIZE) | resizing).into();
        });
        self.write_supers(&writes)?;
        self.super_seq = self.last.seq;
        Ok(())
    }

    /// Has the clean segments as they were counted when the volume was opened in the place of those of before a resize that
    /// was cut off.
    pub(crate) fn finish_resize(&mut self) -> Result<()> {
        if self.supers.first.1.state.get() & STATE_RESIZE == 0 || self.read_only {
            return Ok(());
        }
        self.sufile.store_header(&self.store, &self.dat)?;
        self.meta_dirty = true;
        self.supers.first.1.state = (self.supers.first.1.state.get() & !STATE_RESIZE).into();
        self.supers.state_at_open &= !STATE_RESIZE;
        Ok(())
    }
}

/// Changes settings of a volume that nobody uses, in place. Durable when it returns.
pub fn tune(device: &dyn Device, change: &Tune) -> Result<()> {
    let mut supers = supers::read(device)?;
    change.apply(&mut supers.first.1);
    if let Some((_, second)) = &mut supers.second {
        if second.last_cno.get() == 0 {
            // A torn copy is mended by the next mount, not by a change of settings.
            supers.second = None;
        } else {
            change.apply(second);
        }
    }
    supers.both_as_they_are().iter().try_for_each(|w: &SuperWrite| w.write(device))
}

/// The super block that a volume would be opened by.
pub fn read_super_block(device: &dyn Device) -> Result<SuperBlock> {
    Ok(supers::read(device)?.first.1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use silt_device::{Counter, MemoryDevice};

    use super::*;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::OpenOptions;

    /// Writing ends where the newest logs may be nowhere: no super block may be pointed at them any more.
    #[test]
    fn super_blocks_stay_as_they_are_once_writing_has_ended() {
        let size = 60 * 16 * 4096;
        let device = Arc::new(Counter::new(MemoryDevice::new(size)));
        let parameters = Parameters { blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        v.take_over(2000).unwrap();
        v.fail("a test");
        let before = device.counts().durable_writes;
        let label = Tune { label: Some(b"other".to_vec()), ..Tune::default() };
        let refused = [v.tune(&label), v.grow(None, 3000).map(|_| ()), v.set_error_flag(3000)];
        assert!(refused.iter().all(|r| matches!(r, Err(Error::Failed(_)))), "{refused:?}");
        assert_eq!(device.counts().durable_writes, before);
    }
}
