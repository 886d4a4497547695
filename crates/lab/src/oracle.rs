//! Looks at a disk as a cut left it, and judges what is there.
//!
//! A disk is looked at once: it must be sound by every invariant, mount, show its tree and its snapshots, take a new
//! file durably, unmount, be sound again and show the same. What was seen is then judged by what was promised:
//!
//! * Linux's driver, which takes what verifies behind a torn log where Silt does not, would come to the same.
//! * The newest checkpoint is at least the one that the last answered sync made, and at most the one under way.
//! * The live tree is exactly what that checkpoint was made of, with the data that fdatasync wrote behind it: all that
//!   was answered, and of the rest a first part. This is stronger than "old, new or absent" file by file.
//! * The snapshots are exactly those it knows. They, and the newest plain checkpoints, read as remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_engine::{OpenOptions, Volume};
use silt_format::Cno;
use silt_fs::{Fs, Tree};
use silt_fs_model::FsTarget;
use silt_model::errno::Errno;
use silt_model::manifest::{Columns, Entry, Manifest, diff};
use silt_model::op::{FileRef, Op};
use silt_model::path::TreePath;
use silt_model::target::Target;
use silt_verify::Depth;

use crate::history::{Done, History, Made, Progress, Promise, State, Synced};
use crate::workload::BEGIN;
use crate::{During, Failure, Result};

/// Name of the file that the next user of a volume writes.
pub const PROBE: &[u8] = b".written-after-the-cut";
/// Plain checkpoints that are read, the newest first.
const PAST: usize = 2;
/// Seconds since 1970 of the mount after the cut.
const AFTER: u64 = BEGIN + 1_000_000;
/// Lines of a difference that are told.
const TOLD: usize = 12;

/// What a mount finds on a disk.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Newest checkpoint.
    pub cno: u64,
    /// The tree, synced data behind the checkpoint included.
    pub live: Manifest,
    /// Numbers of the snapshots.
    pub snapshots: BTreeSet<u64>,
    /// Trees of the snapshots and of some plain checkpoints.
    pub past: BTreeMap<u64, Manifest>,
    /// No segment is left to write to: it can only be read.
    pub full: bool,
}

/// How to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Check what the cut left.
    pub before: bool,
    /// The super blocks may differ in the settings they hold: the cut fell into a change of them, or one failed.
    pub settings: bool,
    /// Check what the next user left.
    pub after: bool,
    /// Write, unmount, and read again.
    pub write: bool,
    /// Of the mount: two with the same one after each other begin their logs with the same number, which no two mounts of users do.
    pub seed: u64,
}

/// Everything.
pub const ALL: Look = Look { before: true, settings: false, after: true, write: true, seed: 0 };

/// What check says where the super blocks hold different settings.
const SETTINGS: &str = "super-block-agreement";

/// Checks a device; `settings` as in [`Look`].
pub fn sound(device: &dyn Device, when: &str, settings: bool) -> Result<()> {
    sound_in(Depth::Full, device, when, settings)
}

fn sound_in(depth: Depth, device: &dyn Device, when: &str, settings: bool) -> Result<()> {
    let report =
        silt_verify::check(device, &silt_verify::Options { depth, ..silt_verify::Options::default() });
    let errors: Vec<_> = report.errors().filter(|f| !(settings && f.id == SETTINGS)).collect();
    if errors.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = errors.iter().take(TOLD).map(ToString::to_string).collect();
    Err(Failure(format!("check finds {} errors, {when}:\n    {}", errors.len(), told.join("\n    "))))
}

/// Looks at a disk; writes to it.
pub fn look(device: Arc<dyn Device>, how: Look) -> Result<Seen> {
    if how.before {
        sound(&*device, "as it was left", how.settings)?;
        // What fsck -p looks at before the volume is mounted.
        sound_in(Depth::Mount, &*device, "as fsck -p looks at it", how.settings)?;
        if let Some(said) = silt_verify::differs_for_linux(&*device) {
            return Err(Failure(format!("Linux would mount another state: {said}")));
        }
    }
    let (volume, cno, writable) = mount(&device, how)?;
    let fs = Fs::new(volume, &silt_fs::Options::default());
    let mut target = FsTarget::over(fs, device.clone(), silt_fs::Options::default(), AFTER);
    let live = target.tree(Tree::Live, Columns::ALL).during("reading the tree")?;
    let snapshots: BTreeSet<u64> =
        target.fs.volume().snapshots().during("listing snapshots")?.into_iter().map(|c| c.0).collect();
    let mut wanted = snapshots.clone();
    let mut plain = 0;
    for number in (1..=cno).rev() {
        if plain == PAST {
            break;
        }
        if target.fs.volume().checkpoint_info(Cno(number)).is_ok_and(|i| !i.snapshot) {
            plain += 1;
            wanted.insert(number);
        }
    }
    let mut past = BTreeMap::new();
    for number in wanted {
        let place = format!("reading checkpoint {number}");
        target.fs.volume_mut().open_view(Cno(number)).during(&place)?;
        let tree = target.tree(Tree::Past(number), Columns::ALL).during(&place)?;
        target.fs.volume_mut().close_view(Cno(number));
        past.insert(number, tree);
    }
    if how.write && writable {
        write_on(&mut target, &device, &live, how)?;
    }
    Ok(Seen { cno, live, snapshots, past, full: !writable })
}

/// Opens as the daemon does: for writing, or, where not even the reserve has room for that, for reading. Tells the newest
/// checkpoint that was found, and whether the volume can be written.
fn mount(device: &Arc<dyn Device>, how: Look) -> Result<(Volume, u64, bool)> {
    let options = OpenOptions { now: AFTER, seed: how.seed, cache_bytes: 8 << 20, ..OpenOptions::default() };
    let opened = Volume::open(device.clone(), &options).and_then(|(mut volume, _)| {
        let cno = volume.last_log().cno;
        volume.take_over(AFTER)?;
        Ok((volume, cno, true))
    });
    match opened {
        Err(silt_engine::Error::NoSpace) => {}
        opened => return opened.during("it does not mount"),
    }
    let options = OpenOptions { read_only: true, ..options };
    let (volume, _) = Volume::open(device.clone(), &options).during("it does not mount for reading")?;
    let g = volume.geometry();
    let (free, reserve) = (volume.free_blocks() / u64::from(g.blocks_per_segment), g.reserved_segments());
    if free >= reserve {
        return Err(Failure(format!("it does not mount: no space, and {free} segments are clean")));
    }
    if how.after {
        sound(&**device, "after a mount that found no space", how.settings)?;
    }
    let cno = volume.last_log().cno;
    Ok((volume, cno, false))
}

/// The next user writes a file; it and all that was there are found by the one after.
fn write_on(target: &mut FsTarget, device: &Arc<dyn Device>, live: &Manifest, how: Look) -> Result<()> {
    let path = TreePath::new(PROBE);
    // A full volume may say so, and must be as sound as any.
    let full = |e: &Errno| *e == Errno::ENOSPC;
    let wrote = (|| {
        // An earlier user, who was cut off as well, may have made it.
        if live.get(&path).is_none() {
            target.apply(&Op::Create { path: path.clone(), mode: 0o644 })?;
        }
        target.apply(&Op::Write { file: FileRef::Path(path.clone()), offset: 0, len: 5000, seed: 4711 })
    })();
    if let Err(e) = wrote
        && !full(&e)
    {
        return Err(Failure(format!("the next user cannot write: {e}")));
    }
    target.close_volume().during("unmounting after the next use")?;
    if how.after {
        sound(&**device, "after the next use", false)?;
    }
    let options = OpenOptions { read_only: true, cache_bytes: 8 << 20, ..OpenOptions::default() };
    let (volume, report) = Volume::open(device.clone(), &options).during("mounting once more")?;
    if report.was_unclean {
        return Err(Failure::new("it was unmounted and is not marked so"));
    }
    let fs = Fs::new(volume, &silt_fs::Options::default());
    let mut target = FsTarget::over(fs, device.clone(), silt_fs::Options::default(), AFTER);
    let again = target.tree(Tree::Live, Columns::ALL).during("reading the tree once more")?;
    if wrote.is_ok() {
        let size = again.get(&path).and_then(|e| e.size);
        if size != Some(5000) {
            return Err(Failure(format!("what the next user wrote is lost: {size:?} bytes of 5000")));
        }
    }
    same(&without_probe(live), &without_probe(&again), Columns::ALL)
        .map_err(|e| e.at("the tree changed by the next use"))
}

/// All but the probe, and but the root, whose times it changed.
pub fn without_probe(tree: &Manifest) -> Manifest {
    let mut rest = Manifest::new();
    let kept = |e: &&Entry| e.path.as_bytes() != PROBE && !e.path.as_bytes().is_empty();
    tree.entries().filter(kept).for_each(|e| rest.insert(e.clone()));
    rest
}

/// Whether two trees are the same.
pub fn same(expected: &Manifest, got: &Manifest, columns: Columns) -> Result<()> {
    let lines = diff(expected, got, columns);
    if lines.is_empty() {
        return Ok(());
    }
    let more = lines.len().saturating_sub(TOLD);
    let mut text = lines.iter().take(TOLD).cloned().collect::<Vec<_>>().join("\n    ");
    if more > 0 {
        text.push_str(&format!("\n    and {more} more"));
    }
    Err(Failure(text))
}

/// The tree with the files' data in it as they were synced. A size that changed is promised as well, which only a
/// checkpoint can hold: what was synced without one is missed here.
fn with_synced<'a>(
    tree: &Manifest,
    objects: &BTreeMap<TreePath, usize>,
    synced: impl Iterator<Item = &'a Synced>,
) -> Manifest {
    let last: BTreeMap<usize, &Synced> = synced.map(|s| (s.object, s)).collect();
    let mut out = tree.clone();
    for e in tree.entries() {
        if let Some(s) = objects.get(&e.path).and_then(|id| last.get(id)) {
            out.insert(Entry { body: s.body.clone(), size: s.size, ..e.clone() });
        }
    }
    out
}

/// Files' data that may lie behind checkpoint `cno`, in order, and how much of it must be there.
fn synced_behind(history: &History, cno: u64, progress: Progress) -> (Vec<&Synced>, usize) {
    let (mut all, mut must) = (Vec::new(), 0);
    // What a mount found behind a checkpoint is in a checkpoint of its own, and what it did not find is gone.
    let since = history.mounts.iter().filter(|m| **m <= progress.answered).max().map_or(0, |m| m + 1);
    for (step, done) in history.done.iter().enumerate().take(progress.begun + 1).skip(since) {
        let Promise::Data(files) = &done.promise else { continue };
        // Behind a later checkpoint it is in that one. A checkpoint that could not be written before comes first, in
        // the same step: it lies behind that, then. And what was to be synced data may have become a checkpoint, which
        // holds it already.
        let before = step.checked_sub(1).and_then(|i| history.done.get(i)).map_or(0, |d| d.cno);
        if !(before..=done.cno).contains(&cno) {
            continue;
        }
        all.extend(files);
        if done.answered && step <= progress.answered {
            must = all.len();
        }
    }
    (all, must)
}

/// What a disk was found to hold.
pub struct Recognised {
    pub made: Made,
    /// What the newest checkpoint holds, and the data behind it.
    pub state: Rc<State>,
    pub synced: Vec<Synced>,
}

/// Judges what was seen by what was promised; `barrier`: a promise was made at all.
pub fn judge(history: &History, progress: Progress, seen: &Seen, barrier: bool) -> Result<()> {
    recognise(history, progress, seen, barrier).map(|_| ())
}

/// The same, and tells what of all that may be there it is.
pub fn recognise(history: &History, progress: Progress, seen: &Seen, barrier: bool) -> Result<Recognised> {
    if !history.checkpoints.is_known(seen.cno) {
        return Err(Failure(format!("the newest checkpoint is {}, which was never made", seen.cno)));
    }
    let promised = |d: &&Done| d.answered && !matches!(d.promise, Promise::Nothing);
    let floor =
        history.done.iter().take(progress.answered + 1).filter(promised).map(|d| d.cno).max().unwrap_or(0);
    if barrier && seen.cno < floor {
        return Err(Failure(format!(
            "the newest checkpoint is {}, but {floor} was durable when its caller was answered",
            seen.cno
        )));
    }
    let (synced, must) = synced_behind(history, seen.cno, progress);
    let must = if barrier { must } else { 0 };
    let mut found = None;
    let mut first = None;
    for made in history.checkpoints.at(seen.cno, progress) {
        let candidates = made.states().flat_map(|state| (must..=synced.len()).map(move |n| (state, n)));
        for (state, n) in candidates {
            let synced: Vec<Synced> = synced.iter().take(n).map(|s| (*s).clone()).collect();
            let expected = with_synced(&state.tree, &state.objects, synced.iter());
            match same(&expected, &seen.live, Columns::MODEL) {
                Err(e) if !made.lossy => drop(first.get_or_insert(e)),
                _ if seen.snapshots != made.snapshots => {
                    let (are, be) = (&seen.snapshots, &made.snapshots);
                    first = Some(Failure(format!("snapshots are {are:?}, should be {be:?}")));
                }
                _ => {
                    found = Some(Recognised { made: made.clone(), state: state.clone(), synced });
                    break;
                }
            }
        }
        if found.is_some() {
            break;
        }
    }
    let Some(found) = found else {
        let with = match must {
            0 => String::new(),
            n => format!(" with {n} files' synced data"),
        };
        return Err(match first {
            None => {
                Failure(format!("checkpoint {} is there before it was begun, or after it was gone", seen.cno))
            }
            Some(e) => {
                e.at(&format!("the tree is not that of checkpoint {}{with} (remembered / found)", seen.cno))
            }
        });
    };
    for (cno, tree) in &seen.past {
        let mut first = None;
        for made in history.checkpoints.at(*cno, progress) {
            let read = |state: &State| same(&state.tree, tree, Columns::MODEL);
            if !made.whole || made.lossy || made.states().any(|state| read(state).is_ok()) {
                first = None;
                break;
            }
            first = first.or(read(&made.state).err());
        }
        if let Some(e) = first {
            return Err(e.at(&format!("checkpoint {cno} does not read as remembered")));
        }
    }
    Ok(found)
}

/// A disk in memory, as a device.
pub fn disk(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.fork())
}
