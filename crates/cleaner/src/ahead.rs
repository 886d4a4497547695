//! Segments that are read before it is their turn, while others are looked through and while a checkpoint is made.

use std::collections::VecDeque;
use std::thread::JoinHandle;

use silt_engine::clean::{Reused, Victim};
use silt_engine::{Error, Result};
use silt_format::SegNr;

use crate::gather::Access;

/// Segments in memory beside the one that is looked through.
const MOST: usize = 2;

enum State {
    Reading(JoinHandle<Victim>),
    Here(Box<Victim>),
}

/// See the module. Memory: two segments, of each what [`Victim`] holds.
#[derive(Default)]
pub(crate) struct Ahead {
    segments: VecDeque<(SegNr, State)>,
    /// The last one was needed: of one of which nothing is, little is read.
    pays: bool,
}

impl Ahead {
    /// A segment was looked through to its end.
    pub fn pays(&mut self, was_needed: bool) {
        self.pays = was_needed;
    }

    /// Begins to read a segment, if that pays.
    pub fn read(&mut self, access: &impl Access, segment: SegNr, memory: &Reused) -> Result<()> {
        if !self.pays || self.segments.len() >= MOST || self.segments.iter().any(|(s, _)| *s == segment) {
            return Ok(());
        }
        let mut victim = match access.with(|v| v.victim(segment))? {
            Ok(victim) => victim,
            Err(Error::Invalid(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        victim.reuse(memory);
        let thread = std::thread::Builder::new().name("segment".into()).spawn(move || {
            victim.load();
            victim
        });
        // Without a thread it is read when it is its turn.
        if let Ok(thread) = thread {
            self.segments.push_back((segment, State::Reading(thread)));
        }
        Ok(())
    }

    /// What was read of a segment that was put back is of use when it comes again.
    pub fn keep(&mut self, segment: SegNr, victim: Victim) {
        if self.segments.len() < MOST {
            self.segments.push_front((segment, State::Here(Box::new(victim.again()))));
        }
    }

    /// A segment, if it was read. All come, since they are among those that wait.
    pub fn take(&mut self, segment: SegNr) -> Option<Victim> {
        let at = self.segments.iter().position(|(s, _)| *s == segment)?;
        let (_, state) = self.segments.remove(at)?;
        match state {
            State::Reading(thread) => thread.join().ok(),
            State::Here(victim) => Some(*victim),
        }
    }
}

/// Nobody holds the device when a pass has ended.
impl Drop for Ahead {
    fn drop(&mut self) {
        for (_, state) in self.segments.drain(..) {
            if let State::Reading(thread) = state {
                // What it read is not wanted.
                let _ = thread.join();
            }
        }
    }
}
