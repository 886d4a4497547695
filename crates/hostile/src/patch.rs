//! One change of a volume, and how a list of them becomes an image with right checksums.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use silt_device::{Device, MemoryDevice};
use silt_format::summary::{self, Header};
use silt_format::super_block::{self, SuperBlock};
use silt_format::{BlockNr, crc32};
use zerocopy::FromBytes;

use crate::Base;

/// Where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    Block(u64),
    Primary,
    Secondary,
    BothSupers,
}

/// What.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// So many low bytes of a number, little-endian.
    Number { width: usize, value: u64 },
    /// These bytes.
    Bytes(Vec<u8>),
    /// The whole block as another one of the base is.
    CopyOf(u64),
    /// Noise to the end of the block; 0: zeroes.
    Noise(u8),
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    pub place: Place,
    /// Byte in the block or the super block.
    pub at: usize,
    pub content: Content,
    /// For people: structure, field, old and new.
    pub story: String,
}

/// Which checksums are made right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sums {
    None,
    /// Of logs as a whole.
    Log,
    /// All.
    All,
}

/// Everything that makes an image of a base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    pub sums: Sums,
    pub patches: Vec<Patch>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.patches {
            writeln!(f, "  {}", p.story)?;
        }
        match self.sums {
            Sums::All => writeln!(f, "  all checksums made right"),
            Sums::Log => writeln!(f, "  checksums of whole logs made right"),
            Sums::None => writeln!(f, "  checksums left as they were"),
        }
    }
}

impl Changes {
    /// The changed volume.
    pub fn apply(&self, base: &Base) -> MemoryDevice {
        let device = base.device.fork();
        let g = &base.index.g;
        let mut logs = BTreeSet::new();
        let mut supers = BTreeSet::new();
        for p in &self.patches {
            match p.place {
                Place::Block(nr) if nr < base.blocks() => {
                    write(&device, base, g.byte_of(BlockNr(nr)), g.bs(), p);
                    logs.extend(base.index.log_of(nr).map(|l| l.start));
                }
                Place::Block(_) => {}
                Place::Primary | Place::Secondary | Place::BothSupers => {
                    for copy in [super_block::PRIMARY_OFFSET, super_block::secondary_offset(device.len())] {
                        let is_primary = copy == super_block::PRIMARY_OFFSET;
                        if p.place == Place::BothSupers || (p.place == Place::Primary) == is_primary {
                            write(&device, base, copy, super_block::SIZE, p);
                            supers.insert(copy);
                        }
                    }
                }
            }
        }
        if self.sums != Sums::None {
            for start in logs {
                seal(&device, base, start, self.sums);
            }
            for at in supers {
                let mut bytes = [0; super_block::SIZE];
                device.read_at(at, &mut bytes).expect("memory");
                let mut sb = SuperBlock::read_from_bytes(&bytes).expect("as long as it is");
                device.write_at(at, &[&sb.to_disk()]).expect("memory");
            }
        }
        device
    }
}

fn write(device: &MemoryDevice, base: &Base, start: u64, size: usize, patch: &Patch) {
    let bytes = match &patch.content {
        Content::Number { width, value } => value.to_le_bytes()[..(*width).min(8)].to_vec(),
        Content::Bytes(bytes) => bytes.clone(),
        Content::CopyOf(from) if *from < base.blocks() => {
            crate::index::block(&base.device, &base.index.g, *from)
        }
        Content::CopyOf(_) => return,
        Content::Noise(0) => vec![0; size.saturating_sub(patch.at)],
        Content::Noise(seed) => (0..size.saturating_sub(patch.at))
            .map(|i| (i as u8).wrapping_mul(167).wrapping_add(*seed))
            .collect(),
    };
    let n = bytes.len().min(size.saturating_sub(patch.at));
    device.write_at(start + patch.at as u64, &[&bytes[..n]]).expect("within the base");
}

/// Makes the checksums of a log right, as far as its header, which may have been changed, lets them be.
fn seal(device: &MemoryDevice, base: &Base, start: u64, sums: Sums) {
    let g = &base.index.g;
    let Some(log) = base.index.log_of(start) else { return };
    let at = g.byte_of(BlockNr(start));
    let mut head = vec![0; g.bs()];
    device.read_at(at, &mut head).expect("memory");
    let Ok((header, _)) = Header::read_from_prefix(&head) else { return };
    // As long as it claims to be, where that is possible at all.
    let claimed = u64::from(header.nblocks.get()).clamp(1, base.blocks() - start).min(4 * log.blocks + 64);
    let n = log.blocks.max(claimed) as usize * g.bs();
    let mut all = vec![0; n];
    device.read_at(at, &mut all).expect("memory");
    if sums == Sums::All && log.has_root {
        let end = log.blocks as usize * g.bs();
        let root = &mut all[end - g.bs()..end];
        let len = usize::from(u16::from_le_bytes([root[4], root[5]])).clamp(4, g.bs());
        let sum = crc32(g.crc_seed, &root[4..len]);
        root[..4].copy_from_slice(&sum.to_le_bytes());
    }
    if sums == Sums::All {
        let len = (header.sumbytes.get() as usize).clamp(8, n);
        summary::store_summary_sum(g.crc_seed, &mut all, len);
    }
    let sum = crc32(g.crc_seed, &all[4..claimed as usize * g.bs()]);
    all[..4].copy_from_slice(&sum.to_le_bytes());
    device.write_at(at, &[&all]).expect("memory");
}
