//! `fsck.nilfs2`: the check as fsck(8) and boot scripts call it, with its options and exit codes.
//!
//! Options may be grouped (`-fy`); what fsck(8) hands on and is not known here is ignored. With `-a` or `-p` a volume
//! that was cleanly unmounted is passed at once, and of another one only what a mount rests on is looked at: the mount
//! rolls the log forward. `-f`, or neither of them, checks everything.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use silt_control::{ControlError, Kind, mounts};
use silt_device::{Access, Device, FileDevice, OpenOptions};
use silt_names::quoted;
use silt_verify::{Behind, Depth, Options, Watch};

use super::{check, repair};
use crate::failure::{Failure, Result, complain};
use crate::interrupt::Interruptible;
use crate::output::{Output, count};
use crate::progress::Stages;
use crate::signatures;

/// Nothing was found.
const SOUND: u8 = 0;
/// Errors were found and mended.
const MENDED: u8 = 1;
/// Errors are left.
const LEFT: u8 = 4;
/// It could not be looked at.
const OPERATIONAL: u8 = 8;
/// Wrong command line.
const USAGE: u8 = 16;
/// Ended by whoever started it.
const CANCELLED: u8 = 32;

const HOW: &str = "use: fsck.nilfs2 [-napyfvV] [-C FD] DEVICE";

/// What follows the line of use in help and in the manual page.
const OPTIONS: &str = "\
Options:
   -n     only look: change nothing
   -a -p  mend what is safe to mend and ask nothing; what is marked as cleanly unmounted is not looked at, if its
          last log is whole
   -y     mend everything
   -f     look also at what is marked as cleanly unmounted
   -v     say more
   -V     say which version this is
   -C FD  write lines of how far it is to this file descriptor; 0: show a bar

Without -a, -p and -y nothing is changed. Options may be grouped; what is not known is ignored.

Exit codes, those of fsck(8):
   0  sound, or whole but not cleanly unmounted
   1  errors were mended
   4  errors are left
   8  it could not be looked at
  16  wrong command line
  32  ended by whoever started it";

/// Check a NILFS2 volume, as fsck(8) calls the checkers of file systems
#[derive(clap::Args)]
#[command(override_usage = "fsck.nilfs2 [-napyfvV] [-C FD] DEVICE", after_help = OPTIONS)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    all: Vec<OsString>,
}

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// -n: change nothing.
    only_look: bool,
    /// -a, -p: mend what is safe to mend, and ask nothing.
    preen: bool,
    /// -y: mend everything.
    yes: bool,
    /// -f: also what is marked as clean.
    force: bool,
    /// -v: notes too.
    verbose: bool,
    /// -V: the version alone.
    version: bool,
    help: bool,
    /// -C: where completion lines go; 0: a bar on the terminal.
    progress: Option<u32>,
    device: Option<PathBuf>,
}

fn parse(all: &[OsString]) -> std::result::Result<Asked, String> {
    let mut asked = Asked::default();
    let mut options = true;
    let mut rest = all.iter();
    while let Some(arg) = rest.next() {
        let bytes = arg.as_bytes();
        if options && bytes == b"--" {
            options = false;
            continue;
        }
        if !options || bytes.first() != Some(&b'-') || bytes.len() == 1 {
            if asked.device.replace(arg.into()).is_some() {
                return Err("more than one device".to_owned());
            }
            continue;
        }
        if bytes.starts_with(b"--") {
            asked.version |= bytes == b"--version";
            asked.help |= bytes == b"--help";
            continue;
        }
        let mut letters = bytes[1..].iter();
        while let Some(letter) = letters.next() {
            match letter {
                b'n' => asked.only_look = true,
                b'a' | b'p' => asked.preen = true,
                b'y' => asked.yes = true,
                b'f' => asked.force = true,
                b'v' => asked.verbose = true,
                b'V' => asked.version = true,
                b'C' => {
                    // The number may stand behind it or be the next argument.
                    let attached = OsStr::from_bytes(letters.as_slice());
                    let (text, attached) = match attached.is_empty() {
                        true => (rest.as_slice().first().map_or(OsStr::new(""), |a| a), false),
                        false => (attached, true),
                    };
                    match text.to_str().and_then(|t| t.parse().ok()) {
                        Some(fd) => {
                            asked.progress = Some(fd);
                            if !attached {
                                rest.next();
                            }
                        }
                        None if attached => return Err("-C wants the number of a file descriptor".to_owned()),
                        None => asked.progress = Some(0),
                    }
                    if attached {
                        break;
                    }
                }
                // For other file systems, and of no meaning here.
                _ => {}
            }
        }
    }
    if asked.only_look && asked.yes {
        return Err("-n and -y do not go together".to_owned());
    }
    Ok(asked)
}

pub fn run(args: &Args) -> Result<()> {
    let asked = match parse(&args.all) {
        Ok(asked) => asked,
        Err(why) => return Err(wrong_use(why)),
    };
    if asked.version {
        say(&format!("fsck.nilfs2 (silt) {}", env!("CARGO_PKG_VERSION")))?;
        return Ok(());
    }
    if asked.help {
        return say(&format!("{HOW}\n\n{OPTIONS}"));
    }
    let Some(path) = &asked.device else { return Err(wrong_use("no device is named".to_owned())) };
    match look(&asked, path) {
        Ok(SOUND) => Ok(()),
        Ok(code) => Err(Failure::Fsck(code)),
        Err(Failure::Error(e)) => {
            complain(&e);
            Err(Failure::Fsck(OPERATIONAL))
        }
        Err(Failure::Pipe) => Err(Failure::Fsck(OPERATIONAL)),
        Err(other) => Err(other),
    }
}

fn wrong_use(why: String) -> Failure {
    complain(&ControlError::new(Kind::Invalid, why).hint(HOW));
    Failure::Fsck(USAGE)
}

fn say(text: &str) -> Result<()> {
    let mut out = Output::new();
    text.lines().try_for_each(|line| out.line(line))?;
    out.finish()
}

/// Checks a volume; the exit code.
fn look(asked: &Asked, path: &Path) -> Result<u8> {
    let completion = Completion::new(asked.progress.filter(|fd| *fd != 0), path);
    let watch = Interruptible::with_code((Stages::new(asked.progress != Some(0)), completion), CANCELLED);
    let device = open(path)?;
    if silt_verify::is_no_volume(&device) {
        // What another file system has made its own since is not taken for a volume that has lost its super blocks.
        if !asked.yes || signatures::find_around_damage(&device).is_some() {
            return Err(check::no_volume(path).into());
        }
        drop(device);
        let mut out = Output::new();
        out.line(format!("{}: both super blocks are lost", path.display()))?;
        let code = mend(asked, path, &mut out, &watch, false)?;
        out.finish()?;
        return Ok(code);
    }
    let name = path.display();
    let quick = asked.preen && !asked.force;
    let mark = silt_verify::mark(&device);
    let mut depth = Depth::Full;
    if let Some(mark) = mark.filter(|mark| quick && !mark.error) {
        if mark.clean {
            say(&format!("{name}: clean, checkpoint {}; -f checks it all the same", mark.checkpoint))?;
            return Ok(SOUND);
        }
        depth = Depth::Mount;
    }
    let options = Options { depth, findings_per_invariant: 10, ..Options::default() };
    let report = silt_verify::check_watched(&device, &options, &watch);
    let impacts = silt_verify::explain(&device, &options, &report, &watch);
    let stopped = watch.stop();
    let watch = watch.quiet();
    let errors = check::errors(&report);
    let mut out = Output::new();
    check::text(&mut out, &report, &impacts, asked.verbose, true)?;
    if stopped {
        out.line(check::ended(&name.to_string(), errors))?;
        out.finish()?;
        return Ok(CANCELLED);
    }
    let behind = silt_verify::behind(&device);
    let lost = behind.as_ref().is_some_and(Behind::is_lost);
    if let Some(behind @ Behind { synced, logs, .. }) = &behind {
        let said = report.errors().any(|finding| finding.id == "recovery-reached");
        let logs = logs.iter().filter(|_| !said).cloned();
        let untold = behind.untold();
        synced
            .iter()
            .map(ToString::to_string)
            .chain(logs)
            .chain(untold)
            .try_for_each(|line| out.line(line))?;
    }
    if errors == 0 {
        match depth {
            Depth::Full => out.line(check::summary(&name.to_string(), &report, 0, false))?,
            Depth::Mount => out.line(format!(
                "{name}: not cleanly unmounted; the log is whole up to checkpoint {}, and mounting rolls {}it forward",
                report.stats.last_cno,
                if lost { "what is whole behind " } else { "" },
            ))?,
        }
        out.finish()?;
        return Ok(SOUND);
    }
    out.line(check::summary(&name.to_string(), &report, errors, false))?;
    drop(device);
    let code = mend(asked, path, &mut out, &watch, lost)?;
    out.finish()?;
    Ok(code)
}

/// Findings whose mending loses nothing: copies of super blocks, counts, bits and lists that follow from the rest.
const HARMLESS: &[&str] = &[
    "super-block-copy",
    "super-block-agreement",
    "super-block-other-cursor",
    "sufile-clean-count",
    "sufile-dirty-count",
    "sufile-last-alloc",
    "cpfile-count",
    "cpfile-block-count",
    "cpfile-snapshot-list",
    "cpfile-snapshot-flags",
    "cpfile-snapshot-count",
    "cpfile-inodes-count",
    "cpfile-blocks-count",
    "palloc-free-count",
    "palloc-descriptor",
    "inode-reserved-bits",
    "inode-blocks",
];

/// What is done about what was found. The one place where a repair is begun; the exit code then says whether anything
/// is left. `told`: what of synced data is lost was said.
fn mend(asked: &Asked, path: &Path, out: &mut Output, watch: &impl Watch, told: bool) -> Result<u8> {
    let hint = "run silt check for the whole picture, and silt repair --dry-run for what can be mended";
    if asked.only_look || !(asked.yes || asked.preen) {
        out.line(hint)?;
        return Ok(LEFT);
    }
    let device: Arc<dyn Device> =
        Arc::new(silt_device::open(path, Access::ReadWrite, &OpenOptions::default())?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let options = silt_repair::Options {
        now,
        seed: getrandom::u64().unwrap_or(now),
        cache_bytes: 64 << 20,
        ..silt_repair::Options::default()
    };
    let plan = match silt_repair::plan_watched(device.clone(), &options, watch) {
        Err(silt_repair::Error::Stopped) => {
            out.line(format!("{}: ended before it was done; nothing was written", path.display()))?;
            return Ok(CANCELLED);
        }
        Err(silt_repair::Error::Hopeless(_)) if silt_verify::is_no_volume(&*device) => {
            return Err(check::no_volume(path).into());
        }
        made => made.map_err(repair::failed)?,
    };
    if plan.is_empty() && silt_verify::is_no_volume(&*device) {
        return Err(check::no_volume(path).into());
    }
    if let Some(words) = repair::unreached(&plan).filter(|_| plan.unreached.is_some() || !told) {
        out.line(words)?;
    }
    if let Some(lost) = plan.synced_lost.as_ref().filter(|_| !told) {
        out.line(lost.to_string())?;
    }
    let left = silt_repair::errors(&plan.after);
    let harmless =
        left == 0 && plan.unreached.is_none() && plan.before.errors().all(|f| HARMLESS.contains(&f.id));
    if plan.is_empty() || !(asked.yes || harmless) {
        let why = if plan.no_space {
            "there is too little free space to mend in"
        } else {
            "not all of it can be, or not without losing something"
        };
        out.line(format!("nothing was mended: {why}"))?;
        out.line(if plan.no_space { repair::room(path) } else { hint.into() })?;
        return Ok(LEFT);
    }
    let mut saved = None;
    if asked.yes {
        let identity = repair::identity(&*device);
        let uuid = uuid::Uuid::from_bytes(identity);
        let dir = super::scrub::state_dir()?.join("repair");
        let mut maker = std::fs::DirBuilder::new();
        let made = maker.recursive(true).mode(0o700).create(&dir);
        made.map_err(|e| ControlError::io(dir.display(), &e))?;
        let file = save(&dir, &format!("{uuid}-{now}"), |file| {
            silt_device::undo::save(file, &*device, identity, plan.overlay())
        })
        .map_err(|e| repair::unsaved(e, path, &plan))?;
        out.line(format!(
            "what is overwritten is saved: silt repair {} --take-back {}",
            quoted(path),
            quoted(&file)
        ))?;
        saved = Some(file);
    }
    repair::write(&plan, &*device, saved.as_deref(), path)?;
    for line in plan.rounds.iter().flat_map(|r| &r.done) {
        out.line(format!("mended: {line}"))?;
    }
    let name = path.display();
    if left == 0 {
        out.line(format!("{name}: everything is mended"))?;
        return Ok(MENDED);
    }
    for f in plan.after.errors().take(10) {
        out.line(format!("left: [{}] {}: {}", f.id, f.place, f.message))?;
    }
    if let Some(why) = &plan.stopped {
        out.line(format!("not all could be mended: {why}"))?;
    }
    if plan.no_space {
        out.line(repair::room(path))?;
    }
    out.line(format!("{name}: {} left", count(left, "error")))?;
    Ok(MENDED | LEFT)
}

/// Saves under a name that is free: another volume with this UUID, or this one, may have been mended in the same second.
fn save(
    dir: &Path,
    name: &str,
    mut to: impl FnMut(&Path) -> silt_device::Result<u64>,
) -> silt_device::Result<PathBuf> {
    use silt_device::Error::Open;
    let (mut file, mut n) = (dir.join(format!("{name}.undo")), 1_u64);
    loop {
        match to(&file) {
            Err(Open { source, .. }) if source.kind() == ErrorKind::AlreadyExists => n += 1,
            saved => return saved.map(|_| file),
        }
        file = dir.join(format!("{name}-{n}.undo"));
    }
}

fn open(path: &Path) -> Result<FileDevice> {
    if let Ok(real) = mounts::locate(path)
        && let Some(mount) = mounts::table()?
            .into_iter()
            .rfind(|m| (m.source == real && m.names_its_source()) || m.dir == real)
    {
        let message = format!("{} is mounted on {}", path.display(), mount.dir.display());
        return Err(ControlError::new(Kind::Busy, message)
            .hint("unmount it first, or run silt check, which can look at what is mounted")
            .into());
    }
    let options = OpenOptions::default();
    silt_device::open(path, Access::ReadOnly, &options).map_err(|e| {
        let e = ControlError::from(e);
        let busy = e.kind == Kind::Busy;
        Failure::from(if busy { e.hint("it is mounted or being changed: unmount it first") } else { e })
    })
}

/// Completion lines on a file descriptor, as fsck(8) reads them: `pass current maximum device`.
struct Completion {
    to: Option<Mutex<Lines>>,
    device: String,
}

struct Lines {
    to: File,
    pass: u32,
    at: u64,
    total: u64,
    told: u64,
}

impl Completion {
    fn new(fd: Option<u32>, device: &Path) -> Self {
        // A descriptor that is not there, or cannot be written, costs the lines and not the check.
        let open = |fd| File::options().append(true).open(format!("/proc/self/fd/{fd}"));
        let lines = |to| Mutex::new(Lines { to, pass: 0, at: 0, total: 0, told: 0 });
        Completion { to: fd.and_then(|fd| open(fd).ok()).map(lines), device: device.display().to_string() }
    }

    fn tell(&self, lines: &mut Lines) {
        let (at, total) = (lines.at.min(lines.total), lines.total);
        lines.told = at;
        let _ = writeln!(lines.to, "{} {at} {total} {}", lines.pass, self.device);
    }
}

impl Watch for Completion {
    fn stage(&self, _: &'static str, total: u64) {
        let Some(lines) = &self.to else { return };
        let lines = &mut *lines.lock();
        lines.pass += 1;
        (lines.at, lines.total) = (0, total.max(1));
        self.tell(lines);
    }

    fn done(&self, units: u64) {
        let Some(lines) = &self.to else { return };
        let lines = &mut *lines.lock();
        lines.at = lines.at.saturating_add(units);
        // A line for each percent.
        if lines.at.min(lines.total) - lines.told > lines.total / 100 {
            self.tell(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[&str]) -> std::result::Result<Asked, String> {
        parse(&all.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_saved_takes_no_name_that_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let made = |path: &Path| match File::create_new(path) {
            Ok(_) => Ok(1),
            Err(source) => Err(silt_device::Error::Open { path: path.display().to_string(), source }),
        };
        let names = [(); 3].map(|()| save(dir.path(), "uuid-7", made).unwrap());
        assert_eq!(names, ["uuid-7.undo", "uuid-7-2.undo", "uuid-7-3.undo"].map(|n| dir.path().join(n)));
        let failed = save(&dir.path().join("nowhere"), "uuid-7", made).unwrap_err();
        assert!(failed.to_string().contains("nowhere"), "{failed}");
    }

    #[test]
    fn options_are_grouped_and_unknown_ones_pass() {
        let asked = of(&["-fyv", "-T", "--quiet", "/dev/x"]).unwrap();
        let device = Some(PathBuf::from("/dev/x"));
        assert_eq!(asked, Asked { force: true, yes: true, verbose: true, device, ..Asked::default() });
        assert!(of(&["-p", "x"]).unwrap().preen && of(&["-a", "x"]).unwrap().preen);
        assert!(of(&["-ny", "x"]).is_err() && of(&["x", "y"]).is_err());
        assert_eq!(of(&["--", "-f"]).unwrap().device, Some("-f".into()));
    }

    #[test]
    fn the_descriptor_of_progress_is_found_wherever_it_stands() {
        for all in [&["-C3", "x"][..], &["-C", "3", "x"], &["-aC3", "x"], &["-aC", "3", "x"]] {
            let asked = of(all).unwrap();
            assert_eq!((asked.progress, asked.device), (Some(3), Some("x".into())), "{all:?}");
        }
        let asked = of(&["-C", "x"]).unwrap();
        assert_eq!((asked.progress, asked.device), (Some(0), Some("x".into())));
        assert!(of(&["-C3x", "y"]).is_err());
    }
}
