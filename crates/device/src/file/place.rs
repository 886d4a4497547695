//! The space that the file system below an image has, keeps for it, and gets back.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, IFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{FileDevice, Kind};
use crate::{Allocation, Operation, Result, ioctl};

/// Hosts that write what is allocated in place, by the magic numbers of their file systems: ext2 to ext4, XFS, tmpfs. Others,
/// as btrfs, take new space for what is written over.
const IN_PLACE: [u32; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
/// Those that say that they hold space and do not: ZFS.
const PRETENDING: [u32; 1] = [0x2fc1_2fc1];

impl FileDevice {
    /// Which file system the host is.
    fn magic(&self) -> u32 {
        rustix::fs::fstatfs(&self.main).map_or(0, |host| u32::try_from(host.f_type).unwrap_or(0))
    }

    /// What of a range a file system has no place for yet, which may be what it has to be asked for: XFS reckons with all that is
    /// asked for, whether or not it is there. And whether some of the rest belongs to another file, too. Where it does not tell,
    /// all of it.
    fn gaps(&self, offset: u64, end: u64) -> (Vec<Range<u64>>, bool) {
        let (mut gaps, mut shared, mut at) = (Vec::new(), false, offset);
        while at < end {
            let Ok(mapped) = ioctl::mapped(&self.main, at, end) else {
                gaps.clear();
                at = offset;
                break;
            };
            let before = at;
            for extent in mapped {
                if extent.start > at && at < end {
                    gaps.push(at..extent.start.min(end));
                }
                shared |= extent.shared;
                at = at.max(extent.end);
            }
            // The end of the file, or nothing that leads on.
            if at == before {
                break;
            }
        }
        if at < end {
            gaps.push(at..end);
        }
        (gaps, shared)
    }

    /// Gives the space of a range back to the host or the device below.
    pub(super) fn punch(&self, offset: u64, len: u64) -> std::result::Result<(), Errno> {
        match self.kind {
            Kind::Image => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                retry_on_intr(|| rustix::fs::fallocate(&self.main, flags, offset, len))
            }
            Kind::Block => {
                // Only whole logical blocks can go; the rest stays, as it may.
                let unit = u64::from(self.capabilities.logical_block.max(1));
                let from = offset.next_multiple_of(unit);
                let to = (offset + len) / unit * unit;
                if from >= to {
                    return Ok(());
                }
                retry_on_intr(|| ioctl::discard(&self.main, from, to - from))
            }
        }
    }

    /// Bytes that the host has left; `None` for a block device, and also for an image that is allocated throughout: its writes need no new space (on a
    /// file system that writes in place).
    pub(super) fn host_free(&self) -> Option<u64> {
        if self.kind == Kind::Block {
            return None;
        }
        let mut found = None;
        self.shorter_of(|| {
            found = rustix::fs::fstat(&self.main).ok();
            found.as_ref().and_then(|stat| u64::try_from(stat.st_size).ok())
        });
        let stat = found?;
        let allocated = u64::try_from(stat.st_blocks).ok()?.saturating_mul(512);
        if allocated >= u64::try_from(stat.st_size).ok()? {
            return None;
        }
        let host = rustix::fs::fstatvfs(&self.main).ok()?;
        Some(host.f_bavail.saturating_mul(host.f_frsize))
    }

    /// Has the host settle what was given back to it.
    pub(super) fn settle_host(&self) {
        if self.kind == Kind::Image && !IN_PLACE.contains(&self.magic()) {
            // Such hosts keep what their last transaction refers to.
            let _ = rustix::fs::syncfs(&self.main);
        }
    }

    /// Has the host keep space for a range.
    pub(super) fn allocate_on_host(&self, offset: u64, len: u64) -> Result<Allocation> {
        if self.kind == Kind::Block || len == 0 || self.lacks_allocate.load(Ordering::Relaxed) {
            return Ok(Allocation::Unknown);
        }
        let magic = self.magic();
        let lacks = || {
            self.lacks_allocate.store(true, Ordering::Relaxed);
            Ok(Allocation::Unknown)
        };
        if PRETENDING.contains(&magic) {
            return lacks();
        }
        let not_copied = || rustix::fs::ioctl_getflags(&self.main).is_ok_and(|f| f.contains(IFlags::NOCOW));
        let in_place = IN_PLACE.contains(&magic) || not_copied();
        let (gaps, shared) = self.gaps(offset, offset + len);
        let ask =
            |at, len| retry_on_intr(|| rustix::fs::fallocate(&self.main, FallocateFlags::KEEP_SIZE, at, len));
        for gap in gaps {
            let (at, len) = (gap.start, gap.end - gap.start);
            let asked = match ask(at, len) {
                // What was discarded just now may be all there is.
                Err(Errno::NOSPC) if !in_place => {
                    self.settle_host();
                    ask(at, len)
                }
                asked => asked,
            };
            match asked {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return lacks(),
                Err(e) => return Err(self.failed(Operation::Allocate, offset, len, e)),
            }
        }
        Ok(if in_place && !shared { Allocation::InPlace } else { Allocation::Once })
    }
}
