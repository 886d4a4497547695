//! Images on file systems that are full: nothing that was accepted is lost, and deleting makes room.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Bench, Mounted, can_mount, find, is_root};

const MIB: usize = 1 << 20;
/// A full btrfs looks for space at each write, for a tenth of a second and more.
const SOME: usize = 12;

/// A file system of its own, gone when dropped.
struct Host(PathBuf);

impl Host {
    /// With room for `mib`. None where it cannot be had here.
    fn new(b: &Bench, kind: &str, mib: u64) -> Option<Self> {
        if !is_root() || !find("mount") || (kind != "tmpfs" && !find(&format!("mkfs.{kind}"))) {
            eprintln!("left out: there is no {kind} here");
            return None;
        }
        let dir = b.path(&format!("host.{kind}"));
        std::fs::create_dir(&dir).unwrap();
        let at = dir.to_str().unwrap();
        let mounted = if kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs", at])
        } else {
            let disk = b.name(&format!("{kind}.img"));
            std::fs::File::create(&disk).unwrap().set_len(mib << 20).unwrap();
            assert!(run(&format!("mkfs.{kind}"), &["-q", &disk]));
            run("mount", &["-o", "loop", &disk, at])
        };
        if !mounted {
            eprintln!("left out: no {kind} can be mounted here");
        }
        mounted.then_some(Host(dir))
    }

    fn name(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }

    /// Somebody else takes all that is left.
    fn fill(&self, file: &str) {
        // Where not even an inode is left, it is full.
        let Ok(mut file) = std::fs::File::create(self.0.join(file)) else { return };
        for size in [MIB, 4096] {
            let bytes = vec![0x5a; size];
            while file.write_all(&bytes).is_ok() {}
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

/// What would be overwritten finds no room: nothing is written, half a file of it does not stay, and what to do is said.
#[test]
fn an_undo_file_that_finds_no_room_is_gone_again() {
    let b = Bench::new();
    let Some(host) = Host::new(&b, "tmpfs", 1) else { return };
    host.fill("taken");
    let v = b.volume("v.img", "32M");
    let file = std::fs::File::options().write(true).open(&v).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 512], 1024).unwrap();
    let broken = std::fs::read(&v).unwrap();
    let undo = host.name("undo");
    let run = b.run(&["repair", "--yes", "--undo", &undo, &v]);
    assert_eq!(run.code, 8, "{}{}", run.out, run.err);
    let said =
        format!("silt: nothing was written, since what would be overwritten cannot be saved: {undo}: ");
    assert!(run.err.starts_with(&said) && run.err.contains("No space left"), "{}", run.err);
    assert!(
        run.err.contains(&format!("  (silt repair --undo FILE {v} takes a file elsewhere, where ")),
        "{}",
        run.err
    );
    assert!(!std::path::Path::new(&undo).exists() && std::fs::read(&v).unwrap() == broken);
    // One that was there before stays.
    std::fs::remove_file(host.name("taken")).unwrap();
    b.ok(&["repair", "--yes", "--undo", &undo, &v]);
    assert_eq!(b.run(&["repair", "--yes", "--undo", &undo, &v]).code, 2);
    assert!(std::path::Path::new(&undo).exists());
}

fn run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|run| run.status.success())
}

fn content(n: usize) -> Vec<u8> {
    (0..2 * MIB).map(|i| (i * 31 + n * 7 + (i >> 12)) as u8).collect()
}

/// Files of 2 MiB until there is no space, so many at most; how many.
fn fill(m: &Mounted<'_>, most: usize) -> usize {
    for n in 0..most {
        if let Err(e) = std::fs::write(m.path(&format!("f{n}")), content(n)) {
            assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{e}");
            let _ = std::fs::remove_file(m.path(&format!("f{n}")));
            return n;
        }
    }
    most
}

/// Makes a small file, within ten seconds.
fn makes_one(m: &Mounted<'_>, name: &str) {
    let begin = Instant::now();
    while let Err(e) = std::fs::write(m.path(name), name) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{name}: {e}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn on_a_full(kind: &str, mib: u64) {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let Some(host) = Host::new(&b, kind, mib) else { return };
    let v = host.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "1G", "-B", "256", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    // What is told as available is about what can be written.
    let told = b.json(&["status", "--json", m.dir()])["available"].as_u64().unwrap() / (2 * MIB as u64);
    let files = fill(&m, usize::MAX);
    let about = told / 4 + 4;
    assert!(files as u64 <= told && files as u64 + about >= told, "{kind}: {files} files, {told} told");
    // All of it is durable, whatever others do now.
    host.fill("theirs");
    b.ok(&["sync", m.dir()]);
    for n in 0..files / 2 {
        std::fs::remove_file(m.path(&format!("f{n}"))).unwrap();
    }
    b.ok(&["sync", m.dir()]);
    makes_one(&m, "small");
    b.ok(&["sync", m.dir()]);
    m.unmount();
    // And so it is mounted, after a power cut, too.
    host.fill("more");
    let (m, said) = Mounted::new(&b, &[&v], "m");
    assert!(!said.contains("only be read"), "{kind}: {said}");
    std::fs::remove_file(m.path(&format!("f{}", files / 2))).unwrap();
    b.ok(&["sync", m.dir()]);
    let pid = b.json(&["status", "--json", m.dir()])["pid"].as_u64().unwrap().to_string();
    assert!(run("kill", &["-9", &pid]));
    while std::fs::metadata(format!("/proc/{pid}")).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = silt_fuse::unmount(&b.path("m"), silt_fuse::Unmount::Lazy);
    host.fill("all");
    let (m, said) = Mounted::new(&b, &[&v], "m");
    assert!(!said.contains("only be read"), "{kind}: {said}");
    makes_one(&m, "after");
    for n in files / 2 + 1..files {
        assert!(std::fs::read(m.path(&format!("f{n}"))).unwrap() == content(n), "{kind}: f{n}");
        std::fs::remove_file(m.path(&format!("f{n}"))).unwrap();
    }
    assert_eq!(std::fs::read(m.path("small")).unwrap(), b"small");
    // All of that can be used again, and nobody is refused what the cleaner is about to have.
    let wanted = if kind == "btrfs" { SOME } else { files - 8 };
    for n in 0..wanted {
        let written = std::fs::write(m.path(&format!("f{n}")), content(n));
        assert!(written.is_ok(), "{kind}: {n} of {wanted}: {written:?}\n{}", b.ok(&["status", m.dir()]));
    }
    b.ok(&["sync", m.dir()]);
    m.unmount();
    let said = b.ok(&["check", "--all", &v]);
    assert!(said.contains(": sound; "), "{said}");
    // Others make room: nothing is wanted any more for what is clean.
    for file in ["theirs", "more", "all"] {
        let _ = std::fs::remove_file(host.name(file));
    }
    let (m, _) = Mounted::new(&b, &[&v], "m");
    makes_one(&m, "last");
    m.unmount();
}

#[test]
fn on_a_full_tmpfs() {
    on_a_full("tmpfs", 100);
}

#[test]
fn on_a_full_ext4() {
    on_a_full("ext4", 120);
}

#[test]
fn on_a_full_xfs() {
    on_a_full("xfs", 400);
}

#[test]
#[ignore = "such a host takes long to find that it is full"]
fn on_a_full_btrfs() {
    on_a_full("btrfs", 300);
}

/// Making room by hand, with nothing mounted.
#[test]
fn a_volume_on_a_full_host_is_cleaned_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let Some(host) = Host::new(&b, "tmpfs", 64) else { return };
    let v = host.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "512M", "-B", "256", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let files = fill(&m, usize::MAX);
    host.fill("theirs");
    b.ok(&["sync", m.dir()]);
    (0..files).for_each(|n| std::fs::remove_file(m.path(&format!("f{n}"))).unwrap());
    b.ok(&["sync", m.dir()]);
    m.unmount();
    let before = std::fs::metadata(host.name("theirs")).unwrap().len();
    // Nothing of the past is to stay.
    b.ok(&["clean", "--retain=nothing", &v]);
    b.ok(&["trim", &v]);
    host.fill("more");
    let gained = std::fs::metadata(host.name("more")).unwrap().len();
    assert!(gained as usize > files * MIB, "{gained} bytes of {before}");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    makes_one(&m, "one");
    m.unmount();
}

/// Its second super block would lie where there is no space.
#[test]
fn a_volume_that_cannot_grow_on_a_full_host_is_as_it_was() {
    let b = Bench::new();
    let Some(host) = Host::new(&b, "tmpfs", 80) else { return };
    for mounted in [false, true] {
        if mounted && !can_mount() {
            return;
        }
        let v = host.name("v.img");
        b.ok(&["mkfs", "-q", "--size", "64M", &v]);
        let m = mounted.then(|| Mounted::new(&b, &[&v], "m").0);
        host.fill("theirs");
        let at = m.as_ref().map_or(v.clone(), |m| m.dir().to_owned());
        b.fails(8, &["resize", &at, "128M"]);
        assert_eq!(std::fs::metadata(&v).unwrap().len(), 64 << 20, "{mounted}");
        std::fs::remove_file(host.name("theirs")).unwrap();
        if let Some(m) = m {
            m.unmount();
        }
        b.ok(&["check", &v]);
        b.ok(&["resize", &v, "72M"]);
        b.ok(&["check", &v]);
        std::fs::remove_file(&v).unwrap();
    }
}

/// What lies behind the new end gives its space to what it moves to.
fn becomes_smaller_on_a_full(kind: &str, mib: u64) {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let Some(host) = Host::new(&b, kind, mib) else { return };
    for mounted in [false, true] {
        let v = host.name("v.img");
        b.ok(&["mkfs", "-q", "--size", "160M", "-B", "256", &v]);
        let (m, _) = Mounted::new(&b, &[&v], "m");
        b.ok(&["retain", m.dir(), "nothing"]);
        assert_eq!(fill(&m, 45), 45);
        b.ok(&["sync", m.dir()]);
        (0..20).for_each(|n| std::fs::remove_file(m.path(&format!("f{n}"))).unwrap());
        b.ok(&["sync", m.dir()]);
        b.ok(&["clean", "-p", "0", m.dir()]);
        b.ok(&["trim", m.dir()]);
        host.fill("theirs");
        let m = if mounted {
            b.ok(&["resize", m.dir(), "68M"]);
            m
        } else {
            m.unmount();
            b.ok(&["resize", &v, "68M"]);
            Mounted::new(&b, &[&v], "m").0
        };
        assert_eq!(std::fs::metadata(&v).unwrap().len(), 68 << 20, "{kind} {mounted}");

        // What little was left may have stayed with the host.
        std::fs::remove_file(m.path("f20")).unwrap();
        makes_one(&m, "small");
        for n in 21..45 {
            assert!(std::fs::read(m.path(&format!("f{n}"))).unwrap() == content(n), "{kind} {mounted}: f{n}");
        }
        b.ok(&["sync", m.dir()]);
        m.unmount();
        assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
        std::fs::remove_file(host.name("theirs")).unwrap();
        std::fs::remove_file(&v).unwrap();
    }
}

#[test]
fn becomes_smaller_on_a_full_tmpfs() {
    becomes_smaller_on_a_full("tmpfs", 110);
}

#[test]
fn becomes_smaller_on_a_full_ext4() {
    becomes_smaller_on_a_full("ext4", 130);
}
