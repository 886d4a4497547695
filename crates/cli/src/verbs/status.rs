//! `silt status`: says in plain words what a volume is and how it is.

use std::path::PathBuf;

use silt_control::{
    Control, ControlError, Damage, Kind, MountPoint, PATIENCE, Request, Response, Status, connect, left_over,
    mounted_volumes, of_mount,
};
use silt_names::{ByteName, quoted};

use crate::failure::{Failure, Result};
use crate::output::{JsonList, Output, count};
use crate::{cleaner, size, space, target, times};

/// Say what a volume is, where it is mounted, and how it is
#[derive(clap::Args)]
pub struct Args {
    /// As JSON (of names that are no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// List what was found damaged since the volume was mounted
    #[arg(long)]
    damage: bool,
    /// Image, device or mounted directory; none: all volumes mounted
    volume: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.damage {
        return damage(args);
    }
    if let Some(volume) = &args.volume {
        let status = ask(&mut *connect(volume)?)?;
        let mut out = Output::new();
        if args.json {
            out.json(&status)?;
        } else {
            status.iter().flat_map(lines).try_for_each(|line| out.line(line))?;
        }
        return out.finish();
    }
    all(args.json)
}

/// The files found damaged on one volume, or on the only one mounted.
fn damage(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    // What is met is met by a mount.
    if let Some(volume) = args.volume.as_ref().filter(|_| !control.is_mounted()) {
        let message = format!("{} is not mounted, and nobody meets damage there", volume.display());
        return Err(ControlError::new(Kind::Unavailable, message)
            .hint(format!("silt check {} looks for it", quoted(volume)))
            .into());
    }
    control.answer_within(Some(PATIENCE));
    if args.json {
        let mut list = JsonList::new(Output::new());
        target::call(&mut *control, Request::ListDamage, |part| {
            let Response::Damage(batch) = part else { return Ok(()) };
            batch.iter().try_for_each(|d| list.item(d))
        })?;
        return list.finish();
    }
    let mut out = Output::new();
    let mut some = false;
    target::call(&mut *control, Request::ListDamage, |part| {
        let Response::Damage(batch) = part else { return Ok(()) };
        some |= !batch.is_empty();
        batch.iter().try_for_each(|d| out.line(damage_line(d)))
    })?;
    if !some {
        out.line("no damage was met since the volume was mounted")?;
    }
    out.finish()
}

/// Where, what, and since when.
fn damage_line(d: &Damage) -> String {
    let path = d.path.as_ref().map_or("(no path known)".into(), ByteName::text);
    let mut place = String::new();
    if d.block.is_none() {
        place = format!(" (inode {}", d.inode);
        if let Some(c) = d.checkpoint {
            place += &format!(" of checkpoint {c}");
        }
        if let (Some(start), Some(end)) = (d.start, d.end) {
            place += &format!(", bytes {start} to {end}");
        }
        place.push(')');
    }
    let times = if d.times > 1 { format!(", {} times", d.times) } else { String::new() };
    format!("{}  {path}{place}: {}{times}", times::stamp(d.first, false), d.what)
}

/// All volumes mounted. One that does not answer hides no other.
fn all(json: bool) -> Result<()> {
    // Where nothing is mounted any more nobody else comes upon it.
    left_over::remove_all();
    let mounts = mounted_volumes()?;
    let mut found = Vec::new();
    let mut some_failed = false;
    for mount in &mounts {
        match of_mount(mount).map_err(Failure::from).and_then(|mut daemon| ask(&mut daemon)) {
            Ok(status) => found.extend(status),
            Err(Failure::Error(e)) => {
                target::refused(mount.dir.display(), &e);
                some_failed = true;
            }
            Err(other) => return Err(other),
        }
    }
    if json {
        let mut list = JsonList::new(Output::new());
        found.iter().try_for_each(|status| list.item(status))?;
        list.finish()?;
    } else {
        let mut out = Output::new();
        if mounts.is_empty() {
            out.line("no volume is mounted")?;
        }
        for (n, status) in found.iter().enumerate() {
            if n > 0 {
                out.line("")?;
            }
            lines(status).iter().try_for_each(|line| out.line(line))?;
        }
        out.finish()?;
    }
    if some_failed { Err(Failure::Told) } else { Ok(()) }
}

pub(super) fn ask(control: &mut dyn Control) -> Result<Option<Status>> {
    let mut answer = None;
    control.answer_within(Some(PATIENCE));
    target::call(control, Request::Status, |part| {
        if let Response::Status(status) = part {
            answer = Some(*status);
        }
        Ok(())
    })?;
    Ok(answer)
}

/// The status in sentences, the most asked first.
fn lines(s: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    let label = if s.label.is_empty() { String::new() } else { format!(" \"{}\"", s.label) };
    lines.push(format!("{}{label}: a NILFS2 volume of {}", s.volume.display(), size::show(s.size)));
    lines.extend(mounts(s));
    lines.push(format!(
        "space: {} clean ({} of it for you), {} in use",
        size::show(s.free),
        size::show(s.available),
        size::show(s.live.saturating_add(s.past))
    ));
    lines.extend(account(s));
    if let Some(host) = s.host_free.filter(|h| *h < s.free) {
        lines.push(format!("the file system that holds the image has only {} left", size::show(host)));
    }
    lines.push(format!(
        "moments: {}, {} of them kept as {}",
        count(s.checkpoints, "checkpoint"),
        s.snapshots,
        if s.snapshots == 1 { "a snapshot" } else { "snapshots" }
    ));
    lines.push(format!(
        "newest: checkpoint {}, made {} ({})",
        s.newest_checkpoint,
        times::ago(s.newest_checkpoint_time),
        times::stamp(s.newest_checkpoint_time, false)
    ));
    if !s.mounts.is_empty() && !s.read_only {
        lines.push(match (s.dirty, s.dirty_files) {
            (0, 0) => "waiting to be written: nothing".to_owned(),
            (bytes, files) => {
                format!("waiting to be written: {} in {}", size::show(bytes), count(files, "file"))
            }
        });
    }
    lines.push(format!(
        "log: in segment {} of {}, {} clean, {} of them kept back; {} each, blocks of {} bytes",
        s.current_segment,
        s.segments,
        s.free_segments,
        s.reserved_segments,
        size::show(s.segment_size),
        s.block_size
    ));
    lines.extend(s.cleaner.iter().flat_map(|c| cleaner::lines(c, s.block_size)));
    lines.push(discard(s));
    lines.push(format!("files and directories: {}", s.files));
    lines.push(format!("UUID: {}", s.uuid));
    let damaged = [(s.damaged, "file"), (s.damaged_logs, "log")];
    let damaged: Vec<String> = damaged.iter().filter(|d| d.0 > 0).map(|(n, one)| count(*n, one)).collect();
    if !damaged.is_empty() {
        lines.push(format!("damage: {}, silt status --damage lists them", damaged.join(" and ")));
    }
    if let Some(why) = &s.failure {
        lines.push(format!("nothing is written any more: {why}"));
    }
    lines.extend(s.lost.iter().map(|n| format!("lost: {n}")));
    lines.extend(s.notes.iter().map(|n| format!("note: {n}")));
    lines
}

/// Where the space is, or that it is being counted.
fn account(s: &Status) -> Vec<String> {
    let kept = &s.account;
    let mut lines = Vec::new();
    if let Some(a) = &kept.account {
        lines.extend(space::table(a));
        lines.extend(space::remarks(a));
    }
    match (&kept.account, &kept.problem) {
        (_, Some(why)) => lines.push(format!("where the space is cannot be counted: {why}")),
        (None, None) => lines.push(format!("where the space is: counting ({}% done)", kept.percent)),
        (Some(a), None) if kept.counting => {
            lines.push(format!("  {}, counting anew ({}% done)", space::counted(a), kept.percent));
        }
        (Some(a), None) if !s.mounts.is_empty() => lines.push(format!("  {}", space::counted(a))),
        _ => {}
    }
    let Some(a) = &kept.account else { return lines };
    // A hundredth of the volume is more than the next count waits for.
    if a.size.saturating_sub(a.outside).abs_diff(s.size) >= s.segment_size {
        lines.push(format!(
            "  the volume had another size then ({}), and these figures are of that; silt du counts anew",
            size::show(a.size)
        ));
    } else if s.newest_checkpoint > a.checkpoint && a.live.abs_diff(s.live) > s.size / 100 {
        lines.push(
            "  much changed since: these figures are older than those above; silt du counts anew".to_owned(),
        );
    }
    lines
}

/// What becomes of the bytes of clean segments.
fn discard(s: &Status) -> String {
    let d = &s.discard;
    match (d.possible, d.on) {
        (_, None) => "discard: silt trim gives free space back".to_owned(),
        // Of what was opened for reading it is not known.
        (_, Some(false)) if s.read_only => "discard: off, nothing is written".to_owned(),
        (false, Some(_)) => "discard: what holds the volume cannot".to_owned(),
        (true, Some(true)) => format!(
            "discard: on; {} of free space given back since it was mounted, {} to come",
            size::show(d.discarded),
            size::show(d.waiting)
        ),
        (true, Some(false)) => "discard: off; silt trim gives free space back".to_owned(),
    }
}

fn mounts(s: &Status) -> Vec<String> {
    let Some(live) = s.mounts.first() else {
        let clean = if s.clean { "cleanly unmounted" } else { "not cleanly unmounted" };
        return vec![format!("not mounted ({clean})")];
    };
    let how = |m: &MountPoint| {
        let how = match (m.checkpoint, m.read_only) {
            (Some(n), _) => format!("showing checkpoint {n}"),
            (None, true) => "read-only".to_owned(),
            (None, false) if s.failure.is_some() => "read-write, but nothing is written any more".to_owned(),
            // What was found allows no more.
            (None, false) if s.read_only => "read-only".to_owned(),
            (None, false) => "read-write".to_owned(),
        };
        if m.covered { format!("{how} (not to be seen: another mount lies over it)") } else { how }
    };
    if live.unseen {
        let pid = s.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        let mut lines = vec![format!(
            "unmounted from {}, and in use still: its daemon{pid} ends with the last program that has a file or directory of it open",
            live.dir.display()
        )];
        lines.extend(s.mounts.iter().skip(1).map(|m| format!("  mounted on {} {}", m.dir.display(), how(m))));
        return lines;
    }
    let since = s.mounted_since.map_or_else(String::new, |t| format!(", {}", times::ago(t)));
    let mut lines = vec![format!("mounted on {} {}{since}", live.dir.display(), how(live))];
    lines.extend(s.mounts.iter().skip(1).map(|m| format!("  and on {} {}", m.dir.display(), how(m))));
    if !live.read_only {
        lines.push(match s.sync_arrives {
            Some(true) => "sync reaches it".to_owned(),
            Some(false) => format!("sync does not reach it: use silt sync {}", quoted(&live.dir)),
            None => "whether sync reaches it is not known yet".to_owned(),
        });
    }
    lines
}
