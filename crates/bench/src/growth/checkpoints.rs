//! The number of checkpoints.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::bed::{Bed, drop_caches};
use super::{Dimension, Lab, median, timed};
use crate::process::{go_on, run};

/// The quickest way to a checkpoint: a file that grew is synced. Returns how many there are now.
pub fn make(file: &mut File, bed: &Bed<'_>, count: u64) -> Result<()> {
    let before = newest(bed.dir(), bed)?;
    for n in 0..count {
        if n % 1000 == 0 {
            go_on()?;
        }
        file.write_all(b"x")?;
        file.sync_all()?;
    }
    let made = newest(bed.dir(), bed)? - before;
    ensure!((count..count + count / 10 + 10).contains(&made), "{made} checkpoints instead of {count}");
    Ok(())
}

/// The number of the newest checkpoint.
fn newest(volume: &Path, bed: &Bed<'_>) -> Result<u64> {
    let output = run(bed.silt("lscp").args(["-r", "-n", "1", "--json"]).arg(volume))?;
    let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(list.get(0).and_then(|c| c.get("number")).and_then(serde_json::Value::as_u64).unwrap_or(0))
}

/// Seconds of a listing; few of `about` checkpoints may be missing.
pub fn list(command: &mut Command, volume: &Path, about: u64) -> Result<f64> {
    let mut lines = 0;
    let seconds = timed(|| {
        let output = run(command.arg(volume))?;
        lines = output.stdout.split(|byte| *byte == b'\n').count() as u64;
        Ok(())
    })?;
    ensure!(lines >= about - about / 10, "{lines} lines instead of {about}");
    Ok(seconds)
}

/// The time of one of the first checkpoints.
fn old_time(bed: &Bed<'_>) -> Result<String> {
    let output = run(bed.silt("lscp").args(["-i", "10", "-n", "1", "--json"]).arg(bed.dir()))?;
    let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let time = list.get(0).and_then(|c| c.get("time")).and_then(serde_json::Value::as_str);
    Ok(time.context("no time of a checkpoint")?.to_owned())
}

/// Makes snapshots of many.
fn snapshots(bed: &Bed<'_>, numbers: impl Iterator<Item = u64>) -> Result<()> {
    let numbers: Vec<String> = numbers.map(|n| n.to_string()).collect();
    // No longer a command than the kernel takes.
    numbers
        .chunks(5_000)
        .try_for_each(|part| run(bed.silt("chcp").arg("ss").arg(bed.dir()).args(part)).map(|_| ()))
}

pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let mut bed = Bed::new(lab.tools, lab.scratch, 64 << 30)?;
    let past = lab.scratch.join("past");
    std::fs::create_dir_all(&past)?;
    bed.mount()?;
    let mut there = 1;
    for &size in lab.sizes(&[100, 1_000, 10_000, 100_000], &[100, 1_000, 3_000]) {
        let mut add =
            |operation: &str, seconds: f64| lab.add(Dimension::Checkpoints, size, operation, seconds);
        let mut file = File::options().append(true).create(true).open(bed.path("file"))?;
        let goes = (size / 2).min(1_000);
        make(&mut file, &bed, size - goes - there)?;
        add("write a byte and fsync: a checkpoint", timed(|| make(&mut file, &bed, goes))? / goes as f64);
        drop(file);
        there = size;
        let timed_run = |command: &mut Command| timed(|| run(command));
        let n = |n: u64| (size / 2 + n).to_string();

        add("mkcp", median(5, |_| timed_run(bed.silt("mkcp").arg(bed.dir())))?);
        add("lscp of all, a checkpoint", list(&mut bed.silt("lscp"), bed.dir(), size)? / size as f64);
        let seconds = median(5, |_| timed_run(bed.silt("lscp").args(["-r", "-n", "20"]).arg(bed.dir())))?;
        add("lscp of the newest 20", seconds);
        let seconds =
            median(5, |k| timed_run(bed.silt("lscp").args(["-n", "20", "-i", &n(k)]).arg(bed.dir())))?;
        add("lscp of 20 in the middle", seconds);
        let seconds = median(5, |k| timed_run(bed.silt("chcp").arg("ss").arg(bed.dir()).arg(n(2 * k))))?;
        add("chcp ss of one in the middle", seconds);
        let seconds = median(5, |k| timed_run(bed.silt("rmcp").arg(bed.dir()).arg(n(2 * k + 1))))?;
        add("rmcp of one in the middle", seconds);
        let seconds = median(5, |k| {
            let option = format!("ro,cp={}", n(2 * k));
            let seconds = timed_run(bed.silt("mount").args(["-o", &option]).arg(bed.dir()).arg(&past))?;
            run(bed.silt("umount").arg(&past))?;
            Ok(seconds)
        })?;
        add("mount of a snapshot beside the live tree", seconds);
        let time = old_time(&bed)?;
        let seconds = median(5, |_| {
            let option = format!("ro,at={time}");
            let seconds = timed_run(bed.silt("mount").args(["-o", &option]).arg(bed.dir()).arg(&past))?;
            run(bed.silt("umount").arg(&past))?;
            Ok(seconds)
        })?;
        add("mount of an old moment by its time, beside the live tree", seconds);
        // A quarter becomes snapshots, all newer than those that are made one by one.
        snapshots(&bed, (size / 2..size).step_by(2))?;
        let seconds =
            median(5, |k| timed_run(bed.silt("chcp").arg("ss").arg(bed.dir()).arg((10 + k).to_string())))?;
        add("chcp ss of an old one, with a quarter snapshots", seconds);
        let seconds =
            median(5, |k| timed_run(bed.silt("chcp").arg("cp").arg(bed.dir()).arg((10 + k).to_string())))?;
        add("chcp cp of that", seconds);
        bed.unmount()?;
        drop_caches()?;
        let seconds = list(&mut bed.silt("lscp"), bed.image(), size)?;
        add("lscp of all, not mounted, host's caches dropped, a checkpoint", seconds / size as f64);
        let seconds = median(3, |_| {
            drop_caches()?;
            let option = format!("ro,at={time}");
            let seconds = timed_run(bed.silt("mount").args(["-o", &option]).arg(bed.image()).arg(&past))?;
            run(bed.silt("umount").arg(&past))?;
            Ok(seconds)
        })?;
        add("mount of an old moment by its time, host's caches dropped", seconds);
        let seconds = median(3, |_| {
            drop_caches()?;
            timed_run(bed.silt("lscp").args(["-r", "-n", "20"]).arg(bed.image()))
        })?;
        add("lscp of the newest 20, not mounted, host's caches dropped", seconds);
        add("mount, host's caches dropped", median(5, |_| bed.mount_cold())?);
        add("mount after kill -9, host's caches dropped", median(3, |_| bed.mount_killed())?);
    }
    Ok(())
}
