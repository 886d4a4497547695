//! Mending: what is wrong with a volume is put right by a checkpoint in a fresh segment.
//!
//! ```text
//! open: super root -> DAT -> cpfile, sufile -> what the segments hold -> leave the log for a clean segment
//! then: tables, checkpoints, maps, files, in memory -> one checkpoint -> super blocks -> garbage given back
//! ```
//! Nothing that is in use is written over: before anything is allocated, the segment usage file is held against
//! everything that claims a block ([`usage`]). Until the super blocks point at the new checkpoint, the volume is
//! what it was. The volume must not be in use.

mod assemble;
mod back;
mod bits;
mod checkpoints;
mod contents;
mod copies;
mod doubts;
mod evacuate;
mod inodes;
mod known;
mod made;
mod mapped;
mod misplaced;
mod moves;
mod nodes;
mod own;
mod past;
mod records;
mod restore;
mod start;
mod synced;
mod table;
mod tables;
mod twins;
mod usage;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use silt_device::Device;
use silt_format::super_block::{self as sb, STATE_ERROR, STATE_VALID};
use silt_format::{BlockNr, Cno, Ino, SegNr, VBlockNr};

use crate::cpfile::CpFile;
use crate::dat::Dat;
use crate::ifile::IFile;
use crate::store::Store;
use crate::sufile::SuFile;
use crate::supers;
pub use crate::supers::LastLog;
use crate::volume::{OpenOptions, Parts, Volume};
use crate::{Error, Result};
pub use assemble::{Assembled, Attributes};
use contents::Content;
pub use inodes::Mistyped;
pub use start::{
    Missing, accept, bad_ahead, bad_blocks, checkpoint_at, checkpoints, cursor_of, leads, leads_in_part,
    missing, newer_logs, newest, reaches, roots, snapshots, unreadable,
};
pub use synced::SetAside;
pub use twins::{Twin, forget_twin, twins};
pub use versions::InDirectory;

pub(crate) use bits::Bits;
use doubts::Doubts;
pub use known::{Known, Original};
pub use misplaced::misplaced;
use moves::Moved;
pub(crate) use past::Aside;

/// What to mend. Everything is looked at that is named; the segment usage file always.
#[derive(Debug, Clone, Default)]
pub struct Wounds {
    /// Begin at this log, of which not everything can be read, instead of what a mount finds.
    pub start: Option<LastLog>,
    /// Segments that must not be written again: they are marked as bad.
    pub bad: BTreeSet<u64>,
    /// The super root is lost: where the tables are is told by the logs.
    pub root: bool,
    /// Build the DAT's own map anew.
    pub table_map: bool,
    /// Blocks of the DAT, by offset, that hold nothing to be trusted.
    pub table_blocks: BTreeSet<u64>,
    /// Look for blocks of the DAT that cannot be read.
    pub table: bool,
    /// Virtual blocks whose entries or bits are wrong.
    pub entries: BTreeSet<u64>,
    /// Count the checkpoints again and link the snapshots.
    pub checkpoints: bool,
    /// Checkpoints that are given up.
    pub drop: BTreeSet<u64>,
    /// Checkpoints whose inodes and blocks are to be counted.
    pub counts: BTreeSet<u64>,
    /// Build lost nodes of maps anew.
    pub nodes: bool,
    /// Virtual blocks of nodes that can be read and are wrong.
    pub bad_nodes: BTreeSet<u64>,
    /// Segments with logs that do not verify, of which what has a whole copy elsewhere is taken from there.
    pub copies: BTreeSet<u64>,
    /// Segments with logs that do not verify.
    pub segments: BTreeSet<u64>,
    /// Of those segments, put zeroes in the place of file data that cannot be read.
    pub zero_unreadable: bool,
    /// What lies there, lived at a checkpoint and is not mapped by any is nobody's.
    pub unowned: bool,
    /// Counts and reserved bits of the ifile.
    pub ifile: bool,
    /// Bits of the ifile: inodes that are taken, or are not.
    pub bits: BTreeMap<u64, bool>,
    /// Inodes whose entries in the current ifile cannot be read.
    pub lost_inodes: BTreeSet<u64>,
    /// The checkpoint's entry does not say where the ifile is: it is put together from the logs. An error where
    /// something of it is missing.
    pub ifile_root: bool,
    /// Blocks of the current ifile, by offset, that cannot be read.
    pub ifile_blocks: BTreeSet<u64>,
    /// The tree becomes that of a checkpoint.
    pub back: Option<u64>,
    /// The newest checkpoint becomes a snapshot first.
    pub keep: bool,
    /// An older checkpoint becomes a snapshot.
    pub snapshot: Option<u64>,
    /// The mark that an error was met is taken away.
    pub clear_error: bool,
    /// Synced data that was set aside, and what lies behind the newest checkpoint, is taken in; else it is set aside.
    pub take_in: bool,
    /// What menders before know.
    pub known: Known,
}

/// A volume being mended.
pub struct Mender {
    volume: Volume,
    /// What was found and put right, in words.
    pub said: Vec<String>,
    moved: Vec<Moved>,
    empty: BTreeSet<u64>,
    aside: SetAside,
    doubts: Doubts,
    original: Option<Original>,
    /// Segments that are not to be written over.
    spared: BTreeSet<u64>,
    /// Segments that were free before the repair began.
    free: BTreeSet<u64>,
    /// Sequence number of the newest log when the repair began.
    since: u64,
    end_of_log: (SegNr, u64),
    /// Of inodes of the tree at hand, what logs have and lives in it; `None` where that is too much.
    written: BTreeMap<u64, Option<Content>>,
    /// Their names, as far as they were told.
    names: BTreeMap<u64, InDirectory>,
    past: past::Written,
}

/// So many things.
fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

impl Mender {
    /// Opens a volume and mends in memory what is named, all but the content of directories and attributes of
    /// inodes: those are changed through [`Mender::volume`]. Nothing is written before [`Mender::finish`], unless
    /// there is more synced data behind the newest checkpoint than `options` allow in memory.
    pub fn open(device: Arc<dyn Device>, options: &OpenOptions, wounds: &Wounds) -> Result<Mender> {
        let mut supers = supers::read(&*device)?;
        let geometry = supers.geometry(&device)?;
        let ro_features = supers.first.1.feature_compat_ro.get() & !sb::KNOWN_RO_FEATURES;
        if ro_features != 0 {
            return Err(Error::ReadOnlyFeatures(ro_features));
        }
        let mut said = Vec::new();
        let (found, rootless) = start::find(&*device, &geometry, &mut supers, wounds.start.as_ref())?;
        let without_root;
        let wounds = if rootless {
            without_root = Wounds { root: true, table_map: true, table: true, ..wounds.clone() };
            &without_root
        } else {
            wounds
        };
        let clean = supers.state_at_open & STATE_VALID != 0;
        if wounds.clear_error {
            supers.state_at_open &= !STATE_ERROR;
            supers.first.1.state = (supers.first.1.state.get() & !STATE_ERROR).into();
        }
        let store = Store::new(device, geometry, options.cache_bytes);
        let mut dat = Dat::new(&geometry, found.root.dat, Cno(found.last.cno).next());
        dat.lenient = true;
        let cpfile = CpFile::bare(found.root.cpfile);
        let sufile = SuFile::bare(found.root.sufile);
        let ifile = IFile::none(&geometry);
        let mut volume =
            Volume::assemble(Parts { store, dat, sufile, cpfile, ifile, supers }, &found, options);
        volume.meta_dirty = true;
        volume.read_only = false;
        volume.mended_from = wounds.known.mended_from.map(Cno);
        volume.unsure = wounds.known.unsure.clone();
        let end_of_log = (found.cursor.segment, found.cursor.offset);
        let doubts = Doubts::new(&volume.store.device, geometry, &wounds.known);
        let mut me = Volume::mend_tables(&mut volume, wounds, &found.root, end_of_log, &doubts)?;
        said.append(&mut me.0);
        let mut moved = me.1;
        said.extend(volume.mend_usage(wounds.table)?);
        volume.spare(&wounds.known.spared)?;
        let free = match &wounds.known.free {
            Some(free) => free.clone(),
            None => volume.free_segments(found.tail.is_none())?,
        };
        let current = volume.cursor.segment;
        volume.mark_bad(wounds.bad.iter().copied().filter(|s| *s != current.0))?;
        let own = wounds.known.own && clean && found.tail.is_none() && wounds.bad.is_empty();
        if !own || wounds.start.is_some() {
            // What a repair that was cut off left would follow logs with its numbers.
            let greatest = start::greatest_sequence(&*volume.store.device, &geometry, found.last_seq);
            volume.leave_tail(found.tail.as_ref(), greatest, &found.touched, &[], &[])?;
        }
        volume.mark_bad(wounds.bad.iter().copied().filter(|s| *s == current.0))?;
        let mut aside = wounds.known.aside.clone();
        if !clean && let Some(tail) = &found.tail {
            match synced::behind(&*volume.store.device, &geometry, tail) {
                Ok(all) => aside.blocks.extend(all),
                Err(e) => said.push(format!("synced data behind the newest checkpoint is lost ({e})")),
            }
            if !wounds.take_in {
                volume.hold_tail();
            }
        }
        let mut mender = Mender {
            volume,
            said,
            moved: Vec::new(),
            empty: BTreeSet::new(),
            aside,
            doubts,
            original: wounds.known.original.clone(),
            spared: wounds.known.spared.clone(),
            free,
            since: wounds.known.since.unwrap_or(found.last_seq),
            end_of_log,
            written: BTreeMap::new(),
            names: BTreeMap::new(),
            past: past::Written::default(),
        };
        mender.moved.append(&mut moved);
        mender.mend_rest(wounds)?;
        if wounds.take_in {
            mender.take_in(options)?;
        }
        Ok(mender)
    }

    fn mend_rest(&mut self, wounds: &Wounds) -> Result<()> {
        let v = &mut self.volume;
        if wounds.checkpoints || !wounds.drop.is_empty() {
            self.said.extend(v.mend_checkpoints(&wounds.drop)?);
        }
        self.said.extend(v.mend_tree_counts(&wounds.counts)?);
        if !wounds.copies.is_empty() {
            let copies = self.volume.whole_copies(&wounds.copies, self.end_of_log)?;
            if !copies.is_empty() {
                self.said.push(format!(
                    "{} in logs that do not verify have whole copies where a cleaner moved them from: these are used",
                    count(copies.len(), "block")
                ));
            }
            self.moved.extend(copies);
        }
        let mut stale = self.stale_segments();
        // Those are emptied when the table is right.
        stale.retain(|s| !wounds.segments.contains(s) && !wounds.copies.contains(s));
        if !wounds.segments.is_empty() {
            let out = self.empty_segments(&wounds.segments, (wounds.zero_unreadable, wounds.unowned))?;
            let from = count(wounds.segments.len(), "segment");
            self.said.push(match out {
                0 => format!("emptied: {from} with logs that do not verify"),
                _ => format!(
                    "moved as they are: {} out of {from} with logs that do not verify",
                    count(out, "block")
                ),
            });
        }
        if !stale.is_empty() {
            self.empty_segments(&stale, (false, false))?;
            self.said.push(format!("emptied: {} with damaged nodes", count(stale.len(), "segment")));
        }
        let v = &mut self.volume;
        if wounds.keep {
            let c = Cno(v.last.cno);
            v.cpfile.set_snapshot(&v.store, &v.dat, c)?;
            self.said.push(format!("checkpoint {c}, the state before, is kept as a snapshot"));
        }
        if let Some(c) = wounds.snapshot
            && v.cpfile.get(&v.store, &v.dat, Cno(c))?.is_some_and(|e| !e.is_snapshot())
        {
            v.cpfile.set_snapshot(&v.store, &v.dat, Cno(c))?;
            self.said.push(format!(
                "checkpoint {c}, the newest that is whole, becomes a snapshot; silt chcp cp {c} makes it a plain one"
            ));
        }
        if let Some(c) = wounds.back {
            self.said.push(v.roll_back(Cno(c))?);
        }
        self.mend_ifile(wounds)
    }

    /// Has what is wanted of segments moved. How many blocks. `what`: with zeroes for what cannot be read, and without what
    /// nothing maps.
    fn empty_segments(&mut self, segments: &BTreeSet<u64>, what: (bool, bool)) -> Result<usize> {
        let mut already = Bits::default();
        self.moved.iter().for_each(|m| {
            already.insert(m.v);
        });
        let out = self.volume.evacuate(segments, &already, what, self.end_of_log)?;
        self.said.extend(out.words(&self.volume.store.geometry));
        let moved = out.moved.len() - out.zeroed.len();
        self.moved.extend(out.moved);
        self.empty.extend(out.free);
        self.doubts.moved.extend(out.inode_blocks);
        Ok(moved)
    }

    /// Segments from which nodes are on their way elsewhere with other bytes, some of them: a cleaner that goes by the
    /// records there would bring the old bytes back.
    fn stale_segments(&self) -> BTreeSet<u64> {
        let v = &self.volume;
        let at = |m: &Moved| v.dat.entry(&v.store, VBlockNr(m.v)).ok().map(|e| BlockNr(e.blocknr.get()));
        let nodes = self.moved.iter().filter(|m| m.offset.is_none());
        let places = nodes.filter_map(at).filter(|at| v.store.geometry.holds(*at));
        places.map(|at| v.store.geometry.segment_of(at).0).take(past::SEGMENTS).collect()
    }

    /// Bits, counts and lost blocks of the inode file of the tree at hand.
    fn mend_ifile(&mut self, wounds: &Wounds) -> Result<()> {
        let v = &mut self.volume;
        let layout = v.ifile.palloc.layout;
        let lost = wounds.lost_inodes.iter().map(|i| layout.entry(*i).block);
        let lost: BTreeSet<u64> = lost.chain(wounds.ifile_blocks.iter().copied()).collect();
        for offset in &lost {
            v.ifile.file.data.insert(*offset, crate::block::zeroed(v.store.geometry.bs()));
            self.said.push(format!("block {offset} of the inode file is made anew"));
        }
        self.doubts.moved.extend(&lost);
        if wounds.ifile {
            let (n, gone) = v.mend_inode_bits(&lost)?;
            self.said.extend(gone.iter().map(|at| format!("block {at} of the inode file is made anew")));
            self.doubts.moved.extend(gone);
            if n > 0 {
                self.said.push(format!("{n} bits of the inode file are set to what its entries say"));
            }
        }
        for (nr, taken) in &wounds.bits {
            let palloc = v.ifile.palloc;
            if palloc.bit(&v.ifile.file, &v.store, &v.dat, *nr)? != *taken {
                if *taken {
                    palloc.set(&mut v.ifile.file, &v.store, &v.dat, *nr)?;
                } else {
                    palloc.unset(&mut v.ifile.file, &v.store, &v.dat, *nr)?;
                }
                self.said.push(format!("inode number {nr} is {}", if *taken { "taken" } else { "free" }));
            }
        }
        if wounds.ifile {
            let palloc = v.ifile.palloc;
            for nr in 0..Ino::FIRST_USER.0 {
                if !palloc.bit(&v.ifile.file, &v.store, &v.dat, nr)? {
                    palloc.set(&mut v.ifile.file, &v.store, &v.dat, nr)?;
                    self.said.push(format!("the reserved inode {nr} is marked as taken"));
                }
            }
            let n = palloc.recount(&mut v.ifile.file, &v.store, &v.dat)?;
            if n > 0 {
                self.said.push(format!("free inodes of {n} groups are counted again"));
            }
        }
        Ok(())
    }

    /// Inodes but those of `settled` whose entries look like noise: two fields that no writer writes so, in logs that do not
    /// verify, or did not at first; or most of them.
    pub fn noise(&self, settled: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let (v, mut noise) = (&self.volume, BTreeMap::new());
        v.for_each_inode(0, |ino, raw| {
            let impossible = v.impossible(raw);
            if !settled.contains(&ino.0) && impossible >= 2 {
                noise.insert(ino.0, impossible);
            }
            ControlFlow::Continue(())
        })?;
        noise.retain(|ino, impossible| *impossible >= 4 || self.is_doubtful(Ino(*ino)));
        Ok(noise.into_keys().collect())
    }

    /// Makes the entries of all inodes but `settled` such that they can be opened, as far as that can be told;
    /// returns those that were not.
    pub fn make_possible(&mut self, settled: &BTreeSet<u64>) -> Result<Vec<Ino>> {
        let v = &mut self.volume;
        let mut all = vec![Ino::ROOT];
        v.for_each_inode(0, |ino, raw| {
            if crate::inode::check(&v.store.geometry, raw).is_err() {
                all.push(ino);
            }
            ControlFlow::Continue(())
        })?;
        let mut made = Vec::new();
        for ino in all.into_iter().filter(|i| !settled.contains(&i.0)) {
            match v.make_possible(ino) {
                Ok(true) => made.push(ino),
                // What cannot be read is another's to mend.
                Ok(false) | Err(Error::Format { .. } | Error::Device(_) | Error::NoInode(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(made)
    }

    /// Settles of which type an inode is that a name has for one of `named` (bits of a mode).
    pub fn settle_type(&mut self, ino: Ino, named: u32) -> Result<Mistyped> {
        self.volume.settle_type(ino, named, self.end_of_log)
    }

    /// Clears the entry of a reserved inode.
    pub fn clear_inode(&mut self, ino: Ino) -> Result<()> {
        let v = &mut self.volume;
        v.ifile.change(&v.store, &v.dat, ino, |entry| entry.fill(0))
    }

    /// Gives an inode the generation that it has at a checkpoint, or, while a past tree is mended, in the current one.
    pub fn take_generation(&mut self, ino: Ino, c: Option<Cno>) -> Result<u32> {
        let v = &mut self.volume;
        let entry = c.map(|c| v.cpfile.get(&v.store, &v.dat, c)).transpose()?.flatten();
        let then = entry.map(|e| IFile::new(&v.store.geometry, e.ifile_inode)).transpose()?;
        let ifile = then.as_ref().or(v.aside.as_ref().map(|a| &a.ifile)).unwrap_or(&v.ifile);
        let generation = ifile.get(&v.store, &v.dat, ino)?.generation.get();
        v.attr_mut(ino)?.generation = generation;
        Ok(generation)
    }

    /// Counts an inode's blocks again.
    pub fn recount_blocks(&mut self, ino: Ino) -> Result<()> {
        self.volume.recount_blocks(ino)
    }

    /// The volume, for changes of files.
    pub fn volume(&mut self) -> &mut Volume {
        &mut self.volume
    }

    /// Whether blocks wait to be moved, or segments to be given back.
    pub fn empties(&self) -> bool {
        self.moves() || !self.empty.is_empty()
    }

    /// Whether blocks wait to be moved.
    pub fn moves(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Writes all of it and marks the volume cleanly unmounted. Durable when it returns.
    pub fn finish(mut self, now: u64) -> Result<Vec<String>> {
        let v = &mut self.volume;
        v.checkpoint_with(std::mem::take(&mut self.moved), now)?;
        v.take_over(now)?;
        v.give_back(&self.empty)?;
        v.close(now)?;
        Ok(self.said)
    }
}
