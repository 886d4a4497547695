//! What single requests do to names and attributes.

use crate::common::{
    Form, PLAIN, ROOT, SIZES, content, device, dir, file, fresh, names, open, root_at, set, stat, t, user,
};
use silt_format::{Cno, Ino};
use silt_fs::{
    Context, Fs, FsError, Options, SetAttr, SetTime, Tree, WriteFlags, fallocate_mode, rename_flags,
};

#[test]
fn names_come_and_go() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        let c = root_at(50);
        let made = fs.create(&c, ROOT, b"a", 0o640).unwrap();
        assert_eq!((made.mode, made.links, made.size, made.mtime), (0o100_640, 1, 0, t(50)));
        assert_eq!(stat(&mut fs, "/").mtime, t(50));
        assert_eq!(fs.lookup(Tree::Live, ROOT, b"a").unwrap(), made);
        assert_eq!(fs.create(&c, ROOT, b"a", 0).unwrap_err(), FsError::Exists);
        assert_eq!(fs.lookup(Tree::Live, ROOT, b"b").unwrap_err(), FsError::NotFound);
        assert_eq!(fs.lookup(Tree::Live, made.ino, b"b").unwrap_err(), FsError::NotDir);
        assert_eq!(fs.create(&c, ROOT, &[b'x'; 256], 0).unwrap_err(), FsError::NameTooLong);
        fs.create(&c, ROOT, &[b'x'; 255], 0).unwrap();
        for bad in [&b"a/b"[..], b"a\0"] {
            assert_eq!(fs.create(&c, ROOT, bad, 0).unwrap_err(), FsError::Invalid);
        }
        for dots in [&b"."[..], b".."] {
            assert_eq!(fs.mkdir(&c, ROOT, dots, 0).unwrap_err(), FsError::Exists);
            assert_eq!(fs.unlink(&c, ROOT, dots).unwrap_err(), FsError::IsDir);
        }
        assert_eq!(fs.unlink(&root_at(60), ROOT, b"a").unwrap(), made.ino);
        assert_eq!(stat(&mut fs, "/").ctime, t(60));
        assert_eq!(fs.getattr(Tree::Live, made.ino).unwrap_err(), FsError::Stale);
        assert_eq!(fs.unlink(&c, ROOT, b"a").unwrap_err(), FsError::NotFound);
    }
}

#[test]
fn directories_count_their_links() {
    let mut fs = fresh(4096);
    let c = root_at(50);
    let a = dir(&mut fs, ROOT, "a");
    let b = dir(&mut fs, a, "b");
    assert_eq!((stat(&mut fs, "/").links, stat(&mut fs, "a").links, stat(&mut fs, "a/b").links), (3, 3, 2));
    assert_eq!(stat(&mut fs, "a/b").size, 4096);
    assert_eq!(fs.lookup(Tree::Live, b, b"..").unwrap().ino, a);
    assert_eq!(fs.rmdir(&c, ROOT, b"a").unwrap_err(), FsError::NotEmpty);
    assert_eq!(fs.unlink(&c, ROOT, b"a").unwrap_err(), FsError::IsDir);
    assert_eq!(fs.rmdir(&c, a, b".").unwrap_err(), FsError::Invalid);
    fs.remember(b);
    fs.rmdir(&root_at(70), a, b"b").unwrap();
    assert_eq!((stat(&mut fs, "a").links, stat(&mut fs, "a").mtime), (2, t(70)));
    // Removed, still held: it takes nothing and lists nothing.
    assert_eq!(fs.getattr(Tree::Live, b).unwrap().links, 0);
    assert_eq!(fs.create(&c, b, b"x", 0).unwrap_err(), FsError::NotFound);
    assert_eq!(fs.lookup(Tree::Live, b, b"x").unwrap_err(), FsError::NotFound);
    assert!(names(&mut fs, Tree::Live, b).is_empty());
    fs.forget(b, 1).unwrap();
    assert_eq!(fs.getattr(Tree::Live, b).unwrap_err(), FsError::Stale);
    let f = file(&mut fs, "f");
    assert_eq!(fs.rmdir(&c, ROOT, b"f").unwrap_err(), FsError::NotDir);
    assert_eq!(fs.link(&c, a, ROOT, b"l").unwrap_err(), FsError::NotPermitted);
    fs.rmdir(&c, ROOT, b"a").unwrap();
    assert_eq!(stat(&mut fs, "/").links, 2);
    fs.unlink(&c, ROOT, b"f").unwrap();
    assert_eq!(fs.getattr(Tree::Live, f).unwrap_err(), FsError::Stale);
}

#[test]
fn links_are_limited() {
    let mut fs = open(device(Form::new(4096, 2 << 30)), &Options::default());
    let c = root_at(50);
    let f = file(&mut fs, "f");
    for i in 1..32_000u32 {
        fs.link(&c, f, ROOT, format!("l{i}").as_bytes()).unwrap();
    }
    assert_eq!(fs.link(&c, f, ROOT, b"more").unwrap_err(), FsError::TooManyLinks);
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"more").unwrap_err(), FsError::NotFound);
    assert_eq!(stat(&mut fs, "l31999").links, 32_000);
    fs.unlink(&c, ROOT, b"f").unwrap();
    fs.link(&c, f, ROOT, b"more").unwrap();
    let d = dir(&mut fs, ROOT, "d");
    for i in 2..32_000u32 {
        fs.mkdir(&c, d, format!("s{i}").as_bytes(), 0o755).unwrap();
    }
    assert_eq!(fs.mkdir(&c, d, b"more", 0o755).unwrap_err(), FsError::TooManyLinks);
    let e = dir(&mut fs, ROOT, "e");
    assert_eq!(fs.rename(&c, ROOT, b"e", d, b"e", 0).unwrap_err(), FsError::TooManyLinks);
    // Over another directory the count stays.
    fs.rename(&c, ROOT, b"e", d, b"s2", 0).unwrap();
    assert_eq!((stat(&mut fs, "d").links, stat(&mut fs, "d/s2").ino), (32_000, e));
    fs.create(&c, d, b"a file", 0).unwrap();
}

#[test]
fn unlinked_inodes_live_while_they_are_held() {
    let mut fs = fresh(4096);
    let c = root_at(50);
    let f = file(&mut fs, "f");
    fs.write(&c, f, 0, b"hello", PLAIN).unwrap();
    fs.remember(f);
    fs.remember(f);
    fs.unlink(&root_at(55), ROOT, b"f").unwrap();
    assert_eq!(
        (fs.getattr(Tree::Live, f).unwrap().links, fs.getattr(Tree::Live, f).unwrap().ctime),
        (0, t(55))
    );
    fs.sync_all(60).unwrap();
    fs.write(&c, f, 5, b" world", PLAIN).unwrap();
    assert_eq!(content(&mut fs, f), b"hello world");
    assert_eq!(fs.link(&c, f, ROOT, b"again").unwrap_err(), FsError::NotFound);
    fs.forget(f, 1).unwrap();
    assert_eq!(content(&mut fs, f), b"hello world");
    fs.forget(f, 1).unwrap();
    assert_eq!(fs.read(Tree::Live, f, 0, 10).unwrap_err(), FsError::Stale);
    assert_eq!(fs.remembered(), 0);
}

#[test]
fn files_without_a_name_can_get_one() {
    let mut fs = fresh(4096);
    let c = root_at(50);
    let tmp = fs.tmpfile(&c, ROOT, 0o600).unwrap();
    assert_eq!(tmp.links, 0);
    fs.write(&c, tmp.ino, 0, b"x", PLAIN).unwrap();
    fs.sync_all(60).unwrap();
    fs.link(&c, tmp.ino, ROOT, b"named").unwrap();
    assert_eq!(stat(&mut fs, "named").links, 1);
    fs.unlink(&c, ROOT, b"named").unwrap();
    assert_eq!(fs.link(&c, tmp.ino, ROOT, b"again").unwrap_err(), FsError::NotFound);
    fs.forget(tmp.ino, 1).unwrap();
    let other = fs.tmpfile(&c, ROOT, 0o600).unwrap();
    let used = fs.volume().stat().unwrap().inodes;
    fs.forget(other.ino, 1).unwrap();
    assert_eq!(fs.volume().stat().unwrap().inodes, used - 1);
}

#[test]
fn new_objects_take_over_from_their_directory() {
    let mut fs = fresh(4096);
    let mut c = user(1000, 100, &[]);
    c.umask = 0o027;
    let s = fs.create(&c, ROOT, b"f", 0o666).unwrap();
    assert_eq!((s.mode, s.uid, s.gid), (0o100_640, 1000, 100));
    let d = dir(&mut fs, ROOT, "d");
    let group = SetAttr { mode: Some(0o2777), gid: Some(7), ..SetAttr::default() };
    set(&mut fs, &root_at(50), d, group).unwrap();
    fs.set_flags(&root_at(50), d, 0x40 | 0x80 | 0x10000 | 0x20000).unwrap();
    c.umask = 0;
    let sub = fs.mkdir(&c, d, b"sub", 0o6777).unwrap();
    assert_eq!((sub.mode, sub.gid, sub.flags), (0o042_777, 7, 0x40 | 0x80 | 0x10000));
    let f = fs.create(&c, d, b"f", 0o2775).unwrap();
    assert_eq!((f.mode, f.gid, f.flags), (0o100_775, 7, 0xc0), "not in the group: no set-group-ID");
    let f = fs.create(&c, d, b"g", 0o2765).unwrap();
    assert_eq!(f.mode, 0o102_765, "not executable by the group: it stays");
    let f = fs.create(&user(1000, 100, &[7]), d, b"h", 0o2775).unwrap();
    assert_eq!(f.mode, 0o102_775);
    let f = fs.create(&Context { groups: None, ..c.clone() }, d, b"i", 0o2775).unwrap();
    assert_eq!(f.mode, 0o100_775, "nobody knows: no set-group-ID");
    let l = fs.symlink(&c, d, b"l", b"target").unwrap();
    assert_eq!((l.mode, l.gid, l.size), (0o120_777, 7, 6));
    let p = fs.mknod(&c, d, b"p", 0o010_600, (1, 2)).unwrap();
    assert_eq!((p.mode, p.device), (0o010_600, (0, 0)));
    let b = fs.mknod(&c, d, b"b", 0o060_600, (0xfff, 0xf_ffff)).unwrap();
    assert_eq!(b.device, (0xfff, 0xf_ffff));
    for (mode, device) in [(0o060_600, (0x1000, 0)), (0o020_600, (0, 1 << 20)), (0o040_700, (0, 0))] {
        assert_eq!(fs.mknod(&c, d, b"x", mode, device).unwrap_err(), FsError::Invalid);
    }
}

#[test]
fn symlinks_hold_less_than_a_block() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        let c = root_at(50);
        let longest = vec![b'x'; bs as usize - 1];
        let l = fs.symlink(&c, ROOT, b"l", &longest).unwrap().ino;
        assert_eq!(fs.readlink(Tree::Live, l).unwrap(), longest);
        let too_long = vec![b'x'; bs as usize];
        assert_eq!(fs.symlink(&c, ROOT, b"m", &too_long).unwrap_err(), FsError::NameTooLong);
        assert_eq!(fs.symlink(&c, ROOT, b"m", b"").unwrap_err(), FsError::NotFound);
        assert_eq!(fs.readlink(Tree::Live, ROOT).unwrap_err(), FsError::Invalid);
        let cno = fs.sync_all(60).unwrap();
        fs.unlink(&c, ROOT, b"l").unwrap();
        fs.volume_mut().open_view(Cno(cno)).unwrap();
        assert_eq!(fs.readlink(Tree::Past(cno), l).unwrap(), longest);
    }
}

#[test]
fn renames_move_replace_and_exchange() {
    let mut fs = fresh(1024);
    let c = root_at(80);
    let a = dir(&mut fs, ROOT, "a");
    let b = dir(&mut fs, ROOT, "b");
    let sub = dir(&mut fs, a, "sub");
    let f = file(&mut fs, "f");
    let g = file(&mut fs, "g");
    assert_eq!(fs.rename(&c, ROOT, b"a", sub, b"x", 0).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.rename(&c, ROOT, b"a", a, b"x", 0).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.rename(&c, a, b"sub", ROOT, b"a", 0).unwrap_err(), FsError::NotEmpty);
    assert_eq!(fs.rename(&c, a, b"sub", ROOT, b"a", rename_flags::EXCHANGE).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.rename(&c, ROOT, b"f", ROOT, b"a", 0).unwrap_err(), FsError::IsDir);
    assert_eq!(fs.rename(&c, ROOT, b"b", ROOT, b"f", 0).unwrap_err(), FsError::NotDir);
    assert_eq!(fs.rename(&c, ROOT, b"f", ROOT, b"g", rename_flags::NOREPLACE).unwrap_err(), FsError::Exists);
    assert_eq!(
        fs.rename(&c, ROOT, b"f", ROOT, b"no", rename_flags::EXCHANGE).unwrap_err(),
        FsError::NotFound
    );
    assert_eq!(fs.rename(&c, ROOT, b"f", ROOT, b"g", 4).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.rename(&c, ROOT, b"f", ROOT, b"g", 3).unwrap_err(), FsError::Invalid);
    assert_eq!(fs.rename(&c, ROOT, b".", ROOT, b"g", 0).unwrap_err(), FsError::Busy);
    // A directory moves: "..", links and times follow.
    assert_eq!(fs.rename(&c, a, b"sub", b, b"moved", 0).unwrap(), None);
    assert_eq!(fs.lookup(Tree::Live, sub, b"..").unwrap().ino, b);
    assert_eq!((stat(&mut fs, "a").links, stat(&mut fs, "b").links), (2, 3));
    assert_eq!(
        (stat(&mut fs, "a").mtime, stat(&mut fs, "b").mtime, stat(&mut fs, "b/moved").ctime),
        (t(80), t(80), t(80))
    );
    assert_eq!(stat(&mut fs, "b/moved").mtime, t(10));
    // A file replaces one that is held.
    fs.remember(g);
    assert_eq!(fs.rename(&root_at(81), ROOT, b"f", ROOT, b"g", 0).unwrap(), Some(g));
    assert_eq!(stat(&mut fs, "g").ino, f);
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"f").unwrap_err(), FsError::NotFound);
    assert_eq!(
        (fs.getattr(Tree::Live, g).unwrap().links, fs.getattr(Tree::Live, g).unwrap().ctime),
        (0, t(81))
    );
    fs.forget(g, 1).unwrap();
    // Two names of one file: nothing happens.
    fs.link(&c, f, ROOT, b"h").unwrap();
    fs.rename(&c, ROOT, b"g", ROOT, b"h", 0).unwrap();
    assert_eq!((stat(&mut fs, "g").links, stat(&mut fs, "h").ino), (2, f));
    // A directory and a file change places.
    fs.rename(&c, b, b"moved", ROOT, b"h", rename_flags::EXCHANGE).unwrap();
    assert_eq!((stat(&mut fs, "h").ino, stat(&mut fs, "b/moved").ino), (sub, f));
    assert_eq!(fs.lookup(Tree::Live, sub, b"..").unwrap().ino, ROOT);
    assert_eq!((stat(&mut fs, "/").links, stat(&mut fs, "b").links), (5, 2));
    // A directory replaces an empty one.
    fs.rename(&c, ROOT, b"h", ROOT, b"b", 0).unwrap_err();
    fs.unlink(&c, b, b"moved").unwrap();
    assert_eq!(fs.rename(&c, ROOT, b"h", ROOT, b"b", 0).unwrap(), Some(b));
    assert_eq!(stat(&mut fs, "/").links, 4);
    assert_eq!(fs.getattr(Tree::Live, b).unwrap_err(), FsError::Stale);
}

#[test]
fn attributes_and_set_id_bits() {
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    let owner = user(1000, 100, &[200]);
    let mode = |m| SetAttr { mode: Some(m), ..SetAttr::default() };
    let r = root_at(50);
    set(&mut fs, &r, f, SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() }).unwrap();
    assert_eq!(set(&mut fs, &owner, f, mode(0o106_755)).unwrap().mode, 0o106_755);
    // Owners change: the bits go, also for the superuser.
    let s = set(&mut fs, &r, f, SetAttr { gid: Some(300), ..SetAttr::default() }).unwrap();
    assert_eq!((s.mode, s.ctime, s.mtime), (0o100_755, t(50), t(10)));
    assert_eq!(set(&mut fs, &owner, f, mode(0o6755)).unwrap().mode, 0o104_755, "not in group 300");
    assert_eq!(set(&mut fs, &user(1000, 1, &[300]), f, mode(0o6755)).unwrap().mode, 0o106_755);
    let unknown = Context { groups: None, ..owner.clone() };
    assert_eq!(set(&mut fs, &unknown, f, mode(0o6755)).unwrap().mode, 0o106_755, "somebody else has checked");
    // Without group execution set-group-ID is something else.
    set(&mut fs, &r, f, mode(0o6745)).unwrap();
    let s = set(&mut fs, &r, f, SetAttr { uid: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(s.mode, 0o102_745);
    let d = dir(&mut fs, ROOT, "d");
    set(&mut fs, &r, d, mode(0o6777)).unwrap();
    assert_eq!(set(&mut fs, &r, d, SetAttr { uid: Some(5), ..SetAttr::default() }).unwrap().mode, 0o046_777);
    // Writing and truncating clear them if asked to.
    set(&mut fs, &r, f, mode(0o6755)).unwrap();
    fs.write(&r, f, 0, b"x", PLAIN).unwrap();
    assert_eq!(stat(&mut fs, "f").mode, 0o106_755);
    fs.write(&r, f, 0, b"x", WriteFlags { kill_suidgid: true, ..PLAIN }).unwrap();
    assert_eq!(stat(&mut fs, "f").mode, 0o100_755);
    set(&mut fs, &r, f, mode(0o6755)).unwrap();
    let cut = SetAttr { size: Some(0), kill_suidgid: true, ..SetAttr::default() };
    assert_eq!(set(&mut fs, &root_at(60), f, cut).unwrap().mode, 0o100_755);
    assert_eq!((stat(&mut fs, "f").mtime, stat(&mut fs, "f").size), (t(60), 0));
    // Times.
    let times = SetAttr { mtime: Some(SetTime::At(t(-7))), atime: Some(SetTime::Now), ..SetAttr::default() };
    let s = set(&mut fs, &root_at(70), f, times).unwrap();
    assert_eq!((s.mtime, s.atime, s.ctime), (t(-7), t(70), t(70)));
    let s = set(&mut fs, &root_at(80), f, SetAttr { ctime: Some(t(3)), ..SetAttr::default() }).unwrap();
    assert_eq!((s.mtime, s.atime, s.ctime), (t(-7), t(70), t(3)));
    assert_eq!(
        set(&mut fs, &r, d, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap_err(),
        FsError::IsDir
    );
    let too_big = SetAttr { size: Some(1 << 63), mode: Some(0), ..SetAttr::default() };
    assert_eq!(set(&mut fs, &r, f, too_big).unwrap_err(), FsError::FileTooBig);
    assert_eq!(stat(&mut fs, "f").mode, 0o100_755, "nothing was changed");
}

#[test]
fn flags_are_enforced_everywhere() {
    const IMMUTABLE: u32 = 0x10;
    const APPEND: u32 = 0x20;
    let mut fs = fresh(4096);
    let r = root_at(50);
    let d = dir(&mut fs, ROOT, "d");
    let f = fs.create(&r, d, b"f", 0o666).unwrap().ino;
    fs.write(&r, f, 0, b"data", PLAIN).unwrap();
    let sub = dir(&mut fs, d, "sub");
    let nothing = FsError::NotPermitted;
    let u = user(0, 0, &[]);
    assert_eq!(fs.set_flags(&u, f, IMMUTABLE).unwrap_err(), nothing, "needs privilege");
    fs.set_flags(&u, f, 0x40).unwrap();
    assert_eq!(fs.set_flags(&user(7, 0, &[]), f, 0).unwrap_err(), nothing, "not the owner");
    for unknown in [0x800, 0x1000, 0x4000, 0x80000, 0x80_0000, 0x8000_0000] {
        let refused = fs.set_flags(&r, f, unknown | 0x80).unwrap_err();
        assert_eq!(
            (refused, fs.flags(Tree::Live, f).unwrap()),
            (FsError::NotSupported, 0x40),
            "{unknown:#x}"
        );
    }
    fs.set_flags(&r, f, 0x3_87ff & !(IMMUTABLE | APPEND)).unwrap();
    assert_eq!(fs.flags(Tree::Live, f).unwrap(), 0x80cf, "what a regular file can carry and users may set");
    let append = WriteFlags { append: true, ..PLAIN };
    for flag in [IMMUTABLE, APPEND] {
        fs.set_flags(&r, f, flag).unwrap();
        assert_eq!(fs.write(&r, f, 0, b"x", PLAIN).unwrap_err(), nothing);
        let end = fs.getattr(Tree::Live, f).unwrap().size;
        assert_eq!(fs.write(&r, f, 0, b"x", append).unwrap_err(), nothing, "over what is there");
        assert_eq!(fs.write(&r, f, end - 1, b"xx", append).unwrap_err(), nothing);
        assert_eq!(fs.write(&r, f, end, b"x", append).is_ok(), flag == APPEND);
        assert_eq!(fs.unlink(&r, d, b"f").unwrap_err(), nothing);
        assert_eq!(fs.rename(&r, d, b"f", ROOT, b"g", 0).unwrap_err(), nothing);
        assert_eq!(fs.link(&r, f, ROOT, b"g").unwrap_err(), nothing);
        for change in [
            SetAttr { size: Some(0), ..SetAttr::default() },
            SetAttr { mode: Some(0), ..SetAttr::default() },
            SetAttr { uid: Some(0), ..SetAttr::default() },
            SetAttr { mtime: Some(SetTime::At(t(1))), ..SetAttr::default() },
        ] {
            assert_eq!(set(&mut fs, &r, f, change).unwrap_err(), nothing);
        }
        let touch = SetAttr { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(set(&mut fs, &r, f, touch).is_ok(), flag == APPEND);
        let punch = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
        assert_eq!(fs.fallocate(&r, f, punch, 0, 4).unwrap_err(), nothing);
        assert_eq!(fs.fallocate(&r, f, 0, 0, 4).is_ok(), flag == APPEND);
        assert_eq!(fs.write(&r, f, end + 1, b"d", append).is_ok(), flag == APPEND);
        assert_eq!(fs.write(&r, f, 0, b"d", PLAIN).unwrap_err(), nothing);
        // Nor through a mapping, which opening the file does not prevent.
        let mapped = WriteFlags { cached: true, append: true, ..PLAIN };
        for at in [0, 100] {
            assert_eq!(fs.write(&r, f, at, b"d", mapped).unwrap_err(), nothing);
        }
        fs.write(&r, f, 0, b"d", WriteFlags { late: true, ..mapped }).unwrap();
        // It cannot be replaced, and neither can its directory lose it.
        fs.create(&r, ROOT, b"other", 0).unwrap();
        assert_eq!(fs.rename(&r, ROOT, b"other", d, b"f", 0).unwrap_err(), nothing);
        fs.unlink(&r, ROOT, b"other").unwrap();
        fs.set_flags(&r, f, 0).unwrap();
        fs.set_flags(&r, d, flag).unwrap();
        assert_eq!(fs.unlink(&r, d, b"f").unwrap_err(), nothing);
        assert_eq!(fs.rmdir(&r, d, b"sub").unwrap_err(), nothing);
        assert_eq!(fs.rename(&r, d, b"f", d, b"g", 0).unwrap_err(), nothing);
        assert_eq!(fs.rename(&r, ROOT, b"d", ROOT, b"e", 0).unwrap_err(), nothing);
        for made in [
            fs.create(&r, d, b"new", 0).map(|_| ()),
            fs.mkdir(&r, d, b"newdir", 0).map(|_| ()),
            fs.symlink(&r, d, b"newlink", b"x").map(|_| ()),
            fs.link(&r, f, d, b"link").map(|_| ()),
            fs.tmpfile(&r, d, 0).map(|s| fs.forget(s.ino, 1).unwrap()),
        ] {
            assert_eq!(made.is_ok(), flag == APPEND, "{made:?}");
        }
        fs.set_flags(&r, d, 0).unwrap();
    }
    assert_eq!(fs.getattr(Tree::Live, sub).unwrap().links, 2);
    assert_eq!(&content(&mut fs, f)[..], b"dataxd");
    let s = stat(&mut fs, "d/newlink");
    assert_eq!(fs.set_flags(&r, s.ino, 0x40).unwrap_err(), FsError::NotSupported);
}

#[test]
fn access_times_live_in_memory() {
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    assert_eq!(stat(&mut fs, "f").atime, t(10));
    fs.accessed(f, t(20));
    assert_eq!(stat(&mut fs, "f").atime, t(20));
    fs.accessed(f, t(30));
    assert_eq!(stat(&mut fs, "f").atime, t(20), "newer than the last change: left alone for a day");
    fs.write(&root_at(40), f, 0, b"x", PLAIN).unwrap();
    fs.accessed(f, t(50));
    assert_eq!(stat(&mut fs, "f").atime, t(50));
    fs.accessed(f, t(50 + 86_400));
    assert_eq!(stat(&mut fs, "f").atime, t(50 + 86_400));
    fs.set_flags(&root_at(60), f, 0x80).unwrap();
    fs.accessed(f, t(500_000));
    assert_eq!(stat(&mut fs, "f").atime, t(50 + 86_400));
}

#[test]
fn of_too_many_access_times_those_not_used_for_longest_go() {
    let mut fs = open(device(Form::new(4096, 64 << 20)), &Options { access_times: 3, ..Options::default() });
    let all = ["a", "b", "c", "d", "e"].map(|name| file(&mut fs, name));
    let touch = SetAttr { atime: Some(SetTime::At(t(20))), ..SetAttr::default() };
    for f in &all[..3] {
        fs.setattr(&root_at(15), *f, &touch).unwrap();
    }
    let times = |fs: &mut Fs| ["b", "c", "d", "e"].map(|name| stat(fs, name).atime);
    // Asking is a use.
    assert_eq!(stat(&mut fs, "a").atime, t(20));
    fs.accessed(all[3], t(30));
    assert_eq!(times(&mut fs), [t(10), t(20), t(30), t(10)]);
    assert_eq!(stat(&mut fs, "a").atime, t(20));
    fs.accessed(all[4], t(40));
    assert_eq!(times(&mut fs), [t(10), t(10), t(30), t(40)]);
    assert_eq!(stat(&mut fs, "a").atime, t(20));
}

#[test]
fn generations_tell_users_of_a_number_apart() {
    let mut fs = fresh(4096);
    let f = file(&mut fs, "f");
    let before = fs.generation(Tree::Live, f).unwrap();
    fs.unlink(&root_at(20), ROOT, b"f").unwrap();
    let g = file(&mut fs, "g");
    assert_eq!(f, g);
    assert_ne!(before, fs.generation(Tree::Live, g).unwrap());
}

/// File handles name any number. Some of those that the format keeps for itself have an entry that looks like a file's, whose
/// blocks nothing would count.
#[test]
fn what_the_format_keeps_for_itself_is_no_file() {
    for bs in SIZES {
        let mut fs = fresh(bs);
        let c = root_at(50);
        let f = file(&mut fs, "f");
        let cno = fs.sync_all(60).unwrap();
        fs.volume_mut().open_view(Cno(cno)).unwrap();
        let past = Tree::Past(cno);
        for tree in [Tree::Live, past] {
            assert_eq!(fs.lookup(tree, ROOT, b".").unwrap().ino, ROOT);
            assert_eq!(fs.lookup(tree, f, b".").unwrap().ino, f);
        }
        let beyond = [f.0 + 1, 1 << 40, u64::MAX];
        for ino in (0..11).chain(beyond).map(Ino).filter(|ino| *ino != ROOT) {
            for tree in [Tree::Live, past] {
                assert_eq!(fs.lookup(tree, ino, b".").unwrap_err(), FsError::Stale, "{ino}");
                assert_eq!(fs.getattr(tree, ino).unwrap_err(), FsError::Stale, "{ino}");
                assert_eq!(fs.lookup(tree, ino, b"f").unwrap_err(), FsError::Stale, "{ino}");
                assert_eq!(fs.read(tree, ino, 0, 1).unwrap_err(), FsError::Stale, "{ino}");
            }
            let set = SetAttr { mode: Some(0o777), size: Some(9), ..SetAttr::default() };
            assert_eq!(fs.setattr(&c, ino, &set).unwrap_err(), FsError::Stale, "{ino}");
            assert_eq!(
                fs.write(&c, ino, 0, b"x", WriteFlags::default()).unwrap_err(),
                FsError::Stale,
                "{ino}"
            );
            assert_eq!(fs.fallocate(&c, ino, 0, 0, 9).unwrap_err(), FsError::Stale, "{ino}");
            assert_eq!(fs.set_flags(&c, ino, 0).unwrap_err(), FsError::Stale, "{ino}");
            assert_eq!(fs.link(&c, ino, ROOT, b"l").unwrap_err(), FsError::Stale, "{ino}");
            assert_eq!(fs.create(&c, ino, b"g", 0o644).unwrap_err(), FsError::Stale, "{ino}");
        }
    }
}

#[test]
fn nothing_is_above_a_directory_that_is_gone() {
    let mut fs = fresh(4096);
    let a = dir(&mut fs, ROOT, "a");
    let b = dir(&mut fs, a, "b");
    fs.remember(b);
    assert_eq!(fs.lookup(Tree::Live, b, b"..").unwrap().ino, a);
    fs.rmdir(&root_at(20), a, b"b").unwrap();
    assert_eq!(fs.lookup(Tree::Live, b, b".").unwrap().ino, b, "it is held");
    assert_eq!(fs.lookup(Tree::Live, b, b"..").unwrap_err(), FsError::Stale);
    fs.rmdir(&root_at(20), ROOT, b"a").unwrap();
    assert_eq!(fs.lookup(Tree::Live, b, b"..").unwrap_err(), FsError::Stale);
}
