//! Places that take no log: the log goes elsewhere, nothing is lost, and what is bad is marked.

use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::{LogWrite, Redo, Step, Tree, Volume};
use silt_format::{Ino, SegNr};

use crate::common::{file, formatted, judge, open};

const BS: usize = 1024;
const BPS: u64 = 16;
const SEGMENT: u64 = BS as u64 * BPS;

fn volume() -> (Arc<Fault<MemoryDevice>>, Volume) {
    let size = SEGMENT * 200;
    let device = Arc::new(formatted(Fault::new(MemoryDevice::new(size)), BS as u32, BPS as u32));
    let v = open(device.clone());
    (device, v)
}

fn fill(v: &mut Volume, ino: Ino, blocks: u64, with: u8) {
    for key in 0..blocks {
        v.write_block(ino, key, vec![with; BS].into()).unwrap();
    }
}

/// What all blocks of the file hold; 0 where the file is not there.
fn content(v: &mut Volume, ino: Ino, blocks: u64) -> u8 {
    let Ok(Some(first)) = v.read_block(Tree::Live, ino, 0) else { return 0 };
    for key in 0..blocks {
        let b = v.read_block(Tree::Live, ino, key).unwrap().expect("data");
        assert!(b.iter().all(|b| *b == first[0]), "block {key}");
    }
    first[0]
}

fn write(device: &dyn Device, mut log: LogWrite) -> silt_engine::Result<()> {
    log.seal();
    log.write(device)
}

/// Runs the construction under way up to its log number `n` (from 0) and returns that one unwritten.
fn until_log(v: &mut Volume, device: &dyn Device, n: usize) -> Option<LogWrite> {
    for _ in 0..n {
        match v.step(usize::MAX).unwrap() {
            Step::Write(log) => write(device, log).unwrap(),
            _ => return None,
        }
        v.log_written();
    }
    match v.step(usize::MAX).unwrap() {
        Step::Write(mut log) => {
            log.seal();
            Some(log)
        }
        _ => None,
    }
}

#[test]
fn a_segment_that_takes_nothing_is_left_and_marked() {
    let (device, mut v) = volume();
    let ino = file(&mut v);
    fill(&mut v, ino, 3, 1);
    v.checkpoint(2001).unwrap();
    let bad = v.stat().unwrap().next_segment;
    device.fail_writes(bad * SEGMENT..(bad + 1) * SEGMENT, Times::Always);
    fill(&mut v, ino, 40, 2);
    v.checkpoint(2002).unwrap();
    v.checkpoint(2003).unwrap();
    let info = v.segment_info(SegNr(bad)).unwrap();
    assert!(info.error && !info.dirty && info.blocks == 0, "{info:?}");
    // After a crash everything is there.
    let copy = Arc::new(device.inner().fork());
    judge(&*copy);
    assert_eq!(content(&mut open(copy.clone()), ino, 40), 2);
    // The volume goes on, and never takes the segment again.
    for round in 0..30 {
        fill(&mut v, ino, 40, 10 + round);
        v.checkpoint(2010 + u64::from(round)).unwrap();
        if round % 10 == 9 {
            v.delete_checkpoints(1..u64::MAX).unwrap();
        }
    }
    v.close(3000).unwrap();
    judge(device.inner());
    let mut v = open(device.clone());
    assert_eq!(content(&mut v, ino, 40), 39);
    assert!(v.segment_info(SegNr(bad)).unwrap().error);
}

#[test]
fn the_rest_of_a_segment_with_earlier_logs_is_left_unused() {
    let (device, mut v) = volume();
    let ino = file(&mut v);
    v.checkpoint(2001).unwrap();
    let here = v.stat().unwrap().current_segment;
    let used = u64::from(v.segment_info(SegNr(here)).unwrap().blocks);
    assert!(used + 2 < BPS);
    device.fail_writes(here * SEGMENT + (used + 1) * BS as u64..(here + 1) * SEGMENT, Times::Always);
    fill(&mut v, ino, 2, 3);
    v.checkpoint(2002).unwrap();
    let info = v.segment_info(SegNr(here)).unwrap();
    assert!(!info.error && info.dirty && u64::from(info.blocks) == used, "{info:?}");
    assert_ne!(v.stat().unwrap().current_segment, here);
    judge(&device.inner().fork());
    v.close(3000).unwrap();
    judge(device.inner());
    assert_eq!(content(&mut open(device.clone()), ino, 2), 3);
}

/// Every log of a checkpoint of several fails once, with the bytes of the failed write on the device or
/// not; the power fails after every later write.
#[test]
fn power_cuts_while_a_log_moves_lose_nothing() {
    for n in 0..6 {
        for arrived in [false, true] {
            let (device, mut v) = volume();
            let ino = file(&mut v);
            fill(&mut v, ino, 20, 1);
            v.checkpoint(2001).unwrap();
            fill(&mut v, ino, 50, 2);
            assert!(v.begin_checkpoint(2002).unwrap());
            let Some(log) = until_log(&mut v, &*device, n) else {
                assert!(n > 3, "{n}");
                continue;
            };
            if arrived {
                log.write(&*device).unwrap();
            }
            assert_eq!(v.log_failed(&log, 2003).unwrap(), Redo::Elsewhere);
            // Requests go on.
            v.write_block(ino, 60, vec![9; BS].into()).unwrap();
            let whole = |copy: MemoryDevice| {
                judge(&copy);
                let copy = Arc::new(copy);
                let mut v = open(copy.clone());
                let found = content(&mut v, ino, 20);
                v.close(2500).unwrap();
                judge(&*copy);
                found
            };
            loop {
                let found = whole(device.inner().fork());
                assert!(found == 1 || (arrived && found == 2), "{n} {arrived}: {found}");
                match v.step(7).unwrap() {
                    Step::Write(log) => {
                        write(&*device, log).unwrap();
                        v.log_written();
                    }
                    Step::Done(_) => break,
                    _ => {}
                }
            }
            assert!(v.due_super_write(9000).is_none(), "not before it is settled");
            v.settle(2004).unwrap();
            assert_eq!(whole(device.inner().fork()), 2, "{n} {arrived}");
            // The failed place may be used again, and what is written next is found.
            fill(&mut v, ino, 50, 3);
            v.checkpoint(2005).unwrap();
            assert_eq!(whole(device.inner().fork()), 3, "{n} {arrived}");
            assert_eq!(v.read_block(Tree::Live, ino, 60).unwrap().unwrap()[0], 9);
        }
    }
}

/// Blocks below 4096 bytes get no data-sync logs.
#[test]
fn a_data_sync_log_that_fails_becomes_a_checkpoint() {
    let device = Arc::new(formatted(MemoryDevice::new(4096 * 16 * 100), 4096, 16));
    let mut v = open(device.clone());
    let (a, b) = (file(&mut v), file(&mut v));
    let block = |with: u8| -> silt_engine::Block { vec![with; 4096].into() };
    for key in 0..30 {
        v.write_block(a, key, block(1)).unwrap();
    }
    v.checkpoint(2001).unwrap();
    for n in 0..2 {
        v.write_block(b, 0, block(5 + n)).unwrap();
        for key in 0..30 {
            v.write_block(a, key, block(20 + n)).unwrap();
        }
        assert!(v.begin_data_sync(&[a], 2002).unwrap());
        let log = until_log(&mut v, &*device, usize::from(n)).unwrap();
        // Later requests lie above what is taken back.
        v.write_block(a, 3, block(40)).unwrap();
        v.cut(a, 5..7).unwrap();
        assert_eq!(v.log_failed(&log, 2003).unwrap(), Redo::Elsewhere);
        assert_eq!(v.read_block(Tree::Live, a, 4).unwrap().unwrap()[0], 20 + n);
        v.finish_construction(2004).unwrap();
        let copy = Arc::new(device.fork());
        judge(&*copy);
        let mut w = open(copy.clone());
        let at = |v: &mut Volume, ino, key| v.read_block(Tree::Live, ino, key).unwrap().map(|b| b[0]);
        for v in [&mut v, &mut w] {
            assert_eq!((at(v, a, 3), at(v, a, 4), at(v, a, 5)), (Some(40), Some(20 + n), None));
            assert_eq!((at(v, a, 29), at(v, b, 0)), (Some(20 + n), Some(5 + n)));
        }
        w.close(2500).unwrap();
        judge(&*copy);
    }
    assert_eq!(v.waiting_blocks(), 0);
}

#[test]
fn a_device_that_takes_nothing_leaves_no_marks() {
    let (device, mut v) = volume();
    let ino = file(&mut v);
    fill(&mut v, ino, 40, 1);
    v.checkpoint(2001).unwrap();
    let clean = v.stat().unwrap().clean_segments;
    fill(&mut v, ino, 40, 2);
    device.fail_writes(0..u64::MAX, Times::Always);
    for _ in 0..3 {
        assert!(v.checkpoint(2002).is_err() || v.finish_construction(2002).is_err());
        assert!(v.failure().is_none());
    }
    assert_eq!(content(&mut v, ino, 40), 2);
    device.heal();
    v.finish_construction(2003).unwrap();
    v.checkpoint(2004).unwrap();
    let stat = v.stat().unwrap();
    for s in 0..stat.segments {
        assert!(!v.segment_info(SegNr(s)).unwrap().error, "segment {s}");
    }
    assert!(stat.clean_segments + 10 > clean);
    let copy = Arc::new(device.inner().fork());
    judge(&*copy);
    assert_eq!(content(&mut open(copy), ino, 40), 2);
}

/// What there is room for on a full volume is its checkpoint and what is kept back, and no more.
#[test]
fn a_bad_place_of_a_full_volume_is_left() {
    const BLOCKS: u64 = 256;
    let block = |with: u8| -> silt_engine::Block { vec![with; 4096].into() };
    let mut logs = 0;
    for n in 0.. {
        let device = Arc::new(formatted(Fault::new(MemoryDevice::new(64 << 20)), 4096, 64));
        let mut v = open(device.clone());
        let ino = file(&mut v);
        let mut key = 0;
        let mut fill = |v: &mut Volume, most: u64, more: u64| {
            for _ in 0..most {
                if v.check_space(more).is_err() {
                    return false;
                }
                v.write_block(ino, key, block(key as u8)).unwrap();
                key += 1;
            }
            true
        };
        while fill(&mut v, BLOCKS, BLOCKS) {
            v.checkpoint(2001).unwrap();
        }
        assert!(!fill(&mut v, 2 * BLOCKS, 1) && v.waiting_blocks() > BLOCKS, "it is full");
        assert!(v.begin_checkpoint(2002).unwrap());
        // Others go on meanwhile; what they change waits for the next one.
        v.write_block(ino, 0, block(200)).unwrap();
        let Some(log) = until_log(&mut v, &*device, n) else { break };
        logs += 1;
        device.fail_writes(log.byte..log.byte + log.len(), Times::Always);
        assert_eq!(v.log_failed(&log, 2003).unwrap(), Redo::Elsewhere, "log {n}, {}", v.available_segments());
        v.finish_construction(2004).unwrap();
        v.checkpoint(2005).unwrap();
        v.close(2006).unwrap();
        judge(device.inner());
        let mut v = open(device.clone());
        for at in 1..key {
            assert_eq!(v.read_block(Tree::Live, ino, at).unwrap().unwrap()[0], at as u8, "block {at}");
        }
        assert_eq!(v.read_block(Tree::Live, ino, 0).unwrap().unwrap()[0], 200);
    }
    assert!(logs > 3, "{logs}");
}
