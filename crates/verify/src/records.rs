//! The records of a log's summary, walked with every rule of spec 3.4 checked.

use silt_format::Geometry;
use silt_format::summary::{FINFO_SIZE, Header, SR, SYNDT};

use crate::invariants::{self as inv, Invariant};

/// One payload block as its record describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Data { vblock: u64, offset: u64 },
    Node { vblock: u64 },
    DatData { offset: u64 },
    DatNode { key: u64, level: u8 },
}

/// Walks a summary of whole blocks. Calls `record` with (inode, fi_cno, record, index in the
/// payload) and `bad` with what is wrong; stops where records can no longer be told.
pub(crate) fn walk(
    g: &Geometry,
    h: &Header,
    summary: &[u8],
    mut record: impl FnMut(u64, u64, Record, u64),
    mut bad: impl FnMut(&'static Invariant, String),
) {
    const DAT: u64 = 3;
    let bs = g.bs();
    let end = (h.sumbytes.get() as usize).min(summary.len());
    let extra = u64::from(h.summary_blocks(g)) + u64::from(h.has(SR));
    let payload = u64::from(h.nblocks.get()).saturating_sub(extra);
    let mut pos = usize::from(h.bytes.get());
    let mut gap = 0usize;
    let mut take = |size: usize| -> Option<usize> {
        let left = bs - pos % bs;
        let at = if size > left { pos + left } else { pos };
        let next = at + size;
        if next > end {
            return None;
        }
        gap += summary.get(pos..at).map_or(0, |b| b.iter().filter(|b| **b != 0).count());
        pos = next;
        Some(at)
    };
    let word = |at: usize| -> u64 {
        summary.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let mut index = 0u64;
    let mut pads = 0u64;
    'records: for n in 0..h.nfinfo.get() {
        let Some(at) = take(FINFO_SIZE) else {
            bad(&inv::LOG_RECORDS, format!("file record {n} of {} lies behind ss_sumbytes", h.nfinfo));
            break;
        };
        let (ino, cno) = (word(at), word(at + 8));
        let (nblocks, ndata) = (word(at + 16) & 0xffff_ffff, word(at + 16) >> 32);
        if nblocks == 0 || ndata > nblocks || nblocks > payload - index {
            let rest = payload - index;
            let message = format!("inode {ino}: {nblocks} blocks, {ndata} of data; {rest} blocks are left");
            bad(&inv::LOG_RECORDS, message);
            break;
        }
        if h.has(SYNDT) && (ino == DAT || ndata != nblocks) {
            bad(&inv::LOG_FLAGS, format!("a data-sync log holds metadata of inode {ino}"));
        }
        for i in 0..nblocks {
            let size = if (ino == DAT) == (i < ndata) { 8 } else { 16 };
            let Some(at) = take(size) else {
                bad(&inv::LOG_RECORDS, format!("block records of inode {ino} run past ss_sumbytes"));
                break 'records;
            };
            let r = match (ino == DAT, i < ndata) {
                (false, true) => Record::Data { vblock: word(at), offset: word(at + 8) },
                (false, false) => Record::Node { vblock: word(at) },
                (true, true) => Record::DatData { offset: word(at) },
                (true, false) => {
                    pads |= word(at + 8) >> 8;
                    Record::DatNode { key: word(at), level: (word(at + 8) & 0xff) as u8 }
                }
            };
            record(ino, cno, r, index);
            index += 1;
        }
    }
    if index != payload {
        bad(&inv::LOG_RECORDS, format!("{index} blocks are described, {payload} are there"));
        return;
    }
    if pos != h.sumbytes.get() as usize {
        bad(&inv::LOG_SUMBYTES, format!("records end at byte {pos}, ss_sumbytes is {}", h.sumbytes));
    }
    gap += summary.get(pos..).map_or(0, |b| b.iter().filter(|b| **b != 0).count());
    if gap > 0 || pads != 0 || h.pad.get() != 0 {
        bad(&inv::LOG_GAPS, format!("{gap} bytes are not zero, or a pad field is not"));
    }
}
