//! A device in memory, sparse: chunks that were never written take no space and read as zeroes.
//!
//! Chunks are shared between a device and its forks and copied by whoever writes one first, so a
//! fork costs one reference per chunk that holds data, whatever the size of the device.
//!
//! Locks: one, over the map of chunks; readers share it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::{Capabilities, Device, Operation, Result, check_range, total};

const CHUNK: usize = 64 * 1024;

type Chunk = [u8; CHUNK];

/// A sparse device in memory. Flush succeeds and does nothing; discarded bytes read as zeroes.
pub struct MemoryDevice {
    size: AtomicU64,
    chunks: RwLock<BTreeMap<u64, Arc<Chunk>>>,
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        MemoryDevice { size: AtomicU64::new(size), chunks: RwLock::new(BTreeMap::new()) }
    }

    /// A device that holds `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = MemoryDevice::new(bytes.len() as u64);
        {
            let mut chunks = device.chunks.write();
            for (i, part) in bytes.chunks(CHUNK).enumerate() {
                if part.iter().any(|b| *b != 0) {
                    let mut chunk = zeroes();
                    Arc::make_mut(&mut chunk)[..part.len()].copy_from_slice(part);
                    chunks.insert(i as u64, chunk);
                }
            }
        }
        device
    }

    /// A copy of what the device holds now. Cheap: data is shared until either side writes it.
    pub fn fork(&self) -> Self {
        let chunks = self.chunks.read();
        MemoryDevice { size: AtomicU64::new(self.len()), chunks: RwLock::new(chunks.clone()) }
    }

    /// Makes the device `size` bytes long if it is shorter; the new part is zero.
    pub fn grow(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Calls `f` with the offset and bytes of every chunk that was ever written, ascending.
    pub fn for_each_chunk(&self, mut f: impl FnMut(u64, &[u8])) {
        let size = self.len();
        for (n, chunk) in self.chunks.read().iter() {
            let at = n * CHUNK as u64;
            let len = (size - at).min(CHUNK as u64);
            #[allow(clippy::cast_possible_truncation)] // at most CHUNK
            f(at, &chunk[..len as usize]);
        }
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        check_range(operation, offset, len, self.len())
    }
}

fn zeroes() -> Arc<Chunk> {
    Arc::new([0; CHUNK])
}

/// Splits `[offset, offset + len)` into (chunk number, start in chunk, start in range, length).
#[allow(clippy::cast_possible_truncation)] // remainders and lengths of at most CHUNK
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, u64, usize)> {
    let mut done = 0u64;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done;
        let start = (at % CHUNK as u64) as usize;
        let n = (len - done).min((CHUNK - start) as u64) as usize;
        let piece = (at / CHUNK as u64, start, done, n);
        done += n as u64;
        Some(piece)
    })
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(Operation::Read, offset, buf.len() as u64)?;
        let chunks = self.chunks.read();
        let mut rest = buf;
        for (chunk, start, _, n) in pieces(offset, rest.len() as u64) {
            let (part, tail) = rest.split_at_mut(n);
            match chunks.get(&chunk) {
                Some(c) => part.copy_from_slice(&c[start..start + n]),
                None => part.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.read_at(offset, buf).map(|()| true)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.check(Operation::Write, offset, total(bufs))?;
        let mut chunks = self.chunks.write();
        let mut pos = offset;
        for buf in bufs {
            let mut rest = *buf;
            for (chunk, start, _, n) in pieces(pos, buf.len() as u64) {
                let (part, tail) = rest.split_at(n);
                let c = chunks.entry(chunk).or_insert_with(zeroes);
                Arc::make_mut(c)[start..start + n].copy_from_slice(part);
                rest = tail;
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
        let size = self.len();
        let mut chunks = self.chunks.write();
        // A discard of everything must not walk every chunk that was never written.
        let Some(last) = (offset + len).checked_sub(1).filter(|_| len > 0) else { return Ok(()) };
        let range = offset / CHUNK as u64..=last / CHUNK as u64;
        let touched: Vec<u64> = chunks.range(range).map(|(n, _)| *n).collect();
        for n in touched {
            let at = n * CHUNK as u64;
            let end = at.saturating_add(CHUNK as u64).min(size);
            let (from, to) = (offset.max(at), (offset + len).min(end));
            if from == at && to == end {
                chunks.remove(&n);
            } else if let Some(c) = chunks.get_mut(&n) {
                #[allow(clippy::cast_possible_truncation)] // both within the chunk
                Arc::make_mut(c)[(from - at) as usize..(to - at) as usize].fill(0);
            }
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { flush: false, discard: true, ..Capabilities::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * CHUNK as u64 + 100;

    fn bytes(device: &MemoryDevice) -> Vec<u8> {
        let mut out = vec![0xee; device.len() as usize];
        device.read_at(0, &mut out).unwrap();
        out
    }

    #[test]
    fn forks_share_until_written() {
        let a = MemoryDevice::new(SIZE);
        a.write_at(10, &[&[1; 4]]).unwrap();
        a.write_at(CHUNK as u64, &[&[2; 4]]).unwrap();
        let b = a.fork();
        b.write_at(10, &[&[9; 4]]).unwrap();
        assert_eq!(bytes(&a)[10..14], [1; 4]);
        assert_eq!(bytes(&b)[10..14], [9; 4]);
        let shared = |n: u64| Arc::ptr_eq(&a.chunks.read()[&n], &b.chunks.read()[&n]);
        assert!(shared(1), "an untouched chunk is not copied");
        assert!(!shared(0));
    }

    #[test]
    fn gathers_across_chunks() {
        let d = MemoryDevice::new(SIZE);
        let long = vec![7; CHUNK];
        d.write_at(CHUNK as u64 - 3, &[&[1, 2], &[], &long, &[3]]).unwrap();
        let all = bytes(&d);
        assert_eq!(all[CHUNK - 4..CHUNK + 1], [0, 1, 2, 7, 7]);
        assert_eq!(all[2 * CHUNK - 2..2 * CHUNK + 1], [7, 3, 0]);
    }

    #[test]
    fn discard_zeroes_exactly_the_range_and_frees_whole_chunks() {
        let d = MemoryDevice::from_bytes(&vec![5; SIZE as usize]);
        d.discard(100, SIZE - 100).unwrap();
        let all = bytes(&d);
        assert!(all[..100].iter().all(|b| *b == 5));
        assert!(all[100..].iter().all(|b| *b == 0));
        assert_eq!(d.chunks.read().len(), 1);
        d.discard(50, 0).unwrap();
        assert_eq!(bytes(&d)[50], 5);
    }

    #[test]
    fn ranges_are_checked() {
        let d = MemoryDevice::new(SIZE);
        assert!(d.read_at(SIZE, &mut [0]).is_err());
        assert!(d.write_at(SIZE - 1, &[&[1], &[2]]).is_err());
        assert!(d.discard(u64::MAX, 2).is_err());
        assert!(d.read_at(SIZE, &mut []).is_ok());
        d.grow(SIZE + 1);
        assert!(d.read_at(SIZE, &mut [0]).is_ok());
        d.grow(1);
        assert_eq!(d.len(), SIZE + 1);
    }

    #[test]
    fn chunks_that_hold_data_are_listed() {
        let d = MemoryDevice::new(SIZE);
        d.write_at(SIZE - 1, &[&[1]]).unwrap();
        let mut seen = Vec::new();
        d.for_each_chunk(|at, b| seen.push((at, b.len())));
        assert_eq!(seen, [(3 * CHUNK as u64, 100)]);
    }
}
