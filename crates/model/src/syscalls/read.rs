//! Reading a file's bytes: whole, or only where there are any.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, Result, pread};

use super::ioctl;
use crate::content::DEEP;
use crate::hash::{Digest, PIECE};

/// Files up to this size are read without asking where their data is.
const SMALL: u64 = 256 << 10;
/// Bytes of one read; a multiple of [`PIECE`].
const CHUNK: usize = 1 << 20;
/// A file larger than this, in bytes, is only read where it says that data is.
const WHOLE_MAX: u64 = 4 << 30;

/// Reads until `data` is full or the file ends; returns how much.
pub(super) fn fill(fd: BorrowedFd<'_>, offset: u64, data: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match pread(fd, &mut data[done..], offset + done as u64)? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

/// The stretches that may hold data, as (offset, length): extents if the file system tells them, else what
/// seeking finds, else everything.
fn stretches(fd: BorrowedFd<'_>, size: u64) -> Result<Vec<(u64, u64)>> {
    if size <= SMALL {
        return Ok(vec![(0, size)]);
    }
    match ioctl::extents(fd, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => {}
        other => return other,
    }
    match by_seeking(fd, size) {
        Err(Errno::INVAL) => Ok(vec![(0, size)]),
        other => other,
    }
}

/// The same for a file system that takes long to tell where the data of a large file is: only the beginning and
/// `probes` are looked at.
fn probed(fd: BorrowedFd<'_>, size: u64, probes: &[(u64, u64)]) -> Result<Vec<(u64, u64)>> {
    if size <= DEEP {
        return stretches(fd, size);
    }
    let mut found = Vec::new();
    for &(start, len) in [(0, DEEP)].iter().chain(probes) {
        let end = start.saturating_add(len).min(size);
        if start >= end {
            continue;
        }
        match ioctl::extents(fd, start, end) {
            Ok(extents) => found.extend(extents),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => found.push((start, end - start)),
            Err(other) => return Err(other),
        }
    }
    Ok(found)
}

fn by_seeking(fd: BorrowedFd<'_>, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(fd, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            other => other?,
        };
        let end = seek(fd, SeekFrom::Hole(start))?;
        found.push((start, end.saturating_sub(start)));
        at = end.max(start + 1);
    }
    Ok(found)
}

/// The fingerprint of a file of `size` bytes; for `probes` see [`super::Look::probes`]. The buffer is
/// made as large as it needs to be, and worth keeping.
pub(super) fn digest(
    fd: BorrowedFd<'_>,
    size: u64,
    probes: Option<&[(u64, u64)]>,
    buffer: &mut Vec<u8>,
) -> std::result::Result<Digest, String> {
    let stretches = match probes {
        None => stretches(fd, size),
        Some(probes) => probed(fd, size, probes),
    };
    let stretches = stretches.map_err(|e| format!("where its data is cannot be told: {e}"))?;
    let total = stretches.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
    if total > WHOLE_MAX {
        return Err(format!("{total} bytes of data are too many to read"));
    }
    let mut digest = Digest::default();
    let wanted = usize::try_from(size).unwrap_or(CHUNK).min(CHUNK);
    if buffer.len() < wanted {
        buffer.resize(wanted, 0);
    }
    // Pieces must come whole and once, whatever the borders of the stretches are.
    let piece = PIECE as u64;
    let mut done = 0;
    for (start, len) in stretches {
        let end = start.saturating_add(len).min(size).div_ceil(piece).saturating_mul(piece).min(size);
        let mut at = (start / piece * piece).max(done);
        while at < end {
            let part = usize::try_from(end - at).unwrap_or(CHUNK).min(buffer.len());
            let got = fill(fd, at, &mut buffer[..part]).map_err(|e| format!("reading at {at}: {e}"))?;
            if got < part {
                return Err(format!("only {got} of {part} bytes could be read at {at}"));
            }
            digest.add(at, &buffer[..part]);
            at += part as u64;
        }
        done = done.max(at).div_ceil(piece).saturating_mul(piece);
    }
    Ok(digest)
}
