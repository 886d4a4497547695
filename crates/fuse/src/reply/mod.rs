//! Answers to requests. Each request comes with one reply object of the type its operation needs.
//!
//! A reply object is owned and `Send`: it may be kept, moved to another thread and answered later, in any
//! order. Answering consumes it, so that there is one answer. Dropping it unanswered answers EIO, so that no
//! caller waits for ever.
//!
//! Answering never fails towards the file system: where the kernel no longer wants the answer (unmounted,
//! aborted) it is dropped. Each answer is one `writev`, where data parts go to the kernel from where they lie, or
//! an entry of a ring.

mod directory;
mod typed;

pub(crate) use directory::Listing;
pub use directory::{ReplyDirectory, ReplyDirectoryPlus};
pub use typed::*;

use crate::abi::opcode_name;
use crate::channel::Channel;
use crate::errno::Errno;
use crate::slot::Slot;
use rustix::io::Errno as Os;
use std::io::IoSlice;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// Where an answer goes.
#[derive(Debug)]
pub(crate) enum Way {
    Device(Arc<Channel>),
    Ring(Slot),
}

impl Way {
    fn answer(self, error: i32, unique: u64, body: &[IoSlice<'_>]) -> Result<(), Os> {
        match self {
            Way::Device(channel) => channel.write(error, unique, body),
            Way::Ring(slot) => slot.answer(error, unique, body),
        }
    }
}

/// What all reply objects are made of.
#[derive(Debug)]
pub(crate) struct Raw {
    /// None once answered.
    way: Option<Way>,
    unique: u64,
    opcode: u32,
}

impl Raw {
    pub(crate) fn new(way: Way, unique: u64, opcode: u32) -> Self {
        Self { way: Some(way), unique, opcode }
    }

    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    fn send(&mut self, error: i32, body: &[IoSlice<'_>]) {
        let Some(way) = self.way.take() else { return };
        match way.answer(error, self.unique, body) {
            Ok(()) => {}
            // The kernel has forgotten the request: aborted or unmounted meanwhile.
            Err(Os::NOENT | Os::NODEV | Os::CONNABORTED | Os::PERM) => {
                tracing::trace!(unique = self.unique, "answer came too late");
            }
            Err(problem) => {
                let operation = opcode_name(self.opcode);
                tracing::error!(operation, %problem, "the kernel refused an answer");
            }
        }
    }

    pub(crate) fn parts(mut self, body: &[IoSlice<'_>]) {
        self.send(0, body);
    }

    pub(crate) fn value<T: IntoBytes + Immutable>(self, value: &T) {
        self.parts(&[IoSlice::new(value.as_bytes())]);
    }

    pub(crate) fn error(mut self, errno: Errno) {
        self.send(-errno.raw(), &[]);
    }

    /// Ends it without an answer, for requests that want none.
    pub(crate) fn forget(mut self) {
        self.way = None;
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.way.is_some() {
            tracing::warn!(operation = opcode_name(self.opcode), "request was dropped without an answer");
            self.send(-Errno::EIO.raw(), &[]);
        }
    }
}

/// Declares a reply object with what all of them can do.
macro_rules! reply {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty),* }) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[must_use = "dropping a reply answers EIO"]
        pub struct $name {
            raw: $crate::reply::Raw,
            $($field: $ty,)*
        }

        impl $name {
            pub(crate) fn new(raw: $crate::reply::Raw $(, $field: $ty)*) -> Self {
                Self { raw $(, $field)* }
            }

            /// Answers with an error.
            pub fn error(self, errno: impl Into<$crate::errno::Errno>) {
                self.raw.error(errno.into());
            }

            /// The number of the request, by which [`interrupt`](crate::Filesystem::interrupt) names it.
            pub fn unique(&self) -> u64 {
                self.raw.unique()
            }
        }
    };
}
pub(crate) use reply;
