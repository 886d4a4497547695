//! The reply objects except for directories.

use super::reply;
use crate::abi::{
    BmapOut, FileLock, GetxattrOut, IoctlOut, LkIn, LseekOut, OpenFlags, OpenOut, PollOut, WriteOut,
};
use crate::attr::{Attr, Entry, Statfs, Statx};
use crate::errno::Errno;
use crate::ops::Lock;
use std::io::IoSlice;
use std::time::Duration;
use zerocopy::IntoBytes;

reply! {
    /// For operations whose result is that they worked.
    ReplyEmpty {}
}

impl ReplyEmpty {
    /// Answers that it worked.
    pub fn ok(self) {
        self.raw.parts(&[]);
    }

    /// Answers with a result.
    pub fn result<E: Into<Errno>>(self, result: Result<(), E>) {
        match result {
            Ok(()) => self.ok(),
            Err(error) => self.error(error),
        }
    }
}

reply! {
    /// For LOOKUP, MKNOD, MKDIR, SYMLINK and LINK.
    ReplyEntry {}
}

impl ReplyEntry {
    /// Answers with a node; adds 1 to its lookup count unless the entry is negative.
    pub fn entry(self, entry: &Entry) {
        self.raw.value(&entry.wire());
    }

    /// Answers that there is no such name, and that the kernel may remember this for `ttl`.
    pub fn negative(self, ttl: Duration) {
        self.entry(&Entry::negative(ttl));
    }
}

reply! {
    /// For GETATTR and SETATTR.
    ReplyAttr {}
}

impl ReplyAttr {
    /// Answers with attributes that the kernel may use for `ttl`.
    pub fn attr(self, attr: &Attr, ttl: Duration) {
        self.raw.value(&attr.attr_out(ttl));
    }
}

reply! {
    /// For STATX.
    ReplyStatx {}
}

impl ReplyStatx {
    /// Answers with attributes that the kernel may use for `ttl`.
    pub fn statx(self, statx: &Statx, ttl: Duration) {
        self.raw.value(&statx.wire(ttl));
    }
}

reply! {
    /// For OPEN and OPENDIR. An error of ENOSYS means "no handles, never ask again" and lets the open succeed.
    ReplyOpen {}
}

impl ReplyOpen {
    /// Answers with a handle, which later requests carry.
    pub fn opened(self, fh: u64, flags: OpenFlags) {
        self.raw.value(&OpenOut { fh, open_flags: flags.bits(), padding: 0 });
    }
}

reply! {
    /// For CREATE and TMPFILE.
    ReplyCreate {}
}

impl ReplyCreate {
    /// Answers with the new node (adds 1 to its lookup count) and a handle.
    pub fn created(self, entry: &Entry, fh: u64, flags: OpenFlags) {
        let open = OpenOut { fh, open_flags: flags.bits(), padding: 0 };
        self.raw.parts(&[IoSlice::new(entry.wire().as_bytes()), IoSlice::new(open.as_bytes())]);
    }
}

reply! {
    /// For READ and READLINK: bytes, never more than were asked for.
    ReplyData { limit: usize }
}

impl ReplyData {
    /// How many bytes are wanted at most; more are cut off.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Answers with bytes; fewer than wanted mean the end of the file.
    pub fn data(self, data: &[u8]) {
        let data = data.get(..self.limit).unwrap_or(data);
        self.raw.parts(&[IoSlice::new(data)]);
    }

    /// Answers with bytes that lie in several places, without copying them (up to 1,023 places).
    pub fn data_vectored(self, parts: &[IoSlice<'_>]) {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total <= self.limit {
            self.raw.parts(parts);
            return;
        }
        let mut left = self.limit;
        let mut cut = Vec::with_capacity(parts.len());
        for part in parts {
            let part = part.get(..left).unwrap_or(part);
            left -= part.len();
            cut.push(IoSlice::new(part));
        }
        self.raw.parts(&cut);
    }
}

reply! {
    /// For WRITE and COPY_FILE_RANGE: how much was taken.
    ReplyWrite {}
}

impl ReplyWrite {
    /// Answers that `size` bytes were taken; fewer than given is a short write.
    pub fn written(self, size: u32) {
        self.raw.value(&WriteOut { size, padding: 0 });
    }
}

reply! {
    /// For STATFS.
    ReplyStatfs {}
}

impl ReplyStatfs {
    /// Answers with sizes and counts.
    pub fn statfs(self, statfs: &Statfs) {
        self.raw.value(&statfs.wire());
    }
}

reply! {
    /// For GETXATTR and LISTXATTR, whether the value or only its size was asked for.
    ReplyXattr { size: u32 }
}

impl ReplyXattr {
    /// True if only the size is wanted.
    pub fn wants_size(&self) -> bool {
        self.size == 0
    }

    /// Answers with the value, or its size, or ERANGE where it is larger than the caller's buffer.
    pub fn value(self, value: &[u8]) {
        match u32::try_from(value.len()) {
            Ok(size) if self.size == 0 => self.raw.value(&GetxattrOut { size, padding: 0 }),
            Ok(size) if size <= self.size => self.raw.parts(&[IoSlice::new(value)]),
            _ => self.error(Errno::ERANGE),
        }
    }
}

reply! {
    /// For GETLK.
    ReplyLock {}
}

impl ReplyLock {
    /// Answers with a lock that is in the way.
    pub fn locked(self, lock: &Lock) {
        self.raw.value(&FileLock { start: lock.start, end: lock.end, typ: lock.typ, pid: lock.pid });
    }

    /// Answers that nothing is in the way.
    pub fn unlocked(self) {
        let typ = libc::F_UNLCK.cast_unsigned();
        self.raw.value(&FileLock { typ, ..LkIn::default().lk });
    }
}

reply! {
    /// For BMAP.
    ReplyBmap {}
}

impl ReplyBmap {
    /// Answers with a block number on the device, in blocks of the size asked with; 0 for none.
    pub fn block(self, block: u64) {
        self.raw.value(&BmapOut { block });
    }
}

reply! {
    /// For IOCTL.
    ReplyIoctl { limit: usize }
}

impl ReplyIoctl {
    /// The size of the caller's output buffer in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Answers with the result of the call and its output, which is cut at [`Self::limit`].
    pub fn ioctl(self, result: i32, output: &[u8]) {
        let output = output.get(..self.limit).unwrap_or(output);
        let head = IoctlOut { result, ..IoctlOut::default() };
        self.raw.parts(&[IoSlice::new(head.as_bytes()), IoSlice::new(output)]);
    }
}

reply! {
    /// For LSEEK.
    ReplyLseek {}
}

impl ReplyLseek {
    /// Answers with the position found, in bytes.
    pub fn offset(self, offset: u64) {
        self.raw.value(&LseekOut { offset });
    }
}

reply! {
    /// For POLL.
    ReplyPoll {}
}

impl ReplyPoll {
    /// Answers with the events that are ready (`POLLIN` and so on).
    pub fn ready(self, revents: u32) {
        self.raw.value(&PollOut { revents, padding: 0 });
    }
}

/// For INTERRUPT. Unlike the others it may be dropped: the interrupted request itself is what gets answered.
#[derive(Debug)]
pub struct ReplyInterrupt {
    raw: Option<super::Raw>,
}

impl ReplyInterrupt {
    pub(crate) fn new(raw: super::Raw) -> Self {
        Self { raw: Some(raw) }
    }

    /// The request is known and will be answered soon (or was answered).
    pub fn handled(self) {}

    /// The request has not been seen yet: the kernel shall send the interrupt again.
    pub fn again(mut self) {
        self.answer(Errno::EAGAIN);
    }

    /// Interrupts are of no interest: the kernel shall never send one again.
    pub fn never(mut self) {
        self.answer(Errno::ENOSYS);
    }

    fn answer(&mut self, errno: Errno) {
        if let Some(raw) = self.raw.take() {
            raw.error(errno);
        }
    }
}

impl Drop for ReplyInterrupt {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            raw.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::channel::testing::{pair, receive};
    use crate::reply::{Raw, Way};
    use rustix::fd::OwnedFd;
    use std::sync::Arc;

    fn raw() -> (Raw, OwnedFd) {
        let (channel, other) = pair();
        (Raw::new(Way::Device(Arc::new(channel)), 9, opcode::READ), other)
    }

    #[test]
    fn a_dropped_reply_is_eio() {
        let (raw, other) = raw();
        drop(ReplyEntry::new(raw));
        assert_eq!(receive(&other), (-libc::EIO, 9, Vec::new()));
    }

    #[test]
    fn data_is_cut_at_what_was_asked_for() {
        let (raw1, other) = raw();
        ReplyData::new(raw1, 3).data(b"abcdef");
        assert_eq!(receive(&other), (0, 9, b"abc".to_vec()));
        let (raw2, other) = raw();
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cd"), IoSlice::new(b"ef")];
        ReplyData::new(raw2, 3).data_vectored(&parts);
        assert_eq!(receive(&other), (0, 9, b"abc".to_vec()));
        let (raw3, other) = raw();
        ReplyData::new(raw3, 9).data_vectored(&parts);
        assert_eq!(receive(&other), (0, 9, b"abcdef".to_vec()));
    }

    #[test]
    fn attributes_answer_size_value_or_erange() {
        for (size, want) in
            [(0, (0, vec![3, 0, 0, 0, 0, 0, 0, 0])), (3, (0, b"abc".to_vec())), (2, (-libc::ERANGE, vec![]))]
        {
            let (raw, other) = raw();
            ReplyXattr::new(raw, size).value(b"abc");
            let (error, _, body) = receive(&other);
            assert_eq!((error, body), want, "{size}");
        }
    }

    #[test]
    fn interrupts_need_no_answer() {
        let (channel, other) = pair();
        let channel = Arc::new(channel);
        let raw1 = Raw::new(Way::Device(channel.clone()), 9, opcode::READ);
        ReplyInterrupt::new(raw1).handled();
        let marker = Raw::new(Way::Device(channel), 10, opcode::READ);
        marker.error(Errno::ENOENT);
        assert_eq!(receive(&other).1, 10, "the marker must be the first message");
        let (raw2, other) = raw();
        ReplyInterrupt::new(raw2).again();
        assert_eq!(receive(&other), (-libc::EAGAIN, 9, Vec::new()));
    }
}
