//! A wrapper that counts requests.
//!
//! Locks: none; every figure is an atomic of its own, so a snapshot taken while requests run may
//! hold one figure of a request and not yet another.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Capabilities, Device, Result, total};

/// Requests of one kind and the bytes they asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub requests: u64,
    pub bytes: u64,
}

/// What went through a [`Counter`]. Requests count when they are made, whatever becomes of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// `read_at`.
    pub reads: Tally,
    /// `read_if_cached` that had the bytes.
    pub cached_reads: Tally,
    /// `read_if_cached` that had not.
    pub cache_misses: u64,
    /// `write_at`; a gathered request is one.
    pub writes: Tally,
    /// `write_durably`; the flushes inside are not counted elsewhere.
    pub durable_writes: Tally,
    /// `discard`.
    pub discards: Tally,
    /// `flush`.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
}

#[derive(Default)]
struct Cell {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Cell {
    fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self, of: impl Fn(&AtomicU64) -> u64) -> Tally {
        Tally { requests: of(&self.requests), bytes: of(&self.bytes) }
    }
}

/// Counts what passes to the inner device.
pub struct Counter<D> {
    inner: D,
    reads: Cell,
    cached_reads: Cell,
    cache_misses: AtomicU64,
    writes: Cell,
    durable_writes: Cell,
    discards: Cell,
    flushes: AtomicU64,
    errors: AtomicU64,
}

impl<D: Device> Counter<D> {
    /// Counts from zero.
    pub fn new(inner: D) -> Self {
        Counter {
            inner,
            reads: Cell::default(),
            cached_reads: Cell::default(),
            cache_misses: AtomicU64::new(0),
            writes: Cell::default(),
            durable_writes: Cell::default(),
            discards: Cell::default(),
            flushes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The figures now.
    pub fn counts(&self) -> Counts {
        self.collect(|n| n.load(Ordering::Relaxed))
    }

    /// Sets all figures to zero and returns what they were.
    pub fn reset(&self) -> Counts {
        self.collect(|n| n.swap(0, Ordering::Relaxed))
    }

    fn collect(&self, of: impl Fn(&AtomicU64) -> u64) -> Counts {
        Counts {
            reads: self.reads.get(&of),
            cached_reads: self.cached_reads.get(&of),
            cache_misses: of(&self.cache_misses),
            writes: self.writes.get(&of),
            durable_writes: self.durable_writes.get(&of),
            discards: self.discards.get(&of),
            flushes: of(&self.flushes),
            errors: of(&self.errors),
        }
    }

    fn passed<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl<D: Device> Device for Counter<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.add(buf.len() as u64);
        self.passed(self.inner.read_at(offset, buf))
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let result = self.inner.read_if_cached(offset, buf);
        match result {
            Ok(true) => self.cached_reads.add(buf.len() as u64),
            Ok(false) => {
                self.cache_misses.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        self.passed(result)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.writes.add(total(bufs));
        self.passed(self.inner.write_at(offset, bufs))
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.passed(self.inner.flush())
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.durable_writes.add(buf.len() as u64);
        self.passed(self.inner.write_durably(offset, buf))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.discards.add(len);
        self.passed(self.inner.discard(offset, len))
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
    use crate::MemoryDevice;

    #[test]
    fn counts_each_kind() {
        let d = Counter::new(MemoryDevice::new(4096));
        d.write_at(0, &[&[1; 10], &[2; 20]]).unwrap();
        d.read_at(0, &mut [0; 5]).unwrap();
        d.read_if_cached(0, &mut [0; 7]).unwrap();
        d.write_durably(0, &[1; 3]).unwrap();
        d.discard(0, 100).unwrap();
        d.flush().unwrap();
        d.flush().unwrap();
        assert!(d.read_at(4096, &mut [0]).is_err());
        let expected = Counts {
            reads: Tally { requests: 2, bytes: 6 },
            cached_reads: Tally { requests: 1, bytes: 7 },
            cache_misses: 0,
            writes: Tally { requests: 1, bytes: 30 },
            durable_writes: Tally { requests: 1, bytes: 3 },
            discards: Tally { requests: 1, bytes: 100 },
            flushes: 2,
            errors: 1,
        };
        assert_eq!(d.counts(), expected);
        assert_eq!(d.reset(), expected);
        assert_eq!(d.counts(), Counts::default());
    }
}
