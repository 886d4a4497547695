//! `silt chcp`: makes checkpoints snapshots, or snapshots checkpoints.

use std::ffi::OsString;

use clap::ValueEnum;
use silt_control::{Request, Response};

use crate::failure::{Result, by_own_name};
use crate::output::{Output, count};
use crate::target;

/// Numbers in one request.
const BATCH: usize = 1000;

/// What to make of checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Plain checkpoints, which go when space is needed
    Cp,
    /// Snapshots, which are kept
    Ss,
}

/// Make checkpoints snapshots (ss), or snapshots plain checkpoints (cp)
#[derive(clap::Args)]
#[command(override_usage = "silt chcp [OPTIONS] cp|ss [VOLUME] NUMBER...")]
pub struct Args {
    mode: Mode,
    /// Print what was changed as JSON
    #[arg(long)]
    json: bool,
    /// Checkpoint numbers; before them the image, device or mounted directory, unless only one
    /// volume is mounted
    #[arg(value_name = "[VOLUME] NUMBER", required = true)]
    numbers: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<()> {
    let (volume, numbers) = target::split(&args.numbers, target::is_number);
    let hint = target::lists("silt lscp", volume.as_deref());
    let numbers = numbers
        .iter()
        .map(|n| target::number(n, "checkpoint number", 1, &hint))
        .collect::<Result<Vec<u64>>>()?;
    if numbers.is_empty() {
        return Err(target::unnamed("name the numbers of the checkpoints to change", &hint));
    }
    let mut control = target::open(volume.as_deref())?;
    let mut refused = target::Refusals::default();
    let mut stayed = Vec::new();
    for checkpoints in numbers.chunks(BATCH) {
        let request =
            Request::ChangeMode { checkpoints: checkpoints.to_vec(), snapshot: args.mode == Mode::Ss };
        target::call(&mut *control, request, |part| {
            if let Response::Refused { number, error } = part {
                refused.tell(number, &error);
                stayed.push(number);
            }
            Ok(())
        })?;
    }
    if args.json {
        let changed: Vec<u64> = numbers.iter().copied().filter(|n| !stayed.contains(n)).collect();
        let snapshot = args.mode == Mode::Ss;
        let mut out = Output::new();
        out.json(&serde_json::json!({ "changed": changed, "snapshot": snapshot, "refused": stayed }))?;
        out.finish()?;
    } else if by_own_name() {
        let mut out = Output::new();
        let asked = numbers.len() as u64;
        out.line(said(args.mode, asked - refused.all.min(asked), asked))?;
        out.finish()?;
    }
    refused.end(numbers.len() as u64)
}

/// What became of so many of those that were asked for.
fn said(mode: Mode, done: u64, asked: u64) -> String {
    let of = if done == asked { count(done, "checkpoint") } else { format!("{done} of {asked} checkpoints") };
    match (mode, done) {
        (Mode::Ss, 1) => format!("{of} is a snapshot now"),
        (Mode::Ss, _) => format!("{of} are snapshots now"),
        (Mode::Cp, 1) => format!("{of} is a plain one now"),
        (Mode::Cp, _) => format!("{of} are plain ones now"),
    }
}
