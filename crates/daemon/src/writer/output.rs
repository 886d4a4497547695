//! Logs on their way to the medium: in which order, when a flush must come between, and what becomes of those that fail.

use std::time::Duration;

use silt_engine::{Error as EngineError, LogWrite, Redo, WriteOrder};

use super::{Writer, errno};
use crate::config::OnError;

/// How often a log is tried in one place, and the pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Why a log is not on the device.
pub(super) enum Trouble {
    /// The construction goes elsewhere: its next steps write all of it anew.
    Moved,
    /// An errno; everything is kept.
    Stays(i32),
}

impl Writer {
    /// Makes everything written durable. `next`: the log that waits for it, if there is one.
    pub(super) fn flush(&mut self, next: Option<&LogWrite>) -> Result<(), Trouble> {
        while self.unflushed && self.core.options.barrier {
            // What could not be written the system tells once: perhaps it told somebody else, who wrote a super block.
            let failed = self.core.device.failed_flushes();
            self.suspect |= failed != self.failed_flushes;
            if self.suspect {
                self.write_again()?;
            }
            self.failed_flushes = failed;
            if let Err(e) = self.core.device.flush() {
                self.suspect = true;
                let blamed = self.logs.last().or(next).cloned();
                return Err(self.trouble(blamed.as_ref(), &e.into()));
            }
            if failed == self.core.device.failed_flushes() {
                break;
            }
        }
        self.unflushed = false;
        self.suspect = false;
        self.earlier.clear();
        self.logs.clear();
        self.order.flushed();
        Ok(())
    }

    /// Writes the logs since the last good flush once more: what a failed flush could not write is nowhere
    /// any more.
    fn write_again(&mut self) -> Result<(), Trouble> {
        let complete = self.earlier.len();
        let logs: Vec<LogWrite> = self.earlier.iter().chain(&self.logs).cloned().collect();
        let mut order = WriteOrder::default();
        for (i, log) in logs.iter().enumerate() {
            let written = (|| {
                if order.wants_flush(log) {
                    self.core.device.flush()?;
                    order.flushed();
                }
                log.write(&*self.core.device)
            })();
            if let Err(e) = written {
                return Err(self.trouble(Some(log).filter(|_| i >= complete), &e));
            }
            order.written(log);
        }
        Ok(())
    }

    /// Decides what becomes of the construction under way after a failure at `log` of it.
    fn trouble(&mut self, log: Option<&LogWrite>, e: &EngineError) -> Trouble {
        if self.core.stall().is_none() {
            tracing::error!("a log cannot be written: {e}");
        }
        let code = errno(e);
        let Some(log) = log.filter(|_| code != libc::ENOSPC) else { return Trouble::Stays(code) };
        let mut fs = self.core.fs.lock();
        let volume = fs.volume_mut();
        if !volume.is_constructing() {
            return Trouble::Stays(code);
        }
        match volume.log_failed(log, (self.clock)()) {
            Ok(Redo::Elsewhere) => {
                drop(fs);
                self.logs.clear();
                self.untold = 0;
                // What is left behind need not be flushed. A flush that fails for its sake is found out by
                // the next one.
                if self.earlier.is_empty() {
                    self.order = WriteOrder::default();
                    self.suspect = false;
                }
                Trouble::Moved
            }
            Ok(Redo::SameLog) => {
                if self.core.options.on_error == OnError::RemountReadOnly {
                    volume.fail(format!("the device failed, and errors=remount-ro was asked for: {e}"));
                }
                Trouble::Stays(code)
            }
            Err(e) => {
                tracing::error!("{e}");
                Trouble::Stays(errno(&e))
            }
        }
    }

    /// Tells the engine of every log that is written.
    pub(super) fn tell(&mut self) {
        let mut fs = self.core.fs.lock();
        for _ in 0..std::mem::take(&mut self.untold) {
            fs.volume_mut().log_written();
        }
    }

    pub(super) fn write_log(&mut self, log: LogWrite) -> Result<(), Trouble> {
        let written = if self.order.wants_flush(&log) { self.flush(Some(&log)) } else { Ok(()) };
        let written = written.and_then(|()| {
            self.unflushed = true;
            self.try_to_write(&log).map_err(|e| self.trouble(Some(&log), &e))
        });
        match written {
            Ok(()) => {
                self.order.written(&log);
                self.untold += 1;
                self.written += log.len();
                self.logs.push(log);
                Ok(())
            }
            Err(trouble) => {
                if matches!(trouble, Trouble::Stays(_)) {
                    self.unwritten = Some(log);
                }
                Err(trouble)
            }
        }
    }

    /// Writes a log, more than once if need be: some errors pass.
    fn try_to_write(&self, log: &LogWrite) -> Result<(), EngineError> {
        for _ in 1..TRIES {
            match log.write(&*self.core.device) {
                Err(e) if errno(&e) != libc::ENOSPC => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
        log.write(&*self.core.device)
    }
}
