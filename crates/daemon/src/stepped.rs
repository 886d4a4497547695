//! The log writer without its thread: for programs that must come to the same bytes each time.
//!
//! What is written, in which order and with which flushes is decided by the code that runs behind a mount; only the
//! waiting is left out, and the clock is the caller's.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use silt_fs::Fs;

use crate::config::MountOptions;
use crate::core::{Core, Waiter, Want};
use crate::writer::{Clock, Writer};

/// A file system with a log writer that works when it is called.
pub struct Stepped {
    core: Arc<Core>,
    writer: Writer,
}

impl Stepped {
    /// Over a volume that was taken over. `clock` tells the seconds since 1970.
    pub fn new(fs: Fs, options: MountOptions, clock: Clock) -> Self {
        let core = Core::new(fs, options);
        let writer = Writer::new(core.clone(), Duration::MAX).with_clock(clock);
        Stepped { core, writer }
    }

    /// The file system.
    pub fn fs(&self) -> MutexGuard<'_, Fs> {
        self.core.fs.lock()
    }

    /// What the log writer does for callers who ask at the same time; their answers in the same order, an errno each.
    pub fn sync(&mut self, wants: &[Want]) -> Vec<Result<(), i32>> {
        let answers = Arc::new(Mutex::new(vec![Err(libc::EIO); wants.len()]));
        let waiters = wants
            .iter()
            .enumerate()
            .map(|(i, want)| {
                let answers = answers.clone();
                let answer = move |result| {
                    if let Some(place) = answers.lock().get_mut(i) {
                        *place = result;
                    }
                };
                Waiter { want: *want, answer: Box::new(answer) }
            })
            .collect();
        self.writer.serve(waiters, false);
        let answers = answers.lock();
        answers.clone()
    }

    /// What it does by the clock: a checkpoint of all that waits.
    pub fn write_back(&mut self) {
        self.writer.serve(Vec::new(), true);
    }
}
