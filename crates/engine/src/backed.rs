//! Clean segments that the storage below holds space for.
//!
//! A sparse image grows on its host where segments are first written, or written again after they were discarded, and a host
//! may be full. So that deleting and cleaning go on there, as many segments as those need are kept allocated below while they
//! are clean, in front of the log; where the host has little left, so are as many as all that waits will take, and no others
//! count as clean.
//!
//! ```text
//! unknown -> told to be whole below -> ready (clean, may be written) -> written -> freed -> ready again
//!                                              \____ discarded: unknown
//! ```
//!
//! Who tells is the caller: the device is asked without the volume's lock, since the host may take its time
//! ([`Volume::next_backing`]); before a log is written there, and of those in use afterwards, since logs do not fill a segment
//! to its last block. On a host that writes elsewhere what is written over (btrfs), a segment that was in use is whole again only
//! after it was discarded and asked for anew: nothing in a segment is written twice before it is freed. Where the host cannot tell,
//! none of this is done.
//!
//! Memory: 16 bytes a run of segments.

use std::ops::Range;

use rangemap::RangeSet;
use silt_device::{Allocation, Device};
use silt_format::{BlockNr, Geometry, SegNr};

use crate::Result;
use crate::discard::{Discard, bytes_of};
use crate::room::Extra;
use crate::volume::Volume;

/// Segments that are looked at in one go for clean ones.
const LOOKED: u64 = 4096;
/// Most segments that are asked for in one go.
const TOGETHER: u64 = 4;
/// The same of those in use: nothing of them has to be found anew.
const BEGUN: u64 = 64;
/// What a host that writes elsewhere what is written over writes at least, in bytes.
const COPIED: u32 = 4096;
/// So many that cannot be had end [`Volume::secure_backing`]: a full host may take milliseconds for each.
const FAILURES: u32 = 64;
/// With so many bytes left below super blocks can be written: the last ones that such a host tells of it may keep for itself.
const ENOUGH: u64 = 16 << 20;
/// A host with so many bytes left, besides what is to be kept, has enough for a beginning.
const NEAR: u64 = 64 << 20;

/// Segments by what is known of their space below.
#[derive(Debug, Default)]
pub(crate) struct Backed {
    /// In use or not, whole below.
    whole: RangeSet<u64>,
    /// Those of them that may be written.
    ready: RangeSet<u64>,
    ready_len: u64,
    /// Handed out, and not known to be whole.
    begun: RangeSet<u64>,
    /// Freed, and not known to be whole: hardly anything can be missing.
    freed: RangeSet<u64>,
    /// Discards that began so far: what was asked before says nothing of what was discarded since.
    discards: u64,
    /// So many that are ready are not discarded.
    keep: u64,
    /// The host has little left: what is ready is handed out first.
    near: bool,
    /// No others count as clean.
    only: bool,
    /// The host had nothing more when it was asked last.
    full: bool,
    /// The host writes elsewhere what is written over: what was asked for in one piece it has back only when all of that was
    /// discarded.
    once: bool,
    /// It writes in place.
    in_place: bool,
}

impl Backed {
    fn put(&mut self, segments: Range<u64>) {
        let new: u64 = self.ready.gaps(&segments).map(|gap| gap.end - gap.start).sum();
        self.ready_len += new;
        self.ready.insert(segments);
    }

    fn drop_ready(&mut self, segments: Range<u64>) {
        let had: u64 = self
            .ready
            .overlapping(&segments)
            .map(|r| r.end.min(segments.end).saturating_sub(r.start.max(segments.start)))
            .sum();
        self.ready_len = self.ready_len.saturating_sub(had);
        self.ready.remove(segments);
    }

    /// A segment was handed out.
    pub fn taken(&mut self, segment: u64) {
        let range = segment..segment + 1;
        self.drop_ready(range.clone());
        self.freed.remove(range.clone());
        if !self.whole.contains(&segment) {
            self.begun.insert(range);
        }
    }

    /// A segment that was in use may be written.
    pub fn released(&mut self, segment: u64) {
        let range = segment..segment + 1;
        self.begun.remove(range.clone());
        if self.once {
            self.whole.remove(range.clone());
        }
        if self.whole.contains(&segment) { self.put(range) } else { self.freed.insert(range) }
    }

    /// Segments lose what they have below.
    pub fn discarded(&mut self, segments: Range<u64>) {
        self.discards += 1;
        self.drop_ready(segments.clone());
        for set in [&mut self.whole, &mut self.begun, &mut self.freed] {
            set.remove(segments.clone());
        }
    }

    /// There are no more segments than these.
    pub fn cut(&mut self, nsegments: u64) {
        if nsegments < u64::MAX {
            self.discarded(nsegments..u64::MAX);
        }
    }

    /// Whether the host has little left: what is ready is handed out first.
    pub fn is_near(&self) -> bool {
        self.near
    }

    /// Ready ones, from `from` on and around, below `limit`.
    pub fn from(&self, from: u64, limit: u64) -> impl Iterator<Item = Range<u64>> {
        let (first, second) = (from.min(limit)..limit, 0..from.min(limit));
        let part = move |half: Range<u64>| {
            let within = half.clone();
            let found = (half.start < half.end).then(|| self.ready.overlapping(half));
            found.into_iter().flatten().map(move |r| r.start.max(within.start)..r.end.min(within.end))
        };
        part(first).chain(part(second))
    }

    /// The first ones that are ready, from `from` on and around, which are not discarded.
    pub fn kept(&self, from: u64, least: u64) -> RangeSet<u64> {
        let (mut left, mut kept) = (self.keep.max(least), RangeSet::new());
        for run in self.from(from, u64::MAX) {
            let end = run.end.min(run.start.saturating_add(left));
            if run.start == end {
                break;
            }
            left -= end - run.start;
            kept.insert(run.start..end);
        }
        kept
    }

    /// Ready ones below a limit.
    fn count(&self, limit: Option<u64>) -> u64 {
        limit.map_or(self.ready_len, |limit| self.from(0, limit).map(|r| r.end - r.start).sum())
    }

    /// Freed ones that the device was not asked for yet.
    pub fn unasked(&self) -> u64 {
        self.freed.iter().map(|r| r.end - r.start).sum()
    }

    /// How many count as clean at most: none where that is no question.
    pub fn most(&self, limit: Option<u64>) -> Option<u64> {
        self.only.then(|| self.count(limit))
    }
}

/// Segments of which the device is to be asked, with [`Backing::ask`] and without the volume's lock, whether they have their
/// space below; then [`Volume::told_of_backing`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backing {
    segments: Range<u64>,
    /// On the device.
    bytes: Range<u64>,
    discards: u64,
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

    /// Where nothing else counts: asks for what was freed, here and now, since whoever frees goes by what it brings.
    pub(crate) fn ask_for_freed(&mut self) {
        let device = self.store.device.clone();
        while self.counts_backed_only() {
            let Ok(Some(backing)) = self.next_backing(0, 0) else { return };
            // What it turns out not to have stays clean, and does not count.
            let asked = if self.renew(&backing) { backing.ask(&*device).ok() } else { None };
            if self.told_of_backing(&self.as_of_now(backing), asked).is_err() {
                return;
            }
        }
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
        let used = |set: &RangeSet<u64>, most| {
            set.first().map(|r| r.start..r.end.min(r.start + if one_by_one { 1 } else { most }))
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
        if let Some(segments) = used(&backed.begun, BEGUN) {
            return Ok(of(segments, backed.discards, false, false));
        }
        let lacks = target.saturating_sub(backed.count(limit));
        if let Some(segments) = used(&backed.freed, TOGETHER).filter(|_| lacks > 0 || backed.near) {
            return Ok(of(segments, backed.discards, false, true));
        }
        let most = lacks.min(new).min(if one_by_one { 1 } else { TOGETHER });
        if most == 0 {
            return Ok(None);
        }
        let discards = backed.discards;
        let segments = self.unready(after, limit.unwrap_or(g.nsegments))?;
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

    /// The same here and now, where that is so; false if it failed, or nothing there may be written.
    fn renew(&mut self, backing: &Backing) -> bool {
        if !backing.is_renewed {
            return true;
        }
        let segments = backing.segments();
        // Nothing but what a log might be written to is ever discarded, and nothing by who writes no more.
        if self.check_writing().is_err() || self.store.held.ends {
            return false;
        }
        if !self.clean_segments(segments.clone()).is_ok_and(|clean| clean == [segments.clone()]) {
            return false;
        }
        if let Some(backed) = &mut self.store.held.backed {
            backed.discarded(segments);
        }
        let (offset, len) = (backing.bytes.start, backing.bytes.end - backing.bytes.start);
        // Whether it can be done turns out with the first one.
        self.store.device.discard(offset, len).is_ok() && self.store.device.capabilities().discard
    }

    fn as_of_now(&self, backing: Backing) -> Backing {
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

    /// Has the segment that is written, the next one and as many clean ones as deleting and cleaning need whole below, as far
    /// as the storage there has the space, here and now; what it has too little for is discarded. Nothing where that is not
    /// accounted for. It may take a while, and all wait for it.
    pub fn secure_backing(&mut self) -> Result<()> {
        if !self.is_backing_counted() || self.check_writing().is_err() {
            return Ok(());
        }
        let (g, device) = (self.store.geometry, self.store.device.clone());
        for s in [self.cursor.segment.0, self.cursor.next.0] {
            let segments = s..s + 1;
            let backing = Backing { bytes: bytes_of(&g, &segments), segments, ..Backing::default() };
            let asked = backing.ask(&*device).ok();
            self.told_of_backing(&self.as_of_now(backing), asked)?;
        }
        let target = self.backing_for(0);
        if let Some(backed) = &mut self.store.held.backed {
            backed.keep = target;
        }
        let mut failures = 0;
        // Those that were in use before, then those in front of the log, where they were allocated before they were used.
        let mut from = Some(0);
        while let Some(at) = from {
            let (found, next) = Volume::with_data(&*device, &g, at);
            let Some((first, last)) = found.first().zip(found.last()) else { break };
            let clean: RangeSet<u64> = self.clean_segments(*first..*last + 1)?.into_iter().collect();
            let found = found.iter().copied().filter(|s| clean.contains(s));
            if !self.secure(found, target, &mut failures)? {
                return Ok(());
            }
            from = next;
        }
        failures = 0;
        let after = self.after_last();
        for half in [after..g.nsegments, 0..after] {
            let mut at = half.start;
            while at < half.end {
                let end = at.saturating_add(LOOKED).min(half.end);
                let clean = self.clean_segments(at..end)?.into_iter().flatten();
                if !self.secure(clean, target, &mut failures)? {
                    return Ok(());
                }
                at = end;
            }
        }
        Ok(())
    }

    /// The same for some that are clean; whether to go on.
    fn secure(
        &mut self,
        segments: impl Iterator<Item = u64>,
        target: u64,
        failures: &mut u32,
    ) -> Result<bool> {
        let (g, device) = (self.store.geometry, self.store.device.clone());
        let limit = self.sufile.confined().0.unwrap_or(u64::MAX);
        for s in segments.take_while(|s| *s < limit) {
            let Some(backed) = &self.store.held.backed else { return Ok(false) };
            if *failures == FAILURES || backed.count(Some(limit)) >= target {
                return Ok(false);
            }
            if backed.ready.contains(&s) {
                continue;
            }
            let segments = s..s + 1;
            let bytes = bytes_of(&g, &segments);
            let backing =
                Backing { bytes, segments, is_renewed: backed.once, is_new: true, ..Backing::default() };
            // It is clean, durably, nobody reads there, and a log may go there at any time.
            let asked = if self.renew(&backing) { backing.ask(&*device).ok() } else { None };
            self.told_of_backing(&self.as_of_now(backing.clone()), asked)?;
            if asked.is_none() {
                *failures += 1;
                // Of no use to us, it may be to others.
                self.renew(&Backing { is_renewed: true, ..backing });
            }
        }
        Ok(true)
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

    /// The storage below has no space for a super block, which it writes elsewhere: what one of those that are ready has there is
    /// given back for it. What that was, if there was one: it is to be asked for again once the super block is written. Unless it
    /// `must` be, nothing is given where some is left.
    pub fn give_way_below(&mut self, must: bool) -> Option<Backing> {
        let after = self.after_last();
        let backed = self.store.held.backed.as_ref().filter(|b| b.once && b.near)?;
        if !must && self.store.device.backing_free()? >= ENOUGH {
            return None;
        }
        // The log comes last to the one in front of it.
        let last = backed.from(after, u64::MAX).last()?.end - 1;
        let segments = last..last + 1;
        let bytes = bytes_of(&self.store.geometry, &segments);
        let backing = Backing { bytes, segments, is_renewed: true, ..Backing::default() };
        let renewed = self.renew(&backing);
        self.store.device.reclaim();
        renewed.then(|| self.as_of_now(backing))
    }

    /// A part of a segment lost what it had below, or its place was not what it was taken for.
    pub(crate) fn is_not_whole(&mut self, segment: SegNr) {
        if let Some(b) = &mut self.store.held.backed {
            b.discarded(segment.0..segment.0 + 1);
        }
    }

    /// A segment that was handed out was not written, and may be again.
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

    /// At the beginning, where the host has little left: what can be had is, and no others are handed out. Whether the log can go
    /// on where it is. Nothing is to be recovered from what is clean.
    pub(crate) fn begin_backing(&mut self) -> bool {
        self.try_to_begin_backing().unwrap_or_else(|_| {
            // A part of the table of segments that cannot be read costs no more than this.
            self.forget_backing();
            true
        })
    }

    fn try_to_begin_backing(&mut self) -> Result<bool> {
        let g = self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let target = self.backing_for(0);
        let left = self.store.device.backing_free().unwrap_or(u64::MAX);
        if !self.is_backing_counted() || left >= NEAR.saturating_add((target + 2).saturating_mul(segment)) {
            return Ok(true);
        }
        self.secure_backing()?;
        self.judge_backing(true, false, target);
        let here = [self.cursor.segment.0, self.cursor.next.0];
        let backed = self.store.held.backed.as_ref();
        // What is written over there may need new space.
        Ok(backed.is_none_or(|b| b.ready_len == 0 || (!b.once && here.iter().all(|s| b.whole.contains(s)))))
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

    fn after_last(&self) -> u64 {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use std::sync::Arc;

    use silt_device::{Device as _, Hosted, MemoryDevice};
    use silt_format::Ino;

    use super::*;
    use crate::Tree;
    use crate::fresh::file;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::OpenOptions;

    const SEGMENT: u64 = 64 * 4096;
    const SEGMENTS: u64 = 200;

    fn open(device: &Arc<Hosted>, now: u64) -> Volume {
        let options = OpenOptions { backed: true, now, ..OpenOptions::default() };
        let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
        v.take_over(now).unwrap();
        v
    }

    /// A new volume on a host with so many bytes left.
    fn hosted(left: u64, copies: bool) -> Arc<Hosted> {
        let size = (SEGMENTS + 1) * SEGMENT;
        let device = MemoryDevice::new(size);
        let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&device, false).unwrap();
        Arc::new(if copies { Hosted::copying(device, left) } else { Hosted::new(device, left) })
    }

    /// What the daemon does once a second, with little left.
    fn look(v: &mut Volume, device: &Hosted, target: u64) {
        let mut full = false;
        loop {
            let new = (device.backing_free().unwrap() / SEGMENT).saturating_sub(1);
            let Some(b) = v.next_backing(target, new).unwrap() else {
                full |= v.backed_segments() < target;
                break;
            };
            let mut parts = vec![b.clone()];
            if b.is_renewed {
                let (discard, of) = v.begin_renewal(&b).unwrap();
                discard.run(device).unwrap();
                v.end_discard(discard);
                parts = of;
            }
            for part in parts {
                let asked = part.ask(device);
                full |= part.is_new && asked.is_err();
                v.told_of_backing(&part, asked.ok()).unwrap();
            }
            if full {
                break;
            }
        }
        v.judge_backing(true, full, target);
    }

    fn write(v: &mut Volume, ino: Ino, key: u64, with: u8) {
        v.write_block(ino, key, vec![with; 4096].into()).unwrap();
    }

    #[test]
    fn segments_go_from_state_to_state() {
        let mut b = Backed::default();
        b.put(3..6);
        b.put(5..8);
        assert_eq!((b.count(None), b.count(Some(6)), b.most(None)), (5, 3, None));
        b.whole.insert(3..8);
        b.taken(4);
        assert_eq!((b.count(None), b.begun.is_empty()), (4, true), "it is whole");
        b.taken(20);
        assert!(b.begun.contains(&20));
        b.released(4);
        b.released(20);
        assert_eq!(b.count(None), 5);
        assert!(b.freed.contains(&20) && !b.begun.contains(&20));
        assert_eq!(b.from(5, 7).collect::<Vec<_>>(), [5..7, 3..5]);
        b.keep = 3;
        assert_eq!(b.kept(6, 0).iter().cloned().collect::<Vec<_>>(), [3..4, 6..8]);
        b.discarded(4..7);
        assert_eq!(b.count(None), 2);
        b.released(4);
        assert_eq!(b.count(None), 2, "nothing of it is left below");
        b.only = true;
        b.cut(5);
        assert_eq!((b.count(None), b.most(None)), (1, Some(1)));
    }

    /// The host is filled by others: what was taken is written, and all of it can be deleted, a little at a time.
    #[test]
    fn a_full_host_stops_nobody_who_deletes() {
        [false, true].into_iter().for_each(delete_on_a_full_host);
    }

    fn delete_on_a_full_host(copies: bool) {
        let device = hosted(40 * SEGMENT, copies);
        let mut v = open(&device, 2000);
        let target = v.backing_for(200);
        look(&mut v, &device, target);
        assert!(v.counts_backed_only() && v.available_segments() < 30);
        let ino = file(&mut v);
        let mut key = 0;
        while v.check_space(1).is_ok() {
            write(&mut v, ino, key, 1);
            key += 1;
        }
        assert!(key >= 150 && v.may_be_backed(1) && !v.may_be_backed(1 << 20), "{key}");
        device.set_left(0);
        let target = v.backing_for(200);
        look(&mut v, &device, target);
        assert!(v.check_space(1).is_err() && !v.may_be_backed(1) && v.is_backing_full());
        v.checkpoint(2001).unwrap();
        for n in 1..=3 {
            v.check_change(true, key).unwrap();
            v.cut(ino, key * (3 - n) / 3..u64::MAX).unwrap();
            v.checkpoint(2001 + n).unwrap();
        }
        assert_eq!(v.underestimated(), None);
        assert!(v.read_block(Tree::Live, ino, 0).unwrap().is_none());
        v.close(3000).unwrap();
        // Somebody removes something there.
        device.set_left(20 * SEGMENT);
        let mut v = open(&device, 4000);
        let target = v.backing_for(200);
        look(&mut v, &device, target);
        assert!(v.check_space(1).is_ok());
    }

    /// What was kept is found again, also after a power cut, and where the log was in a segment that is not whole.
    #[test]
    fn a_full_host_is_opened_for_writing() {
        for n in 0..8 {
            let (cut, whole, copies) = (n & 1 > 0, n & 2 > 0, n & 4 > 0);
            let device = hosted(30 * SEGMENT, copies);
            let mut v = open(&device, 2000);
            let ino = file(&mut v);
            write(&mut v, ino, 0, 1);
            v.checkpoint(2001).unwrap();
            if whole {
                let target = v.backing_for(0);
                look(&mut v, &device, target);
            } else {
                // Only clean ones: the log goes on in what it does not have.
                v.secure_backing().unwrap();
                let g = *v.geometry();
                let rest = g.byte_of(g.segment_start(v.cursor.segment)) + v.cursor.offset * 4096;
                device.discard(rest, g.byte_of(g.segment_end(v.cursor.segment)) - rest).unwrap();
            }
            if !cut {
                v.close(2002).unwrap();
            }
            drop(v);
            device.set_left(0);
            let mut v = open(&device, 3000);
            assert!(v.counts_backed_only(), "{cut} {whole} {copies}");
            assert_eq!(v.read_block(Tree::Live, ino, 0).unwrap().unwrap()[0], 1);
            v.cut(ino, 0..u64::MAX).unwrap();
            v.checkpoint(3001).unwrap();
            v.close(3002).unwrap();
        }
    }

    /// Where the host has enough nothing is reckoned, and what is kept is not discarded.
    #[test]
    fn what_is_kept_is_not_discarded() {
        for copies in [false, true] {
            let device = hosted(1 << 30, copies);
            let mut v = open(&device, 2000);
            assert!(!v.counts_backed_only() && v.backed_segments() == 0);
            v.secure_backing().unwrap();
            let kept = v.backed_segments();
            assert_eq!(kept, v.backing_for(0));
            let taken = device.taken();
            for _ in 0..SEGMENTS {
                let d = v.begin_discard(0..SEGMENTS).unwrap();
                d.run(&*device).unwrap();
                v.end_discard(d);
            }
            assert_eq!((device.taken(), v.backed_segments()), (taken, kept));
            assert_eq!(v.unbacked_segments(), 0);
        }
    }
}
