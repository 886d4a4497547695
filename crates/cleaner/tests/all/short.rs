//! What the table of segments says too little of.

use std::sync::Arc;

use silt_cleaner::{Mover, Options, Whole, pass};
use silt_device::MemoryDevice;
use silt_engine::mkfs::Parameters;
use silt_engine::{Tree, Volume};
use silt_format::SegNr;
use silt_format::segment_usage::{SuEntry, place};
use silt_verify::surgeon::Surgeon;

use crate::common;

/// Where it says that a segment's logs end before the last of them, what lies behind is in use all the same.
#[test]
fn a_segment_of_which_more_is_in_use_than_was_written_stays() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let mut v = common::volume(&device, Parameters { blocks_per_segment: 64, ..Parameters::default() });
    let over = common::file(&mut v);
    let write = |v: &mut Volume, ino, with: u8| {
        (0..3).for_each(|key| v.write_block(ino, key, vec![with; 4096].into()).unwrap());
    };
    let mut files = Vec::new();
    for n in 0..60 {
        write(&mut v, over, 200);
        files.push(common::file(&mut v));
        write(&mut v, files[usize::from(n)], n);
        v.checkpoint(2000 + u64::from(n)).unwrap();
    }
    v.close(3000).unwrap();

    let mut surgeon = Surgeon { device: device.fork() };
    let (g, table) = (surgeon.g(), surgeon.file(5));
    let short = (2..).find(|s| surgeon.logs(*s).len() > 2).unwrap();
    let (offset, byte) = place(&g, SegNr(short));
    let written = surgeon.logs(short)[0].end() - g.segment_start(SegNr(short)).0;
    surgeon.patch(table[&offset], |b| {
        let mut e = SuEntry::read(b, byte).unwrap();
        e.nblocks = u32::try_from(written).unwrap().into();
        e.store(b, byte);
    });

    let device = Arc::new(surgeon.device);
    let mut v = common::mounted(&device);
    let mut freed = 0;
    for _ in 0..2 {
        let whole = Whole::new(&mut v, 4000);
        let outcome = pass(&whole, &Options { now: 4000, ..Options::default() }, |_, _| true).unwrap();
        whole.settle().unwrap();
        let aside: Vec<_> = outcome.aside.iter().map(|a| a.segment.0).collect();
        assert_eq!(aside, [short], "{:?}", outcome.aside);
        freed += outcome.cleaned.segments;
    }
    assert!(freed > 3 && v.segment_info(SegNr(short)).unwrap().dirty, "{freed}");
    // What was freed is written.
    for _ in 0..400 {
        write(&mut v, over, 201);
        v.checkpoint(5000).unwrap();
        if v.available_segments() < 60 {
            break;
        }
    }
    v.close(6000).unwrap();
    let mut v = common::mounted(&device);
    for (n, ino) in files.into_iter().enumerate() {
        for key in 0..3 {
            assert_eq!(usize::from(v.read_block(Tree::Live, ino, key).unwrap().unwrap()[0]), n, "file {n}");
        }
    }
}
