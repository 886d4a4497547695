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
//! log that cannot be written is written again, there or elsewhere: [`crate::redo`]); blocks of a log
//! under way are found in memory until [`Volume::log_written`] has been told of every log.

use std::collections::VecDeque;

use silt_format::inode::RawInode;
use silt_format::summary::{self, BlockInfo};
use silt_format::{Cno, Ino, SegNr, VBlockNr};

use crate::block::Block;
use crate::bmap::Severed;
use crate::inode::{Frozen, Inode};
use crate::log::{Content, Head, Item, LogWrite, OpenLog, sorted_nodes};
use crate::redo::{Before, Begun, Redo};
use crate::room::Extra;
use crate::store::Key;
use crate::supers::LastLog;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// Blocks of one log, so that writing starts before everything is composed; fewer where whoever opened the volume
/// says so.
pub(crate) const LOG_BLOCKS: u64 = 1024;
/// The stage a file begins with.
const FIRST: Stage = Stage::Cuts { from: 0 };

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
    /// Segments that the composed logs lie in.
    pub(crate) composed_in: Vec<SegNr>,
    /// Blocks of files in logs that are closed, in order.
    pub(crate) items: Vec<Item>,
    /// The metadata before it was composed.
    pub(crate) before: Option<Before>,
    /// What composing launched.
    pub(crate) launched: Vec<Key>,
}

impl Construction {
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
        self.check_room_for_checkpoint()?;
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

    /// Begins a data-sync log of one file; `false` if none of its data waits. Only where
    /// [`Volume::data_sync_suffices`].
    pub fn begin_data_sync(&mut self, ino: Ino, now: u64) -> Result<bool> {
        self.ready_to_begin()?;
        if !self.data_sync_suffices(ino) || self.discontinued {
            return Err(Error::Invalid(format!("inode {ino} needs a checkpoint")));
        }
        let begun = self.begun()?;
        let Some(i) = self.inodes.get_mut(&ino.0) else { return Ok(false) };
        if i.current.blocks.is_empty() {
            return Ok(false);
        }
        let blocks = i.current.blocks.len() as u64;
        freeze(i);
        self.dirty_blocks -= blocks;
        self.frozen_blocks += blocks;
        // Its map changes now and its times wait: the next checkpoint must hold the inode.
        i.dirty = true;
        self.dirty.insert(ino.0);
        self.start(Kind::DataSync, VecDeque::from([ino.0]), begun, now);
        Ok(true)
    }

    pub(crate) fn ready_to_begin(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if let Some(why) = &self.failed {
            return Err(Error::Failed(why.clone()));
        }
        if self.construction.is_some() { Err(Error::Constructing) } else { Ok(()) }
    }

    fn start(&mut self, kind: Kind, files: VecDeque<u64>, begun: Begun, now: u64) {
        self.construction = Some(Construction {
            kind,
            // Log times must not run backwards, whatever the clock does (spec 19, 33).
            create: now.max(self.last_create),
            moves: VecDeque::new(),
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
            tree_changed: false,
            inodes_count: self.inodes_count,
            composed: false,
            last: None,
            need: 0,
            available: self.available_segments(),
            begun,
            allocated: Vec::new(),
            composed_in: Vec::new(),
            items: Vec::new(),
            before: None,
            launched: Vec::new(),
        });
    }

    /// Goes on with the construction, handling at most about `budget` blocks. An error ends
    /// writing to the volume: what was durable stays, what was not is kept in memory only.
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
            match k.files.front().copied() {
                Some(nr) => left = self.advance_file(k, nr, left)?,
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

    /// Works on one file; what is wrong with it stays with it.
    pub(crate) fn advance_file(&mut self, k: &mut Construction, nr: u64, left: usize) -> Result<usize> {
        let Some(mut inode) = self.inodes.remove(&nr) else {
            k.files.pop_front();
            return Ok(left);
        };
        let worked = self.file_stage(k, &mut inode, left);
        let result = match worked {
            Ok(left) => Ok(left),
            Err(e @ (Error::Format { .. } | Error::Device(_) | Error::NoInode(_))) => {
                inode.error.get_or_insert_with(|| e.to_string());
                // What is mapped so far must be written, or its parents would point to nothing.
                if matches!(k.stage, Stage::Nodes) || k.kind == Kind::DataSync {
                    k.stage = FIRST;
                    k.files.pop_front();
                } else if k.files.front() == Some(&nr) {
                    k.stage = Stage::Nodes;
                }
                Ok(left.saturating_sub(1))
            }
            Err(e) => Err(e),
        };
        self.inodes.insert(nr, inode);
        result
    }

    pub(crate) fn change(&mut self) -> Change<'_> {
        Change::new(&mut self.store, &mut self.dat, self.cno)
    }

    fn file_stage(&mut self, k: &mut Construction, inode: &mut Inode, mut left: usize) -> Result<usize> {
        let Some(mut frozen) = inode.frozen.take() else {
            k.files.pop_front();
            return Ok(left);
        };
        let result = (|| {
            match k.stage {
                Stage::Cuts { from } => {
                    k.tree_changed = true;
                    if frozen.deleted {
                        // Its number first: an entry that cannot be changed keeps its blocks.
                        self.free_number(inode)?;
                        // Nobody else's before all is done.
                        self.new_numbers.insert(inode.ino.0..inode.ino.0 + 1);
                        self.sever(k, inode, &mut frozen, 0);
                        k.stage = Stage::Severed;
                        return Ok(left.saturating_sub(1));
                    }
                    left = left.saturating_sub(self.apply_cuts(k, inode, &mut frozen, from, left));
                }
                Stage::Severed => {
                    left = left.saturating_sub(self.end_severed(k, inode, &mut frozen, left));
                    if k.severed.is_empty() {
                        k.stage = Stage::Data { from: 0 };
                        if frozen.deleted {
                            k.stage = FIRST;
                            k.files.pop_front();
                            left = left.saturating_sub(1);
                        }
                    }
                }
                Stage::Data { from } => {
                    let batch: Vec<(u64, Block)> = frozen
                        .over
                        .blocks
                        .range(from..)
                        .take(left)
                        .map(|(key, b)| (*key, b.clone()))
                        .collect();
                    let cache = !frozen.attr.is_regular();
                    for (key, b) in &batch {
                        k.stage = Stage::Data { from: key.saturating_add(1) };
                        left = left.saturating_sub(1);
                        let mut change = self.change();
                        let v = change.replace(&mut inode.map, *key);
                        let (delta, damage) = (change.delta, change.damage.take());
                        self.count_tree(delta);
                        frozen.pending -= delta.clamp(0, 1);
                        if let Some(e) = damage {
                            inode.error.get_or_insert_with(|| e.to_string());
                        }
                        let vblock = match v {
                            Ok(v) => v,
                            // What is damaged costs this block and none of the others.
                            Err(e @ (Error::Format { .. } | Error::Device(_))) => {
                                inode.error.get_or_insert_with(|| e.to_string());
                                continue;
                            }
                            Err(e) => return Err(e),
                        };
                        if cache {
                            self.store.launch(Key::Virtual(vblock.0), b.clone());
                        }
                        let info = BlockInfo::Data { vblock, offset: *key };
                        self.add_new(k, inode.ino, info, b.clone())?;
                    }
                    let next = match k.stage {
                        Stage::Data { from } => from,
                        _ => 0,
                    };
                    if frozen.over.blocks.range(next..).next().is_none() {
                        frozen.pending = 0;
                        if k.kind == Kind::DataSync {
                            k.files.pop_front();
                        } else {
                            k.stage = Stage::Nodes;
                        }
                    }
                }
                Stage::Nodes => {
                    for (ptr, b) in sorted_nodes(&inode.map.nodes) {
                        let info = BlockInfo::Node { vblock: VBlockNr(ptr) };
                        self.store.launch(Key::Virtual(ptr), b.clone());
                        self.add_new(k, inode.ino, info, b)?;
                    }
                    inode.map.nodes.clear();
                    frozen.pending = 0;
                    self.store_entry(inode, &frozen)?;
                    k.stage = FIRST;
                    k.files.pop_front();
                    left = left.saturating_sub(1);
                }
            }
            Ok(left)
        })();
        inode.frozen = Some(frozen);
        result
    }

    pub(crate) fn count_tree(&mut self, delta: i64) {
        self.tree_blocks = self.tree_blocks.saturating_add_signed(delta);
    }

    /// Puts an inode's entry into the ifile, allocating its number if it is new.
    fn store_entry(&mut self, inode: &mut Inode, frozen: &Frozen) -> Result<()> {
        let (ino, new) = (inode.ino, !inode.on_disk);
        if new {
            self.ifile.palloc.set(&mut self.ifile.file, &self.store, &self.dat, ino.0)?;
            self.new_numbers.remove(ino.0..ino.0 + 1);
            inode.on_disk = true;
        }
        let map = &inode.map;
        self.ifile.change(&self.store, &self.dat, ino, |entry| {
            if new {
                entry.fill(0);
            }
            let mut r = RawInode::read(entry).unwrap_or_else(|_| RawInode::zeroed());
            frozen.attr.store(&mut r);
            r.blocks = map.blocks.into();
            if frozen.attr.has_map() {
                r.bmap = map.root;
            } else {
                r.bmap = [0; 56];
                if matches!(frozen.attr.file_type(), 0o020_000 | 0o060_000) {
                    r.set_device(frozen.attr.device.0, frozen.attr.device.1);
                }
            }
            r.store(entry);
        })
    }

    /// Frees a deleted inode's number (spec 8.3).
    fn free_number(&mut self, inode: &mut Inode) -> Result<()> {
        if !inode.on_disk {
            self.new_numbers.remove(inode.ino.0..inode.ino.0 + 1);
            return Ok(());
        }
        self.ifile.change(&self.store, &self.dat, inode.ino, |entry| {
            let mut r = RawInode::read(entry).unwrap_or_else(|_| RawInode::zeroed());
            r.flags = 0.into();
            r.links_count = 0.into();
            r.size = 0.into();
            r.blocks = 0.into();
            r.bmap = [0; 56];
            r.store(entry);
        })?;
        self.ifile.palloc.clear(&mut self.ifile.file, &self.store, &self.dat, inode.ino.0)?;
        inode.on_disk = false;
        Ok(())
    }

    /// Opens a log where the last one ended, in the next segment if too little is left.
    pub(crate) fn open_log(&mut self, k: &mut Construction, limit: u64) -> Result<OpenLog> {
        let g = self.store.geometry;
        let mut c = self.cursor;
        if c.next == c.segment {
            c.next = self.sufile.allocate(&mut self.store, &self.dat)?;
            k.allocated.push(c.next);
        }
        if c.room(&g) < 2 {
            self.check_enters(c.next)?;
            c.segment = c.next;
            c.next = self.sufile.allocate(&mut self.store, &self.dat)?;
            k.allocated.push(c.next);
            c.offset = 0;
            c.seq = c.seq.wrapping_add(1);
        }
        self.sufile.touch(&self.store, &self.dat, c.segment)?;
        self.cursor = c;
        Ok(OpenLog::new(&g, c, limit))
    }

    /// Whether logs may go on in a segment: one that this very construction frees still holds what is durable.
    pub(crate) fn check_enters(&self, segment: SegNr) -> Result<()> {
        if self.store.held.is_lent(segment) { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Adds a new block of a file to the open log.
    pub(crate) fn add_new(
        &mut self,
        k: &mut Construction,
        ino: Ino,
        info: BlockInfo,
        block: Block,
    ) -> Result<()> {
        let content = Content::Ready(block);
        let fi_cno = self.dat.past.map_or(self.cno, |(from, _)| from);
        self.add(k, Item { ino, fi_cno, info, content, moved: false })
    }

    /// Adds a block to the open log, closing it first if it is full.
    pub(crate) fn add(&mut self, k: &mut Construction, item: Item) -> Result<()> {
        for _ in 0..2 {
            let mut log = match k.open.take() {
                Some(log) => log,
                None => self.open_log(k, self.log_blocks)?,
            };
            if log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                log.items.push(item);
                k.open = Some(log);
                return Ok(());
            }
            self.close_data_log(k, log, false)?;
        }
        Err(Error::Invalid("a block does not fit into an empty log".into()))
    }

    /// Finishes a log that holds blocks of files only.
    pub(crate) fn close_data_log(&mut self, k: &mut Construction, log: OpenLog, end: bool) -> Result<()> {
        let g = self.store.geometry;
        let mut payload = Vec::with_capacity(log.items.len());
        for (index, item) in log.items.iter().enumerate() {
            if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = item.info {
                let start = (!item.moved).then_some(self.cno);
                self.dat.assign(&self.store, vblock, log.place(&g, index), start)?;
            }
            if let Content::Ready(b) = &item.content {
                payload.push(b.clone());
            }
        }
        let total = log.fit.total();
        self.used(&log, total, k.create)?;
        let mut flags = if k.logs == 0 { summary::LOGBGN } else { 0 };
        if k.kind == Kind::DataSync {
            flags |= summary::SYNDT;
        }
        if end {
            flags |= summary::LOGEND;
        }
        let head = Head { flags, create: k.create, cno: self.cno, nblocks: total };
        k.ready.push_back(LogWrite::new(&g, &log, head, payload));
        k.logs += 1;
        k.blocks += total;
        self.cursor.offset = log.cursor.offset + total;
        k.items.extend(log.items);
        Ok(())
    }

    /// Records how far a log fills its segment.
    pub(crate) fn used(&mut self, log: &OpenLog, total: u64, create: u64) -> Result<()> {
        let nblocks = u32::try_from(log.cursor.offset + total).unwrap_or(u32::MAX);
        self.sufile
            .change(&self.store, &self.dat, log.cursor.segment, |e| {
                e.nblocks = nblocks.into();
                e.lastmod = create.into();
            })
            .map(|_| ())
    }

    /// Everything is written: what was frozen is clean.
    fn complete(&mut self, k: &mut Construction) -> Cno {
        self.compare_estimate(k);
        self.store.landed();
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
            if let Some(e) = i.error.as_ref().filter(|_| self.damage.len() < 1000) {
                self.damage.push((i.ino, e.clone()));
            }
            self.frozen_blocks = self.frozen_blocks.saturating_sub(f.over.blocks.len() as u64);
            if f.deleted {
                self.inodes.remove(nr);
                self.new_numbers.remove(*nr..*nr + 1);
                self.next_ino = self.next_ino.min(*nr);
            }
        }
        let cno = self.cno;
        if let Some(last) = k.last {
            self.last = last;
            self.last_create = k.create;
            if !k.cleaning {
                self.nongc_ctime = k.create;
                self.rewritten = self.rewritten.saturating_add(k.blocks);
            }
            self.cno = cno.next();
            self.dat.now = self.cno;
        }
        cno
    }

    /// Makes a checkpoint of everything that waits and returns its number, or that of the newest
    /// one if nothing waits. Not durable before a flush.
    pub fn checkpoint(&mut self, now: u64) -> Result<Cno> {
        if self.begin_checkpoint(now)? {
            self.finish_construction(now)?;
        }
        Ok(Cno(self.last.cno))
    }

    /// Runs a construction that is under way to its end.
    ///
    /// Where a log cannot be written it goes elsewhere. After an error that did not end writing, the
    /// next call goes on with the same log.
    pub fn finish_construction(&mut self, now: u64) -> Result<()> {
        while self.construction.is_some() {
            let step = match self.unwritten.take() {
                Some(log) => Step::Write(log),
                None => self.step(usize::MAX)?,
            };
            match step {
                Step::Write(mut log) => {
                    log.seal();
                    match self.write_log(&log) {
                        Ok(()) => self.log_written(),
                        Err(Error::Device(e)) if !e.is_no_space() => match self.log_failed(&log, now)? {
                            Redo::Elsewhere => {}
                            Redo::SameLog => {
                                self.unwritten = Some(log);
                                return Err(Error::Device(e));
                            }
                        },
                        Err(e) => {
                            self.unwritten = Some(log);
                            return Err(e);
                        }
                    }
                }
                Step::Working => {}
                Step::Waiting => {
                    return Err(Error::Invalid("a log under way was not confirmed".into()));
                }
                Step::Done(_) => break,
            }
        }
        self.settle(now)
    }

    pub(crate) fn write_log(&mut self, log: &LogWrite) -> Result<()> {
        if self.order.wants_flush(log) {
            if let Err(e) = self.store.device.flush() {
                // What was written since the last flush may be lost: nothing after it is safe.
                self.fail(format!("flushing the device failed: {e}"));
                return Err(e.into());
            }
            self.order.flushed();
        }
        log.write(&*self.store.device)?;
        self.order.written(log);
        Ok(())
    }
}

pub(crate) fn freeze(i: &mut Inode) {
    let over = std::mem::take(&mut i.current);
    i.frozen = Some(Frozen {
        attr: i.attr.clone(),
        over,
        deleted: i.deleted,
        pending: std::mem::take(&mut i.pending),
    });
}
