//! `silt rmcp`: removes checkpoints.

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;

use serde::Serialize;
use silt_control::{Control, ControlError, Kind, Removed, Request, Response};
use silt_names::quoted;

use crate::failure::{Failure, Result, by_own_name, complain};
use crate::output::{Output, count};
use crate::target;

/// Remove plain checkpoints
///
/// Snapshots stay: make them plain checkpoints first (silt chcp cp). The newest checkpoint goes
/// where it is named; A.. stops before it. The files stay as they are: a newer checkpoint holds them.
#[derive(clap::Args)]
#[command(override_usage = "silt rmcp [OPTIONS] [VOLUME] RANGE...")]
pub struct Args {
    /// Do not mind snapshots and missing checkpoints
    #[arg(short, long)]
    force: bool,
    /// Ask before each removal
    #[arg(short, long)]
    interactive: bool,
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,
    /// Checkpoint numbers N, or ranges A..B, ..B, A..; before them the image, device or mounted
    /// directory, unless only one volume is mounted
    #[arg(value_name = "[VOLUME] RANGE", required = true)]
    ranges: Vec<OsString>,
}

/// A range as it was written; both ends inclusive.
struct Range {
    text: String,
    start: u64,
    end: u64,
    single: bool,
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let (start, end, single) = match text.split_once("..") {
            None => {
                let n = Self::number(text)?;
                (n, n, true)
            }
            Some(("", "")) => return None,
            Some((start, end)) => {
                let start = if start.is_empty() { 1 } else { Self::number(start)? };
                let end = if end.is_empty() { u64::MAX } else { Self::number(end)? };
                (start, end, false)
            }
        };
        (start <= end).then(|| Range { text: text.to_owned(), start, end, single })
    }

    /// The parts of it that none of the ranges before has.
    fn besides(&self, before: &[Range]) -> Vec<(u64, u64)> {
        let mut parts = vec![(self.start, self.end)];
        for b in before {
            let left = parts.iter().flat_map(|(start, end)| {
                let below = b.start.checked_sub(1).map(|last| (*start, last.min(*end)));
                let above = b.end.checked_add(1).map(|first| (first.max(*start), *end));
                [below, above].into_iter().flatten().filter(|(start, end)| start <= end)
            });
            parts = left.collect();
        }
        parts
    }

    fn number(text: &str) -> Option<u64> {
        target::is_number(text).then(|| text.parse().ok())?.filter(|n| *n > 0)
    }
}

/// What was not there.
#[derive(Default, Serialize)]
struct Absent<'a> {
    /// Checkpoints that were named by their numbers.
    missing: Vec<u64>,
    /// Ranges, as they were written, in which there was none.
    empty: Vec<&'a str>,
}

impl<'a> Absent<'a> {
    fn add(&mut self, range: &'a Range) {
        if range.single {
            self.missing.push(range.start);
        } else {
            self.empty.push(&range.text);
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    removed: &'a Removed,
    #[serde(flatten)]
    absent: &'a Absent<'a>,
}

/// Whether an argument is meant as a range, if perhaps a wrong one.
fn like_a_range(arg: &str) -> bool {
    arg.bytes().all(|b| b.is_ascii_digit() || b == b'.') && arg != "." && arg != ".." || arg.contains("...")
}

pub fn run(args: &Args) -> Result<()> {
    let (volume, ranges) = target::split(&args.ranges, like_a_range);
    let lists = target::lists("silt lscp", volume.as_deref());
    let invalid = |r: &OsString| {
        let hint = format!("write a number N, or a range A..B, ..B or A..; {lists}");
        target::unnamed(format!("invalid checkpoint range: {}", r.to_string_lossy()), &hint)
    };
    let ranges = ranges
        .iter()
        .map(|r| r.to_str().and_then(Range::parse).ok_or_else(|| invalid(r)))
        .collect::<Result<Vec<Range>>>()?;
    if ranges.is_empty() {
        let message = "name the checkpoints to remove: a number N, or a range A..B";
        return Err(target::unnamed(message, &lists));
    }
    let volume = volume.as_deref();
    let mut control = target::open(volume)?;
    let mut total = Removed::default();
    let mut absent = Absent::default();
    let (mut asked, mut failed, mut missing) = (0u64, 0u64, 0u64);
    for (i, range) in ranges.iter().enumerate() {
        // What was named before was done, or told of, then.
        let parts = range.besides(ranges.get(..i).unwrap_or_default());
        if parts.is_empty() {
            continue;
        }
        if args.interactive && !confirmed(&range.text)? {
            continue;
        }
        let (removed, ended) = remove(&mut *control, &parts);
        if let Err(failure) = ended {
            return Err(half_way(failure, total.removed + removed.removed));
        }
        asked += 1;
        if removed.is_nothing() {
            absent.add(range);
        }
        // What is not there, and snapshots, are minded less than a mount that is in the way.
        let is_well =
            if args.force { none_mounted(&removed, volume) } else { judge(range, &removed, volume) };
        failed += u64::from(!is_well);
        missing += u64::from(!is_well && removed.is_nothing());
        add(&mut total, removed);
    }
    if total.snapshots_total > 0 && !args.force {
        target::eprintln_quiet(&how(&total, volume));
    }
    if args.json {
        let mut out = Output::new();
        out.json(&Outcome { removed: &total, absent: &absent })?;
        out.finish()?;
    }
    if by_own_name() && !args.json {
        let mut out = Output::new();
        out.line(said(&total))?;
        out.finish()?;
    }
    match failed {
        0 => Ok(()),
        n if n == missing && n == asked => Err(Failure::Missing),
        _ => Err(Failure::Told),
    }
}

/// What came of the parts of a range, and how it ended.
fn remove(control: &mut dyn Control, parts: &[(u64, u64)]) -> (Removed, Result<()>) {
    let mut removed = Removed::default();
    let ended = parts.iter().try_for_each(|(start, end)| {
        let request = Request::RemoveCheckpoints { start: *start, end: *end };
        target::call(control, request, |part| {
            if let Response::Removed(r) = part {
                add(&mut removed, r);
            }
            Ok(())
        })
    });
    (removed, ended)
}

fn add(to: &mut Removed, more: Removed) {
    to.removed += more.removed;
    to.snapshots_total += more.snapshots_total;
    to.snapshots.extend(more.snapshots);
    to.busy.extend(more.busy);
}

/// Adds how many are gone all the same.
fn half_way(failure: Failure, gone: u64) -> Failure {
    match failure {
        Failure::Error(mut error) if gone > 0 => {
            let are = if gone == 1 { "is" } else { "are" };
            error.message += &format!("; {} {are} removed, the others stay", count(gone, "checkpoint"));
            Failure::Error(error)
        }
        other => other,
    }
}

/// How snapshots that stayed can be removed.
fn how(total: &Removed, volume: Option<&Path>) -> String {
    /// Numbers that are named.
    const NAMED: usize = 4;
    if !by_own_name() {
        return "To delete snapshot(s), change them into checkpoints with chcp(1) before removal.".to_owned();
    }
    let volume = volume.map(|v| format!("{} ", quoted(v))).unwrap_or_default();
    let numbers = if total.snapshots.len() <= NAMED && total.snapshots.len() as u64 == total.snapshots_total {
        total.snapshots.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    } else {
        "NUMBER...".to_owned()
    };
    let them =
        if total.snapshots_total == 1 { "a plain checkpoint of it" } else { "plain checkpoints of them" };
    format!("  (silt chcp cp {volume}{numbers} makes {them}, which can be removed)")
}

/// How many went, how many stayed, and why.
fn said(total: &Removed) -> String {
    let is = |n: u64| if n == 1 { "is" } else { "are" };
    let busy = total.busy.len() as u64;
    let mut line = format!("{} {} removed", count(total.removed, "checkpoint"), is(total.removed));
    let mut why = Vec::new();
    if total.snapshots_total > 0 {
        let n = total.snapshots_total;
        why.push(format!("{n} {} {}", is(n), if n == 1 { "a snapshot" } else { "snapshots" }));
    }
    if busy > 0 {
        why.push(format!("{busy} {} mounted", is(busy)));
    }
    if !why.is_empty() {
        let stay = total.snapshots_total + busy;
        line += &format!("; {stay} {}: {}", if stay == 1 { "stays" } else { "stay" }, why.join(", "));
    }
    line
}

/// Says which of them are mounted; whether none is.
fn none_mounted(removed: &Removed, volume: Option<&Path>) -> bool {
    let volume = volume.map(|v| format!(" {}", quoted(v))).unwrap_or_default();
    for n in &removed.busy {
        complain(
            &ControlError::new(Kind::Busy, format!("{n}: it is mounted"))
                .hint(format!("unmount it first; silt status{volume} says where it is")),
        );
    }
    removed.busy.is_empty()
}

/// Says what stayed, and whether all went as it was asked.
fn judge(range: &Range, removed: &Removed, volume: Option<&Path>) -> bool {
    for n in &removed.snapshots {
        let e = ControlError::new(Kind::Busy, format!("{n}: cannot remove snapshot"));
        complain(&e);
    }
    let unnamed = removed.snapshots_total.saturating_sub(removed.snapshots.len() as u64);
    if unnamed > 0 {
        complain(&ControlError::new(
            Kind::Busy,
            format!("{} more {}", count(unnamed, "snapshot"), if unnamed == 1 { "stays" } else { "stay" }),
        ));
    }
    let none_mounted = none_mounted(removed, volume);
    let found = !removed.is_nothing();
    if !found {
        let message = if range.single {
            format!("invalid checkpoint: {}", range.text)
        } else {
            format!("no valid checkpoints found in {}", range.text)
        };
        let error = ControlError::new(Kind::NotFound, message);
        complain(&if by_own_name() { error.hint(target::lists("silt lscp", volume)) } else { error });
    }
    removed.removed > 0 && removed.snapshots_total == 0 && none_mounted
}

fn confirmed(what: &str) -> Result<bool> {
    let mut err = std::io::stderr().lock();
    let _ = write!(err, "remove checkpoint {what}? ");
    let _ = err.flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|e| ControlError::io("standard input", &e))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let ends = |t: &str| Range::parse(t).map(|r| (r.start, r.end));
        assert_eq!(ends("5"), Some((5, 5)));
        assert_eq!(ends("5..9"), Some((5, 9)));
        assert_eq!(ends("..9"), Some((1, 9)));
        assert_eq!(ends("5.."), Some((5, u64::MAX)));
        for bad in ["", "..", "9..5", "a", "1..b", "0", "-1", "1...3", "1.5"] {
            assert_eq!(ends(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_was_named_before_is_left_out() {
        let parts = |text: &str, before: &[&str]| {
            let before: Vec<Range> = before.iter().filter_map(|t| Range::parse(t)).collect();
            Range::parse(text).map(|r| r.besides(&before)).unwrap_or_default()
        };
        assert_eq!(parts("48", &[]), [(48, 48)]);
        assert_eq!(parts("48", &["48"]), []);
        assert_eq!(parts("3..9", &["5", "8..20"]), [(3, 4), (6, 7)]);
        assert_eq!(parts("3..", &["..5", "9.."]), [(6, 8)]);
        assert_eq!(parts("..9", &["1", "3..9"]), [(2, 2)]);
        assert_eq!(parts("4..6", &["1..20"]), []);
        assert_eq!(parts("4..6", &["1..3", "7.."]), [(4, 6)]);
    }

    #[test]
    fn who_is_refused_half_way_hears_how_many_went() {
        let text = |gone| match half_way(ControlError::new(Kind::NoSpace, "no space left").into(), gone) {
            Failure::Error(e) => e.message,
            _ => String::new(),
        };
        assert_eq!(text(0), "no space left");
        assert_eq!(text(1), "no space left; 1 checkpoint is removed, the others stay");
        assert_eq!(text(7), "no space left; 7 checkpoints are removed, the others stay");
    }

    #[test]
    fn paths_are_not_ranges() {
        for range in ["5", "5..9", "..9", "5..", "5...9"] {
            assert!(like_a_range(range), "{range}");
        }
        for path in [".", "..", "./5", "/dev/sda1", "a.img", "5.img"] {
            assert!(!like_a_range(path), "{path}");
        }
    }
}
