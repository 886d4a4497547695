//! A modelled disk as the kernel sees it: the file of a real mount. Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests: a surprise is a failure

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;

fn counters(dir: &Path) -> Vec<u64> {
    let text = fs::read_to_string(dir.join("counters")).unwrap();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Unmounts even if the test fails, so that no server stays.
struct Server(Child, std::path::PathBuf);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.1).output();
        let _ = self.0.wait();
    }
}

#[test]
fn takes_the_time_keeps_the_bytes_and_counts_exactly() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("left out: needs root and /dev/fuse");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("disk");
    fs::create_dir(&dir).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_silt-bench"));
    command.args(["serve", "--disk", "flush2ms", "--size", &SIZE.to_string()]).arg(&dir);
    let mut server = Server(command.spawn().unwrap(), dir.clone());
    let image = dir.join("disk.img");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !image.exists() {
        assert!(server.0.try_wait().unwrap().is_none(), "the server ended");
        assert!(Instant::now() < deadline, "no image after a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(image.metadata().unwrap().len(), SIZE);
    let file = File::options().read(true).write(true).open(&image).unwrap();
    assert_eq!(counters(&dir), [0; 6]);

    let start = Instant::now();
    for n in 0..10u8 {
        file.write_all_at(&[n + 1; 4096], u64::from(n) * (1 << 20)).unwrap();
        file.sync_all().unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(20), "ten flushes of 2 ms");
    let mut block = [0; 4096];
    file.read_exact_at(&mut block, 3 << 20).unwrap();
    assert_eq!(block, [4; 4096]);
    assert_eq!(counters(&dir), [1, 4096, 10, 40_960, 10, 0]);

    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 3 << 20, 2048).unwrap();
    file.read_exact_at(&mut block, 3 << 20).unwrap();
    assert_eq!((block[2047], block[2048]), (0, 4));
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, SIZE).unwrap();
    file.read_exact_at(&mut block, 9 << 20).unwrap();
    assert_eq!(block, [0; 4096]);
    assert_eq!(counters(&dir)[4..], [10, 2]);

    drop(file);
    assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
}

/// On a machine that was just started nobody has mounted the control file system of FUSE.
#[test]
fn serves_where_connections_are_not_mounted() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("left out: needs root and /dev/fuse");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("disk");
    fs::create_dir(&dir).unwrap();
    // In a namespace of its own.
    let script = "while umount /sys/fs/fuse/connections 2>/dev/null; do :; done
        \"$0\" serve --disk flush2ms --size 1048576 \"$1\" & server=$!
        while [ ! -e \"$1/disk.img\" ]; do kill -0 $server || exit 3; sleep 0.01; done
        umount \"$1\" && wait $server";
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "timeout", "60", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_silt-bench"))
        .arg(&dir)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
