//! Verifies the checksum of every log that somebody needs, and tells what is hit where one does not match.
//!
//! ```text
//! super blocks: read, compared with their checksums
//! View: tables of the newest checkpoint, logs behind it -> needed blocks, used part of each segment
//!    segment by segment, log by log along their heads:
//!       nothing needed -> left out        needed -> read whole, compare the checksum
//!          matches -> on                  does not -> again -> diagnose
//! ```
//!
//! A pass covers what the volume held when it began; [`State`] holds how far it has come, and goes on in another
//! process. Nothing is written, and nothing here trusts a byte: whatever a volume holds, a call returns.
//!
//! Memory: that of [`view`], 32 MiB of blocks, a buffer of 1 MiB, the summary of one log, and at most [`FINDINGS`]
//! findings of about 100 KiB at most each. Names at the end take memory in proportion to the directories.

mod diagnose;
mod finding;
mod needed;
mod owners;
mod rate;
mod sense;
mod state;
mod supers;
mod syndrome;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_ends;
mod view;
mod whole;

pub use finding::{Finding, Flip, Kind, Owner, Part, Spot};
pub use rate::Rate;
pub use state::{Counts, FINDINGS, Position, State, uuid_text};
pub use supers::SuperFinding;

use std::cell::OnceCell;
use std::collections::HashMap;

use silt_device::Device;
use silt_format::SegNr;

use crate::Error;
use crate::check::LogPosition;
use crate::scrub::diagnose::{Around, At};
use crate::scrub::view::View;
use crate::tree::Tree;

/// How to scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Leave out what only plain checkpoints need: the newest state and snapshots count.
    pub live_only: bool,
    /// Somebody may be writing to the volume: what is found is compared with what the volume is by then.
    pub changing: bool,
}

/// Who runs a scrub: paces it, ends it early, and hears of it.
pub trait Conduct: Sync {
    /// Called before so many bytes are read: rests as long as it sees fit.
    fn pace(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Whether to end early; asked at least once a MiB.
    fn stop(&self) -> bool {
        false
    }
    /// The newest log with a super root, where somebody has the volume and knows. A log of his that is damaged would hide
    /// all behind it from whoever follows them from the super block on.
    fn newest(&self) -> Option<LogPosition> {
        None
    }
    /// Told after each log what has been found so far.
    fn progress(&self, state: &State) {
        let _ = state;
    }
}

/// Nobody paces, and nothing ends early.
pub struct Unpaced;

impl Conduct for Unpaced {}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All has been looked at.
    Finished,
    /// [`Conduct::stop`] said so; the state says from where to go on.
    Paused,
}

/// The conductor asked for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopped;

/// UUID of the volume on a device. Errors: there is none.
pub fn uuid(device: &dyn Device) -> Result<String, Error> {
    let (first, second) = crate::search::super_blocks(device);
    let copies = silt_format::super_block::choose(first, second, device.len())?;
    Ok(state::uuid_text(&copies.first.1.uuid))
}

/// Goes on with a pass, or begins one where `state` is new. The state is right after each log.
///
/// Errors: no volume, no super root that could be used, or a state that belongs to another volume.
pub fn scrub(
    device: &dyn Device,
    options: &Options,
    state: &mut State,
    conduct: &dyn Conduct,
) -> Result<Outcome, Error> {
    let view = View::load(device, options, conduct.newest())?;
    let id = state::uuid_text(&view.uuid);
    if state.uuid.is_empty() {
        state.uuid = id;
    } else if state.uuid != id {
        return Err(Error::Damaged("the pass that was begun is of another volume".into()));
    }
    state.begin(&view, options.live_only);
    state.super_blocks = supers::look(device, options.changing);
    if !options.changing {
        state.problems.extend(view.chain.lost());
    }
    let segments: Vec<(u64, u64)> = view.used.iter().map(|(s, n)| (*s, *n)).collect();
    let mut pass = Pass {
        device,
        options,
        conduct,
        view,
        tree: OnceCell::new(),
        state,
        before: 0,
        numbers: HashMap::new(),
    };
    let bits = pass.view.r.g.block_bits;
    let mut outcome = Outcome::Finished;
    for (segment, used) in segments {
        if segment < pass.state.at.segment {
            pass.before += used;
            continue;
        }
        if pass.segment(segment, used).is_err() {
            outcome = Outcome::Paused;
            break;
        }
        pass.before += used;
        pass.state.reach(Position { segment: segment + 1, block: 0 }, pass.before << bits);
        conduct.progress(pass.state);
    }
    // Who waits for a daemon to end does not want to wait for names.
    if outcome == Outcome::Finished || !options.changing {
        pass.name();
    }
    pass.state.finished = outcome == Outcome::Finished;
    conduct.progress(pass.state);
    Ok(outcome)
}

struct Pass<'a, 's> {
    device: &'a dyn Device,
    options: &'s Options,
    conduct: &'s dyn Conduct,
    view: View<'a>,
    tree: OnceCell<Option<Tree<'a>>>,
    state: &'s mut State,
    /// Blocks in use of the segments before.
    before: u64,
    /// Segments by their sequence numbers.
    numbers: HashMap<u64, u64>,
}

impl<'a> Pass<'a, '_> {
    fn around(&self) -> Around<'_, 'a> {
        Around { view: &self.view, tree: None, conduct: self.conduct }
    }

    /// The same with the newest tree, which takes some reading.
    fn around_all(&self) -> Around<'_, 'a> {
        let tree = self.tree.get_or_init(|| view::tree(&self.view, self.device)).as_ref();
        Around { tree, ..self.around() }
    }

    fn segment(&mut self, segment: u64, used: u64) -> Result<(), Stopped> {
        let g = self.view.r.g;
        let start = g.segment_start(SegNr(segment)).0;
        let end = start.saturating_add(used).min(g.segment_end(SegNr(segment)).0);
        let mut at = At { segment, pos: start, end, seq: None };
        // A log that was left out by what its head says, which may be wrong.
        let mut unverified = None;
        while at.pos < end {
            let behind = (self.before + at.pos - start) << g.block_bits;
            self.state.reach(Position { segment, block: at.pos }, behind);
            if self.conduct.stop() {
                return Err(Stopped);
            }
            let Some(header) = self.around().head(at, at.pos) else {
                if let Some(before) = unverified.take() {
                    at.pos = before;
                } else if !self.view.needed.any(at.pos..end) {
                    return Ok(());
                }
                self.verify(&mut at, start)?;
                continue;
            };
            let seq = *at.seq.get_or_insert(header.seq.get());
            if at.pos == start {
                self.only_one(seq, segment);
            }
            if self.options.changing && seq > self.view.latest.header.seq.get() && self.is_new(seq) {
                return Ok(());
            }
            let behind = at.pos + u64::from(header.nblocks.get());
            let bytes = (behind - at.pos) << g.block_bits;
            let known = at.pos < self.state.resumed_at(segment);
            let needed = self.view.needed.any(at.pos..behind) || self.view.is_on_the_way(seq, at.pos);
            if known || !needed {
                if !known {
                    self.state.counts.logs_left_out += 1;
                    self.state.counts.bytes_left_out += bytes;
                }
                unverified = Some(at.pos);
                at.pos = behind;
                continue;
            }
            unverified = None;
            self.verify(&mut at, start)?;
        }
        Ok(())
    }

    /// A segment that lies over another one verifies in its place, too, but has a number that was given out once.
    fn only_one(&mut self, seq: u64, segment: u64) {
        if let Some(other) = self.numbers.insert(seq, segment).filter(|other| *other != segment) {
            let said = format!(
                "segments {other} and {segment} have the same sequence number {seq}: one of them was written over what the \
                 other's place held; silt check says what is lost, silt repair mends it"
            );
            if !self.state.problems.contains(&said) {
                self.state.problems.push(said);
            }
        }
    }

    /// Verifies the log at `at`, which moves behind it. Of the first log of a segment, at block `start`, nothing tells
    /// whether its sequence number is right.
    fn verify(&mut self, at: &mut At, start: u64) -> Result<(), Stopped> {
        let first = at.pos == start;
        let g = self.view.r.g;
        let stated = self.around().head(*at, at.pos).map(|h| at.pos + u64::from(h.nblocks.get()));
        let mut end = stated;
        let sound = match stated {
            Some(end) => whole::read(&self.view.r, at.pos, end - at.pos, None, self.conduct)?.is_sound(),
            None => false,
        };
        if !sound {
            if first {
                at.seq = None;
            }
            if self.options.changing && !self.is_still_needed(*at, stated.unwrap_or(at.end)) {
                at.pos = stated.unwrap_or(at.end);
                return Ok(());
            }
            self.view.r.forget();
            let (finding, found_end) = self.around_all().log(*at)?;
            let finding = finding.unwrap_or_else(|| self.around().transient(*at, found_end));
            if self.view.may_be_torn(at.pos) && !finding.is_no_torn_write() {
                at.pos = found_end;
                return Ok(());
            }
            self.state.add(finding);
            end = Some(found_end);
        }
        let end = end.unwrap_or(at.end);
        self.state.counts.logs += 1;
        self.state.counts.bytes += (end - at.pos) << g.block_bits;
        at.pos = end;
        self.conduct.progress(self.state);
        Ok(())
    }

    /// Whether a sequence number is one that has been given out since the pass began.
    fn is_new(&mut self, seq: u64) -> bool {
        self.look_again();
        seq <= self.view.latest.header.seq.get()
    }

    /// Reads the tables anew; false where that cannot be done just now.
    fn look_again(&mut self) -> bool {
        let Ok(view) = View::load(self.device, self.options, self.conduct.newest()) else {
            return false;
        };
        self.view = view;
        self.tree = OnceCell::new();
        true
    }

    /// Looks at the volume anew: whether the log is still one whose blocks somebody needs. Segments are given back and
    /// written again only after a checkpoint that does not need them any more.
    fn is_still_needed(&mut self, at: At, end: u64) -> bool {
        if !self.look_again() {
            // The super blocks are being written, or damaged: what was known counts.
            return true;
        }
        let same = at.seq.is_none_or(|seq| {
            let start = self.view.r.g.segment_start(SegNr(at.segment));
            let head = self.view.r.block(start).ok();
            let head = head.and_then(|b| silt_format::summary::Header::parse(&self.view.r.g, &b).ok());
            head.is_none_or(|h| h.seq.get() == seq)
        });
        let on_the_way = at.seq.is_some_and(|seq| self.view.is_on_the_way(seq, at.pos));
        let used = self.view.used.get(&at.segment).copied().unwrap_or(0);
        let written = self.view.r.g.segment_start(SegNr(at.segment)).0 + used;
        same && at.pos < written && (on_the_way || self.view.needed.any(at.pos..end))
    }

    /// Finds the owners that only a walk can tell, and puts paths to the inodes of findings.
    fn name(&mut self) {
        let lost = self.state.findings.iter().any(|f| f.records_lost);
        if lost {
            let tree = self.tree.get_or_init(|| view::tree(&self.view, self.device)).as_ref();
            owners::of_lost_records(&self.view, tree, &mut self.state.findings);
        }
        let wanted = self.state.nameless();
        if wanted.is_empty() {
            return;
        }
        let tree = self.tree.get_or_init(|| view::tree(&self.view, self.device)).as_ref();
        if let Some(tree) = tree {
            self.state.set_names(&tree.names_of(&wanted));
        }
    }
}
