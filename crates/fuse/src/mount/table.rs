//! The table of mounts, from `/proc/self/mountinfo`.
//!
//! Reading it touches no mounted file system, so that it works where the daemon of one hangs.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
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
}

impl MountEntry {
    /// The number of a FUSE connection: the kernel's own form of the device number.
    pub(crate) fn connection(&self) -> u64 {
        (u64::from(self.major) << 20) | u64::from(self.minor)
    }

    /// True for `fuse`, `fuseblk` and their subtypes.
    pub fn is_fuse(&self) -> bool {
        let base = self.fs_type.split('.').next();
        matches!(base, Some("fuse" | "fuseblk"))
    }
}

/// What is mounted exactly on `path` (topmost), none if it is no mount point. The last component of the path
/// must not be a symbolic link.
pub fn find_mount(path: &Path) -> io::Result<Option<MountEntry>> {
    let path = locate(path)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse).rfind(|entry| entry.mount_point == path))
}

/// The absolute form of the path of a mount point, without touching what is mounted there.
pub(super) fn locate(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// A line: `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    Some(MountEntry {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        mount_point: PathBuf::from(mount_point),
        fs_type: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: unescape(fields.next()?),
        options: String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned(),
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
        assert_eq!(entry.mount_point, Path::new("/mnt/with blank"));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_bytes()), ("fuse.silt", &b"a\\b"[..]));
        assert_eq!((entry.connection(), entry.is_fuse()), (38, true));
        let line = br"41 27 7:3 / /m rw - fuseblk /dev/loop3 rw";
        assert_eq!(parse(line).unwrap().connection(), 7 << 20 | 3);
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
    }
}
