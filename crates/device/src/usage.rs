//! Who else uses a volume: mounts, loop devices, swap, stacked devices, locks.
//!
//! A volume is a block device (told by its number) or a file (told by its file system and inode).
//! It may be used directly or through a loop device that it backs, which may back another one in
//! turn. All of it is a look at tables at one moment; what holds afterwards is the lock that
//! [`open`](fn@crate::open) takes first. What the tables do not show (another mount namespace, a file
//! system that numbers its files' devices otherwise) the kernel's claim on a block device catches.
//!
//! Nothing is locked here, and nothing opened but a loop device whose backing file has no name that
//! we could follow.

mod tables;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat};

use crate::sysfs::{self, DevNr};
use crate::{Error, Result};
use tables::{Loop, Tables};

/// What uses a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// A file system on it is mounted.
    Mounted {
        /// Where.
        at: PathBuf,
        /// The loop device between a file and the mount.
        through: Option<PathBuf>,
        /// Whether the whole file system is read-only, not just this mount.
        read_only: bool,
    },
    /// It backs a loop device.
    Attached {
        /// As `/dev/loop3`.
        device: PathBuf,
        /// Whether the loop device is read-only.
        read_only: bool,
    },
    /// A device is stacked on it (device mapper, md).
    Held {
        /// Its name, as `dm-0`.
        by: String,
    },
    /// It is swapped to.
    Swap,
    /// A program holds a lock on the image.
    Locked {
        /// Who took the lock; may have handed it on since, and may be unknown.
        pid: Option<u32>,
        /// The program's name, where it still runs.
        program: Option<String>,
        /// A lock that admits other readers.
        shared: bool,
    },
}

impl Usage {
    /// Whether the volume does not change by it, so that others may read.
    pub fn is_read_only(&self) -> bool {
        match self {
            Usage::Mounted { read_only, .. } | Usage::Attached { read_only, .. } => *read_only,
            Usage::Locked { shared, .. } => *shared,
            Usage::Held { .. } | Usage::Swap => false,
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Usage::Mounted { at, through: None, .. } => write!(f, "mounted on {}", at.display()),
            Usage::Mounted { at, through: Some(device), .. } => {
                write!(f, "mounted on {} through {}", at.display(), device.display())
            }
            Usage::Attached { device, .. } => write!(f, "attached to {}", device.display()),
            Usage::Held { by } => write!(f, "held by {by}"),
            Usage::Swap => f.write_str("used as swap"),
            Usage::Locked { pid: Some(pid), program: Some(program), .. } => {
                write!(f, "locked by process {pid}, {program}")
            }
            Usage::Locked { .. } => f.write_str("locked by another process"),
        }
    }
}

/// Says who uses the image file or block device `path`, if anybody; locks of this process do not
/// count. Where several do, a mount is told before a loop device before a lock.
///
/// Errors: `path` cannot be asked about.
pub fn usage(path: impl AsRef<Path>) -> Result<Option<Usage>> {
    usage_except(path, &[])
}

/// Like [`usage()`], with the loop devices of these numbers, and what is mounted through them, left
/// out of account: those that the caller attached itself.
pub fn usage_except(path: impl AsRef<Path>, ignore_loops: &[u32]) -> Result<Option<Usage>> {
    let path = path.as_ref();
    let stat = rustix::fs::stat(path).map_err(|e| Error::of_path(path, e))?;
    find(path, &stat, ignore_loops, true)
}

/// Who uses the file that `stat` is of; `path` is for errors.
pub(crate) fn find(path: &Path, stat: &Stat, ignore_loops: &[u32], locks: bool) -> Result<Option<Usage>> {
    let subject = Subject::of(stat);
    let until = Instant::now() + DETACHING;
    loop {
        let tables = Tables::read().map_err(|e| Error::of_path(path, e))?;
        let search = Search { tables: &tables, ignore: ignore_loops, own_pid: std::process::id() };
        let used = search.used(subject);
        if search.may_go(used.as_ref()) && Instant::now() < until {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        }
        return Ok(used.or_else(|| if locks { search.locked(subject) } else { None }));
    }
}

/// A volume as the tables know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Block(DevNr),
    File { dev: DevNr, ino: u64 },
}

impl Subject {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Subject::Block(DevNr::of(stat.st_rdev)),
            _ => Subject::File { dev: DevNr::of(stat.st_dev), ino: stat.st_ino },
        }
    }
}

/// A loop device that goes by itself is waited for so long: after an unmount it stays for a moment where somebody looks at
/// it just then.
const DETACHING: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Loop devices on loop devices deeper than this are not followed.
const DEPTH: u32 = 8;

struct Search<'a> {
    tables: &'a Tables,
    ignore: &'a [u32],
    own_pid: u32,
}

impl Search<'_> {
    /// Use other than locks, mounts before the rest.
    fn used(&self, subject: Subject) -> Option<Usage> {
        let mut found: Vec<Usage> = Vec::new();
        self.direct(subject, None, &mut found);
        self.through_loops(subject, None, DEPTH, &mut found);
        // What is done to a loop device is done to the file behind it.
        if let Some(own) = self.as_loop(subject)
            && let Some(backing) = own.backing
        {
            self.direct(backing, None, &mut found);
            self.through_loops(backing, Some(own.number), DEPTH, &mut found);
        }
        let mounted = found.iter().position(|u| matches!(u, Usage::Mounted { .. }));
        (!found.is_empty()).then(|| found.swap_remove(mounted.unwrap_or(0)))
    }

    /// Whether this is the use by a loop device alone that goes with whoever has it open.
    fn may_go(&self, used: Option<&Usage>) -> bool {
        let Some(Usage::Attached { device, .. }) = used else { return false };
        self.tables.loops.iter().any(|l| l.autoclear && l.path() == *device)
    }

    /// Use without a loop device above `subject`; `through` is the one below, if any.
    fn direct(&self, subject: Subject, through: Option<&Loop>, found: &mut Vec<Usage>) {
        if let Subject::Block(dev) = subject {
            let mut parts = vec![dev];
            parts.extend(sysfs::partitions(dev));
            for part in parts {
                found.extend(self.tables.mounts.iter().filter(|m| m.is_of(part)).map(|m| Usage::Mounted {
                    at: m.at.clone(),
                    through: through.map(Loop::path),
                    read_only: m.read_only,
                }));
                found.extend(sysfs::holders(part).into_iter().map(|by| Usage::Held { by }));
                if self.tables.swaps.contains(&Subject::Block(part)) {
                    found.push(Usage::Swap);
                }
            }
        } else if self.tables.swaps.contains(&subject) {
            found.push(Usage::Swap);
        }
    }

    /// Use through the loop devices that `subject` backs, except the one of number `except`.
    fn through_loops(&self, subject: Subject, except: Option<u32>, depth: u32, found: &mut Vec<Usage>) {
        let Some(depth) = depth.checked_sub(1) else { return };
        for l in self.tables.loops.iter().filter(|l| l.backing == Some(subject)) {
            if Some(l.number) == except || self.ignore.contains(&l.number) {
                continue;
            }
            self.direct(Subject::Block(l.dev), Some(l), found);
            self.through_loops(Subject::Block(l.dev), None, depth, found);
            found.push(Usage::Attached { device: l.path(), read_only: l.read_only });
        }
    }

    fn as_loop(&self, subject: Subject) -> Option<&Loop> {
        let Subject::Block(dev) = subject else { return None };
        self.tables.loops.iter().find(|l| l.dev == dev && !self.ignore.contains(&l.number))
    }

    /// A lock of another process on the file, or on the file behind the loop device.
    fn locked(&self, subject: Subject) -> Option<Usage> {
        let file = self.as_loop(subject).and_then(|l| l.backing).unwrap_or(subject);
        let Subject::File { dev, ino } = file else { return None };
        let lock =
            self.tables.locks.iter().find(|l| l.dev == dev && l.ino == ino && l.pid != Some(self.own_pid))?;
        let program = lock.pid.and_then(tables::program);
        Some(Usage::Locked { pid: lock.pid, program, shared: lock.shared })
    }
}

#[cfg(test)]
mod tests {
    use super::tables::{Lock, Mount};
    use super::*;

    // Numbers that no device has, so that sysfs adds nothing.
    const LOOP: u32 = 4001;
    const DISK: DevNr = DevNr { major: 4002, minor: 0 };
    const HOST: DevNr = DevNr { major: 4003, minor: 0 };
    const IMAGE: Subject = Subject::File { dev: HOST, ino: 12 };

    fn loop_device(number: u32, backing: Subject) -> Loop {
        let dev = DevNr { major: LOOP, minor: number };
        Loop { number, dev, backing: Some(backing), read_only: false, autoclear: false }
    }

    fn mount(dev: DevNr, at: &str) -> Mount {
        Mount { dev, source: None, at: at.into(), read_only: false }
    }

    fn used(tables: &Tables, subject: Subject, ignore: &[u32]) -> Option<String> {
        let search = Search { tables, ignore, own_pid: 7 };
        search.used(subject).or_else(|| search.locked(subject)).map(|u| u.to_string())
    }

    #[test]
    fn a_mounted_device() {
        let tables = Tables { mounts: vec![mount(DISK, "/srv")], ..Tables::default() };
        assert_eq!(used(&tables, Subject::Block(DISK), &[]).as_deref(), Some("mounted on /srv"));
        assert_eq!(used(&tables, Subject::Block(HOST), &[]), None);
        assert_eq!(used(&tables, IMAGE, &[]), None);
    }

    #[test]
    fn a_device_known_by_the_source_of_a_mount() {
        let mut tables = Tables { mounts: vec![mount(HOST, "/srv")], ..Tables::default() };
        tables.mounts[0].source = Some(DISK);
        assert_eq!(used(&tables, Subject::Block(DISK), &[]).as_deref(), Some("mounted on /srv"));
    }

    #[test]
    fn an_image_behind_loop_devices() {
        let loops = vec![loop_device(3, IMAGE), loop_device(4, IMAGE)];
        let mut tables = Tables { loops, ..Tables::default() };
        assert_eq!(used(&tables, IMAGE, &[]).as_deref(), Some("attached to /dev/loop3"));
        assert_eq!(used(&tables, IMAGE, &[3]).as_deref(), Some("attached to /dev/loop4"));
        assert_eq!(used(&tables, IMAGE, &[3, 4]), None);
        let loop3 = Subject::Block(tables.loops[0].dev);
        assert_eq!(used(&tables, loop3, &[]).as_deref(), Some("attached to /dev/loop4"));
        assert_eq!(used(&tables, loop3, &[4]), None, "being a loop device is no use");

        tables.mounts = vec![mount(tables.loops[1].dev, "/mnt/a b")];
        let through = Some("mounted on /mnt/a b through /dev/loop4");
        assert_eq!(used(&tables, IMAGE, &[]).as_deref(), through);
        assert_eq!(used(&tables, loop3, &[]).as_deref(), through);
        assert_eq!(used(&tables, IMAGE, &[4]).as_deref(), Some("attached to /dev/loop3"));
    }

    #[test]
    fn loop_devices_stacked_and_in_a_ring() {
        let mut tables = Tables::default();
        let lower = loop_device(0, IMAGE);
        tables.loops = vec![loop_device(1, Subject::Block(lower.dev)), lower];
        tables.mounts = vec![mount(tables.loops[0].dev, "/top")];
        assert_eq!(used(&tables, IMAGE, &[]).as_deref(), Some("mounted on /top through /dev/loop1"));

        let (a, b) = (loop_device(0, IMAGE), loop_device(1, IMAGE));
        tables.loops = vec![loop_device(0, Subject::Block(b.dev)), loop_device(1, Subject::Block(a.dev))];
        tables.mounts.clear();
        assert!(used(&tables, Subject::Block(a.dev), &[]).is_some(), "and it ends");
    }

    #[test]
    fn locks_of_others_and_swap() {
        let locks = vec![Lock { dev: HOST, ino: 12, pid: Some(7), shared: false }];
        let mut tables = Tables { locks, ..Tables::default() };
        assert_eq!(used(&tables, IMAGE, &[]), None, "our own");
        tables.locks.push(Lock { dev: HOST, ino: 12, pid: None, shared: true });
        assert_eq!(used(&tables, IMAGE, &[]).as_deref(), Some("locked by another process"));
        tables.loops = vec![loop_device(3, IMAGE)];
        let loop3 = Subject::Block(tables.loops[0].dev);
        assert_eq!(used(&tables, loop3, &[]).as_deref(), Some("locked by another process"));
        tables.swaps = vec![IMAGE];
        assert_eq!(used(&tables, loop3, &[]).as_deref(), Some("used as swap"));
    }

    #[test]
    fn who_leaves_the_volume_as_it_is() {
        let mounted = |read_only| Usage::Mounted { at: "/x".into(), through: None, read_only };
        assert!(mounted(true).is_read_only() && !mounted(false).is_read_only());
        assert!(!Usage::Swap.is_read_only());
        assert!(Usage::Locked { pid: None, program: None, shared: true }.is_read_only());
    }

    #[test]
    fn nobody_uses_a_fresh_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(usage(file.path()).unwrap(), None);
        assert!(matches!(usage("/nonexistent/volume"), Err(Error::Open { .. })));
    }
}
