//! `silt rescue`: what survives on a damaged volume, and getting it out. Writes nothing to the volume.

mod report;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use silt_control::{ControlError, Kind, Moment};
use silt_device::{Access, Device, FileDevice, OpenOptions};
use silt_names::quoted;
use silt_verify::Watch;
use silt_verify::rescue::{Answer, CopyError, Grade, Rated, Rescue, geometry};
use zerocopy::IntoBytes;

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::{Output, printable};
use crate::progress::Stages;
use crate::{number, overwrite, target, times};

/// See what survives on a damaged volume, and copy it out
///
/// Reads the whole volume once, with or without super blocks, past sectors that cannot be read, and says which moments
/// survive and how well. With --to, copies out everything of a moment that can be read. Writes nothing to the volume.
#[derive(clap::Args)]
pub struct Args {
    /// Copy out into this directory, which is made or must be empty
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Which moment: a checkpoint's number, or a time as 'yesterday 14:00' or '2026-11-21 14:03:05'; by
    /// default the newest of which anything can be read
    #[arg(long, value_name = "MOMENT")]
    moment: Option<String>,
    /// With --to, write what could not be copied as it was into this file, as JSON
    #[arg(long, value_name = "FILE", requires = "to")]
    report: Option<PathBuf>,
    /// Rate all moments, not only the newest few and snapshots
    #[arg(short, long)]
    all: bool,
    /// Show so many moments, and so many names of damaged files; more are counted
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, value_parser = number::whole::<usize>)]
    lines: usize,
    /// As JSON (of names that are no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// Say nothing of the progress
    #[arg(short, long)]
    quiet: bool,
    /// Image or device
    volume: PathBuf,
}

fn survey<'d>(
    volume: &Path,
    device: &'d FileDevice,
    watch: &'d dyn Watch,
) -> std::result::Result<Rescue<'d>, ControlError> {
    Rescue::open(device, watch).map_err(|e| of_verify(e, volume))
}

/// Whether a device without super blocks holds anything of a volume, as far as that takes to know. Errors: nothing.
pub fn trace(volume: &Path, device: &dyn Device, watch: &dyn Watch) -> Result<()> {
    use silt_verify::Error::Format;
    match geometry::find(device, watch) {
        Err(e @ Format(silt_format::Error::NotNilfs)) if !watch.stop() => Err(of_verify(e, volume).into()),
        _ => Ok(()),
    }
}

fn of_verify(e: silt_verify::Error, volume: &Path) -> ControlError {
    use silt_format::Error as Format;
    let text = e.to_string();
    let error = match e {
        silt_verify::Error::Format(Format::NotNilfs) => {
            ControlError::new(Kind::NotNilfs, "no super block and no log of a NILFS2 volume is there")
                .hint("name the image, or the device or partition that has the volume from its first byte on")
        }
        silt_verify::Error::Format(Format::Incompatible(_)) => ControlError::new(Kind::Incompatible, text)
            .hint("what made the volume can read it, and so may a newer version of silt"),
        silt_verify::Error::NoCheckpoint(_) => {
            let hint = format!("silt rescue {} lists what there is", quoted(volume));
            ControlError::new(Kind::NotFound, text).hint(hint)
        }
        _ => ControlError::new(Kind::Corrupt, text)
            .hint("silt check says what is wrong; if it was cut short or copied in part, copy it again"),
    };
    error.about(volume.display())
}

/// The super block for a mount of what was found: the log that begins at block `log` ends with its super root.
pub fn super_block(volume: &Path, log: u64) -> std::result::Result<Vec<u8>, ControlError> {
    let device = silt_device::open(volume, Access::ReadOnly, &OpenOptions::default())?;
    let rescue = survey(volume, &device, &silt_verify::Unwatched)?;
    let hint = format!("silt rescue {} says what can be mounted", quoted(volume));
    // Of a sound volume, too, a number may be wrong: that is no damage.
    if rescue.roots().iter().all(|root| root.log != Some(log)) {
        let message = format!("no log with a super root begins at block {log}");
        return Err(ControlError::new(Kind::NotFound, message).about(volume.display()).hint(hint));
    }
    let sb = rescue.super_block_for(log).map_err(|e| of_verify(e, volume).hint(hint))?;
    Ok(sb.as_bytes().to_vec())
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.report {
        overwrite::permit(file, &args.volume)?;
    }
    let watch = Interruptible::new(Stages::new(args.quiet));
    let device = target::device(&args.volume, Access::ReadOnly)?;
    let found = survey(&args.volume, &device, &watch);
    if watch.stop() {
        return Err(ended(args, ""));
    }
    let rescue = found?;
    match &args.to {
        Some(to) => copy(args, &rescue, to, &watch),
        None => tell(args, &rescue, &watch),
    }
}

/// Ended by Ctrl-C.
fn ended(args: &Args, what: &str) -> Failure {
    Failure::Ended(format!("{}: ended before it was done{what}", args.volume.display()))
}

/// The number that names a moment.
fn resolve(args: &Args, rescue: &Rescue<'_>) -> Result<Option<u64>> {
    let Some(text) = &args.moment else { return Ok(None) };
    times::tell_of_one_to_come(text);
    match Moment::parse(text)? {
        Moment::Checkpoint(number) => Ok(Some(number)),
        Moment::Time(seconds) => {
            let all = rescue.moments();
            let found = all.iter().find(|m| m.created != 0 && m.created <= seconds);
            found.map(|m| Some(m.cno)).ok_or_else(|| {
                ControlError::new(Kind::NotFound, "no moment that old survives")
                    .about(args.volume.display())
                    .hint(format!("silt rescue {} lists what there is", quoted(&args.volume)))
                    .into()
            })
        }
    }
}

fn nothing(volume: &Path) -> Failure {
    let text = format!("{}: no moment can be read", volume.display());
    ControlError::new(Kind::Corrupt, text)
        .hint("silt check says what is wrong, silt repair shows what it would mend")
        .into()
}

fn copy(args: &Args, rescue: &Rescue<'_>, to: &Path, watch: &Interruptible<Stages>) -> Result<()> {
    let cno = match resolve(args, rescue)? {
        Some(cno) => cno,
        None => match rescue.newest_readable(watch) {
            _ if watch.stop() => return Err(ended(args, "; nothing was copied")),
            found => found.ok_or_else(|| nothing(&args.volume))?,
        },
    };
    watch.stage("copying", 0);
    let tally = rescue.copy_out(cno, to, watch).map_err(|e| {
        let text = e.to_string();
        match e {
            CopyError::Volume(e) => of_verify(e, &args.volume),
            CopyError::NotEmpty(_) => {
                ControlError::new(Kind::Invalid, text).hint("name a new or an empty directory")
            }
            CopyError::NoSpace(_) => {
                ControlError::new(Kind::NoSpace, text).hint("make room there, or name a directory elsewhere")
            }
            CopyError::Destination { path, source } => overwrite::not_made(&path, &source),
        }
    })?;
    watch.inner().clear();
    if watch.stop() {
        return Err(ended(args, &format!("; the copy in {} is not all there is", to.display())));
    }
    let moment = rescue.moments().into_iter().find(|m| m.cno == cno);
    let synced =
        lost_behind(rescue, watch).filter(|(checkpoint, _)| *checkpoint == cno).map(|(_, words)| words);
    let copied = report::Copied::new(cno, moment.map_or(0, |m| m.created), to, &tally, synced.clone());
    if let Some(path) = &args.report {
        let fail = |e: std::io::Error| overwrite::not_made(path, &e);
        let text = serde_json::to_string_pretty(&copied).map_err(|e| fail(e.into()))?;
        let mut file = overwrite::open(path, false).map_err(fail)?;
        file.write_all((text + "\n").as_bytes()).map_err(fail)?;
    }
    let mut out = Output::new();
    if args.json {
        out.json(&copied)?;
    } else {
        copied.text(&mut out, args.lines)?;
    }
    out.finish()?;
    match tally.grade() {
        Grade::Whole if synced.is_none() => Ok(()),
        Grade::Unreadable => Err(Failure::Damaged),
        _ => Err(Failure::Told),
    }
}

fn tell(args: &Args, rescue: &Rescue<'_>, watch: &Interruptible<Stages>) -> Result<()> {
    let answer = match resolve(args, rescue)? {
        Some(cno) => only(args, rescue, cno, watch)?,
        None => rescue.rate(args.all, watch),
    };
    watch.inner().clear();
    if watch.stop() {
        return Err(ended(args, ""));
    }
    let synced = lost_behind(rescue, watch);
    let shown = answer.moments.first().map(|rated| rated.moment.cno);
    let lacks = synced.as_ref().is_some_and(|(checkpoint, _)| Some(*checkpoint) == shown);
    let synced = synced.map(|(_, words)| words);
    let mut out = Output::new();
    if args.json {
        out.json(&report::Survey::new(rescue, &answer, synced))?;
    } else {
        text(args, rescue, &answer, synced, &mut out)?;
    }
    out.finish()?;
    let newest = answer.moments.first().and_then(Rated::grade);
    match newest {
        Some(Grade::Whole) if !lacks => Ok(()),
        _ if answer.newest.is_none() => Err(Failure::Damaged),
        _ => Err(Failure::Told),
    }
}

/// The answer where one moment is asked for: it is the only one that counts.
fn only(args: &Args, rescue: &Rescue<'_>, cno: u64, watch: &impl Watch) -> Result<Answer> {
    let found = rescue.moments().into_iter().find(|m| m.cno == cno);
    let moment = found.ok_or_else(|| of_verify(silt_verify::Error::NoCheckpoint(cno), &args.volume))?;
    watch.stage("reading a moment's metadata", 0);
    let rated = Rated { moment, tally: rescue.judge(cno, watch).ok() };
    let is = |wanted: bool| wanted.then_some(cno);
    Ok(Answer {
        newest: is(rated.grade().is_some_and(|g| g > Grade::Unreadable)),
        newest_whole: is(rated.grade() == Some(Grade::Whole)),
        moments: vec![rated],
    })
}

/// What is lost behind the newest checkpoint that is left, in a sentence, and that checkpoint: what the super blocks tell of,
/// and what was synced and no mount comes to, with the names of files.
fn lost_behind(rescue: &Rescue<'_>, watch: &impl Watch) -> Option<(u64, String)> {
    let newest = rescue.roots().first()?.cno;
    let mut all = rescue.missing();
    all.extend(synced_lost(rescue, watch));
    (!all.is_empty()).then(|| (newest, all.join("; ")))
}

fn synced_lost(rescue: &Rescue<'_>, watch: &impl Watch) -> Option<String> {
    let lost = rescue.unreached()?;
    let inodes = lost.named().map(|(ino, _)| ino).collect();
    let names = rescue.names(lost.checkpoint, inodes, watch).unwrap_or_default();
    let name = |ino: u64| match names.get(&ino) {
        Some(path) => format!("{} (inode {ino})", shown(path)),
        None => format!("inode {ino}"),
    };
    Some(lost.told(name, ""))
}

fn text(
    args: &Args,
    rescue: &Rescue<'_>,
    answer: &Answer,
    synced: Option<String>,
    out: &mut Output,
) -> Result<()> {
    report::survey_lines(rescue).into_iter().try_for_each(|line| out.line(line))?;
    if let Some(lost) = synced.or_else(|| rescue.torn().map(|torn| torn.to_string())) {
        out.line(lost)?;
    }
    out.line("")?;
    out.line(format!("{:>10}  {:<19}  {:<8}  what of it can be read", "MOMENT", "TIME", ""))?;
    for rated in answer.moments.iter().take(args.lines.max(1)) {
        let m = &rated.moment;
        let kind = if m.snapshot { "snapshot" } else { "" };
        out.line(format!(
            "{:>10}  {}  {kind:<8}  {}",
            m.cno,
            times::stamp(m.created, true),
            report::grade_in_words(rated)
        ))?;
    }
    if answer.moments.len() > args.lines.max(1) {
        out.line(format!("{:>10}  more (-n shows them)", answer.moments.len() - args.lines.max(1)))?;
    }
    out.line("")?;
    let volume = quoted(&args.volume);
    let named = args.moment.is_some();
    let whole = answer.moments.iter().find(|r| Some(r.moment.cno) == answer.newest_whole);
    // What mkfs made is whole, and nobody wants it.
    let empty = |r: &&Rated| r.tally.as_ref().is_some_and(|t| t.files == 0 && t.directories < 2);
    let bare = !named && answer.newest != answer.newest_whole && whole.as_ref().is_some_and(empty);
    let whole = whole.filter(|_| !bare);
    match whole {
        // The table says it.
        _ if named => {}
        Some(r) => {
            let when = times::stamp(r.moment.created, true);
            out.line(format!("The newest moment that is whole is checkpoint {} of {when}.", r.moment.cno))?;
        }
        None if bare => out.line("No moment but an empty one is whole.")?,
        None => out.line("No moment that was looked at is whole.")?,
    }
    if let Some(newest) = answer.moments.first().filter(|r| r.grade() != Some(Grade::Whole)) {
        report::lost_lines(newest, named, whole, args.lines)
            .into_iter()
            .try_for_each(|line| out.line(line))?;
    }
    if let Some(newest) = answer.newest {
        let moment = if named { format!(" --moment {newest}") } else { String::new() };
        out.line(format!("Copy it out with: silt rescue {volume} --to DIR{moment}"))?;
        if answer.newest != answer.newest_whole
            && let Some(cno) = whole.map(|r| r.moment.cno)
        {
            out.line(format!("or the whole one: silt rescue {volume} --to DIR --moment {cno}"))?;
        }
    }
    let wanted = whole.map(|r| r.moment.cno).or(answer.newest);
    if let Some((log, at)) = wanted.and_then(|cno| report::mountable(rescue, cno)) {
        let at = at.map(|n| format!(",at={n}")).unwrap_or_default();
        out.line(format!("Look at it with: silt mount -o ro,rescue={log}{at} {volume} DIR"))?;
    }
    Ok(())
}

/// A path as it is shown.
fn shown(path: &[u8]) -> String {
    printable(&format!("/{}", String::from_utf8_lossy(path)))
}
