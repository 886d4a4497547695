//! Where to begin: what the super blocks lead to, and what there is when they lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::Device;
use silt_format::inode::RawInode;
use silt_format::summary::{self, BlockInfo, Header};
use silt_format::super_block::{STATE_VALID, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Crc, Geometry, Ino, SegNr};

use super::evacuate::{File, inodes_in, suspects};
use crate::search::{self, Found, Trusted, Unreadable};
use crate::supers::{LastLog, Supers};
use crate::volume::{OpenOptions, Volume};
use crate::{Error, Result};

/// How far ahead of the newest log a sequence number may be that is believed: millions of recoveries, each cut off, go
/// no further.
const AHEAD: u64 = 1 << 40;

/// What is lost of a log that a super block names, besides blocks that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Its summary: what its blocks are is not known.
    Summary,
    /// Its super root: where the tables are is told by the summaries of all logs.
    Root,
}

/// Searches as a mount does, as far as the device can be read; or begins at a log with a summary or a super root that verifies, whatever else is in it: the
/// other follows from what a super block says of it. Also whether the super root is lost, and none is returned in its
/// place but an empty one.
pub(crate) fn find(
    device: &dyn Device,
    g: &Geometry,
    supers: &mut Supers,
    start: Option<&LastLog>,
) -> Result<(Found, bool)> {
    let Some(start) = start else { return Ok((search::search(device, g, supers, Unreadable::Ends)?, false)) };
    let trusted = trusted(device, g, start).ok_or_else(|| {
        let what = "has no summary and no super root that can be read";
        Error::corrupt(format!("block {}", start.pseg), "log", what)
    })?;
    let clean = supers.state_at_open & STATE_VALID != 0;
    let found = search::search_behind(device, g, *start, Some(&trusted), clean, Unreadable::Ends)
        // What lies behind it leads to no checkpoint.
        .or_else(|_| search::search_behind(device, g, *start, Some(&trusted), true, Unreadable::Ends))?;
    let lost = trusted.root.is_some() && found.last == *start;
    Ok((found, lost))
}

/// The log that a super block names, with what stands for a super root that is lost, or for a summary.
fn trusted(device: &dyn Device, g: &Geometry, named: &LastLog) -> Option<Trusted> {
    let at = BlockNr(named.pseg);
    if !g.holds(at) {
        return None;
    }
    let Some(header) = sound(device, g, at, g.segment_end(g.segment_of(at)).0) else {
        return Some(Trusted { header: made_up(device, g, named)?, root: None });
    };
    if (header.seq.get(), header.cno.get()) != (named.seq, named.cno) {
        return None;
    }
    let whole = search::read_super_root(device, g, at, &header).is_ok();
    let root = (!whole).then(|| {
        let file = RawInode { mode: 0o100_000.into(), links_count: 1.into(), ..RawInode::zeroed() };
        SuperRoot { nongc_ctime: header.create.get(), dat: file, cpfile: file, sufile: file }
    });
    header.has(summary::SR).then_some(Trusted { header, root })
}

/// What is missing of the log that a super block names, where it is one of the two, and the block behind the log.
pub fn missing(device: &dyn Device, g: &Geometry, named: &LastLog) -> Option<(Missing, u64)> {
    let Trusted { header, root } = trusted(device, g, named)?;
    let end = named.pseg.saturating_add(header.nblocks.get().into());
    if root.is_some() {
        return Some((Missing::Root, end));
    }
    let own = sound(device, g, BlockNr(named.pseg), g.segment_end(g.segment_of(BlockNr(named.pseg))).0);
    own.is_none().then_some((Missing::Summary, end))
}

/// The newest log of the volume whose summary and super root verify; what else is in it may be damaged.
pub fn newest(device: &dyn Device, g: &Geometry) -> Option<LastLog> {
    roots(device, g).first().copied()
}

/// All logs whose summaries and super roots verify, the newest first. Memory: 24 bytes each.
pub fn roots(device: &dyn Device, g: &Geometry) -> Vec<LastLog> {
    let mut all: Vec<LastLog> = Vec::new();
    let mut end: Option<(u64, u64, u64)> = None;
    let mut look = |s: SegNr, expected: Option<u64>, end: &mut Option<(u64, u64, u64)>| {
        each_sound(device, g, s, expected, |at, h, root| {
            let new = LastLog { pseg: at, seq: h.seq.get(), cno: h.cno.get() };
            *end = (*end).max(Some((new.seq, at, h.next.get())));
            if root {
                all.push(new);
            }
        });
    };
    for s in (0..g.nsegments).map(SegNr) {
        look(s, None, &mut end);
    }
    // The log may go on in segments whose first log is lost.
    for _ in 0..g.nsegments {
        let Some((seq, at, next)) = end else { break };
        let next = BlockNr(next);
        if !g.holds(next) || g.segment_of(next) == g.segment_of(BlockNr(at)) {
            break;
        }
        look(g.segment_of(next), Some(seq.wrapping_add(1)), &mut end);
        if end.is_none_or(|(new, ..)| new == seq) {
            break;
        }
    }
    all.sort_unstable_by_key(|l| std::cmp::Reverse((l.seq, l.pseg)));
    all.dedup();
    all
}

/// The greatest sequence number of a log that begins a segment, `last` if none is ahead of that: a repair or a recovery
/// that was cut off may have left logs in free segments, which nothing leads to. Reads a block of each segment.
pub(super) fn greatest_sequence(device: &dyn Device, g: &Geometry, last: u64) -> u64 {
    let first = |s| sound(device, g, g.segment_start(s), g.segment_end(s).0);
    let ahead = (0..g.nsegments).map(SegNr).filter_map(first).map(|h| h.seq.get().wrapping_sub(last));
    last.wrapping_add(ahead.filter(|ahead| *ahead <= AHEAD).max().unwrap_or(0))
}

/// Blocks that the device cannot read of a log whose summary and super root verify; none of one that cannot be told.
pub fn unreadable(device: &dyn Device, g: &Geometry, log: &LastLog) -> Vec<u64> {
    let at = BlockNr(log.pseg);
    if !g.holds(at) {
        return Vec::new();
    }
    let found = sound(device, g, at, g.segment_end(g.segment_of(at)).0);
    found.map_or_else(Vec::new, |h| bad_blocks(device, g, at.0..at.0 + u64::from(h.nblocks.get())))
}

/// A header for the log that a super block names, which was whole when that was written: as long as its super root
/// tells, which is the next one.
fn made_up(device: &dyn Device, g: &Geometry, named: &LastLog) -> Option<Header> {
    let at = BlockNr(named.pseg);
    let segment = g.segment_of(at);
    let end = g.segment_end(segment).0;
    let mut block = vec![0; g.bs()];
    let mut root_at = |b: u64| {
        device.read_at(g.byte_of(BlockNr(b)), &mut block).ok()?;
        SuperRoot::parse(g, &block).ok()
    };
    let (last, root) = (at.0 + 1..end).find_map(|b| Some((b, root_at(b)?)))?;
    let mut h = Header::zeroed();
    h.flags = (summary::LOGBGN | summary::LOGEND | summary::SR).into();
    h.seq = named.seq.into();
    h.cno = named.cno.into();
    h.create = root.nongc_ctime.into();
    h.nblocks = u32::try_from(last + 1 - at.0).ok()?.into();
    // All logs of a segment lead to the same one. Where there is no other, nothing may follow.
    h.next = g.segment_start(segment).0.into();
    each_sound(device, g, segment, Some(named.seq), |_, other, _| h.next = other.next);
    Some(h)
}

/// Segments with blocks that the device cannot read where the log of a super block lies, where it goes on, and behind
/// the newest whole super root: what is written next may fall on them, and a mount reads on as far as there are logs.
pub fn bad_ahead(device: &dyn Device, g: &Geometry, cursors: &[LastLog]) -> BTreeSet<u64> {
    let inside = cursors.iter().filter(|c| g.holds(BlockNr(c.pseg)));
    let mut todo: Vec<(u64, u64)> = inside.map(|c| (g.segment_of(BlockNr(c.pseg)).0, c.seq)).collect();
    let mut looked: BTreeSet<u64> = todo.iter().map(|(s, _)| *s).collect();
    while let Some((segment, seq)) = todo.pop() {
        // What an earlier use of the segment left behind leads nowhere.
        each_sound(device, g, SegNr(segment), Some(seq), |_, h, _| {
            let next = BlockNr(h.next.get());
            if g.holds(next) {
                let next = g.segment_of(next).0;
                if looked.insert(next) {
                    todo.push((next, seq.wrapping_add(1)));
                }
            }
        });
    }
    let blocks = |s: u64| g.segment_start(SegNr(s)).0..g.segment_end(SegNr(s)).0;
    looked.retain(|s| !bad_blocks(device, g, blocks(*s)).is_empty());
    looked
}

/// The blocks of a range that cannot be read.
pub fn bad_blocks(device: &dyn Device, g: &Geometry, blocks: std::ops::Range<u64>) -> Vec<u64> {
    const PIECE: u64 = 256;
    let mut bytes = vec![0; g.bs() * 256];
    let mut bad = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end {
        let n = PIECE.min(blocks.end - at);
        let len = usize::try_from(n).unwrap_or(0) * g.bs();
        if device.read_at(g.byte_of(BlockNr(at)), &mut bytes[..len]).is_err() {
            let block = &mut bytes[..g.bs()];
            bad.extend((at..at + n).filter(|b| device.read_at(g.byte_of(BlockNr(*b)), block).is_err()));
        }
        at += n;
    }
    bad
}

/// Makes a log valid whose summary and super root verify and whose content does not: what is wrong in it shows
/// when it is looked at. What does not show, since it is content, is told in words. `None`: there is no such log at
/// `cursor`, or the device cannot read all of it.
pub fn accept(device: &dyn Device, g: &Geometry, cursor: &LastLog) -> Result<Option<Vec<String>>> {
    let at = BlockNr(cursor.pseg);
    let Some(h) = sound(device, g, at, g.segment_end(g.segment_of(at)).0) else { return Ok(None) };
    let root = h.has(summary::SR) && search::read_super_root(device, g, at, &h).is_ok();
    if !g.holds(at) || h.seq.get() != cursor.seq || !root {
        return Ok(None);
    }
    let mut block = vec![0; g.bs()];
    device.read_at(g.byte_of(at), &mut block)?;
    let mut crc = Crc::new(g.crc_seed);
    crc.update(&block[4..]);
    let mut rest = vec![0; g.bs()];
    for n in 1..u64::from(h.nblocks.get()) {
        // A block that cannot be read cannot be made valid either.
        if device.read_at(g.byte_of(BlockNr(at.0 + n)), &mut rest).is_err() {
            return Ok(None);
        }
        crc.update(&rest);
    }
    let sum = crc.finish();
    if sum == h.datasum.get() {
        return Ok(Some(Vec::new()));
    }
    block[..4].copy_from_slice(&sum.to_le_bytes());
    device.write_at(g.byte_of(at), &[&block])?;
    device.flush()?;
    Ok(Some(content_of(device, g, at, &h)?))
}

/// Whose content and attributes a log has, as what may be wrong.
fn content_of(device: &dyn Device, g: &Geometry, at: BlockNr, h: &Header) -> Result<Vec<String>> {
    let blocks = u64::from(h.summary_blocks(g));
    let mut summary = vec![0; usize::try_from(blocks << g.block_bits).unwrap_or(0)];
    device.read_at(g.byte_of(at), &mut summary)?;
    let (mut files, mut attributes) = (BTreeMap::new(), BTreeSet::new());
    let mut block = vec![0; g.bs()];
    // What a summary that verifies lists is within its log.
    let _ = summary::for_each_payload(g, h, &summary, |p| {
        let at = g.byte_of(BlockNr(at.0 + blocks + u64::from(p.index)));
        if let (BlockInfo::Data { offset, .. }, Ino::IFILE) = (p.info, p.ino) {
            if device.read_at(at, &mut block).is_ok() {
                attributes.extend(inodes_in(g, offset, &block));
            }
        } else if p.ino == Ino::ROOT || p.ino.0 >= Ino::FIRST_USER.0 {
            *files.entry(File::current(p.ino)).or_insert(0) += 1;
        }
    });
    Ok(suspects(&files, &attributes))
}

/// The header of a log whose summary verifies and that ends before `end`.
pub(super) fn sound(device: &dyn Device, g: &Geometry, at: BlockNr, end: u64) -> Option<Header> {
    let mut bytes = vec![0; g.bs()];
    device.read_at(g.byte_of(at), &mut bytes).ok()?;
    let h = Header::parse(g, &bytes).ok()?;
    let size = u64::from(h.summary_blocks(g)) << g.block_bits;
    if at.0.saturating_add(h.nblocks.get().into()) > end || size > search::MAX_SUMMARY as u64 {
        return None;
    }
    bytes.resize(usize::try_from(size).ok()?, 0);
    device.read_at(g.byte_of(at), &mut bytes).ok()?;
    summary::summary_sum_matches(g.crc_seed, &h, &bytes).then_some(h)
}

/// Calls `f` for each sound log of a segment, and whether it ends in a sound super root; damaged logs between them are
/// passed over. In a segment without a first log nothing is looked for, unless it is `expected` to have a number.
pub(super) fn each_sound(
    device: &dyn Device,
    g: &Geometry,
    segment: SegNr,
    expected: Option<u64>,
    mut f: impl FnMut(u64, &Header, bool),
) {
    let end = g.segment_end(segment).0;
    let mut at = g.segment_start(segment).0;
    let mut seq = expected;
    while at + 1 < end {
        let sound = sound(device, g, BlockNr(at), end).filter(|h| seq.is_none_or(|s| s == h.seq.get()));
        let Some(h) = sound else {
            if seq.is_none() && at != g.segment_start(segment).0 {
                return;
            }
            at += 1;
            continue;
        };
        seq = Some(h.seq.get());
        let root = h.has(summary::SR) && search::read_super_root(device, g, BlockNr(at), &h).is_ok();
        f(at, &h, root);
        at += u64::from(h.nblocks.get());
    }
}

/// The log a super block names.
pub fn cursor_of(block: &SuperBlock) -> LastLog {
    LastLog { pseg: block.last_pseg.get(), seq: block.last_seq.get(), cno: block.last_cno.get() }
}

/// Whether a mount by this super block would find a super root.
pub fn leads(device: &dyn Device, block: &SuperBlock) -> bool {
    reaches(device, block).is_some()
}

/// Whether one would, if the device could read all that lies behind it.
pub fn leads_in_part(device: &dyn Device, block: &SuperBlock) -> bool {
    let Ok(g) = block.geometry(device.len()) else { return false };
    search::search_from(device, &g, cursor_of(block), false, Unreadable::Ends).is_ok()
}

/// The newest checkpoint that a mount by this super block would find.
pub fn reaches(device: &dyn Device, block: &SuperBlock) -> Option<u64> {
    let g = block.geometry(device.len()).ok()?;
    let clean = block.state.get() & STATE_VALID != 0;
    search::search_from(device, &g, cursor_of(block), clean, Unreadable::Fails)
        .ok()
        .map(|found| found.last.cno)
}

/// Whether something that counts follows the log a super block names: a checkpoint or synced data.
pub fn newer_logs(device: &dyn Device, block: &SuperBlock) -> bool {
    let Ok(g) = block.geometry(device.len()) else { return false };
    search::search_from(device, &g, cursor_of(block), false, Unreadable::Fails)
        .is_ok_and(|f| f.last.cno > block.last_cno.get() || f.tail.is_some())
}

/// Numbers of the checkpoints with what tells their trees apart, as far as the checkpoint file can be read.
pub fn checkpoints(device: Arc<dyn Device>) -> Result<BTreeMap<u64, [u8; 56]>> {
    let options = OpenOptions { read_only: true, norecovery: true, ..OpenOptions::default() };
    let (v, _) = Volume::open(device, &options)?;
    let all = v.cpfile.every(&v.store, &v.dat);
    Ok(all.iter().map(|e| (e.cno.get(), e.ifile_inode.bmap)).collect())
}

/// Numbers of the snapshots, as far as the checkpoint file can be read.
pub fn snapshots(device: Arc<dyn Device>) -> Result<BTreeSet<u64>> {
    let options = OpenOptions { read_only: true, norecovery: true, ..OpenOptions::default() };
    let (v, _) = Volume::open(device, &options)?;
    let all = v.cpfile.every(&v.store, &v.dat);
    Ok(all.iter().filter(|e| e.is_snapshot()).map(|e| e.cno.get()).collect())
}

/// The newest checkpoint that was made no later than `at`, seconds since 1970.
pub fn checkpoint_at(device: Arc<dyn Device>, at: u64) -> Result<Option<u64>> {
    let options = OpenOptions { read_only: true, norecovery: true, ..OpenOptions::default() };
    let (v, _) = Volume::open(device, &options)?;
    let all = v.cpfile.every(&v.store, &v.dat);
    Ok(all.iter().filter(|e| e.create.get() <= at).map(|e| e.cno.get()).max())
}

/// An error that says what to do.
pub(crate) fn no_tree(cno: u64) -> Error {
    Error::Invalid(format!("the entry of checkpoint {cno} is lost; go back to an older one with --roll-back"))
}
