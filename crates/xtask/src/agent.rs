//! What runs inside the guest, as its first process: mounts what is needed, loads modules, does the job,
//! powers off.
//!
//! The host's whole tree is the root, read-only; the same is mounted at [`HOST`] for writing. Everything the guest
//! prints and the kernel logs goes to the console, which is the host's pipe; the line [`DONE`] says that the
//! job was finished.

mod cleaner;
mod mounts;
mod nilfs;
mod syslog;
mod turns;

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::system::{RebootCommand, finit_module, reboot};

use crate::exchange::{Job, Task};

/// Where the host's tree can be written.
const HOST: &str = "/mnt/host";
/// The last line of a guest that did its job.
pub const DONE: &str = "agent: done";

/// A path of the host as seen for writing.
fn on_host(path: &Path) -> PathBuf {
    Path::new(HOST).join(path.strip_prefix("/").unwrap_or(path))
}

/// The first process of the guest. Never returns: the guest is powered off at the end.
pub fn init(job: &Path) -> ! {
    let end = mounts::virtual_file_systems().and_then(|()| work(job));
    match &end {
        Ok(_) => println!("{DONE}"),
        Err(error) => println!("agent: failed: {error:#}"),
    }
    if !matches!(end, Ok(End::Cut)) {
        rustix::fs::sync();
    }
    // If this fails the process ends, which stops the guest less gracefully.
    let _ = reboot(RebootCommand::PowerOff);
    std::process::exit(1)
}

/// How the guest shall end.
enum End {
    /// With everything durable.
    Orderly,
    /// As if the power went.
    Cut,
}

fn work(job: &Path) -> Result<End> {
    let text = std::fs::read_to_string(on_host(job)).with_context(|| format!("reading {}", job.display()))?;
    let job_dir = on_host(job.parent().unwrap_or(Path::new("/")));
    let job: Job = serde_json::from_str(&text).context("the job is not understood")?;
    for (name, value) in &job.environment {
        // SAFETY: no other thread exists.
        unsafe { std::env::set_var(name, value) };
    }
    for (module, parameters) in &job.modules {
        let file =
            std::fs::File::open(on_host(module)).with_context(|| format!("opening {}", module.display()))?;
        finit_module(&file, &CString::new(parameters.as_str())?, 0)
            .with_context(|| format!("loading {}", module.display()))?;
    }
    match job.task {
        Task::Shell { script, out } => shell(&script, &on_host(&out)).map(|()| End::Orderly),
        Task::Turns { volumes, cut: false } => turns::run(&job_dir, &volumes).map(|()| End::Orderly),
        Task::Turns { volumes, cut: true } => turns::run_to_cut(&job_dir, &volumes).map(|()| End::Cut),
    }
}

fn shell(script: &str, out: &Path) -> Result<()> {
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .env("OUT", out)
        .stdin(std::process::Stdio::null())
        .status()
        .context("starting the shell")?;
    println!("agent: shell ended with {}", status.code().unwrap_or(-1));
    Ok(())
}
