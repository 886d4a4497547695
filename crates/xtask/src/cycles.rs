//! Volumes that are filled, emptied and filled again, through the real mount: they never wedge.
//!
//! What must hold, cycle for cycle:
//! - filling ends with ENOSPC and nothing else, and then there stays no space until something is removed;
//! - removing, truncating and removing snapshots work on a full volume;
//! - when they freed a few segments' worth, a small file can be made and synced within [`PATIENCE`];
//! - what was written is there, and as much fits as in the first cycles.

pub mod crowd;
mod filling;
mod sittings;
mod writer;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use silt_device::Device;
use silt_model::rng::Rng;
use silt_verify::golden;

use crate::golden::store;
use crate::mounted::{Mounted, judge, mkfs, run};
use crate::scratch::Scratch;
use filling::{Filling, Pattern};

/// A small file can be made within this time after a removal, or the volume is wedged.
const PATIENCE: Duration = Duration::from_secs(10);
/// For so long after ENOSPC there must be no space.
const STAYS: Duration = Duration::from_millis(1500);

/// A volume that goes through cycles.
#[derive(Clone, Copy, Debug)]
struct Kind {
    mebibytes: u64,
    block_size: u64,
    /// Blocks.
    segment: u64,
    snapshots: bool,
}

impl Kind {
    fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6379_636c);
        let mut one = |of: &[u64]| of[usize::try_from(rng.below(of.len() as u64)).unwrap_or(0)];
        let block_size = one(&[4096, 4096, 1024]);
        let (segment, mebibytes) = (one(&[16, 32, 64, 256]), one(&[16, 32, 64]));
        // With fewer than some dozen segments hardly anything but the reserve is left.
        let mebibytes = mebibytes.max((block_size * segment * 48) >> 20);
        Kind { mebibytes, block_size, segment, snapshots: one(&[0, 1]) == 1 }
    }

    fn segment_bytes(&self) -> u64 {
        self.block_size * self.segment
    }
}

/// How a life begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// With mkfs; the seed says how.
    Made(u64),
    /// With a volume that the kernel filled.
    Kernel(&'static str),
}

/// Volumes that the kernel filled to ENOSPC, and those it has wedged.
const KERNEL: [&str; 4] = ["full-4k", golden::WEDGED[0], golden::WEDGED[1], golden::WEDGED[2]];

/// Volumes `seeds` go through so many cycles each, `jobs` at a time, and if wanted those that the kernel has filled. Needs
/// root and /dev/fuse.
pub fn cycles(silt: &Path, seeds: &[u64], kernel: bool, cycles: u64, jobs: usize) -> Result<()> {
    let started = Instant::now();
    let mut starts: Vec<Start> = seeds.iter().copied().map(Start::Made).collect();
    if kernel {
        starts.extend(KERNEL.map(Start::Kernel));
    }
    let (next, written) = (AtomicUsize::new(0), AtomicU64::new(0));
    let life = || -> Result<()> {
        while let Some(start) = starts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let (kind, bytes) =
                one_life(silt, *start, cycles).with_context(|| format!("{start:?}: {cycles} cycles"))?;
            println!("{start:?}: {kind:?}: {} MiB in {:.0} s", bytes >> 20, begun.elapsed().as_secs_f64());
            written.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(life)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })?;
    println!(
        "{} volumes filled and emptied {cycles} times each: {} MiB written in {:.0} s, never wedged",
        starts.len(),
        written.into_inner() >> 20,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

struct Life<'a> {
    silt: &'a Path,
    dir: PathBuf,
    kind: Kind,
    rng: Rng,
    filling: Filling,
    /// Checkpoints that are snapshots.
    snapshots: Vec<u64>,
    /// Somebody else's files may be there.
    foreign: bool,
}

/// The image with which a life begins, and what it is.
fn begin(silt: &Path, start: Start, image: &Path) -> Result<(u64, Kind)> {
    match start {
        Start::Made(seed) => {
            let kind = Kind::of(seed);
            let (b, s) = (kind.block_size.to_string(), kind.segment.to_string());
            mkfs(silt, image, &format!("{}M", kind.mebibytes), &["-b", &b, "-B", &s])?;
            Ok((seed, kind))
        }
        Start::Kernel(name) => {
            let device = store(&golden::open(name), image)?;
            let g = silt_engine::read_super_block(&*device)?;
            let kind = Kind {
                mebibytes: device.len() >> 20,
                block_size: 1024 << g.log_block_size.get(),
                segment: u64::from(g.blocks_per_segment.get()),
                snapshots: true,
            };
            Ok((name.len() as u64, kind))
        }
    }
}

fn one_life(silt: &Path, start: Start, cycles: u64) -> Result<(Kind, u64)> {
    let scratch = Scratch::new("cycles")?;
    let (image, dir) = (scratch.join("v.img"), scratch.join("mnt"));
    let (seed, kind) = begin(silt, start, &image)?;
    let mounted = Mounted::new(silt, &image, &dir, &[])?;
    let filling = Filling::new(&dir, seed);
    let foreign = matches!(start, Start::Kernel(_));
    let mut life = Life { silt, dir, kind, rng: Rng::new(seed), filling, snapshots: Vec::new(), foreign };
    if foreign {
        life.make_foreign_space()?;
    }
    let mut most = 0;
    for cycle in 0..cycles {
        let at = || format!("cycle {cycle}");
        let (held, empty) = match life.cycle() {
            Ok(done) => done,
            Err(e) => {
                let dir = life.dir.to_string_lossy().into_owned();
                let status = life.silt(&["status", &dir]).unwrap_or_else(|e| e.to_string());
                let moments = life.silt(&["lscp", &dir]).unwrap_or_else(|e| e.to_string());
                return Err(e.context(format!("{status}{moments}")).context(at()));
            }
        };
        if !empty {
            continue;
        }
        // What a fresh volume holds of this kind of files, an old one must hold.
        most = most.max(held);
        if held * 10 < most * 7 {
            bail!("cycle {cycle}: {held} bytes fill the volume that held {most} before");
        }
    }
    let written = life.filling.written;
    drop(life);
    mounted.unmount()?;
    judge(&image)?;
    let mounted = Mounted::new(silt, &image, &scratch.join("mnt"), &[])?;
    mounted.unmount()?;
    Ok((kind, written))
}

impl Life<'_> {
    fn silt(&self, arguments: &[&str]) -> Result<String> {
        let output = run(Command::new(self.silt).args(arguments))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Fills, removes something, and looks whether there is space; bytes that it took, and whether they are
    /// comparable: large files on a volume without anything else.
    fn cycle(&mut self) -> Result<(u64, bool)> {
        let pattern = Pattern::ALL[usize::try_from(self.rng.below(6)).unwrap_or(0)];
        let empty = self.filling.bytes() == 0 && self.snapshots.is_empty() && !self.foreign;
        let comparable = pattern == Pattern::Large && empty;
        self.filling.fill(pattern).with_context(|| format!("filling: {pattern:?}"))?;
        let held = self.filling.bytes();
        self.filling.top_up().context("filling the rest")?;
        let full = Instant::now();
        while full.elapsed() < STAYS {
            if self.filling.one_more()? {
                bail!(
                    "{pattern:?}: {:?} after ENOSPC there is space, and nobody removed anything",
                    full.elapsed()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.filling.compare()?.map_err(|e| anyhow!(e)).with_context(|| format!("{pattern:?}"))?;
        self.make_space().with_context(|| format!("{pattern:?}: making space"))?;
        self.check_space().with_context(|| format!("{pattern:?}"))?;
        if self.kind.snapshots && self.snapshots.len() < 3 && self.rng.below(3) == 0 {
            let dir = self.dir.to_string_lossy().into_owned();
            let said = self.silt(&["mkcp", "-s", "-p", &dir])?;
            let number =
                said.split_whitespace().find_map(|w| w.trim_end_matches([',', ';', ':']).parse().ok());
            self.snapshots.push(number.with_context(|| format!("mkcp tells no number: {said}"))?);
        }
        Ok((held, comparable))
    }

    /// Something was removed: a small file can be made and synced.
    fn check_space(&mut self) -> Result<()> {
        let removed = Instant::now();
        while !self.filling.one_more()? {
            if removed.elapsed() > PATIENCE {
                bail!("wedged: no space for a small file {PATIENCE:?} after a removal");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::File::open(&self.dir)?.sync_all().context("syncing after a removal")?;
        if removed.elapsed() > PATIENCE {
            bail!("a small file took {:?} after a removal", removed.elapsed());
        }
        Ok(())
    }

    /// Of what the kernel left goes a few segments' worth.
    fn make_foreign_space(&mut self) -> Result<()> {
        let (mut freed, mut todo) = (0, vec![self.dir.clone()]);
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    todo.push(entry.path());
                } else if meta.is_file() && freed < 4 * self.kind.segment_bytes() {
                    std::fs::remove_file(entry.path()).context("removing what the kernel wrote")?;
                    freed += meta.blocks() * 512;
                }
            }
        }
        self.check_space().context("after removing what the kernel wrote")
    }

    /// Removes at least a few segments' worth, one way or another.
    fn make_space(&mut self) -> Result<()> {
        let dir = self.dir.to_string_lossy().into_owned();
        // What snapshots hold as well does not come back with the files.
        for cno in std::mem::take(&mut self.snapshots) {
            self.silt(&["chcp", "cp", &dir, &cno.to_string()])?;
            self.silt(&["rmcp", &dir, &cno.to_string()])?;
        }
        let enough = 4 * self.kind.segment_bytes();
        match self.rng.below(4) {
            // Of names alone that gives nothing back.
            0 if self.filling.bytes() > 2 * enough => self.filling.truncate_all()?,
            1 | 2 if self.filling.bytes() > 2 * enough => {
                self.filling.remove(enough)?;
            }
            _ => {
                self.filling.remove_all()?;
                self.foreign = false;
            }
        }
        Ok(())
    }
}
