//! Files that users name for something to be written to: a slip of the pen there must not cost a volume.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use silt_control::{ControlError, Kind, Result, answers, holds_super_block, mounts, socket};
use silt_device::{Access, OpenOptions};

/// Refuses to write to `file` where that is the volume that the command is about, by whatever name, another volume, a
/// block device, or what somebody else has as a disk.
pub fn permit(file: &Path, volume: &Path) -> Result<()> {
    // Neither is looked at where a daemon that hangs would have us wait.
    answers(file)?;
    answers(volume)?;
    // What is not there yet can be made, or else opening it says why not.
    let Ok(meta) = std::fs::metadata(file) else { return Ok(()) };
    if is_behind(volume, file) {
        return Err(refused(file, "is the volume itself"));
    }
    if meta.file_type().is_block_device() {
        return Err(refused(file, "is a block device"));
    }
    if !meta.is_file() {
        return Ok(());
    }
    if holds_super_block(file) {
        return Err(refused(file, "holds a NILFS2 volume"));
    }
    silt_device::open(file, Access::ReadOnly, &OpenOptions::default())?;
    Ok(())
}

fn refused(file: &Path, why: &str) -> ControlError {
    ControlError::new(Kind::Invalid, format!("{} {why}, and is not written over", file.display()))
        .hint("name another file")
}

/// Whether a file is the volume that a user named, by itself or by a directory it is mounted on.
fn is_behind(volume: &Path, file: &Path) -> bool {
    let Ok(name) = socket::name_of(file) else { return false };
    let is = |other: &Path| socket::name_of(other).is_ok_and(|other| other == name);
    let mount = mounts::holding(volume).ok().flatten().filter(mounts::Mount::is_ours);
    is(volume) || mount.is_some_and(|mount| is(&mount.source))
}
