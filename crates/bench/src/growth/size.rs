//! The size of a sparse file.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::bed::Bed;
use super::{Dimension, Lab, timed};

const BLOCK: u64 = 4096;
/// Blocks written into each file, at most as many as it has.
const BLOCKS: u64 = 4_000;
/// Blocks appended and synced one by one.
const APPENDS: u64 = 200;

pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let mut bed = Bed::new(lab.tools, lab.scratch, 64 << 30)?;
    bed.mount()?;
    let whole = [1 << 20, 10 << 20, 100 << 20, 1 << 30, 10 << 30, 100 << 30];
    for &size in lab.sizes(&whole, &[1 << 20, 100 << 20, 10 << 30]) {
        let mut rng = StdRng::seed_from_u64(size);
        let path = bed.path(format!("file{size}"));
        let mut add = |operation: &str, seconds: f64| lab.add(Dimension::Size, size, operation, seconds);
        let file = File::create_new(&path)?;
        file.set_len(size)?;
        bed.sync()?;
        let blocks = size / BLOCK;
        let goes = BLOCKS.min(blocks);
        let mut places: Vec<u64> = (0..goes).map(|_| rng.random_range(0..blocks) * BLOCK).collect();
        let distinct = places.iter().collect::<BTreeSet<_>>().len() as u64;
        let mut block = [7; BLOCK as usize];
        for operation in
            ["random 4 KiB into holes, synced at the end", "random 4 KiB over others, synced at the end"]
        {
            let seconds = timed(|| {
                places.iter().try_for_each(|at| file.write_all_at(&block, *at))?;
                bed.sync()
            })?;
            add(operation, seconds / goes as f64);
            places.shuffle(&mut rng);
        }
        drop(file);
        bed.mount_cold()?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        // Each its own request: no reading ahead.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        let seconds = timed(|| {
            places.iter().try_for_each(|at| {
                file.read_exact_at(&mut block, *at)?;
                ensure!(block == [7; BLOCK as usize], "wrong bytes at {at}");
                Ok(())
            })
        })?;
        add("random 4 KiB read after a mount", seconds / goes as f64);
        let seconds = timed(|| {
            (0..APPENDS).try_for_each(|n| {
                file.write_all_at(&block, size + n * BLOCK)?;
                Ok(file.sync_all()?)
            })
        })?;
        add("append 4 KiB and fsync", seconds / APPENDS as f64);
        let seconds = timed(|| {
            file.set_len(0)?;
            bed.sync()
        })?;
        add("truncate to nothing and sync, a block it had", seconds / (distinct + APPENDS) as f64);
    }
    Ok(())
}
