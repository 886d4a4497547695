//! Reserving space through a mount.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Bench, Mounted, can_mount};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

/// Space that df promises can be had at once, also if the cleaner has to make it first.
#[test]
fn what_was_given_up_can_be_reserved() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    let available = || {
        let s = statvfs(m.dir()).unwrap();
        s.f_bavail * s.f_frsize
    };
    let whole = available();
    let path = m.path("f");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[7; 1 << 16]).is_ok() {}
    drop(file);
    fs::remove_file(&path).unwrap();
    File::open(m.dir()).unwrap().sync_all().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while available() < whole / 10 * 9 {
        assert!(Instant::now() < until, "df says {} of {whole}", available());
        std::thread::sleep(Duration::from_millis(20));
    }
    let file = File::create(&path).unwrap();
    let reserve = |bytes| fallocate(&file, FallocateFlags::empty(), 0, bytes);
    assert_eq!(reserve(1 << 30), Err(Errno::NOSPC));
    reserve(whole / 10 * 8).unwrap();
    drop(file);
    m.unmount();
}

/// Many small reservations: once one is refused nobody has space a moment later, and df says so.
#[test]
fn who_is_refused_is_not_served_a_moment_later() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    for step in [4096, 16_384] {
        let v = b.name(&format!("{step}.img"));
        b.ok(&["mkfs", "-q", "--size", "32M", "-B", "128", &v]);
        let (m, _) = Mounted::new(&b, &[&v], &format!("m{step}"));
        let mut made = 0;
        let mut reserve = || {
            let path = m.path(&format!("f{made}"));
            let done = File::create(&path).is_ok_and(|file| {
                let done = fallocate(&file, FallocateFlags::empty(), 0, step);
                if done.is_err() {
                    fs::remove_file(&path).unwrap();
                }
                done.is_ok()
            });
            made += u64::from(done);
            done
        };
        while reserve() {}
        for _ in 0..4 {
            b.ok(&["sync", m.dir()]);
            assert!(!reserve(), "{step}: there was no space a moment ago");
        }
        assert!(made * step > 20 << 20, "{made} of {step}");
        let s = statvfs(m.dir()).unwrap();
        let left = s.f_bavail * s.f_frsize;
        assert!(left < 1 << 20, "df promises {left} bytes");
        // What was promised can be written.
        for n in 0..made {
            let mut file = File::options().write(true).open(m.path(&format!("f{n}"))).unwrap();
            file.write_all(&vec![n as u8; step as usize]).unwrap();
        }
        b.ok(&["sync", m.dir()]);
        m.unmount();
        assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
    }
}
