//! Looking at a whole tree.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};

use super::{Errno, Look, Moments, PathTarget, ioctl, read, sys};
use crate::hash::Digest;
use crate::manifest::{Body, Columns, Entry, Manifest, Time};
use crate::path::TreePath;
use crate::target::{Outcome, Reply};

/// The names in a directory, without `.` and `..`, in the order in which they come.
pub(super) fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// The attributes of `path` as `lstat` gives them; flags, generation and content are left out.
fn attributes(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: TreePath,
) -> rustix::io::Result<(Entry, FileType, (u64, u64))> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let time = |sec: i64, nsec: u64| Time { sec, nsec: u32::try_from(nsec).unwrap_or(u32::MAX) };
    let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    let body = match kind {
        FileType::RegularFile => Body::Data(Digest::default()),
        FileType::Symlink => Body::Target(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes()),
        _ => Body::Nothing,
    };
    let rdev = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let entry = Entry {
        path,
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).ok(),
        mtime: Some(time(stat.st_mtime, stat.st_mtime_nsec)),
        ctime: Some(time(stat.st_ctime, stat.st_ctime_nsec)),
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        rdev: if device { rdev } else { (0, 0) },
        blocks: u64::try_from(stat.st_blocks).ok(),
        flags: None,
        ino: Some(stat.st_ino),
        generation: None,
        same_as: None,
        body,
    };
    Ok((entry, kind, (stat.st_dev, stat.st_ino)))
}

impl<M: Moments> PathTarget<M> {
    pub(super) fn stat(&self, path: &TreePath) -> Outcome {
        let root = self.root()?;
        let (mut entry, kind, _) = attributes(root, path.for_syscall(), path.clone()).map_err(sys)?;
        if matches!(kind, FileType::RegularFile | FileType::Directory) && self.caps.flags != 0 {
            let fd = self.open(path, OFlags::RDONLY, 0)?;
            entry.flags = Some(ioctl::flags(fd.as_fd()).map_err(sys)? & self.caps.flags);
        }
        Ok(Reply::Stat(Box::new(entry)))
    }
}

/// Walks the tree; the error is a sentence that names the place.
pub(super) fn manifest(root: BorrowedFd<'_>, look: &Look<'_>) -> Result<Manifest, String> {
    let (columns, able) = (look.columns, look.flags);
    let mut manifest = Manifest::new();
    let mut todo = vec![TreePath::root()];
    let place = |path: &TreePath, what: String| format!("{path}: {what}");
    let open = |path: &TreePath, flags: OFlags| {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(root, path.for_syscall(), flags, Mode::empty())
            .map_err(|e| place(path, format!("opening: {e}")))
    };
    let (top, _, top_key) = attributes(root, b".", TreePath::root()).map_err(|e| e.to_string())?;
    let mut ids = std::collections::HashMap::from([(TreePath::root(), top_key)]);
    manifest.insert(Entry { ..top });
    let mut buffer = Vec::new();
    // The content of a file with many names is read once.
    let mut known = std::collections::HashMap::new();
    while let Some(dir_path) = todo.pop() {
        let dir = open(&dir_path, OFlags::DIRECTORY)?;
        if columns.flags || columns.generation {
            let mut entry = manifest.get(&dir_path).cloned().ok_or("the directory went away")?;
            extra(dir.as_fd(), &mut entry, columns, able).map_err(|e| place(&dir_path, e))?;
            manifest.insert(entry);
        }
        for name in names(dir.as_fd()).map_err(|e| place(&dir_path, format!("listing: {e}")))? {
            let path = dir_path.join(&name);
            let (mut entry, kind, key) =
                attributes(dir.as_fd(), &name, path.clone()).map_err(|e| place(&path, e.to_string()))?;
            match kind {
                FileType::Directory => todo.push(path.clone()),
                FileType::RegularFile => {
                    let seen = known.get(&key).filter(|_| entry.nlink > 1);
                    let (body, flags, generation) = match seen {
                        Some(seen) => Clone::clone(seen),
                        None => {
                            let fd = open(&path, OFlags::empty())?;
                            extra(fd.as_fd(), &mut entry, columns, able).map_err(|e| place(&path, e))?;
                            if columns.data {
                                let size = entry.size.unwrap_or(0);
                                let digest = read::digest(fd.as_fd(), size, look.probes, &mut buffer);
                                entry.body = Body::Data(digest.map_err(|e| place(&path, e))?);
                            }
                            (entry.body.clone(), entry.flags, entry.generation)
                        }
                    };
                    if entry.nlink > 1 {
                        known.insert(key, (body.clone(), flags, generation));
                    }
                    (entry.body, entry.flags, entry.generation) = (body, flags, generation);
                }
                _ => {}
            }
            ids.insert(path, key);
            manifest.insert(entry);
        }
    }
    manifest.link_names(|entry| ids.get(&entry.path).copied());
    Ok(manifest)
}

/// Flags and generation, which only an open descriptor tells.
fn extra(fd: BorrowedFd<'_>, entry: &mut Entry, columns: Columns, able: u32) -> Result<(), String> {
    if columns.flags && able != 0 {
        let flags = ioctl::flags(fd).map_err(|e| format!("flags: {e}"))?;
        entry.flags = Some(flags & able);
    }
    if columns.generation {
        entry.generation = match ioctl::generation(fd) {
            Ok(generation) => Some(generation),
            Err(e) if matches!(sys(e), Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS) => None,
            Err(e) => return Err(format!("generation: {e}")),
        };
    }
    Ok(())
}
