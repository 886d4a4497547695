//! `silt resize`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::Bench;

#[test]
fn grows_the_image_and_the_volume() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let before = b.json(&["tune", "--json", &v])["segments"].as_u64().unwrap();
    let r = b.json(&["resize", "--json", &v, "64M"]);
    assert_eq!(r["segments_before"], before);
    let after = b.json(&["tune", "--json", &v]);
    assert_eq!(after["segments"], r["segments"]);
    assert!(after["segments"].as_u64().unwrap() > 2 * before - 2);
    assert_eq!(after["device_size"], 64 << 20);
    assert_eq!(after["valid"], true);
    assert_eq!(std::fs::metadata(&v).unwrap().len(), 64 << 20);
    assert_eq!(b.ok(&["lssu", "-a", &v]).lines().count() as u64 - 1, after["segments"].as_u64().unwrap());
    assert!(b.ok(&["resize", &v]).contains("no room for more"));
}

#[test]
fn takes_all_of_a_device_that_has_become_longer() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::File::options().write(true).open(&v).unwrap().set_len(48 << 20).unwrap();
    assert!(b.ok(&["resize", &v]).contains("more than before"));
    assert_eq!(b.json(&["tune", "--json", &v])["device_size"], 48 << 20);
}

#[test]
fn does_not_shrink() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let before = std::fs::read(&v).unwrap();
    assert!(b.fails(12, &["resize", &v, "16M"]).contains("smaller"));
    assert_eq!(std::fs::read(&v).unwrap().len(), before.len());
    assert_eq!(b.run(&["resize", &v, "16Q"]).code, 2);
}
