//! Where something of ours is mounted: others may move it, bind it elsewhere, unmount it or mount over it.

use super::table::seen_at;
use super::{MountEntry, Unmount, mounts, unmount};
use crate::error::{Error, Result};
use std::io;
use std::path::PathBuf;

/// A directory that was mounted on, and what the kernel knows that mount by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    /// [`MountEntry::connection`], where it could be found out.
    pub connection: Option<u64>,
}

impl Place {
    /// Unmounts it, and nothing else: where it was moved to, if it was. Where it was.
    pub fn unmount(&self, how: Unmount) -> Result<PathBuf> {
        let mut why = match self.unmount_here(how) {
            Err(why @ Error::NotMounted(_)) if self.connection.is_some() => why,
            other => return other.map(|()| self.path.clone()),
        };
        for entry in self.entries().map_err(|source| self.fail(source))?.into_iter().rev() {
            let moved = Place { path: entry.mount_point, ..*self };
            match moved.unmount_here(how) {
                Err(covered @ Error::Covered(_)) => why = covered,
                Err(Error::NotMounted(_)) => {}
                other => return other.map(|()| moved.path),
            }
        }
        Err(why)
    }

    /// Unmounts it where it was mounted, and nothing else.
    pub fn unmount_here(&self, how: Unmount) -> Result<()> {
        // What lies over it would be the kernel's choice.
        let is_seen = self.connection.is_none()
            || seen_at(&self.path)
                .map_err(|source| self.fail(source))?
                .is_some_and(|seen| self.is_own(&seen));
        if is_seen {
            unmount(&self.path, how)
        } else if self.is_mounted() {
            Err(Error::Covered(self.path.clone()))
        } else {
            Err(Error::NotMounted(self.path.clone()))
        }
    }

    fn fail(&self, source: io::Error) -> Error {
        Error::Unmount { path: self.path.clone(), source }
    }

    /// Whether it is mounted where it was, if under something else.
    pub(crate) fn is_mounted(&self) -> bool {
        self.entries().is_ok_and(|own| own.iter().any(|entry| entry.mount_point == self.path))
    }

    fn is_own(&self, entry: &MountEntry) -> bool {
        // Others have such numbers, too.
        entry.is_fuse() && Some(entry.connection()) == self.connection
    }

    /// Where the kernel's table has it, moved or bound elsewhere as well; nothing where its number is not known.
    pub fn entries(&self) -> io::Result<Vec<MountEntry>> {
        Ok(mounts()?.into_iter().filter(|entry| self.is_own(entry)).collect())
    }
}
