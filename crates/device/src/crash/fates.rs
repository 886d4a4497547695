//! What becomes of changes that were not durable: drawn, told, and done.

use super::fingerprint::Fingerprint;
use super::{Fate, Landing, Pending, SECTOR};
use crate::random::Random;
use crate::recorder::{Change, Content};
use crate::{Device, MemoryDevice, Result};

/// Sectors of a page: a host writes those of a file back in any order, each wholly or in part.
const PAGE: u64 = 8;

/// Sectors of the device that a change touches.
pub(super) fn sectors(change: &Change) -> u64 {
    if change.is_empty() {
        return 0;
    }
    (change.offset + change.len()).div_ceil(SECTOR) - change.offset / SECTOR
}

/// Which sectors of a change are there after a tear.
fn torn(change: &Change, seed: u64) -> Vec<bool> {
    let mut random = Random::new(seed);
    let count = sectors(change);
    let shape = random.below(8);
    let at = random.below(count + 1);
    let one = random.below(count);
    let first_page = change.offset / SECTOR / PAGE;
    let pages: Vec<bool> = (0..=count / PAGE + 1).map(|_| random.coin()).collect();
    (0..count)
        .map(|n| match shape {
            // What a device that works through it in order leaves.
            0..=2 => n < at,
            3 => n >= at,
            4 => n != one,
            5 => n == one,
            6 => {
                let page = (change.offset / SECTOR + n) / PAGE - first_page;
                pages.get(usize::try_from(page).unwrap_or(0)).copied().unwrap_or_default()
            }
            _ => random.coin(),
        })
        .collect()
}

/// Draws one of: a prefix, a subset, all but one, one alone; and tears some of it, all of it, or none.
pub(super) fn draw(pending: &[Pending], random: &mut Random) -> Vec<Fate> {
    let n = pending.len();
    let one = usize::try_from(random.below(n as u64)).unwrap_or(0);
    let shape = random.below(8);
    let mut fates: Vec<Fate> = (0..n)
        .map(|i| {
            let landed = match shape {
                0 | 1 => i <= one,
                2 => i != one,
                3 => i == one,
                4 => true,
                _ => random.coin(),
            };
            if landed { Fate::Landed } else { Fate::Lost }
        })
        .collect();
    let victims: Vec<usize> = match random.below(8) {
        // Any sectors of all of it.
        0 => (0..n).collect(),
        1..=4 => (0..=random.below(3))
            .map(|_| match shape {
                // The change at which a prefix ends is the one most likely under way.
                0..=3 if random.coin() => one,
                _ => usize::try_from(random.below(n as u64)).unwrap_or(0),
            })
            .collect(),
        _ => Vec::new(),
    };
    for victim in victims {
        if let (Some(p), Some(fate)) = (pending.get(victim), fates.get_mut(victim))
            && sectors(&p.change) > 1
        {
            let seed = random.next();
            let there = torn(&p.change, seed);
            // A tear that leaves all or nothing is none.
            *fate = match (there.contains(&true), there.contains(&false)) {
                (true, true) => Fate::Torn(seed),
                (true, false) => Fate::Landed,
                _ => Fate::Lost,
            };
        }
    }
    fates
}

pub(super) fn describe(fates: &[Fate]) -> Landing {
    let landed = fates.iter().filter(|f| **f != Fate::Lost).count();
    let torn = fates.iter().filter(|f| matches!(f, Fate::Torn(_))).count();
    if torn > 0 {
        Landing::Torn { landed, torn }
    } else if landed == fates.len() {
        Landing::Everything
    } else if fates.iter().take(landed).all(|f| *f == Fate::Landed) {
        Landing::Prefix(landed)
    } else {
        Landing::Subset(landed)
    }
}

/// How much of a change is on a device, as far as it changes anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Some of it is there.
    pub there: bool,
    /// Some of it is not.
    pub missing: bool,
}

/// Brings a change, or some of its sectors, onto `device`.
pub(super) fn apply(
    device: &MemoryDevice,
    change: &Change,
    fate: Fate,
    print: &mut Fingerprint,
) -> Result<Part> {
    let mut part = Part::default();
    match fate {
        Fate::Lost => part.missing = differs(device, change, 0, change.len())?,
        Fate::Landed => {
            part.there = differs(device, change, 0, change.len())?;
            write(device, change, 0, change.len(), print)?;
        }
        Fate::Torn(seed) => {
            for (sector, there) in (0..).zip(torn(change, seed)) {
                let (from, to) = span(change, sector);
                let differs = differs(device, change, from, to)?;
                if there {
                    part.there |= differs;
                    write(device, change, from, to, print)?;
                } else {
                    part.missing |= differs;
                }
            }
        }
    }
    Ok(part)
}

/// Calls `after` with the fingerprint after each sector of a change, in order.
pub(super) fn sector_by_sector(
    device: &MemoryDevice,
    change: &Change,
    print: &mut Fingerprint,
    after: &mut dyn FnMut(u64),
) -> Result<()> {
    for sector in 0..sectors(change) {
        let (from, to) = span(change, sector);
        write(device, change, from, to, print)?;
        after(print.0);
    }
    Ok(())
}

/// The bytes of a change that lie in the sector with this number, counted from its first one.
fn span(change: &Change, sector: u64) -> (u64, u64) {
    let start = (change.offset / SECTOR + sector) * SECTOR;
    (start.saturating_sub(change.offset), (start + SECTOR - change.offset).min(change.len()))
}

/// The bytes `from..to` of a change; none where it discards.
fn bytes(change: &Change, from: u64, to: u64) -> Option<&[u8]> {
    match &change.content {
        Content::Bytes(bytes) => {
            let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
            Some(bytes.get(range).unwrap_or_default())
        }
        Content::Discarded(_) => None,
    }
}

/// Whether the bytes `from..to` of a change are others than those of `device`.
fn differs(device: &MemoryDevice, change: &Change, from: u64, to: u64) -> Result<bool> {
    let mut at = from;
    let mut buf = [0; 16 * SECTOR as usize];
    while at < to {
        let n = usize::try_from(to - at).unwrap_or(usize::MAX).min(buf.len());
        let there = buf.get_mut(..n).unwrap_or_default();
        device.read_at(change.offset + at, there)?;
        let same = match bytes(change, at, at + n as u64) {
            Some(bytes) => bytes == there,
            None => there.iter().all(|b| *b == 0),
        };
        if !same {
            return Ok(true);
        }
        at += n as u64;
    }
    Ok(false)
}

/// Brings the bytes `from..to` of a change onto `device`.
fn write(device: &MemoryDevice, change: &Change, from: u64, to: u64, print: &mut Fingerprint) -> Result<()> {
    let (start, end) = (change.offset + from, change.offset + to);
    print.toggle(device, start, end)?;
    match bytes(change, from, to) {
        Some(bytes) => device.write_at(start, &[bytes])?,
        None => device.discard(start, to - from)?,
    }
    print.toggle(device, start, end)
}
