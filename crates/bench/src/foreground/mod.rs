//! What the cleaner costs those in the foreground: a volume that is four fifths full of live data and keeps nothing of
//! the past, on an image, mounted as users do.
//!
//! ```text
//! latency, for each round: overwritten at a steady rate, cleaner on | the same with `nogc` and space enough
//! rate, for each round and load: full, in a steady state | the same load on a fresh volume of the same size
//! ```
//!
//! Nothing else of the two differs, and only one is mounted at a time.

mod latency;
mod rate;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::growth::{Bed, Did};
use crate::machine::Machine;
use crate::system::Tools;
use crate::{process, settings};

/// Live data, in percent of all segments.
const LIVE: u64 = 80;

/// Options of `cargo xtask bench foreground`.
#[derive(Args)]
pub struct Options {
    /// Size of the volumes in MiB
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(256..=65536))]
    mebibytes: u64,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Seconds of each measurement of latency
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// MiB a second that are overwritten meanwhile
    #[arg(long, default_value_t = 8)]
    overwrite: u64,
    /// Only this
    #[arg(long, value_name = "latency|rate", value_parser = ["latency", "rate"])]
    only: Option<String>,
    /// Options of `silt mount` for the volume with the cleaner, besides retain=nothing
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Write everything here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where images go; each is measured
    #[arg(long, num_args = 1.., value_name = "DIR", default_values = ["/dev/shm", "/var/tmp"])]
    scratch: Vec<PathBuf>,
}

/// Latencies of one operation, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub place: PathBuf,
    pub operation: String,
    pub round: u64,
    /// The cleaner was on.
    pub cleaner: bool,
    pub count: u64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// What a load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rate {
    pub place: PathBuf,
    pub load: String,
    pub round: u64,
    /// The volume was full, and the cleaner at work.
    pub full: bool,
    /// Bytes of programs a second.
    pub rate: f64,
}

/// What the cleaner did in a measurement, for knowing that it did something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    pub place: PathBuf,
    /// During what.
    pub during: String,
    pub round: u64,
    /// Segments emptied, bytes of one, bytes copied, and bytes that programs wrote.
    pub segments: u64,
    pub segment_size: u64,
    pub copied: u64,
    pub written: u64,
}

/// A run's results; this is the JSON file.
#[derive(Serialize, Deserialize)]
pub struct Results {
    /// What was typed.
    pub command: String,
    pub machine: Machine,
    pub seconds: f64,
    pub latencies: Vec<Latency>,
    pub rates: Vec<Rate>,
    pub work: Vec<Work>,
}

/// What both parts share.
struct Lab<'a> {
    tools: &'a Tools,
    options: &'a Options,
    /// The directory that was named, and one of our own in it.
    place: &'a Path,
    scratch: &'a Path,
    results: &'a mut Results,
}

impl<'a> Lab<'a> {
    fn bytes(&self) -> u64 {
        self.options.mebibytes << 20
    }

    /// A volume of the size in question, to be mounted with the cleaner.
    fn full(&self, name: &str) -> Result<Bed<'a>> {
        let more = self.options.options.as_deref().map_or(String::new(), |o| format!(",{o}"));
        self.bed(name, self.bytes(), &format!("retain=nothing{more}"))
    }

    fn bed(&self, name: &str, size: u64, options: &str) -> Result<Bed<'a>> {
        let dir = self.scratch.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(Bed::new(self.tools, &dir, size)?.with(options))
    }

    fn did(&mut self, during: &str, round: u64, did: Did, written: u64) {
        let Did { segments, segment_size, copied } = did;
        let (place, during) = (self.place.to_owned(), during.to_owned());
        self.results.work.push(Work { place, during, round, segments, segment_size, copied, written });
    }
}

/// Measures and reports.
pub fn run(options: &Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can do this: it mounts");
    }
    let tools = Tools::find()?;
    process::catch_signals()?;
    crate::own_mounts()?;
    let start = Instant::now();
    let first = options.scratch.first().context("nowhere to go")?;
    let mut machine = Machine::look(&tools, first);
    let polling = settings::Polling::start();
    machine.setting = polling.as_ref().map(settings::Polling::text);
    let mut results = Results {
        command: format!("cargo xtask bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        machine,
        seconds: 0.0,
        latencies: Vec::new(),
        rates: Vec::new(),
        work: Vec::new(),
    };
    let measured = options.scratch.iter().try_for_each(|place| one(&tools, options, place, &mut results));
    results.machine.load_after = crate::machine::load();
    results.seconds = start.elapsed().as_secs_f64();
    // What was measured before an interruption is reported, too.
    println!("{}", table::text(&results));
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&results)?)
            .with_context(|| path.display().to_string())?;
    }
    measured
}

fn one(tools: &Tools, options: &Options, place: &Path, results: &mut Results) -> Result<()> {
    let free = rustix::fs::statvfs(place).with_context(|| place.display().to_string())?;
    let (free, need) = (free.f_bavail * free.f_frsize, (options.mebibytes << 20) * 6);
    if free < need {
        bail!("{} has {} MiB free, and {} are needed", place.display(), free >> 20, need >> 20);
    }
    let scratch = tempfile::Builder::new().prefix("silt-foreground-").tempdir_in(place)?;
    let mut lab = Lab { tools, options, place, scratch: scratch.path(), results };
    if options.only.as_deref() != Some("rate") {
        latency::measure(&mut lab)?;
    }
    if options.only.as_deref() != Some("latency") {
        rate::measure(&mut lab)?;
    }
    Ok(())
}
