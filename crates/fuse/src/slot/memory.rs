//! The buffers of a ring's entries, which kernel and daemon use in turns.
//!
//! ```text
//! entry 0: | head, a page | data: a request's names and content, then its answer | entry 1: ...
//! ```
//!
//! An entry is the kernel's from the submission of its command to the completion, and ours from there to the
//! next submission. Within our turn: the request's parts are read by the thread that serves it, until its
//! handler has returned; the answer is written by that thread after the handler, or, where the request has no
//! data that anybody could be reading, by whoever answers. Nothing is read and written together.

use crate::abi::{OutHeader, RingEntry, RingHead};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// Bytes between the beginnings of head and data.
const HEAD: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    base: *mut u8,
    entries: usize,
    /// Bytes of data an entry.
    data: usize,
    /// For each entry, where head and data are.
    vectors: Vec<[libc::iovec; 2]>,
}

// SAFETY: the memory belongs to the value, and who may touch what when is settled by the turns of the module's
// description, which callers of the unsafe functions vouch for.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory for `entries` with `data` bytes each, a multiple of the page size. Untouched pages take nothing.
    pub(crate) fn new(entries: usize, data: usize) -> rustix::io::Result<Self> {
        let length = entries * (HEAD + data);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel chooses touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let base = base.cast::<u8>();
        let vectors = (0..entries)
            .map(|entry| {
                let head = base.wrapping_add(entry * (HEAD + data));
                [
                    libc::iovec { iov_base: head.cast(), iov_len: size_of::<RingHead>() },
                    libc::iovec { iov_base: head.wrapping_add(HEAD).cast(), iov_len: data },
                ]
            })
            .collect();
        Ok(Self { base, entries, data, vectors })
    }

    /// The address of an entry's two buffers' addresses; it does not change.
    pub(crate) fn vector(&self, entry: usize) -> Option<*const [libc::iovec; 2]> {
        self.vectors.get(entry).map(std::ptr::from_ref)
    }

    /// Bytes of data an entry has room for.
    pub(crate) fn room(&self) -> usize {
        self.data
    }

    fn head(&self, entry: usize) -> *mut u8 {
        assert!(entry < self.entries, "an entry that is none");
        self.base.wrapping_add(entry * (HEAD + self.data))
    }

    /// A copy of the head that the kernel wrote.
    ///
    /// # Safety
    /// It is our turn.
    pub(crate) unsafe fn request_head(&self, entry: usize) -> RingHead {
        let mut head = RingHead::default();
        // SAFETY: both are valid for the length of a head; the caller vouches that nobody writes there.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.head(entry),
                head.as_mut_bytes().as_mut_ptr(),
                size_of::<RingHead>(),
            );
        }
        head
    }

    /// The first `length` bytes of the data that the kernel wrote; fewer if there is no room for as many.
    ///
    /// # Safety
    /// It is our turn, and nothing is written to the entry's data while the slice lives.
    pub(crate) unsafe fn request_data(&self, entry: usize, length: usize) -> &[u8] {
        let data = self.head(entry).wrapping_add(HEAD);
        // SAFETY: within the entry; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(data, length.min(self.data)) }
    }

    /// Puts the parts of an answer's body one behind the other; they must fit, together.
    ///
    /// # Safety
    /// It is our turn, and nobody else uses the entry's data.
    pub(crate) unsafe fn put(&self, entry: usize, body: &[IoSlice<'_>]) {
        let mut at = 0;
        for part in body {
            assert!(part.len() <= self.data - at, "an answer that does not fit");
            let data = self.head(entry).wrapping_add(HEAD + at);
            // SAFETY: the target lies within the entry, as was just asserted, and is nobody's source.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), data, part.len()) };
            at += part.len();
        }
    }

    /// Writes the head of an answer whose body has `length` bytes.
    ///
    /// # Safety
    /// It is our turn, and the caller is the only user of the entry's head.
    pub(crate) unsafe fn answer_head(&self, entry: usize, error: i32, unique: u64, length: u32) {
        let out = OutHeader { len: length.saturating_add(OUT_HEADER), error, unique };
        let ring = RingEntry { payload_sz: length, ..RingEntry::default() };
        let head = self.head(entry);
        let ring_at = head.wrapping_add(std::mem::offset_of!(RingHead, entry));
        // SAFETY: both lie within the head.
        unsafe {
            std::ptr::copy_nonoverlapping(out.as_bytes().as_ptr(), head, size_of::<OutHeader>());
            std::ptr::copy_nonoverlapping(ring.as_bytes().as_ptr(), ring_at, size_of::<RingEntry>());
        }
    }

    /// Gives the entry's data behind the first `keep` bytes (whole pages) back to the machine.
    ///
    /// # Safety
    /// It is our turn, and nobody uses that data any more.
    pub(crate) unsafe fn give_back(&self, entry: usize, keep: usize) {
        let keep = keep.next_multiple_of(HEAD);
        let Some(length) = self.data.checked_sub(keep).filter(|length| *length > 0) else { return };
        let data = self.head(entry).wrapping_add(HEAD + keep);
        // SAFETY: whole pages of our own mapping; their content is not wanted.
        let given = unsafe { rustix::mm::madvise(data.cast(), length, Advice::LinuxDontNeed) };
        if let Err(error) = given {
            tracing::debug!(%error, "memory of a ring stays");
        }
    }
}

/// Bytes of an answer's header.
const OUT_HEADER: u32 = 16;

impl Drop for Memory {
    fn drop(&mut self) {
        let length = self.entries * (HEAD + self.data);
        // SAFETY: the mapping is ours, and no reference into it outlives the value.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.cast(), length) } {
            tracing::debug!(%error, "memory of a ring is not unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn entries_lie_apart() {
        let memory = Memory::new(3, 8192).unwrap();
        assert_eq!(size_of::<OutHeader>(), 16);
        for entry in 0..3u8 {
            let bytes = [entry + 1; 5000];
            let parts = [IoSlice::new(&bytes[..4096]), IoSlice::new(&[]), IoSlice::new(&bytes[4096..])];
            // SAFETY: no kernel knows of this memory, and there is one thread.
            unsafe {
                memory.put(entry.into(), &parts);
                memory.answer_head(entry.into(), -5, 70 + u64::from(entry), 5000);
            }
        }
        for entry in 0..3u8 {
            // SAFETY: as above.
            let (head, data) = unsafe {
                memory.give_back(entry.into(), 5000);
                (memory.request_head(entry.into()), memory.request_data(entry.into(), usize::MAX))
            };
            assert_eq!(data.len(), 8192);
            assert!(data[..5000].iter().all(|byte| *byte == entry + 1));
            assert!(data[5000..].iter().all(|byte| *byte == 0));
            let (out, _) = OutHeader::read_from_prefix(head.in_out.as_bytes()).unwrap();
            assert_eq!((out.len, out.error, out.unique), (5016, -5, 70 + u64::from(entry)));
            assert_eq!(head.entry.payload_sz, 5000);
        }
        // SAFETY: as above.
        unsafe { memory.give_back(0, 0) };
        // SAFETY: as above.
        assert!(unsafe { memory.request_data(0, 5000) }.iter().all(|byte| *byte == 0));
    }
}
