//! Attributes of what was just made under a name and cannot be opened without effects: links, devices, FIFOs and sockets.
//!
//! Whoever owns the destination may have put something else under that name since, or a link that leads away: then nothing is
//! changed.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chmod, chownat, fstat, openat};
use rustix::io::Errno;

/// Who something belongs to; none: as it is.
type Owner = (Option<Uid>, Option<Gid>);

/// Sets owner and mode of what was made as `name`. ESTALE: it is something else by now.
pub(super) fn set_owner_and_mode(
    dir: &OwnedFd,
    name: &[u8],
    kind: FileType,
    owner: Option<Owner>,
    mode: Option<Mode>,
) -> Result<(), Errno> {
    let made = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&made)?;
    if FileType::from_raw_mode(found.st_mode) != kind || found.st_nlink > 1 {
        return Err(Errno::STALE);
    }
    if let Some((uid, gid)) = owner {
        chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    match mode {
        // This leads to what is open, whatever the name leads to.
        Some(mode) => chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), mode),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn only_what_was_made_is_changed() {
        let place = tempfile::tempdir().unwrap();
        let dir = OwnedFd::from(std::fs::File::open(place.path()).unwrap());
        let of = |name: &str| std::fs::symlink_metadata(place.path().join(name)).unwrap();
        let set = |name: &str, mode| set_owner_and_mode(&dir, name.as_bytes(), FileType::Fifo, None, mode);
        let mode = Some(Mode::from_raw_mode(0o4751));
        mknodat(&dir, "made", FileType::Fifo, Mode::RUSR, 0).unwrap();
        set("made", mode).unwrap();
        assert_eq!(of("made").mode() & 0o7777, 0o4751);

        std::fs::write(place.path().join("file"), "").unwrap();
        std::fs::set_permissions(place.path().join("file"), PermissionsExt::from_mode(0o600)).unwrap();
        mknodat(&dir, "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink("file", place.path().join("to-file")).unwrap();
        symlink("fifo", place.path().join("to-fifo")).unwrap();
        std::fs::hard_link(place.path().join("fifo"), place.path().join("again")).unwrap();
        for name in ["file", "to-file", "to-fifo", "again"] {
            assert_eq!(set(name, mode), Err(Errno::STALE), "{name}");
        }
        assert_eq!(set("none", mode), Err(Errno::NOENT));
        assert_eq!((of("file").mode() & 0o7777, of("fifo").mode() & 0o7777), (0o600, 0o400));
    }
}
