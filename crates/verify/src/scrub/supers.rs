//! The two super blocks: whether they can be read, and match their checksums.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use silt_device::Device;
use silt_format::super_block::{PRIMARY_OFFSET, SIZE, SuperBlock, secondary_offset};

use crate::scrub::finding::{Flip, Kind};

/// How often a copy that does not verify is read again while somebody may be writing it, 20 ms apart.
const AGAIN: u32 = 10;

/// A copy of the super block that does not verify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperFinding {
    /// The first copy, at byte 1024; else the second, at the end of the device.
    pub primary: bool,
    /// `flipped-bit`, `unreadable`, `checksum`, or `header` where no super block is there.
    pub kind: Kind,
    /// First byte on the device of what is damaged: the flipped one, the first that cannot be read, else the copy's.
    pub byte: u64,
    /// So many bytes.
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flip: Option<Flip>,
    /// The device ends at this byte, before the end of the copy: it was longer when that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ends: Option<u64>,
}

impl SuperFinding {
    /// In words.
    pub fn line(&self) -> String {
        let copy = if self.primary { "first" } else { "second" };
        let byte = self.byte;
        let what = match (self.kind, self.flip) {
            (Kind::FlippedBit, Some(f)) => {
                format!("one bit is flipped: bit {} is {:#04x}, was {:#04x}", f.bit, f.found, f.right)
            }
            (Kind::Unreadable, _) => format!("{} bytes cannot be read", self.bytes),
            (Kind::Header, _) if self.device_ends.is_some() => {
                let end = self.device_ends.unwrap_or_default();
                format!("the device ends before it, at byte {end}, and was longer once")
            }
            (Kind::Header, _) => "no super block is there".to_owned(),
            _ => "its checksum does not match".to_owned(),
        };
        format!(
            "the {copy} of the two super blocks, byte {byte}: {what}; silt repair writes it anew from the other"
        )
    }
}

/// Looks at both copies. `written`: somebody may be writing them.
pub(crate) fn look(device: &dyn Device, written: bool) -> Vec<SuperFinding> {
    let first = copy(device, PRIMARY_OFFSET, written);
    let second = copy(device, secondary_offset(device.len()), written).or_else(|finding| match &first {
        Ok(first) => elsewhere(device, first, finding, written),
        Err(_) => Err(finding),
    });
    [(first, true), (second, false)]
        .into_iter()
        .filter_map(|(copy, primary)| Some(SuperFinding { primary, ..copy.err()? }))
        .collect()
}

/// The second copy where there is none at the end of the device, which may have another length than the volume was made
/// for: on a longer one it lies where that ended, on a shorter one it was cut off. `finding`: what is at the end.
fn elsewhere(
    device: &dyn Device,
    first: &SuperBlock,
    finding: SuperFinding,
    written: bool,
) -> Result<SuperBlock, SuperFinding> {
    let recorded = secondary_offset(first.dev_size.get());
    match first.dev_size.get().cmp(&device.len()) {
        Ordering::Less => copy(device, recorded, written),
        // No room for one beside the segments: `check` says so.
        Ordering::Equal if first.secondary_is_bogus(device.len()) => Ok(first.clone()),
        Ordering::Equal => Err(finding),
        Ordering::Greater => Err(SuperFinding {
            kind: Kind::Header,
            byte: recorded,
            bytes: SIZE as u64,
            device_ends: Some(device.len()),
            ..finding
        }),
    }
}

/// A copy that verifies, or what is wrong with it.
fn copy(device: &dyn Device, at: u64, written: bool) -> Result<SuperBlock, SuperFinding> {
    let mut found = one(device, at);
    for _ in 0..if written { AGAIN } else { 1 } {
        if found.is_ok() {
            break;
        }
        if written {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        found = one(device, at);
    }
    found
}

fn one(device: &dyn Device, at: u64) -> Result<SuperBlock, SuperFinding> {
    let finding =
        |kind, byte, bytes| SuperFinding { primary: true, kind, byte, bytes, flip: None, device_ends: None };
    let mut bytes = [0; SIZE];
    if device.read_at(at, &mut bytes).is_err() {
        let sector = (device.capabilities().logical_block as usize).clamp(512, SIZE);
        let is_bad = |i: &usize| {
            let mut part = vec![0; sector];
            device.read_at(at + (i * sector) as u64, &mut part).is_err()
        };
        let bad: Vec<usize> = (0..SIZE / sector).filter(is_bad).collect();
        let first = bad.first().copied().unwrap_or(0);
        let sectors = bad.last().map_or(SIZE / sector, |last| last + 1 - first);
        return Err(finding(Kind::Unreadable, at + (first * sector) as u64, (sectors * sector) as u64));
    }
    let kind = match SuperBlock::parse(&bytes) {
        Ok(sb) => return Ok(sb),
        Err(silt_format::Error::NotNilfs) => Kind::Header,
        Err(_) => Kind::Checksum,
    };
    for i in 0..SIZE * 8 {
        let (byte, bit) = (i / 8, (i % 8) as u8);
        let found = bytes[byte];
        bytes[byte] ^= 1 << bit;
        let right = SuperBlock::parse(&bytes).is_ok_and(|sb| sb.geometry(device.len()).is_ok());
        if right {
            let flip = Some(Flip { bit, found, right: bytes[byte] });
            return Err(SuperFinding { flip, ..finding(Kind::FlippedBit, at + byte as u64, 1) });
        }
        bytes[byte] = found;
    }
    Err(finding(kind, at, SIZE as u64))
}
