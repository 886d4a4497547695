//! Verifying logs by their checksums (spec 3.5): one covers all blocks of a log, so whoever wants to trust one block
//! reads all of them.
//!
//! ```text
//! segment:  | log | log | damaged header ... | log | log |
//!              \____\______ found from the start, header by header; behind a damaged one the next header of the
//!                           same use of the segment is looked for, block by block
//! ```
//!
//! [`verify_log`] does it once; a [`Verifier`] remembers what it found as long as the segment is not written again. Of
//! several that want the same log verified, one reads it and the others wait.
//! Nothing here holds a lock while it reads. Memory: 1 MiB for a log under way, and a few bytes a log that is
//! remembered, [`REMEMBERED`] at most.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use silt_device::Device;
use silt_format::summary::{self, Header};
use silt_format::{BlockNr, Crc, Geometry, SegNr};

use crate::Result;
use crate::search::MAX_SUMMARY;

/// Logs remembered by a [`Verifier`].
const REMEMBERED: usize = 1 << 20;
/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Bytes of a log in memory summed up in one go: some 8 us.
const GO: usize = 64 << 10;

/// What the checksum says of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It matches: every block is what was written.
    Whole,
    /// It does not, or the log cannot be told from what is around it: any of its blocks may be wrong.
    Bad,
}

/// A log, or the blocks between two where no header makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpan {
    /// Disk blocks, summary included.
    pub blocks: Range<u64>,
    /// As far as it was looked at.
    pub state: Option<LogState>,
}

/// Verifies the log of `segment` that holds `block`. Bad are also blocks that no log claims, and those of a log of
/// which the device cannot read a part.
pub fn verify_log(
    device: &dyn Device,
    geometry: &Geometry,
    segment: SegNr,
    block: BlockNr,
) -> Result<(Range<u64>, LogState)> {
    let mut logs = Logs::default();
    let place = logs.find(device, geometry, segment, block)?;
    let span = &logs.spans[place];
    let state = match span.state {
        Some(state) => state,
        None => check(device, geometry, &span.blocks).unwrap_or(LogState::Bad),
    };
    Ok((span.blocks.clone(), state))
}

/// What is known of a segment's logs, from its start on without gaps.
#[derive(Debug, Default)]
struct Logs {
    sequence: Option<u64>,
    spans: Vec<LogSpan>,
    /// The device did not give a header just now: it may next time, so nothing of this is remembered.
    unread: bool,
}

impl Logs {
    /// The place of the span that holds a block, reading on as far as need be.
    fn find(&mut self, device: &dyn Device, g: &Geometry, segment: SegNr, block: BlockNr) -> Result<usize> {
        let end = g.segment_end(segment).0;
        loop {
            let known = self.spans.last().map_or(g.segment_start(segment).0, |s| s.blocks.end);
            if block.0 < known {
                return Ok(self.spans.partition_point(|s| s.blocks.end <= block.0));
            }
            self.read_on(device, g, known, block, end);
        }
    }

    /// Adds the log that begins at `at`. Where none does, what lies before the next one, which ends behind `block`
    /// at the latest.
    fn read_on(&mut self, device: &dyn Device, g: &Geometry, at: u64, block: BlockNr, end: u64) {
        for begin in at..end {
            if let Some(blocks) = self.log_at(device, g, begin, end) {
                if at < begin {
                    self.spans.push(LogSpan { blocks: at..begin, state: Some(LogState::Bad) });
                }
                self.spans.push(LogSpan { blocks: begin..begin + blocks, state: None });
                return;
            }
            if begin >= block.0 {
                self.spans.push(LogSpan { blocks: at..begin + 1, state: Some(LogState::Bad) });
                return;
            }
        }
        self.spans.push(LogSpan { blocks: at..end.max(at + 1), state: Some(LogState::Bad) });
    }

    /// Blocks of the log that begins at `at`, if one of this use of the segment does whose summary is whole.
    fn log_at(&mut self, device: &dyn Device, g: &Geometry, at: u64, end: u64) -> Option<u64> {
        let byte = g.byte_of(BlockNr(at));
        let mut bytes = vec![0; g.bs()];
        self.read(device, byte, &mut bytes)?;
        let header = Header::parse(g, &bytes).ok()?;
        let blocks = u64::from(header.nblocks.get());
        let size = usize::try_from(header.summary_blocks(g)).ok()?.checked_mul(g.bs())?;
        let sequence = header.seq.get();
        if at + blocks > end || size > MAX_SUMMARY || self.sequence.is_some_and(|s| s != sequence) {
            return None;
        }
        if size > bytes.len() {
            bytes.resize(size, 0);
            self.read(device, byte, &mut bytes)?;
        }
        if !summary::summary_sum_matches(g.crc_seed, &header, &bytes) {
            return None;
        }
        self.sequence = Some(sequence);
        Some(blocks)
    }

    fn read(&mut self, device: &dyn Device, byte: u64, bytes: &mut [u8]) -> Option<()> {
        let done = device.read_at(byte, bytes).ok();
        self.unread |= done.is_none();
        done
    }
}

/// Holds a log that is in memory against its checksum, calling `between` now and again (each 64 KiB).
pub(crate) fn matches(g: &Geometry, log: &[u8], between: impl Fn()) -> LogState {
    let Some((sum, rest)) = log.split_at_checked(4) else { return LogState::Bad };
    let mut crc = Crc::new(g.crc_seed);
    for piece in rest.chunks(GO) {
        crc.update(piece);
        between();
    }
    if sum == crc.finish().to_le_bytes() { LogState::Whole } else { LogState::Bad }
}

/// Holds a log against its checksum; `None` where the device does not give all of it.
pub(crate) fn check(device: &dyn Device, g: &Geometry, blocks: &Range<u64>) -> Option<LogState> {
    let (mut pos, end) = (g.byte_of(BlockNr(blocks.start)), g.byte_of(BlockNr(blocks.end)));
    let mut piece = vec![0; PIECE.min(usize::try_from(end - pos).unwrap_or(PIECE))];
    let mut crc = Crc::new(g.crc_seed);
    let mut sum = None;
    while pos < end {
        let n = piece.len().min(usize::try_from(end - pos).unwrap_or(PIECE));
        if device.read_at(pos, &mut piece[..n]).is_err() {
            return None;
        }
        let mut bytes = &piece[..n];
        if sum.is_none() {
            let (first, rest) = bytes.split_at(4);
            sum = first.try_into().ok().map(u32::from_le_bytes);
            bytes = rest;
        }
        crc.update(bytes);
        pos += n as u64;
    }
    Some(if sum == Some(crc.finish()) { LogState::Whole } else { LogState::Bad })
}

/// Verifies each log at most once as long as it is there. Shared by whoever reads.
pub struct Verifier {
    device: Arc<dyn Device>,
    geometry: Geometry,
    known: Mutex<Known>,
    /// Somebody is done with a log.
    done: Condvar,
}

#[derive(Default)]
struct Known {
    segments: HashMap<u64, Logs>,
    logs: usize,
    /// Counts segments that were forgotten: what was read before is not put in afterwards.
    forgotten: u64,
    bad: u64,
    /// First blocks of the logs that are being read.
    reading: HashSet<u64>,
}

/// A log that one reader alone reads; given up when dropped.
struct Turn<'a>(&'a Verifier, u64);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.known().reading.remove(&self.1);
        self.0.done.notify_all();
    }
}

impl Verifier {
    /// One that knows nothing yet.
    pub fn new(device: Arc<dyn Device>, geometry: Geometry) -> Self {
        Verifier { device, geometry, known: Mutex::default(), done: Condvar::new() }
    }

    /// Waits until nobody else reads the log that begins at `log`. `None`: another did meanwhile.
    fn turn(&self, log: u64) -> Option<Turn<'_>> {
        let mut known = self.known();
        while known.reading.contains(&log) {
            known = self.done.wait(known).unwrap_or_else(PoisonError::into_inner);
        }
        if known.state(&self.geometry, BlockNr(log)).is_some() {
            return None;
        }
        known.reading.insert(log);
        Some(Turn(self, log))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of a block and what is remembered of it; `None`: it has to be verified.
    pub fn state(&self, block: BlockNr) -> Option<(Range<u64>, LogState)> {
        self.known().state(&self.geometry, block)
    }

    /// Blocks of its log and what the checksum says, reading the log unless that is remembered. A log that the device
    /// does not give is bad this time, and not remembered. To be called for blocks that are on the device, and with no
    /// lock held.
    pub fn verify(&self, block: BlockNr) -> (Range<u64>, LogState) {
        let segment = self.geometry.segment_of(block);
        let (mut logs, forgotten) = {
            let known = self.known();
            let logs = known.segments.get(&segment.0);
            let copy = logs.map(|l| Logs { sequence: l.sequence, spans: l.spans.clone(), unread: false });
            (copy.unwrap_or_default(), known.forgotten)
        };
        let nothing = (block.0..block.0 + 1, LogState::Bad);
        let Ok(place) = logs.find(&*self.device, &self.geometry, segment, block) else { return nothing };
        let Some(span) = logs.spans.get_mut(place) else { return nothing };
        let fresh = span.state.is_none();
        let _turn = match fresh.then(|| self.turn(span.blocks.start)) {
            Some(None) => match self.state(block) {
                Some(known) => return known,
                // The segment is written again already.
                None => None,
            },
            turn => turn.flatten(),
        };
        let checked = span.state.or_else(|| check(&*self.device, &self.geometry, &span.blocks));
        span.state = checked;
        let state = checked.unwrap_or(LogState::Bad);
        let answer = (span.blocks.clone(), state);
        if checked.is_none() || logs.unread {
            return answer;
        }
        let mut known = self.known();
        if known.forgotten == forgotten {
            known.bad += u64::from(fresh && state == LogState::Bad);
            known.put(segment.0, logs);
        }
        answer
    }

    /// Forgets a segment that is written again.
    pub fn forget(&self, segment: SegNr) {
        let mut known = self.known();
        known.forgotten += 1;
        if let Some(logs) = known.segments.remove(&segment.0) {
            known.logs -= logs.spans.len();
        }
    }

    /// Logs that were found bad.
    pub fn bad(&self) -> u64 {
        self.known().bad
    }
}

impl Known {
    fn state(&self, g: &Geometry, block: BlockNr) -> Option<(Range<u64>, LogState)> {
        let logs = self.segments.get(&g.segment_of(block).0)?;
        let span = logs.spans.get(logs.spans.partition_point(|s| s.blocks.end <= block.0))?;
        let state = span.state.filter(|_| span.blocks.contains(&block.0))?;
        Some((span.blocks.clone(), state))
    }

    /// Remembers a segment's logs; what another found out meanwhile is kept.
    fn put(&mut self, segment: u64, mut logs: Logs) {
        if let Some(old) = self.segments.remove(&segment) {
            self.logs -= old.spans.len();
            for (new, old) in logs.spans.iter_mut().zip(&old.spans) {
                if new.blocks == old.blocks {
                    new.state = new.state.or(old.state);
                }
            }
            let end = logs.spans.last().map_or(0, |s| s.blocks.end);
            let further = old.spans.iter().skip_while(|s| s.blocks.start < end);
            if let Some(next) = further.clone().next()
                && next.blocks.start == end
            {
                logs.spans.extend(further.cloned());
            }
        }
        self.logs += logs.spans.len();
        while self.logs > REMEMBERED {
            let Some(any) = self.segments.keys().next().copied() else { break };
            self.logs -= self.segments.remove(&any).map_or(0, |l| l.spans.len());
        }
        self.segments.insert(segment, logs);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::MemoryDevice;
    use silt_format::Ino;

    use super::*;
    use crate::mkfs::{Parameters, Plan};
    use crate::{Attr, OpenOptions, Time, Tree, Volume};

    fn attr() -> Attr {
        let t = Time::default();
        Attr {
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            mtime: t,
            ctime: t,
            flags: 0,
            generation: 0,
            device: (0, 0),
        }
    }

    /// A volume of many logs in few segments; where the blocks of its files are.
    fn volume() -> (Arc<MemoryDevice>, Volume, Vec<u64>) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let parameters = Parameters { blocks_per_segment: 512, now: 1000, ..Parameters::default() };
        Plan::new(parameters, 64 << 20).unwrap().write(&*device, false).unwrap();
        let options = OpenOptions { max_log_blocks: 16, ..OpenOptions::default() };
        let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
        v.take_over(2000).unwrap();
        let mut files = Vec::new();
        for i in 0..20u64 {
            let ino = v.create_inode(attr()).unwrap();
            for key in 0..40 {
                v.write_block(ino, key, vec![(i * 7 + key) as u8; 4096].into()).unwrap();
            }
            v.attr_mut(ino).unwrap().size = 40 * 4096;
            files.push(ino);
            v.checkpoint(3000 + i).unwrap();
        }
        let blocks = files.into_iter().flat_map(|ino| places(&mut v, ino)).collect();
        (device, v, blocks)
    }

    fn places(v: &mut Volume, ino: Ino) -> Vec<u64> {
        let pieces = v.locate_range(Tree::Live, ino, 0..40).unwrap();
        let place = |p| match p {
            crate::Piece::Disk(b) => b.0,
            _ => 0,
        };
        pieces.into_iter().map(place).collect()
    }

    #[test]
    fn sound_logs_are_whole_and_small_where_that_was_asked_for() {
        let (device, mut v, blocks) = volume();
        let verifier = Verifier::new(device.clone(), *v.geometry());
        for b in blocks {
            let (span, state) = verifier.verify(BlockNr(b));
            assert_eq!(state, LogState::Whole);
            assert!(span.contains(&b) && span.end - span.start <= 16, "{span:?}");
            assert_eq!(verifier.state(BlockNr(b)), Some((span, LogState::Whole)));
        }
        assert_eq!(verifier.bad(), 0);
        v.close(4000).unwrap();
        let report = silt_verify::check(&*device, &silt_verify::Options::default());
        // None of its files has a name.
        assert!(report.errors().all(|f| f.id == "inode-lost"), "{}", report.error_text());
    }

    #[test]
    fn a_changed_block_spoils_its_log_and_no_other() {
        let (device, v, blocks) = volume();
        let g = *v.geometry();
        let at = blocks[100];
        device.write_at(g.byte_of(BlockNr(at)) + 77, &[&[0xEE]]).unwrap();
        let (bad, state) = verify_log(&*device, &g, g.segment_of(BlockNr(at)), BlockNr(at)).unwrap();
        assert!(state == LogState::Bad && bad.contains(&at));
        let verifier = Verifier::new(device.clone(), g);
        for b in blocks {
            let expected = if bad.contains(&b) { LogState::Bad } else { LogState::Whole };
            assert_eq!(verifier.verify(BlockNr(b)).1, expected, "block {b}");
        }
        assert_eq!(verifier.bad(), 1);
    }

    /// The logs behind a damaged header are found all the same.
    #[test]
    fn a_damaged_header_spoils_its_log_and_no_other() {
        let (device, v, blocks) = volume();
        let g = *v.geometry();
        let (log, _) =
            verify_log(&*device, &g, g.segment_of(BlockNr(blocks[200])), BlockNr(blocks[200])).unwrap();
        // The number of its blocks, and the header's checksum with it.
        device.write_at(g.byte_of(BlockNr(log.start)) + 40, &[&[3]]).unwrap();
        let verifier = Verifier::new(device, g);
        for b in blocks {
            let expected = if log.contains(&b) { LogState::Bad } else { LogState::Whole };
            assert_eq!(verifier.verify(BlockNr(b)).1, expected, "block {b}");
        }
    }

    /// What could not be read once is read again: a cable that was loose costs nothing for good.
    #[test]
    fn what_cannot_be_read_is_not_remembered() {
        let (device, v, blocks) = volume();
        let g = *v.geometry();
        let fault = Arc::new(silt_device::Fault::new(device.fork()));
        let at = BlockNr(blocks[300]);
        let (log, _) = verify_log(&*device, &g, g.segment_of(at), at).unwrap();
        let verifier = Verifier::new(fault.clone(), g);
        for unreadable in [log.start, at.0] {
            let byte = g.byte_of(BlockNr(unreadable));
            fault.fail_reads(byte..byte + 4096, silt_device::Times::Next(1));
            assert_eq!(verifier.verify(at).1, LogState::Bad, "block {unreadable} does not come");
            assert_eq!(verifier.state(at), None);
            assert_eq!(verifier.verify(at).1, LogState::Whole, "block {unreadable} comes");
            verifier.forget(g.segment_of(at));
        }
    }

    /// A device that takes its time, as others do.
    struct Slow(MemoryDevice);

    impl Device for Slow {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(2));
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
            self.0.write_at(offset, bufs)
        }
        fn flush(&self) -> silt_device::Result<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
            self.0.discard(offset, len)
        }
        fn capabilities(&self) -> silt_device::Capabilities {
            self.0.capabilities()
        }
    }

    /// Of readers that come at once one reads the log, and all have its answer.
    #[test]
    fn readers_share_what_one_of_them_verifies() {
        let (device, v, blocks) = volume();
        let g = *v.geometry();
        let at = blocks[100];
        device.write_at(g.byte_of(BlockNr(at)) + 77, &[&[0xEE]]).unwrap();
        let (bad, _) = verify_log(&*device, &g, g.segment_of(BlockNr(at)), BlockNr(at)).unwrap();
        let counter = Arc::new(silt_device::Counter::new(Slow(device.fork())));
        let verifier = Verifier::new(counter.clone(), g);
        let start = std::sync::Barrier::new(4);
        let some: Vec<u64> = blocks.iter().copied().skip(80).take(80).collect();
        let mut logs = std::collections::BTreeSet::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for b in &some {
                        let expected = if bad.contains(b) { LogState::Bad } else { LogState::Whole };
                        assert_eq!(verifier.verify(BlockNr(*b)).1, expected, "block {b}");
                    }
                });
            }
        });
        some.iter().for_each(|b| {
            logs.insert(verifier.state(BlockNr(*b)).unwrap().0.start);
        });
        // Heads are looked for by each; a log of up to 16 blocks is read once.
        let content = counter.counts().reads.bytes / 4096;
        let heads = counter.counts().reads.requests - logs.len() as u64;
        let most: u64 = logs
            .iter()
            .map(|l| {
                let span = verifier.state(BlockNr(*l)).unwrap().0;
                span.end - span.start
            })
            .sum();
        assert!(
            content <= most + heads,
            "{content} blocks were read in {heads} heads and {most} blocks of logs"
        );
        assert_eq!(verifier.bad(), 1);
    }

    #[test]
    fn a_segment_that_is_written_again_is_verified_again() {
        let (device, v, blocks) = volume();
        let g = *v.geometry();
        let verifier = Verifier::new(device.clone(), g);
        let at = BlockNr(blocks[0]);
        assert_eq!(verifier.verify(at).1, LogState::Whole);
        device.write_at(g.byte_of(at), &[&[1; 64]]).unwrap();
        assert_eq!(verifier.verify(at).1, LogState::Whole, "remembered");
        verifier.forget(g.segment_of(at));
        assert_eq!((verifier.state(at), verifier.verify(at).1), (None, LogState::Bad));
    }
}
