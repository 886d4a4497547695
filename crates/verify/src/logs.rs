//! Every log of every segment in use (spec section 3): headers, checksums, records, and how
//! logs follow one another. Tells the DAT's check what each block is.
//!
//! Two threads read the next two segments while this one is checked: a disk that is asked for one thing at a time idles
//! between.
//!
//! Memory: three segments of at most 16 MiB (longer ones are read by 1 MiB), the summary of one log, 56 bytes a segment
//! and 40 bytes a checkpoint.

use std::collections::HashMap;
use std::sync::mpsc;

use silt_device::Device;
use silt_format::summary::{GC, HEADER_SIZE, Header, LOGBGN, LOGEND, SR, SYNDT};
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use crate::context::Context;
use crate::dat::{self, NODE};
use crate::invariants as inv;
use crate::records::{self, Record};
use crate::report::Place;
use crate::search::{self, Log};
use crate::super_root;

/// What the chain of logs has shown so far.
#[derive(Default)]
struct Chain {
    /// `ss_seq` and `ss_next` of the segment before, where its logs were readable to the end.
    before: Option<(u64, u64)>,
    /// Whether the log before is known.
    unbroken: bool,
    /// `ss_cno` and whether the log had a super root.
    cno: Option<(u64, bool)>,
    create: u64,
    /// Whether a log of the open logical segment held a block of the tree under construction.
    tree: bool,
    /// Blocks since the first log of the open logical segment, where all of them were seen.
    logical: Option<u64>,
}

/// Blocks and time of the logs that made a checkpoint, by its number.
pub(crate) type Made = HashMap<u64, Birth>;

/// What the logs tell about a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    /// Blocks of all logs of its logical segment, where all of them are still there.
    pub blocks: Option<u64>,
    /// Whether its logs hold blocks of the tree that it made.
    pub tree: bool,
    /// Blocks of the log with the super root.
    pub least: u64,
    /// `ss_create` of the log with the super root.
    pub create: u64,
}

/// Checks all logs, in the order of their sequence numbers.
pub(crate) fn check(c: &mut Context<'_>) -> Made {
    let g = c.r.g;
    let mut order: Vec<(u64, u64)> = Vec::new();
    for (segment, usage) in &c.segments.used {
        if usage.nblocks == 0 || usage.flags & silt_format::segment_usage::DIRTY == 0 {
            continue;
        }
        let start = g.segment_start(SegNr(*segment));
        let used = start.0..start.0.saturating_add(usage.nblocks);
        match c.r.block(start).map(|b| Header::parse(&g, &b)) {
            Ok(Ok(h)) => order.push((h.seq.get(), *segment)),
            Ok(Err(e)) => {
                c.dat_state.silent.insert(used.start, used.end);
                c.out.add(&inv::LOG_HEADER, Place::segment(*segment).at_block(start.0), e.to_string());
            }
            Err(e) => {
                c.dat_state.silent.insert(used.start, used.end);
                c.out.add(&inv::DEVICE_READ, Place::segment(*segment).at_block(start.0), e);
            }
        }
    }
    order.sort_unstable();
    for pair in order.windows(2) {
        if let [(a, first), (b, second)] = pair
            && a == b
        {
            let message = format!("sequence number {a} is also that of segment {first}");
            c.out.add(&inv::LOG_SEQ, Place::segment(*second), message);
        }
    }
    let mut chain = Chain::default();
    let mut made = Made::new();
    let segments: Vec<(u64, u64)> =
        order.iter().map(|(_, s)| (g.segment_start(SegNr(*s)).0, c.segments.used[s].nblocks)).collect();
    let bs = u64::from(g.block_size);
    c.watch.stage(
        "reading logs",
        segments.iter().map(|(_, n)| n.saturating_mul(bs)).fold(0, u64::saturating_add),
    );
    let device = c.r.device;
    std::thread::scope(|scope| {
        // A segment is handed over when it is wanted, and a buffer given back for it: there are never more than three.
        let ahead: Vec<_> = (0..AHEAD_THREADS)
            .map(|n| {
                let (to, from) = mpsc::sync_channel(0);
                let (give_back, used) = mpsc::channel();
                let jobs: Vec<_> = segments.iter().copied().skip(n).step_by(AHEAD_THREADS).collect();
                let reader = std::thread::Builder::new().name("ahead".into());
                // Without the thread every block is read when it is wanted.
                let _ = reader.spawn_scoped(scope, move || read_ahead(device, &g, &jobs, &used, &to));
                (from, give_back)
            })
            .collect();
        let mut turn = ahead.iter().cycle();
        for ((seq, segment), (start, nblocks)) in order.into_iter().zip(segments) {
            if c.stop() {
                break;
            }
            if let Some((from, give_back)) = turn.next() {
                let used = c.r.set_window(start, from.recv().unwrap_or_default());
                // Nobody wants it where the thread has ended.
                let _ = give_back.send(used);
            }
            check_segment(c, segment, seq, &mut chain, &mut made);
            c.watch.done(nblocks.saturating_mul(bs));
        }
        // Ends the threads, too, where they wait to hand something over.
        drop(ahead);
    });
    c.r.set_window(0, Vec::new());
    made
}

/// Threads that read ahead.
const AHEAD_THREADS: usize = 2;

/// Longest run of blocks that is read ahead, in bytes; one for each thread and one more may be in memory.
const AHEAD: u64 = 16 << 20;

/// Reads the used parts of segments, one after another, while others are being checked. What is too long or cannot be
/// read is handed over empty: whoever wants a block of it reads that alone, and finds which one it is. For each but the
/// first, a buffer comes from `used`.
fn read_ahead(
    device: &dyn Device,
    g: &Geometry,
    parts: &[(u64, u64)],
    used: &mpsc::Receiver<Vec<u8>>,
    to: &mpsc::SyncSender<Vec<u8>>,
) {
    let mut bytes = Vec::new();
    for (start, nblocks) in parts {
        let size = nblocks.saturating_mul(u64::from(g.block_size));
        // What was in it is overwritten.
        bytes.resize(if size <= AHEAD { usize::try_from(size).unwrap_or(0) } else { 0 }, 0);
        if device.read_at(g.byte_of(BlockNr(*start)), &mut bytes).is_err() {
            bytes.clear();
        }
        if to.send(bytes).is_err() {
            return;
        }
        bytes = used.recv().unwrap_or_default();
    }
}

fn check_segment(c: &mut Context<'_>, segment: u64, seq: u64, chain: &mut Chain, made: &mut Made) {
    let g = c.r.g;
    let Some(usage) = c.segments.used.get(&segment).copied() else { return };
    let start = g.segment_start(SegNr(segment)).0;
    let end = start + usage.nblocks;
    chain.unbroken = false;
    if let Some((before, next)) = chain.before.take()
        && before.checked_add(1) == Some(seq)
    {
        chain.unbroken = true;
        if next != start {
            let message = format!("the segment with sequence number {before} leads to block {next}");
            c.out.add(&inv::LOG_NEXT, Place::segment(segment), message);
        }
    }
    if !chain.unbroken {
        chain.logical = None;
    }
    let mut pos = start;
    let mut next = None;
    let mut create = 0;
    while pos < end {
        let place = Place::segment(segment).at_block(pos);
        let header = match c.r.block(BlockNr(pos)).map(|b| Header::parse(&g, &b)) {
            Ok(Ok(h)) => h,
            Ok(Err(e)) => {
                c.dat_state.silent.insert(pos, end);
                c.out.add(&inv::LOG_HEADER, place, format!("{e}; {} used blocks follow", end - pos));
                chain.logical = None;
                return;
            }
            Err(e) => {
                c.dat_state.silent.insert(pos, end);
                c.out.add(&inv::DEVICE_READ, place, e);
                return;
            }
        };
        let log = Log { pos: BlockNr(pos), header };
        if log.end() > g.segment_end(SegNr(segment)).0 {
            c.dat_state.silent.insert(pos, end);
            c.out.add(&inv::LOG_FIT, place, format!("{} blocks do not fit the segment", header.nblocks));
            chain.logical = None;
            return;
        }
        if usize::from(header.bytes.get()) != HEADER_SIZE {
            c.out.add(&inv::LOG_HEADER, place, format!("a header of {} bytes", header.bytes));
        }
        if header.seq.get() != seq {
            let message = format!("sequence number {} in a segment with {seq}", header.seq);
            c.out.add(&inv::LOG_SEQ, place, message);
        }
        let named = header.next.get();
        if next.is_some_and(|n| n != named) {
            c.out.add(&inv::LOG_NEXT, place, format!("leads to block {named}, logs before it elsewhere"));
        }
        if g.segment_start(g.segment_of(BlockNr(named))).0 != named || named == start {
            c.out.add(&inv::LOG_NEXT, place, format!("block {named} is not the start of another segment"));
        }
        next = Some(named);
        check_log(c, &log, place, chain, made);
        create = header.create.get();
        pos = log.end();
    }
    if pos != end {
        let message = format!("{} used blocks; its logs end at block {pos}", usage.nblocks);
        c.out.add(&inv::SU_NBLOCKS, Place::segment(segment), message);
    }
    if usage.lastmod != create {
        let message = format!("time {}, its last log is of {create}", usage.lastmod);
        c.out.add(&inv::SU_LASTMOD, Place::segment(segment), message);
    }
    chain.before = next.map(|n| (seq, n));
}

fn check_log(c: &mut Context<'_>, log: &Log, place: Place, chain: &mut Chain, made: &mut Made) {
    let g = c.r.g;
    let h = &log.header;
    c.out.stats(|s| s.logs += 1);
    follow(c, log, place, chain, made);
    match search::datasum_matches(&c.r, log) {
        Ok(true) => {}
        Ok(false) => {
            c.out.unverified(log.pos.0, log.end());
            c.dat_state.unverified.insert(log.pos.0, log.end());
            c.out.add(&inv::LOG_DATASUM, place, "the log's checksum does not match");
        }
        Err(e) => c.out.add(&inv::DEVICE_READ, place, e),
    }
    if h.summary_blocks(&g) as usize > search::SUMMARY_LIMIT / g.bs() {
        c.dat_state.silent.insert(log.pos.0, log.end());
        c.out.add(&inv::LOG_RECORDS, place, format!("a summary of {} bytes", h.sumbytes));
        return;
    }
    let summary = match search::summary_of(&c.r, log) {
        Ok(s) => s,
        Err(e) => {
            c.dat_state.silent.insert(log.pos.0, log.end());
            c.out.add(&inv::DEVICE_READ, place, e);
            return;
        }
    };
    if !silt_format::summary::summary_sum_matches(g.crc_seed, h, &summary) {
        c.out.add(&inv::LOG_SUMSUM, place, "the summary's checksum does not match");
        // What it says of its blocks is as good as nothing.
        c.dat_state.silent.insert(log.pos.0, log.end());
        return;
    }
    let first = log.pos.0 + u64::from(h.summary_blocks(&g));
    let out = c.out;
    chain.tree &= !h.has(LOGBGN);
    let cno = h.cno.get();
    records::walk(
        &g,
        h,
        &summary,
        |ino, fi_cno, record, index| {
            // What the cleaner moved keeps the number it had.
            chain.tree |= fi_cno == cno && !(Ino::DAT.0..=Ino::SUFILE.0).contains(&ino);
            note(c, ino, fi_cno, record, first + index);
        },
        |invariant, message| out.add(invariant, place, message),
    );
    if h.has(SR) {
        if let Some(birth) = made.get_mut(&cno) {
            birth.tree = chain.tree;
        }
        super_root::check(c, log);
    }
}

/// Flags, checkpoint numbers and times from log to log.
fn follow(c: &Context<'_>, log: &Log, place: Place, chain: &mut Chain, made: &mut Made) {
    let h = &log.header;
    let (flags, cno) = (h.flags.get(), h.cno.get());
    let known = LOGBGN | LOGEND | SR | SYNDT | GC;
    if flags & !known != 0 || (h.has(SR) && !h.has(LOGEND)) || (h.has(SR) && h.has(SYNDT)) {
        c.out.add(&inv::LOG_FLAGS, place, format!("flags {flags:#x}"));
    }
    if let Some((before, root)) = chain.cno {
        let least = before.saturating_add(u64::from(root));
        if cno < least || (chain.unbroken && cno != least) {
            c.out.add(&inv::LOG_CNO, place, format!("checkpoint {cno} behind {before}"));
        }
    }
    if cno > c.cno {
        c.out.add(&inv::LOG_CNO, place, format!("checkpoint {cno}; the latest is {}", c.cno));
    }
    chain.cno = Some((cno, h.has(SR)));
    chain.unbroken = true;
    if h.create.get() < chain.create {
        let message = format!("made at {}, the log before at {}", h.create, chain.create);
        c.out.add(&inv::LOG_CREATE, place, message);
    }
    chain.create = h.create.get();
    chain.logical = if h.has(LOGBGN) {
        Some(log.nblocks())
    } else {
        chain.logical.map(|n| n.saturating_add(log.nblocks()))
    };
    if h.has(SR) {
        made.insert(
            cno,
            Birth { blocks: chain.logical, tree: false, least: log.nblocks(), create: h.create.get() },
        );
    }
    if h.has(LOGEND) {
        chain.logical = None;
    }
}

/// Hands one record on to who knows the block.
fn note(c: &mut Context<'_>, ino: u64, fi_cno: u64, record: Record, block: u64) {
    let place = Place::ino(ino).at_block(block);
    let user = ino == Ino::ROOT.0 || (Ino::CPFILE.0..=Ino::IFILE.0).contains(&ino) || ino >= 7;
    match record {
        Record::Data { vblock, offset } => {
            if !user || !dat::is_possible(&c.r.g, vblock) || vblock == 0 || offset > c.r.g.max_key() {
                let message = format!("a record of virtual block {vblock} at offset {offset}");
                c.out.add(&inv::LOG_OWN, place, message);
                return;
            }
            dat::note_record(c, block, ino, fi_cno, vblock, offset);
        }
        Record::Node { vblock } => {
            if !user || !dat::is_possible(&c.r.g, vblock) || vblock == 0 {
                c.out.add(&inv::LOG_OWN, place, format!("a record of virtual block {vblock}"));
                return;
            }
            dat::note_record(c, block, ino, fi_cno, vblock, NODE);
        }
        Record::DatData { offset } => dat::note_own_record(c, block, offset, 0),
        Record::DatNode { key, level } => {
            if level == 0 || level >= silt_format::btree::LEVEL_MAX {
                c.out.add(&inv::LOG_OWN, place, format!("a node of the DAT at level {level}"));
                return;
            }
            dat::note_own_record(c, block, key, level);
        }
    }
}
