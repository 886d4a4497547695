//! Files that users name for something to be written to: a slip of the pen there must not cost a volume.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use silt_control::{ControlError, Kind, Result, answers, holds_super_block, mounts, socket};
use silt_device::{Access, OpenOptions};
use silt_names::quoted;

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

/// For errors: a file or directory that a user named could not be made, and what helps.
pub fn not_made(file: &Path, source: &std::io::Error) -> ControlError {
    let error = ControlError::io(file.display(), source);
    let dir = match file.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => file,
    };
    match error.kind {
        Kind::NotFound if !dir.exists() => {
            error.hint(format!("make its directory first: mkdir -p {}", quoted(dir)))
        }
        Kind::NotPermitted => error.hint("name one in a directory that is yours, or become root"),
        Kind::NoSpace => error.hint("make room there, or name one elsewhere"),
        Kind::NotFound | Kind::Invalid | Kind::ReadOnly => error.hint("name one elsewhere"),
        _ => error,
    }
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
