//! Changing checkpoints: snapshots made and unmade, checkpoints deleted (spec 10.4, 10.5).
//!
//! Changes wait in memory and become durable with the next checkpoint. While one is being
//! written they are refused with [`Error::Constructing`]: try again after it.

use std::ops::{ControlFlow, Range};

use silt_format::checkpoint::CpEntry;
use silt_format::segment_usage::SuEntry;
use silt_format::{Cno, Ino};

use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// A checkpoint for listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointInfo {
    pub cno: u64,
    /// Seconds.
    pub created: u64,
    pub snapshot: bool,
    pub minor: bool,
    /// Blocks its logs wrote.
    pub blocks_written: u64,
    pub inodes: u64,
    pub blocks: u64,
}

impl From<&CpEntry> for CheckpointInfo {
    fn from(e: &CpEntry) -> Self {
        CheckpointInfo {
            cno: e.cno.get(),
            created: e.create.get(),
            snapshot: e.is_snapshot(),
            minor: e.is_minor(),
            blocks_written: e.nblk_inc.get(),
            inodes: e.inodes_count.get(),
            blocks: e.blocks_count.get(),
        }
    }
}

/// A segment for listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    pub segment: u64,
    /// Seconds; 0 if clean.
    pub modified: u64,
    /// Blocks written in it.
    pub blocks: u32,
    /// Held by the writer: the current segment or the next.
    pub active: bool,
    pub dirty: bool,
    pub error: bool,
}

impl Volume {
    pub(crate) fn may_change(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if self.construction.is_some() { Err(Error::Constructing) } else { Ok(()) }
    }

    /// Makes a checkpoint a snapshot.
    pub fn make_snapshot(&mut self, c: Cno) -> Result<()> {
        self.may_change()?;
        if c >= self.cno {
            return Err(Error::NoCheckpoint(c.0));
        }
        // The checkpoint that says so takes space, and nobody else looks whether there is some. What it keeps is nothing that the
        // cleaner can gain any more: so it leaves what the largest deletion takes as well.
        self.check_change(false, crate::room::MUCH)?;
        self.cpfile.set_snapshot(&self.store, &self.dat, c)?;
        self.meta_dirty = true;
        Ok(())
    }

    /// Makes a snapshot a plain checkpoint. Refused while it is viewed and for the newest one.
    pub fn unmake_snapshot(&mut self, c: Cno) -> Result<()> {
        self.may_change()?;
        if self.is_viewed(c) {
            return Err(Error::CheckpointBusy(c.0, "it is mounted"));
        }
        if c.0 >= self.last.cno {
            return Err(Error::CheckpointBusy(c.0, "it is the newest"));
        }
        self.check_change(true, 1)?;
        self.cpfile.clear_snapshot(&self.store, &self.dat, c)?;
        self.gave_up(crate::room::MUCH);
        self.meta_dirty = true;
        Ok(())
    }

    /// Deletes the plain checkpoints of a range; what is viewed stays. Returns how many went and
    /// which snapshots are in the way. The newest one may go, too: that is durable with the next
    /// checkpoint and not before, so there always is one (spec 10.5).
    pub fn delete_checkpoints(&mut self, range: Range<u64>) -> Result<(u64, Vec<u64>)> {
        self.may_change()?;
        self.check_change(true, 1)?;
        let (victims, kept) = self.have_to_drop(range)?;
        self.drop_checkpoints(&victims)?;
        Ok((victims.len() as u64, kept))
    }

    /// Plain checkpoints of a range that nobody looks at, for [`Volume::drop_checkpoints`], and the snapshots in it. Whatever
    /// dropping them changes is in memory then.
    pub(crate) fn have_to_drop(&mut self, range: Range<u64>) -> Result<(Vec<Cno>, Vec<u64>)> {
        self.may_change()?;
        let range = range.start.max(1)..range.end.min(self.cno.0);
        let (mut victims, kept) = self.cpfile.have_to_delete(&self.store, &self.dat, range)?;
        victims.retain(|c| !self.views.contains_key(&c.0));
        let kept = kept.into_iter().map(|c| c.0).filter(|c| !self.views.contains_key(c));
        Ok((victims, kept.collect()))
    }

    /// Deletes checkpoints, whether or not there is room for it.
    pub(crate) fn drop_checkpoints(&mut self, victims: &[Cno]) -> Result<()> {
        if !victims.is_empty() {
            let mut change = Change::dead(&mut self.store, &mut self.dat, self.cno);
            self.cpfile.delete(&mut change, victims)?;
            let damage = change.damage.take();
            self.met(Ino::CPFILE, damage);
            self.gave_up(crate::room::MUCH);
            self.meta_dirty = true;
        }
        Ok(())
    }

    /// One checkpoint.
    pub fn checkpoint_info(&self, c: Cno) -> Result<CheckpointInfo> {
        if c >= self.cno {
            return Err(Error::NoCheckpoint(c.0));
        }
        let e = self.cpfile.get(&self.store, &self.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
        Ok(CheckpointInfo::from(&e))
    }

    /// Calls `f` for every checkpoint from `from` on, ascending, the one under construction
    /// excepted.
    pub fn for_each_checkpoint(
        &self,
        from: Cno,
        mut f: impl FnMut(CheckpointInfo) -> ControlFlow<()>,
    ) -> Result<()> {
        // A number that nothing could hold is no damage.
        if from >= self.cno {
            return Ok(());
        }
        self.cpfile.for_each(&self.store, &self.dat, from, |e| {
            if e.cno.get() >= self.cno.0 { ControlFlow::Break(()) } else { f(CheckpointInfo::from(&e)) }
        })
    }

    /// The same from `from` on downwards.
    pub fn for_each_checkpoint_back(
        &self,
        from: Cno,
        mut f: impl FnMut(CheckpointInfo) -> ControlFlow<()>,
    ) -> Result<()> {
        let from = from.0.min(self.cno.0.saturating_sub(1));
        self.cpfile.for_each_back(&self.store, &self.dat, Cno(from), |e| f(CheckpointInfo::from(&e)))
    }

    /// The first checkpoint made at this time or later, in seconds since 1970; none where all are older. Where a clock
    /// was set back, one beside it.
    pub fn first_checkpoint_since(&self, time: u64) -> Result<Option<u64>> {
        let (mut low, mut high) = (1, self.cno.0);
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let mut next = None;
            self.for_each_checkpoint(Cno(middle), |c| {
                next = Some(c);
                ControlFlow::Break(())
            })?;
            match next {
                Some(c) if c.created < time => low = c.cno.saturating_add(1),
                Some(c) => {
                    found = Some(c.cno);
                    high = middle;
                }
                None => high = middle,
            }
        }
        Ok(found)
    }

    /// Every snapshot, ascending.
    pub fn snapshots(&self) -> Result<Vec<Cno>> {
        self.cpfile.snapshot_list(&self.store, &self.dat)
    }

    /// One segment.
    pub fn segment_info(&self, segment: silt_format::SegNr) -> Result<SegmentInfo> {
        let e: SuEntry = self.sufile.entry(&self.store, &self.dat, segment)?;
        Ok(SegmentInfo {
            segment: segment.0,
            modified: e.lastmod.get(),
            blocks: e.nblocks.get(),
            active: segment == self.cursor.segment || segment == self.cursor.next,
            dirty: e.is_dirty(),
            error: e.is_error(),
        })
    }
}
