//! Block devices: files, block devices, memory, and wrappers that count, record and break them.
//!
//! Everything above this crate sees a [`Device`]: a flat run of bytes that can be read, written
//! (gathered), flushed and discarded. Offsets and lengths are bytes. Wrappers stack: each holds
//! an inner device and is one itself.

//!
//! - Backends: [`FileDevice`] (image files and block devices, opened with [`open`] or made with
//!   [`create_image`]), [`MemoryDevice`], and [`Hosted`], an image on a host that may be full, in memory.
//! - Wrappers: [`Counter`] counts, [`Recorder`] keeps a log of writes and flushes, [`Fault`]
//!   breaks things, [`Throttle`] takes a disk's time, [`Masked`] shows other bytes and lets nothing be written,
//!   [`Overlay`] keeps writes from what is below.
//! - [`undo`] keeps what is about to be overwritten.
//! - [`CrashStates`] makes, of a base image and a record, what a power cut may have left.
//! - [`usage()`] says who else uses a volume.

/// What the storage below a wrapper's `inner` holds space for is what it holds for the wrapper.
macro_rules! space_of_inner {
    () => {
        fn allocate(&self, offset: u64, len: u64) -> $crate::Result<$crate::Allocation> {
            self.inner.allocate(offset, len)
        }

        fn reclaim(&self) {
            self.inner.reclaim();
        }

        fn next_data(&self, offset: u64) -> Option<u64> {
            self.inner.next_data(offset)
        }

        fn forget_cached(&self) {
            self.inner.forget_cached();
        }
    };
}
pub(crate) use space_of_inner;

mod buffer;
mod counter;
mod crash;
mod error;
mod fault;
mod file;
mod gate;
mod hosted;
mod ioctl;
mod masked;
mod memory;
mod ofd;
mod open;
mod overlay;
mod random;
mod recorder;
mod sysfs;
mod throttle;
pub mod undo;
pub mod usage;

use std::ops::Range;
use std::sync::Arc;

pub use buffer::Buffer;
pub use counter::{Counter, Counts, Tally};
pub use crash::{CrashOptions, CrashState, CrashStates, Cut, Fate, Landed, Landing, Order};
pub use error::{Error, Operation, Result};
pub use fault::{Fault, Struck, Times};
pub use file::FileDevice;
pub use gate::Gate;
pub use hosted::Hosted;
pub use masked::Masked;
pub use memory::MemoryDevice;
pub use open::{Access, OpenOptions, create_image, open};
pub use overlay::Overlay;
pub use recorder::{Change, Content, Event, Outcome, Record, Recorder};
pub use throttle::{Disk, Mode, Seek, Throttle};
pub use usage::{Usage, usage, usage_except};

/// What a device says of itself; sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Smallest unit the device addresses.
    pub logical_block: u32,
    /// Smallest unit it writes without reading.
    pub physical_block: u32,
    /// Preferred size of a request, 0 where the device names none.
    pub optimal_io: u32,
    /// True for disks whose seeks cost time.
    pub rotational: bool,
    /// Whether `flush` reaches stable storage (false: it is a no-op, as in memory).
    pub flush: bool,
    /// Whether discard gives the space back.
    pub discard: bool,
    /// Requests the device works on at once.
    pub queue_depth: u32,
    /// Whether nothing may be written.
    pub read_only: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            logical_block: 512,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            flush: true,
            discard: false,
            queue_depth: 1,
            read_only: false,
        }
    }
}

/// What a small read is for. What lies around reads of one kind is of use to later ones, or is not; of another kind
/// that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Content of files.
    #[default]
    Data,
    /// Directories and symlinks.
    Names,
    /// Nodes of the maps of files.
    Maps,
    /// Tables: where blocks are, inodes, segments.
    Tables,
    /// What logs say of themselves.
    Logs,
    /// By somebody in the background: nothing around it is read, and whole pages come past the system's caches where
    /// there are any. Such a read never has those who wait for the device wait for more than itself.
    Background,
}

/// What a range is good for that the storage below was asked to hold space for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// That is no question here, or it cannot tell.
    Unknown,
    /// What was not written since it was discarded can be written, once: what is written over takes new space.
    Once,
    /// All of it can be written, and written over.
    InPlace,
}

/// A flat, byte-addressed store. All methods take `&self`: a device is shared between the log
/// writer and readers, and orders nothing between requests except through `flush`.
pub trait Device: Send + Sync {
    /// Size in bytes, as last seen.
    fn len(&self) -> u64;

    /// True when the device holds no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks the operating system for the size again (after growth) and returns it.
    fn refresh_len(&self) -> Result<u64> {
        Ok(self.len())
    }

    /// Fills `buf` from `offset`. Errors: past the end, unreadable.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Like `read_at` for a small read of a kind: a hint which others lie near.
    fn read_kind(&self, _kind: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_at(offset, buf)
    }

    /// Like `read_at` where the bytes are at hand without waiting for the medium; `Ok(false)`
    /// leaves `buf` unspecified and means: use `read_at` where waiting is allowed.
    fn read_if_cached(&self, _offset: u64, _buf: &mut [u8]) -> Result<bool> {
        Ok(false)
    }

    /// Like `read_at`, for who answers somebody with it: what is worth being read with it, for [`Device::fetch`] afterwards.
    fn read_first(&self, offset: u64, buf: &mut [u8]) -> Result<Option<Range<u64>>> {
        self.read_at(offset, buf).map(|()| None)
    }

    /// Has a range on its way into a cache of the device, where it has one.
    fn fetch(&self, _range: Range<u64>) {}

    /// Has small reads, all of `len` bytes, at these offsets, which ascend, in a cache of the device when it returns, where it
    /// has one: several at a time. Whoever reads them afterwards hears of errors.
    fn bring(&self, _offsets: &[u64], _len: usize) {}

    /// Writes the buffers one behind the other from `offset`, as few requests as possible.
    /// Not durable before a later `flush` returns. Errors: past the end, no space under a sparse
    /// file, read-only, medium. After an error any part may have been written.
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()>;

    /// Like `write_at` for what will be read again soon: where the device has a cache below it, it stays there.
    fn write_cached(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.write_at(offset, bufs)
    }

    /// Returns when every write that returned before this call is durable.
    fn flush(&self) -> Result<()>;

    /// How often a flush, or a durable write, failed so far, whoever asked for it. The system tells of writes that it could
    /// not bring to the medium once alone: who has writes of his own under way looks whether somebody else heard it. A durable
    /// write that can tell of its own place alone, since a flush before it went well and nothing was written meanwhile, is none.
    fn failed_flushes(&self) -> u64 {
        0
    }

    /// Writes one buffer durably, after everything before it is durable (flush, then FUA).
    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.flush()?;
        self.write_at(offset, &[buf])?;
        self.flush()
    }

    /// Tells the device that the range's content is no longer wanted; it may read as anything.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// What the device says of itself.
    fn capabilities(&self) -> Capabilities;

    /// Bytes by which the storage below could still grow: `None` where that is no question (a
    /// real device), the free space of the host file system for a sparse image.
    fn backing_free(&self) -> Option<u64> {
        None
    }

    /// Has the storage below hold space for a range, so that it can be written with none to spare there. What the range holds
    /// stays. Errors: no space, of which a part of the range may have some then; past the end, read-only.
    fn allocate(&self, _offset: u64, _len: u64) -> Result<Allocation> {
        Ok(Allocation::Unknown)
    }

    /// Has the storage below come to what was discarded, where it has that only some time later. It may take long.
    fn reclaim(&self) {}

    /// Has what is read from now on be what the medium holds, as far as the system lets it: after a write or a flush that failed its memory
    /// may show what is not there. What was written and waits is written first. It may take long.
    fn forget_cached(&self) {}

    /// The first byte from this one on for which the storage below holds something that was written; none where there is none,
    /// or that cannot be told.
    fn next_data(&self, _offset: u64) -> Option<u64> {
        None
    }
}

/// A device behind a pointer is that device.
macro_rules! forward {
    ($($holder:ty),*) => {$(
        impl<T: Device + ?Sized> Device for $holder {
            fn len(&self) -> u64 {
                (**self).len()
            }
            fn refresh_len(&self) -> Result<u64> {
                (**self).refresh_len()
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read_at(offset, buf)
            }
            fn read_kind(&self, kind: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read_kind(kind, offset, buf)
            }
            fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
                (**self).read_if_cached(offset, buf)
            }
            fn read_first(&self, offset: u64, buf: &mut [u8]) -> Result<Option<Range<u64>>> {
                (**self).read_first(offset, buf)
            }
            fn fetch(&self, range: Range<u64>) {
                (**self).fetch(range)
            }
            fn bring(&self, offsets: &[u64], len: usize) {
                (**self).bring(offsets, len)
            }
            fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
                (**self).write_at(offset, bufs)
            }
            fn write_cached(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
                (**self).write_cached(offset, bufs)
            }
            fn failed_flushes(&self) -> u64 {
                (**self).failed_flushes()
            }
            fn flush(&self) -> Result<()> {
                (**self).flush()
            }
            fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
                (**self).write_durably(offset, buf)
            }
            fn discard(&self, offset: u64, len: u64) -> Result<()> {
                (**self).discard(offset, len)
            }
            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }
            fn backing_free(&self) -> Option<u64> {
                (**self).backing_free()
            }
            fn allocate(&self, offset: u64, len: u64) -> Result<Allocation> {
                (**self).allocate(offset, len)
            }
            fn reclaim(&self) {
                (**self).reclaim()
            }
            fn forget_cached(&self) {
                (**self).forget_cached()
            }
            fn next_data(&self, offset: u64) -> Option<u64> {
                (**self).next_data(offset)
            }
        }
    )*};
}

forward!(Arc<T>, Box<T>, &T);

/// Refuses a range that does not lie within `size` bytes.
pub(crate) fn check_range(operation: Operation, offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { operation, offset, len, size }),
    }
}

/// Bytes in all the buffers of a gathered request.
pub(crate) fn total(bufs: &[&[u8]]) -> u64 {
    bufs.iter().map(|b| b.len() as u64).sum()
}
