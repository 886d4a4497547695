//! The round trip: Silt and the real kernel take turns on the same volumes.
//!
//! ```text
//! mkfs, N operations by Silt -> kernel: compare, operations, clean, compare -> Silt: compare, operations
//!   -> kernel: compare
//! ```
//! Every history has a seed that decides the form of the volume, the operations and whether it grows, or shrinks as far as
//! it can in each of Silt's turns.
//! What each side reads back, the other must read equally: the live tree and every snapshot, in every column.
//! A model foretells both; the checker judges what Silt wrote. Silt works in this process, and in some histories
//! through the daemon and a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use silt_device::{Access, Device, FileDevice};
use silt_engine::mkfs::{Parameters, Plan as Mkfs};
use silt_fs_model::FsTarget;
use silt_model::caps::Capabilities;
use silt_model::generator::{Generator, Profile};
use silt_model::manifest::Columns;
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::rng::mix;
use silt_model::run::{compare, plan, run};
use silt_model::target::{Target, Tree};

use crate::guest::Options;
use crate::prove::{Geometry, geometry};
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::smaller;
use crate::through;
use crate::turn::{KernelTurn, Trees, TurnReport, kernel_turns};

/// Seconds since 1970 at which Silt's clock begins in a turn.
const START: u64 = 1_790_000_000;

/// What to play.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seeds of the histories.
    pub seeds: std::ops::Range<u64>,
    /// Operations of Silt's first turn, the kernel's, and Silt's second.
    pub ops: (usize, usize, usize),
    /// Guests at once. They wait a good part of their time: more than processors is best.
    pub guests: usize,
    /// The `silt` command and in how many histories one has Silt's turns played through a mount; `None` for none.
    pub through: Option<(PathBuf, u64)>,
    /// Where the volumes are kept; removed afterwards where none is named.
    pub keep: Option<PathBuf>,
}

/// A history in progress.
struct History {
    seed: u64,
    image: PathBuf,
    geometry: Geometry,
    model: Model,
    /// What Silt read last, in every column.
    read: Trees,
    snapshots: BTreeMap<u32, u64>,
    complaints: Vec<String>,
    /// Segments that Silt emptied.
    cleaned: u64,
    /// How often the volume became smaller.
    shrunk: u64,
    /// The `silt` command, if Silt's turns go through a mount.
    through: Option<PathBuf>,
}

fn open(image: &Path) -> Result<Arc<FileDevice>> {
    Ok(Arc::new(silt_device::open(image, Access::ReadWrite, &silt_device::OpenOptions::default())?))
}

fn mkfs(image: &Path, seed: u64, g: Geometry) -> Result<()> {
    let device = silt_device::create_image(image, g.size, true)?;
    let parameters = Parameters {
        block_size: u32::try_from(g.block_size)?,
        blocks_per_segment: g.segment,
        reserved_percent: 5,
        label: format!("history {seed}").into_bytes(),
        uuid: [u8::try_from(seed % 256)?; 16],
        crc_seed: u32::try_from(mix(seed) & 0xffff_ffff)?,
        now: START - 100,
        block_count: seed.is_multiple_of(2),
        owner: (0, 0),
    };
    Mkfs::new(parameters, g.size)?.write(&device, false)?;
    Ok(())
}

impl History {
    fn new(dir: &Path, seed: u64, through: Option<&(PathBuf, u64)>) -> Result<Self> {
        let geometry = geometry(seed);
        let image = dir.join(format!("{seed}.img"));
        mkfs(&image, seed, geometry)?;
        Ok(History {
            seed,
            image,
            geometry,
            model: Model::new(Capabilities::silt(geometry.block_size)),
            read: Trees::default(),
            snapshots: BTreeMap::new(),
            complaints: Vec::new(),
            cleaned: 0,
            shrunk: 0,
            // Not all with the same profile, form or growth.
            through: through
                .filter(|(_, every)| seed % every == seed / every % every)
                .map(|(silt, _)| silt.clone()),
        })
    }

    /// Silt's turn: compares with what the kernel read last, works, closes, is judged, reads again.
    fn silt(&mut self, turn: u64, ops: usize, kernel: Option<&TurnReport>) -> Result<()> {
        if kernel.is_some() {
            let device: Arc<dyn Device> = open(&self.image)?;
            let wrong = silt_cleaner::agree::at_rest(&device, START + turn * 10_000);
            self.say("the account of space after the kernel", wrong);
        }
        if turn > 0 && self.seed.is_multiple_of(5) {
            self.grow()?;
        }
        let last = match self.through.clone() {
            None => {
                let mut target = self.target(START + turn * 10_000)?;
                target.every = u32::try_from(self.seed % 4)? * 7;
                // Silt empties segments, too, and the kernel's cleaner goes on where it stopped.
                target.clean_every = u32::try_from(1 + self.seed % 3)?;
                self.play(&mut target, turn, ops, kernel)?;
                if target.every == 0 {
                    target.clean()?;
                }
                self.cleaned += target.cleaned.segments;
                self.snapshots = target.snapshots().clone();
                target.close_volume()?;
                drop(target);
                let image = self.image.clone();
                self.resize(&image, turn)?;
                None
            }
            Some(silt) => Some(self.mounted(&silt, turn, ops, kernel)?),
        };
        let device = open(&self.image)?;
        let report = silt_verify::check(&*device, &silt_verify::Options::default());
        self.say("the checker", report.errors().map(|f| format!("{f:?}")).collect());
        let device: Arc<dyn Device> = device;
        self.say("the account of space", silt_cleaner::agree::at_rest(&device, START + (turn + 1) * 10_000));
        drop(device);
        // Read again from the disk: what the kernel must find.
        let mut target = self.target(START + turn * 10_000 + 9_000)?;
        self.read = trees(&mut target, &self.snapshots)?;
        target.close_volume()?;
        if let Some(last) = last {
            // What waits for a log is counted by estimate, and the host's kernel keeps what it heard last.
            let columns = Columns { blocks: false, ..Columns::ALL };
            self.say("unmounting changed the tree (mounted / after)", last.differences(&self.read, columns));
        }
        Ok(())
    }

    /// What Silt does in its turn, whoever serves it.
    fn play<T: Target>(
        &mut self,
        target: &mut T,
        turn: u64,
        ops: usize,
        kernel: Option<&TurnReport>,
    ) -> Result<()> {
        if let Some(report) = kernel {
            let read = trees(target, &self.snapshots)?;
            let found = match &report.trees {
                Some(theirs) => theirs.differences(&read, Columns::ALL),
                None => vec!["the kernel read nothing".to_owned()],
            };
            self.say("read by Silt after the kernel (kernel / Silt)", found);
            self.say("the kernel changed the tree (model / Silt)", compare(&self.model, target));
        }
        let caps = Capabilities { remount: false, ..target.capabilities() };
        self.model.hand_over(caps);
        let seed = mix(self.seed.wrapping_mul(1000).wrapping_add(500 + turn));
        let mut generator = Generator::new(seed, Profile::of_seed(self.seed));
        if let Err(failure) = run(&mut self.model, target, &mut generator, ops) {
            self.complaints.push(format!("Silt's turn {turn}: {failure}"));
        }
        self.say("after Silt's turn (model / Silt)", compare(&self.model, target));
        Ok(())
    }

    /// The same through the daemon; what was read last through the mount.
    fn mounted(&mut self, silt: &Path, turn: u64, ops: usize, kernel: Option<&TurnReport>) -> Result<Trees> {
        let scratch = Scratch::new("through")?;
        let caps = through::capabilities(silt, self.geometry.block_size)?;
        let made = self.model.snapshots_made();
        let (mounted, mut target) =
            through::open(silt, &self.image, scratch.path(), caps, self.snapshots.clone(), made)?;
        self.play(&mut target, turn, ops, kernel)?;
        self.snapshots = target.moments().snapshots.clone();
        // Block counts of what waits are estimates.
        if let Err(e) = target.apply(&Op::Checkpoint) {
            self.complaints.push(format!("Silt's turn {turn}: no checkpoint at its end: error {}", e.0));
        }
        self.resize(mounted.dir(), turn)?;
        let read = trees(&mut target, &self.snapshots)?;
        let commands = target.into_moments();
        self.complaints.extend(commands.complaints);
        mounted.unmount()?;
        Ok(read)
    }

    fn grow(&mut self) -> Result<()> {
        let device = open(&self.image)?;
        let size = self.geometry.size / 2 * 3 / 4096 * 4096;
        device.grow(size)?;
        let options = silt_engine::OpenOptions { now: START, ..Default::default() };
        let (mut volume, _) = silt_engine::Volume::open(device, &options)?;
        volume.take_over(START)?;
        if volume.grow(None, START)? == 0 {
            bail!("growing gave nothing");
        }
        volume.close(START)?;
        self.geometry.size = size;
        Ok(())
    }

    /// Makes the volume of some histories as small as it can be, and after Silt's first turn as large as before, or nearly,
    /// for what the kernel writes.
    fn resize(&mut self, volume: &Path, turn: u64) -> Result<()> {
        if self.seed % 5 != 3 {
            return Ok(());
        }
        let whole = self.geometry.size;
        // Of a few large segments most are kept back.
        let Some(size) = smaller::smallest(volume, whole)? else { return Ok(()) };
        self.geometry.size = size;
        self.shrunk += 1;
        if turn == 0 {
            let size = if self.seed.is_multiple_of(2) { whole } else { whole / 4 * 3 / 4096 * 4096 };
            self.geometry.size = smaller::resize(volume, size)?.context("no space to be larger")?;
        }
        Ok(())
    }

    fn target(&self, now: u64) -> Result<FsTarget> {
        let device: Arc<dyn Device> = open(&self.image)?;
        let mut target = FsTarget::open(device, silt_fs::Options { ends: 16, ..Default::default() }, now)?;
        target.set_snapshots(self.snapshots.clone(), self.model.snapshots_made());
        Ok(target)
    }

    /// The kernel's turn, or its last look.
    fn kernel(&mut self, ops: usize) -> KernelTurn {
        let caps = Capabilities { remount: false, ..Capabilities::kernel(self.geometry.block_size) };
        let before = vec![(Trees::of_model(&self.model), Columns::MODEL), (self.read.clone(), Columns::ALL)];
        let mut turn = KernelTurn {
            before,
            snapshots: self.snapshots.clone(),
            snapshots_made: self.model.snapshots_made(),
            probes: self.model.deep_ranges(),
            ..KernelTurn::look(&self.image, self.geometry.block_size)
        };
        if ops > 0 {
            self.model.hand_over(caps);
            let seed = mix(self.seed.wrapping_mul(1000).wrapping_add(777));
            let mut generator = Generator::new(seed, Profile::of_seed(self.seed));
            turn.read_only = false;
            turn.ops = plan(&mut self.model, &mut generator, ops);
            turn.after = Some(Trees::of_model(&self.model));
            turn.clean = true;
            turn.tools = self.seed.is_multiple_of(4);
            turn.probes = self.model.deep_ranges();
        }
        turn
    }

    fn say(&mut self, what: &str, lines: Vec<String>) {
        let more = lines.len().saturating_sub(12);
        self.complaints.extend(lines.into_iter().take(12).map(|l| format!("{what}: {l}")));
        if more > 0 {
            self.complaints.push(format!("{what}: and {more} more"));
        }
    }
}

/// Everything Silt reads, in every column.
fn trees<T: Target>(target: &mut T, snapshots: &BTreeMap<u32, u64>) -> Result<Trees> {
    let mut read = |tree| target.manifest(tree, Columns::ALL).map_err(|e| anyhow!("{tree:?}: {e}"));
    let mut trees = Trees { live: read(Tree::Live)?, snapshots: BTreeMap::new() };
    for id in snapshots.keys() {
        trees.snapshots.insert(*id, read(Tree::Snapshot(*id))?);
    }
    Ok(trees)
}

/// Histories of one guest, at most; they share its two boots.
const GROUP: u64 = 12;

/// How it stands.
#[derive(Default)]
struct Score {
    done: u64,
    bad: u64,
    cleaned: u64,
    shrunk: u64,
}

/// Plays everything, prints the figures, and fails if anybody complains.
pub fn round_trip(rig: &Rig, work: &Plan) -> Result<()> {
    let started = Instant::now();
    let count = work.seeds.end.saturating_sub(work.seeds.start);
    let workers = work.guests.max(1);
    // Small enough that no worker stands idle for long at the end.
    let size = count.div_ceil(workers as u64 * 2).clamp(1, GROUP);
    let next = Mutex::new(work.seeds.clone().step_by(usize::try_from(size)?));
    let score = Mutex::new(Score::default());
    let failed = AtomicBool::new(false);
    let one = || -> Result<()> {
        while !failed.load(Ordering::Relaxed) {
            let from = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(from) = from else { break };
            let seeds = from..work.seeds.end.min(from + size);
            let told = seeds.clone();
            let played = group(rig, work, seeds).with_context(|| format!("histories {told:?}"));
            let (bad, cleaned, shrunk) = played.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            let mut score = score.lock().unwrap_or_else(PoisonError::into_inner);
            let before = score.done;
            (score.done, score.bad) = (before + told.end - told.start, score.bad + bad);
            score.cleaned += cleaned;
            score.shrunk += shrunk;
            if score.done / 64 > before / 64 || score.done == count {
                let seconds = started.elapsed().as_secs_f64();
                println!(
                    "{} histories in {seconds:.0} s, {} with complaints; Silt emptied {} segments, {} times volumes shrank",
                    score.done, score.bad, score.cleaned, score.shrunk
                );
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(one)).collect();
        let ends: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        ends.into_iter().try_for_each(|end| end.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })?;
    let Score { done, bad, .. } = *score.lock().unwrap_or_else(PoisonError::into_inner);
    match bad {
        0 if done == count => Ok(()),
        0 => bail!("{done} of {count} histories were played"),
        _ => bail!("{bad} of {done} histories were not as they should be"),
    }
}

/// Plays some histories from beginning to end with one guest at a time; how many were not as they should be,
/// how many segments Silt emptied, and how often volumes became smaller.
fn group(rig: &Rig, work: &Plan, seeds: std::ops::Range<u64>) -> Result<(u64, u64, u64)> {
    let scratch = Scratch::new("round-trip")?;
    let dir = work.keep.clone().unwrap_or_else(|| scratch.path().to_owned());
    std::fs::create_dir_all(&dir)?;
    let new = |seed| History::new(&dir, seed, work.through.as_ref());
    let mut histories = seeds.map(new).collect::<Result<Vec<_>>>()?;
    each(&mut histories, |h| h.silt(0, work.ops.0, None));
    let turns: Vec<_> = histories.iter_mut().map(|h| h.kernel(work.ops.1)).collect();
    let reports = kernel_turns(rig, &turns, 1, &Options::default()).context("the kernel's turn")?;
    for (h, report) in histories.iter_mut().zip(&reports) {
        h.complaints.extend(report.complaints.iter().map(|c| format!("the kernel: {c}")));
        h.snapshots = report.snapshots.clone();
    }
    let with: BTreeMap<u64, TurnReport> = histories.iter().map(|h| h.seed).zip(reports).collect();
    each(&mut histories, |h| h.silt(1, work.ops.2, with.get(&h.seed)));
    let turns: Vec<_> = histories.iter_mut().map(|h| h.kernel(0)).collect();
    let reports = kernel_turns(rig, &turns, 1, &Options::default()).context("the kernel's last look")?;
    let mut bad = 0;
    for (h, report) in histories.iter_mut().zip(reports) {
        h.complaints.extend(report.complaints.iter().map(|c| format!("the kernel, last: {c}")));
        if !h.complaints.is_empty() {
            bad += 1;
            let how = if h.through.is_some() { ", Silt through a mount" } else { "" };
            let lines: String = h.complaints.iter().map(|c| format!("  {c}\n")).collect();
            print!("seed {} ({:?}{how}):\n{lines}", h.seed, h.geometry);
        }
    }
    Ok((bad, histories.iter().map(|h| h.cleaned).sum(), histories.iter().map(|h| h.shrunk).sum()))
}

/// Runs Silt's part of every history; what stops one is its complaint.
fn each(histories: &mut [History], f: impl Fn(&mut History) -> Result<()>) {
    for h in histories {
        if let Err(e) = f(h) {
            h.complaints.push(format!("{e:#}"));
        }
    }
}
