//! What findings about metadata mean: what the engine is to mend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::Overlay;
use silt_engine::mend::Wounds;
use silt_format::palloc::{Kind as Part, Layout};
use silt_format::{BlockNr, Geometry, Ino};
use silt_verify::{Finding, Moment, Report, Tree};

use crate::rounds::Stage;

const IFILE: u64 = 6;
const DAT: u64 = 3;
const SUFILE: u64 = 5;

/// The checkpoint a finding is about is the newest, or none.
fn is_current(f: &Finding, report: &Report) -> bool {
    f.place.cno.is_none_or(|c| c == report.stats.last_cno)
}

/// Findings about metadata, and what to do about them.
pub(crate) fn wounds<'a>(
    found: &[&'a Finding],
    report: &Report,
    g: Option<&Geometry>,
) -> (Wounds, Vec<&'a Finding>) {
    // Where a log's summary is lost, nothing says what its blocks are, and nothing is wrong with them.
    let silent: BTreeSet<u64> = found.iter().filter(|f| is_log(f)).filter_map(|f| segment_of(f, g)).collect();
    // But of two that claim one block one is wrong, and the summary that is there says which.
    let claimed: BTreeSet<Option<u64>> =
        found.iter().filter(|f| f.id == "dat-shared-block").map(|f| f.place.block).collect();
    let silent = |f: &Finding| {
        matches!(f.id, "dat-own-block" | "dat-attribution" | "map-owner" | "sufile-nblocks")
            && segment_of(f, g).is_some_and(|s| silent.contains(&s))
            && !(f.id == "dat-attribution" && claimed.contains(&f.place.block))
    };
    // Where the usage file makes no sense, what it does not know of lies where it should all the same.
    let usage = found.iter().any(|f| f.id.starts_with("sufile-") || f.place.ino == Some(SUFILE));
    let silent = |f: &Finding| {
        let known = |b: u64| g.is_some_and(|g| g.holds(BlockNr(b)));
        let uncovered = matches!(f.id, "dat-own-place" | "dat-blocknr") && f.place.block.is_some_and(known);
        silent(f) || (usage && uncovered)
    };
    let mut w = Wounds::default();
    let mut mine = Vec::new();
    for f in found.iter().filter(|f| !silent(f)) {
        if one(f, report, &mut w) {
            mine.push(*f);
        }
    }
    (w, mine)
}

/// Bitmaps of the table that are noise, by offset: they have numbers as taken of which there are no entries, in many places.
/// What such numbers' entries say, where there are some, is what they said when they were given back.
pub(crate) fn noisy_bitmaps(found: &[&Finding], g: Option<&Geometry>) -> BTreeSet<u64> {
    const BLOCKS: usize = 8;
    let Some(layout) = g.map(Layout::dat) else { return BTreeSet::new() };
    let mut missing: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for v in found.iter().filter(|f| f.id == "dat-entry-missing").filter_map(|f| f.place.vblock) {
        if layout.check("DAT", v).is_ok() {
            missing.entry(layout.group(v)).or_default().insert(layout.entry(v).block);
        }
    }
    missing.retain(|_, blocks| blocks.len() >= BLOCKS);
    missing.into_keys().map(|group| layout.bitmap_block(group)).collect()
}

/// What a finding about metadata is about.
pub(crate) fn stage(f: &Finding) -> Stage {
    match f.id {
        "dat-live-unmapped" => Stage::Rest,
        id if id.starts_with("dat-") => Stage::Translation,
        "map-vblock" | "map-unwritten" | "map-dead" | "map-lifetime" | "map-owner" => Stage::Translation,
        _ if f.place.ino == Some(DAT) => Stage::Translation,
        "device-read" if f.place.vblock.is_some() && f.place.block.is_none() => Stage::Translation,
        id if id.starts_with("btree-") => Stage::Nodes,
        "device-read" if f.place.vblock.is_some() => Stage::Nodes,
        "cpfile-inodes-count" | "cpfile-blocks-count" => Stage::Rest,
        id if id.starts_with("cpfile-") => Stage::Checkpoints,
        "device-read" if f.place.ino == Some(4) => Stage::Checkpoints,
        _ => Stage::Rest,
    }
}

/// Whether a file's map is likelier to be wrong than the table: it was read from a log that does not verify.
pub(crate) fn is_of_map(f: &Finding) -> bool {
    let file = |ino: u64| ino == Ino::ROOT.0 || ino >= Ino::FIRST_USER.0;
    f.id.starts_with("map-") && f.place.held.is_some() && f.place.ino.is_some_and(file)
}

fn one(f: &Finding, report: &Report, w: &mut Wounds) -> bool {
    if is_of_map(f) {
        return false;
    }
    let p = &f.place;
    let of = |ino: u64| p.ino == Some(ino);
    match f.id {
        "sufile-header-block"
        | "sufile-clean-count"
        | "sufile-dirty-count"
        | "sufile-last-alloc"
        | "sufile-clean-entry"
        | "sufile-flags"
        | "sufile-nblocks"
        | "sufile-current"
        | "sufile-next" => {}
        "dat-own-block" | "dat-own-place" => w.table_map = true,
        "dat-entry-zero" => {
            w.entries.insert(0);
        }
        "dat-blocknr" | "dat-lifetime" | "dat-shared-block" | "dat-entry-missing" | "dat-unwritten"
        | "dat-attribution" | "dat-record-cno" | "dat-single-version" | "dat-live-unmapped"
        | "map-vblock" | "map-unwritten" | "map-dead" | "map-lifetime" | "map-owner" => {
            let Some(v) = p.vblock else { return false };
            w.entries.insert(v);
        }
        "palloc-free-count" | "palloc-descriptor" | "palloc-key" if of(DAT) => w.table = true,
        "cpfile-inodes-count" | "cpfile-blocks-count" => {
            let Some(c) = p.cno else { return false };
            w.counts.insert(c);
        }
        "cpfile-ifile"
        | "cpfile-header-block"
        | "cpfile-count"
        | "cpfile-block-count"
        | "cpfile-cno"
        | "cpfile-flags"
        | "cpfile-latest"
        | "cpfile-snapshot-list"
        | "cpfile-snapshot-flags"
        | "cpfile-snapshot-count" => w.checkpoints = true,
        id if id.starts_with("btree-") && of(DAT) => w.table_map = true,
        id if id.starts_with("btree-") && id != "btree-root" => {
            let Some(v) = p.vblock else { return false };
            w.nodes = true;
            w.bad_nodes.insert(v);
        }
        // The inode file has an entry of that number, too, which nothing uses.
        "device-read" if of(DAT) && p.cno.is_some() => return false,
        "device-read" if of(DAT) && p.offset.is_none() => w.table_map = true,
        // Where a number leads cannot be read: it has no place.
        "device-read" if of(DAT) || (p.vblock.is_some() && p.block.is_none()) => w.table = true,
        "device-read" if p.segment.is_some() => return false,
        "device-read" if of(4) && p.offset.is_some() => w.checkpoints = true,
        "device-read" if of(5) && p.offset.is_some() => {}
        // A node; blocks of data are named by offset and place alone.
        "device-read" if p.vblock.is_some() && p.block.is_some() => w.nodes = true,
        _ => return is_current(f, report) && inode_file(f, w),
    }
    true
}

/// What a finding about an inode file calls for; whether it is one.
pub(crate) fn inode_file(f: &Finding, w: &mut Wounds) -> bool {
    let p = &f.place;
    match f.id {
        "palloc-free-count" | "palloc-descriptor" | "inode-reserved-bits" if p.ino != Some(DAT) => {
            w.ifile = true;
        }
        "inode-entry-missing" => {
            let Some(ino) = p.ino else { return false };
            w.bits.insert(ino, false);
            w.ifile = true;
        }
        "device-read" if p.ino == Some(IFILE) && p.offset.is_some() => {
            w.ifile_blocks.extend(p.offset);
            w.ifile = true;
        }
        _ => return false,
    }
    true
}

/// Whether a finding says that bits or counts of an inode file cannot be read.
pub(crate) fn is_lost_bitmap(f: &Finding, g: Option<&Geometry>) -> bool {
    let (Some(g), Some(offset)) = (g, f.place.offset) else { return false };
    f.id == "device-read"
        && f.place.ino == Some(IFILE)
        && !matches!(Layout::ifile(g).kind(offset), Part::Entries { .. })
}

/// Whether what a finding is about may show other inodes than there are: the table itself, or where it has the blocks of an
/// inode file.
pub(crate) fn hides_inodes(f: &Finding) -> bool {
    let place = f.id.starts_with("dat-") || f.id.starts_with("map-");
    f.place.ino == Some(DAT) || (place && f.place.ino == Some(IFILE))
}

/// Whether a finding is about a log.
pub(crate) fn is_log(f: &Finding) -> bool {
    (f.id.starts_with("log-") && !is_stale(f))
        || f.id == "super-root-reserved"
        || (f.id == "super-root-block" && f.place.cno.is_some())
        || (f.id == "device-read" && f.place.segment.is_some())
}

/// The segment a finding is in.
fn segment_of(f: &Finding, g: Option<&Geometry>) -> Option<u64> {
    let of = |block: u64| g.filter(|g| g.holds(BlockNr(block))).map(|g| g.segment_of(BlockNr(block)).0);
    f.place.segment.or_else(|| of(f.place.block?))
}

/// Segments with logs that do not verify.
pub(crate) fn segments<'a>(found: &[&'a Finding], g: Option<&Geometry>) -> (BTreeSet<u64>, Vec<&'a Finding>) {
    of_segments(found.iter().copied().filter(|f| is_log(f)), g)
}

/// Segments with blocks of files in the place of which whole logs have other ones, as far as the table cannot be made to
/// say where they are.
pub(crate) fn overwritten<'a>(
    found: &[&'a Finding],
    g: Option<&Geometry>,
) -> (BTreeSet<u64>, Vec<&'a Finding>) {
    let stays = |f: &&Finding| f.id == "dat-attribution" && f.place.block.is_some() && f.place.ino.is_some();
    of_segments(found.iter().copied().filter(stays), g)
}

/// Whether a finding says that a segment in use has copies of blocks that lie elsewhere.
pub(crate) fn is_stale(f: &Finding) -> bool {
    f.id == "log-stale"
}

/// Segments in use with blocks that lie elsewhere.
pub(crate) fn stale<'a>(found: &[&'a Finding], g: Option<&Geometry>) -> (BTreeSet<u64>, Vec<&'a Finding>) {
    of_segments(found.iter().copied().filter(|f| is_stale(f)), g)
}

/// The segments of findings.
fn of_segments<'a>(
    found: impl Iterator<Item = &'a Finding>,
    g: Option<&Geometry>,
) -> (BTreeSet<u64>, Vec<&'a Finding>) {
    let mine: Vec<_> = found.filter(|f| segment_of(f, g).is_some()).collect();
    (mine.iter().filter_map(|f| segment_of(f, g)).collect(), mine)
}

/// Older checkpoints but `kept` that are damaged, which are dropped: plain ones, and snapshots if that is allowed.
pub(crate) fn past<'a>(
    found: &[&'a Finding],
    report: &Report,
    snapshots_too: bool,
    kept: &BTreeSet<u64>,
    device: &Arc<Overlay>,
) -> (BTreeSet<u64>, Vec<&'a Finding>) {
    let past = |c: u64| c < report.stats.last_cno && !kept.contains(&c);
    // Wrong counts cost no checkpoint.
    let counts = |f: &Finding| matches!(f.id, "cpfile-inodes-count" | "cpfile-blocks-count");
    let mine: Vec<_> =
        found.iter().copied().filter(|f| !counts(f) && f.place.cno.is_some_and(past)).collect();
    let mut drop: BTreeSet<u64> = mine.iter().filter_map(|f| f.place.cno).collect();
    if !snapshots_too && !drop.is_empty() {
        let snapshots = silt_engine::mend::snapshots(device.clone()).unwrap_or_default();
        // One of which nothing can be read is none.
        drop.retain(|c| !snapshots.contains(c) || Tree::open(&**device, Moment::Checkpoint(*c)).is_err());
    }
    (drop, mine)
}
