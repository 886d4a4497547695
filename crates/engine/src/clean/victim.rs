//! Reading a segment that is to be emptied. Nothing here takes a lock.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Kind};
use silt_format::{BlockNr, Geometry, SegNr};

use super::window::{Reused, Window};
use super::{Cleaning, Dead, Taken};
use crate::block::Block;
use crate::live::{Fate, LogBlock, SegmentWalk};
use crate::snapshots::SegmentInfo;
use crate::verify_log::{LogState, check, matches, verify_log};
use crate::{Error, Result};
use silt_format::summary::BlockInfo;

/// Bytes read at once.
const RUN: usize = 1 << 20;
/// Bytes that are copied before others are given way: into memory that is new, which takes far longer than the copying.
const COPIED: usize = 16 << 10;

/// What is to be done with wanted blocks whose log does not match its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Salvage {
    /// They stay, and so does the segment.
    No,
    /// They move as they are.
    Readable,
}

/// A segment whose blocks are looked through. Memory: one log's records, and [`Window`].
pub struct Victim {
    device: Arc<dyn Device>,
    geometry: Geometry,
    walk: SegmentWalk<Window>,
    /// Blocks of the log that was read last.
    log: Range<u64>,
    taken: Taken,
    /// What the checksums of its logs say, by their first block.
    logs: HashMap<u64, LogState>,
    /// Blocks were left where they are.
    left: u64,
    ended: bool,
}

impl Victim {
    pub(crate) fn new(device: Arc<dyn Device>, geometry: &Geometry, info: &SegmentInfo, freed: u64) -> Self {
        let segment = SegNr(info.segment);
        let written = geometry.segment_start(segment).0.saturating_add(u64::from(info.blocks));
        let window = Window::new(device.clone(), geometry.byte_of(BlockNr(written)));
        let walk = SegmentWalk::new(window, geometry, segment, u64::from(info.blocks));
        let taken = Taken { segment, lastmod: info.modified, nblocks: info.blocks, sequence: None, freed };
        let geometry = *geometry;
        Victim { device, geometry, walk, log: 0..0, taken, logs: HashMap::new(), left: 0, ended: false }
    }

    /// Its number.
    pub fn segment(&self) -> SegNr {
        self.taken.segment
    }

    /// From its first block again; what is in memory stays there.
    #[must_use]
    pub fn again(mut self) -> Self {
        self.walk.restart();
        Victim { log: 0..0, left: 0, ended: false, ..self }
    }

    /// Reads it into memory, as far as that goes, before it is known whether any of it is needed. Errors are met later.
    pub fn load(&mut self) {
        let first = self.geometry.byte_of(self.geometry.segment_start(self.taken.segment));
        self.walk.source_mut().load_from(first);
    }

    /// It is read into the memory of one that is gone, and that goes to the next one.
    pub fn reuse(&mut self, memory: &Reused) {
        self.walk.source_mut().reuse(memory);
    }

    /// From now on it is read by small pieces, which those who work beside feel less than large ones.
    pub fn by_pieces(&mut self) {
        self.walk.source_mut().by_pieces();
    }

    /// Whether some of it was needed, so that it was read whole.
    pub fn was_needed(&mut self) -> bool {
        self.walk.source_mut().was_needed()
    }

    /// How many segments were freed before it was looked at.
    pub(crate) fn freed(&self) -> u64 {
        self.taken.freed
    }

    /// Blocks from its first one to the end of the last log that was read.
    pub fn looked_through(&self) -> u64 {
        self.walk.log_end().0.saturating_sub(self.geometry.segment_start(self.taken.segment).0)
    }

    /// Of its blocks, in bytes.
    pub fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size)
    }

    /// Sequence number of its first log; `None` where nothing valid was ever written.
    pub fn sequence(&mut self) -> Result<Option<u64>> {
        if self.taken.sequence.is_none() {
            self.taken.sequence = self.walk.sequence()?;
        }
        Ok(self.taken.sequence)
    }

    /// At most `most` of its blocks that were not given yet; none at the end. An error where the segment's logs
    /// cannot be followed to their end: what lies behind cannot be told, so it cannot be emptied.
    pub fn read(&mut self, most: usize) -> Result<Vec<LogBlock>> {
        self.sequence()?;
        let blocks = self.walk.next(most)?;
        self.log = blocks.first().map_or(0, |b| b.log.0)..self.walk.log_end().0;
        if blocks.is_empty() {
            self.ended = true;
            if !self.walk.is_complete() {
                return Err(Error::corrupt(
                    format!("segment {}", self.taken.segment),
                    "log",
                    "its logs end before what the table of segments says",
                ));
            }
        }
        Ok(blocks)
    }

    /// Adds what became of blocks to a cleaning, with the bytes of those that move. Returns where logs begin that do
    /// not match their checksums and hold blocks that are needed.
    pub fn take(
        &mut self,
        blocks: Vec<LogBlock>,
        fates: &[Fate],
        salvage: Salvage,
        into: &mut Cleaning,
    ) -> Result<Vec<BlockNr>> {
        let mut wanted = Vec::new();
        let mut bad = Vec::new();
        for (block, fate) in blocks.into_iter().zip(fates) {
            if matches!(fate, Fate::Live | Fate::Table) {
                self.walk.source_mut().stream();
                let state = self.state(&block)?;
                if state == LogState::Bad {
                    if bad.last() != Some(&block.log) {
                        bad.push(block.log);
                    }
                    if salvage == Salvage::No {
                        self.left += 1;
                        continue;
                    }
                }
            }
            match fate {
                Fate::Live => wanted.push(block),
                Fate::Table => into.table.push(block),
                Fate::Dead(period) => {
                    if let BlockInfo::Data { vblock: v, .. } | BlockInfo::Node { vblock: v } =
                        block.payload.info
                    {
                        into.dead.push(Dead { v, block, period: period.clone() });
                    }
                }
                Fate::Gone => {}
            }
        }
        self.fetch(&wanted, salvage, into)?;
        Ok(bad)
    }

    /// All of it was looked at: the cleaning frees the segment. Where something had to stay, it marks it bad, so that
    /// no cleaner goes by its records again, which name what lies elsewhere then.
    pub fn finish(self, into: &mut Cleaning) -> bool {
        let whole = self.ended && self.left == 0;
        if whole {
            into.segments.push(self.taken);
        } else {
            into.bad.push(self.taken);
        }
        whole
    }

    /// What the checksum of a block's log says; of each log once.
    fn state(&mut self, block: &LogBlock) -> Result<LogState> {
        if let Some(state) = self.logs.get(&block.log.0) {
            return Ok(*state);
        }
        let bytes = |at| self.geometry.byte_of(BlockNr(at));
        let range = bytes(self.log.start)..bytes(self.log.end);
        let give_way = self.walk.source_mut().give_way();
        let state = if self.log.start != block.log.0 {
            verify_log(&*self.device, &self.geometry, self.taken.segment, block.at)?.1
        } else if let Some(log) = self.walk.source_mut().get(range) {
            matches(&self.geometry, log, give_way)
        } else {
            // What the device does not give is not trusted.
            check(&*self.device, &self.geometry, &self.log).unwrap_or(LogState::Bad)
        };
        self.logs.insert(block.log.0, state);
        Ok(state)
    }

    /// Reads blocks, which ascend, run by run.
    fn fetch(&mut self, wanted: &[LogBlock], salvage: Salvage, into: &mut Cleaning) -> Result<()> {
        let bs = self.geometry.bs();
        let (most, few) = ((RUN / bs).max(1), (COPIED / bs).max(1));
        let mut rest = wanted;
        let mut buffer = Vec::new();
        while let Some(first) = rest.first() {
            let n =
                rest.iter().zip(first.at.0..).take(most).take_while(|(block, at)| block.at.0 == *at).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            let byte = self.geometry.byte_of(first.at);
            let give_way = self.walk.source_mut().give_way();
            if let Some(bytes) = self.walk.source_mut().get(byte..byte + (n * bs) as u64) {
                for (run, bytes) in run.chunks(few).zip(bytes.chunks(few * bs)) {
                    let blocks = run.iter().zip(bytes.chunks_exact(bs));
                    into.live.extend(blocks.map(|(block, bytes)| (*block, Block::from(bytes))));
                    give_way();
                }
                continue;
            }
            buffer.resize(n * bs, 0);
            let read = self.device.read_kind(Kind::Logs, byte, &mut buffer);
            match read {
                Ok(()) => {
                    let blocks = run.iter().zip(buffer.chunks_exact(bs));
                    into.live.extend(blocks.map(|(block, bytes)| (*block, Block::from(bytes))));
                }
                Err(e) if salvage == Salvage::No => return Err(e.into()),
                Err(_) => self.fetch_singly(run, into),
            }
        }
        Ok(())
    }

    /// What can be read of a run; the rest stays.
    fn fetch_singly(&mut self, run: &[LogBlock], into: &mut Cleaning) {
        for block in run {
            let mut bytes = vec![0; self.geometry.bs()];
            match self.device.read_kind(Kind::Logs, self.geometry.byte_of(block.at), &mut bytes) {
                Ok(()) => into.live.push((*block, bytes.into())),
                Err(_) => self.left += 1,
            }
        }
    }
}
