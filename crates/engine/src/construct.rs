//! Building a checkpoint or a data-sync log, step by step (spec section 12).
//!
//! ```text
//! begin (freeze) -> files: cuts, data, nodes, inode entry -> ifile, cpfile, sufile, DAT -> super root
//!                     \_ logs go out as segments fill _/     \_______ composed at once _______/
//! ```
//!
//! A step does a bounded amount of work under the volume's lock; the logs it hands out are
//! checksummed and written outside of it. Freezing makes the checkpoint one moment: requests that
//! come later change the next one. Invariants: once begun, a construction is never rolled back (a
//! log that cannot be written is written again, there or elsewhere: [`crate::redo`]; what cannot be
//! read is read again: [`crate::patience`]); blocks of a log under way are found in memory until
//! [`Volume::log_written`] has been told of every log.

use std::collections::VecDeque;

use hashbrown::HashSet;
use silt_format::{Cno, Ino, SegNr, VBlockNr};

use crate::bmap::Severed;
use crate::inode::{Frozen, Inode};
use crate::leftovers::Leftovers;
use crate::log::{Item, LogWrite, OpenLog};
use crate::redo::{Before, Begun};
use crate::room::Extra;
use crate::store::Key;
use crate::supers::LastLog;
use crate::volume::Volume;
use crate::{Error, Result};

/// Blocks of one log, so that writing starts before everything is composed; fewer where whoever opened the volume
/// says so.
pub(crate) const LOG_BLOCKS: u64 = 1024;
/// So many nodes of regular files are written one behind the other, behind the data of all these files: who deletes a tree, or
/// looks for where its files lie, reads them without the data between.
const NODES_TOGETHER: usize = 256;
/// So much damage is remembered until it is taken.
pub(crate) const DAMAGES: usize = 1000;
/// The stage a file begins with.
pub(crate) const FIRST: Stage = Stage::Cuts { from: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Checkpoint,
    DataSync,
}

/// Where the work on one file stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    /// Ranges that were cut away, from this key on.
    Cuts {
        from: u64,
    },
    /// Giving the number of a deleted inode back.
    Number,
    /// Taking everything from this key on off the map.
    Sever {
        from: u64,
    },
    /// Ending the blocks that a cut severed from the map.
    Severed,
    Data {
        from: u64,
    },
    Nodes,
}

/// A construction under way.
pub struct Construction {
    pub(crate) kind: Kind,
    pub(crate) create: u64,
    /// Blocks that are moved, in front of all others.
    pub(crate) moves: VecDeque<Item>,
    /// Nodes of regular files that wait for those of others ([`NODES_TOGETHER`]).
    pub(crate) nodes: Vec<Item>,
    /// Made to free segments: `nongc_ctime` stays (spec 12.7).
    pub(crate) cleaning: bool,
    pub(crate) files: VecDeque<u64>,
    pub(crate) all: Vec<u64>,
    pub(crate) stage: Stage,
    /// Pointers cut off the map of the file at work.
    pub(crate) severed: Vec<Severed>,
    pub(crate) open: Option<OpenLog>,
    pub(crate) ready: VecDeque<LogWrite>,
    pub(crate) outstanding: u64,
    pub(crate) logs: u64,
    pub(crate) blocks: u64,
    /// What had been given up when it began.
    pub(crate) given_up: crate::room::GivenUp,
    pub(crate) tree_changed: bool,
    pub(crate) inodes_count: u64,
    pub(crate) composed: bool,
    pub(crate) last: Option<LastLog>,
    /// Blocks that it takes, from above, and the segments that were clean when it began.
    pub(crate) need: u64,
    pub(crate) available: u64,
    /// Where the log stood when it began.
    pub(crate) begun: Begun,
    /// Segments it has taken since.
    pub(crate) allocated: Vec<SegNr>,
    /// Segments it has taken for what is composed.
    pub(crate) planned: Vec<SegNr>,
    /// Segments that the composed logs lie in.
    pub(crate) composed_in: Vec<SegNr>,
    /// Segments of logs that were handed out, in order.
    pub(crate) written_in: Vec<SegNr>,
    /// Blocks of files in logs that are closed, in order.
    pub(crate) items: Vec<Item>,
    /// The metadata before it was composed.
    pub(crate) before: Option<Before>,
    /// What composing launched.
    pub(crate) launched: Vec<Key>,
    /// How often something of a file could not be read and was waited for.
    pub(crate) waited: u32,
    /// See [`Volume::reads_ahead`]: files of `all` that were looked at, and nodes that were told of.
    pub(crate) looked_at: usize,
    pub(crate) told: HashSet<u64>,
    /// Blocks that are mapped no more, each with its file, whose entries could not be read.
    pub(crate) owed: Vec<(Ino, VBlockNr)>,
}

impl Construction {
    /// Segments that hold logs of it, or may soon.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegNr> {
        self.begun.segments().into_iter().chain(self.allocated.iter().chain(&self.composed_in).copied())
    }

    /// Whether a segment holds logs of it, or may soon.
    pub(crate) fn writes(&self, segment: SegNr) -> bool {
        self.begun.segments().contains(&segment)
            || self.allocated.contains(&segment)
            || self.composed_in.contains(&segment)
    }
}

/// What to do next for a construction.
#[derive(Debug)]
pub enum Step {
    /// Seal and write this log, then tell [`Volume::log_written`].
    Write(LogWrite),
    /// Call again.
    Working,
    /// Logs are still being written.
    Waiting,
    /// Complete; durable after a flush. The number is that of the checkpoint, or of the one
    /// under construction for a data-sync log.
    Done(Cno),
}

impl Volume {
    /// Whether a construction is under way.
    pub fn is_constructing(&self) -> bool {
        self.construction.is_some()
    }

    /// Freezes everything that waits and begins a checkpoint; `false` if nothing does. `now` in
    /// seconds. [`Error::NoSpace`], with nothing changed, where the clean segments may not hold it.
    pub fn begin_checkpoint(&mut self, now: u64) -> Result<bool> {
        self.ready_to_begin()?;
        if !self.has_changes() {
            return Ok(false);
        }
        self.seek_room_for_checkpoint()?;
        let begun = self.begun()?;
        let need = self.need(Extra::default());
        self.begin_moving(VecDeque::new(), begun, need, now);
        Ok(true)
    }

    /// Begins a checkpoint of everything that waits, with blocks in front that go elsewhere.
    /// `need`: blocks that it takes, from above.
    pub(crate) fn begin_moving(&mut self, moves: VecDeque<Item>, begun: Begun, need: u64, now: u64) {
        let available = self.available_segments();
        let files = self.freeze_all();
        self.meta_dirty = false;
        self.start(Kind::Checkpoint, files, begun, now);
        if let Some(k) = &mut self.construction {
            k.moves = moves;
            (k.need, k.available) = (need, available);
        }
    }

    /// Freezes every inode that waits, and returns their numbers: directories and symlinks first, since who walks a
    /// tree reads them without the files between.
    fn freeze_all(&mut self) -> VecDeque<u64> {
        let (mut first, mut files) = (VecDeque::new(), VecDeque::new());
        for nr in self.dirty.take() {
            let mut regular = false;
            if let Some(i) = self.inodes.get_mut(&nr) {
                freeze(i);
                i.dirty = false;
                i.needs_checkpoint = false;
                regular = i.attr.is_regular();
            }
            if regular { &mut files } else { &mut first }.push_back(nr);
        }
        self.frozen_blocks += std::mem::take(&mut self.dirty_blocks);
        first.append(&mut files);
        first
    }

    /// Begins a data-sync log of these files, which become durable together; `false` if none of their data waits. Only
    /// where [`Volume::data_sync_suffices`] for each. Errors: [`Error::NoSpace`] where a checkpoint has to do, since who
    /// mounts the volume after a power cut would lack the space to write all that was synced alone once more.
    pub fn begin_data_sync(&mut self, inos: &[Ino], now: u64) -> Result<bool> {
        self.ready_to_begin()?;
        if let Some(ino) = inos.iter().find(|ino| !self.data_sync_suffices(**ino) || self.discontinued) {
            return Err(Error::Invalid(format!("inode {ino} needs a checkpoint")));
        }
        let waiting = |ino: &Ino| self.inodes.get(&ino.0).map_or(0, |i| i.current.blocks.len() as u64);
        let more = inos.iter().map(waiting).sum();
        self.check_room_for_recovery(more)?;
        let begun = self.begin_data(inos.iter().map(|ino| ino.0), now)?;
        self.synced_alone += more;
        Ok(begun)
    }

    /// Begins logs of the data of these inodes, whoever finds them; `false` if none of it waits.
    pub(crate) fn begin_data(&mut self, numbers: impl Iterator<Item = u64>, now: u64) -> Result<bool> {
        let begun = self.begun()?;
        let mut files = VecDeque::new();
        for nr in numbers {
            let Some(i) = self.inodes.get_mut(&nr).filter(|i| !i.current.blocks.is_empty()) else {
                continue;
            };
            let blocks = i.current.blocks.len() as u64;
            freeze(i);
            self.dirty_blocks -= blocks;
            self.frozen_blocks += blocks;
            // Its map changes now and its times wait: the next checkpoint must hold the inode.
            i.dirty = true;
            self.dirty.insert(nr);
            files.push_back(nr);
        }
        if files.is_empty() {
            return Ok(false);
        }
        self.start(Kind::DataSync, files, begun, now);
        Ok(true)
    }

    /// Whether anything may be written.
    pub(crate) fn check_writing(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.failed.as_ref().map_or(Ok(()), |why| Err(Error::Failed(why.clone())))
    }

    pub(crate) fn ready_to_begin(&self) -> Result<()> {
        self.check_writing()?;
        if self.construction.is_some() { Err(Error::Constructing) } else { Ok(()) }
    }

    fn start(&mut self, kind: Kind, files: VecDeque<u64>, begun: Begun, now: u64) {
        self.look_at_clock(now);
        if let Some(backed) = &mut self.store.held.backed {
            backed.written_but(begun.segments().map(|s| s.0));
        }
        self.construction = Some(Construction {
            kind,
            create: now.max(self.last_create),
            moves: VecDeque::new(),
            nodes: Vec::new(),
            cleaning: false,
            all: files.iter().copied().collect(),
            files,
            stage: FIRST,
            severed: Vec::new(),
            open: None,
            ready: VecDeque::new(),
            outstanding: 0,
            logs: 0,
            blocks: 0,
            given_up: self.given_up,
            tree_changed: false,
            inodes_count: self.inodes_count,
            composed: false,
            last: None,
            need: 0,
            available: self.available_segments(),
            begun,
            allocated: Vec::new(),
            planned: Vec::new(),
            composed_in: Vec::new(),
            written_in: Vec::new(),
            items: Vec::new(),
            before: None,
            launched: Vec::new(),
            waited: 0,
            looked_at: 0,
            told: HashSet::new(),
            owed: Vec::new(),
        });
    }

    /// Goes on with the construction, handling at most about `budget` blocks. An error ends
    /// writing to the volume: what was durable stays, what was not is kept in memory only. Where
    /// something cannot be read that may pass ([`Volume::be_patient`]): the next call goes on.
    pub fn step(&mut self, budget: usize) -> Result<Step> {
        let Some(mut k) = self.construction.take() else {
            return Err(Error::Invalid("no construction is under way".into()));
        };
        if let Some(why) = &self.failed {
            self.construction = Some(k);
            return Err(Error::Failed(why.clone()));
        }
        let result = self.advance(&mut k, budget);
        match result {
            Ok(Step::Done(c)) => Ok(Step::Done(c)),
            Ok(step) => {
                self.construction = Some(k);
                Ok(step)
            }
            Err(e) if self.is_patient_with(&e) => {
                self.construction = Some(k);
                Err(e)
            }
            Err(e) => {
                self.fail(format!("writing a checkpoint failed: {e}"));
                self.construction = Some(k);
                Err(e)
            }
        }
    }

    /// Says that one log handed out by [`Volume::step`] is on the device.
    pub fn log_written(&mut self) {
        if let Some(k) = &mut self.construction {
            k.outstanding = k.outstanding.saturating_sub(1);
        }
        self.moves = 0;
    }

    fn advance(&mut self, k: &mut Construction, budget: usize) -> Result<Step> {
        let mut left = budget.max(1);
        loop {
            if let Some(log) = k.ready.pop_front() {
                k.outstanding += 1;
                if k.written_in.last() != Some(&log.segment) {
                    k.written_in.push(log.segment);
                }
                return Ok(Step::Write(log));
            }
            if k.composed {
                return Ok(if k.outstanding > 0 { Step::Waiting } else { Step::Done(self.complete(k)) });
            }
            if left == 0 {
                return Ok(Step::Working);
            }
            if !k.moves.is_empty() {
                left = self.advance_moves(k, left)?;
                continue;
            }
            if k.nodes.len() >= NODES_TOGETHER || (k.files.is_empty() && !k.nodes.is_empty()) {
                k.moves.extend(k.nodes.drain(..));
                continue;
            }
            match k.files.front().copied() {
                Some(nr) => left = self.advance_file(k, nr, left)?,
                None if !k.owed.is_empty() => left = self.end_owed(k, left)?,
                None if k.kind == Kind::DataSync => {
                    if let Some(log) = k.open.take() {
                        self.close_data_log(k, log, true)?;
                    }
                    k.composed = true;
                }
                None => self.compose(k)?,
            }
        }
    }

    /// Takes blocks that are moved into logs.
    fn advance_moves(&mut self, k: &mut Construction, mut left: usize) -> Result<usize> {
        while left > 0
            && let Some(item) = k.moves.pop_front()
        {
            self.add(k, item)?;
            left -= 1;
        }
        Ok(left)
    }

    /// Everything is written: what was frozen is clean.
    fn complete(&mut self, k: &mut Construction) -> Cno {
        self.compare_estimate(k);
        if k.kind != Kind::DataSync {
            (self.synced_alone, self.given_back) = (0, 0);
        }
        self.leftovers = Leftovers::default();
        self.leftovers.add(self.store.landed());
        if self.dirty_blocks == 0 {
            self.leftovers.add(self.store.slabs.shrink());
        }
        let mut overlays = Vec::new();
        if let Some(w) = &self.store.verifier {
            // Who looked at these segments meanwhile may have seen logs that were not there yet.
            let begun = k.begun.segments();
            for s in begun.iter().chain(&k.allocated).chain(&k.composed_in) {
                w.verifier.forget(*s);
            }
        }
        for nr in &k.all {
            let Some(i) = self.inodes.get_mut(nr) else { continue };
            let Some(f) = i.frozen.take() else { continue };
            self.lost_content |= std::mem::take(&mut i.has_lost);
            let hurt = std::mem::take(&mut i.is_hurt).then(|| (i.ino, i.error.clone()));
            self.frozen_blocks = self.frozen_blocks.saturating_sub(f.over.blocks.len() as u64);
            overlays.push(f.over);
            if f.deleted {
                self.inodes.remove(nr);
                self.new_numbers.remove(*nr..*nr + 1);
                self.next_ino = self.next_ino.min(*nr);
            }
            if let Some((ino, damage)) = hurt {
                self.met(ino, damage);
            }
        }
        self.leftovers.add(overlays);
        let cno = self.cno;
        if let Some(last) = k.last {
            self.last = last;
            self.last_create = k.create;
            if !k.cleaning {
                self.nongc_ctime = k.create;
                self.rewritten = self.rewritten.saturating_add(k.blocks);
            }
            if k.kind == Kind::Checkpoint {
                self.given_up_written = k.given_up;
            }
            self.cno = cno.next();
            self.dat.now = self.cno;
        }
        cno
    }
}

pub(crate) fn freeze(i: &mut Inode) {
    let over = std::mem::take(&mut i.current);
    i.frozen = Some(Box::new(Frozen {
        attr: i.attr.clone(),
        over,
        deleted: i.deleted,
        pending: std::mem::take(&mut i.pending),
    }));
}
