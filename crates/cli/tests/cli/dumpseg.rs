//! `silt dumpseg`

use crate::common::{Bench, unpack};

use std::path::Path;

#[test]
fn prints_what_nilfs_utils_print() {
    let b = Bench::new();
    let volume = b.golden("basic-4k");
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/expected/basic-4k.dumpseg.zst");
    unpack(&packed, &b.path("wanted"));
    let wanted = std::fs::read_to_string(b.path("wanted")).unwrap();
    let got = b.ok(&["dumpseg", &volume, "0", "3", "6", "7", "9"]);
    for (n, (got, wanted)) in got.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(got, wanted, "line {}", n + 1);
    }
    assert_eq!(got.len(), wanted.len());
}

#[test]
fn a_missing_segment_is_told_and_the_others_shown() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let run = b.run(&["dumpseg", &v, "0", "9999", "2"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("9999"), "{}", run.err);
    assert!(
        run.out.starts_with("segment: segnum = 0\n  sequence number = 0, next segnum = 1\n"),
        "{}",
        run.out
    );
    assert!(run.out.ends_with("\nsegment: segnum = 2\n"), "{}", run.out);
    b.fails(9, &["dumpseg", &v, "9999"]);
    let run = b.run(&["dumpseg", "--json", &v, "9999"]);
    assert_eq!((run.code, run.out.as_str()), (9, ""), "a failure has no result");
    b.fails(2, &["dumpseg", &v]);
    b.fails(2, &["dumpseg", &v, "x"]);
}

#[test]
fn json_is_a_flat_list() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let list = b.json(&["dumpseg", "--json", &v, "0"]);
    let list = list.as_array().unwrap();
    assert_eq!(list[0]["segment"]["number"], 0);
    assert_eq!(list[1]["log"]["blocks"], 11);
    assert_eq!(list[2]["file"]["inode"], 2);
    assert_eq!(list[3]["block"]["virtual_block"], 1);
    assert_eq!(list.len(), 2 + 5 + 9);
}
