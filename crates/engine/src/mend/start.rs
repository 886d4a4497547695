//! Where to begin: what the super blocks lead to, and what there is when they lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::Device;
use silt_format::summary::{self, Header};
use silt_format::super_block::{STATE_VALID, SuperBlock};
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::search::{self, Found};
use crate::supers::{LastLog, Supers};
use crate::volume::{OpenOptions, Volume};
use crate::{Error, Result};

/// Searches as a mount does.
pub(crate) fn find(device: &dyn Device, g: &Geometry, supers: &mut Supers) -> Result<Found> {
    search::search(device, g, supers)
}

/// The newest log of the volume whose summary and super root verify; what else is in it may be damaged.
pub fn newest(device: &dyn Device, g: &Geometry) -> Option<LastLog> {
    let mut best: Option<LastLog> = None;
    let mut end: Option<(u64, u64, u64)> = None;
    let mut look = |s: SegNr, expected: Option<u64>, end: &mut Option<(u64, u64, u64)>| {
        each_sound(device, g, s, expected, |at, h, root| {
            let new = LastLog { pseg: at, seq: h.seq.get(), cno: h.cno.get() };
            *end = (*end).max(Some((new.seq, at, h.next.get())));
            if root && best.is_none_or(|b| (b.seq, b.pseg) < (new.seq, new.pseg)) {
                best = Some(new);
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
    best
}

/// Makes a log valid whose summary and super root verify and whose content does not: what is wrong in it shows
/// when it is looked at. Tells whether there is such a log at `cursor`.
pub fn accept(device: &dyn Device, g: &Geometry, cursor: &LastLog) -> Result<bool> {
    let at = BlockNr(cursor.pseg);
    let Some(h) = sound(device, g, at, g.segment_end(g.segment_of(at)).0) else { return Ok(false) };
    let root = h.has(summary::SR) && search::read_super_root(device, g, at, &h).is_ok();
    if !g.holds(at) || h.seq.get() != cursor.seq || !root {
        return Ok(false);
    }
    let mut block = vec![0; g.bs()];
    device.read_at(g.byte_of(at), &mut block)?;
    let mut crc = Crc::new(g.crc_seed);
    crc.update(&block[4..]);
    let mut rest = vec![0; g.bs()];
    for n in 1..u64::from(h.nblocks.get()) {
        // A block that cannot be read cannot be made valid either.
        device.read_at(g.byte_of(BlockNr(at.0 + n)), &mut rest)?;
        crc.update(&rest);
    }
    let sum = crc.finish();
    if sum != h.datasum.get() {
        block[..4].copy_from_slice(&sum.to_le_bytes());
        device.write_at(g.byte_of(at), &[&block])?;
        device.flush()?;
    }
    Ok(true)
}

/// The header of a log whose summary verifies and that ends before `end`.
fn sound(device: &dyn Device, g: &Geometry, at: BlockNr, end: u64) -> Option<Header> {
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
fn each_sound(
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

/// The newest checkpoint that a mount by this super block would find.
pub fn reaches(device: &dyn Device, block: &SuperBlock) -> Option<u64> {
    let g = block.geometry(device.len()).ok()?;
    let clean = block.state.get() & STATE_VALID != 0;
    search::search_from(device, &g, cursor_of(block), clean).ok().map(|found| found.last.cno)
}

/// Whether something that counts follows the log a super block names: a checkpoint or synced data.
pub fn newer_logs(device: &dyn Device, block: &SuperBlock) -> bool {
    let Ok(g) = block.geometry(device.len()) else { return false };
    search::search_from(device, &g, cursor_of(block), false)
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
