//! What the summaries of all logs say of the blocks behind them: where versions of a block may lie when the tables
//! that should tell it are lost.
//!
//! ```text
//! by place:            log, index in it | owner, virtual number, offset, fi_cno      40 bytes a described block
//! by virtual number:   index into that                                               4 bytes
//! by owner and offset: index into that                                               4 bytes
//! ```
//!
//! Only logs in use whose summary verifies are taken ([`Survey`]); what their payload is worth is told by
//! [`Candidate::whole`]. "Newest first" is by the order in which logs were written, not by checkpoint: a moved block
//! keeps its `fi_cno`.
//!
//! Memory: 48 bytes a block that logs describe; a volume of 100 GiB full of logs takes 1.2 GiB with blocks of 4 KiB.

use std::cmp::Reverse;
use std::ops::Range;

use silt_device::Device;
use silt_format::summary::{self, BlockInfo, Header};
use silt_format::{BlockNr, Geometry, Ino};

use super::survey::{LogRecord, Survey};
use crate::Watch;

/// What a described block is to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Data at a block offset of the file.
    Data { offset: u64 },
    /// A node of the map. Where a log tells (only the DAT's does): first key and level.
    Node { first: Option<(u64, u8)> },
}

/// A place where a version of a block may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Disk block.
    pub block: u64,
    /// Virtual block number; 0 for blocks of the DAT, which have none.
    pub vblock: u64,
    /// Owner.
    pub ino: u64,
    pub role: Role,
    /// `fi_cno`: the checkpoint that wrote this version first; 0 for DAT, cpfile and sufile.
    pub cno: u64,
    /// Order of its log: (sequence number, first block).
    pub order: (u64, u64),
    /// Whether the checksum of its log matches.
    pub whole: bool,
}

impl Candidate {
    /// Offset of a data block.
    pub fn offset(&self) -> Option<u64> {
        match self.role {
            Role::Data { offset } => Some(offset),
            Role::Node { .. } => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Rec {
    vblock: u64,
    ino: u64,
    /// Offset of data, first key of a node of the DAT.
    key: u64,
    cno: u64,
    log: u32,
    /// Index in the payload (below 2^27 as logs are smaller), and above it 5 bits: [`DATA`] or level.
    packed: u32,
}

const DATA: u32 = 31;
const INDEX_BITS: u32 = 27;
/// Summaries of more bytes than this are not taken.
const SUMMARY_LIMIT: u64 = 256 << 20;

/// Reads the summary of a surveyed log anew; `None` where it is too great, cannot be read or does not verify.
pub(super) fn summary_of(device: &dyn Device, g: &Geometry, log: &LogRecord) -> Option<(Header, Vec<u8>)> {
    let bytes = u64::from(log.summary_blocks) << g.block_bits;
    if bytes > SUMMARY_LIMIT {
        return None;
    }
    let mut summary = vec![0; usize::try_from(bytes).ok()?];
    device.read_at(g.byte_of(BlockNr(log.pos)), &mut summary).ok()?;
    let h = Header::parse(g, &summary).ok()?;
    summary::summary_sum_matches(g.crc_seed, &h, &summary).then_some((h, summary))
}

/// The index. Built from a survey; does not keep the device.
pub struct Records {
    logs: Vec<LogRecord>,
    recs: Vec<Rec>,
    by_vblock: Vec<u32>,
    by_owner: Vec<u32>,
    /// Logs whose summary verified but could not be used (unreadable now, or its records make no sense).
    pub left_out: u64,
}

impl Records {
    /// Reads the summaries of all logs in use; `watch` is told in logs.
    pub fn build(device: &dyn Device, g: &Geometry, survey: &Survey, watch: &dyn Watch) -> Records {
        watch.stage("reading summaries", survey.logs.len() as u64);
        let mut out = Records {
            logs: survey.logs.clone(),
            recs: Vec::new(),
            by_vblock: Vec::new(),
            by_owner: Vec::new(),
            left_out: 0,
        };
        for (i, log) in survey.logs.iter().enumerate() {
            if watch.stop() {
                break;
            }
            if !log.stale && !out.take(device, g, i, log) {
                out.left_out += 1;
            }
            watch.done(1);
        }
        let n = u32::try_from(out.recs.len()).unwrap_or(u32::MAX);
        let (recs, logs) = (&out.recs, &out.logs);
        let age = |r: &Rec| Reverse((logs.get(r.log as usize).map(LogRecord::order), r.packed));
        let mut by_vblock: Vec<u32> = (0..n).filter(|i| recs[*i as usize].vblock != 0).collect();
        by_vblock.sort_unstable_by_key(|i| (recs[*i as usize].vblock, age(&recs[*i as usize])));
        let mut by_owner: Vec<u32> = (0..n).collect();
        by_owner.sort_unstable_by_key(|i| {
            let r = &recs[*i as usize];
            (r.ino, !is_data(r), r.key, age(r))
        });
        out.by_vblock = by_vblock;
        out.by_owner = by_owner;
        out
    }

    /// Adds the records of a log; false if they cannot be used.
    fn take(&mut self, device: &dyn Device, g: &Geometry, number: usize, log: &LogRecord) -> bool {
        let Ok(number) = u32::try_from(number) else { return false };
        if log.nblocks >= 1 << INDEX_BITS {
            return false;
        }
        let Some((h, summary)) = summary_of(device, g, log) else { return false };
        let before = self.recs.len();
        let recs = &mut self.recs;
        let walked = summary::for_each_payload(g, &h, &summary, |p| {
            let (vblock, key, kind) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock.0, offset, DATA),
                BlockInfo::Node { vblock } => (vblock.0, 0, 0),
                BlockInfo::DatData { offset } => (0, offset, DATA),
                BlockInfo::DatNode { key, level } => (0, key, u32::from(level).min(DATA - 1)),
            };
            // Beyond what an index of 32 bits reaches nothing is taken: 16 TiB of blocks of 4 KiB.
            if recs.len() < u32::MAX as usize {
                let packed = p.index | kind << INDEX_BITS;
                recs.push(Rec { vblock, ino: p.ino.0, key, cno: p.cno.0, log: number, packed });
            }
        });
        if walked.is_err() {
            self.recs.truncate(before);
        }
        walked.is_ok()
    }

    fn candidate(&self, r: &Rec) -> Candidate {
        let log = self.logs.get(r.log as usize);
        let index = u64::from(r.packed & ((1 << INDEX_BITS) - 1));
        let role = if is_data(r) {
            Role::Data { offset: r.key }
        } else {
            let level = u8::try_from(r.packed >> INDEX_BITS).unwrap_or(0);
            Role::Node { first: (r.ino == Ino::DAT.0).then_some((r.key, level)) }
        };
        Candidate {
            block: log.map_or(0, |l| l.payload().saturating_add(index)),
            vblock: r.vblock,
            ino: r.ino,
            role,
            cno: r.cno,
            order: log.map_or((0, 0), LogRecord::order),
            whole: log.is_some_and(|l| l.whole),
        }
    }

    fn run<'a>(&'a self, ids: &'a [u32]) -> impl Iterator<Item = Candidate> + 'a {
        ids.iter().filter_map(|i| self.recs.get(*i as usize)).map(|r| self.candidate(r))
    }

    /// Number of blocks that are described.
    pub fn len(&self) -> usize {
        self.recs.len()
    }

    /// Whether no block is described.
    pub fn is_empty(&self) -> bool {
        self.recs.is_empty()
    }

    /// Places that were written for a virtual block, newest first. A number may have been used again: ask for the
    /// owner, too.
    pub fn places_of(&self, vblock: u64) -> impl Iterator<Item = Candidate> + '_ {
        let key = |i: &u32| self.recs.get(*i as usize).map_or(0, |r| r.vblock);
        let from = self.by_vblock.partition_point(|i| key(i) < vblock);
        let to = self.by_vblock.partition_point(|i| key(i) <= vblock);
        self.run(self.by_vblock.get(from..to).unwrap_or_default())
    }

    fn owned(&self, ino: u64, data: bool, keys: Range<u64>) -> &[u32] {
        let key = |i: &u32| self.recs.get(*i as usize).map_or((0, false, 0), |r| (r.ino, !is_data(r), r.key));
        let from = self.by_owner.partition_point(|i| key(i) < (ino, !data, keys.start));
        let to = self.by_owner.partition_point(|i| key(i) < (ino, !data, keys.end));
        self.by_owner.get(from..to.max(from)).unwrap_or_default()
    }

    /// Data blocks of a file with offsets in a range: ascending, the versions of each newest first; only what
    /// checkpoints up to `up_to_cno` wrote. For DAT, cpfile and sufile `fi_cno` is 0 (in the first log of mkfs 1).
    pub fn blocks_of(
        &self,
        ino: u64,
        offsets: Range<u64>,
        up_to_cno: u64,
    ) -> impl Iterator<Item = Candidate> + '_ {
        self.run(self.owned(ino, true, offsets)).filter(move |c| c.cno <= up_to_cno)
    }

    /// Node blocks of a file's map that checkpoints up to `up_to_cno` wrote, newest first.
    pub fn nodes_of(&self, ino: u64, up_to_cno: u64) -> impl Iterator<Item = Candidate> + '_ {
        self.run(self.owned(ino, false, 0..u64::MAX)).filter(move |c| c.cno <= up_to_cno)
    }

    /// Versions of a data block of the DAT, newest first.
    pub fn dat_block(&self, offset: u64) -> impl Iterator<Item = Candidate> + '_ {
        self.run(self.owned(Ino::DAT.0, true, offset..offset.saturating_add(1)))
    }

    /// What the summary of its log says of a block; `None` where there is none.
    pub fn at(&self, block: u64) -> Option<Candidate> {
        let log = self.logs.partition_point(|l| l.pos <= block).checked_sub(1)?;
        let record = self.logs.get(log).filter(|l| block < l.end() && !l.stale)?;
        let (log, index) = (u32::try_from(log).ok()?, block.checked_sub(record.payload())?);
        let place = |r: &Rec| (r.log, u64::from(r.packed & ((1 << INDEX_BITS) - 1)));
        let i = self.recs.partition_point(|r| place(r) < (log, index));
        self.recs.get(i).filter(|r| place(r) == (log, index)).map(|r| self.candidate(r))
    }

    /// Numbers of all files that have a described block, ascending.
    pub fn owners(&self) -> impl Iterator<Item = u64> + '_ {
        let mut last = None;
        self.by_owner.iter().filter_map(move |i| {
            let ino = self.recs.get(*i as usize)?.ino;
            (last.replace(ino) != Some(ino)).then_some(ino)
        })
    }
}

fn is_data(r: &Rec) -> bool {
    r.packed >> INDEX_BITS == DATA
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_format::dat::LIVE;

    use super::*;
    use crate::Unwatched;
    use crate::surgeon::Surgeon;

    fn records(s: &Surgeon) -> Records {
        let survey = Survey::run(&s.device, &s.g(), &Unwatched);
        let records = Records::build(&s.device, &s.g(), &survey, &Unwatched);
        assert_eq!(records.left_out, 0);
        records
    }

    /// The rule on which rebuilding rests: the newest record of a number with its owner is where the DAT has it.
    #[test]
    fn records_tell_what_the_dat_tells() {
        for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
            let s = Surgeon::golden(name);
            let r = records(&s);
            let mut checked = 0;
            for ino in [2, 4, 5, 6] {
                for (offset, block) in s.file(ino) {
                    let at = r.at(block).unwrap();
                    assert_eq!((at.ino, at.offset(), at.block), (ino, Some(offset), block), "{name}");
                    let newest = r.places_of(at.vblock).next().unwrap();
                    assert_eq!(newest, at, "{name}");
                    assert_eq!(s.dat_entry(at.vblock).end.get(), LIVE);
                    checked += 1;
                }
            }
            assert!(checked > 5);
            for (offset, block) in s.dat().blocks {
                assert_eq!(r.dat_block(offset).next().unwrap().block, block, "{name}: DAT block {offset}");
            }
        }
    }

    #[test]
    fn versions_of_a_file_ascend_by_offset_and_descend_by_age() {
        let s = Surgeon::golden("basic-4k");
        let r = records(&s);
        let all: Vec<Candidate> = r.blocks_of(6, 0..u64::MAX, u64::MAX).collect();
        assert!(all.len() > s.file(6).len());
        assert!(all.is_sorted_by_key(|c| (c.offset(), Reverse(c.order))));
        let cno = s.cno() / 2;
        assert!(r.blocks_of(6, 0..u64::MAX, cno).all(|c| c.cno <= cno));
        assert!(r.blocks_of(6, 0..1, u64::MAX).all(|c| c.offset() == Some(0)));
        assert!(r.owners().any(|ino| ino == 3) && r.owners().any(|ino| ino == 2));
        assert_eq!(r.at(0), None);
    }
}
