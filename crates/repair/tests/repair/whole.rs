//! Repair as a whole: sound volumes are left alone, noise in metadata is mended, going back, power cuts.

use std::sync::Arc;

use crate::common::{checked, mends, options, say, tree};
use silt_device::{Device, Event, MemoryDevice, Recorder};
use silt_format::BlockNr;
use silt_format::super_block::{PRIMARY_OFFSET, STATE_VALID, SuperBlock, secondary_offset};
use silt_repair::{Options, errors, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, golden};

#[test]
fn sound_volumes_are_left_alone() {
    for name in ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "cut-4k", "full-4k"] {
        let device = Arc::new(golden::open(name));
        let made = plan(device, &options()).unwrap();
        assert!(made.is_empty() && made.rounds.is_empty(), "{name}:\n{}", say(&made));
    }
}

fn snapshots(device: &MemoryDevice) -> Vec<u64> {
    silt_engine::mend::snapshots(Arc::new(device.fork())).unwrap_or_default().into_iter().collect()
}

fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut byte = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..n).map(|_| byte()).collect()
}

/// Metadata blocks of a volume in turn are overwritten with noise: a sample of them, or every one with
/// `SILT_TEST_ALL_BLOCKS=1`.
#[test]
fn noise_in_metadata_is_mended() {
    for (name, files) in [("basic-4k", &[2u64, 3, 4, 5, 6][..]), ("btree-1k", &[3, 4, 5, 6])] {
        let sound = Surgeon::golden(name);
        let (dat, latest) = (sound.dat(), sound.latest());
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for ino in files {
            match ino {
                3 => {
                    blocks.extend(dat.blocks.values().map(|b| (3, *b)));
                    blocks.extend(dat.nodes.keys().map(|b| (3, *b)));
                }
                _ => blocks.extend(sound.file(*ino).into_values().map(|b| (*ino, b))),
            }
        }
        blocks.push((0, latest.pos.0));
        blocks.push((0, latest.end() - 1));
        let all = std::env::var_os("SILT_TEST_ALL_BLOCKS").is_some();
        let step = if all { 1 } else { (blocks.len() / 24).max(1) };
        let mut failed = Vec::new();
        for (n, (ino, block)) in blocks.into_iter().enumerate().step_by(step) {
            let mut s = Surgeon::golden(name);
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), n as u64 + 77)));
            match mends(&sound.device, &s.device) {
                Ok(o) if ino != 6 && ino != 2 && ino != 0 && !o.missing.is_empty() => {
                    failed.push(format!(
                        "{name}: inode {ino} block {block}: lost {:?}\n{}",
                        o.missing,
                        say(&o.plan)
                    ));
                }
                Ok(_) => {}
                Err(why) => failed.push(format!("{name}: inode {ino} block {block}: {why}")),
            }
        }
        assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
    }
}

/// Every checkpoint that can be read, as it is read.
fn trees(device: &MemoryDevice) -> Vec<(u64, std::collections::BTreeMap<Vec<u8>, u64>)> {
    let last = checked(device).stats.last_cno;
    (1..=last).filter_map(|c| Some((c, tree(device, Moment::Checkpoint(c))?))).collect()
}

#[test]
fn the_tree_goes_back_and_nothing_else_changes() {
    for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        let device = golden::open(name);
        let before = trees(&device);
        for (c, wanted) in &before {
            let device = golden::open(name);
            let back = Options { to_checkpoint: Some(*c), ..options() };
            let made = plan(Arc::new(device.fork()), &back).unwrap();
            assert_eq!((errors(&made.after), &made.stopped), (0, &None), "{name} to {c}:\n{}", say(&made));
            made.apply(&device).unwrap();
            assert!(checked(&device).is_clean());
            assert!(tree(&device, Moment::Latest).as_ref() == Some(wanted), "{name} to {c}");
            for (past, then) in &before {
                assert!(
                    tree(&device, Moment::Checkpoint(*past)).as_ref() == Some(then),
                    "{name}: {past} after {c}"
                );
            }
            let last = before.last().unwrap().0;
            assert!(snapshots(&device).contains(&last), "the state before is a snapshot");
        }
    }
}

#[test]
fn a_checkpoint_that_is_not_there_changes_nothing() {
    let back = Options { to_checkpoint: Some(4711), ..options() };
    let made = plan(Arc::new(golden::open("basic-4k")), &back).unwrap();
    assert!(made.is_empty() && made.stopped.is_some(), "{:?}\n{}", made.overlay().ranges(), say(&made));
}

/// Segments that were clean hold old logs, whose blocks' numbers were given to others since. They must not pass for
/// used ones: a cleaner would go by these records.
#[test]
fn old_logs_in_clean_segments_stay_nobodys() {
    let sound = Surgeon::golden("gc-4k");
    let used = checked(&sound.device).stats.segments;
    for block in sound.file(5).into_values() {
        let mut s = Surgeon::golden("gc-4k");
        s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
        let after = mends(&sound.device, &s.device).unwrap();
        let now = checked(&after.device).stats.segments;
        assert!(now <= used + 4, "{used} segments were in use, {now} are now\n{}", say(&after.plan));
    }
}

/// Blocks of the table that were taken out of it have records in segments that were given back: they stay out.
#[test]
fn a_table_built_anew_has_no_more_blocks_than_before() {
    let mut sound = Surgeon::golden("gc-4k");
    unmounted(&mut sound);
    let (used, dat) = (checked(&sound.device).stats.segments, sound.dat());
    let node = *dat.nodes.keys().next().unwrap();
    let mut s = Surgeon { device: sound.device.fork() };
    s.patch_with(node, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 9)));
    let after = mends(&sound.device, &s.device).unwrap();
    assert!(after.missing.is_empty(), "{:?}", after.missing);
    assert!(
        say(&after.plan).contains("the map of the translation table is built anew"),
        "{}",
        say(&after.plan)
    );
    s.device = after.device;
    let now = checked(&s.device).stats.segments;
    assert_eq!(s.dat().blocks.len(), dat.blocks.len());
    assert!(now <= used + 4, "{used} segments were in use, {now} are now\n{}", say(&after.plan));
}

/// As a clean unmount would have left it.
fn unmounted(s: &mut Surgeon) {
    let (log, cno) = (s.latest(), s.cno());
    s.patch_super((true, true), |sb| {
        sb.last_pseg = log.pos.0.into();
        sb.last_seq = log.header.seq;
        sb.last_cno = cno.into();
        sb.state = (sb.state.get() | STATE_VALID).into();
    });
}

/// A newer log that a power cut tore must not take the place of an older state that is whole.
#[test]
fn an_older_whole_state_is_preferred_to_a_torn_one() {
    let mut s = Surgeon::golden("basic-4k");
    let (before, older) = (tree(&s.device, Moment::Latest), s.latest());
    let (cno, seq) = (s.cno(), older.header.seq);
    assert!(before.is_some());
    // A copy of the newest log as the next one, of which only the ends arrived.
    let g = s.g();
    let mut log = vec![0; (older.nblocks() as usize) * g.bs()];
    s.device.read_at(g.byte_of(older.pos), &mut log).unwrap();
    let summary = older.header.summary_blocks(&g) as usize * g.bs();
    let (n, bs) = (log.len(), g.bs());
    log[summary..n - bs].fill(0xA5);
    s.device.write_at(g.byte_of(BlockNr(older.end())), &[&log]).unwrap();
    let name = |at: u64, cno: u64| {
        move |sb: &mut SuperBlock| {
            sb.last_pseg = at.into();
            sb.last_seq = seq;
            sb.last_cno = cno.into();
            sb.state = (sb.state.get() & !STATE_VALID).into();
        }
    };
    s.patch_super((true, false), name(older.pos.0, cno));
    s.patch_super((false, true), name(older.end(), cno + 1));
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    assert_eq!(errors(&made.after), 0, "{}", say(&made));
    made.apply(&s.device).unwrap();
    assert!(made.rounds.len() == 1 && !say(&made).contains("damaged"), "{}", say(&made));
    assert!(before == tree(&s.device, Moment::Latest), "{}", say(&made));
}

fn both_lost(s: &mut Surgeon) {
    for at in [PRIMARY_OFFSET, secondary_offset(s.device.len())] {
        s.device.write_at(at, &[&[0; 1024]]).unwrap();
    }
}

#[test]
fn both_super_blocks_come_back_from_the_log() {
    for name in ["basic-4k", "basic-1k", "gc-4k", "cut-4k"] {
        let mut s = Surgeon::golden(name);
        let sound = s.device.fork();
        both_lost(&mut s);
        assert!(silt_engine::read_super_block(&s.device).is_err(), "{name}: a copy is left");
        let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
        assert_eq!(errors(&made.after), 0, "{name}:\n{}", say(&made));
        made.apply(&s.device).unwrap();
        assert!(checked(&s.device).is_clean());
        let (was, is) = (tree(&sound, Moment::Latest), tree(&s.device, Moment::Latest));
        assert!(is.is_some() && was == is, "{name}:\n{}", say(&made));
        let block = silt_engine::read_super_block(&s.device).unwrap();
        assert_ne!(block.uuid, [0; 16]);
        let second = plan(Arc::new(s.device.fork()), &options()).unwrap();
        assert!(second.is_empty(), "{name}:\n{}", say(&second));
    }
    let nothing = plan(Arc::new(MemoryDevice::new(64 << 20)), &options());
    assert!(nothing.is_err() || nothing.unwrap().is_empty(), "of nothing nothing is made");
}

/// What is broken, and how.
type Break = (&'static str, fn(&mut Surgeon));

/// The power goes after every write of a repair: a second one finishes it.
#[test]
fn an_interrupted_repair_is_finished_by_the_next() {
    let breaks: [Break; 9] = [
        ("super block", |s| s.patch_super((true, false), |b| b.last_pseg = 3.into())),
        ("both super blocks", both_lost),
        ("segment usage", |s| {
            let block = s.file(5)[&0];
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 3)));
        }),
        ("table", |s| {
            let block = *s.dat().blocks.values().last().unwrap();
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 4)));
        }),
        ("directory", |s| {
            let block = s.file(2)[&0];
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
        }),
        ("log", |s| {
            let block = s.latest().pos.0;
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 6)));
        }),
        ("inode", |s| {
            let ino = s.ino("six");
            s.patch_inode(ino, |i| i.links_count = 7.into());
        }),
        ("translation", |s| {
            let v = s.find_dat(|v, e| v > 0 && e.end.get() == u64::MAX);
            s.patch_dat(v, |e| e.blocknr = 3.into());
        }),
        ("snapshots", |s| {
            let cno = s.cno();
            s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
        }),
    ];
    for (what, plant) in breaks {
        let mut s = Surgeon::golden("basic-4k");
        plant(&mut s);
        let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
        assert!(!made.is_empty(), "{what}");
        // What a repair that is not cut off brings back, or more.
        let whole = s.device.fork();
        made.apply(&whole).unwrap();
        let least = tree(&whole, Moment::Latest).unwrap().len();
        assert!(least > 15, "{what}");
        let recorder = Recorder::new(s.device.fork());
        let record = recorder.record();
        made.apply(&recorder).unwrap();
        let writes: Vec<_> = record
            .events()
            .into_iter()
            .filter_map(|e| if let Event::Change(c) = e { Some(c) } else { None })
            .collect();
        assert!(!writes.is_empty(), "{what}");
        // Every one of few, some of many.
        let step = (writes.len() / 40).max(1);
        for cut in (0..=writes.len()).step_by(step) {
            // All before the cut, and half of the write that was under way.
            for torn in [false, true] {
                let device = s.device.fork();
                for (n, change) in writes.iter().enumerate().take(cut + usize::from(torn)) {
                    let silt_device::Content::Bytes(bytes) = &change.content else { continue };
                    let len = if n == cut { bytes.len() / 1024 * 512 } else { bytes.len() };
                    device.write_at(change.offset, &[&bytes[..len]]).unwrap();
                }
                let second = plan(Arc::new(device.fork()), &options()).unwrap();
                assert_eq!(errors(&second.after), 0, "{what}, cut at {cut} ({torn}):\n{}", say(&second));
                second.apply(&device).unwrap();
                assert!(checked(&device).is_clean());
                assert!(
                    tree(&device, Moment::Latest).is_some_and(|t| t.len() >= least),
                    "{what}, cut at {cut}"
                );
            }
        }
    }
}
