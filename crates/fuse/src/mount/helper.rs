//! Mounting and unmounting through fusermount3, for users who may not call mount(2).
//!
//! ```text
//! we ---- socket pair ---- fusermount3 (set-uid): opens /dev/fuse, mounts
//! we <--- SCM_RIGHTS: the descriptor ---
//! ```
//! Its end of the socket is its standard input, so that no descriptor has to be inherited by number.

use super::MountOptions;
use crate::error::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";

/// Mounts on an absolute path; the descriptor that serves it.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let text = options.helper_text()?;
    let fail = |source: io::Error| Error::Mount { path: path.to_owned(), source };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| fail(error.into()))?;
    let output = Command::new(HELPER)
        .args([OsStr::new("-o"), text.as_ref(), OsStr::new("--"), path.as_os_str()])
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|child| child.wait_with_output())
        .map_err(Error::HelperMissing)?;
    if !output.status.success() {
        return Err(Error::Helper(message(&output.stderr)));
    }
    receive(&ours).map_err(fail)
}

/// Unmounts; the helper refuses what the user has not mounted.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(Error::HelperMissing)?;
    if output.status.success() {
        return Ok(());
    }
    let text = message(&output.stderr);
    if text.contains("busy") { Err(Error::Busy(path.to_owned())) } else { Err(Error::Helper(text)) }
}

/// What the helper said, for an error.
fn message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    if text.is_empty() { format!("{HELPER} failed without a word") } else { text.to_owned() }
}

/// Takes the descriptor out of the socket.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("fusermount3 handed no descriptor over"))
}
