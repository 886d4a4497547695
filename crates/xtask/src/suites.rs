//! Suites of others, through a real mount: `pjdfstest` and `fsx`, both from crates.io.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use crate::mounted::{Mounted, judge, mkfs, run};
use crate::scratch::{self, Scratch};
use crate::uring;

/// The versions that are run.
const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
const FSX: (&str, &str) = ("fsx", "0.3.2");
/// Tests of pjdfstest that pass; fewer means that some were left out.
const PJDFSTEST_PASSED: u64 = 382;

/// Volumes with such blocks are tried.
const BLOCK_SIZES: [&str; 2] = ["4096", "1024"];

/// Where the programs are.
pub struct Programs {
    pjdfstest: PathBuf,
    fsx: PathBuf,
}

impl Programs {
    /// Installs them below `rig/cargo` of the project, once for each version.
    pub fn get(root: &Path) -> Result<Self> {
        Ok(Self { pjdfstest: program(root, PJDFSTEST)?, fsx: program(root, FSX)? })
    }
}

fn program(root: &Path, (name, version): (&str, &str)) -> Result<PathBuf> {
    let dir = root.join("rig/cargo").join(format!("{name}-{version}"));
    let path = dir.join("bin").join(name);
    if !path.exists() {
        let mut install = Command::new("cargo");
        install
            // The file system below does the work: hardly optimised is enough, and soon built.
            .args(["install", "--debug", "--quiet", "--locked", "--root"])
            .arg(&dir)
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .args(["--version", version, name]);
        let status = scratch::status(&mut install)?;
        if !status.success() {
            bail!("cargo install {name} ended with {status}");
        }
    }
    Ok(path)
}

/// What a suite runs on.
#[derive(Clone, Copy)]
pub struct On<'a> {
    /// The program that mounts.
    pub silt: &'a Path,
    /// The suites.
    pub programs: &'a Programs,
    /// Bytes a block of the volume, as `silt mkfs` takes it.
    pub block_size: &'a str,
    /// Requests come through io_uring.
    pub rings: bool,
}

impl<'a> On<'a> {
    /// All that a suite runs on; `rings`: io_uring can be had.
    pub fn all(silt: &'a Path, programs: &'a Programs, rings: bool) -> Vec<Self> {
        let on = |block_size, rings| Self { silt, programs, block_size, rings };
        let through_the_device = BLOCK_SIZES.map(|block_size| on(block_size, false));
        through_the_device.into_iter().chain(rings.then(|| on(BLOCK_SIZES[0], true))).collect()
    }

    /// A new volume, mounted.
    fn volume(&self, scratch: &Scratch, size: &str) -> Result<(PathBuf, Mounted)> {
        let image = scratch.join("v.img");
        mkfs(self.silt, &image, size, &["-b", self.block_size])?;
        let options: &[&str] = if self.rings { &uring::OPTIONS } else { &[] };
        let mounted = Mounted::new(self.silt, &image, &scratch.join("mnt"), options)?;
        if self.rings {
            mounted.wants_rings()?;
        }
        Ok((image, mounted))
    }

    /// In words.
    pub fn name(&self) -> String {
        let rings = if self.rings { ", through io_uring" } else { "" };
        format!("blocks of {}{rings}", self.block_size)
    }
}

/// Runs pjdfstest in the new directory `inside`; its settings go to `scratch`.
pub(crate) fn pjdfstest_command(programs: &Programs, inside: &Path, scratch: &Path) -> Result<Command> {
    std::fs::create_dir(inside)?;
    std::fs::set_permissions(inside, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let settings = scratch.join("pjdfstest.toml");
    std::fs::write(
        &settings,
        "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n",
    )?;
    let mut command = Command::new(&programs.pjdfstest);
    command.arg("-c").arg(&settings).arg("-p").arg(inside);
    Ok(command)
}

/// Runs all of pjdfstest.
pub fn pjdfstest(on: On<'_>) -> Result<()> {
    let scratch = Scratch::new("suite")?;
    let (image, mounted) = on.volume(&scratch, "512M")?;
    let inside = mounted.dir().join("pjdfstest");
    let output = scratch::output(&mut pjdfstest_command(on.programs, &inside, scratch.path())?)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().rev().find(|l| l.starts_with("Summary:")).unwrap_or("no summary");
    println!("pjdfstest, {}: {summary}", on.name());
    if !output.status.success() || count(summary, "failed") != Some(0) {
        let failed: Vec<_> = text.lines().filter(|l| l.contains("FAILED") || l.contains("failed")).collect();
        bail!("pjdfstest failed:\n{}", failed.join("\n"));
    }
    if count(summary, "passed") < Some(PJDFSTEST_PASSED) {
        bail!("fewer tests of pjdfstest passed than the {PJDFSTEST_PASSED} that should");
    }
    mounted.unmount()?;
    judge(&image)
}

/// The number before a word of pjdfstest's summary.
fn count(summary: &str, word: &str) -> Option<u64> {
    let words: Vec<&str> = summary.split([' ', ',']).filter(|w| !w.is_empty()).collect();
    words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok())
}

/// A run of fsx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FsxRun {
    pub ops: u64,
    pub seed: u64,
    /// Whether each write through a mapping is followed by msync. Where not, the kernel decides when pages are
    /// written.
    pub msync: bool,
}

/// Runs fsx on `file`; its settings, and what it leaves when it fails, go to `scratch`.
pub(crate) fn fsx_command(programs: &Programs, file: &Path, scratch: &Path, run: &FsxRun) -> Result<Command> {
    let settings = scratch.join("fsx.toml");
    std::fs::write(
        &settings,
        format!(
            "flen = 262144\nnomsyncafterwrite = {}\n[weights]\nclose_open = 1\ninvalidate = 1\nmapread = 10\n\
             mapwrite = 10\npunch_hole = 5\ntruncate = 10\nfsync = 0.05\nfdatasync = 0.05\ncopy_file_range = 2\n\
             sendfile = 1\nposix_fallocate = 1\n",
            !run.msync
        ),
    )?;
    let mut command = Command::new(&programs.fsx);
    command.arg("-f").arg(&settings).arg("-P").arg(scratch);
    command.args(["-N", &run.ops.to_string(), "-S", &run.seed.to_string()]).arg(file);
    Ok(command)
}

/// Most operations of one process. fsx never unmaps what it read through a mapping: the more of these there are, the
/// longer each cut of the file takes, and after 65,530 of them there can be no more.
const FSX_LEG: u64 = 10_000;
/// Processes at once: each waits for the disk a good part of its time.
const FSX_AT_ONCE: usize = 3;

/// Runs fsx for `ops` operations, in legs of at most [`FSX_LEG`]; each has a file, a volume and a seed of its own.
pub fn fsx(on: On<'_>, ops: u64) -> Result<()> {
    let started = Instant::now();
    let legs = Mutex::new(0..ops.div_ceil(FSX_LEG));
    let next = || legs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<()> {
        while let Some(leg) = next() {
            let ops = FSX_LEG.min(ops - leg * FSX_LEG);
            let seed = 42 + leg;
            let run = FsxRun { ops, seed, msync: leg.is_multiple_of(2) };
            fsx_leg(on, &run).with_context(|| format!("fsx, seed {seed}")).inspect_err(|_| {
                // The others need not go on.
                *legs.lock().unwrap_or_else(PoisonError::into_inner) = 0..0;
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FSX_AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        ends.into_iter().try_for_each(|end| end.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })?;
    let legs = ops.div_ceil(FSX_LEG);
    let seconds = started.elapsed().as_secs_f64();
    println!("fsx, {}: {ops} operations by {legs} processes in {seconds:.0} s", on.name());
    Ok(())
}

fn fsx_leg(on: On<'_>, leg: &FsxRun) -> Result<()> {
    let scratch = Scratch::new("suite")?;
    // A volume keeps all that was ever written.
    let (image, mounted) = on.volume(&scratch, "16G")?;
    let output = run(&mut fsx_command(on.programs, &mounted.dir().join("file"), scratch.path(), leg)?)?;
    if !String::from_utf8_lossy(&output.stdout).contains("All operations completed") {
        bail!("fsx does not say that it came to its end");
    }
    mounted.unmount()?;
    judge(&image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let summary = "Summary: 0 failed, 16 skipped, 382 passed, 0 expected failures, 398 total";
        assert_eq!((count(summary, "failed"), count(summary, "passed")), (Some(0), Some(382)));
        assert_eq!(count("no summary", "failed"), None);
    }
}
