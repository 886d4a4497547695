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

/// Moments in a tree that is in use stay with it.
#[test]
fn what_is_mounted_in_a_tree_that_stays_stays_too() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), "then").unwrap();
    b.ok(&["sync", m.dir()]);
    b.ok(&["mkcp", "-s", m.dir()]);
    let last = b.checkpoints(&v).last().unwrap().0;
    for name in ["past", "deep"] {
        std::fs::create_dir(m.path(name)).unwrap();
    }
    std::fs::write(m.path("f"), "now").unwrap();
    let at = format!("at={last},noexec");
    let (past, _) = Mounted::new(&b, &["-o", &at, &v], "m/past");
    let (deep, _) = Mounted::new(&b, &["-o", &at, &v], "m/deep");
    let (beside, _) = Mounted::new(&b, &["-o", &at, &v], "beside");
    let table = || {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = table.lines().filter(|line| line.contains("/m/") || line.contains("/beside "));
        // Without what is counted up.
        let mut ours: Vec<String> =
            ours.map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" ")).collect();
        ours.sort();
        ours
    };
    let before = table();
    let inside = b.command("sleep").arg("100").current_dir(m.dir()).spawn();
    let mut inside = inside.unwrap();
    for named in [m.dir(), &v] {
        let said = b.fails(6, &["umount", named]);
        assert!(said.contains("in use") && !said.contains("again"), "{said}");
        assert_eq!(table(), before, "same places, same options");
        for moment in [&past, &deep, &beside] {
            assert_eq!(std::fs::read_to_string(moment.path("f")).unwrap(), "then", "{}", moment.dir());
        }
        assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), "now");
    }
    let status = b.json(&["status", "--json", m.dir()]);
    assert_eq!(status["mounts"].as_array().unwrap().len(), 4, "{status}");
    inside.kill().unwrap();
    inside.wait().unwrap();
    // One that is in use keeps all of them.
    let open = std::fs::File::open(past.path("f")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(table(), before);
    drop(open);
    // Each can be unmounted by itself as before, and its checkpoint is let go.
    deep.unmount();
    b.ok(&["umount", m.dir()]);
    assert!(!past.is_mounted() && !beside.is_mounted() && !m.is_mounted());
}

#[test]
fn what_is_not_mounted_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::create_dir(b.path("d")).unwrap();
    b.fails(9, &["umount", "d"]);
    b.fails(9, &["umount", "nothing"]);
    assert!(b.fails(9, &["umount", &v]).contains("silt status lists"));
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

/// Nothing is taken from under somebody who copies out of a moment.
#[test]
fn a_moment_in_use_keeps_the_live_tree_mounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), "then").unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    let last = b.checkpoints(&v).last().unwrap().0;
    let (first, _) = Mounted::new(&b, &["-o", &format!("at={last}"), &v], "first");
    let (second, _) = Mounted::new(&b, &["-o", &format!("at={last}"), &v], "second");
    let open = std::fs::File::open(first.path("f")).unwrap();
    for what in [m.dir(), &v] {
        let said = b.fails(6, &["umount", what]);
        assert!(said.contains("first") && said.contains("in use"), "{said}");
        assert!(m.is_mounted() && first.is_mounted() && second.is_mounted());
    }
    let mut read = String::new();
    std::io::Read::read_to_string(&mut &open, &mut read).unwrap();
    assert_eq!(read, "then");
    assert_eq!(std::fs::read_to_string(second.path("f")).unwrap(), "then");
    drop(open);
    b.ok(&["umount", m.dir()]);
    assert!(!first.is_mounted() && !second.is_mounted());
}

/// By a link to the directory; and by the image where the daemon is gone.
#[test]
fn a_mount_is_found_by_a_link_and_by_its_image() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::os::unix::fs::symlink(m.dir(), b.path("link")).unwrap();
    b.ok(&["umount", &b.name("link")]);
    assert!(!m.is_mounted());
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let pid = b.json(&["status", "--json", m.dir()])["pid"].as_u64().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    while std::fs::metadata(format!("/proc/{pid}/exe")).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    b.ok(&["umount", &v]);
    assert!(!m.is_mounted());
    b.fails(9, &["umount", &v]);
}
