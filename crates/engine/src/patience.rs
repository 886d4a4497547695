//! What cannot be read while a checkpoint is composed, and perhaps can be a moment later.
//!
//! ```text
//! nodes of a file's map:                      tried again a few times, then it costs that file what it hits
//! entries of blocks that are mapped no more:  remembered, and ended before the tables are composed
//! all else of ifile, cpfile, sufile, DAT:     the construction stays open, as it was; the next step tries again
//! ```
//!
//! Whoever writes logs says when that has gone on for too long. Then what is hit is lost, or writing ends, and blocks that
//! this was for are waited for no more: others are not to suffer each time.
//!
//! Invariant: where a step fails and may pass, the construction is as if the step had ended before what failed: blocks that
//! have no place in a log wait in front ([`Volume::add`]), an attempt to compose is taken back whole
//! ([`Volume::uncompose`]).

use silt_format::{Ino, VBlockNr};

use crate::construct::{Construction, Stage};
use crate::volume::Volume;
use crate::{Error, Result};

/// How often one construction waits for what belongs to files: others are not to wait for what is damaged for good.
const TRIES: u32 = 2;
/// So many blocks are remembered that it made no sense to wait for.
const HOPELESS: usize = 256;

/// Whether the file at work meets what is its own: its map. All else is the tables'.
pub(crate) fn is_of_map(k: &Construction) -> bool {
    k.moves.is_empty() && !matches!(k.stage, Stage::Number | Stage::Nodes)
}

impl Construction {
    /// Takes over what a change of a file's map owes.
    pub(crate) fn owe(&mut self, ino: Ino, owed: &mut Vec<VBlockNr>) {
        self.owed.extend(owed.drain(..).map(|v| (ino, v)));
    }
}

impl Volume {
    /// Whether a construction waits for what cannot be read: [`Volume::step`] fails with an error of the device then, writing
    /// does not end, and the next step goes on. Without it what cannot be read costs the file, or ends writing where it
    /// belongs to all of them. For whoever comes again, and knows how long that makes sense.
    pub fn be_patient(&mut self, yes: bool) {
        self.patient = yes;
    }

    /// Whether a construction that met this error stays as it is, for another attempt.
    pub(crate) fn is_patient_with(&self, e: &Error) -> bool {
        self.patient && self.failed.is_none() && matches!(e, Error::Device(_))
    }

    /// Whether what cannot be read of the map of the file at work is tried again.
    pub(crate) fn waits_for_map(&self, k: &Construction) -> bool {
        k.waited < TRIES && self.patient && self.failed.is_none()
    }

    /// The same for an error at work on a file, which another file may need as well.
    pub(crate) fn may_pass(&self, k: &Construction, nr: u64, e: &Error) -> bool {
        let again = match is_of_map(k) {
            true => k.waited < TRIES,
            false => {
                !k.moves.is_empty() || !self.is_hopeless(Ino::IFILE, self.ifile.palloc.layout.entry(nr).block)
            }
        };
        again && self.is_patient_with(e)
    }

    fn is_hopeless(&self, table: Ino, block: u64) -> bool {
        self.hopeless.contains(&(table, block))
    }

    /// It made no sense to wait for a block.
    pub(crate) fn give_up(&mut self, table: Ino, block: u64) {
        if self.hopeless.len() < HOPELESS {
            self.hopeless.insert((table, block));
        }
    }

    /// Ends blocks whose entries could not be read when they were unmapped. What still cannot be read stays taken.
    pub(crate) fn end_owed(&mut self, k: &mut Construction, mut left: usize) -> Result<usize> {
        while left > 0
            && let Some((ino, v)) = k.owed.pop()
        {
            left -= 1;
            if let Err(e) = self.end_late(ino, v, false) {
                k.owed.push((ino, v));
                return Err(e);
            }
        }
        Ok(left)
    }

    /// Ends a block whose entry could not be read when it was unmapped; `dead` as [`crate::dat::Dat::end`] has it. What still cannot
    /// be read stays taken. Errors: the device's, where they may pass.
    pub(crate) fn end_late(&mut self, ino: Ino, v: VBlockNr, dead: bool) -> Result<()> {
        let block = self.dat.palloc.layout.entry(v.0).block;
        match self.dat.end(&mut self.store, v, self.cno, dead) {
            Err(e) if self.is_patient_with(&e) && !self.is_hopeless(Ino::DAT, block) => Err(e),
            Err(e @ (Error::Format { .. } | Error::Device(_))) => {
                self.give_up(Ino::DAT, block);
                self.met(ino, Some(e));
                Ok(())
            }
            other => other,
        }
    }
}
