//! `silt repair`: mends a damaged volume, or takes a repair back.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use silt_control::{ControlError, Kind, Moment};
use silt_device::undo::{self, Standing, Undo};
use silt_device::{Access, Device};
use silt_format::super_block::{PRIMARY_OFFSET, secondary_offset};
use silt_names::quoted;
use silt_repair::{Options, Plan, errors, plan_watched};
use silt_verify::{Unwatched, Watch};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::{Output, count, printable};
use crate::progress::Stages;
use crate::signatures;
use crate::verbs::rescue;
use crate::{overwrite, size, target, times};

mod doubtful;

/// Mend a damaged volume that nobody uses
///
/// Shows what will change and what is lost, and asks. Everything is tried in memory and checked first. What is
/// mended is written into segments that hold nothing, and the super blocks are pointed at it.
#[derive(clap::Args)]
pub struct Args {
    /// Show the plan and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long, alias = "assume-yes")]
    yes: bool,
    /// Save every block that is overwritten in this new file, so that the repair can be taken back
    #[arg(long, value_name = "FILE", conflicts_with = "no_undo")]
    undo: Option<PathBuf>,
    /// Save nothing: the repair cannot be taken back
    #[arg(long)]
    no_undo: bool,
    /// Take back the repair that this file was saved by
    #[arg(long, value_name = "FILE", conflicts_with_all = ["undo", "no_undo", "roll_back", "dry_run"])]
    take_back: Option<PathBuf>,
    /// With --take-back: even if the volume was written since
    #[arg(long, requires = "take_back")]
    force: bool,
    /// Make the tree what it was at a checkpoint or time, as 'yesterday 14:00'; the present becomes a snapshot
    #[arg(long, value_name = "MOMENT")]
    roll_back: Option<String>,
    /// Give up snapshots that are damaged, too
    #[arg(long)]
    drop_snapshots: bool,
    /// Keep the state before files are mended as a snapshot, with its damage
    #[arg(long)]
    keep: bool,
    /// What becomes of file data that the device cannot read
    #[arg(long, value_enum, value_name = "WHAT", default_value = "keep")]
    data: Unreadable,
    /// Cut damaged files out instead of putting older versions in their place
    #[arg(long)]
    cut: bool,
    /// Memory that what is to be written may take; what is more waits for another repair
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    memory: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Image or device
    volume: PathBuf,
}

/// What becomes of file data that the device cannot read.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Unreadable {
    /// It stays where it is: a bad sector may be read another time
    Keep,
    /// Zeroes take its place, in every moment that has it, and its segment becomes free
    Zero,
}

#[derive(Serialize)]
struct Round<'a> {
    /// Kinds of mend, and how many findings each is for.
    classes: &'a BTreeMap<&'static str, u64>,
    done: &'a [String],
}

#[derive(Serialize)]
struct Summary<'a> {
    errors_before: u64,
    errors_after: u64,
    rounds: Vec<Round<'a>>,
    bytes_written: u64,
    left: Vec<String>,
    /// A newer checkpoint behind a broken log, which no mount finds.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreached: Option<u64>,
    /// Synced data behind the newest checkpoint that no mount comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    synced_lost: Option<String>,
    /// Checkpoints that no mount comes to, nor a repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoints_lost: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<&'a str>,
    /// With more free space more could be mended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_space: bool,
    /// More is left than is done at once: another repair goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    applied: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.take_back {
        return take_back(args, file);
    }
    // Before the planning, which may take long.
    if let Some(file) = args.undo.as_ref().filter(|file| !args.dry_run && file.symlink_metadata().is_ok()) {
        return Err(ControlError::new(Kind::Invalid, format!("{} is there already", file.display()))
            .hint("name a new file for --undo: it may be what takes an earlier repair back")
            .into());
    }
    // From here on the first Ctrl-C ends the planning; what is being written is written to its end.
    let watch = Interruptible::new(Stages::new(args.json));
    // Who does not say what is to be saved sees the plan, and what to type.
    let only_shown = args.dry_run || (args.undo.is_none() && !args.no_undo);
    let access = if only_shown { Access::ReadOnly } else { Access::ReadWrite };
    let device = target::device(&args.volume, access)?;
    let device: Arc<dyn Device> = Arc::new(device);
    if silt_verify::is_no_volume(&*device) {
        if let Some(other) = signatures::find_around_damage(&*device) {
            let message =
                format!("{} holds {other} and no super block of a NILFS2 volume", args.volume.display());
            return Err(ControlError::new(Kind::NotNilfs, message)
                .hint("silt rescue copies out what is left of one")
                .into());
        }
        rescue::trace(&args.volume, &*device, &watch)?;
        if watch.stop() {
            return Err(ended(args));
        }
    }
    let options = options(args, &device)?;
    let plan = match plan_watched(device.clone(), &options, &watch) {
        Err(silt_repair::Error::Stopped) => return Err(ended(args)),
        made => made.map_err(failed)?,
    };
    if watch.stop() {
        return Err(ended(args));
    }
    let watch = watch.quiet();
    let gone_back = plan.rounds.iter().any(|r| r.classes.contains_key("roll-back"));
    if options.to_checkpoint.is_some()
        && !gone_back
        && let Some(why) = &plan.stopped
    {
        return Err(no_moment(args, format!("going back is not possible: {why}")).into());
    }
    if !args.json {
        show(args, &plan)?;
    }
    if plan.is_empty() && plan.no_space {
        if args.json {
            json(&plan, false)?;
        }
        return Err(no_space(errors(&plan.before)).into());
    }
    let mut applied = false;
    if only_shown && !args.dry_run && !plan.is_empty() {
        if args.json {
            json(&plan, false)?;
        }
        let volume = quoted(&args.volume);
        let message = "nothing was written: where is what will be overwritten to be saved?";
        return Err(ControlError::new(Kind::Invalid, message)
            .hint(format!(
                "silt repair --undo FILE {volume} saves it in a new file and goes on; --no-undo in place of that does not save it"
            ))
            .into());
    }
    if !only_shown && !plan.is_empty() && go_on(args, &watch)? {
        if let Some(file) = &args.undo {
            let saved = undo::save(file, &*device, identity(&*device), plan.overlay())
                .map_err(|e| unsaved(e, &args.volume, &plan))?;
            if !args.json {
                let mut out = Output::new();
                out.line(format!("{} saved in {}", size::show(saved), file.display()))?;
                out.finish()?;
            }
        }
        if watch.stop() {
            return Err(ended(args));
        }
        write(&plan, &*device, args.undo.as_deref(), &args.volume)?;
        applied = true;
    }
    if args.json {
        json(&plan, applied)?;
    }
    let left = if applied { errors(&plan.after) } else { errors(&plan.before) };
    if left == 0 { Ok(()) } else { Err(Failure::Damaged) }
}

/// Ended by Ctrl-C before anything was written to the volume.
fn ended(args: &Args) -> Failure {
    let saved = args.undo.as_ref().filter(|file| file.exists());
    let saved = saved.map_or_else(String::new, |file| format!("; {} is of no use", file.display()));
    Failure::Ended(format!(
        "{}: ended before it was done; nothing was written to it{saved}",
        args.volume.display()
    ))
}

/// What would be overwritten could not be saved.
pub(super) fn unsaved(e: silt_device::Error, volume: &Path, plan: &Plan) -> Failure {
    let e = ControlError::from(e);
    let message =
        format!("nothing was written, since what would be overwritten cannot be saved: {}", e.message);
    let room = size::show(plan.bytes());
    ControlError::new(e.kind, message)
        .hint(format!(
            "silt repair --undo FILE {} takes a file elsewhere, where some {room} are free",
            quoted(volume)
        ))
        .into()
}

/// Nothing can be mended since every segment is in use.
fn no_space(errors: u64) -> ControlError {
    let left = count(errors, "error");
    let what = format!("there is too little free space to mend in: nothing is written, {left} left");
    ControlError::new(Kind::NoSpace, what)
        .hint("silt rescue copies out what can be read; mounted, silt clean --salvage or deleting something makes room")
}

/// Makes the writes of a plan. Where they fail, what was written so far is a repair that was cut off.
pub(super) fn write(plan: &Plan, device: &dyn Device, undo: Option<&Path>, volume: &Path) -> Result<()> {
    plan.apply(device).map_err(|e| {
        let silt_repair::Error::Device(e) = e else { return failed(e) };
        let e = ControlError::from(e);
        let message = format!("the repair was cut off: {}", e.message);
        let back = undo.map(|file| format!(", or take it back with --take-back {}", quoted(file)));
        let hint = format!(
            "run silt repair {} again when the device works{}",
            quoted(volume),
            back.unwrap_or_default()
        );
        ControlError::new(e.kind, message).hint(hint).into()
    })
}

/// There is nothing to go back to.
fn no_moment(args: &Args, message: String) -> ControlError {
    let hint = format!("silt lscp {} lists the moments there are", quoted(&args.volume));
    ControlError::new(Kind::NotFound, message).hint(hint)
}

fn options(args: &Args, device: &Arc<dyn Device>) -> Result<Options> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    args.roll_back.iter().for_each(|text| times::tell_of_one_to_come(text));
    let to_checkpoint = match args.roll_back.as_deref().map(Moment::parse).transpose()? {
        Some(Moment::Checkpoint(n)) => Some(n),
        Some(Moment::Time(at)) => Some(
            silt_repair::checkpoint_at(device, at)
                .ok_or_else(|| no_moment(args, "there is no checkpoint as old as that".to_owned()))?,
        ),
        None => None,
    };
    Ok(Options {
        to_checkpoint,
        drop_snapshots: args.drop_snapshots,
        keep: args.keep,
        cut: args.cut,
        zero_unreadable: args.data == Unreadable::Zero,
        now,
        seed: getrandom::u64().unwrap_or(now),
        cache_bytes: 64 << 20,
        memory_bytes: args.memory,
    })
}

pub(super) fn failed(e: silt_repair::Error) -> Failure {
    match e {
        silt_repair::Error::Engine(e) => e.into(),
        silt_repair::Error::Device(e) => e.into(),
        silt_repair::Error::Stopped => Failure::Ended("ended before it was done; nothing was written".into()),
        silt_repair::Error::Hopeless(what) => ControlError::new(Kind::Corrupt, what)
            .hint("silt rescue says what can be read, and copies it out")
            .into(),
    }
}

/// What is lost behind a broken log.
pub(super) fn unreached(plan: &Plan) -> Option<String> {
    let Some((base, newest)) = plan.unreached else { return plan.checkpoints_lost.clone() };
    Some(format!(
        "behind checkpoint {base} a log is broken: what was written after it, up to checkpoint {newest}, is lost to \
         every mount, and to a repair; silt rescue shows it and copies it out: do that first"
    ))
}

/// What gets a full volume the space for the rest of a repair.
pub(super) fn room(volume: &Path) -> String {
    format!(
        "silt clean {} gets space back, for which plain checkpoints go where they are in the way, and silt resize \
         takes a larger device; repair it again then",
        quoted(volume)
    )
}

/// Lines about older checkpoints that are shown of a round, and as many about what may be wrong.
const SHOWN: usize = 100;

/// Lines about segments that are shown of a round.
const SEGMENTS: usize = 10;

fn show(args: &Args, plan: &Plan) -> Result<()> {
    let mut out = Output::new();
    let volume = args.volume.display();
    if let Some(words) = unreached(plan) {
        out.line(words)?;
    }
    if let Some(lost) = &plan.synced_lost {
        out.line(lost.to_string())?;
    }
    if let Some((was, is)) = plan.cut_short {
        out.line(format!(
            "the volume had {was} bytes and {volume} has {is}: copy it again if it was cut short; truncate -s {was} makes an \
             image as long as it was, and then a repair makes do without what is missing"
        ))?;
    }
    if plan.rounds.is_empty() && errors(&plan.before) == 0 {
        out.line(format!("{volume}: nothing to mend"))?;
        return out.finish();
    }
    // The others made way for these.
    for round in plan.rounds.iter().filter(|round| !round.done.is_empty()) {
        let classes: Vec<&str> = round.classes.keys().copied().collect();
        out.line(format!("[{}]", classes.join(", ")))?;
        // What the current tree loses is not buried under what older ones do, nor what is lost under what may be wrong,
        // nor snapshots under plain checkpoints.
        let (doubtful, lines): (Vec<_>, Vec<_>) = round.done.iter().partition(|line| doubtful::is_one(line));
        let doubtful = doubtful::in_words(&doubtful);
        let (past, mut now): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.starts_with("checkpoint ") && line.contains(": "));
        // Nor names of files under what is said of a segment each.
        let segments: Vec<&String> = now.extract_if(.., |line| line.starts_with("segment ")).collect();
        let number = |line: &str| line.strip_prefix("checkpoint ")?.split(':').next()?.parse().ok();
        let kept = |line: &&String| number(line).is_some_and(|c: u64| plan.snapshots.contains(&c));
        let (kept, past): (Vec<_>, Vec<_>) = past.into_iter().partition(kept);
        in_short(&segments).iter().try_for_each(|line| out.line(format!("  {line}")))?;
        let (now, past_shown) = (now.into_iter().chain(&doubtful), past.iter().copied().take(SHOWN));
        let mut shown = now.chain(kept).chain(past_shown);
        shown.try_for_each(|line| out.line(format!("  {line}")))?;
        if past.len() > SHOWN {
            out.line(format!("  and {} more of older checkpoints (--json shows them)", past.len() - SHOWN))?;
        }
    }
    if plan.puts_back() {
        out.line(
            "silt rescue --to DIR may bring back later content of files that are put back: do that first",
        )?;
    }
    if plan.moves_unverified() {
        out.line(format!(
            "silt scrub {} says more of what is wrong in logs that do not verify: do that first, since nothing tells of it \
             once their blocks are elsewhere",
            quoted(&args.volume)
        ))?;
    }
    if let Some(why) = &plan.stopped {
        out.line(format!("not all could be mended: {why}"))?;
        if plan.no_space {
            out.line(room(&args.volume))?;
        }
    }
    let left = errors(&plan.after);
    for f in plan.after.errors().take(10) {
        out.line(format!("left: [{}] {}: {}", f.id, f.place, f.message))?;
    }
    out.line(format!(
        "{volume}: {} before, {left} after; {} to write",
        count(errors(&plan.before), "error"),
        size::show(plan.bytes())
    ))?;
    out.finish()
}

/// The first few of many lines, and how many more there are.
fn in_short(segments: &[&String]) -> Vec<String> {
    let mut lines: Vec<String> = segments.iter().take(SEGMENTS).map(|line| (*line).clone()).collect();
    if segments.len() > SEGMENTS {
        lines.push(format!("and {} more of segments (--json shows them)", segments.len() - SEGMENTS));
    }
    lines
}

fn json(plan: &Plan, applied: bool) -> Result<()> {
    let mut out = Output::new();
    out.json(&Summary {
        errors_before: errors(&plan.before),
        errors_after: errors(&plan.after),
        rounds: plan.rounds.iter().map(|r| Round { classes: &r.classes, done: &r.done }).collect(),
        bytes_written: plan.bytes(),
        left: plan.after.errors().take(100).map(ToString::to_string).collect(),
        unreached: plan.unreached.map(|(_, newest)| newest),
        synced_lost: plan.synced_lost.as_ref().map(ToString::to_string),
        checkpoints_lost: plan.checkpoints_lost.as_deref(),
        stopped: plan.stopped.as_deref(),
        no_space: plan.no_space,
        more: plan.more,
        applied,
    })?;
    out.finish()
}

/// Asks, unless that was answered on the command line.
fn go_on(args: &Args, watch: &impl Watch) -> Result<bool> {
    if args.yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(ControlError::new(Kind::Invalid, "nothing was written: there is nobody to ask")
            .hint("--yes goes on without asking")
            .into());
    }
    let mut to = std::io::stderr().lock();
    let asked = write!(to, "Go on? [y/N] ").and_then(|()| to.flush());
    drop(to);
    wait_for_an_answer(watch);
    if watch.stop() {
        // The answer that did not come ends no line.
        target::eprintln_quiet("");
        return Err(ended(args));
    }
    let mut answer = String::new();
    let read = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Waits for a line on standard input, or for Ctrl-C, which a read would not hear.
fn wait_for_an_answer(watch: &impl Watch) {
    let stdin = std::io::stdin();
    let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    while !watch.stop() {
        match poll(&mut wait, Some(&pause)) {
            Ok(0) | Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// The volume's UUID as far as it can be read: tells whose an undo file is.
pub(super) fn identity(device: &dyn Device) -> [u8; 16] {
    silt_engine::read_super_block(device).map_or([0; 16], |b| b.uuid)
}

fn take_back(args: &Args, file: &Path) -> Result<()> {
    // What is being put back is put back to its end.
    let watch = Interruptible::new(Unwatched);
    overwrite::plain(file)?;
    let device = target::device(&args.volume, Access::ReadWrite)?;
    let undo = Undo::read(file).map_err(wrong_file)?;
    let volume = args.volume.display();
    let known = identity(&device);
    if undo.device_size() != device.len()
        || (known != undo.identity && known != [0; 16] && undo.identity != [0; 16])
    {
        return Err(ControlError::new(
            Kind::Invalid,
            format!("{} was saved of another volume than {volume}", printable(&file.display().to_string())),
        )
        .hint("name the volume that was repaired, and the file that --undo saved then")
        .into());
    }
    let second = secondary_offset(device.len());
    let is_super = |at: u64| at < PRIMARY_OFFSET + 4096 || at >= second;
    match undo.standing(&device, is_super)? {
        Standing::Before => return say_taken_back(args, None),
        Standing::Changed(at) if !args.force => {
            return Err(ControlError::new(
                Kind::Unavailable,
                format!("{volume} was written since the repair (at byte {at})"),
            )
            .hint("--force puts everything back all the same; what was written since is lost")
            .into());
        }
        Standing::After | Standing::Between | Standing::Changed(_) => {}
    }
    if watch.stop() {
        return Err(ended(args));
    }
    undo.take_back(&device, is_super)?;
    say_taken_back(args, Some(undo.bytes()))
}

/// So many bytes were put back, or none had to be.
fn say_taken_back(args: &Args, bytes: Option<u64>) -> Result<()> {
    let volume = args.volume.display();
    let mut out = Output::new();
    match bytes {
        _ if args.json => {
            let said = serde_json::json!({ "taken_back": bytes.is_some(), "bytes": bytes.unwrap_or(0) });
            out.json(&said)?;
        }
        Some(bytes) => {
            out.line(format!("{volume}: the repair is taken back, {} restored", size::show(bytes)))?;
        }
        None => out.line(format!("{volume}: nothing to take back"))?,
    }
    out.finish()
}

/// What cannot be read is the system's failure, and what is no undo file that of the command line.
fn wrong_file(e: silt_device::Error) -> ControlError {
    let wrong =
        matches!(&e, silt_device::Error::Open { source, .. } if source.kind() == ErrorKind::InvalidData);
    let error = ControlError::from(e);
    let kind = match (wrong, error.kind) {
        (true, _) => Kind::Invalid,
        (false, Kind::NotFound) => Kind::NotFound,
        (false, _) => return error,
    };
    ControlError { kind, ..error }.hint("name the file that silt repair --undo saved")
}

#[cfg(test)]
mod tests {
    use super::in_short;

    #[test]
    fn of_many_segments_few_are_shown() {
        let lines: Vec<String> = (0..125).map(|n| format!("segment {n}: dirty instead of clean")).collect();
        let of = |n: usize| in_short(&lines.iter().take(n).collect::<Vec<_>>());
        assert_eq!((of(0).len(), of(10).len(), of(11).len()), (0, 10, 11));
        let all = of(125);
        assert_eq!(
            (all.len(), all.last().map(String::as_str)),
            (11, Some("and 115 more of segments (--json shows them)"))
        );
    }
}
