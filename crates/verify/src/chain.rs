//! The logs behind the newest checkpoint of a volume that was not cleanly unmounted: synced data that a mount puts in
//! place.
//!
//! A log that does not verify there may be what a power cut left of a write that nobody was told of. Where what follows
//! was written after a flush it is damaged ([`promised`](crate::promised)). Where that cannot be told, only what no torn
//! write looks like is: sectors that cannot be read, and a flipped bit. To which of the whole logs a mount comes, the
//! [`search`](crate::search) says alone.
//!
//! Memory: some 100 bytes a log, at most [`LOGS`] of them. Read of a segment: at most [`OFTEN`] times its blocks, however
//! many heads of logs somebody put into it.

use std::collections::HashSet;

use silt_format::summary::{Header, LOGEND, SR, SYNDT};
use silt_format::{BlockNr, SegNr};

use crate::check::LogPosition;
use crate::headless::{Headless, Known, Lone};
use crate::promised::{self, Promised};
use crate::reader::Reader;
use crate::search::{self, Found, Log};

/// Logs that are followed, whole or not.
const LOGS: usize = 1 << 16;
/// How often the blocks of a segment are summed up in all.
const OFTEN: u64 = 3;
/// Segments that are looked at for one that goes on where the heads of a segment are lost: the next ones, which a volume
/// with room fills in order.
const NEAR: u64 = 64;
/// Of these, the first ones, in which logs are also looked for where no head begins them.
const SEARCHED: u64 = 4;

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
    /// What follows alone tells that something was here.
    pub bare: bool,
}

/// The chain behind the newest checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Whole logs, in order.
    pub logs: Vec<Log>,
    pub broken: Vec<Broken>,
    /// First blocks of the logs that a mount comes to.
    reached: HashSet<u64>,
    /// `ss_cno` of logs behind the newest checkpoint; 0 where that is not known.
    next: u64,
    /// A log behind all of them whose head is lost.
    pub headless: Option<Headless>,
}

impl Chain {
    /// Whole logs behind what does not verify that no mount comes to.
    pub fn unreached(&self, behind: &Broken) -> Vec<Log> {
        let logs = self.logs.get(behind.behind..).unwrap_or_default();
        logs.iter().filter(|log| !self.reached.contains(&log.pos.0)).copied().collect()
    }

    /// Whole logs of synced data behind what does not verify, and those of one sync begun in front of it, that were written
    /// when checkpoint `cno` was to come next.
    pub fn lost_data(&self, cno: u64) -> Vec<Log> {
        let Some(first) = self.broken.first() else { return Vec::new() };
        let mut lost = self.begun(first).to_vec();
        lost.extend(self.unreached(first));
        lost.retain(|log| log.header.has(SYNDT) && log.header.cno.get() == cno);
        lost
    }

    /// Logs of synced data before what does not verify whose end would be it, or behind it: no mount takes them.
    pub fn begun(&self, behind: &Broken) -> &[Log] {
        let before = self.logs.get(..behind.behind).unwrap_or_default();
        let open =
            before.iter().rev().take_while(|log| log.header.has(SYNDT) && !log.header.has(LOGEND)).count();
        before.get(before.len() - open..).unwrap_or_default()
    }

    /// Where what was whole once does not verify, and the whole logs behind it that no mount comes to.
    pub fn cut(&self) -> Option<(u64, Vec<Log>)> {
        let first = self.broken.iter().find(|b| b.certain)?;
        Some((first.pos, self.unreached(first)))
    }

    /// Logs that made a checkpoint and that no mount comes to, since one was damaged that was whole once: the newest first,
    /// those among them that are damaged, too.
    pub fn roots(&self, r: &Reader<'_>) -> Vec<LogPosition> {
        let Some((_, whole)) = self.cut() else { return Vec::new() };
        let broken = self.broken.iter().filter(|b| b.certain).filter_map(|b| {
            let header = Header::parse(&r.g, &r.block(BlockNr(b.pos)).ok()?).ok()?;
            (header.seq.get() == b.seq).then_some(Log { pos: BlockNr(b.pos), header })
        });
        let mut all: Vec<Log> = whole.into_iter().chain(broken).filter(|log| log.header.has(SR)).collect();
        all.sort_by_key(|log| std::cmp::Reverse(log.header.cno.get()));
        let place = |log: &Log| LogPosition {
            block: log.pos.0,
            sequence: log.header.seq.get(),
            checkpoint: log.header.cno.get(),
        };
        all.iter().map(place).collect()
    }

    /// Checkpoints that a mount does not come to, in a sentence.
    pub fn lost_checkpoints(&self) -> Option<String> {
        let root =
            |logs: &[Log]| logs.iter().rev().find(|log| log.header.has(SR)).map(|log| log.header.cno.get());
        // A log of a later checkpoint than the next tells of that one.
        let skips = |logs: &[Log]| self.next != 0 && logs.iter().any(|log| log.header.cno.get() > self.next);
        if self.cut().is_some_and(|(_, logs)| root(&logs).is_some() || skips(&logs)) {
            return self.lost();
        }
        let first = self.broken.first()?;
        let cno = root(&self.unreached(first))?;
        Some(format!(
            "checkpoint {cno} may be lost: the log at block {} does not verify, and no mount comes to it; a power cut in \
             the midst of a sync leaves that, and then nobody was told that it was done; silt rescue shows what it holds",
            first.pos
        ))
    }

    /// What a mount does not come to, in a sentence.
    pub fn lost(&self) -> Option<String> {
        let (block, logs) = self.cut()?;
        let newest = logs.iter().filter(|log| log.header.has(SR)).map(|log| log.header.cno.get()).max();
        let later = logs
            .iter()
            .map(|log| log.header.cno.get())
            .max()
            .filter(|cno| self.next != 0 && *cno > self.next);
        let what = match (newest, later) {
            (Some(cno), _) => format!(", the newest of checkpoint {cno}"),
            (None, Some(cno)) => format!(", made when checkpoint {} was there", cno - 1),
            (None, None) => String::new(),
        };
        let logs = match logs.len() {
            0 => return None,
            1 => "1 whole log follows".into(),
            n => format!("{n} whole logs follow"),
        };
        Some(format!(
            "a mount comes no further than block {block}, behind which {logs}{what}; silt rescue finds what they hold"
        ))
    }
}

/// Follows the chain behind the newest log with a super root, as a search found it, over what does not verify, as far as
/// whole logs follow.
pub(crate) fn follow(r: &Reader<'_>, found: &Found) -> Chain {
    let (g, from) = (r.g, &found.latest);
    let mut chain = Chain {
        reached: found.tail.iter().map(|log| log.pos.0).collect(),
        next: promised::next_checkpoint(from),
        ..Chain::default()
    };
    let mut promised = Promised::behind(from);
    let lone = Lone::behind(r, from);
    let mut heads =
        Heads { r, latest: from.header, torn: false, since: from.header.create.get(), left: 0, lone };
    heads.enough();
    let mut seq = from.header.seq.get();
    let mut segment = g.segment_of(from.pos);
    let mut next = from.header.next.get();
    let mut pos = from.end();
    let mut entered = HashSet::from([segment.0]);
    while chain.logs.len() + chain.broken.len() < LOGS {
        let end = heads.end(segment);
        let behind = chain.logs.len();
        heads.torn = !chain.broken.is_empty();
        let lost =
            |pos: u64, end: u64, seq: u64| Broken { pos, end, seq, behind, certain: false, bare: false };
        match heads.first_whole(segment, pos, end, seq) {
            Step::Whole(log) => {
                heads.lone.clear();
                promised.next(r, &log, &mut chain.broken);
                (pos, next) = (log.end(), log.header.next.get());
                heads.since = log.header.create.get();
                chain.logs.push(log);
            }
            Step::Broken { pos: at, end: behind, certain } => {
                heads.lone.clear();
                let broken = Broken { certain, ..lost(at, behind, seq) };
                chain.broken.push(broken);
                promised.broken(r, &broken, chain.broken.len());
                pos = behind;
            }
            Step::Nothing => {
                let to = g.segment_of(BlockNr(next));
                if !g.holds(BlockNr(next)) || !entered.insert(to.0) {
                    break;
                }
                // Logs fill a segment up to its last block but one (spec 3.2): what goes on in the next one went on here.
                let gap = pos.saturating_add(1) < g.segment_end(segment).0
                    && chain.broken.last().is_none_or(|b| b.end != pos);
                let gap = gap.then(|| Broken { bare: true, ..lost(pos, pos + 1, seq) });
                let start = g.segment_start(to).0;
                heads.enough();
                seq = seq.wrapping_add(1);
                match heads.enter(to, seq) {
                    Entered::Whole => {
                        chain.broken.extend(gap);
                        (segment, pos) = (to, start);
                    }
                    Entered::Broken(log) => {
                        let certain = log.end() > heads.end(to);
                        let broken = Broken { certain, ..lost(log.pos.0, log.end(), seq) };
                        chain.broken.extend(gap);
                        chain.broken.push(broken);
                        promised.broken(r, &broken, chain.broken.len());
                        (segment, pos) = (to, heads.end(to));
                        next = log.header.next.get();
                    }
                    // A segment that was not begun ends the chain.
                    Entered::Nothing => {
                        let Some((later, found)) = heads.near(to, seq) else { break };
                        chain.broken.extend(gap);
                        chain.broken.push(Broken { bare: true, ..lost(start, start + 1, seq) });
                        entered.insert(later.0);
                        (segment, pos, seq) = (later, g.segment_start(later).0, found);
                    }
                }
            }
        }
    }
    let whole = chain.logs.iter().filter(|log| log.header.has(SR)).map(|log| log.header.cno.get());
    let newest = whole.max().unwrap_or(0).max(found.cno);
    let known = Known { checkpoint: found.cno, newest, created: from.header.create.get(), end: pos };
    chain.headless = heads.lone.newest(r, known);
    chain
}

enum Step {
    Whole(Log),
    Broken { pos: u64, end: u64, certain: bool },
    Nothing,
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

/// Looks for logs behind the newest super root by their heads.
struct Heads<'r, 'a> {
    r: &'r Reader<'a>,
    /// The head of that super root's log.
    latest: Header,
    /// Something before does not verify.
    torn: bool,
    /// When the last log before was made whose summary is whole, seconds since 1970.
    since: u64,
    /// Blocks that may still be summed up in this segment.
    left: u64,
    /// Super roots that are come upon.
    lone: Lone,
}

impl Heads<'_, '_> {
    fn enough(&mut self) {
        self.left = OFTEN.saturating_mul(u64::from(self.r.g.blocks_per_segment));
    }

    /// Whether a head tells of a log that was made behind the newest super root: others were left behind by an earlier
    /// mount, which went on in the same segment (spec 4.6). Of one that does not directly follow what is whole the time
    /// tells, too: that mount may have synced data before the same checkpoint.
    fn is_later(&self, header: &Header, follows: bool) -> bool {
        let cno = header.cno.get();
        (cno == 0 || cno > self.latest.cno.get()) && (follows || header.create.get() >= self.since)
    }

    /// A head of this sequence number that fits the segment; whether it `follows` what the search came to.
    fn head(&mut self, segment: SegNr, pos: u64, seq: u64, follows: bool) -> Result<Option<Log>, String> {
        let block = self.r.block(BlockNr(pos))?;
        let header = Header::parse(&self.r.g, &block).ok();
        if header.is_none() {
            self.lone.meet(&self.r.g, pos, &block);
        }
        let own = |h: &Header| h.seq.get() == seq && self.is_later(h, follows && !self.torn);
        let header = header.filter(own);
        let log = header.map(|header| Log { pos: BlockNr(pos), header });
        Ok(log.filter(|log| log.end() <= self.r.g.segment_end(segment).0))
    }

    /// The block behind a segment, as far as the device goes: what is rescued may be cut short, or its numbers made up.
    fn end(&self, segment: SegNr) -> u64 {
        let g = &self.r.g;
        g.segment_end(segment).0.min(self.r.device.len() >> g.block_bits)
    }

    /// Whether the log verifies; what cannot be read does not, nor does anything once nothing is `left` to be read.
    fn is_whole(&mut self, log: &Log) -> bool {
        self.verifies(log).unwrap_or(false)
    }

    /// The same; an error where the device cannot read it.
    fn verifies(&mut self, log: &Log) -> Result<bool, String> {
        let Some(rest) = self.left.checked_sub(log.nblocks()) else { return Ok(false) };
        self.left = rest;
        search::datasum_matches(self.r, log)
    }

    /// Whether a log begins at a block whose summary is whole, as far as something is `left` to be read.
    fn is_head(&mut self, segment: SegNr, pos: u64, seq: u64) -> bool {
        let Some(log) = self.head(segment, pos, seq, false).ok().flatten() else { return false };
        let Some(rest) = self.left.checked_sub(u64::from(log.header.summary_blocks(&self.r.g))) else {
            return false;
        };
        self.left = rest;
        search::summary_is_whole(self.r, &log)
    }

    fn enter(&mut self, segment: SegNr, seq: u64) -> Entered {
        let mut first = None;
        let start = self.r.g.segment_start(segment).0;
        for pos in start..self.end(segment) {
            let Some(log) = self.head(segment, pos, seq, pos == start).ok().flatten() else { continue };
            if self.is_whole(&log) {
                return Entered::Whole;
            }
            first.get_or_insert(log);
        }
        first.map_or(Entered::Nothing, Entered::Broken)
    }

    /// The next segment by sequence number, behind `seq`, among the [`NEAR`] that follow `segment` and begin with a whole
    /// log, or the first of [`SEARCHED`] that has one in it, and that number: what lies in `segment` was one of the chain
    /// whose heads are lost. Logs made before the latest super root were left behind by an earlier mount, and those of no
    /// later checkpoint by writes that failed.
    fn near(&mut self, segment: SegNr, seq: u64) -> Option<(SegNr, u64)> {
        // Super roots there are of no log that follows.
        let known = self.lone.len();
        let found = self.nearest(segment, seq);
        self.lone.truncate(known);
        found
    }

    fn nearest(&mut self, segment: SegNr, seq: u64) -> Option<(SegNr, u64)> {
        let g = self.r.g;
        let last = g.nsegments.checked_sub(1)?;
        let mut best = None;
        let mut at = segment.0;
        for _ in 0..NEAR.min(last) {
            at = if at >= last { 0 } else { at + 1 };
            let start = g.segment_start(SegNr(at));
            let header = self.r.block(start).ok().and_then(|b| Header::parse(&g, &b).ok());
            let latest = self.latest;
            let later = |h: &Header| h.create.get() >= latest.create.get() && h.cno.get() > latest.cno.get();
            let Some(header) = header.filter(later) else { continue };
            let (own, log) = (header.seq.get(), Log { pos: start, header });
            // Numbers wrap, and go up by one with each segment.
            let behind = own.wrapping_sub(seq);
            let fits = (1..=NEAR).contains(&behind) && log.end() <= self.end(SegNr(at));
            if fits && best.is_none_or(|(_, least)| behind < least) && self.is_whole(&log) {
                best = Some((SegNr(at), behind));
            }
        }
        if best.is_some() {
            return best.map(|(at, behind)| (at, seq.wrapping_add(behind)));
        }
        // The heads of the next ones may be lost as well, but not all of them.
        let mut at = segment.0;
        for behind in 1..=SEARCHED.min(last) {
            at = if at >= last { 0 } else { at + 1 };
            let own = seq.wrapping_add(behind);
            self.enough();
            if matches!(self.enter(SegNr(at), own), Entered::Whole) {
                return Some((SegNr(at), own));
            }
            // Segments are written in order: where one was not written again, none behind it was.
            if self.begins_before(SegNr(at), own) {
                break;
            }
        }
        None
    }

    /// Whether a segment begins with a log of an earlier use of it whose summary is whole.
    fn begins_before(&self, segment: SegNr, seq: u64) -> bool {
        let start = self.r.g.segment_start(segment);
        let header = self.r.block(start).ok().and_then(|b| Header::parse(&self.r.g, &b).ok());
        let earlier = |h: &Header| h.seq.get().wrapping_sub(seq).cast_signed() < 0;
        header.is_some_and(|header| {
            earlier(&header) && search::summary_is_whole(self.r, &Log { pos: start, header })
        })
    }

    /// What lies at `pos`: a whole log, something broken before the next head, or nothing any more.
    fn first_whole(&mut self, segment: SegNr, pos: u64, end: u64, seq: u64) -> Step {
        if pos >= end {
            return Step::Nothing;
        }
        let here = self.head(segment, pos, seq, true);
        let verifies = match &here {
            Ok(Some(log)) => self.verifies(log),
            Ok(None) => Ok(false),
            Err(e) => Err(e.clone()),
        };
        match &here {
            Ok(Some(log)) if verifies == Ok(true) => return Step::Whole(*log),
            Ok(Some(log)) => {
                if search::summary_is_whole(self.r, log) {
                    // What lies behind it and was made before it was left behind, too.
                    self.since = self.since.max(log.header.create.get());
                    // No power cut takes the end of the device with it.
                    let certain = verifies.is_err() || log.end() > end;
                    return Step::Broken { pos, end: log.end(), certain };
                }
                // Its length is not to be believed: another log may lie within.
                let next = (pos + 1..end).find(|pos| self.is_head(segment, *pos, seq));
                return Step::Broken { pos, end: next.unwrap_or(log.end()), certain: verifies.is_err() };
            }
            _ => {}
        }
        let more = (pos + 1..end).find(|pos| {
            let head = self.head(segment, *pos, seq, false).ok().flatten();
            head.is_some_and(|log| self.is_whole(&log))
        });
        match (more, here) {
            (Some(next), here) => Step::Broken { pos, end: next, certain: here.is_err() },
            // A block that a mount reads, whatever was in it.
            (None, Err(_)) => Step::Broken { pos, end: pos + 1, certain: true },
            (None, Ok(_)) => Step::Nothing,
        }
    }
}
