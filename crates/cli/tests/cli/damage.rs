//! Damage while mounted: local, said, removable; `silt status --damage` and `-o verify`

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::disk::Disk;
use crate::common::{Bench, Mounted, can_mount};
use silt_device::{Device, MemoryDevice};
use silt_format::btree::{Node, is_btree};
use silt_verify::surgeon::{Sums, Surgeon};

const EIO: Option<i32> = Some(5);

/// Reads an image into memory, lets `change` at it, and writes it back.
fn operate(image: &str, change: impl FnOnce(&mut Surgeon)) {
    let bytes = fs::read(image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (i, chunk) in bytes.chunks(64 << 10).enumerate() {
        if chunk.iter().any(|b| *b != 0) {
            device.write_at((i as u64) << 16, &[chunk]).unwrap();
        }
    }
    let mut surgeon = Surgeon { device };
    change(&mut surgeon);
    let mut after = bytes.clone();
    surgeon.device.read_at(0, &mut after).unwrap();
    for (i, (new, old)) in after.chunks(4096).zip(bytes.chunks(4096)).enumerate() {
        if new != old {
            use std::os::unix::fs::FileExt;
            let file = fs::OpenOptions::new().write(true).open(image).unwrap();
            file.write_all_at(new, i as u64 * 4096).unwrap();
        }
    }
}

/// A volume with a large file whose map has nodes, and two others.
fn volume(b: &Bench) -> String {
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(b, &[&v], "m");
    fs::create_dir(m.path("dir")).unwrap();
    fs::write(m.path("dir/large"), vec![1; 3 << 20]).unwrap();
    fs::write(m.path("dir/small"), vec![2; 5000]).unwrap();
    fs::write(m.path("other"), vec![3; 50_000]).unwrap();
    m.unmount();
    v
}

/// Where the node is that maps the first blocks of a file.
fn first_node(s: &Surgeon, path: &str) -> u64 {
    let root = s.inode(s.ino(path)).bmap;
    assert!(is_btree(&root));
    s.place_of(Node::root(&root).ptr(0))
}

/// The same, with a node of the large file's map that makes no sense.
fn with_a_bad_map(b: &Bench) -> String {
    let v = volume(b);
    operate(&v, |s| {
        let node = first_node(s, "/dir/large");
        s.patch_with(node, Sums::All, |bytes| bytes.fill(0x5a));
    });
    v
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn damage(b: &Bench, what: &str) -> Vec<serde_json::Value> {
    b.json(&["status", "--damage", "--json", what]).as_array().unwrap().clone()
}

#[test]
fn a_map_that_makes_no_sense_costs_its_file_and_can_be_replaced() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = with_a_bad_map(&b);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let clean = b.ok(&["status", m.dir()]);
    assert!(!clean.contains("damage"), "{clean}");
    assert_eq!(b.ok(&["status", "--damage", m.dir()]), "no damage was met since the volume was mounted\n");
    for _ in 0..3 {
        assert_eq!(errno(fs::read(m.path("dir/large"))), EIO);
    }
    assert_eq!(fs::read(m.path("dir/small")).unwrap(), vec![2; 5000]);
    assert_eq!(fs::read(m.path("other")).unwrap(), vec![3; 50_000]);

    let out = b.ok(&["status", m.dir()]);
    assert!(out.contains("damage: 1 file, silt status --damage lists them"), "{out}");
    assert_eq!(b.json(&["status", "--json", m.dir()])["damaged"], 1);
    let list = b.ok(&["status", "--damage", m.dir()]);
    assert!(list.lines().count() == 1 && list.contains("  /dir/large (inode "), "{list}");
    assert!(list.contains("bytes 0 to ") && list.contains("B-tree node"), "{list}");
    let all = damage(&b, m.dir());
    assert_eq!((all.len(), all[0]["path"].as_str()), (1, Some("/dir/large")));
    assert!(all[0]["times"].as_u64().unwrap() >= 3 && all[0]["first"].as_u64().unwrap() > 1_700_000_000);

    // It is read-write, and stays so; the bad file goes, another comes in its place.
    fs::write(m.path("new"), [4; 9000]).unwrap();
    fs::remove_file(m.path("dir/large")).unwrap();
    fs::write(m.path("dir/large"), [5; 7000]).unwrap();
    b.ok(&["sync", m.dir()]);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert_eq!(fs::read(m.path("dir/large")).unwrap(), [5; 7000]);
    assert_eq!(fs::read(m.path("new")).unwrap(), [4; 9000]);
    assert_eq!(fs::read(m.path("dir/small")).unwrap(), vec![2; 5000]);
    assert!(damage(&b, m.dir()).is_empty());
    m.unmount();
}

/// As `rm -r` would.
#[test]
fn a_directory_with_a_damaged_inode_goes_with_rm_r() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = volume(&b);
    operate(&v, |s| s.patch_inode(s.ino("/dir"), |i| i.mode = 0o170_755.into()));
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let list = damage(&b, m.dir());
    assert!(list.is_empty());
    assert!(
        errno(fs::read_dir(m.path("dir")).and_then(|mut d| d.next().transpose())).is_some_and(|e| e == 5)
    );
    assert_eq!(damage(&b, m.dir())[0]["path"], "/dir");
    let rm = std::process::Command::new("rm").arg("-rf").arg(m.path("dir")).output().unwrap();
    assert!(rm.status.success(), "{}", String::from_utf8_lossy(&rm.stderr));
    fs::create_dir(m.path("dir")).unwrap();
    fs::write(m.path("dir/f"), "x").unwrap();
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert_eq!(fs::read(m.path("dir/f")).unwrap(), b"x");
    assert_eq!(fs::read(m.path("other")).unwrap(), vec![3; 50_000]);
    m.unmount();
}

/// A changed byte of file data: only a checksum can tell.
#[test]
fn verify_refuses_data_of_a_log_that_does_not_match() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = volume(&b);
    let bytes = fs::read(&v).unwrap();
    // Far into the large file, so that it lies in another log than the small ones.
    operate(&v, |s| {
        let blocks = s.file(s.ino("/dir/large"));
        let at = blocks[&400];
        s.patch_with(at, Sums::None, |bytes| bytes[123] ^= 0x10);
    });
    assert_ne!(bytes, fs::read(&v).unwrap());
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let silent = fs::read(m.path("dir/large")).unwrap();
    assert_ne!(silent, vec![1; 3 << 20], "nothing tells without verify");
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v, "-o", "verify,interval=3600"], "m");
    assert_eq!(errno(fs::read(m.path("dir/large"))), EIO);
    let all = damage(&b, m.dir());
    let large = all.iter().find(|d| d["path"] == "/dir/large").unwrap();
    assert!(large["what"].as_str().unwrap().contains("does not match its checksum"), "{all:?}");
    // What is written under it lies in logs that are verified as well.
    fs::write(m.path("new"), vec![7; 5 << 20]).unwrap();
    b.ok(&["sync", m.dir()]);
    drop_caches(&m.path("new"));
    assert_eq!(fs::read(m.path("new")).unwrap(), vec![7; 5 << 20]);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v, "-o", "verify"], "m");
    assert_eq!(fs::read(m.path("new")).unwrap(), vec![7; 5 << 20]);
    fs::remove_file(m.path("dir/large")).unwrap();
    m.unmount();
}

fn drop_caches(path: &Path) {
    let file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Damage of what writing needs: it is mounted, for reading only, and it is said.
#[test]
fn what_cannot_be_written_can_be_read() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = volume(&b);
    operate(&v, |s| {
        let table = s.file(5)[&0];
        s.patch_with(table, Sums::All, |bytes| bytes.fill(0xa5));
    });
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert_eq!(fs::read(m.path("other")).unwrap(), vec![3; 50_000]);
    assert_eq!(errno(fs::write(m.path("new"), "x")), Some(30), "EROFS");
    let out = b.ok(&["status", m.dir()]);
    assert!(out.contains("what writing needs is damaged"), "{out}");
    m.unmount();
}

/// What ended writing does not keep the volume mounted.
#[test]
fn a_volume_to_which_nothing_is_written_any_more_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = with_a_bad_map(&b);
    for waits in [false, true] {
        let (m, _) = Mounted::new(&b, &["-o", "errors=remount-ro", &v], "m");
        if waits {
            fs::write(m.path("new"), vec![5; 40_000]).unwrap();
        }
        assert_eq!(errno(fs::read(m.path("dir/large"))), EIO);
        let ended = || b.ok(&["status", m.dir()]).contains("nothing is written any more: damage was met");
        assert!((0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            ended()
        }));
        assert_eq!(errno(fs::write(m.path("later"), "x")), Some(30));
        let said = b.run(&["mkcp", m.dir()]);
        assert!(said.err.contains("nothing is written any more: damage was met"), "{}", said.err);
        assert_eq!(said.code, 11, "{}", said.err);
        assert!(!b.ok(&["status", m.dir()]).contains("tried again all the time"));
        m.unmount();
    }
    // What had been written before went along.
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert_eq!(fs::read(m.path("new")).unwrap(), vec![5; 40_000]);
    m.unmount();
}

/// A device that takes nothing any more: what waits is said before it is lost, and can still be read.
#[test]
fn an_unmount_that_would_lose_something_says_so() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let disk = Disk::writable(&b, &volume(&b));
    let (m, _) = Mounted::new(&b, &["-o", "errors=remount-ro", &disk.path()], "m");
    disk.fail_writes();
    fs::write(m.path("new"), vec![5; 40_000]).unwrap();
    assert_eq!(b.run(&["sync", m.dir()]).code, 10);
    // Once to hear that it cannot be written, and again: it is not given up by itself.
    for _ in 0..2 {
        let run = b.run(&["umount", m.dir()]);
        assert!(run.code == 10 && m.is_mounted(), "{} {}", run.code, run.err);
    }
    let run = b.run(&["umount", m.dir()]);
    assert!(
        run.err.contains("what waits would be lost")
            && run.err.contains(&format!("umount -l {} goes", m.dir())),
        "{}",
        run.err
    );
    assert_eq!(fs::read(m.path("new")).unwrap(), vec![5; 40_000]);
    b.ok(&["umount", "-l", m.dir()]);
    assert!(!m.is_mounted());
}

/// A change that is done and cannot be made durable is answered with an error, which the kernel takes for not done: what it
/// knows of files with other names is asked for again all the same.
#[test]
fn what_cannot_be_made_durable_leaves_no_old_link_counts() {
    type Change = fn(&Mounted<'_>) -> std::io::Result<()>;
    if !can_mount() {
        return;
    }
    let changes: [(&str, u64, Change); 3] = [
        ("unlink", 1, |m| fs::remove_file(m.path("b"))),
        ("link", 3, |m| fs::hard_link(m.path("a"), m.path("c"))),
        ("rename", 1, |m| fs::rename(m.path("other"), m.path("b"))),
    ];
    for (name, wanted, change) in changes {
        let b = Bench::new();
        let disk = Disk::writable(&b, &volume(&b));
        let (m, _) = Mounted::new(&b, &["-o", "dirsync,errors=remount-ro", &disk.path()], "m");
        fs::write(m.path("a"), "a").unwrap();
        fs::write(m.path("other"), "other").unwrap();
        fs::hard_link(m.path("a"), m.path("b")).unwrap();
        let links = || fs::metadata(m.path("a")).unwrap().nlink();
        assert_eq!(links(), 2, "{name}");
        disk.fail_writes();
        assert!(change(&m).is_err(), "{name}");
        let told = (0..250).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            links() == wanted
        });
        assert!(told, "{name}: {} links", links());
        b.ok(&["umount", "-l", m.dir()]);
    }
}
