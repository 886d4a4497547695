//! What disks, cables and people do to volumes.

use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_format::super_block::{PRIMARY_OFFSET, secondary_offset};
use silt_model::rng::Rng;

use super::volume::Aged;

/// How much is hit, and with what.
type Hurt = fn(&mut Knife<'_>);

/// Kinds of damage by name.
pub const KINDS: &[(&str, Hurt)] = &[
    ("bit", |k| k.bits(1)),
    ("bits", |k| {
        let n = k.rng.between(2, 12);
        k.bits(n);
    }),
    ("block", |k| k.blocks(1)),
    ("blocks", |k| {
        let n = k.rng.between(2, 8);
        k.blocks(n);
    }),
    ("newest block", |k| {
        let block = k.newest();
        k.noise(block, 1);
    }),
    ("newest blocks", |k| {
        for _ in 0..k.rng.between(2, 4) {
            let block = k.newest();
            k.noise(block, 1);
        }
    }),
    ("run", |k| {
        let (at, n) = (k.any(), k.rng.between(2, 64));
        k.noise(at, n);
    }),
    ("run of zeros", |k| {
        let (at, n) = (k.any(), k.rng.between(2, 200));
        k.zero(at, n);
    }),
    ("segment", |k| {
        let (at, n) = k.segment();
        k.noise(at, n);
    }),
    ("segment of zeros", |k| {
        let (at, n) = k.segment();
        k.zero(at, n);
    }),
    ("stale block", |k| {
        let at = k.any();
        k.stale(at, 1);
    }),
    ("stale newest block", |k| {
        let at = k.newest();
        k.stale(at, 1);
    }),
    ("stale run", |k| {
        let (at, n) = (k.any(), k.rng.between(2, 64));
        k.stale(at, n);
    }),
    ("stale segment", |k| {
        let (at, n) = k.segment();
        k.stale(at, n);
    }),
    ("lost writes", |k| {
        for _ in 0..k.rng.between(2, 40) {
            let at = k.any();
            k.stale(at, 1);
        }
    }),
    ("misplaced segment", |k| {
        let ((from, n), (to, m)) = (k.segment(), k.segment());
        let bytes = k.read(from, n.min(m));
        k.write(to, &bytes);
    }),
    ("exchanged segments", |k| {
        let ((a, n), (b, m)) = (k.segment(), k.segment());
        let (x, y) = (k.read(a, n.min(m)), k.read(b, n.min(m)));
        k.write(b, &x);
        k.write(a, &y);
    }),
    ("shifted run", |k| {
        let (at, n) = (k.any(), k.rng.between(2, 64));
        let bytes = k.read(at, n);
        k.write(at + 1, &bytes);
    }),
    ("first super block", |k| k.super_block(true, false)),
    ("second super block", |k| k.super_block(false, true)),
    ("both super blocks", |k| k.super_block(true, true)),
    ("both super blocks and a newest block", |k| {
        k.super_block(true, true);
        let block = k.newest();
        k.noise(block, 1);
    }),
    ("the beginning", |k| {
        let n = k.rng.between(1, 300);
        k.zero(0, n);
    }),
    ("unreadable sectors", |k| {
        for _ in 0..k.rng.between(1, 6) {
            let at = if k.rng.percent(50) { k.newest() } else { k.any() };
            k.unreadable(at, 1);
        }
    }),
    ("unreadable run", |k| {
        let (at, n) = (k.any(), k.rng.between(2, 64));
        k.unreadable(at, n);
    }),
    ("cut short", |k| {
        let all = k.blocks_of_device();
        let at = k.rng.between(k.volume.end * 3 / 4, all);
        k.cut_short(at);
    }),
    ("two kinds", |k| {
        for _ in 0..2 {
            let (_, hurt) = KINDS[k.rng.index(PLAIN)];
            hurt(k);
        }
    }),
];

/// The first so many kinds come together in one case, too.
const PLAIN: usize = 25;

/// What cuts into a copy of a volume.
pub struct Knife<'a> {
    volume: &'a Aged,
    /// The copy.
    pub device: MemoryDevice,
    /// Bytes of it that cannot be read.
    pub unreadable: Vec<Range<u64>>,
    rng: Rng,
}

impl<'a> Knife<'a> {
    /// A fresh copy of a volume; the same seed does the same.
    pub fn new(volume: &'a Aged, seed: u64) -> Self {
        Knife { volume, device: volume.device.fork(), unreadable: Vec::new(), rng: Rng::new(seed) }
    }

    fn any(&mut self) -> u64 {
        self.rng.between(1, self.volume.end - 1)
    }

    fn newest(&mut self) -> u64 {
        self.rng.pick(&self.volume.newest).copied().unwrap_or(1)
    }

    /// First block and length of a segment that was written to.
    fn segment(&mut self) -> (u64, u64) {
        let per = u64::from(self.volume.geometry.blocks_per_segment);
        let first = self.rng.below(self.volume.end.div_ceil(per)) * per;
        let first = first.max(self.volume.geometry.first_data_block);
        (first, per - first % per)
    }

    fn bytes(&self, blocks: u64) -> usize {
        usize::try_from(blocks).unwrap_or(0) * self.volume.geometry.bs()
    }

    fn blocks_of_device(&self) -> u64 {
        self.device.len() / u64::from(self.volume.geometry.block_size)
    }

    fn within(&self, at: u64, blocks: u64) -> (u64, u64) {
        let all = self.blocks_of_device();
        (at.min(all - 1), blocks.min(all - at.min(all - 1)))
    }

    fn read(&self, at: u64, blocks: u64) -> Vec<u8> {
        let (at, blocks) = self.within(at, blocks);
        let mut bytes = vec![0; self.bytes(blocks)];
        let _ = self.device.read_at(at * u64::from(self.volume.geometry.block_size), &mut bytes);
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let place = at * u64::from(self.volume.geometry.block_size);
        let room = usize::try_from(self.device.len().saturating_sub(place)).unwrap_or(0);
        let _ = self.device.write_at(place, &[&bytes[..bytes.len().min(room)]]);
    }

    fn noise(&mut self, at: u64, blocks: u64) {
        let (at, blocks) = self.within(at, blocks);
        let words = self.bytes(blocks) / 8;
        let bytes: Vec<u8> = (0..words).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        self.write(at, &bytes);
    }

    fn zero(&self, at: u64, blocks: u64) {
        let (at, blocks) = self.within(at, blocks);
        self.write(at, &vec![0; self.bytes(blocks)]);
    }

    fn stale(&mut self, at: u64, blocks: u64) {
        let (at, blocks) = self.within(at, blocks);
        let mut bytes = vec![0; self.bytes(blocks)];
        let Some(older) = self.rng.pick(&self.volume.older) else { return };
        let _ = older.read_at(at * u64::from(self.volume.geometry.block_size), &mut bytes);
        self.write(at, &bytes);
    }

    fn bits(&mut self, count: u64) {
        for _ in 0..count {
            let block = if self.rng.percent(50) { self.newest() } else { self.any() };
            let mut bytes = self.read(block, 1);
            let at = self.rng.index(bytes.len());
            bytes[at] ^= 1 << self.rng.below(8);
            self.write(block, &bytes);
        }
    }

    fn blocks(&mut self, count: u64) {
        for _ in 0..count {
            let block = self.any();
            self.noise(block, 1);
        }
    }

    fn unreadable(&mut self, at: u64, blocks: u64) {
        let (at, blocks) = self.within(at, blocks);
        let size = u64::from(self.volume.geometry.block_size);
        self.unreadable.push(at * size..(at + blocks) * size);
    }

    fn cut_short(&mut self, blocks: u64) {
        let short = MemoryDevice::new(blocks * u64::from(self.volume.geometry.block_size));
        self.device.for_each_chunk(|at, bytes| {
            let room = usize::try_from(short.len().saturating_sub(at)).unwrap_or(0);
            let _ = short.write_at(at, &[&bytes[..bytes.len().min(room)]]);
        });
        self.device = short;
    }

    fn super_block(&self, first: bool, second: bool) {
        let copies = [(first, PRIMARY_OFFSET), (second, secondary_offset(self.device.len()))];
        for (_, at) in copies.into_iter().filter(|(hit, _)| *hit) {
            let _ = self.device.write_at(at, &[&[0; 1024]]);
        }
    }

    /// What the cases are tried on: a fresh copy each time.
    pub fn broken(&self) -> Arc<dyn Device> {
        if self.unreadable.is_empty() {
            return Arc::new(self.device.fork());
        }
        let device = Fault::new(self.device.fork());
        self.unreadable.iter().for_each(|range| device.fail_reads(range.clone(), Times::UntilWritten));
        Arc::new(device)
    }

    /// The damaged volume alone; `None` where sectors of it cannot be read.
    pub fn image(&self) -> Option<MemoryDevice> {
        self.unreadable.is_empty().then(|| self.device.fork())
    }

    /// Blocks that are other than on the sound volume.
    pub fn changed(&self) -> Vec<u64> {
        let size = self.volume.geometry.bs();
        let per = (1 << 20) / size;
        let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut changed = Vec::new();
        let mut at = 0;
        while at < self.volume.device.len() {
            let n = usize::try_from(self.volume.device.len() - at).unwrap_or(0).min(1 << 20);
            let there = usize::try_from(self.device.len().saturating_sub(at)).unwrap_or(0).min(n);
            let _ = self.device.read_at(at, &mut a[..there]);
            let _ = self.volume.device.read_at(at, &mut b[..n]);
            let pairs = a[..there].chunks(size).zip(b[..n].chunks(size));
            let first = at / (1 << 20) * per as u64;
            changed.extend((first..).zip(pairs).filter(|(_, (x, y))| x != y).map(|(n, _)| n));
            at += 1 << 20;
        }
        // What is cut off is lost where a log was.
        let size = u64::from(self.volume.geometry.block_size);
        changed.extend(self.blocks_of_device()..self.volume.end);
        changed.extend(self.unreadable.iter().flat_map(|r| r.start / size..r.end / size));
        changed.sort_unstable();
        changed.dedup();
        changed
    }
}
