//! Image files and block devices.
//!
//! A [`FileDevice`] holds the descriptor requests go through, a second one where the page cache is
//! to be bypassed, and for a block device a third that claims it for us alone. An image is claimed
//! by a lock on the file, which goes with the first descriptor. What the system below cannot do
//! (discard, reads that do not wait, durable writes, requests past the page cache) is found out by the first request that tries,
//! and not tried again.
//!
//! After a failed `flush` the kernel may have dropped what it could not write: whatever was
//! written since the last good flush is to be written again before the next one counts.
//!
//! Locks: none across requests, except those of the direct way. The length is an atomic.

mod around;
mod direct;
mod length;
mod place;
mod streams;
mod transfer;
mod writes;

use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::sysfs::{self, DevNr};
use crate::{self as device, Allocation, Capabilities, Device, Error, Operation, Result, ioctl, total};
use around::{Around, SMALL};
use direct::Direct;
use streams::Streams;
use writes::Writes;

/// Reads that are asked for at a time: others wait for the device behind them.
const TOGETHER: usize = 32;
/// Bytes of one hint to the system to read: of a longer one it may take only as much as it reads ahead itself.
const HINT: usize = 128 << 10;

/// Reads of so many bytes go past the page cache.
const LARGE: u64 = 256 << 10;

/// Where the hint begins that covers an offset of a range.
fn hint_with(range: &Range<u64>, offset: u64) -> u64 {
    range.start + offset.saturating_sub(range.start) / HINT as u64 * HINT as u64
}

/// What kind of file a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Image,
    Block,
}

/// The descriptors of a device, as `open` made them.
pub(crate) struct Descriptors {
    /// For everything, through the page cache.
    pub main: OwnedFd,
    /// Opened with `O_DIRECT`, for everything.
    pub direct: Option<OwnedFd>,
    /// Opened with `O_DIRECT`, for large reads and for writes of whole pages.
    pub large: Option<OwnedFd>,
    /// Opened with `O_EXCL`, on a block device.
    pub claim: Option<OwnedFd>,
}

/// An image file or a block device; made by [`open`](crate::open) and
/// [`create_image`](crate::create_image).
pub struct FileDevice {
    path: PathBuf,
    kind: Kind,
    main: OwnedFd,
    direct: Option<Direct>,
    large: Option<Direct>,
    /// Of a block device, past the page cache by its own sectors: where one of them is bad.
    sectors: Option<Direct>,
    claim: Mutex<Option<OwnedFd>>,
    len: AtomicU64,
    /// Others cut it off there, at the lowest place that was found.
    cut_at: AtomicU64,
    capabilities: Capabilities,
    around: Around,
    streams: Streams,
    /// What the system below turned out not to do.
    lacks_nowait: AtomicBool,
    lacks_dsync: AtomicBool,
    lacks_discard: AtomicBool,
    lacks_large: AtomicBool,
    lacks_allocate: AtomicBool,
    /// How many failed; held while one is done, so that nobody finds the system's answer taken and the count as before.
    failed_flushes: Mutex<u64>,
    /// All but durable ones.
    writes: Writes,
}

impl FileDevice {
    pub(crate) fn new(path: &Path, kind: Kind, fds: Descriptors, read_only: bool) -> Result<Self> {
        let capabilities = capabilities(path, kind, &fds.main, read_only)?;
        // On an image, whole pages: what goes past the page cache then shares none with the rest.
        let align = match kind {
            Kind::Block => capabilities.logical_block,
            Kind::Image => direct_unit(&fds.main).max(4096),
        };
        // Without it, what lies in one page with a bad sector cannot be read or written.
        let sectors = fds.large.as_ref().filter(|_| kind == Kind::Block).and_then(|fd| fd.try_clone().ok());
        let device = FileDevice {
            path: path.to_owned(),
            kind,
            direct: fds.direct.map(|fd| Direct::new(fd, align)),
            sectors: sectors.map(|fd| Direct::new(fd, capabilities.logical_block)),
            large: fds.large.map(|fd| {
                let large = Direct::new(fd, align.max(page_size()));
                large.with_writers()
            }),
            main: fds.main,
            claim: Mutex::new(fds.claim),
            len: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            capabilities,
            around: Around::default(),
            streams: Streams::default(),
            lacks_nowait: AtomicBool::new(false),
            lacks_dsync: AtomicBool::new(false),
            lacks_discard: AtomicBool::new(false),
            lacks_large: AtomicBool::new(false),
            lacks_allocate: AtomicBool::new(false),
            failed_flushes: Mutex::new(0),
            writes: Writes::default(),
        };
        device.refresh_len()?;
        Ok(device)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to what is open as long as it is, whatever the one it was opened by leads to by now: who may write to
    /// the directory of an image can put something else there.
    pub fn open_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.main.as_raw_fd()))
    }

    /// True for a block device, false for an image file.
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::Block
    }

    /// Gives up the exclusive claim on a block device, for the moment when a mount that claims it
    /// itself (`fuseblk`) takes over. Nothing to do on an image, whose lock stays.
    pub fn release_claim(&self) {
        *self.claim.lock() = None;
    }

    /// A block device is for others from here on: nothing more will be written. Nothing to do on an image.
    pub fn let_go(&self) {
        if self.kind == Kind::Block {
            self.release_claim();
            // Its end gives it back in any case.
            let _ = crate::ofd::release(&self.main);
        }
    }

    /// Claims a block device again where nobody has it: whether we have. Waits for nobody, and looks at nothing but the
    /// device. True on an image. Errors: it cannot be opened.
    pub fn try_claim(&self) -> Result<bool> {
        let mut claim = self.claim.lock();
        if self.kind == Kind::Block && claim.is_none() {
            *claim = crate::open::claim_now(&self.path, &self.main)?;
        }
        Ok(self.kind == Kind::Image || claim.is_some())
    }

    /// Claims a block device again after [`FileDevice::release_claim`], where nobody else took over.
    /// Nothing to do on an image. Errors: [`Error::Busy`] when somebody did.
    pub fn claim_again(&self) -> Result<()> {
        let mut claim = self.claim.lock();
        if self.kind == Kind::Block && claim.is_none() {
            *claim = crate::open::claim(&self.path, &self.main)?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bufs: &[&[u8]], flags: ReadWriteFlags) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.write_at(self.main.as_fd(), self.len(), offset, bufs, flags),
            None => match &self.large {
                // What is read again soon is in the caches above: the page cache would cost a copy, and time to
                // find its pages, those that a flush has to write first, which somebody waits for.
                Some(large)
                    if large.takes_whole(offset, total(bufs))
                        && !self.lacks_large.load(Ordering::Relaxed) =>
                {
                    match large.write_at(self.main.as_fd(), self.len(), offset, bufs, flags) {
                        Err(e) if flags.is_empty() && self.does_without_large(&e) => {
                            transfer::write_at(self.main.as_fd(), offset, bufs, flags)
                        }
                        result => result,
                    }
                }
                _ => self.write_through_the_cache(offset, bufs, flags),
            },
        }
    }

    /// One that is to be durable goes beside the cache only after its caller has looked at the error, which may tell of others.
    fn write_through_the_cache(&self, offset: u64, bufs: &[&[u8]], flags: ReadWriteFlags) -> io::Result<()> {
        transfer::write_at(self.main.as_fd(), offset, bufs, flags).or_else(|e| match flags.is_empty() {
            true => self.write_beside_the_cache(e, offset, bufs, flags),
            false => Err(e),
        })
    }

    /// The system reads what it does not have of a page before it changes a part of it. Past its cache a bad sector beside
    /// what is written, or below it, is not read, and one that is written whole is good again.
    fn write_beside_the_cache(
        &self,
        e: io::Error,
        offset: u64,
        bufs: &[&[u8]],
        flags: ReadWriteFlags,
    ) -> io::Result<()> {
        let sectors = self.sectors.as_ref().filter(|s| is_io(&e) && s.takes_whole(offset, total(bufs)));
        let Some(sectors) = sectors else { return Err(e) };
        sectors.write_at(self.main.as_fd(), self.len(), offset, bufs, flags).map_err(|_| e)
    }

    /// Whether a request failed because the system below cannot do it past the page cache; none will be tried again.
    fn does_without_large(&self, e: &io::Error) -> bool {
        // What ends within a unit is read in part, and then from where no such request can begin.
        let lacks = lacks_flag(e) && self.shorter().is_none();
        if lacks {
            self.lacks_large.store(true, Ordering::Relaxed);
        }
        lacks
    }

    /// The system reads a block device in runs of pages, and where one of them fails, says so of all, again and again.
    /// Past its cache a bad place costs what it takes and no more.
    fn read_beside_the_cache(&self, e: io::Error, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let Some(sectors) = self.sectors.as_ref().filter(|_| is_io(&e)) else { return Err(e) };
        // If that cannot be had, the first error counts.
        sectors.read_at(self.main.as_fd(), self.len(), offset, buf).map_err(|_| e)
    }

    /// Has the system read a range into the page cache, without waiting, first what lies from `first` on.
    fn fetch_from(&self, range: Range<u64>, first: u64) {
        let first = hint_with(&range, first);
        self.hint(first..range.end);
        self.hint(range.start..first);
    }

    fn hint(&self, range: Range<u64>) {
        for from in range.clone().step_by(HINT) {
            let len = NonZeroU64::new((range.end - from).min(HINT as u64));
            // The read itself tells of errors.
            let _ = rustix::fs::fadvise(&self.main, from, len, Advice::WillNeed);
        }
    }
}

/// What goes past the page cache beside what goes through it shares no page with that.
fn page_size() -> u32 {
    u32::try_from(rustix::param::page_size()).unwrap_or(1 << 16).max(4096)
}

/// Unit in bytes of requests past the page cache that the file system below states, or 0.
fn direct_unit(fd: &OwnedFd) -> u32 {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .map_or(0, |s| if s.stx_mask & StatxFlags::DIOALIGN.bits() == 0 { 0 } else { s.stx_dio_offset_align })
}

/// Asks the system what `fd` is like.
fn capabilities(path: &Path, kind: Kind, fd: &OwnedFd, read_only: bool) -> Result<Capabilities> {
    let stat = rustix::fs::fstat(fd).map_err(|e| Error::of_path(path, e))?;
    let below = DevNr::of(if kind == Kind::Block { stat.st_rdev } else { stat.st_dev });
    let queue = |attribute| sysfs::queue(below, attribute);
    let defaults = Capabilities::default();
    let depth = queue("nr_requests").and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let queue_depth = depth.unwrap_or(defaults.queue_depth);
    Ok(match kind {
        Kind::Block => {
            let asked = |e| Error::of_path(path, e);
            Capabilities {
                logical_block: rustix::fs::ioctl_blksszget(fd).map_err(asked)?,
                physical_block: rustix::fs::ioctl_blkpbszget(fd).map_err(asked)?,
                optimal_io: ioctl::optimal_io(fd).unwrap_or(0),
                rotational: ioctl::rotational(fd).unwrap_or(false),
                flush: true,
                discard: !read_only && queue("discard_max_bytes").is_some_and(|max| max > 0),
                queue_depth,
                read_only,
            }
        }
        Kind::Image => Capabilities {
            rotational: queue("rotational") == Some(1),
            discard: !read_only,
            queue_depth,
            read_only,
            ..defaults
        },
    })
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn refresh_len(&self) -> Result<u64> {
        let before = self.len();
        let len = self.length_now().map_err(|e| Error::of_path(&self.path, e))?;
        self.check_refreshed(before, len)?;
        self.len.store(len, Ordering::Release);
        Ok(len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_kind(device::Kind::default(), offset, buf)
    }

    fn read_kind(&self, kind: device::Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        self.check(Operation::Read, offset, len)?;
        let background = kind == device::Kind::Background;
        match &self.direct {
            Some(direct) => direct.read_at(self.main.as_fd(), self.len(), offset, buf),
            None => match &self.large {
                // Into the reader's own memory: the page cache would take as much again, all of it new.
                Some(large)
                    if (len >= LARGE || (background && large.takes_whole(offset, len)))
                        && !self.lacks_large.load(Ordering::Relaxed) =>
                {
                    match large.read_at(self.main.as_fd(), self.len(), offset, buf) {
                        Err(e) if self.does_without_large(&e) => {
                            transfer::read_at(self.main.as_fd(), offset, buf)
                        }
                        result => result,
                    }
                }
                _ => {
                    if buf.len() <= SMALL {
                        if self.read_if_cached(offset, buf)? {
                            return Ok(());
                        }
                        // What is fetched for those in the background, others would wait for.
                        if !background && let Some(around) = self.around.of(kind, offset, len, self.len()) {
                            self.fetch_from(around, offset);
                        }
                    } else if !background
                        && let Some(beyond) = self.streams.beyond(offset, offset + len, self.len())
                    {
                        self.hint(beyond);
                    }
                    transfer::read_at(self.main.as_fd(), offset, buf)
                        .or_else(|e| self.read_beside_the_cache(e, offset, buf))
                }
            },
        }
        .map_err(|e| self.failed(Operation::Read, offset, len, e))
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let len = buf.len() as u64;
        self.check(Operation::Read, offset, len)?;
        let large = self.large.is_some() && !self.lacks_large.load(Ordering::Relaxed);
        let past_it = self.direct.is_some() || (len >= LARGE && large);
        if past_it || self.lacks_nowait.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match transfer::read_cached(self.main.as_fd(), offset, buf) {
            Ok(all) => {
                if all && buf.len() <= SMALL {
                    self.around.found(offset);
                }
                Ok(all)
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.lacks_nowait.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(e) => Err(self.failed(Operation::Read, offset, len, e)),
        }
    }

    fn read_first(&self, offset: u64, buf: &mut [u8]) -> Result<Option<Range<u64>>> {
        let len = buf.len() as u64;
        self.check(Operation::Read, offset, len)?;
        if self.direct.is_some() || buf.len() > SMALL {
            return self.read_at(offset, buf).map(|()| None);
        }
        if self.read_if_cached(offset, buf)? {
            return Ok(None);
        }
        let around = self.around.of(device::Kind::default(), offset, len, self.len());
        if let Some(around) = &around {
            let first = hint_with(around, offset);
            self.hint(first..first.saturating_add(HINT as u64).min(around.end));
        }
        transfer::read_at(self.main.as_fd(), offset, buf)
            .or_else(|e| self.read_beside_the_cache(e, offset, buf))
            .map_err(|e| self.failed(Operation::Read, offset, len, e))?;
        Ok(around)
    }

    fn fetch(&self, range: Range<u64>) {
        if self.direct.is_none() {
            self.hint(range);
        }
    }

    fn bring(&self, offsets: &[u64], len: usize) {
        if self.direct.is_some() {
            return;
        }
        let size = len as u64;
        let mut bytes = vec![0; len];
        for some in offsets.chunks(TOGETHER) {
            let within = || some.iter().copied().filter(|at| self.check(Operation::Read, *at, size).is_ok());
            within().for_each(|at| self.hint(at..at + size));
            for at in within() {
                let _ = transfer::read_at(self.main.as_fd(), at, &mut bytes);
            }
        }
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = total(bufs);
        self.check_write(Operation::Write, offset, len)?;
        self.writes
            .of(|| self.write(offset, bufs, ReadWriteFlags::empty()))
            .map_err(|e| self.failed(Operation::Write, offset, len, e))
    }

    fn write_cached(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        if self.direct.is_some() {
            return self.write_at(offset, bufs);
        }
        let len = total(bufs);
        self.check_write(Operation::Write, offset, len)?;
        self.writes
            .of(|| self.write_through_the_cache(offset, bufs, ReadWriteFlags::empty()))
            .map_err(|e| self.failed(Operation::Write, offset, len, e))
    }

    fn flush(&self) -> Result<()> {
        if self.capabilities.read_only {
            return Ok(());
        }
        let mut failed = self.failed_flushes.lock();
        let flushed = retry_on_intr(|| rustix::fs::fdatasync(&self.main))
            .map_err(|e| Error::of_request(Operation::Flush, 0, 0, e.into()));
        let flushed = match self.kind {
            // What was written may lie behind an end that others made: a place that is not to be counted on.
            Kind::Image => flushed.and_then(|()| self.check_length(Operation::Flush, 0, 0)),
            Kind::Block => flushed,
        };
        *failed += u64::from(flushed.is_err());
        flushed
    }

    fn failed_flushes(&self) -> u64 {
        *self.failed_flushes.lock()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let len = buf.len() as u64;
        self.check_write(Operation::Write, offset, len)?;
        let before = self.writes.quiet();
        self.flush()?;
        if !self.lacks_dsync.load(Ordering::Relaxed) {
            let mut failed = self.failed_flushes.lock();
            match self.write(offset, &[buf], ReadWriteFlags::DSYNC) {
                Ok(()) => return Ok(()),
                Err(e) if lacks_flag(&e) => self.lacks_dsync.store(true, Ordering::Relaxed),
                Err(e) => {
                    // It tells of all that the system could not write: since the flush, which went well.
                    *failed += u64::from(before.is_none() || before != self.writes.quiet());
                    return self
                        .write_beside_the_cache(e, offset, &[buf], ReadWriteFlags::DSYNC)
                        .map_err(|e| self.failed(Operation::Write, offset, len, e));
                }
            }
        }
        self.write_at(offset, &[buf])?;
        self.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(Operation::Discard, offset, len)?;
        if len == 0 || self.lacks_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.punch(offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.lacks_discard.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => Err(self.failed(Operation::Discard, offset, len, e)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let discard = self.capabilities.discard && !self.lacks_discard.load(Ordering::Relaxed);
        Capabilities { discard, ..self.capabilities }
    }

    fn backing_free(&self) -> Option<u64> {
        self.host_free()
    }

    fn reclaim(&self) {
        self.settle_host();
    }

    fn forget_cached(&self) {
        // Whether it is written or not is for the next flush to say.
        let _ = self.flush();
        let _ = rustix::fs::fadvise(&self.main, 0, None, Advice::DontNeed);
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        // No request goes by the place that this leaves.
        rustix::fs::seek(&self.main, SeekFrom::Data(offset)).ok()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<Allocation> {
        self.check_write(Operation::Allocate, offset, len)?;
        self.allocate_on_host(offset, len)
    }
}

/// Whether the medium failed.
fn is_io(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Whether a write failed because the kernel or file system does not know its flag.
fn lacks_flag(e: &io::Error) -> bool {
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}
