//! What is checked: an image or device that nobody writes to, or the newest checkpoint of one that is mounted.

use std::path::Path;

use silt_control::mounts::{self, Mount};
use silt_control::{Control, ControlError, Kind, PATIENCE, Request, Response, connect};
use silt_device::{Access, FileDevice, OpenOptions};
use silt_verify::LogPosition;

use crate::failure::{Failure, Result};
use crate::target;

/// What is checked.
pub struct Source {
    pub device: FileDevice,
    /// The log to check as of, where a daemon goes on writing behind it.
    pub at: Option<LogPosition>,
    /// While it is there the daemon writes nothing where something was at that log, unless others wait for space.
    held: Option<Box<dyn Control>>,
}

impl Source {
    /// Whether the daemon does not hold any more what is checked: what was found then may be what was written since.
    pub fn was_let_go(&mut self) -> bool {
        let Some(control) = &mut self.held else { return false };
        // One that hangs says nothing either.
        control.answer_within(Some(3 * PATIENCE));
        target::call(&mut **control, Request::LatestLog, |_| Ok(())).is_err()
    }
}

/// Finds what `named` means: an image, a device, or a path in a mount.
pub fn open(named: &Path) -> Result<Source> {
    if let Some(mount) = kernels(named)? {
        let note = format!(
            "note: {} is mounted by the kernel and looked at as it is; what is written meanwhile may show as damage",
            mount.source.display()
        );
        target::eprintln_quiet(&note);
        let options = OpenOptions { without_lock: true, ..OpenOptions::default() };
        let device = silt_device::open(&mount.source, Access::ReadOnly, &options)?;
        return Ok(Source { device, at: None, held: None });
    }
    let control = connect(named)?;
    if control.is_mounted() {
        return mounted(control);
    }
    let device = target::device(named, Access::ReadOnly)?;
    Ok(Source { device, at: None, held: None })
}

/// The kernel's mount that a device or a path in it belongs to.
fn kernels(named: &Path) -> Result<Option<Mount>> {
    let Ok(path) = mounts::locate(named) else { return Ok(None) };
    let is = |m: &Mount| m.fs_type == "nilfs2" && (m.source == path || m.dir == path);
    Ok(mounts::table()?.into_iter().rfind(is))
}

/// Asks the daemon to write what waits, and for the place of the newest log. What is behind that one does not count,
/// and nothing before it changes.
fn mounted(mut control: Box<dyn Control>) -> Result<Source> {
    let mut path = None;
    target::call(&mut *control, Request::Status, |part| {
        if let Response::Status(status) = part {
            path = Some(status.volume);
        }
        Ok(())
    })?;
    match target::call(&mut *control, Request::Sync, |_| Ok(())) {
        // What cannot be written any more does not keep anybody from looking at what was.
        Err(Failure::Error(e)) if matches!(e.kind, Kind::ReadOnly | Kind::Io | Kind::NoSpace) => {
            target::eprintln_quiet(&format!("note: what waits to be written cannot be: {}", e.message));
        }
        other => other?,
    }
    let mut at = None;
    target::call(&mut *control, Request::LatestLog, |part| {
        if let Response::LatestLog(log) = part {
            at = Some(LogPosition { block: log.block, sequence: log.sequence, checkpoint: log.checkpoint });
        }
        Ok(())
    })?;
    let (Some(path), Some(at)) = (path, at) else {
        return Err(ControlError::new(Kind::Unavailable, "the daemon did not say what it has written").into());
    };
    let options = OpenOptions { without_lock: true, ..OpenOptions::default() };
    let device = silt_device::open(&path, Access::ReadOnly, &options)?;
    Ok(Source { device, at: Some(at), held: Some(control) })
}
