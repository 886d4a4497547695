//! `silt mkfs`

use crate::common::{Bench, Mounted, Run, SILT, can_mount, is_root};

use std::os::unix::fs::{FileExt, MetadataExt, symlink};

const MIB: u64 = 1 << 20;

#[test]
fn makes_a_sparse_image_with_the_defaults_of_mkfs_nilfs2() {
    let b = Bench::new();
    let out = b.ok(&["mkfs", "--size", "256M", "-L", "testvol", "v.img"]);
    assert!(out.contains("31 segments of 8 MiB, blocks of 4096 bytes"), "{out}");
    let meta = std::fs::metadata(b.path("v.img")).unwrap();
    assert_eq!(meta.len(), 256 * MIB);
    assert!(meta.blocks() * 512 < 4 * MIB, "the image is sparse");
    let s = b.json(&["tune", "--json", "v.img"]);
    for (field, value) in [
        ("segments", 31),
        ("blocks_per_segment", 2048),
        ("block_size", 4096),
        ("reserved_percent", 5),
        ("device_size", 256 * MIB),
        ("last_checkpoint", 1),
        ("first_inode", 11),
        ("free_blocks", 30 * 2048),
    ] {
        assert_eq!(s[field].as_u64(), Some(value), "{field}");
    }
    assert_eq!(s["label"], "testvol");
    assert_eq!(s["features"], serde_json::json!(["block_count"]));
    assert_eq!(b.checkpoints("v.img"), [(1, false)]);
}

#[test]
fn options_are_obeyed() {
    let b = Bench::new();
    b.ok(&[
        "mkfs", "--size", "64M", "-b", "1024", "-B", "1024", "-m", "10", "-O", "none", "-K", "-c", "v.img",
    ]);
    let s = b.json(&["tune", "--json", "v.img"]);
    assert_eq!(s["block_size"], 1024);
    assert_eq!(s["blocks_per_segment"], 1024);
    assert_eq!(s["reserved_percent"], 10);
    assert_eq!(s["features"], serde_json::json!([]));
    for bits in 10..=16 {
        let block = (1u32 << bits).to_string();
        b.ok(&["mkfs", "-q", "-f", "--size", "64M", "-b", &block, "-B", "16", "v.img"]);
        assert_eq!(b.json(&["tune", "--json", "v.img"])["block_size"].to_string(), block);
        assert_eq!(b.checkpoints("v.img"), [(1, false)]);
    }
}

#[test]
fn limits_are_told_and_nothing_is_left_behind() {
    let b = Bench::new();
    for args in [
        &["-b", "512"][..],
        &["-b", "3000"],
        &["-b", "131072"],
        &["-B", "15"],
        &["-B", "24"],
        &["-m", "0"],
        &["-m", "100"],
        &["-O", "compression"],
    ] {
        let mut all = vec!["mkfs", "--size", "64M", "v.img"];
        all.extend(args);
        b.fails(2, &all);
        assert!(!b.path("v.img").exists(), "{args:?}");
    }
    let too_small = b.fails(2, &["mkfs", "--size", "1M", "v.img"]);
    assert!(too_small.contains("too small") && too_small.contains("-B"), "{too_small}");
    assert!(!b.path("v.img").exists());
    b.fails(9, &["mkfs", "v.img"]);
    b.fails(9, &["mkfs", "--size", "64M", "-B", "64", "no/such/dir/v.img"]);
    assert_eq!(b.run(&["mkfs", "--size", "12X", "v.img"]).code, 2);
}

#[test]
fn what_is_there_is_not_overwritten_unasked() {
    let b = Bench::new();
    for (name, at, bytes) in [
        ("an XFS file system", 0, &b"XFSB"[..]),
        ("an ext2 file system", 0x438, &[0x53, 0xEF]),
        ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
        ("a LUKS volume", 0, b"LUKS\xBA\xBE"),
        ("a swap area", 4086, b"SWAPSPACE2"),
        ("a GPT partition table", 512, b"EFI PART"),
    ] {
        let mut content = vec![0; 64 << 20];
        content[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(b.path("v.img"), &content).unwrap();
        let said = b.fails(1, &["mkfs", "-B", "64", "v.img"]);
        assert!(said.contains(name) && said.contains("-f"), "{said}");
        assert_eq!(std::fs::read(b.path("v.img")).unwrap(), content, "{name}");
    }
    b.ok(&["mkfs", "-B", "64", "-f", "v.img"]);
    let said = b.fails(1, &["mkfs", "-B", "64", "v.img"]);
    assert!(said.contains("a NILFS2 file system"), "{said}");
    b.fails(1, &["mkfs", "-B", "64", "--size", "64M", "v.img"]);
    b.ok(&["mkfs", "-B", "64", "-f", "--size", "32M", "v.img"]);
    assert_eq!(std::fs::metadata(b.path("v.img")).unwrap().len(), 32 * MIB);
}

/// What has no known signature is somebody's file all the same, wherever in it the data lies.
#[test]
fn ordinary_data_is_not_overwritten_unasked() {
    let b = Bench::new();
    let holding = |places: &[(u64, usize)]| {
        let file = std::fs::File::create(b.path("data.tar")).unwrap();
        file.set_len(300 << 20).unwrap();
        for (at, length) in places {
            file.write_all_at(&vec![b'x'; *length], *at).unwrap();
        }
    };
    let everywhere: Vec<_> = (0..300).map(|n| ((n << 20) + 512_000, 4096)).collect();
    for places in [&[(0, 200_000)][..], &[(7 << 20, 1)], &[(250_000_000, 5)], &everywhere] {
        holding(places);
        let said = b.fails(1, &["mkfs", "-B", "64", "data.tar"]);
        assert!(said.contains("data.tar holds data") && said.contains("-f"), "{said}");
        let (at, _) = places[0];
        let mut byte = [0];
        std::fs::File::open(b.path("data.tar")).unwrap().read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, *b"x", "it is untouched");
    }
    b.ok(&["mkfs", "-f", "-B", "64", "data.tar"]);
    holding(&[]);
    b.ok(&["mkfs", "-B", "64", "data.tar"]);
    std::fs::write(b.path("zeros"), vec![0; 64 << 20]).unwrap();
    b.ok(&["mkfs", "-B", "64", "zeros"]);
}

#[test]
fn a_dry_run_writes_nothing() {
    let b = Bench::new();
    let out = b.ok(&["mkfs", "-n", "--size", "256M", "v.img"]);
    assert!(out.contains("31 segments") && out.contains("would be"), "{out}");
    assert!(!b.path("v.img").exists());
    let before = vec![0x5A; 64 << 20];
    std::fs::write(b.path("v.img"), &before).unwrap();
    b.fails(1, &["mkfs", "-n", "-B", "64", "v.img"]);
    b.ok(&["mkfs", "-n", "-f", "-B", "64", "v.img"]);
    assert!(std::fs::read(b.path("v.img")).unwrap() == before);
}

#[test]
fn a_boot_sector_stays() {
    let b = Bench::new();
    let mut content = vec![0; 64 << 20];
    content[..4].copy_from_slice(b"boot");
    content[510..512].copy_from_slice(&[0x55, 0xAA]);
    std::fs::write(b.path("v.img"), &content).unwrap();
    b.ok(&["mkfs", "-q", "-B", "64", "v.img"]);
    assert!(std::fs::read(b.path("v.img")).unwrap()[..1024] == content[..1024]);
    assert_eq!(b.checkpoints("v.img"), [(1, false)]);
}

#[test]
fn quiet_is_quiet_and_the_old_name_works() {
    let b = Bench::new();
    assert_eq!(b.ok(&["mkfs", "-q", "--size", "64M", "-B", "64", "v.img"]), "");
    symlink(SILT, b.path("mkfs.nilfs2")).unwrap();
    let tool = |args: &[&str]| Run::of(&b.command(b.path("mkfs.nilfs2")).args(args).output().unwrap());
    let refused = tool(&["-B", "64", "v.img"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.starts_with("mkfs.nilfs2: "), "{}", refused.err);
    assert_eq!(tool(&["-f", "-q", "-b", "1024", "-B", "64", "-L", "x", "v.img"]).code, 0);
    assert_eq!(tool(&["--no-such-option"]).code, 1);
    assert_eq!(tool(&["-V"]).code, 0);
}

/// A loop device, detached at the end of the test.
struct Loop(String);

impl Loop {
    fn new(image: &str) -> Option<Self> {
        let run = std::process::Command::new("losetup").args(["-f", "--show", image]).output().ok()?;
        let name = String::from_utf8(run.stdout).unwrap().trim().to_owned();
        run.status.success().then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn block_devices_are_made_volumes_of_and_used() {
    let b = Bench::new();
    std::fs::File::create(b.path("disk")).unwrap().set_len(64 << 20).unwrap();
    let attached = if is_root() { Loop::new(&b.name("disk")) } else { None };
    let Some(Loop(device)) = &attached else {
        eprintln!("skipped: there are no loop devices here");
        return;
    };
    b.ok(&["mkfs", "-B", "64", device]);
    assert!(b.fails(1, &["mkfs", "-B", "64", device]).contains("NILFS2"));
    b.fails(2, &["mkfs", "-f", "--size", "32M", device]);
    // The file behind it is in use.
    b.fails(6, &["mkfs", "-f", "-B", "64", "disk"]);
    b.ok(&["mkcp", "-s", device]);
    assert_eq!(b.checkpoints(device), [(1, true), (2, false)]);
    if can_mount() {
        let (m, _) = Mounted::new(&b, &[device], "m");
        b.fails(6, &["mkfs", "-f", "-B", "64", device]);
        std::fs::write(m.path("f"), "x").unwrap();
        b.ok(&["mkcp", device]);
        // By the image behind the loop device it is the same volume.
        assert_eq!(b.json(&["status", "--json", "disk"])["mounts"][0]["dir"], m.dir());
        m.unmount();
    }
    assert_eq!(b.json(&["status", "--json", device])["clean"], true);
}

#[test]
fn a_small_volume_gets_smaller_segments_and_it_is_said() {
    let b = Bench::new();
    let run = b.run(&["mkfs", "--size", "64M", "v.img"]);
    assert!(run.code == 0 && run.err.contains("note: segments of 512 blocks"), "{}", run.err);
    assert!(run.out.contains("segments of 2 MiB"), "{}", run.out);
    let said = b.fails(2, &["mkfs", "-B", "2048", "--size", "64M", "w.img"]);
    assert!(
        said.contains("64 MiB (67108864 bytes) are too small") && said.contains("(131076K or more will do"),
        "{said}"
    );
    // The least that is named is the least.
    let said = b.fails(2, &["mkfs", "--size", "2M", "w.img"]);
    let typed = said.split(" or more will do").next().unwrap().rsplit('(').next().unwrap();
    let least = typed.strip_suffix('K').unwrap().parse::<u64>().unwrap() << 10;
    assert!(least < 9 << 20, "{said}");
    b.fails(2, &["mkfs", "--size", &(least - 1024).to_string(), "w.img"]);
    b.ok(&["mkfs", "-q", "--size", typed, "w.img"]);
    std::fs::remove_file(b.path("w.img")).unwrap();
    symlink(SILT, b.path("mkfs.nilfs2")).unwrap();
    let run = Run::of(&b.command(b.path("mkfs.nilfs2")).args(["--size", "64M", "w.img"]).output().unwrap());
    assert!(run.code == 1 && run.err.contains("too small"), "as nilfs-utils: {}", run.err);
}

/// The first KiB counts, too, but for a boot sector, which stays.
#[test]
fn the_beginning_of_a_file_is_not_overwritten_unasked() {
    let b = Bench::new();
    let v = b.name("script");
    let text = b"#!/bin/sh\necho\n";
    let write = |bytes: &[u8]| {
        std::fs::write(&v, bytes).unwrap();
        std::fs::File::options().write(true).open(&v).unwrap().set_len(32 << 20).unwrap();
    };
    write(text);
    for more in [&[][..], &["-K"]] {
        b.fails(1, &[&["mkfs"], more, &[&v]].concat());
        assert!(std::fs::read(&v).unwrap().starts_with(text));
    }
    b.ok(&["mkfs", "-q", "-f", &v]);
    let mut boot = [7; 512];
    boot[510..].copy_from_slice(&[0x55, 0xAA]);
    std::fs::remove_file(&v).unwrap();
    write(&boot);
    b.ok(&["mkfs", "-q", &v]);
    assert!(std::fs::read(&v).unwrap().starts_with(&boot));
}
