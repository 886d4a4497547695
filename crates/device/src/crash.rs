//! What a power cut may have left, enumerated over a record.
//!
//! The record falls into epochs, each ended by something that makes changes durable:
//!
//! ```text
//!   epoch 0            | epoch 1                    | epoch 2
//!   change change flush| mark change change change flush| mark ...
//!                      ^ durable from here on
//! ```
//! Somewhere in an epoch the power fails. All that is durable is there; of the changes that were
//! requested and are not, any subset may be, each wholly or in some of its 512-byte sectors. All
//! states of an epoch are thought cut at its very end, so every mark in it counts as acknowledged:
//! the strictest reading, since what lets a caller acknowledge something came before its mark.
//!
//! Invariants: a state depends on the base, the record and the options alone. Pending changes are
//! applied in the order they were requested. What a failed write, or a write before a failed flush,
//! left is decided by the seed when the next flush succeeds: it may be there or not from then on,
//! sector by sector.
//!
//! Any subset of the pending changes also stands for every reordering of them: what a device did first is of no
//! consequence once the power is gone, only what of it is there. Where pending changes overlap, the later one wins
//! if both landed; a device that turned them round is not modelled.
//!
//! A state's fingerprint names its bytes: equal bytes have equal fingerprints, however they came about.
//!
//! Cost: a state is a fork of the durable image plus its pending changes; the image is brought
//! forward once over the whole run.

mod fates;
mod fingerprint;

use std::collections::HashSet;
use std::fmt;

use crate::random::Random;
use crate::recorder::{Change, Event, Outcome};
use crate::{MemoryDevice, Result};
use fates::{Part, apply, describe, draw, sector_by_sector};
use fingerprint::Fingerprint;

/// Unit that a disk writes wholly or not at all, in bytes.
const SECTOR: u64 = 512;

/// Which states to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashOptions {
    /// Fixes every choice.
    pub seed: u64,
    /// Most states in all. Half of them (all, where `per_flush` is 1) are for "flushed, and nothing
    /// after", of every epoch or, where there are more, of evenly spread ones; what these leave over
    /// is spread for the rest, in groups.
    pub max_states: usize,
    /// Most states of one epoch; 1 for "flushed, and nothing after" alone.
    pub per_flush: usize,
}

impl Default for CrashOptions {
    fn default() -> Self {
        CrashOptions { seed: 0, max_states: 1000, per_flush: 16 }
    }
}

/// Which of the pending changes a state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// None: all that was flushed, nothing after.
    Nothing,
    /// All, though none was flushed.
    Everything,
    /// The first so many.
    Prefix(usize),
    /// So many of them.
    Subset(usize),
    /// So many, `torn` of which in part.
    Torn { landed: usize, torn: usize },
}

/// What the bytes of a state say of the order in which pending changes reached the device. Sectors that a change leaves
/// as they were count for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A first part of the changes, each wholly.
    Changes,
    /// A first part of the changes, and the first sectors of the next one: a moment of writing in order.
    Sectors,
    /// None of these: a sector is there and an earlier one of the same change is not. Of changes behind one that is not
    /// wholly there, nothing is.
    OutOfOrder,
    /// None of these: something of a change is there, and something of one before it is not.
    AcrossChanges,
}

/// Where a state was cut; its `Display` says it in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Number of the state among those made with the same options, from 0.
    pub state: usize,
    /// Flushes and durable writes that had completed.
    pub flushes: usize,
    /// Place in the record of the event before which the power failed.
    pub event: usize,
    /// Changes that were requested and not durable.
    pub pending: usize,
    pub landing: Landing,
    pub order: Order,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { state, flushes, event, pending, landing, .. } = self;
        write!(f, "state {state}: cut before event {event}, after {flushes} flushes; of {pending} pending ")?;
        match landing {
            Landing::Nothing => f.write_str("none landed"),
            Landing::Everything => f.write_str("all landed"),
            Landing::Prefix(n) => write!(f, "the first {n} landed"),
            Landing::Subset(n) => write!(f, "some {n} landed"),
            Landing::Torn { landed, torn } => write!(f, "some {landed} landed, {torn} of them torn"),
        }
    }
}

/// A device after a power cut.
pub struct CrashState {
    /// What is on it.
    pub device: MemoryDevice,
    /// Marks set before the cut, in order: what must be there.
    pub acknowledged: Vec<u64>,
    pub cut: Cut,
    /// What became of each change that was requested and not durable, in the order of the requests.
    pub pending: Vec<Landed>,
    /// Names the bytes on the device.
    pub fingerprint: u64,
}

/// A change that was not durable when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    pub fate: Fate,
}

/// What became of a pending change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    Lost,
    Landed,
    /// In some sectors, by this seed.
    Torn(u64),
}

struct Pending {
    change: Change,
    /// A flush cannot be trusted to have made it durable.
    doubtful: bool,
}

/// States beyond the plain one that are worth making of an epoch that gets any.
const GROUP: usize = 4;

/// The epoch whose states are being made.
struct Epoch {
    /// Whether "flushed, and nothing after" is still to be made.
    plain: bool,
    /// Others still to be made, at most.
    others: usize,
    /// Others made.
    made: usize,
    seen: HashSet<Vec<Fate>>,
    random: Random,
    /// Made when it is first needed.
    moments: Option<Moments>,
}

/// Fingerprints of what writing the pending changes in their order leaves: after each change, and after each sector.
#[derive(Default)]
struct Moments {
    changes: HashSet<u64>,
    sectors: HashSet<u64>,
}

/// The states, one after the other. See the module's head.
pub struct CrashStates {
    options: CrashOptions,
    events: Vec<Event>,
    epochs: usize,
    /// Everything durable up to `next`.
    image: MemoryDevice,
    /// Of the image.
    print: Fingerprint,
    /// Event to go on with.
    next: usize,
    epoch: usize,
    pending: Vec<Pending>,
    marks: Vec<u64>,
    /// States made: plain ones and others.
    plain: usize,
    others: usize,
    /// Whether a plain state would differ from the last one made.
    changed: bool,
    current: Option<Epoch>,
}

impl CrashStates {
    /// Over `events` that were recorded on a device that held `base` when they began.
    pub fn new(base: &MemoryDevice, events: Vec<Event>, options: CrashOptions) -> Self {
        let epochs = 1 + events.iter().filter(|e| ends_epoch(e)).count();
        CrashStates {
            options,
            events,
            epochs,
            image: base.fork(),
            print: Fingerprint::of(base),
            next: 0,
            epoch: 0,
            pending: Vec::new(),
            marks: Vec::new(),
            plain: 0,
            others: 0,
            changed: true,
            current: None,
        }
    }

    /// Reads on to the end of the epoch.
    fn collect(&mut self) {
        while let Some(event) = self.events.get(self.next) {
            match event {
                e if ends_epoch(e) => break,
                Event::Change(change) => {
                    let doubtful = matches!(change.outcome, Outcome::Failed(_));
                    self.pending.push(Pending { change: change.clone(), doubtful });
                }
                Event::FlushFailed { began } => {
                    for p in &mut self.pending {
                        p.doubtful |= returned_before(&p.change, *began);
                    }
                }
                Event::Mark(label) => {
                    self.marks.push(*label);
                    self.changed = true;
                }
                _ => {}
            }
            self.next += 1;
        }
        let CrashOptions { seed, max_states, per_flush } = self.options;
        let others = per_flush.saturating_sub(1);
        let plain = match per_flush {
            0 => 0,
            1 => max_states,
            _ => max_states.div_ceil(2),
        };
        let plain = plain.min(self.epochs);
        // What is due by the end of this epoch when it is spread evenly, less what was made.
        let due = |all: usize, made: usize| {
            ((self.epoch + 1).saturating_mul(all) / self.epochs).saturating_sub(made)
        };
        let due_others = due(max_states.saturating_sub(plain), self.others).min(others);
        let last = self.epoch + 1 == self.epochs;
        let seed = Random::new(seed ^ (self.epoch as u64).rotate_left(32)).next();
        self.current = Some(Epoch {
            plain: due(plain, self.plain) > 0,
            others: if last || due_others >= others.min(GROUP) { due_others } else { 0 },
            made: 0,
            seen: HashSet::new(),
            random: Random::new(seed),
            moments: None,
        });
    }

    /// Makes durable what the event that ends the epoch makes so.
    fn settle(&mut self) -> Result<()> {
        let Some(event) = self.events.get(self.next) else { return Ok(()) };
        let mut left = Vec::new();
        for p in self.pending.drain(..) {
            let durable = match event {
                Event::Flush { began } => returned_before(&p.change, *began),
                Event::Durable { id } => p.change.id == *id,
                _ => false,
            };
            if !durable {
                left.push(p);
                continue;
            }
            self.changed = true;
            let fate = match p.doubtful {
                true => Fate::Torn(self.options.seed ^ p.change.id.rotate_left(32)),
                false => Fate::Landed,
            };
            apply(&self.image, &p.change, fate, &mut self.print)?;
        }
        self.pending = left;
        self.next += 1;
        self.epoch += 1;
        Ok(())
    }

    /// The fates of the next state of the current epoch.
    fn choose(&mut self) -> Option<(Vec<Fate>, Landing)> {
        let n = self.pending.len();
        let epoch = self.current.as_mut()?;
        if std::mem::take(&mut epoch.plain) && (n > 0 || self.changed) {
            self.plain += 1;
            self.changed = false;
            return Some((vec![Fate::Lost; n], Landing::Nothing));
        }
        if epoch.made >= epoch.others || n == 0 {
            return None;
        }
        let fates = if epoch.made == 0 {
            epoch.seen.insert(vec![Fate::Lost; n]);
            vec![Fate::Landed; n]
        } else {
            // Repeated draws that give nothing new mean that there is little new left.
            let mut draws = std::iter::repeat_with(|| draw(&self.pending, &mut epoch.random));
            draws.by_ref().take(16).find(|fates| !epoch.seen.contains(fates))?
        };
        epoch.seen.insert(fates.clone());
        epoch.made += 1;
        self.others += 1;
        let landing = describe(&fates);
        Some((fates, landing))
    }

    fn moments(&self) -> Result<Moments> {
        let device = self.image.fork();
        let mut print = self.print;
        let mut moments = Moments::default();
        moments.changes.insert(print.0);
        for p in &self.pending {
            sector_by_sector(&device, &p.change, &mut print, &mut |print| {
                moments.sectors.insert(print);
            })?;
            moments.changes.insert(print.0);
        }
        Ok(moments)
    }

    /// What the bytes of a state with this fingerprint say.
    fn order(&mut self, print: u64, parts: &[Part]) -> Result<Order> {
        if self.current.as_ref().is_some_and(|e| e.moments.is_none()) {
            let moments = self.moments()?;
            if let Some(epoch) = &mut self.current {
                epoch.moments = Some(moments);
            }
        }
        let moments = self.current.as_ref().and_then(|e| e.moments.as_ref());
        let begun_early = parts.iter().skip_while(|p| !p.missing).skip(1).any(|p| p.there);
        Ok(match moments {
            Some(m) if m.changes.contains(&print) => Order::Changes,
            Some(m) if m.sectors.contains(&print) => Order::Sectors,
            _ if begun_early => Order::AcrossChanges,
            _ => Order::OutOfOrder,
        })
    }

    fn make(&mut self, fates: &[Fate], landing: Landing) -> Result<CrashState> {
        let device = self.image.fork();
        let mut print = self.print;
        let mut pending = Vec::with_capacity(fates.len());
        let mut parts = Vec::with_capacity(fates.len());
        for (p, fate) in self.pending.iter().zip(fates) {
            parts.push(apply(&device, &p.change, *fate, &mut print)?);
            pending.push(Landed { offset: p.change.offset, len: p.change.len(), fate: *fate });
        }
        let order = match landing {
            Landing::Nothing => Order::Changes,
            _ => self.order(print.0, &parts)?,
        };
        let cut = Cut {
            state: (self.plain + self.others).saturating_sub(1),
            flushes: self.epoch,
            event: self.next,
            pending: self.pending.len(),
            landing,
            order,
        };
        Ok(CrashState { device, acknowledged: self.marks.clone(), cut, pending, fingerprint: print.0 })
    }
}

impl Iterator for CrashStates {
    /// An error means a record that does not fit the base.
    type Item = Result<CrashState>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.current.is_none() {
                if self.epoch >= self.epochs {
                    return None;
                }
                self.collect();
            }
            if let Some((fates, landing)) = self.choose() {
                return Some(self.make(&fates, landing));
            }
            self.current = None;
            if self.next >= self.events.len() {
                self.epoch = self.epochs;
            } else if let Err(e) = self.settle() {
                self.epoch = self.epochs;
                return Some(Err(e));
            }
        }
    }
}

fn ends_epoch(event: &Event) -> bool {
    matches!(event, Event::Flush { .. } | Event::Durable { .. })
}

/// Whether the change had returned when the flush began.
fn returned_before(change: &Change, began: u64) -> bool {
    matches!(change.outcome, Outcome::Done(t) | Outcome::Failed(t) if t < began)
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod tests;
