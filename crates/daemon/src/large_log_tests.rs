//! Logs that are written while the next one is composed, on a device that fails.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use silt_device::{Fault, MemoryDevice, Times};

use crate::config::MountOptions;
use crate::fault_tests::{Served, check, mkfs_of};

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
