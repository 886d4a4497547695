//! Killing the daemon at random moments, through a real mount: what fsync returned for must be there.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use silt_model::rng::Rng;

use crate::suites::{judge, run};

const FILES: u64 = 16;

/// Writes whole files, syncing each, until the mount is gone; tells what was acknowledged.
fn work(dir: &Path, seed: u64, round: u64, stop: &AtomicBool) -> BTreeMap<u64, u64> {
    let mut rng = Rng::new(seed);
    let mut acknowledged = BTreeMap::new();
    let mut version = round * 1_000_000;
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        let file = rng.below(FILES);
        let path = dir.join(format!("f{file}"));
        let overwrite = rng.percent(50);
        let content = format!("{version:020}\n").repeat(1 + (file as usize) * 400);
        let done = (|| -> std::io::Result<()> {
            if overwrite && path.exists() {
                let f = std::fs::OpenOptions::new().write(true).open(&path)?;
                f.write_all_at(content.as_bytes(), 0)?;
                f.sync_data()
            } else {
                let new = dir.join("new");
                let mut f = std::fs::File::create(&new)?;
                f.write_all(content.as_bytes())?;
                f.sync_all()?;
                std::fs::rename(&new, &path)?;
                std::fs::File::open(dir)?.sync_all()
            }
        })();
        match done {
            Ok(()) => drop(acknowledged.insert(file, version)),
            Err(_) => break,
        }
    }
    acknowledged
}

/// Plays `rounds` rounds on one volume. Needs root and /dev/fuse.
pub fn kill(silt: &Path, rounds: u64) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("silt-kill-").tempdir()?;
    let (image, dir) = (scratch.path().join("v.img"), scratch.path().join("mnt"));
    std::fs::create_dir(&dir)?;
    run(Command::new(silt).args(["mkfs", "-q", "--size", "4G"]).arg(&image))?;
    let mut promised: BTreeMap<u64, u64> = BTreeMap::new();
    let mut rng = Rng::new(77);
    let mut syncs = 0;
    for round in 1..=rounds {
        run(Command::new(silt).arg("mount").arg(&image).arg(&dir))?;
        check(&dir, &promised).with_context(|| format!("after kill {}", round - 1))?;
        let stop = Arc::new(AtomicBool::new(false));
        let worker = {
            let (dir, stop) = (dir.clone(), stop.clone());
            std::thread::spawn(move || work(&dir, round, round, &stop))
        };
        std::thread::sleep(Duration::from_millis(30 + rng.below(300)));
        let status = run(Command::new(silt).args(["status", "--json"]).arg(&dir))?;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout)?;
        let pid = status.get("pid").and_then(serde_json::Value::as_i64).context("status tells no pid")?;
        run(Command::new("kill").args(["-9", &pid.to_string()]))?;
        stop.store(true, Ordering::Relaxed);
        let Ok(acknowledged) = worker.join() else { bail!("the worker ended badly") };
        syncs += acknowledged.len();
        promised.extend(acknowledged);
        run(Command::new("umount").arg("-l").arg(&dir))?;
    }
    run(Command::new(silt).arg("mount").arg(&image).arg(&dir))?;
    let checked = check(&dir, &promised);
    run(Command::new(silt).arg("umount").arg(&dir))?;
    checked?;
    judge(&image)?;
    println!("the daemon was killed {rounds} times; every file was as its last sync had promised, or newer");
    if syncs == 0 { bail!("nothing was ever synced") } else { Ok(()) }
}

/// Every file holds one version, and none older than promised.
fn check(dir: &Path, promised: &BTreeMap<u64, u64>) -> Result<()> {
    for (file, version) in promised {
        let text =
            std::fs::read_to_string(dir.join(format!("f{file}"))).with_context(|| format!("f{file}"))?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or("");
        let found: u64 = first.parse().with_context(|| format!("f{file} begins with {first:?}"))?;
        if found < *version {
            bail!("f{file} has version {found}, {version} was promised");
        }
        if let Some(other) = lines.find(|l| *l != first) {
            bail!("f{file} has {first} and {other} in it");
        }
    }
    Ok(())
}
