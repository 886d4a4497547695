//! The logs behind the newest checkpoint of a volume that was not cleanly unmounted: synced data that a mount puts in
//! place.
//!
//! A log that does not verify there may be what a power cut left of a write that nobody was told of. Where what follows
//! was written after a flush it is damaged ([`promised`](super::promised)). Where that cannot be told, only what no torn
//! write looks like is: sectors that cannot be read, and a flipped bit.
//!
//! Memory: some 100 bytes a log, at most [`LOGS`] of them. Read of a segment: at most [`OFTEN`] times its blocks, however
//! many heads of logs somebody put into it.

use std::collections::HashSet;

use silt_format::summary::{Header, LOGBGN, SR, SYNDT};
use silt_format::{BlockNr, SegNr};

use crate::reader::Reader;
use crate::scrub::promised::{Missing, Promised};
use crate::search::{self, Log};

/// Logs that are followed, whole or not.
const LOGS: usize = 1 << 16;
/// How often the blocks of a segment are summed up in all.
const OFTEN: u64 = 8;
/// Segments that are looked at for one that goes on where the heads of a segment are lost: the next ones, which a volume
/// with room fills in order.
const NEAR: u64 = 64;

/// A part of the chain that does not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken {
    pub pos: u64,
    /// The block behind it, as far as can be told.
    pub end: u64,
    /// The sequence number of its segment: a head with another one is not its own.
    pub seq: u64,
    /// So many whole logs lie before it.
    pub behind: usize,
    /// It was whole once: a flush lies behind it, or it cannot be read.
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

    /// Where what was whole once ends the way of a mount, and the whole logs behind it.
    pub fn cut(&self) -> Option<(u64, &[Log])> {
        let first = self.broken.iter().find(|b| b.certain)?;
        Some((first.pos, self.logs.get(first.behind..)?))
    }

    /// Checkpoints that a mount does not come to, in a sentence.
    pub fn lost_checkpoints(&self) -> Option<String> {
        let root =
            |logs: &[Log]| logs.iter().rev().find(|log| log.header.has(SR)).map(|log| log.header.cno.get());
        if self.cut().is_some_and(|(_, logs)| root(logs).is_some()) {
            return self.lost();
        }
        let first = self.broken.first()?;
        let cno = root(self.logs.get(first.behind..)?)?;
        Some(format!(
            "checkpoint {cno} may be lost: the log at block {} does not verify, and no mount comes to it; a power cut in \
             the midst of a sync leaves that, and then nobody was told that it was done",
            first.pos
        ))
    }

    /// What a mount does not come to, in a sentence.
    pub fn lost(&self) -> Option<String> {
        let (block, logs) = self.cut()?;
        let newest = logs.iter().filter(|log| log.header.has(SR)).map(|log| log.header.cno.get()).max();
        let what = newest.map_or(String::new(), |cno| format!(", the newest of checkpoint {cno}"));
        let n = logs.len();
        let logs = if n == 1 { "1 whole log follows" } else { &format!("{n} whole logs follow") };
        Some(format!(
            "a mount comes no further than block {block}, behind which {logs}{what}; silt rescue finds what they hold"
        ))
    }
}

/// Follows the chain behind a log, over what does not verify, as far as whole logs follow.
pub(crate) fn follow(r: &Reader<'_>, from: &Log) -> Chain {
    let g = r.g;
    let mut chain = Chain::default();
    let (mut missing, mut promised) = (Missing::behind(from), Promised::behind(from));
    let mut seq = from.header.seq.get();
    let mut segment = g.segment_of(from.pos);
    let mut next = from.header.next.get();
    let mut pos = from.end();
    let mut entered = HashSet::from([segment.0]);
    let mut left = OFTEN.saturating_mul(u64::from(g.blocks_per_segment));
    while chain.logs.len() + chain.broken.len() < LOGS {
        let end = g.segment_end(segment).0;
        match first_whole(r, segment, pos, end, seq, &mut left) {
            Step::Whole(log) => {
                if let Some((at, broken)) = missing.next(&log) {
                    chain.broken.insert(at.min(chain.broken.len()), broken);
                }
                promised.next(r, &log, &mut chain.broken);
                (pos, next) = (log.end(), log.header.next.get());
                chain.logs.push(log);
            }
            Step::Broken { pos: at, end: behind, certain } => {
                let broken = Broken { pos: at, end: behind, seq, behind: chain.logs.len(), certain };
                chain.broken.push(broken);
                promised.broken(r, &broken, chain.broken.len());
                pos = behind;
            }
            Step::Nothing => {
                let from_here = g.segment_of(BlockNr(next));
                if !g.holds(BlockNr(next)) || !entered.insert(from_here.0) {
                    break;
                }
                if pos.saturating_add(1) < end && chain.broken.last().is_none_or(|b| b.end != pos) {
                    missing.may_be(pos, seq, chain.logs.len(), chain.broken.len());
                }
                // A segment that was not begun ends the chain.
                let start = g.segment_start(from_here).0;
                left = OFTEN.saturating_mul(u64::from(g.blocks_per_segment));
                seq = seq.wrapping_add(1);
                match enter(r, from_here, seq, &mut left) {
                    Entered::Whole => (segment, pos) = (from_here, start),
                    Entered::Broken(log) => {
                        let behind = chain.logs.len();
                        let broken = Broken { pos: log.pos.0, end: log.end(), seq, behind, certain: false };
                        chain.broken.push(broken);
                        promised.broken(r, &broken, chain.broken.len());
                        (segment, pos) = (from_here, g.segment_end(from_here).0);
                        next = log.header.next.get();
                    }
                    Entered::Nothing => {
                        let Some((later, found)) = near(r, from_here, seq, &from.header, &mut left) else {
                            break;
                        };
                        let behind = chain.logs.len();
                        chain.broken.push(Broken { pos: start, end: start + 1, seq, behind, certain: false });
                        entered.insert(later.0);
                        (segment, pos, seq) = (later, g.segment_start(later).0, found);
                    }
                }
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

/// What lies in a segment that the one before leads to.
enum Entered {
    /// A log that verifies is in it.
    Whole,
    /// None does: the first head.
    Broken(Log),
    /// No head of this sequence number.
    Nothing,
}

fn enter(r: &Reader<'_>, segment: SegNr, seq: u64, left: &mut u64) -> Entered {
    let mut first = None;
    for pos in r.g.segment_start(segment).0..r.g.segment_end(segment).0 {
        let Some(log) = head(r, segment, pos, seq).ok().flatten() else { continue };
        if is_whole(r, &log, left) {
            return Entered::Whole;
        }
        first.get_or_insert(log);
    }
    first.map_or(Entered::Nothing, Entered::Broken)
}

/// The next segment by sequence number, behind `seq`, among the [`NEAR`] that follow `segment` and begin with a whole log,
/// and that number: what lies in `segment` was one of the chain whose heads are lost. Logs made before the `latest` were
/// left behind by an earlier mount, and those of no later checkpoint by writes that failed.
fn near(r: &Reader<'_>, segment: SegNr, seq: u64, latest: &Header, left: &mut u64) -> Option<(SegNr, u64)> {
    let g = &r.g;
    let last = g.nsegments.checked_sub(1)?;
    let mut best = None;
    let mut at = segment.0;
    for _ in 0..NEAR.min(last) {
        at = if at >= last { 0 } else { at + 1 };
        let start = g.segment_start(SegNr(at));
        let header = r.block(start).ok().and_then(|b| Header::parse(g, &b).ok());
        let later = |h: &Header| h.create.get() >= latest.create.get() && h.cno.get() > latest.cno.get();
        let Some(header) = header.filter(later) else { continue };
        let (own, log) = (header.seq.get(), Log { pos: start, header });
        // Numbers wrap, and go up by one with each segment.
        let behind = own.wrapping_sub(seq);
        let fits = (1..=NEAR).contains(&behind) && log.end() <= g.segment_end(SegNr(at)).0;
        if fits && best.is_none_or(|(_, least)| behind < least) && is_whole(r, &log, left) {
            best = Some((SegNr(at), behind));
        }
    }
    best.map(|(at, behind)| (at, seq.wrapping_add(behind)))
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
