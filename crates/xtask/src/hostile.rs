//! `cargo xtask hostile`: crafted images with right checksums through every path (crate `hostile`).

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::scratch;

/// Images of a run of all tests.
pub const IMAGES: u64 = 100_000;

/// Runs images on all processors with the program that was built beside this one, behind whatever else runs. The same numbers
/// are the same images. Fails where a promise is broken, or where fewer than half get past mount.
pub fn hostile(program: &Path, images: u64, from: u64, keep: Option<&Path>) -> Result<()> {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).args([
        "run",
        "--images",
        &images.to_string(),
        "--from",
        &from.to_string(),
    ]);
    if let Some(dir) = keep {
        command.arg("--keep").arg(dir);
    }
    let status = scratch::status(&mut command)?;
    if status.success() { Ok(()) } else { bail!("crafted images broke a promise ({status})") }
}

/// Unpacks the corpus of the fuzz targets where `cargo fuzz` looks for it; `pack`: the other way round.
pub fn fuzz_seeds(root: &Path, program: &Path, pack: bool) -> Result<()> {
    let verb = if pack { "pack" } else { "unpack" };
    let status = scratch::status(Command::new(program).arg(verb).arg(root.join("fuzz/corpus")))?;
    if status.success() { Ok(()) } else { bail!("the corpus of the fuzz targets: {status}") }
}
