//! The protocol against the real kernel: every operation arrives as it was asked for, answers may come late
//! and out of order, notifications work, and sessions end as they should.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)] // Tests.

mod common;
#[path = "../examples/memfs/memfs/mod.rs"]
mod memfs;
#[path = "common/probe.rs"]
mod probe;

use common::{Rig, can_mount, wait_for};
use memfs::{Memfs, Settings};
use probe::Probe;
use silt_fuse::{Ended, Errno, Error, InitFlags, MountOptions, abort_connection};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn probe(flags: InitFlags, handles: bool) -> Option<Rig<Probe>> {
    let options = MountOptions { default_permissions: false, allow_other: true, ..MountOptions::default() };
    let fs = Probe { flags, handles, ..Probe::default() };
    can_mount().then(|| Rig::with(fs, &options, 1))
}

#[track_caller]
fn saw(rig: &Rig<Probe>, text: &str) {
    assert!(rig.fs.saw(text), "{text:?} did not arrive; what did: {:#?}", rig.fs.log.lock());
}

#[test]
fn every_operation_arrives_as_asked_for() {
    use rustix::fs as sys;
    let Some(rig) = probe(InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS, true) else { return };
    let path = rig.at("file");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let other = OpenOptions::new().read(true).write(true).open(rig.at("file2")).unwrap();

    sys::fallocate(&file, sys::FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    saw(&rig, "fallocate 4096+8192 mode=1");
    assert_eq!(sys::seek(&file, sys::SeekFrom::Data(100)).unwrap(), 12_345);
    saw(&rig, &format!("lseek 100 {}", libc::SEEK_DATA));
    assert_eq!(sys::copy_file_range(&file, Some(&mut 7), &other, Some(&mut 11), 4096).unwrap(), 5);
    saw(&rig, "copy 7 11+4096");
    assert_eq!(sys::ioctl_getflags(&file).unwrap().bits(), probe::FLAGS);
    saw(&rig, "ioctl 80086601");
    sys::ioctl_setflags(&file, sys::IFlags::APPEND).unwrap();
    saw(&rig, "ioctl 40086602 in=4");

    sys::setxattr(&path, "user.a/b", b"value", sys::XattrFlags::CREATE).unwrap();
    saw(&rig, "setxattr user.a/b=value flags=1");
    let mut buffer = [0; 16];
    assert_eq!(sys::getxattr(&path, "user.a", &mut buffer[..]).unwrap(), 5);
    assert_eq!(sys::getxattr(&path, "user.a", &mut buffer[..2]), Err(rustix::io::Errno::RANGE));
    assert_eq!(sys::listxattr(&path, &mut buffer[..]).unwrap(), 7);
    assert_eq!(sys::removexattr(&path, "user.b"), Err(rustix::io::Errno::NODATA));

    sys::access(&path, sys::Access::WRITE_OK).unwrap();
    saw(&rig, "access 2");
    let statvfs = sys::statvfs(&path).unwrap();
    assert_eq!((statvfs.f_blocks, statvfs.f_bfree, statvfs.f_bavail), (1000, 600, 500));
    if rig.fs.kernel.lock().is_some_and(|kernel| kernel.minor >= 39) {
        let born = std::time::UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(fs::metadata(&path).unwrap().created().unwrap(), born);
        saw(&rig, "statx");
    }

    sys::fcntl_lock(&file, sys::FlockOperation::NonBlockingLockExclusive).unwrap();
    saw(&rig, "setlk wait=false flock=false type=1");
    sys::flock(&file, sys::FlockOperation::LockShared).unwrap();
    saw(&rig, "setlk wait=true flock=true type=0");
    let wanted = rustix::process::Flock { length: 4, ..rustix::process::FlockType::WriteLock.into() };
    let found = rustix::process::fcntl_getlk(&file, &wanted).unwrap().unwrap();
    assert_eq!((found.start, found.length, found.pid), (3, 7, Some(rustix::process::getpid())));
    saw(&rig, "getlk 0..3");

    file.write_at(&[1; 8192], 0).unwrap();
    saw(&rig, "write size=8192 kill=false cached=false aligned=true");
    file.sync_data().unwrap();
    saw(&rig, "fsync data=true");
    file.sync_all().unwrap();
    saw(&rig, "fsync data=false");
    File::open(rig.root()).unwrap().sync_all().unwrap();
    saw(&rig, "fsyncdir data=false");
    let names: Vec<_> = fs::read_dir(rig.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file-listed"]);

    let made = sys::mknodat(
        sys::CWD,
        rig.at("device"),
        sys::FileType::CharacterDevice,
        sys::Mode::from_raw_mode(0o640),
        sys::makedev(0x678, 0x12345),
    );
    assert_eq!(made, Err(rustix::io::Errno::NOSPC));
    saw(&rig, &format!("mknod mode=20640 rdev={:x}", 0x45 | (0x678 << 8) | (0x123 << 20)));
    assert!(File::create(rig.at("made")).is_ok());
    saw(&rig, "create mode=100644 umask=22");
    let nameless = sys::open(rig.root(), sys::OFlags::TMPFILE | sys::OFlags::RDWR, sys::Mode::RWXU);
    assert_eq!(nameless.unwrap_err(), rustix::io::Errno::NOSPC);
    saw(&rig, "tmpfile");
    sys::renameat_with(sys::CWD, rig.at("file"), sys::CWD, rig.at("no"), sys::RenameFlags::NOREPLACE)
        .unwrap();
    saw(&rig, "rename flags=1");
    drop((file, other));
    wait_for("release", || rig.fs.saw("release fh=1002 flock=true"));
    saw(&rig, "flush");
}

/// The trap that the rules for file systems warn of: without handles nobody hears of the truncation.
#[test]
fn atomic_truncation_needs_handles() {
    let truncate = |rig: &Rig<Probe>| {
        drop(File::options().write(true).open(rig.at("file")).unwrap());
        drop(File::options().write(true).truncate(true).open(rig.at("file")).unwrap());
    };
    let Some(rig) = probe(InitFlags::ATOMIC_O_TRUNC, true) else { return };
    truncate(&rig);
    saw(&rig, "open truncate=true");
    let Some(rig) = probe(InitFlags::ATOMIC_O_TRUNC, false) else { return };
    truncate(&rig);
    assert!(!rig.fs.saw("open truncate=true") && !rig.fs.saw("setattr"), "{:#?}", rig.fs.log.lock());
    let Some(rig) = probe(InitFlags::empty(), false) else { return };
    truncate(&rig);
    saw(&rig, "setattr kill=false size=Some(0)");
}

#[test]
fn file_handles_outlive_the_cache() {
    use std::os::fd::{AsRawFd, FromRawFd};
    let Some(rig) = probe(InitFlags::EXPORT_SUPPORT, true) else { return };
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        data: [u8; 128],
    }
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let path = std::ffi::CString::new(rig.at("file").into_os_string().into_encoded_bytes()).unwrap();
    let root = File::open(rig.root()).unwrap();
    let mut mount = 0;
    let pointer: *mut Handle = &raw mut handle;
    // SAFETY: the handle says how much room it has, and all pointers are valid during the call.
    let result =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), pointer.cast(), &raw mut mount, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    assert!(rig.notifier().inval_entry(1, b"file").unwrap());
    // SAFETY: as above; the descriptor is owned by the file made of it.
    let file = unsafe {
        let fd = libc::open_by_handle_at(root.as_raw_fd(), pointer.cast(), libc::O_RDONLY);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    assert_eq!(file.metadata().unwrap().ino(), rig.fs.node(b"file"));
    saw(&rig, "lookup .");
}

#[test]
fn polling_is_woken_up() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(rig) = probe(InitFlags::empty(), true) else { return };
    let file = File::open(rig.at("file")).unwrap();
    let notifier = rig.notifier();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("poll", || !rig.fs.polls.lock().is_empty());
            let kh = rig.fs.polls.lock()[0];
            assert!(notifier.poll(kh).unwrap());
        });
        let mut fds = [PollFd::new(&file, PollFlags::PRI)];
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1);
        assert_eq!(fds[0].revents(), PollFlags::PRI);
    });
    saw(&rig, "poll wake=true");
}

#[test]
fn answers_may_come_late_and_out_of_order() {
    let Some(rig) = probe(InitFlags::empty(), true) else { return };
    const READERS: usize = 5;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                let path = rig.at(&format!("slow-{number}"));
                scope.spawn(move || {
                    let mut buffer = [0; 8];
                    let length = File::open(path).unwrap().read_at(&mut buffer, 0).unwrap();
                    buffer[..length].to_vec()
                })
            })
            .collect();
        wait_for("all reads", || rig.fs.kept.lock().len() == READERS);
        // The one serving thread is free meanwhile.
        assert!(fs::metadata(rig.at("file-while-they-wait")).is_ok());
        let mut kept: Vec<_> = rig.fs.kept.lock().drain().collect();
        kept.sort_by_key(|(unique, _)| std::cmp::Reverse(*unique));
        for (_, (node, reply)) in kept {
            reply.data(&node.to_ne_bytes());
            std::thread::sleep(Duration::from_millis(2));
        }
        for (number, reader) in readers.into_iter().enumerate() {
            let node = rig.fs.node(format!("slow-{number}").as_bytes());
            assert_eq!(reader.join().unwrap(), node.to_ne_bytes());
        }
    });
    assert_eq!(rig.finish(), Ended::Unmounted);
}

#[test]
fn a_signal_interrupts_a_waiting_request() {
    let Some(rig) = probe(InitFlags::FLOCK_LOCKS, true) else { return };
    let mut child = Command::new("cat").arg(rig.at("slow")).spawn().unwrap();
    wait_for("the read", || rig.fs.kept.lock().len() == 1);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    wait_for("the interrupt", || rig.fs.saw("interrupt"));
    assert_eq!(rig.fs.kept.lock().len(), 0);
}

#[test]
fn panics_and_lost_replies_end_no_session() {
    let Some(rig) = probe(InitFlags::empty(), true) else { return };
    let error = fs::metadata(rig.at("panic")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    wait_for("the report", || rig.fs.saw("panicked LOOKUP"));
    let path = rig.at("slow");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| File::open(path).unwrap().read(&mut [0; 8]));
        wait_for("the read", || rig.fs.kept.lock().len() == 1);
        rig.fs.kept.lock().clear();
        assert_eq!(reader.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    });
    assert!(fs::metadata(rig.at("file")).is_ok());
    assert_eq!(rig.finish(), Ended::Unmounted);
}

#[test]
fn clearing_suid_is_asked_for_where_version_two_was_agreed_on() {
    let Some(rig) = probe(InitFlags::HANDLE_KILLPRIV_V2, true) else { return };
    if !common::has_program("setpriv") {
        return;
    }
    let path = rig.at("file");
    let run = |script: &str| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script, "sh"];
        assert!(Command::new("setpriv").args(user).arg(&path).status().unwrap().success(), "{script}");
    };
    run("echo x >> \"$1\"");
    saw(&rig, "write size=2 kill=true");
    run("truncate -s 100 \"$1\"");
    saw(&rig, "setattr kill=true size=Some(100)");
    fs::write(&path, "as root").unwrap();
    saw(&rig, "write size=7 kill=false");
}

#[test]
fn notifications_drop_what_was_cached() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(Memfs::new(Settings { rings: !common::rings().is_empty(), ..Settings::default() }));
    let notifier = rig.notifier();
    fs::write(rig.at("file"), "old content").unwrap();
    let file = File::open(rig.at("file")).unwrap();
    let read = || {
        let mut bytes = [0; 11];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    assert_eq!(read(), "old content");
    let node = rig.fs.change(b"file", b"new").unwrap();
    assert_eq!(read(), "old content", "cached until told");
    assert!(notifier.inval_inode(node, 0, 0).unwrap());
    assert_eq!(read(), "new content");
    assert!(notifier.store(node, 4, b"CONTENT").unwrap());
    assert_eq!(read(), "new CONTENT");
    assert!(!notifier.inval_inode(4_000_000, 0, 0).unwrap(), "unknown to the kernel");

    // Names, those that are there and those that are not.
    assert!(!rig.at("moved").exists());
    rig.fs.move_name(b"file", b"moved").unwrap();
    assert!(rig.at("file").exists() && !rig.at("moved").exists(), "cached until told");
    assert!(notifier.inval_entry(1, b"file").unwrap());
    assert!(notifier.inval_entry(1, b"moved").unwrap());
    assert!(!rig.at("file").exists() && rig.at("moved").exists());

    rig.fs.move_name(b"moved", b"again").unwrap();
    assert!(notifier.delete(1, node, b"moved").unwrap());
    assert!(!rig.at("moved").exists() && rig.at("again").exists());

    rig.fs.move_name(b"again", b"last").unwrap();
    assert!(notifier.expire_entry(1, b"again").unwrap());
    assert!(!rig.at("again").exists());

    drop(file);
    assert_eq!(rig.finish(), Ended::Unmounted);
    assert!(!notifier.inval_inode(node, 0, 0).unwrap(), "over");
}

#[test]
fn an_unmount_or_an_abort_ends_the_session() {
    let Some(rig) = probe(InitFlags::empty(), true) else { return };
    let fs = std::sync::Arc::clone(&rig.fs);
    assert_eq!(rig.finish(), Ended::Unmounted);
    assert_eq!(fs.count("destroy"), 1);

    let Some(mut rig) = probe(InitFlags::empty(), true) else { return };
    assert!(fs::metadata(rig.at("file")).is_ok());
    abort_connection(rig.root()).unwrap();
    assert_eq!(rig.join().unwrap(), Ended::Aborted);
    assert_eq!(rig.fs.count("destroy"), 1);
    assert!(!rig.is_mounted(), "what is left is unmounted");
}

#[test]
fn a_busy_mount_is_not_unmounted_but_lazily() {
    use silt_fuse::{Unmount, unmount};
    let Some(mut rig) = probe(InitFlags::empty(), true) else { return };
    let file = File::open(rig.at("file")).unwrap();
    assert!(matches!(unmount(rig.root(), Unmount::Strict), Err(Error::Busy(_))));
    unmount(rig.root(), Unmount::Lazy).unwrap();
    assert!(!rig.is_mounted());
    assert_eq!(file.metadata().unwrap().size(), 1 << 20, "still served");
    drop(file);
    assert_eq!(rig.join().unwrap(), Ended::Unmounted);
    assert!(matches!(unmount(rig.root(), Unmount::Strict), Err(Error::NotMounted(_))));
}

#[test]
fn a_refusal_to_start_ends_everything() {
    if !can_mount() {
        return;
    }
    let fs = Probe { refuse: Some(Errno::EROFS), ..Probe::default() };
    let mut rig = Rig::with(fs, &MountOptions::default(), 2);
    assert!(matches!(rig.join(), Err(Error::Init(Errno::EROFS))));
    assert!(!rig.is_mounted());
    assert_eq!(rig.fs.count("destroy"), 1, "what it holds is let go");
}

#[test]
fn the_kernel_is_known_and_options_arrive() {
    if !can_mount() {
        return;
    }
    let options = MountOptions {
        source: "a name, with comma".to_owned(),
        read_only: true,
        exec: false,
        max_read: Some(65_536),
        ..MountOptions::default()
    };
    let rig = Rig::with(Probe::with_flags(InitFlags::WRITEBACK_CACHE), &options, 1);
    assert_eq!(fs::read(rig.at("file")).unwrap().len(), 1 << 20);
    let error = fs::write(rig.at("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let kernel = rig.fs.kernel.lock().unwrap();
    assert!(kernel.major == 7 && kernel.minor >= 31 && kernel.flags.contains(InitFlags::BIG_WRITES));
    assert!(
        rig.fs
            .log
            .lock()
            .iter()
            .filter_map(|line| line.split_once("size="))
            .all(|(_, size)| { size.parse::<u32>().is_ok_and(|size| size <= 65_536) })
    );
    let mounts = fs::read("/proc/mounts").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let line = mounts.lines().find(|line| line.contains(rig.root().to_str().unwrap())).unwrap();
    assert!(line.starts_with("a\\040name,\\040with\\040comma "), "{line}");
    for word in [" fuse.silt ", "ro,nosuid,nodev,noexec", "default_permissions", "max_read=65536"] {
        assert!(line.contains(word), "{word} in {line}");
    }
}

#[test]
fn a_descriptor_that_someone_else_mounted_is_served() {
    use rustix::mount::MountFlags;
    use silt_fuse::{Session, Unmount, unmount};
    use std::os::fd::AsRawFd;
    if !can_mount() {
        return;
    }
    let place = common::Place::new();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("other", place.path(), "fuse", MountFlags::empty(), data.as_c_str()).unwrap();
    let session = Session::from_fd(device.into());
    assert_eq!(session.mount_point(), None);
    let running = session.spawn(std::sync::Arc::new(Probe::default()), 3).unwrap();
    assert!(fs::metadata(place.path().join("file")).is_ok());
    wait_for("the unmount", || unmount(place.path(), Unmount::Strict).is_ok());
    assert_eq!(running.join().unwrap(), Ended::Unmounted);
}

#[test]
fn mounting_fails_with_reasons() {
    use silt_fuse::Session;
    let mount = |path: &Path, options: &MountOptions| Session::mount(path, options).unwrap_err().to_string();
    let usual = MountOptions::default();
    let text = mount(Path::new("/does/not/exist"), &usual);
    assert!(text.contains("/does/not/exist") && text.contains("No such file"), "{text}");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(mount(file.path(), &usual).contains("not a directory"));
    let options = MountOptions { source: "a\nb".to_owned(), ..usual };
    assert!(mount(Path::new("/tmp"), &options).contains("source"));
}
