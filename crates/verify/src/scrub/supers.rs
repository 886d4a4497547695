//! The two super blocks: whether they can be read, and match their checksums.

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
    let second = secondary_offset(device.len());
    let (mut first, mut other) = (copy(device, PRIMARY_OFFSET, written), copy(device, second, written));
    // Where the device is longer or shorter than it was, the second one has no place or another one.
    let known = first.as_ref().ok().or(other.as_ref().ok());
    if known.is_some_and(|sb| {
        SuperBlock::secondary_is_bogus(sb, device.len()) || sb.dev_size.get() != device.len()
    }) {
        other = Ok(known.cloned().unwrap_or_else(SuperBlock::zeroed));
    }
    let mut all = Vec::new();
    for (result, primary) in [(&mut first, true), (&mut other, false)] {
        if let Err(finding) = result {
            finding.primary = primary;
            all.push(finding.clone());
        }
    }
    all
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
    let finding = |kind, byte, bytes| SuperFinding { primary: true, kind, byte, bytes, flip: None };
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
