//! A wrapper that keeps a log of everything that changes the device.
//!
//! ```text
//!   change, change, flush, mark, change, ...     in the order they were made
//! ```
//! A change enters the log when it is requested and is stamped when it returns; a flush enters
//! when it returns and knows when it began. So it can be told which changes a flush made durable:
//! those that had returned before it began. A durable write is logged as a flush, the change, and,
//! once it has succeeded, the durability of that change alone.
//!
//! Invariants: stamps grow; the order of two changes that overlap and were under way at once is
//! that of their requests, which need not be the inner device's. The log keeps every byte written
//! until it is cleared.
//!
//! Locks: one, over the log, never held while the inner device works.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Capabilities, Device, Operation, Result, check_range, total};

/// What a [`Change`] left in its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Written bytes.
    Bytes(Arc<[u8]>),
    /// So many discarded bytes, taken to read as zeroes.
    Discarded(u64),
}

/// How a request went, with the stamp of its return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It has not returned.
    UnderWay,
    Done(u64),
    /// Any part of it may have happened.
    Failed(u64),
}

/// A write or a discard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Unique in the log, ascending.
    pub id: u64,
    /// Where, in bytes.
    pub offset: u64,
    pub content: Content,
    pub outcome: Outcome,
}

impl Change {
    /// Length of its range in bytes.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Discarded(len) => *len,
        }
    }

    /// True when its range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An entry of a record. Stamps are comparable among all entries of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A write or discard was requested.
    Change(Change),
    /// A flush that began at the stamp succeeded.
    Flush { began: u64 },
    /// A flush that began at the stamp failed.
    FlushFailed { began: u64 },
    /// The change is durable by itself.
    Durable { id: u64 },
    /// The caller's mark.
    Mark(u64),
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// Events that were there before the log was last cleared.
    cleared: usize,
    clock: u64,
}

impl Log {
    fn stamp(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Logs a change and returns its place.
    fn begin(&mut self, offset: u64, content: Content) -> usize {
        let change = Change { id: self.stamp(), offset, content, outcome: Outcome::UnderWay };
        self.events.push(Event::Change(change));
        self.cleared + self.events.len() - 1
    }

    fn end(&mut self, place: usize, done: bool) {
        let stamp = self.stamp();
        let event = place.checked_sub(self.cleared).and_then(|i| self.events.get_mut(i));
        if let Some(Event::Change(change)) = event {
            change.outcome = if done { Outcome::Done(stamp) } else { Outcome::Failed(stamp) };
        }
    }
}

/// The log of a [`Recorder`]; shared, so that it can be read and marked while the device is in use
/// elsewhere.
#[derive(Default)]
pub struct Record {
    log: Mutex<Log>,
}

impl Record {
    /// Everything logged so far. Written bytes are shared, not copied.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().events.clone()
    }

    /// Number of events logged so far, a place to compare with later ones.
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// True when nothing is logged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Logs that the caller has come to `label`, as: what I call `label` was acknowledged.
    pub fn mark(&self, label: u64) {
        self.log.lock().events.push(Event::Mark(label));
    }

    /// Forgets everything logged so far. What was not flushed can then not be cut any more: flush
    /// first, and take the base image after.
    pub fn clear(&self) {
        let mut log = self.log.lock();
        log.cleared += log.events.len();
        log.events.clear();
    }
}

/// Logs what passes to the inner device.
pub struct Recorder<D> {
    inner: D,
    record: Arc<Record>,
}

impl<D: Device> Recorder<D> {
    /// With an empty log.
    pub fn new(inner: D) -> Self {
        Recorder { inner, record: Arc::default() }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The log, which goes on growing.
    pub fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }

    /// [`Record::mark`].
    pub fn mark(&self, label: u64) {
        self.record.mark(label);
    }

    /// Logs a change around `request`.
    fn change(&self, offset: u64, content: Content, request: impl FnOnce() -> Result<()>) -> Result<()> {
        let place = self.record.log.lock().begin(offset, content);
        let result = request();
        self.record.log.lock().end(place, result.is_ok());
        result
    }

    /// A request that does not fit the device changes nothing and is not logged.
    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        check_range(operation, offset, len, self.inner.len())
    }
}

impl<D: Device> Device for Recorder<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.inner.read_if_cached(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.check(Operation::Write, offset, total(bufs))?;
        self.change(offset, Content::Bytes(bufs.concat().into()), || self.inner.write_at(offset, bufs))
    }

    fn flush(&self) -> Result<()> {
        let began = self.record.log.lock().stamp();
        let result = self.inner.flush();
        self.record.log.lock().events.push(match result {
            Ok(()) => Event::Flush { began },
            Err(_) => Event::FlushFailed { began },
        });
        result
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.check(Operation::Write, offset, buf.len() as u64)?;
        // No device begins the write where the flush before it failed.
        self.flush()?;
        let place = self.record.log.lock().begin(offset, Content::Bytes(buf.into()));
        let result = self.inner.write_durably(offset, buf);
        let mut log = self.record.log.lock();
        log.end(place, result.is_ok());
        if result.is_ok()
            && let Some(Event::Change(change)) =
                place.checked_sub(log.cleared).and_then(|i| log.events.get(i))
        {
            let id = change.id;
            log.events.push(Event::Durable { id });
        }
        result
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(Operation::Discard, offset, len)?;
        self.change(offset, Content::Discarded(len), || self.inner.discard(offset, len))
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    crate::space_of_inner!();

    fn backing_free(&self) -> Option<u64> {
        self.inner.backing_free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, MemoryDevice, Times};

    fn bytes(b: &[u8]) -> Content {
        Content::Bytes(b.into())
    }

    #[test]
    fn logs_in_order_with_marks() {
        let d = Recorder::new(MemoryDevice::new(4096));
        d.write_at(5, &[&[1, 2], &[3]]).unwrap();
        d.flush().unwrap();
        d.mark(77);
        d.discard(0, 512).unwrap();
        d.write_durably(9, &[4]).unwrap();
        let change = |id, offset, content, done| {
            Event::Change(Change { id, offset, content, outcome: Outcome::Done(done) })
        };
        let expected = [
            change(1, 5, bytes(&[1, 2, 3]), 2),
            Event::Flush { began: 3 },
            Event::Mark(77),
            change(4, 0, Content::Discarded(512), 5),
            Event::Flush { began: 6 },
            change(7, 9, bytes(&[4]), 8),
            Event::Durable { id: 7 },
        ];
        assert_eq!(d.record().events(), expected);
    }

    #[test]
    fn failures_are_told() {
        let d = Recorder::new(Fault::new(MemoryDevice::new(4096)));
        d.inner().fail_writes(0..10, Times::Always);
        d.inner().fail_flushes(Times::Next(1));
        assert!(d.write_at(5, &[&[1]]).is_err());
        assert!(d.flush().is_err());
        assert!(d.write_at(4096, &[&[1]]).is_err(), "not on the device");
        d.inner().fail_flushes(Times::Next(1));
        assert!(d.write_durably(100, &[1]).is_err(), "its flush failed, and nothing was written");
        assert!(d.write_durably(5, &[1]).is_err());
        let events = d.record().events();
        assert!(matches!(&events[2..4], [Event::FlushFailed { .. }, Event::Flush { .. }]), "{events:?}");
        assert!(matches!(&events[4], Event::Change(c) if matches!(c.outcome, Outcome::Failed(_))));
        assert_eq!(events.len(), 5);
        assert!(matches!(&events[0], Event::Change(c) if c.outcome == Outcome::Failed(2)));
        assert_eq!(events[1], Event::FlushFailed { began: 3 });
    }

    /// Within the flush another write goes through the same recorder.
    struct Meddler {
        inner: MemoryDevice,
        recorder: std::sync::OnceLock<std::sync::Weak<Recorder<Meddler>>>,
    }

    impl Device for Meddler {
        fn len(&self) -> u64 {
            self.inner.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.inner.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
            self.inner.write_at(offset, bufs)
        }
        fn flush(&self) -> Result<()> {
            self.recorder.get().unwrap().upgrade().unwrap().write_at(1, &[&[9]])
        }
        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.inner.discard(offset, len)
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
    }

    #[test]
    fn a_write_during_a_flush_returned_after_it_began() {
        let inner = MemoryDevice::new(64);
        let d = Arc::new(Recorder::new(Meddler { inner, recorder: std::sync::OnceLock::new() }));
        d.inner().recorder.set(Arc::downgrade(&d)).unwrap();
        d.flush().unwrap();
        let events = d.record().events();
        let Event::Change(change) = &events[0] else { panic!("{events:?}") };
        let Event::Flush { began } = events[1] else { panic!("{events:?}") };
        assert!(matches!(change.outcome, Outcome::Done(t) if t > began));
    }

    #[test]
    fn clearing() {
        let d = Recorder::new(MemoryDevice::new(64));
        d.write_at(0, &[&[1]]).unwrap();
        d.record().clear();
        assert!(d.record().is_empty());
        d.write_at(1, &[&[1]]).unwrap();
        assert_eq!(d.record().len(), 1);
        let events = d.record().events();
        assert!(matches!(&events[0], Event::Change(c) if c.id == 3 && c.outcome == Outcome::Done(4)));
    }
}
