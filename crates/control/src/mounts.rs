//! Mounts of ours, by the kernel's table. Nothing mounted is touched, so that it works where a
//! daemon hangs.

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
    /// The kernel's number of it: that of another place where the same is to be seen is the same.
    pub connection: u64,
}

impl Mount {
    /// Whether a daemon of ours serves it.
    pub fn is_ours(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse.silt" | "fuseblk.silt")
    }

    /// Whether root or this user says what its source is: whoever mounts a file system of his own names any.
    pub fn names_its_source(&self) -> bool {
        self.uid.is_none_or(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
    }
}

impl From<silt_fuse::MountEntry> for Mount {
    fn from(entry: silt_fuse::MountEntry) -> Self {
        Mount {
            uid: entry.user_id(),
            connection: entry.connection(),
            dir: entry.mount_point,
            fs_type: entry.fs_type,
            source: PathBuf::from(entry.source),
        }
    }
}

/// All mounts, in the order they were made; of two on one place the later one is seen.
pub fn table() -> Result<Vec<Mount>> {
    let entries = silt_fuse::mounts().map_err(|e| ControlError::io("cannot read the table of mounts", &e))?;
    Ok(entries.into_iter().map(Mount::from).collect())
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

/// Whether something is mounted on `path` as it is written.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    let Ok(written) = std::path::absolute(path) else { return Ok(false) };
    Ok(table()?.iter().any(|m| m.dir == written))
}

/// The absolute form of a path whose last name is not looked at.
pub fn locate(path: &Path) -> Result<PathBuf> {
    silt_fuse::locate_mount(path).map_err(|e| ControlError::io(path.display(), &e))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_mount_holds_a_path() {
        assert_eq!(holding(Path::new("/proc/self/status")).unwrap().unwrap().dir, Path::new("/proc"));
        assert_eq!(holding(Path::new("/proc")).unwrap().unwrap().dir, Path::new("/proc"));
        assert!(holding(Path::new("/nonexistent/x/y")).is_err());
    }

    #[test]
    fn ours_are_told_by_their_type() {
        let mount = |fs_type: &str| Mount {
            dir: PathBuf::new(),
            fs_type: fs_type.to_owned(),
            source: PathBuf::new(),
            uid: None,
            connection: 38,
        };
        assert!(mount("fuse.silt").is_ours() && mount("fuseblk.silt").is_ours());
        assert!(!mount("nilfs2").is_ours() && !mount("fuse").is_ours());
    }

    #[test]
    fn what_others_mount_may_be_anything() {
        let own = rustix::process::geteuid().as_raw();
        let of = |uid| Mount {
            dir: PathBuf::new(),
            fs_type: "fuse.silt".to_owned(),
            source: PathBuf::from("/dev/sda1"),
            uid,
            connection: 38,
        };
        assert!([None, Some(0), Some(own)].into_iter().all(|uid| of(uid).names_its_source()));
        assert!(!of(Some(own + 4242)).names_its_source());
    }
}
