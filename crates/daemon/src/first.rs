//! The mount that a daemon began with: the live tree, with which all else ends, or a moment of the past, which is no more
//! than those that are mounted beside it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use silt_fuse::{MountEntry, Place, Unmount};

use crate::Error;
use crate::moments::Moments;

/// Between looks whether the last moment has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// What the kernel's table has in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Ours,
    Other,
    Nowhere,
}

/// See the module.
pub struct First {
    place: Place,
    is_moment: bool,
    /// It was unmounted, and may be to be seen elsewhere still.
    unmounted: AtomicBool,
    /// The kernel has let go of it.
    gone: AtomicBool,
}

impl First {
    pub fn new(place: Place, is_moment: bool) -> Self {
        First { place, is_moment, unmounted: AtomicBool::new(false), gone: AtomicBool::new(false) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Whether it is a moment, which others may outlive.
    pub fn is_moment(&self) -> bool {
        self.is_moment
    }

    /// Whether the kernel's table has it, moved elsewhere and under something else as well: another one's in its place is
    /// `Other`, since a mount on a block device has the device's number, whoever it is. None where that cannot be told.
    pub fn seen(&self) -> Option<Seen> {
        let is_ours = |entry: &MountEntry| entry.fs_type.ends_with(".silt");
        self.place.connection?;
        let entries = self.place.entries().ok()?;
        Some(match entries.is_empty() {
            true => Seen::Nowhere,
            false if entries.iter().any(is_ours) => Seen::Ours,
            false => Seen::Other,
        })
    }

    /// Whether it is mounted where it was, as far as we have heard.
    pub fn is_there(&self) -> bool {
        !self.unmounted.load(Ordering::Relaxed) && !self.gone.load(Ordering::Relaxed)
    }

    /// Whether the kernel has let go of it and we have not heard of that yet, as at the end of every unmount. Out of sight alone it
    /// goes on while somebody uses it. None but root can tell.
    pub fn is_over(&self) -> bool {
        let ended = |number| silt_fuse::is_connected(number).is_ok_and(|is| !is);
        self.seen() == Some(Seen::Nowhere) && self.place.connection.is_some_and(ended)
    }

    /// The kernel's number of the mount, as long as it is its own; the inner one is missing where it is not known.
    pub fn connection(&self) -> Option<Option<u64>> {
        (!self.gone.load(Ordering::Relaxed)).then_some(self.place.connection)
    }

    /// The kernel has let go of it, and may give its number to another one.
    pub fn let_go(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Unmounts it; a moment that is not there any more is well.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.is_moment && !self.is_there() {
            return Ok(());
        }
        self.place.unmount(how)?;
        self.unmounted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Once it has ended: waits for the moments that outlive it.
    pub fn wait_for(&self, moments: &Moments) {
        while self.is_moment && !moments.are_over() {
            sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the end of an unmount the table does not have it any more, and no more has the kernel: nobody uses it still.
    #[test]
    fn what_the_kernel_has_no_more_is_over() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = Place { path: "/nowhere".into(), connection: Some(u64::MAX) };
        let first = First::new(place, false);
        assert_eq!(first.seen(), Some(Seen::Nowhere));
        assert!(first.is_over() && first.is_there(), "and nobody has told us");
        let unknown = First::new(Place { path: "/nowhere".into(), connection: None }, false);
        assert!(!unknown.is_over());
    }
}
