//! Checkpoints that nobody asked for, made in small steps, some of which empty segments.

use std::cell::RefCell;

use silt_cleaner::{Access, Candidate, Gatherer, Limits, Policy, Salvage, Usage};
use silt_engine::{Step, Volume};
use silt_fs::Tree;
use silt_model::manifest::{Columns, diff};

use crate::FsTarget;

/// The volume for the cleaner.
struct Here<'a>(RefCell<&'a mut Volume>);

impl Access for Here<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> silt_engine::Result<R> {
        Ok(f(&mut self.0.borrow_mut()))
    }
}

/// What must be the same in a checkpoint as in the tree it was made of. Block counts of what
/// waits are estimates.
const FROZEN: Columns = Columns { blocks: false, ..Columns::ALL };

impl FsTarget {
    fn write_late(&mut self) {
        for mut log in std::mem::take(&mut self.late) {
            log.seal();
            log.write(&*self.device).unwrap();
            self.fs.volume_mut().log_written();
        }
    }

    /// Goes on with the construction under way by a step of a few blocks, to the end if `all`.
    pub(crate) fn step(&mut self, all: bool) {
        while self.fs.volume().is_constructing() {
            match self.fs.volume_mut().step(3).unwrap() {
                Step::Write(log) => {
                    self.late.push(log);
                    if self.late.len() > 2 {
                        self.write_late();
                    }
                }
                Step::Working => {}
                Step::Waiting => self.write_late(),
                Step::Done(cno) => {
                    self.device.flush().unwrap();
                    self.fs.volume_mut().freed_are_durable();
                    assert_eq!(self.fs.volume().underestimated(), None, "checkpoint {cno}");
                    let Some(frozen) = self.frozen.take() else { break };
                    self.fs.volume_mut().open_view(cno).unwrap();
                    let made = self.tree(Tree::Past(cno.0), FROZEN).unwrap();
                    self.fs.volume_mut().close_view(cno);
                    assert_eq!(diff(&frozen, &made, FROZEN), [""; 0], "checkpoint {cno}");
                    self.compared += 1;
                }
            }
            if !all {
                break;
            }
        }
    }

    /// Begins a construction where it is time for one, or goes on with it by a step.
    pub(crate) fn background(&mut self) {
        if self.every == 0 {
            return;
        }
        if self.fs.volume().is_constructing() {
            self.step(false);
            return;
        }
        self.since += 1;
        if self.since >= self.every {
            self.since = 0;
            let now = u64::try_from(self.clock).unwrap();
            self.turns += 1;
            let cleans = self.clean_every > 0 && self.turns.is_multiple_of(self.clean_every);
            let begun =
                (cleans && self.begin_cleaning(now)) || self.fs.volume_mut().begin_checkpoint(now).unwrap();
            if begun && self.clock % 4 == 0 {
                self.frozen = Some(self.tree(Tree::Live, FROZEN).unwrap());
            }
        }
    }

    /// Begins a checkpoint that empties the segments that need most little of their blocks; snapshots alone are kept.
    fn begin_cleaning(&mut self, now: u64) -> bool {
        let volume = self.fs.volume_mut();
        for write in volume.advance_super_blocks(now) {
            write.write(&*self.device).unwrap();
        }
        let keep = volume.keep(None).unwrap();
        let mut usage = Usage::new(volume.geometry(), keep.clone());
        while !usage.is_complete() {
            volume.count_usage(&mut usage, 3).unwrap();
        }
        let mut all = silt_cleaner::candidates(volume, &usage, 0..u64::MAX, 1).unwrap();
        let size = u64::from(volume.geometry().blocks_per_segment);
        let policy = Policy::ALL[self.turns as usize % Policy::ALL.len()];
        Candidate::sort(&mut all, policy, now, size);
        // Some that are hardly worth it as well: what they hold moves.
        let limits = Limits { moves: 300, segments: 6, salvage: Salvage::No, ahead: false };
        let mut gatherer = Gatherer::new(keep, all.iter().map(|c| c.segment), limits);
        let plan = gatherer.next(&Here(RefCell::new(volume))).unwrap();
        assert_eq!(plan.aside, [], "a segment that should be whole");
        if plan.cleaning.is_empty() {
            return false;
        }
        match volume.begin_cleaning(plan.cleaning, now) {
            Ok(done) => {
                self.count(done);
                true
            }
            Err(silt_engine::Error::NoSpace) => false,
            Err(e) => panic!("{e}"),
        }
    }
}
