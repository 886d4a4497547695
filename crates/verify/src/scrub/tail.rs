//! The logs behind the newest checkpoint of a volume that was not cleanly unmounted: synced data that a mount puts in
//! place.
//!
//! A log that does not verify there may be what a power cut left of a write that nobody was told of. It is damaged
//! where a whole log follows that begins a new group: before that was written, everything before it was flushed (unless
//! a flush had failed, or the volume was mounted without them). Where none follows, only what no torn write looks like is told: sectors that cannot be read, and a flipped bit.
//!
//! Memory: some 100 bytes a log, at most [`LOGS`] of them. Read of a segment: at most [`OFTEN`] times its blocks, however
//! many heads of logs somebody put into it.

use std::collections::HashSet;

use silt_format::summary::{Header, LOGBGN, SR, SYNDT};
use silt_format::{BlockNr, SegNr};

use crate::reader::Reader;
use crate::search::{self, Log};

/// Logs that are followed.
const LOGS: usize = 1 << 16;
/// How often the blocks of a segment are summed up in all.
const OFTEN: u64 = 8;

/// A part of the chain that does not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken {
    pub pos: u64,
    /// The block behind it, as far as can be told.
    pub end: u64,
    /// So many whole logs lie before it.
    pub behind: usize,
    /// It was whole once: a flush lies behind it.
    pub certain: bool,
}

/// The chain behind a log.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Whole logs, in order.
    pub logs: Vec<Log>,
    pub broken: Vec<Broken>,
}

impl Chain {
    /// The logs that a mount comes to.
    pub fn reached(&self) -> &[Log] {
        let end = self.broken.first().map_or(self.logs.len(), |b| b.behind);
        self.logs.get(..end).unwrap_or_default()
    }

    /// The logs among those with data that a mount puts in place: groups that are complete.
    pub fn synced(&self) -> Vec<Log> {
        let mut all = Vec::new();
        let mut group = Vec::new();
        for log in self.reached() {
            if log.header.has(LOGBGN) {
                group.clear();
            }
            if !log.header.has(SYNDT) {
                break;
            }
            group.push(*log);
            if log.header.has(silt_format::summary::LOGEND) {
                all.append(&mut group);
            }
        }
        all
    }

    /// The newest checkpoint among the logs that a mount comes to, and how many there are.
    pub fn newest(&self) -> Option<(Log, u64)> {
        let mut roots = self.reached().iter().filter(|log| log.header.has(SR));
        let count = roots.clone().count() as u64;
        roots.next_back().map(|log| (*log, count))
    }

    /// As [`Chain::lost`], where checkpoints are among it.
    pub fn lost_checkpoints(&self) -> Option<String> {
        let first = self.broken.first()?;
        let behind = self.logs.get(first.behind..)?;
        if behind.iter().any(|log| log.header.has(SR)) { self.lost() } else { None }
    }

    /// What a mount does not come to, in a sentence.
    pub fn lost(&self) -> Option<String> {
        let first = self.broken.iter().find(|b| b.certain)?;
        let behind = self.logs.get(first.behind..)?;
        let newest = behind.iter().filter(|log| log.header.has(SR)).map(|log| log.header.cno.get()).max();
        let what = newest.map_or(String::new(), |cno| format!(", the newest of checkpoint {cno}"));
        let n = behind.len();
        let logs = if n == 1 { "1 whole log follows" } else { &format!("{n} whole logs follow") };
        Some(format!(
            "a mount comes no further than block {}, behind which {logs}{what}; silt rescue finds what they hold",
            first.pos
        ))
    }
}

/// Follows the chain behind a log, over what does not verify, as far as whole logs follow.
pub(crate) fn follow(r: &Reader<'_>, from: &Log) -> Chain {
    let g = r.g;
    let mut chain = Chain::default();
    let mut seq = from.header.seq.get();
    let mut segment = g.segment_of(from.pos);
    let mut next = from.header.next.get();
    let mut pos = from.end();
    let mut entered = HashSet::from([segment.0]);
    let mut left = OFTEN.saturating_mul(u64::from(g.blocks_per_segment));
    while chain.logs.len() < LOGS {
        let end = g.segment_end(segment).0;
        match first_whole(r, segment, pos, end, seq, &mut left) {
            Step::Whole(log) => {
                if log.header.has(LOGBGN) {
                    chain.broken.iter_mut().for_each(|b| b.certain = true);
                }
                (pos, next) = (log.end(), log.header.next.get());
                chain.logs.push(log);
            }
            Step::Broken { pos: at, end: behind, certain } => {
                chain.broken.push(Broken { pos: at, end: behind, behind: chain.logs.len(), certain });
                pos = behind;
            }
            Step::Nothing => {
                let from = g.segment_of(BlockNr(next));
                if !g.holds(BlockNr(next)) || !entered.insert(from.0) {
                    break;
                }
                // A segment that was not begun ends the chain.
                let start = g.segment_start(from).0;
                left = OFTEN.saturating_mul(u64::from(g.blocks_per_segment));
                if !begins(r, from, start, seq.wrapping_add(1), &mut left) {
                    break;
                }
                (segment, pos, seq) = (from, start, seq.wrapping_add(1));
            }
        }
    }
    chain
}

enum Step {
    Whole(Log),
    Broken { pos: u64, end: u64, certain: bool },
    Nothing,
}

/// A head of this sequence number that fits the segment.
fn head(r: &Reader<'_>, segment: SegNr, pos: u64, seq: u64) -> Result<Option<Log>, String> {
    let block = r.block(BlockNr(pos))?;
    let header: Option<Header> = Header::parse(&r.g, &block).ok().filter(|h| h.seq.get() == seq);
    let log = header.map(|header| Log { pos: BlockNr(pos), header });
    Ok(log.filter(|log| log.end() <= r.g.segment_end(segment).0))
}

/// Whether the log verifies; what cannot be read does not, nor does anything once nothing is `left` to be read.
fn is_whole(r: &Reader<'_>, log: &Log, left: &mut u64) -> bool {
    let Some(rest) = left.checked_sub(log.nblocks()) else { return false };
    *left = rest;
    search::datasum_matches(r, log).unwrap_or(false)
}

/// Whether a segment has any whole log of this sequence number.
fn begins(r: &Reader<'_>, segment: SegNr, start: u64, seq: u64, left: &mut u64) -> bool {
    let end = r.g.segment_end(segment).0;
    (start..end)
        .any(|pos| head(r, segment, pos, seq).ok().flatten().is_some_and(|log| is_whole(r, &log, left)))
}

/// What lies at `pos`: a whole log, something broken before the next head, or nothing any more.
fn first_whole(r: &Reader<'_>, segment: SegNr, pos: u64, end: u64, seq: u64, left: &mut u64) -> Step {
    if pos >= end {
        return Step::Nothing;
    }
    let here = head(r, segment, pos, seq);
    match &here {
        Ok(Some(log)) if is_whole(r, log, left) => return Step::Whole(*log),
        Ok(Some(log)) => return Step::Broken { pos, end: log.end(), certain: false },
        _ => {}
    }
    let more = (pos + 1..end)
        .find(|pos| head(r, segment, *pos, seq).ok().flatten().is_some_and(|log| is_whole(r, &log, left)));
    match (more, here) {
        (Some(next), _) => Step::Broken { pos, end: next, certain: false },
        // A block that a mount reads, whatever was in it.
        (None, Err(_)) => Step::Broken { pos, end: pos + 1, certain: true },
        (None, Ok(_)) => Step::Nothing,
    }
}
