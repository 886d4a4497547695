//! What cleaning costs: bytes that reach the device for each byte that a program writes, by policy, by how full the
//! volume is with live data, and by workload. The real engine and cleaner on a device in memory; nothing is timed, so that
//! the figures are the same on any machine.

mod bed;
mod plot;
mod tables;
mod theory;
mod wear;
mod workload;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};
use silt_cleaner::Policy;

pub use workload::Workload;

/// Options of `cargo xtask bench cleaning`.
#[derive(Args)]
pub struct Options {
    /// Size of the volume in MiB
    #[arg(long, default_value_t = 128)]
    mebibytes: u64,
    /// Blocks of 4 KiB a segment
    #[arg(long, default_value_t = 64)]
    segment: u32,
    /// Live data, in percent of the segments that are not kept clean
    #[arg(long, num_args = 1.., default_values_t = [50, 70, 80, 90])]
    live: Vec<u64>,
    /// Only these workloads
    #[arg(long, num_args = 1.., value_name = "WORKLOAD")]
    only: Vec<Workload>,
    /// Only these policies
    #[arg(long, num_args = 1.., value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Segments that are kept clean, the reserve included, in percent: with fewer, others are emptied
    #[arg(long, default_value_t = 8)]
    clean: u64,
    /// Until so many more are clean, in percent
    #[arg(long, default_value_t = 2)]
    spare: u64,
    /// How often the volume's size is written before it is measured, and how often after
    #[arg(long, default_value_t = 2)]
    turns: u64,
    /// Write everything here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show what was written so before, in place of measuring
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
    /// Draw it here
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// One volume's life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub workload: Workload,
    pub policy: String,
    /// Percent.
    pub live: u64,
    /// None where there was no space for the workload.
    pub cost: Option<Cost>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes on the device for a byte written.
    pub all: f64,
    /// Of those, what checkpoints took that were not made to clean: data, and the maps and tables that change with it.
    pub own: f64,
    /// Of those, blocks that the cleaner copied.
    pub copied: f64,
    /// Live blocks by blocks of segments that were in use, on average.
    pub used: f64,
    /// How evenly segments were written.
    pub wear: wear::Wear,
    /// Checkpoints that were made to clean, and segments that those emptied.
    pub steps: u64,
    pub emptied: u64,
}

impl Cost {
    /// Bytes for a byte written that are neither that byte nor copies: maps, tables, summaries.
    fn besides(&self) -> f64 {
        self.all - 1.0 - self.copied
    }
}

pub fn run(options: &Options) -> Result<()> {
    let workloads = if options.only.is_empty() { Workload::ALL.to_vec() } else { options.only.clone() };
    let policies = if options.policy.is_empty() { Policy::ALL.to_vec() } else { options.policy.clone() };
    let cells = match &options.from {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?
        }
        None => measure(options, &workloads, &policies)?,
    };
    let names: Vec<&str> = policies.iter().map(|p| p.name()).collect();
    println!("{}", tables::costs(&cells, &workloads, &options.live, &names));
    println!("\n{}", tables::wear(&cells, &workloads, &options.live, &names));
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&cells)?)?;
    }
    if let Some(path) = &options.plot {
        plot::draw(&cells, &workloads, &names, path)?;
    }
    Ok(())
}

/// Lives of all volumes that are wanted, on as many processors as there are.
fn measure(options: &Options, workloads: &[Workload], policies: &[Policy]) -> Result<Vec<Cell>> {
    let mut wanted = Vec::new();
    for workload in workloads {
        for live in &options.live {
            wanted.extend(policies.iter().map(|policy| (*workload, *live, *policy)));
        }
    }
    let (next, cells) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some((workload, live, policy)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let plan = bed::Plan {
                bytes: options.mebibytes << 20,
                blocks_per_segment: options.segment,
                live: *live,
                policy: *policy,
                clean: options.clean,
                spare: options.spare,
                turns: options.turns,
            };
            let cost = bed::live(&plan, *workload)
                .with_context(|| format!("{}, {live} %, {}", workload.name(), policy.name()))?;
            let cell = Cell { workload: *workload, policy: policy.name().to_owned(), live: *live, cost };
            cells.lock().map_err(|_| anyhow!("a thread panicked"))?.push(cell);
        }
        Ok(())
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })?;
    cells.into_inner().map_err(|_| anyhow!("a thread panicked"))
}

fn find<'a>(cells: &'a [Cell], workload: Workload, live: u64, policy: &str) -> Option<&'a Cost> {
    let cell = cells.iter().find(|c| c.workload == workload && c.live == live && c.policy == policy)?;
    cell.cost.as_ref()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The whole way, small: what is written over evenly costs copies, what is written over in order hardly any.
    #[test]
    fn a_small_run_tells_workloads_apart() {
        let cost = |workload| {
            let policy = Policy::Greedy;
            let plan = bed::Plan {
                bytes: 32 << 20,
                blocks_per_segment: 32,
                live: 70,
                policy,
                clean: 8,
                spare: 2,
                turns: 1,
            };
            bed::live(&plan, workload).unwrap().unwrap()
        };
        let (uniform, sequential) = (cost(Workload::Uniform), cost(Workload::Sequential));
        assert!(uniform.copied > 0.3, "{uniform:?}");
        assert!(sequential.copied < uniform.copied / 2.0, "{sequential:?}, {uniform:?}");
        assert!(
            uniform.own > 1.0
                && uniform.all > uniform.own + uniform.copied
                && uniform.used > 0.6
                && uniform.used < 1.0,
            "{uniform:?}"
        );
    }
}
