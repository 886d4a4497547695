//! An open volume: its parts, opening it, and the requests that change nothing on disk by
//! themselves.
//!
//! Requests change inodes in memory; [`crate::construct`] turns what is dirty into logs. The
//! volume has no clock, threads or randomness: times and seeds are handed in. It is meant to
//! live under one lock; writing a log's bytes happens outside of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use rangemap::RangeSet;
use silt_device::Device;
use silt_format::super_block::{self as sb, STATE_ERROR, STATE_RESIZE, STATE_VALID};
use silt_format::{BlockNr, Cno, Geometry, Ino, SegNr};

use crate::clock::Watch;
use crate::construct::{Construction, DAMAGES, LOG_BLOCKS};
use crate::cpfile::CpFile;
use crate::dat::Dat;
use crate::ifile::IFile;
use crate::inode::Inode;
use crate::leftovers::Leftovers;
use crate::log::{Cursor, WriteOrder};
use crate::mend::{Aside, Bits};
use crate::recover::Recovery;
use crate::redo::BadPlace;
use crate::room::{GivenUp, Underestimate};
use crate::search::{self, Found, Unreadable};
use crate::store::Store;
use crate::sufile::SuFile;
use crate::supers::{self, LastLog, Supers};
use crate::verify_log::Verifier;
use crate::view::View;
use crate::waiting::Waiting;
use crate::watched::Watched;
use crate::{At, Error, Result};

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Write not one byte; what recovery would do happens in memory.
    pub read_only: bool,
    /// Show the newest checkpoint, ignoring synced data behind it. Only with `read_only`, or on
    /// a cleanly unmounted volume.
    pub norecovery: bool,
    /// Bytes of clean metadata kept in memory; and of synced data that recovery holds at once, which
    /// beyond that is written on the way (read-only, it holds none).
    pub cache_bytes: u64,
    /// Inodes kept in memory beyond those in use.
    pub cached_inodes: usize,
    /// Seconds since 1970.
    pub now: u64,
    /// Seconds that passed since some moment, however the clock is set: so it is noticed when it is.
    pub running: Option<fn() -> u64>,
    /// For inode generations, and to tell one recovery from another.
    pub seed: u64,
    /// Most blocks of a log that holds file data, summary included; logs of metadata alone may be as large as a
    /// segment. At least 8.
    pub max_log_blocks: u64,
    /// Remember whose logs have to be verified ([`Volume::verifier`]).
    pub verify: bool,
    /// Segments in which logs lie that no mount comes to, since one before them is damaged (`silt rescue` reads them): a recovery
    /// leaves them alone until it is durable, where there is room for that.
    pub unreached: Vec<SegNr>,
    /// Account for what the storage below holds ([`crate::backed`]): it may have no space for what is clean. For who writes.
    pub backed: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            norecovery: false,
            cache_bytes: 64 << 20,
            cached_inodes: 50_000,
            now: 0,
            running: None,
            seed: 0,
            max_log_blocks: LOG_BLOCKS,
            verify: false,
            unreached: Vec::new(),
            backed: false,
        }
    }
}

/// What opening found worth telling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// A super block copy that could not be used.
    pub torn_super_block: Option<&'static str>,
    /// The volume was not cleanly unmounted.
    pub was_unclean: bool,
    /// Blocks of synced data found behind the newest checkpoint.
    pub rolled_forward: u64,
    /// An earlier user of the volume met an error.
    pub has_error_flag: bool,
    /// Features that allow reading only.
    pub read_only_features: u64,
    /// Only an older checkpoint than a super block names was found, so that it can only be read: in words
    /// ([`Error::Older`]).
    pub older: Option<String>,
    /// Damage that was met, in words.
    pub damage: Vec<String>,
}

/// Numbers for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub block_size: u32,
    pub segments: u64,
    pub clean_segments: u64,
    pub reserved_segments: u64,
    pub blocks_per_segment: u32,
    pub first_data_block: u64,
    /// Next checkpoint number.
    pub next_cno: u64,
    pub checkpoints: u64,
    pub snapshots: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inode numbers there are before the ifile grows by a descriptor block.
    pub inode_limit: u64,
    /// Blocks waiting for a log, frozen ones included.
    pub dirty_blocks: u64,
    pub dirty_inodes: u64,
    pub current_segment: u64,
    pub next_segment: u64,
    /// Blocks of the newest checkpoint's tree.
    pub tree_blocks: u64,
    /// Seconds; creation of the newest checkpoint's log.
    pub last_checkpoint_time: u64,
}

/// An open volume.
pub struct Volume {
    pub(crate) store: Store,
    pub(crate) dat: Dat,
    pub(crate) sufile: SuFile,
    pub(crate) cpfile: CpFile,
    pub(crate) ifile: IFile,
    pub(crate) supers: Supers,
    pub(crate) cursor: Cursor,
    /// The checkpoint under construction, or the next one.
    pub(crate) cno: Cno,
    pub(crate) last: LastLog,
    pub(crate) last_create: u64,
    pub(crate) clock: Watch,
    pub(crate) nongc_ctime: u64,
    pub(crate) inodes: HashMap<u64, Box<Inode>>,
    /// Inodes whose `current` side holds changes.
    pub(crate) dirty: Waiting,
    /// Numbers in use that the ifile does not show as taken: handed out since the last checkpoint, or
    /// of inodes that die with the one under construction.
    pub(crate) new_numbers: RangeSet<u64>,
    pub(crate) next_ino: u64,
    pub(crate) inodes_count: u64,
    /// Blocks of the tree's files and the ifile.
    pub(crate) tree_blocks: u64,
    /// Blocks in `current` overlays.
    pub(crate) dirty_blocks: u64,
    /// Blocks in frozen overlays.
    pub(crate) frozen_blocks: u64,
    /// Metadata files were changed by a request (snapshots, deleted checkpoints, resize).
    pub(crate) meta_dirty: bool,
    pub(crate) construction: Option<Construction>,
    pub(crate) views: HashMap<u64, View>,
    /// How often one of them was looked into.
    pub(crate) view_looks: u64,
    pub(crate) read_only: bool,
    /// Why nothing can be written any more.
    pub(crate) failed: Option<String>,
    pub(crate) super_written: u64,
    pub(crate) super_seq: u64,
    /// The chain of logs was broken on purpose: a super block write must follow.
    pub(crate) discontinued: bool,
    /// While it is mended, the newest checkpoint that is not the mend's own.
    pub(crate) mended_from: Option<Cno>,
    /// While mending: virtual blocks of which it is not known any more when they died, or whether.
    pub(crate) unsure: Bits,
    pub(crate) cached_inodes: usize,
    pub(crate) trim_at: usize,
    /// Recovery left something to do for [`Volume::take_over`].
    pub(crate) recovery: Option<Recovery>,
    /// Order of the logs that [`Volume::checkpoint`] writes itself.
    pub(crate) order: WriteOrder,
    /// Flushes that had failed before the first of them that no flush has covered.
    pub(crate) failed_before: u64,
    /// See [`Volume::is_left_open`].
    pub(crate) left_open: bool,
    /// See [`Volume::be_patient`].
    pub(crate) patient: bool,
    /// Blocks of the tables that nobody waits for again, with the number of the table.
    pub(crate) hopeless: BTreeSet<(Ino, u64)>,
    /// See [`Volume::take_lost_content`].
    pub(crate) lost_content: bool,
    /// See [`crate::leftovers`].
    pub(crate) leftovers: Leftovers,
    /// Places tried in a row that took nothing.
    pub(crate) moves: u32,
    /// Logs were moved off the chain: [`Volume::settle`] is due.
    pub(crate) moved: bool,
    /// Places that took no log, to be tried again once the log is settled elsewhere.
    pub(crate) bad_places: Vec<BadPlace>,
    pub(crate) generation: u64,
    /// Most blocks of a log that holds file data.
    pub(crate) log_blocks: u64,
    /// What checkpoints could not take, for [`Volume::take_damage`].
    pub(crate) damage: Vec<(Ino, String)>,
    /// Counts requests that took something away: files, parts of them, checkpoints, snapshots.
    pub(crate) given_up: GivenUp,
    /// What of that the newest checkpoint knows of.
    pub(crate) given_up_written: GivenUp,
    /// Blocks of files that were written for their own sake.
    pub(crate) data_written: u64,
    /// Blocks written by checkpoints that were not made to clean.
    pub(crate) rewritten: u64,
    pub(crate) underestimated: Option<Underestimate>,
    /// Blocks of data-sync logs since the last checkpoint, from above: a recovery writes them once more.
    pub(crate) synced_alone: u64,
    /// Segments that were given back since the last checkpoint: for a recovery they are in use.
    pub(crate) given_back: u64,
    /// Requests of so many blocks were refused when so much had been given up.
    pub(crate) full: Option<(u64, u64)>,
    /// Who gives space back leaves the floor as well ([`Volume::leave_floor`]).
    pub(crate) leaves_floor: bool,
    /// The current tree, while a past one that is mended is in its place.
    pub(crate) aside: Option<Box<Aside>>,
}

/// What a volume is put together from.
pub(crate) struct Parts {
    pub store: Store,
    pub dat: Dat,
    pub sufile: SuFile,
    pub cpfile: CpFile,
    pub ifile: IFile,
    pub supers: Supers,
}

impl Volume {
    /// Opens a volume. Synced data is recovered here, in memory or, opened for writing and where there
    /// is much of it, into clean segments; the caller must then run [`Volume::take_over`] before
    /// anything else. [`Error::Older`]: what can be had is older than what a super block names, and can only be read.
    pub fn open(device: Arc<dyn Device>, options: &OpenOptions) -> Result<(Volume, OpenReport)> {
        match Volume::open_sparing(device.clone(), options) {
            // Logs that no mount comes to are spared where there is room for that, which may turn out on the way.
            Err(Error::NoSpace) if !options.unreached.is_empty() => {
                let seed = options.seed.wrapping_add(1 << 32);
                Volume::open_sparing(device, &OpenOptions { seed, unreached: Vec::new(), ..options.clone() })
            }
            opened => opened,
        }
    }

    fn open_sparing(device: Arc<dyn Device>, options: &OpenOptions) -> Result<(Volume, OpenReport)> {
        let mut supers = supers::read(&*device)?;
        if !options.read_only && supers.state_at_open & STATE_VALID == 0 {
            // The mount before may have ended because a log could not be written: what memory shows of that is not to be gone on from.
            device.forget_cached();
            supers = supers::read(&*device)?;
        }
        let geometry = supers.geometry(&device)?;
        let ro_features = supers.first.1.feature_compat_ro.get() & !sb::KNOWN_RO_FEATURES;
        let mut report = OpenReport {
            torn_super_block: supers.torn.map(|c| match c {
                sb::Copy::Primary => "primary",
                sb::Copy::Secondary => "secondary",
            }),
            has_error_flag: supers.state_at_open & STATE_ERROR != 0,
            read_only_features: ro_features,
            ..OpenReport::default()
        };
        if ro_features != 0 && !options.read_only {
            return Err(Error::ReadOnlyFeatures(ro_features));
        }
        let found = search::search(&*device, &geometry, &mut supers, Unreadable::Fails)?;
        report.was_unclean = supers.state_at_open & STATE_VALID == 0;
        if let Some(LastLog { pseg: block, cno: named, .. }) = found.newer {
            let older = Error::Older { block, named, found: found.last.cno };
            if !options.read_only {
                return Err(older);
            }
            report.older = Some(older.to_string());
        }
        if options.norecovery && report.was_unclean && !options.read_only {
            return Err(Error::Unclean);
        }
        let mut store = Store::new(device, geometry, options.cache_bytes);
        if options.verify {
            let verifier = Verifier::new(store.device.clone(), geometry);
            store.verifier = Some(Arc::new(Watched::new(verifier)));
        }
        let dat = Dat::new(&geometry, found.root.dat, Cno(found.last.cno).next());
        let cpfile = CpFile::open(&store, &dat, found.root.cpfile)?;
        let sufile = match SuFile::open(&geometry, &store, &dat, found.root.sufile) {
            // Who only reads does not need it.
            Err(e) if options.read_only => {
                report.damage.push(e.to_string());
                SuFile::bare(found.root.sufile)
            }
            other => other?,
        };
        let entry = cpfile.get(&store, &dat, Cno(found.last.cno))?.ok_or_else(|| {
            Error::corrupt("cpfile", "cpfile", format!("the newest checkpoint {} is missing", found.last.cno))
        })?;
        let ifile = IFile::new(&geometry, entry.ifile_inode)?;
        let root = ifile.get(&store, &dat, Ino::ROOT)?;
        root.check().at(|| "root directory".into())?;
        if root.file_type() != 0o040_000 || root.size.get() == 0 || root.links_count.get() == 0 {
            return Err(Error::corrupt("inode 2", "inode", "the root is no directory"));
        }
        let parts = Parts { store, dat, sufile, cpfile, ifile, supers };
        let mut volume = Volume::assemble(parts, &found, options);
        volume.inodes_count = entry.inodes_count.get();
        volume.tree_blocks = entry.blocks_count.get();
        let mut astray = false;
        // One that was cut off leaves counts of before.
        let resizing = volume.supers.state_at_open & STATE_RESIZE != 0;
        if !options.read_only {
            let Volume { sufile, store, dat, cursor, .. } = &mut volume;
            let (wrong, writers) = sufile.audit(store, dat, [cursor.segment, cursor.next], resizing);
            report.damage.extend(wrong);
            let root = store.geometry.segment_of(BlockNr(found.last.pseg));
            let (wrong, said_clean) = sufile.keep_for_log(store, dat, [cursor.segment, cursor.next, root]);
            report.damage.extend(wrong);
            astray = writers || said_clean.contains(&cursor.segment);
        }
        if options.backed && !options.read_only {
            volume.account_for_backing();
        }
        // A tail is left in any case.
        let stays = options.read_only || report.was_unclean || volume.begin_backing();
        if (astray && (!report.was_unclean || options.norecovery)) || !stays {
            // How full the writer's segment is cannot be told there, or the storage below has no space for the rest of it: the
            // log goes on in another.
            volume.leave_tail(None, found.last_seq, &[], &[], &[])?;
        }
        if report.was_unclean && !options.norecovery {
            if !options.read_only {
                let Found { tail, last_seq, touched, unpromised, .. } = &found;
                volume.leave_tail(tail.as_ref(), *last_seq, touched, unpromised, &options.unreached)?;
            }
            if let Some(tail) = &found.tail {
                report.rolled_forward = volume.roll_forward(tail, options)?;
            }
        }
        volume.finish_resize()?;
        Ok((volume, report))
    }

    /// A volume as it is when nothing was changed yet, at the newest checkpoint; its counts are left at zero.
    pub(crate) fn assemble(parts: Parts, found: &Found, options: &OpenOptions) -> Volume {
        let Parts { store, dat, sufile, cpfile, ifile, supers } = parts;
        let geometry = store.geometry;
        Volume {
            cursor: found.cursor,
            cno: Cno(found.last.cno).next(),
            last: found.last,
            last_create: found.create,
            clock: Watch::new(options.running, Cno(found.last.cno), found.create, options.now),
            nongc_ctime: found.root.nongc_ctime,
            inodes: HashMap::new(),
            dirty: Waiting::new(&geometry),
            new_numbers: RangeSet::new(),
            next_ino: geometry.first_ino,
            inodes_count: 0,
            tree_blocks: 0,
            dirty_blocks: 0,
            frozen_blocks: 0,
            meta_dirty: false,
            construction: None,
            views: HashMap::new(),
            view_looks: 0,
            read_only: options.read_only,
            failed: None,
            super_written: options.now,
            super_seq: supers.first.1.last_seq.get(),
            discontinued: false,
            mended_from: None,
            unsure: Bits::default(),
            cached_inodes: options.cached_inodes.max(16),
            trim_at: options.cached_inodes.max(16),
            recovery: None,
            order: WriteOrder::default(),
            failed_before: 0,
            left_open: false,
            patient: false,
            hopeless: BTreeSet::new(),
            lost_content: false,
            leftovers: Leftovers::default(),
            moves: 0,
            moved: false,
            bad_places: Vec::new(),
            // Without a seed two opens still differ, unless they come in the same second.
            generation: options.seed.wrapping_add(options.now),
            damage: Vec::new(),
            given_up: GivenUp::default(),
            given_up_written: GivenUp::default(),
            data_written: 0,
            rewritten: 0,
            underestimated: None,
            synced_alone: 0,
            given_back: 0,
            full: None,
            leaves_floor: false,
            aside: None,
            log_blocks: options.max_log_blocks.max(8),
            store,
            dat,
            sufile,
            cpfile,
            ifile,
            supers,
        }
    }

    /// Changes whenever something was taken away, so that there may be more to reclaim than before.
    pub fn given_up(&self) -> GivenUp {
        self.given_up
    }

    /// The same as the newest checkpoint has it: what goes by that finds nothing of what was taken away since.
    pub fn given_up_on_disk(&self) -> GivenUp {
        if self.has_changes() || self.is_constructing() { self.given_up_written } else { self.given_up }
    }

    /// Blocks of files that were written since the volume was opened, those aside that a cleaner moved.
    pub fn data_written(&self) -> u64 {
        self.data_written
    }

    /// Blocks that checkpoints took since the volume was opened, those of cleanings aside: where no data came, they
    /// took the place of others, which can be reclaimed.
    pub fn rewritten_blocks(&self) -> u64 {
        self.rewritten
    }

    /// The volume's fixed numbers.
    pub fn geometry(&self) -> &Geometry {
        &self.store.geometry
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.store.device
    }

    /// The preferred super block.
    pub fn super_block(&self) -> &sb::SuperBlock {
        &self.supers.first.1
    }

    /// The newest log with a super root.
    pub fn last_log(&self) -> LastLog {
        self.last
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.failed.is_some()
    }

    /// Why writing ended, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Stops writing for good: what waits stays in memory and is lost at the end.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failed.get_or_insert(why.into());
    }

    /// What verifies logs, if the volume was opened with [`OpenOptions::verify`]. To be used without the lock that
    /// the volume is under.
    pub fn verifier(&self) -> Option<Arc<Watched>> {
        self.store.verifier.clone()
    }

    /// Takes what was wrong with inodes that went into checkpoints: content of theirs that could not be mapped, or
    /// blocks that could not be given back. At most a thousand since the last call.
    pub fn take_damage(&mut self) -> Vec<(Ino, String)> {
        std::mem::take(&mut self.damage)
    }

    /// Remembers what was wrong with an inode for [`Volume::take_damage`].
    pub(crate) fn met(&mut self, ino: Ino, damage: Option<impl ToString>) {
        if self.damage.len() < DAMAGES {
            self.damage.extend(damage.map(|e| (ino, e.to_string())));
        }
    }

    /// Whether content of files could not be taken into checkpoints since the last call.
    pub fn take_lost_content(&mut self) -> bool {
        std::mem::take(&mut self.lost_content)
    }

    /// Whether a checkpoint would hold anything new.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || self.meta_dirty
    }

    /// Whether something that users did is in no checkpoint, or in one that is not complete.
    pub fn is_unwritten(&self) -> bool {
        !self.dirty.is_empty() || self.construction.is_some()
    }

    /// Numbers for statfs and status.
    pub fn stat(&self) -> Result<Stat> {
        let g = &self.store.geometry;
        // What cannot be told for damage is no reason to say nothing.
        let groups = self.ifile.palloc.existing_groups(&self.ifile.file, &self.store, &self.dat).unwrap_or(1);
        Ok(Stat {
            block_size: g.block_size,
            segments: g.nsegments,
            clean_segments: self.sufile.clean(),
            reserved_segments: g.reserved_segments(),
            blocks_per_segment: g.blocks_per_segment,
            first_data_block: g.first_data_block,
            next_cno: self.cno.0,
            checkpoints: self.cpfile.checkpoints(),
            snapshots: self.cpfile.snapshots(),
            inodes: self.inodes_count,
            inode_limit: groups.saturating_mul(self.ifile.palloc.layout.entries_per_group()),
            dirty_blocks: self.dirty_blocks + self.frozen_blocks,
            dirty_inodes: self.dirty.len() as u64,
            current_segment: self.cursor.segment.0,
            next_segment: self.cursor.next.0,
            tree_blocks: self.tree_blocks,
            last_checkpoint_time: self.last_create,
        })
    }

    /// The next generation number (a mixed counter, so that numbers do not repeat over mounts).
    pub(crate) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.generation;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z >> 32) as u32
    }
}
