//! Which segments the storage below is asked for, without the volume's lock, and what it said ([`crate::backed`]).

use std::ops::Range;

use rangemap::RangeSet;
use silt_device::{Allocation, Device};
use silt_format::{BlockNr, Geometry, SegNr};

use crate::Result;
use crate::backed::Backed;
use crate::discard::{Discard, bytes_of};
use crate::room::Extra;
use crate::volume::Volume;

/// Segments that are looked at in one go for clean ones.
pub(crate) const LOOKED: u64 = 4096;
/// Most segments that are asked for in one go.
const TOGETHER: u64 = 4;
/// The same of those in use: nothing of them has to be found anew.
const BEGUN: u64 = 64;
/// What a host that writes elsewhere what is written over writes at least, in bytes.
const COPIED: u32 = 4096;

/// Segments of which the device is to be asked, with [`Backing::ask`] and without the volume's lock, whether they have their
/// space below; then [`Volume::told_of_backing`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backing {
    pub(crate) segments: Range<u64>,
    /// On the device.
    pub(crate) bytes: Range<u64>,
    pub(crate) discards: u64,
    /// All of it may be missing. Else it was in use, and hardly anything is.
    pub is_new: bool,
    /// It was in use, is clean now, and is of no use without its space.
    pub is_freed: bool,
    /// It is clean, and has to be discarded before it is asked for: [`Volume::begin_renewal`].
    pub is_renewed: bool,
}

impl Backing {
    /// Asks the device.
    pub fn ask(&self, device: &dyn Device) -> silt_device::Result<Allocation> {
        device.allocate(self.bytes.start, self.bytes.end - self.bytes.start)
    }

    /// Their numbers.
    pub fn segments(&self) -> Range<u64> {
        self.segments.clone()
    }
}

impl Volume {
    /// From now on it is accounted for what the storage below holds, where that can grow ([`silt_device::Device::backing_free`]).
    pub(crate) fn account_for_backing(&mut self) {
        if self.store.device.backing_free().is_some() {
            self.store.held.backed = Some(Backed::default());
        }
    }

    /// Whether it is accounted for what the storage below holds.
    pub fn is_backing_counted(&self) -> bool {
        self.store.held.backed.is_some()
    }

    /// The storage below does not say what it holds: from now on all that is clean counts.
    pub fn forget_backing(&mut self) {
        self.store.held.backed = None;
    }

    /// Clean segments that count as in use, since the storage below has no space for them.
    pub fn unbacked_segments(&self) -> u64 {
        self.clean_and_free().saturating_sub(self.available_segments())
    }

    /// Whether a log that finds no space below finds some elsewhere, for certain: on a host that writes elsewhere what is written
    /// over, its place may have none any more because it was written before.
    pub fn could_go_elsewhere(&self) -> bool {
        let all = Extra { data: self.frozen_blocks, ..Extra::default() };
        let under_way = self.construction.as_ref().map_or(0, |k| k.need);
        // What is left behind is not clean at once.
        let needed = self.segments_for(self.need(all).max(under_way)) + 4;
        let copies = self.store.held.backed.as_ref().is_some_and(|b| b.only && b.once);
        copies && self.available_segments() >= needed
    }

    /// Whether segments that are clean do not count, and the storage below was not found to have nothing for them.
    pub(crate) fn lacks_backing(&self) -> bool {
        let backed = self.store.held.backed.as_ref();
        // What was freed was not asked for yet.
        let may_give = backed.is_some_and(|b| b.only && (!b.full || !b.freed.is_empty()));
        may_give && self.unbacked_segments() > 0
    }

    /// Clean segments that are known to have their space below.
    pub fn backed_segments(&self) -> u64 {
        self.store.held.backed.as_ref().map_or(0, |b| b.count(self.sufile.confined().0))
    }

    /// Bytes of clean segments that the storage below has or can give the space for, and how many of them users get nothing of:
    /// none where that is no question.
    pub fn could_be_backed(&self) -> Option<(u64, u64)> {
        let left = self.store.device.backing_free()?;
        let Some(backed) = &self.store.held.backed else { return Some((left, 0)) };
        let g = &self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let ready = backed.count(self.sufile.confined().0).saturating_mul(segment);
        let kept = self.kept_at_least().saturating_add(1).saturating_mul(segment);
        Some((left.saturating_add(ready), kept))
    }

    /// Whether the storage below had nothing more when it was asked last.
    pub fn is_backing_full(&self) -> bool {
        self.store.held.backed.as_ref().is_some_and(|b| b.full)
    }

    /// Whether only what is ready counts as clean.
    pub fn counts_backed_only(&self) -> bool {
        self.store.held.backed.as_ref().is_some_and(|b| b.only)
    }

    /// Segments that all that waits takes, with `blocks` more.
    fn taken_by(&self, blocks: u64) -> u64 {
        let under_way = self.construction.as_ref().map_or(0, |k| self.segments_for(k.need));
        let needed = self.segments_for(self.need(Extra { data: blocks, ..Extra::default() }));
        needed.saturating_add(under_way)
    }

    /// How many segments must be ready so that all that waits, `blocks` more, and whatever is deleted or cleaned then, can be
    /// written.
    pub fn backing_for(&self, blocks: u64) -> u64 {
        self.kept_at_least().saturating_add(self.taken_by(blocks)).min(self.clean_and_free())
    }

    /// The next segments of which the device is to be asked: those in use that are not known to be whole, and, as long as not
    /// `target` are ready, those freed, and up to `new` others that are clean; where little is left below all that were freed.
    pub fn next_backing(&mut self, target: u64, new: u64) -> Result<Option<Backing>> {
        self.store.held.release();
        let g = self.store.geometry;
        let limit = self.sufile.confined().0;
        let after = self.after_last();
        let Some(backed) = &mut self.store.held.backed else { return Ok(None) };
        let (once, one_by_one) = (backed.once, !backed.in_place);
        let used = |set: &RangeSet<u64>, most, limit: u64| {
            let first = set.first().filter(|r| r.start < limit);
            first.map(|r| r.start..r.end.min(limit).min(r.start + if one_by_one { 1 } else { most }))
        };
        let of = |segments: Range<u64>, discards, is_new, is_freed| {
            let bytes = bytes_of(&g, &segments);
            Some(Backing {
                segments,
                bytes,
                discards,
                is_new,
                is_freed,
                is_renewed: once && (is_new || is_freed),
            })
        };
        // More segments than there are: a number that damage left.
        backed.begun.remove(g.nsegments..u64::MAX);
        if let Some(segments) = used(&backed.begun, BEGUN, g.nsegments) {
            return Ok(of(segments, backed.discards, false, false));
        }
        let lacks = target.saturating_sub(backed.count(limit));
        // What lies behind the end is of no use.
        let end = limit.unwrap_or(g.nsegments);
        if let Some(segments) = used(&backed.freed, TOGETHER, end).filter(|_| lacks > 0 || backed.near) {
            return Ok(of(segments, backed.discards, false, true));
        }
        let most = lacks.min(new).min(if one_by_one { 1 } else { TOGETHER });
        if most == 0 {
            return Ok(None);
        }
        let discards = backed.discards;
        let segments = self.unready(after, end)?;
        Ok(segments.and_then(|s| of(s.start..s.end.min(s.start + most), discards, true, false)))
    }

    /// What is to be discarded before it is asked for, and what is to be asked then. To be ended with [`Volume::end_discard`],
    /// after which the device is asked and [`Volume::told_of_backing`] told. Some may be left: then it is the next again.
    pub fn begin_renewal(&mut self, backing: &Backing) -> Result<(Discard, Vec<Backing>)> {
        let discard = self.begin_discard(backing.segments())?;
        let g = self.store.geometry;
        let of =
            |segments: Range<u64>| Backing { bytes: bytes_of(&g, &segments), segments, ..backing.clone() };
        let parts = discard.segments().map(|s| self.as_of_now(of(s))).collect();
        if discard.is_empty()
            && let Some(backed) = &mut self.store.held.backed
        {
            // They are in use again, or nothing is discarded now.
            backed.freed.remove(backing.segments());
        }
        Ok((discard, parts))
    }

    pub(crate) fn as_of_now(&self, backing: Backing) -> Backing {
        let discards = self.store.held.backed.as_ref().map_or(0, |b| b.discards);
        Backing { discards, ..backing }
    }

    /// The device was asked for these: what it said, none for an error.
    pub fn told_of_backing(&mut self, backing: &Backing, said: Option<Allocation>) -> Result<()> {
        let clean = self.clean_segments(backing.segments())?;
        let shares = self.store.geometry.block_size < COPIED;
        let Some(backed) = &mut self.store.held.backed else { return Ok(()) };
        let segments = backing.segments();
        if said.is_some() && backed.discards != backing.discards {
            // Some of it may have been discarded meanwhile: it is asked for again.
            return Ok(());
        }
        let is_whole = match said {
            None => false,
            // Two logs may share what is written elsewhere as a whole.
            Some(said) if said == Allocation::Unknown || (said == Allocation::Once && shares) => {
                self.forget_backing();
                return Ok(());
            }
            Some(Allocation::Once) => {
                (backed.once, backed.in_place) = (true, false);
                // What was asked for before that was known may hold something.
                backing.is_renewed || !(backing.is_new || backing.is_freed)
            }
            Some(_) => {
                backed.in_place = !backed.once;
                true
            }
        };
        backed.begun.remove(segments.clone());
        backed.freed.remove(segments.clone());
        if is_whole {
            backed.whole.insert(segments);
            clean.into_iter().for_each(|run| backed.put(run));
        }
        Ok(())
    }

    /// Says how it is below: whether there is little left, and whether nothing more could be had; and how many of those that are
    /// ready are not to be discarded. With little left, and as many
    /// segments ready as all that waits takes, no others count as clean: nobody is promised more. Whether that is so.
    pub fn judge_backing(&mut self, near: bool, full: bool, keep: u64) -> bool {
        // Else what waits would have no room.
        let enough = self.taken_by(0).saturating_add(1);
        let limit = self.sufile.confined().0;
        let Some(backed) = &mut self.store.held.backed else { return false };
        let was_only = backed.only;
        (backed.near, backed.full, backed.keep) = (near, full, keep);
        let ready = backed.count(limit);
        backed.only = near && (was_only || ready >= enough);
        let only = backed.only;
        // What a checkpoint under way still takes, it takes of these.
        if let Some(k) = self.construction.as_mut().filter(|_| only && !was_only) {
            k.available = ready;
        }
        only
    }

    /// Segments from this one on for which the storage below holds something, and the one to go on with: none at the end. For
    /// [`Volume::told_of_data`]; without the volume's lock.
    pub fn with_data(device: &dyn Device, g: &Geometry, from: u64) -> (Vec<u64>, Option<u64>) {
        let (mut found, mut at) = (Vec::new(), from);
        while at < g.nsegments {
            if found.len() as u64 == LOOKED {
                return (found, Some(at));
            }
            let Some(next) = device.next_data(g.byte_of(g.segment_start(SegNr(at)))) else { break };
            let segment = g.segment_of(BlockNr(next >> g.block_bits)).0.max(at);
            // Behind the last one lies a super block.
            if segment >= g.nsegments {
                break;
            }
            found.push(segment);
            at = segment + 1;
        }
        (found, None)
    }

    /// These were in use once, before this mount perhaps, and hardly anything of them can be missing below: those that are clean
    /// are asked for before new ones.
    pub fn told_of_data(&mut self, segments: &[u64]) -> Result<()> {
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(()) };
        let clean: RangeSet<u64> = self.clean_segments(*first..last.saturating_add(1))?.into_iter().collect();
        let Some(backed) = &mut self.store.held.backed else { return Ok(()) };
        for s in segments
            .iter()
            .filter(|s| clean.contains(s) && !backed.ready.contains(s))
            .copied()
            .collect::<Vec<_>>()
        {
            backed.freed.insert(s..s + 1);
        }
        Ok(())
    }

    /// A part of a segment lost what it had below, or its place was not what it was taken for.
    pub(crate) fn is_not_whole(&mut self, segment: SegNr) {
        if let Some(b) = &mut self.store.held.backed {
            b.discarded(segment.0..segment.0 + 1);
        }
    }

    /// A segment that was handed out was not written and is clean: an attempt was taken back, or had planned more than it took.
    /// Nothing is read for it.
    pub(crate) fn was_not_written(&mut self, segment: SegNr) {
        if let Some(b) = &mut self.store.held.backed {
            b.given_back(segment.0);
        }
    }

    /// A segment that was handed out may be again, if it is clean; it may have been written.
    pub(crate) fn is_clean_again(&mut self, segment: SegNr) -> Result<()> {
        if self.store.held.backed.is_none() {
            return Ok(());
        }
        let is_clean = !self.clean_segments(segment.0..segment.0 + 1)?.is_empty();
        if let Some(b) = self.store.held.backed.as_mut().filter(|_| is_clean) {
            b.released(segment.0);
        }
        Ok(())
    }

    /// What is not to be discarded, since deleting and cleaning may need it.
    pub(crate) fn kept_backed(&self) -> RangeSet<u64> {
        let least = self.backing_for(0);
        self.store.held.backed.as_ref().map_or_else(RangeSet::new, |b| {
            // What was promised since it was looked after that last.
            let least = if b.only { least } else { 0 };
            b.kept(self.after_last(), least)
        })
    }

    /// All that is ready, where nothing else counts.
    pub(crate) fn all_backed(&self) -> RangeSet<u64> {
        let backed = self.store.held.backed.as_ref().filter(|b| b.only);
        backed.map_or_else(|| self.kept_backed(), |b| b.ready.clone())
    }

    pub(crate) fn after_last(&self) -> u64 {
        let after = self.sufile.header().last_alloc.get().wrapping_add(1);
        if after >= self.store.geometry.nsegments { 0 } else { after }
    }

    /// The first clean segments that are not ready, from `from` on and around.
    fn unready(&self, from: u64, limit: u64) -> Result<Option<Range<u64>>> {
        let from = from.min(limit);
        for half in [from..limit, 0..from] {
            let mut at = half.start;
            while at < half.end {
                let end = at.saturating_add(LOOKED).min(half.end);
                for run in self.clean_segments(at..end)? {
                    let backed = self.store.held.backed.as_ref();
                    if let Some(gap) = backed.and_then(|b| b.ready.gaps(&run).next()) {
                        return Ok(Some(gap));
                    }
                }
                at = end;
            }
        }
        Ok(None)
    }
}
