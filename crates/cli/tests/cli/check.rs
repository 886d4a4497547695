//! `silt check`.

use crate::common::Bench;

use std::os::unix::fs::FileExt;

#[test]
fn volumes_of_silt_and_of_the_kernel_are_sound() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.ok(&["check", &v]);
    assert!(said.contains(": sound; ") && said.ends_with("cleanly unmounted\n"), "{said}");
    let g = b.golden("basic-4k");
    let json = b.json(&["check", "--json", "--all", &g]);
    assert_eq!((json["sound"].as_bool(), json["errors"].as_u64()), (Some(true), Some(0)), "{json}");
    assert!(json["trees_walked"].as_u64().unwrap() > 1 && json["inodes"].as_u64().unwrap() > 10, "{json}");
}

/// A log that does not verify any more is said with the place, and nothing is written.
#[test]
fn damage_is_told_with_its_place() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let file = std::fs::File::options().read(true).write(true).open(&g).unwrap();
    // A block of a file: behind the head of a log.
    let at = (3 << 20) + 9 * 4096;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, at).unwrap();
    file.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
    let before = std::fs::read(&g).unwrap();
    let run = b.run(&["check", &g]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.lines().any(|line| line.starts_with("error [log-checksum] segment ")), "{}", run.out);
    assert!(run.out.lines().last().unwrap().contains(" error"), "{}", run.out);
    let run = b.run(&["check", "--json", &g]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, json["sound"].as_bool()), (4, Some(false)));
    assert!(json["counts"]["log-checksum"].as_u64().unwrap() >= 1, "{json}");
    let all: u64 = json["counts"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let left_out = |json: &serde_json::Value| {
        let listed = json["findings"].as_array().unwrap().len() as u64;
        assert_eq!(listed + json["findings_left_out"].as_u64().unwrap(), all, "{json}");
        all - listed
    };
    left_out(&json);
    // None is shown where that is said, and the verdict is the same.
    let run = b.run(&["check", "--json", "-n", "0", &g]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, json["sound"].as_bool(), left_out(&json)), (4, Some(false), all));
    let run = b.run(&["check", "-n", "0", &g]);
    assert!(
        run.code == 4 && !run.out.contains("error [") && run.out.contains("[log-checksum] 1"),
        "{}",
        run.out
    );
    assert!(std::fs::read(&g).unwrap() == before, "a check writes nothing");
}

#[test]
fn what_is_no_volume_is_said() {
    let b = Bench::new();
    std::fs::write(b.path("x"), vec![7; 1 << 20]).unwrap();
    assert!(b.fails(3, &["check", "x"]).contains("not a NILFS2 volume"));
    b.fails(9, &["check", "nowhere"]);
}

/// Where the root of the latest ifile, a node of a file's map and so on lie is told by the check's own tools.
fn surgeon(path: &str) -> (silt_verify::surgeon::Surgeon, silt_device::FileDevice) {
    let file = silt_device::open(path, silt_device::Access::ReadWrite, &silt_device::OpenOptions::default())
        .unwrap();
    (silt_verify::surgeon::Surgeon::golden("basic-4k"), file)
}

/// Writes what a surgeon changed into the image.
fn store(s: &silt_verify::surgeon::Surgeon, file: &silt_device::FileDevice) {
    use silt_device::Device;
    let mut bytes = vec![0; 1 << 20];
    for at in (0..s.device.len()).step_by(1 << 20) {
        let n = (s.device.len() - at).min(1 << 20) as usize;
        s.device.read_at(at, &mut bytes[..n]).unwrap();
        file.write_at(at, &[&bytes[..n]]).unwrap();
    }
}

/// What a damaged map means is said in bytes of the file, with the newest version that is whole.
#[test]
fn a_finding_says_what_it_means() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let (mut s, file) = surgeon(&g);
    let big = s.ino("big");
    let root = s.inode(big).bmap;
    let v = silt_verify::surgeon::word(&root, 4 + 1);
    let first = silt_verify::surgeon::word(&root, 1 + 1);
    let block = s.place_of(v);
    s.patch(block, |bytes| bytes[1] += 1);
    store(&s, &file);
    drop(file);
    let run = b.run(&["check", &g]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let at =
        run.out.lines().position(|l| l.contains("[btree-level]") && l.contains("(/big)")).expect(&run.out);
    let says: Vec<&str> = run.out.lines().skip(at + 1).take(3).collect();
    assert!(says[0].starts_with("    this file cannot be read between "), "{}", run.out);
    assert!(
        says[1].starts_with("    The list of a file's blocks") && says[2].contains("silt repair"),
        "{says:?}"
    );
    let run = b.run(&["check", "--json", &g]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let of = |id: &str| json["findings"].as_array().unwrap().iter().find(|f| f["id"] == id).cloned().unwrap();
    let finding = of("btree-level");
    assert_eq!(finding["range"]["from"].as_u64(), Some(first * 4096), "{finding}");
    assert!(finding["meaning"].as_str().unwrap().starts_with("this file cannot be read"), "{finding}");
    assert!(finding["mends"].as_str().is_some() && finding["path"] == "/big");
}

/// A file that was changed since and is damaged now: the version before is named, with its checkpoint and time.
#[test]
fn the_newest_whole_version_is_named() {
    if !crate::common::can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("notes"), vec![b'1'; 40_000]).unwrap();
    let kept = b.json(&["sync", "--json", m.dir()])["checkpoint"].as_u64().unwrap();
    std::fs::File::options().write(true).open(m.path("notes")).unwrap().write_at(b"2", 20_000).unwrap();
    b.ok(&["sync", m.dir()]);
    // The version after that has the same block, and is no better.
    std::fs::File::options().write(true).open(m.path("notes")).unwrap().write_at(b"3", 0).unwrap();
    b.ok(&["sync", m.dir()]);
    let ino = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(m.path("notes")).unwrap());
    m.unmount();
    // The block that was written last: that of the byte changed.
    let file =
        silt_device::open(&v, silt_device::Access::ReadWrite, &silt_device::OpenOptions::default()).unwrap();
    let tree = silt_verify::Tree::open(&file, silt_verify::Moment::Latest).unwrap();
    let block = tree.block_of(ino, 20_000 / 4096).unwrap().unwrap();
    drop(tree);
    silt_device::Device::write_at(&file, block * 4096 + 100, &[b"x"]).unwrap();
    drop(file);
    let run = b.run(&["check", "--json", &v]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let finding =
        json["findings"].as_array().unwrap().iter().find(|f| f["id"] == "log-checksum").cloned().unwrap();
    let notes = finding["files"].as_array().unwrap().iter().find(|f| f["path"] == "/notes").cloned().unwrap();
    assert_eq!(notes["whole_version"]["checkpoint"].as_u64(), Some(kept), "{finding}");
    let run = b.run(&["check", &v]);
    assert!(run.out.contains(&format!("(checkpoint {kept}) is whole")), "{}", run.out);
    assert!(run.out.contains("what /notes shows"), "{}", run.out);
}

/// The only log with a super root is hurt: that is said plainly, and what it leads to is looked at.
#[test]
fn nothing_valid_where_the_super_blocks_point() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let file = std::fs::File::options().read(true).write(true).open(&v).unwrap();
    // A byte behind the names of the root directory, in the one log that mkfs writes.
    file.write_all_at(b"x", 2 * 4096 + 4000).unwrap();
    let run = b.run(&["check", &v]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("[super-root-found]"), "{}", run.out);
    assert!(
        run.out.contains("no valid log where the super blocks point; silt rescue looks for older ones"),
        "{}",
        run.out
    );
    assert!(run.out.contains("[log-checksum]") && run.out.contains("1 inode, "), "{}", run.out);
}

/// A volume in use: what was written until now is checked, while a writer goes on.
#[test]
fn a_mounted_volume_is_checked_while_it_is_written() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    if !crate::common::can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "256M");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
    let (end, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0u64.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let name = m.path(&format!("f{}", i % 50));
                if i % 7 == 3 {
                    let _ = std::fs::remove_file(&name);
                } else {
                    let file = std::fs::File::create(&name).unwrap();
                    file.write_all_at(&vec![i as u8; 5000 + (i as usize % 9) * 4096], 0).unwrap();
                    if i % 3 == 0 {
                        file.sync_all().unwrap();
                    }
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut last = 0;
        for (round, named) in [m.dir(), &v, m.dir(), &v, m.dir()].into_iter().enumerate() {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < before + 20 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            let run = b.run(&["check", "--all", "--json", named]);
            if run.code != 0 {
                end.store(true, Ordering::Relaxed);
            }
            assert_eq!(run.code, 0, "round {round}: {}{}", run.out, run.err);
            let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
            let cno = json["last_checkpoint"].as_u64().unwrap();
            assert!(json["mounted"] == true && cno > last, "{json}");
            last = cno;
        }
        end.store(true, Ordering::Relaxed);
    });
    assert!(written.load(Ordering::Relaxed) > 100);
    let said = b.ok(&["check", m.dir()]);
    assert!(said.contains("mounted, as of checkpoint "), "{said}");
    m.unmount();
    b.ok(&["check", &v]);
}

/// Damage shows on a mounted volume as it does on another one.
#[test]
fn damage_of_a_mounted_volume_is_found() {
    if !crate::common::can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = crate::common::Mounted::new(&b, &["-o", "ro", &v], "m");
    b.ok(&["check", m.dir()]);
    m.unmount();
    let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("a"), vec![1; 100_000]).unwrap();
    b.ok(&["sync", m.dir()]);
    let file = std::fs::File::options().read(true).write(true).open(&v).unwrap();
    // In the log of mkfs, behind the names of the root directory.
    file.write_all_at(b"x", 2 * 4096 + 4000).unwrap();
    let run = b.run(&["check", m.dir()]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("[log-checksum] segment 0 block 1"), "{}", run.out);
    m.unmount();
}

/// Writes over two files until so much was written; how often there was no space.
fn write_over(m: &crate::common::Mounted<'_>, bytes: usize, pause: std::time::Duration) -> usize {
    const PIECE: usize = 1 << 20;
    let mut refused = 0;
    for n in 0..bytes / PIECE {
        let data: Vec<u8> = (0..PIECE).map(|i| (i * 7 + n * 13 + i / 251) as u8).collect();
        let file = std::fs::File::create(m.path(&format!("f{}", n % 2)));
        let done = file.and_then(|file| file.write_all_at(&data, 0).and_then(|()| file.sync_all()));
        match done {
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => refused += 1,
            done => done.unwrap(),
        }
        std::thread::sleep(pause);
    }
    refused
}

/// A check that was stopped or forgotten does not fill the volume.
#[test]
fn who_writes_goes_before_a_check_that_does_not_end() {
    use silt_control::{Control, RemoteVolume, Request, socket};
    use std::time::Duration;
    if !crate::common::can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "128M");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
    let connect = || {
        let stream = socket::find(std::path::Path::new(&v), None).unwrap().unwrap();
        RemoteVolume::new(stream).unwrap()
    };
    let mut checking = connect();
    checking.call(Request::LatestLog, &mut |_| Ok(())).unwrap();
    checking.call(Request::LatestLog, &mut |_| Ok(())).unwrap();
    assert_eq!(write_over(&m, 80 << 20, Duration::ZERO), 0);
    // At this pace it takes longer from where space becomes short to its end than others are kept waiting.
    assert_eq!(write_over(&m, 32 << 20, Duration::from_millis(400)), 0);
    assert!(checking.call(Request::LatestLog, &mut |_| Ok(())).is_err(), "it was let go");
    // Who writes faster than that waits for a moment.
    let mut checking = connect();
    checking.call(Request::LatestLog, &mut |_| Ok(())).unwrap();
    assert_eq!(write_over(&m, 160 << 20, Duration::ZERO), 0);
    assert_eq!(write_over(&m, 256 << 20, Duration::ZERO), 0);
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}

/// A daemon's place is taken by one that hands everything on until it has told where the log is, and is gone then.
fn lets_go_at_once(volume: &str) -> std::thread::JoinHandle<()> {
    use silt_control::socket;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let path = std::path::Path::new(volume);
    let mut daemon = socket::find(path, None).unwrap().unwrap();
    let place = socket::listen(path, false).unwrap().path().to_owned();
    let listener = UnixListener::bind(&place).unwrap();
    let take = |from: &mut UnixStream| {
        let mut length = [0; 4];
        from.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut bytes).unwrap();
        bytes
    };
    let give = |to: &mut UnixStream, bytes: &[u8]| {
        to.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).unwrap();
        to.write_all(bytes).unwrap();
    };
    std::thread::spawn(move || {
        let (mut check, _) = listener.accept().unwrap();
        let mut last = false;
        while !last {
            let request = take(&mut check);
            last = String::from_utf8_lossy(&request).contains("latest-log");
            give(&mut daemon, &request);
            loop {
                let part = take(&mut daemon);
                give(&mut check, &part);
                if !part.starts_with(b"{\"item\"") {
                    break;
                }
            }
        }
        std::fs::remove_file(place).unwrap();
    })
}

/// What is found after the daemon has let go is no verdict; that nothing is found is one.
#[test]
fn what_is_found_in_what_was_let_go_is_no_damage_for_sure() {
    if !crate::common::can_mount() {
        return;
    }
    for (json, damaged) in [(false, false), (false, true), (true, true)] {
        let b = Bench::new();
        let v = b.volume("v.img", "64M");
        std::fs::create_dir(b.path("m")).unwrap();
        let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
        std::fs::write(m.path("a"), vec![1; 100_000]).unwrap();
        b.ok(&["sync", m.dir()]);
        if damaged {
            let file = std::fs::File::options().read(true).write(true).open(&v).unwrap();
            // In the log of mkfs, behind the names of the root directory.
            file.write_all_at(b"x", 2 * 4096 + 4000).unwrap();
        }
        let daemon = lets_go_at_once(&v);
        let args = if json { vec!["check", "--json", &v] } else { vec!["check", &v] };
        let run = b.run(&args);
        daemon.join().unwrap();
        m.unmount();
        if !damaged {
            assert_eq!(run.code, 0, "{}{}", run.out, run.err);
            assert!(run.out.contains(": sound; "), "{}", run.out);
            continue;
        }
        assert_eq!(run.code, 12, "{}{}", run.out, run.err);
        assert!(run.err.contains("may be what was written over meanwhile\n  (free space"), "{}", run.err);
        if json {
            let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
            assert!(json["let_go"] == true && json["sound"] == false, "{json}");
        } else {
            assert!(
                run.out.starts_with(&format!("{v}: let go before it was done; 2 errors that may be none")),
                "{}",
                run.out
            );
        }
    }
}

/// An image that was cut short: by how much is said, also where all segments are still there.
#[test]
fn what_is_missing_of_a_volume_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    assert!(b.json(&["check", "--json", &v]).get("cut_short").is_none());
    for (is, missing) in
        [((32 << 20) - 1, "1 byte of the volume is"), (10 << 20, "23068672 bytes of the volume are")]
    {
        std::fs::File::options().write(true).open(&v).unwrap().set_len(is).unwrap();
        let told = format!(
            "{missing} not there: it had 33554432 and this has {is}; if it was cut short, copy it again"
        );
        let run = b.run(&["check", &v]);
        assert!(run.code == 4 && run.out.lines().any(|line| line == told), "{}", run.out);
        let json: serde_json::Value = serde_json::from_str(&b.run(&["check", "--json", &v]).out).unwrap();
        assert_eq!(json["cut_short"], told, "{json}");
    }
}

#[test]
fn the_memory_it_took_is_a_size() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.run(&["check", "--memory", &v]).err;
    let size = said.strip_prefix("most memory: ").unwrap();
    assert!(size.ends_with(" MiB\n") && size.starts_with(|c: char| c.is_ascii_digit()), "{said}");
}
