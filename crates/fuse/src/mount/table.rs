//! The table of mounts, from `/proc/self/mountinfo`.
//!
//! Reading it touches no mounted file system, so that it works where the daemon of one hangs. Names are bytes:
//! any user can mount on a directory whose name is no text, and must hide no other mount by it.

use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's number of this mount: of the same file system elsewhere it is another one.
    pub id: u64,
    /// The device number of the mounted file system.
    pub major: u32,
    /// Its minor part.
    pub minor: u32,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The type, such as `fuse.silt`.
    pub fs_type: String,
    /// The source.
    pub source: OsString,
    /// The options of the file system (not those of the mount point).
    pub options: String,
    /// Whether the file system or this mount of it is read-only.
    pub read_only: bool,
}

impl MountEntry {
    /// The number of a FUSE connection: the kernel's own form of the device number. The same wherever it is to be seen, and
    /// no other's as long as it is mounted.
    pub fn connection(&self) -> u64 {
        (u64::from(self.major) << 20) | u64::from(self.minor)
    }

    /// Who mounted a FUSE file system, by the kernel's word.
    pub fn user_id(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }

    /// True for `fuse`, `fuseblk` and their subtypes.
    pub fn is_fuse(&self) -> bool {
        let base = self.fs_type.split('.').next();
        matches!(base, Some("fuse" | "fuseblk"))
    }
}

/// All mounts, in the order of the kernel's table; of two on one place the later one is seen.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// What is mounted exactly on `path` (topmost), none if it is no mount point. The last component of the path
/// must not be a symbolic link.
pub fn find_mount(path: &Path) -> io::Result<Option<MountEntry>> {
    let path = locate_mount(path)?;
    Ok(mounts()?.into_iter().rfind(|entry| entry.mount_point == path))
}

/// What is seen on `path`, none if it is no mount point or is not to be reached: unlike [`find_mount`] it is not misled by
/// what was moved there, nor by what lies over a directory above. The last component of the path must not be a symbolic link.
pub(crate) fn seen_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let id = match open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => {
            let of_descriptor = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
            of_descriptor.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok())
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(mounts()?.into_iter().find(|entry| Some(entry.id) == id && entry.mount_point == path))
}

/// The absolute form of the path of a mount point, without touching what is mounted there: the last component
/// is not looked at, symbolic links before it are followed.
pub fn locate_mount(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// A line: `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    let of_mount = fields.next()?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (fs_type, source) = (fields.next()?, fields.next()?);
    let options = fields.next().unwrap_or_default();
    let is_ro = |options: &[u8]| options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(MountEntry {
        id: id.parse().ok()?,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        mount_point: PathBuf::from(mount_point),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: unescape(source),
        options: String::from_utf8_lossy(options).into_owned(),
        read_only: is_ro(of_mount) || is_ro(options),
    })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if byte == b'\\' => {
                bytes.push(value);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn lines_are_parsed() {
        let line =
            br"41 27 0:38 / /mnt/with\040blank rw,nosuid shared:7 master:1 - fuse.silt a\134b rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.mount_point.as_path()), (41, Path::new("/mnt/with blank")));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_bytes()), ("fuse.silt", &b"a\\b"[..]));
        assert_eq!((entry.connection(), entry.is_fuse(), entry.user_id()), (38, true, Some(0)));
        let line = br"41 27 7:3 / /m rw - fuseblk /dev/loop3 rw";
        let entry = parse(line).unwrap();
        assert_eq!((entry.connection(), entry.user_id()), (7 << 20 | 3, None));
        for (line, read_only) in [
            (&b"41 27 0:38 / /m rw,nosuid - fuse.silt /v rw"[..], false),
            (b"41 27 0:38 / /m ro,nosuid - fuse.silt /v rw", true),
            (b"41 27 0:38 / /m rw,nosuid - fuse.silt /v ro,user_id=0", true),
            (b"41 27 0:38 / /m rw,errors=ro - fuse.silt /v rw", false),
        ] {
            assert_eq!(parse(line).unwrap().read_only, read_only);
        }
        let no_text = b"41 27 0:38 / /m\xff rw - fuse.silt /v\xfe rw";
        assert_eq!(parse(no_text).unwrap().mount_point.as_os_str().as_bytes(), b"/m\xff");
        for line in ["", "1 2 3", "1 2 a:b / / rw - t s o", "1 2 0:1 / /x rw"] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn escapes_at_the_end_do_no_harm() {
        assert_eq!(unescape(br"a\04"), OsString::from(r"a\04"));
        assert_eq!(unescape(br"\"), OsString::from(r"\"));
    }

    #[test]
    fn proc_is_found_and_a_plain_directory_is_not() {
        assert_eq!(find_mount(Path::new("/proc")).unwrap().unwrap().fs_type, "proc");
        assert_eq!(find_mount(Path::new("/proc/self")).unwrap(), None);
        assert_eq!(seen_at(Path::new("/proc")).unwrap().unwrap().fs_type, "proc");
        for path in ["/proc/self", "/proc/nothing", "/proc/version/nothing"] {
            assert_eq!(seen_at(Path::new(path)).unwrap(), None);
        }
    }
}
