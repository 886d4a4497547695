//! `silt tune`

use crate::common::{Bench, Mounted, can_mount};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const UUID: &str = "c1b9d5a2-f162-11cf-9ece-0020afc76f16";

#[test]
fn settings_are_changed_and_shown() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let before = b.json(&["tune", "--json", &v]);
    b.ok(&["tune", "-L", "new name", "-U", UUID, "-i", "7", "-m", "100", "-O", "block_count", &v]);
    let s = b.json(&["tune", "--json", &v]);
    assert_eq!((s["label"].as_str(), s["uuid"].as_str()), (Some("new name"), Some(UUID)));
    assert_eq!((s["interval"].as_u64(), s["block_max"].as_u64()), (Some(7), Some(100)));
    assert_eq!(s["features"], serde_json::json!(["block_count"]));
    for same in ["mount_count", "last_checkpoint", "last_block", "valid", "created", "crc_seed", "segments"] {
        assert_eq!(s[same], before[same], "{same}");
    }
    let listing = b.ok(&["tune", "-l", &v]);
    assert!(listing.contains("Filesystem volume name:   new name\n"), "{listing}");
    assert!(listing.contains("Commit interval:          7\n"), "{listing}");
    assert!(listing.contains("Filesystem state:         valid\n"), "{listing}");
    b.ok(&["tune", "-O", "^block_count", "-L", "", &v]);
    let s = b.json(&["tune", "--json", &v]);
    assert_eq!((s["features"].clone(), s["label"].as_str()), (serde_json::json!([]), Some("")));
    // Both copies hold it: the volume opens by either.
    let mut bytes = std::fs::read(&v).unwrap();
    bytes[1024..2048].fill(0);
    std::fs::write(&v, &bytes).unwrap();
    assert_eq!(b.json(&["tune", "--json", &v])["interval"], 7);
}

#[test]
fn wrong_values_change_nothing() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let before = std::fs::read(&v).unwrap();
    b.fails(2, &["tune", &v]);
    b.fails(2, &["tune", "-U", "bad", &v]);
    b.fails(2, &["tune", "-O", "foo", &v]);
    assert_eq!(b.run(&["tune", "-i", "x", &v]).code, 2);
    assert_eq!(b.run(&["tune", "-i", "-1", &v]).code, 2);
    b.fails(9, &["tune", "-l", "nothing.img"]);
    assert!(std::fs::read(&v).unwrap() == before);
}

#[test]
fn long_labels_are_cut_off() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["tune", "-L", &"x".repeat(100), &v]);
    assert_eq!(b.json(&["tune", "--json", &v])["label"], "x".repeat(80));
}

#[test]
fn a_label_does_not_command_the_terminal() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["tune", "-L", "a\u{1b}[2Jb", &v]);
    for args in [&["tune", "-l", &v][..], &["status", &v]] {
        let out = b.ok(args);
        assert!(out.contains("a?[2Jb") && !out.contains('\u{1b}'), "{out:?}");
    }
}

#[test]
fn a_label_that_is_cut_off_is_told_of() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let run = b.run(&["tune", "-L", &"x".repeat(81), &v]);
    assert!(run.code == 0 && run.err.contains("cut off after 80 bytes"), "{}", run.err);
    assert_eq!(b.run(&["tune", "-L", &"x".repeat(80), &v]).err, "");
}

#[test]
fn a_label_is_bytes() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let label = OsStr::from_bytes(b"a\xff");
    b.ok(&["tune".as_ref(), "-L".as_ref(), label, v.as_ref()]);
    assert_eq!(b.json(&["tune", "--json", &v])["label_bytes"], "61ff");
    if !can_mount() {
        return;
    }
    let (m, _) = Mounted::new(&b, &[&v], "m");
    b.ok(&["tune".as_ref(), "-L".as_ref(), OsStr::from_bytes(b"b\xfe"), m.dir().as_ref()]);
    assert_eq!(b.json(&["tune", "--json", m.dir()])["label_bytes"], "62fe");
    m.unmount();
}
