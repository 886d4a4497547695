//! A volume on which another writer left no segment to write to.

use std::time::{Duration, Instant};

use crate::common::{Bench, Mounted, can_mount};
use silt_verify::golden::{WEDGED, wedged_content};

#[test]
fn what_the_kernel_wedged_is_given_room_when_it_is_mounted() {
    if !can_mount() {
        return;
    }
    for name in WEDGED {
        let b = Bench::new();
        let v = b.golden(name);
        // Who wants no cleaner gets what there is: everything can be read and nothing written.
        let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
        assert!(!b.ok(&["status", m.dir()]).contains("were emptied"));
        assert!(std::fs::remove_file(m.path("f5")).is_err());
        m.unmount();
        let (m, _) = Mounted::new(&b, &[&v], "m");
        let said = b.ok(&["status", m.dir()]);
        assert!(said.contains("hardly a segment was clean, so "), "{name}: {said}");
        for n in ["f0", "f77"] {
            assert_eq!(std::fs::read(m.path(n)).unwrap(), wedged_content(n));
        }
        // Each synced: every one of them is a checkpoint.
        for n in 5..15 {
            std::fs::remove_file(m.path(&format!("f{n}"))).unwrap();
            b.ok(&["sync", m.dir()]);
        }
        std::fs::write(m.path("new"), [7; 50_000]).unwrap();
        b.ok(&["sync", m.dir()]);
        assert_eq!(std::fs::read(m.path("new")).unwrap(), [7; 50_000]);
        m.unmount();
        assert!(b.ok(&["check", "--all", &v]).contains(": sound; "), "{name}");
    }
}

/// A single request of an unmounted volume makes room as well, and says so.
#[test]
fn what_the_kernel_wedged_can_be_changed_unmounted() {
    let b = Bench::new();
    let v = b.golden(WEDGED[0]);
    let run = b.run(&["mkcp", "-s", &v]);
    assert!(run.code == 0 && run.err.contains("hardly a segment was clean, so "), "{}", run.err);
    b.ok(&["clean", "-p", "0", &v]);
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// Snapshots are refused as long as there is room to unmake them.
#[test]
fn no_number_of_snapshots_wedges_a_full_volume() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "8M", "-b", "1024", "-B", "32", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("g"), "small").unwrap();
    let mut file = std::fs::File::create(m.path("f")).unwrap();
    while std::io::Write::write_all(&mut file, &[7; 16 << 10]).is_ok() {}
    drop(file);
    b.ok(&["sync", m.dir()]);
    let mut made = 0;
    let refused = loop {
        let run = b.run(&["mkcp", "-s", m.dir()]);
        if run.code != 0 {
            break run;
        }
        made += 1;
        assert!(made < 2000, "a volume of 8 MiB");
    };
    assert_eq!(refused.code, 8, "{made}: {}", refused.err);
    let first = b.checkpoints(m.dir()).into_iter().find(|c| c.1).unwrap().0.to_string();
    b.ok(&["chcp", "cp", m.dir(), &first]);
    std::fs::remove_file(m.path("g")).unwrap();
    std::fs::File::options().write(true).open(m.path("f")).unwrap().set_len(0).unwrap();
    b.ok(&["sync", m.dir()]);
    for (n, snapshot) in b.checkpoints(m.dir()) {
        if snapshot {
            b.ok(&["chcp", "cp", m.dir(), &n.to_string()]);
        }
    }
    std::fs::write(m.path("after"), "small").unwrap();
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// Each of them is a checkpoint, and may free less than that takes.
#[test]
fn snapshots_can_be_unmade_and_removed_one_by_one_on_a_full_volume() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "32M", "-b", "4096", "-B", "128", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let mut data = [0u8; 300_000];
    let file = std::fs::File::create(m.path("a")).unwrap();
    let mut made = 0;
    loop {
        data.fill(made);
        if std::os::unix::fs::FileExt::write_all_at(&file, &data, 0).is_err()
            || b.run(&["mkcp", "-s", m.dir()]).code != 0
        {
            break;
        }
        made += 1;
        assert!(made < 200, "a volume of 32 MiB");
    }
    drop(file);
    let all: Vec<String> =
        b.checkpoints(m.dir()).into_iter().filter(|c| c.1).map(|c| c.0.to_string()).collect();
    assert!(all.len() > 50, "{all:?}");
    for n in &all {
        b.ok(&["chcp", "cp", m.dir(), n]);
        let run = b.run(&["rmcp", m.dir(), n]);
        // The cleaner may have been there before.
        assert!(run.code == 0 || run.err.contains("invalid checkpoint"), "{n}: {}", run.err);
    }
    std::fs::write(m.path("b"), [7; 4096]).unwrap();
    std::fs::File::options().write(true).open(m.path("a")).unwrap().set_len(0).unwrap();
    std::fs::remove_file(m.path("a")).unwrap();
    std::fs::write(m.path("c"), [7; 4096]).unwrap();
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// Each number that is named is a checkpoint of its own.
#[test]
fn checkpoints_of_a_full_volume_with_a_floor_can_be_removed_by_their_numbers() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "16M", "-b", "4096", "-B", "16", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "keep=all for 1 hour", &v], "m");
    let file = std::fs::File::create(m.path("a")).unwrap();
    let mut made = 0;
    while std::os::unix::fs::FileExt::write_all_at(&file, &[made; 300_000], 0).is_ok()
        && b.run(&["mkcp", m.dir()]).code == 0
    {
        made += 1;
        assert!(made < 200, "a volume of 16 MiB");
    }
    drop(file);
    let mut all: Vec<String> = b.checkpoints(m.dir()).into_iter().map(|c| c.0.to_string()).collect();
    all.pop();
    let mut args = vec!["rmcp", m.dir()];
    args.extend(all.iter().map(String::as_str));
    b.ok(&args);
    std::fs::write(m.path("b"), [7; 4096]).unwrap();
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// There is space again when the floor keeps no more of what filled it, without anything being removed.
#[test]
fn a_volume_that_a_floor_by_time_filled_has_space_when_it_ran_out() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "16M", "-b", "4096", "-B", "64", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "keep=all for 12 seconds", &v], "m");
    let file = std::fs::File::create(m.path("a")).unwrap();
    let mut n = 0;
    let mut write = || {
        n += 1;
        std::os::unix::fs::FileExt::write_all_at(&file, &[n; 300_000], 0)
    };
    let mut made = 0;
    while write().is_ok() {
        b.ok(&["sync", m.dir()]);
        made += 1;
        assert!(made < 200, "a volume of 16 MiB");
    }
    let begin = std::time::Instant::now();
    while write().is_err() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// A check of a full volume that is mounted holds what is freed, and nobody is refused for it.
#[test]
fn nobody_is_refused_while_a_full_volume_is_checked() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "64M", "-b", "1024", "-B", "256", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let mut made = 0;
    while std::fs::write(m.path(&format!("f{made}")), vec![7; 256 << 10]).is_ok() {
        made += 1;
        assert!(made < 1000, "a volume of 64 MiB");
    }
    let mut check = std::process::Command::new(crate::common::SILT)
        .args(["check", m.dir()])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    // It holds what it holds until it is let go.
    let id = rustix::process::Pid::from_child(&check);
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    for n in 0..60 {
        std::fs::remove_file(m.path(&format!("f{n}"))).unwrap();
        std::fs::write(m.path(&format!("w{n}")), [1; 4096]).unwrap();
    }
    rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
    check.wait().unwrap();
}

/// Without a cleaner deletions that free less than their checkpoints take leave what `silt clean` needs.
#[test]
fn what_nobody_cleans_can_be_cleaned_by_hand() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "32M", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    let mut all = Vec::new();
    loop {
        let path = m.path(&format!("f{}", all.len()));
        if std::fs::write(&path, [7; 4096]).is_err() {
            let _ = std::fs::remove_file(&path);
            break;
        }
        all.push(path);
        assert!(all.len() < 8192, "a volume of 32 MiB");
    }
    b.ok(&["sync", m.dir()]);
    // One at a time, with a checkpoint for each, and then as fast as it goes.
    let mut refused = 0;
    for (n, path) in all.iter().enumerate() {
        if let Err(e) = std::fs::remove_file(path) {
            assert_eq!(e.raw_os_error(), Some(28), "{e}");
            refused += 1;
            b.ok(&["clean", "-p", "0", m.dir()]);
            std::fs::remove_file(path).unwrap();
        }
        if n < 130 {
            b.ok(&["sync", m.dir()]);
        }
    }
    assert!((1..20).contains(&refused), "{refused}, {} files", all.len());
    b.ok(&["sync", m.dir()]);
    b.ok(&["clean", "-p", "0", m.dir()]);
    std::fs::write(m.path("after"), "small").unwrap();
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// What names and inodes took is there again once they are gone, whatever else is on the volume.
#[test]
fn a_volume_full_of_names_is_empty_when_they_are_gone() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "--size", "12M", "-b", "1024", "-B", "128", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let available = |path: &str| {
        let s = rustix::fs::statvfs(path).unwrap();
        s.f_bavail * s.f_frsize
    };
    let fresh = available(m.dir());
    let dir = m.path("d");
    std::fs::create_dir(&dir).unwrap();
    let mut made = 0;
    while std::fs::File::create(dir.join(format!("{made:0255}"))).is_ok() {
        made += 1;
        assert!(made < 60_000, "a volume of 12 MiB");
    }
    assert!(made > 5_000, "{made}");
    for entry in std::fs::read_dir(&dir).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::write(m.path("small"), [7; 4096]).unwrap();
    b.ok(&["sync", m.dir()]);
    // What can be made free is counted first.
    let until = Instant::now() + Duration::from_secs(60);
    while available(m.dir()) < fresh / 10 * 9 {
        assert!(Instant::now() < until, "{} of {fresh} after {made} names", available(m.dir()));
        std::thread::sleep(Duration::from_millis(50));
    }
    let size = std::fs::metadata(&dir).unwrap().len();
    assert_eq!(size, 1024, "one chunk");
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}
