//! A volume with many files and many checkpoints: how long one waits for a mount and for a listing, and what memory
//! the daemon takes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::bed::{Bed, drop_caches};
use super::checkpoints::{list, make};
use super::{Dimension, Lab, Memory, median, timed};
use crate::process::{go_on, run};

const LINUX: &str = "/usr/src/linux-source-6.1.tar.xz";
const PER_DIRECTORY: u64 = 1_000;
const ROUNDS: u64 = 3;

/// Looks at every file below a directory; how many there are.
fn stat_all(dir: &Path) -> Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            go_on()?;
            files += stat_all(&entry.path())?;
        } else {
            files += 1;
        }
    }
    Ok(files)
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let buffer = vec![5; 1 << 20];
    (0..bytes >> 20).try_for_each(|_| file.write_all(&buffer))?;
    Ok(file.sync_all()?)
}

fn read(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

fn lscp(bed: &Bed<'_>, json: bool) -> Command {
    let mut command = bed.silt("lscp");
    command.args(json.then_some("--json"));
    command
}

pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let (files, checkpoints, stream) =
        if lab.quick { (20_000, 1_000, 512 << 20) } else { (1_000_000, 50_000, 3 << 30) };
    let mut bed = Bed::new(lab.tools, lab.scratch, 64 << 30)?;
    bed.mount()?;
    bed.watch()?;
    let seconds = timed(|| {
        for n in 0..files {
            if n % PER_DIRECTORY == 0 {
                go_on()?;
                fs::create_dir(bed.path(format!("d{}", n / PER_DIRECTORY)))?;
            }
            fs::write(bed.path(format!("d{}/file{n}", n / PER_DIRECTORY)), [b'x'; 4096])?;
        }
        bed.sync()
    })?;
    let mut add = |operation: &str, seconds: f64| lab.add(Dimension::Whole, files, operation, seconds);
    add("create a file of 4 KiB, synced at the end", seconds / files as f64);
    let mut memory = Vec::new();
    let mut remember = |bed: &Bed<'_>, during: String| -> Result<()> {
        let peak = bed.peak()?;
        eprintln!("memory: {during}: {} MiB", peak >> 20);
        memory.push(Memory { during, peak });
        bed.watch()
    };
    remember(&bed, format!("{files} files created"))?;
    let mut file = File::create(bed.path("grows"))?;
    let seconds = timed(|| make(&mut file, &bed, checkpoints))?;
    drop(file);
    add("write a byte and fsync: a checkpoint", seconds / checkpoints as f64);
    remember(&bed, format!("{checkpoints} checkpoints made"))?;

    add("mount, host's caches dropped", median(5, |_| bed.mount_cold())?);
    add("mount after kill -9, host's caches dropped", median(5, |_| bed.mount_killed())?);
    add(
        "mount after that",
        median(5, |_| {
            bed.unmount()?;
            bed.mount()
        })?,
    );
    for (what, json) in [("lscp", false), ("lscp --json", true)] {
        let seconds = median(3, |_| list(&mut lscp(&bed, json), bed.dir(), checkpoints))?;
        add(&format!("{what}, mounted"), seconds);
        bed.unmount()?;
        let seconds = median(3, |_| list(&mut lscp(&bed, json), bed.image(), checkpoints))?;
        add(&format!("{what}, not mounted"), seconds);
        let seconds = median(3, |_| {
            drop_caches()?;
            list(&mut lscp(&bed, json), bed.image(), checkpoints)
        })?;
        add(&format!("{what}, not mounted, host's caches dropped"), seconds);
        bed.mount()?;
    }
    bed.mount_cold()?;
    bed.watch()?;
    let mut seen = 0;
    let seconds = timed(|| {
        seen = stat_all(bed.dir())?;
        Ok(())
    })?;
    ensure!(seen == files + 1, "{seen} files instead of {files}");
    add("readdir and stat after a mount, a file", seconds / files as f64);
    remember(&bed, format!("{files} inodes looked up"))?;
    add("umount after that", bed.unmount()?);
    bed.mount_cold()?;
    stat_all(bed.dir())?;
    bed.watch()?;
    let large = bed.path("large");
    // Again and again: what is kept by mistake adds up.
    for _ in 0..ROUNDS {
        write(&large, stream)?;
    }
    let what = format!("a file of {} MiB written {ROUNDS} times, all inodes still known", stream >> 20);
    remember(&bed, what)?;
    drop_caches()?;
    bed.watch()?;
    read(&large)?;
    remember(&bed, format!("a file of {} MiB read", stream >> 20))?;
    let seconds = timed(|| {
        if lab.quick {
            return Ok(());
        }
        run(Command::new("tar").arg("xf").arg(LINUX).arg("-C").arg(bed.dir()))?;
        bed.sync()
    })?;
    if !lab.quick {
        remember(&bed, format!("{LINUX} unpacked in {seconds:.0} s"))?;
    }
    lab.memory.extend(memory);
    Ok(())
}
