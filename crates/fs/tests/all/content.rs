//! What single requests do to the content of files, on every block size.

use crate::common::{PLAIN, ROOT, SIZES, content, file, fresh, root_at, set, stat, t, user};
use silt_engine::{writable, zeroed};
use silt_fs::{Context, Fs, FsError, Seek, SetAttr, Sought, Source, Tree, WriteFlags, fallocate_mode};

#[test]
fn writes_land_where_they_should() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        let f = file(&mut fs, "f");
        let bs = u64::from(bs);
        let mut plain: Vec<u8> = Vec::new();
        let ranges =
            [(0, 10), (bs - 3, 6), (3 * bs, bs), (bs / 2, 4 * bs), (10 * bs + 1, 1), (7, 3 * bs - 7)];
        for (i, (offset, len)) in ranges.into_iter().enumerate() {
            let data: Vec<u8> =
                (0..len).map(|n| (n as u8).wrapping_mul(7).wrapping_add(i as u8 + 1)).collect();
            assert_eq!(fs.write(&root_at(20), f, offset, &data, PLAIN).unwrap() as u64, len);
            let end = (offset + len) as usize;
            if plain.len() < end {
                plain.resize(end, 0);
            }
            plain[offset as usize..end].copy_from_slice(&data);
            assert_eq!(content(&mut fs, f), plain);
            if i % 2 == 0 {
                fs.sync_all(30 + i as u64).unwrap();
                assert_eq!(content(&mut fs, f), plain);
            }
        }
        assert_eq!(stat(&mut fs, "f").mtime, t(20));
        let part = fs.read(Tree::Live, f, bs - 1, 2 * bs as usize).unwrap();
        assert_eq!(part, &plain[bs as usize - 1..3 * bs as usize - 1]);
        assert!(fs.read(Tree::Live, f, 1 << 62, 10).unwrap().is_empty());
        assert_eq!(fs.write(&root_at(20), f, 5, b"", PLAIN).unwrap(), 0);
        assert_eq!(fs.write(&root_at(20), ROOT, 5, b"x", PLAIN).unwrap_err(), FsError::IsDir);
        let end = i64::MAX as u64;
        assert_eq!(fs.write(&root_at(20), f, end - 1, b"xy", PLAIN).unwrap_err(), FsError::FileTooBig);
        assert_eq!(fs.write(&root_at(20), f, u64::MAX, b"xy", PLAIN).unwrap_err(), FsError::FileTooBig);
        assert_eq!(stat(&mut fs, "f").size, 10 * bs + 2);
        fs.write(&root_at(20), f, end - 2, b"xy", PLAIN).unwrap();
        fs.sync_all(90).unwrap();
        assert_eq!(fs.read(Tree::Live, f, end - 3, 100).unwrap(), b"\0xy");
        assert_eq!(fs.seek(Tree::Live, f, 11 * bs, Seek::Data).unwrap(), end / bs * bs);
    }
}

/// One large write through a handle that appends comes in parts, which may change places. Append-only files take them
/// all, each once.
#[test]
fn parts_of_an_append_land_where_they_belong() {
    const APPEND_ONLY: u32 = 0x20;
    for (bs, only) in SIZES.into_iter().flat_map(|bs| [(bs, false), (bs, true)]) {
        let mut fs = fresh(bs);
        let f = file(&mut fs, "f");
        let append = WriteFlags { append: true, ..PLAIN };
        fs.write(&root_at(20), f, 0, b"begin", append).unwrap();
        fs.set_flags(&root_at(20), f, if only { APPEND_ONLY } else { 0 }).unwrap();
        for (at, byte) in [(3, b'd'), (1, b'b'), (2, b'c'), (0, b'a')] {
            let (part, at) = (vec![byte; bs as usize], 5 + at * u64::from(bs));
            fs.write(&root_at(20), f, at, &part, append).unwrap();
            for at in [at - 1, at, at + 1].into_iter().filter(|_| only) {
                assert_eq!(fs.write(&root_at(20), f, at, &part, append), Err(FsError::NotPermitted));
            }
        }
        let parts = b"abcd".iter().flat_map(|b| vec![*b; bs as usize]);
        assert!(content(&mut fs, f) == b"begin".iter().copied().chain(parts).collect::<Vec<_>>());
    }
}

/// Whoever changes content takes set-id bits away, unless he could set them; punching is no exception.
#[test]
fn set_id_bits_go_with_every_change_of_content() {
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    let (user, root) = (user(7, 7, &[]), root_at(30));
    let modes = [0, KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE];
    for (before, after) in [(0o6755, 0o755), (0o4700, 0o700), (0o2755, 0o755), (0o2745, 0o2745)] {
        let changed = |fs: &mut Fs, change: &mut dyn FnMut(&mut Fs)| {
            set(fs, &root_at(20), f, SetAttr { mode: Some(before), ..SetAttr::default() }).unwrap();
            assert_eq!(fs.is_set_id(f), before != after);
            change(fs);
            stat(fs, "f").mode & 0o7777
        };
        for mode in modes {
            let by = |fs: &mut Fs, ctx: &Context| fs.fallocate(ctx, f, mode, 100, 9000).unwrap();
            assert_eq!(changed(&mut fs, &mut |fs| by(fs, &user)), after, "mode {mode}");
            assert_eq!(changed(&mut fs, &mut |fs| by(fs, &root)), before, "mode {mode}");
        }
        let kill = WriteFlags { kill_suidgid: true, ..PLAIN };
        for (flags, left) in [(kill, after), (PLAIN, before)] {
            let mut write = |fs: &mut Fs| assert_eq!(fs.write(&user, f, 0, b"x", flags), Ok(1));
            assert_eq!(changed(&mut fs, &mut write), left);
        }
        let mut refused = |fs: &mut Fs| assert!(fs.fallocate(&user, f, 0, 0, 1 << 50).is_err());
        assert_eq!(changed(&mut fs, &mut refused), before);
    }
}

/// Also where nothing new is reserved, and the size stays.
#[test]
fn reserving_counts_as_a_modification() {
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    fs.write(&root_at(20), f, 0, &[1; 9000], PLAIN).unwrap();
    for (n, mode) in (30..).zip([0, KEEP_SIZE, ZERO_RANGE, PUNCH_HOLE | KEEP_SIZE, 0, KEEP_SIZE]) {
        fs.fallocate(&root_at(n), f, mode, 0, 4096).unwrap();
        let s = stat(&mut fs, "f");
        assert_eq!((s.mtime, s.ctime, s.size), (t(n), t(n), 9000), "mode {mode}");
    }
}

#[test]
fn plans_join_what_lies_together() {
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    fs.write(&root_at(20), f, 0, &[1; 5 * 4096], PLAIN).unwrap();
    fs.sync_all(30).unwrap();
    fs.write(&root_at(20), f, 8 * 4096, &[2; 4096], PLAIN).unwrap();
    let plan = fs.read_plan(Tree::Live, f, 100, 1 << 20).unwrap();
    let forms: Vec<_> = plan
        .iter()
        .map(|p| match &p.source {
            Source::Device(_) => ('d', p.len),
            Source::Zeroes => ('z', p.len),
            Source::Memory(_, r) => ('m', r.len()),
        })
        .collect();
    assert_eq!(forms, [('d', 5 * 4096 - 100), ('z', 3 * 4096), ('m', 4096)]);
}

#[test]
fn what_was_cut_off_never_comes_back() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        let f = file(&mut fs, "f");
        let c = root_at(20);
        let bs = u64::from(bs);
        let size = |n| SetAttr { size: Some(n), ..SetAttr::default() };
        fs.write(&c, f, 0, &vec![0xaa; 3 * bs as usize], PLAIN).unwrap();
        fs.sync_all(30).unwrap();
        set(&mut fs, &c, f, size(bs + 10)).unwrap();
        assert_eq!(stat(&mut fs, "f").blocks, 2 * bs / 512);
        set(&mut fs, &c, f, size(3 * bs)).unwrap();
        let mut expected = vec![0; 3 * bs as usize];
        expected[..bs as usize + 10].fill(0xaa);
        assert_eq!(content(&mut fs, f), expected);
        fs.sync_all(40).unwrap();
        assert_eq!(content(&mut fs, f), expected);
        set(&mut fs, &c, f, size(0)).unwrap();
        fs.sync_all(50).unwrap();
        assert_eq!((stat(&mut fs, "f").blocks, stat(&mut fs, "f").size), (0, 0));
    }
}

/// What a block count says of waiting data it says exactly, or says that it does not.
#[test]
fn block_counts_that_are_estimates_say_so() {
    let mut fs = fresh(4096);
    let c = root_at(20);
    let (small, large) = (file(&mut fs, "small"), file(&mut fs, "large"));
    for (f, blocks) in [(small, 6), (large, 7)] {
        fs.write(&c, f, 0, &vec![0xaa; blocks * 4096], PLAIN).unwrap();
    }
    let of = |fs: &mut Fs, name| (stat(fs, name).blocks, stat(fs, name).counted);
    assert_eq!((of(&mut fs, "small"), of(&mut fs, "large")), ((6 * 8, true), (7 * 8, false)));
    fs.sync_all(30).unwrap();
    assert_eq!((of(&mut fs, "small"), of(&mut fs, "large")), ((6 * 8, true), (8 * 8, true)));
    set(&mut fs, &c, large, SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    let cut = of(&mut fs, "large");
    fs.sync_all(40).unwrap();
    assert!(!cut.1 || cut == of(&mut fs, "large"), "{cut:?}");
}

/// Somebody else may leave bytes behind the end of a file.
#[test]
fn bytes_behind_the_end_never_show() {
    for bs in SIZES {
        for how in 0..5 {
            let mut fs = fresh(bs);
            let f = file(&mut fs, "f");
            let c = root_at(20);
            let bs = u64::from(bs);
            fs.write(&c, f, 0, &[1; 100], PLAIN).unwrap();
            let mut block = zeroed(bs as usize);
            writable(&mut block).fill(0xee);
            writable(&mut block)[..100].fill(1);
            fs.volume_mut().write_block(f, 0, block).unwrap();
            fs.sync_all(30).unwrap();
            let mut expected = vec![1; 100];
            match how {
                0 => {
                    set(&mut fs, &c, f, SetAttr { size: Some(2 * bs), ..SetAttr::default() }).unwrap();
                    expected.resize(2 * bs as usize, 0);
                }
                1 => {
                    fs.write(&c, f, 200, &[2; 10], PLAIN).unwrap();
                    expected.resize(200, 0);
                    expected.resize(210, 2);
                }
                2 => {
                    fs.write(&c, f, bs + 5, &[2; 10], PLAIN).unwrap();
                    expected.resize(bs as usize + 5, 0);
                    expected.resize(bs as usize + 15, 2);
                }
                3 => {
                    fs.fallocate(&c, f, 0, 10, bs).unwrap();
                    expected.resize(bs as usize + 10, 0);
                }
                _ => {
                    fs.write(&c, f, 99, &[2; 3], PLAIN).unwrap();
                    set(&mut fs, &c, f, SetAttr { size: Some(bs), ..SetAttr::default() }).unwrap();
                    expected.truncate(99);
                    expected.resize(102, 2);
                    expected.resize(bs as usize, 0);
                }
            }
            assert_eq!(content(&mut fs, f), expected, "how {how}");
            fs.sync_all(40).unwrap();
            assert_eq!(content(&mut fs, f), expected, "how {how}");
        }
    }
}

#[test]
fn holes_are_punched_and_found() {
    let punch = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
    for bs in SIZES {
        let mut fs = fresh(bs);
        let f = file(&mut fs, "f");
        let c = root_at(20);
        let bs = u64::from(bs);
        let seek = |fs: &mut Fs, at, what| fs.seek(Tree::Live, f, at, what);
        fs.write(&c, f, 0, &vec![9; 6 * bs as usize - 5], PLAIN).unwrap();
        fs.sync_all(30).unwrap();
        fs.fallocate(&root_at(33), f, punch, bs / 2, 3 * bs).unwrap();
        let mut expected = vec![9; 6 * bs as usize - 5];
        expected[bs as usize / 2..3 * bs as usize + bs as usize / 2].fill(0);
        assert_eq!(content(&mut fs, f), expected);
        let s = stat(&mut fs, "f");
        assert_eq!((s.blocks, s.mtime, s.ctime, s.size), (4 * bs / 512, t(33), t(33), 6 * bs - 5));
        assert_eq!(seek(&mut fs, 0, Seek::Data).unwrap(), 0);
        assert_eq!(seek(&mut fs, 5, Seek::Hole).unwrap(), bs);
        assert_eq!(seek(&mut fs, bs + 7, Seek::Hole).unwrap(), bs + 7);
        assert_eq!(seek(&mut fs, bs + 7, Seek::Data).unwrap(), 3 * bs);
        assert_eq!(seek(&mut fs, 4 * bs, Seek::Hole).unwrap(), 6 * bs - 5);
        assert_eq!(seek(&mut fs, 6 * bs - 5, Seek::Hole).unwrap_err(), FsError::NoData);
        // The last block goes whole, though the range ends within it.
        fs.fallocate(&c, f, punch, 5 * bs, bs - 5).unwrap();
        assert_eq!(stat(&mut fs, "f").blocks, 3 * bs / 512);
        expected[5 * bs as usize..].fill(0);
        assert_eq!(content(&mut fs, f), expected);
        assert_eq!(seek(&mut fs, 5 * bs, Seek::Data).unwrap_err(), FsError::NoData);
        fs.fallocate(&c, f, punch, 4 * bs + 1, 1).unwrap();
        expected[4 * bs as usize + 1] = 0;
        // Zeroing grows the file unless told not to; punching never does.
        fs.fallocate(&c, f, punch, 5 * bs, 100 * bs).unwrap();
        fs.fallocate(&c, f, fallocate_mode::ZERO_RANGE | fallocate_mode::KEEP_SIZE, 5 * bs, 100 * bs)
            .unwrap();
        assert_eq!(content(&mut fs, f), expected);
        fs.fallocate(&c, f, fallocate_mode::ZERO_RANGE, 10, 7 * bs).unwrap();
        expected.resize(7 * bs as usize + 10, 0);
        expected[10..].fill(0);
        assert_eq!(content(&mut fs, f), expected);
        fs.sync_all(50).unwrap();
        assert_eq!(content(&mut fs, f), expected);
        for (mode, error) in
            [(2, FsError::NotSupported), (8, FsError::NotSupported), (0x20, FsError::NotSupported)]
        {
            assert_eq!(fs.fallocate(&c, f, mode, 0, 1).unwrap_err(), error);
        }
        assert_eq!(fs.fallocate(&c, f, 0, 0, 0).unwrap_err(), FsError::Invalid);
        assert_eq!(fs.fallocate(&c, f, 0, 1 << 62, 1 << 62).unwrap_err(), FsError::FileTooBig);
        assert_eq!(fs.fallocate(&c, ROOT, 0, 0, 1).unwrap_err(), FsError::IsDir);
    }
}

/// Of a large file without holes the map takes long to read.
#[test]
fn holes_are_looked_for_some_blocks_at_a_time() {
    let mut fs = fresh(1024);
    let c = root_at(1);
    let ino = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&c, ino, 0, &vec![1; 3000 << 10], PLAIN).unwrap();
    fs.write(&c, ino, 4000 << 10, &[1; 1024], PLAIN).unwrap();
    fs.sync_all(2).unwrap();
    let (mut from, mut steps) = (500, 0);
    let found = loop {
        match fs.seek_within(Tree::Live, ino, from, Seek::Hole, 100).unwrap() {
            Sought::At(found) => break found,
            Sought::More(on) => from = on,
        }
        steps += 1;
    };
    assert_eq!((found, steps), (3000 << 10, 30));
    assert_eq!(found, fs.seek(Tree::Live, ino, 500, Seek::Hole).unwrap());
    assert_eq!(fs.seek_within(Tree::Live, ino, found, Seek::Data, 1).unwrap(), Sought::At(4000 << 10));
}
