//! Block maps in every shape that Silt leaves behind, cut down and added to by the kernel.
//!
//! Random histories seldom fill a node of the second level to its last entry. Here files end just before, at and
//! behind every such place, written in ascending, descending and scattered order, and the kernel must be able to take
//! them apart block by block (spec 5.2, 5.5).

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use silt_device::Device;
use silt_engine::mkfs::{Parameters, Plan};
use silt_fs_model::FsTarget;
use silt_model::caps::Capabilities;
use silt_model::manifest::Columns;
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::run::judge;
use silt_model::target::Target;

use crate::guest::Options;
use crate::rig::Rig;
use crate::turn::{KernelTurn, Trees, kernel_turns};

/// Seconds since 1970 of Silt's turn.
const NOW: u64 = 1_790_000_000;
/// Bytes of a block: the smallest, so that maps get high soonest.
const BLOCK: u64 = 1024;
/// Children that a node block holds (spec 5.1).
const CHILDREN: u64 = 63;
/// Bytes of the volume.
const SIZE: u64 = 256 << 20;

/// Lengths in blocks at which a node of some level is about to be, is, or was just filled.
fn lengths() -> Vec<u64> {
    let second = CHILDREN * CHILDREN;
    let mut all: Vec<u64> = vec![1, 5, 6, 7, 8];
    for full in [CHILDREN, 2 * CHILDREN, 3 * CHILDREN, 4 * CHILDREN, second, 2 * second] {
        all.extend([full - 1, full, full + 1, full + 2]);
    }
    all.extend([second + CHILDREN, second + CHILDREN + 1, 3 * second, 3 * second + 1]);
    all
}

fn parse(lines: &[String]) -> Result<Vec<Op>> {
    Op::parse_all(&lines.join("\n")).map_err(|line| anyhow::anyhow!("line {line} cannot be read"))
}

/// What Silt writes: of each length one file a way of writing.
fn written() -> Vec<String> {
    let mut ops = Vec::new();
    for n in lengths() {
        ops.push(format!("create up-{n} 644"));
        ops.push(format!("write :up-{n} 0 {} {n}", n * BLOCK));
        if n > CHILDREN * CHILDREN + CHILDREN {
            continue;
        }
        // Every other block, downwards: nodes split at their first entry.
        ops.push(format!("create down-{n} 644"));
        ops.extend((0..n.min(300)).rev().map(|k| format!("write :down-{n} {} 7 {k}", k * 2 * BLOCK)));
        // Grown by pieces over several checkpoints, so that maps are changed and not only made.
        ops.push(format!("create grown-{n} 644"));
        let half = n / 2;
        ops.push(format!("write :grown-{n} 0 {} {n}", (half * BLOCK).max(1)));
        ops.push("checkpoint".to_owned());
        ops.push(format!("write :grown-{n} {} {} {}", half * BLOCK, (n - half) * BLOCK, n + 1));
    }
    ops.push("checkpoint".to_owned());
    ops
}

/// What the kernel does: half of the files it makes longer first, then all are cut at every place of interest.
fn cut() -> Vec<String> {
    let mut ops = Vec::new();
    for (i, n) in lengths().into_iter().enumerate() {
        let small = n <= CHILDREN * CHILDREN + CHILDREN;
        let kinds: &[&str] = if small { &["up", "grown", "down"] } else { &["up"] };
        for kind in kinds {
            let file = format!("{kind}-{n}");
            let blocks = if *kind == "down" { n.min(300) * 2 } else { n };
            if i % 2 == 1 {
                ops.push(format!("write :{file} {} {} {i}", blocks * BLOCK, 70 * BLOCK));
            }
            let mut to: Vec<u64> = lengths().into_iter().filter(|l| *l < blocks).collect();
            to.extend([blocks.saturating_sub(1), blocks * 3 / 4, 0]);
            to.sort_unstable();
            to.dedup();
            // A third is cut to nothing at once.
            let skip = if i % 3 == 2 { to.len() - 1 } else { 0 };
            ops.extend(to.into_iter().rev().skip(skip).map(|l| format!("truncate :{file} {}", l * BLOCK)));
            if i % 4 == 0 {
                ops.push(format!("unlink {file}"));
            }
        }
        ops.push("checkpoint".to_owned());
    }
    ops
}

/// Plays it; one guest.
pub fn shapes(rig: &Rig) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("silt-shapes-").tempdir()?;
    let image = scratch.path().join("shapes.img");
    let device: Arc<dyn Device> = Arc::new(silt_device::create_image(&image, SIZE, true)?);
    let parameters = Parameters {
        block_size: u32::try_from(BLOCK)?,
        label: b"shapes".to_vec(),
        uuid: [7; 16],
        crc_seed: 0x5115_7001,
        now: NOW - 100,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, SIZE)?.write(&*device, false)?;
    let mut model = Model::new(Capabilities::silt(usize::try_from(BLOCK)?));
    let mut target = FsTarget::open(device.clone(), silt_fs::Options::default(), NOW)?;
    for op in parse(&written())? {
        let (expected, got) = (model.apply(&op), target.apply(&op));
        if let Some(what) = judge(&op, &expected, &got) {
            bail!("Silt: {what}");
        }
    }
    target.close_volume()?;
    drop(target);
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    if let Some(finding) = report.errors().next() {
        bail!("the checker: {finding:?}");
    }
    drop(device);

    let before = vec![(Trees::of_model(&model), Columns::MODEL)];
    let caps = Capabilities { remount: false, ..Capabilities::kernel(usize::try_from(BLOCK)?) };
    model.hand_over(caps);
    let ops: Vec<_> = parse(&cut())?
        .into_iter()
        .map(|op| {
            let expected = model.apply(&op);
            (op, expected)
        })
        .collect();
    let count = ops.len();
    let turn = KernelTurn {
        before,
        read_only: false,
        ops,
        after: Some(Trees::of_model(&model)),
        probes: model.deep_ranges(),
        ..KernelTurn::look(&image, usize::try_from(BLOCK)?)
    };
    let reports = kernel_turns(rig, &[turn], 1, &Options::default())?;
    let report = reports.first().context("no report")?;
    println!(
        "{} files, {count} operations of the kernel, {} complaints",
        lengths().len() * 3,
        report.complaints.len()
    );
    report.complaints.iter().for_each(|c| println!("  {c}"));
    if report.complaints.is_empty() { Ok(()) } else { bail!("the kernel cannot work on what Silt wrote") }
}
