//! A volume that a daemon holds.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::connect::Control;
use crate::wire::{self, Ask, MAX_PART, MAX_REQUEST, Part, VERSION};
use crate::{ControlError, Kind, Request, Response, Result, socket};

/// A connection to the daemon of a volume.
pub struct RemoteVolume {
    stream: UnixStream,
    pid: u32,
}

impl RemoteVolume {
    /// Over a connection that [`socket::find`] made.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let (_, pid) = socket::peer(&stream)?;
        Ok(RemoteVolume { stream, pid })
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A descriptor that becomes readable when the daemon's process has ended.
    pub fn process(&self) -> Result<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(gone)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .map_err(|e| ControlError::io("cannot watch the daemon", &e.into()))
    }
}

fn gone() -> ControlError {
    ControlError::new(Kind::Unavailable, "the daemon that holds the volume has gone")
        .hint("mount the volume again")
}

impl Control for RemoteVolume {
    fn call(&mut self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()> {
        let lost = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::InvalidData => {
                ControlError::new(Kind::Unavailable, "the daemon speaks another version of the protocol")
                    .hint("unmount and mount the volume again with this version")
            }
            _ => gone(),
        };
        wire::send(&mut self.stream, &Ask { version: VERSION, request }, MAX_REQUEST).map_err(lost)?;
        loop {
            let bytes = wire::receive(&mut self.stream, MAX_PART).map_err(lost)?.ok_or_else(gone)?;
            match wire::decode(&bytes).map_err(lost)? {
                // After an error of `out` the rest of the answer is still in the socket: such a
                // connection is of no more use, and its owner ends.
                Part::Item(item) => out(item)?,
                Part::End => return Ok(()),
                Part::Failed(error) => return Err(error),
            }
        }
    }

    fn is_mounted(&self) -> bool {
        true
    }

    fn into_remote(self: Box<Self>) -> Option<RemoteVolume> {
        Some(*self)
    }
}
