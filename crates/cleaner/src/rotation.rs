//! Even wear: what was left alone while the log went round moves, however much of it is needed.
//!
//! Of [`TURN`] segments that are emptied one is the one that was written longest ago, if the log has entered
//! [`Options::rounds`] times as many segments since as there are. So data that never changes does not keep its
//! segments from being written, and cleaning writes at most one segment in [`TURN`] for it. Never where space is
//! short: a full segment gains nothing.

use std::collections::{BTreeSet, VecDeque};

use silt_engine::Result;
use silt_engine::clean::Usage;
use silt_format::SegNr;

use crate::gather::Access;
use crate::policy::{Candidate, Policy, all_candidates};
use crate::run::Options;

/// Of so many segments that are emptied one is taken for its age alone.
const TURN: u64 = 8;
/// Segments besides those kept back that are clean at least when one is taken: the copies of a full one, and the
/// tables that change with them.
const SPARE: u64 = 3;

/// The segments left alone for longest, of one pass.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    waiting: VecDeque<SegNr>,
    taken: BTreeSet<SegNr>,
    /// The log's sequence number, and how far behind it one that is due must be.
    newest: u64,
    behind: u64,
    /// Segments that this pass is likely to empty.
    expected: u64,
}

impl Rotation {
    /// Of the segments that may be taken; none by other policies. `order`: those that are emptied for what they
    /// give. The super blocks have to point at the end of the log.
    pub fn new(access: &impl Access, usage: &Usage, options: &Options, order: &[Candidate]) -> Result<Self> {
        if options.policy != Policy::WearLevelling {
            return Ok(Rotation::default());
        }
        let mut all = all_candidates(access, usage, options.range.clone(), 0)?;
        access.with(|v| {
            all.retain(|c| !options.aside.contains(&c.segment.0));
            all.sort_by_key(|c| (c.modified, c.segment));
            // No more can become due.
            all.truncate(all.len() / usize::try_from(TURN).unwrap_or(1) + 1);
            let size = u64::from(v.geometry().blocks_per_segment);
            let wanted = options.until.map(|n| n.saturating_sub(v.available_segments()).saturating_mul(size));
            let gains = order.iter().scan(0u64, |sum, c| {
                let before = *sum;
                *sum = sum.saturating_add(c.reclaimable(size));
                Some(before)
            });
            Ok(Rotation {
                expected: gains.take_while(|before| wanted.is_none_or(|w| *before < w)).count() as u64,
                waiting: all.into_iter().map(|c| c.segment).collect(),
                taken: BTreeSet::new(),
                newest: v.protected_sequence(),
                // What recovery may need is not taken.
                behind: v.geometry().nsegments.saturating_mul(options.rounds).max(1),
            })
        })?
    }

    /// A segment that is to be emptied with the next ones, when so many were emptied in this pass. Where passes
    /// begin and end makes no difference: as many segments are emptied as the log enters, and it counts on.
    pub fn next(&mut self, access: &impl Access, emptied: u64) -> Result<Option<SegNr>> {
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let emptied = emptied.max(self.expected.min(emptied.saturating_add(TURN)));
        let due = (self.newest % TURN).saturating_add(emptied) / TURN;
        if due <= self.taken.len() as u64
            || !access.with(|v| v.available_segments() >= v.kept_back() + SPARE)?
        {
            return Ok(None);
        }
        let Some(segment) = self.waiting.pop_front() else { return Ok(None) };
        // What is wrong with it is found when it is emptied.
        let victim = access.with(|v| v.victim(segment))?;
        let sequence = victim.ok().and_then(|mut v| v.sequence().ok().flatten());
        let Some(sequence) = sequence else { return Ok(None) };
        if self.newest.wrapping_sub(sequence).cast_signed() < self.behind.cast_signed() {
            // The others were written later.
            self.waiting.clear();
            return Ok(None);
        }
        self.taken.insert(segment);
        Ok(Some(segment))
    }

    /// How many of these were taken for their age alone.
    pub fn of(&self, segments: &[SegNr]) -> u64 {
        segments.iter().filter(|s| self.taken.contains(s)).count() as u64
    }

    /// Leaves alone what there was no room for after all, and gives the others.
    pub fn without(&mut self, segments: Vec<SegNr>) -> Vec<SegNr> {
        self.waiting.clear();
        segments.into_iter().filter(|s| !self.taken.contains(s)).collect()
    }
}
