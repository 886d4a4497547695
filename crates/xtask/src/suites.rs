//! Suites of others, through a real mount: `pjdfstest` and `fsx`, both from crates.io.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Operations of each of fsx's runs.
    pub fsx_ops: u64,
    /// How often the daemon is killed.
    pub kills: u64,
}

/// The versions that are run.
const PJDFSTEST: &str = "0.2.2";
const FSX: &str = "0.3.2";

/// Installs a program from crates.io below `rig/cargo`, once, and returns its path.
fn program(root: &Path, name: &str, version: &str) -> Result<PathBuf> {
    let dir = root.join("rig/cargo");
    let path = dir.join("bin").join(name);
    if !path.exists() {
        let status = Command::new("cargo")
            // Not optimised: the file system below does the work.
            .args(["install", "--debug", "--quiet", "--locked", "--root"])
            .arg(&dir)
            .args(["--version", version, name])
            .status()?;
        if !status.success() {
            bail!("cargo install {name} ended with {status}");
        }
    }
    Ok(path)
}

/// A volume mounted for the time of a suite.
struct Mounted<'a> {
    silt: &'a Path,
    dir: PathBuf,
    image: PathBuf,
    _scratch: tempfile::TempDir,
}

impl<'a> Mounted<'a> {
    fn new(silt: &'a Path, size: &str, block_size: &str) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("silt-suite-").tempdir()?;
        let image = scratch.path().join("v.img");
        let dir = scratch.path().join("mnt");
        std::fs::create_dir(&dir)?;
        run(Command::new(silt).args(["mkfs", "-q", "--size", size, "-b", block_size]).arg(&image))?;
        run(Command::new(silt).arg("mount").arg(&image).arg(&dir))?;
        Ok(Mounted { silt, dir, image, _scratch: scratch })
    }

    /// Unmounts and has the volume judged.
    fn close(self) -> Result<()> {
        run(Command::new(self.silt).arg("umount").arg(&self.dir))?;
        judge(&self.image)
    }
}

/// Fails unless the checker finds the volume sound.
pub(crate) fn judge(image: &Path) -> Result<()> {
    let options = silt_device::OpenOptions::default();
    let device = silt_device::open(image, silt_device::Access::ReadOnly, &options)?;
    let report = silt_verify::check(&device, &silt_verify::Options::default());
    if report.is_clean() {
        Ok(())
    } else {
        bail!("the volume is not sound afterwards:\n{}", report.error_text())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Only matters after a failure; a volume that is unmounted already says so, unheard.
        let _ = Command::new(self.silt).arg("umount").arg(&self.dir).stderr(Stdio::null()).status();
    }
}

/// Runs a command; its failure is an error with what it said.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// Runs both on block sizes 1024 and 4096, then kills daemons. Needs root and /dev/fuse.
pub fn suites(root: &Path, silt: &Path, plan: Plan) -> Result<()> {
    for block_size in ["4096", "1024"] {
        pjdfstest(root, silt, block_size)?;
        fsx(root, silt, block_size, plan)?;
    }
    crate::kill::kill(silt, plan.kills)
}

fn pjdfstest(root: &Path, silt: &Path, block_size: &str) -> Result<()> {
    let program = program(root, "pjdfstest", PJDFSTEST)?;
    let mounted = Mounted::new(silt, "512M", block_size)?;
    let inside = mounted.dir.join("pjdfstest");
    std::fs::create_dir(&inside)?;
    std::fs::set_permissions(&inside, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let settings = mounted.image.with_file_name("pjdfstest.toml");
    std::fs::write(
        &settings,
        "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n",
    )?;
    let output = Command::new(&program).arg("-c").arg(&settings).arg("-p").arg(&inside).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().rev().find(|l| l.starts_with("Summary:")).unwrap_or("no summary");
    println!("pjdfstest, blocks of {block_size}: {summary}");
    if !output.status.success() || !summary.contains(" 0 failed") {
        let failed: Vec<_> = text.lines().filter(|l| l.contains("FAILED") || l.contains("failed")).collect();
        bail!("pjdfstest failed:\n{}", failed.join("\n"));
    }
    mounted.close()
}

fn fsx(root: &Path, silt: &Path, block_size: &str, plan: Plan) -> Result<()> {
    let program = program(root, "fsx", FSX)?;
    let mounted = Mounted::new(silt, "4G", block_size)?;
    let settings = mounted.image.with_file_name("fsx.toml");
    std::fs::write(
        &settings,
        "flen = 262144\n[weights]\nclose_open = 1\ninvalidate = 1\nmapread = 10\nmapwrite = 10\npunch_hole = 5\n\
         truncate = 10\nfsync = 0.05\nfdatasync = 0.05\ncopy_file_range = 2\nsendfile = 1\nposix_fallocate = 1\n",
    )?;
    let (ops, file) = (plan.fsx_ops.to_string(), mounted.dir.join("file"));
    let mut command = Command::new(&program);
    run(command.arg("-f").arg(&settings).args(["-N", &ops, "-S", "42"]).arg(&file))?;
    println!("fsx, blocks of {block_size}: {ops} operations");
    mounted.close()
}
