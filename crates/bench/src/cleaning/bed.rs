//! A volume in memory that is filled, churned until its cleaning is in a steady state, and measured then.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use silt_cleaner::{Options, Policy, Whole, pass};
use silt_engine::mkfs::{Parameters, Plan as Mkfs};
use silt_engine::{OpenOptions, Time, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError, WriteFlags};

use super::Cost;
use super::wear::Worn;
use super::workload::{Player, Workload};

/// What a volume lives through.
pub struct Plan {
    /// Bytes.
    pub bytes: u64,
    pub blocks_per_segment: u32,
    /// Live data, in percent of the segments that are not kept clean.
    pub live: u64,
    pub policy: Policy,
    /// With fewer clean segments than so many percent others are emptied, until so many percent more are clean.
    pub clean: u64,
    pub spare: u64,
    pub turns: u64,
}

/// Where so many passes in a row bring too little, there is no space.
const PASSES: usize = 20;
const BLOCK: u64 = 4096;

/// A volume, and what was written.
pub struct Bed {
    fs: Fs,
    device: Arc<Worn>,
    policy: Policy,
    clean: u64,
    spare: u64,
    /// Bytes of data that make a checkpoint due: a segment, as it is on a volume as mkfs makes it.
    due: u64,
    now: u64,
    /// Bytes that programs wrote, and those of them that no checkpoint holds.
    pub written: u64,
    waiting: u64,
    /// Blocks that the cleaner copied, and in how many steps it did that.
    moved: u64,
    steps: u64,
    emptied: u64,
    /// Sums over checkpoints: live blocks, and blocks of segments in use.
    live: u64,
    used: u64,
}

/// Why a workload ended early.
#[derive(Debug)]
pub enum End {
    /// There is no space for it.
    Full,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for End {
    fn from(e: anyhow::Error) -> Self {
        End::Failed(e)
    }
}

impl From<FsError> for End {
    fn from(e: FsError) -> Self {
        if e == FsError::NoSpace { End::Full } else { End::Failed(anyhow!(e)) }
    }
}

impl From<silt_engine::Error> for End {
    fn from(e: silt_engine::Error) -> Self {
        if matches!(e, silt_engine::Error::NoSpace) { End::Full } else { End::Failed(anyhow!(e)) }
    }
}

type Done<T> = std::result::Result<T, End>;

impl Bed {
    fn new(plan: &Plan) -> Result<Self> {
        let device = Arc::new(Worn::new(plan.bytes, u64::from(plan.blocks_per_segment) * BLOCK));
        let parameters = Parameters {
            block_size: 4096,
            blocks_per_segment: plan.blocks_per_segment,
            now: 1000,
            ..Parameters::default()
        };
        Mkfs::new(parameters, plan.bytes)?.write(&*device, false)?;
        let (mut volume, _) =
            Volume::open(device.clone(), &OpenOptions { now: 1000, ..OpenOptions::default() })?;
        volume.take_over(1000)?;
        let fs = Fs::new(volume, &silt_fs::Options::default());
        let due = u64::from(plan.blocks_per_segment) * BLOCK;
        let Plan { policy, clean, spare, .. } = *plan;
        Ok(Bed {
            fs,
            device,
            policy,
            clean,
            spare,
            due,
            now: 2000,
            written: 0,
            waiting: 0,
            moved: 0,
            steps: 0,
            emptied: 0,
            live: 0,
            used: 0,
        })
    }

    /// The superuser at the next second.
    fn context(&self) -> Context {
        let now = Time { secs: i64::try_from(self.now).unwrap_or(i64::MAX), ..Time::default() };
        Context { now, privileged: true, ..Context::default() }
    }

    /// Segments that are to be clean, and with how many cleaning ends.
    fn marks(&self) -> (u64, u64) {
        let v = self.fs.volume();
        let n = v.geometry().nsegments;
        let low = v.segments_with_space(2 * self.due / BLOCK).max(n * self.clean / 100);
        (low, low + n * self.spare / 100 + 1)
    }

    /// Makes a checkpoint, and cleans where few segments are clean.
    pub fn sync(&mut self) -> Done<()> {
        self.now += 1;
        self.waiting = 0;
        self.fs.sync_all(self.now)?;
        let (low, high) = self.marks();
        for _ in 0..PASSES {
            if self.fs.volume().available_segments() >= low {
                break;
            }
            let options =
                Options { policy: self.policy, until: Some(high), now: self.now, ..Options::default() };
            let outcome = pass(&Whole::new(self.fs.volume_mut(), self.now), &options, |_, _| true)?;
            self.moved += outcome.cleaned.moved;
            self.steps += outcome.steps;
            self.emptied += outcome.cleaned.segments;
            if outcome.cleaned.segments == 0 {
                break;
            }
        }
        let (s, g) = (self.fs.volume().stat()?, *self.fs.volume().geometry());
        self.used += (s.segments - s.clean_segments) * u64::from(g.blocks_per_segment);
        self.live += s.tree_blocks;
        Ok(())
    }

    /// Does something that takes space; once more after cleaning, if there is none.
    fn take<T>(&mut self, f: impl Fn(&mut Fs, &Context) -> std::result::Result<T, FsError>) -> Done<T> {
        let context = self.context();
        match f(&mut self.fs, &context) {
            Err(FsError::NoSpace) => {
                self.sync()?;
                Ok(f(&mut self.fs, &context)?)
            }
            other => Ok(other?),
        }
    }

    pub fn create(&mut self, name: &str) -> Done<Ino> {
        self.take(|fs, c| fs.create(c, Ino::ROOT, name.as_bytes(), 0o644)).map(|s| s.ino)
    }

    /// Writes whole blocks, in pieces after each of which a checkpoint may be due.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Done<()> {
        let piece = usize::try_from(self.due).unwrap_or(usize::MAX).max(1);
        let mut at = offset;
        for part in data.chunks(piece) {
            let n = self.take(|fs, c| fs.write(c, ino, at, part, WriteFlags::default()))?;
            if n != part.len() {
                return Err(End::Failed(anyhow!("a short write")));
            }
            at += n as u64;
            self.written += n as u64;
            self.waiting += n as u64;
            if self.waiting >= self.due {
                self.sync()?;
            }
        }
        Ok(())
    }

    pub fn remove(&mut self, name: &str, ino: Ino) -> Done<()> {
        self.take(|fs, c| fs.unlink(c, Ino::ROOT, name.as_bytes()))?;
        self.fs.forget(ino, u64::MAX)?;
        Ok(())
    }
}

/// Bytes of live data.
fn live_bytes(plan: &Plan) -> u64 {
    plan.bytes / 10_000 * plan.live * (100 - plan.clean.min(100))
}

/// A volume's life; none where there was no space for it.
pub fn live(plan: &Plan, workload: Workload) -> Result<Option<Cost>> {
    let mut bed = Bed::new(plan)?;
    let cost = (|| -> Done<Cost> {
        let mut player = Player::fill(&mut bed, workload, live_bytes(plan))?;
        let settled = bed.written + plan.turns * plan.bytes;
        while bed.written < settled {
            player.go_on(&mut bed)?;
        }
        bed.sync()?;
        bed.device.reset();
        (bed.moved, bed.live, bed.used) = (0, 0, 0);
        (bed.steps, bed.emptied) = (0, 0);
        let (begin, own) = (bed.written, bed.fs.volume().rewritten_blocks());
        while bed.written < begin + plan.turns * plan.bytes {
            player.go_on(&mut bed)?;
        }
        bed.sync()?;
        let written = (bed.written - begin) as f64;
        let own = bed.fs.volume().rewritten_blocks() - own;
        Ok(Cost {
            own: (own * 4096) as f64 / written,
            all: bed.device.bytes() as f64 / written,
            copied: (bed.moved * 4096) as f64 / written,
            used: bed.live as f64 / bed.used.max(1) as f64,
            wear: bed.device.wear(bed.fs.volume().geometry().nsegments),
            steps: bed.steps,
            emptied: bed.emptied,
        })
    })();
    match cost {
        Ok(cost) => Ok(Some(cost)),
        Err(End::Full) => Ok(None),
        Err(End::Failed(e)) => bail!(e),
    }
}
