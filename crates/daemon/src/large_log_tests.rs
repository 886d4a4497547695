//! Logs that are written while the next one is composed, on a device that fails, and where the power does.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use silt_device::{
    Capabilities, Change, Content, CrashOptions, CrashStates, Device, Event, Fault, MemoryDevice, Recorder,
    Times,
};

use silt_engine::Tree;
use silt_format::summary::{self, Header};
use silt_format::{BlockNr, Ino};

use crate::config::MountOptions;
use crate::fault_tests::{Served, check, mkfs_of, open};

const SIZE: u64 = 512 << 20;
/// Blocks a segment, and so of a log.
const SEGMENT: u32 = 1024;
/// Blocks of a file that takes several logs.
const MANY: usize = 8 * 1024;

fn served() -> (Arc<Fault<MemoryDevice>>, Served) {
    let device = Arc::new(Fault::new(mkfs_of(SIZE, SEGMENT)));
    let served = Served::new(device.clone(), MountOptions::default());
    served.write("before", 1, 4).unwrap();
    served.sync().unwrap();
    (device, served)
}

fn segment(n: u64) -> Range<u64> {
    let bytes = u64::from(SEGMENT) * 4096;
    n * bytes..(n + 1) * bytes
}

/// The first log, one in the middle or the last is the one that its place does not take.
#[test]
fn a_bad_place_is_left_out() {
    // The first segment has a super block as well.
    for bad in 1..12 {
        let (device, mut served) = served();
        device.fail_writes(segment(bad), Times::Always);
        for round in 2..4 {
            served.write("f", round, MANY).unwrap();
            served.sync_at_last();
            check(device.inner().fork(), &[("before", 1, 4), ("f", round, MANY)]);
        }
        served.stop();
    }
}

/// Some of the logs are there when the device stops taking any; all of it is once it takes them again.
#[test]
fn a_device_that_comes_back_has_everything() {
    for how in ["gone", "gone half-way", "full", "full half-way", "flush"] {
        let (device, mut served) = served();
        match how {
            "gone" => device.fail_writes(0..SIZE, Times::Always),
            "gone half-way" => device.fail_writes(16 << 20..SIZE, Times::Always),
            "full" => device.set_full(true),
            "full half-way" => device.limit_space(Some(12 << 20)),
            _ => device.fail_flushes(Times::Always),
        }
        served.write("f", 2, MANY).unwrap();
        let code = if how.starts_with("full") { libc::ENOSPC } else { libc::EIO };
        for _ in 0..3 {
            assert_eq!(served.sync(), Err(code), "{how}");
        }
        device.heal();
        served.sync_at_last();
        assert_eq!(served.core.stall(), None);
        check(device.inner().fork(), &[("before", 1, 4), ("f", 2, MANY)]);
        served.write("f", 3, MANY).unwrap();
        served.sync().unwrap();
        served.stop();
        check(device.inner().fork(), &[("before", 1, 4), ("f", 3, MANY)]);
    }
}

/// A device that takes its time for large writes, so that whoever does not wait for them is found out.
struct Slow(Recorder<MemoryDevice>);

impl Device for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        if bufs.iter().map(|b| b.len()).sum::<usize>() > 1 << 20 {
            std::thread::sleep(Duration::from_millis(30));
        }
        self.0.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.0.discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// Whenever the power goes, there is a whole version of a file that takes several logs: the one whose sync was answered
/// last, or a newer one.
#[test]
fn every_cut_leaves_a_whole_version() {
    const BLOCKS: usize = 3 * SEGMENT as usize;
    let base = mkfs_of(128 << 20, SEGMENT);
    let device = Arc::new(Slow(Recorder::new(base.fork())));
    let mut served = Served::new(device.clone(), MountOptions::default());
    for version in 1..4 {
        // So that the next one begins within a segment.
        served.write("g", version, 40).unwrap();
        served.sync().unwrap();
        served.write("f", version, BLOCKS).unwrap();
        served.sync().unwrap();
        device.0.mark(version.into());
    }
    served.stop();
    let options = CrashOptions { seed: 7, max_states: 160, per_flush: 24 };
    let (mut states, mut newer) = (0, 0);
    for state in CrashStates::new(&base, device.0.record().events(), options) {
        let state = state.unwrap();
        let promised = state.acknowledged.iter().max().map_or(0, |m| u8::try_from(*m).unwrap());
        let found = version(&state.device, BLOCKS);
        assert!(found >= promised, "{}: version {found}, {promised} was promised", state.cut);
        if found > 0 {
            check(state.device, &[("f", found, BLOCKS)]);
        }
        states += 1;
        newer += u32::from(found > promised);
    }
    assert!(states >= 50 && newer > 0, "{states} states, {newer} of them newer than promised");
}

/// A reader that meets a torn log goes on behind it, and a super root that it finds there is the newest state to it: so that
/// log is not written before all in front of it are durable.
#[test]
fn what_ends_a_construction_comes_behind_a_flush() {
    let device = Arc::new(Slow(Recorder::new(mkfs_of(128 << 20, SEGMENT))));
    let mut served = Served::new(device.clone(), MountOptions::default());
    served.write("f", 1, 3 * SEGMENT as usize).unwrap();
    served.sync().unwrap();
    device.0.mark(1);
    served.stop();
    let g = *open(device.clone()).volume().geometry();
    let (mut not_flushed, mut ends) = (Vec::new(), 0);
    for event in device.0.record().events() {
        match event {
            Event::Change(Change { offset, content: Content::Bytes(bytes), .. }) => {
                // Super blocks are none.
                let Ok(log) = Header::parse(&g, &bytes) else { continue };
                let segment = g.segment_of(BlockNr(offset >> g.block_bits));
                if log.has(summary::SR) {
                    assert!(not_flushed.iter().all(|s| *s == segment), "{not_flushed:?}, then {segment}");
                    ends += 1;
                }
                not_flushed.push(segment);
            }
            Event::Flush { .. } => not_flushed.clear(),
            _ => {}
        }
    }
    assert!(ends > 0);
}

/// The version of "f" that is on a device, which must be sound; 0: there is none.
fn version(device: &MemoryDevice, blocks: usize) -> u8 {
    let report = silt_verify::check(device, &silt_verify::Options::default());
    assert!(report.is_clean(), "{}", report.error_text());
    let mut fs = open(Arc::new(device.fork()));
    let Ok(f) = fs.lookup(Tree::Live, Ino::ROOT, b"f") else { return 0 };
    let bytes = fs.read(Tree::Live, f.ino, 0, usize::MAX).unwrap();
    // Made, and not written yet.
    assert!(bytes.is_empty() || bytes.len() == blocks * 4096, "{} bytes", bytes.len());
    bytes.first().copied().unwrap_or(0)
}
