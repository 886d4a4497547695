//! Where a repair comes to its limits: no space, sectors that cannot be read, logs behind a crash, an end asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_repair::{Error, Options, errors, plan, plan_watched};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Tree, Watch};

use crate::common::{checked, noise, options, say, tree, unmounted};

/// No segment is free: what needs one is not done and said, and nothing is written. A super block needs none.
#[test]
fn a_full_volume_is_left_as_it_was() {
    let mut s = Surgeon::golden("full-4k");
    assert!(s.fill() > 0 && checked(&s.device).is_clean(), "{}", checked(&s.device).error_text());
    let cno = s.cno();
    s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    assert!(
        made.is_empty() && made.no_space && errors(&made.after) == 1,
        "{:?}\n{}",
        made.stopped,
        say(&made)
    );
    s.patch_super((true, false), |b| b.last_pseg = 3.into());
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    assert!(
        !made.is_empty() && made.no_space && made.rounds.len() == 1,
        "{:?}\n{}",
        made.stopped,
        say(&made)
    );
    made.apply(&s.device).unwrap();
    let left: Vec<_> = checked(&s.device).errors().map(|f| f.id).collect();
    assert_eq!(left, ["cpfile-inodes-count"]);
}

/// The device is full (a sparse image on a full disk) in the midst of a repair: what is there can be repaired again.
#[test]
fn a_device_that_runs_full_leaves_what_can_be_repaired() {
    let mut s = Surgeon::golden("basic-4k");
    let block = s.file(2)[&0];
    s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    let mut failed = 0;
    for bytes in [0u64, 1, 4096, 40_000, 200_000, 1 << 30] {
        let device = Fault::new(s.device.fork());
        device.limit_space(Some(bytes));
        let done = made.apply(&device);
        device.heal();
        if let Err(e) = done {
            failed += 1;
            assert!(matches!(&e, Error::Device(e) if e.is_no_space()), "{e}");
            let device = Arc::new(device);
            let again = plan(device.clone(), &options()).unwrap();
            assert_eq!(errors(&again.after), 0, "{bytes}:\n{}", say(&again));
            again.apply(&*device).unwrap();
            assert!(checked(&*device).is_clean(), "{bytes}");
        }
    }
    assert!(failed > 2, "{failed}");
}

/// Whole blocks of a file's data, as (block of the file, disk block).
fn data_of(s: &Surgeon, path: &str) -> Vec<(u64, u64)> {
    s.file(s.ino(path)).into_iter().collect()
}

/// File data that cannot be read stays, and is said; or zeroes take its place in every checkpoint.
#[test]
fn unreadable_file_data_stays_or_becomes_zeroes() {
    let mut s = Surgeon::golden("basic-4k");
    unmounted(&mut s);
    let bits = s.g().block_bits;
    let (ino, data) = (s.ino("big"), data_of(&s, "big"));
    let (offset, block) = data[data.len() / 2];
    let broken = || {
        let device = Fault::new(s.device.fork());
        device.fail_reads(block << bits..(block + 1) << bits, Times::Always);
        Arc::new(device)
    };
    let bytes = format!(
        "inode {ino} (/big): bytes {} to {} cannot be read",
        offset << bits,
        ((offset + 1) << bits) - 1
    );
    let device = broken();
    let kept = plan(device.clone(), &options()).unwrap();
    assert!(say(&kept).contains(&format!("{bytes} and stay where they are")), "{}", say(&kept));
    assert!(errors(&kept.after) > 0, "it is still there and still needed");
    let zero = Options { zero_unreadable: true, ..options() };
    let made = plan(device.clone(), &zero).unwrap();
    assert!(say(&made).contains(&format!("{bytes}: they are zeroes from now on")), "{}", say(&made));
    assert_eq!(errors(&made.after), 0, "{}", say(&made));
    made.apply(&*device).unwrap();
    assert!(checked(&*device).is_clean());
    let tree = Tree::open(&*device, Moment::Latest).unwrap();
    let was = Tree::open(&s.device, Moment::Latest).unwrap();
    let content = |t: &Tree<'_>| {
        let mut all = std::collections::BTreeMap::new();
        t.for_each_part(ino, |at, bytes| {
            for (n, part) in bytes.chunks(1 << bits).enumerate() {
                all.insert((at >> bits) + n as u64, part.to_vec());
            }
        })
        .unwrap();
        all
    };
    let (is, mut was) = (content(&tree), content(&was));
    let lost = was.insert(offset, vec![0; 1 << bits]).unwrap();
    assert!(lost.iter().any(|b| *b != 0) && is == was, "all but that block is as it was");
}

/// Whatever is wrong with a log of an unclean volume, what is repaired can be mounted, and what is lost is said.
#[test]
fn a_bad_log_of_an_unclean_volume_is_repaired_wherever_it_lies() {
    for name in ["cut-4k", "dsync-4k", "basic-4k"] {
        let s = Surgeon::golden(name);
        let (g, latest) = (s.g(), s.latest());
        let before = tree(&s.device, Moment::Latest).unwrap();
        let mounts = |device: &MemoryDevice| {
            let options = silt_engine::OpenOptions::default();
            silt_engine::Volume::open(Arc::new(device.fork()), &options).map(|_| ())
        };
        let (mut run, mut refused, mut lost) = (0, 0, 0);
        let logs: Vec<_> = (0..g.nsegments).flat_map(|segment| s.logs(segment)).collect();
        for log in logs.iter().filter(|l| l.header.seq.get() == latest.header.seq.get() || l.pos.0 % 7 == 0) {
            for place in [0, 1, log.nblocks() / 2, log.nblocks() - 1] {
                let at = log.pos.0 + place;
                let device = s.device.fork();
                device.write_at(g.byte_of(silt_format::BlockNr(at)), &[&noise(g.bs(), at)]).unwrap();
                run += 1;
                refused += u32::from(mounts(&device).is_err());
                let what = format!("{name}: log at {}, block {place}", log.pos);
                let made = plan(Arc::new(device.fork()), &options()).unwrap();
                assert_eq!(errors(&made.after), 0, "{what}\n{}", say(&made));
                made.apply(&device).unwrap();
                mounts(&device).unwrap_or_else(|e| panic!("{what}: {e}\n{}", say(&made)));
                let after = tree(&device, Moment::Latest).unwrap();
                if after != before {
                    lost += 1;
                    let told = made.rounds.iter().flat_map(|r| &r.done).any(|l| {
                        let words = ["lost", "put back", "put together", "moved as they are", "cut out"];
                        words.iter().any(|w| l.contains(w))
                    });
                    // A log at the end without its head or its super root is what a power cut leaves, too.
                    let end = log.pos == latest.pos && (place == 0 || place + 1 == log.nblocks());
                    // So does a data-sync log, and what lies behind one.
                    let end = end || log.pos.0 > latest.pos.0 || name.starts_with("dsync");
                    let behind = made.unreached.is_some_and(|(base, newest)| base < newest);
                    assert!(
                        told || behind || end,
                        "{what}: something is lost and nothing said\n{}",
                        say(&made)
                    );
                }
            }
        }
        println!("{name}: {run} cases, {refused} could not be mounted before, {lost} lost something");
        assert!(run > 8);
    }
}

/// Wherever the planning is ended, it says so, and nothing was written.
#[test]
fn planning_ends_when_it_is_asked_to() {
    struct Patience(AtomicU32);
    impl Watch for Patience {
        fn stop(&self) -> bool {
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err()
        }
    }
    let mut s = Surgeon::golden("basic-4k");
    let block = s.file(2)[&0];
    s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
    let (mut ended, mut patience) = (0, 1);
    loop {
        match plan_watched(Arc::new(s.device.fork()), &options(), &Patience(AtomicU32::new(patience))) {
            Err(Error::Stopped) => ended += 1,
            Err(e) => panic!("{e}"),
            Ok(made) => {
                assert_eq!(errors(&made.after), 0);
                break;
            }
        }
        patience += 1 + patience / 3;
    }
    assert!(ended > 5, "{ended}");
}

/// A segment was written where another should be: all logs verify, and what is wrong has a name.
#[test]
fn files_overwritten_by_another_segment_are_named() {
    let mut s = Surgeon::golden("basic-4k");
    crate::common::unmounted(&mut s);
    let g = s.g();
    let before = tree(&s.device, Moment::Latest).unwrap();
    let at = |n: u64| g.byte_of(g.segment_start(silt_format::SegNr(n)));
    let mut named = 0;
    for (to, from) in [(1, 2), (2, 3), (3, 2), (4, 1)] {
        let device = s.device.fork();
        let mut bytes = vec![0; g.bs() * g.blocks_per_segment as usize];
        device.read_at(at(from), &mut bytes).unwrap();
        device.write_at(at(to), &[&bytes]).unwrap();
        let made = plan(Arc::new(device.fork()), &options()).unwrap();
        made.apply(&device).unwrap();
        let after = tree(&device, Moment::Latest).unwrap();
        for (path, digest) in &before {
            let path = String::from_utf8_lossy(path);
            let ino = if path.is_empty() { 2 } else { s.ino(&path) };
            let of = |l: &String| {
                let words: Vec<&str> = l.split([':', ' ']).collect();
                words.windows(2).any(|p| matches!(p[0], "inode" | "directory") && p[1] == ino.to_string())
            };
            let told = made.rounds.iter().flat_map(|r| &r.done).any(of);
            named += u32::from(told);
            let same = after.get(path.as_bytes()) == Some(digest);
            assert!(same || told, "{from} to {to}: /{path} is wrong in silence\n{}", say(&made));
        }
    }
    assert!(named > 0);
}
