//! What a scrub has found, in words and as JSON.

use serde::Serialize;
use silt_control::scrub::ScrubStatus;
use silt_verify::scrub::State;

use super::Args;
use crate::failure::{Failure, Result};
use crate::output::{Output, count};
use crate::size;

/// A pass as `--json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    sound: bool,
    damaged: u64,
    #[serde(flatten)]
    pass: &'a State,
}

impl<'a> Shown<'a> {
    fn new(pass: &'a State) -> Self {
        Shown { sound: pass.damaged() == 0, damaged: pass.damaged(), pass }
    }
}

/// How much is done.
pub fn percent(pass: &State) -> String {
    let all = pass.bytes_in_use.max(1);
    let done = u128::from(pass.bytes_behind.min(all)) * 100 / u128::from(all);
    format!("{done} %")
}

pub fn line(text: String) -> Result<()> {
    let mut out = Output::new();
    out.line(text)?;
    out.finish()
}

pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = Output::new();
    out.json(value)?;
    out.finish()
}

/// A pass: findings, then a summary.
pub fn pass(args: &Args, pass: &State) -> Result<()> {
    if args.json {
        return json(&Shown::new(pass));
    }
    let mut out = Output::new();
    findings(&mut out, pass)?;
    out.line(summary(args, pass))?;
    out.finish()
}

fn findings(out: &mut Output, pass: &State) -> Result<()> {
    pass.super_blocks.iter().try_for_each(|finding| out.line(finding.line()))?;
    for finding in &pass.findings {
        finding.lines(pass.block_size).iter().try_for_each(|line| out.line(line))?;
    }
    if pass.findings_left_out > 0 {
        out.line(format!("and {} more with findings", count(pass.findings_left_out, "log")))?;
    }
    pass.problems.iter().try_for_each(|problem| out.line(problem))
}

fn summary(args: &Args, pass: &State) -> String {
    let c = &pass.counts;
    let when = if pass.finished { "" } else { "so far " };
    let verdict = match pass.damaged() {
        0 => "sound".to_owned(),
        n => count(n, "damage"),
    };
    let left_out = match c.logs_left_out {
        0 => String::new(),
        n => format!(
            ", {} of {} left out, since nobody needs {}",
            count(n, "log"),
            size::show(c.bytes_left_out),
            if n == 1 { "it" } else { "them" }
        ),
    };
    format!(
        "{}: {when}{verdict}; {} of {} verified{left_out}",
        args.volume.display(),
        count(c.logs, "log"),
        size::show(c.bytes),
    )
}

/// A pass that is kept, or that there is none.
pub fn status(args: &Args, kept: Option<State>) -> Result<()> {
    let Some(pass) = kept else {
        if args.json {
            return json(&ScrubStatus::default());
        }
        return line(format!("{}: no scrub is known", args.volume.display()));
    };
    if args.json {
        json(&ScrubStatus { pass: Some(pass.clone()), ..ScrubStatus::default() })?;
    } else {
        let how = match pass.finished {
            true => "the last scrub was finished".to_owned(),
            false => format!("a scrub was left at {}", percent(&pass)),
        };
        text(args, &pass, &how)?;
    }
    verdict(&pass)
}

/// A pass of a daemon.
pub fn running(args: &Args, status: &ScrubStatus, pass: &State) -> Result<()> {
    if args.json {
        json(status)?;
    } else {
        let how = match (status.running, status.paused) {
            (true, true) => format!("the scrub is paused at {}", percent(pass)),
            (true, false) => {
                format!("scrubbing, {} done, at most {} a second", percent(pass), size::show(status.rate))
            }
            (false, _) if pass.finished => "the last scrub was finished".to_owned(),
            (false, _) => format!("the scrub ended at {}", percent(pass)),
        };
        text(args, pass, &how)?;
        if let Some(trouble) = &status.trouble {
            line(format!("it ended because: {trouble}"))?;
        }
    }
    verdict(pass)
}

fn text(args: &Args, pass: &State, how: &str) -> Result<()> {
    let mut out = Output::new();
    out.line(format!("{}: {how}", args.volume.display()))?;
    findings(&mut out, pass)?;
    out.line(summary(args, pass))?;
    out.finish()
}

fn verdict(pass: &State) -> Result<()> {
    if pass.damaged() > 0 { Err(Failure::Damaged) } else { Ok(()) }
}
