//! Logs in memory: what fits into one, and the finished bytes (spec 3.2 to 3.5).

use hashbrown::HashMap;
use silt_device::Device;
use silt_format::btree::Node;
use silt_format::summary::{self, BlockInfo, Builder, FINFO_SIZE, HEADER_SIZE, Header};
use silt_format::{BlockNr, Cno, Crc, Geometry, Ino, SegNr};
use zerocopy::IntoBytes;

use crate::Result;
use crate::block::Block;

/// Where the next log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub segment: SegNr,
    /// The segment after it (`ss_next`).
    pub next: SegNr,
    /// Blocks of the segment that are used, from its first block.
    pub offset: u64,
    /// Sequence number of the segment.
    pub seq: u64,
}

impl Cursor {
    /// Blocks left in the segment.
    pub fn room(&self, g: &Geometry) -> u64 {
        g.segment_blocks(self.segment).saturating_sub(self.offset)
    }

    /// First block of the next log.
    pub fn at(&self, g: &Geometry) -> BlockNr {
        BlockNr(g.segment_start(self.segment).0 + self.offset)
    }
}

/// Where a payload block's bytes come from when the log is finished.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes that do not change any more.
    Ready(Block),
    /// A changed data block of a metadata file.
    MetaData(u64),
    /// A changed node of a metadata file, by pointer.
    MetaNode(u64),
}

/// A block on its way into a log.
#[derive(Debug, Clone)]
pub struct Item {
    pub ino: Ino,
    pub fi_cno: Cno,
    pub info: BlockInfo,
    pub content: Content,
    /// It has been written before and keeps its number and its life ([`crate::clean`]).
    pub moved: bool,
}

/// The file record that a log's blocks go to: data of one file and beginning, then nodes of it (spec 3.3). Where data
/// follows nodes, as that of the checkpoint file does after blocks of it that are moved, another record begins.
#[derive(Debug, Clone, Copy)]
struct Record {
    ino: Ino,
    cno: Cno,
    nodes: bool,
}

impl Record {
    fn of(ino: Ino, cno: Cno, info: &BlockInfo) -> Self {
        Record { ino, cno, nodes: !info.is_data() }
    }

    /// Whether a block can be added behind those of `self`.
    fn takes(&self, next: &Record) -> bool {
        (self.ino, self.cno) == (next.ino, next.cno) && (next.nodes || !self.nodes)
    }
}

/// Counts what fits into a log, with the arithmetic of the summary alone.
#[derive(Debug, Clone)]
pub struct Fit {
    block_size: usize,
    capacity: u64,
    pos: usize,
    payload: u64,
    file: Option<Record>,
}

impl Fit {
    /// A log of at most `capacity` blocks.
    pub fn new(block_size: usize, capacity: u64) -> Self {
        Fit { block_size, capacity, pos: HEADER_SIZE, payload: 0, file: None }
    }

    fn after(&self, file: &Record, size: usize) -> usize {
        let pos = match self.file {
            Some(open) if open.takes(file) => self.pos,
            _ => summary::place(self.block_size, self.pos, FINFO_SIZE).1,
        };
        summary::place(self.block_size, pos, size).1
    }

    fn blocks(&self, pos: usize, payload: u64) -> u64 {
        pos.div_ceil(self.block_size) as u64 + payload
    }

    /// Takes a block if it fits with `spare` blocks left.
    pub fn take(&mut self, ino: Ino, cno: Cno, info: &BlockInfo, spare: u64) -> bool {
        let file = Record::of(ino, cno, info);
        let pos = self.after(&file, info.size());
        if self.blocks(pos, self.payload + 1) + spare > self.capacity {
            return false;
        }
        self.pos = pos;
        self.payload += 1;
        self.file = Some(file);
        true
    }

    /// Allows as many as `capacity` blocks.
    pub fn widen(&mut self, capacity: u64) {
        self.capacity = self.capacity.max(capacity);
    }

    /// Whether `spare` more blocks fit behind what was taken.
    pub fn has_room(&self, spare: u64) -> bool {
        self.blocks(self.pos, self.payload) + spare <= self.capacity
    }

    /// Blocks of the summary.
    pub fn summary_blocks(&self) -> u64 {
        self.pos.div_ceil(self.block_size) as u64
    }

    /// Blocks of summary and payload.
    pub fn total(&self) -> u64 {
        self.blocks(self.pos, self.payload)
    }
}

/// A log that is being filled.
#[derive(Debug)]
pub struct OpenLog {
    pub cursor: Cursor,
    pub fit: Fit,
    pub items: Vec<Item>,
}

impl OpenLog {
    /// An empty log at `cursor`, limited to `limit` blocks besides the segment's end.
    pub fn new(g: &Geometry, cursor: Cursor, limit: u64) -> Self {
        OpenLog { cursor, fit: Fit::new(g.bs(), cursor.room(g).min(limit)), items: Vec::new() }
    }

    /// Disk block of payload block `index`.
    pub fn place(&self, g: &Geometry, index: usize) -> BlockNr {
        BlockNr(self.cursor.at(g).0 + self.fit.summary_blocks() + index as u64)
    }
}

/// What the header of a finished log says besides its records.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub flags: u16,
    /// Seconds.
    pub create: u64,
    pub cno: Cno,
    /// Total blocks.
    pub nblocks: u64,
}

/// Which logs a flush must go before.
///
/// A reader that meets a torn log goes on in the next segment. A super root (or synced data) that
/// it finds there would be taken for the newest although logs before it are missing. So such a log
/// is not written while one in an earlier segment may still be in the device's cache.
#[derive(Debug, Default)]
pub struct WriteOrder {
    /// Segment of the oldest log that no flush has covered.
    oldest: Option<SegNr>,
}

impl WriteOrder {
    /// Whether everything written must be flushed before this log is written.
    pub fn wants_flush(&self, log: &LogWrite) -> bool {
        log.commits && self.oldest.is_some_and(|s| s != log.segment)
    }

    /// Whether something was written that no flush has covered.
    pub fn is_waiting(&self) -> bool {
        self.oldest.is_some()
    }

    /// A log was written.
    pub fn written(&mut self, log: &LogWrite) {
        self.oldest.get_or_insert(log.segment);
    }

    /// Everything that was written is durable.
    pub fn flushed(&mut self) {
        self.oldest = None;
    }
}

/// A log of so many bytes is large.
const LARGE: u64 = 1 << 20;

/// A log ready to be sealed and written; its bytes are fixed.
#[derive(Debug, Clone)]
pub struct LogWrite {
    /// First block.
    pub at: BlockNr,
    /// The segment it lies in.
    pub segment: SegNr,
    /// Whether a reader may act on it: it ends with a super root or holds synced data.
    pub commits: bool,
    /// Byte offset of it.
    pub byte: u64,
    summary: Vec<u8>,
    payload: Vec<Block>,
    seed: u32,
    sumbytes: usize,
    sealed: bool,
    /// Half of it or more are blocks of large files that were written in part: whoever did that may ask for more of them than is
    /// kept ([`crate::parts`]), as git does of the packs it receives.
    read_again: bool,
}

impl LogWrite {
    /// Composes the summary of a filled log around its resolved payload (super root included).
    pub fn new(g: &Geometry, log: &OpenLog, head: Head, payload: Vec<Block>) -> Self {
        let mut builder = Builder::new(g.bs());
        let mut file: Option<Record> = None;
        let (mut in_part, mut parts) = (false, 0);
        for (n, item) in log.items.iter().enumerate() {
            let was_in_part = in_part;
            in_part = payload.get(n).is_some_and(Block::is_to_be_read);
            let next = Record::of(item.ino, item.fi_cno, &item.info);
            let goes_on = file.is_some_and(|file| file.takes(&next));
            if !goes_on {
                builder.begin_file(item.ino, item.fi_cno);
            }
            // Of small files it is the last block alone.
            parts += usize::from(goes_on && was_in_part && in_part);
            file = Some(next);
            builder.add(&item.info);
        }
        let mut h = Header::zeroed();
        h.flags = head.flags.into();
        h.seq = log.cursor.seq.into();
        h.create = head.create.into();
        h.next = g.segment_start(log.cursor.next).0.into();
        h.nblocks = u32::try_from(head.nblocks).unwrap_or(u32::MAX).into();
        h.cno = head.cno.0.into();
        let records = builder.finish(h);
        let sumbytes = match records.get(48..52).and_then(|s| s.try_into().ok()) {
            Some(a) => u32::from_le_bytes(a) as usize,
            None => 0,
        };
        let at = log.cursor.at(g);
        let commits = head.flags & (summary::SR | summary::SYNDT) != 0;
        let segment = log.cursor.segment;
        LogWrite {
            at,
            segment,
            commits,
            byte: g.byte_of(at),
            summary: records,
            payload,
            seed: g.crc_seed,
            sumbytes,
            sealed: false,
            read_again: parts >= log.items.len().div_ceil(2),
        }
    }

    /// Computes the checksums (spec 3.5, steps 2 and 3). The long part of the work, and one that
    /// needs no lock.
    pub fn seal(&mut self) {
        if self.sealed {
            return;
        }
        summary::store_summary_sum(self.seed, &mut self.summary, self.sumbytes);
        let mut crc = Crc::new(self.seed);
        crc.update(&self.summary[4..]);
        for b in &self.payload {
            crc.update(b);
        }
        let sum = crc.finish();
        self.summary[..4].copy_from_slice(sum.as_bytes());
        self.sealed = true;
    }

    /// Bytes of the whole log.
    pub fn len(&self) -> u64 {
        self.summary.len() as u64 + self.payload.iter().map(|b| b.len() as u64).sum::<u64>()
    }

    /// Never true: a log has a summary.
    pub fn is_empty(&self) -> bool {
        self.summary.is_empty()
    }

    /// Writes the log; it must be sealed. Not durable before a flush.
    pub fn write(&self, device: &dyn Device) -> Result<()> {
        debug_assert!(self.sealed);
        let mut bufs: Vec<&[u8]> = Vec::with_capacity(self.payload.len() + 1);
        bufs.push(&self.summary);
        bufs.extend(self.payload.iter().map(|b| &b[..]));
        if self.read_again && self.len() >= LARGE {
            device.write_cached(self.byte, &bufs)?;
        } else {
            device.write_at(self.byte, &bufs)?;
        }
        Ok(())
    }
}

/// Changed nodes in the order of the log: by level, then by first key.
pub(crate) fn sorted_nodes(nodes: &HashMap<u64, Block>) -> Vec<(u64, Block)> {
    let mut all: Vec<_> = nodes.iter().map(|(p, b)| (*p, b.clone())).collect();
    all.sort_by_key(|(_, b)| (Node::block(b).level(), Node::block(b).key(0)));
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use silt_device::{Capabilities, MemoryDevice};
    use silt_format::VBlockNr;

    use super::*;
    use crate::fresh::{file, fresh, write_out};

    fn item(info: BlockInfo) -> Item {
        Item { ino: Ino::CPFILE, fi_cno: Cno(0), info, content: Content::MetaData(0), moved: false }
    }

    /// Moved blocks of a file and those that change come one behind the other. A reader goes by the counts of a
    /// record: so many data blocks, then nodes.
    #[test]
    fn data_behind_nodes_has_a_record_of_its_own() {
        let data = |v, offset| BlockInfo::Data { vblock: VBlockNr(v), offset };
        let node = |v| BlockInfo::Node { vblock: VBlockNr(v) };
        let all = [data(1, 5), node(2), node(3), data(4, 7), data(5, 8), node(6)];
        let g = Geometry {
            block_size: 4096,
            block_bits: 12,
            blocks_per_segment: 64,
            nsegments: 8,
            first_data_block: 1,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
            crc_seed: 0,
            first_ino: 11,
            reserved_percent: 5,
        };
        let cursor = Cursor { segment: SegNr(2), next: SegNr(3), offset: 0, seq: 9 };
        let mut log = OpenLog::new(&g, cursor, u64::MAX);
        for info in all {
            let item = item(info);
            assert!(log.fit.take(item.ino, item.fi_cno, &item.info, 0));
            log.items.push(item);
        }
        let head = Head { flags: 0, create: 1, cno: Cno(3), nblocks: log.fit.total() };
        let payload = vec![crate::block::zeroed(4096); all.len()];
        let counted = log.fit.summary_blocks();
        let written = LogWrite::new(&g, &log, head, payload);
        assert_eq!(written.summary.len() as u64, counted * 4096);
        let header = Header::parse(&g, &written.summary).unwrap();
        assert_eq!(header.nfinfo.get(), 2);
        let mut read = Vec::new();
        summary::for_each_payload(&g, &header, &written.summary, |p| read.push(p.info)).unwrap();
        assert_eq!(read, all);
    }

    /// Counts the bytes that were to stay in a cache below.
    struct Cached(Arc<MemoryDevice>, AtomicU64);

    impl Device for Cached {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
            self.0.write_at(offset, bufs)
        }
        fn write_cached(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
            self.1.fetch_add(bufs.iter().map(|b| b.len() as u64).sum(), Ordering::Relaxed);
            self.0.write_at(offset, bufs)
        }
        fn flush(&self) -> silt_device::Result<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
            self.0.discard(offset, len)
        }
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
    }

    #[test]
    fn large_logs_of_what_was_written_in_part_stay_in_the_cache_below() {
        // Blocks that were written in part of so many, of a file or of as many files.
        let cached = |parts: u64, all: u64, files: u64| {
            let (device, mut v) = fresh(256 << 20, 2048);
            let inos: Vec<Ino> = (0..files).map(|_| file(&mut v)).collect();
            for key in 0..all {
                let block = Block::from(vec![7; 4096]);
                let block = if key < parts { block.to_be_read() } else { block };
                v.write_block(inos[(key % files) as usize], key / files, block).unwrap();
            }
            let counted = Cached(device, AtomicU64::new(0));
            assert!(v.begin_checkpoint(3000).unwrap());
            write_out(&counted, &mut v);
            counted.1.into_inner()
        };
        assert!(cached(1000, 1000, 1) >= 1000 * 4096 && cached(600, 1000, 1) >= 1000 * 4096);
        assert_eq!((cached(400, 1000, 1), cached(100, 100, 1), cached(1000, 1000, 1000)), (0, 0, 0));
    }
}
