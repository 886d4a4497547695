//! Files that users name for something to be written to

use crate::common::disk::Loop;
use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WRONG: i32 = 2;
const BUSY: i32 = 6;

/// What writes to a file that it is given.
fn commands<'a>(file: &'a str, volume: &'a str) -> [Vec<&'a str>; 3] {
    [
        vec!["map", "--svg", file, volume],
        vec!["rescue", volume, "--to", "out", "--report", file],
        vec!["scrub", "--restart", "--state", file, volume],
    ]
}

#[test]
fn no_volume_is_written_over() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    b.volume("other.img", "32M");
    std::os::unix::fs::symlink(&v, b.path("link")).unwrap();
    std::fs::hard_link(&v, b.path("hard")).unwrap();
    let before = std::fs::read(&v).unwrap();
    let other = std::fs::read(b.path("other.img")).unwrap();
    for file in [&v, "basic-4k.img", "link", "hard"] {
        for command in commands(file, &v) {
            let said = b.fails(WRONG, &command);
            assert!(said.contains(" is the volume itself") && said.contains("name another file"), "{said}");
        }
        let said = b.fails(WRONG, &["mount", "--log", file, &v, "m"]);
        assert!(said.contains(" is the volume itself"), "{said}");
    }
    for command in commands("other.img", &v) {
        assert!(b.fails(WRONG, &command).contains("holds a NILFS2 volume"), "{command:?}");
    }
    // A pass is written beside first.
    std::fs::hard_link(&v, b.path("pass.new")).unwrap();
    assert!(b.fails(WRONG, &["scrub", "--state", "pass", &v]).contains(" is the volume itself"));
    assert!(std::fs::read(&v).unwrap() == before && std::fs::read(b.path("other.img")).unwrap() == other);
    assert!(!b.path("out").exists(), "it is known before anything is copied");

    // With nothing left of its super blocks it is still the volume.
    let image = File::options().write(true).open(&v).unwrap();
    image.write_all_at(&[0; 4096], 0).unwrap();
    image.write_all_at(&[0; 8192], before.len() as u64 - 8192).unwrap();
    let before = std::fs::read(&v).unwrap();
    let said = b.fails(WRONG, &["rescue", &v, "--to", "out", "--report", "hard"]);
    assert!(said.contains(" is the volume itself"), "{said}");
    assert!(std::fs::read(&v).unwrap() == before);
}

#[test]
fn what_is_no_volume_is_written_over() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::write(b.path("map.svg"), "an older one").unwrap();
    b.ok(&["map", "--svg", "map.svg", &v]);
    b.ok(&["map", "--svg", "map.svg", &v]);
    assert!(std::fs::read_to_string(b.path("map.svg")).unwrap().starts_with("<svg"));
    b.ok(&["map", "--svg", "/dev/null", &v]);
    b.fails(9, &["map", "--svg", "nowhere/map.svg", &v]);
}

/// The volume is what lies behind the directory, and behind the device.
#[test]
fn nor_is_what_is_mounted_or_a_device() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert!(b.fails(WRONG, &["map", "--svg", &v, m.dir()]).contains("is the volume itself"));
    assert!(b.fails(WRONG, &["scrub", "--state", &v, m.dir()]).contains("is the volume itself"));
    // A file on it is none of it.
    b.ok(&["map", "--svg", m.path("map.svg").to_str().unwrap(), m.dir()]);
    m.unmount();

    let before = std::fs::read(&v).unwrap();
    let disk = b.name("disk");
    File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let (Some(of_v), Some(of_disk)) = (Loop::on(&v), Loop::writable(&disk)) else { return };
    for (file, volume) in [(v.as_str(), of_v.path()), (of_v.path(), v.as_str())] {
        for command in commands(file, volume) {
            assert!(b.fails(WRONG, &command).contains("is the volume itself"), "{command:?}");
        }
    }
    for command in commands(of_disk.path(), &v) {
        assert!(b.fails(WRONG, &command).contains("is a block device"), "{command:?}");
    }
    for command in commands(&disk, &v) {
        assert!(b.fails(BUSY, &command).contains("in use"), "{command:?}");
    }
    let (m, _) = Mounted::new(&b, &["-r", of_v.path()], "m");
    for file in [v.as_str(), of_v.path()] {
        assert!(b.fails(WRONG, &["map", "--svg", file, m.dir()]).contains("is the volume itself"), "{file}");
    }
    m.unmount();
    assert!(std::fs::read(&v).unwrap() == before);
}

/// Opening one would wait for who is at its other end.
#[test]
fn a_pipe_is_no_plain_file() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    assert!(Command::new("mkfifo").arg(b.path("pipe")).status().unwrap().success());
    let others = [
        vec!["scrub", "--state", "pipe", &v],
        vec!["repair", &v, "--take-back", "pipe"],
        vec!["repair", &v, "--take-back", "/dev/zero"],
        vec!["mount", "--log", "pipe", &v, "m"],
        vec!["mount", "-f", "--log", "pipe", &v, "m"],
    ];
    for command in commands("pipe", &v).into_iter().chain(others) {
        let mut child = b.command(SILT).args(&command).stderr(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                child.kill().unwrap();
                panic!("{command:?} waits");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let run = Run::of(&child.wait_with_output().unwrap());
        assert!(run.code == WRONG && run.err.contains(" is no plain file"), "{command:?}: {}", run.err);
    }
    assert!(!b.path("out").exists());
    // That standard output is one is whoever reads it to care for.
    assert!(b.ok(&["map", "--svg", "/dev/stdout", &v]).starts_with("<svg"));
}
