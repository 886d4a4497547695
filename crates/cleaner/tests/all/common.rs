//! Volumes for these tests.

use std::sync::Arc;

use silt_device::Device;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{Attr, OpenOptions, Time, Tree, Volume};
use silt_format::Ino;

/// A new volume on a device, mounted.
pub fn volume<D: Device + 'static>(device: &Arc<D>, parameters: Parameters) -> Volume {
    let parameters = Parameters { now: 1000, ..parameters };
    Plan::new(parameters, device.len()).unwrap().write(&**device, false).unwrap();
    mounted(device)
}

/// A volume that is there, mounted.
pub fn mounted<D: Device + 'static>(device: &Arc<D>) -> Volume {
    let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    volume.take_over(2000).unwrap();
    volume
}

/// A file without a name.
pub fn file(v: &mut Volume) -> Ino {
    let attr = Attr {
        mode: 0o100_644,
        links: 1,
        mtime: Time::default(),
        ..v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone()
    };
    v.create_inode(attr).unwrap()
}
