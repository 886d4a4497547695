//! What is run over an image. To have another part of the product tried, add it to [`PATHS`].

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use silt_cleaner::{Policy, Salvage, Whole};
use silt_device::Device;
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::{Cno, Ino, SegNr};
use silt_fs::{Context, Fs, Options, Seek, SetAttr, WriteFlags, fallocate_mode, rename_flags};
use silt_verify::Moment;

use crate::watched::Watched;
use crate::{control, worst};

/// What came of an image, for counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The engine opened it read-only.
    pub mounted: bool,
    /// The engine took it over for writing.
    pub taken_over: bool,
    /// Everything written was closed without an error.
    pub closed: bool,
    /// It opened again after that.
    pub reopened: bool,
    /// The check got as far as walking a tree.
    pub walked: bool,
    /// The check found an error.
    pub complained: bool,
    /// Rescue found a moment of which something can be read.
    pub rescued: bool,
    /// A scrub came to its end.
    pub scrubbed: bool,
    /// A repair was planned.
    pub planned: bool,
}

/// One way through the product.
pub struct Path {
    pub name: &'static str,
    /// Whether it may write.
    pub writes: bool,
    /// One of so many random images goes this way: the dear ones are rarer.
    pub every: u64,
    /// How often what an image may cost one path ([`crate::judge::limit`]) this one may cost.
    pub dear: u32,
    /// Bytes it may hold beside what one path may, as a multiple of the image's size: what it tries in memory.
    pub copies: u64,
    /// The coverage-guided target that goes this way.
    pub target: &'static str,
    pub run: fn(&Arc<Watched>, &mut Seen),
}

const fn path(name: &'static str, every: u64, dear: u32, run: fn(&Arc<Watched>, &mut Seen)) -> Path {
    Path { name, writes: false, every, dear, copies: 0, target: "volume", run }
}

/// All ways.
pub const PATHS: [Path; 14] = [
    path("mount read-only and walk", 1, 1, look),
    Path { writes: true, ..path("mount and write", 1, 1, use_it) },
    Path { writes: true, ..path("clean", 6, 4, empty_segments) },
    path("check as a mount needs it", 1, 1, check_mount),
    path("what a mount does not come to", 4, 1, not_come_to),
    path("check", 4, 1, check),
    path("plain reader", 4, 1, read_plainly),
    path("control requests that look", 2, 1, control::look),
    Path { writes: true, ..path("control requests that change", 2, 1, control::change) },
    Path { target: "rescue", ..path("rescue", 8, 2, worst::rescue) },
    Path { target: "rescue", ..path("rescue of a damaged copy", 16, 3, worst::rescue_damaged) },
    Path { target: "rescue", ..path("rescue and copy out", 32, 2, worst::copy_out) },
    Path { target: "rescue", ..path("scrub", 16, 3, worst::scrub) },
    Path { target: "repair", copies: 2, ..path("plan a repair", 32, 20, worst::repair) },
];

/// The time of all paths in seconds.
pub const NOW: u64 = 4_000_000_000;
/// Most names that one walk looks at.
const MOST_NAMES: u64 = 600;
/// Most bytes read of one file from its beginning.
const MOST_READ: u64 = 1 << 19;

pub(crate) fn options(read_only: bool) -> OpenOptions {
    OpenOptions {
        read_only,
        cache_bytes: CACHE,
        cached_inodes: 200,
        now: NOW,
        seed: 3,
        ..OpenOptions::default()
    }
}

/// Bytes of cache that a path may use, which the bound of memory allows for.
pub const CACHE: u64 = 1 << 20;

fn open(device: &Arc<Watched>, read_only: bool) -> Option<Volume> {
    Volume::open(device.clone() as Arc<dyn Device>, &options(read_only)).ok().map(|(volume, _)| volume)
}

pub(crate) fn file_system(volume: Volume) -> Fs {
    Fs::new(
        volume,
        &Options { index_bytes: 1 << 20, access_times: 100, seed: 5, ends: 64, ..Options::default() },
    )
}

/// Opens read-only, and reads everything of the newest moment and of a few others.
pub fn look(device: &Arc<Watched>, seen: &mut Seen) {
    let Some(volume) = open(device, true) else { return };
    seen.mounted = true;
    let mut fs = file_system(volume);
    tables(&mut fs);
    walk(&mut fs, Tree::Live);
    let last = fs.volume().last_log().cno;
    let mut moments: Vec<u64> =
        fs.volume().snapshots().unwrap_or_default().iter().map(|c| c.0).take(2).collect();
    moments.extend([last / 2, last]);
    moments.dedup();
    for c in moments {
        if fs.volume_mut().open_view(Cno(c)).is_ok() {
            walk(&mut fs, Tree::Past(c));
            let _ = fs.statfs(Tree::Past(c));
            fs.volume_mut().close_view(Cno(c));
        }
    }
    let volume = fs.volume_mut();
    let _ = volume.set_error_flag(NOW);
    let _ = volume.close(NOW);
}

/// Everything that can be asked of a volume's tables.
fn tables(fs: &mut Fs) {
    let _ = fs.statfs(Tree::Live);
    let volume = fs.volume_mut();
    let _ = volume.stat();
    let mut left = 2000;
    let mut few = || {
        left -= 1;
        if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let _ = volume.for_each_checkpoint(Cno(1), |_| few());
    let _ = volume.for_each_checkpoint_back(Cno(u64::MAX), |_| few());
    let segments = volume.geometry().nsegments;
    for segment in (0..segments.min(64)).chain([segments, u64::MAX]) {
        let _ = volume.segment_info(SegNr(segment));
    }
    live(volume);
}

/// Counts the live blocks of a few segments, as the cleaner will.
fn live(volume: &mut Volume) {
    let Ok(keep) = volume.keep(None) else { return };
    let segments = volume.geometry().nsegments;
    for segment in 0..segments.min(12) {
        let written = volume.segment_info(SegNr(segment)).map_or(0, |s| u64::from(s.blocks));
        let mut walk = silt_engine::SegmentWalk::new(
            volume.device().clone(),
            volume.geometry(),
            SegNr(segment),
            written,
        );
        let _ = walk.sequence();
        while let Ok(blocks) = walk.next(64) {
            if blocks.is_empty() {
                break;
            }
            let _ = volume.count_live(&keep, &blocks);
        }
    }
}

/// Empties segments, by every policy and with what does not verify at last.
fn empty_segments(device: &Arc<Watched>, _: &mut Seen) {
    let Some(mut volume) = open(device, false) else { return };
    if volume.take_over(NOW).is_err() {
        return;
    }
    for (n, policy) in Policy::ALL.into_iter().enumerate() {
        let mut options = silt_cleaner::Options { policy, now: NOW + n as u64, ..Default::default() };
        options.limits.moves = 500;
        if n == 2 {
            options.limits.salvage = Salvage::Readable;
        }
        let mut steps = 0;
        let _ = silt_cleaner::pass(&Whole::new(&mut volume, NOW + n as u64), &options, |_, _| {
            steps += 1;
            steps < 20
        });
    }
    let _ = volume.close(NOW + 5);
}

/// Walks a tree with bounds of its own, since a crafted one may have loops.
pub(crate) fn walk(fs: &mut Fs, tree: Tree) {
    let mut seen = HashSet::new();
    let mut todo = vec![Ino::ROOT];
    let mut left = MOST_NAMES;
    while let Some(dir) = todo.pop() {
        if !seen.insert(dir) {
            continue;
        }
        let mut entries = Vec::new();
        let _ = fs.readdir(tree, dir, 0, true, |e| {
            entries.push((e.ino, e.name.to_vec()));
            if (entries.len() as u64) < MOST_NAMES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        for (i, (ino, name)) in entries.iter().enumerate() {
            if left == 0 {
                return;
            }
            left -= 1;
            if i % 4 == 0 {
                let _ = fs.lookup(tree, dir, name);
            }
            let Ok(s) = fs.getattr(tree, *ino) else { continue };
            if s.is_dir() {
                todo.push(*ino);
            } else if s.is_regular() {
                if seen.insert(*ino) {
                    read(fs, tree, *ino, s.size);
                }
            } else {
                let _ = fs.readlink(tree, *ino);
            }
        }
        let _ = fs.lookup(tree, dir, b"no such name");
        let _ = fs.lookup(tree, dir, b"..");
    }
}

fn read(fs: &mut Fs, tree: Tree, ino: Ino, size: u64) {
    let mut at = 0;
    while at < size.min(MOST_READ) {
        let _ = fs.read(tree, ino, at, 128 << 10);
        at += 128 << 10;
    }
    for at in [size / 2, size.saturating_sub(5000), 1 << 30] {
        let _ = fs.read(tree, ino, at, 8 << 10);
    }
    let mut at = 0;
    for _ in 0..20 {
        let Ok(data) = fs.seek(tree, ino, at, Seek::Data) else { break };
        let Ok(hole) = fs.seek(tree, ino, data, Seek::Hole) else { break };
        if hole <= at {
            break;
        }
        at = hole;
    }
}

/// Takes the volume over and does everything that writes; then opens it again.
fn use_it(device: &Arc<Watched>, seen: &mut Seen) {
    let Some(mut volume) = open(device, false) else { return };
    if volume.take_over(NOW).is_err() {
        return;
    }
    seen.taken_over = true;
    let mut fs = file_system(volume);
    write(&mut fs);
    let mut volume = fs.into_volume();
    let last = volume.last_log().cno;
    let _ = volume.make_snapshot(Cno(last));
    let _ = volume.checkpoint(NOW + 20);
    for c in volume.snapshots().unwrap_or_default().into_iter().take(2) {
        let _ = volume.unmake_snapshot(c);
    }
    let _ = volume.delete_checkpoints(1..last.min(2000));
    if let Some(due) = volume.due_super_write(NOW + 60) {
        let _ = due.write(&**device);
    }
    let tune = silt_engine::Tune { label: Some(b"changed".to_vec()), ..silt_engine::Tune::default() };
    let _ = volume.tune(&tune);
    let _ = volume.set_error_flag(NOW + 61);
    seen.closed = volume.close(NOW + 62).is_ok();
    drop(volume);
    if let Some(volume) = open(device, true) {
        seen.reopened = true;
        walk(&mut file_system(volume), Tree::Live);
    }
}

fn write(fs: &mut Fs) {
    let ctx = Context { privileged: true, ..Context::default() };
    let flags = WriteFlags::default();
    let mut dirs = vec![Ino::ROOT];
    let mut done = 0;
    for round in 0..3 {
        let Some(dir) = dirs.get(round).copied() else { break };
        let mut names = Vec::new();
        let _ = fs.readdir(Tree::Live, dir, 0, false, |e| {
            if e.name != b"." && e.name != b".." {
                names.push((e.ino, e.name.to_vec()));
            }
            if names.len() < 24 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for (ino, name) in &names {
            if fs.getattr(Tree::Live, *ino).is_ok_and(|s| s.is_dir()) && dirs.len() < 4 {
                dirs.push(*ino);
                continue;
            }
            done += 1;
            match done % 6 {
                0 => drop(fs.unlink(&ctx, dir, name)),
                1 => drop(fs.setattr(&ctx, *ino, &SetAttr { size: Some(3000), ..SetAttr::default() })),
                2 => drop(fs.write(&ctx, *ino, 5000, &[7; 9000], flags)),
                3 => drop(fs.rename(&ctx, dir, name, Ino::ROOT, b"moved", 0)),
                4 => drop(fs.fallocate(
                    &ctx,
                    *ino,
                    fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE,
                    1000,
                    70_000,
                )),
                _ => drop(fs.link(&ctx, *ino, Ino::ROOT, format!("again {done}").as_bytes())),
            }
        }
        let _ = fs.sync_all(NOW + 1 + round as u64);
    }
    if let Ok(s) = fs.create(&ctx, Ino::ROOT, b"new", 0o100_644) {
        let _ = fs.write(&ctx, s.ino, 0, &[1; 20_000], flags);
        let _ = fs.sync_all(NOW + 5);
        let _ = fs.write(&ctx, s.ino, 0, &[2; 5000], flags);
        let volume = fs.volume_mut();
        if volume.data_sync_suffices(s.ino) && volume.begin_data_sync(&[s.ino], NOW + 6).is_ok() {
            let _ = volume.finish_construction(NOW + 6);
        }
        let _ = fs.rename(&ctx, Ino::ROOT, b"new", Ino::ROOT, b"moved", rename_flags::EXCHANGE);
    }
    let _ = fs.mkdir(&ctx, Ino::ROOT, b"new dir", 0o755);
    if let Some(dir) = dirs.get(1) {
        let _ = fs.rename(&ctx, Ino::ROOT, b"dir", *dir, b"below itself", 0);
        let _ = fs.rmdir(&ctx, Ino::ROOT, b"dir");
    }
    let _ = fs.symlink(&ctx, Ino::ROOT, b"new link", b"target");
    let _ = fs.sync_all(NOW + 10);
    for _ in 0..8 {
        if !matches!(fs.collect_orphans(200), Ok(true)) {
            break;
        }
    }
    let _ = fs.forget_all();
    let _ = fs.sync_all(NOW + 11);
}

fn check_options() -> silt_verify::Options {
    silt_verify::Options { cache_bytes: CACHE as usize, ..silt_verify::Options::default() }
}

/// What `fsck` looks at before a mount.
fn check_mount(device: &Arc<Watched>, _: &mut Seen) {
    let options = silt_verify::Options { depth: silt_verify::Depth::Mount, ..check_options() };
    let _ = silt_verify::check(&**device, &options);
}

/// What a mount says of the newest logs before it begins.
fn not_come_to(device: &Arc<Watched>, _: &mut Seen) {
    if let Some(behind) = silt_verify::behind(&**device) {
        let _ = (behind.untold().count(), behind.synced.map(|s| s.to_string()));
    }
}

/// The check, of all checkpoints, and what its findings come to.
fn check(device: &Arc<Watched>, seen: &mut Seen) {
    let options = silt_verify::Options { all_checkpoints: true, ..check_options() };
    let report = silt_verify::check(&**device, &options);
    seen.walked = report.stats.trees_walked > 0;
    seen.complained = !report.is_clean();
    let most = options.findings_per_invariant * silt_verify::invariants::ALL.len();
    assert!(report.findings.len() <= most, "{} findings are kept", report.findings.len());
    for finding in report.findings.iter().take(100) {
        let _ = finding.to_string();
    }
    let impacts = silt_verify::explain(&**device, &options, &report, &silt_verify::Unwatched);
    assert_eq!(impacts.len(), report.findings.len(), "one for each finding");
}

/// The reader of the check.
fn read_plainly(device: &Arc<Watched>, _: &mut Seen) {
    for moment in [Moment::Latest, Moment::Checkpoint(2)] {
        let Ok(tree) = silt_verify::Tree::open(&**device, moment) else { continue };
        for file in tree.walk().unwrap_or_default().into_iter().take(200) {
            let ino = file.attributes.ino;
            let _ = tree.extents(ino);
            let _ = tree.read(ino, MOST_READ);
        }
    }
}
