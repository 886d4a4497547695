//! A wrapper that breaks what passes through it, as told: unreadable and unwritable ranges, flipped
//! bits, a full host, flushes that fail, a power cut.
//!
//! A failed write leaves what a real one may: one into a bad range nothing, one that runs out of
//! space the part that found room, the one the power cut falls on as many bytes as it is told.
//!
//! Locks: one over the plan, held to decide on a request and not while the inner device works; within it one over what
//! is counted.

use std::ops::Range;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{Capabilities, Device, Error, Operation, Result, check_range, total};

/// How often a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    Always,
    /// Until the place is written: a disk that cannot read a sector puts another in its place then.
    UntilWritten,
    /// The next so many matching requests.
    Next(u32),
    /// So many matching requests, behind so many that pass.
    Later {
        after: u32,
        times: u32,
    },
}

impl Times {
    /// Takes one time; false when there is none left.
    fn take(&mut self) -> bool {
        match self {
            Times::Always | Times::UntilWritten => true,
            Times::Next(0) => false,
            Times::Next(n) => {
                *n -= 1;
                true
            }
            Times::Later { after: 0, times } => {
                let next = *times;
                *self = Times::Next(next);
                self.take()
            }
            Times::Later { after, .. } => {
                *after -= 1;
                false
            }
        }
    }
}

struct Cut {
    /// Writes that still succeed.
    after: u64,
    /// Bytes that land of the write on which the cut falls.
    keep: u64,
}

#[derive(Default)]
struct Plan {
    bad_reads: Vec<(Range<u64>, Times)>,
    bad_writes: Vec<(Range<u64>, Times)>,
    flips: Vec<(Range<u64>, u8)>,
    bad_flushes: Option<Times>,
    /// Bytes that can still be written.
    room: Option<u64>,
    full: bool,
    cut: Option<Cut>,
    off: bool,
}

/// Requests that failed because they were to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Struck {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
}

/// What a write is to do.
enum Verdict {
    Pass,
    /// So many bytes land, then the error.
    Fail(u64, Error),
}

/// Breaks what it is told to break; passes everything until told.
pub struct Fault<D> {
    inner: D,
    plan: Mutex<Plan>,
    struck: Mutex<Struck>,
}

impl<D: Device> Fault<D> {
    /// Without faults.
    pub fn new(inner: D) -> Self {
        Fault { inner, plan: Mutex::default(), struck: Mutex::default() }
    }

    /// Requests that failed so far; healing forgets none.
    pub fn struck(&self) -> Struck {
        *self.struck.lock()
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Reads that touch `range` (bytes) fail with EIO.
    pub fn fail_reads(&self, range: Range<u64>, times: Times) {
        self.plan.lock().bad_reads.push((range, times));
    }

    /// Writes and discards that touch `range` (bytes) fail with EIO and change nothing.
    pub fn fail_writes(&self, range: Range<u64>, times: Times) {
        self.plan.lock().bad_writes.push((range, times));
    }

    /// Flushes fail with EIO.
    pub fn fail_flushes(&self, times: Times) {
        self.plan.lock().bad_flushes = Some(times);
    }

    /// Every byte of `range` reads with the bits of `mask` flipped.
    pub fn flip_bits(&self, range: Range<u64>, mask: u8) {
        self.plan.lock().flips.push((range, mask));
    }

    /// Writes run out of space after `bytes` more bytes; `None` lifts the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.plan.lock().room = bytes;
    }

    /// While set, no write finds space.
    pub fn set_full(&self, full: bool) {
        self.plan.lock().full = full;
    }

    /// After `writes` more writes the power fails: of the next write the first `keep` bytes land,
    /// it and everything later fails with EIO.
    pub fn cut_power_after(&self, writes: u64, keep: u64) {
        self.plan.lock().cut = Some(Cut { after: writes, keep });
    }

    /// Everything fails with EIO from now on: the power is gone or the device pulled out.
    pub fn cut_power(&self) {
        self.plan.lock().off = true;
    }

    /// Whether the power is cut.
    pub fn is_cut(&self) -> bool {
        self.plan.lock().off
    }

    /// Forgets every fault; a cut device works again.
    pub fn heal(&self) {
        *self.plan.lock() = Plan::default();
    }

    fn judge_write(&self, operation: Operation, offset: u64, len: u64) -> Result<Verdict> {
        let verdict = self.fate_of_write(operation, offset, len);
        if !matches!(verdict, Ok(Verdict::Pass)) {
            self.struck.lock().writes += 1;
        }
        verdict
    }

    fn fate_of_write(&self, operation: Operation, offset: u64, len: u64) -> Result<Verdict> {
        check_range(operation, offset, len, self.inner.len())?;
        let mut plan = self.plan.lock();
        if plan.off {
            return Err(eio(operation, offset, len));
        }
        if operation == Operation::Write
            && let Some(cut) = &mut plan.cut
        {
            match cut.after.checked_sub(1) {
                Some(left) => cut.after = left,
                None => {
                    let keep = cut.keep.min(len);
                    plan.off = true;
                    return Ok(Verdict::Fail(keep, eio(operation, offset, len)));
                }
            }
        }
        if strikes(&mut plan.bad_writes, offset, len) {
            return Err(eio(operation, offset, len));
        }
        if operation == Operation::Write && len > 0 {
            if plan.full {
                return Err(Error::NoSpace { offset, len });
            }
            if let Some(room) = &mut plan.room {
                if len > *room {
                    let keep = std::mem::take(room);
                    return Ok(Verdict::Fail(keep, Error::NoSpace { offset, len }));
                }
                *room -= len;
            }
            written(&mut plan.bad_reads, offset, len);
        }
        Ok(Verdict::Pass)
    }

    fn judge_flush(&self) -> Result<()> {
        let mut plan = self.plan.lock();
        if plan.off || plan.bad_flushes.as_mut().is_some_and(Times::take) {
            self.struck.lock().flushes += 1;
            return Err(eio(Operation::Flush, 0, 0));
        }
        Ok(())
    }

    /// Reads by `read`, then flips.
    fn read<T>(&self, offset: u64, buf: &mut [u8], read: impl FnOnce(&mut [u8]) -> Result<T>) -> Result<T> {
        let len = buf.len() as u64;
        check_range(Operation::Read, offset, len, self.inner.len())?;
        {
            let mut plan = self.plan.lock();
            if plan.off || strikes(&mut plan.bad_reads, offset, len) {
                self.struck.lock().reads += 1;
                return Err(eio(Operation::Read, offset, len));
            }
        }
        let result = read(&mut *buf)?;
        let plan = self.plan.lock();
        for (range, mask) in &plan.flips {
            let bytes = buf.iter_mut().zip(offset..);
            bytes.filter(|(_, at)| range.contains(at)).for_each(|(b, _)| *b ^= mask);
        }
        Ok(result)
    }
}

fn eio(operation: Operation, offset: u64, len: u64) -> Error {
    Error::of_request(operation, offset, len, Errno::IO.into())
}

/// Whether one of the faults strikes a request; it then has one time less.
fn strikes(faults: &mut [(Range<u64>, Times)], offset: u64, len: u64) -> bool {
    let end = offset.saturating_add(len);
    faults.iter_mut().any(|(range, times)| offset < range.end && range.start < end && times.take())
}

/// Takes what is written out of the faults that last as long as it is not.
fn written(faults: &mut Vec<(Range<u64>, Times)>, offset: u64, len: u64) {
    let end = offset.saturating_add(len);
    let hit = |(range, times): &(Range<u64>, Times)| {
        *times == Times::UntilWritten && offset < range.end && range.start < end
    };
    let healed: Vec<_> = faults.extract_if(.., |fault| hit(fault)).collect();
    let left = healed.iter().flat_map(|(range, _)| [range.start..offset, end..range.end]);
    faults.extend(left.filter(|part| part.start < part.end).map(|part| (part, Times::UntilWritten)));
}

/// The first `len` bytes of gathered buffers.
fn head<'a>(bufs: &[&'a [u8]], len: u64) -> Vec<&'a [u8]> {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    let mut part = |buf: &&'a [u8]| {
        let n = buf.len().min(left);
        left -= n;
        &buf[..n]
    };
    bufs.iter().map(&mut part).collect()
}

impl<D: Device> Device for Fault<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read(offset, buf, |buf| self.inner.read_at(offset, buf))
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.read(offset, buf, |buf| self.inner.read_if_cached(offset, buf))
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        match self.judge_write(Operation::Write, offset, total(bufs))? {
            Verdict::Pass => self.inner.write_at(offset, bufs),
            Verdict::Fail(keep, error) => {
                self.inner.write_at(offset, &head(bufs, keep))?;
                Err(error)
            }
        }
    }

    fn flush(&self) -> Result<()> {
        self.judge_flush()?;
        self.inner.flush()
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes() + self.struck.lock().flushes
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.judge_flush()?;
        match self.judge_write(Operation::Write, offset, buf.len() as u64)? {
            Verdict::Pass => self.inner.write_durably(offset, buf),
            Verdict::Fail(keep, error) => {
                self.inner.flush()?;
                self.inner.write_at(offset, &head(&[buf], keep))?;
                Err(error)
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.judge_write(Operation::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    crate::space_of_inner!();

    fn backing_free(&self) -> Option<u64> {
        let below = self.inner.backing_free();
        let plan = self.plan.lock();
        let limit = if plan.full { Some(0) } else { plan.room };
        limit.into_iter().chain(below).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn device() -> Fault<MemoryDevice> {
        Fault::new(MemoryDevice::from_bytes(&[7; 100]))
    }

    fn inside<D: Device>(d: &Fault<D>) -> Vec<u8> {
        let mut all = vec![0; 100];
        d.inner().read_at(0, &mut all).unwrap();
        all
    }

    #[test]
    fn bad_ranges() {
        let d = device();
        d.fail_reads(10..20, Times::Next(2));
        d.fail_writes(10..20, Times::Always);
        assert!(d.read_at(0, &mut [0; 10]).is_ok(), "ends before it");
        assert!(d.read_at(20, &mut [0; 10]).is_ok(), "begins after it");
        assert!(d.read_at(0, &mut [0; 11]).is_err());
        assert!(d.read_if_cached(19, &mut [0; 1]).is_err());
        assert!(d.read_at(0, &mut [0; 11]).is_ok(), "only twice");
        assert!(d.write_at(19, &[&[1]]).is_err());
        assert!(d.write_durably(19, &[1]).is_err());
        assert!(d.discard(0, 11).is_err());
        assert_eq!(inside(&d), [7; 100]);
        d.heal();
        assert!(d.write_at(19, &[&[1]]).is_ok());
    }

    #[test]
    fn sectors_that_a_write_puts_right() {
        let d = device();
        d.fail_reads(10..20, Times::UntilWritten);
        d.fail_reads(30..40, Times::Always);
        assert!(d.read_at(9, &mut [0; 2]).is_err());
        d.write_at(12, &[&[1; 3]]).unwrap();
        d.write_at(30, &[&[1; 10]]).unwrap();
        assert!(d.read_at(12, &mut [0; 3]).is_ok());
        assert!(d.read_at(11, &mut [0; 1]).is_err() && d.read_at(15, &mut [0; 1]).is_err(), "not beside it");
        assert!(d.read_at(30, &mut [0; 1]).is_err());
        d.write_durably(0, &[2; 60]).unwrap();
        assert!(d.read_at(0, &mut [0; 30]).is_ok());
    }

    #[test]
    fn reads_that_fail_after_others() {
        let d = device();
        d.fail_reads(0..u64::MAX, Times::Later { after: 2, times: 1 });
        let read = || d.read_at(0, &mut [0; 10]).is_ok();
        assert_eq!([read(), read(), read(), read()], [true, true, false, true]);
        d.fail_reads(0..u64::MAX, Times::Always);
        assert_eq!([read(), read()], [false, false]);
        d.heal();
        assert!(read());
    }

    #[test]
    fn flipped_bits() {
        let d = device();
        d.flip_bits(3..5, 0x81);
        let mut buf = [0; 4];
        d.read_at(2, &mut buf).unwrap();
        assert_eq!(buf, [7, 7 ^ 0x81, 7 ^ 0x81, 7]);
        assert!(d.read_if_cached(4, &mut buf).unwrap());
        assert_eq!(buf, [7 ^ 0x81, 7, 7, 7]);
        assert_eq!(inside(&d), [7; 100], "on the way only");
    }

    #[test]
    fn space_runs_out_and_comes_back() {
        let d = device();
        d.limit_space(Some(5));
        assert_eq!(d.backing_free(), Some(5));
        d.write_at(0, &[&[1; 2]]).unwrap();
        let e = d.write_at(10, &[&[2; 2], &[3; 2]]).unwrap_err();
        assert!(e.is_no_space(), "{e}");
        assert_eq!(inside(&d)[10..14], [2, 2, 3, 7], "the part that found room");
        assert_eq!(d.backing_free(), Some(0));
        d.limit_space(None);
        d.set_full(true);
        assert!(d.write_durably(0, &[1]).unwrap_err().is_no_space());
        assert!(d.discard(0, 10).is_ok());
        assert!(d.read_at(0, &mut [0]).is_ok());
        d.set_full(false);
        assert!(d.write_at(0, &[&[1]]).is_ok());
        assert_eq!(d.backing_free(), None);
    }

    #[test]
    fn power_is_cut_in_the_middle_of_a_write() {
        let d = device();
        d.cut_power_after(2, 3);
        d.write_at(0, &[&[1]]).unwrap();
        d.write_durably(1, &[1]).unwrap();
        d.flush().unwrap();
        assert!(!d.is_cut());
        assert!(d.write_at(50, &[&[2, 2], &[3, 3]]).is_err());
        assert_eq!(inside(&d)[50..54], [2, 2, 3, 7]);
        assert!(d.is_cut());
        assert!(d.read_at(0, &mut [0]).is_err());
        assert!(d.flush().is_err());
        assert!(d.discard(0, 1).is_err());
        assert!(d.write_at(0, &[&[5]]).is_err());
        d.heal();
        assert!(d.read_at(0, &mut [0]).is_ok());
    }

    #[test]
    fn later_ones_fail() {
        let d = device();
        d.fail_writes(0..50, Times::Later { after: 2, times: 1 });
        assert!(d.write_at(60, &[&[1]]).is_ok(), "elsewhere");
        let results: Vec<bool> = (0..5).map(|n| d.write_at(n, &[&[1]]).is_ok()).collect();
        assert_eq!(results, [true, true, false, true, true]);
        d.fail_flushes(Times::Next(1));
        assert!(d.flush().is_err() && d.flush().is_ok());
        assert_eq!(d.struck(), Struck { reads: 0, writes: 1, flushes: 1 });
        assert_eq!(d.failed_flushes(), 1);
    }

    #[test]
    fn flushes_fail() {
        let d = device();
        d.fail_flushes(Times::Next(2));
        assert!(d.flush().is_err());
        assert!(d.write_durably(0, &[1]).is_err());
        assert_eq!(inside(&d)[0], 7);
        assert!(d.flush().is_ok());
    }
}
