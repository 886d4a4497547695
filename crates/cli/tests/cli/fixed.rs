//! Immutable and append-only files. Opening a file is not asked about: every way to change one ends elsewhere.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::{Bench, Mounted, can_mount, is_root};
use rustix::fs::{IFlags, ioctl_setflags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

const LEN: usize = 8192;

/// A shared mapping of the whole file.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping that nobody else knows.
        let map = unsafe { mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, file, 0) };
        Mapping(map.unwrap().cast())
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: within the mapping, and the file stays as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) }
    }

    fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the mapping as it was made.
        unsafe { msync(self.0.cast(), LEN, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping as it was made, not used any more.
        let _ = unsafe { munmap(self.0.cast(), LEN) };
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
    // Dirty still when the flag is set: unmapping would write it.
    let map = Mapping::of(&before);
    map.write(0, b"map");
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        // Through a descriptor that was open before: closing one writes what is dirty.
        ioctl_setflags(&before, flag).unwrap();
        let now = File::options().read(true).write(true).open(&path).unwrap();
        for file in [&before, &now] {
            assert!(refused(file.write_all_at(b"x", 5)));
            assert!(refused(file.set_len(4)));
            assert!(refused(file.set_len(10_000)));
        }
        assert!(refused(fs::write(&path, "new")), "truncating at open");
        let late = Mapping::of(&now);
        late.write(4096, b"x");
        late.sync().unwrap_err();
        drop(late);
        if flag == IFlags::IMMUTABLE {
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
    ioctl_setflags(&before, IFlags::empty()).unwrap();
    expected.extend(b"tail");
    assert!(fs::read(&path).unwrap() == expected);
    drop((map, before));
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    assert!(fs::read(m.path("f")).unwrap() == expected);
    m.unmount();
}
