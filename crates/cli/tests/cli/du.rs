//! `silt du`, and the account in `silt status`.

use crate::common::account::{CLASSES, at_rest};
use crate::common::{Bench, Mounted, can_mount};

use std::time::{Duration, Instant};

use serde_json::Value;
use silt_control::mounts;
use silt_verify::golden;

fn number(v: &Value, name: &str) -> u64 {
    v[name].as_u64().unwrap_or_else(|| panic!("{name}: {v}"))
}

#[test]
fn figures_add_up_and_agree_with_an_independent_count() {
    let b = Bench::new();
    // That one has no room for a wish.
    for name in golden::NAMES.into_iter().filter(|name| *name != "full-4k") {
        let v = b.golden(name);
        if name.starts_with("dsync") || name.starts_with("cut") {
            // What was synced becomes a checkpoint first.
            b.ok(&["mkcp", &v]);
        }
        for wish in ["all for ever", "nothing"] {
            b.ok(&["retain", &v, wish]);
            let a = at_rest(&b, &v);
            assert_eq!(number(&a, "size"), std::fs::metadata(&v).unwrap().len() / 4096 * 4096, "{name}");
            assert!(wish != "nothing" || number(&a, "history") == 0, "{name}: {a}");
        }
    }
    at_rest(&b, &b.golden("full-4k"));
    let v = b.name("basic-4k.img");
    let a = at_rest(&b, &v);
    let said = b.ok(&["du", &v]);
    let alone = a["alone"].as_array().unwrap();
    assert_eq!((alone.len(), number(&a, "snapshot_count")), (3, 3));
    let most = alone.iter().max_by_key(|s| number(s, "bytes")).unwrap();
    assert!(said.contains(&format!("removing snapshot {} alone gives ", most["number"])), "{said}");
    assert!(
        said.contains("\n  live files ") && said.contains("kept as long as there is space: nothing"),
        "{said}"
    );
    // Removing it gives that back.
    b.ok(&["chcp", "cp", &v, &most["number"].to_string()]);
    let after = at_rest(&b, &v);
    assert_eq!(number(&after, "snapshots") + number(most, "bytes"), number(&a, "snapshots"));
    let status = b.json(&["status", "--json", &v]);
    for class in CLASSES {
        assert_eq!(status["account"]["account"][class], after[class], "{class}");
    }
    assert!(b.ok(&["status", &v]).contains("\n  reclaimable now "));
    b.fails(9, &["du", "no-such.img"]);
    b.fails(9, &["du", "--history", "no-such.img"]);
}

/// Who is told that there is no space looks for the snapshot that fills the volume: the wish, which covers the same, gives way.
#[test]
fn the_snapshot_that_fills_a_volume_is_named() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let snapshots = |a: &Value| a["alone"].as_array().unwrap().clone();
    b.ok(&["retain", &v, "nothing"]);
    let alone = snapshots(&at_rest(&b, &v));
    b.ok(&["retain", &v, "all for ever"]);
    let a = at_rest(&b, &v);
    let most = snapshots(&a).into_iter().max_by_key(|s| number(s, "left")).unwrap();
    assert!(number(&most, "left") > 0, "{a}");
    let both = |s: &Value| (number(s, "number"), number(s, "bytes") + number(s, "left"));
    let before: Vec<_> = alone.iter().map(both).collect();
    let after: Vec<_> = snapshots(&a).iter().map(both).collect();
    assert_eq!(after, before, "what the wish covers, too, comes back with it where space is short");
    let said = b.ok(&["du", &v]);
    let line = format!("removing snapshot {} alone gives ", most["number"]);
    let line = said.lines().find(|l| l.starts_with(&line)).unwrap_or_else(|| panic!("{said}"));
    assert!(line.ends_with(" of the history where space is short"), "{said}");
    // Of what the floor keeps nothing does.
    b.ok(&["retain", &v, "--keep", "all for ever"]);
    let kept = at_rest(&b, &v);
    assert!(snapshots(&kept).iter().all(|s| number(s, "left") == 0), "{kept}");
}

fn past(b: &Bench, args: &[&str]) -> (Vec<Value>, Value) {
    let all: Vec<&str> = ["du", "--history", "--json"].iter().chain(args).copied().collect();
    let mut list = b.json(&all).as_array().unwrap().clone();
    let total = list.pop().unwrap();
    (list, total)
}

/// What the files hold is what the account says of the past.
#[test]
fn history_of_volumes_adds_up_to_the_account() {
    let b = Bench::new();
    let mut seen = 0;
    // That one has no room for a wish.
    for name in golden::NAMES.into_iter().filter(|name| *name != "full-4k") {
        let v = b.golden(name);
        if name.starts_with("dsync") || name.starts_with("cut") {
            b.ok(&["mkcp", &v]);
        }
        for wish in ["all for ever", "nothing"] {
            b.ok(&["retain", &v, wish]);
            let a = b.json(&["du", "--json", &v]);
            let (files, total) = past(&b, &["--all", &v]);
            let sum: u64 = files.iter().map(|f| number(f, "bytes")).sum();
            assert_eq!(
                (sum, files.len() as u64),
                (number(&total, "bytes"), number(&total, "files")),
                "{name}"
            );
            let held = number(&a, "history") + number(&a, "snapshots");
            assert_eq!(sum + number(&total, "tables"), held, "{name}: {total} {a}");
            let alone: u64 = files.iter().map(|f| number(f, "snapshots")).sum();
            assert!(alone <= number(&a, "snapshots"), "{name}");
            assert!(files.iter().all(|f| f["path"].is_string()), "{name}: {files:#?}");
            seen += files.len();
        }
    }
    assert!(seen > 50, "{seen}");
}

/// Status, df and whoever writes say the same of a full volume, and a wish can be set on it.
#[test]
fn a_full_volume_says_so_and_what_fills_it() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("gone"), vec![1; 16 << 20]).unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    std::fs::remove_file(m.path("gone")).unwrap();
    let full = (0..).find_map(|n| std::fs::write(m.path(&format!("f{n}")), vec![n as u8; 1 << 20]).err());
    assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    // A step of the cleaner that was under way may have ended after somebody was refused: then there is room for more.
    let begin = Instant::now();
    for n in 0.. {
        b.ok(&["sync", m.dir()]);
        if std::fs::write(m.path(&format!("small{n}")), vec![1; 64 << 10]).is_ok() {
            continue;
        }
        b.ok(&["sync", m.dir()]);
        let status = b.json(&["status", "--json", m.dir()]);
        if number(&status, "available") <= number(&status, "segment_size") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{status}");
    }
    let said = b.ok(&["status", m.dir()]);
    assert!(said.contains("note: there was no space for somebody"), "{said}");
    let a = b.json(&["du", "--json", m.dir()]);
    let [snapshot] = &a["alone"].as_array().unwrap()[..] else { panic!("{a}") };
    assert!(number(snapshot, "bytes") + number(snapshot, "left") >= 16 << 20, "{a}");
    b.ok(&["retain", m.dir(), "all for 1 hour", "--keep", "nothing"]);
    b.ok(&["chcp", "cp", m.dir(), &snapshot["number"].to_string()]);
    let begin = Instant::now();
    while std::fs::write(m.path("small"), vec![1; 8 << 20]).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(100));
    }
    m.unmount();
}

#[test]
fn a_mounted_volume_is_counted_in_the_background() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let account = |want: &dyn Fn(&Value) -> bool| {
        let begin = Instant::now();
        loop {
            let s = b.json(&["status", "--json", m.dir()]);
            let a = &s["account"]["account"];
            if a.is_object() && want(a) {
                return a.clone();
            }
            let text = b.ok(&["status", m.dir()]);
            assert!(a.is_object() || text.contains("counting") || text.contains("live files"), "{text}");
            assert!(begin.elapsed() < Duration::from_secs(30), "{s}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    account(&|_| true);
    std::fs::write(m.path("f"), vec![1; 4 << 20]).unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    std::fs::write(m.path("f"), vec![2; 4 << 20]).unwrap();
    b.ok(&["retain", m.dir(), "nothing"]);
    b.ok(&["sync", m.dir()]);
    // Enough changed for a new count.
    let a = account(&|a| number(a, "snapshots") >= 4 << 20);
    let now = b.json(&["du", "--json", m.dir()]);
    for class in CLASSES {
        assert_eq!(a[class], now[class], "{class}");
    }
    assert_eq!(CLASSES.iter().map(|c| number(&now, c)).sum::<u64>(), number(&now, "size"));
    // A moment that is looked at holds what nothing else does.
    let before = b.checkpoints(m.dir());
    let plain = before.iter().rfind(|(_, snapshot)| !snapshot).unwrap().0;
    std::fs::write(m.path("f"), vec![3; 2 << 20]).unwrap();
    b.ok(&["sync", m.dir()]);
    std::fs::create_dir(b.path("then")).unwrap();
    b.ok(&["mount", "-o", &format!("at={plain}"), m.dir(), &b.name("then")]);
    let mounted = account(&|a| number(a, "mounted") > 0);
    let held = b.json(&["du", "--json", m.dir()]);
    assert_eq!(held["mounted"], mounted["mounted"]);
    assert!(number(&held, "mounted") >= 4 << 20, "{held}");
    // df and the account agree within a segment.
    let s = rustix::fs::statvfs(m.path("")).unwrap();
    let (free, available) = (s.f_bfree * s.f_frsize, s.f_bavail * s.f_frsize);
    let segment = number(&held, "segment_size");
    // What space is made of where it is short; it is counted in the background.
    let made = number(&held, "reclaimable") + number(&held, "history_loose");
    let clean = number(&held, "free") + number(&held, "reserve");
    assert!(free.abs_diff(clean + made) <= segment, "{free} {made} {held}");
    let wanted = number(&held, "free") + made - made / 32;
    assert!(available.abs_diff(wanted) <= segment, "{available} {made} {held}");
    assert!(made > 0, "{held}");
    b.ok(&["umount", &b.name("then")]);
    m.unmount();
    let a = at_rest(&b, &v);
    assert!(number(&a, "snapshots") >= 4 << 20 && number(&a, "mounted") == 0, "{a}");
}

/// Files by what they hold, by name where they are or were, and users of one inode number told apart.
#[test]
fn history_names_files_and_tells_users_of_a_number_apart() {
    if !can_mount() {
        return;
    }
    const MIB: u64 = 1 << 20;
    let b = Bench::new();
    let v = b.volume("v.img", "128M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::create_dir_all(m.path("d/deep")).unwrap();
    let write = |m: &Mounted<'_>, name: &str, seed: u8, mib: usize| {
        std::fs::write(m.path(name), vec![seed; mib << 20]).unwrap();
        b.ok(&["sync", m.dir()]);
    };
    for seed in 0..4 {
        write(&m, "d/deep/often", seed, 2);
    }
    write(&m, "gone", 7, 3);
    std::fs::remove_file(m.path("gone")).unwrap();
    b.ok(&["sync", m.dir()]);
    m.unmount();
    // The lowest free number is handed out again.
    let (m, _) = Mounted::new(&b, &[&v], "m");
    write(&m, "new", 8, 1);
    write(&m, "new", 9, 1);
    std::fs::rename(m.path("d"), m.path("e")).unwrap();
    b.ok(&["sync", m.dir()]);

    let check = |files: &[Value]| {
        let of = |path: &str| {
            files.iter().find(|f| f["path"] == path).unwrap_or_else(|| panic!("{path}: {files:#?}"))
        };
        // Data, and the nodes of its map.
        let about = |f: &Value, mib: u64| {
            let bytes = number(f, "bytes");
            assert!((mib * MIB..mib * MIB + 128 * 1024).contains(&bytes), "{f}");
        };
        let (often, gone, new) = (of("/e/deep/often"), of("/gone"), of("/new"));
        about(often, 6);
        about(gone, 3);
        about(new, 1);
        assert_eq!(
            (&often["gone"], &gone["gone"], &new["gone"]),
            (&false.into(), &true.into(), &false.into())
        );
        assert_eq!(gone["inode"], new["inode"], "the test needs a number that was used again");
        assert!(gone["generation"] != new["generation"] && gone["last"].as_u64() < new["first"].as_u64());
    };
    let (files, total) = past(&b, &[m.dir()]);
    check(&files);
    assert_eq!(
        (files[0]["path"].as_str(), files[1]["path"].as_str()),
        (Some("/e/deep/often"), Some("/gone"))
    );
    let a = b.json(&["du", "--json", m.dir()]);
    assert_eq!(number(&total, "bytes") + number(&total, "tables"), number(&a, "history"));

    // By path: below a directory, one file, and one that is gone.
    let names = |args: &[&str]| {
        let (files, total) = past(&b, args);
        assert_eq!(number(&total, "unplaced"), 0, "{total}");
        files.iter().map(|f| f["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let below = |name: &str| names(&[m.path(name).to_str().unwrap()]);
    assert_eq!(below("e/deep/often"), ["/e/deep/often"]);
    assert_eq!(below("gone"), ["/gone"]);
    assert_eq!(below("gone/../gone"), ["/gone"]);
    assert_eq!(below("none/./../gone"), ["/gone"]);
    assert!(below("e")[0] == "/e/deep/often" && !below("e").contains(&"/new".to_owned()));
    // Neither there nor in the past; and what is there without a past, or was without content, is no error.
    std::fs::write(m.path("fresh"), "").unwrap();
    std::fs::write(m.path("hollow"), "").unwrap();
    b.ok(&["sync", m.dir()]);
    std::fs::remove_file(m.path("hollow")).unwrap();
    b.ok(&["sync", m.dir()]);
    for name in ["none", "none/deeper"] {
        let said = b.fails(9, &["du", "--history", m.path(name).to_str().unwrap()]);
        assert!(said.contains(&format!("there is no {name} ")), "{said}");
    }
    assert_eq!(below("fresh"), Vec::<String>::new());
    assert_eq!(below("hollow"), Vec::<String>::new());
    let (files, total) = past(&b, &["--top", "1", m.dir()]);
    assert_eq!((files.len() as u64, number(&total, "unlisted")), (1, number(&total, "files") - 1));
    let said = b.ok(&["du", "--history", m.dir()]);
    assert!(said.contains("/gone  (gone; last in checkpoint "), "{said}");
    assert!(mounts::ours().unwrap().iter().any(|o| o.dir == m.path("")), "it stays mounted");
    m.unmount();
    check(&past(&b, &[&v]).0);
    assert_eq!(names(&[&v, "/e/deep"])[0], "/e/deep/often");
    assert_eq!(names(&[&v, "/../none/../e/deep"])[0], "/e/deep/often");
    b.fails(9, &["du", "--history", &v, "/none"]);
    b.fails(9, &["du", "--history", "--json", &v, "/none"]);
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// Deleting writes little, so the next count may be minutes off: the table says that it is older than the lines above it.
#[test]
fn a_table_older_than_what_changed_says_so() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "256M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), vec![1; 32 << 20]).unwrap();
    b.ok(&["sync", m.dir()]);
    let counted =
        || number(&b.json(&["status", "--json", m.dir()])["account"]["account"], "live") >= 32 << 20;
    let begin = Instant::now();
    while !counted() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!b.ok(&["status", m.dir()]).contains("much changed since"));
    std::fs::remove_file(m.path("f")).unwrap();
    b.ok(&["sync", m.dir()]);
    let said = b.ok(&["status", m.dir()]);
    assert!(said.contains("much changed since: these figures are older"), "{said}");
    m.unmount();
}

/// A snapshot that is mounted as well holds nothing alone, and why is said.
#[test]
fn why_a_snapshot_holds_nothing_alone_is_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["retain", &v, "nothing"]);
    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    std::fs::write(m.path("f"), vec![7; 3 << 20]).unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    let snapshot = b.checkpoints(m.dir()).into_iter().find(|(_, snapshot)| *snapshot).unwrap().0;
    std::fs::remove_file(m.path("f")).unwrap();
    b.ok(&["sync", m.dir()]);
    let gives = format!("removing snapshot {snapshot} alone gives 3");
    assert!(b.ok(&["du", m.dir()]).contains(&gives));
    let (past, _) = Mounted::new(&b, &["-o", &format!("ro,cp={snapshot}"), &v], "past");
    let said = b.ok(&["du", m.dir()]);
    let why = format!(
        "1 snapshot holds nothing alone (what a mounted moment shows stays without them, too: {snapshot})"
    );
    assert!(said.contains(&why), "{said}");
    past.unmount();
    assert!(b.ok(&["du", m.dir()]).contains(&gives));
    m.unmount();
}
