//! Files in one directory.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::bed::Bed;
use super::{Dimension, Lab, timed};
use crate::process::go_on;

/// How many of each operation are made, at most.
const GOES: u64 = 10_000;

/// Creates empty files.
fn create(bed: &Bed<'_>, from: u64, to: u64) -> Result<()> {
    for n in from..to {
        if n % 1000 == 0 {
            go_on()?;
        }
        File::create_new(path(bed, n))?;
    }
    bed.sync()
}

fn path(bed: &Bed<'_>, n: u64) -> PathBuf {
    bed.path(format!("d/file{n:07}"))
}

pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let mut bed = Bed::new(lab.tools, lab.scratch, 64 << 30)?;
    bed.mount()?;
    fs::create_dir(bed.path("d"))?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut there = 0;
    for &size in lab.sizes(&[1_000, 10_000, 100_000, 1_000_000], &[1_000, 10_000]) {
        let goes = GOES.min(size / 2);
        let mut add = |operation: &str, seconds: f64| lab.add(Dimension::Files, size, operation, seconds);
        create(&bed, there, size - goes)?;
        let seconds = timed(|| create(&bed, size - goes, size))?;
        add("create", seconds / goes as f64);
        there = size;

        bed.mount_cold()?;
        add("first look-up after a mount", timed(|| Ok(fs::symlink_metadata(path(&bed, size / 2))?))?);
        let chosen: Vec<u64> = (0..goes).map(|_| rng.random_range(0..size)).collect();
        let look_up = || {
            timed(|| {
                chosen.iter().try_for_each(|n| {
                    fs::symlink_metadata(path(&bed, *n))?;
                    Ok(())
                })
            })
        };
        add("look-up after a mount", look_up()? / goes as f64);
        // Entries and inodes of the kernel alone.
        fs::write("/proc/sys/vm/drop_caches", "2")?;
        add("look-up again", look_up()? / goes as f64);
        let seconds = timed(|| {
            (0..goes).try_for_each(|n| {
                ensure!(fs::symlink_metadata(bed.path(format!("d/none{n}"))).is_err(), "a name too many");
                Ok(())
            })
        })?;
        add("look-up of a name that is not there", seconds / goes as f64);
        let seconds = timed(|| {
            for n in &chosen {
                fs::remove_file(path(&bed, *n))?;
                File::create_new(path(&bed, *n))?;
            }
            bed.sync()
        })?;
        add("unlink and create", seconds / goes as f64);
        bed.mount_cold()?;
        let mut entries = 0;
        let seconds = timed(|| {
            for entry in fs::read_dir(bed.path("d"))? {
                entry?;
                entries += 1;
            }
            Ok(())
        })?;
        ensure!(entries == size, "{entries} entries instead of {size}");
        add("readdir after a mount, an entry", seconds / size as f64);
    }
    Ok(())
}
