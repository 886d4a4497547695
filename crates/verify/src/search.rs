//! From the super blocks to the latest super root, and what a mount would roll forward
//! (spec 2.5, 4.1, 4.2, 4.4).

use std::collections::HashSet;

use silt_device::Device;
use silt_format::summary::{self, Header};
use silt_format::super_block::{self, Copies, PRIMARY_OFFSET, SIZE, STATE_VALID, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::reader::Reader;

/// A valid log.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    pub pos: BlockNr,
    pub header: Header,
}

impl Log {
    pub fn nblocks(&self) -> u64 {
        u64::from(self.header.nblocks.get())
    }
    pub fn end(&self) -> u64 {
        self.pos.0.saturating_add(self.nblocks())
    }
}

/// Outcome of the search.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The log with the latest super root.
    pub latest: Log,
    /// Its checkpoint number, as counted.
    pub cno: u64,
    /// (counted, written) numbers of super-root logs where they differ.
    pub miscounted: Vec<(BlockNr, u64, u64)>,
    /// Super-root logs behind the cursor's.
    pub newer: u64,
    /// Valid logs behind the latest super root, in order.
    pub tail: Vec<Log>,
    /// The part of `tail` that the roll-forward walks.
    pub pending: std::ops::Range<usize>,
    /// Why it ends there, where the device cannot read what follows: no mount passes over that (spec 4.1).
    pub unreadable: Option<String>,
}

impl Found {
    /// A log that was found in another way, with nothing behind it.
    pub fn of(latest: Log, cno: u64) -> Self {
        let (miscounted, tail) = Default::default();
        Found { latest, cno, miscounted, newer: 0, tail, pending: 0..0, unreadable: None }
    }
}

/// What the data-sync logs hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    /// (inode, block offset, disk block), in the order they apply.
    pub blocks: Vec<(u64, u64, u64)>,
    /// Logs that hold them.
    pub logs: u64,
    /// Why the sequence cannot be replayed, and where.
    pub broken: Option<(BlockNr, String)>,
}

/// Both copies as read: (primary, secondary).
pub(crate) type Parsed = (silt_format::Result<SuperBlock>, silt_format::Result<SuperBlock>);

/// Reads both copies. An unreadable one counts as invalid.
pub(crate) fn super_blocks(device: &dyn Device) -> Parsed {
    let read = |at: u64| {
        let mut bytes = [0; SIZE];
        match device.read_at(at, &mut bytes) {
            Ok(()) => SuperBlock::parse(&bytes),
            Err(e) => Err(silt_format::Error::corrupt("super block", e.to_string())),
        }
    };
    (read(PRIMARY_OFFSET), read(super_block::secondary_offset(device.len())))
}

/// Longest summary that is looked at, in bytes.
pub(crate) const SUMMARY_LIMIT: usize = 256 << 20;

/// Blocks read at once.
const STEP: u64 = 256;

/// Whether the checksum over a whole log matches.
pub(crate) fn datasum_matches(r: &Reader<'_>, log: &Log) -> Result<bool, String> {
    if let Some(whole) = &r.whole {
        return Ok(whole.contains(&log.pos.0));
    }
    let g = &r.g;
    let mut crc = Crc::new(g.crc_seed);
    let mut done = 0;
    let mut buf = Vec::new();
    while done < log.nblocks() {
        let n = STEP.min(log.nblocks() - done);
        buf.resize(usize::try_from(n).unwrap_or(0) * g.bs(), 0);
        r.read(BlockNr(log.pos.0 + done), &mut buf)?;
        crc.update(if done == 0 { &buf[4..] } else { &buf });
        done += n;
    }
    Ok(crc.finish() == log.header.datasum.get())
}

/// Validates a log where one with `seq` may be (spec 4.1); `Err` where the device cannot be read.
pub(crate) fn validate(r: &Reader<'_>, pos: BlockNr, seq: u64) -> Result<Option<Log>, String> {
    let g = &r.g;
    if !g.holds(pos) {
        return Ok(None);
    }
    let Ok(header) = Header::parse(g, &r.block(pos)?) else { return Ok(None) };
    let log = Log { pos, header };
    if header.seq.get() != seq || log.end() > g.segment_end(g.segment_of(pos)).0 {
        return Ok(None);
    }
    Ok(datasum_matches(r, &log)?.then_some(log))
}

/// The log at a copy's cursor, as it is: its checksum may not match, but its head and its super root make sense.
pub(crate) fn unverified(r: &Reader<'_>, sb: &SuperBlock) -> Option<Found> {
    let g = &r.g;
    let pos = BlockNr(sb.last_pseg.get());
    if !g.holds(pos) {
        return None;
    }
    let header = Header::parse(g, &r.block(pos).ok()?).ok()?;
    let log = Log { pos, header };
    let told = header.seq.get() == sb.last_seq.get() && header.has(summary::SR) && header.leads_on(g);
    if !told || log.end() > g.segment_end(g.segment_of(pos)).0 {
        return None;
    }
    let root = r.block(BlockNr(log.end() - 1)).ok()?;
    SuperRoot::parse(g, &root).ok().map(|_| Found::of(log, sb.last_cno.get()))
}

/// The search of spec 4.2 from one copy's cursor. `to_the_end` goes on behind the first super root
/// (as for a volume that was not cleanly unmounted), as far as the device can be read. `Ok(None)`: the cursor leads nowhere.
pub(crate) fn search(r: &Reader<'_>, sb: &SuperBlock, to_the_end: bool) -> Result<Option<Found>, String> {
    Ok(search_from(r, sb, to_the_end)?.map(|(_, found)| found))
}

/// The log at a cursor, and the number that it is counted as.
type Cursor = (Log, u64);

/// The same, with where it began.
fn search_from(r: &Reader<'_>, sb: &SuperBlock, to_the_end: bool) -> Result<Option<(Cursor, Found)>, String> {
    // No checkpoint could follow it.
    if sb.last_cno.get() == u64::MAX {
        return Ok(None);
    }
    let pos = BlockNr(sb.last_pseg.get());
    let first = validate(r, pos, sb.last_seq.get())?;
    let Some(first) = first.filter(|log| log.header.has(summary::SR) && log.header.leads_on(&r.g)) else {
        return Ok(None);
    };
    let mut found = Found::of(first, sb.last_cno.get());
    let (written, counted) = (first.header.cno.get(), found.cno);
    if written != counted {
        found.miscounted.push((pos, counted, written));
    }
    let from = (first, found.cno);
    if to_the_end {
        found.unreadable = behind(r, &mut found).err();
    }
    Ok(Some((from, found)))
}

/// Who searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A mount of Silt, which refuses what cannot be whole.
    Silt,
    /// Linux's driver, which takes whatever verifies in the next segment.
    Linux,
}

/// Goes on behind a log with a super root, whether it verifies or not, as a mount would.
pub(crate) fn behind(r: &Reader<'_>, found: &mut Found) -> Result<(), String> {
    behind_as(Who::Silt, r, found)
}

/// What Linux's driver would take, from the preferred super block of a volume that was not cleanly unmounted, and a mount of
/// Silt would not, or the other way round: in a sentence. A writer that flushes as spec 4.2 asks leaves no such state.
pub fn differs_for_linux(device: &dyn Device) -> Option<String> {
    let (r, start) = open(device, 1 << 20).ok()?;
    if start.clean {
        return None;
    }
    let first = Found::of(start.from.0, start.from.1);
    let (mut silt, mut linux) = (first.clone(), first);
    for (who, found) in [(Who::Silt, &mut silt), (Who::Linux, &mut linux)] {
        behind_as(who, &r, found).ok()?;
    }
    let way = |found: &Found| (found.latest.pos, complete(found).map(|log| log.pos).collect::<Vec<_>>());
    let (silt, linux) = (way(&silt), way(&linux));
    (silt != linux).then(|| format!("Silt comes to {silt:?}, Linux's driver to {linux:?}"))
}

fn behind_as(who: Who, r: &Reader<'_>, found: &mut Found) -> Result<(), String> {
    let g = r.g;
    let (mut pos, mut seq) = (BlockNr(found.latest.end()), found.latest.header.seq.get());
    let mut cno = found.cno.saturating_add(1);
    let mut seg = g.segment_of(found.latest.pos);
    let mut next = g.segment_of(BlockNr(found.latest.header.next.get()));
    let mut start = None;
    // A log is missing behind the last super root; it is the last one that was looked for.
    let (mut missed, mut torn, mut fresh) = (false, false, false);
    // A segment entered twice can only be a loop that somebody made.
    let mut entered = HashSet::new();
    loop {
        if pos.0.saturating_add(1) < g.segment_end(seg).0 {
            let log = validate(r, pos, seq)?.filter(|log| {
                let h = &log.header;
                let counted = h.cno.get() == cno;
                // Behind what is torn only the next checkpoint counts, from its beginning.
                let whole = !h.has(summary::SYNDT) && (!fresh || h.has(summary::LOGBGN));
                let follows = match who {
                    Who::Linux => true,
                    Who::Silt if torn => counted && whole,
                    Who::Silt => counted || !h.has(summary::SR),
                };
                h.leads_on(&g) && follows
            });
            fresh = log.is_none();
            torn |= fresh;
            if let Some(log) = log {
                missed = false;
                pos = BlockNr(log.end());
                next = g.segment_of(BlockNr(log.header.next.get()));
                if log.header.has(summary::SR) {
                    (found.latest, found.cno) = (log, cno);
                    found.newer += 1;
                    found.tail.clear();
                    (start, found.pending, torn) = (None, 0..0, false);
                    cno = cno.saturating_add(1);
                    continue;
                }
                if start.is_none() && log.header.has(summary::LOGBGN) {
                    start = Some(found.tail.len());
                }
                found.tail.push(log);
                if let Some(start) = start.filter(|_| log.header.has(summary::LOGEND)) {
                    found.pending = start..found.tail.len();
                }
                continue;
            }
        }
        if missed || (fresh && next == seg) || !entered.insert(next.0) {
            break;
        }
        missed = true;
        seq = seq.wrapping_add(1);
        seg = next;
        pos = g.segment_start(seg);
    }
    Ok(())
}

/// Reads the summary blocks of a log.
pub(crate) fn summary_of(r: &Reader<'_>, log: &Log) -> Result<Vec<u8>, String> {
    let n = log.header.summary_blocks(&r.g) as usize * r.g.bs();
    if n > SUMMARY_LIMIT {
        return Err(format!("a summary of {n} bytes is more than is looked at"));
    }
    let mut bytes = vec![0; n];
    r.read(log.pos, &mut bytes)?;
    Ok(bytes)
}

/// Whether the summary of a log is as it was written; not where it cannot be read.
pub(crate) fn summary_is_whole(r: &Reader<'_>, log: &Log) -> bool {
    summary_of(r, log).is_ok_and(|bytes| summary::summary_sum_matches(r.g.crc_seed, &log.header, &bytes))
}

/// The logs that a mount would roll forward, by what their heads say: those of complete groups of synced data.
pub(crate) fn complete(found: &Found) -> impl Iterator<Item = &Log> {
    let mut group: Vec<&Log> = Vec::new();
    let logs = found.tail.get(found.pending.clone()).unwrap_or_default();
    logs.iter().flat_map(move |log| {
        if log.header.has(summary::LOGBGN) {
            group.clear();
        }
        if log.header.has(summary::SYNDT) && (!group.is_empty() || log.header.has(summary::LOGBGN)) {
            group.push(log);
        }
        if log.header.has(summary::LOGEND) { std::mem::take(&mut group) } else { Vec::new() }
    })
}

/// Follows spec 4.4 over the logs behind the latest super root.
pub(crate) fn pending(r: &Reader<'_>, found: &Found) -> Result<Pending, String> {
    let mut out = Pending::default();
    let mut collected: Vec<(u64, u64, u64)> = Vec::new();
    let mut collecting = 0;
    for log in found.tail.get(found.pending.clone()).unwrap_or_default() {
        let h = &log.header;
        if h.has(summary::LOGBGN) {
            // What was begun before it has no end: nobody was told that it was done.
            collected.clear();
            collecting = 0;
        }
        if collecting == 0 && !(h.has(summary::LOGBGN) && h.has(summary::SYNDT)) {
            continue;
        }
        if !h.has(summary::SYNDT) {
            out.broken = Some((log.pos, "a log of another kind stands among data-sync logs".into()));
            return Ok(out);
        }
        collecting += 1;
        let bytes = summary_of(r, log)?;
        let first = log.pos.0 + u64::from(h.summary_blocks(&r.g));
        let walked = summary::for_each_payload(&r.g, h, &bytes, |p| {
            if let summary::BlockInfo::Data { offset, .. } = p.info {
                collected.push((p.ino.0, offset, first + u64::from(p.index)));
            }
        });
        if let Err(e) = walked {
            out.broken = Some((log.pos, e.to_string()));
            return Ok(out);
        }
        if h.has(summary::LOGEND) {
            out.blocks.append(&mut collected);
            out.logs += collecting;
            collecting = 0;
        }
    }
    Ok(out)
}

/// The whole way for a reader that only wants the latest state: copies, geometry, super root.
pub(crate) struct Start {
    pub clean: bool,
    pub found: Found,
    /// The cursor that led there.
    pub from: Cursor,
}

/// Opens as a mount would, falling back to the other copy.
pub(crate) fn open(device: &dyn Device, cache_bytes: usize) -> Result<(Reader<'_>, Start), crate::Error> {
    let (p, s) = super_blocks(device);
    let copies: Copies = super_block::choose(p, s, device.len())?;
    let sb = &copies.first.1;
    let geometry = sb.geometry(device.len())?;
    let reader = Reader::new(device, geometry, cache_bytes);
    let clean = sb.state.get() & STATE_VALID != 0;
    let first = match search_from(&reader, sb, !clean) {
        Ok(Some((from, found))) => return Ok((reader, Start { clean, found, from })),
        Ok(None) => "no super root was found".into(),
        Err(unreadable) => unreadable,
    };
    if let Some((_, other)) = &copies.second {
        let same = other.geometry(device.len()).is_ok_and(|o| o.block_size == geometry.block_size);
        let made = other.last_cno.get() != 0;
        if made
            && same
            && let Ok(Some((from, found))) = search_from(&reader, other, true)
        {
            return Ok((reader, Start { clean: false, found, from }));
        }
    }
    Err(crate::Error::Damaged(first))
}

/// As [`open`], where nothing verifies that the super blocks point at: see [`unverified`].
pub(crate) fn open_unverified(device: &dyn Device, cache_bytes: usize) -> Option<(Reader<'_>, Log, u64)> {
    let (p, s) = super_blocks(device);
    let copies = super_block::choose(p, s, device.len()).ok()?;
    let all = [Some(&copies.first.1), copies.second.as_ref().map(|(_, sb)| sb)];
    all.into_iter().flatten().find_map(|sb| {
        let r = Reader::new(device, sb.geometry(device.len()).ok()?, cache_bytes);
        let found = unverified(&r, sb)?;
        Some((r, found.latest, found.cno))
    })
}

/// Segment that holds a block.
pub(crate) fn segment(g: &Geometry, block: u64) -> SegNr {
    g.segment_of(BlockNr(block))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Fault, Times};

    use super::*;
    use crate::surgeon::Surgeon;

    /// A cursor that leads into a sector that cannot be read leads nowhere: the other copy's may.
    #[test]
    fn the_other_copy_is_tried_where_one_leads_to_what_cannot_be_read() {
        let mut s = Surgeon::golden("basic-4k");
        let (g, cno) = (s.g(), s.cno());
        let elsewhere = g.segment_start(SegNr(g.nsegments - 1));
        s.patch_super((true, false), |sb| sb.last_pseg = elsewhere.0.into());
        let device = Fault::new(s.device);
        let at = g.byte_of(elsewhere);
        device.fail_reads(at..at + u64::from(g.block_size), Times::Always);
        let (_, start) = open(&device, 1 << 20).unwrap();
        assert_eq!((start.found.cno, start.clean), (cno, false));
    }

    #[test]
    fn no_checkpoint_is_the_last_there_can_be() {
        let mut s = Surgeon::golden("basic-4k");
        s.patch_super((true, true), |sb| sb.last_cno = u64::MAX.into());
        assert!(matches!(open(&s.device, 1 << 20), Err(crate::Error::Damaged(_))));
    }
}
