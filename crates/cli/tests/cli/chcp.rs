//! `silt chcp`

use crate::common::{Bench, Run, SILT};

#[test]
fn checkpoints_become_snapshots_and_back() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    b.ok(&["chcp", "ss", &v, "1", "3", "7"]);
    let snapshots = |b: &Bench| -> Vec<u64> {
        b.checkpoints(&v).into_iter().filter(|(_, s)| *s).map(|(n, _)| n).collect()
    };
    assert_eq!(snapshots(&b), [1, 2, 3, 4, 5, 7]);
    b.ok(&["chcp", "cp", &v, "2", "4", "7"]);
    assert_eq!(snapshots(&b), [1, 3, 5]);
    // What is so already is no error, and no change.
    let before = b.checkpoints(&v).len();
    b.ok(&["chcp", "ss", &v, "1"]);
    b.ok(&["chcp", "cp", &v, "2"]);
    assert_eq!(b.checkpoints(&v).len(), before);
}

#[test]
fn missing_ones_are_told_and_the_others_done() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let said = b.run(&["chcp", "ss", &v, "100", "3", "101"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("100") && said.err.contains("101"), "{}", said.err);
    assert!(b.checkpoints(&v).contains(&(3, true)));
    assert_eq!(said.out, "1 of 3 checkpoints is a snapshot now\n");
    assert_eq!(b.ok(&["chcp", "cp", &v, "2", "3"]), "2 checkpoints are plain ones now\n");
    b.run(&["chcp", "ss", &v, "100", "3"]);
    assert_eq!(b.run(&["chcp", "cp", &v, "100", "101"]).code, 9, "none of them is there");
    std::os::unix::fs::symlink(SILT, b.path("chcp")).unwrap();
    let run = Run::of(&b.command(b.path("chcp")).args(["cp", &v, "100"]).output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{}", run.err);
}

#[test]
fn the_newest_snapshot_stays_one_until_there_is_a_newer_checkpoint() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["chcp", "ss", &v, "1"]);
    b.ok(&["chcp", "ss", &v, "2"]);
    b.ok(&["chcp", "cp", &v, "1"]);
    // Checkpoint 4 is the newest now: checkpoints 2 to 4 were made by the changes themselves.
    b.ok(&["chcp", "cp", &v, "2"]);
    assert!(b.checkpoints(&v).iter().all(|(_, s)| !*s));
}

#[test]
fn wrong_use_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.fails(2, &["chcp", "ss", &v]);
    b.fails(2, &["chcp", "ss", &v, "x"]);
    b.fails(2, &["chcp", "ss", &v, "0"]);
    b.fails(2, &["chcp", "ss", &v, "99999999999999999999999"]);
    assert_eq!(b.run(&["chcp", "xx", &v, "1"]).code, 2);
    assert_eq!(b.run(&["chcp"]).code, 2);
    assert_eq!(b.checkpoints(&v), [(1, false)]);
}

#[test]
fn what_was_changed_is_told_as_json() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["mkcp", &v]);
    let json = b.json(&["chcp", "ss", "--json", &v, "1"]);
    assert_eq!(json, serde_json::json!({ "changed": [1], "snapshot": true, "refused": [] }));
    let run = b.run(&["chcp", "cp", "--json", &v, "1", "99"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json, serde_json::json!({ "changed": [1], "snapshot": false, "refused": [99] }));
}
