//! Workloads in which the device fails while a volume is cleaned, discarded, shrunk, grown and mounted again.
//!
//! ```text
//! writes and syncs -> the device begins to fail -> one or two of all that -> it works again, the daemon is killed,
//!                                                                            or the power fails -> writes and syncs
//! ```

use silt_model::op::Op;
use silt_model::rng::{Rng, mix};

use crate::random::{churned, files};
use crate::workload::{Fails, Step, Workload};

/// Steps of one.
const STEPS: usize = 90;

/// The workload that belongs to `seed`.
pub fn failing(seed: u64) -> Workload {
    let seed = mix(seed ^ 0x6661_696c);
    let mut rng = Rng::new(seed);
    let block_size = if rng.percent(30) { 1024 } else { 4096 };
    let mut w = Workload::new(format!("failing-{seed:016x}"), seed, block_size);
    w.barrier = rng.percent(85);
    // Room to move logs elsewhere in some of them, and to shrink.
    let segments = if block_size == 1024 { 64 + rng.below(64) } else { 20 + rng.below(50) };
    w.size = segments * 16 * u64::from(block_size);
    w.device_size = w.size;
    let (mut model, most) = files(&mut rng, &mut w);
    while w.steps.len() < STEPS {
        for _ in 0..1 + rng.below(5) {
            changes(&mut rng, &mut model, most, &mut w.steps);
        }
        if rng.percent(80) {
            w.steps.push(Step::Op(Op::Sync));
        }
        episode(&mut rng, &mut model, most, segments, &mut w);
    }
    w.steps.push(Step::Works);
    w.steps.push(Step::Op(Op::Remount));
    w.steps.push(Step::Op(Op::Sync));
    w
}

fn changes(rng: &mut Rng, model: &mut silt_model::model::Model, most: u64, steps: &mut Vec<Step>) {
    for op in churned(rng, model, most) {
        if model.apply(&op).is_ok() {
            steps.push(Step::Op(op));
        }
    }
}

/// The device fails, or not, around something that is more than writing; and how that ends.
fn episode(rng: &mut Rng, model: &mut silt_model::model::Model, most: u64, segments: u64, w: &mut Workload) {
    let fails = rng.percent(75);
    if rng.percent(60) {
        // Blocks of checkpoints that are there are not dead.
        w.steps.push(Step::DeleteCheckpoints);
    }
    if fails {
        let how = breakage(rng, segments);
        w.steps.push(Step::Fails(how));
    }
    for _ in 0..1 + rng.below(2) {
        let step = match rng.below(12) {
            0..4 => Step::Clean,
            4 => Step::CleanAll,
            5 => Step::CleanBeside,
            6 => Step::Discard,
            7 | 8 => Step::Shrink(w.size / 100 * (40 + rng.below(58))),
            9 => Step::Grow,
            10 => Step::DeleteCheckpoints,
            _ => Step::Op(Op::Remount),
        };
        if step == Step::Op(Op::Remount) {
            let _ = model.apply(&Op::Remount);
        }
        w.steps.push(step);
        if rng.percent(50) {
            changes(rng, model, most, &mut w.steps);
            w.steps.push(if rng.percent(80) { Step::Op(Op::Sync) } else { Step::WriteBack });
        }
    }
    if fails || rng.percent(25) {
        w.steps.push(match rng.below(10) {
            0..6 => Step::Works,
            6..8 => Step::Restart,
            _ => Step::PowerCut,
        });
    }
}

fn breakage(rng: &mut Rng, segments: u64) -> Fails {
    let few = |rng: &mut Rng| u32::try_from(rng.magnitude(5)).unwrap_or(0);
    // More than are tried again, or all there are.
    let times = |rng: &mut Rng| if rng.percent(30) { u32::MAX } else { 1 + few(rng) };
    match rng.below(10) {
        0..2 => Fails::Reads { after: few(rng), times: times(rng) },
        2..5 => Fails::Writes { after: few(rng), times: times(rng) },
        5..7 => Fails::Flushes { after: few(rng) / 2, times: times(rng) },
        7 => Fails::Place(rng.below(segments)),
        _ => Fails::Dies { after: few(rng), keep: 512 * rng.below(64) },
    }
}
