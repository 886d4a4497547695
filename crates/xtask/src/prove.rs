//! Proof of the instrument itself: the kernel against the kernel. Volumes made by Debian's mkfs take several
//! turns of the kernel, each of which checks what the one before left.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use silt_model::caps::Capabilities;
use silt_model::generator::{Generator, Profile};
use silt_model::manifest::Columns;
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::rng::{Rng, mix};
use silt_model::run::{durable_end, plan, shrink};

use crate::guest::Options;
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::turn::{KernelTurn, Trees, TurnReport, kernel_turns};

/// How a volume is made.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Bytes of a block.
    pub block_size: usize,
    /// Blocks of a segment.
    pub segment: u32,
    /// Bytes of the volume.
    pub size: u64,
}

/// The geometry that belongs to `seed`: both block sizes, segments of 16 blocks and more.
pub fn geometry(seed: u64) -> Geometry {
    let mut rng = Rng::new(seed ^ 0x6765_6f6d);
    let block_size = if rng.percent(50) { 1024 } else { 4096 };
    let segment = *rng.pick(&[16, 16, 32, 64, 256, 2048]).unwrap_or(&16);
    // At least 17 segments, and room for all that a history writes.
    let least = (block_size as u64) * u64::from(segment) * 24;
    Geometry { block_size, segment, size: least.max(192 << 20) }
}

/// Makes a sparse image with an empty volume by Debian's mkfs.nilfs2.
pub fn mkfs(rig: &Rig, image: &Path, geometry: Geometry) -> Result<()> {
    std::fs::File::create(image)?.set_len(geometry.size)?;
    let mut command = Command::new(rig.tool("mkfs.nilfs2")?);
    command.args(["-q", "-b", &geometry.block_size.to_string(), "-B", &geometry.segment.to_string()]);
    let status = command.arg(image).envs(rig.environment()).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("mkfs.nilfs2 {} ended with {status}", image.display());
    }
    Ok(())
}

/// A history in progress.
struct History {
    seed: u64,
    image: PathBuf,
    geometry: Geometry,
    model: Model,
    last: Option<TurnReport>,
}

impl History {
    fn turn(&mut self, number: u64, work: &Plan) -> KernelTurn {
        let caps = Capabilities { remount: false, ..Capabilities::kernel(self.geometry.block_size) };
        let before_model = Trees::of_model(&self.model);
        self.model.hand_over(caps);
        let seed = mix(self.seed.wrapping_mul(1000).wrapping_add(number));
        let mut generator = Generator::new(seed, Profile::of_seed(self.seed));
        let snapshots_made = self.model.snapshots_made();
        let mut ops = plan(&mut self.model, &mut generator, work.ops);
        let cut = work.cut && (self.seed + number).is_multiple_of(3);
        if cut {
            ops.extend(durable_end(&mut self.model, &mut generator, 20));
        }
        // A volume grows once.
        let grow = number == 1 && self.seed.is_multiple_of(5);
        let mut before = vec![(before_model, Columns::MODEL)];
        let read = self.last.as_ref().and_then(|report| report.trees.clone());
        before.extend(read.map(|trees| (trees, Columns::ALL)));
        KernelTurn {
            image: self.image.clone(),
            block_size: self.geometry.block_size,
            before,
            read_only: false,
            ops,
            after: Some(Trees::of_model(&self.model)),
            snapshots: self.last.as_ref().map(|report| report.snapshots.clone()).unwrap_or_default(),
            snapshots_made,
            probes: self.model.deep_ranges(),
            thorough: work.thorough,
            grow_to: grow.then_some(self.geometry.size * 3 / 2),
            cut,
            clean: work.clean,
            tools: self.seed.is_multiple_of(4),
        }
    }
}

/// What to prove.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seeds of the histories.
    pub seeds: std::ops::Range<u64>,
    /// Operations in a turn.
    pub ops: usize,
    /// Turns of each history.
    pub turns: u64,
    /// Guests at once.
    pub guests: usize,
    /// Whether to end every third turn by cutting the power.
    pub cut: bool,
    /// Whether to look between working and cleaning.
    pub thorough: bool,
    /// Whether to clean in each turn.
    pub clean: bool,
    /// Where the volumes are made; removed afterwards unless something is wrong.
    pub keep: Option<PathBuf>,
}

/// Runs it, prints the figures, and fails if there is anything to complain about.
pub fn prove(rig: &Rig, work: &Plan) -> Result<()> {
    let scratch = Scratch::new("prove")?;
    let dir = work.keep.clone().unwrap_or_else(|| scratch.path().to_owned());
    std::fs::create_dir_all(&dir)?;
    let started = Instant::now();
    let mut histories = Vec::new();
    for seed in work.seeds.clone() {
        let geometry = geometry(seed);
        let image = dir.join(format!("{seed}.img"));
        mkfs(rig, &image, geometry)?;
        let caps = Capabilities::kernel(geometry.block_size);
        histories.push(History {
            seed,
            image,
            geometry,
            model: Model::new(caps).with_nilfs_file(),
            last: None,
        });
    }
    let mut wrong = 0;
    for number in 0..work.turns {
        let turns: Vec<KernelTurn> = histories.iter_mut().map(|history| history.turn(number, work)).collect();
        let reports = kernel_turns(rig, &turns, work.guests, &Options::default())
            .with_context(|| format!("turn {number}"))?;
        for (history, report) in histories.iter_mut().zip(reports) {
            if !report.complaints.is_empty() {
                wrong += 1;
                println!("seed {} ({:?}), turn {number}:", history.seed, history.geometry);
                for line in &report.complaints {
                    println!("  {line}");
                }
            }
            history.last = Some(report);
        }
        figures(number, &histories);
    }
    let seconds = started.elapsed().as_secs_f64();
    let turns = histories.len() as f64 * work.turns as f64;
    println!(
        "{} histories of {} turns in {seconds:.1} s: {:.2} s a turn, {:.0} turns a minute",
        histories.len(),
        work.turns,
        seconds / turns,
        turns * 60.0 / seconds
    );
    if wrong > 0 {
        bail!("{wrong} turns were not as they should be");
    }
    Ok(())
}

/// Makes the first turn of a history that is not as it should be as short as possible, and prints what is left.
pub fn shrink_first_turn(rig: &Rig, seed: u64, ops: usize) -> Result<()> {
    let geometry = geometry(seed);
    let caps = Capabilities { remount: false, ..Capabilities::kernel(geometry.block_size) };
    let scratch = Scratch::new("shrink")?;
    let image = scratch.join("image");
    let fresh = || Model::new(caps.clone()).with_nilfs_file();
    let mut generator = Generator::new(mix(seed.wrapping_mul(1000)), Profile::of_seed(seed));
    let whole: Vec<Op> = plan(&mut fresh(), &mut generator, ops).into_iter().map(|(op, _)| op).collect();
    let attempt = |ops: &[Op]| -> Result<Vec<String>> {
        mkfs(rig, &image, geometry)?;
        let mut model = fresh();
        let ops = ops.iter().map(|op| (op.clone(), model.apply(op))).collect();
        let turn = KernelTurn {
            read_only: false,
            ops,
            after: Some(Trees::of_model(&model)),
            probes: model.deep_ranges(),
            ..KernelTurn::look(&image, geometry.block_size)
        };
        let reports = kernel_turns(rig, &[turn], 1, &Options::default())?;
        Ok(reports.into_iter().flat_map(|report| report.complaints).collect())
    };
    if attempt(&whole)?.is_empty() {
        println!("nothing is wrong with it, not cleaned");
        return Ok(());
    }
    let small = shrink(&whole, |ops| attempt(ops).is_ok_and(|found| !found.is_empty()));
    for op in &small {
        println!("{op}");
    }
    for line in attempt(&small)? {
        println!("  {line}");
    }
    Ok(())
}

/// Where the time of a turn went, and what the cleaners did.
fn figures(number: u64, histories: &[History]) {
    let mut sums: std::collections::BTreeMap<&str, f64> = std::collections::BTreeMap::new();
    let (mut before, mut after, mut entries) = (0, 0, 0);
    for report in histories.iter().filter_map(|history| history.last.as_ref()) {
        for (phase, seconds) in &report.seconds {
            *sums.entry(phase).or_default() += seconds;
        }
        if let Some((used, left)) = report.segments {
            (before, after) = (before + used, after + left);
        }
        entries += report.trees.as_ref().map_or(0, |trees| trees.live.len());
    }
    let count = histories.len().max(1) as f64;
    let phases: Vec<String> = sums.iter().map(|(phase, sum)| format!("{phase} {:.3}", sum / count)).collect();
    println!(
        "turn {number}, seconds on average: {}; {before} segments in use, {after} after cleaning; {entries} entries",
        phases.join(", ")
    );
}
