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
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use silt_control::{ControlError, Kind};

use super::Job;
use crate::failure::Result;

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

/// Starts a server and returns when its mount answers.
pub fn start(job: &Job, moment: Option<u64>) -> Result<()> {
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
    let mut child = command.spawn().map_err(|e| ControlError::io("cannot start the server", &e))?;
    let mut said = String::new();
    if let Some(pipe) = child.stdout.take() {
        pipe.take(LONGEST)
            .read_to_string(&mut said)
            .map_err(|e| ControlError::io("cannot hear from the server", &e))?;
    }
    if said.trim_end() == READY {
        return Ok(());
    }
    // It is ending: its code is of no use beside what it said.
    let _ = child.wait();
    let error = serde_json::from_str(&said).unwrap_or_else(|_| {
        ControlError::new(Kind::Other, "the server ended before the volume was mounted")
            .hint("-f shows what it has to say")
    });
    Err(error.into())
}
