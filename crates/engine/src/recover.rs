//! Rolling synced data forward and leaving the log it was found in (spec 4.4 to 4.6).
//!
//! Recovery may be cut off at any point: until a super block points at the checkpoint it makes,
//! the next mount finds the old super root and the same tail again, untouched, because no segment
//! of the tail is handed out before that.

use std::collections::BTreeMap;

use silt_format::summary::{self, BlockInfo};
use silt_format::{BlockNr, Ino, SegNr};

use crate::files::Tree;
use crate::log::Cursor;
use crate::search::{self, Tail};
use crate::volume::Volume;
use crate::{Error, Result};

/// Distance in sequence numbers from any log a crash may have left behind. Logs that reached the
/// disk out of order lie at most as many segments ahead as a device can hold back.
const SEQ_JUMP: u64 = 1 << 16;

/// What is left to do once the recovered state is durable.
pub(crate) struct Recovery {
    /// First log of the tail, to be made invalid.
    start: Option<u64>,
    /// Segments of the tail, to be given back.
    scrapped: Vec<SegNr>,
}

impl Volume {
    /// Applies complete data-sync logs behind the super root to files in memory and returns the
    /// number of blocks. Inodes that cannot be opened are passed over.
    pub(crate) fn roll_forward(&mut self, tail: &Tail) -> Result<u64> {
        let g = self.store.geometry;
        let device = self.store.device.clone();
        let mut newest: BTreeMap<(u64, u64), BlockNr> = BTreeMap::new();
        let mut collected: Option<Vec<(Ino, u64, BlockNr)>> = None;
        let mut pos = BlockNr(tail.start);
        let mut seq = tail.start_seq;
        let mut segment = g.segment_of(pos);
        let mut segments_left = g.nsegments.saturating_add(2);
        while let Some(h) = search::read_log(&*device, &g, pos, seq)? {
            let next = g.segment_of(BlockNr(h.next.get()));
            if h.has(summary::SR) {
                return Err(Error::corrupt(
                    format!("block {pos}"),
                    "segment summary",
                    "a super root in the tail",
                ));
            }
            if collected.is_none() && h.has(summary::LOGBGN) && h.has(summary::SYNDT) {
                collected = Some(Vec::new());
            }
            if let Some(list) = &mut collected {
                if !h.has(summary::SYNDT) {
                    return Err(Error::corrupt(
                        format!("block {pos}"),
                        "segment summary",
                        "a data-sync log is continued by another kind",
                    ));
                }
                let first = pos.0 + u64::from(h.summary_blocks(&g));
                for p in search::payloads(&*device, &g, pos, &h)? {
                    if let BlockInfo::Data { offset, .. } = p.info {
                        list.push((p.ino, offset, BlockNr(first + u64::from(p.index))));
                    }
                }
                if h.has(summary::LOGEND) {
                    newest.extend(list.drain(..).map(|(ino, key, at)| ((ino.0, key), at)));
                    collected = None;
                }
            }
            if pos.0 == tail.end {
                break;
            }
            pos = BlockNr(pos.0 + u64::from(h.nblocks.get()));
            if pos.0 + 1 >= g.segment_end(segment).0 {
                segments_left -= 1;
                if segments_left == 0 {
                    break;
                }
                segment = next;
                seq += 1;
                pos = g.segment_start(segment);
            }
        }
        let mut applied = 0;
        for ((ino, key), at) in newest {
            let known = self.inode(Tree::Live, Ino(ino)).is_ok_and(|i| i.attr.is_regular());
            if !known || key > g.max_key() {
                continue;
            }
            let block = self.store.read(at)?;
            self.recover_block(Ino(ino), key, block)?;
            applied += 1;
        }
        Ok(applied)
    }

    /// Leaves the segment of the newest super root for a fresh one: whatever logs lie behind it,
    /// complete or torn, can never be taken for newer ones.
    pub(crate) fn leave_tail(&mut self, tail: Option<&Tail>, last_seq: u64, touched: &[SegNr]) -> Result<()> {
        let (store, dat) = (&self.store, &self.dat);
        let mut scrapped = Vec::new();
        for s in touched {
            let e = self.sufile.entry(store, dat, *s)?;
            if e.is_clean() || *s == self.cursor.next {
                self.sufile.scrap(store, dat, *s)?;
                scrapped.push(*s);
            }
        }
        let fresh = match self.sufile.allocate(&mut self.store, &self.dat) {
            Ok(s) => s,
            // Full to the last segment: the tail's own are all there is. Without synced data in
            // them they may be used at once.
            Err(Error::NoSpace) if tail.is_none() && !scrapped.is_empty() => scrapped.remove(0),
            Err(e) => return Err(e),
        };
        self.cursor = Cursor { segment: fresh, next: fresh, offset: 0, seq: last_seq.wrapping_add(SEQ_JUMP) };
        self.discontinued = true;
        self.meta_dirty = true;
        self.recovery = Some(Recovery { start: tail.map(|t| t.start), scrapped });
        Ok(())
    }

    /// After the recovered state is durable: the tail becomes invalid and its segments free.
    pub(crate) fn forget_tail(&mut self) -> Result<()> {
        let Some(r) = self.recovery.take() else { return Ok(()) };
        if let Some(start) = r.start {
            let g = &self.store.geometry;
            let zero = vec![0u8; g.bs()];
            self.store.device.write_at(g.byte_of(BlockNr(start)), &[&zero])?;
            self.store.device.flush()?;
        }
        for s in r.scrapped {
            self.sufile.free(&self.store, &self.dat, s)?;
            self.meta_dirty = true;
        }
        Ok(())
    }
}
