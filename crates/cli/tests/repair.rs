//! `silt repair`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::Bench;

use std::os::unix::fs::FileExt;

fn scribble(volume: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn a_sound_volume_is_left_alone() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    assert!(b.ok(&["repair", "--no-undo", "--yes", &g]).ends_with(": nothing to mend\n"));
    assert!(b.ok(&["repair", "--dry-run", &g]).ends_with(": nothing to mend\n"));
    assert!(std::fs::read(&g).unwrap() == before);
}

/// A block of a file is overwritten, and the first super block.
#[test]
fn damage_is_planned_mended_and_taken_back() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    scribble(&g, 1024, &[7; 512]);
    scribble(&g, (3 << 20) + 9 * 4096, &[9; 64]);
    let broken = std::fs::read(&g).unwrap();
    let run = b.run(&["repair", "--dry-run", &g]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    for part in ["[super-block]", "the first super block is written anew", "[log]", " 0 after"] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    b.fails(2, &["repair", &g]);
    let undo = b.name("undo");
    b.fails(2, &["repair", "--undo", &undo, &g]);
    assert!(std::fs::read(&g).unwrap() == broken, "nothing was written so far");
    let said = b.ok(&["repair", "--undo", &undo, "--yes", &g]);
    assert!(said.contains("saved in"), "{said}");
    assert!(b.ok(&["check", &g]).contains(": sound; "));
    assert!(b.ok(&["repair", "--no-undo", "--yes", &g]).contains("nothing to mend"));
    assert!(b.ok(&["repair", "--take-back", &undo, &g]).contains("is taken back"));
    assert!(std::fs::read(&g).unwrap() == broken, "all is as it was");
    assert!(b.ok(&["repair", "--take-back", &undo, &g]).contains("nothing to take back"));
    let other = b.volume("v.img", "32M");
    b.fails(2, &["repair", "--take-back", &undo, &other]);
}

#[test]
fn what_was_written_since_is_not_taken_back_unasked() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    scribble(&g, 1024, &[7; 512]);
    let undo = b.name("undo");
    b.ok(&["repair", "--undo", &undo, "--yes", &g]);
    b.ok(&["tune", "-L", "later", &g]);
    assert!(b.fails(12, &["repair", "--take-back", &undo, &g]).contains("--force"));
    b.ok(&["repair", "--take-back", &undo, "--force", &g]);
}

#[test]
fn the_tree_goes_back_to_a_moment() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = b.checkpoints(&g);
    let json = b.json(&["repair", "--no-undo", "--yes", "--json", "--roll-back", "2", &g]);
    assert_eq!((json["applied"].as_bool(), json["errors_after"].as_u64()), (Some(true), Some(0)), "{json}");
    assert!(b.ok(&["check", "--all", &g]).contains(": sound; "));
    let after = b.checkpoints(&g);
    let last = before.last().unwrap().0;
    assert!(after.contains(&(last, true)), "{after:?}");
    assert!(before.iter().all(|(c, _)| after.iter().any(|(a, _)| a == c)), "{after:?}");
    let said = b.fails(9, &["repair", "--no-undo", "--yes", "--roll-back", "4711", &g]);
    assert!(said.contains("there is no checkpoint 4711"), "{said}");
    b.fails(9, &["repair", "--no-undo", "--yes", "--roll-back", "1970-01-02", &g]);
}
