//! Metadata that was read and whose logs somebody verifies beside.

use std::sync::{Condvar, Mutex, PoisonError};

use hashbrown::HashMap;
use silt_format::BlockNr;

use crate::verify_log::Verifier;

/// A verifier and the blocks of metadata whose logs it has not seen yet.
pub struct Watched {
    pub verifier: Verifier,
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// With how many segments had been freed when they were read.
    blocks: HashMap<u64, u64>,
    stop: bool,
}

/// Blocks that wait to be verified, at most: what is read beyond that goes unverified until it is read again.
const WAITING: usize = 65_536;

impl Watched {
    /// Nothing waits yet.
    pub fn new(verifier: Verifier) -> Self {
        Watched { verifier, waiting: Mutex::default(), wake: Condvar::new() }
    }

    /// A block of metadata was read, when so many segments had been freed: it is served by its own checks, its log is
    /// verified later.
    pub(crate) fn saw(&self, at: BlockNr, freed: u64) {
        if self.verifier.state(at).is_some() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = waiting.blocks.len() >= WAITING;
        if (!is_full || waiting.blocks.contains_key(&at.0)) && waiting.blocks.insert(at.0, freed).is_none() {
            self.wake.notify_one();
        }
    }

    /// Waits for blocks whose logs are to be verified and takes them, ascending, each with what
    /// [`Volume::was_freed_since`](crate::Volume::was_freed_since) takes; none at the end.
    pub fn next(&self) -> Vec<(BlockNr, u64)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.blocks.is_empty() && !waiting.stop {
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.stop {
            return Vec::new();
        }
        let mut all: Vec<_> = waiting.blocks.drain().map(|(at, freed)| (BlockNr(at), freed)).collect();
        drop(waiting);
        all.sort_unstable();
        all
    }

    /// Whether nobody wants to know any more.
    pub fn stopped(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).stop
    }

    /// Ends [`Watched::next`].
    pub fn stop(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.wake.notify_all();
    }
}
