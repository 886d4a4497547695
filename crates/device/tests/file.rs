//! Image files: making, locking, growing, what they say of themselves.

#![allow(clippy::unwrap_used, clippy::panic)] // tests: a surprise is a failure

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use memmap2::MmapOptions;
use silt_device::{Access, Device, Error, FileDevice, Kind, OpenOptions, create_image, open, usage};

const MIB: u64 = 1 << 20;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Dir(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Whether it lies on a tmpfs, where everything is page cache and nothing can go past it.
    fn is_page_cache(&self) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        let yes = rustix::fs::statfs(self.0.path()).unwrap().f_type == TMPFS;
        if yes {
            println!("skipped: tmpfs");
        }
        yes
    }
}

/// Whether the page cache has what lies there. A read that must not wait would begin to read it, and may find it a moment later.
fn in_page_cache(path: &Path, offset: u64) -> bool {
    let page = rustix::param::page_size();
    let image = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: nothing is read through it.
    let map =
        unsafe { MmapOptions::new().offset(offset - offset % page as u64).len(page).map(&image) }.unwrap();
    let mut there = 0;
    // SAFETY: it tells of one page, in one byte.
    let told = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), page, &raw mut there) };
    assert_eq!(told, 0);
    there & 1 == 1
}

fn kind(result: Result<FileDevice, Error>) -> ErrorKind {
    match result {
        Err(Error::Open { source, .. }) => source.kind(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("opened"),
    }
}

fn busy(result: Result<FileDevice, Error>) -> String {
    match result {
        Err(Error::Busy { by, .. }) => by.unwrap_or_default(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("opened"),
    }
}

fn read_only() -> OpenOptions {
    OpenOptions::default()
}

#[test]
fn images_are_sparse_private_and_not_overwritten() {
    let dir = Dir::new();
    let path = dir.path("image");
    let device = create_image(&path, 64 * MIB, false).unwrap();
    assert_eq!(device.len(), 64 * MIB);
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.blocks() * 512 < MIB, "{} blocks", meta.blocks());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    device.write_at(0, &[b"data"]).unwrap();
    drop(device);

    assert_eq!(kind(create_image(&path, MIB, false)), ErrorKind::AlreadyExists);
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 * MIB);

    let device = create_image(&path, MIB, true).unwrap();
    let mut buf = [1; 4];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!((device.len(), buf), (MIB, [0; 4]), "what it held is gone");
    assert!(!busy(create_image(&path, MIB, true)).is_empty(), "not while it is in use");
}

#[test]
fn nothing_is_left_of_an_image_that_cannot_be() {
    let dir = Dir::new();
    let path = dir.path("image");
    assert!(create_image(&path, u64::MAX, false).is_err());
    assert!(!path.exists());
    // Nor is anything taken from one that is there.
    fs::write(&path, b"mine").unwrap();
    assert!(create_image(&path, u64::MAX, true).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn what_is_no_volume_is_refused() {
    let dir = Dir::new();
    let o = OpenOptions::default();
    assert_eq!(kind(open(dir.path("none"), Access::ReadOnly, &o)), ErrorKind::NotFound);
    assert_eq!(kind(open(dir.path("."), Access::ReadOnly, &o)), ErrorKind::IsADirectory);
    assert_eq!(kind(open("/dev/null", Access::ReadWrite, &o)), ErrorKind::InvalidInput);
    let fifo = dir.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(kind(open(&fifo, Access::ReadOnly, &o)), ErrorKind::InvalidInput, "and it does not hang");
}

#[test]
fn one_writer_or_many_readers() {
    let dir = Dir::new();
    let path = dir.path("image");
    let o = OpenOptions::default();
    let writer = create_image(&path, MIB, false).unwrap();
    assert_eq!(busy(open(&path, Access::ReadWrite, &o)), "locked by another process");
    assert!(!busy(open(&path, Access::ReadOnly, &o)).is_empty());
    let look = OpenOptions { without_lock: true, ..read_only() };
    assert!(open(&path, Access::ReadOnly, &look).is_ok());
    assert!(!busy(open(&path, Access::ReadWrite, &look)).is_empty(), "only for looking");
    drop(writer);

    let first = open(&path, Access::ReadOnly, &o).unwrap();
    let second = open(&path, Access::ReadOnly, &o).unwrap();
    assert!(!busy(open(&path, Access::ReadWrite, &o)).is_empty());
    drop((first, second));
    assert!(open(&path, Access::ReadWrite, &o).is_ok());
}

#[test]
fn another_process_is_named() {
    let dir = Dir::new();
    let path = dir.path("image");
    drop(create_image(&path, MIB, false).unwrap());
    // `flock` from util-linux holds the lock while its command runs.
    let child = Command::new("flock")
        .args(["--exclusive", "--no-fork"])
        .arg(&path)
        .args(["sh", "-c", "echo locked; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: no flock command");
        return;
    };
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let by = busy(open(&path, Access::ReadWrite, &OpenOptions::default()));
    let told = usage(&path).unwrap();
    let pid = child.id();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(by, format!("locked by process {pid}, sh"));
    assert_eq!(told.unwrap().to_string(), by);
    assert_eq!(usage(&path).unwrap(), None);
}

#[test]
fn read_only_writes_nothing() {
    let dir = Dir::new();
    let path = dir.path("image");
    drop(create_image(&path, MIB, false).unwrap());
    let device = open(&path, Access::ReadOnly, &read_only()).unwrap();
    assert!(device.capabilities().read_only && !device.capabilities().discard);
    assert!(matches!(device.write_at(0, &[&[1]]), Err(Error::ReadOnly)));
    assert!(matches!(device.write_durably(0, &[1]), Err(Error::ReadOnly)));
    assert!(matches!(device.discard(0, 1), Err(Error::ReadOnly)));
    assert!(matches!(device.grow(2 * MIB), Err(Error::ReadOnly)));
    device.flush().unwrap();
}

#[test]
fn growth() {
    let dir = Dir::new();
    let path = dir.path("image");
    let device = create_image(&path, MIB, false).unwrap();
    assert!(device.read_at(MIB, &mut [0]).is_err());
    device.grow(2 * MIB).unwrap();
    assert_eq!(device.len(), 2 * MIB);
    device.read_at(2 * MIB - 1, &mut [0]).unwrap();
    assert!(device.grow(MIB).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * MIB);

    // Somebody else's growth is seen when asked for.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * MIB).unwrap();
    assert_eq!(device.len(), 2 * MIB);
    assert_eq!(device.refresh_len().unwrap(), 3 * MIB);
}

#[test]
fn room_below_counts_for_sparse_images_only() {
    let dir = Dir::new();
    let device = create_image(dir.path("image"), MIB, false).unwrap();
    let free = device.backing_free().expect("a hole throughout");
    let host = rustix::fs::statvfs(dir.0.path()).unwrap();
    let total = host.f_blocks * host.f_frsize;
    assert!(free > 0 && free < total, "{free} of {total}");
    device.write_at(0, &[&vec![1; MIB as usize]]).unwrap();
    device.flush().unwrap();
    assert_eq!(device.backing_free(), None);
    device.discard(0, MIB / 2).unwrap();
    if device.capabilities().discard {
        assert!(device.backing_free().is_some(), "the hole is back");
    }
}

#[test]
fn what_was_written_is_at_hand() {
    let dir = Dir::new();
    let device = create_image(dir.path("image"), MIB, false).unwrap();
    device.write_at(5, &[b"cached"]).unwrap();
    let mut buf = [0; 6];
    match device.read_if_cached(5, &mut buf).unwrap() {
        true => assert_eq!(&buf, b"cached"),
        false => println!("this file system cannot tell"),
    }
    assert!(device.read_if_cached(MIB - 1, &mut [0; 2]).is_err());
}

/// A sync waits for what it writes: through the page cache it would wait for a copy and for finding what is dirty, too.
#[test]
fn writes_of_whole_pages_go_past_the_page_cache() {
    let dir = Dir::new();
    if dir.is_page_cache() {
        return;
    }
    let device = create_image(dir.path("image"), MIB, false).unwrap();
    let mut page = [0; 4096];
    device.write_at(8192, &[&[7; 4096]]).unwrap();
    assert!(!in_page_cache(&dir.path("image"), 8192));
    device.read_at(8192, &mut page).unwrap();
    assert_eq!(page, [7; 4096]);
    // What the page cache has of it by now is not read any more.
    device.write_at(8192, &[&[8; 100], &[9; 3996]]).unwrap();
    device.read_at(8192, &mut page).unwrap();
    assert_eq!((page[99], page[100]), (8, 9));
    // Beside a part of a page, which only the page cache takes.
    device.write_at(8190, &[b"part"]).unwrap();
    device.write_at(12288, &[&[5; 4096]]).unwrap();
    device.flush().unwrap();
    let all = fs::read(dir.path("image")).unwrap();
    assert_eq!((&all[8190..8194], all[8194], all[12287], all[12288]), (&b"part"[..], 8, 9, 5));
}

#[test]
fn what_is_read_again_soon_stays_in_the_page_cache() {
    let dir = Dir::new();
    if dir.is_page_cache() {
        return;
    }
    let device = create_image(dir.path("image"), 8 * MIB, false).unwrap();
    let (mut page, bytes) = ([0; 4096], vec![3; 2 * MIB as usize]);
    device.write_at(0, &[&bytes]).unwrap();
    device.write_cached(2 * MIB, &[&bytes[..MIB as usize], &bytes[MIB as usize..]]).unwrap();
    device.flush().unwrap();
    assert!(!in_page_cache(&dir.path("image"), MIB));
    assert!(device.read_if_cached(3 * MIB, &mut page).unwrap() && page == [3; 4096]);
    // And what takes its place past the page cache counts.
    device.write_at(2 * MIB, &[&vec![4; 2 * MIB as usize]]).unwrap();
    device.read_at(3 * MIB, &mut page).unwrap();
    assert_eq!(page, [4; 4096]);
    assert!(device.write_cached(7 * MIB, &[&bytes]).is_err());
}

/// Who waits for a read does not wait for what is fetched with it.
#[test]
fn what_is_around_a_read_can_come_after_it() {
    let dir = Dir::new();
    if dir.is_page_cache() {
        return;
    }
    let (mut page, at) = ([0; 4096], 3 * MIB + 300_000);
    // A disk may be so quick that what was begun to be read is there when it is looked at.
    let waited = (0..100).find_map(|n| {
        let path = dir.path(&format!("image {n}"));
        let device = create_image(path.clone(), 8 * MIB, false).unwrap();
        device.write_at(0, &[&vec![3; 8 << 20]]).unwrap();
        device.flush().unwrap();
        let around = device.read_first(at, &mut page).unwrap();
        around.map(|around| (path, device, around))
    });
    let (path, device, around) = waited.unwrap();
    assert!(
        page == [3; 4096] && around.contains(&at) && around.end - around.start >= 256 << 10,
        "{around:?}"
    );
    // The hint that was given for the read itself is shorter.
    let far = if at - around.start > around.end - at { around.start } else { around.end - 4096 };
    let cached = || in_page_cache(&path, far);
    assert!(!cached());
    device.fetch(around.clone());
    let begin = std::time::Instant::now();
    while !cached() {
        assert!(begin.elapsed().as_secs() < 10);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(device.read_first(far, &mut page).unwrap(), None, "it is at hand");
    assert!(device.read_first(8 * MIB - 1, &mut page).is_err());
}

/// What is fetched around a read fills the device's queue, and who syncs meanwhile stands behind all of it.
#[test]
fn reads_in_the_background_fetch_nothing() {
    let dir = Dir::new();
    if dir.is_page_cache() {
        return;
    }
    let device = create_image(dir.path("image"), 8 * MIB, false).unwrap();
    device.write_at(0, &[&vec![3; 8 << 20]]).unwrap();
    device.flush().unwrap();
    let cached = |at| in_page_cache(&dir.path("image"), at);
    for (at, len) in [(0, 4096), (2 * MIB, 128 << 10), (4 * MIB + 100, 1000), (6 * MIB - 50, 100_000)] {
        let mut buf = vec![0; len];
        device.read_kind(Kind::Background, at, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 3));
    }
    let of_pages = [0, 4096, 2 * MIB, 2 * MIB + 4096, 2 * MIB + (128 << 10)].map(cached);
    assert_eq!(of_pages, [false; 5], "whole pages");
    // Beside what comes by pages of the cache the system may read more, but not as much as is fetched for others.
    assert!(!cached(5 * MIB));
}

/// Whoever reads them afterwards, with a lock that others wait for, does not wait for the medium.
#[test]
fn what_was_brought_is_at_hand_and_nothing_else() {
    let dir = Dir::new();
    if dir.is_page_cache() {
        return;
    }
    let device = create_image(dir.path("image"), 64 * MIB, false).unwrap();
    (0..64).for_each(|n| device.write_at(n * MIB, &[&vec![n as u8; 1 << 20]]).unwrap());
    device.flush().unwrap();
    // More than are asked for at a time, and some that are not there.
    let wanted: Vec<u64> = (0..70).map(|n| n * MIB).chain([u64::MAX - 5]).collect();
    device.bring(&wanted, 4096);
    let mut page = [0; 4096];
    for n in 0..64 {
        assert!(device.read_if_cached(n * MIB, &mut page).unwrap(), "{n}");
        assert_eq!(page, [n as u8; 4096]);
        // The system may take a page more, not as much as is fetched around others.
        assert!(!in_page_cache(&dir.path("image"), n * MIB + (512 << 10)), "{n}");
    }
    device.bring(&[], 4096);
}

#[test]
fn a_file_cut_short_is_an_error() {
    let dir = Dir::new();
    let path = dir.path("image");
    let device = create_image(&path, MIB, false).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let e = device.read_at(50, &mut [0; 100]).unwrap_err();
    assert!(e.to_string().contains("is 100 bytes long now, shorter than the volume"), "{e}");
}

/// The system lets an image grow with what is written behind its end, and shows zeroes where data was.
#[test]
fn what_is_written_behind_an_end_that_others_made_is_not_promised() {
    let dir = Dir::new();
    let path = dir.path("image");
    let device = create_image(&path, 4 * MIB, false).unwrap();
    device.write_at(0, &[&vec![1; 4 << 20]]).unwrap();
    device.flush().unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB).unwrap();
    device.write_at(2 * MIB, &[&[2; 4096]]).unwrap();
    let e = device.flush().unwrap_err();
    assert!(e.to_string().contains("bytes long now, shorter than the volume"), "{e}");
    assert_eq!(device.failed_flushes(), 1);
    // Once it is known it does not become longer, and not as long as before, so that nobody would see it.
    for at in [3 * MIB, 4 * MIB - 4096] {
        let e = device.write_at(at, &[&[2; 4096]]).unwrap_err();
        assert!(e.to_string().contains("shorter than the volume"), "{e}");
    }
    assert!(fs::metadata(&path).unwrap().len() < 3 * MIB);
}

#[test]
fn a_full_host_is_told_apart() {
    // A quota by file size: the writes beyond it fail as on a full file system only where one can
    // make one, so this takes a small tmpfs in a mount namespace of its own, as root.
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    let dir = Dir::new();
    let exe = std::env::current_exe().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m none '{0}' && SILT_FULL_HOST='{0}' exec '{1}' --exact full_host_inside --ignored",
        dir.0.path().display(),
        exe.display()
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output();
    let Ok(output) = output else {
        println!("skipped: no unshare command");
        return;
    };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by a_full_host_is_told_apart, within a small file system"]
fn full_host_inside() {
    let Ok(dir) = std::env::var("SILT_FULL_HOST") else { return };
    let path = PathBuf::from(dir).join("image");
    let device = create_image(&path, 4 * MIB, false).unwrap();
    assert!(device.backing_free().unwrap() <= MIB);
    let block = vec![1; 256 << 10];
    let mut at = 0;
    let error = loop {
        match device.write_at(at, &[&block]) {
            Ok(()) => at += block.len() as u64,
            Err(e) => break e,
        }
    };
    assert!(error.is_no_space(), "{error}");
    assert!(at > 0 && at <= MIB);
    assert_eq!(device.backing_free(), Some(0));
    device.discard(0, at).unwrap();
    device.write_at(0, &[&block]).unwrap();
}

#[test]
fn direct_requests_of_any_alignment() {
    let dir = Dir::new();
    let path = dir.path("image");
    drop(create_image(&path, 4 * MIB + 100, false).unwrap());
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let device = match open(&path, Access::ReadWrite, &options) {
        Ok(device) => device,
        Err(e) => {
            println!("skipped: {e}");
            return;
        }
    };
    let long: Vec<u8> = (0..3 * MIB + 555).map(|i| (i % 251) as u8).collect();
    device.write_at(1023, &[&long[..77], &long[77..]]).unwrap();
    device.write_durably(4 * MIB + 90, b"the tail..").unwrap();
    device.flush().unwrap();
    let through_the_cache = fs::read(&path).unwrap();
    assert!(through_the_cache[1023..1023 + long.len()] == long);
    assert_eq!(&through_the_cache[4 * MIB as usize + 90..], b"the tail..");
    assert_eq!(through_the_cache.len() as u64, 4 * MIB + 100, "not longer");
    let mut back = vec![0; long.len()];
    device.read_at(1023, &mut back).unwrap();
    assert!(back == long);
    assert!(!device.read_if_cached(0, &mut back).unwrap());
}

#[test]
fn neighbours_in_one_unit_do_not_undo_each_other() {
    let dir = Dir::new();
    let path = dir.path("image");
    drop(create_image(&path, MIB, false).unwrap());
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let Ok(device) = open(&path, Access::ReadWrite, &options) else {
        println!("skipped: no direct I/O");
        return;
    };
    std::thread::scope(|s| {
        for n in 0..4u64 {
            let device = &device;
            s.spawn(move || {
                for round in 1..=50u8 {
                    device.write_at(n * 1024, &[&[round; 1024]]).unwrap();
                }
            });
        }
    });
    let mut all = [0; 4096];
    device.read_at(0, &mut all).unwrap();
    assert_eq!(all, [50; 4096]);
}

#[test]
fn what_is_open_is_found_whatever_takes_its_name() {
    let dir = Dir::new();
    let (image, other) = (dir.path("v.img"), dir.path("other.img"));
    let device = create_image(&image, MIB, false).unwrap();
    fs::write(&other, "somebody else's").unwrap();
    let inode = fs::metadata(&image).unwrap().ino();
    fs::rename(&image, dir.path("moved.img")).unwrap();
    std::os::unix::fs::symlink(&other, &image).unwrap();
    assert_ne!(fs::metadata(device.path()).unwrap().ino(), inode);
    assert_eq!(fs::metadata(device.open_path()).unwrap().ino(), inode);
}
