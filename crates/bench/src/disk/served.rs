//! A disk that is a model: a file that a process of ours serves through FUSE, memory that takes a disk's
//! time. Every file system meets it through a loop device on that file.
//!
//! The server must never wait for memory: the kernel may want to free some by writing to this very disk.
//! So it has one thread, all of its memory is there and locked before it starts, and nothing is allocated
//! while a request is served. Should it hang in spite of that, a watchdog aborts the connection, which gives
//! everyone who waits an I/O error.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use silt_device::{Capabilities, Counter, Counts, Device, Mode, Operation, Throttle};
use silt_fuse::ops::{Fallocate, Open, Read, Write};
use silt_fuse::{
    Attr, Context, Entry, Errno, Filesystem, MountOptions, NodeId, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Session, Unmount,
};

use super::Kind;
use crate::process::{Child, own_command};

const IMAGE: &str = "disk.img";
const COUNTERS: &str = "counters";
/// Longer than the longest flush of a model.
const HUNG: Duration = Duration::from_secs(300);
/// Discards zero whole parts of this size that were written since the last.
const PART: usize = 1 << 20;

/// The server's process and its mount.
pub struct Served {
    dir: PathBuf,
    child: Child,
}

impl Served {
    /// Starts a server with `size` bytes of memory and waits until its files are there.
    pub fn start(kind: Kind, size: u64, scratch: &Path) -> Result<Self> {
        let dir = scratch.join(format!("disk-{}", kind.name()));
        fs::create_dir_all(&dir)?;
        let mut command = own_command()?;
        command.args(["serve", "--disk", kind.name(), "--size", &size.to_string()]).arg(&dir);
        let child = Child::spawn(&mut command, &scratch.join(format!("disk-{}.log", kind.name())))?;
        let mut served = Served { dir, child };
        // Zeroing and locking the memory takes a second for some gigabytes.
        let deadline = Instant::now() + Duration::from_secs(120);
        while !served.image().exists() {
            if let Some(said) = served.child.ended()? {
                bail!("the server of the disk {} ended: {said}", kind.name());
            }
            if Instant::now() > deadline {
                bail!("the server of the disk {} did not get ready", kind.name());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(served)
    }

    /// The file to attach.
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// The file that tells what reached it.
    pub fn counters(&self) -> PathBuf {
        self.dir.join(COUNTERS)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let unmounted = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Command::new("umount").arg(&self.dir).output().is_ok_and(|o| o.status.success())
        });
        if !unmounted || !self.child.wait_for(Duration::from_secs(20)) {
            let _ = silt_fuse::abort_connection(&self.dir);
            let _ = silt_fuse::unmount(&self.dir, Unmount::Lazy);
        }
    }
}

/// Memory as a device; discarded parts become zero and stay in place.
struct Locked {
    memory: Mutex<Memory>,
    len: u64,
}

struct Memory {
    bytes: &'static mut [u8],
    written: Vec<bool>,
}

impl Locked {
    /// `size` bytes of zeroes that are there and stay there.
    fn new(size: u64) -> Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let len = usize::try_from(size)?;
        // SAFETY: a new mapping that nothing else knows of, and that is never unmapped.
        let bytes = unsafe {
            let at = mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?;
            // Only saves time.
            let _ = madvise(at, len, Advice::LinuxHugepage);
            madvise(at, len, Advice::LinuxPopulateWrite)?;
            std::slice::from_raw_parts_mut(at.cast::<u8>(), len)
        };
        let written = vec![false; len.div_ceil(PART)];
        Ok(Locked { memory: Mutex::new(Memory { bytes, written }), len: size })
    }

    fn with<T>(
        &self,
        operation: Operation,
        (offset, len): (u64, u64),
        f: impl FnOnce(&mut Memory, std::ops::Range<usize>) -> T,
    ) -> silt_device::Result<T> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(silt_device::Error::OutOfRange { operation, offset, len, size: self.len });
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        // Both fit: the memory holds them.
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(f(&mut memory, start..end))
    }
}

impl Device for Locked {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.with(Operation::Read, (offset, buf.len() as u64), |memory, range| {
            if let Some(from) = memory.bytes.get(range) {
                buf.copy_from_slice(from);
            }
        })
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.with(Operation::Write, (offset, total), |memory, range| {
            memory
                .written
                .iter_mut()
                .take(range.end.div_ceil(PART))
                .skip(range.start / PART)
                .for_each(|w| *w = true);
            let mut at = range.start;
            for buf in bufs {
                if let Some(to) = memory.bytes.get_mut(at..at + buf.len()) {
                    to.copy_from_slice(buf);
                }
                at += buf.len();
            }
        })
    }

    fn flush(&self) -> silt_device::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.with(Operation::Discard, (offset, len), |memory, range| {
            for part in range.start / PART..range.end.div_ceil(PART) {
                let whole = part * PART..((part + 1) * PART).min(memory.bytes.len());
                let cut = whole.start.max(range.start)..whole.end.min(range.end);
                let Some(written) = memory.written.get_mut(part).filter(|written| **written) else {
                    continue;
                };
                *written = cut != whole;
                if let Some(bytes) = memory.bytes.get_mut(cut) {
                    bytes.fill(0);
                }
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { discard: true, ..Capabilities::default() }
    }
}

/// The two files.
struct Files {
    device: Throttle<Counter<Locked>>,
    /// One request's data.
    buffer: Mutex<Vec<u8>>,
    /// Milliseconds since `start` at which the request being served came, plus 1; 0 between requests.
    busy: Arc<AtomicU64>,
    start: Instant,
}

const IMAGE_NODE: NodeId = 2;
const COUNTERS_NODE: NodeId = 3;
const COUNTERS_SIZE: u64 = 256;
const FOREVER: Duration = Duration::from_secs(1 << 30);

struct Busy<'a>(&'a AtomicU64);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Files {
    fn attr(&self, node: NodeId) -> Option<Attr> {
        let (mode, nlink, size) = match node {
            silt_fuse::ROOT_ID => (0o040_755, 2, 0),
            IMAGE_NODE => (0o100_600, 1, self.device.len()),
            COUNTERS_NODE => (0o100_400, 1, COUNTERS_SIZE),
            _ => return None,
        };
        Some(Attr { ino: node, mode, nlink, size, blocks: size / 512, blksize: 4096, ..Attr::default() })
    }

    fn busy(&self) -> Busy<'_> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        self.busy.store(now, Ordering::Relaxed);
        Busy(&self.busy)
    }

    /// The counters as text, padded with zeroes.
    fn counters(&self) -> [u8; COUNTERS_SIZE as usize] {
        let Counts { reads, writes, flushes, discards, .. } = self.device.inner().counts();
        let mut text = [0; COUNTERS_SIZE as usize];
        let numbers =
            [reads.requests, reads.bytes, writes.requests, writes.bytes, flushes, discards.requests];
        let mut rest = text.as_mut_slice();
        for number in numbers {
            // Six numbers of at most 20 digits fit.
            let _ = write!(rest, "{number} ");
        }
        text
    }
}

fn errno(error: &silt_device::Error) -> Errno {
    tracing::error!(%error, "a served disk");
    Errno::EIO
}

impl Filesystem for Files {
    fn lookup(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        let node = match (parent, name) {
            (silt_fuse::ROOT_ID, name) if name == IMAGE.as_bytes() => IMAGE_NODE,
            (silt_fuse::ROOT_ID, name) if name == COUNTERS.as_bytes() => COUNTERS_NODE,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.attr(node) {
            Some(attr) => {
                reply.entry(&Entry { node, generation: 0, attr, attr_ttl: FOREVER, entry_ttl: FOREVER });
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        match self.attr(node) {
            Some(attr) => reply.attr(&attr, FOREVER),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Context, _: NodeId, _: &Open, reply: ReplyOpen) {
        reply.opened(0, OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES);
    }

    fn read(&self, _: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        if node == COUNTERS_NODE {
            let text = self.counters();
            let from = usize::try_from(read.offset).unwrap_or(usize::MAX).min(text.len());
            return reply.data(text.get(from..).unwrap_or_default());
        }
        let _busy = self.busy();
        let len = u64::from(read.size).min(self.device.len().saturating_sub(read.offset));
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let len = usize::try_from(len).unwrap_or(0).min(buffer.len());
        let Some(part) = buffer.get_mut(..len) else { return reply.error(Errno::EIO) };
        match self.device.read_at(read.offset, part) {
            Ok(()) => reply.data(part),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(&self, _: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        if node != IMAGE_NODE {
            return reply.error(Errno::EACCES);
        }
        let _busy = self.busy();
        match self.device.write_at(write.offset, &[write.data]) {
            Ok(()) => reply.written(u32::try_from(write.data.len()).unwrap_or(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _: &Context, _: NodeId, _: u64, _: bool, reply: ReplyEmpty) {
        let _busy = self.busy();
        reply.result(self.device.flush().map_err(|error| errno(&error)));
    }

    /// Discards and zeroes alike read as zeroes afterwards.
    fn fallocate(&self, _: &Context, node: NodeId, fallocate: &Fallocate, reply: ReplyEmpty) {
        if node != IMAGE_NODE {
            return reply.error(Errno::EACCES);
        }
        let _busy = self.busy();
        let done = self.device.discard(fallocate.offset, fallocate.length);
        reply.result(done.map_err(|error| errno(&error)));
    }
}

/// What the server's process does: serves until unmounted.
pub fn serve(kind: Kind, size: u64, dir: &Path) -> Result<()> {
    let model = kind.model().context("this disk is not a model")?;
    let memory = Locked::new(size).context("there is not enough memory for a disk")?;
    let options = MountOptions {
        source: "silt-bench".to_owned(),
        subtype: "disk".to_owned(),
        ..MountOptions::default()
    };
    let session = Session::mount(dir, &options)?;
    let files = Files {
        device: Throttle::new(Counter::new(memory), model, Mode::Sleep),
        buffer: Mutex::new(vec![0; 1 << 20]),
        busy: Arc::default(),
        start: Instant::now(),
    };
    watch(dir, Arc::clone(&files.busy), files.start)?;
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)
        .context("locking memory")?;
    // The finest sleeps there are.
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    session.run(Arc::new(files), 1)?;
    Ok(())
}

/// Aborts the connection when a request hangs.
fn watch(dir: &Path, busy: Arc<AtomicU64>, start: Instant) -> Result<()> {
    let mount = silt_fuse::find_mount(dir)?.context("the mount went away")?;
    let connection = u64::from(mount.major) << 20 | u64::from(mount.minor);
    let mut abort = silt_fuse::open_abort(connection).context("the connection cannot be watched")?;
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let since = Duration::from_millis(busy.load(Ordering::Relaxed));
            if !since.is_zero() && start.elapsed().saturating_sub(since) > HUNG {
                let _ = abort.write_all(b"1");
                return;
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_disk_whose_discards_zero_exactly_the_range() {
        let size = 3 * PART as u64;
        let d = Locked::new(size).unwrap();
        d.write_at(PART as u64 - 10, &[&[1; 10], &[2; 10]]).unwrap();
        d.write_at(size - 4, &[&[3; 4]]).unwrap();
        let mut got = [0; 20];
        d.read_at(PART as u64 - 10, &mut got).unwrap();
        assert_eq!((got[9], got[10]), (1, 2));
        d.discard(PART as u64 - 5, 10).unwrap();
        d.read_at(PART as u64 - 10, &mut got).unwrap();
        assert_eq!(got, [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2]);
        d.discard(0, size).unwrap();
        let mut all = vec![9; size as usize];
        d.read_at(0, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0));
        assert!(d.write_at(size, &[&[1]]).is_err());
    }
}
