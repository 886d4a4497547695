//! Segments that are not emptied: what is in them cannot be read, or is too much to move at once

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{self, file};
use silt_cleaner::{Access, Mover, Options, Outcome, Whole, run};
use silt_device::{Fault, MemoryDevice, Times};
use silt_engine::clean::{Cleaned, Cleaning, Salvage};
use silt_engine::mkfs::Parameters;
use silt_engine::{Error, Piece, Result, Tree, Volume};
use silt_format::{BlockNr, Ino, SegNr};

type Disk = Arc<Fault<MemoryDevice>>;

fn volume(size: u64, block_size: u32, blocks_per_segment: u32) -> (Disk, Volume) {
    let device = Arc::new(Fault::new(MemoryDevice::new(size)));
    let parameters = Parameters { block_size, blocks_per_segment, ..Parameters::default() };
    let v = common::volume(&device, parameters);
    (device, v)
}

fn write(v: &mut Volume, ino: Ino, keys: impl Iterator<Item = u64>, byte: u8, now: u64) {
    let bs = v.geometry().bs();
    for key in keys {
        v.write_block(ino, key, vec![byte; bs].into()).unwrap();
    }
    v.checkpoint(now).unwrap();
}

/// Where a block of a file lies.
fn place(v: &mut Volume, ino: Ino, key: u64) -> BlockNr {
    match v.locate(Tree::Live, ino, key).unwrap() {
        Piece::Disk(at) => at,
        _ => panic!("block {key} lies nowhere"),
    }
}

fn segment_of(v: &mut Volume, ino: Ino, key: u64) -> u64 {
    let at = place(v, ino, key);
    v.geometry().segment_of(at).0
}

fn clean(v: &mut Volume, salvage: Salvage, now: u64) -> Outcome {
    let mut options = Options { now, ..Options::default() };
    options.limits.salvage = salvage;
    run(&Whole::new(v, now), &options, |_| true).unwrap()
}

/// The flags of a segment in the table: dirty, bad.
fn flags(v: &Volume, segment: u64) -> (bool, bool) {
    let info = v.segment_info(SegNr(segment)).unwrap();
    (info.dirty, info.error)
}

/// A block that cannot be read keeps its segment: without `salvage` it stays as it is; with it all else moves, and the
/// segment is marked bad on the medium, and left alone from then on.
#[test]
fn what_cannot_be_read_makes_its_segment_a_bad_one() {
    let (device, mut v) = volume(64 << 20, 4096, 64);
    let ino = file(&mut v);
    write(&mut v, ino, 0..400, 1, 3000);
    write(&mut v, ino, (0..400).filter(|k| k % 2 == 0), 2, 4000);
    let place = place(&mut v, ino, 201);
    let segment = v.geometry().segment_of(place).0;
    let byte = v.geometry().byte_of(place);
    v.close(4500).unwrap();
    drop(v);
    device.fail_reads(byte..byte + 512, Times::Always);
    let mut v = common::mounted(&device);

    let outcome = clean(&mut v, Salvage::No, 5000);
    let aside: Vec<u64> = outcome.aside.iter().map(|a| a.segment.0).collect();
    assert_eq!((aside, flags(&v, segment)), (vec![segment], (true, false)), "{:?}", outcome.aside);

    let outcome = clean(&mut v, Salvage::Readable, 6000);
    assert_eq!(outcome.aside.len(), 1, "{:?}", outcome.aside);
    assert_eq!(outcome.aside[0].segment.0, segment);
    assert!(outcome.aside[0].why.contains("it is marked bad"), "{:?}", outcome.aside);
    assert!(outcome.cleaned.moved > 10, "{:?}", outcome.cleaned);
    assert_eq!(flags(&v, segment), (true, true));
    v.close(6500).unwrap();
    drop(v);

    // The medium says so, and everything but that block is there, elsewhere.
    let mut v = common::mounted(&device);
    assert_eq!(flags(&v, segment), (true, true));
    for key in 0..400 {
        let read = v.read_block(Tree::Live, ino, key);
        if key == 201 {
            assert!(read.is_err());
            continue;
        }
        let block = read.unwrap().expect("data");
        assert!(block.iter().all(|b| *b == if key % 2 == 0 { 2 } else { 1 }), "block {key}");
        assert_ne!(segment_of(&mut v, ino, key), segment, "block {key}");
    }
    let marked = v.segment_info(SegNr(segment)).unwrap();
    let outcome = clean(&mut v, Salvage::Readable, 7000);
    assert!(outcome.aside.iter().all(|a| a.segment.0 != segment), "{:?}", outcome.aside);
    let after = v.segment_info(SegNr(segment)).unwrap();
    assert_eq!((marked.modified, marked.blocks), (after.modified, after.blocks), "it is left alone");
}

/// Of a segment of 512 MiB more than 256 MiB are needed: it is set aside, until less is.
#[test]
fn what_is_too_much_to_move_at_once_is_set_aside() {
    const BLOCK: u32 = 64 << 10;
    let (_device, mut v) = volume(9 << 30, BLOCK, 8192);
    let ino = file(&mut v);
    // Zeroes: neither the device nor the log keeps them.
    for from in (0..6000).step_by(500) {
        write(&mut v, ino, from..from + 500, 0, 3000 + from);
    }
    let segment = segment_of(&mut v, ino, 5999);
    assert_eq!(segment_of(&mut v, ino, 1000), segment);
    // What is written next fills the segment, and is gone again: only what is written then lies elsewhere.
    write(&mut v, ino, 6000..8500, 0, 20_000);
    assert_ne!(segment_of(&mut v, ino, 8499), segment);
    let most = silt_cleaner::LARGEST / u64::from(BLOCK);
    write(&mut v, ino, 0..6000 - most - 50, 0, 30_000);
    write(&mut v, ino, 6000..8500, 0, 30_500);
    let outcome = clean(&mut v, Salvage::No, 31_000);
    let aside: Vec<_> = outcome.aside.iter().filter(|a| a.segment.0 == segment).collect();
    assert_eq!(aside.len(), 1, "{:?}", outcome.aside);
    assert!(aside[0].why.contains("more than 256 MiB of it are in use"), "{aside:?}");
    assert_eq!((segment_of(&mut v, ino, 5999), flags(&v, segment)), (segment, (true, false)));
    write(&mut v, ino, 0..6000 - most + 50, 0, 32_000);
    let outcome = clean(&mut v, Salvage::No, 33_000);
    assert!(outcome.aside.is_empty(), "{:?}", outcome.aside);
    assert_ne!(segment_of(&mut v, ino, 5999), segment);
}

/// A volume on which no step of a cleaner fits.
struct Full<'a>(Whole<'a>);

impl Access for Full<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        self.0.with(f)
    }
}

impl Mover for Full<'_> {
    fn make(&self, _: Cleaning) -> Result<Cleaned> {
        Err(Error::NoSpace)
    }

    fn settle(&self) -> Result<()> {
        self.0.settle()
    }
}

/// Segments that cannot be trusted come with each step and take no room: one that does not fit is not tried for ever.
#[test]
fn a_pass_ends_where_no_step_fits_and_segments_are_set_aside() {
    let (device, mut v) = volume(64 << 20, 4096, 64);
    let ino = file(&mut v);
    write(&mut v, ino, 0..1200, 1, 3000);
    write(&mut v, ino, (0..1200).filter(|k| k % 2 == 0), 2, 4000);
    let bad: BTreeSet<u64> = (1..1200).step_by(128).map(|key| segment_of(&mut v, ino, key)).collect();
    assert!(bad.len() > 5);
    let bytes: Vec<u64> = (1..1200).step_by(128).map(|key| place(&mut v, ino, key).0 << 12).collect();
    v.close(4500).unwrap();
    drop(v);
    for byte in bytes {
        device.fail_reads(byte..byte + 512, Times::Always);
    }
    let mut v = common::mounted(&device);
    let options = Options { now: 5000, ..Options::default() };
    let mut steps = 0;
    let outcome = run(&Full(Whole::new(&mut v, 5000)), &options, |_| {
        steps += 1;
        steps < 1000
    });
    let outcome = outcome.unwrap();
    assert!(outcome.out_of_room && !outcome.stopped, "{steps} steps");
    assert!(outcome.aside.iter().all(|a| bad.contains(&a.segment.0)));
}
