//! `silt du`: says where the space of a volume is.

use std::path::{Component, Path, PathBuf};

use indicatif::ProgressBar;
use silt_control::past::{PastFile, PastQuery, PastTotal};
use silt_control::{Account, Alone, Control, Request, Response, answers, connect_within, mounts};

use crate::failure::{Failure, Result};
use crate::output::{JsonList, Output, count};
use crate::verbs::status;
use crate::{number, progress, size, space, target};

/// Snapshots that are listed unless all are asked for.
const SNAPSHOTS: usize = 20;

/// Say where the space of a volume is, mounted or not
///
/// Every block is in one class, so the figures add up to the size of the volume: the files as they are now; the history
/// that retention keeps; what only snapshots hold; what can be reclaimed now; metadata; the reserve; what is free.
///
/// With --history it says which files hold how much of the past, those that hold most first: what was overwritten or
/// removed since and is still kept. A path in a mounted volume restricts that to what is at or below it today, or was
/// when it was there last; of a volume that is not mounted the path is given besides, from the root of the volume.
#[derive(clap::Args)]
pub struct Args {
    /// Which files hold how much of the past
    #[arg(long)]
    history: bool,
    /// List so many files
    #[arg(long, value_name = "N", default_value_t = 20, requires = "history", value_parser = number::whole::<u64>)]
    top: u64,
    /// List all snapshots, or with --history all files, however many there are
    #[arg(long)]
    all: bool,
    /// Print it as JSON, in bytes (of names that are no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory (none: the only volume mounted); with --history also any path in it
    #[arg(value_name = "VOLUME|PATH")]
    volume: Option<PathBuf>,
    /// Path in a volume that is named by its image or device
    #[arg(value_name = "PATH", requires = "history")]
    path: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.history {
        return history(args);
    }
    let mut control = target::open(args.volume.as_deref())?;
    let mut out = Output::new();
    let bar = progress::steps("counting", args.json);
    let mut answer = None;
    target::call(&mut *control, Request::Account, |part| {
        match part {
            Response::Counting { done, total } => advance(&bar, done, total),
            Response::Account(a) => answer = Some(*a),
            _ => {}
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let Some(account) = answer else { return out.finish() };
    if args.json {
        out.json(&account)?;
    } else {
        // A volume that is not mounted shows none.
        let status = if control.is_mounted() { status::ask(&mut *control)? } else { None };
        let shown = status.iter().flat_map(|s| &s.mounts).filter_map(|m| m.checkpoint).collect::<Vec<_>>();
        lines(&account, args.all, &shown).iter().try_for_each(|line| out.line(line))?;
    }
    out.finish()
}

fn advance(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
}

/// The volume that holds a path, and the path in it. What is gone is looked for below what is there.
fn place(named: &Path) -> Result<(Box<dyn Control>, PathBuf)> {
    answers(named)?;
    let mut there = named;
    while there.symlink_metadata().is_err() {
        let Some(above) = there.parent() else { break };
        there = above;
        if there.as_os_str().is_empty() {
            break;
        }
    }
    let missing = named.strip_prefix(there).unwrap_or(Path::new(""));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let control = match connect_within(there) {
        Ok(control) if control.is_mounted() || missing.as_os_str().is_empty() => control,
        // It says what there is not.
        _ => connect_within(named)?,
    };
    if !control.is_mounted() {
        return Ok((control, PathBuf::new()));
    }
    let Some(mount) = mounts::holding(there)?.filter(mounts::Mount::is_ours) else {
        return Ok((control, PathBuf::new()));
    };
    // A link is what it is, and not what it leads to.
    let located = mounts::locate(there)?;
    let Ok(inside) = located.strip_prefix(&mount.dir) else { return Ok((control, PathBuf::new())) };
    Ok((control, straight(&inside.join(missing))))
}

/// A path from the root of a volume without "." and "..": what is gone has no links that these could lead over, and above the
/// root is the root.
fn straight(path: &Path) -> PathBuf {
    let mut to = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => to.push(name),
            Component::ParentDir => {
                to.pop();
            }
            _ => {}
        }
    }
    to
}

fn history(args: &Args) -> Result<()> {
    let (mut control, mut below) = match &args.volume {
        Some(named) => place(named)?,
        None => (target::open(None)?, PathBuf::new()),
    };
    if let Some(path) = &args.path {
        if !below.as_os_str().is_empty() {
            return Err(Failure::usage("two paths; name the volume, or one path in it"));
        }
        below = straight(path);
    }
    let all = !below.as_os_str().is_empty();
    let query = PastQuery { below, top: (!args.all).then_some(args.top) };
    let bar = progress::steps("reading logs", args.json);
    let mut out = Output::new();
    let mut list = args.json.then(|| JsonList::new(Output::new()));
    let mut total = PastTotal::default();
    target::call(&mut *control, Request::ListPast(query), |part| {
        match part {
            Response::Counting { done, total } => advance(&bar, done, total),
            Response::Past(batch) => {
                bar.finish_and_clear();
                match &mut list {
                    Some(list) => batch.iter().try_for_each(|f| list.item(f))?,
                    None => batch.iter().try_for_each(|f| out.line(line(f)))?,
                }
            }
            Response::PastTotal(t) => total = *t,
            _ => {}
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    match list {
        Some(mut list) => {
            list.item(&total)?;
            list.finish()
        }
        None => {
            sums(&total, all).iter().try_for_each(|line| out.line(line))?;
            out.finish()
        }
    }
}

fn line(f: &PastFile) -> String {
    let name = f.path.as_ref().map(ToString::to_string);
    let name = name.unwrap_or_else(|| format!("(inode {}, no name known)", f.inode));
    let mut of_it = Vec::new();
    if f.snapshots > 0 {
        of_it.push(format!("{} in snapshots alone", size::show(f.snapshots)));
    }
    if f.gone {
        of_it.push(format!("gone; last in checkpoint {}", f.last));
    }
    let of_it = if of_it.is_empty() { String::new() } else { format!("  ({})", of_it.join("; ")) };
    format!("{:>11}  {name}{of_it}", size::show(f.bytes))
}

fn sums(t: &PastTotal, part: bool) -> Vec<String> {
    let count = |n: u64| count(n, "file");
    let mut lines = Vec::new();
    if t.unlisted > 0 {
        lines.push(format!("             and {} more: --all lists them", count(t.unlisted)));
    }
    lines.push(format!("{:>11}  in {}, past and present", size::show(t.bytes), count(t.files)));
    if !part {
        lines.push(format!("{:>11}  in old inode tables", size::show(t.tables)));
    }
    if t.others > 0 {
        lines.push(format!("{:>11}  in {} with little each", size::show(t.others_bytes), count(t.others)));
    }
    if t.unplaced > 0 {
        let bytes = size::show(t.unplaced_bytes);
        lines.push(format!(
            "{bytes:>11}  in {} that are gone; where they were is not known",
            count(t.unplaced)
        ));
    }
    if t.cut > 0 {
        lines.push(format!(
            "the logs of {} cannot be read to their end: silt scrub says more",
            self::count(t.cut, "segment")
        ));
    }
    lines
}

/// What removing a snapshot brings.
fn removing(s: &Alone) -> String {
    let now = format!("removing snapshot {} alone gives {} back", s.number, size::show(s.bytes));
    match s.left {
        0 => now,
        left => format!("{now}, and {} of the history where space is short", size::show(left)),
    }
}

/// Why snapshots hold nothing alone that hold something together, where moments are mounted that show it.
fn besides(a: &Account, mounted: &[u64]) -> String {
    let alone: u64 = a.alone.iter().map(|s| s.bytes).sum();
    if a.snapshots <= alone || mounted.is_empty() {
        return String::new();
    }
    let moments: Vec<String> = mounted.iter().map(u64::to_string).collect();
    format!(" (what a mounted moment shows stays without them, too: {})", moments.join(", "))
}

fn lines(a: &Account, all: bool, mounted: &[u64]) -> Vec<String> {
    let mut lines = vec![format!("{} in all:", size::show(a.size))];
    lines.extend(space::table(a));
    let mut most: Vec<_> = a.alone.iter().filter(|s| s.bytes > 0 || s.left > 0).collect();
    most.sort_by_key(|s| std::cmp::Reverse(s.bytes.saturating_add(s.left)));
    let shown = if all { most.len() } else { most.len().min(SNAPSHOTS) };
    let none = a.snapshot_count - most.len() as u64;
    lines.extend(most.iter().take(shown).copied().map(removing));
    if most.len() > shown {
        lines.push(format!("and {} more: silt du --all", count((most.len() - shown) as u64, "snapshot")));
    }
    match none {
        0 => {}
        1 => lines.push(format!("1 snapshot holds nothing alone{}", besides(a, mounted))),
        n => lines.push(format!("{n} snapshots hold nothing alone{}", besides(a, mounted))),
    }
    lines.push(format!("kept as long as there is space: {}", a.wish));
    if a.floor != "nothing" {
        lines.push(format!("kept whatever comes: {}", a.floor));
    }
    lines.extend(space::remarks(a));
    lines
}
