//! Gathering what one checkpoint moves and frees.

use std::collections::VecDeque;
use std::sync::Arc;

use silt_device::Device;
use silt_engine::clean::{Cleaning, Reused, Salvage, Usage, Victim};
use silt_engine::{Error, Fate, Keep, Result, Volume};
use silt_format::{BlockNr, SegNr};

use crate::ahead::Ahead;

/// Blocks judged under the lock at a time.
const JUDGED: usize = 256;
/// The same where others are not to feel it: what is needed of them is copied in one go, too.
const FEW: usize = 24;

/// The volume, for a moment.
pub trait Access {
    /// Calls `f` with the volume, which nobody else has meanwhile. An error where there is none any more.
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R>;
}

/// Where a volume lies.
pub struct Medium {
    device: Arc<dyn Device>,
    block_size: u64,
}

impl Medium {
    /// That of a volume.
    pub fn of(volume: &Volume) -> Self {
        Medium { device: volume.device().clone(), block_size: u64::from(volume.geometry().block_size) }
    }

    /// Has blocks, which ascend, in a cache of the device, where it has one.
    pub fn bring(&self, blocks: &[BlockNr]) {
        if !blocks.is_empty() {
            let offsets: Vec<u64> = blocks.iter().map(|at| at.0.saturating_mul(self.block_size)).collect();
            self.device.bring(&offsets, usize::try_from(self.block_size).unwrap_or(0));
        }
    }
}

/// How much goes into one checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Blocks that are copied. The first segment of a checkpoint may have more, for a segment goes as a whole.
    pub moves: usize,
    /// Segments that are freed.
    pub segments: usize,
    pub salvage: Salvage,
    /// Segments are read in large pieces, the next one while one is looked through and while a checkpoint is made. That is
    /// fast, and felt by those who work.
    pub ahead: bool,
}

/// A segment that stays as it is, because it cannot be told what of it is needed, or what is cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    pub segment: SegNr,
    /// First block of the log at fault, where it is one.
    pub log: Option<BlockNr>,
    /// In words.
    pub why: String,
}

/// What one checkpoint does.
#[derive(Debug, Default)]
pub struct Plan {
    pub cleaning: Cleaning,
    /// Segments that were looked at and stay.
    pub aside: Vec<SetAside>,
    /// Segments that were begun, in their order.
    segments: Vec<SegNr>,
    /// Logs whose blocks were taken although they do not match their checksums.
    pub unverified: Vec<(SegNr, BlockNr)>,
}

/// Takes segments in an order, as many at a time as a checkpoint holds.
///
/// A segment is emptied by one checkpoint or not at all. Were a part of it moved before, its records would name
/// blocks that lie elsewhere since: other cleaners go by records and stop at them, or take an old copy for the block
/// that got the number later (spec 13.5).
pub struct Gatherer {
    keep: Keep,
    order: VecDeque<SegNr>,
    limits: Limits,
    ahead: Ahead,
    memory: Reused,
    /// What was counted, and how many segments had been freed before.
    counted: Option<(Usage, u64)>,
}

/// What became of a segment that was looked at.
enum Taking {
    Taken,
    /// There is no room for it beside the others.
    TooMuch(Box<Victim>),
}

/// Bytes that one checkpoint may copy at most: a segment of which more is needed stays as it is. They are held in
/// memory until the checkpoint is written.
pub const LARGEST: u64 = 256 << 20;

impl Plan {
    /// Segments that it is about, those set aside included.
    pub fn segments(&self) -> &[SegNr] {
        &self.segments
    }
}

impl Gatherer {
    /// Of these segments, in their order; `keep` says what is needed.
    pub fn new(keep: Keep, order: impl IntoIterator<Item = SegNr>, limits: Limits) -> Self {
        Gatherer {
            keep,
            order: order.into_iter().collect(),
            limits,
            ahead: Ahead::default(),
            memory: Reused::default(),
            counted: None,
        }
    }

    /// Has segments stay whose logs end before a block that was counted as needed there: the table of segments says less of them than is
    /// written, and what lies behind that would be lost. `freed`: what [`Volume::freed`] said before it was counted.
    pub fn compare(&mut self, usage: Usage, freed: u64) {
        self.counted = Some((usage, freed));
    }

    /// Whether a segment's logs reach to behind all that was counted as needed there. That can be no more by now: only in an
    /// emptied segment something else is written.
    fn is_whole(&self, access: &impl Access, victim: &Victim) -> Result<bool> {
        let Some((usage, freed)) = &self.counted else { return Ok(true) };
        let segment = victim.segment();
        Ok(victim.looked_through() >= u64::from(usage.of(segment).end)
            || access.with(|v| v.was_freed_since(segment, *freed))?)
    }

    /// Whether there is nothing left.
    pub fn is_done(&self) -> bool {
        self.order.is_empty()
    }

    /// From now on so many blocks are copied at a time.
    pub fn limit(&mut self, moves: usize) {
        self.limits.moves = moves.max(1);
    }

    /// Whether segments are read ahead and in large pieces from now on.
    pub fn read_ahead(&mut self, yes: bool) {
        self.limits.ahead = yes;
    }

    /// From now on so many segments are freed at a time.
    pub fn limit_segments(&mut self, segments: usize) {
        self.limits.segments = segments.max(1);
    }

    /// What was planned was not made: its segments come first again.
    pub fn put_back(&mut self, segments: &[SegNr]) {
        segments.iter().rev().for_each(|s| self.order.push_front(*s));
    }

    /// This segment comes next, wherever it was.
    pub fn first(&mut self, segment: SegNr) {
        self.order.retain(|s| *s != segment);
        self.order.push_front(segment);
    }

    /// The segment that comes next.
    pub fn peek(&self) -> Option<SegNr> {
        self.order.front().copied()
    }

    /// Segments that were not begun.
    pub fn left(&self) -> u64 {
        self.order.len() as u64
    }

    /// What the next checkpoint does. Errors are those of the tables: what is wrong with a segment sets it aside.
    pub fn next(&mut self, access: &impl Access) -> Result<Plan> {
        let mut plan = Plan::default();
        while plan.cleaning.moves() < self.limits.moves && plan.cleaning.frees() < self.limits.segments {
            let Some(segment) = self.order.pop_front() else { break };
            let victim = match self.ahead.take(segment) {
                Some(victim) => victim,
                None => match access.with(|v| v.victim(segment))? {
                    Ok(mut victim) => {
                        victim.reuse(&self.memory);
                        victim
                    }
                    // Meanwhile it is written, or clean.
                    Err(Error::Invalid(_)) => continue,
                    Err(e) => return Err(e),
                },
            };
            if self.limits.ahead
                && let Some(next) = self.order.front()
            {
                self.ahead.read(access, *next, &self.memory)?;
            }
            if let Taking::TooMuch(victim) = self.take(access, victim, &mut plan)? {
                self.order.push_front(segment);
                self.ahead.keep(segment, *victim);
                break;
            }
        }
        Ok(plan)
    }

    fn take(&mut self, access: &impl Access, mut victim: Victim, plan: &mut Plan) -> Result<Taking> {
        let segment = victim.segment();
        if !self.limits.ahead {
            victim.by_pieces();
        }
        let is_first = plan.cleaning.is_empty();
        let most = usize::try_from(LARGEST / victim.block_size()).unwrap_or(usize::MAX);
        plan.segments.push(segment);
        let mark = plan.cleaning.mark();
        let aside = |plan: &mut Plan, victim: &Victim, log: Option<BlockNr>, why: String| -> Result<Taking> {
            plan.cleaning.back_to(mark);
            // Somebody else emptied it meanwhile: what was read may be the next user's.
            if !access.with(|v| v.is_stale(victim))? {
                plan.aside.push(SetAside { segment, log, why });
            }
            Ok(Taking::Taken)
        };
        match victim.sequence() {
            Ok(Some(sequence)) => {
                let protected = access.with(|v| v.protected_sequence())?;
                if sequence.wrapping_sub(protected).cast_signed() >= 0 {
                    return Ok(Taking::Taken);
                }
            }
            Ok(None) => {}
            Err(e) => {
                return aside(plan, &victim, None, e.to_string());
            }
        }
        loop {
            let blocks = match victim.read(if self.limits.ahead { JUDGED } else { FEW }) {
                Ok(blocks) => blocks,
                Err(e) => {
                    return aside(plan, &victim, None, e.to_string());
                }
            };
            if blocks.is_empty() && !self.is_whole(access, &victim)? {
                let why = "its logs end before what is in use there, by the table of segments".to_string();
                return aside(plan, &victim, None, why);
            }
            if blocks.is_empty() {
                self.ahead.pays(victim.was_needed());
                if !victim.finish(&mut plan.cleaning) {
                    let why = "some of its blocks cannot be read; it is marked bad".to_string();
                    plan.aside.push(SetAside { segment, log: None, why });
                }
                return Ok(Taking::Taken);
            }
            let fates: Vec<Fate> = match access.with(|v| v.fates(&self.keep, &blocks))? {
                Ok(fates) => fates,
                Err(e @ (Error::Format { .. } | Error::Device(_))) => {
                    return aside(plan, &victim, None, e.to_string());
                }
                Err(e) => return Err(e),
            };
            match victim.take(blocks, &fates, self.limits.salvage, &mut plan.cleaning) {
                Ok(bad) if bad.is_empty() => {}
                Ok(bad) if self.limits.salvage == Salvage::Readable => {
                    plan.unverified.extend(bad.into_iter().map(|log| (segment, log)));
                }
                Ok(bad) => {
                    let why = "a log that holds blocks in use does not match its checksum".to_string();
                    return aside(plan, &victim, bad.first().copied(), why);
                }
                Err(e) => {
                    return aside(plan, &victim, None, e.to_string());
                }
            }
            if !is_first && plan.cleaning.moves() > self.limits.moves {
                plan.cleaning.back_to(mark);
                plan.segments.pop();
                return Ok(Taking::TooMuch(Box::new(victim)));
            }
            if plan.cleaning.moves() > most {
                let why =
                    format!("more than {} MiB of it are in use, too much to move at once", LARGEST >> 20);
                return aside(plan, &victim, None, why);
            }
        }
    }
}
