//! Volumes in memory, files without names on them, and the judge.

use std::sync::Arc;

use silt_device::Device;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{Attr, OpenOptions, Time, Volume};
use silt_format::Ino;

/// The device with an empty volume on it.
pub fn formatted<D: Device>(device: D, block_size: u32, blocks_per_segment: u32) -> D {
    let parameters = Parameters {
        block_size,
        blocks_per_segment,
        label: b"test".to_vec(),
        uuid: [7; 16],
        crc_seed: 0x1234_5678,
        now: 1000,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, device.len()).unwrap().write(&device, true).unwrap();
    device
}

/// Opens for writing.
pub fn open(device: Arc<dyn Device>) -> Volume {
    open_with(device, &OpenOptions { now: 2000, seed: 5, ..OpenOptions::default() })
}

pub fn open_with(device: Arc<dyn Device>, options: &OpenOptions) -> Volume {
    let (mut v, _) = Volume::open(device, options).unwrap();
    v.take_over(2000).unwrap();
    v
}

pub fn attr() -> Attr {
    Attr {
        mode: 0o100_644,
        uid: 1,
        gid: 2,
        links: 1,
        size: i64::MAX as u64,
        mtime: Time { secs: 5, nanos: 6 },
        ctime: Time { secs: 7, nanos: 8 },
        flags: 0,
        generation: 0,
        device: (0, 0),
    }
}

/// A file large enough for any block.
pub fn file(v: &mut Volume) -> Ino {
    v.create_inode(attr()).unwrap()
}

/// Fails unless the volume is sound, but for files without names, which is how these tests make them.
pub fn judge(device: &dyn Device) {
    let report = silt_verify::check(device, &silt_verify::Options::default());
    let errors: Vec<_> = report.errors().filter(|f| f.id != "inode-lost").collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
