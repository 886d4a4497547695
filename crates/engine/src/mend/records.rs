//! What the logs say of their blocks, whatever the segment usage file says of the segments.

use std::ops::Range;

use hashbrown::HashMap;
use silt_device::Device;
use silt_format::dat::DatEntry;
use silt_format::summary::{self, BlockInfo, Header, Payload};
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use super::bits::Bits;
use super::start::sound;
use crate::search::MAX_SUMMARY;
use crate::volume::Volume;

/// A log in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    pub at: u64,
    pub header: Header,
}

impl Log {
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.header.nblocks.get())
    }
}

/// The newest record of a virtual block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub at: u64,
    pub seq: u64,
    pub ino: Ino,
    /// `None` for a node.
    pub offset: Option<u64>,
    /// `fi_cno`.
    pub cno: u64,
    /// Checkpoint of the log.
    pub log_cno: u64,
}

/// Calls `f` for the logs of a segment from its first block on, as long as they are sound and of one sequence
/// number, within its first `limit` blocks. `f` is given the log and its summary blocks.
pub(crate) fn logs_of(
    device: &dyn Device,
    g: &Geometry,
    segment: SegNr,
    limit: u64,
    mut f: impl FnMut(&Log, &[u8]),
) {
    let start = g.segment_start(segment).0;
    let end = start + limit.min(g.segment_blocks(segment));
    let mut at = start;
    let mut seq = None;
    while end.saturating_sub(at) >= 2 {
        let mut bytes = vec![0; g.bs()];
        if device.read_at(g.byte_of(BlockNr(at)), &mut bytes).is_err() {
            return;
        }
        let Ok(header) = Header::parse(g, &bytes) else { return };
        let log = Log { at, header };
        let size = u64::from(header.summary_blocks(g)) << g.block_bits;
        if *seq.get_or_insert(header.seq.get()) != header.seq.get()
            || log.end() > end
            || size > MAX_SUMMARY as u64
        {
            return;
        }
        if size > bytes.len() as u64 {
            bytes.resize(usize::try_from(size).unwrap_or(0), 0);
            if device.read_at(g.byte_of(BlockNr(at)), &mut bytes).is_err() {
                return;
            }
        }
        if !summary::summary_sum_matches(g.crc_seed, &header, &bytes) {
            return;
        }
        f(&log, &bytes);
        at = log.end();
    }
}

/// The blocks of all logs of a segment of which the summary is sound, whatever lies between them.
pub(super) fn logs_in(device: &dyn Device, g: &Geometry, segment: SegNr) -> Vec<Range<u64>> {
    let (mut at, end) = (g.segment_start(segment).0, g.segment_end(segment).0);
    let mut all = Vec::new();
    while at < end {
        let Some(h) = sound(device, g, BlockNr(at), end) else {
            at += 1;
            continue;
        };
        let behind = at.saturating_add(h.nblocks.get().into());
        all.push(at..behind);
        at = behind;
    }
    all
}

impl Volume {
    /// How many blocks of a segment may hold logs that count.
    pub(crate) fn log_limit(&self, segment: SegNr, end_of_log: (SegNr, u64)) -> u64 {
        if segment == end_of_log.0 { end_of_log.1 } else { u64::MAX }
    }

    /// Calls `f` for every block record of every log that counts: up to the newest super root.
    pub(crate) fn each_record(&self, end_of_log: (SegNr, u64), mut f: impl FnMut(&Log, &Payload, u64)) {
        let g = self.store.geometry;
        for s in (0..g.nsegments).map(SegNr) {
            logs_of(&*self.store.device, &g, s, self.log_limit(s, end_of_log), |log, bytes| {
                // Left by a crash, or by a recovery that was cut off.
                if log.header.seq.get().wrapping_sub(self.last.seq).cast_signed() > 0 {
                    return;
                }
                let first = log.at + u64::from(log.header.summary_blocks(&g));
                let _ = summary::for_each_payload(&g, &log.header, bytes, |p| {
                    f(log, &p, first + u64::from(p.index));
                });
            });
        }
    }

    /// The newest records of `wanted` virtual blocks.
    pub(crate) fn records_of(&self, wanted: &Bits, end_of_log: (SegNr, u64)) -> HashMap<u64, Record> {
        let mut found: HashMap<u64, Record> = HashMap::new();
        self.each_record(end_of_log, |log, p, at| {
            let (v, offset) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock.0, Some(offset)),
                BlockInfo::Node { vblock } => (vblock.0, None),
                _ => return,
            };
            let h = &log.header;
            let new = Record { at, seq: h.seq.get(), ino: p.ino, offset, cno: p.cno.0, log_cno: h.cno.get() };
            if wanted.contains(v) && found.get(&v).is_none_or(|r| (r.seq, r.at) <= (new.seq, at)) {
                found.insert(v, new);
            }
        });
        found
    }

    /// Of blocks of data with these records, the checkpoint at which the next block was written in their place: they lived no
    /// longer, unless the tree was rolled back since. Blocks that the table does not have where the logs say do not count: a
    /// crash left those. Those of the checkpoint file and the segment usage file do not say when they begin. Memory: some 100
    /// bytes a place, and 8 for each checkpoint that wrote there.
    pub(crate) fn next_written(
        &self,
        records: &HashMap<u64, Record>,
        end_of_log: (SegNr, u64),
    ) -> HashMap<u64, u64> {
        let mut written: HashMap<(Ino, u64), Vec<u64>> = HashMap::new();
        for r in records.values().filter(|r| r.cno != 0) {
            written.extend(r.offset.map(|offset| ((r.ino, offset), Vec::new())));
        }
        if written.is_empty() {
            return HashMap::new();
        }
        self.each_record(end_of_log, |_, p, at| {
            let BlockInfo::Data { offset, vblock } = p.info else { return };
            let Some(all) = written.get_mut(&(p.ino, offset)) else { return };
            let is_there = |e: DatEntry| e.blocknr.get() == at && e.start.get() == p.cno.0;
            if (1..=self.last.cno).contains(&p.cno.0)
                && all.last() != Some(&p.cno.0)
                && self.dat.entry(&self.store, vblock).is_ok_and(is_there)
            {
                all.push(p.cno.0);
            }
        });
        written.values_mut().for_each(|all| all.sort_unstable());
        let next = |r: &Record| {
            let all = written.get(&(r.ino, r.offset?))?;
            all.get(all.partition_point(|cno| *cno <= r.cno)).copied()
        };
        records.iter().filter_map(|(v, r)| Some((*v, next(r)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fresh::fresh;
    use crate::{Attr, Tree};

    /// Each version of a block lived until the next one of the same place, the newest has none behind it, and nor has what
    /// was written once.
    #[test]
    fn a_block_lives_no_longer_than_until_the_next_in_its_place() {
        let (_, mut v) = fresh(16 << 20, 64);
        let root = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
        let ino = v.create_inode(Attr { mode: 0o100_644, links: 1, ..root }).unwrap();
        let bs = v.geometry().bs();
        let mut cnos = Vec::new();
        for version in 0..4u8 {
            for key in [0].into_iter().chain((version == 0).then_some(1)) {
                v.write_block(ino, key, vec![version; bs].into()).unwrap();
            }
            cnos.push(v.checkpoint(3000).unwrap().0);
        }
        let end = (v.cursor.segment, u64::MAX);
        let (mut all, mut versions) = (Bits::default(), Vec::new());
        v.each_record(end, |_, p, _| {
            if let (true, BlockInfo::Data { vblock, offset }) = (p.ino == ino, p.info) {
                all.insert(vblock.0);
                versions.push((offset, p.cno.0, vblock.0));
            }
        });
        versions.sort_unstable();
        let starts: Vec<_> = versions.iter().map(|(offset, cno, _)| (*offset, *cno)).collect();
        assert_eq!(starts, [(0, cnos[0]), (0, cnos[1]), (0, cnos[2]), (0, cnos[3]), (1, cnos[0])]);
        let records = v.records_of(&all, end);
        let next = v.next_written(&records, end);
        let ends: Vec<_> = versions.iter().map(|(.., v)| next.get(v).copied()).collect();
        assert_eq!(ends, [Some(cnos[1]), Some(cnos[2]), Some(cnos[3]), None, None]);
    }
}
