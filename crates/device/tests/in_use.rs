//! Volumes in use by mounts and loop devices, on real ones. Needs root and free loop devices;
//! says so and passes otherwise. Mounts are made in the test's own place and taken back.

#![allow(clippy::unwrap_used, clippy::panic)] // tests: a surprise is a failure

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use silt_device::{
    Access, Device, Error, FileDevice, OpenOptions, Usage, create_image, open, usage, usage_except,
};

const MIB: u64 = 1 << 20;

/// A loop device, detached when dropped.
struct Loop {
    device: PathBuf,
    image: PathBuf,
}

impl Loop {
    fn attach(image: &Path, options: &[&str]) -> Option<Loop> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return None;
        }
        let output =
            match Command::new("losetup").args(["--find", "--show"]).args(options).arg(image).output() {
                Ok(output) => output,
                Err(e) => {
                    println!("skipped: losetup: {e}");
                    return None;
                }
            };
        if !output.status.success() {
            println!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        let device = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        Some(Loop { device, image: image.canonicalize().unwrap() })
    }

    fn number(&self) -> u32 {
        self.device.to_str().unwrap().strip_prefix("/dev/loop").unwrap().parse().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
        // Whoever looks for a free loop device meanwhile opens this one and delays its end.
        let name = format!("/sys/block/loop{}/loop/backing_file", self.number());
        let attached =
            || std::fs::read(&name).is_ok_and(|n| n.trim_ascii() == self.image.as_os_str().as_bytes());
        let start = Instant::now();
        while attached() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A mount, undone when dropped.
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn new(device: &Path, at: &Path, options: &str) -> Option<Mount> {
        std::fs::create_dir_all(at).unwrap();
        let status = Command::new("mount").args(["-o", options]).arg(device).arg(at).status();
        if !status.is_ok_and(|s| s.success()) {
            println!("skipped: cannot mount");
            return None;
        }
        Some(Mount { at: at.to_owned() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

fn busy(result: Result<FileDevice, Error>) -> String {
    match result {
        Err(Error::Busy { by, .. }) => by.unwrap_or_default(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("opened"),
    }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn attached_images() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB, false).unwrap());
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let attached = format!("attached to {}", l.device.display());
    let o = OpenOptions::default();

    let told = usage(&image).unwrap().unwrap();
    assert_eq!(told, Usage::Attached { device: l.device.clone(), read_only: false });
    assert_eq!(busy(open(&image, Access::ReadWrite, &o)), attached);
    assert_eq!(busy(open(&image, Access::ReadOnly, &o)), attached);
    assert_eq!(busy(create_image(&image, MIB, true)), attached);
    // By another name it is the same file.
    let link = dir.path().join("link");
    std::fs::hard_link(&image, &link).unwrap();
    assert_eq!(busy(open(&link, Access::ReadWrite, &o)), attached);

    let ours = OpenOptions { ignore_loops: vec![l.number()], ..OpenOptions::default() };
    let held = open(&image, Access::ReadWrite, &ours).unwrap();
    assert_eq!(usage_except(&image, &[l.number()]).unwrap(), None, "our own lock is no use");
    drop(held);
    assert_eq!(usage(&l.device).unwrap(), None, "nobody uses the loop device");

    drop(l);
    assert_eq!(usage(&image).unwrap(), None);
    assert!(open(&image, Access::ReadWrite, &o).is_ok());
}

/// A loop device that goes as soon as somebody closes it, as after an unmount, is waited for, but not for long.
#[test]
fn loop_devices_that_are_going_are_waited_for() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB, false).unwrap());
    for (time, goes) in [(100, true), (3000, false)] {
        let Some(l) = Loop::attach(&image, &[]) else { return };
        let held = std::fs::File::open(&l.device).unwrap();
        assert!(Command::new("losetup").arg("-d").arg(&l.device).status().unwrap().success());
        let closes = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(time));
            drop(held);
        });
        assert_eq!(usage(&image).unwrap().is_none(), goes);
        closes.join().unwrap();
        assert_eq!(usage(&image).unwrap(), None);
        std::mem::forget(l);
    }
}

#[test]
fn attached_read_only_images_may_be_read() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB, false).unwrap());
    let Some(l) = Loop::attach(&image, &["--read-only"]) else { return };
    let o = OpenOptions::default();
    assert!(usage(&image).unwrap().unwrap().is_read_only());
    assert!(open(&image, Access::ReadOnly, &o).is_ok());
    assert!(busy(open(&image, Access::ReadWrite, &o)).starts_with("attached to "));
    drop(l);
}

#[test]
fn block_devices() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB + 512, false).unwrap());
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let o = OpenOptions::default();
    let writer = open(&l.device, Access::ReadWrite, &o).unwrap();
    assert!(writer.is_block_device());
    assert_eq!(writer.len(), 4 * MIB + 512);
    assert_eq!(writer.backing_free(), None);
    let c = writer.capabilities();
    assert_eq!((c.logical_block, c.read_only, c.flush), (512, false, true), "{c:?}");
    assert!(c.physical_block >= 512 && c.queue_depth >= 1, "{c:?}");

    // One claim at a time; readers are kept out, too, unless they only look.
    assert!(!busy(open(&l.device, Access::ReadWrite, &o)).is_empty());
    assert!(!busy(open(&l.device, Access::ReadOnly, &o)).is_empty());
    let look = OpenOptions { without_lock: true, ..OpenOptions::default() };
    let reader = open(&l.device, Access::ReadOnly, &look).unwrap();

    let data: Vec<u8> = (0..3 * MIB).map(|i| (i % 249) as u8).collect();
    writer.write_at(1000, &[&data[..5], &data[5..]]).unwrap();
    writer.write_durably(4 * MIB, &[9; 512]).unwrap();
    let mut back = vec![0; data.len()];
    reader.read_at(1000, &mut back).unwrap();
    assert!(back == data);
    assert!(writer.write_at(4 * MIB + 511, &[&[1, 2]]).is_err());

    // Bytes outside the range stay, those of its whole blocks may go.
    writer.discard(1100, MIB).unwrap();
    writer.read_at(1000, &mut back).unwrap();
    assert!(back[..100] == data[..100]);
    assert!(back[100 + MIB as usize..] == data[100 + MIB as usize..]);

    // Between two claims only others than Silt get at it.
    writer.release_claim();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert_eq!(busy(open(&l.device, access, &o)), "used by another silt");
    }
    let other = claim(&l.device).unwrap();
    assert!(matches!(writer.claim_again(), Err(Error::Busy { .. })));
    drop(other);
    writer.claim_again().unwrap();
    assert!(claim(&l.device).is_err());
    assert!(!busy(open(&l.device, Access::ReadWrite, &o)).is_empty());
}

/// What mounts and mkfs ask the kernel for.
fn claim(device: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(device)
}

#[test]
fn nobody_writes_to_a_block_device_beneath_readers() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB, false).unwrap());
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let o = OpenOptions::default();
    let first = open(&l.device, Access::ReadOnly, &o).unwrap();
    assert!(claim(&l.device).is_err(), "a mount, or mkfs");
    let second = open(&l.device, Access::ReadOnly, &o).unwrap();
    let third = open(&l.device, Access::ReadOnly, &o).unwrap();
    for readers in [Some(first), Some(second), None] {
        assert_eq!(busy(open(&l.device, Access::ReadWrite, &o)), "used by another silt");
        drop(readers);
    }
    drop(third);
    let writer = open(&l.device, Access::ReadWrite, &o).unwrap();
    drop(writer);

    // One that only has a claim, and is no reader, is not taken for one.
    let other = claim(&l.device).unwrap();
    assert!(!busy(open(&l.device, Access::ReadOnly, &o)).is_empty());
    drop(other);
    drop(open(&l.device, Access::ReadOnly, &o).unwrap());
}

/// udev asks for such a lock before it looks at a device.
#[test]
fn a_block_device_in_use_can_be_locked_by_udev() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB, false).unwrap());
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let writer = open(&l.device, Access::ReadWrite, &OpenOptions::default()).unwrap();
    let node = File::open(&l.device).unwrap();
    rustix::fs::flock(&node, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    drop(writer);
}

#[test]
fn block_devices_past_the_page_cache() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 4 * MIB + 512, false).unwrap());
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let direct = OpenOptions { direct: true, ..OpenOptions::default() };
    let device = open(&l.device, Access::ReadWrite, &direct).unwrap();
    device.write_at(0, &[&vec![1; 8192]]).unwrap();
    device.write_at(700, &[&[2; 5000]]).unwrap();
    device.write_durably(4 * MIB + 500, &[3; 12]).unwrap();
    let mut back = vec![0; 8192];
    device.read_at(0, &mut back).unwrap();
    assert!(back[..700] == [1; 700] && back[700..5700] == [2; 5000] && back[5700..] == [1; 2492]);
    let mut end = [0; 13];
    device.read_at(4 * MIB + 499, &mut end).unwrap();
    assert_eq!((end[0], &end[1..]), (0, &[3; 12][..]));
}

#[test]
fn mounted_volumes() {
    let dir = dir();
    let image = dir.path().join("image");
    drop(create_image(&image, 16 * MIB, false).unwrap());
    let mkfs = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
    if !mkfs.is_ok_and(|s| s.success()) {
        println!("skipped: no mkfs.ext4");
        return;
    }
    let Some(l) = Loop::attach(&image, &[]) else { return };
    let at = dir.path().join("a place");
    let Some(mount) = Mount::new(&l.device, &at, "rw") else { return };
    let o = OpenOptions::default();
    let on = format!("mounted on {}", at.display());
    let through = format!("{on} through {}", l.device.display());
    assert_eq!(usage(&l.device).unwrap().unwrap().to_string(), on);
    assert_eq!(usage(&image).unwrap().unwrap().to_string(), through);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert_eq!(busy(open(&l.device, access, &o)), on);
        assert_eq!(busy(open(&image, access, &o)), through);
    }
    assert_eq!(usage_except(&image, &[l.number()]).unwrap(), None);
    drop(mount);

    let Some(mount) = Mount::new(&l.device, &at, "ro") else { return };
    assert!(usage(&l.device).unwrap().unwrap().is_read_only());
    assert_eq!(busy(open(&l.device, Access::ReadWrite, &o)), on);
    assert!(open(&l.device, Access::ReadOnly, &o).is_ok(), "beside a read-only mount");
    // The loop device itself could still write.
    assert!(open(&image, Access::ReadOnly, &o).is_ok());
    drop(mount);
}

/// The kernel says of a write behind the end of a block device what it says on a full file system.
#[test]
fn a_block_device_that_became_shorter_is_not_a_full_one() {
    for direct in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        drop(create_image(&image, 4 * MIB, false).unwrap());
        let Some(attached) = Loop::attach(&image, &[]) else { return };
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let device = open(&attached.device, Access::ReadWrite, &options).unwrap();
        device.write_at(3 * MIB, &[&[1; 4096]]).unwrap();
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(2 * MIB).unwrap();
        let set = Command::new("losetup").arg("--set-capacity").arg(&attached.device).status();
        assert!(set.unwrap().success());
        let told = [
            device.write_at(3 * MIB, &[&[2; 4096]]),
            device.write_at(2 * MIB - 4096, &[&[2; 8192]]),
            device.write_at(2 * MIB - 4096, &[&vec![2; 1 << 20]]),
            device.write_durably(3 * MIB, &[2; 512]),
            device.read_at(3 * MIB, &mut [0; 4096]),
            device.read_at(2 * MIB - 4096, &mut [0; 8192]),
            device.read_at(MIB, &mut vec![0; 2 << 20]),
        ];
        for (n, told) in told.into_iter().enumerate() {
            let e = told.unwrap_err();
            assert!(!e.is_no_space(), "{n}: {e}");
            let words = "the device is 2097152 bytes long now, shorter than the volume";
            assert!(e.to_string().contains(words), "{n}: {e}");
        }
        device.write_at(MIB, &[&[2; 4096]]).unwrap();
        device.flush().unwrap();
        drop(device);
    }
}
