//! Data-sync logs that Silt left behind when it ended without warning: the kernel puts them in place when it mounts
//! the volume, reads every file as its last sync promised, and Silt reads the same afterwards.
//!
//! Some daemons are killed by SIGKILL; of some volumes written in this process the power is cut at or between
//! flushes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use silt_device::{CrashOptions, CrashStates, Device, MemoryDevice, Recorder};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions as EngineOptions, Volume};
use silt_fs::{Context, Fs, Ino, WriteFlags};
use silt_fs_model::FsTarget;
use silt_model::content::pattern_bytes;
use silt_model::hash::Digest;
use silt_model::manifest::{Body, Columns, Manifest};
use silt_model::path::TreePath;
use silt_model::rng::Rng;
use silt_model::target::{Target, Tree};

use crate::golden::store;
use crate::guest::Options;
use crate::mounted::{Mounted, judge, mkfs, run, wait_free};
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::turn::{KernelTurn, Trees, TurnReport, kernel_turns};

/// Volumes whose daemon is killed, and volumes whose power is cut; one boot takes all.
const KILLED: u64 = 6;
const CUT: usize = 10;
/// Blocks of all sizes of files: maps of every form.
const SIZES: [usize; 9] = [100, 4096, 10_000, 28_672, 40_000, 150_000, 400_000, 1_000_000, 3_000_000];
/// Overwrites of a volume.
const WRITES: u64 = 60;
/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;

/// What each file holds, by name.
type Contents = BTreeMap<String, Arc<Vec<u8>>>;

/// A volume as the crash left it.
struct Left {
    what: String,
    image: PathBuf,
    /// Whether a daemon was killed; else the power was cut.
    killed: bool,
    /// What each file may hold: what was promised first, then what was written since.
    allowed: Vec<Contents>,
}

/// An overwrite within a file: name, offset, bytes.
fn overwrite(rng: &mut Rng, now: &Contents, version: u64) -> (String, usize, Vec<u8>) {
    let names: Vec<&String> = now.keys().collect();
    let name = (*rng.pick(&names).unwrap_or(&names[0])).clone();
    let size = now.get(&name).map_or(0, |bytes| bytes.len());
    let offset = usize::try_from(rng.below(size as u64)).unwrap_or(0);
    let most = (size - offset).min(if rng.percent(30) { 100_000 } else { 9000 });
    let len = 1 + usize::try_from(rng.below(most as u64)).unwrap_or(0);
    (name, offset, pattern_bytes(version, len))
}

fn changed(now: &Contents, name: &str, offset: usize, data: &[u8]) -> Contents {
    let mut after = now.clone();
    if let Some(bytes) = after.get_mut(name) {
        let mut new = (**bytes).clone();
        new[offset..offset + data.len()].copy_from_slice(data);
        *bytes = Arc::new(new);
    }
    after
}

fn first_contents(seed: u64) -> Contents {
    let contents = |(n, size): (usize, &usize)| {
        // Half of the large ones begin as holes.
        let bytes = if n % 2 == 1 { vec![0; *size] } else { pattern_bytes(seed * 100 + n as u64 + 1, *size) };
        (format!("file{n}"), Arc::new(bytes))
    };
    SIZES.iter().enumerate().map(contents).collect()
}

/// Overwrites through a mount, each made to stay by fdatasync or O_DSYNC; then the daemon is killed.
fn killed(silt: &Path, scratch: &Scratch, seed: u64) -> Result<Left> {
    let image = scratch.join(&format!("killed{seed}.img"));
    let segment = ["16", "64", "2048"][usize::try_from(seed % 3)?];
    mkfs(silt, &image, "512M", &["-b", "4096", "-B", segment])?;
    // No checkpoint but those that are asked for.
    let mounted = Mounted::new(silt, &image, &scratch.join("mnt"), &["-o", "interval=3600"])?;
    let dir = mounted.dir();
    let mut now = first_contents(seed);
    for (name, bytes) in &now {
        let file = std::fs::File::create(dir.join(name))?;
        if bytes.iter().any(|b| *b != 0) {
            file.write_all_at(bytes, 0)?;
        }
        file.set_len(bytes.len() as u64)?;
    }
    run(std::process::Command::new(silt).arg("sync").arg(dir))?;
    let mut rng = Rng::new(seed);
    for n in 0..WRITES {
        let (name, offset, data) = overwrite(&mut rng, &now, seed * 1000 + n + 1);
        let by_descriptor = rng.percent(50);
        // Not that of rustix, which is O_SYNC.
        let flags = if by_descriptor { libc::O_DSYNC } else { 0 };
        let file = OpenOptions::new().write(true).custom_flags(flags).open(dir.join(&name))?;
        file.write_all_at(&data, offset as u64)?;
        if !by_descriptor {
            file.sync_data()?;
        }
        now = changed(&now, &name, offset, &data);
    }
    mounted.kill(|| {})?;
    wait_free(&image)?;
    Ok(Left { what: format!("killed daemon, seed {seed}"), image, killed: true, allowed: vec![now] })
}

/// Overwrites in this process with every write and flush recorded, and volumes as cuts leave them.
fn cut(scratch: &Scratch, seed: u64, states: usize) -> Result<Vec<Left>> {
    let size = 256 << 20;
    let base = MemoryDevice::new(size);
    let parameters = Parameters {
        block_size: 4096,
        blocks_per_segment: [16, 64, 2048][usize::try_from(seed % 3)?],
        label: b"data sync".to_vec(),
        uuid: [9; 16],
        crc_seed: 4712,
        now: NOW - 100,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, size)?.write(&base, false)?;
    let device = Arc::new(Recorder::new(base));
    let options = EngineOptions { now: NOW, ..EngineOptions::default() };
    let (mut volume, _) = Volume::open(device.clone() as Arc<dyn Device>, &options)?;
    volume.take_over(NOW)?;
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { privileged: true, ..Context::default() };
    let mut now = first_contents(seed);
    let mut inodes = BTreeMap::new();
    for (name, bytes) in &now {
        let ino = fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o100_644)?.ino;
        write(&mut fs, &ctx, ino, 0, bytes)?;
        inodes.insert(name.clone(), ino);
    }
    fs.sync_all(NOW + 1)?;
    device.flush()?;
    let base = device.inner().fork();
    device.record().clear();
    let mut rng = Rng::new(seed);
    let mut written = vec![now.clone()];
    for n in 0..WRITES {
        // Several files share a log, as where several programs sync at once.
        let mut synced = BTreeSet::new();
        for part in 0..1 + rng.below(3) {
            let (name, offset, data) = overwrite(&mut rng, &now, seed * 1000 + n * 4 + part + 1);
            let ino = *inodes.get(&name).context("a file without an inode")?;
            write(&mut fs, &ctx, ino, offset, &data)?;
            synced.insert(ino);
            now = changed(&now, &name, offset, &data);
        }
        let synced: Vec<Ino> = synced.into_iter().collect();
        let volume = fs.volume_mut();
        let suffices = synced.iter().all(|ino| volume.data_sync_suffices(*ino));
        if !suffices || !volume.begin_data_sync(&synced, NOW + 2 + n)? {
            bail!("overwrites are not synced by a data-sync log");
        }
        volume.finish_construction(NOW + 2 + n)?;
        device.flush()?;
        written.push(now.clone());
        device.mark(n + 1);
    }
    // Many states at few cuts: take those that lie as far apart as can be.
    let options = CrashOptions { seed, max_states: 200, per_flush: 4 };
    let all = CrashStates::new(&base, device.record().events(), options)
        .collect::<silt_device::Result<Vec<_>>>()?;
    let apart = (all.len() / states.max(1)).max(1);
    let chosen = all.into_iter().skip(apart / 2).step_by(apart).take(states);
    let left = chosen.enumerate().map(|(n, state)| {
        let image = scratch.join(&format!("cut{seed}-{n}.img"));
        store(&state.device, &image)?;
        let promised = state.acknowledged.last().copied().unwrap_or(0);
        let allowed = written.iter().skip(usize::try_from(promised)?).cloned().collect();
        Ok(Left { what: format!("power cut, seed {seed}: {}", state.cut), image, killed: false, allowed })
    });
    left.collect()
}

fn write(fs: &mut Fs, ctx: &Context, ino: Ino, offset: usize, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        done += fs.write(ctx, ino, (offset + done) as u64, &data[done..], WriteFlags::default())?;
    }
    Ok(())
}

impl Left {
    /// How many blocks Silt itself would recover; looks, and writes nothing.
    fn recovered_by_silt(&self) -> Result<u64> {
        let device = silt_device::open(
            &self.image,
            silt_device::Access::ReadOnly,
            &silt_device::OpenOptions::default(),
        )?;
        let options = EngineOptions { read_only: true, now: NOW + 5000, ..EngineOptions::default() };
        let (_, report) = Volume::open(Arc::new(device), &options)?;
        if report.was_unclean { Ok(report.rolled_forward) } else { bail!("the volume was closed in order") }
    }

    /// What a reading of the volume does not have as it should be.
    fn wrong(&self, read: &Manifest) -> Vec<String> {
        let mut wrong = Vec::new();
        let Some(promised) = self.allowed.first() else { return vec!["nothing was promised".to_owned()] };
        for (name, bytes) in promised {
            match read.get(&TreePath::new(name.as_bytes())).map(|e| (e.size, &e.body)) {
                Some((size, Body::Data(digest))) => {
                    let right =
                        self.allowed.iter().any(|c| c.get(name).is_some_and(|b| Digest::of(b) == *digest));
                    if !right || size != Some(bytes.len() as u64) {
                        wrong.push(format!("{name} is not what was promised, nor anything newer"));
                    }
                }
                _ => wrong.push(format!("{name} is not there")),
            }
        }
        wrong
    }

    /// Silt takes over what the kernel left.
    fn silt_after(&self, kernel: &TurnReport) -> Result<Vec<String>> {
        let device = silt_device::open(
            &self.image,
            silt_device::Access::ReadWrite,
            &silt_device::OpenOptions::default(),
        )?;
        let mut target = FsTarget::open(Arc::new(device), silt_fs::Options::default(), NOW + 9000)?;
        let live = target.manifest(Tree::Live, Columns::ALL).map_err(|e| anyhow!(e))?;
        target.close_volume()?;
        drop(target);
        let mut found = self.wrong(&live);
        let ours = Trees { live, ..Trees::default() };
        match &kernel.trees {
            Some(theirs) => found.extend(theirs.differences(&ours, Columns::ALL)),
            None => found.push("the kernel read nothing".to_owned()),
        }
        judge(&self.image)?;
        Ok(found)
    }
}

/// Makes all volumes and has the kernel recover them. Needs root and /dev/fuse.
pub fn data_sync(rig: &Rig, silt: &Path) -> Result<()> {
    let scratch = Scratch::new("data-sync")?;
    let mut left = Vec::new();
    for seed in 0..KILLED {
        left.push(killed(silt, &scratch, seed).with_context(|| format!("killed daemon, seed {seed}"))?);
    }
    for seed in 0..2 {
        left.extend(cut(&scratch, seed, CUT / 2)?);
    }
    let ours = left
        .iter()
        .map(|l| l.recovered_by_silt().with_context(|| l.what.clone()))
        .collect::<Result<Vec<_>>>()?;
    let recovering = left.iter().zip(&ours).filter(|(left, ours)| left.killed && **ours > 0).count();
    // The first mount of the turn recovers; what it reads is judged below.
    let turns: Vec<_> =
        left.iter().map(|l| KernelTurn { read_only: false, ..KernelTurn::look(&l.image, 4096) }).collect();
    let reports = kernel_turns(rig, &turns, 1, &Options::default())?;
    let mut bad = 0;
    let (mut by_silt, mut by_kernel) = (0, 0);
    for ((left, report), ours) in left.iter().zip(&reports).zip(ours) {
        let mut found = report.complaints.clone();
        match &report.trees {
            Some(trees) => {
                found.extend(left.wrong(&trees.live).into_iter().map(|w| format!("the kernel: {w}")))
            }
            None => found.push("the kernel read nothing".to_owned()),
        }
        if report.salvaged != ours {
            found.push(format!("the kernel put {} blocks in place, Silt would {ours}", report.salvaged));
        }
        (by_silt, by_kernel) = (by_silt + ours, by_kernel + report.salvaged);
        found.extend(left.silt_after(report)?.into_iter().map(|w| format!("Silt afterwards: {w}")));
        if !found.is_empty() {
            bad += 1;
            println!("{}:", left.what);
            found.iter().for_each(|line| println!("  {line}"));
        }
    }
    println!("{} volumes, {by_silt} blocks of synced data; the kernel put {by_kernel} in place", left.len());
    if recovering < usize::try_from(KILLED)? {
        bail!("only {recovering} of the volumes of killed daemons had synced data to recover");
    }
    if bad > 0 { bail!("{bad} volumes were not recovered as they should be") } else { Ok(()) }
}
