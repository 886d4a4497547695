//! A device in memory, sparse: chunks that were never written take no space and read as zeroes.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::{Capabilities, Device, Error, Operation, Result};

const CHUNK: usize = 64 * 1024;

/// A sparse device in memory. Flush and discard succeed; discarded whole chunks read as zeroes.
pub struct MemoryDevice {
    size: u64,
    chunks: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        MemoryDevice { size, chunks: RwLock::new(BTreeMap::new()) }
    }

    /// A device that holds `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = MemoryDevice::new(bytes.len() as u64);
        {
            let mut chunks = device.chunks.write();
            for (i, part) in bytes.chunks(CHUNK).enumerate() {
                if part.iter().any(|b| *b != 0) {
                    let mut chunk = vec![0; CHUNK];
                    chunk[..part.len()].copy_from_slice(part);
                    chunks.insert(i as u64, chunk.into_boxed_slice());
                }
            }
        }
        device
    }

    /// A copy of what the device holds now.
    pub fn fork(&self) -> Self {
        MemoryDevice { size: self.size, chunks: RwLock::new(self.chunks.read().clone()) }
    }

    /// Calls `f` with the offset and bytes of every chunk that was ever written, ascending.
    pub fn for_each_chunk(&self, mut f: impl FnMut(u64, &[u8])) {
        for (n, chunk) in self.chunks.read().iter() {
            let at = n * CHUNK as u64;
            let len = (self.size - at).min(CHUNK as u64);
            #[allow(clippy::cast_possible_truncation)] // at most CHUNK
            f(at, &chunk[..len as usize]);
        }
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::OutOfRange { operation, offset, len, size: self.size }),
        }
    }
}

/// Splits `[offset, offset + len)` into (chunk number, start in chunk, start in range, length).
#[allow(clippy::cast_possible_truncation)] // remainders below CHUNK
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % CHUNK as u64) as usize;
        let n = (CHUNK - start).min(len - done);
        let piece = (at / CHUNK as u64, start, done, n);
        done += n;
        Some(piece)
    })
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(Operation::Read, offset, buf.len() as u64)?;
        let chunks = self.chunks.read();
        for (chunk, start, at, n) in pieces(offset, buf.len()) {
            match chunks.get(&chunk) {
                Some(c) => buf[at..at + n].copy_from_slice(&c[start..start + n]),
                None => buf[at..at + n].fill(0),
            }
        }
        Ok(())
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.read_at(offset, buf).map(|()| true)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.check(Operation::Write, offset, bufs.iter().map(|b| b.len() as u64).sum())?;
        let mut chunks = self.chunks.write();
        let mut pos = offset;
        for buf in bufs {
            for (chunk, start, at, n) in pieces(pos, buf.len()) {
                let c = chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
                c[start..start + n].copy_from_slice(&buf[at..at + n]);
            }
            pos += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(Operation::Discard, offset, len)?;
        let first = offset.div_ceil(CHUNK as u64);
        let last = (offset + len) / CHUNK as u64;
        let mut chunks = self.chunks.write();
        for chunk in first..last {
            chunks.remove(&chunk);
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { flush: false, discard: true, ..Capabilities::default() }
    }
}
