//! `cargo xtask test`: everything, in the order in which failures are cheapest.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::cycles::{self, crowd::Crowd};
use crate::rig::{self, Rig};
use crate::suites::Programs;
use crate::tree::Files;
use crate::{
    cuts, damage, datasync, golden, grub, hostile, kill, repair, roundtrip, scratch, shapes, suites, tree,
    uring,
};

/// Runs cargo in the project.
fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = scratch::status(Command::new("cargo").args(arguments).current_dir(root))?;
    if status.success() { Ok(()) } else { bail!("cargo {} ended with {status}", arguments.join(" ")) }
}

/// Builds everything for release: with the features of the whole, so that it is built once.
pub fn build(root: &Path) -> Result<()> {
    cargo(root, &["build", "--quiet", "--release", "--workspace"])
}

/// What takes long, and how long it is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Histories of the round trip.
    pub histories: u64,
    /// Guests of the round trip at once.
    pub guests: usize,
    /// Operations of fsx on each block size.
    pub fsx_ops: u64,
    /// How often the daemon is killed.
    pub kills: u64,
    /// What is unpacked into a mount.
    pub files: Files,
}

/// The seconds of each step, in the order in which they ended.
#[derive(Default)]
struct Clock(Mutex<Vec<(String, f64)>>);

impl Clock {
    fn step(&self, name: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        println!("== {name}");
        let result = f().with_context(|| name.to_owned());
        let seconds = started.elapsed().as_secs_f64();
        println!("== {name}: {seconds:.0} s");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), seconds));
        result
    }

    fn table(&self) {
        for (name, seconds) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            println!("{seconds:7.1} s  {name}");
        }
    }
}

/// Runs everything; the first failure ends it.
pub fn test(root: &Path, silt: &Path, plan: &Plan) -> Result<()> {
    let whole = Instant::now();
    let clock = Clock::default();
    let result = steps(root, silt, plan, &clock);
    println!("== times");
    clock.table();
    let left_out = result?;
    let but = if left_out { " but what needs root and /dev/fuse, which was LEFT OUT," } else { "" };
    println!("everything{but} passed in {:.0} s", whole.elapsed().as_secs_f64());
    Ok(())
}

/// Whether something had to be left out.
fn steps(root: &Path, silt: &Path, plan: &Plan, clock: &Clock) -> Result<bool> {
    clock.step("packages", rig::fetch)?;
    clock.step("style", || cargo(root, &["fmt", "--all", "--check"]))?;
    clock.step("lints", || {
        cargo(
            root,
            &["clippy", "--release", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"],
        )
    })?;
    clock.step("build", || build(root))?;
    // With the profile of the build before: what is built once is built once.
    let tests = || cargo(root, &["test", "--release", "--workspace"]);
    let images = || hostile::hostile(&silt.with_file_name("hostile"), hostile::IMAGES, 0, None);
    // Many tests wait for a mount or a clock: the images take what those leave of the processors.
    std::thread::scope(|scope| {
        let images = scope.spawn(|| clock.step("hostile images", images));
        let tests = clock.step("tests", tests);
        let images = images.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
        tests.and(images)
    })?;
    clock.step("damaged volumes", || damage::Campaign::ci().iter().try_for_each(damage::damage))?;
    let rig = Rig::find()?;
    // Without it mounts with the option do without.
    let rings = uring::Switch::on();
    if rings.is_some() {
        clock.step("tests, through io_uring", || {
            let arguments =
                ["test", "--release", "-p", "silt-fuse", "--test", "everyday", "--test", "protocol"];
            let mut command = Command::new("cargo");
            command.args(arguments).env("SILT_TEST_IO_URING", "1").current_dir(root);
            let status = scratch::status(&mut command)?;
            if status.success() { Ok(()) } else { bail!("cargo {} ended with {status}", arguments.join(" ")) }
        })?;
    } else {
        println!("this kernel has no FUSE over io_uring, or we may not switch it on: LEFT OUT");
    }
    let mounts = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let through = mounts.then(|| (silt.to_owned(), THROUGH));
    let seeds = 0..plan.histories;
    let histories = roundtrip::Plan { seeds, ops: (300, 200, 200), guests: plan.guests, through, keep: None };
    // Suites wait for the disk and guests for their clocks: side by side they fill the time.
    let suites = || -> Result<()> {
        if !mounts {
            return Ok(());
        }
        let programs = Programs::get(root)?;
        for on in suites::On::all(silt, &programs, rings.is_some()) {
            clock.step(&format!("pjdfstest, {}", on.name()), || suites::pjdfstest(on))?;
            clock.step(&format!("fsx, {}", on.name()), || suites::fsx(on, plan.fsx_ops))?;
        }
        clock.step("killed daemons", || kill::kill(silt, &programs, plan.kills))?;
        let crowd = Crowd::new(3, CROWD);
        let hosted = Crowd { host: Some(60), ..crowd.clone() };
        clock.step("full volumes", || cycles::cycles(silt, &FULL, true, 3, 1))?;
        clock.step("crowded volumes", || cycles::crowd::crowd(silt, CROWDED, &crowd))?;
        clock.step("crowds on a full host", || cycles::crowd::crowd(silt, HOSTED, &hosted))?;
        clock.step("a large tree", || tree::tree(&rig, silt, &plan.files))?;
        clock.step("synced data, recovered by the kernel", || datasync::data_sync(&rig, silt))?;
        clock.step("a second reader", || grub::grub(&rig))
    };
    let kernel = || -> Result<()> {
        clock.step("the kernel's own volumes", || golden::golden(&rig))?;
        clock.step("block maps of every shape", || shapes::shapes(&rig))?;
        clock.step("repair, judged by the kernel", || repair::repair(&rig, true))?;
        clock.step("power cuts, looked at by the kernel", || cuts::sample(&rig, cuts::SAMPLE, 1, 2))?;
        clock.step("round trip", || roundtrip::round_trip(&rig, &histories))
    };
    std::thread::scope(|scope| {
        let suites = scope.spawn(suites);
        let kernel = kernel();
        let suites = suites.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
        suites.and(kernel)
    })?;
    Ok(!mounts)
}

/// Volumes that are filled and emptied: with blocks of 1 and 4 KiB, segments of 16 to 256 blocks and each way to fill. The first
/// is of the kind that once wedged, with many names in small segments; others are small, since names alone fill 64 MiB slowly.
const FULL: [u64; 8] = [8, 9, 12, 13, 14, 25, 47, 58];
/// Volumes that several writers keep nearly full, of which one once lost a segment, and for how long each.
const CROWDED: std::ops::Range<u64> = 3..6;
/// The same where the host has no space for all of a volume, with blocks of 1 KiB: writing once ended there.
const HOSTED: std::ops::Range<u64> = 100..101;
const CROWD: Duration = Duration::from_secs(15);

/// In one history of so many Silt's turns go through a mount.
pub const THROUGH: u64 = 10;
