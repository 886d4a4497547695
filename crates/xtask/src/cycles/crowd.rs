//! Several writers keep a small volume nearly full through the real mount, while snapshots come and go, it becomes smaller
//! and larger, and its daemon is killed.
//!
//! What must hold:
//! - writing ends with ENOSPC and nothing else; removing, cutting off and syncing work at any time;
//! - when somebody removed something, somebody can make a small file within [`PATIENCE`], unless a snapshot or a change
//!   of the size is in the way just then;
//! - what was written is there, and after a kill what was synced and not changed since;
//! - the checker finds nothing after each kill and each unmounting.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use silt_model::rng::{Rng, mix};

use serde::{Deserialize, Serialize};

use super::sittings::{Said, Sittings};
use super::writer::{Shared, Writer};
use super::{Kind, PATIENCE};
use crate::mounted::{Mounted, judge, mkfs, run, wait_free};
use crate::scratch::{Scratch, output};
use crate::smaller;

/// Exit code of `silt` where there is no space.
const NO_SPACE: i32 = 8;

/// What happened.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Tally {
    written: u64,
    /// Times a writer met a full volume, and made space.
    full: u64,
    snapshots: u64,
    shrunk: u64,
    refused: u64,
    kills: u64,
    unmounted: u64,
    /// How long they worked.
    worked: Duration,
    /// Longest that nobody could make a small file after a removal.
    longest: Duration,
}

impl Tally {
    fn add(&mut self, more: &Tally) {
        self.written += more.written;
        self.full += more.full;
        self.snapshots += more.snapshots;
        self.shrunk += more.shrunk;
        self.refused += more.refused;
        self.kills += more.kills;
        self.unmounted += more.unmounted;
        self.worked += more.worked;
        self.longest = self.longest.max(more.longest);
    }
}

/// How volumes are crowded.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// How many write at once.
    pub writers: u64,
    /// How long each volume is crowded.
    pub each: Duration,
    /// Where the image of a volume that fails comes to, and what it was before its last mount.
    pub keep: Option<PathBuf>,
    /// The image lies on a file system of its own with room for so many hundredths of it.
    pub host: Option<u64>,
    /// The one volume stays in this directory, with what is known of it, and the next call goes on with it.
    pub sittings: Option<PathBuf>,
}

impl Crowd {
    /// So many writers for so long, and nothing besides.
    pub fn new(writers: u64, each: Duration) -> Self {
        Crowd { writers, each, keep: None, host: None, sittings: None }
    }
}

/// Volumes `seeds` are crowded, one after the other. Needs root and /dev/fuse.
pub fn crowd(silt: &Path, seeds: std::ops::Range<u64>, how: &Crowd) -> Result<()> {
    if how.sittings.is_some() && (seeds.end - seeds.start != 1 || how.host.is_some()) {
        bail!("one volume, and not one on a small host, can be crowded in several sittings");
    }
    let mut all = Tally::default();
    for seed in seeds {
        let kind = Kind::of(seed);
        let told = one_life(silt, seed, how).with_context(|| format!("volume {seed}: {kind:?}"))?;
        println!("volume {seed}: {kind:?}: {told:?}");
        all.add(&told);
    }
    println!(
        "{} MiB written to nearly full volumes in {} s; full {} times and never wedged ({} ms at the longest), {} snapshots \
         made and removed, smaller {} times and {} times refused, killed {} times, unmounted {} times, nothing lost",
        all.written >> 20,
        all.worked.as_secs(),
        all.full,
        all.longest.as_millis(),
        all.snapshots,
        all.shrunk,
        all.refused,
        all.kills,
        all.unmounted
    );
    Ok(())
}

struct Life<'a> {
    silt: &'a Path,
    seed: u64,
    image: PathBuf,
    dir: PathBuf,
    whole: u64,
    segment: u64,
    rng: Rng,
    /// Empty while they work.
    writers: Vec<Writer>,
    number: u64,
    /// Of this sitting and those before it.
    rounds: u64,
    /// Before this one.
    sittings: u64,
    kept: Option<Sittings>,
    /// Without what the writers count.
    tally: Tally,
}

fn one_life(silt: &Path, seed: u64, how: &Crowd) -> Result<Tally> {
    let kept = how.sittings.as_deref().map(Sittings::in_dir).transpose()?;
    let scratch = match &kept {
        Some(kept) => Scratch::staying(kept.path()),
        None => Scratch::new("crowd")?,
    };
    let kind = Kind::of(seed);
    let host_dir = scratch.join("host");
    std::fs::create_dir_all(&host_dir)?;
    if let Some(percent) = how.host {
        let size = format!("size={}k", kind.mebibytes * 1024 * percent / 100);
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&host_dir))?;
    }
    let mut life = Life {
        silt,
        seed,
        image: host_dir.join("v.img"),
        dir: scratch.join("mnt"),
        whole: kind.mebibytes << 20,
        segment: kind.segment_bytes(),
        rng: Rng::new(seed ^ 0x6372_6f77),
        writers: Vec::new(),
        number: how.writers,
        rounds: 0,
        sittings: 0,
        kept,
        tally: Tally::default(),
    };
    let keeping = |_: &anyhow::Error| {
        if let Some(keep) = &how.keep
            && let Err(e) = keep_images(&host_dir, scratch.path(), keep)
        {
            eprintln!("xtask: nothing is kept: {e:#}");
        }
    };
    let mut mounted = match life.earlier()? {
        Some(end) => life.again(end).inspect_err(keeping).context("gone on with")?,
        None => life.first(&kind)?,
    };
    let started = Instant::now();
    while started.elapsed() < how.each {
        let (begun, round) = (Instant::now(), life.rounds);
        mounted = life.round(mounted).inspect_err(keeping).with_context(|| format!("round {round}"))?;
        life.rounds += 1;
        life.tally.worked += begun.elapsed();
    }
    life.leave(Some(mounted), End::Unmount)?;
    judge(&life.image)?;
    Ok(life.told())
}

/// Keeps the images of a life.
fn keep_images(host: &Path, scratch: &Path, keep: &Path) -> Result<()> {
    std::fs::create_dir_all(keep)?;
    for (dir, name) in [(host, "v.img"), (scratch, "before.img")] {
        let (from, to) = (dir.join(name), keep.join(name));
        if from.exists() {
            run(Command::new("cp").arg("--sparse=always").arg(&from).arg(&to))?;
        }
    }
    Ok(())
}

/// How a round ends.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum End {
    Unmount,
    Kill,
    /// A kill while the size changes.
    KillResizing,
}

/// Kills the daemon after so many milliseconds.
fn kill(shared: &Shared, mounted: Mounted, after: u64) -> Result<()> {
    shared.pause(after);
    mounted.kill(|| shared.over.store(true, Ordering::SeqCst))
}

/// Tries to make the volume in `dir` as large as that; whether it is. An error after the end is none.
fn resize(shared: &Shared, dir: &Path, size: u64) -> Result<bool> {
    match smaller::resize(dir, size) {
        Ok(done) => Ok(done.is_some()),
        Err(_) if shared.over() => Ok(false),
        Err(e) => Err(e),
    }
}

impl Life<'_> {
    /// A new volume, and mounted.
    fn first(&mut self, kind: &Kind) -> Result<Mounted> {
        let (b, s) = (kind.block_size.to_string(), kind.segment.to_string());
        mkfs(self.silt, &self.image, &format!("{}M", kind.mebibytes), &["-b", &b, "-B", &s])?;
        let mounted = Mounted::new(self.silt, &self.image, &self.dir, &[])?;
        let writer = |n| Writer::new(&self.dir.join(format!("w{n}")), mix(self.seed) ^ n);
        self.writers = (0..self.number).map(writer).collect();
        for writer in &mut self.writers {
            writer.filling.make_dir()?;
            writer.filling.sync()?;
        }
        Ok(mounted)
    }

    /// Takes up what an earlier sitting left, if there was one; how its last round ended.
    fn earlier(&mut self) -> Result<Option<End>> {
        let Some(kept) = &self.kept else { return Ok(None) };
        let Some(said) = kept.load(&self.image, self.seed, self.number)? else { return Ok(None) };
        (self.writers, self.tally, self.rounds) = (said.writers, said.tally, said.rounds);
        self.sittings = said.sittings + 1;
        // Not what was chosen before.
        let seed = mix(self.seed ^ mix(self.rounds) ^ self.sittings.rotate_left(32));
        self.rng = Rng::new(seed);
        for (n, writer) in (1..).zip(&mut self.writers) {
            writer.go_on(mix(seed ^ n));
        }
        println!(
            "volume {}: sitting {}, after {} rounds and {} s",
            self.seed,
            self.sittings + 1,
            self.rounds,
            self.tally.worked.as_secs()
        );
        Ok(Some(said.end))
    }

    /// What happened, with what the writers met.
    fn told(&self) -> Tally {
        let mut told = self.tally;
        for writer in &self.writers {
            told.written += writer.filling.written;
            told.full += writer.full;
            told.longest = told.longest.max(writer.longest);
        }
        told
    }

    /// From a mount to the next one.
    fn round(&mut self, mounted: Mounted) -> Result<Mounted> {
        let shared = Shared {
            begun: Instant::now(),
            over: AtomicBool::new(false),
            held: AtomicBool::new(false),
            ease: AtomicU64::new(0),
            eased: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            segment: self.segment,
        };
        let end = match self.rng.below(4) {
            0 => End::Unmount,
            1 => End::Kill,
            _ => End::KillResizing,
        };
        let long = Duration::from_millis(3000 + self.rng.below(8000));
        let mut writers = std::mem::take(&mut self.writers);
        writers.iter_mut().for_each(|w| w.eased = 0);
        let ended = std::thread::scope(|scope| {
            let threads: Vec<_> = writers.iter_mut().map(|w| scope.spawn(|| w.work(&shared))).collect();
            // The mount goes with an error: writers must not take that for one of theirs.
            let led = self.lead(&shared, long).inspect_err(|_| shared.over.store(true, Ordering::SeqCst));
            let ended = led.and_then(|()| self.end(&shared, mounted, end));
            shared.over.store(true, Ordering::SeqCst);
            let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            for end in ends {
                end.map_err(|_| anyhow!("a writer panicked"))??;
            }
            ended
        });
        self.writers = writers;
        let mounted = ended.with_context(|| format!("to be ended by {end:?}"))?;
        // It may have come to nothing.
        let end = if mounted.is_some() { End::Unmount } else { end };
        self.leave(mounted, end).with_context(|| format!("to be left after {end:?}"))?;
        self.again(end).with_context(|| format!("after it was ended by {end:?}"))
    }

    /// Snapshots come and go, and the size changes, until the time is over or something failed.
    fn lead(&mut self, shared: &Shared, long: Duration) -> Result<()> {
        // A kill may have left it smaller.
        resize(shared, &self.dir, self.whole)?;
        while shared.begun.elapsed() < long && shared.pause(self.rng.below(1500)) {
            match self.rng.below(3) {
                0 => self.snapshot(shared)?,
                1 => {
                    self.ease(shared);
                    let size = self.less();
                    if self.smaller(shared, size)? && shared.pause(self.rng.below(4000)) {
                        self.larger(shared)?;
                    }
                }
                // As full as it was made.
                _ => {
                    let size = self.less();
                    if self.smaller(shared, size)? {
                        self.larger(shared)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What ends a round; the mount, if it is there then.
    fn end(&mut self, shared: &Shared, mounted: Mounted, end: End) -> Result<Option<Mounted>> {
        if shared.over() {
            return Ok(Some(mounted));
        }
        match end {
            End::Unmount => return Ok(Some(mounted)),
            End::Kill => kill(shared, mounted, 0)?,
            End::KillResizing => {
                self.ease(shared);
                let (after, size, dir) = (self.rng.below(400), self.less(), self.dir.clone());
                std::thread::scope(|scope| {
                    let resized = scope.spawn(|| resize(shared, &dir, size));
                    let killed = kill(shared, mounted, after);
                    let resized = resized.join().map_err(|_| anyhow!("a thread panicked"))?;
                    resized.and(killed)
                })?;
            }
        }
        self.tally.kills += 1;
        Ok(None)
    }

    /// Looks at what is mounted and unmounts it, and keeps what is there then.
    fn leave(&mut self, mounted: Option<Mounted>, end: End) -> Result<()> {
        if let Some(mounted) = mounted {
            self.compare()?;
            mounted.unmount()?;
            self.tally.unmounted += 1;
        }
        wait_free(&self.image)?;
        let before = self.dir.with_file_name("before.img");
        run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(&before))?;
        if let Some(kept) = &self.kept {
            let said = Said {
                seed: self.seed,
                end,
                rounds: self.rounds + 1,
                sittings: self.sittings,
                writers: std::mem::take(&mut self.writers),
                tally: self.tally,
            };
            kept.save(&self.image, &said)?;
            self.writers = said.writers;
        }
        Ok(())
    }

    /// Mounts what was left, and looks at it.
    fn again(&mut self, end: End) -> Result<Mounted> {
        if end == End::KillResizing {
            // The two super blocks cannot be written at once, and may tell two sizes until the next mount.
            Mounted::new(self.silt, &self.image, &self.dir, &[])?.unmount()?;
        }
        judge(&self.image)?;
        let mounted = Mounted::new(self.silt, &self.image, &self.dir, &[])?;
        if end == End::Unmount {
            self.compare().context("mounted again")?;
        } else {
            for writer in &mut self.writers {
                writer.filling.after_crash()?.map_err(|e| anyhow!(e))?;
            }
        }
        Ok(mounted)
    }

    fn compare(&self) -> Result<()> {
        self.writers.iter().try_for_each(|w| w.filling.compare()?.map_err(|e| anyhow!(e)))
    }

    /// Has everybody remove half of what they have.
    fn ease(&self, shared: &Shared) {
        shared.eased.store(0, Ordering::SeqCst);
        shared.ease.fetch_add(1, Ordering::SeqCst);
        let since = Instant::now();
        while shared.eased.load(Ordering::SeqCst) < self.number
            && since.elapsed() < PATIENCE
            && shared.pause(10)
        {}
    }

    /// A size that may be large enough.
    fn less(&mut self) -> u64 {
        self.whole / 16 * (9 + self.rng.below(7)) / 4096 * 4096
    }

    fn smaller(&mut self, shared: &Shared, size: u64) -> Result<bool> {
        shared.held.store(true, Ordering::SeqCst);

        let done = resize(shared, &self.dir, size);
        shared.held.store(false, Ordering::SeqCst);
        let done = done?;
        if done {
            self.tally.shrunk += 1;
        } else {
            self.tally.refused += 1;
        }
        Ok(done)
    }

    fn larger(&self, shared: &Shared) -> Result<()> {
        match smaller::resize_or_why(&self.dir, self.whole) {
            Ok(Err(why)) if !shared.over() => bail!("it was not made larger: {why}"),
            Err(e) if !shared.over() => Err(e),
            _ => Ok(()),
        }
    }

    /// A snapshot is made, and is none any more a little later.
    fn snapshot(&mut self, shared: &Shared) -> Result<()> {
        shared.held.store(true, Ordering::SeqCst);
        let dir = self.dir.to_string_lossy().into_owned();

        let made = self.silt(&["mkcp", "-s", "-p", &dir])?;
        if let Some(number) = made {
            let number = number.trim();
            shared.pause(self.rng.below(2000));
            // On a full volume, too.
            if self.silt(&["chcp", "cp", &dir, number])?.is_none() {
                bail!("no space for snapshot {number} to be none any more");
            }
            self.tally.snapshots += 1;
        }
        shared.held.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Runs a command; `None` where it found no space.
    fn silt(&self, arguments: &[&str]) -> Result<Option<String>> {
        let said = output(Command::new(self.silt).args(arguments))?;
        match said.status.code() {
            Some(0) => Ok(Some(String::from_utf8_lossy(&said.stdout).into_owned())),
            Some(NO_SPACE) => Ok(None),
            _ => bail!(
                "silt {} ended with {}: {}",
                arguments.join(" "),
                said.status,
                String::from_utf8_lossy(&said.stderr)
            ),
        }
    }
}
