//! `silt mount`: mounts a volume, or a past moment of one.
//!
//! The program starts itself again in the background (`serve`, hidden), waits until the mount
//! answers, and says where it is. A moment of a volume that a daemon holds is that daemon's to
//! mount.

mod background;
mod default_volume;
pub mod helper;
mod log;
mod options;
mod remount;
pub mod serve;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use silt_control::{
    CheckpointQuery, Control, ControlError, Kind, Moment, MomentMount, PATIENCE, Request, Response, Status,
    answers, connect, mounts,
};
use silt_names::quoted;
use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::{overwrite, size, target, times};
use options::Options;

/// Mount a volume, or a past moment of one
///
/// Without a volume, the default one: a sparse image of 16 GiB in the user's data directory (root's
/// is /var/lib/silt/default.img), which is made if there is none. The directory is made if it is not
/// there.
///
/// A past moment is mounted beside the live tree with -o at=NUMBER or -o at=TIME; the volume may
/// then also be named by the directory where it is mounted.
#[derive(clap::Args)]
#[command(override_usage = "silt mount [OPTIONS] [VOLUME] DIR", after_help = options::HELP)]
pub struct Args {
    /// Options, with commas between them (see below)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Stay in the foreground and write the log to standard error
    #[arg(short, long)]
    foreground: bool,
    /// Read-only
    #[arg(short, long)]
    read_only: bool,
    /// Append the log to this file instead of sending it to the system's
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// The volume, unless it is the default one, and the directory to mount it on
    #[arg(value_name = "[VOLUME] DIR", num_args = 1.., required = true)]
    paths: Vec<PathBuf>,
}

/// What is mounted, where and how: what `mount` and the helper of mount(8) have in common.
pub struct Job {
    pub volume: PathBuf,
    pub dir: PathBuf,
    pub options: Options,
    pub log: Option<PathBuf>,
    pub foreground: bool,
    pub verbose: bool,
    /// Say where it is.
    pub tell: bool,
    /// The moment that was chosen, in words.
    pub shown: Option<String>,
}

pub fn run(args: Args) -> Result<()> {
    let mut options = Options::parse(args.options.iter().map(OsString::as_os_str), false)?;
    options.read_only |= args.read_only;
    if args.paths.len() > 2 {
        return Err(too_many(args.paths.len(), options.at.is_some()).into());
    }
    if options.remount {
        let dir = args.paths.last().ok_or_else(|| Failure::usage("name a directory"))?;
        return remount::run(dir, &options, &options);
    }
    options.note_what_is_in_vain();
    // Before the default volume is made for it.
    if args.paths.last().is_some_and(|dir| std::path::absolute(dir).is_ok_and(|dir| dir == Path::new("/"))) {
        return Err(on_root().into());
    }
    let (volume, dir) = match args.paths.as_slice() {
        [dir] => (default_volume::find_or_make(args.verbose)?, dir.clone()),
        [volume, dir] => (volume.clone(), dir.clone()),
        _ => return Err(too_many(args.paths.len(), false).into()),
    };
    // A directory that something is mounted on is not looked at: its daemon may hang.
    answers(&dir)?;
    let missing = mounts::locate(&dir).is_ok_and(|d| {
        std::fs::symlink_metadata(&d).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    });
    if missing {
        std::fs::create_dir(&dir).map_err(|e| overwrite::not_made(&dir, &e))?;
    }
    let Args { foreground, log, verbose, .. } = args;
    let result =
        mount(Job { volume, dir: dir.clone(), options, log, foreground, verbose, tell: true, shown: None });
    if result.is_err() && missing {
        // Only while it is empty and nothing is mounted on it.
        let _ = std::fs::remove_dir(&dir);
    }
    result
}

pub(super) fn mount(job: Job) -> Result<()> {
    job.options.check()?;
    if let Some(log) = &job.log {
        overwrite::permit(log, &job.volume)?;
    }
    answers(&job.dir)?;
    let dir = directory(&job.dir)?;
    let mut control = connect(&job.volume)?;
    if control.is_mounted() {
        return beside(&mut *control, &job, &dir);
    }
    let volume = job.volume.canonicalize().map_err(|e| ControlError::io(job.volume.display(), &e))?;
    let rescue = job.options.rescue.is_some();
    if !job.options.read_only && job.options.at.is_none() && !rescue {
        check_features(&mut *control, &volume)?;
    }
    // The number is looked for while nobody else can change the volume but us.
    let moment = match &job.options.at {
        None => None,
        Some((Moment::Checkpoint(number), _)) if rescue => Some(*number),
        Some((at, snapshot_only)) => Some(resolve(&mut *control, *at, *snapshot_only)?),
    };
    let shown = match moment {
        Some(number) if job.tell && !rescue => Some(describe(&mut *control, number)?),
        _ => None,
    };
    drop(control);
    let job = Job { volume, dir, shown, ..job };
    if job.foreground {
        return serve::here(&job, moment);
    }
    background::start(&job, moment).map_err(|e| on_read_only(e, &job.options))?;
    tell(&job, true);
    Ok(())
}

/// Where what holds the volume can only be read, so can the volume.
fn on_read_only(failure: Failure, options: &Options) -> Failure {
    match failure {
        Failure::Error(e) if e.kind == Kind::ReadOnly && !options.read_only => {
            e.hint("mount it for reading: silt mount -o ro").into()
        }
        other => other,
    }
}

/// More was named than a volume and a directory: with a moment most often the rest of a time.
fn too_many(names: usize, with_moment: bool) -> ControlError {
    let message = format!("{names} names are too many: a volume is mounted on a directory");
    ControlError::new(Kind::Invalid, message).hint(if with_moment {
        "quote a time with blanks: silt mount -o at='10 minutes ago' VOLUME DIR"
    } else {
        "silt mount VOLUME DIR; quote names with blanks"
    })
}

/// What lies on the root directory is all that anybody starts from then, and the tools that unmount it are below it.
fn on_root() -> ControlError {
    ControlError::new(Kind::Invalid, "a volume is not mounted on /: it would cover everything, for everybody")
        .hint("name another directory")
}

/// The directory to mount on, absolute and without symbolic links.
fn directory(path: &Path) -> Result<PathBuf> {
    let fail = |e: std::io::Error| match e.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOTCONN.raw_os_error() => {
            let message = format!("{} holds a mount whose daemon is gone", path.display());
            ControlError::new(Kind::Unavailable, message).hint(format!("silt umount {}", quoted(path)))
        }
        _ if e.kind() == std::io::ErrorKind::NotFound => {
            ControlError::io(path.display(), &e).hint(format!("make it first: mkdir -p {}", quoted(path)))
        }
        _ => ControlError::io(path.display(), &e),
    };
    let dir = path.canonicalize().map_err(fail)?;
    if dir == Path::new("/") {
        return Err(on_root().into());
    }
    // Only what asks for attributes hears of a daemon that is gone.
    if dir.metadata().map_err(fail)?.is_dir() {
        return Ok(dir);
    }
    Err(ControlError::new(Kind::Invalid, format!("{} is not a directory", dir.display()))
        .hint("name one to mount on; mkdir makes it")
        .into())
}

/// Refuses to write to a volume with features that only allow reading.
fn check_features(control: &mut dyn Control, volume: &Path) -> Result<()> {
    let mut features = 0;
    target::call(control, Request::ShowSettings, |part| {
        if let Response::Settings(s) = part {
            features = s.read_only_features;
        }
        Ok(())
    })?;
    if features == 0 {
        return Ok(());
    }
    let message = format!("{} has features that only allow reading ({features:#x})", volume.display());
    Err(ControlError::new(Kind::Incompatible, message).hint("mount it with -o ro").into())
}

fn resolve(control: &mut dyn Control, at: Moment, snapshot_only: bool) -> Result<u64> {
    let mut found = None;
    target::call(control, Request::FindMoment { at, snapshot_only }, |part| {
        if let Response::Checkpoint(n) = part {
            found = Some(n);
        }
        Ok(())
    })?;
    found.ok_or_else(|| ControlError::new(Kind::NotFound, "there is no such moment").into())
}

/// A checkpoint and its time, in words.
fn describe(control: &mut dyn Control, number: u64) -> Result<String> {
    let query = CheckpointQuery { from: Some(number), count: Some(1), minor: true, ..Default::default() };
    let mut words = format!("checkpoint {number}");
    target::call(control, Request::ListCheckpoints(query), |part| {
        if let Response::Checkpoints(list) = part {
            let it = list.iter().find(|c| c.number == number);
            it.iter().for_each(|c| words += &format!(" of {}", times::stamp(c.created, false)));
        }
        Ok(())
    })?;
    Ok(words)
}

/// Mounts a moment of a volume that a daemon holds.
fn beside(control: &mut dyn Control, job: &Job, dir: &Path) -> Result<()> {
    let Some((at, snapshot_only)) = job.options.at else {
        let status = status(control)?;
        let lingering =
            status.as_ref().and_then(|s| s.mounts.first().filter(|m| m.unseen).map(|m| (m, s.pid)));
        if let Some((first, pid)) = lingering {
            let error = first.lingers(pid);
            return Err(error.about(job.volume.display()).into());
        }
        let several = status.as_ref().is_some_and(|s| s.mounts.len() > 1);
        let volume = status.as_ref().map(|s| s.volume.clone()).unwrap_or_default();
        let first = status.and_then(|s| s.mounts.into_iter().next());
        let at = first.as_ref().map(|m| format!(" on {}", m.dir.display())).unwrap_or_default();
        let error = |more: &str| {
            ControlError::new(Kind::Busy, format!("{} is mounted{at} already{more}", job.volume.display()))
        };
        let error = match first.filter(|m| m.checkpoint.is_some()) {
            // Its daemon has the volume for reading only.
            Some(m) => error(", as a past moment").hint(format!(
                "unmount that first: silt umount {}; then mount the live tree, and moments beside it",
                quoted(if several { &volume } else { &m.dir })
            )),
            None => error("").hint("-o at=NUMBER or at=TIME mounts a past moment beside it"),
        };
        return Err(error.into());
    };
    if job.foreground {
        return Err(Failure::usage(
            "a moment beside a mounted volume is served by that mount's daemon: leave out -f",
        ));
    }
    let number = resolve(control, at, snapshot_only)?;
    let shown = if job.tell { describe(control, number)? } else { String::new() };
    let mount = MomentMount {
        at: Moment::Checkpoint(number),
        snapshot_only,
        dir: dir.to_owned(),
        allow_other: job.options.allow_other,
        exec: job.options.daemon.exec,
        suid: job.options.daemon.suid,
        dev: job.options.daemon.dev,
    };
    let mut lines = Vec::new();
    // A daemon that was asked mounts it, whether anybody still waits for that or not.
    let watch = Interruptible::new(Unwatched);
    background::held(&watch, || {
        target::call(control, Request::MountMoment(mount), |part| {
            if let Response::Mounted(dir) = part {
                lines.push(format!(
                    "{} shows {shown}, read-only; unmount with: silt umount {}",
                    dir.display(),
                    quoted(&dir)
                ));
            }
            Ok(())
        })
    })?;
    if watch.stop() {
        return Err(background::taken_back(dir));
    }
    note(job);
    if job.tell {
        print(&lines);
    }
    Ok(())
}

/// Says what is to be said of the options: nothing of them where it is not mounted.
fn note(job: &Job) {
    job.options.notes.iter().for_each(|n| target::eprintln_quiet(&format!("note: {n}")));
}

/// Prints what is to be said of a mount. That it cannot be printed is no failure of mounting.
fn print(lines: &[String]) {
    let mut out = Output::new();
    let printed = lines.iter().try_for_each(|line| out.line(line)).and_then(|()| out.finish());
    if let Err(Failure::Error(e)) = printed {
        target::eprintln_quiet(&format!("note: it is mounted, but {}", e.message));
    }
}

fn status(control: &mut dyn Control) -> Result<Option<Status>> {
    let mut status = None;
    control.answer_within(Some(PATIENCE));
    target::call(control, Request::Status, |part| {
        if let Response::Status(s) = part {
            status = Some(*s);
        }
        Ok(())
    })?;
    control.answer_within(None);
    Ok(status)
}

/// The three lines: where it is, how to see its moments, how to unmount. `notes`: also what opening found, on standard
/// error; what was synced and is lost is said in any case.
pub(super) fn tell(job: &Job, notes: bool) {
    note(job);
    let mut control = connect(&job.dir).ok();
    let status = control.as_mut().and_then(|c| status(&mut **c).ok()).flatten();
    // Which one a log leads to is known once it is open.
    let found = match (&job.options, &status, &mut control) {
        (Options { rescue: Some(_), at, .. }, Some(s), Some(control)) if job.tell => {
            let number = match at {
                Some((Moment::Checkpoint(number), _)) => *number,
                _ => s.newest_checkpoint,
            };
            describe(&mut **control, number).ok()
        }
        _ => None,
    };
    if notes {
        let lost = status.iter().flat_map(|s| &s.lost);
        lost.for_each(|n| target::eprintln_quiet(&format!("lost: {n}")));
    }
    if !job.tell {
        return;
    }
    let (dir, typed) = (job.dir.display(), quoted(&job.dir));
    let sync = match status.as_ref().map(|s| (s.sync_arrives, s.read_only)) {
        Some((Some(true), false)) => "; sync reaches it".to_owned(),
        Some((Some(false), false)) => {
            format!("; sync does not reach it: silt sync {typed} does what it would")
        }
        _ => String::new(),
    };
    let bytes = status.as_ref().map_or_else(String::new, |s| format!(", {}", size::show(s.size)));
    let volume = job.volume.display();
    let read_only = status.as_ref().map_or(job.options.read_only, |s| s.read_only);
    let first = match job.shown.as_ref().or(found.as_ref()) {
        Some(shown) => format!("{dir} shows {shown}, read-only ({volume}{bytes})"),
        None if read_only => format!("{dir} is mounted read-only ({volume}{bytes})"),
        None => format!("{dir} is mounted ({volume}{bytes}){sync}"),
    };
    print(&[
        first,
        format!("moments: silt lscp {typed} lists them, silt mount -o at=NUMBER {typed} OTHERDIR shows one"),
        format!("unmount with: silt umount {typed}"),
    ]);
    let notes = status.iter().filter(|_| notes).flat_map(|s| &s.notes);
    notes.for_each(|n| target::eprintln_quiet(&format!("note: {n}")));
}
