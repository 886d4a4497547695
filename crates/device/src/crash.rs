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

use std::collections::HashSet;
use std::fmt;

use crate::random::Random;
use crate::recorder::{Change, Content, Event, Outcome};
use crate::{Device, MemoryDevice, Result};

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
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { state, flushes, event, pending, landing } = self;
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
        let landing = if epoch.made == 1 { Landing::Everything } else { describe(&fates) };
        Some((fates, landing))
    }

    fn make(&self, fates: &[Fate], landing: Landing) -> Result<CrashState> {
        let device = self.image.fork();
        let mut print = self.print;
        let mut pending = Vec::with_capacity(fates.len());
        for (p, fate) in self.pending.iter().zip(fates) {
            apply(&device, &p.change, *fate, &mut print)?;
            pending.push(Landed { offset: p.change.offset, len: p.change.len(), fate: *fate });
        }
        let cut = Cut {
            state: (self.plain + self.others).saturating_sub(1),
            flushes: self.epoch,
            event: self.next,
            pending: self.pending.len(),
            landing,
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

/// Sectors of the device that a change touches.
fn sectors(change: &Change) -> u64 {
    if change.is_empty() {
        return 0;
    }
    (change.offset + change.len()).div_ceil(SECTOR) - change.offset / SECTOR
}

/// Draws one of: a prefix, a subset, all but one, one alone; and tears some of it, or not.
fn draw(pending: &[Pending], random: &mut Random) -> Vec<Fate> {
    let n = pending.len();
    let one = usize::try_from(random.below(n as u64)).unwrap_or(0);
    let shape = random.below(8);
    let mut fates: Vec<Fate> = (0..n)
        .map(|i| {
            let landed = match shape {
                0 | 1 => i <= one,
                2 => i != one,
                3 => i == one,
                _ => random.coin(),
            };
            if landed { Fate::Landed } else { Fate::Lost }
        })
        .collect();
    if random.coin() {
        for _ in 0..=random.below(3) {
            // The change at which a prefix ends is the one most likely under way.
            let victim = match shape {
                0..=3 if random.coin() => one,
                _ => usize::try_from(random.below(n as u64)).unwrap_or(0),
            };
            if pending.get(victim).is_some_and(|p| sectors(&p.change) > 1)
                && let Some(fate) = fates.get_mut(victim)
            {
                *fate = Fate::Torn(random.next());
            }
        }
    }
    fates
}

fn describe(fates: &[Fate]) -> Landing {
    let landed = fates.iter().filter(|f| **f != Fate::Lost).count();
    let torn = fates.iter().filter(|f| matches!(f, Fate::Torn(_))).count();
    if torn > 0 {
        Landing::Torn { landed, torn }
    } else if fates.iter().take(landed).all(|f| *f == Fate::Landed) {
        Landing::Prefix(landed)
    } else {
        Landing::Subset(landed)
    }
}

/// Brings a change, or some of its sectors, onto `device`.
fn apply(device: &MemoryDevice, change: &Change, fate: Fate, print: &mut Fingerprint) -> Result<()> {
    let seed = match fate {
        Fate::Lost => return Ok(()),
        Fate::Landed => return write(device, change, 0, change.len(), print),
        Fate::Torn(seed) => seed,
    };
    let mut random = Random::new(seed);
    let count = sectors(change);
    // Half of the tears leave the first sectors, the others any.
    let first = random.coin().then(|| random.below(count + 1));
    for sector in 0..count {
        let there = match first {
            Some(first) => sector < first,
            None => random.coin(),
        };
        if there {
            let start = (change.offset / SECTOR + sector) * SECTOR;
            let from = start.saturating_sub(change.offset);
            let to = (start + SECTOR - change.offset).min(change.len());
            write(device, change, from, to, print)?;
        }
    }
    Ok(())
}

/// Brings the bytes `from..to` of a change onto `device`.
fn write(device: &MemoryDevice, change: &Change, from: u64, to: u64, print: &mut Fingerprint) -> Result<()> {
    let (start, end) = (change.offset + from, change.offset + to);
    print.toggle(device, start, end)?;
    match &change.content {
        Content::Bytes(bytes) => {
            let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
            device.write_at(start, &[bytes.get(range).unwrap_or_default()])?;
        }
        Content::Discarded(_) => device.discard(start, to - from)?,
    }
    print.toggle(device, start, end)
}

/// Names the bytes of a device: the exclusive or over a hash of each sector that is not zero.
#[derive(Debug, Clone, Copy)]
struct Fingerprint(u64);

impl Fingerprint {
    fn of(device: &MemoryDevice) -> Self {
        let mut print = 0;
        device.for_each_chunk(|at, bytes| print ^= hash(at / SECTOR, bytes));
        Fingerprint(print)
    }

    /// Takes the sectors of a range out, or puts them in.
    fn toggle(&mut self, device: &MemoryDevice, start: u64, end: u64) -> Result<()> {
        let (mut at, end) =
            (start / SECTOR * SECTOR, end.div_ceil(SECTOR).saturating_mul(SECTOR).min(device.len()));
        let mut buf = [0; 16 * SECTOR as usize];
        while at < end {
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
            let part = buf.get_mut(..n).unwrap_or_default();
            device.read_at(at, part)?;
            self.0 ^= hash(at / SECTOR, part);
            at += n as u64;
        }
        Ok(())
    }
}

/// Of sectors from number `first` on.
fn hash(first: u64, bytes: &[u8]) -> u64 {
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        #[allow(clippy::cast_possible_truncation)] // both halves are used
        let folded = (wide as u64) ^ ((wide >> 64) as u64);
        folded
    };
    let mut all = 0;
    for (number, sector) in (first..).zip(bytes.chunks(SECTOR as usize)) {
        if sector.iter().all(|b| *b == 0) {
            continue;
        }
        let mut h = number ^ 0x9e37_79b9_7f4a_7c15;
        for word in sector.chunks(8) {
            let mut w = [0; 8];
            w.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
            h = fold(h ^ u64::from_le_bytes(w) ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db)
                .rotate_left(29)
                ^ h;
        }
        all ^= Random::new(h).next();
    }
    all
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod tests;
