//! Whether a file or device that mkfs knows no name for holds something all the same: anything but zeros.
//!
//! Looked at is a sample with an end: all that is stored where that is little, else the first and the last of it and
//! places between, evenly apart.

use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use silt_device::{Device, FileDevice, Result};

/// Bytes of one look, and looks at most.
const LOOK: u64 = 1 << 20;
const LOOKS: u64 = 64;
/// Stretches of stored bytes that are told apart; what lies behind counts as one.
const EXTENTS: usize = 4096;
/// What mkfs leaves as it is where it is a boot sector, which is no reason to refuse.
const BOOT: u64 = 1024;

/// Whether there is anything that mkfs would destroy.
pub fn is_any(device: &FileDevice) -> Result<bool> {
    let mut boot = [0; 512];
    if device.len() >= BOOT {
        device.read_at(0, &mut boot)?;
    }
    let from = if boot.ends_with(&[0x55, 0xAA]) { BOOT } else { 0 };
    let stored = if device.is_block_device() { vec![(from, device.len())] } else { stored(device, from) };
    let mut buffer = vec![0; LOOK as usize];
    for (at, length) in looks(&stored) {
        let bytes = &mut buffer[..usize::try_from(length).unwrap_or(0)];
        device.read_at(at, bytes)?;
        if bytes.iter().any(|b| *b != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// From where to where bytes are stored; holes are left out where the file system below tells of them.
fn stored(device: &FileDevice, from: u64) -> Vec<(u64, u64)> {
    let end = device.len();
    let whole = vec![(from, end)];
    let Ok(file) = File::open(device.path()) else { return whole };
    let (mut found, mut at) = (Vec::new(), from);
    while at < end && found.len() < EXTENTS {
        match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            // No data from here to the end.
            Err(rustix::io::Errno::NXIO) => return found,
            Err(_) => return whole,
        }
        let Ok(hole) = seek(&file, SeekFrom::Hole(at)) else { return whole };
        found.push((at, hole.min(end)));
        at = hole.max(at + 1);
    }
    if at < end {
        found.push((at, end));
    }
    found
}

/// The places to look at, each with its length.
fn looks(stored: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let total: u64 = stored.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
    let wanted = total.div_ceil(LOOK);
    let step = if wanted <= LOOKS { LOOK } else { (total - LOOK) / (LOOKS - 1) };
    let mut places = Vec::new();
    for n in 0..wanted.min(LOOKS) {
        // A place among what is stored, and as much as belongs to it, in as many stretches as it lies in.
        let (mut skip, mut left) = (n * step, LOOK);
        for (from, to) in stored {
            let length = to.saturating_sub(*from);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = (length - skip).min(left);
            places.push((from + skip, take));
            (skip, left) = (0, left - take);
            if left == 0 {
                break;
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn little_is_looked_at_whole_and_much_from_end_to_end() {
        assert_eq!(looks(&[]), []);
        assert_eq!(looks(&[(1024, 5000), (8192, 8193)]), [(1024, 3976), (8192, 1)]);
        assert_eq!(looks(&[(0, 2 * MIB + 7)]), [(0, MIB), (MIB, MIB), (2 * MIB, 7)]);
        let huge = looks(&[(1024, 1 << 44)]);
        assert_eq!(huge.len() as u64, LOOKS);
        assert_eq!(huge[0], (1024, MIB));
        let last = huge[huge.len() - 1];
        assert!(last.0 + last.1 > (1 << 44) - LOOKS && last.0 + last.1 <= 1 << 44, "{last:?}");
    }

    #[test]
    fn stretches_in_pieces_are_looked_at_whole() {
        let pieces: Vec<_> = (0..100).map(|n| (n * 8192, n * 8192 + 4096)).collect();
        let all: u64 = looks(&pieces).iter().map(|(_, length)| length).sum();
        assert_eq!(all, 100 * 4096);
    }
}
