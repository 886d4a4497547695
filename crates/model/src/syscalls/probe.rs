//! Finding out what the file system under a directory can do, by trying.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
};
use rustix::fs::{Uid, openat};
use rustix::io::Result;

use super::ioctl;
use crate::caps::{Capabilities, flag};
use crate::manifest::Time;

const FLAGS: [u32; 7] =
    [flag::SYNC, flag::IMMUTABLE, flag::APPEND, flag::NODUMP, flag::NOATIME, flag::DIRSYNC, flag::TOPDIR];

/// A directory made for trying, and what is tried there.
struct Trial {
    dir: OwnedFd,
    count: u32,
}

impl Trial {
    fn name(&mut self) -> String {
        self.count += 1;
        format!("probe-{}", self.count)
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o700))
    }

    /// A new file.
    fn file(&mut self) -> Result<(OwnedFd, String)> {
        let name = self.name();
        Ok((self.open(&name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?, name))
    }

    fn allocate(&mut self, flags: FallocateFlags) -> bool {
        self.file().and_then(|(fd, _)| rustix::fs::fallocate(fd, flags, 0, 4096)).is_ok()
    }

    fn rename(&mut self, flags: RenameFlags, both: bool) -> bool {
        let mut attempt = || {
            let (_, from) = self.file()?;
            let to = if both { self.file()?.1 } else { self.name() };
            rustix::fs::renameat_with(&self.dir, &*from, &self.dir, &*to, flags)
        };
        attempt().is_ok()
    }

    fn symlink(&mut self, len: usize) -> bool {
        let name = self.name();
        rustix::fs::symlinkat("t".repeat(len).as_str(), &self.dir, &*name).is_ok()
    }

    fn privileged(&mut self) -> bool {
        let mut attempt = || {
            let name = self.name();
            let device = rustix::fs::makedev(1, 3);
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(&self.dir, &*name, FileType::CharacterDevice, mode, device)?;
            let (uid, gid) = (Some(Uid::from_raw(12)), Some(Gid::from_raw(34)));
            rustix::fs::chownat(&self.dir, &*name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        };
        attempt().is_ok()
    }

    fn chown_of_nothing(&mut self) -> bool {
        let mut attempt = || {
            let (fd, _) = self.file()?;
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o4755))?;
            rustix::fs::fchown(&fd, None, None)?;
            Ok::<_, rustix::io::Errno>(rustix::fs::fstat(&fd)?.st_mode & 0o4000 == 0)
        };
        attempt().unwrap_or(false)
    }

    fn keeps_time(&mut self, sec: i64) -> bool {
        let mut attempt = || {
            let (fd, _) = self.file()?;
            let stamp = Timespec { tv_sec: sec, tv_nsec: 0 };
            rustix::fs::futimens(&fd, &Timestamps { last_access: stamp, last_modification: stamp })?;
            Ok::<_, rustix::io::Errno>(rustix::fs::fstat(&fd)?.st_mtime == sec)
        };
        attempt().unwrap_or(false)
    }

    /// The largest size that a file can be given.
    fn size_max(&mut self) -> u64 {
        let Ok((fd, _)) = self.file() else { return 0 };
        let (mut good, mut bad) = (0u64, 1u64 << 63);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match rustix::fs::ftruncate(&fd, middle) {
                Ok(()) => good = middle,
                Err(_) => bad = middle,
            }
        }
        good
    }

    /// Whether data that far out is found again; not every file system can tell where it is.
    fn finds(&mut self, end: u64) -> bool {
        let mut attempt = || {
            let (fd, _) = self.file()?;
            super::write(fd.as_fd(), Some(end - 5), 5, 1).map_err(|_| rustix::io::Errno::IO)?;
            let found = super::read::digest(fd.as_fd(), end, None, &mut Vec::new()).unwrap_or_default();
            Ok::<_, rustix::io::Errno>(found != crate::hash::Digest::default())
        };
        attempt().unwrap_or(false)
    }

    /// Whether a directory takes the flag, and a new file in it takes it over.
    fn flag(&mut self, bit: u32) -> Result<(bool, bool)> {
        let name = self.name();
        rustix::fs::mkdirat(&self.dir, &*name, Mode::from_raw_mode(0o700))?;
        let dir = self.open(&name, OFlags::RDONLY)?;
        let before = ioctl::flags(dir.as_fd())?;
        ioctl::set_flags(dir.as_fd(), before | bit)?;
        let taken = ioctl::flags(dir.as_fd())? & bit != 0;
        // Into an immutable directory nothing is born; a flag of directories is seen in a directory.
        let child = rustix::fs::mkdirat(&dir, "child", Mode::from_raw_mode(0o700))
            .and_then(|()| openat(&dir, "child", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
        let mut inherited = false;
        if let Ok(child) = child {
            inherited = ioctl::flags(child.as_fd())? & bit != 0;
            ioctl::set_flags(child.as_fd(), ioctl::flags(child.as_fd())? & !bit)?;
        }
        ioctl::set_flags(dir.as_fd(), before)?;
        Ok((taken, inherited))
    }
}

/// Tries everything in a new directory under `dir`, which is removed again. Limits that would take long to find
/// (links) are left unknown. What cannot be tried counts as missing.
pub fn probe(dir: &Path) -> std::io::Result<Capabilities> {
    let place = dir.join(".probe");
    std::fs::create_dir(&place)?;
    let dir = openat(CWD, &place, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut trial = Trial { dir, count: 0 };
    let caps = capabilities(&mut trial);
    drop(trial);
    std::fs::remove_dir_all(&place)?;
    Ok(caps)
}

fn capabilities(trial: &mut Trial) -> Capabilities {
    let limits = [(i64::MIN, i64::MAX), (-(1 << 31), 15_032_385_535), (0, (1 << 31) - 1)];
    let fits = |trial: &mut Trial, (low, high): (i64, i64)| trial.keeps_time(low) && trial.keeps_time(high);
    let (low, high) = limits.into_iter().find(|&range| fits(trial, range)).unwrap_or((0, 0));
    let (mut flags, mut inherited) = (0, 0);
    for bit in FLAGS {
        if let Ok((true, passed_on)) = trial.flag(bit) {
            flags |= bit;
            inherited |= if passed_on { bit } else { 0 };
        }
    }
    let keep = FallocateFlags::KEEP_SIZE;
    let file_size_max = trial.size_max();
    Capabilities {
        name_max: 255,
        symlink_max: [4095, 2047, 1023].into_iter().find(|&len| trial.symlink(len)).unwrap_or(60),
        link_max: None,
        file_size_max,
        sparse_max: if trial.finds(file_size_max) { file_size_max } else { file_size_max.min(1 << 50) },
        time_min: Time { sec: low, nsec: 0 },
        time_max: Time { sec: high, nsec: 0 },
        punch: trial.allocate(FallocateFlags::PUNCH_HOLE | keep),
        zero_range: trial.allocate(FallocateFlags::ZERO_RANGE),
        allocate: trial.allocate(FallocateFlags::empty()) && trial.allocate(keep),
        noreplace: trial.rename(RenameFlags::NOREPLACE, false),
        exchange: trial.rename(RenameFlags::EXCHANGE, true),
        tmpfile: trial.open(".", OFlags::TMPFILE | OFlags::RDWR).is_ok(),
        mmap: true,
        map_again: true,
        privileged: trial.privileged(),
        chown_of_nothing: trial.chown_of_nothing(),
        device_max: (0xfff, 0xf_ffff),
        flags,
        flags_inherited: inherited,
        checkpoints: false,
        snapshots: false,
        remount: false,
    }
}
