//! The order of a check: super blocks, super root, DAT bitmaps, sufile, logs, DAT entries, cpfile,
//! the latest tree, snapshots, and where asked for all checkpoints.

use std::collections::BTreeMap;

use silt_device::Device;
use silt_format::checkpoint::CpEntry;
use silt_format::summary;
use silt_format::super_block::{self, STATE_ERROR, STATE_RESIZE, STATE_VALID, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Ino};

use crate::chain;
use crate::checkpoints::{self, Checkpoints};
use crate::context::Context;
use crate::dat::{self, Dat, DatState};
use crate::files::{self, Owner, Scope};
use crate::inode;
use crate::invariants as inv;
use crate::logs;
use crate::reader::Reader;
use crate::report::{Place, Report, Sink};

use crate::search::{self, Found, Pending};
use crate::segments::{self, Segments};
use crate::shared::Shared;
use crate::sparse::SparseBits;
use crate::super_check;
use crate::tree_check;
use crate::{Unwatched, Watch};

/// How much to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// Everything.
    #[default]
    Full,
    /// What a mount rests on: the super blocks, the end of the log, the super root, the metadata files, their counters
    /// and bitmaps. Time and memory do not depend on how much the files hold.
    Mount,
}

/// A log that ends with a super root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Its first block.
    pub block: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// The checkpoint it made.
    pub checkpoint: u64,
}

/// How to check.
#[derive(Debug, Clone)]
pub struct Options {
    /// Walk the trees of all checkpoints, not only of the latest and of snapshots.
    pub all_checkpoints: bool,
    /// Count notes that this implementation's own volumes never give rise to as errors.
    pub strict: bool,
    /// Findings that are kept for each invariant; more are only counted.
    pub findings_per_invariant: usize,
    /// Bytes of blocks to keep in memory.
    pub cache_bytes: usize,
    /// How much to look at.
    pub depth: Depth,
    /// Check the state as of this log, whatever is behind it: somebody who does not clean segments goes on writing.
    /// None: as a mount would find it, and nobody writes.
    pub at: Option<LogPosition>,
    /// Walk each tree as if no other one had been looked at. It finds the same and takes longer: for tests of the check.
    pub each_tree_whole: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            all_checkpoints: false,
            strict: false,
            findings_per_invariant: 50,
            cache_bytes: 64 << 20,
            depth: Depth::Full,
            at: None,
            each_tree_whole: false,
        }
    }
}

/// Checks a volume that nobody writes to. Never fails: what cannot be read is a finding.
pub fn check(device: &dyn Device, options: &Options) -> Report {
    check_watched(device, options, &Unwatched)
}

/// Like [`check()`], telling `watch` how far it is. Where that asks to stop, the report has what was found until then,
/// and says that it was ended ([`Report::stopped`]).
pub fn check_watched(device: &dyn Device, options: &Options, watch: &dyn Watch) -> Report {
    let out = Sink::new(options.strict, options.findings_per_invariant);
    run(device, options, watch, &out);
    out.into_report()
}

/// Whether neither place of a super block holds one, so that this may be anything.
pub fn is_no_volume(device: &dyn Device) -> bool {
    let (first, second) = search::super_blocks(device);
    first.is_err() && second.is_err()
}

/// What the super blocks say of how a volume was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// It was unmounted as it should be, and the log that was the last one then is whole.
    pub clean: bool,
    /// Somebody met an error while it was mounted.
    pub error: bool,
    /// The checkpoint at the copy's cursor: the latest one of a clean volume.
    pub checkpoint: u64,
}

/// The mark of the copy a mount would choose; none where no copy makes sense or one of the two is lost. Reads one log.
pub fn mark(device: &dyn Device) -> Option<Mark> {
    let (first, second) = search::super_blocks(device);
    let copies = super_block::choose(first, second, device.len()).ok()?;
    let sb = &copies.first.1;
    sb.geometry(device.len()).ok()?;
    let state = sb.state.get();
    let error = |sb: &SuperBlock| sb.state.get() & STATE_ERROR != 0;
    copies.second.as_ref().map(|(_, second)| Mark {
        clean: state & STATE_VALID != 0 && search::open(device, 1 << 20).is_ok_and(|(_, start)| start.clean),
        error: error(sb) || error(second),
        checkpoint: sb.last_cno.get(),
    })
}

fn run(device: &dyn Device, options: &Options, watch: &dyn Watch, out: &Sink) {
    let Some(Way { r, found, clean, resizing }) = find_root(device, options, out) else { return };
    let at = found.latest.end() - 1;
    let root = match r.block(BlockNr(at)).map(|b| SuperRoot::parse(&r.g, &b)) {
        Ok(Ok(root)) => root,
        Ok(Err(e)) => {
            out.add(&inv::ROOT_BLOCK, Place::block(at), e.to_string());
            return;
        }
        Err(e) => {
            out.add(&inv::DEVICE_READ, Place::block(at), e);
            return;
        }
    };
    let dat = Dat::load(&r, &root.dat, |invariant, place, what| out.add(invariant, place, what));
    let mut c = Context {
        out,
        watch,
        options,
        cno: found.cno,
        latest: found.latest,
        root,
        dat,
        dat_state: DatState::default(),
        segments: Segments::default(),
        shared: Shared::default(),
        r,
    };
    let c = &mut c;
    dat::check_bitmaps(c);
    // What the sufile says is needed to read the logs, and the logs to judge the sufile's map.
    let (blocks, wrong) = files::plain(&c.r, &c.dat, &c.root.sufile);
    if let Some(wrong) = wrong
        && !blocks.contains_key(&0)
    {
        c.out.add(&inv::SU_BLOCK0, Place::ino(Ino::SUFILE.0), wrong);
    }
    segments::check(c, &blocks.into_iter().collect::<Vec<_>>(), resizing);
    dat::check_places(c);
    let full = options.depth == Depth::Full;
    let made = if full { logs::check(c) } else { logs::Made::new() };
    if c.stop() {
        return;
    }
    if full {
        c.segments.check_left_behind(c.out);
        dat::check_entries(c);
    }
    if c.stop() {
        return;
    }
    let dat_blocks = (c.dat.blocks.len() + c.dat.nodes.len()) as u64;
    // mkfs.nilfs2: two blocks and those of the entries it uses, a handful.
    inode::check_metadata(c, &c.root.dat, Place::ino(Ino::DAT.0), dat_blocks, 3..=16);

    let mut scope = Scope { cno: c.cno, current: true, mapped: SparseBits::default() };
    let one = 1..=1;
    let tally =
        files::walk(c, &mut scope, &Owner { ino: Ino::SUFILE.0, raw: &c.root.sufile, block: None }, false);
    inode::check_metadata(c, &c.root.sufile, Place::ino(Ino::SUFILE.0), tally.total(), one.clone());
    let tally =
        files::walk(c, &mut scope, &Owner { ino: Ino::CPFILE.0, raw: &c.root.cpfile, block: None }, true);
    inode::check_metadata(c, &c.root.cpfile, Place::ino(Ino::CPFILE.0), tally.total(), one);
    let cps = checkpoints::check(c, &tally.blocks, &made);
    if !clean && c.options.at.is_none() {
        check_reached(c, &found);
    }
    if let Some(latest) = cps.entry(c, c.cno) {
        check_pending(c, &found, &latest, clean);
        if !full {
            tree_check::check_inode_file(c, &mut scope, &latest);
            return;
        }
        c.watch.stage("walking the files", latest.inodes_count.get());
        let inodes = tree_check::check(c, &mut scope, &latest, None, &mut None);
        let inodes = inodes.unwrap_or_default();
        if c.stop() {
            return;
        }
        c.dat_state.mapped = scope.mapped;
        dat::check_unmapped(c);
        c.dat_state.mapped = SparseBits::default();
        check_past(c, &cps, Some(&inodes));
    } else if full {
        check_past(c, &cps, None);
    }
}

/// Where the super blocks lead.
pub(crate) struct Way<'a> {
    pub r: Reader<'a>,
    pub found: Found,
    /// The volume is marked as cleanly unmounted there.
    pub clean: bool,
    /// A resize was cut off: the next mount counts the clean segments again (spec section 15).
    pub resizing: bool,
}

/// Super blocks, and the way from them to the latest super root.
pub(crate) fn find_root<'a>(device: &'a dyn Device, options: &Options, out: &Sink) -> Option<Way<'a>> {
    let size = device.len();
    let parsed = super_check::read(device, options.at.is_some());
    let usable = [&parsed.0, &parsed.1]
        .into_iter()
        .find_map(|p| p.as_ref().ok())
        .is_none_or(|sb| super_check::secondary_usable(sb, size));
    super_check::check_copies(out, &parsed, size, usable);
    out.cut_short(super_check::missing(&parsed, size));
    let copies = match super_block::choose(parsed.0, parsed.1, size) {
        Ok(c) => c,
        Err(e) => {
            out.add(&inv::SUPER_FIELDS, Place::none(), e.to_string());
            return None;
        }
    };
    super_check::check_fields(out, copies.first.0, &copies.first.1, size);
    if let Some(second) = &copies.second {
        super_check::check_fields(out, second.0, &second.1, size);
        super_check::check_agreement(out, &copies.first.1, &second.1);
    }
    let (sb, g) = match copies.first.1.geometry(size) {
        Ok(g) => (&copies.first.1, g),
        Err(e) => {
            out.add(&inv::SUPER_FIELDS, Place::none(), e.to_string());
            // Nobody would mount it, but the other copy may still show what is there.
            let second = &copies.second.as_ref()?.1;
            (second, second.geometry(size).ok()?)
        }
    };
    let r = Reader::new(device, g, options.cache_bytes);
    if let Some(second) = &copies.second {
        super_check::check_other_cursor(out, &r, second);
    }
    let other = copies.second.as_ref().map(|(_, other)| other);
    // While somebody writes, the mark says nothing.
    let clean = options.at.is_none() && sb.state.get() & STATE_VALID != 0;
    let found = match &options.at {
        Some(at) => pinned(&r, at, out)?,
        None => match latest(&r, sb, clean, out).or_else(|| latest(&r, other?, false, out)) {
            Some(found) => found,
            None => unverified(&r, sb, other, out)?,
        },
    };
    for (pos, counted, written) in &found.miscounted {
        let message = format!("the log says checkpoint {written}, counting says {counted}");
        out.add(&inv::ROOT_COUNTED, Place::block(pos.0), message);
    }
    if let Some(second) = &copies.second
        && !std::ptr::eq(&raw const second.1, sb)
    {
        super_check::check_other_chain(out, &r, second, found.cno);
    }
    out.stats(|s| (s.last_cno, s.clean) = (found.cno, clean));
    let resizing = sb.state.get() & STATE_RESIZE != 0;
    Some(Way { r, found, clean, resizing })
}

/// The log that whoever writes has named.
fn pinned(r: &Reader<'_>, at: &LogPosition, out: &Sink) -> Option<Found> {
    let place = Place::block(at.block);
    match search::validate(r, BlockNr(at.block), at.sequence) {
        Ok(Some(log)) if log.header.has(summary::SR) => Some(Found::of(log, at.checkpoint)),
        Ok(_) => {
            out.add(&inv::ROOT_FOUND, place, "the log written last does not verify");
            None
        }
        Err(e) => {
            out.add(&inv::DEVICE_READ, place, e);
            None
        }
    }
}

/// What both super blocks point at does not verify. Nothing would mount this; but where the log can be told, most of
/// what it leads to may be whole, and is looked at.
fn unverified(r: &Reader<'_>, first: &SuperBlock, other: Option<&SuperBlock>, out: &Sink) -> Option<Found> {
    let place = Place::block(first.last_pseg.get());
    let message = "no valid log where the super blocks point; silt rescue looks for older ones";
    out.add(&inv::ROOT_FOUND, place, message);
    [Some(first), other].into_iter().flatten().find_map(|sb| search::unverified(r, sb))
}

/// The search from one copy, with what it says of the copy.
fn latest(r: &Reader<'_>, sb: &SuperBlock, clean: bool, out: &Sink) -> Option<Found> {
    let place = Place::block(sb.last_pseg.get());
    let found = search::search(r, sb, true);
    if let Ok(Some(Found { latest, unreadable: Some(e), .. })) = &found {
        let place = Place::block(latest.end());
        out.add(&inv::DEVICE_READ, place, e.clone());
        let message = "the device cannot be read behind this log: a mount that goes on there fails";
        out.add(&inv::ROOT_FOUND, place, message);
    }
    match found {
        Ok(Some(found)) if clean && found.newer > 0 => {
            let message = format!(
                "the volume is marked as cleanly unmounted at checkpoint {}, but {} newer ones follow",
                sb.last_cno, found.newer
            );
            out.add(&inv::ROOT_NEWER, place, message);
            // What a mount would see.
            search::search(r, sb, false).ok().flatten()
        }
        Ok(Some(found)) => Some(found),
        Ok(None) => {
            out.add(&inv::ROOT_FOUND, place, "no valid log with a super root is there");
            None
        }
        Err(e) => {
            out.add(&inv::DEVICE_READ, place, e);
            None
        }
    }
}

/// Whole logs behind a damaged one, to which no mount comes. Of whatever state the newest checkpoint is that one does come to:
/// a cleaner may have given away since what that needs.
fn check_reached(c: &Context<'_>, found: &Found) {
    let chain = chain::follow(&c.r, found);
    if let (Some((block, _)), Some(what)) = (chain.cut(), chain.lost()) {
        c.out.add(&inv::RECOVERY_REACHED, Place::block(block), what);
    }
}

/// Logs behind the super root that a mount would roll forward.
fn check_pending(c: &Context<'_>, found: &Found, latest: &CpEntry, clean: bool) {
    let pending = match search::pending(&c.r, found) {
        Ok(p) => p,
        Err(e) => {
            c.out.add(&inv::DEVICE_READ, Place::none(), e);
            Pending::default()
        }
    };
    if let Some((pos, what)) = &pending.broken {
        let place = Place { segment: Some(search::segment(&c.r.g, pos.0).0), ..Place::block(pos.0) };
        c.out.add(&inv::RECOVERY_MIX, place, what.clone());
    }
    c.out.stats(|s| (s.pending_logs, s.pending_blocks) = (pending.logs, pending.blocks.len() as u64));
    if clean && !pending.blocks.is_empty() {
        let message = format!("{} data-sync logs follow, which no mount looks for", pending.logs);
        c.out.add(&inv::ROOT_NEWER, Place::block(c.latest.pos.0), message);
    }
    let layout = silt_format::palloc::Layout::ifile(&c.r.g);
    let (ifile, _) = files::plain(&c.r, &c.dat, &latest.ifile_inode);
    let mut last = None;
    for (ino, offset, block) in &pending.blocks {
        let place = Place::ino(*ino).at_offset(*offset).at_block(*block);
        if *offset > c.r.g.max_key() {
            c.out.add(&inv::RECOVERY_INODE, place, "lies behind the greatest file size");
        }
        if last.replace(*ino) == Some(*ino) {
            continue;
        }
        let known = layout.check("ifile", *ino).is_ok().then(|| layout.entry(*ino)).and_then(|at| {
            let bytes = c.r.block(BlockNr(*ifile.get(&at.block)?)).ok()?;
            silt_format::inode::RawInode::read(bytes.get(at.byte..)?).ok()
        });
        if !known.is_some_and(|i| i.links_count.get() != 0 && i.has_map()) {
            c.out.add(&inv::RECOVERY_INODE, place, "names a file the latest checkpoint does not have");
        }
    }
}

/// Trees of snapshots, and of the other checkpoints if asked for. `latest` is where the latest one's ifile lies.
fn check_past(c: &Context<'_>, cps: &Checkpoints, latest: Option<&BTreeMap<u64, u64>>) {
    let mut before = None;
    let mut known = None;
    let wanted = |slot: &checkpoints::Slot| slot.snapshot || c.options.all_checkpoints;
    let total = cps.all.iter().filter(|(cno, slot)| **cno != c.cno && wanted(slot)).count();
    c.watch.stage("walking older moments", total as u64);
    for (cno, slot) in cps.all.iter().filter(|(cno, _)| **cno != c.cno) {
        if !wanted(slot) {
            continue;
        }
        if c.stop() {
            return;
        }
        c.watch.done(1);
        let Some(entry) = cps.entry(c, *cno) else { continue };
        // Checkpoints in which nothing of the tree changed share their ifile.
        let counts = (entry.ifile_inode.bmap, entry.inodes_count, entry.blocks_count);
        if before.replace(counts) == Some(counts) {
            continue;
        }
        let mut scope = Scope { cno: *cno, current: false, mapped: SparseBits::default() };
        tree_check::check(c, &mut scope, &entry, latest, &mut known);
    }
}
