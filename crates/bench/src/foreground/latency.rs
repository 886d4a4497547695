//! How long operations take beside somebody who overwrites data at a steady rate.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{AtFlags, StatxFlags};

use super::{LIVE, Lab, Latency};
use crate::growth::{Bed, Did};
use crate::process::go_on;

const BLOCK: u64 = 4096;
/// Bytes that are overwritten at once.
const PIECE: u64 = 64 << 10;
/// The file that is only read.
const COLD: u64 = 32 << 20;
/// Files that are looked at.
const FILES: u64 = 1000;
/// Between two turns of all operations.
const THINK: Duration = Duration::from_millis(1);
/// Before a measurement begins.
const WARM: Duration = Duration::from_secs(2);

const OPERATIONS: [&str; 5] = [
    "write 4 KiB, fsync",
    "create, write, close",
    "stat, asked anew",
    "read 4 KiB, uncached",
    "read 4 KiB, cached",
];

/// One measurement.
struct Turn {
    histograms: Vec<Histogram<u64>>,
    did: Did,
    /// Bytes that were overwritten.
    written: u64,
}

/// Both volumes, turn by turn.
pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    let (bytes, rounds) = (lab.bytes(), lab.options.rounds);
    // A sync takes some ten blocks.
    let rate = (lab.options.overwrite + 64) << 20;
    let written = (rounds + 1) * (lab.options.seconds + WARM.as_secs()) * rate;
    let mut on = lab.full("on")?;
    let mut off = lab.bed("off", 2 * bytes + written, "retain=nothing,nogc")?;
    for bed in [&mut on, &mut off] {
        bed.mount()?;
        fill(bed.dir(), bytes / 100 * LIVE)?;
        bed.sync()?;
    }
    // Until it has to be cleaned.
    let mut rng = StdRng::seed_from_u64(1);
    let begin = Instant::now();
    let file = large(on.dir())?;
    while on.work()?.segments < 8 && begin.elapsed() < Duration::from_secs(60) {
        (0..(8 << 20) / PIECE).try_for_each(|_| overwrite(&file, &mut rng))?;
        go_on()?;
    }
    drop(file);
    for bed in [&mut on, &mut off] {
        bed.unmount()?;
    }
    for round in 0..rounds {
        // Each is the first one in turn.
        for cleaner in [round % 2 == 0, round % 2 != 0] {
            let turn = turn(lab, if cleaner { &mut on } else { &mut off }, round)?;
            for (operation, h) in OPERATIONS.iter().zip(&turn.histograms) {
                let at = |nanos: u64| nanos as f64 / 1e9;
                let (p50, p99, max) = (h.value_at_quantile(0.5), h.value_at_quantile(0.99), h.max());
                eprintln!(
                    "{}, round {round}, cleaner {}: {operation}: {} at most in 99 of 100",
                    lab.place.display(),
                    if cleaner { "on" } else { "off" },
                    crate::report::time(at(p99))
                );
                lab.results.latencies.push(Latency {
                    place: lab.place.to_owned(),
                    operation: (*operation).to_owned(),
                    round,
                    cleaner,
                    count: h.len(),
                    p50: at(p50),
                    p99: at(p99),
                    max: at(max),
                });
            }
            if cleaner {
                lab.did("latency", round, turn.did, turn.written);
            }
        }
    }
    Ok(())
}

fn large(dir: &Path) -> Result<File> {
    Ok(File::options().read(true).write(true).open(dir.join("large"))?)
}

/// A large file, one to read, and some to look at: `live` bytes.
fn fill(dir: &Path, live: u64) -> Result<()> {
    let piece = vec![0x5a; 1 << 20];
    for (name, bytes) in [("cold", COLD), ("large", live.saturating_sub(COLD))] {
        let file = File::create_new(dir.join(name))?;
        (0..bytes >> 20).try_for_each(|n| file.write_all_at(&piece, n << 20))?;
    }
    fs::create_dir(dir.join("files"))?;
    (0..FILES).try_for_each(|n| fs::write(dir.join(format!("files/{n}")), b"x"))?;
    Ok(())
}

fn overwrite(file: &File, rng: &mut StdRng) -> Result<()> {
    let pieces = file.metadata()?.len() / PIECE;
    let at = rng.random_range(0..pieces.max(1)) * PIECE;
    Ok(file.write_all_at(&[0xa5; PIECE as usize], at)?)
}

fn turn(lab: &Lab<'_>, bed: &mut Bed<'_>, round: u64) -> Result<Turn> {
    go_on()?;
    bed.mount()?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let file = large(bed.dir())?;
    let pause = Duration::from_secs_f64(PIECE as f64 / (lab.options.overwrite.max(1) << 20) as f64);
    let steady = || -> Result<()> {
        let mut rng = StdRng::seed_from_u64(round + 100);
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            overwrite(&file, &mut rng)?;
            written.fetch_add(PIECE, Ordering::Relaxed);
            // What was late is not made up for in a burst.
            next = (next + pause).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    };
    let (histograms, did, written) = std::thread::scope(|scope| {
        let other = scope.spawn(steady);
        let done = (|| {
            std::thread::sleep(WARM);
            let (before, bytes) = (bed.work()?, written.load(Ordering::Relaxed));
            let histograms = operations(bed.dir(), Duration::from_secs(lab.options.seconds), round)?;
            Ok((histograms, bed.work()?.since(before), written.load(Ordering::Relaxed) - bytes))
        })();
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap_or_else(|_| Err(anyhow!("who overwrites panicked"))).and(done)
    })?;
    drop(file);
    bed.unmount()?;
    Ok(Turn { histograms, did, written })
}

/// All operations in turn, for so long.
fn operations(dir: &Path, time: Duration, seed: u64) -> Result<Vec<Histogram<u64>>> {
    let mut histograms = OPERATIONS
        .iter()
        .map(|_| Histogram::new_with_bounds(1, 600_000_000_000, 3))
        .collect::<Result<Vec<Histogram<u64>>, _>>()?;
    let mut rng = StdRng::seed_from_u64(seed);
    let synced = File::options().write(true).create(true).truncate(true).open(dir.join("synced"))?;
    let cold = File::open(dir.join("cold"))?;
    std::io::copy(&mut &cold, &mut std::io::sink())?;
    let direct =
        File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join("cold")).context("O_DIRECT")?;
    let mut page = Page([0; BLOCK as usize]);
    let begin = Instant::now();
    let mut n = 0u64;
    while begin.elapsed() < time {
        let (at, made) =
            (rng.random_range(0..COLD / BLOCK) * BLOCK, dir.join(format!("files/new{}", n % 500)));
        let looked_at = dir.join(format!("files/{}", rng.random_range(0..FILES)));
        let mut all: [&mut dyn FnMut() -> Result<()>; 5] = [
            &mut || {
                synced.write_all_at(&[7; BLOCK as usize], n % 64 * BLOCK)?;
                Ok(synced.sync_all()?)
            },
            &mut || Ok(fs::write(&made, [8; BLOCK as usize])?),
            &mut || {
                let (at, what) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
                rustix::fs::statx(rustix::fs::CWD, &looked_at, at, what)?;
                Ok(())
            },
            &mut || Ok(direct.read_exact_at(&mut page.0, at)?),
            &mut || Ok(cold.read_exact_at(&mut [0; BLOCK as usize], at)?),
        ];
        for (operation, histogram) in all.iter_mut().zip(&mut histograms) {
            let start = Instant::now();
            operation()?;
            histogram.saturating_record(u64::try_from(start.elapsed().as_nanos())?.max(1));
        }
        n += 1;
        std::thread::sleep(THINK);
        if n.is_multiple_of(256) {
            go_on()?;
        }
    }
    Ok(histograms)
}

/// As O_DIRECT asks for.
#[repr(align(4096))]
struct Page([u8; BLOCK as usize]);
