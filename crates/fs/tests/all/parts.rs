//! What is cut away in parts: that each is written, that nothing is begun that cannot be ended, and that errors come before the
//! first.

use std::sync::Arc;

use silt_device::{Device, Fault, Times};
use silt_engine::Piece;
use silt_fs::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use silt_fs::{Fs, FsError, Ino, Options, Reclaimable, SetAttr, Tree, WriteFlags};

use crate::common::{Form, device, open, root_at};

const ROOT: Ino = Ino::ROOT;
const BS: u64 = 1024;
const PLAIN: WriteFlags = WriteFlags { append: false, cached: false, late: false, kill_suidgid: false };

type Res = Result<(), FsError>;

fn form(blocks_per_segment: u32) -> Form {
    Form { block_size: 1024, blocks_per_segment, size: 64 << 20 }
}

fn ends(ends: u64) -> Options {
    Options { ends, ..Options::default() }
}

fn make(fs: &mut Fs, name: &[u8], blocks: u64) -> Ino {
    let c = root_at(10);
    let ino = fs.create(&c, ROOT, name, 0o644).unwrap().ino;
    for at in 0..blocks {
        fs.write(&c, ino, at * BS, &[5; BS as usize], PLAIN).unwrap();
        if at % 2000 == 1999 {
            fs.sync_all(20).unwrap();
        }
    }
    fs.sync_all(20).unwrap();
    ino
}

fn cut(fs: &mut Fs, ino: Ino, size: u64) -> Res {
    fs.setattr(&root_at(25), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(|_| ())
}

/// Does all parts, with a checkpoint after each; how many there were before the last, and what came of it.
fn to_the_end(fs: &mut Fs, mut part: impl FnMut(&mut Fs) -> Res) -> (u64, Res) {
    let mut parts = 0;
    loop {
        match part(fs) {
            Err(FsError::InParts) => parts += 1,
            done => return (parts, done),
        }
        fs.sync_all(30 + parts).unwrap();
    }
}

/// As few segments as leave room for so many blocks to end.
fn confine_to(fs: &mut Fs, ends: u64) {
    let v = fs.volume_mut();
    let found = (2..2000).find(|n| v.confine(Some(*n)).is_ok() && v.check_change(true, ends).is_ok());
    assert!(found.is_some());
}

/// Else nobody could sync, and the cleaner could not begin.
#[test]
fn what_is_accepted_can_be_written() {
    let mut refused = 0;
    for size in [15_000 - 145, 15_000 - 90, 12_000, 0] {
        for room in [50, 150, 202, 250, 302, 400] {
            let mut fs = open(device(form(32)), &ends(100));
            let f = make(&mut fs, b"f", 15_000);
            // Parts would be cleaned after.
            fs.set_reclaimable(Some(Reclaimable { blocks: 0, clean_segments: 0, rewritten: 0 }));
            confine_to(&mut fs, room);
            let done = cut(&mut fs, f, size * BS);
            match done {
                Ok(()) | Err(FsError::InParts) => {}
                Err(FsError::NoSpace) => {
                    refused += 1;
                    assert_eq!(fs.getattr(Tree::Live, f).unwrap().size, 15_000 * BS, "nothing was done");
                }
                other => panic!("{other:?}"),
            }
            fs.sync_all(30).unwrap_or_else(|e| panic!("{size} of {room}: {done:?}, then {e}"));
        }
    }
    assert!((4..20).contains(&refused), "{refused}");
}

/// A part before it is not written: there is nothing to be refused yet.
#[test]
fn who_waits_for_a_part_needs_no_room() {
    let mut fs = open(device(form(32)), &ends(100));
    let f = make(&mut fs, b"f", 15_000);
    fs.set_reclaimable(Some(Reclaimable { blocks: 0, clean_segments: 0, rewritten: 0 }));
    confine_to(&mut fs, 302);
    assert_eq!(cut(&mut fs, f, 0), Err(FsError::InParts));
    let size = fs.getattr(Tree::Live, f).unwrap().size;
    assert_eq!(cut(&mut fs, f, 0), Err(FsError::InParts));
    assert_eq!(fs.getattr(Tree::Live, f).unwrap().size, size);
    fs.sync_all(30).unwrap();
}

/// Else the file would be gone but for the block that is damaged.
#[test]
fn an_edge_that_cannot_be_read_is_told_before_anything_is_cut() {
    for mode in [None, Some(PUNCH_HOLE | KEEP_SIZE), Some(ZERO_RANGE)] {
        let d = device(form(64));
        let mut fs = open(d.clone(), &ends(1000));
        let f = make(&mut fs, b"f", 9000);
        let Piece::Disk(at) = fs.volume_mut().locate(Tree::Live, f, 500).unwrap() else { panic!() };
        fs.into_volume().close(30).unwrap();
        let fault = Arc::new(Fault::new(d));
        fault.fail_reads(at.0 * BS..(at.0 + 1) * BS, Times::Always);
        let mut fs = open(fault as Arc<dyn Device>, &ends(1000));
        let before = fs.getattr(Tree::Live, f).unwrap();
        let (parts, done) = to_the_end(&mut fs, |fs| match mode {
            None => cut(fs, f, 500 * BS + 7),
            Some(mode) => fs.fallocate(&root_at(25), f, mode, 500 * BS + 7, 8000 * BS),
        });
        assert!(parts == 0 && matches!(done, Err(FsError::Io { .. })), "{parts} parts, {done:?}");
        let after = fs.getattr(Tree::Live, f).unwrap();
        assert_eq!((after.size, after.blocks, after.mtime), (before.size, before.blocks, before.mtime));
    }
}

/// The bound is one of a checkpoint, whoever asks.
#[test]
fn many_files_at_once_end_in_parts_too() {
    let mut fs = open(device(form(64)), &ends(1000));
    let files: Vec<Ino> = (0..20).map(|n| make(&mut fs, format!("f{n}").as_bytes(), 1400)).collect();
    let (mut rounds, mut left) = (0, files);
    while !left.is_empty() {
        left.retain(|f| cut(&mut fs, *f, 0) == Err(FsError::InParts));
        assert!(fs.volume().ending_blocks() <= 3002 + 1400, "{}", fs.volume().ending_blocks());
        rounds += 1;
        fs.sync_all(30 + rounds).unwrap();
    }
    assert!((5..=12).contains(&rounds), "{rounds}");
    let f = make(&mut fs, b"g", 14_000);
    let (mut rounds, mut left) = (0, (0..10).collect::<Vec<u64>>());
    while !left.is_empty() {
        left.retain(|n| {
            let (at, len) = (n * 1400 * BS, 1400 * BS);
            fs.fallocate(&root_at(20), f, PUNCH_HOLE | KEEP_SIZE, at, len) == Err(FsError::InParts)
        });
        assert!(fs.volume().ending_blocks() <= 3002 + 2802, "{}", fs.volume().ending_blocks());
        rounds += 1;
        fs.sync_all(60 + rounds).unwrap();
    }
    assert!(rounds >= 4, "{rounds}");
}

/// Each part may change all of the DAT, and what that takes comes back only where somebody cleans.
#[test]
fn on_a_full_volume_without_a_cleaner_a_file_goes_at_once() {
    let mut fs = open(device(form(64)), &ends(1000));
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    let (mut written, mut tries, mut at) = (0, 0, 1);
    // In no order, so that neighbours of the file are far apart in the DAT.
    while tries < 3 {
        at = (at * 5 + 4093) % (1 << 16);
        match fs.write(&c, f, at * BS, &[3; BS as usize], PLAIN) {
            Ok(_) => {
                (written, tries) = (written + 1, 0);
                if written % 2000 == 0 {
                    fs.sync_all(20).unwrap();
                }
            }
            Err(_) => {
                tries += 1;
                fs.sync_all(20).unwrap();
            }
        }
    }
    assert!(written > 30_000, "{written}");
    let (_, done) = to_the_end(&mut fs, |fs| cut(fs, f, 0));
    assert_eq!((done, fs.getattr(Tree::Live, f).unwrap().blocks), (Ok(()), 0));
    fs.sync_all(3000).unwrap();
}
