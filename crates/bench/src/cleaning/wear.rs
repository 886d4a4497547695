//! How often each segment is written: what flash without an even hand of its own would feel.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use silt_device::{Capabilities, Device, MemoryDevice, Result};

/// A device in memory that counts the bytes written to each segment. Super blocks, which are written in place whatever
/// the cleaner does, are not counted.
pub struct Worn {
    inner: MemoryDevice,
    /// Bytes.
    segment: u64,
    written: Vec<AtomicU64>,
    outside: AtomicU64,
}

/// How even it was, over the segments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// How often the least, the average and the most written segment was written, in segments.
    pub least: f64,
    pub mean: f64,
    pub most: f64,
    /// Standard deviation by mean.
    pub variation: f64,
}

impl Worn {
    pub fn new(bytes: u64, segment: u64) -> Self {
        let n = usize::try_from(bytes / segment.max(1)).unwrap_or(0);
        let written = (0..n).map(|_| AtomicU64::new(0)).collect();
        Worn { inner: MemoryDevice::new(bytes), segment: segment.max(1), written, outside: AtomicU64::new(0) }
    }

    /// Counts from zero.
    pub fn reset(&self) {
        self.written.iter().chain([&self.outside]).for_each(|n| n.store(0, Ordering::Relaxed));
    }

    /// Bytes that were written, super blocks included.
    pub fn bytes(&self) -> u64 {
        self.written.iter().chain([&self.outside]).map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Of so many segments; what is behind them is too small for one.
    pub fn wear(&self, segments: u64) -> Wear {
        let n = usize::try_from(segments).unwrap_or(usize::MAX);
        let times =
            self.written.iter().take(n).map(|n| n.load(Ordering::Relaxed) as f64 / self.segment as f64);
        of(&times.collect::<Vec<f64>>())
    }
}

fn of(times: &[f64]) -> Wear {
    let n = times.len().max(1) as f64;
    let mean = times.iter().sum::<f64>() / n;
    let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / n;
    let variation = if mean > 0.0 { variance.sqrt() / mean } else { 0.0 };
    let least = times.iter().copied().reduce(f64::min).unwrap_or(0.0);
    Wear { least, mean, most: times.iter().copied().fold(0.0, f64::max), variation }
}

impl Device for Worn {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.inner.read_if_cached(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let (mut at, end) = (offset, offset + bufs.iter().map(|b| b.len() as u64).sum::<u64>());
        while at < end {
            let n = at / self.segment;
            let stop = ((n + 1) * self.segment).min(end);
            let cell = usize::try_from(n).ok().and_then(|n| self.written.get(n)).unwrap_or(&self.outside);
            cell.fetch_add(stop - at, Ordering::Relaxed);
            at = stop;
        }
        self.inner.write_at(offset, bufs)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.outside.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.write_durably(offset, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_byte_counts_where_it_lies() {
        let worn = Worn::new(5000, 1000);
        worn.write_at(900, &[&[1; 150], &[2; 1000]]).unwrap();
        worn.write_durably(0, &[0; 70]).unwrap();
        let w = worn.wear(5);
        assert_eq!((w.least, w.most), (0.0, 1.0));
        assert!((w.mean - 0.23).abs() < 1e-9, "{w:?}");
        assert_eq!(worn.bytes(), 1220);
        assert!((worn.wear(2).mean - 0.55).abs() < 1e-9);
        worn.reset();
        assert_eq!((worn.bytes(), worn.wear(5).variation), (0, 0.0));
    }

    #[test]
    fn evenness() {
        assert_eq!(of(&[2.0, 2.0, 2.0]), Wear { least: 2.0, mean: 2.0, most: 2.0, variation: 0.0 });
        assert_eq!(of(&[1.0, 3.0]), Wear { least: 1.0, mean: 2.0, most: 3.0, variation: 0.5 });
    }
}
