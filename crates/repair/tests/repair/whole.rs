//! Repair as a whole: sound volumes are left alone, noise in metadata is mended, going back, power cuts.

use std::sync::Arc;

use crate::common::{both_lost, checked, mends, noise, options, say, snapshots, tree, trees, unmounted};
use silt_device::{Device, MemoryDevice};
use silt_format::BlockNr;
use silt_format::super_block::{STATE_VALID, SuperBlock};
use silt_repair::{Options, errors, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, golden};

#[test]
fn sound_volumes_are_left_alone() {
    for name in ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "cut-4k", "full-4k", "wrap-4k"] {
        let device = Arc::new(golden::open(name));
        let made = plan(device, &options()).unwrap();
        assert!(made.is_empty() && made.rounds.is_empty(), "{name}:\n{}", say(&made));
    }
}

/// Metadata blocks of a volume in turn are overwritten with noise.
#[test]
fn noise_in_metadata_is_mended() {
    for (name, files) in [("basic-4k", &[2u64, 3, 4, 5, 6][..]), ("btree-1k", &[3, 4, 5, 6])] {
        let sound = Surgeon::golden(name);
        let (dat, latest) = (sound.dat(), sound.latest());
        let end = dat.blocks.keys().max().map(|last| last + 16);
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
        let mut failed = Vec::new();
        for (n, (ino, block)) in blocks.into_iter().enumerate() {
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
                Ok(o) => {
                    // Numbers that noise names get no entries.
                    let now = Surgeon { device: o.device }.dat().blocks.into_keys().max();
                    if now > end {
                        let said = say(&o.plan);
                        failed.push(format!("{name}: inode {ino} block {block}: table to {now:?}\n{said}"));
                    }
                }
                Err(why) => failed.push(format!("{name}: inode {ino} block {block}: {why}")),
            }
        }
        assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
    }
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

#[test]
fn both_super_blocks_come_back_from_the_log() {
    for name in ["basic-4k", "basic-1k", "gc-4k", "cut-4k", "wrap-4k"] {
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
