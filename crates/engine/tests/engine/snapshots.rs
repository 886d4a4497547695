//! The list of snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Counter, MemoryDevice};
use silt_engine::{OpenOptions, Volume};
use silt_format::Cno;

use crate::common::{file, formatted, judge, open_with};

type Counted = Arc<Counter<MemoryDevice>>;

/// A volume with checkpoints 1 to `count`, of which hardly anything is kept in memory.
fn many(count: u64) -> (Counted, Volume) {
    let device = Arc::new(Counter::new(formatted(MemoryDevice::new(1 << 30), 4096, 256)));
    let options = OpenOptions { now: 2000, cache_bytes: 100_000, ..OpenOptions::default() };
    let mut v = open_with(device.clone(), &options);
    let ino = file(&mut v);
    while v.last_log().cno < count {
        v.attr_mut(ino).unwrap().uid += 1;
        v.checkpoint(3000).unwrap();
    }
    (device, v)
}

#[test]
fn snapshots_are_listed_in_order_however_they_are_made() {
    let (device, mut v) = many(300);
    let mut model = BTreeSet::new();
    v.delete_checkpoints(90..160).unwrap();
    let mut x = 11u64;
    for _ in 0..1500 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let c = 1 + (x >> 33) % 298;
        if (90..160).contains(&c) {
            assert!(v.make_snapshot(Cno(c)).is_err());
        } else if x >> 62 == 0 {
            v.unmake_snapshot(Cno(c)).unwrap();
            model.remove(&c);
        } else {
            v.make_snapshot(Cno(c)).unwrap();
            model.insert(c);
        }
        assert!(v.snapshots().unwrap().iter().map(|c| &c.0).eq(&model));
    }
    assert!(model.len() > 100 && model.len() < 220, "{}", model.len());
    v.close(4000).unwrap();
    judge(&device);
}

/// Where there are many snapshots the next one is near, and where there are few the list is short.
#[test]
fn the_place_of_an_old_one_among_many_is_found_soon() {
    let (device, mut v) = many(4000);
    let reads_for = |v: &mut Volume, c: u64| {
        let before = device.counts();
        v.make_snapshot(Cno(c)).unwrap();
        let after = device.counts();
        after.reads.requests + after.cached_reads.requests
            - before.reads.requests
            - before.cached_reads.requests
    };
    v.make_snapshot(Cno(3990)).unwrap();
    let among_few = reads_for(&mut v, 100);
    for c in (500..3900).step_by(2) {
        v.make_snapshot(Cno(c)).unwrap();
    }
    v.checkpoint(4000).unwrap();
    let among_many = reads_for(&mut v, 601);
    assert!(among_few < 30 && among_many < 30, "{among_few} {among_many}");
}
