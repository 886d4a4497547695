//! Fresh volumes for tests.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use silt_device::MemoryDevice;

use crate::mkfs::{Parameters, Plan};
use crate::volume::{OpenOptions, Volume};

/// A volume of so many bytes with blocks of 4096 bytes, opened for writing, and its device.
pub(crate) fn fresh(bytes: u64, blocks_per_segment: u32) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(bytes));
    let parameters = Parameters { blocks_per_segment, now: 1000, ..Parameters::default() };
    Plan::new(parameters, bytes).unwrap().write(&*device, false).unwrap();
    let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    v.take_over(2000).unwrap();
    (device, v)
}
