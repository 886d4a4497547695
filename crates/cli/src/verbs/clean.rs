//! `silt clean`: gets space back by emptying segments.

use std::path::{Path, PathBuf};

use silt_control::{Clean, CleanReport, Control, ControlError, Kind, Least, Request, Response};
use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result, by_own_name};
use crate::interrupt::Interruptible;
use crate::output::{Output, count};
use crate::{progress, size, target, times};

/// Get space back: empty segments, mounted or not
///
/// This is new and not to be trusted yet: have a copy of the volume.
///
/// What is needed of a segment moves to another, and the segment is clean. Needed are the files as they are, every
/// snapshot, the floor that silt retain --keep set, and moments younger than the protection period; older moments go where
/// they are in the way. A log is held against its checksum before anything of it is copied; a segment that cannot be
/// trusted is set aside.
///
/// Of a mounted volume, Silt does this by itself when few segments are clean, unless it is mounted with -o nogc.
///
/// Ctrl-C ends it after the step that it is at; what was done stays.
#[derive(clap::Args)]
pub struct Args {
    /// Moments younger than this are kept; s, m, h, d, w, M or Y may follow the number
    #[arg(short, long, value_name = "PERIOD", value_parser = times::period, default_value = "1h")]
    protection_period: u64,
    /// Keep what the volume wishes (silt retain), or what these words wish, in place of a period
    #[arg(long, value_name = "WORDS", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "protection_period")]
    retain: Option<String>,
    /// Leave segments that would give fewer blocks, or a smaller share of a segment in percent
    #[arg(short, long, value_name = "COUNT[%]", value_parser = least)]
    min_reclaimable_blocks: Option<Least>,
    /// Free at most so many segments, then rest for so many seconds, and so on
    #[arg(short = 'S', long, value_name = "COUNT[/SECONDS]", value_parser = speed)]
    speed: Option<Speed>,
    /// The order: oldest, greedy, cost-benefit or wear-levelling
    #[arg(long, value_name = "NAME", default_value = "cost-benefit", value_parser = ["oldest", "timestamp", "greedy", "cost-benefit", "wear-levelling"])]
    policy: String,
    /// End when users can have this much, as 10G; exit code 8 where less can be in the end
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    until: Option<u64>,
    /// Also empty segments that are set aside: what can be read of them is taken as it is, wrong or not
    #[arg(long)]
    salvage: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Accepted as nilfs-clean has it
    #[arg(short, long, hide = true)]
    verbose: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory; none: the only volume mounted
    volume: Option<PathBuf>,
}

/// Segments, and milliseconds of rest after so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Speed {
    segments: u64,
    rest: u64,
}

fn least(text: &str) -> std::result::Result<Least, String> {
    let (number, percent) = match text.strip_suffix('%') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let n = number.parse().map_err(|_| format!("{text:?} is no number of blocks, nor a percentage"))?;
    match percent {
        true if n > 100 => Err(format!("{text} is more than a segment")),
        true => Ok(Least::Percent(n)),
        false => Ok(Least::Blocks(n)),
    }
}

fn speed(text: &str) -> std::result::Result<Speed, String> {
    let bad = || format!("{text:?} is no number of segments, nor one with /SECONDS");
    let (count, seconds) = text.split_once('/').unwrap_or((text, "1"));
    let segments = count.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?;
    let seconds: f64 = seconds.parse().ok().filter(|s| (0.0..=3600.0).contains(s)).ok_or_else(bad)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
    Ok(Speed { segments, rest: (seconds * 1000.0) as u64 })
}

pub fn run(args: &Args) -> Result<()> {
    if !by_own_name() && args.quiet {
        // What asks nilfs-utils' daemon to end is not to begin a cleaning.
        return Err(ControlError::new(
            Kind::Invalid,
            "-q ends a cleaner daemon, and there is none: Silt cleans while it is mounted",
        )
        .hint("mount it with -o nogc where nothing is to be cleaned; silt clean -q cleans and says nothing")
        .into());
    }
    let mut control = target::open(args.volume.as_deref())?;
    let request = Request::Clean(Clean {
        protection: args.protection_period,
        retain: args.retain.clone(),
        policy: Some(args.policy.clone()),
        least: args.min_reclaimable_blocks,
        until: args.until,
        salvage: args.salvage,
        at_once: args.speed.map(|s| s.segments),
        rest: args.speed.map_or(0, |s| s.rest),
    });
    let mut out = Output::new();
    let bar = progress::steps("segments", args.quiet || args.json);
    let mut report = None;
    // A daemon goes on by itself, and is not waited for.
    let stop = (!control.is_mounted()).then(|| Interruptible::new(Unwatched));
    let ended = |freed: u64| {
        let volume = args.volume.as_deref().unwrap_or(Path::new("")).display();
        let are = if freed == 1 { "is" } else { "are" };
        Failure::Ended(format!(
            "{volume}: ended before it was done; {} {are} freed, and what was done stays",
            count(freed, "segment")
        ))
    };
    target::call(&mut *control, request, |part| {
        match part {
            Response::CleanProgress(p) if stop.as_ref().is_some_and(Interruptible::stop) => {
                bar.finish_and_clear();
                return Err(ended(p.freed));
            }
            Response::CleanProgress(p) => {
                bar.set_length(p.total);
                bar.set_position(p.done);
            }
            Response::Cleaned(r) => report = Some(*r),
            _ => {}
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let Some(report) = report else { return out.finish() };
    let missed = args.until.filter(|wanted| report.available < *wanted);
    if args.json {
        out.json(&report)?;
    } else if !args.quiet {
        lines(&report, args.salvage).iter().try_for_each(|line| out.line(line))?;
        if report.freed == 0 || missed.is_some() {
            protected(args, &mut *control, report.segment_size).iter().try_for_each(|line| out.line(line))?;
        }
    }
    out.finish()?;
    match missed {
        Some(wanted) => Err(ControlError::new(
            Kind::NoSpace,
            format!(
                "{} can be written, and not the {} that were wanted",
                size::show(report.available),
                size::show(wanted)
            ),
        )
        .hint("silt du says what holds the rest; less of the past, a larger volume, or deleting something makes room")
        .into()),
        None => Ok(()),
    }
}

/// What the protection period keeps that could be had, in a sentence; none where that is not a segment, or not known.
fn protected(args: &Args, control: &mut dyn Control, segment: u64) -> Option<String> {
    if args.retain.is_some() || args.protection_period == 0 {
        return None;
    }
    let mut account = None;
    let told = control.call(Request::Account, &mut |part| {
        if let Response::Account(a) = part {
            account = Some(a);
        }
        Ok(())
    });
    let a = account.filter(|_| told.is_ok())?;
    let all = a.shown.saturating_add(a.history_loose);
    (all >= segment.max(1)).then(|| {
        let unwished = match a.shown {
            few if few < segment => String::new(),
            some => format!(", --retain those that the volume does not wish to keep ({})", size::show(some)),
        };
        format!(
            "moments younger than {} are kept, and hold up to {}: a shorter -p lets them go{unwished}",
            times::span(args.protection_period),
            size::show(all)
        )
    })
}

/// What was done, in sentences.
fn lines(r: &CleanReport, salvage: bool) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(match r.freed {
        0 => "no segment could be freed".to_owned(),
        n => format!(
            "freed {} ({}), copied {}",
            count(n, "segment"),
            size::show(n.saturating_mul(r.segment_size)),
            count(r.moved, "block")
        ),
    });
    if r.checkpoints > 0 {
        lines.push(format!("{} went with what only they held", count(r.checkpoints, "moment")));
    }
    lines.push(format!(
        "{} can be written now ({}, {} for you)",
        count(r.clean_segments, "segment"),
        size::show(r.clean_segments.saturating_mul(r.segment_size)),
        size::show(r.available)
    ));
    for a in &r.set_aside {
        let block = a.block.map_or_else(String::new, |b| format!(" (block {b})"));
        lines.push(format!("segment {} is set aside: {}{block}", a.segment, a.why));
    }
    if !r.set_aside.is_empty() && !salvage {
        lines.push("silt scrub looks closer; silt clean --salvage takes what can be read".to_owned());
    }
    for a in &r.unverified {
        let block = a.block.map_or_else(String::new, |b| format!(" at block {b}"));
        lines.push(format!(
            "segment {}: the log{block} does not match its checksum; what was in use of it was taken as it is, and silt \
             check does not see it any more",
            a.segment
        ));
    }
    if r.out_of_room {
        lines.push("it ended because no segment was left to copy to; delete something".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn numbers_as_nilfs_clean_has_them() {
        assert_eq!(least("12").unwrap(), Least::Blocks(12));
        assert_eq!(least("10%").unwrap(), Least::Percent(10));
        assert_eq!(speed("4").unwrap(), Speed { segments: 4, rest: 1000 });
        assert_eq!(speed("8/0.5").unwrap(), Speed { segments: 8, rest: 500 });
        for text in ["", "x", "101%", "-1"] {
            assert!(least(text).is_err(), "{text}");
        }
        for text in ["", "0", "2/x", "2/-1", "2/1e9"] {
            assert!(speed(text).is_err(), "{text}");
        }
    }
}
