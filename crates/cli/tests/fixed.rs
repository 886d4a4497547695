//! Immutable and append-only files. Opening a file is not asked about: every way to change one ends elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Bench, Mounted, can_mount, is_root};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

const LEN: usize = 8192;

fn chattr(flags: &str, path: &Path) {
    assert!(Command::new("chattr").arg(flags).arg(path).status().unwrap().success());
}

/// Writes through a mapping, and syncs it if asked to.
fn write_mapped(file: &File, at: usize, bytes: &[u8], sync: bool) -> rustix::io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of the whole file, which stays as long, taken away again.
    unsafe {
        let map = mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, file, 0)?;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>().add(at), bytes.len());
        let synced = if sync { msync(map, LEN, MsyncFlags::SYNC) } else { Ok(()) };
        munmap(map, LEN)?;
        synced
    }
}

fn refused(result: std::io::Result<()>) -> bool {
    result.unwrap_err().kind() == std::io::ErrorKind::PermissionDenied
}

#[test]
fn fixed_files_stay_as_they_are_whoever_has_them_open() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    let path = m.path("f");
    let mut expected = vec![b'a'; LEN];
    fs::write(&path, &expected).unwrap();
    expected[..3].copy_from_slice(b"map");
    let before = File::options().read(true).write(true).open(&path).unwrap();
    write_mapped(&before, 0, b"map", false).unwrap();
    for flag in ["=i", "=a"] {
        chattr(flag, &path);
        let now = File::options().read(true).write(true).open(&path).unwrap();
        for file in [&before, &now] {
            assert!(refused(file.write_all_at(b"x", 5)));
            assert!(refused(file.set_len(4)));
            assert!(refused(file.set_len(10_000)));
        }
        assert!(refused(fs::write(&path, "new")), "truncating at open");
        write_mapped(&now, 4096, b"x", true).unwrap_err();
        if flag == "=i" {
            let mut append = File::options().append(true).open(&path).unwrap();
            assert!(refused(append.write_all(b"x")));
        }
        // What was mapped before is there, and nothing else, once the kernel was told.
        let right = || {
            std::thread::sleep(Duration::from_millis(10));
            fs::read(&path).unwrap() == expected
        };
        assert!((0..500).any(|_| right()));
    }
    File::options().append(true).open(&path).unwrap().write_all(b"tail").unwrap();
    chattr("=", &path);
    expected.extend(b"tail");
    assert!(fs::read(&path).unwrap() == expected);
    drop(before);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    assert!(fs::read(m.path("f")).unwrap() == expected);
    m.unmount();
}
