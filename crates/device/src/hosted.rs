//! An image on a host whose space is limited, in memory: what was never written, or was discarded, takes none.
//!
//! Space is counted in units of 4 KiB. Where the host has none left, what is written over still finds its place, and all else
//! fails as on a full file system that writes in place.
//!
//! Locks: one, held for each request.

use parking_lot::Mutex;
use rangemap::RangeSet;

use crate::{Capabilities, Device, Error, MemoryDevice, Operation, Result, check_range, total};

const UNIT: u64 = 4096;

/// See the module.
pub struct Hosted {
    image: MemoryDevice,
    state: Mutex<State>,
}

struct State {
    /// Units that the image has on the host.
    has: RangeSet<u64>,
    /// Units left there.
    left: u64,
}

impl State {
    /// Gives as many units of a range a place as there are, from its beginning; how many of them have one then.
    fn give(&mut self, units: std::ops::Range<u64>) -> u64 {
        let gaps: Vec<_> = self.has.gaps(&units).collect();
        for gap in gaps {
            let given = (gap.end - gap.start).min(self.left);
            self.left -= given;
            if given > 0 {
                self.has.insert(gap.start..gap.start + given);
            }
            if gap.start + given < gap.end {
                return gap.start + given - units.start;
            }
        }
        units.end - units.start
    }
}

impl Hosted {
    /// What `image` holds, all of which has its place, on a host with `left` bytes left.
    pub fn new(image: MemoryDevice, left: u64) -> Self {
        let mut has = RangeSet::new();
        image.for_each_chunk(|at, bytes| {
            has.insert(at / UNIT..(at + bytes.len() as u64).div_ceil(UNIT));
        });
        Hosted { image, state: Mutex::new(State { has, left: left / UNIT }) }
    }

    /// Sets what the host has left, in bytes: others write there, or remove something.
    pub fn set_left(&self, bytes: u64) {
        self.state.lock().left = bytes / UNIT;
    }

    /// Bytes that the image takes there.
    pub fn taken(&self) -> u64 {
        self.state.lock().has.iter().map(|r| r.end - r.start).sum::<u64>() * UNIT
    }

    /// What it holds.
    pub fn image(&self) -> &MemoryDevice {
        &self.image
    }
}

fn units(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / UNIT..(offset + len).div_ceil(UNIT)
}

impl Device for Hosted {
    fn len(&self) -> u64 {
        self.image.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.image.read_at(offset, buf)
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.image.read_if_cached(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = total(bufs);
        check_range(Operation::Write, offset, len, self.len())?;
        if len == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let wanted = units(offset, len);
        let first = wanted.start;
        let found = state.give(wanted.clone());
        let fits = ((first + found) * UNIT).saturating_sub(offset).min(len);
        let mut left = usize::try_from(fits).unwrap_or(usize::MAX);
        let parts: Vec<&[u8]> = bufs
            .iter()
            .map(|buf| {
                let part = &buf[..buf.len().min(left)];
                left -= part.len();
                part
            })
            .collect();
        self.image.write_at(offset, &parts)?;
        if fits < len { Err(Error::NoSpace { offset, len }) } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        self.image.flush()
    }

    /// Whole units go, and what lies beside them in others is zero afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Operation::Discard, offset, len, self.len())?;
        let mut state = self.state.lock();
        let gone = offset.div_ceil(UNIT)..(offset + len) / UNIT;
        if gone.start < gone.end {
            let had: u64 =
                state.has.overlapping(&gone).map(|r| r.end.min(gone.end) - r.start.max(gone.start)).sum();
            state.left += had;
            state.has.remove(gone);
        }
        self.image.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.image.capabilities()
    }

    fn backing_free(&self) -> Option<u64> {
        Some(self.state.lock().left * UNIT)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool> {
        check_range(Operation::Allocate, offset, len, self.len())?;
        let wanted = units(offset, len);
        let count = wanted.end - wanted.start;
        if self.state.lock().give(wanted) < count { Err(Error::NoSpace { offset, len }) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_has_a_place_can_be_written_over_and_nothing_else() {
        let d = Hosted::new(MemoryDevice::new(1 << 20), 3 * UNIT);
        d.write_at(UNIT - 1, &[&[1; 2]]).unwrap();
        assert_eq!((d.taken(), d.backing_free()), (2 * UNIT, Some(UNIT)));
        // One of two finds room.
        let e = d.write_at(10 * UNIT, &[&[2; 4096], &[3; 100]]).unwrap_err();
        assert!(e.is_no_space(), "{e}");
        let mut there = [9; 8192];
        d.read_at(10 * UNIT, &mut there).unwrap();
        assert!(there[..4096] == [2; 4096] && there[4096..] == [0; 4096]);
        d.write_at(0, &[&[5; 8192]]).unwrap();
        assert!(d.write_at(20 * UNIT, &[&[1]]).unwrap_err().is_no_space());
        d.discard(1, 8191).unwrap();
        assert_eq!(d.backing_free(), Some(UNIT), "a part of one stays");
        assert!(d.allocate(30 * UNIT, 2 * UNIT).unwrap_err().is_no_space());
        d.set_left(UNIT);
        assert!(d.allocate(30 * UNIT, 2 * UNIT).unwrap() && d.backing_free() == Some(0));
        d.write_at(30 * UNIT, &[&[7; 8192]]).unwrap();
        assert_eq!(d.image().len(), 1 << 20);
    }
}
