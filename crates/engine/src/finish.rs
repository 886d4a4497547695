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
                        Err(Error::Device(e)) if !e.is_no_space() => match self.log_failed(&log, now)? {
                            Redo::Elsewhere => {}
                            Redo::SameLog => {
                                self.hand_back(log);
                                return Err(Error::Device(e));
                            }
                        },
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

    /// See [`Volume::is_left_open`].
    pub fn left_open_is_flushed(&mut self) {
        self.left_open = false;
    }

    pub(crate) fn write_log(&mut self, log: &LogWrite) -> Result<()> {
        if self.order.wants_flush(log) {
            if let Err(e) = self.store.device.flush() {
                // What was written since the last flush may be lost: nothing after it is safe.
                self.fail(format!("flushing the device failed: {e}"));
                return Err(e.into());
            }
            self.order.flushed();
        }
        log.write(&*self.store.device)?;
        self.order.written(log);
        Ok(())
    }
}
