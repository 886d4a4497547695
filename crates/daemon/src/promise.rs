//! What `fallocate` promised to a request that is not done yet. It keeps others from the space, so it is taken back at once
//! where nothing comes of the request, whatever ends it: a refusal, or that it is let go of.

use std::ops::Range as Bytes;
use std::sync::Arc;

use silt_format::Ino;
use silt_fs::{Fs, fallocate_mode};

use crate::convert::ino;
use crate::core::Core;
use crate::reserving::Range;

/// Dropped, it takes back what was promised of the range since; what had been promised before stays. The lock of the file
/// system must not be held then. The kernel has one request of the kind at a time for a file.
pub struct Promise {
    core: Arc<Core>,
    ino: Ino,
    bytes: Bytes<u64>,
    /// Blocks that had been promised before; none where there is nothing to take back.
    before: Option<Vec<Bytes<u64>>>,
}

impl Promise {
    /// Of a request that is about to begin.
    pub fn begin(core: &Arc<Core>, fs: &Fs, range: &Range) -> Self {
        let (ino, bytes) = (ino(range.node), range.offset..range.offset.saturating_add(range.length));
        let promises = range.mode & fallocate_mode::PUNCH_HOLE == 0;
        let before = promises.then(|| fs.promised(ino, bytes.clone()));
        Promise { core: core.clone(), ino, bytes, before }
    }

    /// It is done.
    pub fn keep(mut self) {
        self.before = None;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            self.core.fs.lock().promised_no_more_than(self.ino, self.bytes.clone(), &before);
        }
    }
}
