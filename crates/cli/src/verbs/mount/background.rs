//! Starting the server in the background, and hearing from it.
//!
//! ```text
//! silt mount --+-- spawns: silt serve ...   (new session, output into our pipe, log elsewhere)
//!              |<- "ready\n"                 mounted and answering
//!              |<- {"kind":...,"message":..} why not
//!              |<- end of the pipe           it died
//! ```

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use silt_control::{ControlError, Kind};
use silt_verify::{Unwatched, Watch};

use super::Job;
use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::target;
use crate::verbs::umount;

/// What a server says when the mount answers.
pub const READY: &str = "ready";
/// Longest message of a server in bytes.
const LONGEST: u64 = 64 << 10;

/// Has the server inherit no descriptors beyond the usual three: a pipe or lock of whoever called us
/// would stay open for as long as it runs.
fn keep_descriptors() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = open.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|n| *n > 2) {
        // SAFETY: nothing but a flag of the descriptor is changed, and no other thread of this program
        // opens or closes any; the one that listed the directory is closed by now, and refused.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
    }
}

/// Waits for what the server has to say; after Ctrl-C says that it does.
fn wait(pipe: &ChildStdout, watch: &impl Watch) -> Result<()> {
    let mut told = false;
    loop {
        let mut fds = [PollFd::new(pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })) {
            Ok(n) if n > 0 => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(ControlError::io("cannot hear from the server", &e.into()).into()),
        }
        if watch.stop() && !told {
            told = true;
            target::eprintln_quiet(HELD);
        }
    }
}

/// Said after Ctrl-C, where the mount cannot be called off.
const HELD: &str = "it is unmounted again as soon as it is mounted; another Ctrl-C ends this, and it is mounted all the same";

/// Does what cannot be called off; after Ctrl-C says so.
pub fn held<T>(watch: &impl Watch, what: impl FnOnce() -> T) -> T {
    let (until, done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while done.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                if watch.stop() {
                    return target::eprintln_quiet(HELD);
                }
            }
        });
        let _until = until;
        what()
    })
}

/// Unmounts what was mounted after Ctrl-C.
pub fn taken_back(dir: &Path) -> Failure {
    match umount::strictly(dir) {
        Ok(()) => Failure::Ended(format!("ended: {} is unmounted again", dir.display())),
        Err(Failure::Error(e)) => {
            Failure::Ended(format!("ended, but {} is mounted and stays so: {}", dir.display(), e.message))
        }
        Err(other) => other,
    }
}

/// Starts a server and returns when its mount answers. What Ctrl-C asks for during that is done then: a server that is killed
/// while it opens the volume would leave it as a crash does, or a mount that nobody serves.
pub fn start(job: &Job, moment: Option<u64>) -> Result<()> {
    let watch = Interruptible::new(Unwatched);
    let program = std::env::current_exe().map_err(|e| ControlError::io("cannot find this program", &e))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--options").arg(&job.options.text);
    if job.options.read_only {
        command.arg("--read-only");
    }
    if let Some(n) = moment {
        command.arg("--moment").arg(n.to_string());
    }
    if let Some(log) = &job.log {
        let log = std::path::absolute(log).map_err(|e| ControlError::io(log.display(), &e))?;
        command.arg("--log").arg(log);
    }
    if job.verbose {
        command.arg("--verbose");
    }
    command.arg("--").args([job.volume.as_os_str(), job.dir.as_os_str()] as [&OsStr; 2]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
    keep_descriptors();
    // From its first moment on Ctrl-C is not for it: it reaches the group, and we hold ours.
    // SAFETY: between fork and exec nothing but one system call is made.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let mut child = command.spawn().map_err(|e| ControlError::io("cannot start the server", &e))?;
    let mut said = String::new();
    if let Some(pipe) = child.stdout.take() {
        wait(&pipe, &watch)?;
        pipe.take(LONGEST)
            .read_to_string(&mut said)
            .map_err(|e| ControlError::io("cannot hear from the server", &e))?;
    }
    if said.trim_end() == READY {
        return if watch.stop() { Err(taken_back(&job.dir)) } else { Ok(()) };
    }
    // It is ending: its code is of no use beside what it said.
    let _ = child.wait();
    let error = serde_json::from_str(&said).unwrap_or_else(|_| {
        ControlError::new(Kind::Other, "the server ended before the volume was mounted")
            .hint("-f shows what it has to say")
    });
    Err(error.into())
}
