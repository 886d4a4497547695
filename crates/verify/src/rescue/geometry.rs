//! The numbers of a volume: from a super block, from what is left of one, or from the logs alone.
//!
//! Without super blocks the seed of the checksums is unknown, but one log tells it: a CRC is a bijection of its
//! register for given bytes, so the register before the summary (the seed) follows from `ss_sumsum` behind it.
//! The block size is the one with which checksums of whole logs match, and segments begin at multiples of what
//! all `ss_next` have in common (spec 3.1, 3.5).

use std::collections::HashMap;

use silt_device::Device;
use silt_format::summary::{HEADER_SIZE, Header, MAGIC, SR};
use silt_format::super_block::{self, Copy, PRIMARY_OFFSET, SIZE, SuperBlock};
use silt_format::{BlockNr, Crc, Error as Format, Geometry, crc32};
use zerocopy::FromBytes;

use crate::{Error, Watch};

/// Where the numbers of a volume are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A super block that verifies.
    SuperBlock(Copy),
    /// A super block that does not verify, but whose numbers the logs confirm.
    BrokenSuperBlock(Copy),
    /// No super block: the logs alone.
    Logs,
}

/// The numbers of a volume and where they are from.
#[derive(Debug, Clone)]
pub struct Shape {
    pub geometry: Geometry,
    pub source: Source,
    /// The super block they are from, as read.
    pub super_block: Option<SuperBlock>,
    /// Whether each copy (primary, secondary) verifies.
    pub copies: (bool, bool),
}

/// Logs that are remembered while the block size is looked for.
const SAMPLES: usize = 1 << 18;
/// Logs whose checksum is computed for each block size.
const PROBES: usize = 24;
/// Most bytes of a summary or log that is probed.
const PROBE_BYTES: u64 = 64 << 20;
/// Bytes read at once.
const STEP: usize = 1 << 20;

/// Finds the numbers of a volume. Reads the whole device where neither super block is of use; `watch` is told in
/// bytes. Errors: nothing of a NILFS2 volume is there, or a super block that verifies names features that are unknown.
pub fn find(device: &dyn Device, watch: &dyn Watch) -> Result<Shape, Error> {
    let read = |at: u64| {
        let mut bytes = [0; SIZE];
        device.read_at(at, &mut bytes).ok().map(|()| bytes)
    };
    let places =
        [(Copy::Primary, PRIMARY_OFFSET), (Copy::Secondary, super_block::secondary_offset(device.len()))];
    let raw = places.map(|(which, at)| (which, read(at)));
    let mut good: Vec<(Copy, SuperBlock, Geometry)> = Vec::new();
    let mut refused = None;
    for (which, bytes) in &raw {
        let Some(sb) = bytes.as_ref().and_then(|b| SuperBlock::parse(b).ok()) else { continue };
        match relaxed(&sb) {
            Ok(g) => good.push((*which, sb, g)),
            Err(e @ Format::Incompatible(_)) => refused = Some(e),
            Err(_) => {}
        }
    }
    let has = |which: Copy| good.iter().any(|(w, ..)| *w == which);
    let copies = (has(Copy::Primary), has(Copy::Secondary));
    // The newer one; the primary where they are equally new.
    if let Some((which, sb, geometry)) =
        good.into_iter().rev().max_by_key(|(which, sb, _)| (sb.last_cno.get(), *which == Copy::Primary))
    {
        return Ok(Shape { geometry, source: Source::SuperBlock(which), super_block: Some(sb), copies });
    }
    if let Some(e) = refused {
        return Err(e.into());
    }
    for (which, bytes) in &raw {
        let Some(Ok(sb)) = bytes.as_ref().map(|b| SuperBlock::read_from_bytes(b)) else { continue };
        let Ok(geometry) = relaxed(&sb) else { continue };
        if is_confirmed(device, &geometry) {
            let source = Source::BrokenSuperBlock(*which);
            return Ok(Shape { geometry, source, super_block: Some(sb), copies });
        }
    }
    let geometry = from_logs(device, watch)?;
    Ok(Shape { geometry, source: Source::Logs, super_block: None, copies })
}

/// The numbers of a super block whatever its cursor says, and however much of the device is gone.
fn relaxed(sb: &SuperBlock) -> silt_format::Result<Geometry> {
    let mut sb = sb.clone();
    sb.last_pseg = sb.first_data_block;
    sb.geometry(i64::MAX.cast_unsigned())
}

/// Whether a log is found where these numbers say that a segment begins.
fn is_confirmed(device: &dyn Device, g: &Geometry) -> bool {
    let segments = g.nsegments.min(64);
    let mut block = vec![0; g.bs()];
    (0..segments).any(|segment| {
        let at = g.byte_of(g.segment_start(silt_format::SegNr(segment)));
        device.read_at(at, &mut block).is_ok()
            && Header::parse(g, &block).is_ok_and(|h| {
                summary(device, at, &h).is_some_and(|s| crc32(g.crc_seed, &s[8..]) == h.sumsum.get())
            })
    })
}

/// Bytes [0, ss_sumbytes) of a log at a byte of the device.
fn summary(device: &dyn Device, at: u64, h: &Header) -> Option<Vec<u8>> {
    let n = h.sumbytes.get() as usize;
    if n < HEADER_SIZE || n as u64 > PROBE_BYTES || at.checked_add(n as u64)? > device.len() {
        return None;
    }
    let mut bytes = vec![0; n];
    device.read_at(at, &mut bytes).ok()?;
    Some(bytes)
}

/// A place that looks like the head of a log.
struct Sample {
    at: u64,
    header: Header,
    seed: u32,
}

/// The register before `bytes` were added, from the one after.
fn crc_before(after: u32, bytes: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    let mut by_top = [0u8; 256];
    for i in 0..=255u8 {
        let value =
            (0..8).fold(u32::from(i), |r, _| if r & 1 == 1 { (r >> 1) ^ 0xEDB8_8320 } else { r >> 1 });
        table[usize::from(i)] = value;
        by_top[(value >> 24) as usize] = i;
    }
    bytes.iter().rev().fold(after, |crc, byte| {
        let index = by_top[(crc >> 24) as usize];
        ((crc ^ table[usize::from(index)]) << 8) | u32::from(index ^ byte)
    })
}

fn plausible(h: &Header) -> bool {
    let n = h.nblocks.get();
    h.magic.get() == MAGIC
        && usize::from(h.bytes.get()) >= HEADER_SIZE
        && h.bytes.get().is_multiple_of(8)
        && (2..=1 << 30).contains(&n)
        && h.sumbytes.get() >= u32::from(h.bytes.get())
        // No more records than blocks, 16 bytes each, and a file record of 24 bytes for each at most.
        && u64::from(h.sumbytes.get()) <= 65536 + u64::from(n) * 48
        && h.flags.get() < 0x20
        && h.next.get() > 0
}

/// Every place that looks like the head of a log.
fn samples(device: &dyn Device, watch: &dyn Watch) -> Vec<Sample> {
    watch.stage("looking for logs", device.len());
    let mut found = Vec::new();
    // Summaries do not overlap: heads that claim more than the device holds are no heads, and must not cost its square.
    let mut patience = device.len();
    let mut buf = vec![0; STEP];
    let mut at = 0;
    while at < device.len() && found.len() < SAMPLES && !watch.stop() {
        let n = usize::try_from(device.len() - at).unwrap_or(STEP).min(STEP);
        if device.read_at(at, &mut buf[..n]).is_err() {
            for (i, part) in buf[..n].chunks_mut(1024).enumerate() {
                if device.read_at(at + (i as u64) * 1024, part).is_err() {
                    part.fill(0);
                }
            }
        }
        for (i, part) in buf[..n].chunks_exact(1024).enumerate() {
            if part[8..12] != MAGIC.to_le_bytes() {
                continue;
            }
            let Ok((header, _)) = Header::read_from_prefix(part) else { continue };
            let at = at + (i as u64) * 1024;
            let cost = u64::from(header.sumbytes.get());
            if found.len() >= SAMPLES || !plausible(&header) || cost > patience {
                continue;
            }
            patience -= cost;
            if let Some(bytes) = summary(device, at, &header) {
                found.push(Sample { at, header, seed: crc_before(header.sumsum.get(), &bytes[8..]) });
            }
        }
        at += n as u64;
        watch.done(n as u64);
    }
    found
}

/// Whether the checksum over a whole log matches with a block size.
fn log_matches(device: &dyn Device, s: &Sample, block_size: u64) -> bool {
    let len = u64::from(s.header.nblocks.get()) * block_size;
    if len > PROBE_BYTES || s.at.checked_add(len).is_none_or(|end| end > device.len()) {
        return false;
    }
    let mut crc = Crc::new(s.seed);
    let mut buf = vec![0; STEP];
    let mut done = 0;
    while done < len {
        let n = usize::try_from(len - done).unwrap_or(STEP).min(STEP);
        if device.read_at(s.at + done, &mut buf[..n]).is_err() {
            return false;
        }
        crc.update(if done == 0 { &buf[4..n] } else { &buf[..n] });
        done += n as u64;
    }
    crc.finish() == s.header.datasum.get()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn from_logs(device: &dyn Device, watch: &dyn Watch) -> Result<Geometry, Error> {
    let lost = |what: &str| Error::Damaged(format!("both super blocks are lost, and {what}"));
    let mut samples = samples(device, watch);
    let mut votes: HashMap<u32, usize> = HashMap::new();
    for s in &samples {
        *votes.entry(s.seed).or_default() += 1;
    }
    let Some((seed, _)) = votes.into_iter().max_by_key(|(seed, n)| (*n, *seed)) else {
        return Err(Format::NotNilfs.into());
    };
    samples.retain(|s| s.seed == seed);
    let by_size = |bits: u32| {
        let size = 1u64 << bits;
        let at_blocks = samples.iter().filter(|s| s.at % size == 0);
        // With the right size logs do not overlap.
        let mut patience = device.len();
        let mut pays = |s: &Sample| {
            let cost = u64::from(s.header.nblocks.get()).saturating_mul(size);
            let pays = cost <= patience;
            patience -= if pays { cost } else { 0 };
            pays
        };
        (at_blocks.take(PROBES).filter(|s| pays(s) && log_matches(device, s, size)).count(), bits)
    };
    let bits = match (10..=16).map(by_size).max_by_key(|(n, bits)| (*n, std::cmp::Reverse(*bits))) {
        Some((n, bits)) if n > 0 => bits,
        _ => return Err(lost("the checksum of no log matches")),
    };
    let size = 1u64 << bits;
    samples.retain(|s| s.at % size == 0);
    let first_data_block = 4096u64.div_ceil(size);
    let starts = samples.iter().map(|s| s.header.next.get()).filter(|next| *next != first_data_block);
    let bps = starts.fold(0, gcd);
    let blocks_per_segment = match u32::try_from(bps) {
        Ok(n) if (16..=1 << 30).contains(&n) => n,
        _ => return Err(lost("the logs do not tell the size of segments")),
    };
    let last = samples.iter().map(|s| (s.at >> bits) / bps).max().unwrap_or(0);
    // As mkfs would have it, unless there are logs behind that.
    let usual = (super_block::secondary_offset(device.len()) >> bits) / bps;
    let nsegments = usual.max(last + 1);
    let mut g = Geometry {
        block_size: 1 << bits,
        block_bits: bits,
        blocks_per_segment,
        nsegments,
        first_data_block,
        inode_size: 128,
        dat_entry_size: 32,
        checkpoint_size: 192,
        segment_usage_size: 16,
        crc_seed: seed,
        first_ino: 11,
        reserved_percent: 5,
    };
    g.inode_size = samples.iter().find_map(|s| inode_size(device, &g, s)).unwrap_or(128);
    Ok(g)
}

/// The size of inodes, from the super root of a log.
fn inode_size(device: &dyn Device, g: &Geometry, s: &Sample) -> Option<u32> {
    if s.header.flags.get() & SR == 0 {
        return None;
    }
    let nr = (s.at >> g.block_bits).checked_add(u64::from(s.header.nblocks.get()))?.checked_sub(1)?;
    let mut block = vec![0; g.bs()];
    device.read_at(g.byte_of(BlockNr(nr)), &mut block).ok()?;
    let n = usize::from(u16::from_le_bytes([block[4], block[5]]));
    let size = n.checked_sub(16)? / 3;
    let sum = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    let right = size >= 128 && size % 8 == 0 && crc32(g.crc_seed, block.get(4..n)?) == sum;
    right.then(|| u32::try_from(size).ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Unwatched;
    use crate::surgeon::Surgeon;

    #[test]
    fn a_checksum_is_run_backwards() {
        let data: Vec<u8> = (0..3000u32).map(|i| (i * 31 + 7) as u8).collect();
        for seed in [0, 1, 0xDEAD_BEEF, u32::MAX] {
            assert_eq!(crc_before(crc32(seed, &data), &data), seed);
        }
    }

    fn zero(s: &Surgeon, at: u64) {
        s.device.write_at(at, &[&[0; SIZE]]).unwrap();
    }

    #[test]
    fn the_logs_alone_tell_the_numbers() {
        for name in ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "full-4k", "dsync-1k", "cut-4k", "wrap-4k"]
        {
            let s = Surgeon::golden(name);
            let right = s.g();
            zero(&s, PRIMARY_OFFSET);
            zero(&s, super_block::secondary_offset(s.device.len()));
            let shape = find(&s.device, &Unwatched).unwrap();
            assert_eq!(shape.source, Source::Logs);
            assert_eq!(shape.geometry, right, "{name}");
        }
    }

    #[test]
    fn each_copy_does_alone_and_one_that_does_not_verify_is_confirmed_by_logs() {
        let s = Surgeon::golden("basic-4k");
        let right = s.g();
        let second = super_block::secondary_offset(s.device.len());
        for (lost, source) in [
            (second, Source::SuperBlock(Copy::Primary)),
            (PRIMARY_OFFSET, Source::SuperBlock(Copy::Secondary)),
        ] {
            let s = Surgeon::golden("basic-4k");
            zero(&s, lost);
            let shape = find(&s.device, &Unwatched).unwrap();
            assert_eq!((shape.source, shape.geometry), (source, right));
        }
        zero(&s, second);
        // The time of the last mount: nothing that matters, but the checksum is wrong.
        s.device.write_at(PRIMARY_OFFSET + 96, &[&[0xEE; 4]]).unwrap();
        let shape = find(&s.device, &Unwatched).unwrap();
        assert_eq!((shape.source, shape.geometry), (Source::BrokenSuperBlock(Copy::Primary), right));
        assert_eq!(shape.copies, (false, false));
    }

    #[test]
    fn heads_that_overlap_do_not_cost_the_square_of_the_size() {
        use silt_device::Counter;
        use zerocopy::IntoBytes;
        // A head in every KiB, each with a summary that reaches as far as the volume does.
        let mut header = Header::zeroed();
        header.magic = MAGIC.into();
        header.bytes = (HEADER_SIZE as u16).into();
        header.nblocks = (1 << 20).into();
        header.next = 1.into();
        let device = silt_device::MemoryDevice::new(8 << 20);
        for at in (0..4 << 20).step_by(1024) {
            header.sumbytes = ((4 << 20) - 64).into();
            device.write_at(at, &[header.as_bytes()]).unwrap();
        }
        let device = Counter::new(device);
        assert!(find(&device, &Unwatched).is_err());
        let read = device.counts().reads.bytes;
        assert!(read <= 4 * device.len(), "{read} bytes are read");
    }

    #[test]
    fn what_is_no_volume_is_said() {
        let device = silt_device::MemoryDevice::new(4 << 20);
        assert!(matches!(find(&device, &Unwatched), Err(Error::Format(Format::NotNilfs))));
    }
}
