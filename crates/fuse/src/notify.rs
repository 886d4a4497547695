//! Notifications: telling the kernel that what it cached is no longer so.
//!
//! Trap: dropping an entry or a node takes kernel locks that a request under way may hold while it waits for
//! us. Notify only from a thread that no request waits for, and not while holding a lock that a handler
//! needs.

use crate::abi::{
    NOTIFY_EXPIRE_ONLY, NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyPollWakeup, NotifyStore,
    notify,
};
use crate::attr::NodeId;
use crate::channel::Channel;
use crate::error::{Error, Result};
use rustix::io::Errno as Os;
use std::io::IoSlice;
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// Sends notifications of one session; cheap to clone. It does not keep the session alive.
///
/// All methods return true if the kernel had something cached that the notification changed, false if not
/// (also when the session is over, which leaves nothing cached).
#[derive(Clone, Debug)]
pub struct Notifier {
    channel: Weak<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: &Arc<Channel>) -> Self {
        Self { channel: Arc::downgrade(channel) }
    }

    /// Drops a node's attributes and its cached content from `offset` on, `length` bytes (0: to the end). A
    /// negative `offset` drops the attributes alone.
    pub fn inval_inode(&self, node: NodeId, offset: i64, length: i64) -> Result<bool> {
        let message = NotifyInvalInode { ino: node, off: offset, len: length };
        self.send(notify::INVAL_INODE, &[IoSlice::new(message.as_bytes())])
    }

    /// Drops a name, also one that was cached as missing.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> Result<bool> {
        self.entry(parent, name, 0)
    }

    /// Has a name looked up again when it is next used, without dropping what depends on it (mounts, open
    /// directories). Needs `HAS_EXPIRE_ONLY`, see [`KernelInfo::flags`](crate::KernelInfo::flags); kernels
    /// without it drop the name.
    pub fn expire_entry(&self, parent: NodeId, name: &[u8]) -> Result<bool> {
        self.entry(parent, name, NOTIFY_EXPIRE_ONLY)
    }

    /// Says that a name of `child` was removed; programs that watch it are told.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &[u8]) -> Result<bool> {
        let message = NotifyDelete { parent, child, namelen: length(name)?, padding: 0 };
        self.send(notify::DELETE, &[IoSlice::new(message.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
    }

    /// Puts content into the page cache of a node. The file grows in the kernel's view if it ends before.
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<bool> {
        let message = NotifyStore { nodeid: node, offset, size: length(data)?, padding: 0 };
        self.send(notify::STORE, &[IoSlice::new(message.as_bytes()), IoSlice::new(data)])
    }

    /// Wakes up who polls; `kh` is from [`Poll::kh`](crate::ops::Poll::kh).
    pub fn poll(&self, kh: u64) -> Result<bool> {
        self.send(notify::POLL, &[IoSlice::new(NotifyPollWakeup { kh }.as_bytes())])
    }

    fn entry(&self, parent: NodeId, name: &[u8], flags: u32) -> Result<bool> {
        let message = NotifyInvalEntry { parent, namelen: length(name)?, flags };
        self.send(
            notify::INVAL_ENTRY,
            &[IoSlice::new(message.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])],
        )
    }

    fn send(&self, code: i32, body: &[IoSlice<'_>]) -> Result<bool> {
        let Some(channel) = self.channel.upgrade() else { return Ok(false) };
        match channel.write(code, 0, body) {
            Ok(()) => Ok(true),
            // Not cached, or nobody there any more.
            Err(Os::NOENT | Os::NODEV | Os::CONNABORTED | Os::NOTCONN | Os::PERM) => Ok(false),
            Err(error) => Err(Error::Notify(error.into())),
        }
    }
}

/// A length as messages carry it.
fn length(bytes: &[u8]) -> Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| Error::Notify(Os::MSGSIZE.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::testing::{pair, receive};

    #[test]
    fn names_end_with_a_nul() {
        let (channel, other) = pair();
        let channel = Arc::new(channel);
        let notifier = Notifier::new(&channel);
        assert!(notifier.expire_entry(1, b"ab").unwrap());
        let (code, unique, body) = receive(&other);
        assert_eq!((code, unique), (notify::INVAL_ENTRY, 0));
        assert_eq!(
            body,
            [&1u64.to_ne_bytes()[..], &2u32.to_ne_bytes(), &1u32.to_ne_bytes(), b"ab\0"].concat()
        );
        assert!(notifier.delete(1, 2, b"x").unwrap());
        assert_eq!(receive(&other).2.len(), size_of::<NotifyDelete>() + 2);
    }

    #[test]
    fn a_session_that_is_over_has_nothing_cached() {
        let (channel, _other) = pair();
        let channel = Arc::new(channel);
        let notifier = Notifier::new(&channel);
        drop(channel);
        assert!(!notifier.inval_inode(1, 0, 0).unwrap());
    }
}
