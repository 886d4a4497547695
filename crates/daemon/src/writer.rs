//! The log writer: one thread that turns what waits into logs, for whoever asked and by the clock.
//!
//! ```text
//! asked for (fsync, sync) ----\
//! interval after a change -----+--> checkpoint or data-sync logs --> flush --> answers
//! 16 MiB unwritten -----------/
//! ```
//!
//! Invariants: an answer of success is given only after every log that holds the caller's changes
//! was written and a flush after it returned. A log that cannot be written is kept and tried again
//! (each second, and whenever somebody asks); until then callers get the error.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use silt_engine::{Error as EngineError, LogWrite, Step, WriteOrder};
use silt_format::Ino;

use crate::config::OnError;
use crate::core::{Core, Waiter, Want, now_secs};

/// Blocks composed under the lock at a time.
const BUDGET: usize = 512;
/// Pause before a log that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// State of the thread.
pub struct Writer {
    core: Arc<Core>,
    interval: Duration,
    /// When the oldest change that no checkpoint holds was noticed.
    dirty_since: Option<Instant>,
    /// A log that could not be written.
    unwritten: Option<LogWrite>,
    /// Something was written that no flush has covered.
    unflushed: bool,
    order: WriteOrder,
}

/// Errno for an error of the engine.
pub fn errno(e: &EngineError) -> i32 {
    match e {
        EngineError::NoSpace => libc::ENOSPC,
        EngineError::Device(d) if d.is_no_space() => libc::ENOSPC,
        EngineError::ReadOnly => libc::EROFS,
        _ => libc::EIO,
    }
}

impl Writer {
    pub fn new(core: Arc<Core>, interval: Duration) -> Self {
        Writer {
            core,
            interval,
            dirty_since: None,
            unwritten: None,
            unflushed: false,
            order: WriteOrder::default(),
        }
    }

    /// Works until told to stop; what waits then is written first.
    pub fn run(mut self) {
        loop {
            let (batch, stop) = self.next();
            self.round(batch);
            self.let_paced_run();
            if stop {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn next(&mut self) -> (Vec<Waiter>, bool) {
        let core = self.core.clone();
        let mut queue = core.queue.lock();
        loop {
            if queue.stop {
                queue.write_back = false;
                return (std::mem::take(&mut queue.waiters), true);
            }
            if !queue.waiters.is_empty() || queue.write_back {
                queue.write_back = false;
                return (std::mem::take(&mut queue.waiters), false);
            }
            if self.dirty_since.is_none() && core.changed.load(Ordering::Relaxed) {
                self.dirty_since = Some(Instant::now());
            }
            let due = match (self.unwritten.is_some(), self.dirty_since) {
                (true, _) => Some(Instant::now() + RETRY),
                (false, Some(since)) => Some(since + self.interval),
                (false, None) => None,
            };
            match due {
                None => core.wake.wait(&mut queue),
                Some(due) => {
                    if core.wake.wait_until(&mut queue, due).timed_out() {
                        return (std::mem::take(&mut queue.waiters), false);
                    }
                }
            }
        }
    }

    /// Makes one checkpoint, or data-sync logs where those are enough, and answers the batch.
    fn round(&mut self, batch: Vec<Waiter>) {
        let result = self.write(&batch);
        let code = result.as_ref().err().copied();
        self.core.stalled.store(code.unwrap_or(0), Ordering::Relaxed);
        for waiter in batch {
            let own = match waiter.want {
                Want::Data(ino) => {
                    let error = self.core.fs.lock().volume_mut().take_inode_error(ino);
                    error.map(|e| {
                        tracing::error!("inode {ino}: {e}");
                        libc::EIO
                    })
                }
                Want::All => None,
            };
            (waiter.answer)(match (code, own) {
                (Some(e), _) | (None, Some(e)) => Err(e),
                (None, None) => Ok(()),
            });
        }
    }

    fn write(&mut self, batch: &[Waiter]) -> Result<(), i32> {
        // A construction that could not be finished comes first: nothing else can begin.
        self.finish()?;
        let mut data = Vec::new();
        let mut all = batch.is_empty();
        {
            let fs = self.core.fs.lock();
            for waiter in batch {
                match waiter.want {
                    Want::Data(ino) if !fs.volume().is_inode_dirty(ino) => {}
                    Want::Data(ino)
                        if !self.core.options.order_strict && fs.volume().data_sync_suffices(ino) =>
                    {
                        data.push(ino);
                    }
                    _ => all = true,
                }
            }
        }
        if all {
            self.checkpoint()?
        } else {
            self.data_sync(data)?
        }
        self.flush()?;
        self.update_super_block();
        if self.core.damage.swap(false, Ordering::Relaxed) {
            self.tell_damage();
        }
        Ok(())
    }

    /// Sets the error flag of the super blocks; what is written so far is a checkpoint.
    fn tell_damage(&mut self) {
        let mut fs = self.core.fs.lock();
        let volume = fs.volume_mut();
        if let Err(e) = volume.set_error_flag(now_secs()) {
            tracing::error!("writing the error flag: {e}");
        }
        if self.core.options.on_error == OnError::RemountReadOnly {
            volume.fail("damage was met, and errors=remount-ro was asked for");
        }
    }

    /// Makes everything written durable.
    fn flush(&mut self) -> Result<(), i32> {
        if self.unflushed && self.core.options.barrier {
            self.core.device.flush().map_err(|e| {
                tracing::error!("{e}");
                // What was written since the last flush may be lost: nothing after it is safe.
                self.core.fs.lock().volume_mut().fail(format!("flushing the device failed: {e}"));
                libc::EIO
            })?;
        }
        self.unflushed = false;
        self.order.flushed();
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), i32> {
        {
            let mut fs = self.core.fs.lock();
            self.core.changed.store(false, Ordering::Relaxed);
            self.dirty_since = None;
            match fs.volume_mut().begin_checkpoint(now_secs()) {
                Ok(true) => {}
                Ok(false) | Err(EngineError::ReadOnly) => return Ok(()),
                Err(e) => return Err(errno(&e)),
            }
        }
        self.finish()
    }

    fn data_sync(&mut self, mut inos: Vec<Ino>) -> Result<(), i32> {
        inos.sort_unstable();
        inos.dedup();
        for ino in inos {
            let begun = self.core.fs.lock().volume_mut().begin_data_sync(ino, now_secs());
            match begun {
                Ok(true) => self.finish()?,
                Ok(false) => {}
                // Meanwhile it grew, or is gone: only a checkpoint holds that.
                Err(_) => return self.checkpoint(),
            }
        }
        Ok(())
    }

    /// Runs the construction under way to its end.
    fn finish(&mut self) -> Result<(), i32> {
        if let Some(log) = self.unwritten.take() {
            self.write_log(log)?;
        }
        loop {
            let step = {
                let mut fs = self.core.fs.lock();
                if !fs.volume().is_constructing() {
                    return Ok(());
                }
                if fs.volume().failure().is_some() {
                    return Err(libc::EIO);
                }
                fs.volume_mut().step(BUDGET)
            };
            match step {
                Ok(Step::Write(mut log)) => {
                    log.seal();
                    self.write_log(log)?;
                }
                Ok(Step::Working | Step::Waiting) => {}
                Ok(Step::Done(_)) => return Ok(()),
                Err(e) => {
                    tracing::error!("{e}");
                    return Err(errno(&e));
                }
            }
        }
    }

    fn write_log(&mut self, log: LogWrite) -> Result<(), i32> {
        if self.order.wants_flush(&log)
            && let Err(e) = self.flush()
        {
            self.unwritten = Some(log);
            return Err(e);
        }
        self.unflushed = true;
        if let Err(e) = log.write(&*self.core.device) {
            if self.core.stall().is_none() {
                tracing::error!("a log cannot be written, trying again: {e}");
            }
            self.unwritten = Some(log);
            return Err(errno(&e));
        }
        self.order.written(&log);
        self.core.fs.lock().volume_mut().log_written();
        Ok(())
    }

    /// Brings a super block up to date where that is due. A failure costs time at the next mount
    /// and nothing else: the other copy is whole.
    fn update_super_block(&mut self) {
        let due = self.core.fs.lock().volume_mut().due_super_write(now_secs());
        if let Some(Err(e)) = due.map(|write| write.write(&*self.core.device)) {
            tracing::error!("writing a super block: {e}");
        }
    }

    /// Lets writes that waited for room run while there is some.
    fn let_paced_run(&self) {
        let limit = self.core.options.dirty / self.core.block_size;
        loop {
            let full = self.core.fs.lock().volume().waiting_blocks() >= limit;
            let stalled = self.core.stall().is_some();
            let mut queue = self.core.queue.lock();
            // While the device takes nothing they run too: they are told so.
            if full && !stalled && !queue.stop {
                if !queue.paced.is_empty() {
                    queue.write_back = true;
                }
                return;
            }
            let Some(paced) = queue.paced.pop_front() else { return };
            drop(queue);
            paced(&self.core);
        }
    }
}
