//! Listings of directories: entries are added until one no longer fits.
//!
//! ```text
//! READDIR      | ino | offset | name length | type | name, zeros to 8 bytes | ...
//! READDIRPLUS  | EntryOut | the same | ...
//! ```
//!
//! Invariant: the buffer never grows beyond what the kernel asked for, nor is any entry cut.

use super::reply;
use crate::abi::{Dirent, EntryOut};
use crate::attr::{Entry, FileType};
use crate::errno::Errno;
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// The longest name the kernel takes in a listing, in bytes.
const NAME_MAX: usize = 1024;

/// The bytes of a listing.
#[derive(Debug)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    limit: usize,
    overflowed: bool,
}

impl Listing {
    /// An empty one of at most `limit` bytes.
    pub(crate) fn new(limit: u32) -> Self {
        // A listing may be long, but most directories are short: the buffer grows from one page.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { bytes: Vec::with_capacity(limit.min(4096)), limit, overflowed: false }
    }

    fn add(&mut self, head: Option<&EntryOut>, ino: u64, next: u64, kind: FileType, name: &[u8]) -> bool {
        let Some(namelen) = name_length(name) else {
            tracing::error!(ino, length = name.len(), "a name that cannot be listed is left out");
            return true;
        };
        let head = head.map_or(&[][..], |head| head.as_bytes());
        let length = head.len() + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        let end = self.bytes.len() + length;
        if self.overflowed || end > self.limit {
            self.overflowed = true;
            return false;
        }
        let dirent = Dirent { ino, off: next, namelen, typ: kind as u32 };
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// The length of a name, if the kernel accepts it.
fn name_length(name: &[u8]) -> Option<u32> {
    let good = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&b'/') && !name.contains(&0);
    u32::try_from(name.len()).ok().filter(|_| good)
}

reply! {
    /// For READDIR.
    ReplyDirectory { listing: Listing }
}

impl ReplyDirectory {
    /// Adds an entry. `next` is the offset at which a listing goes on *behind* this entry; it comes back as
    /// [`ReadDir::offset`](crate::ops::ReadDir::offset), and must not be 0.
    ///
    /// False means that it does not fit and was not added: answer with [`Self::ok`]. Names the kernel would
    /// refuse the whole listing for (empty, longer than 1,024 bytes, with slash or NUL) are left out.
    #[must_use = "false means that the entry was not added"]
    pub fn add(&mut self, ino: u64, next: u64, kind: FileType, name: &[u8]) -> bool {
        self.listing.add(None, ino, next, kind, name)
    }

    /// Answers with what was added; nothing added means the end.
    pub fn ok(self) {
        finish(self.raw, &self.listing);
    }
}

reply! {
    /// For READDIRPLUS.
    ReplyDirectoryPlus { listing: Listing }
}

impl ReplyDirectoryPlus {
    /// Adds an entry with its node, as [`ReplyDirectory::add`]. Where true is returned, the lookup count of
    /// the node grows by 1 as with LOOKUP. Not for "." and "..", see [`Self::add_plain`].
    #[must_use = "false means that the entry was not added"]
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let kind = FileType::from_mode(entry.attr.mode);
        self.listing.add(Some(&entry.wire()), entry.attr.ino, next, kind, name)
    }

    /// Adds an entry without its node, which counts no lookup: "." and "..", or what was not looked at.
    #[must_use = "false means that the entry was not added"]
    pub fn add_plain(&mut self, ino: u64, next: u64, kind: FileType, name: &[u8]) -> bool {
        self.listing.add(Some(&EntryOut::default()), ino, next, kind, name)
    }

    /// Answers with what was added; nothing added means the end.
    pub fn ok(self) {
        finish(self.raw, &self.listing);
    }
}

/// Sends a listing. An empty one would mean "the end", so that a buffer too small for one entry is an error.
fn finish(raw: super::Raw, listing: &Listing) {
    if listing.overflowed && listing.bytes.is_empty() {
        raw.error(Errno::EINVAL);
    } else {
        raw.parts(&[IoSlice::new(&listing.bytes)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::channel::testing::{pair, receive};
    use crate::reply::Raw;
    use rustix::fd::OwnedFd;
    use std::sync::Arc;

    fn raw() -> (Raw, OwnedFd) {
        let (channel, other) = pair();
        (Raw::new(crate::reply::Way::Device(Arc::new(channel)), 1, opcode::READDIR), other)
    }

    #[test]
    fn entries_are_padded_and_never_cut() {
        let (raw, other) = raw();
        let mut reply = ReplyDirectory::new(raw, Listing::new(32 + 40 + 31));
        assert!(reply.add(5, 1, FileType::Regular, b"12345678"));
        assert!(reply.add(6, 2, FileType::Directory, b"123456789"));
        assert!(!reply.add(7, 3, FileType::Regular, b"1"));
        assert!(!reply.add(8, 4, FileType::Regular, b"1"), "after the first that does not fit none does");
        reply.ok();
        let (error, _, body) = receive(&other);
        assert_eq!((error, body.len()), (0, 32 + 40));
        assert_eq!(&body[24..32], b"12345678");
        assert_eq!(&body[32..40], &6u64.to_ne_bytes());
        assert_eq!(&body[56..72], b"123456789\0\0\0\0\0\0\0");
    }

    #[test]
    fn plus_entries_carry_the_node() {
        let (raw, other) = raw();
        let mut reply = ReplyDirectoryPlus::new(raw, Listing::new(4096));
        let entry = Entry { node: 77, ..Entry::default() };
        assert!(reply.add_plain(1, 1, FileType::Directory, b"."));
        assert!(reply.add(&entry, 2, b"x"));
        reply.ok();
        let (_, _, body) = receive(&other);
        assert_eq!(body.len(), 2 * (128 + 32));
        assert_eq!(&body[..8], &[0; 8]);
        assert_eq!(&body[160..168], &77u64.to_ne_bytes());
    }

    #[test]
    fn a_buffer_too_small_for_anything_is_not_the_end() {
        let (raw, other) = raw();
        let mut reply = ReplyDirectory::new(raw, Listing::new(8));
        assert!(!reply.add(5, 1, FileType::Regular, b"a"));
        reply.ok();
        assert_eq!(receive(&other).0, -libc::EINVAL);
    }

    #[test]
    fn names_the_kernel_refuses_are_left_out() {
        let (raw, other) = raw();
        let mut reply = ReplyDirectory::new(raw, Listing::new(4096));
        for name in [&b""[..], b"a/b", b"a\0", &[b'x'; 1025]] {
            assert!(reply.add(5, 1, FileType::Regular, name));
        }
        reply.ok();
        assert_eq!(receive(&other), (0, 1, Vec::new()));
    }
}
