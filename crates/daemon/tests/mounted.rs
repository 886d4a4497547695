//! Through real mounts: damaged inodes, synchronous inodes, file handles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use silt_daemon::{Config, Error, MountOptions};
use silt_device::{Access, Device};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::summary::{self, BlockInfo, Header};
use silt_format::super_block::SuperBlock;
use silt_format::{BlockNr, Geometry, Ino, SegNr};
use silt_fs::Fs;
use tempfile::TempDir;

const EIO: Option<i32> = Some(libc::EIO);

/// Whether this machine can mount as the superuser; tests end early where not.
fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("skipped: this needs root and /dev/fuse");
    }
    can
}

/// A directory with an image in it.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let bench = Bench(tempfile::Builder::new().prefix("silt-daemon-").tempdir().unwrap());
        fs::create_dir(bench.0.path().join("m")).unwrap();
        let size = 64 << 20;
        let device = silt_device::create_image(bench.image(), size, false).unwrap();
        let parameters = Parameters {
            block_size: 4096,
            blocks_per_segment: 256,
            uuid: [3; 16],
            crc_seed: 5,
            now: 1000,
            block_count: true,
            ..Parameters::default()
        };
        Plan::new(parameters, size).unwrap().write(&device, false).unwrap();
        bench
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("v.img")
    }

    fn mount(&self, options: MountOptions) -> Mounted {
        let dir = self.0.path().join("m");
        let config = Config { volume: self.image(), dir: dir.clone(), options };
        let (tx, rx) = mpsc::channel();
        let thread = std::thread::spawn(move || silt_daemon::run(&config, || tx.send(()).unwrap()));
        if rx.recv().is_err() {
            panic!("{:?}", thread.join());
        }
        Mounted { dir, thread: Some(thread) }
    }

    /// Without checkpoints by the clock.
    fn mount_quiet(&self) -> Mounted {
        self.mount(quiet())
    }

    /// What a power cut would leave now, if the host's page cache survived it.
    fn as_it_is(&self) -> Fs {
        let copy = self.0.path().join("copy.img");
        fs::copy(self.image(), &copy).unwrap();
        let device =
            silt_device::open(&copy, Access::ReadOnly, &silt_device::OpenOptions::default()).unwrap();
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (volume, _) = Volume::open(Arc::new(device) as Arc<dyn Device>, &options).unwrap();
        Fs::new(volume, &silt_fs::Options::default())
    }

    /// Changes the newest entry of an inode on disk. Its block must not lie in the newest log, whose sum
    /// would be wrong then.
    fn patch_inode(&self, ino: u64, change: impl FnOnce(&mut RawInode)) {
        let file = File::options().read(true).write(true).open(self.image()).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, 1024).unwrap();
        let sb = SuperBlock::parse(&bytes).unwrap();
        let g = sb.geometry(64 << 20).unwrap();
        let place = Layout::ifile(&g).entry(ino);
        let (at, newest) = ifile_block(&file, &g, place.block);
        assert!(!newest, "the inode lies in the newest log");
        let at = g.byte_of(at) + place.byte as u64;
        let mut entry = vec![0; g.inode_size as usize];
        file.read_exact_at(&mut entry, at).unwrap();
        let mut raw = RawInode::read(&entry).unwrap();
        change(&mut raw);
        raw.store(&mut entry);
        file.write_all_at(&entry, at).unwrap();
    }

    fn findings(&self) -> Vec<&'static str> {
        let device =
            silt_device::open(self.image(), Access::ReadOnly, &silt_device::OpenOptions::default()).unwrap();
        let report = silt_verify::check(&device, &silt_verify::Options::default());
        report.errors().map(|f| f.id).collect()
    }
}

/// Where the newest version of a block of the ifile is, and whether in the newest log.
fn ifile_block(file: &File, g: &Geometry, wanted: u64) -> (BlockNr, bool) {
    let (mut found, mut last) = (None, 0);
    for segment in 0..g.nsegments {
        let mut at = g.segment_start(SegNr(segment));
        while at.0 + 2 <= g.segment_end(SegNr(segment)).0 {
            let mut head = vec![0; g.bs()];
            file.read_exact_at(&mut head, g.byte_of(at)).unwrap();
            let Ok(h) = Header::parse(g, &head) else { break };
            let mut records = vec![0; h.summary_blocks(g) as usize * g.bs()];
            file.read_exact_at(&mut records, g.byte_of(at)).unwrap();
            let first = at.0 + u64::from(h.summary_blocks(g));
            let cno = h.cno.get();
            last = last.max(cno);
            summary::for_each_payload(g, &h, &records, |p| {
                let is_it = matches!(p.info, BlockInfo::Data { offset, .. } if offset == wanted);
                if p.ino == Ino::IFILE && is_it && found.is_none_or(|(c, _)| c <= cno) {
                    found = Some((cno, BlockNr(first + u64::from(p.index))));
                }
            })
            .unwrap();
            at = BlockNr(at.0 + u64::from(h.nblocks.get()));
        }
    }
    let (cno, at) = found.expect("a block of the ifile");
    (at, cno == last)
}

fn quiet() -> MountOptions {
    MountOptions { interval: Some(Duration::from_secs(3600)), ..MountOptions::default() }
}

struct Mounted {
    dir: PathBuf,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn sync(&self) {
        File::open(&self.dir).unwrap().sync_all().unwrap();
    }

    #[track_caller]
    fn unmount(mut self) {
        // A process that another test begins has what is open here until it runs its program.
        let until = Instant::now() + Duration::from_secs(5);
        while let Err(e) = silt_fuse::unmount(&self.dir, silt_fuse::Unmount::Strict) {
            assert!(matches!(e, silt_fuse::Error::Busy(_)) && Instant::now() < until, "{e}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = silt_fuse::abort_connection(&self.dir);
            let _ = silt_fuse::unmount(&self.dir, silt_fuse::Unmount::Lazy);
        }
    }
}

const SYNC: i64 = 0x8;
const DIRSYNC: i64 = 0x1_0000;

/// `chattr =FLAGS`
fn set_flags(path: &Path, flags: i64) {
    let file = File::open(path).unwrap();
    // SAFETY: FS_IOC_SETFLAGS reads a number behind the pointer.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), 0x4008_6602, &raw const flags) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Files 0..n, whose inodes fill several blocks of the ifile, and then a change of the first block alone.
fn many_files(m: &Mounted, n: u64) {
    for i in 0..n {
        fs::write(m.path(&format!("f{i}")), vec![7; 9000]).unwrap();
    }
    m.sync();
    fs::write(m.path("f0"), "later").unwrap();
}

/// `lsattr -v` has room for an int, and the codes of the requests say that it is a long.
#[test]
fn attributes_and_generation_are_ints() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    fs::write(m.path("f"), "f").unwrap();
    let file = File::open(m.path("f")).unwrap();
    for request in [0x8008_6601, 0x8008_7601] {
        let mut told = [0u32, 0xdead_beef];
        // SAFETY: FS_IOC_GETFLAGS and FS_IOC_GETVERSION write no more than these eight bytes.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), request, told.as_mut_ptr()) };
        assert_eq!((done, told[1]), (0, 0xdead_beef), "{request:#x}");
    }
    drop(file);
    m.unmount();
}

/// One bad inode is EIO on that inode, still deletable, and never a read-only volume.
#[test]
fn a_damaged_inode_can_be_removed() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    for i in 0..80 {
        fs::write(m.path(&format!("f{i}")), vec![7; 9000]).unwrap();
    }
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/inside"), "lost").unwrap();
    let [f70, f71, f72, d] = ["f70", "f71", "f72", "d"].map(|n| fs::metadata(m.path(n)).unwrap().ino());
    m.sync();
    fs::write(m.path("f0"), "later").unwrap();
    m.unmount();
    assert_eq!(bench.findings(), [""; 0]);

    bench.patch_inode(f70, |i| i.mode = 0o170_644.into());
    // A B-tree of level 0.
    bench.patch_inode(f71, |i| i.bmap = [0xff; 56]);
    bench.patch_inode(f72, |i| i.mode = 0.into());
    bench.patch_inode(d, |i| i.mode = 0o170_755.into());

    let m = bench.mount_quiet();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let all = names();
    assert_eq!(all.len(), 81);
    for name in ["f70", "f71", "f72", "d"] {
        let path = m.path(name);
        assert!(all.iter().any(|n| n == name));
        if name == "d" {
            // A directory is shown as such, so that it can be removed as one is; nothing can be read of it.
            assert!(fs::symlink_metadata(&path).unwrap().is_dir());
            assert_eq!(fs::read_dir(&path).unwrap().next().unwrap().unwrap_err().raw_os_error(), EIO);
        } else {
            assert_eq!(fs::symlink_metadata(&path).unwrap_err().raw_os_error(), EIO, "{name}");
            assert_eq!(File::open(&path).unwrap_err().raw_os_error(), EIO);
        }
        assert_eq!(fs::rename(&path, m.path("x")).unwrap_err().raw_os_error(), EIO, "{name}");
    }
    let rm = std::process::Command::new("rm").args(["f70", "f71"].map(|n| m.path(n))).output().unwrap();
    assert!(rm.status.success(), "{}", String::from_utf8_lossy(&rm.stderr));
    let rm = std::process::Command::new("rm").arg("-r").arg(m.path("d")).output().unwrap();
    assert!(rm.status.success(), "{}", String::from_utf8_lossy(&rm.stderr));
    // One is replaced by renaming over it.
    fs::write(m.path("fresh"), "fresh").unwrap();
    fs::rename(m.path("fresh"), m.path("f72")).unwrap();
    assert_eq!(fs::read(m.path("f72")).unwrap(), b"fresh");
    fs::remove_file(m.path("f72")).unwrap();
    assert_eq!(names().len(), 77);
    for i in 0..70 {
        let wanted = if i == 0 { b"later".to_vec() } else { vec![7; 9000] };
        assert_eq!(fs::read(m.path(&format!("f{i}"))).unwrap(), wanted);
    }
    // Numbers are used again, and nobody else's content comes up.
    for i in 0..8 {
        fs::write(m.path(&format!("new{i}")), format!("{i}")).unwrap();
    }
    fs::write(m.path("f70"), "again").unwrap();
    m.unmount();
    let m = bench.mount_quiet();
    assert_eq!(fs::read(m.path("f70")).unwrap(), b"again");
    for name in ["f71", "f72", "d"] {
        assert_eq!(fs::symlink_metadata(m.path(name)).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    for i in 0..8 {
        assert_eq!(fs::read(m.path(&format!("new{i}"))).unwrap(), format!("{i}").as_bytes());
    }
    assert_eq!(fs::read(m.path("f79")).unwrap(), vec![7; 9000]);
    m.unmount();
    // Blocks of the damaged ones stay taken and counted; what was in the directory has no name any more;
    // the logs that were patched have wrong sums.
    let implied = ["dat-live-unmapped", "inode-lost", "cpfile-blocks-count", "log-checksum"];
    let others: Vec<_> = bench.findings().into_iter().filter(|id| !implied.contains(id)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Data that its file's map cannot take is not acknowledged.
#[test]
fn fsync_tells_of_content_that_was_not_taken() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    many_files(&m, 80);
    let cases = [("fsync", "f70"), ("fdatasync", "f71"), ("O_SYNC", "f72")];
    let inos = cases.map(|(_, name)| fs::metadata(m.path(name)).unwrap().ino());
    m.unmount();
    for ino in inos {
        // Block 0 is said to be a virtual block that was never handed out.
        bench.patch_inode(ino, |i| i.bmap[8..16].copy_from_slice(&500_000u64.to_le_bytes()));
    }
    let m = bench.mount_quiet();
    for (how, name) in cases {
        let mut options = File::options();
        options.write(true);
        if how == "O_SYNC" {
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_SYNC);
        }
        let f = options.open(m.path(name)).unwrap();
        let done = f.write_all_at(&[9; 4096], 0).and_then(|()| match how {
            "fsync" => f.sync_all(),
            "fdatasync" => f.sync_data(),
            _ => Ok(()),
        });
        assert_eq!(done.err().and_then(|e| e.raw_os_error()), EIO, "{how}");
        fs::write(m.path("other"), how).unwrap();
        m.sync();
        assert_eq!(on_disk(&bench, "other").unwrap(), how.as_bytes());
    }
    m.unmount();
}

/// What a crash left without a name is freed; what is damaged is not taken for that.
#[test]
fn a_damaged_inode_is_no_orphan() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    many_files(&m, 80);
    let ino = fs::metadata(m.path("f70")).unwrap().ino();
    m.unmount();
    bench.patch_inode(ino, |i| *i = RawInode::zeroed());
    let m = bench.mount_quiet();
    std::thread::sleep(Duration::from_millis(300));
    // Its number would be among the next that are handed out.
    for i in 0..8 {
        fs::write(m.path(&format!("new{i}")), "somebody else's").unwrap();
    }
    assert_eq!(fs::read(m.path("f70")).unwrap_err().raw_os_error(), EIO);
    m.unmount();
    let m = bench.mount_quiet();
    assert_eq!(fs::read(m.path("f70")).unwrap_err().raw_os_error(), EIO);
    assert_eq!(fs::read(m.path("new0")).unwrap(), b"somebody else's");
    m.unmount();
}

fn on_disk(bench: &Bench, path: &str) -> Option<Vec<u8>> {
    let mut fs = bench.as_it_is();
    let ino = fs.resolve(Tree::Live, path.as_bytes()).ok()?;
    if fs.getattr(Tree::Live, ino).unwrap().is_dir() {
        return Some(Vec::new());
    }
    Some(fs.read(Tree::Live, ino, 0, 1 << 20).unwrap())
}

#[test]
fn inodes_that_ask_for_it_are_synchronous() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    for dir in ["plain", "d", "s"] {
        fs::create_dir(m.path(dir)).unwrap();
    }
    fs::write(m.path("plain/f"), "old").unwrap();
    fs::write(m.path("plain/g"), "old").unwrap();
    set_flags(&m.path("d"), DIRSYNC);
    set_flags(&m.path("s"), SYNC);
    m.sync();

    // Nothing asked for it.
    fs::write(m.path("plain/f"), "new").unwrap();
    fs::write(m.path("plain/h"), "new").unwrap();
    assert_eq!(on_disk(&bench, "plain/f").unwrap(), b"old");
    assert_eq!(on_disk(&bench, "plain/h"), None);

    // A file: its content and size.
    set_flags(&m.path("plain/f"), SYNC);
    let f = File::options().write(true).open(m.path("plain/f")).unwrap();
    f.write_all_at(b"written", 0).unwrap();
    assert_eq!(on_disk(&bench, "plain/f").unwrap(), b"written");
    f.set_len(3).unwrap();
    assert_eq!(on_disk(&bench, "plain/f").unwrap(), b"wri");
    drop(f);

    for dir in ["d", "s"] {
        let has = |name: &str| on_disk(&bench, &format!("{dir}/{name}")).is_some();
        let path = |name: &str| m.path(&format!("{dir}/{name}"));
        File::create(path("made")).unwrap();
        assert!(has("made"));
        fs::create_dir(path("sub")).unwrap();
        assert!(has("sub"));
        std::os::unix::fs::symlink("to", path("sym")).unwrap();
        fs::hard_link(path("made"), path("linked")).unwrap();
        assert!(has("linked"));
        fs::rename(path("made"), path("moved")).unwrap();
        assert!(has("moved") && !has("made"));
        fs::rename(m.path("plain/g"), path("g")).unwrap();
        assert!(has("g"));
        fs::rename(path("g"), m.path("plain/g")).unwrap();
        assert!(!has("g") && on_disk(&bench, "plain/g").is_some());
        fs::remove_file(path("moved")).unwrap();
        fs::remove_dir(path("sub")).unwrap();
        assert!(!has("moved") && !has("sub"));
        // What is in a synchronous directory is synchronous itself, in one whose changes alone are it is not.
        fs::write(path("content"), "x").unwrap();
        let content = on_disk(&bench, &format!("{dir}/content")).unwrap();
        assert_eq!(content, if dir == "s" { b"x".to_vec() } else { Vec::new() });
    }
    m.unmount();
    assert_eq!(bench.findings(), [""; 0]);
}

#[test]
fn mounts_can_be_synchronous() {
    if !can_mount() {
        return;
    }
    for (sync, dirsync) in [(true, false), (false, true)] {
        let bench = Bench::new();
        let m = bench.mount(MountOptions { sync, dirsync, ..quiet() });
        fs::write(m.path("f"), "x").unwrap();
        let wanted = if sync { b"x".to_vec() } else { Vec::new() };
        assert_eq!(on_disk(&bench, "f"), Some(wanted));
        fs::remove_file(m.path("f")).unwrap();
        assert_eq!(on_disk(&bench, "f"), None);
        m.unmount();
    }
}

/// A file handle as the kernel gives it out.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

fn handle(path: &Path) -> Handle {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount = 0i32;
    // SAFETY: the handle has room for as many bytes as it says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open_handle(root: &File, handle: &Handle, flags: i32) -> std::io::Result<File> {
    // SAFETY: the handle is one that the kernel has filled in.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), std::ptr::from_ref(handle), flags)
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }.into())
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Handles as NFS servers keep them: they outlive the kernel's memory and the mount, and are stale once
/// their file is gone, whoever has its number then.
#[test]
fn file_handles_last_as_long_as_their_files() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    fs::create_dir_all(m.path("a/b")).unwrap();
    fs::write(m.path("a/b/f"), "content").unwrap();
    fs::write(m.path("gone"), "gone").unwrap();
    fs::write(m.path("held"), "held").unwrap();
    let handles = ["a/b/f", "a/b", "a", ""].map(|p| handle(&m.path(p)));
    let [gone, held] = ["gone", "held"].map(|p| handle(&m.path(p)));
    let number = fs::metadata(m.path("gone")).unwrap().ino();
    let check = |root: &Path| {
        let root = File::open(root).unwrap();
        for how in ["cached", "dropped"] {
            if how == "dropped" {
                drop_caches();
            }
            let [f, b, a, top] = &handles;
            let read = |h: &Handle| std::io::read_to_string(open_handle(&root, h, libc::O_RDONLY)?);
            assert_eq!(read(f).unwrap_or_else(|e| panic!("{how}: {e}")), "content");
            let dir = open_handle(&root, b, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
            let listed: Vec<_> =
                fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).unwrap().collect();
            assert_eq!(listed.len(), 1, "{how}");
            for h in [a, top] {
                assert!(open_handle(&root, h, libc::O_RDONLY).unwrap().metadata().unwrap().is_dir(), "{how}");
            }
        }
    };
    check(&m.dir);
    m.unmount();
    let m = bench.mount_quiet();
    check(&m.dir);

    let stale = |m: &Mounted, h: &Handle| {
        let root = File::open(&m.dir).unwrap();
        open_handle(&root, h, libc::O_RDONLY).map(drop).unwrap_err().raw_os_error()
    };
    // Without a name, but open: the handle works until it is closed.
    let open = File::open(m.path("held")).unwrap();
    fs::remove_file(m.path("held")).unwrap();
    drop_caches();
    let again = open_handle(&File::open(&m.dir).unwrap(), &held, libc::O_RDONLY).unwrap();
    assert_eq!(std::io::read_to_string(again).unwrap(), "held");
    drop(open);
    drop_caches();
    fs::remove_file(m.path("gone")).unwrap();
    m.sync();
    drop_caches();
    assert_eq!(stale(&m, &gone), Some(libc::ESTALE));
    assert_eq!(stale(&m, &held), Some(libc::ESTALE));
    // The number comes up again.
    let mut reused = false;
    for i in 0..200 {
        let path = m.path(&format!("n{i}"));
        fs::write(&path, "other").unwrap();
        reused |= fs::metadata(&path).unwrap().ino() == number;
        if i % 10 == 9 {
            m.sync();
        }
    }
    assert!(reused, "number {number} was not used again");
    for _ in 0..2 {
        assert_eq!(stale(&m, &gone), Some(libc::ESTALE));
        drop_caches();
    }
    m.unmount();
    let m = bench.mount_quiet();
    assert_eq!(stale(&m, &gone), Some(libc::ESTALE));
    assert_eq!(stale(&m, &held), Some(libc::ESTALE));
    m.unmount();
}

#[test]
fn flags_that_change_are_seen_in_the_change_time() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    fs::write(m.path("f"), "content").unwrap();
    let changed = |m: &Mounted| {
        let s = fs::metadata(m.path("f")).unwrap();
        (s.ctime(), s.ctime_nsec())
    };
    let before = changed(&m);
    std::thread::sleep(Duration::from_millis(20));
    set_flags(&m.path("f"), 0x40);
    let after = changed(&m);
    assert!(after > before, "the kernel kept {before:?}");
    m.unmount();
    let m = bench.mount_quiet();
    assert_eq!(changed(&m), after);
    m.unmount();
}

/// As xfs_io sets them, and `file_setattr`.
#[test]
fn flags_can_be_set_by_their_other_names() {
    const DIRSYNC_AND_NODUMP: i64 = DIRSYNC | 0x40;
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    fs::create_dir(m.path("d")).unwrap();
    set_flags(&m.path("d"), DIRSYNC_AND_NODUMP);
    let dir = File::open(m.path("d")).unwrap();
    let set = |bits: u32, project: u32| {
        let asked = [bits, 0, 0, project, 0, 0, 0];
        // SAFETY: FS_IOC_FSSETXATTR reads these 28 bytes.
        let done = unsafe { libc::ioctl(dir.as_raw_fd(), 0x401c_5820, asked.as_ptr()) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) }
    };
    let flags = || {
        let mut told = 0u32;
        // SAFETY: FS_IOC_GETFLAGS writes an int.
        assert_eq!(unsafe { libc::ioctl(dir.as_raw_fd(), 0x8008_6601, &raw mut told) }, 0);
        i64::from(told)
    };
    assert_eq!((set(0x08, 0), flags()), (Ok(()), DIRSYNC | 0x10));
    assert!(File::create(m.path("d/f")).is_err(), "it is immutable");
    assert_eq!((set(0, 0), flags()), (Ok(()), DIRSYNC));
    File::create(m.path("d/f")).unwrap();
    for (bits, project) in [(0x200, 0), (0, 5)] {
        assert_eq!((set(bits, project), flags()), (Err(Some(libc::EOPNOTSUPP)), DIRSYNC));
    }
    drop(dir);
    m.unmount();
}

/// Who ages directories by their times, as tmpfiles does, keeps what is looked into.
#[test]
fn listing_a_directory_and_reading_a_link_are_accesses() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let m = bench.mount_quiet();
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), "f").unwrap();
    std::os::unix::fs::symlink("d", m.path("l")).unwrap();
    let accessed = |name: &str| {
        let s = fs::symlink_metadata(m.path(name)).unwrap();
        (s.atime(), s.atime_nsec())
    };
    let before = ["d", "l"].map(accessed);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(fs::read_dir(m.path("d")).unwrap().count(), 1);
    fs::read_link(m.path("l")).unwrap();
    for (name, before) in ["d", "l"].into_iter().zip(before) {
        assert!(accessed(name) > before, "{name}");
    }
    m.unmount();
}
