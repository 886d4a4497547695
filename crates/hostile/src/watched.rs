//! A device that counts what is asked of it and ends endless reading.
//!
//! Every request beyond the budget fails, so that a loop that reads comes to an end; what was broken is kept and read
//! afterwards.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use silt_device::{Capabilities, Device, Error, MemoryDevice, Operation, Result};

/// What may be asked of a device.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Requests to read.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// See the module.
pub struct Watched {
    inner: MemoryDevice,
    writable: bool,
    budget: Budget,
    requests: AtomicU64,
    bytes: AtomicU64,
    written: AtomicU64,
    exceeded: AtomicBool,
    touched: AtomicBool,
    trace: Option<Mutex<HashSet<u64>>>,
}

/// Unit of [`Watched::read_blocks`] in bytes: the smallest block size.
pub const UNIT: u64 = 1024;

impl Watched {
    /// Watches `inner`; without `writable` every request to write fails and is remembered.
    pub fn new(inner: MemoryDevice, writable: bool, budget: Budget) -> Self {
        Self {
            inner,
            writable,
            budget,
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            exceeded: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            trace: None,
        }
    }

    /// Remembers which parts are read.
    pub fn traced(inner: MemoryDevice) -> Self {
        let budget = Budget { requests: u64::MAX, bytes: u64::MAX };
        Self { trace: Some(Mutex::default()), ..Self::new(inner, false, budget) }
    }

    /// Requests to read and bytes read so far.
    pub fn reads(&self) -> (u64, u64) {
        (self.requests.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Whether more was read than the budget allows.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Relaxed)
    }

    /// Whether a write, flush or discard came although nothing may be written.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Relaxed)
    }

    /// Units that were read, of a traced device.
    pub fn read_units(&self) -> HashSet<u64> {
        self.trace.as_ref().map(|t| t.lock().clone()).unwrap_or_default()
    }

    /// The device below.
    pub fn inner(&self) -> &MemoryDevice {
        &self.inner
    }

    fn change(&self, operation: Operation, bytes: u64) -> Result<()> {
        self.written.fetch_add(bytes, Relaxed);
        if self.writable {
            return Ok(());
        }
        self.touched.store(true, Relaxed);
        Err(refused(operation, self.len()))
    }
}

fn refused(operation: Operation, size: u64) -> Error {
    Error::OutOfRange { operation, offset: 0, len: 0, size }
}

impl Device for Watched {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let requests = self.requests.fetch_add(1, Relaxed) + 1;
        let bytes = self.bytes.fetch_add(buf.len() as u64, Relaxed) + buf.len() as u64;
        if let Some(trace) = &self.trace {
            trace.lock().extend(offset / UNIT..(offset + buf.len() as u64).div_ceil(UNIT));
        }
        if requests > self.budget.requests || bytes > self.budget.bytes {
            self.exceeded.store(true, Relaxed);
            return Err(refused(Operation::Read, self.len()));
        }
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.change(Operation::Write, bufs.iter().map(|b| b.len() as u64).sum())?;
        self.inner.write_at(offset, bufs)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.change(Operation::Discard, 0)?;
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}
