//! `cargo xtask test`: everything, in the order in which failures are cheapest.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::rig::{self, Rig};
use crate::{roundtrip, suites};

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).current_dir(root).status()?;
    if status.success() { Ok(()) } else { bail!("cargo {} ended with {status}", arguments.join(" ")) }
}

/// What takes long, and how long it is made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Histories of the round trip.
    pub histories: u64,
    /// Operations of each run of fsx.
    pub fsx_ops: u64,
}

/// Runs everything; the first failure ends it.
pub fn test(root: &Path, plan: Plan) -> Result<()> {
    let whole = Instant::now();
    let root_user = rustix::process::geteuid().is_root();
    if root_user {
        step("packages", rig::fetch)?;
    }
    step("style", || cargo(root, &["fmt", "--all", "--check"]))?;
    step("lints", || {
        cargo(
            root,
            &["clippy", "--release", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"],
        )
    })?;
    step("build", || cargo(root, &["build", "--quiet", "--release", "--workspace"]))?;
    // With the profile of the build before: what is built once is built once.
    step("tests", || cargo(root, &["test", "--release", "--workspace"]))?;
    let silt = root.join("target/release/silt");
    if root_user && Path::new("/dev/fuse").exists() {
        let plan = suites::Plan { fsx_ops: plan.fsx_ops, kills: 20 };
        step("suites", || suites::suites(root, &silt, plan))?;
        step("a second reader", || crate::grub::grub(&Rig::find()?))?;
    } else {
        println!("suites: left out (they need root and /dev/fuse)");
    }
    step("the kernel's own volumes", || crate::golden::golden(&Rig::find()?))?;
    let histories = roundtrip::Plan { seeds: 0..plan.histories, ops: (300, 200, 200), guests: 2, keep: None };
    step("round trip", || roundtrip::round_trip(&Rig::find()?, &histories))?;
    println!("everything passed in {:.0} s", whole.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    println!("== {name}");
    f()?;
    println!("== {name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}
