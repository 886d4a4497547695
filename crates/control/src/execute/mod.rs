//! Executing requests: who may, and what is done. The same for a volume opened here and for one
//! that a daemon holds.
//!
//! Long answers go out in batches. The volume's lock is held for one batch at a time and never
//! while a batch goes out, so a slow reader of a list holds nobody up.

mod account;
pub(crate) mod checkpoints;
mod clean;
mod dump;
mod map;
mod past;
mod retain;
mod segments;
pub(crate) mod settings;
mod shrink;
mod status;
mod trim;

use silt_engine::Volume;

use crate::host::{Caller, Host, with};
use crate::{ControlError, Kind, Request, Response, Result};

/// Items of one batch.
const BATCH: usize = 1000;

/// Takes the parts of an answer; an error ends the request.
pub(crate) type Out<'a> = &'a mut dyn FnMut(Response) -> Result<()>;

/// Executes a request of `caller`, handing the answer's parts to `out`.
pub fn execute(host: &dyn Host, caller: &Caller, request: Request, out: Out<'_>) -> Result<()> {
    permit(host, caller, &request)?;
    if request.writes() {
        writable(host)?;
    }
    match request {
        Request::Ping => Ok(()),
        Request::Serves(connection) => serves(host, connection),
        Request::Status => status::status(host, may_see_names(host, caller), out),
        Request::ListDamage => status::damage(host, out),
        Request::ListCheckpoints(query) => checkpoints::list(host, &query, out),
        Request::MakeCheckpoint { snapshot } => checkpoints::make(host, snapshot, out),
        Request::ChangeMode { checkpoints, snapshot } => {
            checkpoints::change_mode(host, &checkpoints, snapshot, out)
        }
        Request::RemoveCheckpoints { start, end } => checkpoints::remove(host, start, end, out),
        Request::ListSegments(query) => segments::list(host, &query, out),
        Request::Map => map::map(host, out),
        Request::DumpSegments { segments } => dump::dump(host, &segments, out),
        Request::Sync => out(Response::Checkpoint(host.sync()?)),
        Request::LatestLog => {
            let last = with(host, |volume| volume.last_log())?;
            out(Response::LatestLog(last.into()))
        }
        Request::ShowSettings => settings::show(host, out),
        Request::Tune(tune) => settings::tune(host, &tune, out),
        Request::Resize { size } => settings::resize(host, size, out),
        Request::FindMoment { at, snapshot_only } => {
            out(Response::Checkpoint(at.resolve(host, snapshot_only)?))
        }
        Request::MountMoment(mount) => {
            if !mount.dir.is_absolute() {
                return Err(ControlError::new(Kind::Invalid, "the mount point is not an absolute path"));
            }
            if (mount.suid || mount.dev) && caller.uid != 0 {
                return Err(ControlError::new(Kind::NotPermitted, "only root may mount with suid or dev"));
            }
            out(Response::Mounted(host.mount_moment(caller, &mount)?))
        }
        Request::Clean(clean) => clean::clean(host, &clean, out),
        Request::Trim { minimum } => trim::trim(host, minimum, out),
        Request::ShowRetention => retain::show(host, out),
        Request::SetRetention(retain) => retain::set(host, &retain, out),
        Request::PreviewRetention(retain) => retain::preview(host, &retain, out),
        Request::Account => account::account(host, out),
        Request::ListPast(query) => past::past(host, &query, out),
        Request::Scrub(action) => {
            let status = host.scrub(&action)?;
            let status = if may_see_names(host, caller) { status } else { status.without_names() };
            let status = status.within_an_answer();
            out(Response::Scrub(Box::new(status)))
        }
        Request::Unmount(what) => {
            for dir in host.unmount(caller, &what)? {
                out(Response::Unmounted(dir))?;
            }
            Ok(())
        }
    }
}

/// Refuses changes of a volume that is mounted for reading alone.
fn writable(host: &dyn Host) -> Result<()> {
    if host.is_remounted_read_only() {
        return Err(ControlError::new(Kind::ReadOnly, "the volume was remounted read-only")
            .hint("make it writable again first: mount -o remount,rw DIR"));
    }
    // One on which writing failed says why.
    let for_reading = |v: &mut Volume| v.is_read_only() && v.failure().is_none();
    if host.mounted().is_some() && with(host, for_reading)? {
        return Err(ControlError::new(Kind::ReadOnly, "the volume is mounted read-only")
            .hint("unmount it, and mount it for writing where it can be"));
    }
    Ok(())
}

/// Whether the caller may see the names of files in directories that may be closed to him.
fn may_see_names(host: &dyn Host, caller: &Caller) -> bool {
    host.mounted().is_none_or(|mount| caller.uid == 0 || caller.uid == mount.uid)
}

fn serves(host: &dyn Host, connection: u64) -> Result<()> {
    let (kind, message) = match host.serves(connection) {
        Some(true) => return Ok(()),
        Some(false) => (Kind::NotFound, "the daemon serves another mount"),
        None => (Kind::Unavailable, "the daemon cannot tell its mounts"),
    };
    Err(ControlError::new(kind, message))
}

/// Looking: root, who mounted, and others if they were let in, but for what names files in any directory, and where the log
/// is: what is freed stays as long as they look there. Changing: root and who mounted. An unmounted volume is opened with
/// the caller's own rights, which are enough of a rule.
pub(crate) fn permit(host: &dyn Host, caller: &Caller, request: &Request) -> Result<()> {
    if matches!(request, Request::Ping | Request::Serves(_)) {
        return Ok(());
    }
    let Some(mount) = host.mounted() else { return Ok(()) };
    if caller.uid == 0 || caller.uid == mount.uid {
        return Ok(());
    }
    if !mount.allow_other {
        return Err(crate::socket::for_another());
    }
    if matches!(request, Request::ListPast(_) | Request::ListDamage) {
        let message = "only root and who mounted the volume may see the names of all files";
        return Err(ControlError::new(Kind::NotPermitted, message));
    }
    if matches!(request, Request::LatestLog) {
        let message = "only root and who mounted the volume may check it while it is mounted";
        return Err(ControlError::new(Kind::NotPermitted, message)
            .hint("become root, or ask who mounted it; silt status says what was found"));
    }
    if request.only_looks() {
        return Ok(());
    }
    let message = match request {
        Request::Scrub(_) => "only root and who mounted the volume may scrub it while it is mounted",
        Request::Unmount(_) => "only root and who mounted the volume may unmount it",
        _ => "only root and who mounted the volume may change it",
    };
    Err(ControlError::new(Kind::NotPermitted, message).hint("become root, or ask who mounted it"))
}
