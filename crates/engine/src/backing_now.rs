//! What is asked of the storage below here and now, while all wait: at the beginning and the end of a mount, by who has the volume
//! alone, for a super block, and before the end is cut off ([`crate::backed`]).

use rangemap::RangeSet;
use silt_format::super_block as sb;

use crate::backing::{Backing, LOOKED};
use crate::discard::bytes_of;
use crate::volume::Volume;
use crate::{Error, Result};

/// So many that cannot be had end [`Volume::secure_backing`]: a full host may take milliseconds for each.
const FAILURES: u32 = 64;
/// Segments that are asked for at most where something is freed: others wait for the volume meanwhile, some milliseconds for each on
/// a full host. The rest is asked for without them.
const AT_ONCE: u32 = 16;
/// With so many bytes left below super blocks can be written: the last ones that such a host tells of it may keep for itself.
const ENOUGH: u64 = 16 << 20;
/// A host with so many bytes left, besides what is to be kept, has enough for a beginning.
const NEAR: u64 = 64 << 20;

impl Volume {
    /// Where nothing else counts: asks for what was freed, here and now, since whoever frees goes by what it brings.
    pub(crate) fn ask_for_freed(&mut self) {
        let device = self.store.device.clone();
        for _ in 0..AT_ONCE {
            if !self.counts_backed_only() {
                return;
            }
            let Ok(Some(backing)) = self.next_backing(0, 0) else { return };
            // What it turns out not to have stays clean, and does not count.
            let asked = if self.renew(&backing) { backing.ask(&*device).ok() } else { None };
            if self.told_of_backing(&self.as_of_now(backing), asked).is_err() {
                return;
            }
        }
    }

    /// The same here and now, where that is so; false if it failed, or nothing there may be written.
    fn renew(&mut self, backing: &Backing) -> bool {
        if !backing.is_renewed {
            return true;
        }
        let segments = backing.segments();
        // Nothing but what a log might be written to is ever discarded, and nothing by who writes no more. Who closes the volume, for which
        // no discard begins any more, needs space for super blocks, too.
        if self.check_writing().is_err() {
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
        if !self.is_backing_counted() || !self.is_little_left_below() {
            return Ok(true);
        }
        let target = self.backing_for(0);
        self.secure_backing()?;
        self.judge_backing(true, false, target);
        let here = [self.cursor.segment.0, self.cursor.next.0];
        let backed = self.store.held.backed.as_ref();
        // What is written over there may need new space.
        Ok(backed.is_none_or(|b| b.ready_len == 0 || (!b.once && here.iter().all(|s| b.whole.contains(s)))))
    }

    /// The end of the volume, segments that are clean, is about to be cut off: what the storage below holds for it is given back
    /// where little is left there, so that `at`, where a super block will lie then, and what is clean in front have space. An error changes nothing but that.
    pub(crate) fn make_way_for_end(&mut self, from: u64, at: Option<u64>) -> Result<()> {
        if !self.is_backing_counted() {
            return Ok(());
        }
        let device = self.store.device.clone();
        let ask = || at.map_or(Ok(()), |at| device.allocate(at, sb::SIZE as u64).map(drop));
        let mut asked = ask();
        if asked.is_ok() && !self.counts_backed_only() && !self.is_little_left_below() {
            return Ok(());
        }
        for segments in self.clean_segments(from..self.store.geometry.nsegments)? {
            let bytes = bytes_of(&self.store.geometry, &segments);
            self.renew(&Backing { bytes, segments, is_renewed: true, ..Backing::default() });
        }
        device.reclaim();
        // What it had there may have gone as well.
        asked = ask();
        // What was there may have been given to what is in front already.
        let after = self.after_last();
        let ready = self.store.held.backed.as_ref().and_then(|b| b.from(after, from).last());
        if let Some(last) = ready.filter(|_| asked.is_err()).map(|run| run.end - 1) {
            let segments = last..last + 1;
            let bytes = bytes_of(&self.store.geometry, &segments);
            self.renew(&Backing { bytes, segments, is_renewed: true, ..Backing::default() });
            device.reclaim();
            asked = ask();
        }
        asked?;
        // What is left in front has to do for all that deleting and cleaning need; nothing else counts from here on.
        self.secure_backing()?;
        // The log it begins in has to have its space, too.
        let begun =
            |v: &Self| v.store.held.backed.as_ref().is_none_or(|b| b.whole.contains(&v.cursor.segment.0));
        if self.is_little_left_below()
            && !(self.judge_backing(true, false, self.backing_for(0)) && begun(self))
        {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Where the storage below has little left: clean segments from `limit` on, behind which nothing is to be written any more, give back
    /// what it holds for them, and segments in front are asked for until `wanted` are ready. A few at a time, here and now; whether
    /// there is more to be done.
    pub fn trade_end(&mut self, limit: u64, wanted: u64) -> Result<bool> {
        if !self.is_backing_counted() || self.check_writing().is_err() {
            return Ok(false);
        }
        // What was moved may have taken what there was.
        if !self.counts_backed_only() && !self.is_little_left_below() {
            return Ok(false);
        }
        let (g, device) = (self.store.geometry, self.store.device.clone());
        let clean: RangeSet<u64> = self.clean_segments(limit..g.nsegments)?.into_iter().collect();
        let (mut given, mut from) = (0, Some(limit));
        while let Some(at) = from.filter(|_| given < AT_ONCE) {
            let (found, next) = Volume::with_data(&*device, &g, at);
            for s in found.into_iter().filter(|s| clean.contains(s)).take((AT_ONCE - given) as usize) {
                let segments = s..s + 1;
                let bytes = bytes_of(&g, &segments);
                if !self.renew(&Backing { bytes, segments, is_renewed: true, ..Backing::default() }) {
                    return Ok(false);
                }
                given += 1;
            }
            from = next;
        }
        if given > 0 {
            device.reclaim();
        }
        if !self.counts_backed_only() {
            self.secure_backing()?;
            if !self.judge_backing(true, false, self.backing_for(0)) {
                return Ok(given == AT_ONCE);
            }
        }
        let mut gained = 0;
        while gained < AT_ONCE {
            let Some(backing) = self.next_backing(wanted, 1)? else { break };
            let asked = if self.renew(&backing) { backing.ask(&*device).ok() } else { None };
            self.told_of_backing(&self.as_of_now(backing), asked)?;
            if asked.is_none() {
                break;
            }
            gained += 1;
        }
        Ok(given == AT_ONCE || gained == AT_ONCE)
    }

    /// Whether the storage below may not have space for all that deleting and cleaning need.
    fn is_little_left_below(&self) -> bool {
        let g = self.store.geometry;
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let target = self.backing_for(0);
        let left = self.store.device.backing_free().unwrap_or(u64::MAX);
        left < NEAR.saturating_add((target + 2).saturating_mul(segment))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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
            // As a mount ends; somebody else takes what that left.
            assert!(v.end_discards());
            device.set_left(0);
            v.close(3002).unwrap();
        }
    }

    /// Where the second super block will lie then there may be nothing below: it is given what goes with the end, or what is ready in
    /// front.
    #[test]
    fn the_end_is_cut_off_on_a_full_host() {
        for (copies, gives) in [(false, true), (true, true), (false, false)] {
            let device = hosted(30 * SEGMENT, copies);
            let mut v = open(&device, 2000);
            let ino = file(&mut v);
            write(&mut v, ino, 0, 1);
            v.checkpoint(2001).unwrap();
            let target = v.backing_for(0);
            look(&mut v, &device, target);
            let size = SEGMENTS / 2 * SEGMENT + 8192;
            if gives {
                device.allocate((SEGMENTS - 2) * SEGMENT, SEGMENT).unwrap();
            }
            device.set_left(0);
            let done = v.shrink(size, 2002);
            assert!(done.is_ok(), "{copies} {gives}: {done:?}");
            assert_eq!((v.failure(), v.underestimated()), (None, None));
            write(&mut v, ino, 1, 2);
            v.checkpoint(2003).unwrap();
            v.close(2004).unwrap();
            let v = open(&device, 3000);
            assert_eq!(v.geometry().nsegments, SEGMENTS / 2);
        }
    }

    /// The same where nobody looked how much the host has left since there was enough, and where the limit is lifted or another's.
    #[test]
    fn a_shrink_that_finds_no_space_leaves_writing_as_it_is() {
        for copies in [false, true] {
            for limit in [None, Some(150)] {
                let device = hosted(1 << 30, copies);
                let mut v = open(&device, 2000);
                let ino = file(&mut v);
                (0..700).for_each(|key| write(&mut v, ino, key, 1));
                assert!(!v.counts_backed_only());
                let size = SEGMENTS / 2 * SEGMENT + 8192;
                let at = v.where_cut(size, v.segments_with_size(size)).unwrap();
                device.allocate(at, 1024).unwrap();
                device.set_left(0);
                v.confine(limit).unwrap();
                let done = v.shrink(size, 2001);
                assert!(matches!(done, Err(Error::NoSpace | Error::Constructing)), "{limit:?}: {done:?}");
                assert_eq!((v.failure(), v.geometry().nsegments, v.confined()), (None, SEGMENTS, limit));
                // Whoever has it makes some.
                device.set_left(1 << 30);
                let target = v.backing_for(0);
                look(&mut v, &device, target);
                v.checkpoint(2002).unwrap();
                v.shrink(size, 2003).unwrap();
                v.close(2004).unwrap();
                assert_eq!(open(&device, 3000).geometry().nsegments, SEGMENTS / 2);
            }
        }
    }

    /// All that has its space may lie behind the new end: what is in front is given it before anything changes.
    #[test]
    fn what_is_left_of_a_volume_has_its_space() {
        for copies in [false, true] {
            let device = hosted(60 * SEGMENT, copies);
            let mut v = open(&device, 2000);
            let ino = file(&mut v);
            write(&mut v, ino, 0, 1);
            v.checkpoint(2001).unwrap();
            let far: Vec<u64> = (SEGMENTS - 30..SEGMENTS).collect();
            device.allocate(far[0] * SEGMENT, 30 * SEGMENT).unwrap();
            // Those that the log is in stay as they are.
            v.secure_backing().unwrap();
            let near = 0..SEGMENTS - 30;
            for run in v.clean_segments(near).unwrap() {
                let at = run.start * SEGMENT;
                device.discard(at, (run.end - run.start) * SEGMENT).unwrap();
                v.store.held.backed.as_mut().unwrap().discarded(run);
            }
            device.set_left(0);
            v.told_of_data(&far).unwrap();
            let target = v.backing_for(0);
            look(&mut v, &device, target);
            assert!(v.counts_backed_only() && v.available_segments() >= target, "{copies}");
            let size = SEGMENTS / 2 * SEGMENT + 8192;
            v.confine(Some(v.segments_with_size(size))).unwrap();
            v.shrink(size, 2002).unwrap();
            assert_eq!((v.failure(), v.underestimated()), (None, None));
            assert!(v.available_segments() >= v.backing_for(0), "{copies}");
            v.cut(ino, 0..u64::MAX).unwrap();
            v.checkpoint(2003).unwrap();
            v.close(2004).unwrap();
            assert_eq!(open(&device, 3000).geometry().nsegments, SEGMENTS / 2);
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
