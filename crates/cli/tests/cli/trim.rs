//! `silt trim`, and discarding behind a mount

use crate::common::disk::Loop;
use crate::common::{Bench, Mounted, can_mount};

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

fn allocated(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

fn sound(b: &Bench, v: &str) {
    let said = b.ok(&["check", "--all", v]);
    assert!(said.contains(": sound; "), "{said}");
}

/// An image whose every byte is taken from the host, with a file of 3 MiB.
fn filled(b: &Bench) -> String {
    let v = b.name("v.img");
    std::fs::write(&v, vec![0xa5; 48 << 20]).unwrap();
    b.ok(&["mkfs", "-f", "-q", "-K", "-B", "64", &v]);
    let (m, _) = Mounted::new(b, &["-o", "nodiscard", &v], "m");
    std::fs::write(m.path("f"), vec![7; 3 << 20]).unwrap();
    m.unmount();
    assert!(allocated(&v) >= 48 << 20);
    v
}

#[test]
fn an_image_gives_its_free_space_back() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = filled(&b);
    let free = b.json(&["status", "--json", &v])["free"].as_u64().unwrap();
    let r = b.json(&["trim", "--json", "--minimum", "1G", &v]);
    assert_eq!((r["discarded"].as_u64(), r["too_small"].as_u64()), (Some(0), Some(free)), "{r}");
    assert!(allocated(&v) >= 48 << 20);
    let r = b.json(&["trim", "--json", &v]);
    let discarded = r["discarded"].as_u64().unwrap();
    assert_eq!(discarded, free, "{r}");
    assert!(allocated(&v) <= (48 << 20) - discarded + (1 << 20), "{} are left", allocated(&v));
    assert!(b.ok(&["trim", &v]).contains("discarded"));
    sound(&b, &v);
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    assert!(std::fs::read(m.path("f")).unwrap() == vec![7; 3 << 20]);
    m.unmount();
}

/// Also while it is mounted and written, with what is free by then.
#[test]
fn a_mounted_volume_is_trimmed_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = filled(&b);
    let (m, _) = Mounted::new(&b, &["-o", "nodiscard,interval=0.1", &v], "m");
    assert!(b.ok(&["status", m.dir()]).contains("discard: off"));
    let mut last = Vec::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trims = scope.spawn(|| {
            let mut all = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                all += b.json(&["trim", "--json", m.dir()])["discarded"].as_u64().unwrap();
            }
            all
        });
        for round in 0..60u8 {
            last = vec![round; 2 << 20];
            std::fs::write(m.path(&format!("g{}", round % 4)), &last).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(trims.join().unwrap() > 16 << 20);
    });
    // What the cache holds is not asked for.
    m.unmount();
    sound(&b, &v);
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    assert!(std::fs::read(m.path("g3")).unwrap() == last);
    assert!(std::fs::read(m.path("f")).unwrap() == vec![7; 3 << 20]);
    m.unmount();
}

/// Most of it is written and free again.
fn emptied<'a>(b: &'a Bench, v: &str, options: &str) -> Mounted<'a> {
    let (m, _) = Mounted::new(b, &["-o", options, v], "m");
    std::fs::write(m.path("f"), vec![8; 40 << 20]).unwrap();
    b.ok(&["sync", m.dir()]);
    std::fs::remove_file(m.path("f")).unwrap();
    b.ok(&["clean", "-p", "0", m.dir()]);
    m
}

#[test]
fn what_becomes_free_in_a_mounted_image_is_discarded_by_itself() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let m = emptied(&b, &v, "interval=0.1");
    let begin = Instant::now();
    // A sixteenth of the segments lies ahead of the log.
    while allocated(&v) > 16 << 20 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} are left", allocated(&v));
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = b.ok(&["status", m.dir()]);
    assert!(said.contains("discard: on; ") && !said.contains("; 0 bytes of"), "{said}");
    std::fs::write(m.path("g"), vec![9; 4 << 20]).unwrap();
    m.unmount();
    sound(&b, &v);

    // At the end of a mount nothing ripens any more.
    let v = b.volume("w.img", "64M");
    emptied(&b, &v, "interval=5").unmount();
    assert!(allocated(&v) <= 16 << 20, "{} are left", allocated(&v));
    sound(&b, &v);
}

/// It may be what a repair freed, and what a rescue is to look for.
#[test]
fn what_was_free_before_is_left_as_it_is() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = filled(&b);
    let before = allocated(&v);
    assert!(before > 32 << 20);
    let (m, _) = Mounted::new(&b, &["-o", "interval=0.05", &v], "m");
    std::thread::sleep(Duration::from_secs(2));
    m.unmount();
    assert!(allocated(&v) >= before, "{} of {before} are left", allocated(&v));
    sound(&b, &v);
}

/// A loop device hands discards on to its file.
#[test]
fn a_device_is_trimmed() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = filled(&b);
    let Some(d) = Loop::writable(&v) else { return };
    let free = b.json(&["status", "--json", d.path()])["free"].as_u64().unwrap();
    let r = b.json(&["trim", "--json", d.path()]);
    assert_eq!(r["discarded"].as_u64(), Some(free), "{r}");
    drop(d);
    assert!(allocated(&v) <= (48 << 20) - free + (1 << 20), "{} are left", allocated(&v));
    sound(&b, &v);
}
