//! Everyday use of a real mount: the file system in memory, by way of the kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)] // Tests.

mod common;
#[path = "../examples/memfs/memfs/mod.rs"]
mod memfs;

use common::{Place, Rig, can_mount};
use memfs::{Memfs, Settings};
use silt_fuse::{Ended, MountOptions};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::{Duration, SystemTime};

fn settings() -> Settings {
    Settings { rings: !common::rings().is_empty(), ..Settings::default() }
}

fn rig() -> Option<Rig<Memfs>> {
    can_mount().then(|| Rig::new(Memfs::new(settings())))
}

/// What is asked for is what is tested.
#[test]
fn requests_come_through_rings_if_they_shall() {
    let Some(rig) = rig() else { return };
    fs::write(rig.at("a"), "hello").unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.starts_with("ring-")).count() > 0, !common::rings().is_empty());
}

#[test]
fn files_directories_and_links() {
    let Some(rig) = rig() else { return };
    let (a, b, dir) = (rig.at("a"), rig.at("b"), rig.at("dir"));
    fs::write(&a, "hello").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"hello");
    OpenOptions::new().append(true).open(&a).unwrap().write_all(b", world").unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "hello, world");
    assert_eq!(fs::metadata(&a).unwrap().len(), 12);

    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    fs::write(&b, "through the other name").unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "through the other name");
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);

    fs::create_dir(&dir).unwrap();
    assert_eq!(fs::metadata(rig.root()).unwrap().nlink(), 3);
    fs::rename(&b, dir.join("c")).unwrap();
    assert_eq!(fs::remove_dir(&dir).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs::create_dir(&dir).unwrap_err().kind(), ErrorKind::AlreadyExists);
    std::os::unix::fs::symlink("dir/c", rig.at("link")).unwrap();
    assert_eq!(fs::read_link(rig.at("link")).unwrap().to_str(), Some("dir/c"));
    assert_eq!(fs::read_to_string(rig.at("link")).unwrap(), "through the other name");
    fs::remove_file(dir.join("c")).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(fs::metadata(rig.root()).unwrap().nlink(), 2);
    assert_eq!(rig.finish(), Ended::Unmounted);
}

#[test]
fn renames_with_flags() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let Some(rig) = rig() else { return };
    let (a, b) = (rig.at("a"), rig.at("b"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    assert!(renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE).is_err());
    renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    renameat_with(CWD, &a, CWD, &b, RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
}

#[test]
fn truncation_modes_and_times() {
    let Some(rig) = rig() else { return };
    let path = rig.at("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(9_000).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 9_000);
    assert!(content[..5_000].iter().all(|&byte| byte == 7) && content[5_000..].iter().all(|&byte| byte == 0));
    assert_eq!(File::create(&path).unwrap().metadata().unwrap().len(), 0, "O_TRUNC without handles");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4751);
    std::os::unix::fs::chown(&path, Some(5), Some(6)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (5, 6));

    let old = SystemTime::UNIX_EPOCH - Duration::new(86_400, 250_000_000);
    file.set_modified(old).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-86_401, 750_000_000));
    assert_eq!(metadata.modified().unwrap(), old);
}

#[test]
fn unlinked_and_nameless_files_live_while_open() {
    let Some(rig) = rig() else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(rig.root()).unwrap();
    file.write_all(b"nameless").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "nameless");

    fs::write(rig.at("gone"), "still here").unwrap();
    let gone = OpenOptions::new().read(true).write(true).open(rig.at("gone")).unwrap();
    fs::remove_file(rig.at("gone")).unwrap();
    gone.write_at(b"STILL", 0).unwrap();
    let mut bytes = [0; 10];
    gone.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"STILL here");
    assert_eq!(gone.metadata().unwrap().nlink(), 0);
}

#[test]
fn twenty_thousand_files_are_made_listed_and_removed() {
    const COUNT: usize = 20_000;
    let Some(rig) = rig() else { return };
    let name = |number: usize| format!("file-{number}");
    for number in 0..COUNT {
        fs::write(rig.at(&name(number)), b"x").unwrap();
    }
    let names = || -> Vec<String> {
        fs::read_dir(rig.root())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                assert!(entry.file_type().unwrap().is_file());
                entry.file_name().into_string().unwrap()
            })
            .collect()
    };
    let listed = names();
    assert_eq!(listed.len(), COUNT, "each once");
    assert_eq!(listed.into_iter().collect::<HashSet<_>>().len(), COUNT);

    // Removing while listing skips nothing of what stays.
    let mut seen = HashSet::new();
    for (number, entry) in fs::read_dir(rig.root()).unwrap().enumerate() {
        let entry = entry.unwrap();
        if number.is_multiple_of(2) {
            fs::remove_file(entry.path()).unwrap();
        }
        assert!(seen.insert(entry.file_name()), "listed twice");
    }
    assert_eq!(seen.len(), COUNT);
    assert_eq!(names().len(), COUNT / 2);
    assert_eq!(rig.finish(), Ended::Unmounted);
}

#[test]
fn large_files_by_write_read_and_mapping() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    const SIZE: usize = 64 << 20;
    let Some(rig) = rig() else { return };
    let path = rig.at("large");
    let pattern = |position: usize| (position / 4096).wrapping_mul(31).to_le_bytes()[position % 2];
    let content: Vec<u8> = (0..SIZE).map(pattern).collect();
    fs::write(&path, &content).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(fs::read(&path).unwrap() == content);

    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping that only the slice below refers to.
    let address =
        unsafe { mmap(std::ptr::null_mut(), SIZE, protection, MapFlags::SHARED, &file, 0).unwrap() };
    // SAFETY: the mapping has this length, is writable, and nothing else in this process refers to it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), SIZE) };
    assert!(mapped == content);
    mapped[SIZE - 1] = 0xaa;
    mapped[4096 * 1000] = 0xbb;
    // SAFETY: address and length are those of the mapping, and `mapped` is not used after the second call.
    unsafe {
        msync(address, SIZE, MsyncFlags::SYNC).unwrap();
        munmap(address, SIZE).unwrap();
    }
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, SIZE as u64 - 1).unwrap();
    assert_eq!(byte, [0xaa]);
    file.read_exact_at(&mut byte, 4096 * 1000).unwrap();
    assert_eq!(byte, [0xbb]);
}

#[test]
fn several_threads_serve() {
    let Some(_) = can_mount().then_some(()) else { return };
    let rig = Rig::with(Memfs::new(settings()), &MountOptions::default(), 4);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let rig = &rig;
            scope.spawn(move || {
                for number in 0..500 {
                    let path = rig.at(&format!("{worker}-{number}"));
                    fs::write(&path, path.to_str().unwrap()).unwrap();
                    assert_eq!(fs::read_to_string(&path).unwrap(), path.to_str().unwrap());
                }
            });
        }
    });
    assert_eq!(fs::read_dir(rig.root()).unwrap().count(), 2000);
    assert_eq!(rig.finish(), Ended::Unmounted);
}

#[test]
fn the_writeback_cache_and_making_files_without_create() {
    let Some(_) = can_mount().then_some(()) else { return };
    let settings = Settings { writeback: true, create: false, ..settings() };
    let rig = Rig::new(Memfs::new(settings));
    let path = rig.at("file");
    let mut file = File::create_new(&path).unwrap();
    for _ in 0..10_000 {
        file.write_all(b"0123456789").unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
    assert_eq!(File::create_new(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let read_only = OpenOptions::new().write(true).create_new(true).mode(0o400).open(rig.at("ro")).unwrap();
    (&read_only).write_all(b"x").unwrap();
}

/// A session that ended must leave alone what was mounted in its place since, even if the kernel gave that the same
/// device number.
#[test]
fn a_session_that_ends_leaves_the_next_one_alone() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let path = place.path();
    let options = MountOptions { source: "memfs".into(), subtype: "memfs".into(), ..MountOptions::default() };
    let mount = || {
        let session = silt_fuse::Session::mount(path, &options).unwrap();
        session.spawn(std::sync::Arc::new(Memfs::new(settings())), 1).unwrap()
    };
    let mut before = mount();
    for round in 0..300 {
        before.unmount(silt_fuse::Unmount::Strict).unwrap();
        let next = mount();
        fs::write(path.join("here"), "still").unwrap();
        assert_eq!(before.join().unwrap(), Ended::Unmounted);
        assert_eq!(fs::read(path.join("here")).ok().as_deref(), Some(&b"still"[..]), "round {round}");
        before = next;
    }
    before.unmount(silt_fuse::Unmount::Strict).unwrap();
    before.join().unwrap();
    // One that is unmounted before anybody serves it.
    for round in 0..100 {
        let unserved = silt_fuse::Session::mount(path, &options).unwrap();
        silt_fuse::unmount(path, silt_fuse::Unmount::Strict).unwrap();
        let next = mount();
        let ended = unserved.run(std::sync::Arc::new(Memfs::new(settings())), 1).unwrap();
        assert_eq!(ended, Ended::Unmounted);
        assert!(place.is_mounted(), "round {round}");
        next.unmount(silt_fuse::Unmount::Strict).unwrap();
        next.join().unwrap();
    }
}
