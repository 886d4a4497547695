//! Directories: large ones, listings under change, damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Form, SIZES, device, fresh, names, open, root_at, stat};
use proptest::prelude::*;
use silt_device::{Fault, MemoryDevice, Times};
use silt_engine::{Piece, writable};
use silt_fs::{Fs, FsError, Ino, Options, Tree};

const ROOT: Ino = Ino::ROOT;

fn name(i: u32) -> Vec<u8> {
    let mut name = format!("file-{i}-").into_bytes();
    name.resize(name.len() + (i as usize * 7) % 60, b'x');
    name
}

fn fill(fs: &mut Fs, dir: Ino, numbers: impl Iterator<Item = u32>) {
    for i in numbers {
        fs.create(&root_at(10), dir, &name(i), 0o644).unwrap();
    }
}

/// Everything in a directory, by lookup of each listed name.
fn listed(fs: &mut Fs, dir: Ino) -> BTreeSet<Vec<u8>> {
    let all = names(fs, Tree::Live, dir);
    let set: BTreeSet<_> = all.iter().filter(|n| *n != b"." && *n != b"..").cloned().collect();
    assert_eq!(set.len() + 2, all.len(), "every entry once");
    for n in &set {
        fs.lookup(Tree::Live, dir, n).unwrap();
    }
    set
}

#[test]
fn room_is_used_again() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        fill(&mut fs, ROOT, 0..3000);
        let size = stat(&mut fs, "/").size;
        for round in 0..5 {
            for i in (round..3000).step_by(5) {
                fs.unlink(&root_at(20), ROOT, &name(i)).unwrap();
            }
            fill(&mut fs, ROOT, (round..3000).step_by(5).rev());
            // Names of other lengths may not fit exactly.
            assert!(stat(&mut fs, "/").size <= size + size / 20 + u64::from(bs), "round {round}");
        }
        let expected: BTreeSet<_> = (0..3000).map(name).collect();
        assert_eq!(listed(&mut fs, ROOT), expected);
        // What was sound in memory is sound on disk.
        fs.sync_all(30).unwrap();
        let device = fs.volume().device().clone();
        drop(fs);
        let mut fs = open(device, &Options::default());
        assert_eq!(listed(&mut fs, ROOT), expected);
    }
}

/// A directory gives back what its names took, in whatever order they go, with an index and without; a listing goes on from
/// where it was.
#[test]
fn names_that_are_gone_take_no_space() {
    for bs in SIZES {
        let size = u64::from(bs) * 256 * 256;
        let none = Options { index_bytes: 0, ..Options::default() };
        for (options, indexed) in [(Options::default(), true), (none, false)] {
            let mut fs = open(device(Form::new(bs, size)), &options);
            let chunk = u64::from(bs);
            let n = if indexed { 3000 } else { 500 };
            let dir = fs.mkdir(&root_at(10), ROOT, b"d", 0o755).unwrap().ino;
            let all: Vec<u32> = (0..n).collect();
            fill(&mut fs, dir, all.iter().copied());
            fs.sync_all(11).unwrap();
            let blocks = fs.getattr(Tree::Live, dir).unwrap().size / chunk;
            // From the end: one chunk after the other goes.
            for i in (n / 2..n).rev() {
                fs.unlink(&root_at(20), dir, &name(i)).unwrap();
            }
            let half = fs.getattr(Tree::Live, dir).unwrap().size / chunk;
            assert!(half.abs_diff(blocks / 2) <= 1, "{half} of {blocks} chunks of {bs}");
            fill(&mut fs, dir, n / 2..n);
            let again = fs.getattr(Tree::Live, dir).unwrap().size / chunk;
            assert!(again.abs_diff(blocks) <= 1, "{again} of {blocks} chunks of {bs}");
            // From the beginning, as whoever lists it does: it goes with the last ones.
            let mut from = 0;
            let mut removed = BTreeSet::new();
            loop {
                let mut some = Vec::new();
                fs.readdir(Tree::Live, dir, from, false, |e| {
                    some.push(e.name.to_vec());
                    from = e.next;
                    if some.len() < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })
                .unwrap();
                if some.is_empty() {
                    break;
                }
                for name in some.into_iter().filter(|n| *n != b"." && *n != b"..") {
                    fs.unlink(&root_at(30), dir, &name).unwrap();
                    assert!(removed.insert(name));
                }
            }
            assert_eq!(removed.len(), n as usize);
            let stat = fs.getattr(Tree::Live, dir).unwrap();
            if indexed {
                assert_eq!(stat.size, chunk, "one chunk of {bs}");
            } else {
                assert!(
                    stat.size / chunk <= blocks.saturating_sub(60).max(1),
                    "{} of {blocks}",
                    stat.size / chunk
                );
            }
            fs.sync_all(31).unwrap();
            let stat = fs.getattr(Tree::Live, dir).unwrap();
            if indexed {
                assert_eq!(stat.blocks * 512, chunk, "blocks of {bs}");
            }
            // What is made then is found, here and by who comes later.
            fill(&mut fs, dir, 0..40);
            fs.sync_all(40).unwrap();
            let device = fs.volume().device().clone();
            drop(fs);
            let mut fs = open(device, &options);
            let dir = fs.lookup(Tree::Live, ROOT, b"d").unwrap().ino;
            assert_eq!(listed(&mut fs, dir), (0..40).map(name).collect());
        }
    }
}

/// The index must find the same chunk as a plain search from the beginning would.
#[test]
fn room_is_found_as_without_an_index() {
    let mut one = fresh(1024);
    let mut other = fresh(1024);
    let size = u64::from(1024u32) * 256 * 256;
    let mut none = open(device(Form::new(1024, size)), &Options { index_bytes: 0, ..Options::default() });
    let mut x = 7u64;
    for _ in 0..4000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let i = (x >> 33) as u32 % 500;
        for fs in [&mut one, &mut other, &mut none] {
            if fs.lookup(Tree::Live, ROOT, &name(i)).is_ok() {
                fs.unlink(&root_at(20), ROOT, &name(i)).unwrap();
            } else {
                fs.create(&root_at(20), ROOT, &name(i), 0).unwrap();
            }
        }
        // One of them forgets its index all the time.
        if x.is_multiple_of(10) {
            one.volume_mut().close(30).unwrap();
            let device = one.volume().device().clone();
            one = open(device, &Options::default());
        }
    }
    assert_eq!(listed(&mut one, ROOT), listed(&mut other, ROOT));
    assert_eq!(listed(&mut one, ROOT), listed(&mut none, ROOT));
    assert!(one.index_bytes() > 0 && none.index_bytes() < 200);
}

#[test]
fn listings_survive_changes() {
    for options in [Options::default(), Options { index_bytes: 0, ..Options::default() }] {
        let mut fs = open(device(Form::new(1024, 64 << 20)), &options);
        fill(&mut fs, ROOT, 0..600);
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let (mut from, mut step) = (0, 0u32);
        loop {
            let mut n = 0;
            fs.readdir(Tree::Live, ROOT, from, false, |e| {
                *seen.entry(e.name.to_vec()).or_default() += 1;
                assert!(e.next > from);
                from = e.next;
                n += 1;
                if n == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            if n == 0 {
                break;
            }
            // Every third file goes, new ones come, all over the directory.
            let gone = (step * 37 % 200) * 3;
            if fs.lookup(Tree::Live, ROOT, &name(gone)).is_ok() {
                fs.unlink(&root_at(20), ROOT, &name(gone)).unwrap();
                fs.create(&root_at(20), ROOT, format!("n{gone}").as_bytes(), 0).unwrap();
            }
            step += 1;
        }
        assert!(seen.values().all(|n| *n == 1), "nothing twice");
        for i in (0..600).filter(|i| i % 3 != 0) {
            assert!(seen.contains_key(&name(i)), "{i} was there all the time");
        }
        // Any place at all can be asked for.
        for from in [1, 1023, 1024, 5000, 1 << 40, u64::MAX] {
            fs.readdir(Tree::Live, ROOT, from, true, |_| ControlFlow::Continue(())).unwrap();
        }
    }
}

#[test]
fn listings_tell_attributes_and_types() {
    let mut fs = fresh(4096);
    let c = root_at(10);
    let d = fs.mkdir(&c, ROOT, b"d", 0o755).unwrap();
    fs.symlink(&c, d.ino, b"l", b"x").unwrap();
    fs.mknod(&c, d.ino, b"p", 0o010_600, (0, 0)).unwrap();
    let mut all = Vec::new();
    fs.readdir(Tree::Live, d.ino, 0, true, |e| {
        all.push((e.name.to_vec(), e.file_type, e.ino, e.stat.map(|s| s.ino)));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(all[0], (b".".to_vec(), 0o040_000, d.ino, None));
    assert_eq!(all[1], (b"..".to_vec(), 0o040_000, ROOT, None));
    assert_eq!((all[2].1, all[2].3), (0o120_000, Some(all[2].2)));
    assert_eq!((all[3].1, all[3].3), (0o010_000, Some(all[3].2)));
}

#[test]
fn the_past_has_its_own_directories() {
    for options in [Options::default(), Options { index_bytes: 0, ..Options::default() }] {
        let mut fs = open(device(Form::new(1024, 64 << 20)), &options);
        let mut moments = Vec::new();
        for round in 0..5u32 {
            fill(&mut fs, ROOT, round * 100..round * 100 + 100);
            for i in 0..round * 7 {
                let _ = fs.unlink(&root_at(20), ROOT, &name(i * 3));
            }
            moments.push((fs.sync_all(30 + u64::from(round)).unwrap(), listed(&mut fs, ROOT)));
        }
        for (cno, expected) in &moments {
            fs.volume_mut().open_view(silt_format::Cno(*cno)).unwrap();
            let tree = Tree::Past(*cno);
            let mut all: BTreeSet<_> = names(&mut fs, tree, ROOT).into_iter().collect();
            all.remove(&b"."[..]);
            all.remove(&b".."[..]);
            assert_eq!(&all, expected);
            for i in 0..500 {
                assert_eq!(fs.lookup(tree, ROOT, &name(i)).is_ok(), expected.contains(&name(i)));
            }
        }
        assert_eq!(fs.lookup(Tree::Past(999), ROOT, b"x").unwrap_err(), FsError::Stale);
    }
}

/// A file system whose device can be broken, with a directory of several chunks, on disk.
fn breakable(options: &Options) -> (Arc<Fault<Arc<MemoryDevice>>>, Fs, Ino) {
    let inner = device(Form::new(1024, 64 << 20));
    let mut fs = open(inner.clone(), options);
    let d = fs.mkdir(&root_at(5), ROOT, b"d", 0o755).unwrap().ino;
    fill(&mut fs, d, 0..200);
    fs.sync_all(9).unwrap();
    // The newest log is read when a volume is opened: it must be another one.
    fs.create(&root_at(5), ROOT, b"other", 0).unwrap();
    fs.volume_mut().close(9).unwrap();
    let fault = Arc::new(Fault::new(inner));
    let fs = open(fault.clone(), options);
    (fault, fs, d)
}

#[test]
fn a_bad_chunk_costs_what_is_in_it() {
    for options in [Options::default(), Options { index_bytes: 0, ..Options::default() }] {
        for how in 0..3 {
            let (fault, mut fs, d) = breakable(&options);
            let before = listed(&mut fs, d);
            let size = stat(&mut fs, "d").size;
            // Which names are in chunk 3, and how it is broken.
            let mut inside = BTreeSet::new();
            fs.readdir(Tree::Live, d, 3 * 1024, false, |e| {
                if e.next > 4 * 1024 {
                    return ControlFlow::Break(());
                }
                inside.insert(e.name.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            assert!(inside.len() > 5);
            let Piece::Disk(at) = fs.volume_mut().locate(Tree::Live, d, 3).unwrap() else { panic!() };
            fs.volume_mut().close(12).unwrap();
            match how {
                0 => fault.fail_reads(at.0 * 1024..at.0 * 1024 + 1024, Times::Always),
                // The first record length of the chunk, or one in its middle.
                1 => fault.flip_bits(at.0 * 1024 + 8..at.0 * 1024 + 9, 0x7),
                _ => fault.flip_bits(at.0 * 1024 + 600..at.0 * 1024 + 1024, 0xff),
            }
            drop(fs);
            let mut fs = open(fault.clone(), &options);
            for n in &before {
                let found = fs.lookup(Tree::Live, d, n);
                match found {
                    _ if !inside.contains(n) => assert!(found.is_ok()),
                    // What cannot be read, or makes no sense, may hold any name.
                    Err(FsError::Io { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            // All that can be read is listed, then the loss is told.
            let (mut seen, mut from) = (BTreeSet::new(), 0);
            let end = loop {
                let before = from;
                let result = fs.readdir(Tree::Live, d, from, false, |e| {
                    seen.insert(e.name.to_vec());
                    from = e.next;
                    ControlFlow::Continue(())
                });
                if result.is_err() || before == from {
                    break result;
                }
            };
            assert!(end.as_ref().is_err_and(|e| e.errno() == 5), "how {how}: {end:?}");
            assert_eq!(seen.len() - 2, before.difference(&inside).count());
            // Nothing is added to it, everything else works.
            let made = fs.create(&root_at(10), d, b"new", 0);
            assert!(matches!(made, Err(FsError::Io { .. })), "{made:?}");
            if how == 0 {
                fault.heal();
                std::thread::sleep(Duration::from_millis(1100));
                assert_eq!(fs.lookup(Tree::Live, d, b"new").unwrap_err(), FsError::NotFound);
                assert_eq!(listed(&mut fs, d), before, "all is there again");
                continue;
            }
            assert!(stat(&mut fs, "d").size == size);
            let _ = fs.mkdir(&root_at(20), ROOT, b"other", 0);
            assert_eq!(fs.rmdir(&root_at(20), ROOT, b"d").unwrap_err(), FsError::NotEmpty);
            for n in before.difference(&inside) {
                fs.unlink(&root_at(20), d, n).unwrap();
            }
            // What is left cannot be read, and would keep it for ever.
            assert!(fs.rename(&root_at(20), ROOT, b"other", ROOT, b"d", 0).is_err());
            fs.rmdir(&root_at(20), ROOT, b"d").unwrap();
            assert_eq!(fs.lookup(Tree::Live, ROOT, b"d").unwrap_err(), FsError::NotFound);
            fs.sync_all(30).unwrap();
        }
    }
}

/// Nobody makes a directory with holes, but one must not take forever or lose what it holds.
#[test]
fn holes_in_a_directory_are_leapt_over() {
    for options in [Options::default(), Options { index_bytes: 0, ..Options::default() }] {
        let mut fs = open(device(Form::new(1024, 64 << 20)), &options);
        let d = fs.mkdir(&root_at(5), ROOT, b"d", 0o755).unwrap().ino;
        fill(&mut fs, d, 0..100);
        let far = fs.create(&root_at(5), ROOT, b"far", 0).unwrap().ino;
        for (i, key) in [1u64 << 20, 1 << 40, 1 << 41].into_iter().enumerate() {
            let mut chunk = vec![0; 1024];
            silt_format::dir::init_empty(&mut chunk);
            silt_format::dir::insert(&mut chunk, format!("far{i}").as_bytes(), far, 1).unwrap().unwrap();
            fs.volume_mut().write_block(d, key, chunk.into()).unwrap();
        }
        // Up to the last of them and no further.
        fs.volume_mut().attr_mut(d).unwrap().size = 1 << 51;
        fs.volume_mut().attr_mut(far).unwrap().links = 4;
        fs.volume_mut().close(9).unwrap();
        let mut fs = open(fs.volume().device().clone(), &options);
        assert_eq!(listed(&mut fs, d).len(), 102, "what lies behind the size does not count");
        assert_eq!(fs.lookup(Tree::Live, d, b"far1").unwrap().ino, far);
        assert_eq!(fs.lookup(Tree::Live, d, b"far2").unwrap_err(), FsError::NotFound);
        fill(&mut fs, d, 100..200);
        fs.unlink(&root_at(9), d, b"far0").unwrap();
        assert_eq!(listed(&mut fs, d).len(), 201);
    }
}

#[test]
fn a_damaged_inode_can_be_unlinked() {
    let mut fs = fresh(4096);
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    // An entry whose inode is not in use, as damage leaves it.
    fs.volume_mut().delete_inode(f).unwrap();
    let found = fs.lookup(Tree::Live, ROOT, b"f").unwrap_err();
    assert!(matches!(found, FsError::Io { .. }), "{found:?}");
    assert!(matches!(fs.rename(&c, ROOT, b"f", ROOT, b"g", 0), Err(FsError::Io { .. })));
    fs.unlink(&c, ROOT, b"f").unwrap();
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"f").unwrap_err(), FsError::NotFound);
}

#[test]
fn directories_in_a_circle_end_somewhere() {
    let mut fs = fresh(1024);
    let c = root_at(10);
    let a = fs.mkdir(&c, ROOT, b"a", 0o755).unwrap().ino;
    let b = fs.mkdir(&c, a, b"b", 0o755).unwrap().ino;
    let x = fs.mkdir(&c, ROOT, b"x", 0o755).unwrap().ino;
    // a's ".." names b.
    let mut block = fs.volume_mut().read_block(Tree::Live, a, 0).unwrap().unwrap();
    silt_format::dir::replace(writable(&mut block), 16, b, 2).unwrap();
    fs.volume_mut().write_block(a, 0, block).unwrap();
    assert!(matches!(fs.rename(&c, ROOT, b"x", b, b"x", 0), Err(FsError::Io { .. })));
    // An entry that names the root cannot be moved; it can be removed, and nothing else goes with it.
    fs.create(&c, x, b"r", 0o644).unwrap();
    let mut block = fs.volume_mut().read_block(Tree::Live, x, 0).unwrap().unwrap();
    silt_format::dir::replace(writable(&mut block), 32, ROOT, 2).unwrap();
    fs.volume_mut().write_block(x, 0, block).unwrap();
    assert_eq!(fs.rename(&c, x, b"r", x, b"q", 0).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.unlink(&c, x, b"r").unwrap_err(), FsError::IsDir);
    fs.rmdir(&c, x, b"r").unwrap();
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"x").unwrap().ino, x);
}

/// Everything one can do with a directory, results ignored.
fn exercise(fs: &mut Fs, d: Ino) {
    let c = root_at(30);
    let mut all: Vec<Vec<u8>> = Vec::new();
    let _ = fs.readdir(Tree::Live, d, 0, true, |e| {
        all.push(e.name.to_vec());
        if all.len() > 300 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let _ = fs.lookup(Tree::Live, d, b"..");
    all.truncate(40);
    all.extend((0..5).map(name));
    for (i, n) in all.iter().enumerate() {
        let _ = fs.lookup(Tree::Live, d, n);
        let _ = match i % 5 {
            0 => fs.unlink(&c, d, n).map(|_| ()),
            1 => fs.rename(&c, d, n, d, &name(900 + i as u32), 0).map(|_| ()),
            2 => fs.rename(&c, d, n, ROOT, &name(900 + i as u32), 0).map(|_| ()),
            3 => fs.rmdir(&c, d, n).map(|_| ()),
            _ => fs.create(&c, d, n, 0).map(|_| ()),
        };
    }
    for i in 0..30 {
        let _ = fs.create(&c, d, &name(2000 + i), 0);
        let _ = fs.mkdir(&c, d, &name(3000 + i), 0);
    }
    let _ = fs.rename(&c, ROOT, b"d", ROOT, b"e", 0);
    let _ = fs.rmdir(&c, ROOT, b"e");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_in_a_directory_do_harm(
        changes in prop::collection::vec((0u64..8, 0usize..1024, any::<u8>()), 1..60),
        random in prop::collection::vec(any::<u8>(), 1024),
        put_random in any::<bool>(),
        size in prop::option::of(any::<u64>()),
        index in any::<bool>(),
    ) {
        let options = Options { index_bytes: if index { 1 << 20 } else { 0 }, ..Options::default() };
        let mut fs = open(device(Form::new(1024, 16 << 20)), &options);
        let d = fs.mkdir(&root_at(5), ROOT, b"d", 0o755).unwrap().ino;
        fill(&mut fs, d, 0..150);
        for (key, at, value) in changes {
            let Some(mut block) = fs.volume_mut().read_block(Tree::Live, d, key).unwrap() else { continue };
            writable(&mut block)[at] = value;
            fs.volume_mut().write_block(d, key, block).unwrap();
        }
        if put_random {
            fs.volume_mut().write_block(d, 2, random.into()).unwrap();
        }
        if let Some(size) = size {
            fs.volume_mut().attr_mut(d).unwrap().size = size;
        }
        fs.sync_all(9).unwrap();
        let device = fs.volume().device().clone();
        // Fresh eyes: no index of what was there before.
        let mut fs = open(device, &options);
        exercise(&mut fs, d);
        fs.sync_all(40).unwrap();
    }
}
