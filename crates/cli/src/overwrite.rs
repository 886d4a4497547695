//! Files that users name for something to be written to: a slip of the pen there must not cost a volume.

use std::fs::{File, Metadata};
use std::io::{self, stderr, stdin, stdout};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat};
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
    // What a shell has put in place of a command is one of our own descriptors.
    let is_ours = file.starts_with("/dev/fd") || file.starts_with("/proc/self/fd");
    if (meta.file_type().is_fifo() || meta.file_type().is_socket()) && !is_ours && !is_given(&meta) {
        return Err(no_plain_file(file));
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

/// Refuses to read what is no plain file: opening a pipe would wait for who writes to it, and a device may have no end. What is
/// not there, whoever opens it says.
pub fn plain(file: &Path) -> Result<()> {
    answers(file)?;
    match std::fs::metadata(file) {
        Ok(meta) if !meta.is_file() => Err(no_plain_file(file)),
        _ => Ok(()),
    }
}

/// Opens for writing what [`permit`] let through, emptied or at its end. Nobody is waited for, whatever has its name by now.
pub fn open(file: &Path, append: bool) -> io::Result<File> {
    let mut options = File::options();
    let options = if append { options.append(true) } else { options.write(true).truncate(true) };
    let opened = options.create(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(file)?;
    // What is written is waited for as ever.
    fcntl_setfl(&opened, fcntl_getfl(&opened)? - OFlags::NONBLOCK)?;
    Ok(opened)
}

fn no_plain_file(file: &Path) -> ControlError {
    ControlError::new(Kind::Invalid, format!("{} is no plain file", file.display())).hint("name another file")
}

/// Whether whoever started us gave it to us as standard output or the like: `/dev/stdout` may be a pipe.
fn is_given(meta: &Metadata) -> bool {
    let is =
        |stat: rustix::io::Result<Stat>| stat.is_ok_and(|s| (s.st_dev, s.st_ino) == (meta.dev(), meta.ino()));
    is(fstat(stdin())) || is(fstat(stdout())) || is(fstat(stderr()))
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
