//! What is no volume, or not one of ours, is told in one sentence and never written to.

use crate::common::{Bench, Mounted, can_mount, find, is_root};

use silt_format::super_block::{self as sb, SuperBlock};

const SIZE: u64 = 32 << 20;

/// Makes a volume and changes its super blocks; both checksums are right.
fn changed(b: &Bench, name: &str, change: impl Fn(&mut SuperBlock)) -> String {
    let path = b.volume(name, "32M");
    let mut bytes = std::fs::read(&path).unwrap();
    for at in [sb::PRIMARY_OFFSET, sb::secondary_offset(SIZE)] {
        let at = at as usize;
        let mut block = SuperBlock::parse(&bytes[at..at + sb::SIZE]).unwrap();
        change(&mut block);
        bytes[at..at + sb::SIZE].copy_from_slice(&block.to_disk());
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Every command refuses it with `code` and changes nothing.
#[track_caller]
fn refused(b: &Bench, path: &str, code: i32) -> String {
    let before = std::fs::read(path).unwrap();
    std::fs::create_dir_all(b.path("m")).unwrap();
    let mut said = String::new();
    for args in [
        &["lscp", path][..],
        &["lssu", path],
        &["dumpseg", path, "0"],
        &["status", path],
        &["mkcp", "-s", path],
        &["chcp", "ss", path, "1"],
        &["rmcp", path, "1"],
        &["sync", path],
        &["resize", path, "64M"],
        &["mount", path, "m"],
        &["mount", "-r", path, "m"],
        &["mount", "-f", path, "m"],
    ] {
        said = b.fails(code, args);
        assert!(said.contains(path), "{args:?} names it: {said}");
        assert!(std::fs::read(path).unwrap() == before, "{args:?} wrote");
    }
    said
}

#[test]
fn no_volume() {
    let b = Bench::new();
    for (name, content) in [
        ("empty", vec![]),
        ("short", vec![0; 100]),
        ("zeroes", vec![0; 1 << 20]),
        ("noise", (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
    ] {
        std::fs::write(b.path(name), content).unwrap();
        let path = b.name(name);
        let said = refused(&b, &path, 3);
        assert!(said.contains("not a NILFS2 volume"), "{said}");
        b.fails(3, &["check", &path]);
    }
}

#[test]
fn volumes_that_are_not_for_us() {
    let b = Bench::new();
    let features = changed(&b, "features", |s| s.feature_incompat = 0x20.into());
    assert!(refused(&b, &features, 5).contains("0x20"));
    let revision = changed(&b, "revision", |s| s.rev_level = 1.into());
    assert!(refused(&b, &revision, 5).contains("revision 1"));
    let blocks = changed(&b, "blocks", |s| s.log_block_size = 7.into());
    assert!(refused(&b, &blocks, 5).contains("block size"));
    let log = changed(&b, "log", |s| s.last_pseg = 77.into());
    refused(&b, &log, 4);
    let segments = changed(&b, "segments", |s| s.nsegments = 0x1234_5678_9abc.into());
    refused(&b, &segments, 4);
}

#[test]
fn unknown_read_only_features_allow_looking() {
    let b = Bench::new();
    let path = changed(&b, "ro", |s| s.feature_compat_ro = 0x101.into());
    let before = std::fs::read(&path).unwrap();
    b.ok(&["lscp", &path]);
    let said = b.fails(5, &["mkcp", "-s", &path]);
    assert!(said.contains("only allow reading"), "{said}");
    b.fails(5, &["tune", "-L", "x", &path]);
    b.fails(5, &["mount", &path, "m"]);
    if can_mount() {
        let (m, _) = Mounted::new(&b, &["-r", &path], "m");
        m.unmount();
    }
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn a_volume_cut_short() {
    let b = Bench::new();
    let path = b.volume("v.img", "32M");
    for keep in [20_000, 1 << 20, 31 << 20] {
        let bytes = std::fs::read(&path).unwrap();
        let cut = b.name("cut.img");
        std::fs::write(&cut, &bytes[..keep]).unwrap();
        let said = refused(&b, &cut, 4);
        assert!(said.contains("bytes"), "{said}");
    }
}

#[test]
fn of_two_super_blocks_one_is_enough() {
    let b = Bench::new();
    let path = b.volume("v.img", "32M");
    let whole = std::fs::read(&path).unwrap();
    for (which, at) in [("primary", 1024), ("secondary", sb::secondary_offset(SIZE) as usize)] {
        let mut torn = whole.clone();
        torn[at + 100] ^= 1;
        std::fs::write(&path, &torn).unwrap();
        let run = b.run(&["lscp", &path]);
        assert_eq!(run.code, 0, "{}", run.err);
        assert!(run.err.contains(&format!("the {which} super block is damaged")), "{}", run.err);
        assert!(std::fs::read(&path).unwrap() == torn, "looking mends nothing");
        let status = b.ok(&["status", &path]);
        assert!(status.contains(&format!("the {which} super block is damaged")), "{status}");
        // A change mends it.
        assert_eq!(b.run(&["mkcp", "-s", &path]).code, 0);
        let run = b.run(&["lscp", &path]);
        assert_eq!((run.code, run.err.as_str()), (0, ""));
    }
    let mut torn = whole;
    torn[1124] ^= 1;
    torn[sb::secondary_offset(SIZE) as usize + 100] ^= 1;
    std::fs::write(&path, &torn).unwrap();
    refused(&b, &path, 4);
}

#[test]
fn what_is_no_file() {
    let b = Bench::new();
    b.fails(9, &["lscp", "nothing.img"]);
    b.fails(9, &["lscp", "."]);
    b.fails(2, &["lscp", "/dev/null"]);
    b.fails(9, &["mkcp", "no/such/v.img"]);
    assert_eq!(b.run(&["mount", "nothing.img", "m"]).code, 9);
}

/// A verb that is given a file in a mounted volume means an image, and never the volume that holds it.
#[test]
fn a_file_in_a_mounted_volume_is_not_the_volume() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let file = m.path("notes.txt").to_str().unwrap().to_owned();
    for n in 0..3 {
        std::fs::write(&file, format!("note {n}")).unwrap();
        b.ok(&["mkcp", m.dir()]);
    }
    let before = (b.json(&["tune", "--json", &v]), b.checkpoints(&v));
    let verbs: [&[&str]; 9] = [
        &["tune", "-L", "wrong", &file],
        &["resize", &file, "48M"],
        &["retain", &file, "nothing"],
        &["mkcp", "-s", &file],
        &["rmcp", &file, "1"],
        &["chcp", "ss", &file, "1"],
        &["clean", "-p", "0", &file],
        &["trim", &file],
        &["status", &file],
    ];
    for args in verbs {
        let said = b.fails(3, args);
        assert!(said.contains("lies in a mounted volume") && said.contains(m.dir()), "{args:?}: {said}");
    }
    b.fails(9, &["umount", &file]);
    assert!(m.is_mounted());
    assert_eq!((b.json(&["tune", "--json", &v]), b.checkpoints(&v)), before);
    // A directory in it means it, and so does a file whose history is asked for.
    std::fs::create_dir(m.path("d")).unwrap();
    b.ok(&["status", m.path("d").to_str().unwrap()]);
    b.ok(&["du", "--history", &file]);
    m.unmount();
}

/// A device that can only be read is told of at once.
#[test]
fn a_device_that_can_only_be_read_is_not_written() {
    if !is_root() || !can_mount() || !find("losetup") {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let attached = std::process::Command::new("losetup").args(["-r", "-f", "--show", &v]).output().unwrap();
    if !attached.status.success() {
        eprintln!("left out: no loop device can be had here");
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let verbs: [&[&str]; 5] = [
        &["mkcp", &device],
        &["tune", "-L", "x", &device],
        &["retain", &device, "nothing"],
        &["clean", &device],
        &["mkfs", "-f", &device],
    ];
    let ended: Vec<_> = verbs.iter().map(|args| b.run(args)).collect();
    std::fs::create_dir(b.path("m")).unwrap();
    let refused = b.run(&["mount", &device, &b.name("m")]);
    let (m, _) = Mounted::new(&b, &["-o", "ro", &device], "m");
    m.unmount();
    assert!(std::process::Command::new("losetup").args(["-d", &device]).status().unwrap().success());
    for (run, args) in ended.iter().zip(verbs) {
        assert_eq!(run.code, 11, "{args:?}: {}", run.err);
    }
    assert!(refused.code == 11 && refused.err.contains("-o ro"), "{}", refused.err);
}

/// What is no volume by its name is refused with what to name instead, by those, too, that need no sound one.
#[test]
fn what_is_not_there_or_no_file_is_told_with_what_to_name() {
    let b = Bench::new();
    for verb in ["rescue", "check", "repair", "scrub", "lscp"] {
        let said = b.fails(9, &[verb, "missing"]);
        assert!(said.contains("there is no missing\n  (name an image file"), "{verb}: {said}");
        let said = b.fails(2, &[verb, "/dev/null"]);
        assert!(
            said.contains("neither an image file nor a block device\n  (name the file"),
            "{verb}: {said}"
        );
    }
    let v = b.volume("v.img", "32M");
    assert!(b.fails(9, &["dumpseg", &v, "4711"]).contains(&format!("(silt lssu -a {v} lists them)")));
}
