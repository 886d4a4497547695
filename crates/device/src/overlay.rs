//! A wrapper that keeps every write in memory and never touches what is below it.
//!
//! Work can be tried and judged on it before a byte of the device changes. Then [`Overlay::apply`]
//! carries the writes out, in their order and with the flushes between them, so that a power cut on
//! the way leaves what it would have left had the work been done on the device itself.
//!
//! Memory: twice what is written. Locks: one, over all of it; readers share it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Capabilities, Device, Operation, Result, check_range, total};

/// Bytes of a unit; what is written in part is read first.
pub(crate) const UNIT: usize = 1024;

type Unit = [u8; UNIT];

enum Step {
    Write(u64, Arc<[u8]>),
    Flush,
}

#[derive(Default)]
struct Inner {
    units: BTreeMap<u64, Box<Unit>>,
    steps: Vec<Step>,
}

/// A device whose writes stay in memory.
pub struct Overlay {
    below: Arc<dyn Device>,
    inner: RwLock<Inner>,
}

impl Overlay {
    /// Over a device that nobody else writes.
    pub fn new(below: Arc<dyn Device>) -> Self {
        Overlay { below, inner: RwLock::new(Inner::default()) }
    }

    /// Whether nothing was written.
    pub fn is_unchanged(&self) -> bool {
        self.inner.read().units.is_empty()
    }

    /// Byte ranges that were written, ascending, adjoining ones as one.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        for n in self.inner.read().units.keys() {
            let start = n * UNIT as u64;
            let end = (start + UNIT as u64).min(self.below.len());
            match all.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => all.push(start..end),
            }
        }
        all
    }

    /// Bytes of memory that what was written takes, about.
    pub fn memory(&self) -> u64 {
        let inner = self.inner.read();
        let steps = inner.steps.iter().map(|s| if let Step::Write(_, b) = s { b.len() as u64 } else { 0 });
        steps.sum::<u64>() + inner.units.len() as u64 * (UNIT as u64 + 64)
    }

    /// Makes the writes on `device`, in their order; durable when it returns.
    pub fn apply(&self, device: &dyn Device) -> Result<()> {
        for step in &self.inner.read().steps {
            match step {
                Step::Write(offset, bytes) => device.write_at(*offset, &[bytes])?,
                Step::Flush => device.flush()?,
            }
        }
        device.flush()
    }

    /// All writes in their order: offset, bytes.
    pub fn writes(&self) -> Vec<(u64, Arc<[u8]>)> {
        let write = |s: &Step| if let Step::Write(at, bytes) = s { Some((*at, bytes.clone())) } else { None };
        self.inner.read().steps.iter().filter_map(write).collect()
    }

    /// Calls `f` with what was written of a range, in its order: (offset, bytes), cut off at the range's ends.
    pub(crate) fn each_write(&self, range: Range<u64>, mut f: impl FnMut(u64, &[u8])) {
        for step in &self.inner.read().steps {
            let Step::Write(offset, bytes) = step else { continue };
            let from = range.start.max(*offset);
            let to = range.end.min(offset + bytes.len() as u64);
            if from < to
                && let Some(part) = bytes.get((from - offset) as usize..(to - offset) as usize)
            {
                f(from, part);
            }
        }
    }

    /// A unit as it is now, for changing.
    fn unit<'a>(&self, inner: &'a mut Inner, n: u64, whole: bool) -> Result<&'a mut Unit> {
        match inner.units.entry(n) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let mut unit = Box::new([0; UNIT]);
                if !whole {
                    let start = n * UNIT as u64;
                    let len = (self.below.len() - start).min(UNIT as u64);
                    self.below.read_at(start, &mut unit[..usize::try_from(len).unwrap_or(UNIT)])?;
                }
                Ok(new.insert(unit))
            }
        }
    }
}

impl Device for Overlay {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(Operation::Read, offset, buf.len() as u64, self.len())?;
        let inner = self.inner.read();
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let n = at / UNIT as u64;
            // Up to the next unit that is of another kind: below in one request, above unit by unit.
            let (stop, unit) = match inner.units.get(&n) {
                Some(unit) => ((n + 1) * UNIT as u64, Some(unit)),
                None => {
                    let next = inner.units.range(n..).next().map_or(end, |(k, _)| k * UNIT as u64);
                    (next, None)
                }
            };
            let stop = stop.min(end);
            #[allow(clippy::cast_possible_truncation)] // within `buf`, and within a unit
            let (a, b, skip) =
                ((at - offset) as usize, (stop - offset) as usize, (at % UNIT as u64) as usize);
            match unit {
                Some(unit) => buf[a..b].copy_from_slice(&unit[skip..skip + (b - a)]),
                None => self.below.read_at(at, &mut buf[a..b])?,
            }
            at = stop;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = total(bufs);
        check_range(Operation::Write, offset, len, self.len())?;
        let bytes = bufs.concat();
        let mut inner = self.inner.write();
        let mut done = 0usize;
        while done < bytes.len() {
            let at = offset + done as u64;
            #[allow(clippy::cast_possible_truncation)] // below UNIT
            let skip = (at % UNIT as u64) as usize;
            let n = (UNIT - skip).min(bytes.len() - done);
            let unit = self.unit(&mut inner, at / UNIT as u64, n == UNIT)?;
            unit[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
        inner.steps.push(Step::Write(offset, bytes.into()));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut inner = self.inner.write();
        if matches!(inner.steps.last(), Some(Step::Write(..))) {
            inner.steps.push(Step::Flush);
        }
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, discard: false, ..self.below.capabilities() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{MemoryDevice, Recorder};

    #[test]
    fn writes_stay_above_until_they_are_applied_in_order() {
        let base: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let below = Arc::new(MemoryDevice::from_bytes(&base));
        let over = Overlay::new(below.clone());
        assert!(over.is_unchanged());
        let mut expected = base.clone();
        // Whole units, parts of them, across their ends, the ragged last one, and one twice.
        for (at, len, value) in
            [(1024, 2048, 1), (3000, 10, 2), (5000, 3000, 3), (19_990, 10, 4), (3000, 4, 5)]
        {
            over.write_at(at as u64, &[&vec![value; len]]).unwrap();
            over.flush().unwrap();
            expected[at..at + len].fill(value);
        }
        let mut seen = vec![0; 20_000];
        over.read_at(0, &mut seen).unwrap();
        assert!(seen == expected);
        let mut part = [0; 100];
        over.read_at(2990, &mut part).unwrap();
        assert!(part[..] == expected[2990..3090]);
        assert!(over.write_at(19_999, &[&[0; 2]]).is_err() && over.read_at(20_000, &mut [0]).is_err());
        let mut seen = vec![0; 20_000];
        below.read_at(0, &mut seen).unwrap();
        assert!(seen == base, "nothing arrived below");
        assert_eq!(over.ranges(), [1024..3072, 4096..8192, 19_456..20_000]);
        let recorder = Recorder::new(MemoryDevice::from_bytes(&base));
        let record = recorder.record();
        over.apply(&recorder).unwrap();
        let writes = record.events().iter().filter(|e| matches!(e, crate::Event::Change(_))).count();
        let flushes = record.events().iter().filter(|e| matches!(e, crate::Event::Flush { .. })).count();
        assert_eq!((writes, flushes), (5, 6));
        recorder.read_at(0, &mut seen).unwrap();
        assert!(seen == expected);
    }
}
