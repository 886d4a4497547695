//! Finding the newest checkpoint: the super-root search (spec 4.1, 4.2).

use hashbrown::HashSet;
use silt_format::summary::{self, Header, Payload};
use silt_format::super_block::STATE_VALID;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::log::Cursor;
use crate::supers::{LastLog, Supers};
use crate::{At, Error, Result};
use silt_device::Device;

/// Largest summary that is read, in bytes. A log needs some 20 a block.
pub const MAX_SUMMARY: usize = 64 << 20;

/// What the search found.
#[derive(Debug)]
pub struct Found {
    /// The newest log with a super root.
    pub last: LastLog,
    /// `ss_create` of it, seconds.
    pub create: u64,
    pub root: SuperRoot,
    /// Where the writer goes on.
    pub cursor: Cursor,
    /// Complete logical segments behind the super root, from this log to that one.
    pub tail: Option<Tail>,
    /// Sequence number of the last valid log.
    pub last_seq: u64,
    /// Every segment that was or may have been written behind the super root, its own excepted.
    pub touched: Vec<SegNr>,
    /// Those of them in which nothing of `tail` lies: what was written there nobody was promised.
    pub unpromised: Vec<SegNr>,
    /// What the preferred super block names, where that leads nowhere and what was found instead is older.
    pub newer: Option<LastLog>,
}

/// Logs behind the newest super root that may have to be rolled forward.
#[derive(Debug, Clone)]
pub struct Tail {
    /// First log of the first logical segment.
    pub start: u64,
    pub start_seq: u64,
    /// Last log that ends one.
    pub end: u64,
    /// Blocks of the logs from the first to that.
    pub blocks: u64,
    /// The checkpoint that comes next, which these logs say they belong to.
    pub cno: u64,
    /// A log is missing before them.
    pub torn: bool,
}

/// What a block behind the newest super root is that the device cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// An error: it may hold what was synced.
    Fails,
    /// The end of what there is.
    Ends,
}

/// The logs of a chain in the order in which a mount comes to them (spec 4.2). Reads each whole.
pub(crate) struct Walk<'a> {
    device: &'a dyn Device,
    g: &'a Geometry,
    pos: BlockNr,
    seq: u64,
    segment: SegNr,
    next: SegNr,
    /// Number of the checkpoint that the next super root makes.
    cno: u64,
    /// Where the last log was looked for there is none.
    missed: bool,
    /// A log is missing behind the last super root.
    torn: bool,
    /// The segment is used up, or holds no more logs.
    leaves: bool,
    /// Segments that were left behind.
    passed: Vec<SegNr>,
    /// Sequence numbers go up by one a segment, so a chain through valid logs cannot be longer
    /// than twice the segments before it meets a log it has overwritten.
    segments_left: u64,
    unreadable: Unreadable,
}

/// A log that a [`Walk`] came to.
pub(crate) struct Reached {
    pub pos: BlockNr,
    pub seq: u64,
    pub header: Header,
}

impl<'a> Walk<'a> {
    /// From a log at `pos` on, which belongs to checkpoint `cno`.
    pub fn from(device: &'a dyn Device, g: &'a Geometry, pos: BlockNr, seq: u64, cno: u64) -> Self {
        let segment = g.segment_of(pos);
        let segments_left = g.nsegments.saturating_mul(2).saturating_add(2);
        let passed = Vec::new();
        let (next, missed, torn, leaves) = (segment, false, false, false);
        let unreadable = Unreadable::Fails;
        Walk {
            device,
            g,
            pos,
            seq,
            segment,
            next,
            cno,
            missed,
            torn,
            leaves,
            passed,
            segments_left,
            unreadable,
        }
    }

    /// The same over logs that a search came to.
    pub fn again(device: &'a dyn Device, g: &'a Geometry, tail: &Tail) -> Self {
        Walk { torn: tail.torn, ..Walk::from(device, g, BlockNr(tail.start), tail.start_seq, tail.cno) }
    }

    /// The next log; `None` where the chain ends.
    pub fn next(&mut self) -> Result<Option<Reached>> {
        loop {
            if std::mem::take(&mut self.leaves) && !self.enter_next() {
                return Ok(None);
            }
            let log = match read_log(self.device, self.g, self.pos, self.seq) {
                Err(Error::Device(_)) if self.unreadable == Unreadable::Ends => None,
                log => log?,
            };
            if let Some(header) = log {
                let (begins, root) = (header.has(summary::LOGBGN), header.has(summary::SR));
                let counted = header.cno.get() == self.cno;
                // The device may have written later logs and not earlier ones. Behind a torn log only what begins anew can be
                // whole, and only the next checkpoint makes good what is missing: synced data would be put in place without
                // what was synced before it.
                let follows = if self.torn {
                    counted && (begins || !self.missed) && !header.has(summary::SYNDT)
                } else {
                    counted || !root
                };
                if follows && header.leads_on(self.g) {
                    return Ok(Some(self.take(header)));
                }
            }
            if self.missed {
                return Ok(None);
            }
            (self.missed, self.torn, self.leaves) = (true, true, true);
        }
    }

    /// Where a writer goes on behind the log that was just reached.
    fn cursor_behind(&self, log: &Reached) -> Cursor {
        let segment = self.g.segment_of(log.pos);
        let offset = self.pos.0 - self.g.segment_start(segment).0;
        Cursor { segment, next: self.next, offset, seq: log.seq }
    }

    /// Moves behind a log that counts.
    fn take(&mut self, header: Header) -> Reached {
        let reached = Reached { pos: self.pos, seq: self.seq, header };
        self.missed = false;
        self.next = self.g.segment_of(BlockNr(header.next.get()));
        self.pos = BlockNr(self.pos.0.saturating_add(u64::from(header.nblocks.get())));
        self.leaves = self.pos.0.saturating_add(1) >= self.g.segment_end(self.segment).0;
        if header.has(summary::SR) {
            self.cno = self.cno.saturating_add(1);
            self.torn = false;
            self.passed.clear();
        }
        reached
    }

    fn enter_next(&mut self) -> bool {
        if self.next == self.segment && self.missed {
            return false;
        }
        let Some(left) = self.segments_left.checked_sub(1) else { return false };
        self.segments_left = left;
        self.passed.push(self.segment);
        self.seq = self.seq.wrapping_add(1);
        self.segment = self.next;
        self.pos = self.g.segment_start(self.segment);
        true
    }
}

/// Bytes of a log that are read at once.
const PIECE: usize = 1 << 20;

/// Reads and verifies the log at `at`: `None` if there is no valid log with that sequence number.
pub fn read_log(device: &dyn Device, g: &Geometry, at: BlockNr, seq: u64) -> Result<Option<Header>> {
    if !g.holds(at) {
        return Ok(None);
    }
    let mut block = vec![0u8; g.bs()];
    device.read_at(g.byte_of(at), &mut block)?;
    let Ok(header) = Header::parse(g, &block) else { return Ok(None) };
    let nblocks = u64::from(header.nblocks.get());
    if header.seq.get() != seq || at.0 + nblocks > g.segment_end(g.segment_of(at)).0 {
        return Ok(None);
    }
    let mut crc = Crc::new(g.crc_seed);
    crc.update(&block[4..]);
    let mut pos = g.byte_of(at) + u64::from(g.block_size);
    let end = g.byte_of(BlockNr(at.0 + nblocks));
    // A log is at most a segment; it is read in pieces to keep memory small.
    let most = |from: u64| usize::try_from(end.saturating_sub(from)).unwrap_or(PIECE).min(PIECE);
    let mut piece = vec![0u8; most(pos)];
    while pos < end {
        let n = most(pos);
        device.read_at(pos, &mut piece[..n])?;
        crc.update(&piece[..n]);
        pos += n as u64;
    }
    Ok((crc.finish() == header.datasum.get()).then_some(header))
}

/// The payload descriptions of a verified log.
pub fn payloads(device: &dyn Device, g: &Geometry, at: BlockNr, header: &Header) -> Result<Vec<Payload>> {
    let len = u64::from(header.summary_blocks(g)) * u64::from(g.block_size);
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_SUMMARY).ok_or_else(|| {
        Error::corrupt(format!("block {at}"), "segment summary", format!("has {len} bytes"))
    })?;
    let mut bytes = vec![0u8; len];
    device.read_at(g.byte_of(at), &mut bytes)?;
    let mut all = Vec::new();
    summary::for_each_payload(g, header, &bytes, |p| all.push(p)).at(|| format!("log at block {at}"))?;
    Ok(all)
}

/// Reads the super root that ends a verified log.
pub fn read_super_root(device: &dyn Device, g: &Geometry, at: BlockNr, header: &Header) -> Result<SuperRoot> {
    let place = BlockNr(at.0 + u64::from(header.nblocks.get()) - 1);
    let mut block = vec![0u8; g.bs()];
    device.read_at(g.byte_of(place), &mut block)?;
    SuperRoot::parse(g, &block).at(|| format!("block {place}"))
}

/// Searches from the preferred super block, then from the other (spec 4.2). What is found from that may be older than what the first
/// names ([`Found::newer`]): a super block is written after its log is durable, so that log was whole once. What the older
/// checkpoint needs may have been written over since, and whoever writes behind it ends what tells of the newer one.
pub(crate) fn search(
    device: &dyn Device,
    g: &Geometry,
    supers: &mut Supers,
    unreadable: Unreadable,
) -> Result<Found> {
    let start = |b: &silt_format::super_block::SuperBlock| LastLog {
        pseg: b.last_pseg.get(),
        seq: b.last_seq.get(),
        cno: b.last_cno.get(),
    };
    let clean = supers.first.1.state.get() & STATE_VALID != 0;
    let first = search_from(device, g, start(&supers.first.1), clean, unreadable);
    let Err(e) = first else { return first };
    let Some((_, second)) = &supers.second else { return Err(e) };
    if second.last_cno.get() == 0 || second.log_block_size.get() != supers.first.1.log_block_size.get() {
        return Err(e);
    }
    let Ok(mut found) = search_from(device, g, start(second), false, unreadable) else { return Err(e) };
    found.newer = Some(start(&supers.first.1)).filter(|named| named.cno > found.last.cno);
    if let Some(second) = supers.second.take() {
        let first = std::mem::replace(&mut supers.first, second);
        supers.second = Some(first);
    }
    supers.state_at_open &= !STATE_VALID;
    Ok(found)
}

pub(crate) fn search_from(
    device: &dyn Device,
    g: &Geometry,
    from: LastLog,
    clean: bool,
    unreadable: Unreadable,
) -> Result<Found> {
    search_behind(device, g, from, None, clean, unreadable)
}

/// A log that counts although not all of it can be read.
pub(crate) struct Trusted {
    pub header: Header,
    /// What stands for its super root, where that is lost.
    pub root: Option<SuperRoot>,
}

/// As [`search_from`], beginning with a `trusted` log.
pub(crate) fn search_behind(
    device: &dyn Device,
    g: &Geometry,
    from: LastLog,
    trusted: Option<&Trusted>,
    clean: bool,
    unreadable: Unreadable,
) -> Result<Found> {
    let no_log = || Error::corrupt(format!("block {}", from.pseg), "super block", "points to no checkpoint");
    let mut walk = Walk { unreadable, ..Walk::from(device, g, BlockNr(from.pseg), from.seq, from.cno) };
    let first = match trusted {
        Some(trusted) => Some(trusted.header),
        None => read_log(device, g, walk.pos, walk.seq)?,
    };
    let first = first.filter(|h| h.leads_on(g) && h.has(summary::SR)).ok_or_else(no_log)?;
    from.cno.checked_add(1).ok_or_else(no_log)?;
    let mut log = walk.take(first);
    let (mut last, mut header, mut cursor) = (from, first, walk.cursor_behind(&log));
    let (mut start, mut end): (Option<(u64, u64)>, Option<u64>) = (None, None);
    let mut torn = false;
    // Segments that were passed up to the end of the tail, and that in which it ends.
    let mut promised = 0;
    let (mut seen, mut blocks) = (0u64, 0);
    while !clean && let Some(next) = walk.next()? {
        log = next;
        if log.header.has(summary::SR) {
            last = LastLog { pseg: log.pos.0, seq: log.seq, cno: log.header.cno.get() };
            (header, cursor) = (log.header, walk.cursor_behind(&log));
            (start, end) = (None, None);
            continue;
        }
        if start.is_none() && log.header.has(summary::LOGBGN) {
            start = Some((log.pos.0, log.seq));
            torn = walk.torn;
            seen = 0;
        }
        seen = seen.saturating_add(u64::from(log.header.nblocks.get()));
        if log.header.has(summary::LOGEND) && start.is_some() {
            end = Some(log.pos.0);
            (promised, blocks) = (walk.passed.len() + 1, seen);
        }
    }
    let (last_seq, segment, next) = (log.seq, walk.segment, walk.next);
    let root = match trusted.and_then(|t| t.root.as_ref()).filter(|_| last == from) {
        Some(root) => root.clone(),
        None => read_super_root(device, g, BlockNr(last.pseg), &header)?,
    };
    let tail = match (start, end) {
        (Some((start, start_seq)), Some(end)) => {
            Some(Tail { start, start_seq, end, blocks, cno: walk.cno, torn })
        }
        _ => None,
    };
    let mut touched = walk.passed;
    touched.extend([segment, next, cursor.next]);
    let promised: HashSet<SegNr> =
        touched.iter().take(promised).filter(|_| tail.is_some()).copied().collect();
    touched.retain(|s| *s != cursor.segment);
    touched.sort_unstable();
    touched.dedup();
    let unpromised = touched.iter().copied().filter(|s| !promised.contains(s)).collect();
    let create = header.create.get();
    Ok(Found { last, create, root, cursor, tail, last_seq, touched, unpromised, newer: None })
}
