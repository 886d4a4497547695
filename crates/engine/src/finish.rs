//! A construction run to its end on the caller's thread, for whoever has the volume alone.

use silt_format::Cno;

use crate::construct::Step;
use crate::log::LogWrite;
use crate::redo::Redo;
use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// Makes a checkpoint of everything that waits and returns its number, or that of the newest
    /// one if nothing waits. Not durable before a flush.
    pub fn checkpoint(&mut self, now: u64) -> Result<Cno> {
        if self.begin_checkpoint(now)? {
            self.finish_construction(now)?;
        }
        Ok(Cno(self.last.cno))
    }

    /// Runs a construction that is under way to its end.
    ///
    /// Where a log cannot be written it goes elsewhere. After an error that did not end writing the construction stays
    /// open and whoever goes on with it, here or by [`Volume::step`], gets the log that was refused first; what was written of it
    /// before counts once [`Volume::is_left_open`] was seen to.
    pub fn finish_construction(&mut self, now: u64) -> Result<()> {
        while self.construction.is_some() {
            let step = self.step(usize::MAX);
            // Who goes on with it does not know of the logs written here.
            self.left_open |= step.is_err();
            match step? {
                Step::Write(mut log) => {
                    log.seal();
                    match self.write_log(&log) {
                        Ok(()) => self.log_written(),
                        Err(Error::Device(e)) if !e.is_no_space() || self.could_go_elsewhere() => {
                            match self.log_failed(&log, now)? {
                                Redo::Elsewhere => {}
                                Redo::SameLog => {
                                    self.hand_back(log);
                                    return Err(Error::Device(e));
                                }
                            }
                        }
                        Err(e) => {
                            self.hand_back(log);
                            return Err(e);
                        }
                    }
                }
                Step::Working => {}
                Step::Waiting => {
                    return Err(Error::Invalid("a log under way was not confirmed".into()));
                }
                Step::Done(_) => break,
            }
        }
        drop(self.take_leftovers());
        self.settle(now)
    }

    /// A log that was handed out and not written is the next to be handed out.
    fn hand_back(&mut self, log: LogWrite) {
        self.left_open = true;
        if let Some(k) = &mut self.construction {
            k.outstanding = k.outstanding.saturating_sub(1);
            k.ready.push_front(log);
        }
    }

    /// Whether logs of the construction under way were written by a [`Volume::finish_construction`] that failed: who
    /// goes on by [`Volume::step`] flushes the device first, and says so ([`Volume::left_open_is_flushed`]).
    pub fn is_left_open(&self) -> bool {
        self.left_open
    }

    /// See [`Volume::is_left_open`]; what the flush came to. Where it may have lost logs writing ends.
    pub fn left_open_is_flushed(&mut self, flushed: silt_device::Result<()>) -> Result<()> {
        self.judge_flush(flushed)?;
        self.left_open = false;
        Ok(())
    }

    /// Makes the logs durable that were written here and not by whoever goes by [`Volume::step`]. A failure ends writing:
    /// nobody has them to write them again.
    pub fn flush_logs(&mut self) -> Result<()> {
        if !self.order.is_waiting() {
            return Ok(());
        }
        let flushed = self.store.device.flush();
        self.judge_flush(flushed)
    }

    /// What a flush could not write is nowhere any more, and the system tells that once: perhaps it told somebody else.
    fn judge_flush(&mut self, flushed: silt_device::Result<()>) -> Result<()> {
        let result = match flushed {
            Ok(()) if self.store.device.failed_flushes() == self.failed_before => Ok(()),
            Ok(()) => Err(Error::Failed("a flush failed for somebody else".into())),
            Err(e) => Err(e.into()),
        };
        match result {
            Err(e) if self.order.is_waiting() => {
                self.fail(format!("the device could not keep what was written to it: {e}"));
                Err(e)
            }
            // Nothing could be lost.
            Err(Error::Failed(_)) | Ok(()) => {
                self.order.flushed();
                Ok(())
            }
            other => other,
        }
    }

    pub(crate) fn write_log(&mut self, log: &LogWrite) -> Result<()> {
        if self.order.wants_flush(log) {
            // What was written since the last flush may be lost: nothing after it is safe.
            self.flush_logs()?;
        }
        if !self.order.is_waiting() {
            self.failed_before = self.store.device.failed_flushes();
        }
        log.write(&*self.store.device)?;
        self.order.written(log);
        Ok(())
    }
}
