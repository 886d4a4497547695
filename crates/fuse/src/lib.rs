//! The kernel's FUSE protocol, mounting and unmounting.
//!
//! A file system implements [`Filesystem`]; a [`Session`] mounts it and serves the kernel's requests.
//!
//! ```no_run
//! use silt_fuse::{Context, Filesystem, MountOptions, NodeId, ReplyAttr, Session};
//! use silt_fuse::{Attr, Timestamp};
//! use std::{path::Path, sync::Arc, time::Duration};
//!
//! struct Empty;
//! impl Filesystem for Empty {
//!     fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
//!         let attr = Attr { ino: node, mode: 0o040_755, nlink: 2, atime: Timestamp::now(), ..Attr::default() };
//!         reply.attr(&attr, Duration::from_secs(1));
//!     }
//! }
//!
//! # fn main() -> silt_fuse::Result<()> {
//! let session = Session::mount(Path::new("/mnt/empty"), &MountOptions::default())?;
//! let notifier = session.notifier();
//! session.run(Arc::new(Empty), 1)?; // returns when unmounted
//! # Ok(()) }
//! ```
//!
//! # Rules for file systems
//! - A reply object answers once, from any thread, whenever it suits; dropped, it answers EIO.
//! - Data of [`ops::Write`] and names live in the thread's buffer: copy what is needed later.
//! - A node's lookup count grows by 1 with every entry handed out (LOOKUP, MKNOD, MKDIR, SYMLINK, LINK,
//!   CREATE, TMPFILE, and each entry that [`ReplyDirectoryPlus::add`] took) and shrinks by FORGET; a node
//!   whose last name is gone lives until the count is 0.
//! - Without handles (ENOSYS to OPEN) do not ask for `ATOMIC_O_TRUNC`: the truncation comes as SETATTR.
//! - Never wait in a handler for something that needs another request to be served by the same thread, and
//!   never send a [`Notifier`] message from a handler.
//! - A `fuseblk` mount must not lose its daemon without an abort: kill it and unmounting, or any sync(2) on
//!   the machine, may wait for ever. [`abort_connection`] first; it also cures the case.
//! - Handlers may panic without ending the session (the caller gets EIO), see [`Filesystem::panicked`].
//!
//! # Modules
//! [`abi`] the messages, `request` and `dispatch` from bytes to methods, `reply` back, `init` the negotiation,
//! `session` the loop, `patience` how it waits, `channel` the descriptor, `stop` how waiting at it ends, `ring` and `slot` the other way through io_uring, `mount`
//! mounting, unmounting and aborting, `notify` notifications.

#[cfg(not(target_os = "linux"))]
compile_error!("FUSE is spoken here as Linux speaks it");

pub mod abi;
mod attr;
mod channel;
mod dispatch;
mod errno;
mod error;
mod filesystem;
mod init;
mod mount;
mod notify;
#[cfg(feature = "test-support")]
mod offline;
pub mod ops;
mod patience;
mod reply;
mod request;
mod ring;
mod session;
mod slot;
mod stop;

pub use abi::{InitFlags, IoctlFlags, OpenFlags, ROOT_ID};
pub use attr::{Attr, Entry, FileType, NodeId, Statfs, Statx, Timestamp};
pub use errno::Errno;
pub use error::{Error, Result};
pub use filesystem::{Destroy, Filesystem};
pub use init::{Config, KernelInfo, MAX_BACKGROUND, MAX_WRITE};
pub use mount::{
    BlockDevice, MountEntry, MountOptions, Place, Unmount, abort_connection, find_mount, is_connected,
    locate_mount, mounts, open_abort, set_max_background, set_read_ahead, unmount,
};
pub use notify::Notifier;
#[cfg(feature = "test-support")]
pub use offline::Offline;
pub use ops::{Context, SetAttr, SetTime};
pub use reply::{
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyInterrupt, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr,
};
pub use ring::{IO_URING_SWITCH, io_uring_is_on};
pub use session::{Ended, Running, Session};

/// The device that FUSE is spoken on.
pub(crate) const DEVICE: &str = "/dev/fuse";
