//! A read that fails once costs the request that needed it, and nothing that lasts.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::{OpenOptions, Piece, Volume};
use silt_format::Cno;
use silt_fs::{Fs, FsError, Ino, Options, SetAttr, Tree, WriteFlags, fallocate_mode};

use zerocopy::IntoBytes;

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
    open_with(device, OpenOptions::default().cache_bytes)
}

fn open_with(device: &Arc<Fault<MemoryDevice>>, cache_bytes: u64) -> Volume {
    let options = OpenOptions { now: 3000, cache_bytes, ..OpenOptions::default() };
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

/// Where the blocks of a directory lie on the device, in bytes.
fn places(fs: &mut Fs, dir: Ino) -> Vec<std::ops::Range<u64>> {
    let size = fs.getattr(Tree::Live, dir).unwrap().size;
    let piece = |key| match fs.volume_mut().locate(Tree::Live, dir, key).unwrap() {
        Piece::Disk(at) => at.0 * 1024..at.0 * 1024 + 1024,
        other => panic!("{other:?}"),
    };
    (0..size / 1024).map(piece).collect()
}

/// A device that is away comes back with everything in a directory; one that never gives it keeps nobody from removing it.
#[test]
fn a_directory_that_the_device_does_not_give_is_lost_only_after_a_while() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let base = base();
    // All of it, its inode included, or its blocks alone.
    for (whole, by_rename) in [(true, false), (true, true), (false, false), (false, true)] {
        let device = Arc::new(Fault::new(base.fork()));
        let mut fs = Fs::new(open_on(&device), &Options { patience: PATIENCE, ..Options::default() });
        let c = root_at(7);
        if by_rename {
            fs.mkdir(&c, Ino::ROOT, b"e", 0o755).unwrap();
        }
        let go = |fs: &mut Fs| match by_rename {
            true => fs.rename(&c, Ino::ROOT, b"e", Ino::ROOT, b"d", 0).map(drop),
            false => fs.rmdir(&c, Ino::ROOT, b"d").map(drop),
        };
        let dir = fs.entry(Tree::Live, Ino::ROOT, b"d").unwrap().0;
        let all = if whole { std::iter::once(0..u64::MAX).collect() } else { places(&mut fs, dir) };
        let fail = || all.iter().for_each(|at| device.fail_reads(at.clone(), Times::Always));
        let is_refused = |fs: &mut Fs| {
            let gone = go(fs);
            assert!(matches!(gone, Err(FsError::Io { device: true, .. })), "{whole} {by_rename}: {gone:?}");
        };
        fail();
        is_refused(&mut fs);
        is_refused(&mut fs);
        device.heal();
        if !(whole && by_rename) {
            // What was once refused and then read is no longer a reason, however much time passes.
            std::thread::sleep(PATIENCE);
            for n in 0..150 {
                fs.lookup(Tree::Live, dir, name(n).as_bytes()).unwrap();
            }
            assert_eq!(go(&mut fs).unwrap_err(), FsError::NotEmpty);
            assert_eq!(fs.resolve(Tree::Live, b"d").unwrap(), dir);
            fs.volume_mut().close(5000).unwrap();
            is_sound(&device);
            fs = Fs::new(open_on(&device), &Options { patience: PATIENCE, ..Options::default() });
            if !whole {
                fs.getattr(Tree::Live, dir).unwrap();
            }
            fs.entry(Tree::Live, Ino::ROOT, b"d").unwrap();
        }
        fail();
        is_refused(&mut fs);
        std::thread::sleep(PATIENCE);
        go(&mut fs).unwrap();
        let left = fs.entry(Tree::Live, Ino::ROOT, b"d");
        assert_eq!(left.is_ok(), by_rename, "{left:?}");
    }
}

/// A file goes at once; what it had is given back when the device is there again.
#[test]
fn a_file_that_was_removed_unread_goes_when_it_can_be_read() {
    let base = base();
    for replaced in [false, true] {
        let device = Arc::new(Fault::new(base.fork()));
        let mut fs = Fs::new(open_with(&device, 0), &Options::default());
        let (c, dir) = (root_at(7), Ino::ROOT);
        let (one, _) = fs.entry(Tree::Live, dir, b"hl1").unwrap();
        let new = fs.create(&c, dir, b"new", 0o644).unwrap().ino;
        let raw = fs.volume_mut().raw_inode(one).unwrap();
        for at in (0..device.len()).step_by(1024) {
            let mut block = [0; 1024];
            device.read_at(at, &mut block).unwrap();
            if block.chunks(size_of_val(&raw)).any(|inode| inode == raw.as_bytes()) {
                device.fail_reads(at..at + 1024, Times::Always);
            }
        }
        match replaced {
            true => _ = fs.rename(&c, dir, b"new", dir, b"hl1", 0).unwrap(),
            false => _ = fs.unlink(&c, dir, b"hl1").unwrap(),
        }
        assert!(fs.has_unread() && new != one);
        fs.reap_late(false).unwrap();
        device.heal();
        std::thread::sleep(Duration::from_millis(1100));
        assert!(fs.reap_late(false).unwrap() && !fs.has_unread());
        assert_eq!(fs.lookup(Tree::Live, dir, b"hl2").unwrap().links, 1, "replaced: {replaced}");
        fs.volume_mut().close(5000).unwrap();
        is_sound(&device);
    }
}

/// Not for long after a device is there again either.
#[test]
fn a_directory_is_there_soon_after_the_device() {
    let device = Arc::new(Fault::new(base()));
    let mut fs = Fs::new(open_on(&device), &Options::default());
    let dir = fs.resolve(Tree::Live, b"d").unwrap();
    let places = places(&mut fs, dir);
    device.fail_reads(places[2].clone(), Times::Always);
    let made = |fs: &mut Fs| fs.create(&root_at(7), dir, b"new", 0o644).map(drop);
    assert!(matches!(made(&mut fs), Err(FsError::Io { .. })));
    device.heal();
    std::thread::sleep(Duration::from_millis(1100));
    made(&mut fs).unwrap();
    for n in 0..150 {
        fs.lookup(Tree::Live, dir, name(n).as_bytes()).unwrap();
    }
}

/// Whoever lists a directory hears that something was left out, also when it can be read again by then.
#[test]
fn a_listing_that_left_something_out_says_so_at_its_end() {
    let device = Arc::new(Fault::new(base()));
    let mut fs = Fs::new(open_on(&device), &Options { index_bytes: 0, ..Options::default() });
    let dir = fs.resolve(Tree::Live, b"d").unwrap();
    let places = places(&mut fs, dir);
    let mut go_on = |from: u64| {
        let (mut next, mut seen) = (from, 0);
        let result = fs.readdir(Tree::Live, dir, from, false, |e| {
            seen += 1;
            next = e.next;
            if seen == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        result.map(|_| (next, seen))
    };
    let (mut from, mut all) = (0, 0);
    device.fail_reads(places[3].clone(), Times::Always);
    let end = loop {
        match go_on(from) {
            Ok((_, 0)) => break Ok(()),
            Ok((next, seen)) => (from, all) = (next, all + seen),
            Err(e) => break Err(e),
        }
        if all > 60 {
            device.heal();
        }
    };
    assert!(all > 100 && all < 152, "{all}");
    assert_eq!(end, Err(FsError::LeftOut), "what was met was told when it was met");
    (from, all) = (0, 0);
    while let Ok((next, seen)) = go_on(from)
        && seen > 0
    {
        (from, all) = (next, all + seen);
    }
    assert_eq!(all, 152);
    assert_eq!(go_on(from), Ok((from, 0)));
}

/// A new name that finds its place unreadable goes elsewhere, and hides no other.
#[test]
fn a_block_that_could_not_be_read_for_a_new_name_is_as_it_was_afterwards() {
    let base = base();
    let mut failed = 0;
    for n in 0..4 {
        let device = Arc::new(Fault::new(base.fork()));
        // Its index is known, and none of its blocks for long.
        let mut fs = Fs::new(open_with(&device, 0), &Options::default());
        let dir = fs.resolve(Tree::Live, b"d").unwrap();
        for n in [3, 30, 60, 90] {
            fs.unlink(&root_at(7), dir, name(n).as_bytes()).unwrap();
        }
        fs.sync_all(8).unwrap();
        let mut others = (0..150).filter(|n| ![3, 30, 60, 90].contains(n));
        for at in places(&mut fs, dir) {
            device.fail_reads(at, Times::Later { after: n, times: 1 });
        }
        let made = fs.create(&root_at(9), dir, name(700).as_bytes(), 0o644);
        failed += if made.is_ok() { device.struck().reads } else { 0 };
        device.heal();
        assert!(others.all(|n| fs.lookup(Tree::Live, dir, name(n).as_bytes()).is_ok()), "{n}: {made:?}");
        fs.lookup(Tree::Live, dir, name(3).as_bytes()).unwrap_err();
    }
    assert!(failed > 0);
}

/// Of what a crash has left without a name only that stays which cannot be read.
#[test]
fn an_orphan_that_cannot_go_keeps_no_other() {
    let d = device(Form { block_size: 1024, blocks_per_segment: 64, size: 32 << 20 });
    let mut fs = open(d.clone(), &Options::default());
    let c = root_at(10);
    let mut orphans = Vec::new();
    for n in 0..4 {
        let ino = fs.create(&c, Ino::ROOT, name(n).as_bytes(), 0o644).unwrap().ino;
        fs.remember(ino);
        // Its map has a node of its own.
        fs.write(&c, ino, 0, &[7; 40 << 10], PLAIN).unwrap();
        fs.unlink(&c, Ino::ROOT, name(n).as_bytes()).unwrap();
        orphans.push(ino);
    }
    fs.sync_all(20).unwrap();
    drop(fs);
    let base = d.fork();
    let (mut alone, mut begun) = (0, false);
    for n in 0..20 {
        let device = Arc::new(Fault::new(base.fork()));
        let mut fs = Fs::new(open_with(&device, 0), &Options::default());
        device.fail_reads(0..u64::MAX, Times::Later { after: n, times: 1 });
        let result = fs.collect_orphans(1000);
        device.heal();
        let left = orphans.iter().filter(|ino| fs.volume_mut().inode(Tree::Live, **ino).is_ok()).count();
        // That one; or all, where it is not known yet which numbers are taken.
        begun |= left < 4;
        assert!(left <= 1 || (left == 4 && !begun), "read {n}: {left} are left: {result:?}");
        alone += u32::from(left == 1);
        fs.volume_mut().close(5000).unwrap();
        is_sound(&device);
    }
    assert!(alone >= 3, "{alone}");
}
