//! All short sequences of operations over a few names, each with calls that make it durable.
//!
//! Bounded as in ACE: two directories, a few files with data of their own, and every operation that changes names,
//! data or attributes. A sequence in which an operation cannot be done is left out.

use silt_model::caps::Capabilities;
use silt_model::model::{Kind, Model};
use silt_model::op::{FileRef, Op};
use silt_model::path::TreePath;
use silt_model::rng::mix;

use crate::Result;
use crate::workload::{Step, Workload, ops};

/// What is there before: directories `A` and `B`, files of some bytes, of some blocks, and with a hole.
const SETUP: &str = "\
mkdir A 755
mkdir B 755
create A/x 644
write :A/x 0 5000 1
create A/y 600
create f 644
write :f 0 20000 2
create h 644
write :h 40000 6000 3";

/// The operations.
const OPS: &str = "\
create A/n 644
create B/x 644
mkdir A/D 755
mkdir B/D 700
symlink B/s =A/x
link f B/l
link A/x A/x2
unlink A/x
unlink f
rmdir B
rename A/x B/x plain
rename A/x f plain
rename f A/x plain
rename A C plain
rename B A/B plain
rename A/x f exchange
rename A B exchange
write :f 0 20000 11
write :f 5000 3000 12
write :A/x 0 5000 13
write :f 60000 3000 14
append A/x 3000 15
append f 9000 16
append A/y 100 17
write :h 10000 5000 18
truncate :f 0
truncate :f 6000
truncate :A/x 30000
fallocate :f punch 4096 8192
fallocate :f zero 2000 9000
fallocate :A/y extend 0 9000
chmod A/x 4711
utimens f 1234567.000000005
chown B 7 8
map-write f 100 9000 19
write :f 0 150000 20";

/// How an operation is made durable; the numbers are those of [`calls`].
const CALLS: usize = 8;
/// Of these: those that promise something.
const DURABLE: usize = 6;

fn calls(which: usize, op: &Op, model: &Model) -> Vec<Step> {
    let file = |path: &str| FileRef::Path(TreePath::new(path.as_bytes()));
    let touched = |op: &Op| match op {
        Op::Write { file, .. } | Op::Truncate { file, .. } | Op::Fallocate { file, .. } => Some(file.clone()),
        Op::Create { path, .. } | Op::Append { path, .. } | Op::MapWrite { path, .. } => {
            Some(FileRef::Path(path.clone()))
        }
        Op::Rename { to, .. } | Op::Link { to, .. } => Some(FileRef::Path(to.clone())),
        _ => None,
    };
    match which {
        0 => vec![Step::Op(Op::Sync)],
        1 => vec![Step::Op(Op::Fsync { file: touched(op).unwrap_or_else(|| file("")) })],
        2 => vec![Step::Op(Op::Fdatasync { file: touched(op).unwrap_or_else(|| file("f")) })],
        // Data alone, over and over, of files whose sizes stay.
        3 => vec![
            Step::Op(Op::Sync),
            Step::Op(Op::Write { file: file("h"), offset: 41_000, len: 3000, seed: 77 }),
            Step::Op(Op::Fdatasync { file: file("h") }),
        ],
        4 => together(model),
        5 => vec![Step::Op(Op::Snapshot)],
        6 => vec![Step::WriteBack],
        _ => vec![],
    }
}

/// Data alone of several files: a log each, and one flush for all.
fn together(model: &Model) -> Vec<Step> {
    let size = |path: &TreePath| match &model.node(model.lookup(path).ok()?).kind {
        Kind::File(data) => Some(data.size()).filter(|size| *size > 0),
        _ => None,
    };
    let mut steps = vec![Step::Op(Op::Sync)];
    let mut paths = Vec::new();
    for (seed, name) in (80..).zip(["h", "f", "A/x", "B/x", "A/y", "C/x"]) {
        let path = TreePath::new(name.as_bytes());
        if let Some(size) = size(&path) {
            let file = FileRef::Path(path.clone());
            steps.push(Step::Op(Op::Write { file, offset: 0, len: size.min(9000), seed }));
            paths.push(path);
        }
    }
    steps.push(Step::DataSyncs(paths));
    steps
}

/// Which sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequences {
    /// Operations in each: 2 or 3.
    pub length: u32,
    /// Each with every way to make it durable, not only one.
    pub every_call: bool,
}

/// All sequences, in an order that `seed` decides. Their number is known before they are made; one that cannot be
/// done is `None`.
pub struct Ace {
    sequences: Sequences,
    ops: Vec<Op>,
    setup: Vec<Op>,
    seed: u64,
    count: u64,
    stride: u64,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Ace {
    /// Reads the tables.
    pub fn new(sequences: Sequences, seed: u64) -> Result<Self> {
        let (ops, setup) = (ops(OPS)?, ops(SETUP)?);
        let ways = if sequences.every_call { (CALLS as u64).pow(sequences.length) } else { 1 };
        let count = (ops.len() as u64).pow(sequences.length) * ways;
        // Visits all numbers once, far apart.
        let mut stride = (mix(seed) % count).max(1);
        while gcd(stride, count) != 1 {
            stride += 1;
        }
        Ok(Ace { sequences, ops, setup, seed, count, stride })
    }

    /// How many there are, those that cannot be done included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The `nth` of them; `None` where an operation cannot be done after those before it.
    pub fn get(&self, nth: u64) -> Option<Workload> {
        let number = (nth % self.count).wrapping_mul(self.stride) % self.count;
        let seed = mix(self.seed ^ number.rotate_left(17));
        let mut left = number;
        let mut take = |n: usize| {
            let n = n as u64;
            let digit = usize::try_from(left % n).unwrap_or(0);
            left /= n;
            digit
        };
        let block_size = if seed.is_multiple_of(3) { 1024 } else { 4096 };
        let mut model = Model::new(Capabilities::silt(block_size));
        for op in &self.setup {
            model.apply(op).ok()?;
        }
        let block_size = u32::try_from(block_size).unwrap_or(4096);
        let name = format!("ace{}-{number}", self.sequences.length);
        let mut workload = Workload { setup: self.setup.clone(), ..Workload::new(name, seed, block_size) };
        // Some without flushes, some grow on the way.
        let rest = seed / 3 % 16;
        workload.barrier = rest != 0;
        let grows = matches!(rest, 1 | 2);
        if grows {
            workload.device_size = 2 * workload.size;
        }
        for i in 0..self.sequences.length {
            let op = self.ops.get(take(self.ops.len()))?;
            model.apply(op).ok()?;
            workload.steps.push(Step::Op(op.clone()));
            let last = i + 1 == self.sequences.length;
            let mut call = match self.sequences.every_call {
                true => take(CALLS),
                false => usize::try_from((seed >> (8 * i)) % CALLS as u64).unwrap_or(0),
            };
            // Ends in something durable.
            if last && call >= DURABLE {
                call -= DURABLE;
            }
            if grows && last {
                workload.steps.push(Step::Grow);
            }
            for step in calls(call, op, &model) {
                if let Step::Op(op) = &step {
                    model.apply(op).ok()?;
                }
                workload.steps.push(step);
            }
        }
        Some(workload)
    }
}
