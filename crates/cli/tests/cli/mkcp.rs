//! `silt mkcp`

use crate::common::Bench;

#[test]
fn a_snapshot_is_made_of_the_newest_checkpoint() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    assert_eq!(b.ok(&["mkcp", &v]), "");
    assert_eq!(b.checkpoints(&v), [(1, false)], "nothing waited");
    assert_eq!(b.ok(&["mkcp", "-s", "-p", &v]), "1\n");
    assert_eq!(b.checkpoints(&v), [(1, true), (2, false)]);
    assert_eq!(b.json(&["mkcp", "-s", "--json", &v]), serde_json::json!({"checkpoint": 2, "snapshot": true}));
    assert_eq!(b.checkpoints(&v), [(1, true), (2, true), (3, false)]);
}

#[test]
fn the_volume_is_left_clean_and_newer_than_before() {
    let b = Bench::new();
    let v = b.golden("cut-4k");
    b.ok(&["mkcp", &v]);
    let s = b.json(&["tune", "--json", &v]);
    assert_eq!(s["valid"], true);
    let run = b.run(&["lscp", &v]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
}
