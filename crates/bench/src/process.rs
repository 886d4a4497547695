//! Processes that this one starts: each in a group of its own, so that it can be ended with all it started,
//! and told to end if this process goes away without a word.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on Ctrl-C and the like only set a flag, and what is under way cleans up.
pub fn catch_signals() -> Result<()> {
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(())
}

/// An error once a signal came.
pub fn go_on() -> Result<()> {
    if INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted")
    } else {
        Ok(())
    }
}

/// This program, for another of its roles.
pub fn own_command() -> Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// Runs a command to its end; its failure is an error with what it said.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout).trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output)
}

/// A process, ended when dropped.
pub struct Child {
    child: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts it, with its standard error in a file.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stderr(file).process_group(0);
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Child { child, log: log.to_owned() })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to its standard output so far is read by the caller.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// The end of what it wrote to standard error.
    pub fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("; ")
    }

    /// If it ended: how, and its last words.
    pub fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| format!("{status}: {}", self.said())))
    }

    /// Waits for its end, without heeding signals; false if it still runs.
    pub fn wait_for(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => return false,
                _ => return true,
            }
        }
    }

    /// Waits for a good end; a bad one, a signal to this process, and running longer than `time` are errors.
    pub fn finish(mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                go_on()?;
                bail!("{}", if self.said().is_empty() { status.to_string() } else { self.said() });
            }
            go_on()?;
            if Instant::now() > deadline {
                bail!("not done after {} s", time.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            if !self.wait_for(Duration::from_secs(10)) {
                self.signal(Signal::KILL);
                self.wait_for(Duration::from_secs(10));
            }
        }
    }
}
