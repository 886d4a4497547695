//! `silt check`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::Bench;

use std::os::unix::fs::FileExt;

#[test]
fn volumes_of_silt_and_of_the_kernel_are_sound() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.ok(&["check", &v]);
    assert!(said.contains(": sound; ") && said.ends_with("cleanly unmounted\n"), "{said}");
    let g = b.golden("basic-4k");
    let json = b.json(&["check", "--json", "--all", &g]);
    assert_eq!((json["sound"].as_bool(), json["errors"].as_u64()), (Some(true), Some(0)), "{json}");
    assert!(json["trees_walked"].as_u64().unwrap() > 1 && json["inodes"].as_u64().unwrap() > 10, "{json}");
}

/// A log that does not verify any more is said with the place, and nothing is written.
#[test]
fn damage_is_told_with_its_place() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let file = std::fs::File::options().read(true).write(true).open(&g).unwrap();
    // A block of a file: behind the head of a log.
    let at = (3 << 20) + 9 * 4096;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, at).unwrap();
    file.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
    let before = std::fs::read(&g).unwrap();
    let run = b.run(&["check", &g]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.lines().any(|line| line.starts_with("error [log-checksum] segment ")), "{}", run.out);
    assert!(run.out.lines().last().unwrap().contains(" error"), "{}", run.out);
    let run = b.run(&["check", "--json", &g]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, json["sound"].as_bool()), (4, Some(false)));
    assert!(json["counts"]["log-checksum"].as_u64().unwrap() >= 1, "{json}");
    assert!(std::fs::read(&g).unwrap() == before, "a check writes nothing");
}

#[test]
fn what_is_no_volume_is_said() {
    let b = Bench::new();
    std::fs::write(b.path("x"), vec![7; 1 << 20]).unwrap();
    assert!(b.fails(3, &["check", "x"]).contains("not a NILFS2 volume"));
    b.fails(9, &["check", "nowhere"]);
}
