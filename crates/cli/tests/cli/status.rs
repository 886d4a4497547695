//! `silt status`

use crate::common::{Bench, Mounted, can_mount};

#[test]
fn says_what_an_unmounted_volume_is() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let out = b.ok(&["status", &v]);
    assert!(out.contains("not mounted (cleanly unmounted)"), "{out}");
    assert!(out.contains("7 checkpoints, 3 of them kept as snapshots"), "{out}");
    let s = b.json(&["status", "--json", &v]);
    let n = |field: &str| s[field].as_u64().unwrap();
    assert_eq!(n("live") + n("past") + n("free"), n("size"), "it adds up");
    assert!(n("available") <= n("free"));
    assert_eq!((n("checkpoints"), n("snapshots"), n("newest_checkpoint")), (7, 3, 7));
    assert_eq!(s["clean"], true);
    assert_eq!(s["mounts"], serde_json::json!([]));
}

#[test]
fn says_so_where_a_volume_was_cut_off() {
    let b = Bench::new();
    let v = b.golden("cut-4k");
    let out = b.ok(&["status", &v]);
    assert!(out.contains("not cleanly unmounted"), "{out}");
}

#[test]
fn one_is_not_many() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    assert!(b.ok(&["retain", &v]).contains("there is 1 moment and 0 snapshots\n"));
    b.ok(&["mkcp", "-s", &v]);
    let out = b.ok(&["status", &v]);
    assert!(out.contains("moments: 2 checkpoints, 1 of them kept as a snapshot\n"), "{out}");
}

#[test]
fn says_where_it_is_mounted_and_what_waits() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
    std::fs::write(m.path("f"), vec![1; 1 << 20]).unwrap();
    let s = b.json(&["status", "--json", m.dir()]);
    assert_eq!(s["mounts"][0]["dir"], m.dir());
    assert_eq!(s["mounts"][0]["read_only"], false);
    assert_eq!(s["volume"], v);
    assert!(s["dirty"].as_u64().unwrap() >= 1 << 20, "{s}");
    assert!(s["sync_arrives"].is_boolean());
    let out = b.ok(&["status", m.dir()]);
    assert!(out.contains("sync ") && out.contains("waiting to be written: 1"), "{out}");
    // Named by the volume it is the same.
    assert_eq!(b.json(&["status", "--json", &v])["mounts"], s["mounts"]);
    b.ok(&["sync", m.dir()]);
    assert_eq!(b.json(&["status", "--json", &v])["dirty"], 0);
    // Of the whole machine: what others left behind is told, too, and is no failure of this one.
    let all: serde_json::Value = serde_json::from_str(&b.run(&["status", "--json"]).out).unwrap();
    assert!(all.as_array().unwrap().iter().any(|s| s["volume"] == v.as_str()), "{all}");
    m.unmount();
}

#[test]
fn what_the_log_holds_is_not_called_the_past() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let out = b.ok(&["status", &v]);
    let line = out.lines().find(|l| l.starts_with("space: ")).unwrap();
    assert!(
        line.contains(" clean (") && line.contains(" of it for you), ") && line.ends_with(" in use"),
        "{line}"
    );
    // What is in use the rows below tell apart.
    assert!(!line.contains("past") && !line.contains("files"), "{line}");
}

/// An account of the old size is said to be one.
#[test]
fn says_so_where_the_size_has_changed() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let counted = || b.json(&["status", "--json", m.dir()])["account"]["account"]["size"].as_u64();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while counted().is_none() {
        assert!(std::time::Instant::now() < until, "it is never counted");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let note = "the volume had another size then (32 MiB)";
    assert!(!b.ok(&["status", m.dir()]).contains(note));
    b.ok(&["resize", m.dir(), "64M"]);
    let out = b.ok(&["status", m.dir()]);
    // Unless it was counted again between.
    assert!(out.contains(note) || counted() == Some(64 << 20), "{out}");
    m.unmount();
}

#[test]
fn who_is_not_mounted_has_met_no_damage_nor_none() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    for args in [&["status", "--damage", &v][..], &["status", "--damage", "--json", &v]] {
        let said = b.fails(12, args);
        assert!(said.contains("is not mounted") && said.contains("silt check"), "{said}");
    }
}

/// It was opened for reading: what the host could discard is not known, and nothing is.
#[test]
fn what_is_read_only_discards_nothing() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    let out = b.ok(&["status", m.dir()]);
    assert!(out.contains("discard: off, nothing is written\n"), "{out}");
    m.unmount();
}
