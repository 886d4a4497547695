//! Requests through io_uring: of each processor the kernel has 32 open, and what waits for others must leave some.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use silt_daemon::{Config, MountOptions};
use silt_engine::mkfs::{Parameters, Plan};
use silt_fuse::IO_URING_SWITCH;

/// More than anything here takes that does not hang.
const LONG: Duration = Duration::from_secs(30);
/// Where the ones are to seek that are run for it.
const DIR: &str = "SILT_TEST_SEEKERS";
/// Requests of one processor that the kernel has open.
const ENTRIES: usize = 32;
const SIZE: u64 = 256 << 20;
const PAGE: usize = 4096;
const PAGES: usize = 64;

/// The kernel's switch, as it was when dropped.
struct Switch(String);

impl Switch {
    fn on() -> Option<Self> {
        let before = std::fs::read_to_string(IO_URING_SWITCH).ok()?;
        std::fs::write(IO_URING_SWITCH, "Y").ok()?;
        Some(Switch(before))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::write(IO_URING_SWITCH, self.0.trim());
    }
}

fn stay_on(cpu: usize) {
    // SAFETY: a set of plain bits, of which one is set and which the call reads.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

/// Dirties every second page of a hole through a shared mapping, and asks for the first data when all have done so.
fn dirty_and_seek(path: &Path, together: &Barrier) -> i64 {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    // SAFETY: a new mapping of the file, written within its length and unmapped when that is done.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let map =
            libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        (0..PAGES).step_by(2).for_each(|page| map.cast::<u8>().add(page * PAGE).write(7));
        together.wait();
        let found = libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA);
        libc::munmap(map, PAGES * PAGE);
        found
    }
}

/// Each of them has the kernel write what is dirty in its file before it is answered.
#[test]
fn who_looks_for_data_leaves_entries_for_what_the_kernel_writes() {
    let fuse = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    let Some(_switch) = Some(()).filter(|()| fuse).and_then(|()| Switch::on()) else {
        return eprintln!("skipped: this needs root, and FUSE over io_uring");
    };
    let bench = tempfile::Builder::new().prefix("silt-rings-").tempdir().unwrap();
    let (image, dir) = (bench.path().join("v.img"), bench.path().join("m"));
    std::fs::create_dir(&dir).unwrap();
    let device = silt_device::create_image(&image, SIZE, false).unwrap();
    let parameters = Parameters { blocks_per_segment: 256, now: 1000, ..Parameters::default() };
    Plan::new(parameters, SIZE).unwrap().write(&device, false).unwrap();
    drop(device);
    let options = MountOptions { io_uring: true, ..MountOptions::default() };
    let config = Config { volume: image, dir: dir.clone(), options };
    let (tell, told) = mpsc::channel();
    let daemon = std::thread::spawn(move || silt_daemon::run(&config, || tell.send(()).unwrap()));
    told.recv_timeout(LONG).unwrap();

    // In a process of their own: the daemon's memory must not wait for what theirs waits for.
    let mut seekers = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "seekers", "--nocapture"])
        .env(DIR, &dir)
        .spawn()
        .unwrap();
    let until = Instant::now() + LONG;
    let ended = loop {
        match seekers.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            ended => break ended,
        }
    };
    if ended.is_none() {
        // What hangs is let go.
        silt_fuse::abort_connection(&dir).unwrap();
        seekers.wait().unwrap();
        let _ = silt_fuse::unmount(&dir, silt_fuse::Unmount::Lazy);
        panic!("they wait for each other");
    }
    silt_fuse::unmount(&dir, silt_fuse::Unmount::Strict).unwrap();
    daemon.join().unwrap().unwrap();
    assert!(ended.unwrap().success());
}

/// No test: what the one above runs.
#[test]
fn seekers() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let threads = cpus * (ENTRIES + 8);
    let together = Arc::new(Barrier::new(threads));
    let seekers: Vec<_> = (0..threads)
        .map(|n| {
            let (path, together) = (dir.join(n.to_string()), together.clone());
            std::thread::spawn(move || {
                stay_on(n % cpus);
                dirty_and_seek(&path, &together)
            })
        })
        .collect();
    // What was written is at the beginning of each.
    assert!(seekers.into_iter().all(|seeker| seeker.join().unwrap() == 0));
}
