//! How segments that are emptied are read

use std::sync::Arc;

use silt_cleaner::{Options, Outcome, Whole, run};
use silt_device::{Counter, Device, Fault, MemoryDevice, Times};
use silt_engine::mkfs::Parameters;
use silt_engine::{Fate, OpenOptions, Piece, SegmentWalk, Tree, Volume};
use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Ino, SegNr};

use crate::common::{self, file};

/// A volume with segments of a mebibyte, of whose small logs, a block of a file each, one in four is still needed.
fn of_small_logs() -> (Arc<Counter<Fault<MemoryDevice>>>, Volume, Ino) {
    let device = Arc::new(Counter::new(Fault::new(MemoryDevice::new(64 << 20))));
    let parameters = Parameters { blocks_per_segment: 256, ..Parameters::default() };
    let mut v = common::volume(&device, parameters);
    let ino = file(&mut v);
    let bs = v.geometry().bs();
    for n in 0..200 {
        let key = if n % 4 == 0 { n } else { 1 };
        v.write_block(ino, key, vec![n as u8; bs].into()).unwrap();
        v.checkpoint(3000 + n).unwrap();
    }
    (device, v, ino)
}

fn clean(v: &mut Volume) -> Outcome {
    let mut options = Options { now: 9000, ..Options::default() };
    options.limits.ahead = true;
    run(&Whole::new(v, 9000), &options, |_| true).unwrap()
}

fn check(v: &mut Volume, ino: Ino) {
    for n in (0..200).step_by(4) {
        let block = v.read_block(Tree::Live, ino, n).unwrap().expect("data");
        assert!(block.iter().all(|b| *b == n as u8), "block {n}");
    }
}

/// Neither each log, nor for each log those before it.
#[test]
fn a_segment_of_many_logs_is_read_by_pieces() {
    let (device, mut v, ino) = of_small_logs();
    let before = device.counts().reads.requests;
    let outcome = clean(&mut v);
    let reads = device.counts().reads.requests - before;
    assert!(outcome.cleaned.segments >= 6, "{:?}", outcome.cleaned);
    // Four of 256 KiB are a segment; it has some twenty logs.
    assert!(reads <= 6 * outcome.cleaned.segments, "{reads} for {:?}", outcome.cleaned);
    check(&mut v, ino);
}

/// A bad place where nobody needs anything keeps nobody from what is needed beside it.
#[test]
fn a_bad_place_in_a_log_that_nobody_needs_hurts_nobody() {
    let (device, mut v, ino) = of_small_logs();
    // The block before it in the log's order was written over since, and so was the one behind.
    let place = |v: &mut Volume, key| match v.locate(Tree::Live, ino, key).unwrap() {
        Piece::Disk(at) => at,
        _ => panic!("block {key} lies nowhere"),
    };
    let (needed, next) = (place(&mut v, 40), place(&mut v, 44));
    let segment = v.geometry().segment_of(needed);
    assert_eq!(segment, v.geometry().segment_of(next));
    // Logs are as long as each other here: half-way lies one of those between.
    let between = v.geometry().byte_of(BlockNr(u64::midpoint(needed.0, next.0)));
    device.inner().fail_reads(between..between + 512, Times::Always);
    assert!(device.read_at(between, &mut [0; 512]).is_err());

    let outcome = clean(&mut v);
    assert!(outcome.aside.is_empty(), "{:?}", outcome.aside);
    assert!(!v.segment_info(segment).unwrap().dirty, "it was emptied");
    check(&mut v, ino);
}

/// Where the newest bitmap of the first group of the DAT lies.
fn bitmap_of_the_dat(device: &Arc<Counter<Fault<MemoryDevice>>>, v: &Volume) -> BlockNr {
    let g = *v.geometry();
    let keep = v.keep(None).unwrap();
    for segment in (0..g.nsegments).map(SegNr) {
        let device: Arc<dyn Device> = device.clone();
        let mut walk = SegmentWalk::new(device, &g, segment, g.segment_blocks(segment));
        loop {
            let blocks = walk.next(64).unwrap();
            if blocks.is_empty() {
                break;
            }
            for b in blocks {
                let is_bitmap = matches!(b.payload.info, BlockInfo::DatData { offset: 1 });
                if is_bitmap && v.fates(&keep, std::slice::from_ref(&b)).unwrap() == [Fate::Table] {
                    return b.at;
                }
            }
        }
    }
    panic!("no bitmap");
}

/// Numbers that cannot be given back keep no segment from being emptied.
#[test]
fn an_unreadable_bitmap_of_the_dat_ends_no_cleaning() {
    let (device, v, ino) = of_small_logs();
    drop(v);
    // It is in the newest log, which is read at a mount, and is not to be remembered from there.
    let options = OpenOptions { cache_bytes: 0, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    v.take_over(2000).unwrap();
    let bitmap = v.geometry().byte_of(bitmap_of_the_dat(&device, &v));
    device.inner().fail_reads(bitmap..bitmap + 512, Times::Always);
    let outcome = clean(&mut v);
    assert!(outcome.cleaned.segments >= 4, "{outcome:?}");
    check(&mut v, ino);
}
