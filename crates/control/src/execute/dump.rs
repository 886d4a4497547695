//! What the logs of a segment hold (spec 13.3), read from the device.
//!
//! The daemon may be writing to the segment: a log counts as there when its summary's checksum is
//! right, and a segment ends at the first place where there is none.

use silt_device::Device;
use silt_format::summary::{self, BlockInfo, Header, Payload};
use silt_format::{BlockNr, Geometry, SegNr};

use super::checkpoints::check_list;
use super::{BATCH, Out};
use crate::host::{Host, with};
use crate::named::LISTS_SEGMENTS;
use crate::response::DumpItem;
use crate::{ControlError, Kind, Response, Result};

/// Largest summary that is read into memory, in bytes. Ours have one of some 20 bytes a block.
const MAX_SUMMARY: u64 = 64 << 20;

/// Dumps segments in the order given.
pub fn dump(host: &dyn Host, segments: &[u64], out: Out<'_>) -> Result<()> {
    check_list(segments)?;
    let geometry = with(host, |v| *v.geometry())?;
    for &number in segments {
        if number >= geometry.nsegments {
            let last = geometry.nsegments.saturating_sub(1);
            let message = format!("there is no segment {number} (the last is {last})");
            let error = ControlError::new(Kind::NotFound, message).hint(LISTS_SEGMENTS);
            out(Response::Refused { number, error })?;
            continue;
        }
        // A clean segment still holds what it held before it was reclaimed.
        let info = with(host, |v| v.segment_info(SegNr(number)))??;
        let written = if info.blocks > 0 { info.blocks } else { geometry.blocks_per_segment };
        let device = host.device();
        let mut dump = Dump { g: &geometry, device: &*device, batch: Vec::new(), out: &mut *out };
        dump.segment(SegNr(number), u64::from(written))?;
        dump.send()?;
    }
    Ok(())
}

struct Dump<'a> {
    g: &'a Geometry,
    device: &'a dyn Device,
    batch: Vec<DumpItem>,
    out: Out<'a>,
}

impl Dump<'_> {
    fn put(&mut self, item: DumpItem) -> Result<()> {
        self.batch.push(item);
        if self.batch.len() >= BATCH { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        (self.out)(Response::Dump(std::mem::take(&mut self.batch)))
    }

    fn segment(&mut self, segment: SegNr, written: u64) -> Result<()> {
        let start = self.g.segment_start(segment).0;
        let end = start.saturating_add(written.min(self.g.segment_blocks(segment)));
        let mut at = start;
        let mut sequence = None;
        while end.saturating_sub(at) >= 2 {
            let Some((header, bytes)) = self.log(at, end)? else { break };
            match sequence {
                None => {
                    self.put(DumpItem::Segment {
                        number: segment.0,
                        sequence: Some(header.seq.get()),
                        next: Some(self.g.segment_of(BlockNr(header.next.get())).0),
                    })?;
                    sequence = Some(header.seq.get());
                }
                // What an earlier use of the segment left behind.
                Some(seq) if seq != header.seq.get() => break,
                Some(_) => {}
            }
            self.records(at, &header, &bytes)?;
            at = at.saturating_add(u64::from(header.nblocks.get()));
        }
        if sequence.is_none() {
            self.put(DumpItem::Segment { number: segment.0, sequence: None, next: None })?;
        }
        Ok(())
    }

    /// The log at a block, with its whole summary; none where there is no valid one.
    fn log(&self, at: u64, end: u64) -> Result<Option<(Header, Vec<u8>)>> {
        let byte = self.g.byte_of(BlockNr(at));
        let mut first = vec![0; self.g.bs()];
        self.device.read_at(byte, &mut first)?;
        let Ok(header) = Header::parse(self.g, &first) else { return Ok(None) };
        let blocks = u64::from(header.summary_blocks(self.g));
        let size = blocks.saturating_mul(self.g.bs() as u64);
        if at.saturating_add(u64::from(header.nblocks.get())) > end || size > MAX_SUMMARY {
            return Ok(None);
        }
        let mut bytes = first;
        if blocks > 1 {
            bytes.resize(usize::try_from(size).unwrap_or(0), 0);
            self.device.read_at(byte, &mut bytes)?;
        }
        let whole = summary::summary_sum_matches(self.g.crc_seed, &header, &bytes);
        Ok(whole.then_some((header, bytes)))
    }

    fn records(&mut self, at: u64, header: &Header, bytes: &[u8]) -> Result<()> {
        self.put(DumpItem::Log {
            block: at,
            blocks: header.nblocks.get(),
            created: header.create.get(),
            files: header.nfinfo.get(),
        })?;
        let mut payload: Vec<Payload> = Vec::new();
        summary::for_each_payload(self.g, header, bytes, |p| payload.push(p))
            .map_err(|e| ControlError::new(Kind::Corrupt, format!("log at block {at}: {e}")))?;
        let first = at.saturating_add(u64::from(header.summary_blocks(self.g)));
        // Two records of one file in a row, as a cleaner may write them, show as one.
        for file in payload.chunk_by(|a, b| (a.ino, a.cno) == (b.ino, b.cno)) {
            let Some(head) = file.first() else { continue };
            let data = file.iter().filter(|p| p.info.is_data()).count();
            self.put(DumpItem::File {
                inode: head.ino.0,
                checkpoint: head.cno.0,
                blocks: u32::try_from(file.len()).unwrap_or(u32::MAX),
                data_blocks: u32::try_from(data).unwrap_or(u32::MAX),
            })?;
            for p in file {
                let block = first.saturating_add(u64::from(p.index));
                let (virtual_block, offset, level) = match p.info {
                    BlockInfo::Data { vblock, offset } => (Some(vblock.0), Some(offset), None),
                    BlockInfo::Node { vblock } => (Some(vblock.0), None, None),
                    BlockInfo::DatData { offset } => (None, Some(offset), None),
                    BlockInfo::DatNode { key, level } => (None, Some(key), Some(level)),
                };
                self.put(DumpItem::Block { virtual_block, offset, level, block })?;
            }
        }
        Ok(())
    }
}
