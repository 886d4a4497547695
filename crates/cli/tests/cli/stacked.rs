//! Mounts over one another on one directory: what is seen is what commands are about.

use crate::common::{Bench, Mounted, can_mount};

use std::fs;

/// What is mounted on a directory of a volume, from the bottom.
fn stack(b: &Bench, volume: &str) -> Vec<(bool, bool, bool)> {
    let status = b.json(&["status", "--json", volume]);
    let is = |m: &serde_json::Value, what: &str| m.get(what).is_some_and(|v| v == true);
    let mounts = status["mounts"].as_array().unwrap().iter();
    mounts.map(|m| (!m["checkpoint"].is_null(), is(m, "read_only"), is(m, "covered"))).collect()
}

#[test]
fn a_moment_over_its_own_volume_goes_alone() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    fs::write(m.path("f"), "then").unwrap();
    b.ok(&["sync", m.dir()]);
    let (live, moment) = ((false, false, false), (true, true, false));
    for twice in [false, true] {
        let said = b.ok(&["mount", "-o", "at=now", m.dir(), m.dir()]);
        assert!(said.contains(&format!("unmount with: silt umount {}", m.dir())), "{said}");
        if twice {
            b.ok(&["mount", "-o", "at=1", m.dir(), m.dir()]);
            assert!(!m.path("f").exists());
            b.ok(&["umount", m.dir()]);
        }
        assert!(fs::write(m.path("g"), "x").is_err(), "a moment");
        assert_eq!(stack(&b, &v), [(false, false, true), moment]);
        let said = b.ok(&["status", &v]);
        assert!(
            said.contains(&format!("{} read-write (not to be seen: another mount lies over it)", m.dir())),
            "{said}"
        );
        // What unmounts says so before it does.
        b.ok(&["umount", m.dir()]);
        assert!(m.is_mounted());
        fs::write(m.path("g"), "now").unwrap();
        assert_eq!(stack(&b, &v), [live]);
    }
    // By its image all of it goes.
    b.ok(&["mount", "-o", "at=now", m.dir(), m.dir()]);
    b.ok(&["umount", &v]);
    assert!(!m.is_mounted());
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
}

#[test]
fn a_moment_over_another_volume_over_its_own() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, w) = (b.volume("v.img", "64M"), b.volume("w.img", "64M"));
    let (m, _) = Mounted::new(&b, &[&v], "m");
    b.ok(&["mount", &w, m.dir()]);
    b.ok(&["mount", "-o", "at=1", &v, m.dir()]);
    assert_eq!(stack(&b, &v), [(false, false, true), (true, true, false)]);
    assert_eq!(stack(&b, &w), [(false, false, true)]);
    // Neither goes from below, and what lies over it is to be found.
    for volume in [&v, &w] {
        let said = b.fails(6, &["umount", volume]);
        let hint = format!("(unmount what lies over it first; findmnt -T {} shows what that is)", m.dir());
        assert!(said.contains("is covered by another mount") && said.contains(&hint), "{said}");
    }
    assert_eq!(stack(&b, &v).len(), 2);
    for left in [1, 1, 0] {
        b.ok(&["umount", m.dir()]);
        let status = b.json(&["status", "--json", &v]);
        assert_eq!(status["mounts"].as_array().unwrap().len(), left);
    }
    assert!(!m.is_mounted());
    for volume in [&v, &w] {
        assert_eq!(b.json(&["status", "--json", volume])["clean"], true);
    }
}
