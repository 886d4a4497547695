//! The real kernel as a process: boots Debian's user-mode Linux with this program as its first process.

mod log;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::agent;
use crate::exchange::{DEVICES, Job, Task};
use crate::rig::Rig;
use crate::scratch::{Group, Scratch};
pub use log::GuestLog;

/// How a guest is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory in MiB.
    pub memory: u32,
    /// It is ended when it takes longer.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory: 768, timeout: Duration::from_secs(300) }
    }
}

/// A guest that was ended because it took too long, with its last words.
#[derive(Debug, thiserror::Error)]
#[error("the guest took longer than {0:?}; its last words:\n{1}")]
pub struct Late(Duration, String);

/// Where this program is as a file, for the guest to start: the running one, or, in a test of another crate, the
/// one in the same build directory, or what `SILT_XTASK` names.
pub fn agent_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SILT_XTASK") {
        return Ok(PathBuf::from(path));
    }
    let running = std::env::current_exe()?;
    if running.file_name().is_some_and(|name| name == "xtask") {
        return Ok(running);
    }
    running
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join("xtask"))
        .find(|path| path.is_file())
        .context("the guest's agent is missing: build it with `cargo build -p xtask`, or set SILT_XTASK")
}

/// What lets the kernel run on processors with more registers than it knows, where it was built.
fn registers(agent_binary: &Path) -> Option<PathBuf> {
    let dir = agent_binary.parent()?;
    [dir.to_owned(), dir.join("deps")]
        .into_iter()
        .map(|dir| dir.join("libsilt_guest_registers.so"))
        .find(|path| path.is_file())
}

/// The modules that every job needs.
pub fn modules(rig: &Rig) -> Vec<(PathBuf, String)> {
    vec![rig.module("fs/nilfs2/nilfs2.ko", "")]
}

/// Where the guest's memory lies: shared memory if there is room, else the exchange directory.
fn memory_dir(exchange: &Path, memory: u32) -> PathBuf {
    let shared = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shared).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize)).unwrap_or(0);
    if room > u64::from(memory) << 21 { shared.to_owned() } else { exchange.to_owned() }
}

/// Boots the guest with `job`; results lie in `exchange` (an absolute path) afterwards. An error means that the job was
/// not finished; what it came to is in the log and in the files.
pub fn boot(rig: &Rig, exchange: &Path, job: &Job, options: &Options) -> Result<GuestLog> {
    let agent_binary = agent_binary()?;
    let job_file = exchange.join("job.json");
    std::fs::write(&job_file, serde_json::to_string_pretty(job)?)?;
    if job.images.len() > DEVICES {
        bail!("a guest takes at most {DEVICES} images, not {}", job.images.len());
    }
    let console = exchange.join("console");
    let output = File::create(&console)?;
    let mut command = Command::new(rig.linux());
    for (index, image) in job.images.iter().enumerate() {
        // The kernel's command line takes not every path and not many long ones.
        let link = exchange.join(format!("disk{index}"));
        std::os::unix::fs::symlink(std::path::absolute(image)?, &link)?;
        command.arg(format!("ubd{index}={}", link.display()));
    }
    command
        .arg(format!("mem={}M", options.memory))
        .arg(format!("uml_dir={}", exchange.display()))
        .arg(format!("init={}", agent_binary.display()))
        .args([
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "loglevel=7",
            "printk.time=1",
            "panic=-1",
        ])
        .args(["con=null", "con0=fd:0,fd:1", "--", "agent", "init"])
        .arg(&job_file)
        .env("TMPDIR", memory_dir(exchange, options.memory))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    if let Some(library) = registers(&agent_binary) {
        command.env("LD_PRELOAD", library);
    }
    let mut group = Group::spawn(&mut command)?;
    let started = Instant::now();
    let late = loop {
        if group.try_wait()?.is_some() {
            break false;
        }
        if started.elapsed() > options.timeout {
            break true;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    drop(group);
    let log = GuestLog::read(&console)?;
    if late {
        return Err(Late(options.timeout, log.tail()).into());
    }
    if !log.has_line(agent::DONE) {
        bail!("the guest did not finish; its last words:\n{}", log.tail());
    }
    Ok(log)
}

/// Boots the guest with `images` as `/dev/ubda`, `/dev/ubdb`, ... and runs a shell script there, whose `$OUT` is
/// `out`. Returns the log and the script's exit code.
pub fn shell(
    rig: &Rig,
    images: &[PathBuf],
    script: &str,
    out: &Path,
    options: &Options,
) -> Result<(GuestLog, i32)> {
    let exchange = Scratch::new("guest")?;
    let task = Task::Shell { script: script.to_owned(), out: std::path::absolute(out)? };
    let (mut modules, environment) = (modules(rig), rig.environment());
    // Silt may be mounted there, too.
    modules.push(rig.module("fs/fuse/fuse.ko", ""));
    let job = Job { images: images.to_vec(), modules, environment, task };
    let log = boot(rig, exchange.path(), &job, options)?;
    let code = log.shell_code().context("the guest does not say how the script ended")?;
    Ok((log, code))
}
