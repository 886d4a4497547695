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
