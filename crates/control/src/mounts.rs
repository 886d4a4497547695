//! Mounts of ours, from `/proc/self/mountinfo`. Nothing mounted is touched, so that it works where
//! a daemon hangs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::{ControlError, Kind, Result};

/// A mounted directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub dir: PathBuf,
    /// Such as `fuseblk.silt`.
    pub fs_type: String,
    /// The volume, as who mounted it named it.
    pub source: PathBuf,
    /// Who mounted it, by the kernel's word.
    pub uid: Option<u32>,
}

impl Mount {
    /// Whether a daemon of ours serves it.
    pub fn is_ours(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse.silt" | "fuseblk.silt")
    }
}

/// All mounts, in the order they were made; of two on one place the later one is seen.
pub fn table() -> Result<Vec<Mount>> {
    let bytes = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| ControlError::io("cannot read the table of mounts", &e))?;
    Ok(bytes.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The mount that holds `path`: the one seen at its closest parent. Symbolic links are followed up
/// to the last name, and there too unless the path as written is a mount point.
pub fn holding(path: &Path) -> Result<Option<Mount>> {
    let table = table()?;
    let written = locate(path)?;
    if let Some(m) = table.iter().rfind(|m| m.dir == written) {
        return Ok(Some(m.clone()));
    }
    let path = path.canonicalize().map_err(|e| ControlError::io(path.display(), &e))?;
    let depth = |m: &&Mount| m.dir.components().count();
    let best = table.iter().filter(|m| path.starts_with(&m.dir)).map(|m| depth(&m)).max();
    Ok(best.and_then(|best| table.iter().rfind(|m| path.starts_with(&m.dir) && depth(m) == best).cloned()))
}

/// The absolute form of a path whose last name is not looked at.
pub fn locate(path: &Path) -> Result<PathBuf> {
    let fail = |e: std::io::Error| ControlError::io(path.display(), &e);
    let absolute = std::path::absolute(path).map_err(fail)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(fail)?.join(name)),
        _ => absolute.canonicalize().map_err(fail),
    }
}

/// Mounts of ours.
pub fn ours() -> Result<Vec<Mount>> {
    Ok(table()?.into_iter().filter(Mount::is_ours).collect())
}

/// For errors: the kernel's own driver has it.
pub(crate) fn kernels(mount: &Mount) -> ControlError {
    ControlError::new(
        Kind::Unavailable,
        format!("{} is mounted by the kernel's nilfs2 driver, not by silt", mount.dir.display()),
    )
    .hint("use nilfs-utils there, or unmount it first")
}

/// A line: `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source options`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let dir = unescape(fields.nth(4)?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    let uid = options.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
    Some(Mount { dir: PathBuf::from(dir), fs_type, source: PathBuf::from(source), uid })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
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

    #[test]
    fn lines_are_parsed() {
        let line = br"41 27 0:38 / /mnt/a\040b rw,nosuid shared:7 - fuse.silt /v\134x.img rw,user_id=1000,group_id=5";
        let m = parse(line).unwrap();
        assert_eq!(m.dir, Path::new("/mnt/a b"));
        assert_eq!((m.source.to_str(), m.uid), (Some("/v\\x.img"), Some(1000)));
        assert!(m.is_ours());
        assert!(!parse(b"41 27 7:3 / /m rw - nilfs2 /dev/loop3 rw").unwrap().is_ours());
        for line in ["", "1 2 3", "1 2 3 4 5 6 7"] {
            assert_eq!(parse(line.as_bytes()), None);
        }
    }

    #[test]
    fn the_closest_mount_holds_a_path() {
        assert_eq!(holding(Path::new("/proc/self/status")).unwrap().unwrap().dir, Path::new("/proc"));
        assert_eq!(holding(Path::new("/proc")).unwrap().unwrap().dir, Path::new("/proc"));
        assert!(holding(Path::new("/nonexistent/x/y")).is_err());
    }
}
