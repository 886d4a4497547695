//! What a run leaves on the machine while it lasts: directories, mounts in them, processes. It is taken away when
//! its guard goes, and also when the run is ended by a signal.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process_group};

/// Something to take away.
#[derive(Clone, PartialEq, Eq)]
enum Kept {
    Dir(PathBuf),
    /// What is mounted below; the directory stays.
    Mounts(PathBuf),
    Group(Pid),
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forget(what: &Kept) {
    kept().retain(|k| k != what);
}

/// A temporary directory; what is mounted below it is detached before it is removed.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Scratch {
    /// Makes one below the directory for temporary files; its name begins with `silt-NAME-`.
    pub fn new(name: &str) -> Result<Self> {
        Self::below(&std::env::temp_dir(), name)
    }

    /// The same in memory, where the system has a place for it: for many small files that soon go again, which ext4 slows
    /// down, since it looks for inodes that were not deleted lately.
    pub fn in_memory(name: &str) -> Result<Self> {
        Self::below(Path::new("/dev/shm"), name).or_else(|_| Self::new(name))
    }

    fn below(dir: &Path, name: &str) -> Result<Self> {
        let mut kept = kept();
        let dir = tempfile::Builder::new().prefix(&format!("silt-{name}-")).tempdir_in(dir)?;
        let path = dir.path().to_owned();
        kept.push(Kept::Dir(path.clone()));
        Ok(Self { dir: Some(dir), path })
    }

    /// A directory that stays, of which only what is mounted below is taken away.
    pub fn staying(path: &Path) -> Self {
        kept().push(Kept::Mounts(path.to_owned()));
        Self { dir: None, path: path.to_owned() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        detach_below(&self.path);
        if let Some(Err(e)) = self.dir.take().map(tempfile::TempDir::close) {
            eprintln!("xtask: {} stays behind: {e}", self.path.display());
        }
        forget(&Kept::Dir(self.path.clone()));
        forget(&Kept::Mounts(self.path.clone()));
    }
}

/// The places below `dir` where something is mounted, innermost last.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    // Without the table nothing can be told; what is mounted then stays.
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(dir)).collect()
}

/// Takes all mounts below `dir` out of sight; their daemons end when nobody uses them any more.
pub fn detach_below(dir: &Path) {
    for point in mounts_below(dir).iter().rev() {
        if let Err(e) = unmount(point, UnmountFlags::DETACH) {
            eprintln!("xtask: {} stays mounted: {e}", point.display());
        }
    }
}

/// A process with all that it starts; all of it ends when the handle goes.
pub struct Group {
    child: Child,
    group: Option<Pid>,
}

impl Group {
    /// Starts `command` as the head of a process group of its own.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = begin(command)?;
        let group = group_of(&child);
        Ok(Self { child, group })
    }

    /// Its end, if it has come to that.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end, at most so long.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > patience {
                bail!("process {} did not end within {patience:?}", self.child.id());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // Nobody may be left.
            let _ = kill_process_group(group, Signal::KILL);
            forget(&Kept::Group(group));
        }
        let _ = self.child.wait();
    }
}

/// Runs a command to its end, with all that it starts in a group that does not outlive this process.
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = begin(command)?;
    let group = group_of(&child);
    let output = child.wait_with_output();
    group.into_iter().for_each(|group| forget(&Kept::Group(group)));
    Ok(output?)
}

/// The same for one that speaks to the terminal itself.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    let mut child = begin(command.stdin(Stdio::null()))?;
    let group = group_of(&child);
    let status = child.wait();
    group.into_iter().for_each(|group| forget(&Kept::Group(group)));
    Ok(status?)
}

fn group_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Starts a command as the head of a group that is noted.
fn begin(command: &mut Command) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut kept = kept();
    let child = command.process_group(0).spawn().with_context(|| format!("starting {command:?}"))?;
    kept.extend(group_of(&child).map(Kept::Group));
    Ok(child)
}

/// From now on SIGINT, SIGTERM and SIGHUP take everything away before they end this process.
pub fn clean_up_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: nothing new is begun.
            let kept = kept();
            for what in kept.iter() {
                if let Kept::Group(group) = what {
                    let _ = kill_process_group(*group, Signal::KILL);
                }
            }
            for what in kept.iter() {
                if let Kept::Mounts(dir) = what {
                    detach_below(dir);
                }
                if let Kept::Dir(dir) = what {
                    detach_below(dir);
                    // Other threads may still write there: once more, then.
                    if std::fs::remove_dir_all(dir).is_err() && std::fs::remove_dir_all(dir).is_err() {
                        eprintln!("xtask: {} stays behind", dir.display());
                    }
                }
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_with_its_handle() {
        let mut command = Command::new("sh");
        let mut group = Group::spawn(command.args(["-c", "sleep 1000 & sleep 1000"])).unwrap();
        let pid = group.group.unwrap();
        assert!(group.try_wait().unwrap().is_none());
        assert!(group.wait(Duration::from_millis(20)).is_err());
        assert!(kept().contains(&Kept::Group(pid)));
        drop(group);
        assert!(!kept().contains(&Kept::Group(pid)));
        let started = Instant::now();
        // Who is killed is there until init has taken notice.
        while rustix::process::test_kill_process_group(pid).is_ok() {
            assert!(started.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_directory_goes_with_its_guard() {
        let scratch = Scratch::new("test").unwrap();
        let path = scratch.path().to_owned();
        std::fs::write(scratch.join("f"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
        assert!(!kept().contains(&Kept::Dir(path)));
    }
}
