//! Finding the newest checkpoint: the super-root search (spec 4.1, 4.2).

use silt_format::summary::{self, Header, Payload};
use silt_format::super_block::STATE_VALID;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::log::Cursor;
use crate::supers::{LastLog, Supers};
use crate::{At, Error, Result};
use silt_device::Device;

/// Largest summary that is read, in bytes. A log needs some 20 a block.
pub const MAX_SUMMARY: usize = 64 << 20;

/// What the search found.
#[derive(Debug)]
pub struct Found {
    /// The newest log with a super root.
    pub last: LastLog,
    /// `ss_create` of it, seconds.
    pub create: u64,
    pub root: SuperRoot,
    /// Where the writer goes on.
    pub cursor: Cursor,
    /// Complete logical segments behind the super root, from this log to that one.
    pub tail: Option<Tail>,
    /// Sequence number of the last valid log.
    pub last_seq: u64,
    /// Every segment that was or may have been written behind the super root, its own excepted.
    pub touched: Vec<SegNr>,
}

/// Logs behind the newest super root that may have to be rolled forward.
#[derive(Debug, Clone)]
pub struct Tail {
    /// First log of the first logical segment.
    pub start: u64,
    pub start_seq: u64,
    /// Last log that ends one.
    pub end: u64,
}

/// Reads and verifies the log at `at`: `None` if there is no valid log with that sequence number.
pub fn read_log(device: &dyn Device, g: &Geometry, at: BlockNr, seq: u64) -> Result<Option<Header>> {
    if !g.holds(at) {
        return Ok(None);
    }
    let mut block = vec![0u8; g.bs()];
    device.read_at(g.byte_of(at), &mut block)?;
    let Ok(header) = Header::parse(g, &block) else { return Ok(None) };
    let nblocks = u64::from(header.nblocks.get());
    if header.seq.get() != seq || at.0 + nblocks > g.segment_end(g.segment_of(at)).0 {
        return Ok(None);
    }
    let mut crc = Crc::new(g.crc_seed);
    crc.update(&block[4..]);
    // A log is at most a segment; it is read in pieces to keep memory small.
    let mut piece = vec![0u8; 1 << 20];
    let mut pos = g.byte_of(at) + u64::from(g.block_size);
    let end = g.byte_of(BlockNr(at.0 + nblocks));
    while pos < end {
        let n = usize::try_from((end - pos).min(piece.len() as u64)).unwrap_or(piece.len());
        device.read_at(pos, &mut piece[..n])?;
        crc.update(&piece[..n]);
        pos += n as u64;
    }
    Ok((crc.finish() == header.datasum.get()).then_some(header))
}

/// The payload descriptions of a verified log.
pub fn payloads(device: &dyn Device, g: &Geometry, at: BlockNr, header: &Header) -> Result<Vec<Payload>> {
    let len = u64::from(header.summary_blocks(g)) * u64::from(g.block_size);
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_SUMMARY).ok_or_else(|| {
        Error::corrupt(format!("block {at}"), "segment summary", format!("has {len} bytes"))
    })?;
    let mut bytes = vec![0u8; len];
    device.read_at(g.byte_of(at), &mut bytes)?;
    let mut all = Vec::new();
    summary::for_each_payload(g, header, &bytes, |p| all.push(p)).at(|| format!("log at block {at}"))?;
    Ok(all)
}

/// Reads the super root that ends a verified log.
pub fn read_super_root(device: &dyn Device, g: &Geometry, at: BlockNr, header: &Header) -> Result<SuperRoot> {
    let place = BlockNr(at.0 + u64::from(header.nblocks.get()) - 1);
    let mut block = vec![0u8; g.bs()];
    device.read_at(g.byte_of(place), &mut block)?;
    SuperRoot::parse(g, &block).at(|| format!("block {place}"))
}

/// Searches from the preferred super block, then from the other (spec 4.2).
pub fn search(device: &dyn Device, g: &Geometry, supers: &mut Supers) -> Result<Found> {
    let start = |b: &silt_format::super_block::SuperBlock| LastLog {
        pseg: b.last_pseg.get(),
        seq: b.last_seq.get(),
        cno: b.last_cno.get(),
    };
    let clean = supers.first.1.state.get() & STATE_VALID != 0;
    let first = search_from(device, g, start(&supers.first.1), clean);
    let Err(e) = first else { return first };
    let Some((_, second)) = &supers.second else { return Err(e) };
    if second.last_cno.get() == 0 || second.log_block_size.get() != supers.first.1.log_block_size.get() {
        return Err(e);
    }
    let Ok(found) = search_from(device, g, start(second), false) else { return Err(e) };
    if let Some(second) = supers.second.take() {
        let first = std::mem::replace(&mut supers.first, second);
        supers.second = Some(first);
    }
    supers.state_at_open &= !STATE_VALID;
    Ok(found)
}

pub(crate) fn search_from(device: &dyn Device, g: &Geometry, from: LastLog, clean: bool) -> Result<Found> {
    search_behind(device, g, from, None, clean)
}

/// As [`search_from`]; with the header of the first log, that one counts although not all of it can be read.
pub(crate) fn search_behind(
    device: &dyn Device,
    g: &Geometry,
    from: LastLog,
    mut trusted: Option<Header>,
    clean: bool,
) -> Result<Found> {
    let mut pos = BlockNr(from.pseg);
    let (mut seq, mut cno) = (from.seq, from.cno);
    let mut segment = g.segment_of(pos);
    let mut next = segment;
    let mut latest: Option<(LastLog, Header, Cursor)> = None;
    let (mut start, mut end): (Option<(u64, u64)>, Option<u64>) = (None, None);
    let mut passed = Vec::new();
    let mut last_seq = seq;
    let mut missed = false;
    let no_log = || Error::corrupt(format!("block {}", from.pseg), "super block", "points to no checkpoint");
    // Sequence numbers go up by one a segment, so a chain through valid logs cannot be longer
    // than twice the segments before it meets a log it has overwritten.
    let mut segments_left = g.nsegments.saturating_mul(2).saturating_add(2);
    loop {
        let log = match trusted.take() {
            Some(header) => Some(header),
            None => read_log(device, g, pos, seq)?,
        };
        let log = log.filter(|h| {
            // Behind a torn log only what begins anew can be whole, and a checkpoint only if none
            // is missing before it: the device may have written later logs and not earlier ones.
            let begins = !missed || h.has(summary::LOGBGN);
            h.leads_on(g) && (latest.is_none() || (begins && (!h.has(summary::SR) || h.cno.get() == cno)))
        });
        if let Some(h) = log {
            missed = false;
            next = g.segment_of(BlockNr(h.next.get()));
            last_seq = seq;
            if h.has(summary::SR) {
                let last = LastLog { pseg: pos.0, seq, cno };
                let offset = pos.0 + u64::from(h.nblocks.get()) - g.segment_start(segment).0;
                latest = Some((last, h, Cursor { segment, next, offset, seq }));
                cno = cno.checked_add(1).ok_or_else(no_log)?;
                (start, end) = (None, None);
                passed.clear();
                if clean {
                    break;
                }
            } else {
                if latest.is_none() {
                    return Err(no_log());
                }
                if start.is_none() && h.has(summary::LOGBGN) {
                    start = Some((pos.0, seq));
                }
                if h.has(summary::LOGEND) {
                    end = Some(pos.0);
                }
            }
            pos = BlockNr(pos.0 + u64::from(h.nblocks.get()));
            if pos.0 + 1 < g.segment_end(segment).0 {
                continue;
            }
        } else {
            if latest.is_none() {
                return Err(no_log());
            }
            if missed {
                break;
            }
            missed = true;
        }
        if next == segment && missed {
            break;
        }
        segments_left -= 1;
        if segments_left == 0 {
            break;
        }
        passed.push(segment);
        seq = seq.wrapping_add(1);
        segment = next;
        pos = g.segment_start(segment);
    }
    let Some((last, header, cursor)) = latest else { return Err(no_log()) };
    let root = read_super_root(device, g, BlockNr(last.pseg), &header)?;
    let tail = match (start, end) {
        (Some((start, start_seq)), Some(end)) => Some(Tail { start, start_seq, end }),
        _ => None,
    };
    let mut touched = passed;
    touched.extend([segment, next, cursor.next]);
    touched.retain(|s| *s != cursor.segment);
    touched.sort_unstable();
    touched.dedup();
    Ok(Found { last, create: header.create.get(), root, cursor, tail, last_seq, touched })
}
