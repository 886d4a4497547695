//! Small volumes, made file by file and checkpoint by checkpoint.

use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Time, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, SetAttr, WriteFlags};

use crate::common::noise;

/// A volume in the making.
pub struct Making {
    device: Arc<MemoryDevice>,
    pub fs: Fs,
    now: u64,
}

impl Making {
    pub fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let parameters = Parameters {
            blocks_per_segment: 128,
            uuid: [5; 16],
            crc_seed: 79,
            now: 1000,
            ..Parameters::default()
        };
        Plan::new(parameters, device.len()).unwrap().write(&*device, false).unwrap();
        let opened = OpenOptions { now: 2000, seed: 3, ..OpenOptions::default() };
        let (mut volume, _) = Volume::open(device.clone(), &opened).unwrap();
        volume.take_over(2000).unwrap();
        Making { device, fs: Fs::new(volume, &silt_fs::Options::default()), now: 3000 }
    }

    pub fn context(&self) -> Context {
        let now = Time { secs: self.now as i64, nanos: 0 };
        Context { now, privileged: true, ..Context::default() }
    }

    pub fn make(&mut self, parent: Ino, name: &str, owner: u32) -> Ino {
        let ctx = self.context();
        let ino = self.fs.create(&ctx, parent, name.as_bytes(), 0o100_640).unwrap().ino;
        let set = SetAttr { uid: Some(owner), ..SetAttr::default() };
        self.fs.setattr(&ctx, ino, &set).unwrap();
        ino
    }

    /// A checkpoint in which a file is gone, and its number free.
    pub fn remove(&mut self, parent: Ino, name: &str, ino: Ino) {
        let ctx = self.context();
        self.fs.unlink(&ctx, parent, name.as_bytes()).unwrap();
        self.fs.forget(ino, u64::MAX).unwrap();
        self.sync();
    }

    pub fn write(&mut self, ino: Ino, blocks: usize, seed: u64) {
        let ctx = self.context();
        self.fs.write(&ctx, ino, 0, &noise(blocks * 4096, seed), WriteFlags::default()).unwrap();
    }

    /// A checkpoint, and which.
    pub fn sync(&mut self) -> u64 {
        self.now += 100;
        self.fs.sync_all(self.now).unwrap()
    }

    pub fn done(self) -> MemoryDevice {
        self.fs.into_volume().close(self.now + 1).unwrap();
        self.device.fork()
    }
}
