//! What is done to a volume before the power fails.

use std::fmt;

use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_model::op::Op;
use silt_model::path::TreePath;

use crate::{During, Failure, Result};

/// Seconds since 1970 at which volumes are made.
pub const MADE: u64 = 1_790_000_000;
/// Seconds after which workloads begin.
pub const BEGIN: u64 = MADE + 1000;

/// One thing done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An operation of the model, persistence calls and snapshots among them.
    Op(Op),
    /// fdatasync of several files by callers who come at the same time.
    DataSyncs(Vec<TreePath>),
    /// The checkpoint that the clock makes.
    WriteBack,
    /// Deletes all checkpoints that are no snapshots, the newest excepted, and syncs.
    DeleteCheckpoints,
    /// The volume grows to the size of its device.
    Grow,
    /// The label is changed.
    Label(u32),
    /// The next so many writes to the device fail.
    FailWrites(u32),
    /// The next so many flushes fail.
    FailFlushes(u32),
    /// What lies below the device is full, or has room again.
    Full(bool),
    /// The device begins to fail.
    Fails(Fails),
    /// It works again.
    Works,
    /// The cleaner runs.
    Clean,
    /// Until it gains nothing more.
    CleanAll,
    /// And meanwhile somebody makes a snapshot of a checkpoint that was to go.
    CleanBeside,
    /// The daemon is killed and the volume mounted again, where the device does not let it once that works.
    Restart,
    /// The power fails and the volume is mounted again.
    PowerCut,
    /// Clean segments are discarded.
    Discard,
    /// The volume becomes so many bytes large, its device not.
    Shrink(u64),
}

/// How a device fails, until it works again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fails {
    /// So many reads, behind so many that are served.
    Reads { after: u32, times: u32 },
    /// So many writes and discards.
    Writes { after: u32, times: u32 },
    /// So many flushes.
    Flushes { after: u32, times: u32 },
    /// Whatever is written to this segment.
    Place(u64),
    /// All of it, behind so many writes; of the next one so many bytes land.
    Dies { after: u32, keep: u64 },
}

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fails::Reads { after, times } => write!(f, "behind {after} reads the next {times} fail"),
            Fails::Writes { after, times } => write!(f, "behind {after} writes the next {times} fail"),
            Fails::Flushes { after, times } => write!(f, "behind {after} flushes the next {times} fail"),
            Fails::Place(segment) => write!(f, "no write to segment {segment} succeeds"),
            Fails::Dies { after, keep } => {
                write!(f, "behind {after} writes nothing succeeds; of the next one {keep} bytes land")
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Op(op) => op.fmt(f),
            Step::DataSyncs(paths) => {
                f.write_str("fdatasync, at the same time,")?;
                paths.iter().try_for_each(|p| write!(f, " :{p}"))
            }
            Step::WriteBack => f.write_str("(the clock makes a checkpoint)"),
            Step::DeleteCheckpoints => {
                f.write_str("all checkpoints but snapshots and the newest are deleted")
            }
            Step::Grow => f.write_str("the volume grows to the size of its device"),
            Step::Label(n) => write!(f, "the label becomes volume-{n}"),
            Step::FailWrites(n) => write!(f, "(the next {n} writes to the device fail)"),
            Step::FailFlushes(n) => write!(f, "(the next {n} flushes of the device fail)"),
            Step::Fails(how) => write!(f, "(the device fails: {how})"),
            Step::Works => f.write_str("(the device works again); sync"),
            Step::Clean => f.write_str("the cleaner runs"),
            Step::CleanAll => f.write_str("the cleaner runs until it gains nothing more"),
            Step::CleanBeside => {
                f.write_str("the cleaner runs, and an old checkpoint becomes a snapshot meanwhile")
            }
            Step::Restart => f.write_str("the daemon is killed, and mounts again"),
            Step::PowerCut => f.write_str("the power fails, and the volume is mounted again"),
            Step::Shrink(bytes) => write!(f, "the volume shrinks to {bytes} bytes"),
            Step::Discard => f.write_str("clean segments are discarded"),
            Step::Full(true) => f.write_str("(below the device there is no space any more)"),
            Step::Full(false) => f.write_str("(below the device there is space again)"),
        }
    }
}

/// What a volume is and what is done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Tells it from others; with the plan's seed it can be made again.
    pub name: String,
    /// Decides where the power is cut.
    pub seed: u64,
    /// Bytes.
    pub block_size: u32,
    /// Blocks.
    pub segment: u32,
    /// Bytes of the volume when it is made.
    pub size: u64,
    /// Bytes of the device; more than the volume's where it shall grow.
    pub device_size: u64,
    /// Flushes are sent; without them only consistency is promised.
    pub barrier: bool,
    /// Every sync is a checkpoint.
    pub strict: bool,
    /// The mount is recorded as well: cuts fall into it, too.
    pub with_mount: bool,
    /// Before it begins, the volume is left as by a cut, with synced data to be recovered.
    pub unclean: bool,
    /// Done and made durable before the record begins.
    pub setup: Vec<Op>,
    /// Done with the record running.
    pub steps: Vec<Step>,
}

impl Workload {
    /// A small volume with nothing to do.
    pub fn new(name: impl Into<String>, seed: u64, block_size: u32) -> Self {
        let size = 4 << 20;
        Workload {
            name: name.into(),
            seed,
            block_size,
            segment: 16,
            size,
            device_size: size,
            barrier: true,
            strict: false,
            with_mount: false,
            unclean: false,
            setup: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// The new volume.
    pub fn mkfs(&self) -> Result<MemoryDevice> {
        let device = MemoryDevice::new(self.size);
        self.plan(self.size)?.write(&device, false).during("mkfs")?;
        if self.device_size > self.size {
            device.grow(self.device_size);
        }
        Ok(device)
    }

    /// What mkfs would write on a device of so many bytes.
    pub fn plan(&self, size: u64) -> Result<Plan> {
        let parameters = Parameters {
            block_size: self.block_size,
            blocks_per_segment: self.segment,
            uuid: [0x51; 16],
            crc_seed: 0x5117_0001,
            now: MADE,
            block_count: true,
            ..Parameters::default()
        };
        Plan::new(parameters, size).during("mkfs")
    }
}

/// Operations from their text, a line each.
pub fn ops(text: &str) -> Result<Vec<Op>> {
    Op::parse_all(text).map_err(|line| Failure(format!("line {line} is no operation")))
}
