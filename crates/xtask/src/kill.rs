//! Killing the daemon at random moments, through a real mount: what was promised must be there.
//!
//! Two witnesses work beside a suite or the unpacking of files. After each kill the volume is judged as it was
//! left, mounted again, and compared with what the witnesses were promised.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use silt_model::rng::Rng;

use crate::mounted::{Mounted, judge, mkfs, wait_free};
use crate::scratch::{Group, Scratch};
use crate::suites::{self, Programs};
use crate::tree;
use crate::uring;
use crate::witness::Witness;

/// What goes on beside the witnesses.
#[derive(Clone, Copy, Debug)]
enum Work {
    Nothing,
    Pjdfstest,
    Fsx,
    Unpacking,
}

const WORKS: [Work; 4] = [Work::Pjdfstest, Work::Fsx, Work::Unpacking, Work::Nothing];
/// Kills that a volume goes through: each kind of work twice.
const LIFE: u64 = 8;
/// Files that are unpacked and copied again and again.
const FILES: usize = 1500;

/// What fsx says when a file is not as it should be; all else comes of the kill.
const FSX_FOUND: [&str; 3] = ["miscompare", "Size error", "non-zero data past EoF"];

/// What the works need, made once.
struct Stage<'a> {
    silt: &'a Path,
    programs: &'a Programs,
    scratch: Scratch,
    tar: PathBuf,
}

/// Kills the daemon so many times. Needs root and /dev/fuse.
pub fn kill(silt: &Path, programs: &Programs, rounds: u64) -> Result<()> {
    let scratch = Scratch::new("kill")?;
    let source = scratch.join("source");
    tree::some_files(&source, FILES)?;
    let tar = scratch.join("files.tar");
    tree::pack(&source, &tar)?;
    let stage = Stage { silt, programs, scratch, tar };
    let (mut done, mut promises) = (0, 0);
    while done < rounds {
        let life = LIFE.min(rounds - done);
        promises += one_volume(&stage, done, life)?;
        done += life;
    }
    println!(
        "the daemon was killed {rounds} times; every file was as the last of {promises} promises said, or newer"
    );
    Ok(())
}

/// The life of one volume: so many kills, the first of them number `from`. How much was promised.
fn one_volume(stage: &Stage<'_>, from: u64, kills: u64) -> Result<u64> {
    let volume = Scratch::new("kill-volume")?;
    let (image, dir) = (volume.join("v.img"), volume.join("mnt"));
    let block_size = if (from / LIFE).is_multiple_of(2) { "4096" } else { "1024" };
    mkfs(stage.silt, &image, "32G", &["-b", block_size])?;
    let rings = (from / LIFE).div_ceil(2) % 2 == 1;
    let options: &[&str] = if rings { &uring::OPTIONS } else { &[] };
    let mut witnesses =
        ["one", "two"].map(|name| Witness::new(&dir.join(name), from * 2 + name.len() as u64));
    for number in from..from + kills {
        // Each volume begins with another work.
        let work = WORKS[usize::try_from((number + number / LIFE) % 4).unwrap_or(0)];
        let what = || format!("kill {number}, blocks of {block_size}, beside {work:?}, io_uring {rings}");
        let mounted = Mounted::new(stage.silt, &image, &dir, options).with_context(what)?;
        witnesses.iter_mut().try_for_each(Witness::check).with_context(|| format!("before {}", what()))?;
        one_kill(stage, mounted, &mut witnesses, work, number).with_context(what)?;
        wait_free(&image)?;
        judge(&image).with_context(|| format!("after {}", what()))?;
    }
    let mounted = Mounted::new(stage.silt, &image, &dir, &[])?;
    witnesses.iter_mut().try_for_each(Witness::check).context("after the last kill")?;
    mounted.unmount()?;
    judge(&image).context("unmounted after all kills")?;
    // One kill may come before the first sync, but not all of them.
    match witnesses.iter().map(|w| w.promises).sum() {
        0 => bail!("kills {from} to {}: nothing was ever synced", from + kills - 1),
        promises => Ok(promises),
    }
}

fn one_kill(
    stage: &Stage<'_>,
    mounted: Mounted,
    witnesses: &mut [Witness],
    work: Work,
    number: u64,
) -> Result<()> {
    let mut rng = Rng::new(number ^ 0x6b69_6c6c);
    let pause = match work {
        Work::Nothing => 30 + rng.below(300),
        _ => 200 + rng.below(1000),
    };
    let log = stage.scratch.join("work.log");
    let mut group = start(stage, mounted.dir(), work, number, &log)?;
    let killed = AtomicBool::new(false);
    let told = || std::fs::read_to_string(&log).unwrap_or_else(|e| format!("its output cannot be read: {e}"));
    std::thread::scope(|scope| {
        let threads: Vec<_> = witnesses.iter_mut().map(|w| scope.spawn(|| w.work(&killed))).collect();
        std::thread::sleep(Duration::from_millis(pause));
        let ended = group.as_mut().map_or(Ok(None), Group::try_wait);
        // The witnesses are to stop whatever comes.
        let dead = mounted.kill(|| killed.store(true, Ordering::SeqCst));
        killed.store(true, Ordering::SeqCst);
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        dead?;
        for end in ends {
            end.map_err(|_| anyhow!("a witness panicked"))??;
        }
        match ended? {
            Some(status) if !status.success() => {
                bail!("{work:?} ended before the kill with {status}:\n{}", told())
            }
            _ => Ok(()),
        }
    })?;
    drop(group);
    let told = told();
    if matches!(work, Work::Fsx)
        && let Some(found) = FSX_FOUND.iter().find(|found| told.contains(*found))
    {
        bail!("fsx found a {found}:\n{told}");
    }
    Ok(())
}

fn start(stage: &Stage<'_>, dir: &Path, work: Work, number: u64, log: &Path) -> Result<Option<Group>> {
    let place = dir.join(format!("work{number}"));
    let mut command = match work {
        Work::Nothing => {
            std::fs::write(log, "")?;
            return Ok(None);
        }
        Work::Pjdfstest => suites::pjdfstest_command(stage.programs, &place, stage.scratch.path())?,
        Work::Fsx => {
            let run = suites::FsxRun { ops: u64::MAX, seed: number, msync: number.is_multiple_of(2) };
            suites::fsx_command(stage.programs, &place, stage.scratch.path(), &run)?
        }
        Work::Unpacking => {
            let mut command = Command::new("sh");
            let script = "n=0; while mkdir -p \"$1/$n\" && tar -xpf \"$2\" -C \"$1/$n\" && cp -a \"$1/$n\" \"$1/c$n\"; \
                          do n=$((n+1)); done; exit 1";
            command.args(["-c", script, "sh"]).arg(&place).arg(&stage.tar);
            command
        }
    };
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    Group::spawn(&mut command).map(Some)
}
