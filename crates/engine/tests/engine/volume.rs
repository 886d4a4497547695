//! Volumes driven through the engine alone, against a plain model, and judged by `silt-verify`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use silt_device::{Device, MemoryDevice};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::{Cno, Ino};

use crate::common::{attr, formatted, judge, open_with};

fn fresh(block_size: u32, blocks_per_segment: u32, size: u64) -> Arc<MemoryDevice> {
    Arc::new(formatted(MemoryDevice::new(size), block_size, blocks_per_segment))
}

/// With little room for metadata.
fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { now: 2000, seed: 5, cache_bytes: 1 << 20, ..OpenOptions::default() };
    open_with(device.clone(), &options)
}

#[test]
fn a_fresh_volume_is_sound_and_opens() {
    for (bs, bps) in [(1024, 16), (1024, 2048), (2048, 64), (4096, 16), (4096, 2048), (8192, 32), (65536, 16)]
    {
        let size = (u64::from(bs) * u64::from(bps) * 24).max(1 << 20);
        let device = fresh(bs, bps, size);
        judge(&device);
        let mut v = open(&device);
        assert_eq!(v.inode(Tree::Live, Ino::ROOT).unwrap().attr.mode, 0o040_755);
        v.close(3000).unwrap();
        judge(&device);
    }
}

/// Who walks a tree reads directories, and no file data between them.
#[test]
fn directories_come_first_in_a_log() {
    let device = fresh(4096, 64, 64 << 20);
    let mut v = open(&device);
    let files: Vec<(Ino, bool)> = (0..20)
        .map(|n| {
            let dir = n % 3 == 2;
            let mode = if dir { 0o040_755 } else { 0o100_644 };
            (v.create_inode(silt_engine::Attr { mode, ..attr() }).unwrap(), dir)
        })
        .collect();
    for (ino, _) in &files {
        v.write_block(*ino, 0, vec![1; 4096].into()).unwrap();
    }
    v.checkpoint(2001).unwrap();
    let mut places = |dir| -> Vec<u64> {
        let of_kind = files.iter().filter(|(_, d)| *d == dir);
        of_kind
            .map(|(ino, _)| match v.locate(Tree::Live, *ino, 0).unwrap() {
                silt_engine::Piece::Disk(at) => at.0,
                piece => panic!("{piece:?}"),
            })
            .collect()
    };
    assert!(places(true).iter().max() < places(false).iter().min());
}

/// Who deletes files needs their nodes, and none of the data.
#[test]
fn nodes_do_not_lie_between_the_data_of_files() {
    let device = fresh(4096, 2048, 256 << 20);
    let mut v = open(&device);
    let files: Vec<Ino> = (0..20).map(|_| v.create_inode(attr()).unwrap()).collect();
    // Such files have a node each.
    let keys = || (0..10).map(|n| n * 3);
    for ino in &files {
        for key in keys() {
            v.write_block(*ino, key, vec![1; 4096].into()).unwrap();
        }
    }
    v.checkpoint(2001).unwrap();
    let mut places = Vec::new();
    for ino in &files {
        for key in keys() {
            match v.locate(Tree::Live, *ino, key).unwrap() {
                silt_engine::Piece::Disk(at) => places.push(at.0),
                piece => panic!("{piece:?}"),
            }
        }
    }
    let (first, last) = (places.iter().min().unwrap(), places.iter().max().unwrap());
    assert_eq!(last - first + 1, places.len() as u64);
}

type Files = BTreeMap<u64, BTreeMap<u64, u8>>;

#[derive(Debug, Clone)]
enum Op {
    Create,
    Write { file: usize, key: u64, n: u64 },
    Cut { file: usize, key: u64, n: u64 },
    Truncate { file: usize, key: u64 },
    CutAll { file: usize },
    Delete { file: usize },
    Checkpoint,
    HalfCheckpoint,
    DataSync { file: usize },
    Snapshot,
    Unsnapshot { nth: usize },
    DeleteCheckpoints,
    Crash,
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop_oneof![3 => 0..8u64, 3 => 0..600u64, 1 => 0..(1u64 << 40)];
    let file = || any::<usize>();
    prop_oneof![
        6 => Just(Op::Create),
        20 => (file(), key(), 1..90u64).prop_map(|(file, key, n)| Op::Write { file, key, n }),
        6 => (file(), key(), 1..300u64).prop_map(|(file, key, n)| Op::Cut { file, key, n }),
        4 => (file(), key()).prop_map(|(file, key)| Op::Truncate { file, key }),
        2 => file().prop_map(|file| Op::CutAll { file }),
        3 => file().prop_map(|file| Op::Delete { file }),
        6 => Just(Op::Checkpoint),
        3 => Just(Op::HalfCheckpoint),
        4 => file().prop_map(|file| Op::DataSync { file }),
        2 => Just(Op::Snapshot),
        1 => any::<usize>().prop_map(|nth| Op::Unsnapshot { nth }),
        1 => Just(Op::DeleteCheckpoints),
        2 => Just(Op::Crash),
        1 => Just(Op::Remount),
    ]
}

fn nth(files: &Files, n: usize) -> Option<u64> {
    (!files.is_empty()).then(|| *files.keys().nth(n % files.len()).unwrap())
}

fn compare(v: &mut Volume, tree: Tree, files: &Files) {
    let bs = v.geometry().bs();
    for (ino, blocks) in files {
        let mut keys = Vec::new();
        v.for_each_data(tree, Ino(*ino), 0, |k| {
            keys.push(k);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert!(keys.iter().eq(blocks.keys()), "{tree:?} inode {ino}: {keys:?} {:?}", blocks.keys());
        for (key, fill) in blocks {
            let b = v.read_block(tree, Ino(*ino), *key).unwrap().expect("data");
            assert_eq!(&b[..], &vec![*fill; bs][..], "{tree:?} inode {ino} block {key}");
        }
        let probe = blocks.keys().next_back().map_or(0, |k| k + 1);
        assert!(v.read_block(tree, Ino(*ino), probe).unwrap().is_none());
    }
}

fn finish(v: &mut Volume, now: u64) {
    v.finish_construction(now).unwrap();
}

fn run(ops: &[Op], block_size: u32, bps: u32) {
    let device = fresh(block_size, bps, u64::from(block_size) * u64::from(bps) * 2500);
    let mut v = open(&device);
    let mut live: Files = BTreeMap::new();
    // What must be there after a crash: every checkpoint and its tree; synced data on top.
    let mut past: BTreeMap<u64, Files> = BTreeMap::new();
    let mut durable: Files = BTreeMap::new();
    let mut snapshots: Vec<u64> = Vec::new();
    let mut fill = 0u8;
    let mut now = 2000;
    for op in ops {
        now += 1;
        match op {
            Op::Create => {
                let ino = v.create_inode(attr()).unwrap();
                assert!(live.insert(ino.0, BTreeMap::new()).is_none());
            }
            Op::Write { file, key, n } => {
                let Some(ino) = nth(&live, *file) else { continue };
                for k in *key..key + n {
                    fill = fill.wrapping_add(1).max(1);
                    let b = vec![fill; block_size as usize];
                    v.write_block(Ino(ino), k, b.into()).unwrap();
                    live.get_mut(&ino).unwrap().insert(k, fill);
                }
            }
            Op::Cut { file, key, n } => {
                let Some(ino) = nth(&live, *file) else { continue };
                v.cut(Ino(ino), *key..key + n).unwrap();
                live.get_mut(&ino).unwrap().retain(|k, _| *k < *key || *k >= key + n);
            }
            Op::Truncate { file, key } => {
                let Some(ino) = nth(&live, *file) else { continue };
                v.cut(Ino(ino), *key..u64::MAX).unwrap();
                live.get_mut(&ino).unwrap().split_off(key);
            }
            Op::CutAll { file } => {
                let Some(ino) = nth(&live, *file) else { continue };
                v.cut(Ino(ino), 0..u64::MAX).unwrap();
                assert_eq!(v.inode(Tree::Live, Ino(ino)).unwrap().blocks_512(block_size), 0);
                live.get_mut(&ino).unwrap().clear();
            }
            Op::Delete { file } => {
                let Some(ino) = nth(&live, *file) else { continue };
                v.delete_inode(Ino(ino)).unwrap();
                live.remove(&ino);
            }
            Op::Checkpoint => {
                finish(&mut v, now);
                let had = v.has_changes();
                let c = v.checkpoint(now).unwrap();
                if had {
                    past.insert(c.0, live.clone());
                }
                durable = live.clone();
            }
            Op::HalfCheckpoint => {
                // Frozen, partly written: requests go on meanwhile.
                finish(&mut v, now);
                let next = v.stat().unwrap().next_cno;
                if v.begin_checkpoint(now).unwrap() {
                    past.insert(next, live.clone());
                    durable = live.clone();
                    if let silt_engine::Step::Write(mut log) = v.step(3).unwrap() {
                        log.seal();
                        log.write(&*device).unwrap();
                        v.log_written();
                    }
                }
            }
            Op::DataSync { file } => {
                let Some(ino) = nth(&live, *file) else { continue };
                finish(&mut v, now);
                if v.data_sync_suffices(Ino(ino)) && v.begin_data_sync(&[Ino(ino)], now).unwrap() {
                    finish(&mut v, now);
                    durable.insert(ino, live[&ino].clone());
                }
            }
            Op::Snapshot => {
                finish(&mut v, now);
                let c = v.last_log().cno;
                if past.contains_key(&c) && !snapshots.contains(&c) {
                    v.make_snapshot(Cno(c)).unwrap();
                    snapshots.push(c);
                    let c = v.checkpoint(now).unwrap();
                    past.insert(c.0, live.clone());
                    durable = live.clone();
                }
            }
            Op::Unsnapshot { nth } => {
                finish(&mut v, now);
                if !snapshots.is_empty() {
                    let c = snapshots.remove(nth % snapshots.len());
                    v.unmake_snapshot(Cno(c)).unwrap();
                    let c = v.checkpoint(now).unwrap();
                    past.insert(c.0, live.clone());
                    durable = live.clone();
                }
            }
            Op::DeleteCheckpoints => {
                finish(&mut v, now);
                let last = v.last_log().cno;
                let (start, end) = (last / 3, last / 2);
                v.delete_checkpoints(start..end).unwrap();
                past.retain(|c, _| *c < start.max(1) || *c >= end || snapshots.contains(c));
                let had = v.has_changes();
                let c = v.checkpoint(now).unwrap();
                if had {
                    past.insert(c.0, live.clone());
                    durable = live.clone();
                }
            }
            Op::Crash => {
                finish(&mut v, now);
                drop(v);
                judge(&device);
                v = open(&device);
                live = durable.clone();
            }
            Op::Remount => {
                finish(&mut v, now);
                v.close(now).unwrap();
                drop(v);
                judge(&device);
                v = open(&device);
                durable = live.clone();
            }
        }
        compare(&mut v, Tree::Live, &live);
    }
    finish(&mut v, now);
    for (c, files) in &past {
        v.open_view(Cno(*c)).unwrap();
        compare(&mut v, Tree::Past(*c), files);
        v.close_view(Cno(*c));
    }
    assert_eq!(v.snapshots().unwrap().iter().map(|c| c.0).collect::<Vec<_>>(), {
        let mut s = snapshots.clone();
        s.sort_unstable();
        s
    });
    v.close(now).unwrap();
    drop(v);
    judge(&device);
    let mut v = open(&device);
    compare(&mut v, Tree::Live, &live);
    for (c, files) in &past {
        v.open_view(Cno(*c)).unwrap();
        compare(&mut v, Tree::Past(*c), files);
    }
}

/// 40 cases unless `PROPTEST_CASES` asks for a longer campaign.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(40);
    ProptestConfig { cases, max_shrink_iters: 400, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn random_use_with_4k_blocks(ops in prop::collection::vec(op(), 1..80)) {
        run(&ops, 4096, 16);
    }

    #[test]
    fn random_use_with_1k_blocks(ops in prop::collection::vec(op(), 1..80)) {
        run(&ops, 1024, 16);
    }

    #[test]
    fn random_use_with_large_segments(ops in prop::collection::vec(op(), 1..80)) {
        run(&ops, 1024, 256);
    }
}

#[test]
fn growing_gives_segments_that_can_be_used() {
    for bs in [1024, 4096] {
        let small = u64::from(bs) * 16 * 40;
        let device = fresh(bs, 16, small);
        device.grow(small * 3);
        let mut v = open(&device);
        let before = v.stat().unwrap();
        let gained = v.grow(None, 2500).unwrap();
        let after = v.stat().unwrap();
        assert!(gained >= 79, "{gained}");
        assert_eq!(after.segments, before.segments + gained);
        assert!(after.clean_segments > before.clean_segments + gained - 4);
        let ino = v.create_inode(attr()).unwrap();
        for k in 0..16 * 40 {
            v.write_block(ino, k, vec![k as u8; bs as usize].into()).unwrap();
            if k % 100 == 0 {
                v.checkpoint(2600).unwrap();
            }
        }
        v.close(3000).unwrap();
        judge(&device);
        let mut v = open(&device);
        let b = v.read_block(Tree::Live, ino, 639).unwrap().unwrap();
        assert_eq!(b[0], 639u16 as u8);
    }
}

#[test]
fn settings_change_in_both_copies() {
    let device = fresh(4096, 16, 8 << 20);
    let change = silt_engine::Tune {
        label: Some(b"new".to_vec()),
        uuid: Some([9; 16]),
        interval: Some(7),
        ..silt_engine::Tune::default()
    };
    silt_engine::tune(&*device, &change).unwrap();
    for offset in [1024, silt_format::super_block::secondary_offset(8 << 20)] {
        let mut bytes = [0; 1024];
        device.read_at(offset, &mut bytes).unwrap();
        let s = silt_format::super_block::SuperBlock::parse(&bytes).unwrap();
        assert_eq!((s.label(), s.uuid, s.c_interval.get()), (&b"new"[..], [9; 16], 7));
    }
    judge(&device);
}

/// What lies before the checkpoint that a super block points at is no part of a recovery: it points at a new one every ten
/// seconds, wherever the log is.
#[test]
fn a_super_block_follows_the_log_within_a_segment() {
    let size = 80 << 20;
    let device = fresh(4096, 1024, size);
    let mut v = open(&device);
    let ino = v.create_inode(attr()).unwrap();
    let first = v.last_log();
    let mut now = 3000;
    let mut pointed = 0;
    for key in 0..40 {
        now += 1;
        v.write_block(ino, key, vec![1; 4096].into()).unwrap();
        v.checkpoint(now).unwrap();
        if let Some(write) = v.due_super_write(now) {
            write.write(&*device).unwrap();
            pointed += 1;
            assert!(v.due_super_write(now + 100).is_none(), "it points at the newest already");
        }
    }
    assert_eq!((v.last_log().seq, pointed), (first.seq, 4));
    // As after a power cut, with the first checkpoints damaged.
    let cut = Arc::new(device.fork());
    cut.write_at((first.pseg + 20) << 12, &[&[0xEE; 4096]]).unwrap();
    let (again, _) = Volume::open(cut, &OpenOptions::default()).unwrap();
    assert_eq!(again.last_log().cno, v.last_log().cno);
}

/// A write of a super block that the log writer holds when settings change must not bring the old
/// ones back.
#[test]
fn settings_are_not_undone_by_a_write_on_its_way() {
    let size = 8 << 20;
    let device = fresh(4096, 16, size);
    let mut v = open(&device);
    let ino = v.create_inode(attr()).unwrap();
    let mut now = 3000;
    let on_its_way = loop {
        now += 20;
        for key in 0..10 {
            v.write_block(ino, key, vec![1; 4096].into()).unwrap();
        }
        v.checkpoint(now).unwrap();
        if let Some(write) = v.due_super_write(now) {
            break write;
        }
    };
    v.tune(&silt_engine::Tune { label: Some(b"new".to_vec()), ..Default::default() }).unwrap();
    on_its_way.write(&*device).unwrap();
    let cursors: Vec<u64> = [1024, silt_format::super_block::secondary_offset(size)]
        .into_iter()
        .map(|offset| {
            let mut bytes = [0; 1024];
            device.read_at(offset, &mut bytes).unwrap();
            let s = silt_format::super_block::SuperBlock::parse(&bytes).unwrap();
            assert_eq!(s.label(), b"new", "at {offset}");
            s.last_cno.get()
        })
        .collect();
    assert!(cursors.contains(&v.last_log().cno), "{cursors:?}: what was on its way is there, too");
}

#[test]
fn a_failed_change_of_settings_leaves_them_as_they_were() {
    let device = fresh(4096, 16, 8 << 20);
    let device = Arc::new(silt_device::Fault::new(device.fork()));
    let options = OpenOptions { now: 2000, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone() as Arc<dyn Device>, &options).unwrap();
    v.take_over(2000).unwrap();
    let tune = silt_engine::Tune { label: Some(b"new".to_vec()), ..Default::default() };
    device.fail_writes(0..2048, silt_device::Times::Next(1));
    assert!(v.tune(&tune).is_err());
    assert_eq!(v.super_block().label(), b"test");
    v.tune(&tune).unwrap();
    assert_eq!(v.super_block().label(), b"new");
}

/// Numbers given out and not yet in a checkpoint are passed over at once.
#[test]
fn the_next_inode_number_is_found_at_once_among_many_pending_ones() {
    let device = fresh(4096, 2048, 1 << 30);
    let mut v = open(&device);
    let rounds = |v: &mut Volume, all: &[Ino]| {
        let started = std::time::Instant::now();
        for n in 0..2000 {
            v.delete_inode(all[n % 2]).unwrap();
            assert_eq!(v.create_inode(attr()).unwrap(), all[n % 2]);
            // A number behind all that are pending.
            let last = v.create_inode(attr()).unwrap();
            assert!(last > all[all.len() - 1]);
            v.delete_inode(last).unwrap();
        }
        started.elapsed()
    };
    let mut all: Vec<Ino> = (0..10).map(|_| v.create_inode(attr()).unwrap()).collect();
    let few = rounds(&mut v, &all);
    all.extend((0..40_000).map(|_| v.create_inode(attr()).unwrap()));
    let many = rounds(&mut v, &all);
    println!("{:?} with few, {:?} with many", few / 2000, many / 2000);
    assert!(many < 20 * few + std::time::Duration::from_millis(50), "{few:?}, {many:?}");
    v.close(3000).unwrap();
    judge(&device);
}

#[test]
fn either_super_block_may_be_torn() {
    let size = 8 << 20;
    for offset in [1024, silt_format::super_block::secondary_offset(size)] {
        let device = fresh(4096, 16, size);
        let mut v = open(&device);
        let ino = v.create_inode(attr()).unwrap();
        v.write_block(ino, 0, vec![1; 4096].into()).unwrap();
        v.close(2500).unwrap();
        drop(v);
        device.write_at(offset + 100, &[&[0xff; 50]]).unwrap();
        let (mut v, report) =
            Volume::open(device.clone() as Arc<dyn Device>, &OpenOptions::default()).unwrap();
        assert!(report.torn_super_block.is_some());
        assert!(v.read_block(Tree::Live, ino, 0).unwrap().is_some());
        v.take_over(3000).unwrap();
        v.close(3000).unwrap();
        judge(&device);
    }
}

/// One damaged entry in the table of addresses costs at most its own block, not what is written
/// anew elsewhere in the file, and not even what is written in its place.
#[test]
fn new_data_is_written_where_the_old_blocks_entries_are_damaged() {
    let device = fresh(4096, 64, 64 << 20);
    let mut v = open(&device);
    let (other, ino) = (v.create_inode(attr()).unwrap(), v.create_inode(attr()).unwrap());
    let filler = |v: &mut Volume, from: u64| {
        for key in from..from + 300 {
            v.write_block(other, key, vec![7; 4096].into()).unwrap();
        }
        v.checkpoint(2400).unwrap();
    };
    filler(&mut v, 0);
    for key in 0..40 {
        v.write_block(ino, key, vec![1; 4096].into()).unwrap();
    }
    // The newest logs do not hold the entries, so that their checksums stay right.
    (1..5).for_each(|n| filler(&mut v, 300 * n));
    v.close(2500).unwrap();
    // Live entries of the file's blocks: place, first checkpoint, no end. The eighth ends too early.
    let mut image = vec![0; 64 << 20];
    device.read_at(0, &mut image).unwrap();
    let entries: Vec<usize> = (0..image.len() / 32)
        .map(|i| i * 32)
        .filter(|at| {
            let word = |n: usize| u64::from_le_bytes(image[at + n..at + n + 8].try_into().unwrap());
            let at = (word(0) as usize).wrapping_mul(4096);
            (1..1 << 14).contains(&word(0))
                && (1..9).contains(&word(8))
                && word(16) == u64::MAX
                && word(24) == 0
                && image[at..at + 4096] == [1; 4096]
        })
        .collect();
    // Every copy of the block that holds them.
    for copy in entries.chunk_by(|a, b| a / 4096 == b / 4096) {
        assert!(copy.len() > 7, "{}", copy.len());
        device.write_at(copy[7] as u64 + 16, &[&1u64.to_le_bytes()]).unwrap();
    }
    assert!(!entries.is_empty());
    let mut v = open(&device);
    // Part is overwritten, part cut away.
    for key in 0..20 {
        v.write_block(ino, key, vec![2; 4096].into()).unwrap();
    }
    v.checkpoint(3000).unwrap();
    assert!(v.take_inode_error(ino).is_some());
    v.close(3001).unwrap();
    let mut v = open(&device);
    let mut spoiled = 0;
    for key in 0..40 {
        match v.read_block(Tree::Live, ino, key) {
            Ok(b) => assert_eq!(b.unwrap()[0], if key < 20 { 2 } else { 1 }, "block {key}"),
            // One that was spoiled and is still in use.
            Err(e) => {
                assert!(key >= 20 && e.to_string().contains("lives from"), "block {key}: {e}");
                spoiled += 1;
            }
        }
    }
    assert!(spoiled < 3, "{spoiled}");
}

#[test]
fn a_large_cut_is_made_in_steps() {
    let device = fresh(1024, 2048, 256 << 20);
    let mut v = open(&device);
    let ino = v.create_inode(attr()).unwrap();
    for key in 0..5000 {
        v.write_block(ino, key * 3, vec![1; 1024].into()).unwrap();
    }
    v.checkpoint(2500).unwrap();
    v.cut(ino, 30..u64::MAX).unwrap();
    v.write_block(ino, 9000, vec![2; 1024].into()).unwrap();
    assert!(v.begin_checkpoint(2600).unwrap());
    let mut steps = 0;
    loop {
        match v.step(100).unwrap() {
            silt_engine::Step::Write(mut log) => {
                log.seal();
                log.write(&*device).unwrap();
                v.log_written();
            }
            silt_engine::Step::Done(_) => break,
            _ => steps += 1,
        }
    }
    assert!(steps >= 40, "{steps}");
    let mut keys = Vec::new();
    v.for_each_data(Tree::Live, ino, 0, |k| {
        keys.push(k);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(keys, (0..10).map(|k| k * 3).chain([9000]).collect::<Vec<_>>());
    v.close(3000).unwrap();
    judge(&device);
}

/// Whoever syncs hears of content that a checkpoint could not take, also when the inode was not needed for long.
#[test]
fn content_that_is_not_taken_is_told() {
    let device = fresh(4096, 64, 64 << 20);
    let mut v = open(&device);
    let ino = v.create_inode(attr()).unwrap();
    for key in 0..600 {
        v.write_block(ino, key, vec![1; 4096].into()).unwrap();
    }
    v.checkpoint(2400).unwrap();
    // The newest logs do not hold the map, so that their checksums stay right.
    let other = v.create_inode(attr()).unwrap();
    for key in 0..4 {
        v.write_block(other, key, vec![1; 4096].into()).unwrap();
        v.checkpoint(2401 + key).unwrap();
    }
    v.close(2500).unwrap();
    // Nodes of its map: keys that follow one another.
    let mut image = vec![0; 64 << 20];
    device.read_at(0, &mut image).unwrap();
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let is_node =
        |at: usize| image[at + 1] == 1 && (1..60).all(|n| word(at + 16 + 8 * n) == word(at + 16) + n as u64);
    let nodes: Vec<usize> = (1..image.len() / 4096).map(|n| n * 4096).filter(|at| is_node(*at)).collect();
    assert!(!nodes.is_empty());
    let options = OpenOptions { cached_inodes: 4, cache_bytes: 0, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    v.write_block(ino, 5, vec![2; 4096].into()).unwrap();
    for at in nodes {
        device.write_at(at as u64, &[&[0x5a; 4096]]).unwrap();
    }
    v.checkpoint(3000).unwrap();
    assert!(v.take_lost_content() && !v.take_lost_content());
    assert_eq!(v.take_damage().len(), 1);
    // What else is read and written meanwhile does not have it forgotten, nor told again.
    for n in 0..64 {
        let other = v.create_inode(attr()).unwrap();
        v.write_block(other, 0, vec![3; 4096].into()).unwrap();
        v.checkpoint(3001 + n).unwrap();
    }
    assert!(!v.take_lost_content() && v.take_damage().is_empty());
    assert!(v.take_inode_error(ino).is_some() && v.take_inode_error(ino).is_none());
}

/// What lies behind the limit would count as available.
#[test]
fn a_volume_does_not_grow_while_it_is_made_smaller() {
    let device = fresh(4096, 16, 8 << 20);
    let mut v = open(&device);
    v.confine(Some(50)).unwrap();
    let before = v.available_segments();
    device.grow(16 << 20);
    assert!(matches!(v.grow(None, 3000), Err(silt_engine::Error::Invalid(_))));
    assert_eq!(v.available_segments(), before);
    v.confine(None).unwrap();
    assert!(v.grow(None, 3000).unwrap() > 90);
}

/// However many past trees are looked into, what is known of them is bounded together.
#[test]
fn past_trees_share_what_may_be_known_of_them() {
    const FILES: usize = 300;
    let device = fresh(4096, 16, 16 << 20);
    let mut v = open(&device);
    let files: Vec<Ino> = (0..FILES).map(|_| v.create_inode(attr()).unwrap()).collect();
    let mut views = Vec::new();
    for n in 0..6 {
        v.attr_mut(files[0]).unwrap().uid = n;
        v.checkpoint(2000 + u64::from(n)).unwrap();
        views.push(Cno(v.last_log().cno));
    }
    v.close(3000).unwrap();
    let options = OpenOptions { cached_inodes: 800, ..OpenOptions::default() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    for c in &views {
        v.open_view(*c).unwrap();
    }
    let mut known = |c: usize, files: &[Ino]| {
        for ino in files {
            let uid = v.inode(Tree::Past(views[c].0), *ino).unwrap().attr.uid;
            assert!(*ino != files[0] || files.len() < FILES || uid == u32::try_from(c).unwrap());
        }
        v.viewed_inodes()
    };
    for c in 0..6 {
        assert!(known(c, &files) <= 200 + 6 * 64);
    }
    // Those that are in use are kept, and all find their way back.
    let few = &files[1..41];
    for c in (0..6).chain(0..6) {
        assert!((40..=200 + 6 * 64).contains(&known(c, few)));
        assert!(known(0, &files) <= 200 + 6 * 64);
    }
}
