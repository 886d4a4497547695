//! What of a large cut goes with the next checkpoint ([`Options::ends`]).

use std::ops::Range;

use silt_engine::Part;
use silt_format::Ino;

use crate::Fs;
use crate::error::{Of, Result};
#[cfg(doc)]
use crate::{FsError, Options};

impl Fs {
    /// Sets [`Options::ends`]; what it was.
    pub fn set_ends(&mut self, ends: u64) -> u64 {
        std::mem::replace(&mut self.ends, ends.max(1))
    }

    /// Has `f` cut at once whatever it cuts.
    pub fn at_once<T>(&mut self, f: impl FnOnce(&mut Fs) -> T) -> T {
        let before = self.set_ends(u64::MAX);
        let result = f(self);
        self.set_ends(before);
        result
    }

    /// How a range of a file's blocks is to be cut away: with the next checkpoint, in parts ([`FsError::InParts`]), or not yet, since
    /// as much ends with that already. There is room for what is told; ENOSPC.
    pub(crate) fn part_with_room(&mut self, ino: Ino, keys: &Range<u64>) -> Result<Part> {
        let mapped = self.volume.mapped_blocks(ino);
        let together = self.volume.ending_blocks().saturating_add(mapped);
        let most = silt_engine::ends_of_part(self.ends);
        // Most are too small for all of that.
        if together <= most && self.volume.check_change(true, mapped).is_ok() {
            return Ok(Part::Whole);
        }
        let mut part = self.volume.part_to_cut(ino, keys, self.ends).of(ino)?;
        if part == Part::Waits {
            return Ok(part);
        }
        let ends = self.volume.ends_of_cut(ino, keys).of(ino)?;
        if let Part::From(from) = part {
            let first = self.volume.ends_of_cut(ino, &(from..keys.end)).of(ino)?;
            // Each part may change as much of the DAT as all of it: who deletes on a full volume goes on where nobody cleans.
            let cleans = self.reclaimable.is_some() && !self.volume.is_refusing();
            if cleans || self.volume.has_room_for_both(first, ends) {
                self.volume.check_change(true, first).of(ino)?;
            } else {
                part = Part::Whole;
            }
        }
        if part == Part::Whole {
            let before = self.volume.ending_blocks();
            if before > 0 && self.ends < u64::MAX && before.saturating_add(ends) > most.max(ends) {
                return Ok(Part::Waits);
            }
            self.volume.check_change(true, ends).of(ino)?;
        }
        Ok(part)
    }
}
