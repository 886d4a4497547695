//! An image on a host whose space is limited, in memory: what was never written, or was discarded, takes none.
//!
//! Space is counted in units of 4 KiB. Where the host has none left, what is written over still finds its place, if it writes in
//! place ([`Hosted::new`]); or only what has a place and was never written in it, if what is written over is written elsewhere
//! ([`Hosted::copying`]). All else fails as on a full file system.
//!
//! Locks: one, held for each request.

use parking_lot::Mutex;
use rangemap::RangeSet;

use crate::{Allocation, Capabilities, Device, Error, MemoryDevice, Operation, Result, check_range, total};

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
    /// Units that hold something, where what is written over is written elsewhere.
    holds: Option<RangeSet<u64>>,
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
    /// What `image` holds but zeroes, which has its place, on a host with `left` bytes left.
    pub fn new(image: MemoryDevice, left: u64) -> Self {
        let mut has = RangeSet::new();
        image.for_each_chunk(|at, bytes| {
            let units = (at / UNIT..).zip(bytes.chunks(usize::try_from(UNIT).unwrap_or(usize::MAX)));
            units.filter(|(_, b)| b.iter().any(|b| *b != 0)).for_each(|(unit, _)| has.insert(unit..unit + 1));
        });
        Hosted { image, state: Mutex::new(State { has, left: left / UNIT, holds: None }) }
    }

    /// The same on a host that writes elsewhere what is written over.
    pub fn copying(image: MemoryDevice, left: u64) -> Self {
        let hosted = Hosted::new(image, left);
        {
            let mut state = hosted.state.lock();
            state.holds = Some(state.has.clone());
        }
        hosted
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
        let mut found = state.give(wanted.clone());
        // The old place is free only when the new one is taken.
        if let Some(held) = state.holds.as_ref().and_then(|h| h.overlapping(&wanted).next().cloned())
            && state.left == 0
        {
            found = found.min(held.start.saturating_sub(first));
        }
        if let Some(holds) = &mut state.holds
            && found > 0
        {
            holds.insert(first..first + found);
        }
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
            state.has.remove(gone.clone());
            if let Some(holds) = &mut state.holds {
                holds.remove(gone);
            }
        }
        self.image.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.image.capabilities()
    }

    fn backing_free(&self) -> Option<u64> {
        Some(self.state.lock().left * UNIT)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let state = self.state.lock();
        let from = offset / UNIT;
        let next = state.has.overlapping(from..u64::MAX).next()?;
        Some(offset.max(next.start * UNIT))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<Allocation> {
        check_range(Operation::Allocate, offset, len, self.len())?;
        let wanted = units(offset, len);
        let count = wanted.end - wanted.start;
        let mut state = self.state.lock();
        if state.give(wanted) < count {
            return Err(Error::NoSpace { offset, len });
        }
        Ok(if state.holds.is_some() { Allocation::Once } else { Allocation::InPlace })
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
        assert_eq!(d.allocate(30 * UNIT, 2 * UNIT).unwrap(), Allocation::InPlace);
        assert_eq!(d.backing_free(), Some(0));
        d.write_at(30 * UNIT, &[&[7; 8192]]).unwrap();
        assert_eq!(d.image().len(), 1 << 20);
    }

    #[test]
    fn a_host_that_copies_takes_space_for_what_is_written_over() {
        let d = Hosted::copying(MemoryDevice::new(1 << 20), 2 * UNIT);
        assert_eq!(d.allocate(0, 2 * UNIT).unwrap(), Allocation::Once);
        d.write_at(UNIT, &[&[1; 4096]]).unwrap();
        assert!(d.write_at(UNIT, &[&[2; 4096]]).unwrap_err().is_no_space());
        d.write_at(0, &[&[1; 4096]]).unwrap();
        d.discard(UNIT, UNIT).unwrap();
        d.write_at(UNIT, &[&[3; 4096]]).unwrap();
        assert_eq!((d.taken(), d.backing_free()), (2 * UNIT, Some(0)));
    }
}
