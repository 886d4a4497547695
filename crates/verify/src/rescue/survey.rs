//! The survey: every log of every segment, what of it verifies, and what cannot be read.
//!
//! The device is read once, from its beginning to its end. A log whose summary verifies is taken at its word: what it
//! covers is not searched. Where there is none, the next block is tried, so that a head that is noise hides nothing
//! behind it.
//!
//! Memory: 64 bytes a log and 16 a range that cannot be read.

use std::ops::Range;

use silt_device::Device;
use silt_format::summary::{self, Header, SR};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::Watch;

/// A log whose summary verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord {
    /// Its first block.
    pub pos: u64,
    /// `ss_seq`.
    pub seq: u64,
    /// `ss_create`, seconds.
    pub create: u64,
    /// `ss_next`.
    pub next: u64,
    /// `ss_cno`.
    pub cno: u64,
    /// Blocks, summary and super root included.
    pub nblocks: u32,
    /// Blocks of the summary.
    pub summary_blocks: u32,
    /// Blocks that cannot be read.
    pub unreadable: u32,
    /// `ss_flags`.
    pub flags: u16,
    /// Whether the checksum over the whole log matches.
    pub whole: bool,
    /// Whether it ends with a super root that verifies.
    pub root: bool,
    /// What an earlier use of the segment left behind: nothing in it is in use.
    pub stale: bool,
}

impl LogRecord {
    /// First block behind it.
    pub fn end(&self) -> u64 {
        self.pos.saturating_add(u64::from(self.nblocks))
    }

    /// First block behind the summary.
    pub fn payload(&self) -> u64 {
        self.pos.saturating_add(u64::from(self.summary_blocks))
    }

    /// Logs are written in this order.
    pub fn order(&self) -> (u64, u64) {
        (self.seq, self.pos)
    }

    /// Whether a flag bit is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// What was found on a device.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// All logs by place.
    pub logs: Vec<LogRecord>,
    /// Blocks that cannot be read, ascending.
    pub unreadable: Vec<Range<u64>>,
    /// Super roots that verify and that no log holds: the head of theirs is lost.
    pub lone_roots: Vec<u64>,
    /// Whether it was ended early.
    pub stopped: bool,
}

/// Bytes read at once.
const STEP: u64 = 1 << 20;

/// Reads blocks in ascending order, many at once; around what cannot be read one at a time.
struct Stream<'a> {
    device: &'a dyn Device,
    g: &'a Geometry,
    bytes: Vec<u8>,
    bad: Vec<bool>,
    first: u64,
    limit: u64,
    watch: &'a dyn Watch,
    /// First block that was not read yet.
    fresh: u64,
    unreadable: Vec<Range<u64>>,
}

impl Stream<'_> {
    /// A block's bytes; `None` where it cannot be read.
    fn block(&mut self, nr: u64) -> Option<&[u8]> {
        let n = self.bad.len() as u64;
        if nr < self.first || nr >= self.first.saturating_add(n) {
            self.fill(nr);
        }
        let i = usize::try_from(nr.checked_sub(self.first)?).ok()?;
        if *self.bad.get(i)? {
            return None;
        }
        let bs = self.g.bs();
        self.bytes.get(i * bs..(i + 1) * bs)
    }

    fn fill(&mut self, nr: u64) {
        let bs = self.g.bs();
        let n = (STEP >> self.g.block_bits).max(1).min(self.limit.saturating_sub(nr));
        let n = usize::try_from(n).unwrap_or(0);
        self.first = nr;
        self.bad.clear();
        self.bad.resize(n, false);
        self.bytes.resize(n * bs, 0);
        if n == 0 {
            return;
        }
        let at = self.g.byte_of(BlockNr(nr));
        if self.device.read_at(at, &mut self.bytes).is_err() {
            for (i, part) in self.bytes.chunks_mut(bs).enumerate() {
                let block = nr + i as u64;
                if self.device.read_at(self.g.byte_of(BlockNr(block)), part).is_err() {
                    self.bad[i] = true;
                    if block >= self.fresh {
                        match self.unreadable.last_mut() {
                            Some(last) if last.end == block => last.end += 1,
                            _ => self.unreadable.push(block..block + 1),
                        }
                    }
                }
            }
        }
        let end = nr + n as u64;
        if end > self.fresh {
            self.watch.done((end - self.fresh.max(nr)) << self.g.block_bits);
            self.fresh = end;
        }
    }

    /// The summary of a log, where all of it can be read and it verifies.
    fn summary(&mut self, pos: u64, h: &Header) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for i in 0..u64::from(h.summary_blocks(self.g)) {
            out.extend_from_slice(self.block(pos + i)?);
        }
        summary::summary_sum_matches(self.g.crc_seed, h, &out).then_some(out)
    }
}

impl Survey {
    /// Surveys a device; `watch` is told in bytes.
    pub fn run(device: &dyn Device, g: &Geometry, watch: &dyn Watch) -> Survey {
        let limit = g.end_block().min(device.len() >> g.block_bits);
        watch.stage("reading all segments", limit << g.block_bits);
        let mut out = Survey::default();
        let mut stream = Stream {
            device,
            g,
            bytes: Vec::new(),
            bad: Vec::new(),
            first: 0,
            limit,
            watch,
            fresh: 0,
            unreadable: Vec::new(),
        };
        let mut segment = SegNr(0);
        while g.segment_start(segment).0 < limit && !out.stopped {
            let first = out.logs.len();
            out.segment(&mut stream, segment);
            mark_stale(g.segment_start(segment).0, out.logs.get_mut(first..).unwrap_or_default());
            segment = segment.next();
            out.stopped = watch.stop();
        }
        out.unreadable = stream.unreadable;
        let end = out.logs.last().map_or(0, LogRecord::end);
        if end > limit {
            out.unreadable.push(limit..end);
        }
        out
    }

    fn segment(&mut self, s: &mut Stream<'_>, segment: SegNr) {
        let g = s.g;
        let mut pos = g.segment_start(segment).0;
        let end = g.segment_end(segment).0.min(s.limit);
        // What is read for heads that turn out to be none: each costs its summary, and all of them together no
        // more than the segment.
        let mut patience = end - pos;
        while pos < end {
            let Some(block) = s.block(pos) else {
                pos += 1;
                continue;
            };
            let root = is_root(g, block);
            // A device that was cut short may end in the midst of one.
            let room = g.segment_end(segment).0 - pos;
            let header = Header::parse(g, block).ok().filter(|h| u64::from(h.nblocks.get()) <= room);
            let Some(h) = header else {
                if root {
                    self.lone_roots.push(pos);
                }
                pos += 1;
                continue;
            };
            let cost = u64::from(h.summary_blocks(g));
            if cost > patience || s.summary(pos, &h).is_none() {
                patience = patience.saturating_sub(cost);
                pos += 1;
                continue;
            }
            let log = judge(s, pos, &h);
            pos = log.end();
            self.logs.push(log);
        }
    }

    /// The log that covers a block. Stale logs do, too.
    pub fn log_at(&self, block: u64) -> Option<&LogRecord> {
        self.index_at(block).and_then(|i| self.logs.get(i))
    }

    /// Index of the log that covers a block.
    pub fn index_at(&self, block: u64) -> Option<usize> {
        let i = self.logs.partition_point(|l| l.pos <= block).checked_sub(1)?;
        self.logs.get(i).filter(|l| block < l.end()).map(|_| i)
    }

    /// Whether a block is as it was written: the checksum of its log, which is in use, matches.
    pub fn is_sound(&self, block: u64) -> bool {
        self.log_at(block).is_some_and(|l| l.whole && !l.stale)
    }

    /// Whether a block is part of a whole log's summary, or its super root: nothing that a file has.
    pub fn is_frame(&self, block: u64) -> bool {
        let log = self.log_at(block).filter(|l| l.whole && !l.stale);
        log.is_some_and(|l| block < l.payload() || (l.root && block.saturating_add(1) == l.end()))
    }

    /// Whether a block cannot be read.
    pub fn is_unreadable(&self, block: u64) -> bool {
        let i = self.unreadable.partition_point(|r| r.start <= block);
        i.checked_sub(1).and_then(|i| self.unreadable.get(i)).is_some_and(|r| r.contains(&block))
    }

    /// The blocks of a range that cannot be read.
    pub fn unreadable_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.unreadable.partition_point(|r| r.end <= range.start);
        let rest = self.unreadable.get(first..).unwrap_or_default().iter();
        let end = range.end;
        rest.take_while(move |r| r.start < end).map(move |r| r.start.max(range.start)..r.end.min(range.end))
    }

    /// Logs in use that end with a super root that verifies, newest first.
    pub fn roots(&self) -> Vec<LogRecord> {
        let mut roots: Vec<LogRecord> = self.logs.iter().filter(|l| l.root && !l.stale).copied().collect();
        roots.sort_unstable_by_key(|l| std::cmp::Reverse(l.order()));
        roots
    }
}

fn is_root(g: &Geometry, block: &[u8]) -> bool {
    let n = 16 + 3 * g.inode_size as usize;
    block.get(4..6).is_some_and(|b| usize::from(u16::from_le_bytes([b[0], b[1]])) == n)
        && SuperRoot::parse(g, block).is_ok()
}

/// Reads a log whose summary verifies to its end.
fn judge(s: &mut Stream<'_>, pos: u64, h: &Header) -> LogRecord {
    let mut log = LogRecord {
        pos,
        seq: h.seq.get(),
        create: h.create.get(),
        next: h.next.get(),
        cno: h.cno.get(),
        nblocks: h.nblocks.get(),
        summary_blocks: h.summary_blocks(s.g),
        unreadable: 0,
        flags: h.flags.get(),
        whole: false,
        root: false,
        stale: false,
    };
    let g = s.g;
    let mut crc = Crc::new(g.crc_seed);
    let there = log.end().min(s.limit);
    log.unreadable = u32::try_from(log.end() - there).unwrap_or(u32::MAX);
    for nr in pos..there {
        match s.block(nr) {
            Some(block) => {
                crc.update(if nr == pos { block.get(4..).unwrap_or_default() } else { block });
                if nr + 1 == log.end() && h.has(SR) {
                    log.root = is_root(g, block);
                }
            }
            None => log.unreadable += 1,
        }
    }
    log.whole = log.unreadable == 0 && crc.finish() == h.datasum.get();
    log
}

/// Of one segment's logs: those of an earlier use. The newest use begins at the segment's first block.
fn mark_stale(start: u64, logs: &mut [LogRecord]) {
    let current = match logs.first() {
        Some(first) if first.pos == start => Some(first.seq),
        _ => logs.iter().map(|l| l.seq).max(),
    };
    for log in logs {
        log.stale = Some(log.seq) != current;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Fault, Times};

    use super::*;
    use crate::Unwatched;
    use crate::surgeon::Surgeon;

    fn survey(s: &Surgeon) -> Survey {
        Survey::run(&s.device, &s.g(), &Unwatched)
    }

    #[test]
    fn all_logs_of_a_sound_volume_are_found_whole() {
        for name in ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "full-4k"] {
            let s = Surgeon::golden(name);
            let found = survey(&s);
            let in_use: Vec<_> = found.logs.iter().filter(|l| !l.stale).collect();
            assert!(in_use.iter().all(|l| l.whole), "{name}");
            let newest = found.roots()[0];
            assert_eq!((newest.pos, newest.cno), (s.latest().pos.0, s.cno()), "{name}");
            assert!(found.unreadable.is_empty());
        }
    }

    #[test]
    fn a_lost_head_hides_only_its_own_log() {
        let mut s = Surgeon::golden("basic-4k");
        let before = survey(&s);
        let victim = before.logs.iter().position(|l| l.seq == before.logs[0].seq && l.nblocks > 20).unwrap();
        let log = before.logs[victim];
        s.patch_with(log.pos, crate::surgeon::Sums::None, |b| b.fill(0xA7));
        let after = survey(&s);
        let expected: Vec<_> = before.logs.iter().copied().filter(|l| l.pos != log.pos).collect();
        assert_eq!(after.logs, expected);
        assert_eq!(after.lone_roots, if log.root { vec![log.end() - 1] } else { vec![] });
        assert!(!after.is_sound(log.pos + 3) && before.is_sound(log.pos + 3));
    }

    #[test]
    fn unreadable_sectors_cost_the_log_that_owns_them() {
        let s = Surgeon::golden("basic-4k");
        let (g, before) = (s.g(), survey(&s));
        let log = *before.logs.iter().find(|l| l.nblocks > 30).unwrap();
        let device = Fault::new(s.device);
        let byte = g.byte_of(BlockNr(log.pos + 20));
        device.fail_reads(byte + 512..byte + 1024, Times::Always);
        let after = Survey::run(&device, &g, &Unwatched);
        assert_eq!(after.unreadable, vec![log.pos + 20..log.pos + 21]);
        assert!(after.is_unreadable(log.pos + 20) && !after.is_unreadable(log.pos + 21));
        assert_eq!(after.logs.len(), before.logs.len());
        for (a, b) in after.logs.iter().zip(&before.logs) {
            assert_eq!(a.whole, b.whole && b.pos != log.pos);
            assert_eq!(a.unreadable, u32::from(b.pos == log.pos));
        }
    }
}
