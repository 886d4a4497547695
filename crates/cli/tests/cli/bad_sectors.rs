//! A disk with sectors that cannot be read, through the commands one types: as a file, and as a block device where
//! there are loop devices.

use crate::common::disk::{Disk, Loop};
use crate::common::{Bench, can_mount, is_root};

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use silt_format::summary::MAGIC;
use silt_verify::{Moment, Tree};

/// A file of some blocks: its path, inode, and disk blocks in order.
fn some_file(volume: &str) -> (String, u64, Vec<u64>) {
    let file = silt_device::open(volume, silt_device::Access::ReadOnly, &silt_device::OpenOptions::default());
    let file = file.unwrap();
    let tree = Tree::open(&file, Moment::Latest).unwrap();
    let walked = tree.walk().unwrap().into_iter();
    let found = walked.filter(|w| w.attributes.is_regular() && w.attributes.size > 5 * 4096);
    let found = found.max_by_key(|w| w.attributes.size).unwrap();
    let ino = found.attributes.ino;
    let blocks = (0..found.attributes.size / 4096).filter_map(|n| tree.block_of(ino, n).unwrap());
    (format!("/{}", String::from_utf8(found.path).unwrap()), ino, blocks.collect())
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// What scrub, check and rescue make of a sector of a file: each sector is tried, also of a block device, of which the kernel
/// reads whole pages.
fn look(b: &Bench, volume: &str, (path, ino, block): (&str, u64, u64), round: &str) {
    let (byte, bytes) = (1024, 512);
    // Scrub: the sector, and whose it is.
    let run = b.run(&["scrub", "--restart", "--json", volume]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let told = json(&run.out);
    assert_eq!(told["findings"].as_array().unwrap().len(), 1, "{told}");
    let finding = &told["findings"][0];
    let spot = &finding["spots"][0];
    assert_eq!(finding["kind"], "unreadable", "{told}");
    assert_eq!(
        (spot["block"].as_u64(), spot["byte"].as_u64(), spot["bytes"].as_u64()),
        (Some(block), Some(byte), Some(bytes))
    );
    assert_eq!((spot["owner"]["path"].as_str(), spot["owner"]["inode"].as_u64()), (Some(path), Some(ino)));
    let run = b.run(&["scrub", "--restart", volume]);
    let line = format!("block {block}, {bytes} bytes from byte {byte}: content of {path} (inode {ino})");
    assert!(
        run.code == 4 && run.out.contains(&line) && run.out.contains("cannot be read whole"),
        "{}",
        run.out
    );

    // Check: that the device gives an error, where, and whose log it is.
    let run = b.run(&["check", "--json", volume]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let told = json(&run.out);
    let ids: Vec<&str> = told["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| f["severity"] == "error")
        .map(|f| f["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["device-read"], "{told}");

    // Rescue: all other files, this one without the sector's block, and a list.
    let to = b.name(&format!("copy-{round}"));
    let report = b.name(&format!("report-{round}"));
    let run = b.run(&["rescue", volume, "--to", &to, "--report", &report]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let told = json(&std::fs::read_to_string(&report).unwrap());
    let items = told["items"].as_array().unwrap_or_else(|| panic!("{told}"));
    let missing = |item: &Value| item["missing"].as_array().map_or(0, Vec::len);
    let lost: Vec<&Value> = items.iter().filter(|item| missing(item) > 0 || item["lost"] == true).collect();
    let [one] = lost.as_slice() else { panic!("one file alone lost anything: {told}") };
    assert_eq!(
        (one["path"].as_str(), one["inode"].as_u64(), missing(one)),
        (Some(path), Some(ino), 1),
        "{one}"
    );
    let [from, to] = [0, 1].map(|i| one["missing"][0][i].as_u64().unwrap());
    assert_eq!((from % 4096, to - from), (byte, bytes), "what cannot be read and no more: {one}");
    // Around it all is as it was.
    let copy = std::fs::read(format!("{to_dir}{path}", to_dir = b.name(&format!("copy-{round}")))).unwrap();
    let at = from as usize;
    let end = at + bytes as usize;
    assert!(copy[at..end].iter().all(|byte| *byte == 0), "a hole");
    let image = File::open(b.path("basic-4k.img")).unwrap();
    let mut block_was = [0; 4096];
    image.read_exact_at(&mut block_was, block << 12).unwrap();
    let start = at - byte as usize;
    assert!(copy[start..at] == block_was[..byte as usize]);
    assert!(copy[end..start + 4096] == block_was[(byte + bytes) as usize..]);
}

#[test]
fn sectors_of_a_file() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let (path, ino, blocks) = some_file(&g);
    let block = blocks[2];
    let disk = Disk::new(&b, &g);
    b.ok(&["scrub", "--restart", &disk.path()]);
    let whole = b.ok(&["check", &disk.path()]);
    assert!(whole.contains(": sound; "), "{whole}");
    disk.spoil((block << 12) + 1024..(block << 12) + 1536);
    look(&b, &disk.path(), (&path, ino, block), "file");
    if let Some(device) = Loop::on(&disk.path()) {
        look(&b, device.path(), (&path, ino, block), "loop");
    }
}

/// A super block that cannot be read, and what the volume needs most: the others do.
#[test]
fn sectors_of_the_volume_itself() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let disk = Disk::new(&b, &g);
    disk.spoil(1024..1536);
    let run = b.run(&["scrub", "--json", &disk.path()]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let told = json(&run.out);
    assert_eq!((run.code, told["super_blocks"][0]["kind"].as_str()), (4, Some("unreadable")), "{told}");
    assert_eq!(told["super_blocks"][0]["byte"].as_u64(), Some(1024), "{told}");
    let run = b.run(&["scrub", &disk.path()]);
    let line =
        "the first of the two super blocks, byte 1024: 512 bytes cannot be read; silt repair writes it anew";
    assert!(run.out.contains(line), "{}", run.out);
    let run = b.run(&["check", &disk.path()]);
    assert!(run.code == 4 && run.out.contains("[super-block-copy]"), "{}", run.out);
    let run = b.run(&["rescue", &disk.path(), "--to", &b.name("copy")]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(run.out.contains("Everything came back"), "{}", run.out);
}

/// What was synced in front of sectors behind the newest checkpoint that cannot be read comes back, what was synced behind
/// them is told of, and the volume mounts again.
#[test]
fn sectors_behind_the_newest_checkpoint() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let volume = b.volume("live.img", "256M");
    let (m, _) = crate::common::Mounted::new(&b, &[&volume], "mnt");
    for name in ["a", "b", "c"] {
        std::fs::write(m.path(name), [b'0'; 40960]).unwrap();
    }
    b.ok(&["sync", m.dir()]);
    for (round, content) in [(0, b'1'), (1, b'2')] {
        for name in ["a", "b", "c"] {
            let file = File::options().write(true).open(m.path(name)).unwrap();
            file.write_all_at(&[content; 8192], round * 8192).unwrap();
            file.sync_data().unwrap();
        }
    }
    // As a power cut leaves it.
    let crashed = b.name("crashed.img");
    std::fs::copy(&volume, &crashed).unwrap();
    m.unmount();
    let image = std::fs::read(&crashed).unwrap();
    // ss_magic (spec 3.3), by block of the first segment.
    let logs: Vec<u64> = (1..2048u64)
        .filter(|at| image[usize::try_from(at << 12).unwrap()..][8..12] == MAGIC.to_le_bytes())
        .collect();
    // The first of each file is whole, and so is what follows the second of the first file.
    let [.., _, _, _, bad, _, _] = logs.as_slice() else { panic!("{logs:?}") };
    let disk = Disk::writable(&b, &crashed);
    disk.spoil((bad << 12) + 512..(bad << 12) + 1024);
    let disk = disk.path();
    let said = b.fails(10, &["mount", &disk, &b.name("mnt")]);
    assert!(said.contains("silt check says what that hits"), "{said}");
    let run = b.run(&["check", &disk]);
    let place =
        format!("block {bad}: a mount comes no further than block {bad}, behind which 2 whole logs follow");
    assert!(run.code == 4 && run.out.contains(&place), "{}", run.out);
    let run = b.run(&["rescue", &disk, "--to", &b.name("copy")]);
    assert!(run.code == 1 && run.out.contains("synced data behind checkpoint"), "{}", run.out);
    let copied = |name: &str| std::fs::read(b.path("copy").join(name)).unwrap();
    for name in ["a", "b", "c"] {
        assert!(copied(name)[..8192] == [b'1'; 8192] && copied(name)[8192..] == [b'0'; 32768], "{name}");
    }
    for name in ["b.synced", "c.synced"] {
        assert!(copied(name)[8192..16384] == [b'2'; 8192], "{name}");
    }
    let said = b.ok(&["repair", &disk, "--undo", &b.name("undo"), "--yes"]);
    assert!(said.contains("6 blocks of synced data behind the newest checkpoint taken in"), "{said}");
    assert!(said.contains("synced data behind checkpoint") && said.contains("marked as bad: "), "{said}");
    assert!(b.ok(&["check", "--all", &disk]).contains(": sound; "));
    let (m, _) = crate::common::Mounted::new(&b, &[&disk], "again");
    for name in ["a", "b", "c"] {
        assert!(std::fs::read(m.path(name)).unwrap() == copied(name), "{name}");
    }
    m.unmount();
}

/// Of a block device the system reads whole pages, and does so before it writes a part of one: what is beside a bad sector
/// is read, and what is written over it is written.
#[test]
fn super_blocks_that_cannot_be_read_are_written_anew() {
    if !can_mount() || !is_root() {
        return;
    }
    for both in [false, true] {
        let b = Bench::new();
        let g = b.golden("basic-4k");
        let size = std::fs::metadata(&g).unwrap().len();
        let disk = Disk::writable(&b, &g);
        let Some(device) = Loop::writable(&disk.path()) else { return };
        let (volume, copy) = (device.path(), b.name("copy"));
        // In the page of the first one, and not in it: nothing is wrong.
        disk.spoil(512..1024);
        assert!(b.ok(&["check", volume]).contains(": sound; "), "{both}");
        disk.spoil(1024..1536);
        if both {
            let second = ((size >> 12) - 1) << 12;
            disk.spoil(second..second + 512);
        }
        let run = b.run(&["check", volume]);
        assert!(run.code != 0 && !run.out.contains("sound"), "{}{}", run.out, run.err);
        let run = b.run(&["rescue", volume, "--to", &copy]);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        let run = b.run(&["repair", volume, "--undo", &b.name("undo"), "--yes"]);
        assert_eq!(run.code, 0, "{both}: {}{}", run.out, run.err);
        assert!(b.ok(&["check", volume]).contains(": sound; "), "{both}");
    }
}

/// The other one is enough, and it is said.
#[test]
fn a_super_block_that_cannot_be_written_keeps_nobody_from_writing() {
    if !can_mount() {
        return;
    }
    for first in [true, false] {
        let b = Bench::new();
        let g = b.golden("basic-4k");
        let size = std::fs::metadata(&g).unwrap().len();
        let disk = Disk::writable(&b, &g);
        disk.fix(if first { 1024..2048 } else { size - 4096..size });
        let note =
            format!("the {} super block cannot be written", if first { "primary" } else { "secondary" });
        let volume = disk.path();
        let (m, _) = crate::common::Mounted::new(&b, &[&volume], "m");
        let status = b.ok(&["status", m.dir()]);
        assert!(status.contains(&note), "{status}");
        std::fs::write(m.path("new"), "new").unwrap();
        m.unmount();
        let run = b.run(&["mkcp", &volume]);
        assert!(run.code == 0 && run.err.contains(&note), "{}{}", run.out, run.err);
        let (m, _) = crate::common::Mounted::new(&b, &[&volume, "-o", "ro"], "again");
        assert_eq!(std::fs::read_to_string(m.path("new")).unwrap(), "new");
        m.unmount();
    }
}

/// An image that lies in a mounted volume, with its first super block or both overwritten: it is not taken for a file of
/// that volume.
#[test]
fn a_damaged_image_in_a_mounted_volume_is_still_an_image() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let outer = b.volume("outer.img", "512M");
    let (m, _) = crate::common::Mounted::new(&b, &[&outer], "mnt");
    let path = m.path("inner.img");
    let inner = path.to_str().unwrap();
    std::fs::write(&path, std::fs::read(b.golden("basic-4k")).unwrap()).unwrap();
    let scribble = |at: u64| {
        use std::os::unix::fs::FileExt;
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[7; 512], at).unwrap();
    };
    scribble(1024);
    // A verb for which both an image and a mount would do.
    assert!(b.ok(&["lscp", inner]).lines().count() > 5);
    let run = b.run(&["check", inner]);
    assert!(run.code == 4 && run.out.contains("[super-block-copy]"), "{}{}", run.out, run.err);
    let run = b.run(&["scrub", inner]);
    assert!(run.code == 4 && run.out.contains("the first of the two super blocks"), "{}", run.out);
    let size = std::fs::metadata(&path).unwrap().len();
    scribble(((size >> 12) - 1) << 12);
    let run = b.run(&["check", inner]);
    assert!(run.code != 0 && !run.out.contains("sound"), "{}{}", run.out, run.err);
    assert_eq!(b.run(&["repair", "--dry-run", inner]).code, 4);
    let run = b.run(&["rescue", inner, "--to", &b.name("copy")]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    // The directory means the mount.
    assert!(b.ok(&["check", m.dir()]).contains(": sound; "));
    m.unmount();
}
