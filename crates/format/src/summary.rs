//! The summary at the head of every log: header, file records, block records (spec 3.3, 3.4).
//!
//! ```text
//! header(64) | finfo(24) binfo* | finfo(24) binfo* | ... zero padding to whole blocks
//! ```
//!
//! No record is split across a block boundary; [`place`] is the one rule that reader and writer
//! share.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BlockNr, Cno, Error, Geometry, Ino, LogSeq, Result, VBlockNr, crc32};

/// `ss_magic`.
pub const MAGIC: u32 = 0x1EAF_FA11;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 64;
/// Bytes of a file record.
pub const FINFO_SIZE: usize = 24;

/// `ss_flags`: first log of a logical segment.
pub const LOGBGN: u16 = 1;
/// `ss_flags`: last log of a logical segment.
pub const LOGEND: u16 = 2;
/// `ss_flags`: ends with a super root.
pub const SR: u16 = 4;
/// `ss_flags`: data-sync log.
pub const SYNDT: u16 = 8;
/// `ss_flags`: written for the cleaner.
pub const GC: u16 = 0x10;

/// The header of a log.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    pub datasum: U32,
    pub sumsum: U32,
    pub magic: U32,
    pub bytes: U16,
    pub flags: U16,
    pub seq: U64,
    pub create: U64,
    pub next: U64,
    pub nblocks: U32,
    pub nfinfo: U32,
    pub sumbytes: U32,
    pub pad: U32,
    pub cno: U64,
}

impl Header {
    /// A header with every byte zero.
    pub fn zeroed() -> Self {
        <Self as FromZeros>::new_zeroed()
    }

    /// Parses the header at the start of a log and checks every number in it that can be checked
    /// without the rest of the log (spec 4.1); checksums are not looked at.
    pub fn parse(g: &Geometry, block: &[u8]) -> Result<Self> {
        const WHAT: &str = "segment summary";
        let (h, _) = Header::read_from_prefix(block).map_err(|_| Error::corrupt(WHAT, "short block"))?;
        if h.magic.get() != MAGIC {
            return Err(Error::corrupt(WHAT, "no log here"));
        }
        let bytes = usize::from(h.bytes.get());
        if bytes < HEADER_SIZE || bytes % 8 != 0 || bytes > g.bs() {
            return Err(Error::corrupt(WHAT, format!("header of {bytes} bytes")));
        }
        if h.nblocks.get() == 0 || h.nblocks.get() > g.blocks_per_segment {
            return Err(Error::corrupt(WHAT, format!("log of {} blocks", h.nblocks)));
        }
        if (h.sumbytes.get() as usize) < bytes {
            return Err(Error::corrupt(WHAT, format!("summary of {} bytes", h.sumbytes)));
        }
        if h.summary_blocks(g) >= h.nblocks.get() {
            return Err(Error::corrupt(WHAT, "summary fills the whole log"));
        }
        Ok(h)
    }

    /// Whether the next segment that it names is one of the volume's. Of an old log it need not be: that segment may have
    /// been cut off since (spec section 15). Who follows logs asks first.
    pub fn leads_on(&self, g: &Geometry) -> bool {
        g.segment_of(BlockNr(self.next.get())).0 < g.nsegments
    }

    /// Blocks the summary takes.
    pub fn summary_blocks(&self, g: &Geometry) -> u32 {
        self.sumbytes.get().div_ceil(g.block_size)
    }

    /// Sequence number.
    pub fn seq(&self) -> LogSeq {
        LogSeq(self.seq.get())
    }

    /// Whether a flag bit is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }
}

/// Where a record of `size` bytes goes when the one before ended at `pos`: (its place, its end).
pub fn place(block_size: usize, pos: usize, size: usize) -> (usize, usize) {
    let left = block_size - pos % block_size;
    let at = if size > left { pos + left } else { pos };
    (at, at + size)
}

/// What a log says of one payload block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockInfo {
    /// Data block of any file but the DAT.
    Data { vblock: VBlockNr, offset: u64 },
    /// B-tree node of any file but the DAT.
    Node { vblock: VBlockNr },
    /// Data block of the DAT.
    DatData { offset: u64 },
    /// B-tree node of the DAT: its first key and level.
    DatNode { key: u64, level: u8 },
}

impl BlockInfo {
    /// Bytes of the record.
    pub fn size(&self) -> usize {
        match self {
            BlockInfo::Data { .. } | BlockInfo::DatNode { .. } => 16,
            BlockInfo::Node { .. } | BlockInfo::DatData { .. } => 8,
        }
    }

    /// Whether the block is data (as opposed to a node).
    pub fn is_data(&self) -> bool {
        matches!(self, BlockInfo::Data { .. } | BlockInfo::DatData { .. })
    }

    fn store(&self, to: &mut [u8]) {
        let (a, b) = match *self {
            BlockInfo::Data { vblock, offset } => (vblock.0, offset),
            BlockInfo::Node { vblock } => (vblock.0, 0),
            BlockInfo::DatData { offset } => (offset, 0),
            BlockInfo::DatNode { key, level } => (key, u64::from(level)),
        };
        to[..8].copy_from_slice(&a.to_le_bytes());
        if to.len() == 16 {
            to[8..].copy_from_slice(&b.to_le_bytes());
        }
    }
}

/// One payload block of a log, as its summary describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    pub ino: Ino,
    /// `fi_cno` of its file record.
    pub cno: Cno,
    pub info: BlockInfo,
    /// Index in the payload, from 0.
    pub index: u32,
}

/// Walks the records of a summary. `summary` must hold `summary_blocks` whole blocks. Calls `f`
/// for every payload block in order; every bound is checked.
pub fn for_each_payload(
    g: &Geometry,
    header: &Header,
    summary: &[u8],
    mut f: impl FnMut(Payload),
) -> Result<()> {
    const WHAT: &str = "segment summary";
    let bs = g.bs();
    let end = header.sumbytes.get() as usize;
    if end > summary.len() {
        return Err(Error::corrupt(WHAT, "summary is cut short"));
    }
    let payload_blocks =
        header.nblocks.get() - header.summary_blocks(g) - u32::from(header.has(SR)).min(header.nblocks.get());
    let mut pos = usize::from(header.bytes.get());
    let mut index = 0u32;
    let mut take = |size: usize| -> Result<usize> {
        let (at, next) = place(bs, pos, size);
        if next > end {
            return Err(Error::corrupt(WHAT, "records run past its end"));
        }
        pos = next;
        Ok(at)
    };
    let rd64 = |at: usize| -> u64 {
        match summary.get(at..at + 8).and_then(|s| s.try_into().ok()) {
            Some(a) => u64::from_le_bytes(a),
            None => 0,
        }
    };
    for _ in 0..header.nfinfo.get() {
        let at = take(FINFO_SIZE)?;
        let (ino, cno) = (Ino(rd64(at)), Cno(rd64(at + 8)));
        let counts = rd64(at + 16);
        let nblocks = (counts & 0xffff_ffff) as u32;
        let ndata = (counts >> 32) as u32;
        if ndata > nblocks || nblocks > payload_blocks - index {
            return Err(Error::corrupt(WHAT, format!("file record of {nblocks} blocks, {ndata} of data")));
        }
        for i in 0..nblocks {
            let info = match (ino == Ino::DAT, i < ndata) {
                (false, true) => {
                    let at = take(16)?;
                    BlockInfo::Data { vblock: VBlockNr(rd64(at)), offset: rd64(at + 8) }
                }
                (false, false) => BlockInfo::Node { vblock: VBlockNr(rd64(take(8)?)) },
                (true, true) => BlockInfo::DatData { offset: rd64(take(8)?) },
                (true, false) => {
                    let at = take(16)?;
                    BlockInfo::DatNode { key: rd64(at), level: (rd64(at + 8) & 0xff) as u8 }
                }
            };
            f(Payload { ino, cno, info, index });
            index += 1;
        }
    }
    Ok(())
}

/// Composes a summary record by record.
#[derive(Debug, Clone)]
pub struct Builder {
    bs: usize,
    bytes: Vec<u8>,
    pos: usize,
    nfinfo: u32,
    /// Place of the open file record and its counts so far.
    open: Option<(usize, u32, u32)>,
}

impl Builder {
    /// An empty summary for blocks of `block_size` bytes.
    pub fn new(block_size: usize) -> Self {
        Builder { bs: block_size, bytes: vec![0; block_size], pos: HEADER_SIZE, nfinfo: 0, open: None }
    }

    /// Blocks the summary takes now.
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.pos.div_ceil(self.bs)).unwrap_or(u32::MAX)
    }

    /// Blocks it would take with one more block record of `size` bytes, with a new file record
    /// before it if `new_file`.
    pub fn blocks_with(&self, new_file: bool, size: usize) -> u32 {
        let pos = if new_file { place(self.bs, self.pos, FINFO_SIZE).1 } else { self.pos };
        u32::try_from(place(self.bs, pos, size).1.div_ceil(self.bs)).unwrap_or(u32::MAX)
    }

    fn put(&mut self, size: usize) -> usize {
        let (at, next) = place(self.bs, self.pos, size);
        let need = next.div_ceil(self.bs) * self.bs;
        if need > self.bytes.len() {
            self.bytes.resize(need, 0);
        }
        self.pos = next;
        at
    }

    /// Opens a file record; the one before is closed.
    pub fn begin_file(&mut self, ino: Ino, cno: Cno) {
        self.end_file();
        let at = self.put(FINFO_SIZE);
        self.bytes[at..at + 8].copy_from_slice(&ino.0.to_le_bytes());
        self.bytes[at + 8..at + 16].copy_from_slice(&cno.0.to_le_bytes());
        self.nfinfo += 1;
        self.open = Some((at, 0, 0));
    }

    /// Adds a block record to the open file record.
    pub fn add(&mut self, info: &BlockInfo) {
        let at = self.put(info.size());
        info.store(&mut self.bytes[at..at + info.size()]);
        if let Some((_, nblocks, ndata)) = &mut self.open {
            *nblocks += 1;
            *ndata += u32::from(info.is_data());
        }
    }

    /// Closes the open file record.
    pub fn end_file(&mut self) {
        if let Some((at, nblocks, ndata)) = self.open.take() {
            self.bytes[at + 16..at + 20].copy_from_slice(&nblocks.to_le_bytes());
            self.bytes[at + 20..at + 24].copy_from_slice(&ndata.to_le_bytes());
        }
    }

    /// Whole blocks of the finished summary with the header in place; `header`'s `nfinfo`,
    /// `sumbytes`, `bytes` and `magic` are filled in, checksums are not.
    pub fn finish(mut self, mut header: Header) -> Vec<u8> {
        self.end_file();
        header.magic = MAGIC.into();
        header.bytes = U16::new(HEADER_SIZE as u16);
        header.nfinfo = self.nfinfo.into();
        header.sumbytes = u32::try_from(self.pos).unwrap_or(u32::MAX).into();
        self.bytes.truncate(self.pos.div_ceil(self.bs) * self.bs);
        self.bytes[..HEADER_SIZE].copy_from_slice(header.as_bytes());
        self.bytes
    }
}

/// Sets `ss_sumsum` in a finished summary (spec 3.5, step 2).
pub fn store_summary_sum(seed: u32, summary: &mut [u8], sumbytes: usize) {
    let sum = crc32(seed, &summary[8..sumbytes]);
    summary[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Whether `ss_sumsum` matches; `summary` holds at least `sumbytes` bytes.
pub fn summary_sum_matches(seed: u32, header: &Header, summary: &[u8]) -> bool {
    summary
        .get(8..header.sumbytes.get() as usize)
        .is_some_and(|bytes| crc32(seed, bytes) == header.sumsum.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(bits: u32) -> Geometry {
        Geometry {
            block_size: 1 << bits,
            block_bits: bits,
            blocks_per_segment: 2048,
            nsegments: 8,
            first_data_block: 1,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
            crc_seed: 7,
            first_ino: 11,
            reserved_percent: 5,
        }
    }

    #[test]
    fn the_specifications_example_is_0x130_bytes() {
        let mut b = Builder::new(4096);
        let data = |v, offset| BlockInfo::Data { vblock: VBlockNr(v), offset };
        let files: [(u64, Vec<BlockInfo>); 5] = [
            (2, vec![data(1, 0)]),
            (6, vec![data(2, 0), data(3, 1), data(4, 2)]),
            (4, vec![data(5, 0)]),
            (5, vec![data(6, 0)]),
            (3, (0..3).map(|offset| BlockInfo::DatData { offset }).collect()),
        ];
        for (ino, blocks) in &files {
            b.begin_file(Ino(*ino), Cno(1));
            blocks.iter().for_each(|i| b.add(i));
        }
        let bytes = b.finish(Header::zeroed());
        let h = Header::read_from_prefix(&bytes).unwrap().0;
        assert_eq!((h.sumbytes.get(), h.nfinfo.get(), bytes.len()), (0x130, 5, 4096));
    }

    fn info(dat: bool) -> impl Strategy<Value = BlockInfo> {
        let any_data = (any::<u64>(), any::<u64>());
        if dat {
            prop_oneof![
                any::<u64>().prop_map(|offset| BlockInfo::DatData { offset }),
                (any::<u64>(), any::<u8>()).prop_map(|(key, level)| BlockInfo::DatNode { key, level }),
            ]
            .boxed()
        } else {
            prop_oneof![
                any_data.prop_map(|(v, offset)| BlockInfo::Data { vblock: VBlockNr(v), offset }),
                any::<u64>().prop_map(|v| BlockInfo::Node { vblock: VBlockNr(v) }),
            ]
            .boxed()
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            bits in 10u32..13,
            files in prop::collection::vec(any::<bool>().prop_flat_map(|dat| {
                (Just(dat), any::<u64>(), prop::collection::vec(info(dat), 1..80))
            }), 0..20),
        ) {
            let g = geometry(bits);
            let mut b = Builder::new(g.bs());
            let mut expected = Vec::new();
            for (dat, cno, blocks) in &files {
                let ino = if *dat { Ino::DAT } else { Ino(77) };
                let mut blocks = blocks.clone();
                blocks.sort_by_key(|i| !i.is_data());
                b.begin_file(ino, Cno(*cno));
                for i in blocks {
                    let predicted = b.blocks_with(false, i.size());
                    b.add(&i);
                    prop_assert_eq!(predicted, b.blocks());
                    expected.push((ino, Cno(*cno), i));
                }
            }
            let summary_blocks = b.blocks();
            let mut h = Header::zeroed();
            h.nblocks = (summary_blocks + expected.len() as u32 + 1).into();
            h.flags = SR.into();
            h.next = 2048.into();
            let mut bytes = b.finish(h);
            let n = Header::read_from_prefix(&bytes).unwrap().0.sumbytes.get() as usize;
            store_summary_sum(7, &mut bytes, n);
            if expected.len() + (summary_blocks as usize) < 2048 {
                let h = Header::parse(&g, &bytes).unwrap();
                prop_assert!(summary_sum_matches(7, &h, &bytes));
                let mut got = Vec::new();
                for_each_payload(&g, &h, &bytes, |p| got.push((p.ino, p.cno, p.info))).unwrap();
                prop_assert_eq!(got, expected);
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 2048), n in 0u32..4096) {
            let g = geometry(10);
            bytes[8..12].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[12..14].copy_from_slice(&64u16.to_le_bytes());
            bytes[40..44].copy_from_slice(&(n % 2049).to_le_bytes());
            bytes[44..48].copy_from_slice(&(n % 97).to_le_bytes());
            bytes[48..52].copy_from_slice(&(64 + n % 2100).to_le_bytes());
            bytes[32..40].copy_from_slice(&0u64.to_le_bytes());
            if let Ok(h) = Header::parse(&g, &bytes) {
                let _ = for_each_payload(&g, &h, &bytes, |_| {});
            }
        }
    }
}
