//! Mounts on a block device: sync(2) arrives, and an unmount waits for the file system to finish.
//!
//! Only `syncfs` is called here, never `sync`, which would wait for every file system of the machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)] // Tests.

mod common;
#[path = "../examples/memfs/memfs/mod.rs"]
mod memfs;
#[path = "common/probe.rs"]
mod probe;

use common::{Loop, Place, Rig, can_mount, wait_for};
use memfs::{Memfs, Settings};
use probe::Probe;
use silt_fuse::{BlockDevice, Ended, MountOptions, Unmount, abort_connection, find_mount, unmount};
use std::fs::{self, File};
use std::sync::atomic::Ordering;

fn options(device: &Loop) -> MountOptions {
    let block_device = Some(BlockDevice { path: device.device.clone(), block_size: 4096 });
    MountOptions { block_device, allow_other: true, ..MountOptions::default() }
}

/// True from Linux 6.18 on.
fn kernel_sends_syncfs() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 18)
}

#[test]
fn syncfs_and_destroy_arrive() {
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new(1 << 20) else { return };
    let rig = Rig::with(Memfs::new(Settings::default()), &options(&device), 1);
    device.release();
    let entry = find_mount(rig.root()).unwrap().unwrap();
    assert_eq!(entry.fs_type, "fuseblk.silt");
    assert_eq!(entry.source.to_str(), device.device.to_str());

    fs::write(rig.at("file"), "content").unwrap();
    let syncs = rig.fs.syncs.load(Ordering::SeqCst);
    let root = File::open(rig.root()).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    drop(root);
    if kernel_sends_syncfs() {
        assert_eq!(rig.fs.syncs.load(Ordering::SeqCst), syncs + 1);
    } else {
        println!("this kernel does not send SYNCFS");
    }
    assert_eq!(fs::read(rig.at("file")).unwrap(), b"content");

    let fs = std::sync::Arc::clone(&rig.fs);
    wait_for("the unmount", || match unmount(rig.root(), Unmount::Strict) {
        Err(silt_fuse::Error::Busy(_)) => false,
        result => result.map(|()| true).unwrap(),
    });
    assert_eq!(fs.destroys.load(Ordering::SeqCst), 1, "the unmount waited for it");
    let mut rig = rig;
    assert_eq!(rig.join().unwrap(), Ended::Unmounted);
    assert_eq!(fs.destroys.load(Ordering::SeqCst), 1, "and it came once");
}

#[test]
fn an_abort_frees_a_block_mount_that_nobody_serves() {
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new(1 << 20) else { return };
    let mut rig = Rig::with(Probe { handles: true, ..Probe::default() }, &options(&device), 1);
    device.release();
    // A reader that is never answered, as with a daemon that hangs.
    let path = rig.at("slow");
    let reader = std::thread::spawn(move || fs::read(path));
    wait_for("the read", || rig.fs.kept.lock().len() == 1);
    abort_connection(rig.root()).unwrap();
    assert!(reader.join().unwrap().is_err());
    assert_eq!(rig.join().unwrap(), Ended::Aborted);
    assert!(!rig.is_mounted());
    assert_eq!(rig.fs.count("destroy"), 1);
}

#[test]
fn a_block_mount_that_is_never_served_goes_away() {
    use silt_fuse::Session;
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new(1 << 20) else { return };
    let place = Place::new();
    let session = Session::mount(place.path(), &options(&device)).unwrap();
    device.release();
    assert!(place.is_mounted());
    drop(session);
    assert!(!place.is_mounted());
}

#[test]
fn a_device_in_use_is_refused() {
    use silt_fuse::Session;
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new(1 << 20) else { return };
    let rig = Rig::with(Probe::default(), &options(&device), 1);
    let place = Place::new();
    let error = Session::mount(place.path(), &options(&device)).unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    assert!(!place.is_mounted());
    assert!(fs::metadata(rig.at("file")).is_ok(), "the first mount is untouched");
    assert_eq!(rig.finish(), Ended::Unmounted);
}
