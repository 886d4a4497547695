//! The kernel's half of a round trip, for many volumes in one boot, and its judgement.
//!
//! The caller says what the other side read from each volume before, what the kernel shall do, and what must come of it by
//! the model. The kernel mounts, lists the live tree and every snapshot, works, lists again, cleans
//! to the end, unmounts, mounts and lists again. Everything that does not fit is a complaint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use silt_model::manifest::{Columns, Manifest, diff};
use silt_model::op::Op;
use silt_model::run::judge;
use silt_model::target::{Outcome, parse_outcome};

use crate::exchange::{DEVICES, Job, Moment, Task, VolumeDir, VolumeJob, VolumeResult};
use crate::guest::{self, GuestLog, Options};
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::superblock;

/// A live tree and its snapshots, by their number in the model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trees {
    /// The live tree.
    pub live: Manifest,
    /// The snapshots.
    pub snapshots: BTreeMap<u32, Manifest>,
}

impl Trees {
    /// What a model expects.
    pub fn of_model(model: &silt_model::model::Model) -> Self {
        Self { live: model.tree(), snapshots: model.snapshots().clone() }
    }

    /// How `other` differs, a sentence each.
    pub fn differences(&self, other: &Self, columns: Columns) -> Vec<String> {
        let mut found = diff(&self.live, &other.live, columns);
        for (id, ours) in &self.snapshots {
            match other.snapshots.get(id) {
                None => found.push(format!("snapshot {id} is missing")),
                Some(theirs) => {
                    let lines = diff(ours, theirs, columns);
                    found.extend(lines.into_iter().map(|line| format!("snapshot {id}: {line}")));
                }
            }
        }
        let unknown = other.snapshots.keys().filter(|id| !self.snapshots.contains_key(id));
        found.extend(unknown.map(|id| format!("snapshot {id} should not be there")));
        found
    }
}

/// The kernel's turn on one volume.
#[derive(Clone, Debug)]
pub struct KernelTurn {
    /// The volume.
    pub image: PathBuf,
    /// Bytes of a block.
    pub block_size: usize,
    /// What is known of the trees before, and in which columns it must hold. The other side's reading with
    /// [`Columns::ALL`], or the model's with [`Columns::MODEL`]; or both.
    pub before: Vec<(Trees, Columns)>,
    /// Mount read-only, look, and that is all.
    pub read_only: bool,
    /// What the kernel shall do, and what must come of each operation.
    pub ops: Vec<(Op, Outcome)>,
    /// What must be there afterwards, by the model.
    pub after: Option<Trees>,
    /// Checkpoint numbers of the snapshots there are, by their number in the model.
    pub snapshots: BTreeMap<u32, u64>,
    /// How many snapshots the model ever made before this turn.
    pub snapshots_made: u32,
    /// Where data far out in files may be, before and after ([`silt_model::model::Model::deep_ranges`]).
    pub probes: Vec<(u64, u64)>,
    /// Whether to look at everything between working and cleaning, too: tells who is to blame, and takes half as long
    /// again.
    pub thorough: bool,
    /// Grow the image and then the volume to this many bytes before working.
    pub grow_to: Option<u64>,
    /// End by cutting the power instead of cleaning and unmounting: what the operations made durable must suffice.
    pub cut: bool,
    /// Whether the cleaner shall run to its end.
    pub clean: bool,
    /// Whether the listing tools shall be tried.
    pub tools: bool,
}

impl KernelTurn {
    /// Only looks at a volume without snapshots.
    pub fn look(image: &Path, block_size: usize) -> Self {
        Self {
            image: image.to_owned(),
            block_size,
            before: Vec::new(),
            read_only: true,
            ops: Vec::new(),
            after: None,
            snapshots: BTreeMap::new(),
            snapshots_made: 0,
            probes: Vec::new(),
            thorough: false,
            grow_to: None,
            cut: false,
            clean: false,
            tools: false,
        }
    }
}

/// What came of a turn.
#[derive(Clone, Debug, Default)]
pub struct TurnReport {
    /// Everything that is not as it should be; empty if the kernel agrees.
    pub complaints: Vec<String>,
    /// The trees as the kernel read them last, after all it did; `None` if it did not come to that, and if it was cut:
    /// then only the next mount tells.
    pub trees: Option<Trees>,
    /// Checkpoint numbers of the snapshots there are now, by their number in the model.
    pub snapshots: BTreeMap<u32, u64>,
    /// Seconds in the guest, by phase.
    pub seconds: BTreeMap<String, f64>,
    /// Segments in use before and after cleaning.
    pub segments: Option<(usize, usize)>,
    /// Blocks of synced data that the kernel put in place when it mounted the volume.
    pub salvaged: u64,
}

/// At most this many complaints of a kind are told for a volume.
const TOLD: usize = 20;

/// Runs the turns in `guests` guests at once; the reports are in the order of the turns. What goes wrong with one
/// volume is a complaint of that volume; a guest that dies is an error.
pub fn kernel_turns(
    rig: &Rig,
    turns: &[KernelTurn],
    guests: usize,
    options: &Options,
) -> Result<Vec<TurnReport>> {
    let (cut, orderly): (Vec<usize>, Vec<usize>) = (0..turns.len()).partition(|&index| turns[index].cut);
    let hands: Vec<Vec<usize>> = [cut, orderly].iter().flat_map(|indexes| deal(indexes, guests)).collect();
    let next = Mutex::new(hands.iter());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..guests {
            scope.spawn(|| {
                loop {
                    // Each lock in a statement of its own: none must be held while the guest runs.
                    let hand = locked(&next).next();
                    let Some(hand) = hand else { break };
                    let mine: Vec<&KernelTurn> = hand.iter().map(|&index| &turns[index]).collect();
                    let reports = one_guest(rig, &mine, options);
                    locked(&done).push((hand, reports));
                }
            });
        }
    });
    let mut sorted = vec![TurnReport::default(); turns.len()];
    for (hand, reports) in std::mem::take(&mut *locked(&done)) {
        for (&index, report) in hand.iter().zip(reports?) {
            sorted[index] = report;
        }
    }
    Ok(sorted)
}

/// Boots of about equal size: as few as can hold all, but one for each guest at least.
fn deal(indexes: &[usize], guests: usize) -> Vec<Vec<usize>> {
    let boots = indexes.len().div_ceil(DEVICES).max(guests).clamp(1, indexes.len().max(1));
    indexes.chunks(indexes.len().div_ceil(boots).max(1)).map(<[usize]>::to_vec).collect()
}

/// A lock whose holder cannot have left anything half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One guest, and once more on the images as they were if it did not end: user-mode Linux was seen to spin for ever
/// where the same images passed on the next boot; a volume that makes the driver spin does so twice.
fn one_guest(rig: &Rig, turns: &[&KernelTurn], options: &Options) -> Result<Vec<TurnReport>> {
    let kept = Scratch::new("guest-images")?;
    let copies: Vec<_> = (0..turns.len()).map(|n| kept.path().join(n.to_string())).collect();
    for (turn, copy) in turns.iter().zip(&copies) {
        copy_sparse(&turn.image, copy)?;
    }
    match run_guest(rig, turns, options) {
        Err(e) if e.is::<guest::Late>() => {
            eprintln!("a guest is run once more: {e:#}");
            for (turn, copy) in turns.iter().zip(&copies) {
                copy_sparse(copy, &turn.image)?;
            }
            run_guest(rig, turns, options)
        }
        done => done,
    }
}

fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(from).arg(to).status()?;
    if !done.success() {
        bail!("{} was not copied to {}", from.display(), to.display());
    }
    Ok(())
}

fn run_guest(rig: &Rig, turns: &[&KernelTurn], options: &Options) -> Result<Vec<TurnReport>> {
    let exchange = Scratch::new("guest")?;
    let mut jobs = Vec::with_capacity(turns.len());
    for (index, turn) in turns.iter().enumerate() {
        let dir = VolumeDir::new(exchange.path(), index);
        std::fs::create_dir(dir.path())?;
        if let Some(size) = turn.grow_to {
            std::fs::OpenOptions::new().write(true).open(&turn.image)?.set_len(size)?;
        }
        let ops: String = turn.ops.iter().map(|(op, _)| format!("{op}\n")).collect();
        dir.write(&dir.file("ops"), &ops)?;
        jobs.push(VolumeJob {
            read_only: turn.read_only,
            snapshots: turn.snapshots.clone(),
            snapshots_made: turn.snapshots_made,
            block_size: turn.block_size,
            probes: turn.probes.clone(),
            thorough: turn.thorough,
            grow: turn.grow_to.is_some(),
            clean: turn.clean && !turn.cut,
            tools: turn.tools,
        });
    }
    let images = turns.iter().map(|turn| turn.image.clone()).collect();
    let (modules, environment) = (guest::modules(rig), rig.environment());
    let cut = turns.iter().any(|turn| turn.cut);
    let job = Job { images, modules, environment, task: Task::Turns { volumes: jobs, cut } };
    let started = Instant::now();
    let log = guest::boot(rig, exchange.path(), &job, options)?;
    let boot = started.elapsed().as_secs_f64();
    let mut reports = Vec::with_capacity(turns.len());
    for (index, turn) in turns.iter().enumerate() {
        let dir = VolumeDir::new(exchange.path(), index);
        let mut report =
            report(turn, &dir, &log, index).with_context(|| format!("judging {}", turn.image.display()))?;
        report.seconds.insert("guest, shared".to_owned(), boot / turns.len().max(1) as f64);
        reports.push(report);
    }
    Ok(reports)
}

fn read_trees(dir: &VolumeDir, moment: Moment, ids: &BTreeMap<u32, u64>) -> Result<Option<Trees>> {
    if !dir.manifest(moment, None).exists() {
        return Ok(None);
    }
    let read = |snapshot| -> Result<Manifest> {
        let path = dir.manifest(moment, snapshot);
        Manifest::from_text(&dir.read(&path)?).with_context(|| path.display().to_string())
    };
    let mut trees = Trees { live: read(None)?, snapshots: BTreeMap::new() };
    for &id in ids.keys() {
        if dir.manifest(moment, Some(id)).exists() {
            trees.snapshots.insert(id, read(Some(id))?);
        }
    }
    Ok(Some(trees))
}

fn report(turn: &KernelTurn, dir: &VolumeDir, log: &GuestLog, index: usize) -> Result<TurnReport> {
    let mut complaints = Vec::new();
    let mut say = |what: &str, lines: Vec<String>| {
        let more = lines.len().saturating_sub(TOLD);
        complaints.extend(lines.into_iter().take(TOLD).map(|line| format!("{what}: {line}")));
        if more > 0 {
            complaints.push(format!("{what}: and {more} more"));
        }
    };
    let text = dir.read(&dir.file("result.json"))?;
    let result: VolumeResult = serde_json::from_str(&text).context("the result is not understood")?;
    let failed = result.error.is_some();
    say("the turn was not finished", result.error.into_iter().collect());
    say("in the guest", result.complaints);
    let of_log = log.complaints().into_iter();
    let mine = of_log.filter(|(volume, _)| volume.is_none_or(|volume| volume == index));
    // An image that is larger than its volume has no second super block where it should be.
    let grown = |line: &str| turn.grow_to.is_some() && line.contains("broken superblock");
    say("the kernel's log", mine.map(|(_, line)| line).filter(|line| !grown(line)).collect());

    let before = read_trees(dir, Moment::Before, &turn.snapshots)?;
    let after = read_trees(dir, Moment::After, &result.snapshots)?;
    let cleaned = read_trees(dir, Moment::Cleaned, &result.snapshots)?;
    if before.is_none() && !failed {
        say("before its turn", vec!["the kernel read nothing".to_owned()]);
    }
    if let Some(before) = &before {
        for (expected, columns) in &turn.before {
            say("before its turn (expected / kernel)", expected.differences(before, *columns));
        }
    }
    if !turn.ops.is_empty() && (!failed || dir.file("replies").exists()) {
        say("in its turn", replies(turn, &dir.read(&dir.file("replies"))?));
    }
    if let (Some(after), Some(cleaned)) = (&after, &cleaned) {
        say("after cleaning (before / after)", after.differences(cleaned, Columns::ALL));
    }
    let last = after.or(cleaned);
    if last.is_none() && !failed && !turn.read_only && !turn.cut {
        say("after its turn", vec!["the kernel read nothing".to_owned()]);
    }
    if let (Some(expected), Some(last)) = (&turn.after, &last) {
        say("after its turn (model / kernel)", expected.differences(last, Columns::MODEL));
    }
    if let (Some(before), Some(last)) = (&before, &last) {
        say("its turn changed a snapshot (before / after)", changed_snapshots(before, last));
    }
    say("super block", judge_super_blocks(turn)?);
    Ok(TurnReport {
        complaints,
        trees: match turn {
            KernelTurn { read_only: true, .. } => before,
            KernelTurn { cut: true, .. } => None,
            _ => last,
        },
        snapshots: result.snapshots,
        seconds: result.seconds,
        segments: result.segments,
        salvaged: log.salvaged(index),
    })
}

/// What became of the snapshots that are in both.
fn changed_snapshots(before: &Trees, after: &Trees) -> Vec<String> {
    let mut found = Vec::new();
    for (id, old) in &before.snapshots {
        if let Some(new) = after.snapshots.get(id) {
            let lines = diff(old, new, Columns::ALL);
            found.extend(lines.into_iter().map(|line| format!("snapshot {id}: {line}")));
        }
    }
    found
}

fn replies(turn: &KernelTurn, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    for (number, (op, expected)) in turn.ops.iter().enumerate() {
        let Some(line) = lines.next() else {
            found.push(format!("there is no reply to operation {number}"));
            break;
        };
        match parse_outcome(line) {
            None => found.push(format!("reply {number} is not understood: {line}")),
            Some(got) => {
                found.extend(judge(op, expected, &got).map(|what| format!("operation {number}, {what}")));
            }
        }
    }
    found
}

fn judge_super_blocks(turn: &KernelTurn) -> Result<Vec<String>> {
    let copies = superblock::read(&turn.image)?;
    let mut found = Vec::new();
    if copies.iter().any(|copy| copy.state & superblock::ERROR != 0) {
        found.push(format!("the error flag is set: {copies:?}"));
    }
    let clean = copies.iter().any(|copy| copy.state & superblock::VALID != 0);
    if !turn.read_only && !turn.cut && !clean {
        found.push(format!("not marked as cleanly unmounted: {copies:?}"));
    }
    if let Some(size) = turn.grow_to
        && copies.iter().any(|copy| copy.device_size != size)
    {
        found.push(format!("not grown to {size} bytes: {copies:?}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of two super blocks, each with the state that is given.
    fn image(states: [u16; 2]) -> tempfile::NamedTempFile {
        let size = 64 << 10;
        let mut bytes = vec![0u8; size];
        for (offset, state) in [1024, size - 4096].into_iter().zip(states) {
            bytes[offset + 6..offset + 8].copy_from_slice(&0x3434u16.to_le_bytes());
            bytes[offset + 20..offset + 24].copy_from_slice(&2u32.to_le_bytes());
            bytes[offset + 32..offset + 40].copy_from_slice(&(size as u64).to_le_bytes());
            bytes[offset + 116..offset + 118].copy_from_slice(&state.to_le_bytes());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn super_blocks_are_judged() {
        let judged = |states, grow_to| {
            let file = image(states);
            let turn = KernelTurn { read_only: false, grow_to, ..KernelTurn::look(file.path(), 4096) };
            judge_super_blocks(&turn).unwrap()
        };
        assert_eq!(judged([0, 1], Some(64 << 10)), [""; 0]);
        assert!(judged([1, 3], None)[0].contains("error flag"));
        assert!(judged([0, 0], None)[0].contains("cleanly"));
        assert!(judged([1, 1], Some(65 << 10))[0].contains("not grown"));
    }

    #[test]
    fn every_turn_is_dealt_once() {
        for count in [0, 1, 2, 3, 15, 16, 17, 33, 200] {
            let indexes: Vec<usize> = (0..count).collect();
            let hands = deal(&indexes, 2);
            assert_eq!(hands.concat(), indexes);
            assert!(hands.iter().all(|hand| hand.len() <= DEVICES));
        }
    }

    #[test]
    fn snapshots_are_compared_both_ways() {
        let with = |ids: &[u32]| Trees {
            live: Manifest::new(),
            snapshots: ids.iter().map(|&id| (id, Manifest::new())).collect(),
        };
        let found = with(&[1, 2]).differences(&with(&[2, 3]), Columns::ALL);
        assert_eq!(found, ["snapshot 1 is missing", "snapshot 3 should not be there"]);
    }
}
