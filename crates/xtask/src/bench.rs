//! Starts the instrument that compares file systems, built for release together with what it compares.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

/// Builds and runs `silt-bench` with these arguments.
pub fn bench(root: &Path, arguments: &[String]) -> Result<()> {
    let builds: [&[&str]; 2] = [
        &["-p", "siltfs", "-p", "silt-bench", "--features", "silt-bench/sqlite", "--bins"],
        &["-p", "silt-fuse", "--example", "memfs"],
    ];
    for build in builds {
        let mut cargo = Command::new("cargo");
        let status = cargo.args(["build", "--release", "--quiet"]).args(build).current_dir(root).status()?;
        if !status.success() {
            bail!("cargo build {} ended with {status}", build.join(" "));
        }
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let status = Command::new(target.join("release/silt-bench")).args(arguments).status()?;
    if status.success() { Ok(()) } else { bail!("the comparison ended with {status}") }
}
