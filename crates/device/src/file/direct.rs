//! Requests that bypass the page cache.
//!
//! The kernel takes such requests only where offset, length and memory are aligned. What is not
//! goes through an aligned buffer, read first where it covers a unit in part. The few bytes
//! behind the last whole unit of a file that ends unaligned go through the page cache: they share
//! no unit, hence no page, with anything else.
//!
//! ```text
//!   0        align     2*align            body         len
//!   |---------|---------|-- ... --|---------|----tail----|
//!    direct, by units                        page cache
//! ```
//!
//! What takes several buffers is copied and written by several threads at once where seeks cost nothing: a device is fastest
//! with more than one request to work on, and it works while the next piece is copied.
//!
//! Locks: `units` is held shared by writes of whole units and alone by writes that read a unit
//! first, so that two neighbours in one unit do not undo each other. Reads take no lock. The pool
//! of buffers has its own lock, never held across a request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::ReadWriteFlags;

use super::transfer;
use crate::Buffer;

/// Largest request through an aligned buffer.
const BOUNCE: usize = 1 << 20;
/// Buffers kept for the next request.
const POOLED: usize = 4;
/// Threads that write one request, at most; each has a buffer.
const WRITERS: usize = 3;
/// Alignment of memory that every device takes.
const MEMORY_ALIGN: usize = 4096;

/// The direct way to a file.
pub(super) struct Direct {
    fd: OwnedFd,
    /// Unit of offsets and lengths, a power of two up to `BOUNCE`.
    align: u64,
    /// Threads that write one request.
    writers: usize,
    units: RwLock<()>,
    pool: Mutex<Vec<Buffer>>,
}

/// A cursor over gathered buffers.
#[derive(Clone, Copy)]
struct Gather<'a, 'b> {
    bufs: &'a [&'b [u8]],
    /// Bytes of the first buffer that are behind the cursor.
    skip: usize,
}

impl<'b> Gather<'_, 'b> {
    /// The next bytes as they lie, if a request can use all of them so.
    fn as_they_lie(&self, mut bytes: usize, align: u64) -> Option<Vec<&'b [u8]>> {
        let mut slices = Vec::new();
        let mut skip = self.skip;
        for buf in self.bufs {
            if bytes == 0 {
                break;
            }
            let slice = &buf[skip..skip + bytes.min(buf.len() - skip)];
            if !in_place(slice) || !(slice.len() as u64).is_multiple_of(align) {
                return None;
            }
            slices.push(slice);
            (bytes, skip) = (bytes - slice.len(), 0);
        }
        Some(slices)
    }

    /// Fills `to` from the cursor on; there must be enough.
    fn copy_to(&mut self, mut to: &mut [u8]) {
        while let (false, Some(first)) = (to.is_empty(), self.bufs.first()) {
            let n = to.len().min(first.len() - self.skip);
            let (part, rest) = std::mem::take(&mut to).split_at_mut(n);
            part.copy_from_slice(&first[self.skip..self.skip + n]);
            to = rest;
            self.pass(n);
        }
    }

    /// Passes over bytes of the first buffer.
    fn pass(&mut self, n: usize) {
        self.skip += n;
        if self.bufs.first().is_some_and(|first| self.skip == first.len()) {
            self.bufs = &self.bufs[1..];
            self.skip = 0;
        }
    }

    /// Passes over so many bytes.
    fn advance(&mut self, mut bytes: usize) {
        while let (true, Some(first)) = (bytes > 0, self.bufs.first()) {
            let n = bytes.min(first.len() - self.skip);
            self.pass(n);
            bytes -= n;
        }
    }
}

impl Direct {
    /// Over a descriptor opened with `O_DIRECT`; `align` is what its requests must be multiples of.
    pub fn new(fd: OwnedFd, align: u32) -> Self {
        let align = u64::from(align).clamp(512, BOUNCE as u64).next_power_of_two();
        Direct { fd, align, writers: 1, units: RwLock::new(()), pool: Mutex::new(Vec::new()) }
    }

    /// The same, for a device on which several writes at once are no slower than one after the other.
    pub fn with_writers(self) -> Self {
        Direct { writers: WRITERS, ..self }
    }

    fn with_buffer<T>(&self, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.pool.lock().pop().unwrap_or_default();
        let result = f(buffer.of(BOUNCE));
        let mut pool = self.pool.lock();
        if pool.len() < POOLED {
            pool.push(buffer);
        }
        result
    }

    fn aligned(&self, n: u64) -> bool {
        n.is_multiple_of(self.align)
    }

    /// Whether so many bytes at `offset` are whole units.
    pub fn takes_whole(&self, offset: u64, len: u64) -> bool {
        self.aligned(offset) && self.aligned(len)
    }

    fn down(&self, n: u64) -> u64 {
        n - n % self.align
    }

    /// Reads from a file of `len` bytes, whose page cache is behind `cached`.
    pub fn read_at(&self, cached: BorrowedFd<'_>, len: u64, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let body = self.down(len);
        let head = clamp(body.saturating_sub(offset), buf.len());
        let (head, tail) = buf.split_at_mut(head);
        if self.aligned(offset) && self.aligned(head.len() as u64) && in_place(head) {
            transfer::read_at(self.fd.as_fd(), offset, head)?;
        } else {
            self.read_bounced(offset, head)?;
        }
        transfer::read_at(cached, offset.max(body), tail)
    }

    fn read_bounced(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.with_buffer(|bounce| {
            let (mut offset, mut rest) = (offset, buf);
            while !rest.is_empty() {
                let at = self.down(offset);
                let skip = clamp(offset - at, BOUNCE);
                let n = rest.len().min(BOUNCE - skip);
                let whole = clamp((skip + n) as u64, BOUNCE).next_multiple_of(clamp(self.align, BOUNCE));
                transfer::read_at(self.fd.as_fd(), at, &mut bounce[..whole])?;
                let (part, after) = std::mem::take(&mut rest).split_at_mut(n);
                part.copy_from_slice(&bounce[skip..skip + n]);
                rest = after;
                offset += n as u64;
            }
            Ok(())
        })
    }

    /// Writes to a file of `len` bytes, whose page cache is behind `cached`.
    pub fn write_at(
        &self,
        cached: BorrowedFd<'_>,
        len: u64,
        offset: u64,
        bufs: &[&[u8]],
        flags: ReadWriteFlags,
    ) -> io::Result<()> {
        let total = crate::total(bufs);
        let body = self.down(len);
        let head = total.min(body.saturating_sub(offset));
        let whole = self.aligned(offset) && self.aligned(head);
        if whole && head == total && bufs.iter().all(|b| self.aligned(b.len() as u64) && in_place(b)) {
            let _shared = self.units.read();
            return transfer::write_at(self.fd.as_fd(), offset, bufs, flags);
        }
        let mut from = Gather { bufs, skip: 0 };
        if whole {
            let _shared = self.units.read();
            if self.writers > 1 && head > BOUNCE as u64 && flags.is_empty() {
                self.write_at_once(offset, head, from)?;
                from.advance(usize::try_from(head).unwrap_or(usize::MAX));
            } else {
                self.write_bounced(offset, head, &mut from, flags)?;
            }
        } else {
            let _alone = self.units.write();
            self.write_bounced(offset, head, &mut from, flags)?;
        }
        // Less than one unit is left.
        let mut tail = vec![0; clamp(total - head, BOUNCE)];
        from.copy_to(&mut tail);
        transfer::write_at(cached, offset.max(body), &[&tail], flags)
    }

    /// Writes whole units by pieces, several at once. Of several errors one is told.
    fn write_at_once(&self, offset: u64, len: u64, from: Gather<'_, '_>) -> io::Result<()> {
        let pieces = usize::try_from(len.div_ceil(BOUNCE as u64)).unwrap_or(usize::MAX);
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut from, mut passed) = (from, 0);
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= pieces {
                    return Ok(());
                }
                from.advance((piece - passed).saturating_mul(BOUNCE));
                passed = piece;
                let at = piece as u64 * BOUNCE as u64;
                let bytes = clamp(len - at, BOUNCE);
                let write = |bufs: &[&[u8]]| {
                    transfer::write_at(self.fd.as_fd(), offset + at, bufs, ReadWriteFlags::empty())
                };
                let written = match from.as_they_lie(bytes, self.align) {
                    Some(bufs) => write(&bufs),
                    None => self.with_buffer(|bounce| {
                        let mut from = from;
                        from.copy_to(&mut bounce[..bytes]);
                        write(&[&bounce[..bytes]])
                    }),
                };
                // The others need not begin with more.
                written.inspect_err(|_| next.store(pieces, Ordering::Relaxed))?;
            }
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..self.writers.min(pieces))
                // Where there are no threads it goes on with fewer.
                .filter_map(|_| {
                    std::thread::Builder::new().name("device".into()).spawn_scoped(scope, work).ok()
                })
                .collect();
            let mine = work();
            helpers.into_iter().fold(mine, |result, helper| {
                result.and(helper.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
            })
        })
    }

    /// The caller holds `units` as the range needs it.
    fn write_bounced(
        &self,
        offset: u64,
        len: u64,
        from: &mut Gather<'_, '_>,
        flags: ReadWriteFlags,
    ) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let unit = clamp(self.align, BOUNCE);
        self.with_buffer(|bounce| {
            let (mut offset, end) = (offset, offset + len);
            while offset < end {
                let at = self.down(offset);
                let skip = clamp(offset - at, BOUNCE);
                let n = clamp(end - offset, BOUNCE - skip);
                let whole = (skip + n).next_multiple_of(unit);
                if skip > 0 {
                    transfer::read_at(self.fd.as_fd(), at, &mut bounce[..unit])?;
                }
                // The last unit, unless it is the first and was just read.
                if skip + n < whole && (skip == 0 || whole > unit) {
                    let last = whole - unit;
                    transfer::read_at(self.fd.as_fd(), at + last as u64, &mut bounce[last..whole])?;
                }
                from.copy_to(&mut bounce[skip..skip + n]);
                transfer::write_at(self.fd.as_fd(), at, &[&bounce[..whole]], flags)?;
                offset += n as u64;
            }
            Ok(())
        })
    }
}

/// `n`, but at most `limit`.
fn clamp(n: u64, limit: usize) -> usize {
    usize::try_from(n).unwrap_or(limit).min(limit)
}

/// Whether a request can use this memory as it is.
fn in_place(buf: &[u8]) -> bool {
    buf.is_empty() || (buf.as_ptr() as usize).is_multiple_of(MEMORY_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs over the page cache: alignment is not demanded there, the arithmetic is the same.
    #[test]
    fn every_alignment_of_a_write_lands() {
        let file = tempfile::tempfile().unwrap();
        let len = 5 * 512 + 100;
        file.set_len(len).unwrap();
        let direct = Direct::new(file.try_clone().unwrap().into(), 512);
        let mut model = vec![0u8; len as usize];
        for (round, from) in [0u64, 1, 511, 512, 513, 1024, 2559, 2560, 2600].into_iter().enumerate() {
            for to in [from, from + 1, 1024, 1536, 1537, 2560, 2561, len] {
                if to < from {
                    continue;
                }
                let byte = (round as u8) * 16 + 1 + (to % 13) as u8;
                let data = vec![byte; (to - from) as usize];
                let (a, b) = data.split_at(data.len() / 3);
                let flags = ReadWriteFlags::empty();
                direct.write_at(file.as_fd(), len, from, &[a, &[], b], flags).unwrap();
                model[from as usize..to as usize].fill(byte);
                let mut all = vec![0xee; len as usize];
                direct.read_at(file.as_fd(), len, 0, &mut all).unwrap();
                assert!(all == model, "write of {from}..{to}");
                let mut part = vec![0xee; (to - from) as usize];
                direct.read_at(file.as_fd(), len, from, &mut part).unwrap();
                assert!(part == model[from as usize..to as usize], "read of {from}..{to}");
            }
        }
    }

    #[test]
    fn longer_than_the_buffer() {
        let file = tempfile::tempfile().unwrap();
        let len = 2 * BOUNCE as u64 + 8192;
        file.set_len(len).unwrap();
        let direct = Direct::new(file.try_clone().unwrap().into(), 4096);
        let data: Vec<u8> = (0..2 * BOUNCE as u64 + 4000).map(|i| (i % 253) as u8).collect();
        direct.write_at(file.as_fd(), len, 77, &[&data], ReadWriteFlags::empty()).unwrap();
        let mut back = vec![0; data.len()];
        direct.read_at(file.as_fd(), len, 77, &mut back).unwrap();
        assert!(back == data);
        assert_eq!(direct.pool.lock().len(), 1, "the buffer is kept");
    }

    #[test]
    fn by_several_threads_every_piece_lands() {
        let file = tempfile::tempfile().unwrap();
        let len = 9 * BOUNCE as u64 + 100;
        file.set_len(len).unwrap();
        let direct = Direct::new(file.try_clone().unwrap().into(), 4096).with_writers();
        let data: Vec<u8> = (0..8 * BOUNCE as u64 + 3 * 4096).map(|i| (i % 251) as u8).collect();
        for (round, pieces) in [4096, 100_000, BOUNCE + 4096, data.len()].into_iter().enumerate() {
            let data: Vec<u8> = data.iter().map(|b| b ^ (round as u8)).collect();
            // Memory that cannot be used in place.
            let bufs: Vec<Vec<u8>> = data.chunks(pieces).map(|p| [&[0], p].concat()).collect();
            let mut bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[1..]).collect();
            // Some of it can.
            let mut aligned = Buffer::default();
            let aligned = aligned.of(BOUNCE);
            let there = bufs.iter().map(|b| b.len()).take_while(|n| *n == 4096).take(256).count() * 4096;
            aligned[..there].copy_from_slice(&data[..there]);
            for (buf, part) in bufs.iter_mut().zip(aligned[..there].chunks(4096)) {
                *buf = part;
            }
            direct.write_at(file.as_fd(), len, 8192, &bufs, ReadWriteFlags::empty()).unwrap();
            let mut back = vec![0; data.len()];
            direct.read_at(file.as_fd(), len, 8192, &mut back).unwrap();
            assert!(back == data, "in pieces of {pieces}");
        }
        assert!(direct.pool.lock().len() <= POOLED);
    }

    #[test]
    fn an_error_of_one_thread_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        // It can only be read.
        let fd = std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        let direct = Direct::new(fd.unwrap().into(), 4096).with_writers();
        let data = vec![1u8; 8 * BOUNCE + 1];
        let written = direct.write_at(file.as_fd(), 16 << 20, 0, &[&data[1..]], ReadWriteFlags::empty());
        assert_eq!(written.unwrap_err().raw_os_error(), Some(9));
    }
}
