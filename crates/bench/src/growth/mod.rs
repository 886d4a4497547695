//! How Silt's cost grows: with the files of a directory, the size of a file, the size of the volume and the number of
//! checkpoints; and one volume that has much of all. The real program, a real mount, sparse images.

mod bed;
mod checkpoints;
mod files;
mod plot;
mod size;
mod table;
mod volume;
mod whole;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub use bed::{Bed, Did, drop_caches};

use crate::machine::Machine;
use crate::system::Tools;
use crate::{packages, process, report, settings};

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dimension {
    /// Files in one directory
    Files,
    /// Bytes of a file
    Size,
    /// Bytes of the volume
    Volume,
    /// Checkpoints of the volume
    Checkpoints,
    /// Many files and many checkpoints, and the daemon's memory
    Whole,
}

impl Dimension {
    /// What its sizes are of.
    fn title(self) -> &'static str {
        match self {
            Dimension::Files => "files in one directory",
            Dimension::Size => "size of a sparse file",
            Dimension::Volume => "size of the volume",
            Dimension::Checkpoints => "checkpoints",
            Dimension::Whole => "many files and checkpoints",
        }
    }

    /// A size of it as people write it.
    fn size(self, size: u64) -> String {
        match self {
            Dimension::Size | Dimension::Volume => {
                let bits = (size | 1).ilog2().min(63) / 10 * 10;
                let unit = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][bits as usize / 10];
                format!("{} {unit}", (size as f64 / (1u64 << bits) as f64).round())
            }
            _ if size >= 1_000_000 => format!("{}M", size as f64 / 1e6),
            _ if size >= 1_000 => format!("{}k", size as f64 / 1e3),
            _ => size.to_string(),
        }
    }
}

/// Options of `cargo xtask bench growth`.
#[derive(Args)]
pub struct Options {
    /// Small sizes: a first look, not a result
    #[arg(long)]
    quick: bool,
    /// Only these
    #[arg(long, num_args = 1.., value_name = "WHAT")]
    only: Vec<Dimension>,
    /// Write everything here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the curves here
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the report of an earlier run from its JSON file instead
    #[arg(long, value_name = "FILE")]
    again: Option<PathBuf>,
    /// Where images go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// What grew.
    pub dimension: Dimension,
    /// To what: files, bytes or checkpoints.
    pub size: u64,
    /// What was done.
    pub operation: String,
    /// Seconds one operation took.
    pub seconds: f64,
}

/// The daemon's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// During what.
    pub during: String,
    /// Most bytes that were resident (`VmHWM`).
    pub peak: u64,
}

/// A run's results; this is the JSON file.
#[derive(Serialize, Deserialize)]
pub struct Growth {
    /// What was typed.
    pub command: String,
    /// Small sizes.
    pub quick: bool,
    /// Where.
    pub machine: Machine,
    /// Seconds of the whole run.
    pub seconds: f64,
    /// What could not be as it was meant.
    pub notes: Vec<String>,
    /// Everything measured.
    pub points: Vec<Point>,
    /// The daemon's memory.
    pub memory: Vec<Memory>,
}

/// What all dimensions share.
struct Lab<'a> {
    tools: &'a Tools,
    scratch: &'a Path,
    quick: bool,
    notes: Vec<String>,
    points: Vec<Point>,
    memory: Vec<Memory>,
}

impl Lab<'_> {
    /// Sizes of a whole run, or of a quick one.
    fn sizes<'s>(&self, whole: &'s [u64], quick: &'s [u64]) -> &'s [u64] {
        if self.quick { quick } else { whole }
    }

    /// Keeps a figure.
    fn add(&mut self, dimension: Dimension, size: u64, operation: &str, seconds: f64) {
        eprintln!("{}: {}: {operation}: {}", dimension.title(), dimension.size(size), report::time(seconds));
        self.points.push(Point { dimension, size, operation: operation.to_owned(), seconds });
    }

    fn measure(&mut self, dimension: Dimension) -> Result<()> {
        match dimension {
            Dimension::Files => files::measure(self),
            Dimension::Size => size::measure(self),
            Dimension::Volume => volume::measure(self),
            Dimension::Checkpoints => checkpoints::measure(self),
            Dimension::Whole => whole::measure(self),
        }
    }
}

/// Seconds that something took.
fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64())
}

/// The median of several goes.
fn median(times: u64, mut f: impl FnMut(u64) -> Result<f64>) -> Result<f64> {
    let seconds = (0..times).map(&mut f).collect::<Result<Vec<f64>>>()?;
    report::statistics::Spread::of(seconds).map(|s| s.median).context("nothing was measured")
}

/// Measures and reports.
pub fn run(options: &Options) -> Result<()> {
    if let Some(file) = &options.again {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let growth: Growth = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        println!("{}", table::text(&growth));
        return options.plot.as_ref().map_or(Ok(()), |path| plot::draw(&growth, path));
    }
    if !rustix::process::geteuid().is_root() {
        bail!("only root can do this: it mounts and drops caches");
    }
    let free =
        rustix::fs::statvfs(&options.scratch).with_context(|| options.scratch.display().to_string())?;
    let (free, need) = (free.f_bavail * free.f_frsize, if options.quick { 4u64 << 30 } else { 30 << 30 });
    if free < need {
        bail!("{} has {} GiB free, and {} are needed", options.scratch.display(), free >> 30, need >> 30);
    }
    let tools = Tools::find()?;
    packages::install()?;
    process::catch_signals()?;
    crate::own_mounts()?;
    let start = Instant::now();
    let scratch = tempfile::Builder::new().prefix("silt-growth-").tempdir_in(&options.scratch)?;
    let mut machine = Machine::look(&tools, scratch.path());
    let polling = settings::Polling::start();
    machine.setting = polling.as_ref().map(settings::Polling::text);
    let mut lab = Lab {
        tools: &tools,
        scratch: scratch.path(),
        quick: options.quick,
        notes: Vec::new(),
        points: Vec::new(),
        memory: Vec::new(),
    };
    let dimensions = Dimension::value_variants();
    let wanted = |d: &&Dimension| options.only.is_empty() || options.only.contains(d);
    let measured = dimensions
        .iter()
        .filter(wanted)
        .try_for_each(|d| lab.measure(*d).with_context(|| d.title().to_owned()));
    machine.load_after = crate::machine::load();
    let growth = Growth {
        command: format!("cargo xtask bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        quick: options.quick,
        machine,
        seconds: start.elapsed().as_secs_f64(),
        notes: lab.notes,
        points: lab.points,
        memory: lab.memory,
    };
    // What was measured before an interruption is reported, too.
    if !growth.points.is_empty() {
        println!("{}", table::text(&growth));
        if let Some(path) = &options.json {
            let text = serde_json::to_string_pretty(&growth)?;
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        if let Some(path) = &options.plot {
            plot::draw(&growth, path)?;
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let sizes = [1 << 20, 100 << 30, (16 << 40) - (8 << 20)].map(|n| Dimension::Volume.size(n));
        assert_eq!(sizes, ["1 MiB", "100 GiB", "16 TiB"]);
        let counts = [100, 10_000, 1_000_000].map(|n| Dimension::Files.size(n));
        assert_eq!(counts, ["100", "10k", "1M"]);
    }
}
