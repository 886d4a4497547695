//! A read that fails once costs the request that needed it, and nothing that lasts.

use std::sync::Arc;

use silt_device::{Fault, MemoryDevice, Times};
use silt_engine::{OpenOptions, Volume};
use silt_format::Cno;
use silt_fs::{Fs, Ino, Options, SetAttr, Tree, WriteFlags, fallocate_mode};

use crate::common::{Form, device, open, root_at};

const PLAIN: WriteFlags = WriteFlags { append: false, cached: false, late: false, kill_suidgid: false };

fn name(n: u32) -> String {
    format!("f{n:03}-{}", "n".repeat(60))
}

/// A directory of 150 files over several blocks, a file with two names, 33 checkpoints of which three are snapshots.
fn base() -> MemoryDevice {
    let d = device(Form { block_size: 1024, blocks_per_segment: 64, size: 32 << 20 });
    let mut fs = open(d.clone(), &Options::default());
    let c = root_at(10);
    let dir = fs.mkdir(&c, Ino::ROOT, b"d", 0o755).unwrap().ino;
    for n in 0..150 {
        fs.create(&c, dir, name(n).as_bytes(), 0o644).unwrap();
    }
    let linked = fs.create(&c, Ino::ROOT, b"hl1", 0o644).unwrap().ino;
    fs.link(&c, linked, Ino::ROOT, b"hl2").unwrap();
    for n in 0..33 {
        let mode = SetAttr { mode: Some(0o600 + n), ..SetAttr::default() };
        fs.setattr(&c, linked, &mode).unwrap();
        fs.sync_all(400 + u64::from(n)).unwrap();
    }
    for n in [5, 9, 30] {
        fs.volume_mut().make_snapshot(Cno(n)).unwrap();
    }
    fs.sync_all(500).unwrap();
    fs.volume_mut().close(501).unwrap();
    d.fork()
}

fn open_on(device: &Arc<Fault<MemoryDevice>>) -> Volume {
    let options = OpenOptions { now: 3000, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    v.take_over(3000).unwrap();
    v
}

fn is_sound(device: &Fault<MemoryDevice>) {
    let report = silt_verify::check(device, &silt_verify::Options::default());
    assert!(report.is_clean(), "{}", report.error_text());
}

#[test]
fn a_snapshot_is_made_in_whole_or_not() {
    let base = base();
    let mut failed = 0;
    for n in 0..6 {
        let device = Arc::new(Fault::new(base.fork()));
        let mut v = open_on(&device);
        device.fail_reads(0..u64::MAX, Times::Later { after: n, times: 1 });
        failed += u32::from(v.make_snapshot(Cno(20)).is_err());
        device.heal();
        v.make_snapshot(Cno(20)).unwrap();
        assert!(v.snapshots().unwrap().contains(&Cno(20)), "after read {n}");
        v.checkpoint(3001).unwrap();
        v.unmake_snapshot(Cno(9)).unwrap();
        v.close(3002).unwrap();
        is_sound(&device);
    }
    assert!(failed >= 2, "{failed}");
}

#[test]
fn what_a_name_was_moved_over_is_not_lost() {
    let base = base();
    for n in 0..4 {
        let device = Arc::new(Fault::new(base.fork()));
        let mut fs = Fs::new(open_on(&device), &Options::default());
        let dir = fs.resolve(Tree::Live, b"d").unwrap();
        fs.lookup(Tree::Live, dir, name(77).as_bytes()).unwrap();
        device.fail_reads(0..u64::MAX, Times::Later { after: n, times: 1 });
        let moved = fs.rename(&root_at(7), dir, name(77).as_bytes(), Ino::ROOT, b"hl1", 0);
        device.heal();
        let other = fs.resolve(Tree::Live, b"hl2").unwrap();
        let links = fs.getattr(Tree::Live, other).unwrap().links;
        assert_eq!(links, if moved.is_ok() { 1 } else { 2 }, "read {n}: {moved:?}");
        fs.volume_mut().close(5000).unwrap();
        is_sound(&device);
    }
}

#[test]
fn the_names_of_a_directory_are_there_again_at_once() {
    let device = Arc::new(Fault::new(base()));
    let mut fs = Fs::new(open_on(&device), &Options::default());
    let dir = fs.resolve(Tree::Live, b"d").unwrap();
    device.fail_reads(0..u64::MAX, Times::Later { after: 0, times: 1 });
    let _ = fs.lookup(Tree::Live, dir, name(77).as_bytes());
    device.heal();
    for n in 0..150 {
        fs.lookup(Tree::Live, dir, name(n).as_bytes()).unwrap();
    }
    fs.create(&root_at(7), dir, b"new", 0o644).unwrap();
}

#[test]
fn a_zeroing_that_fails_leaves_what_was_promised() {
    let fault =
        Arc::new(Fault::new(device(Form { block_size: 1024, blocks_per_segment: 32, size: 8 << 20 }).fork()));
    let mut fs = open(fault.clone(), &Options::default());
    let c = root_at(10);
    let f = fs.create(&c, Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&c, f, 0, &[7; 1024], PLAIN).unwrap();
    fs.sync_all(20).unwrap();
    fs.fallocate(&c, f, fallocate_mode::KEEP_SIZE, 1024, 99 << 10).unwrap();
    fault.fail_reads(0..u64::MAX, Times::Always);
    let mode = fallocate_mode::KEEP_SIZE | fallocate_mode::ZERO_RANGE;
    fs.fallocate(&c, f, mode, 512, 50 << 10).unwrap_err();
    fault.heal();
    assert_eq!(fs.promised_in(f, 0..100 << 10), 99);
}

/// What cannot be read of a directory counts as empty, or nothing could ever remove it; not what could not be once.
#[test]
fn a_directory_that_could_not_be_read_once_is_not_empty() {
    let base = base();
    let mut failed = [0; 2];
    for (n, by_rename) in (0..12).flat_map(|n| [(n, false), (n, true)]) {
        let device = Arc::new(Fault::new(base.fork()));
        let mut fs = Fs::new(open_on(&device), &Options::default());
        let c = root_at(7);
        if by_rename {
            fs.mkdir(&c, Ino::ROOT, b"e", 0o755).unwrap();
        }
        device.fail_reads(0..u64::MAX, Times::Later { after: n, times: 1 });
        let gone = if by_rename {
            fs.rename(&c, Ino::ROOT, b"e", Ino::ROOT, b"d", 0).map(drop)
        } else {
            fs.rmdir(&c, Ino::ROOT, b"d").map(drop)
        };
        failed[usize::from(by_rename)] += device.struck().reads;
        device.heal();
        assert!(gone.is_err(), "read {n}, by rename: {by_rename}");
        let dir = fs.resolve(Tree::Live, b"d").unwrap();
        fs.lookup(Tree::Live, dir, name(149).as_bytes()).unwrap();
        fs.volume_mut().close(5000).unwrap();
        is_sound(&device);
    }
    assert!(failed.iter().all(|reads| *reads >= 3), "{failed:?}");
}
