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
    /// Somebody else comes between what is planned and its making.
    meanwhile: RefCell<&'a mut dyn FnMut(&mut Volume)>,
}

impl Inline<'_> {
    fn ask<T>(&self, job: impl FnOnce(Sender<Result<T>>) -> Job) -> Result<T> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        self.writer.borrow_mut().serve_job(job(tx));
        rx.try_recv().unwrap_or_else(|_| Err(Error::Failed("the log writer gave no answer".into())))
    }
}

fn inline<'a>(
    core: &'a Core,
    writer: &'a mut Writer,
    meanwhile: &'a mut dyn FnMut(&mut Volume),
) -> Inline<'a> {
    Inline { core, writer: RefCell::new(writer), meanwhile: RefCell::new(meanwhile) }
}

impl Access for Inline<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        Ok(f(self.core.fs.lock().volume_mut()))
    }
}

impl Mover for Inline<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        (self.meanwhile.borrow_mut())(self.core.fs.lock().volume_mut());
        self.ask(|tx| Job::Clean(Box::new(cleaning.into()), None, tx))
    }

    fn settle(&self) -> Result<()> {
        self.ask(Job::Settle)
    }
}

impl Stepped {
    /// Over a volume that was taken over. `clock` tells the seconds since 1970.
    pub fn new(fs: Fs, options: MountOptions, clock: Clock) -> Self {
        let core = Core::new(fs, options);
        let writer = Writer::new(core.clone(), Duration::MAX).with_clock(clock).without_pauses();
        Stepped { core, writer }
    }

    /// The same, with every log, and not large ones alone, written by a thread of its own while the next one is composed.
    pub fn with_overlap(mut self) -> Self {
        self.writer = self.writer.with_overlap();
        self
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

    /// One pass of the cleaner, its checkpoints made by the log writer. `meanwhile`: what somebody else does between the
    /// planning of each and its making.
    pub fn clean(
        &mut self,
        options: &silt_cleaner::Options,
        meanwhile: &mut dyn FnMut(&mut Volume),
    ) -> silt_engine::Result<silt_cleaner::Outcome> {
        silt_cleaner::pass(&inline(&self.core, &mut self.writer, meanwhile), options, |_, _| true)
    }

    /// Pass after pass until nothing more is gained, as who asks for it has it.
    pub fn clean_all(
        &mut self,
        options: &silt_cleaner::Options,
    ) -> silt_engine::Result<silt_cleaner::Outcome> {
        silt_cleaner::run(&inline(&self.core, &mut self.writer, &mut |_| {}), options, |_| true)
    }

    /// What waits is discarded, without a rest. `all`: also what was clean before.
    pub fn discard(&mut self, all: bool) -> silt_engine::Result<()> {
        if all {
            self.core.fs.lock().volume_mut().remember_unwanted(true)?;
        }
        self.core.fs.lock().volume_mut().ripen();
        while crate::discarder::some(&self.core)? {}
        Ok(())
    }

    /// Makes the volume smaller, with as much of the past in it as has room; whether it could be.
    pub fn shrink(&mut self, size: u64, now: u64) -> silt_engine::Result<bool> {
        use silt_cleaner::shrink::{Stopped, confine, empty, fit};
        let mut nobody = |_: &mut Volume| {};
        let inline = inline(&self.core, &mut self.writer, &mut nobody);
        let (everything, nothing) = (silt_retention::Wish::everything(), silt_retention::Wish::nothing());
        let Ok(fit) = fit(&inline, size, (&everything, &nothing), now, 0)? else { return Ok(false) };
        let emptied = empty(&inline, &fit, |_| true);
        let done = match emptied {
            Ok(_) => match inline.with(|v| v.shrink(size, now))? {
                // Something is there that could not be told.
                Err(Error::Invalid(_)) => Ok(false),
                done => done.map(|_| true),
            },
            Err(Stopped::Failed(e)) => Err(e),
            Err(_) => Ok(false),
        };
        let failed = self.core.fs.lock().volume().failure().is_some();
        if !failed {
            confine(&inline, None)?;
        }
        done
    }

    /// Whether damage was met: something that a checkpoint could not take or give back.
    pub fn met_damage(&self) -> bool {
        let core = &self.core;
        [&core.damage, &core.damage_told].iter().any(|met| met.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// What it does by the clock: a checkpoint of all that waits.
    pub fn write_back(&mut self) {
        self.writer.serve(Vec::new(), true);
    }
}
