//! `silt sync`

use crate::common::{Bench, Mounted, can_mount};

#[test]
fn of_an_unmounted_volume_is_the_newest_checkpoint() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let before = std::fs::read(&v).unwrap();
    assert_eq!(b.ok(&["sync", "-p", &v]), "7\n");
    assert!(std::fs::read(&v).unwrap() == before);
}

#[test]
fn makes_a_checkpoint_of_what_waits() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
    let first = b.json(&["sync", "--json", m.dir()])["checkpoint"].as_u64().unwrap();
    std::fs::write(m.path("f"), "x").unwrap();
    let second = b.json(&["sync", "--json", m.dir()])["checkpoint"].as_u64().unwrap();
    assert!(second > first);
    // Nothing waits now.
    assert_eq!(b.json(&["sync", "--json", &v])["checkpoint"], second);
    assert_eq!(b.checkpoints(&v).last(), Some(&(second, false)));
    m.unmount();
}
