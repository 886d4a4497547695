//! Emptying segments of a volume that has no room for a checkpoint that certainly fits: other writers leave it so, the
//! kernel's driver among them (spec 14.1).
//!
//! ```text
//! .. newest checkpoint | rest of the segment | next segment, taken and empty | nothing is clean
//!                        \_ the checkpoint that frees others must fit here _/
//! ```
//!
//! A log that goes on in the next segment has to name one behind it. Where none is clean it names one that its own
//! checkpoint frees: nothing is written there before that is durable. Whether the checkpoint fits is found out by
//! composing it in memory; nothing reaches the device before all of it is there.

use silt_format::super_block::{STATE_ERROR, STATE_VALID};

use super::{Arranged, Cleaned, Cleaning};
use crate::construct::Step;
use crate::volume::Volume;
use crate::{Error, Result, supers};

impl Volume {
    /// Whether so few segments are clean that a step of the cleaner may not fit, once what was recovered is taken over.
    pub fn is_wedged(&self) -> bool {
        // Whatever the storage below has space for: emptying them brings nothing that is lacking there.
        self.clean_and_free().saturating_add(self.given_by_recovery())
            < self.floor().saturating_add(self.taken_by_recovery())
    }

    /// Blocks that logs can still take: of the segment being written, the one after it, and clean ones.
    pub fn blocks_left(&self) -> u64 {
        let g = &self.store.geometry;
        let next = u64::from(self.cursor.next != self.cursor.segment);
        let segments = self.clean_and_free().saturating_add(next);
        self.cursor.room(g).saturating_add(segments.saturating_mul(u64::from(g.blocks_per_segment)))
    }

    /// Makes a cleaning a checkpoint although it may not fit; durable on return, with everything that waits. For a volume
    /// that nobody else has, before [`Volume::take_over`]. What recovery found is taken over here, and the super blocks say
    /// afterwards that the volume was cleanly unmounted, so that it can be opened anew as it is.
    ///
    /// After an error nothing on the device has changed that counts, and the volume is to be opened anew:
    /// [`Error::NoSpace`] where it does not fit.
    pub fn last_resort(&mut self, cleaning: Cleaning, now: u64) -> Result<Cleaned> {
        let cleaning = Arranged::from(cleaning);
        self.ready_to_begin()?;
        if self.store.held.is_read() || self.held_segments() > 0 {
            return Err(Error::Invalid("somebody reads where segments were freed".into()));
        }
        self.check_still_so(&cleaning)?;
        self.store.held.lends = true;
        let g = &self.store.geometry;
        let most = g.nsegments.saturating_mul(u64::from(g.blocks_per_segment));
        let done = self.begin_moves(cleaning, most, now)?;
        let mut logs = Vec::new();
        loop {
            match self.step(usize::MAX)? {
                Step::Write(log) => logs.push(log),
                Step::Working => {}
                Step::Waiting | Step::Done(_) => break,
            }
        }
        self.write_state(now, false)?;
        for log in &mut logs {
            log.seal();
            self.write_log(log)?;
            self.log_written();
        }
        if self.is_constructing() {
            self.step(usize::MAX)?;
        }
        drop(self.take_leftovers());
        self.flush_logs()?;
        if self.recovery.is_some() || self.discontinued {
            self.take_over(now)?;
        }
        self.write_state(now, true)?;
        self.super_seq = self.last.seq;
        self.freed_are_durable();
        Ok(done)
    }

    /// Says in the super blocks that the volume is in use, or that it is not and what its newest checkpoint is.
    fn write_state(&mut self, now: u64, unmounted: bool) -> Result<()> {
        let (last, free, state) = (self.last, self.free_blocks(), self.supers.state_at_open);
        let writes = self.supers.write_both(now, |b| {
            if unmounted {
                supers::set_cursor(b, last, free);
                b.state = (state | (b.state.get() & STATE_ERROR)).into();
            } else {
                b.state = (b.state.get() & !STATE_VALID).into();
            }
        });
        self.write_supers_or_one(&writes)
    }
}
