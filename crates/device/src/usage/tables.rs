//! The kernel's tables of mounts, loop devices, locks and swap, as far as they tell who uses what.
//!
//! Formats: `proc_pid_mountinfo(5)`, `proc_locks(5)`, `proc_swaps(5)`. A line that is not as
//! described is passed over; a table that is missing is empty.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::Subject;
use crate::ioctl;
use crate::sysfs::DevNr;

/// All tables, read one after the other.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub mounts: Vec<Mount>,
    pub loops: Vec<Loop>,
    pub locks: Vec<Lock>,
    pub swaps: Vec<Subject>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Device of its files.
    pub dev: DevNr,
    /// The block device it names as its source, where that differs (btrfs).
    pub source: Option<DevNr>,
    pub at: PathBuf,
    /// Whether the file system, and not this mount alone, is read-only.
    pub read_only: bool,
}

impl Mount {
    pub fn is_of(&self, dev: DevNr) -> bool {
        self.dev == dev || self.source == Some(dev)
    }
}

/// A loop device with a file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loop {
    pub number: u32,
    pub dev: DevNr,
    /// `None` where it cannot be known: the driver may not be asked, and the file's name leads
    /// nowhere.
    pub backing: Option<Subject>,
    pub read_only: bool,
    /// It goes when the last who has it open closes it.
    pub autoclear: bool,
}

impl Loop {
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }
}

/// A whole-file lock (`flock`) that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lock {
    pub dev: DevNr,
    pub ino: u64,
    /// `None` for a process outside our view.
    pub pid: Option<u32>,
    pub shared: bool,
}

impl Tables {
    /// Reads the tables of this system. Errors: a table is there and cannot be read.
    pub fn read() -> io::Result<Self> {
        let mounts = parse_mounts(&table("/proc/self/mountinfo")?, |source| match Subject::at(source) {
            Some(Subject::Block(dev)) => Some(dev),
            _ => None,
        });
        let swaps = parse_swaps(&table("/proc/swaps")?).iter().filter_map(|p| Subject::at(p)).collect();
        Ok(Tables { mounts, loops: read_loops()?, locks: parse_locks(&table("/proc/locks")?), swaps })
    }
}

impl Subject {
    fn at(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().map(|stat| Subject::of(&stat))
    }
}

/// Reads a table in pieces as large as the kernel gives: within one it is consistent, between two
/// lines may move and be missed.
fn table(path: &str) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        other => other?,
    };
    let (mut text, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(text),
            Ok(n) => text.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The name of a running program.
pub(super) fn program(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii()).into_owned())
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b' ').filter(|f| !f.is_empty()).collect())
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw`. `block` says which block device
/// a path is.
fn parse_mounts(text: &[u8], block: impl Fn(&Path) -> Option<DevNr>) -> Vec<Mount> {
    let mount = |fields: Vec<&[u8]>| {
        let dash = fields.iter().position(|f| *f == b"-")?;
        let (kind, source, options) =
            (*fields.get(dash + 1)?, unescape(fields.get(dash + 2)?), fields.get(dash + 3)?);
        // Whoever mounts with FUSE names any source; only fuseblk's is checked by the kernel, and
        // that one has the device's number.
        let trusted = !kind.starts_with(b"fuse") && source.starts_with("/dev");
        Some(Mount {
            dev: DevNr::parse(std::str::from_utf8(fields.get(2)?).ok()?)?,
            source: if trusted { block(&source) } else { None },
            at: unescape(fields.get(4)?),
            read_only: options.split(|b| *b == b',').any(|o| o == b"ro"),
        })
    };
    lines(text).filter_map(mount).collect()
}

/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:56789 0 EOF`, the device in hexadecimal; a process that
/// waits has `->` in the second column.
fn parse_locks(text: &[u8]) -> Vec<Lock> {
    let lock = |fields: Vec<&[u8]>| {
        let fields: Vec<&str> = fields.iter().map_while(|f| std::str::from_utf8(f).ok()).collect();
        if fields.get(1) != Some(&"FLOCK") {
            return None;
        }
        let mut place = fields.get(5)?.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        Some(Lock {
            dev: DevNr { major, minor },
            ino: place.next()?.parse().ok()?,
            pid: fields.get(4)?.parse().ok().filter(|pid| *pid != 0),
            shared: *fields.get(3)? == "READ",
        })
    };
    lines(text).filter_map(lock).collect()
}

/// A heading, then `/dev/sda2   partition   8388604   0   -2`.
fn parse_swaps(text: &[u8]) -> Vec<PathBuf> {
    let path = |line: &[u8]| {
        let end = line.iter().position(|b| b.is_ascii_whitespace())?;
        line.starts_with(b"/").then(|| unescape(&line[..end]))
    };
    text.split(|b| *b == b'\n').filter_map(path).collect()
}

/// Undoes the tables' `\040` for a blank and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

fn read_loops() -> io::Result<Vec<Loop>> {
    let entries = match fs::read_dir("/sys/block") {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut loops: Vec<Loop> = entries.flatten().filter_map(|e| read_loop(&e.path())).collect();
    loops.sort_by_key(|l| l.number);
    Ok(loops)
}

/// One entry of `/sys/block`; `None` where it is no loop device or has no file behind it.
fn read_loop(dir: &Path) -> Option<Loop> {
    let number = dir.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()?;
    let name = fs::read(dir.join("loop/backing_file")).ok()?;
    let dev = DevNr::parse(&fs::read_to_string(dir.join("dev")).ok()?)?;
    let is_set = |name: &str| fs::read(dir.join(name)).is_ok_and(|value| value.trim_ascii() == b"1");
    let (read_only, autoclear) = (is_set("ro"), is_set("loop/autoclear"));
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    // Asking the driver means opening the device, which delays a detachment under way: only where
    // the name leads nowhere, as that of a file in another mount namespace.
    let backing = Subject::at(Path::new(OsStr::from_bytes(name))).or_else(|| ask_loop(number, dev));
    Some(Loop { number, dev, backing, read_only, autoclear })
}

/// Asks the driver what backs the loop device; `None` where we may not.
fn ask_loop(number: u32, dev: DevNr) -> Option<Subject> {
    let fd = rustix::fs::open(
        format!("/dev/loop{number}"),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || DevNr::of(stat.st_rdev) != dev {
        return None;
    }
    let backing = ioctl::loop_backing(&fd).ok().flatten()?;
    // A file has no device number of its own, unless it is a device.
    Some(match backing.rdev {
        DevNr { major: 0, minor: 0 } => Subject::File { dev: backing.dev, ino: backing.ino },
        rdev => Subject::Block(rdev),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn nr(major: u32, minor: u32) -> DevNr {
        DevNr { major, minor }
    }

    #[test]
    fn mounts() {
        let text = b"\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 35 7:3 / /mnt/a\\040b rw,noatime shared:1 master:2 - fuseblk /dev/loop3 ro,user_id=0
40 27 0:45 /@ /data rw - btrfs /dev/sdb1 rw
41 27 0:46 / /home/x/m rw - fuse.any /dev/sdb1 rw
42 27 0:47 / /t rw - tmpfs none rw
nonsense
43 27 bad / /t rw - tmpfs none rw
44 27 0:48 / /unfinished rw - tmpfs";
        let asked = std::cell::RefCell::new(Vec::new());
        let mounts = parse_mounts(text, |p| {
            asked.borrow_mut().push(p.to_owned());
            (p == Path::new("/dev/sdb1")).then_some(nr(8, 17))
        });
        let at: Vec<_> = mounts.iter().map(|m| m.at.to_str().unwrap()).collect();
        assert_eq!(at, ["/", "/mnt/a b", "/data", "/home/x/m", "/t"]);
        assert!(mounts[0].is_of(nr(254, 0)) && !mounts[0].read_only);
        assert!(mounts[1].is_of(nr(7, 3)) && mounts[1].read_only);
        assert!(mounts[2].is_of(nr(8, 17)));
        assert!(!mounts[3].is_of(nr(8, 17)), "anybody can say so");
        assert!(asked.borrow().iter().all(|p| p != Path::new("none")));
    }

    #[test]
    fn locks() {
        let text = b"\
1: POSIX  ADVISORY  WRITE 12 fe:00:99 0 EOF
2: FLOCK  ADVISORY  WRITE 1234 fe:10:56789 0 EOF
2: -> FLOCK  ADVISORY  WRITE 1235 fe:10:56789 0 EOF
3: FLOCK  ADVISORY  READ 0 00:2a:5 0 EOF
4: FLOCK  ADVISORY
";
        let expected = [
            Lock { dev: nr(254, 16), ino: 56789, pid: Some(1234), shared: false },
            Lock { dev: nr(0, 42), ino: 5, pid: None, shared: true },
        ];
        assert_eq!(parse_locks(text), expected);
    }

    #[test]
    fn swaps() {
        let text = b"Filename\t\t\t\tType\t\tSize\n/dev/zram0     partition 100 0 -2\n/a\\040b\tfile\t1\n";
        assert_eq!(parse_swaps(text), [PathBuf::from("/dev/zram0"), PathBuf::from("/a b")]);
    }

    #[test]
    fn escapes() {
        for (escaped, plain) in [("a\\134b", "a\\b"), ("a\\04", "a\\04"), ("\\999", "\\999"), ("", "")] {
            assert_eq!(unescape(escaped.as_bytes()), PathBuf::from(plain));
        }
    }

    #[test]
    fn this_system_has_a_root() {
        let tables = Tables::read().unwrap();
        assert!(tables.mounts.iter().any(|m| m.at == Path::new("/")));
    }
}
