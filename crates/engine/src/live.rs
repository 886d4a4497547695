//! Which blocks of a segment are still needed (spec 13.3, 13.4).
//!
//! A [`SegmentWalk`] reads what a segment's logs say of their blocks, from the device and with no
//! lock held; [`Volume::count_live`] judges them, some at a time, under the volume's.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Kind};
use silt_format::dat::LIVE;
use silt_format::summary::{self, BlockInfo, Header, Payload};
use silt_format::super_block::Copy;
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use crate::bmap;
use crate::dat::Dat;
use crate::meta::{NodeReader, Physical};
use crate::search::MAX_SUMMARY;
use crate::volume::Volume;
use crate::{At, Error, Result};

/// One payload block of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBlock {
    pub payload: Payload,
    /// Where it lies.
    pub at: BlockNr,
    /// First block of its log.
    pub log: BlockNr,
}

/// Where a walk reads what logs say of themselves.
pub trait Source {
    /// Fills `buf` from `offset`, in bytes.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()>;
}

impl Source for Arc<dyn Device> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.read_kind(Kind::Logs, offset, buf)
    }
}

/// Walks the blocks of a segment's logs. Memory: one log's summary and its records.
pub struct SegmentWalk<S = Arc<dyn Device>> {
    source: S,
    geometry: Geometry,
    start: u64,
    at: u64,
    end: u64,
    sequence: Option<u64>,
    waiting: VecDeque<LogBlock>,
}

impl<S: Source> SegmentWalk<S> {
    /// A walk over the first `written` blocks of a segment (`su_nblocks`).
    pub fn new(source: S, geometry: &Geometry, segment: SegNr, written: u64) -> Self {
        let start = geometry.segment_start(segment).0;
        let end = start + written.min(geometry.segment_blocks(segment));
        SegmentWalk {
            source,
            geometry: *geometry,
            start,
            at: start,
            end,
            sequence: None,
            waiting: VecDeque::new(),
        }
    }

    /// The sequence number that the segment's first log carries; `None` where there is no log.
    pub fn sequence(&mut self) -> Result<Option<u64>> {
        if self.sequence.is_none() && self.waiting.is_empty() {
            self.read_log()?;
        }
        Ok(self.sequence)
    }

    /// At most `most` blocks, all of one log; none at the end: the last log, or the first place without a valid one.
    pub fn next(&mut self, most: usize) -> Result<Vec<LogBlock>> {
        while self.waiting.is_empty() {
            if !self.read_log()? {
                return Ok(Vec::new());
            }
        }
        let n = most.min(self.waiting.len());
        Ok(self.waiting.drain(..n).collect())
    }

    /// Whether all that was written in the segment was walked over: its logs follow each other to the end.
    pub fn is_complete(&self) -> bool {
        self.waiting.is_empty() && self.end.saturating_sub(self.at) < 2
    }

    /// Begins again.
    pub(crate) fn restart(&mut self) {
        self.at = self.start;
        self.waiting.clear();
    }

    /// Where it reads.
    pub(crate) fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Behind the last block of the log whose blocks were given last.
    pub(crate) fn log_end(&self) -> BlockNr {
        BlockNr(self.at)
    }

    fn read_log(&mut self) -> Result<bool> {
        let g = &self.geometry;
        if self.end.saturating_sub(self.at) < 2 {
            return Ok(false);
        }
        let byte = g.byte_of(BlockNr(self.at));
        let mut bytes = vec![0; g.bs()];
        self.source.read(byte, &mut bytes)?;
        let Ok(header) = Header::parse(g, &bytes) else { return Ok(false) };
        let nblocks = u64::from(header.nblocks.get());
        let blocks = u64::from(header.summary_blocks(g));
        let size = blocks.saturating_mul(u64::from(g.block_size));
        // What an earlier use of the segment left behind carries another number.
        let stale = self.sequence.is_some_and(|s| s != header.seq.get());
        if stale || self.at + nblocks > self.end || size > MAX_SUMMARY as u64 {
            return Ok(false);
        }
        if blocks > 1 {
            bytes.resize(usize::try_from(size).unwrap_or(0), 0);
            self.source.read(byte, &mut bytes)?;
        }
        if !summary::summary_sum_matches(g.crc_seed, &header, &bytes) {
            return Ok(false);
        }
        self.sequence = Some(header.seq.get());
        let (first, log) = (self.at + blocks, BlockNr(self.at));
        let waiting = &mut self.waiting;
        summary::for_each_payload(g, &header, &bytes, |payload| {
            let at = BlockNr(first + u64::from(payload.index));
            waiting.push_back(LogBlock { payload, at, log });
        })
        .at(|| format!("log at block {}", self.at))?;
        self.at += nblocks;
        Ok(true)
    }
}

/// What keeps old blocks alive.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// Snapshots and other single checkpoints, ascending: 8 bytes each.
    moments: Vec<u64>,
    /// Checkpoints from this number on are kept.
    from: u64,
}

impl Keep {
    /// Keeps these checkpoints, too. Whether they exist does not matter.
    pub fn also(&mut self, checkpoints: impl IntoIterator<Item = u64>) {
        let from = self.from;
        self.moments.extend(checkpoints.into_iter().filter(|c| *c < from));
        self.moments.sort_unstable();
        self.moments.dedup();
    }

    /// Whether this checkpoint is kept.
    pub fn keeps(&self, checkpoint: u64) -> bool {
        checkpoint >= self.from || self.moments.binary_search(&checkpoint).is_ok()
    }

    /// Whether a checkpoint of this range is kept.
    pub(crate) fn any_in(&self, range: &Range<u64>) -> bool {
        let at = self.moments.partition_point(|s| *s < range.start);
        range.end > self.from.max(range.start) || self.moments.get(at).is_some_and(|s| *s < range.end)
    }
}

/// What a block is to the checkpoints that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// One of them needs it.
    Live,
    /// The newest state of the DAT needs it.
    Table,
    /// It has its number still, and only the checkpoints of this range, which may be empty, have it.
    Dead(Range<u64>),
    /// Its number leads elsewhere or is free.
    Gone,
}

impl Volume {
    /// What is kept: snapshots, what is looked at, the newest checkpoint, and those from `oldest` on. Snapshots made
    /// later are not in it; single plain checkpoints come in by [`Keep::also`].
    pub fn keep(&self, oldest: Option<u64>) -> Result<Keep> {
        let mut keep = Keep { moments: Vec::new(), from: oldest.unwrap_or(u64::MAX).min(self.last.cno) };
        keep.also(self.snapshots()?.into_iter().map(|c| c.0).chain(self.views.keys().copied()));
        Ok(keep)
    }

    /// The lowest sequence number whose segments must not be reclaimed: recovery may have to walk
    /// them (spec 2.7, `prot_seq`).
    pub fn protected_sequence(&self) -> u64 {
        if !self.read_only {
            return self.supers.oldest_sequence();
        }
        // As who mounts it next will have it: the secondary copy is brought up to date first.
        let first = &self.supers.first;
        match &self.supers.second {
            Some(second) if second.0 == Copy::Secondary => second.1.last_seq.get(),
            _ => first.1.last_seq.get(),
        }
    }

    /// How many of the blocks are needed by the newest checkpoint or by what is kept. What a damaged
    /// table of addresses says nothing about counts as needed.
    pub fn count_live(&self, keep: &Keep, blocks: &[LogBlock]) -> Result<u64> {
        // While a checkpoint is composed the newest one is what was before.
        let before = self.construction.as_ref().and_then(|k| k.before.as_ref());
        let dat = before.map_or(&self.dat, |b| b.dat());
        let mut live = 0;
        for block in blocks {
            live += match self.fate_in(dat, keep, block) {
                Ok(fate) => u64::from(matches!(fate, Fate::Live | Fate::Table)),
                Err(Error::Format { .. }) => 1,
                Err(e) => return Err(e),
            };
        }
        Ok(live)
    }

    /// What a block is to the newest checkpoint, what is being made of it, and what is kept.
    pub(crate) fn fate(&self, keep: &Keep, block: &LogBlock) -> Result<Fate> {
        self.fate_in(&self.dat, keep, block)
    }

    fn fate_in(&self, dat: &Dat, keep: &Keep, block: &LogBlock) -> Result<Fate> {
        let mapped = |ptr: Option<u64>| if ptr == Some(block.at.0) { Fate::Table } else { Fate::Gone };
        let v = match block.payload.info {
            BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } if block.payload.ino != Ino::DAT => {
                vblock
            }
            BlockInfo::DatData { offset } => {
                let nodes = NodeReader { nodes: &dat.file.map.nodes, store: &self.store, resolve: &Physical };
                return Ok(mapped(bmap::lookup(&dat.file.map.root, &nodes, offset)?));
            }
            BlockInfo::DatNode { key, level } => {
                let nodes = NodeReader { nodes: &dat.file.map.nodes, store: &self.store, resolve: &Physical };
                return Ok(mapped(bmap::node_at(&dat.file.map.root, &nodes, key, level)?));
            }
            _ => return Ok(Fate::Gone),
        };
        if !dat.palloc.is_allocated(&dat.file, &self.store, &Physical, v.0) {
            return Ok(Fate::Gone);
        }
        let e = dat.entry(&self.store, v)?;
        let (start, end) = (e.start.get(), e.end.get());
        if e.blocknr.get() != block.at.0 {
            return Ok(Fate::Gone);
        }
        if end == LIVE {
            return Ok(Fate::Live);
        }
        let period = start..end.max(start);
        // Of cpfile and sufile only the newest state counts.
        if block.payload.cno.0 == 0 || end == block.payload.cno.0 {
            return Ok(Fate::Dead(start..start));
        }
        // The newest checkpoint is kept even if its successor, being made, no longer needs it.
        if keep.any_in(&period) { Ok(Fate::Live) } else { Ok(Fate::Dead(period)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_moments_and_all_from_one_on_are_kept() {
        let mut keep = Keep { moments: Vec::new(), from: 100 };
        keep.also([7, 3]);
        keep.also([120, 50, 7]);
        assert_eq!(keep.moments, [3, 7, 50], "what is kept anyway is not listed");
        for period in [3..4, 0..4, 7..8, 4..8, 8..51, 50..51, 99..101, 100..101, 500..u64::MAX] {
            assert!(keep.any_in(&period), "{period:?}");
            assert!((period.start..period.end.min(700)).any(|c| keep.keeps(c)), "{period:?}");
        }
        for period in [0..3, 4..7, 8..50, 51..100, 3..3, 60..60] {
            assert!(!keep.any_in(&period), "{period:?}");
            assert!(!period.clone().any(|c| keep.keeps(c)), "{period:?}");
        }
    }
}
