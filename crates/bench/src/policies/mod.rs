//! What each policy of the cleaner costs those who write, through a mount: how fast they are, and what the daemon writes for
//! a byte of theirs, on volumes that keep nothing of the past.
//!
//! ```text
//! for each load and share of live data: the load on a fresh volume
//!     for each policy: a volume filled so far, written over until the cleaner is in a steady state | measured
//! ```
//!
//! One volume is mounted at a time. What is written alone, on any machine the same, is [`crate::cleaning`].

mod report;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use silt_cleaner::Policy;

use crate::growth::Bed;
use crate::load::{Load, Player};
use crate::machine::Machine;
use crate::process::{self, go_on};
use crate::settings;
use crate::system::Tools;

/// What is measured at a time, and what was cleaned before, of what fits.
const PART: u64 = 4;
/// Room that tables and directories need beside the data, of what fits.
const TABLES: u64 = 50;

/// Options of `cargo xtask bench policies`.
#[derive(Args)]
pub struct Options {
    /// Size of the volumes in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(512..=65536))]
    mebibytes: u64,
    /// Live data, in percent of what df calls available on an empty volume
    #[arg(long, num_args = 1.., default_values_t = [50, 70, 80, 90], value_parser = clap::value_parser!(u64).range(10..=95))]
    live: Vec<u64>,
    /// Only these loads
    #[arg(long, num_args = 1.., value_name = "LOAD")]
    only: Vec<Load>,
    /// Only these policies
    #[arg(long, num_args = 1.., value_name = "POLICY")]
    policy: Vec<Policy>,
    /// How often each is measured, on a volume made anew
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Where images go
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
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

/// What one load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub load: Load,
    /// Percent.
    pub live: u64,
    pub round: u64,
    /// None on a fresh volume.
    pub policy: Option<String>,
    /// Bytes of programs a second.
    pub rate: f64,
    /// Bytes that the daemon wrote for each of those, and blocks of them that the cleaner copied.
    pub cost: f64,
    pub copied: f64,
    /// Of segments that were emptied, the share that was needed.
    pub used: f64,
}

/// A run's results; this is the JSON file.
#[derive(Serialize, Deserialize)]
pub struct Results {
    /// What was typed.
    pub command: String,
    pub machine: Machine,
    pub seconds: f64,
    pub cells: Vec<Cell>,
}

/// Measures and reports.
pub fn run(options: &Options) -> Result<()> {
    let results = match &options.from {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?
        }
        None => measure(options)?,
    };
    println!("{}", report::text(&results));
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&results)?)
            .with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &options.plot {
        report::plot(&results).draw(path)?;
    }
    Ok(())
}

/// Everything that is wanted; what was measured before an interruption counts.
fn measure(options: &Options) -> Result<Results> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can do this: it mounts");
    }
    let tools = Tools::find()?;
    process::catch_signals()?;
    crate::own_mounts()?;
    let start = Instant::now();
    let mut machine = Machine::look(&tools, &options.scratch);
    let polling = settings::Polling::start();
    machine.setting = polling.as_ref().map(settings::Polling::text);
    let scratch = tempfile::Builder::new().prefix("silt-policies-").tempdir_in(&options.scratch)?;
    let mut lab = Lab { tools: &tools, options, scratch: scratch.path(), cells: Vec::new() };
    let measured = lab.all();
    let cells = std::mem::take(&mut lab.cells);
    if cells.is_empty() {
        measured?;
    } else if let Err(error) = measured {
        eprintln!("ended early: {error:#}");
    }
    machine.load_after = crate::machine::load();
    Ok(Results {
        command: format!("cargo xtask bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        machine,
        seconds: start.elapsed().as_secs_f64(),
        cells,
    })
}

struct Lab<'a> {
    tools: &'a Tools,
    options: &'a Options,
    scratch: &'a Path,
    cells: Vec<Cell>,
}

impl Lab<'_> {
    fn all(&mut self) -> Result<()> {
        let options = self.options;
        let loads = if options.only.is_empty() { Load::ALL.to_vec() } else { options.only.clone() };
        let policies = if options.policy.is_empty() { Policy::ALL.to_vec() } else { options.policy.clone() };
        for round in 0..options.rounds {
            for load in &loads {
                for live in &options.live {
                    self.one(*load, *live, round, None)?;
                    for policy in &policies {
                        self.one(*load, *live, round, Some(*policy))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, load: Load, live: u64, round: u64, policy: Option<Policy>) -> Result<()> {
        go_on()?;
        let of = policy.map_or(String::new(), |p| format!(",policy={}", p.name()));
        let bed = Bed::new(self.tools, self.scratch, self.options.mebibytes << 20)?;
        let mut bed = bed.with(&format!("retain=nothing{of}"));
        bed.mount()?;
        let stat = rustix::fs::statvfs(bed.dir())?;
        let fits = stat.f_bavail * stat.f_frsize / TABLES * (TABLES - 1);
        let full = fits / 100 * live;
        // A fresh volume has what a load writes over, and nothing beside it.
        let (own, rest) = match (load, policy) {
            (Load::Compile, Some(_)) => (full / 3, full / 3 * 2),
            (Load::Compile, None) => (full / 3, 0),
            (_, Some(_)) => (full, 0),
            (_, None) => (fits / 8, 0),
        };
        let mut player = Player::fill(bed.dir(), load, own, rest)?;
        let until = |player: &mut Player, more: u64| -> Result<()> {
            let end = player.written + more;
            while player.written < end {
                player.go_on()?;
                go_on()?;
            }
            player.sync()
        };
        if policy.is_some() {
            // All that is clean, and some after that.
            until(&mut player, fits - full + fits / PART)?;
        }
        let (work, device, written) = (bed.work()?, bed.written()?, player.written);
        let begin = Instant::now();
        until(&mut player, fits / PART)?;
        let seconds = begin.elapsed().as_secs_f64();
        let (work, written) = (bed.work()?.since(work), (player.written - written) as f64);
        let cell = Cell {
            load,
            live,
            round,
            policy: policy.map(|p| p.name().to_owned()),
            rate: written / seconds,
            cost: (bed.written()? - device) as f64 / written,
            copied: work.copied as f64 / written,
            used: work.copied as f64 / (work.segments * work.segment_size).max(1) as f64,
        };
        eprintln!(
            "{}, {live} % live, round {round}, {}: {:.0} MiB/s, {:.2} bytes a byte",
            load.name(),
            cell.policy.as_deref().unwrap_or("fresh"),
            cell.rate / f64::from(1 << 20),
            cell.cost
        );
        self.cells.push(cell);
        bed.unmount()?;
        Ok(())
    }
}
