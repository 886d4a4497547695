//! `silt resize`

use crate::common::disk::Loop;
use crate::common::{Bench, Mounted, SILT, can_mount};

use std::process::Stdio;
use std::time::Duration;

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

fn sound(b: &Bench, v: &str) {
    let said = b.ok(&["check", "--all", v]);
    assert!(said.contains(": sound; "), "{said}");
    assert!(!said.contains("note"), "nor is there anything to note: {said}");
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_mul(31).wrapping_add((i / 7) as u8)).collect()
}

/// Files all over a volume of 64 MiB, most of them gone again, and a snapshot between.
fn used(b: &Bench) -> (String, u64) {
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(b, &["-o", "nogc", &v], "m");
    let mut snapshot = 0;
    for n in 0..40u8 {
        std::fs::write(m.path(&format!("f{n}")), bytes(n, 1 << 20)).unwrap();
        b.ok(&["sync", m.dir()]);
        if n == 20 {
            b.ok(&["mkcp", "-s", m.dir()]);
            snapshot = b.checkpoints(m.dir()).into_iter().find(|c| c.1).unwrap().0;
        }
        if n >= 20 {
            let _ = std::fs::remove_file(m.path(&format!("f{}", n - 10)));
        }
    }
    m.unmount();
    (v, snapshot)
}

fn holds(b: &Bench, v: &str, options: &str, files: impl Iterator<Item = u8>) {
    let (m, _) = Mounted::new(b, &["-o", options, v], "m");
    for n in files {
        assert!(std::fs::read(m.path(&format!("f{n}"))).unwrap() == bytes(n, 1 << 20), "file {n}");
    }
    m.unmount();
}

#[test]
fn shrinks_and_keeps_all_that_is_kept() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, snapshot) = used(&b);
    let moments = b.checkpoints(&v).len();
    let r = b.json(&["resize", "--json", &v, "60M"]);
    assert_eq!((r["moments_gone"].as_u64(), r["size"].as_u64()), (Some(0), Some(60 << 20)), "{r}");
    assert!(b.checkpoints(&v).len() >= moments, "all of the past has room");
    assert_eq!(std::fs::metadata(&v).unwrap().len(), 60 << 20);
    sound(&b, &v);
    // Near what all of the past takes: what does not fit goes.
    for mib in [46, 45, 44, 43] {
        std::fs::copy(&v, b.path("w.img")).unwrap();
        let w = b.name("w.img");
        b.ok(&["resize", &w, &format!("{mib}M")]);
        sound(&b, &w);
        holds(&b, &w, "ro", (0..10).chain(30..40));
        holds(&b, &w, &format!("ro,cp={snapshot}"), 0..10);
    }
    let r = b.json(&["resize", "--json", &v, "49M"]);
    let after = b.json(&["tune", "--json", &v]);
    assert_eq!((&after["segments"], &after["device_size"]), (&r["segments"], &serde_json::json!(49 << 20)));
    assert!(r["segments"].as_u64() < r["segments_before"].as_u64());
    assert_eq!(std::fs::metadata(&v).unwrap().len(), 49 << 20);
    sound(&b, &v);
    let live = (0..10).chain(30..40);
    holds(&b, &v, "ro", live.clone());
    holds(&b, &v, &format!("ro,cp={snapshot}"), 0..10);

    // Too small: nothing changes, and what it says works.
    let before = std::fs::read(&v).unwrap();
    let said = b.fails(8, &["resize", &v, "20M"]);
    assert!(said.contains("20 MiB (20971520 bytes) are too few"), "{said}");
    let hint = said.lines().nth(1).unwrap();
    let typed = hint.split(" works now").next().unwrap().rsplit('(').next().unwrap();
    let least = typed.strip_suffix('K').unwrap().parse::<u64>().unwrap() << 10;
    assert!((20 << 20..49 << 20).contains(&least), "{said}");
    let after = std::fs::read(&v).unwrap();
    let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(changed < 4096, "more than the super blocks: {changed} bytes");
    assert!(b.ok(&["resize", &v, typed]).contains("fewer than before"));
    sound(&b, &v);
    holds(&b, &v, "ro", live);
    holds(&b, &v, &format!("ro,cp={snapshot}"), 0..10);
    // And back.
    b.ok(&["resize", &v, "64M"]);
    sound(&b, &v);
}

#[test]
fn shrinks_while_it_is_mounted_and_written() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, snapshot) = used(&b);
    let (m, _) = Mounted::new(&b, &["-o", "interval=0.1", &v], "m");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let mut n = 0u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n = n.wrapping_add(1);
                std::fs::write(m.path("w"), bytes(n, 300_000)).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            n
        });
        b.ok(&["resize", m.dir(), "50M"]);
        assert_eq!(std::fs::metadata(&v).unwrap().len(), 50 << 20);
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let n = writes.join().unwrap();
        assert!(std::fs::read(m.path("w")).unwrap() == bytes(n, 300_000));
    });
    let status = b.json(&["status", "--json", m.dir()]);
    let status = if status.is_array() { status[0].clone() } else { status };
    assert!(status["size"].as_u64().unwrap() <= 50 << 20);
    m.unmount();
    sound(&b, &v);
    holds(&b, &v, "ro", (0..10).chain(30..40));
    holds(&b, &v, &format!("ro,cp={snapshot}"), 0..10);
}

/// What df says of a volume that has another size is what a count says there and then.
#[test]
fn df_goes_by_the_new_size_at_once() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, _) = used(&b);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    // No cleaning is due at these sizes; where it goes on all the same, the rest of the segments that it writes to
    // counts as the log's, not as free.
    let newest = || b.checkpoints(m.dir()).iter().map(|c| c.0).max();
    let mut looked_at = 0;
    for size in ["96M", "72M", "128M", "80M", "97M", "73M", "129M", "81M"] {
        b.ok(&["resize", m.dir(), size]);
        let at_rest = newest();
        let s = rustix::fs::statvfs(m.path("")).unwrap();
        let held = b.json(&["du", "--json", m.dir()]);
        let number = |name: &str| held[name].as_u64().unwrap();
        let clean = number("free") + number("reserve");
        let made = number("reclaimable") + number("history_loose");
        let free = s.f_bfree * s.f_frsize;
        assert!(made > 4 << 20, "{size}: {held}");
        let is_near = free.abs_diff(clean + made) <= number("segment_size");
        assert!(is_near || newest() != at_rest, "{size}: {free} {held}");
        looked_at += u32::from(is_near);
    }
    assert!(looked_at >= 4, "{looked_at} of 8");
    m.unmount();
    sound(&b, &v);
}

/// Of a device the volume leaves the end, so that the partition can be made smaller then.
#[test]
fn a_device_can_be_cut_off_afterwards() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, _) = used(&b);
    let Some(device) = Loop::writable(&v) else { return };
    assert!(b.fails(2, &["resize", device.path(), "128M"]).contains("has only 64 MiB (67108864 bytes)"));
    b.ok(&["resize", device.path(), "56M"]);
    assert_eq!(std::fs::metadata(&v).unwrap().len(), 64 << 20);
    assert_eq!(b.json(&["tune", "--json", device.path()])["device_size"], 56 << 20);
    // Also when it was used in between.
    let (m, _) = Mounted::new(&b, &[device.path()], "m");
    std::fs::write(m.path("more"), bytes(1, 3 << 20)).unwrap();
    m.unmount();
    drop(device);
    let said = b.ok(&["check", "--all", &v]);
    assert!(said.contains(": sound; "), "{said}");
    std::fs::File::options().write(true).open(&v).unwrap().set_len(56 << 20).unwrap();
    sound(&b, &v);
    holds(&b, &v, "ro", (0..10).chain(30..40));
}

/// Makes it smaller until Ctrl-C so many milliseconds later; the exit code, and what was said.
fn interrupted(b: &Bench, volume: &str, wait: u64) -> (Option<i32>, String) {
    let mut command = b.command(SILT);
    command.args(["resize", volume, "44M"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(wait));
    let pid = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Ctrl-C leaves a sound volume of one size or the other.
#[test]
fn it_can_be_interrupted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    for wait in [10, 40, 80, 150] {
        let (v, _) = used(&b);
        let (code, said) = interrupted(&b, &v, wait);
        if code == Some(130) {
            assert!(said.contains("ended before it was done; it has its old size"), "{said}");
        }
        let size = std::fs::metadata(&v).unwrap().len();
        match code {
            Some(0) => assert_eq!(size, 44 << 20),
            // A child process that another test starts just now holds our files until it calls exec.
            Some(6) => assert_eq!(size, 64 << 20),
            // Before it could say so, it ends as any program does.
            Some(130) | None => assert_eq!(size, 64 << 20),
            other => panic!("{other:?}"),
        }
        assert_eq!(b.json(&["tune", "--json", &v])["device_size"], size);
        let said = b.ok(&["check", "--all", &v]);
        assert!(said.contains(": sound; "), "{said}");
        holds(&b, &v, "ro", (0..10).chain(30..40));
        std::fs::remove_file(&v).unwrap();
    }
}

/// The same of a mounted one, which can be filled again then: nothing stays confined.
#[test]
fn a_mounted_one_can_be_interrupted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let mut ended = 0;
    for wait in [5, 15, 30, 60] {
        let (v, _) = used(&b);
        let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
        let (code, said) = interrupted(&b, m.dir(), wait);
        // Who asked is gone; the daemon sees that at its next word to him.
        let settled = || b.json(&["tune", "--json", m.dir()])["device_size"].as_u64().unwrap();
        if code == Some(0) {
            assert_eq!(settled(), 44 << 20);
        } else {
            assert!(matches!(code, Some(130) | None), "{code:?}");
            assert!(
                code.is_none() || said.contains("given up before it was done; it keeps its old size"),
                "{said}"
            );
            ended += 1;
        }
        b.ok(&["sync", m.dir()]);
        let size = settled();
        assert!(size == 44 << 20 || size == 64 << 20, "{size}");
        let fits = if size == 64 << 20 { 12 } else { 1 };
        let wrote = (0..fits).try_for_each(|n| std::fs::write(m.path(&format!("g{n}")), bytes(n, 1 << 20)));
        // What was past the daemon's last word to who asked is done after all.
        let (before, size) = (size, settled());
        assert!(wrote.is_ok() || size < before, "{code:?} {wrote:?} {size}: {}", b.ok(&["status", m.dir()]));
        m.unmount();
        assert_eq!(std::fs::metadata(&v).unwrap().len(), size);
        let said = b.ok(&["check", "--all", &v]);
        assert!(said.contains(": sound; "), "{said}");
        holds(&b, &v, "ro", (0..10).chain(30..40));
        std::fs::remove_file(&v).unwrap();
    }
    assert!(ended > 0, "it was always done before");
}

/// Who reads what is to be cut off is waited for, and named.
#[test]
fn a_scrub_keeps_a_volume_from_shrinking() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, _) = used(&b);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    b.ok(&["scrub", "--background", "--rate", "1K", m.dir()]);
    let said = b.fails(6, &["resize", m.dir(), "44M"]);
    assert!(said.contains("somebody reads what lies behind the new end"), "{said}");
    assert_eq!(std::fs::metadata(&v).unwrap().len(), 64 << 20);
    // Less of the past would not help, and no less is tried.
    assert!(said.matches("of the past").count() <= 1, "{said}");
    b.ok(&["scrub", "--cancel", m.dir()]);
    b.ok(&["resize", m.dir(), "44M"]);
    m.unmount();
    sound(&b, &v);
    holds(&b, &v, "ro", (0..10).chain(30..40));
}

#[test]
fn sizes_that_are_none_are_refused() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let before = std::fs::metadata(&v).unwrap().len();
    for size in ["0", "1", "4096", "1M"] {
        let said = b.fails(8, &["resize", &v, size]);
        assert!(said.contains("works now"), "{size}: {said}");
        assert_eq!(said.contains("1 byte is too few"), size == "1", "{said}");
    }
    assert!(b.ok(&["resize", &v, "32M"]).contains("has that size already: 32 MiB (33554432 bytes)"));
    assert_eq!(std::fs::metadata(&v).unwrap().len(), before);
    for none in ["16Q", "1.5M"] {
        let run = b.run(&["resize", &v, none]);
        assert!(run.code == 2 && run.err.contains("a whole number with K, M, G or T"), "{}", run.err);
    }
    sound(&b, &v);
}

/// What a refusal says works is smaller than what there is, or nothing is.
#[test]
fn a_full_volume_cannot_be_made_smaller_and_that_is_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert!((0..100).any(|n| std::fs::write(m.path(&format!("f{n}")), bytes(n, 1 << 20)).is_err()));
    b.ok(&["sync", m.dir()]);
    for size in ["20M", "31M"] {
        let said = b.fails(8, &["resize", m.dir(), size]);
        assert!(
            said.contains("cannot be made smaller now") && said.contains("32 MiB (33554432 bytes)"),
            "{said}"
        );
    }
    m.unmount();
    assert!(b.fails(8, &["resize", &v, "31M"]).contains("cannot be made smaller now"));
    sound(&b, &v);
}
