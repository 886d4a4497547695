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
//! to its last block. A host that writes elsewhere what is written over (btrfs) promises nothing, and none of this is done.
//!
//! Memory: 16 bytes a run of segments.

use std::ops::Range;

use rangemap::RangeSet;
use silt_format::SegNr;

use crate::Result;
use crate::room::Extra;
use crate::volume::Volume;

/// Segments that are looked at in one go for clean ones.
const LOOKED: u64 = 4096;
/// Most segments that are asked for in one go.
const TOGETHER: u64 = 4;
/// The same of those in use: nothing of them has to be found anew.
const BEGUN: u64 = 64;
/// So many that cannot be had end [`Volume::secure_backing`]: a full host may take milliseconds for each.
const FAILURES: u32 = 64;
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
    pub fn kept(&self, from: u64) -> RangeSet<u64> {
        let (mut left, mut kept) = (self.keep, RangeSet::new());
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

    /// How many count as clean at most: none where that is no question.
    pub fn most(&self, limit: Option<u64>) -> Option<u64> {
        self.only.then(|| self.count(limit))
    }
}

/// Segments of which the device is to be asked, with [`silt_device::Device::allocate`] and without the volume's lock, whether
/// they have their space below; then [`Volume::told_of_backing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    segments: Range<u64>,
    /// On the device.
    pub bytes: Range<u64>,
    discards: u64,
    /// All of it may be missing. Else it was in use, and hardly anything is.
    pub is_new: bool,
    /// It was in use, is clean now, and is of no use without its space.
    pub is_freed: bool,
}

impl Backing {
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

    /// Whether segments that are clean do not count, and the storage below was not found to have nothing for them.
    pub(crate) fn lacks_backing(&self) -> bool {
        self.store.held.backed.as_ref().is_some_and(|b| b.only && !b.full) && self.unbacked_segments() > 0
    }

    /// Clean segments that are known to have their space below.
    pub fn backed_segments(&self) -> u64 {
        self.store.held.backed.as_ref().map_or(0, |b| b.count(self.sufile.confined().0))
    }

    /// Where nothing else counts: asks for what was freed, here and now, since whoever frees goes by what it brings.
    pub(crate) fn ask_for_freed(&mut self) {
        while self.counts_backed_only() {
            let Ok(Some(backing)) = self.next_backing(0, 0) else { return };
            let asked =
                self.store.device.allocate(backing.bytes.start, backing.bytes.end - backing.bytes.start);
            // What it turns out not to have stays clean, and does not count.
            if self.told_of_backing(&backing, matches!(asked, Ok(true))).is_err() {
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

    /// How many segments must be ready so that all that waits, `blocks` more, and whatever is deleted or cleaned then, can be
    /// written.
    pub fn backing_for(&self, blocks: u64) -> u64 {
        let under_way = self.construction.as_ref().map_or(0, |k| self.segments_for(k.need));
        let needed = self.segments_for(self.need(Extra { data: blocks, ..Extra::default() }));
        self.kept_at_least().saturating_add(needed).saturating_add(under_way).min(self.clean_and_free())
    }

    /// The next segments of which the device is to be asked: those in use that are not known to be whole, and, as long as not
    /// `target` are ready, those freed, and up to `new` others that are clean; where little is left below all that were freed.
    pub fn next_backing(&mut self, target: u64, new: u64) -> Result<Option<Backing>> {
        self.store.held.release();
        let g = self.store.geometry;
        let limit = self.sufile.confined().0;
        let after = self.after_last();
        let Some(backed) = &mut self.store.held.backed else { return Ok(None) };
        let used = |set: &RangeSet<u64>, most| set.first().map(|r| r.start..r.end.min(r.start + most));
        let of = |segments: Range<u64>, discards, is_new, is_freed| {
            let last = SegNr(segments.end.saturating_sub(1));
            let bytes = g.byte_of(g.segment_start(SegNr(segments.start)))..g.byte_of(g.segment_end(last));
            Some(Backing { segments, bytes, discards, is_new, is_freed })
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
        let most = lacks.min(new).min(TOGETHER);
        if most == 0 {
            return Ok(None);
        }
        let discards = backed.discards;
        let segments = self.unready(after, limit.unwrap_or(g.nsegments))?;
        Ok(segments.and_then(|s| of(s.start..s.end.min(s.start + most), discards, true, false)))
    }

    /// The device was asked for these: whether they are whole below.
    pub fn told_of_backing(&mut self, backing: &Backing, is_whole: bool) -> Result<()> {
        let clean = self.clean_segments(backing.segments())?;
        let Some(backed) = &mut self.store.held.backed else { return Ok(()) };
        let segments = backing.segments();
        backed.begun.remove(segments.clone());
        backed.freed.remove(segments.clone());
        if is_whole && backed.discards == backing.discards {
            backed.whole.insert(segments);
            clean.into_iter().for_each(|run| backed.put(run));
        }
        Ok(())
    }

    /// Says how it is below: whether there is little left, and whether nothing more could be had; and how many of those that are
    /// ready are not to be discarded. With little left, and as many
    /// segments ready as all that waits takes, no others count as clean. Whether that is so.
    pub fn judge_backing(&mut self, near: bool, full: bool, keep: u64) -> bool {
        let enough = self.backing_for(0);
        let limit = self.sufile.confined().0;
        let Some(backed) = &mut self.store.held.backed else { return false };
        (backed.near, backed.full, backed.keep) = (near, full, keep);
        backed.only = near && (backed.only || backed.count(limit) >= enough);
        backed.only
    }

    /// Has the segment that is written, the next one and as many clean ones as deleting and cleaning need whole below, as far
    /// as the storage there has the space, here and now; with `gives_back` what it has too little for is discarded. Nothing where
    /// that is not accounted for. It may take a while, and all wait for it.
    pub fn secure_backing(&mut self, gives_back: bool) -> Result<()> {
        if !self.is_backing_counted() {
            return Ok(());
        }
        let g = self.store.geometry;
        let device = self.store.device.clone();
        let bytes = |s: u64| {
            let start = g.byte_of(g.segment_start(SegNr(s)));
            (start, g.byte_of(g.segment_end(SegNr(s))) - start)
        };
        for s in [self.cursor.segment.0, self.cursor.next.0] {
            let (offset, len) = bytes(s);
            match device.allocate(offset, len) {
                Ok(true) => {
                    if let Some(b) = &mut self.store.held.backed {
                        b.begun.remove(s..s + 1);
                        b.whole.insert(s..s + 1);
                    }
                }
                Ok(false) => {
                    self.forget_backing();
                    return Ok(());
                }
                Err(_) => {}
            }
        }
        let target = self.backing_for(0);
        let limit = self.sufile.confined().0.unwrap_or(g.nsegments);
        let (mut at, mut failures, mut seen) = (self.after_last(), 0, 0);
        while seen < g.nsegments && failures < FAILURES {
            let Some(backed) = &self.store.held.backed else { return Ok(()) };
            if backed.count(Some(limit)) >= target {
                break;
            }
            let end = at.saturating_add(LOOKED).min(g.nsegments);
            let clean = self.clean_segments(at..end)?;
            for s in clean.into_iter().flatten().take_while(|s| *s < limit) {
                let Some(backed) = &mut self.store.held.backed else { return Ok(()) };
                if failures == FAILURES || backed.count(Some(limit)) >= target {
                    break;
                }
                if backed.ready.contains(&s) {
                    continue;
                }
                let (offset, len) = bytes(s);
                match device.allocate(offset, len) {
                    Ok(true) => {
                        backed.whole.insert(s..s + 1);
                        backed.put(s..s + 1);
                    }
                    Ok(false) => {
                        self.forget_backing();
                        return Ok(());
                    }
                    Err(_) => {
                        failures += 1;
                        backed.discarded(s..s + 1);
                        // It is clean, durably, and nobody reads there. Of no use to us, it may be to others.
                        if gives_back {
                            device.discard(offset, len)?;
                        }
                    }
                }
            }
            seen += end - at;
            at = if end >= g.nsegments { 0 } else { end };
        }
        if let Some(backed) = &mut self.store.held.backed {
            backed.keep = target;
        }
        Ok(())
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
    /// on where it is. `gives_back`: nothing is to be recovered from what is clean.
    pub(crate) fn begin_backing(&mut self, gives_back: bool) -> Result<bool> {
        let g = self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let target = self.backing_for(0);
        let left = self.store.device.backing_free().unwrap_or(u64::MAX);
        if !self.is_backing_counted() || left >= NEAR.saturating_add((target + 2).saturating_mul(segment)) {
            return Ok(true);
        }
        self.secure_backing(gives_back)?;
        self.judge_backing(true, false, target);
        let here = [self.cursor.segment.0, self.cursor.next.0];
        let backed = self.store.held.backed.as_ref();
        Ok(backed.is_none_or(|b| b.ready_len == 0 || here.iter().all(|s| b.whole.contains(s))))
    }

    /// What is not to be discarded, since deleting and cleaning may need it.
    pub(crate) fn kept_backed(&self) -> RangeSet<u64> {
        self.store.held.backed.as_ref().map_or_else(RangeSet::new, |b| b.kept(self.after_last()))
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
    fn hosted(left: u64) -> Arc<Hosted> {
        let size = (SEGMENTS + 1) * SEGMENT;
        let device = MemoryDevice::new(size);
        let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&device, false).unwrap();
        Arc::new(Hosted::new(device, left))
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
            let asked = device.allocate(b.bytes.start, b.bytes.end - b.bytes.start);
            full |= b.is_new && asked.is_err();
            v.told_of_backing(&b, asked.is_ok()).unwrap();
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
        assert_eq!(b.kept(6).iter().cloned().collect::<Vec<_>>(), [3..4, 6..8]);
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
        let device = hosted(40 * SEGMENT);
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
        for (cut, whole) in [(false, true), (true, true), (false, false), (true, false)] {
            let device = hosted(30 * SEGMENT);
            let mut v = open(&device, 2000);
            let ino = file(&mut v);
            write(&mut v, ino, 0, 1);
            v.checkpoint(2001).unwrap();
            if whole {
                let target = v.backing_for(0);
                look(&mut v, &device, target);
            } else {
                // Only clean ones: the log goes on in what it does not have.
                v.secure_backing(true).unwrap();
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
            assert!(v.counts_backed_only(), "{cut} {whole}");
            assert_eq!(v.read_block(Tree::Live, ino, 0).unwrap().unwrap()[0], 1);
            v.cut(ino, 0..u64::MAX).unwrap();
            v.checkpoint(3001).unwrap();
            v.close(3002).unwrap();
        }
    }

    /// Where the host has enough nothing is reckoned, and what is kept is not discarded.
    #[test]
    fn what_is_kept_is_not_discarded() {
        let device = hosted(1 << 30);
        let mut v = open(&device, 2000);
        assert!(!v.counts_backed_only() && v.backed_segments() == 0);
        v.secure_backing(true).unwrap();
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
