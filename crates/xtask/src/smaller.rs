//! Volumes become smaller and larger again, mounted or not, as `silt resize` does it.

use std::path::Path;

use anyhow::{Context, Result};
use silt_control::{ControlError, Kind, Request, Response, connect};

/// Parts of its size that a volume is to have room in, the smallest first.
const PARTS: [u64; 9] = [48, 32, 24, 16, 12, 8, 6, 4, 2];

/// Makes the volume in an image or a mounted directory `size` bytes large; its size then. `None`: that is too small for
/// it, or what is in the way is written again and again, and it is as it was.
pub fn resize(volume: &Path, size: u64) -> Result<Option<u64>> {
    Ok(resize_or_why(volume, size)?.ok())
}

/// The same, with the reason where it is as it was.
pub fn resize_or_why(volume: &Path, size: u64) -> Result<Result<u64, ControlError>> {
    let mut control = connect(volume)?;
    let mut now = None;
    let done = control.call(Request::Resize { size: Some(size) }, &mut |part| {
        if let Response::Resized(resized) = part {
            now = Some(resized.size);
        }
        Ok(())
    });
    match done {
        Ok(()) => now.context("nothing was said of the new size").map(Ok),
        Err(e) if matches!(e.kind, Kind::NoSpace | Kind::Busy) => Ok(Err(e)),
        Err(e) => Err(e).with_context(|| format!("resizing {} to {size} bytes", volume.display())),
    }
}

/// Makes a volume of `whole` bytes as small as it can be, in coarse steps, each smaller one refused; its size then. `None`:
/// the half is too little for it.
pub fn smallest(volume: &Path, whole: u64) -> Result<Option<u64>> {
    for part in PARTS {
        if let Some(size) = resize(volume, whole / part / 4096 * 4096)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}
