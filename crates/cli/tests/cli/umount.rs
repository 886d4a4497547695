//! `silt umount`

use crate::common::{Bench, Mounted, can_mount};

#[test]
fn returns_when_the_volume_is_closed() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    for n in 0..5 {
        let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
        std::fs::write(m.path(&format!("f{n}")), vec![7; 3 << 20]).unwrap();
        m.unmount();
        // At once: no lock is held any more, and everything is written.
        let s = b.json(&["status", "--json", &v]);
        assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(n + 2)));
    }
}

#[test]
fn a_directory_in_use_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let open = std::fs::File::create(m.path("f")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("in use"), "{said}");
    assert!(m.is_mounted());
    std::fs::write(m.path("g"), "still there").unwrap();
    drop(open);
    m.unmount();
}

#[test]
fn what_is_not_mounted_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::create_dir(b.path("d")).unwrap();
    b.fails(9, &["umount", "d"]);
    b.fails(9, &["umount", "nothing"]);
    b.fails(9, &["umount", &v]);
    let said = b.fails(2, &["umount", "/proc"]);
    assert!(said.contains("use umount"), "{said}");
}

#[test]
fn by_the_volume_everything_is_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
    b.ok(&["umount", &v]);
    assert!(!m.is_mounted() && !past.is_mounted());
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
}
