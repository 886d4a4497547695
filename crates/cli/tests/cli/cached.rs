//! What the kernel keeps of files in memory, and what Silt has of them: programs see one file.

use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Bench, Mounted, can_mount, is_root};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags, fallocate, seek, statx};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

/// `RWF_NOAPPEND`: the offset counts although the descriptor appends. Since Linux 6.9.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

#[test]
fn the_offset_of_a_write_counts_whatever_the_descriptor() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    let path = m.path("f");
    fs::write(&path, "0123456789").unwrap();
    let mut file = File::options().read(true).append(true).open(&path).unwrap();
    match pwritev2(&file, &[IoSlice::new(b"ab")], 2, NO_APPEND) {
        Ok(n) => assert_eq!(n, 2),
        Err(Errno::OPNOTSUPP) => return eprintln!("skipped: this kernel appends always"),
        Err(e) => panic!("{e}"),
    }
    file.write_all(b"end").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "01ab456789end", "what the kernel has");
    drop(file);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    assert_eq!(fs::read_to_string(m.path("f")).unwrap(), "01ab456789end", "what the volume has");
    m.unmount();
}

/// A shared mapping of a file of so many bytes.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn of(file: &File, len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping that nobody else knows.
        let map = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        Mapping(map.unwrap().cast(), len)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.1);
        // SAFETY: within the mapping, and the file stays as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping as it was made, not used any more.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

/// Programs that copy sparse files ask where data is, and take nothing else.
#[test]
fn what_a_mapping_wrote_over_a_hole_is_data() {
    if !can_mount() {
        return;
    }
    const LEN: u64 = 1 << 20;
    const BLOCK: u64 = 4096;
    // Where the kernel's switch is off the second is like the first.
    for options in [&[][..], &["-o", "io_uring"]] {
        let b = Bench::new();
        let v = b.volume("v.img", "64M");
        let (m, _) = Mounted::new(&b, &[options, &[&v]].concat(), "mnt");
        let path = m.path("f");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(LEN).unwrap();
        let data = |at| seek(&file, SeekFrom::Data(at));
        let hole = |at| seek(&file, SeekFrom::Hole(at));
        assert_eq!((data(0), hole(0)), (Err(Errno::NXIO), Ok(0)));
        let map = Mapping::of(&file, LEN as usize);
        let put = |block: u64| map.write((block * BLOCK) as usize, &[b'x'; BLOCK as usize]);
        // Between holes.
        put(20);
        assert_eq!((data(5), hole(5), hole(20 * BLOCK)), (Ok(20 * BLOCK), Ok(5), Ok(21 * BLOCK)));
        // Several holes that are none, with data between that is written.
        for block in [21, 23, 25] {
            put(block);
        }
        file.sync_all().unwrap();
        (20..27).for_each(put);
        assert_eq!((hole(20 * BLOCK), data(27 * BLOCK)), (Ok(27 * BLOCK), Err(Errno::NXIO)));
        assert_eq!(data(21 * BLOCK + 7), Ok(21 * BLOCK + 7));
        // To the end of the file.
        put(255);
        assert_eq!((data(30 * BLOCK), hole(255 * BLOCK)), (Ok(255 * BLOCK), Ok(LEN)));
        put(100);
        map.write((200 * BLOCK) as usize, b"y");
        let copy = b.path("copy");
        assert!(Command::new("cp").arg(&path).arg(&copy).status().unwrap().success());
        assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
        drop((map, file));
        m.unmount();
    }
}

/// The kernel keeps the mode of a file, and goes by it when the file is run.
#[test]
fn set_id_bits_that_a_change_took_away_are_gone_at_once() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    let path = m.path("f");
    let file = File::create(&path).unwrap();
    let mode = || {
        let s = statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        u32::from(s.stx_mode) & 0o7777
    };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let write = |mut file: &File| file.write_all(b"x").is_ok();
    let changes: [&(dyn Fn(&File) -> bool + Sync); 3] =
        [&write, &|file| fallocate(file, FallocateFlags::empty(), 0, 8192).is_ok(), &|file| {
            fallocate(file, punch, 0, 100).is_ok()
        }];
    for (i, change) in changes.into_iter().enumerate() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(change(&file) && mode() == 0o4755, "by root, {i}");
        let done = std::thread::scope(|scope| {
            let by_another = || {
                let nobody = Uid::from_raw(65534);
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
                change(&file)
            };
            scope.spawn(by_another).join().unwrap()
        });
        assert!(done);
        assert_eq!(mode(), 0o755, "by another, {i}");
    }
    drop(file);
    m.unmount();
}
