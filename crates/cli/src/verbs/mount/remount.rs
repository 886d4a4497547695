//! `-o remount`: changes what the kernel checks of a mount. What the daemon was started with stays.

use std::path::Path;

use rustix::mount::{MountFlags, mount_remount};
use silt_control::mounts::Mount;
use silt_control::{ControlError, Kind, Request, mounts, of_mount};
use silt_daemon::MountOptions;
use silt_fuse::MountEntry;
use silt_names::quoted;

use super::options::Options;
use crate::failure::Result;
use crate::target;

/// Remounts what is mounted on `dir`. `asked`: those of the options that this request is about; the others are as they were.
pub fn run(dir: &Path, options: &Options, asked: &Options) -> Result<()> {
    options.check()?;
    let dir = mounts::locate(dir)?;
    let Some((mount, shown)) = seen_on(&dir)? else {
        let message = format!("no silt volume is mounted on {}", dir.display());
        return Err(ControlError::new(Kind::NotFound, message)
            .hint("silt status shows what is mounted where")
            .into());
    };
    let (d, wanted) = (&options.daemon, &asked.daemon);
    let changed =
        MountOptions { suid: wanted.suid, dev: wanted.dev, exec: wanted.exec, ..MountOptions::default() };
    if *wanted != changed || asked.at.is_some() {
        target::eprintln_quiet(
            "note: of what is mounted only ro, rw, suid, dev and exec can be changed; the rest stays as it is",
        );
    }
    let mut daemon = of_mount(&mount)?;
    let status = super::status(&mut daemon)?;
    let opened_read_only = status
        .is_some_and(|s| s.read_only || s.mounts.iter().any(|m| m.dir == dir && m.checkpoint.is_some()));
    if !options.read_only && opened_read_only {
        let message = format!("{} was mounted for reading only", dir.display());
        return Err(ControlError::new(Kind::ReadOnly, message).hint("unmount it, and mount it again").into());
    }
    if options.read_only {
        // What programs have written shall not wait for the next checkpoint.
        target::call(&mut daemon, Request::Sync, |_| Ok(()))?;
    }
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !d.suid);
    flags.set(MountFlags::NODEV, !d.dev);
    flags.set(MountFlags::NOEXEC, !d.exec);
    // They stay as they are, and the kernel takes what is not said for taken away.
    flags.set(MountFlags::SYNCHRONOUS, has(&shown, "sync"));
    flags.set(MountFlags::DIRSYNC, has(&shown, "dirsync"));
    mount_remount(&dir, flags, "").map_err(|e| {
        let error = ControlError::io(format!("remounting {}", dir.display()), &e.into());
        match error.kind {
            Kind::Busy => {
                let dir = quoted(&dir);
                error.hint(format!("end the programs that write to it (fuser -vm {dir} shows them)"))
            }
            Kind::NotPermitted => error.hint("become root"),
            _ => error,
        }
    })?;
    Ok(())
}

/// What of ours is seen on a directory, and how the kernel's table has it.
pub fn seen_on(dir: &Path) -> Result<Option<(Mount, MountEntry)>> {
    let entry = silt_fuse::find_mount(dir).map_err(|e| ControlError::io(dir.display(), &e))?;
    Ok(entry.map(|entry| (Mount::from(entry.clone()), entry)).filter(|(mount, _)| mount.is_ours()))
}

/// Whether the table shows this option of it.
pub fn has(shown: &MountEntry, option: &str) -> bool {
    shown.options.split(',').any(|word| word == option)
}
