//! `silt lab`: instruments that put this program itself to the test.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use silt_control::{ControlError, Kind};
use silt_lab::{Campaign, Plan, Story, Tally, shrink};
use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::number;
use crate::output::{Output, count};

/// Put this program itself to the test
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    Torture(Torture),
}

/// Cut the power at every place of thousands of workloads, and see that nothing promised is lost
///
/// All in memory; no volume is touched. Runs for a minute where nothing else is said. A failure is told as a short
/// story, with the command that plays it again, and the exit code is 1. Ctrl-C ends it when what was begun is done, a second
/// one at once.
#[derive(clap::Args)]
struct Torture {
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = number::whole::<u64>)]
    seconds: Option<u64>,
    /// End after so many different disks
    #[arg(long, value_name = "N", value_parser = number::whole::<u64>)]
    states: Option<u64>,
    /// Decides what is done and where it is cut
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = number::whole::<u64>)]
    seed: u64,
    /// Begin with this workload
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::whole::<u64>)]
    from: u64,
    /// End after so many workloads
    #[arg(long, value_name = "N", value_parser = number::whole::<u64>)]
    workloads: Option<u64>,
    /// Only volumes with blocks of so many bytes
    #[arg(long, value_name = "BYTES", value_parser = ["1024", "4096"])]
    block_size: Option<String>,
    /// Only workloads in which the device fails
    #[arg(long)]
    failing: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown<'a> {
    passed: bool,
    /// It was ended by Ctrl-C: what it was to do is not done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended_early: bool,
    seed: u64,
    workloads: u64,
    states: u64,
    flushed: u64,
    in_order: u64,
    torn: u64,
    reordered: u64,
    across_requests: u64,
    recovery_cut: u64,
    repeated: u64,
    failures: &'a [Told],
}

#[derive(Serialize)]
struct Told {
    workload: u64,
    name: String,
    steps: Vec<String>,
    cut: Vec<String>,
    found: String,
    again: String,
}

/// Smaller workloads that are tried to make a failing one short.
const TRIES: u32 = 300;
/// Seconds where nothing is said.
const SECONDS: u64 = 60;

pub fn run(args: &Args) -> Result<()> {
    let Verb::Torture(args) = &args.verb;
    let endless = args.seconds.is_none() && args.states.is_none() && args.workloads.is_none();
    let plan = Plan {
        seed: args.seed,
        states: args.states.or(args.workloads.map(|_| 0)),
        workloads: args.workloads.unwrap_or(0),
        time: args.seconds.or(endless.then_some(SECONDS)).map(Duration::from_secs),
        block_size: args.block_size.as_ref().and_then(|b| b.parse().ok()),
        from: args.from,
        failing: args.failing,
        threads: if args.workloads == Some(1) { 1 } else { 0 },
    };
    let signals = Interruptible::new(Unwatched);
    let campaign =
        Campaign::new(plan).map_err(|e| ControlError::new(Kind::Other, format!("the tables: {e}")))?;
    let bar = progress();
    let failed = campaign.run(&|t| {
        if signals.stop() {
            campaign.end();
        }
        bar.set_position(t.states);
        bar.set_message(format!(
            "{}, {} torn or out of order",
            count(t.workloads, "workload"),
            t.torn + t.reordered
        ));
    });
    let ended = signals.stop();
    bar.set_message("making what failed short");
    // Whoever ends it waits for no shorter story.
    let tries = if ended { 0 } else { TRIES };
    let told: Vec<Told> = failed.iter().map(|f| tell(args, shrink::shrink(f, tries))).collect();
    bar.finish_and_clear();
    show(args, campaign.tally(), &told, ended)?;
    match (ended, told.is_empty()) {
        (true, _) => Err(Failure::Interrupted),
        (false, true) => Ok(()),
        (false, false) => Err(Failure::Told),
    }
}

/// Nothing is drawn where standard error is no terminal.
fn progress() -> ProgressBar {
    use std::io::IsTerminal;
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length();
    match ProgressStyle::with_template("{spinner} {human_pos} disks, {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn tell(args: &Torture, story: Story) -> Told {
    // Which workload has a number depends on the seed alone.
    let size = args.block_size.as_ref().map(|b| format!(" --block-size {b}")).unwrap_or_default();
    let kind = if args.failing { " --failing" } else { "" };
    let again =
        format!("silt lab torture --seed {} --from {} --workloads 1{kind}{size}", args.seed, story.number);
    Told {
        workload: story.number,
        name: story.name,
        steps: story.steps,
        cut: story.cut,
        found: story.found,
        again,
    }
}

fn show(args: &Torture, t: Tally, told: &[Told], ended: bool) -> Result<()> {
    let mut out = Output::new();
    if args.json {
        out.json(&Shown {
            passed: told.is_empty() && !ended,
            ended_early: ended,
            seed: args.seed,
            workloads: t.workloads,
            states: t.states,
            flushed: t.flushed,
            in_order: t.in_order,
            torn: t.torn,
            reordered: t.reordered,
            across_requests: t.across,
            recovery_cut: t.twice,
            repeated: t.repeated,
            failures: told,
        })?;
        return out.finish();
    }
    for failure in told {
        out.line(format!("workload {} ({}):", failure.workload, failure.name))?;
        for line in failure.steps.iter().chain(&failure.cut) {
            out.line(format!("  {line}"))?;
        }
        for line in format!("found: {}", failure.found).lines() {
            out.line(format!("  {line}"))?;
        }
        out.line(format!("  again: {}", failure.again))?;
    }
    out.line(format!(
        "{}{}, {}: {} as flushed, {} with a first part of the rest, {} cut within a \
         request, {} out of order ({} across requests); {} of them cuts of a recovery; {}",
        if ended { "ended before it was done; " } else { "" },
        count(t.workloads, "workload"),
        count(t.states, "different disk"),
        t.flushed,
        t.in_order,
        t.torn,
        t.reordered,
        t.across,
        t.twice,
        if told.is_empty() {
            "nothing that was promised is lost".to_owned()
        } else {
            format!("{} failed", told.len())
        },
    ))?;
    out.finish()
}
