//! The log writer without its thread: for programs that must come to the same bytes each time.
//!
//! What is written, in which order and with which flushes is decided by the code that runs behind a mount; only the
//! waiting is left out, and the clock is the caller's.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::{Mutex, MutexGuard};
use silt_cleaner::{Access, Cleaned, Mover};
use silt_engine::clean::Cleaning;
use silt_engine::{Error, Result, Volume};
use silt_fs::Fs;

use crate::cleaning::Job;
use crate::config::MountOptions;
use crate::core::{Core, Waiter, Want};
use crate::writer::{Clock, Writer};

/// A file system with a log writer that works when it is called.
pub struct Stepped {
    core: Arc<Core>,
    writer: Writer,
}

/// The volume and its log writer in the same thread.
struct Inline<'a> {
    core: &'a Core,
    writer: RefCell<&'a mut Writer>,
}

impl Inline<'_> {
    fn ask<T>(&self, job: impl FnOnce(Sender<Result<T>>) -> Job) -> Result<T> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        self.writer.borrow_mut().serve_job(job(tx));
        rx.try_recv().unwrap_or_else(|_| Err(Error::Failed("the log writer gave no answer".into())))
    }
}

impl Access for Inline<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        Ok(f(self.core.fs.lock().volume_mut()))
    }
}

impl Mover for Inline<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        self.ask(|tx| Job::Clean(Box::new(cleaning), tx))
    }

    fn settle(&self) -> Result<()> {
        self.ask(Job::Settle)
    }
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
    pub fn sync(&mut self, wants: &[Want]) -> Vec<std::result::Result<(), i32>> {
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

    /// One pass of the cleaner, its checkpoints made by the log writer.
    pub fn clean(&mut self, options: &silt_cleaner::Options) -> silt_engine::Result<silt_cleaner::Outcome> {
        let inline = Inline { core: &self.core, writer: RefCell::new(&mut self.writer) };
        silt_cleaner::pass(&inline, options, |_| true)
    }

    /// What it does by the clock: a checkpoint of all that waits.
    pub fn write_back(&mut self) {
        self.writer.serve(Vec::new(), true);
    }
}
