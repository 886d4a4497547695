//! Fresh volumes for tests.

#![allow(clippy::unwrap_used, clippy::unreachable)] // tests: a surprise is a failure

use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_format::Ino;

use crate::mkfs::{Parameters, Plan};
use crate::volume::{OpenOptions, Volume};
use crate::{Attr, Step, Time, Tree};

/// A volume of so many bytes with blocks of 4096 bytes, opened for writing, and its device.
pub(crate) fn fresh(bytes: u64, blocks_per_segment: u32) -> (Arc<MemoryDevice>, Volume) {
    fresh_with(bytes, Parameters { blocks_per_segment, ..Parameters::default() })
}

/// The same with other parameters.
pub(crate) fn fresh_with(bytes: u64, parameters: Parameters) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(bytes));
    let parameters = Parameters { now: 1000, ..parameters };
    Plan::new(parameters, bytes).unwrap().write(&*device, false).unwrap();
    let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    v.take_over(2000).unwrap();
    (device, v)
}

/// An empty file without a name.
pub(crate) fn file(v: &mut Volume) -> Ino {
    let root = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
    v.create_inode(Attr { mode: 0o100_644, links: 1, mtime: Time::default(), ..root }).unwrap()
}

/// Takes a construction to its end by small steps, each log written before the next one is composed.
pub(crate) fn write_out(device: &dyn Device, v: &mut Volume) {
    loop {
        match v.step(50).unwrap() {
            Step::Write(mut log) => {
                log.seal();
                log.write(device).unwrap();
                v.log_written();
            }
            Step::Working => {}
            Step::Waiting => unreachable!("every log was confirmed"),
            Step::Done(_) => return,
        }
    }
}
