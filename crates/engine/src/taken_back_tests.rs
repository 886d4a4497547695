//! What was handed out to an attempt that was taken back has its space below as before ([`crate::backed`]).

#![allow(clippy::unwrap_used, clippy::unreachable)]

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Fault, Hosted, MemoryDevice, Times};
use silt_format::{Ino, SegNr};

use crate::fresh::file;
use crate::mkfs::{Parameters, Plan};
use crate::volume::{OpenOptions, Volume};
use crate::{Redo, Step};

const SEGMENT: u64 = 16 * 4096;
const SEGMENTS: u64 = 600;

/// The last segment that was handed out: some behind it have their entries in another block of the table.
const LAST: u64 = 250;

type Image = Arc<Fault<Hosted>>;

/// A volume with many small files, whose tables fill several segments when they change.
fn formatted() -> (MemoryDevice, Vec<Ino>) {
    let size = (SEGMENTS + 1) * SEGMENT;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters { blocks_per_segment: 16, now: 1000, ..Parameters::default() };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    v.take_over(2000).unwrap();
    // All blocks of the table of segments are there, and have their numbers far from those of the files.
    (100..SEGMENTS).step_by(50).for_each(|s| v.sufile.free(&v.store, &v.dat, SegNr(s)).unwrap());
    v.meta_dirty = true;
    v.checkpoint(2001).unwrap();
    let files: Vec<_> = (0..1600).map(|_| file(&mut v)).collect();
    v.checkpoint(2001).unwrap();
    v.close(2002).unwrap();
    drop(v);
    (device.fork(), files)
}

/// It is opened on a host with little left, and enough is ready.
fn opened(image: &MemoryDevice, copies: bool) -> (Image, Volume) {
    let left = 250 * SEGMENT;
    let image = image.fork();
    let host = if copies { Hosted::copying(image, left) } else { Hosted::new(image, left) };
    let device = Arc::new(Fault::new(host));
    let options = OpenOptions { backed: true, now: 3000, cache_bytes: 4096, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    v.take_over(3000).unwrap();
    v.sufile.set_last_alloc(&v.store, &v.dat, SegNr(LAST)).unwrap();
    for _ in 0..200 {
        let backing = v.next_backing(u64::MAX, 1).unwrap().unwrap();
        let mut parts = vec![backing.clone()];
        if backing.is_renewed {
            let (discard, of) = v.begin_renewal(&backing).unwrap();
            discard.run(&*device).unwrap();
            v.end_discard(discard);
            parts = of;
        }
        for part in parts {
            let said = part.ask(&*device).ok();
            v.told_of_backing(&part, said).unwrap();
        }
    }
    // From now on nothing more can be had.
    device.inner().set_left(0);
    assert!(v.judge_backing(true, true, 0) && v.counts_backed_only());
    (device, v)
}

fn ready(v: &Volume) -> BTreeSet<u64> {
    v.store.held.backed.as_ref().unwrap().ready.iter().cloned().flatten().collect()
}

/// Inode blocks change all over the inode file.
fn change(v: &mut Volume, files: &[Ino], uid: u32) {
    files.iter().step_by(20).for_each(|ino| v.attr_mut(*ino).unwrap().uid = uid);
}

/// Whatever read of composing fails: the attempt costs nothing of what was ready.
#[test]
fn an_attempt_that_could_not_read_leaves_ready_what_it_took() {
    let (image, files) = formatted();
    for copies in [false, true] {
        let (mut failed, mut took) = (0, 0);
        for after in 0.. {
            let (device, mut v) = opened(&image, copies);
            v.be_patient(true);
            change(&mut v, &files, 7);
            let before = ready(&v);
            assert!(v.begin_checkpoint(4000).unwrap());
            device.fail_reads(0..u64::MAX, Times::Later { after, times: 1 });
            loop {
                match v.step(50) {
                    Ok(Step::Write(mut log)) => {
                        log.seal();
                        log.write(&*device).unwrap();
                        v.log_written();
                    }
                    Ok(Step::Done(_)) => break,
                    Ok(_) => {}
                    Err(e) => {
                        assert!(matches!(e, crate::Error::Device(_)), "{e}");
                        failed += 1;
                        let k = v.construction.as_ref().unwrap();
                        let kept: BTreeSet<_> = k.allocated.iter().map(|s| s.0).collect();
                        let expected: BTreeSet<_> = before.difference(&kept).copied().collect();
                        assert_eq!(ready(&v), expected, "read {after}, copies: {copies}");
                    }
                }
            }
            took = took.max(before.len() - ready(&v).len());
            // What was planned and not entered is ready as before, too.
            let lost: Vec<_> = before.difference(&ready(&v)).copied().collect();
            for s in lost {
                let next = v.cursor.next.0;
                assert!(s == next || !v.clean_segments(s..s + 1).is_ok_and(|clean| !clean.is_empty()));
            }
            if device.struck().reads == 0 {
                break;
            }
        }
        assert!(failed > 5 && took > 2, "{failed} failed, {took} taken");
    }
}

/// A log that its place did not take goes elsewhere: what its construction had taken and not written is ready as before, and
/// what it had written where the host writes in place.
#[test]
fn what_was_left_for_another_place_is_ready_but_for_what_was_written() {
    let (image, files) = formatted();
    for copies in [false, true] {
        for logs in 0..5 {
            for writes_data in [false, true] {
                let (device, mut v) = opened(&image, copies);
                change(&mut v, &files, 8);
                if writes_data {
                    (0..40).for_each(|key| v.write_block(files[0], key, vec![1; 4096].into()).unwrap());
                }
                let next = v.cursor.next.0;
                let mut before = ready(&v);
                assert!(v.begin_checkpoint(4000).unwrap());
                let mut touched = BTreeSet::new();
                let failed = loop {
                    match v.step(1 << 20).unwrap() {
                        Step::Write(mut log) => {
                            log.seal();
                            touched.insert(log.segment.0);
                            if touched.len() > logs {
                                break log;
                            }
                            log.write(&*device).unwrap();
                            v.log_written();
                        }
                        step => assert!(matches!(step, Step::Working), "{step:?}"),
                    }
                };
                assert_eq!(v.log_failed(&failed, 4001).unwrap(), Redo::Elsewhere);
                // It was ready when it was taken, before.
                if next != v.cursor.segment.0 && next != *touched.first().unwrap() {
                    before.insert(next);
                }
                // Its blocks of files are laid out already.
                let k = v.construction.as_ref().unwrap();
                let again: Vec<_> = k.allocated.iter().chain(&k.begun.segments()).map(|s| s.0).collect();
                let unready: BTreeSet<_> =
                    before.difference(&ready(&v)).copied().filter(|s| !again.contains(s)).collect();
                let lost: Vec<_> = unready.iter().copied().filter(|s| !touched.contains(s)).collect();
                assert!(lost.is_empty(), "{lost:?} of {touched:?}, copies: {copies}");
                let written: BTreeSet<_> = touched.intersection(&ready(&v)).copied().collect();
                assert!(!written.contains(&failed.segment.0));
                assert!(!copies || written.is_empty(), "{written:?} were written");
                if !copies {
                    unready.iter().for_each(|s| assert_eq!(*s, failed.segment.0));
                }
                v.finish_construction(4002).unwrap();
                v.close(4003).unwrap();
            }
        }
    }
}
