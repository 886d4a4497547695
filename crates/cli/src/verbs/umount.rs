//! `silt umount`: unmounts, and returns when the volume is closed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use silt_control::mounts::{self, Mount};
use silt_control::{
    Control, ControlError, Kind, MountPoint, PATIENCE, RemoteVolume, Request, Response, UnmountWhat, connect,
    left_over,
};
use silt_fuse::{Place, Unmount};

use crate::failure::{Failure, Result};
use crate::target;

/// Unmount a directory; returns when everything is written and the volume is closed
///
/// Unmounting the live tree takes the moments mounted beside it along. Where somebody uses one of them, or the tree, all stay
/// mounted. Moments without the live tree are unmounted one by one.
#[derive(clap::Args)]
pub struct Args {
    /// Take it out of sight at once, and let it end when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
    /// Mounted directory; of an image or device, everything is unmounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Unmount helper, as umount(8) calls it: returns when everything is written and the volume is closed
#[derive(clap::Args)]
#[command(override_usage = "silt umount-helper DIR [-flnrv] [-t TYPE] [-N NAMESPACE]")]
pub struct HelperArgs {
    /// Mounted directory; of an image or device, everything is unmounted
    dir: PathBuf,
    /// Accepted: there is no mtab
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Take it out of sight at once, and let it end when nobody uses it any more
    #[arg(short)]
    lazy: bool,
    /// The same
    #[arg(short)]
    force: bool,
    /// Accepted: there is nothing more to say
    #[arg(short)]
    verbose: bool,
    /// Accepted: what is in use stays mounted as it is
    #[arg(short)]
    read_only: bool,
    /// Accepted: the type
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Accepted: umount(8) has entered the namespace
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

pub fn helper(args: &HelperArgs) -> Result<()> {
    run(&Args { lazy: args.lazy || args.force, dir: args.dir.clone() })
}

/// Unmounts a directory that nobody is in.
pub fn strictly(dir: &Path) -> Result<()> {
    run(&Args { lazy: false, dir: dir.to_owned() })
}

pub fn run(args: &Args) -> Result<()> {
    let dir = mounts::locate(&args.dir)?;
    let table = mounts::table()?;
    let on = |dir: &Path| table.iter().rfind(|m| m.dir == dir).cloned();
    // A link to the directory will do.
    let Some(mount) = on(&dir).or_else(|| on(&args.dir.canonicalize().ok()?)) else {
        return volume(args);
    };
    let dir = mount.dir.clone();
    if !mount.is_ours() {
        return Err(ControlError::new(
            Kind::Invalid,
            format!("{} is a mount of {}, not of silt", dir.display(), mount.fs_type),
        )
        .hint("use umount")
        .into());
    }
    if args.lazy {
        let uid = rustix::process::geteuid();
        // The helper would refuse a stranger in words of its own.
        if !uid.is_root() && mount.uid.is_some_and(|owner| owner != uid.as_raw()) {
            let message = "only root and who mounted the volume may unmount it";
            return Err(ControlError::new(Kind::NotPermitted, message)
                .hint("become root, or ask who mounted it")
                .into());
        }
        return by_hand(&mount, Unmount::Lazy);
    }
    match silt_control::of_mount(&mount) {
        Ok(remote) => ask(remote, UnmountWhat::Dir(dir.clone()), Some(&mount)),
        // Whoever may not talk to the daemon may not unmount either, and the kernel says so.
        Err(_) => by_hand(&mount, Unmount::Strict),
    }
}

/// What was named is no mount point: a volume, of which everything is to be unmounted.
fn volume(args: &Args) -> Result<()> {
    let not_mounted = || {
        let message = format!("nothing is mounted on {}", args.dir.display());
        Failure::from(
            ControlError::new(Kind::NotFound, message).hint("silt status shows what is mounted where"),
        )
    };
    if args.dir.is_dir() || !args.dir.exists() {
        return Err(not_mounted());
    }
    if let Some(remote) = connect(&args.dir)?.into_remote() {
        let daemon = remote.process().ok();
        match ask(remote, UnmountWhat::Everything, None) {
            // It was killed, and took our call while it died.
            Err(Failure::Error(e)) if e.kind == Kind::Unavailable && has_ended(daemon.as_ref()) => {}
            answered => return answered,
        }
    }
    // Their daemon is gone.
    let left = silt_control::left_mounts_of(&args.dir)?;
    if left.is_empty() {
        let message = format!("{} is not mounted", args.dir.display());
        return Err(ControlError::new(Kind::NotFound, message)
            .hint("silt status lists what is mounted")
            .into());
    }
    left.iter().rev().try_for_each(|mount| by_hand(mount, Unmount::Strict))
}

/// Unmounts without the daemon, which may be gone, and its socket with it.
fn by_hand(mount: &Mount, how: Unmount) -> Result<()> {
    let place = Place { path: mount.dir.clone(), connection: Some(mount.connection) };
    place.unmount_here(how).map_err(|e| {
        let kind = match &e {
            silt_fuse::Error::Covered(dir) => {
                return Failure::from(ControlError::new(Kind::Busy, e.to_string()).covered(dir));
            }
            silt_fuse::Error::Busy(dir) => {
                return Failure::from(ControlError::new(Kind::Busy, e.to_string()).in_use(dir));
            }
            silt_fuse::Error::NotMounted(_) => Kind::NotFound,
            silt_fuse::Error::Unmount { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Kind::NotPermitted
            }
            silt_fuse::Error::Helper(_) => Kind::NotPermitted,
            _ => Kind::Io,
        };
        Failure::from(ControlError::new(kind, e.to_string()))
    })?;
    left_over::remove_all();
    Ok(())
}

/// Has the daemon unmount, and waits for its end where it is to end.
fn ask(mut remote: RemoteVolume, what: UnmountWhat, mount: Option<&Mount>) -> Result<()> {
    let mut mounts = Vec::new();
    let daemon = remote.process().ok();
    // One that is busy shall not be taken for one that hangs: it gives a sign of life at once, and its status when it can.
    let answered = remote.is_there().map_err(Failure::from).and_then(|()| {
        remote.answer_within(Some(3 * PATIENCE));
        target::call(&mut remote, Request::Status, |part| {
            if let Response::Status(status) = part {
                mounts = status.mounts;
            }
            Ok(())
        })
    });
    match (answered, mount) {
        (Ok(()), _) => {}
        // It was killed, and took our call while it died.
        (Err(Failure::Error(e)), Some(mount))
            if e.kind == Kind::Unavailable && has_ended(daemon.as_ref()) =>
        {
            return by_hand(mount, Unmount::Strict);
        }
        (Err(other), _) => return Err(other),
    }
    remote.answer_within(None);
    if let (None, Some(first)) = (mount, mounts.first().filter(|m| m.unseen)) {
        return Err(first.lingers(Some(remote.pid())).into());
    }
    // A bind mount is known to the kernel alone, and may be the last place where it is to be seen.
    let bound = mount.is_some_and(|m| mounts.iter().all(|place| place.dir != m.dir));
    // With the live tree all ends, and without it with the last moment. One that lies over it goes first, and alone.
    let is_below = |first: &MountPoint, rest: &[MountPoint]| rest.iter().any(|m| m.dir == first.dir);
    let last = match mounts.as_slice() {
        [only] => Some(&only.dir),
        [live, rest @ ..] if live.checkpoint.is_none() && !is_below(live, rest) => Some(&live.dir),
        _ => None,
    };
    let ends = bound || mount.is_none_or(|m| last == Some(&m.dir));
    let process = if ends { remote.process().ok() } else { None };
    if let (true, Some(mount)) = (bound, mount) {
        by_hand(mount, Unmount::Strict)?;
    } else {
        // The answer comes when the volume is closed.
        match telling(|| target::call(&mut remote, Request::Unmount(what), |_| Ok(()))) {
            Ok(()) => {}
            // It may have ended before it could answer.
            Err(Failure::Error(e)) if e.kind == Kind::Unavailable && ends && !still_there(mount)? => {}
            Err(other) => return Err(other),
        }
    }
    let Some(process) = process else { return Ok(()) };
    // As long as it is to be seen somewhere it goes on, perhaps for ever.
    let Some(mount) = mount else { return wait(&process) };
    let left = mounts::ours()?;
    match left.iter().find(|m| m.connection == mount.connection) {
        // It was a second place of a moment, and the live tree stays, or other moments do.
        None if bound && left.iter().any(|m| is_kept_by(&mounts, m)) => Ok(()),
        None => wait(&process),
        Some(other) => {
            target::eprintln_quiet(&format!(
                "note: it is still to be seen on {}, and goes on until that is unmounted too",
                other.dir.display()
            ));
            Ok(())
        }
    }
}

/// Whether a daemon with these mounts goes on as long as this one is there.
fn is_kept_by(mounts: &[MountPoint], mount: &Mount) -> bool {
    let keeps = match mounts.first() {
        Some(live) if live.checkpoint.is_none() => std::slice::from_ref(live),
        _ => mounts,
    };
    keeps.iter().any(|m| m.dir == mount.dir)
}

/// Whether this one is: another one may be seen in its place since.
fn still_there(mount: Option<&Mount>) -> Result<bool> {
    let Some(mount) = mount else { return Ok(false) };
    Ok(mounts::ours()?.iter().any(|m| m.dir == mount.dir && m.connection == mount.connection))
}

/// Whether the daemon has ended, or does so at once.
fn has_ended(daemon: Option<&OwnedFd>) -> bool {
    // It is gone if it could not be watched any more.
    let Some(daemon) = daemon else { return true };
    let mut fds = [PollFd::new(daemon, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 2, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Before it is said what is waited for.
const LONG: Duration = Duration::from_secs(3);

fn say_what_for() {
    target::eprintln_quiet("writing what waits and closing the volume ...");
}

/// Waits for an answer; after a moment says what for.
fn telling<T>(answer: impl FnOnce() -> T) -> T {
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let say = move || {
        if wait.recv_timeout(LONG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            say_what_for();
        }
    };
    // Without a thread nothing is said.
    let _ = std::thread::Builder::new().spawn(say);
    let answer = answer();
    drop(over);
    answer
}

/// Waits for the end of the daemon; after a moment says what for.
fn wait(process: &OwnedFd) -> Result<()> {
    let begin = Instant::now();
    let mut said = false;
    loop {
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let time = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut fds, Some(&time)) {
            Ok(n) if n > 0 => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(ControlError::io("cannot wait for the daemon", &e.into()).into()),
        }
        if !said && begin.elapsed() > LONG {
            said = true;
            say_what_for();
        }
    }
}
