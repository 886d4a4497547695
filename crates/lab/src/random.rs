//! Long workloads: random histories of the model, with what a volume meets besides.

use silt_model::caps::Capabilities;
use silt_model::generator::{Flavour, Generator, Profile};
use silt_model::model::Model;
use silt_model::op::{FileRef, Op, RenameHow, SLOTS};
use silt_model::path::TreePath;
use silt_model::rng::{Rng, mix};

use crate::workload::{Step, Workload};

/// What a long workload has in it besides operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Plain,
    /// Snapshots made and removed, checkpoints deleted.
    Past,
    /// Writes and flushes that fail, a full host.
    Failing,
    /// A volume too small for what is written.
    Small,
    /// No flushes: only consistency is promised. fdatasync and checkpoints by turns.
    NoBarrier,
    /// The volume grows, its label changes.
    Settings,
    /// The mount is cut, too, and finds a volume that was not unmounted, with synced data to be put in place.
    Mounting,
    /// Data-sync logs above all, of several files at once, and of files without names.
    Data,
    /// A small volume, written over again and again, with checkpoints deleted, snapshots, and the cleaner.
    Churn,
    /// The same, and what is clean is discarded.
    Discards,
    /// The same, and the volume shrinks and grows.
    Shrinking,
}

/// All of them.
pub const KINDS: [Kind; 11] = [
    Kind::Mounting,
    Kind::Past,
    Kind::Data,
    Kind::Churn,
    Kind::Failing,
    Kind::Small,
    Kind::Settings,
    Kind::NoBarrier,
    Kind::Plain,
    Kind::Discards,
    Kind::Shrinking,
];

/// The workload of this kind that belongs to `seed`.
pub fn random(kind: Kind, seed: u64) -> Workload {
    let seed = mix(seed ^ 0x6c61_6200);
    let mut rng = Rng::new(seed);
    // Smaller ones have no synced data to be put in place.
    let small = if kind == Kind::Mounting { 10 } else { 35 };
    let block_size = if rng.percent(small) { 1024 } else { 4096 };
    let name = format!("{kind:?}-{seed:016x}").to_lowercase();
    let mut w = Workload { strict: rng.percent(10), ..Workload::new(name, seed, block_size) };
    let mut steps = 40 + rng.below(60);
    w.size = 16 << 20;
    w.segment = if rng.percent(60) { 16 } else { 32 };
    match kind {
        Kind::Small => (w.size, w.segment) = (2 << 20, 16),
        Kind::NoBarrier => (w.barrier, steps) = (false, 30),
        Kind::Settings => w.size = 4 << 20,
        Kind::Mounting => (w.with_mount, w.unclean, steps) = (true, rng.percent(80), 6),
        Kind::Churn | Kind::Discards | Kind::Shrinking => return churn(&mut rng, w, kind),
        _ => {}
    }
    w.device_size = if kind == Kind::Settings { 8 << 20 } else { w.size };
    let caps = Capabilities::silt(usize::try_from(block_size).unwrap_or(4096));
    let mut model = Model::new(caps);
    let flavour = match kind {
        Kind::Data => Flavour::Sync,
        _ => *rng
            .pick(&[Flavour::Mixed, Flavour::Sync, Flavour::Names, Flavour::Data])
            .unwrap_or(&Flavour::Sync),
    };
    let mut profile = Profile::new(flavour);
    (profile.write_budget, profile.live_max, profile.write_max) = (1 << 20, 1 << 20, 60_000);
    (profile.entries_max, profile.burst_max, profile.snapshots_max) = (60, 12, 3);
    if kind == Kind::Small {
        (profile.write_budget, profile.live_max) = (8 << 20, 8 << 20);
    }
    let mut generator = Generator::new(seed, profile);
    if kind == Kind::Mounting {
        // Whatever else there is: a file whose synced data lies in many segments.
        let (path, seed) = (TreePath::new(b"synced"), 5);
        let file = FileRef::Path(path.clone());
        w.setup = vec![Op::Create { path, mode: 0o644 }, Op::Write { file, offset: 0, len: 9000, seed }];
        for op in &w.setup {
            let _ = model.apply(op);
        }
    }
    // Something to work on.
    while w.setup.len() < 25 {
        let op = generator.next(&model);
        if !moment(&op) && model.apply(&op).is_ok() {
            w.setup.push(op);
        }
    }
    let _ = model.apply(&Op::Remount);
    let mut full = false;
    while (w.steps.len() as u64) < steps {
        extra(kind, &mut rng, &mut model, &mut generator, &mut w.steps, &mut full);
        let op = generator.next(&model);
        // A failing device does not mount again.
        if kind == Kind::Failing && moment(&op) {
            continue;
        }
        if matches!(op, Op::Read { .. } | Op::Stat { .. } | Op::List { .. } | Op::Readlink { .. }) {
            continue;
        }
        // What fails is played, too.
        let _ = model.apply(&op);
        w.steps.push(Step::Op(op));
        if rng.percent(12) {
            w.steps.push(Step::Op(Op::Sync));
        }
    }
    if full {
        w.steps.push(Step::Full(false));
    }
    w.steps.push(Step::Op(Op::Sync));
    w
}

/// Whether it is about moments, or ends a mount.
fn moment(op: &Op) -> bool {
    matches!(op, Op::Snapshot | Op::RemoveSnapshot { .. } | Op::Checkpoint | Op::Remount)
}

fn extra(
    kind: Kind,
    rng: &mut Rng,
    model: &mut Model,
    generator: &mut Generator,
    steps: &mut Vec<Step>,
    full: &mut bool,
) {
    if rng.percent(4) {
        steps.push(Step::WriteBack);
    }
    match kind {
        Kind::Past if rng.percent(8) => steps.push(Step::DeleteCheckpoints),
        Kind::Data if rng.percent(10) => nameless(rng, model, steps),
        Kind::Data if rng.percent(40) => overwrite(model, generator, steps),
        Kind::NoBarrier if rng.percent(60) => {
            // Data first, then a checkpoint that may stand on it, over the ends of segments.
            overwrite(model, generator, steps);
            if rng.percent(70) {
                steps.push(Step::Op(Op::Sync));
            }
        }
        Kind::Failing if rng.percent(10) => {
            // Synced data that a failed flush lost, and a checkpoint that stands on it.
            steps.push(Step::FailFlushes(1));
            overwrite(model, generator, steps);
            steps.push(Step::Op(Op::Sync));
        }
        Kind::Failing if rng.percent(12) => match rng.below(4) {
            0 => steps.push(Step::FailFlushes(1 + u32::try_from(rng.below(2)).unwrap_or(0))),
            1 => {
                *full = !*full;
                steps.push(Step::Full(*full));
            }
            _ => steps.push(Step::FailWrites(1 + u32::try_from(rng.below(5)).unwrap_or(0))),
        },
        Kind::Settings if rng.percent(8) => {
            steps.push(Step::Label(u32::try_from(rng.below(1000)).unwrap_or(0)))
        }
        Kind::Settings if rng.percent(6) => steps.push(Step::Grow),
        _ => {}
    }
}

/// Files of a churned volume, and bytes of each at most.
const CHURNED: u64 = 6;
const CHURNED_BYTES: u64 = 40_000;

/// A volume of few segments in which a few files are made, written over, cut and removed, until most of what
/// its segments hold is dead: so that the cleaner has to move what lives between. Some of the past is kept.
fn churn(rng: &mut Rng, mut w: Workload, kind: Kind) -> Workload {
    w.segment = 16;
    // Not below 1 MiB.
    w.size = (if w.block_size == 1024 { 64 } else { 20 + rng.below(13) }) * 16 * u64::from(w.block_size);
    if kind == Kind::Shrinking {
        w.size *= 2;
    }
    w.device_size = w.size;
    let (mut model, most) = files(rng, &mut w);
    let mut round = 0;
    while w.steps.len() < 120 {
        let ops = churned(rng, &model, most);
        for op in ops {
            if model.apply(&op).is_ok() {
                w.steps.push(Step::Op(op));
            }
        }
        round += 1;
        if round % 3 == 0 {
            w.steps.push(if rng.percent(80) { Step::Op(Op::Sync) } else { Step::WriteBack });
        }
        if round % 10 == 0 {
            // Blocks of checkpoints that are there are not dead.
            if rng.percent(70) {
                w.steps.push(Step::DeleteCheckpoints);
            }
            w.steps.push(Step::Clean);
            if kind == Kind::Discards {
                w.steps.push(Step::Discard);
            }
            if kind == Kind::Shrinking {
                let to = w.size / 100 * (40 + rng.below(55));
                w.steps.push(if rng.percent(70) { Step::Shrink(to) } else { Step::Grow });
            }
        }
    }
    w.steps.push(Step::Op(Op::Sync));
    w
}

/// Makes the files; the model of them, and bytes of each at most.
pub(crate) fn files(rng: &mut Rng, w: &mut Workload) -> (Model, u64) {
    let mut model = Model::new(Capabilities::silt(usize::try_from(w.block_size).unwrap_or(4096)));
    let most = (w.size / 30).min(CHURNED_BYTES);
    for n in 0..CHURNED {
        let path = TreePath::new(format!("f{n}").as_bytes());
        let file = FileRef::Path(path.clone());
        let write = Op::Write { file, offset: 0, len: most / 2, seed: rng.below(1000) };
        w.setup.extend([Op::Create { path, mode: 0o644 }, write]);
    }
    w.setup.iter().for_each(|op| drop(model.apply(op)));
    (model, most)
}

/// What is done to one of the files, or to the snapshots; or one of the files is synced.
pub(crate) fn churned(rng: &mut Rng, model: &Model, most: u64) -> Vec<Op> {
    let path = |n: u64| TreePath::new(format!("f{n}").as_bytes());
    let file = |n: u64| FileRef::Path(path(n));
    let n = rng.below(CHURNED);
    let mut ops = Vec::new();
    match rng.below(10) {
        0..4 => {
            let offset = rng.below(most);
            let len = 1 + rng.below(most - offset);
            ops.push(Op::Write { file: file(n), offset, len, seed: rng.below(1000) });
        }
        4 => ops.push(Op::Truncate { file: file(n), size: rng.below(most) }),
        5 => ops.extend([Op::Unlink { path: path(n) }, Op::Create { path: path(n), mode: 0o644 }]),
        6 => ops.push(Op::Rename { from: path(n), to: path((n + 1) % CHURNED), how: RenameHow::Plain }),
        7 => ops.push(Op::Create { path: path(n), mode: 0o600 }),
        8 if rng.percent(40) => ops.push(Op::Snapshot),
        8 => {
            let known: Vec<u32> = model.snapshots().keys().copied().collect();
            ops.extend(rng.pick(&known).map(|id| Op::RemoveSnapshot { id: *id }));
        }
        _ => ops.extend([file(n)].map(|file| match rng.percent(50) {
            true => Op::Fdatasync { file },
            false => Op::Fsync { file },
        })),
    }
    ops
}

/// Overwrites inside of a few files, all of them synced at once.
fn overwrite(model: &mut Model, generator: &mut Generator, steps: &mut Vec<Step>) {
    let mut paths = Vec::new();
    let writes: Vec<Op> =
        (0..3).filter_map(|_| generator.overwrite_and_sync(model).into_iter().next()).collect();
    for op in writes {
        let _ = model.apply(&op);
        if let Op::Write { file: FileRef::Path(path), .. } = &op {
            paths.push(path.clone());
        }
        steps.push(Step::Op(op));
    }
    paths.dedup();
    steps.push(Step::DataSyncs(paths));
}

/// A file that is held open, loses its name, and is written and synced on.
fn nameless(rng: &mut Rng, model: &mut Model, steps: &mut Vec<Step>) {
    let Some(slot) = (0..SLOTS).find(|slot| model.slot(*slot).is_none()) else { return };
    let path = TreePath::new(b"nameless");
    let file = FileRef::Slot(slot);
    let mut write = |offset| Op::Write { file: file.clone(), offset, len: 4096, seed: rng.below(1000) };
    let mut ops = vec![Op::Create { path: path.clone(), mode: 0o600 }, Op::Open { slot, path: path.clone() }];
    ops.extend((0..4).map(|block| write(block * 4096)));
    ops.extend([Op::Sync, Op::Unlink { path }, Op::Sync]);
    for offset in [8192, 0] {
        ops.extend([write(offset), Op::Fdatasync { file: file.clone() }]);
    }
    if rng.percent(50) {
        ops.push(Op::Close { slot });
    }
    for op in ops {
        let _ = model.apply(&op);
        steps.push(Step::Op(op));
    }
}
