//! What is wrong with a log that does not verify: a flipped bit, sectors that cannot be read, blocks that make no
//! sense, or no more than a checksum.

use silt_format::summary::{self, HEADER_SIZE, Header, SR};
use silt_format::{BlockNr, SegNr};
use zerocopy::FromBytes;

use crate::reader::Block;
use crate::records::{self, Record};
use crate::scrub::finding::{Finding, Flip, Kind, SPOTS, Spot};
use crate::scrub::owners::{self, Owners};
use crate::scrub::sense;
use crate::scrub::syndrome::{self, Place};
use crate::scrub::view::View;
use crate::scrub::whole::{self, Whole};
use crate::scrub::{Conduct, Stopped};
use crate::search::SUMMARY_LIMIT;
use crate::tree::Tree;

/// Records of needed blocks that are looked at in one log.
const RECORDS: usize = 1 << 20;

/// The volume around a log, as far as a diagnosis needs it.
pub(crate) struct Around<'v, 'a> {
    pub view: &'v View<'a>,
    /// The newest tree, where it can be opened.
    pub tree: Option<&'v Tree<'a>>,
    pub conduct: &'v dyn Conduct,
}

/// A place where a log begins.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub segment: u64,
    pub pos: u64,
    /// First block behind the used part of the segment.
    pub end: u64,
    /// Sequence number of the segment, where known.
    pub seq: Option<u64>,
}

/// The summary of a log, as it is or with one bit turned back.
struct Summary {
    header: Header,
    bytes: Vec<u8>,
    /// Its own checksum matches.
    sound: bool,
}

impl Around<'_, '_> {
    /// The head of a log at `pos`: one that fits the segment, with the sequence number.
    pub fn head(&self, at: At, pos: u64) -> Option<Header> {
        let g = &self.view.r.g;
        let header = Header::parse(g, &self.view.r.block(BlockNr(pos)).ok()?).ok()?;
        let fits = pos + u64::from(header.nblocks.get()) <= g.segment_end(SegNr(at.segment)).0;
        (fits && at.seq.is_none_or(|seq| seq == header.seq.get())).then_some(header)
    }

    /// Whether a log ends in front of `pos`: another begins there, or the used part of the segment ends.
    pub fn is_boundary(&self, at: At, pos: u64) -> bool {
        pos == at.end || (pos < at.end && self.head(at, pos).is_some())
    }

    /// The first log behind `from` whose summary verifies.
    fn next_log(&self, at: At, from: u64) -> Option<u64> {
        (from..at.end).find(|pos| {
            self.head(at, *pos).is_some_and(|header| {
                let bytes = self.summary_bytes(*pos, &header, None);
                bytes.is_some_and(|b| summary::summary_sum_matches(self.view.r.g.crc_seed, &header, &b))
            })
        })
    }

    fn summary_bytes(&self, pos: u64, header: &Header, flip: Option<(u64, u8)>) -> Option<Vec<u8>> {
        let g = &self.view.r.g;
        let n = header.summary_blocks(g) as usize * g.bs();
        if n > SUMMARY_LIMIT {
            return None;
        }
        let mut bytes = vec![0; n];
        self.view.r.read(BlockNr(pos), &mut bytes).ok()?;
        turn(&mut bytes, 0, flip);
        Some(bytes)
    }

    /// The summary with a bit turned back.
    fn summary(&self, at: At, flip: Option<(u64, u8)>) -> Option<Summary> {
        let g = &self.view.r.g;
        let mut first = self.view.r.block(BlockNr(at.pos)).ok()?.to_vec();
        turn(&mut first, 0, flip);
        let header = Header::parse(g, &first).ok()?;
        let bytes = self.summary_bytes(at.pos, &header, flip)?;
        let sound = summary::summary_sum_matches(g.crc_seed, &header, &bytes);
        Some(Summary { header, bytes, sound })
    }

    /// Looks closely at a log that did not verify. Returns what is wrong, and the block behind it. `Ok(None)`: it
    /// verifies.
    pub fn log(&self, at: At) -> Result<(Option<Finding>, u64), Stopped> {
        let header = self.head(at, at.pos);
        let stated = header.map(|h| at.pos + u64::from(h.nblocks.get()));
        // A summary that verifies says where its log ends, whatever the table of segments says: that may be what is damaged.
        let certain = stated.filter(|_| self.summary(at, None).is_some_and(|s| s.sound));
        let stated = stated.filter(|end| *end <= at.end);
        let ends = match certain.or_else(|| stated.filter(|end| self.is_boundary(at, *end))) {
            Some(end) => vec![end],
            None => {
                let next = self.next_log(at, at.pos + 1).unwrap_or(at.end);
                let mut ends = vec![next];
                ends.extend(stated.filter(|end| *end != next));
                ends
            }
        };
        let end = ends.first().copied().unwrap_or(at.end);
        for end in ends {
            let whole = whole::read(&self.view.r, at.pos, end - at.pos, None, self.conduct)?;
            if whole.is_sound() && header.is_some() {
                return Ok((None, end));
            }
            if !whole.unreadable.is_empty() {
                return Ok((Some(self.unreadable(at, end, &whole)), end));
            }
            if let Some(finding) = self.flipped(at, end, &whole)? {
                return Ok((Some(finding), end));
            }
        }
        Ok((Some(self.suspects(at, end)), end))
    }

    fn finding(&self, at: At, end: u64, kind: Kind) -> Finding {
        Finding {
            kind,
            segment: at.segment,
            log: at.pos,
            blocks: end - at.pos,
            spots: Vec::new(),
            spots_left_out: 0,
            suspects: Vec::new(),
            suspects_left_out: 0,
            unknown: 0,
            records_lost: false,
            one_in: None,
        }
    }

    /// A log that did not verify and does now.
    pub fn transient(&self, at: At, end: u64) -> Finding {
        self.finding(at, end, Kind::Transient)
    }

    /// A single flipped bit, if one explains it and no second checksum contradicts.
    fn flipped(&self, at: At, end: u64, whole: &Whole) -> Result<Option<Finding>, Stopped> {
        let r = &self.view.r;
        let bytes = ((end - at.pos) << r.g.block_bits) - 4;
        let (byte, bit) = match syndrome::flipped_bit(whole.stored, whole.computed, bytes) {
            Some(Place::Stored(bit)) => (u64::from(bit / 8), bit % 8),
            Some(Place::Message(byte, bit)) => (byte + 4, bit),
            None => return Ok(None),
        };
        let flip = Some((byte, bit));
        if !whole::read(r, at.pos, end - at.pos, flip, self.conduct)?.is_sound() {
            return Ok(None);
        }
        // The summary has a checksum of its own, and the head has to be one.
        let Some(right) = self.summary(at, flip) else { return Ok(None) };
        let fits = at.pos + u64::from(right.header.nblocks.get()) == end;
        if !right.sound || !fits || at.seq.is_some_and(|seq| seq != right.header.seq.get()) {
            return Ok(None);
        }
        let in_summary = (4..u64::from(right.header.sumbytes.get())).contains(&byte);
        let root_block = right.header.has(SR).then(|| end - 1);
        let mut finding = self.finding(at, end, Kind::FlippedBit);
        let mut confirmed = in_summary;
        if let Some(block) = root_block {
            let mut bytes = r.block(BlockNr(block)).map(|b| b.to_vec()).unwrap_or_default();
            let before = sum_of_root(r.g.crc_seed, &bytes);
            turn(&mut bytes, (block - at.pos) << r.g.block_bits, flip);
            if !sum_of_root(r.g.crc_seed, &bytes) {
                return Ok(None);
            }
            confirmed |= !before;
        }
        finding.one_in = (!confirmed).then(|| syndrome::one_in(bytes));
        let block = at.pos + (byte >> r.g.block_bits);
        let in_block = byte & u64::from(r.g.block_size - 1);
        let found =
            r.block(BlockNr(block)).ok().and_then(|b| b.get(usize::try_from(in_block).ok()?).copied());
        let mut spot = self.spot(block, in_block, 1);
        spot.flip = found.map(|found| Flip { bit, found, right: found ^ (1 << bit) });
        self.place(at, end, &right, &mut spot);
        finding.spots.push(spot);
        Ok(Some(finding))
    }

    /// What cannot be read, with its owners.
    fn unreadable(&self, at: At, end: u64, whole: &Whole) -> Finding {
        let g = &self.view.r.g;
        let mut finding = self.finding(at, end, Kind::Unreadable);
        finding.spots_left_out = whole.left_out;
        let summary = self.summary(at, None).filter(|s| s.sound);
        for (byte, bytes) in &whole.unreadable {
            // A block at a time: blocks have owners.
            let mut from = *byte;
            let to = byte + bytes;
            while from < to {
                let behind = ((from >> g.block_bits) + 1) << g.block_bits;
                let until = behind.min(to);
                if finding.spots.len() < SPOTS {
                    let block = at.pos + (from >> g.block_bits);
                    let mut spot = self.spot(block, from & u64::from(g.block_size - 1), until - from);
                    match &summary {
                        Some(summary) => self.place(at, end, summary, &mut spot),
                        None if block == at.pos => "the log's summary".clone_into(&mut spot.what),
                        None => spot.unused = !self.view.needed.contains(block),
                    }
                    finding.spots.push(spot);
                } else {
                    finding.spots_left_out += 1;
                }
                from = until;
            }
        }
        if summary.is_none() {
            self.without_records(at, end, &mut finding);
        }
        finding
    }

    /// Everything that may be hit, as no more is known.
    fn suspects(&self, at: At, end: u64) -> Finding {
        let g = self.view.r.g;
        let summary = self.summary(at, None).filter(|s| at.pos + u64::from(s.header.nblocks.get()) == end);
        let mut finding = self.finding(at, end, Kind::Checksum);
        let Some(summary) = summary else {
            finding.kind = Kind::Header;
            self.without_records(at, end, &mut finding);
            return finding;
        };
        if summary.header.has(SR) {
            let root = self.view.r.block(BlockNr(end - 1));
            if !root.is_ok_and(|b| sum_of_root(g.crc_seed, &b)) {
                let mut spot = self.spot(end - 1, 0, u64::from(g.block_size));
                self.place(at, end, &summary, &mut spot);
                "the super root, whose own checksum does not match".clone_into(&mut spot.what);
                finding.spots.push(spot);
            }
        }
        if !summary.sound {
            let mut spot = self.spot(at.pos, 0, summary.header.sumbytes.get().into());
            "the log's summary, whose own checksum does not match".clone_into(&mut spot.what);
            finding.spots.push(spot);
            self.without_records(at, end, &mut finding);
        } else {
            let mut owners = Owners::default();
            for (ino, record, block) in self.needed_records(at, end, &summary) {
                let Some(owner) = owners::of_record(self.view, ino, record, block) else { continue };
                let bytes = self.view.r.block(BlockNr(block)).ok();
                let directory = owner.until.is_none() && self.is_directory(ino);
                match bytes.and_then(|b: Block| sense::objection(&g, ino, record, directory, &b)) {
                    Some(why) if finding.spots.len() < SPOTS => {
                        let mut spot = self.spot(block, 0, u64::from(g.block_size));
                        owners::describe(self.view, &mut spot, ino, record);
                        // The block as a whole, not its first entry.
                        spot.what = format!("makes no sense ({why}): a block");
                        (spot.entry_of, spot.file_byte) = (None, None);
                        finding.spots.push(spot);
                    }
                    Some(_) => finding.spots_left_out += 1,
                    None => owners.add(owner),
                }
            }
            (finding.suspects, finding.suspects_left_out) = (owners.list, owners.left_out);
        }
        if !finding.spots.is_empty() {
            finding.kind = Kind::Structure;
        }
        finding
    }

    fn is_directory(&self, ino: u64) -> bool {
        self.tree.is_some_and(|tree| tree.attributes(ino).is_ok_and(|a| a.is_directory()))
    }

    /// Who is hit will be seen at the end of the pass.
    fn without_records(&self, at: At, end: u64, finding: &mut Finding) {
        finding.records_lost = true;
        finding.unknown = self.view.needed.known(at.pos..end).count() as u64;
    }

    /// Records of the needed blocks of a log.
    fn needed_records(&self, at: At, end: u64, summary: &Summary) -> Vec<(u64, Record, u64)> {
        let mut all = Vec::new();
        self.each_record(at, end, summary, |ino, record, block| {
            if self.view.needed.contains(block) && all.len() < RECORDS {
                all.push((ino, record, block));
            }
        });
        all
    }

    fn each_record(&self, at: At, end: u64, summary: &Summary, mut f: impl FnMut(u64, Record, u64)) {
        let g = &self.view.r.g;
        let first = at.pos + u64::from(summary.header.summary_blocks(g));
        let found = |ino, _, record, index: u64| {
            if first + index < end {
                f(ino, record, first + index);
            }
        };
        records::walk(g, &summary.header, &summary.bytes, found, |_, _| {});
    }

    fn spot(&self, block: u64, byte: u64, bytes: u64) -> Spot {
        Spot {
            block,
            // Both within a block, or at most a summary.
            byte: u32::try_from(byte).unwrap_or(u32::MAX),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            what: "a block".to_owned(),
            flip: None,
            owner: None,
            file_byte: None,
            entry_of: None,
            entry_path: None,
            unused: false,
        }
    }

    /// Says what a place in a log is, by a summary that can be trusted.
    fn place(&self, at: At, end: u64, summary: &Summary, spot: &mut Spot) {
        let g = &self.view.r.g;
        let header = &summary.header;
        let byte = ((spot.block - at.pos) << g.block_bits) + u64::from(spot.byte);
        if spot.block < at.pos + u64::from(header.summary_blocks(g)) {
            spot.unused = byte >= u64::from(header.sumbytes.get());
            let what = match byte {
                0..4 => "the log's checksum itself",
                b if b < HEADER_SIZE as u64 => "the head of the log",
                _ if spot.unused => "the end of the log's summary",
                _ => "the log's summary",
            };
            what.clone_into(&mut spot.what);
            return;
        }
        if header.has(SR) && spot.block == end - 1 {
            let in_use = self.view.is_on_the_way(header.seq.get(), at.pos);
            let behind = u64::from(spot.byte) >= 16 + 3 * u64::from(g.inode_size);
            spot.unused = !in_use || behind;
            let what =
                if in_use { "the super root, which mounting needs" } else { "a super root of the past" };
            what.clone_into(&mut spot.what);
            return;
        }
        spot.unused = true;
        self.each_record(at, end, summary, |ino, record, block| {
            if block == spot.block {
                owners::describe(self.view, spot, ino, record);
            }
        });
        let newest = (self.view.latest.header.seq.get(), self.view.latest.pos.0);
        if spot.unused && (header.seq.get(), at.pos) > newest {
            // Nothing points at it yet, and a mount, a rescue or a repair may come to it.
            spot.unused = false;
            "a block written behind the newest checkpoint".clone_into(&mut spot.what);
        } else if spot.unused {
            "a block of the past".clone_into(&mut spot.what);
        }
    }
}

/// Turns over a bit of bytes that begin at byte `from` of the log.
fn turn(bytes: &mut [u8], from: u64, flip: Option<(u64, u8)>) {
    let Some((byte, bit)) = flip else { return };
    let at = byte.checked_sub(from).and_then(|at| usize::try_from(at).ok());
    if let Some(b) = at.and_then(|at| bytes.get_mut(at)) {
        *b ^= 1 << bit;
    }
}

/// Whether the checksum of a super root block matches.
fn sum_of_root(seed: u32, block: &[u8]) -> bool {
    let Some((sum, _)) = <[u8; 4]>::read_from_prefix(block).ok() else { return false };
    let len = block.get(4..6).map_or(0, |b| usize::from(b[0]) | usize::from(b[1]) << 8);
    block.get(4..len).is_some_and(|body| silt_format::crc32(seed, body) == u32::from_le_bytes(sum))
}
