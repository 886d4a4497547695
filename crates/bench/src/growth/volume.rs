//! The size of the volume.

use std::fs::{self, File};

use anyhow::Result;

use super::bed::{Bed, drop_caches};
use super::{Dimension, Lab, median, timed};

const FILES: u64 = 1_000;

/// 16 TiB, or where the host's file system has no files that large the largest whole number of segments below it.
fn largest(lab: &mut Lab<'_>) -> Result<u64> {
    let path = lab.scratch.join("largest");
    let file = File::create(&path)?;
    let wanted = 16 << 40;
    let size = if file.set_len(wanted).is_ok() { wanted } else { wanted - (8 << 20) };
    drop(file);
    fs::remove_file(&path)?;
    if size < wanted {
        lab.notes.push(format!("the largest volume has {size} bytes: 16 TiB are too much for a file here"));
    }
    Ok(size)
}

pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let largest = largest(lab)?;
    for &size in lab.sizes(&[1 << 30, 16 << 30, 256 << 30, 4 << 40, largest], &[1 << 30, largest]) {
        let mut bed = Bed::new(lab.tools, lab.scratch, size)?;
        let mut add = |operation: &str, seconds: f64| lab.add(Dimension::Volume, size, operation, seconds);
        let seconds = median(3, |_| {
            drop_caches()?;
            timed(|| crate::process::run(bed.silt("mkfs").args(["-q", "-f"]).arg(bed.image())))
        })?;
        add("mkfs", seconds);
        bed.mount()?;
        fs::create_dir(bed.path("d"))?;
        let seconds = timed(|| {
            (0..FILES).try_for_each(|n| fs::write(bed.path(format!("d/{n}")), [9; 4096]))?;
            bed.sync()
        })?;
        add("create a file of 4 KiB, synced at the end", seconds / FILES as f64);
        let seconds = timed(|| {
            (0..FILES).try_for_each(|_| {
                rustix::fs::statvfs(bed.dir())?;
                Ok(())
            })
        })?;
        add("statfs", seconds / FILES as f64);
        let seconds = median(5, |_| bed.mount_cold())?;
        add("mount, host's caches dropped", seconds);
        let seconds = median(5, |n| {
            fs::write(bed.path("d/more"), n.to_string())?;
            bed.sync()?;
            bed.mount_killed()
        })?;
        add("mount after kill -9, host's caches dropped", seconds);
    }
    Ok(())
}
