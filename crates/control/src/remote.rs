//! A volume that a daemon holds.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::connect::Control;
use crate::wire::{self, Ask, MAX_PART, MAX_REQUEST, Part, VERSION};
use crate::{ControlError, Kind, Request, Response, Result, socket};

/// How long to wait for an answer that takes a daemon no work, such as a status.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the daemon of a volume.
pub struct RemoteVolume {
    stream: UnixStream,
    pid: u32,
    /// Until when an answer must be complete.
    until: Option<Instant>,
    /// It gave no sign of life for [`PATIENCE`] before this connection was made: it is not waited for once more, unless somebody
    /// has more of it.
    silent: Option<ControlError>,
    /// Where it is mounted, if it was found by that.
    dir: Option<PathBuf>,
}

/// What to do about a daemon that does not answer, which serves `dir` if that is known.
pub(crate) fn if_it_never_will(dir: Option<&Path>) -> String {
    let dir = dir.map_or("DIR".to_owned(), silt_names::quoted);
    format!("if it never will: silt umount -l {dir}, and end it")
}

impl RemoteVolume {
    /// Over a connection that [`socket::find`] made.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let (_, pid) = socket::peer(&stream)?;
        Ok(RemoteVolume { stream, pid, until: None, silent: None, dir: None })
    }

    /// The same to a daemon that gave no sign of life, with the error that said so.
    pub(crate) fn silent(stream: UnixStream, error: ControlError) -> Result<Self> {
        Ok(RemoteVolume { silent: Some(error), ..Self::new(stream)? })
    }

    /// The same, of the mount on `dir`.
    pub(crate) fn on(self, dir: &Path) -> Self {
        RemoteVolume { dir: Some(dir.to_owned()), ..self }
    }

    /// Until when a sign of life is waited for. Errors: it was waited for already.
    fn patience(&self) -> Result<Instant> {
        match (&self.silent, self.until) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(until)) => Ok(until),
            (None, None) => Ok(Instant::now() + PATIENCE),
        }
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

/// The shortest time that a socket can be told to wait.
const SHORTEST: Duration = Duration::from_millis(1);

/// Reads until a moment, however small the pieces are that come.
struct Bounded<'a> {
    stream: &'a UnixStream,
    until: Option<Instant>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some(until) = self.until {
            // The socket's own timeout is coarser, and late where the kernel's timers are.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if wire::has_come(self.stream, left)? {
                break;
            }
        }
        let mut stream = self.stream;
        stream.read(bytes)
    }
}

fn gone() -> ControlError {
    ControlError::new(Kind::Unavailable, "the daemon that holds the volume has gone")
        .hint("mount the volume again")
}

impl RemoteVolume {
    /// Errors: the daemon gives no sign of life within [`PATIENCE`], or by [`Control::answer_within`].
    pub fn is_there(&mut self) -> Result<()> {
        let until = self.patience()?;
        match self.exchange(Request::Ping, Some(until), &mut |_| Ok(())) {
            // Of an older version: it does not know the question, and answers.
            Err(Failed::Told(e)) if e.kind == Kind::Unavailable => Ok(()),
            other => other.map_err(Failed::error),
        }
    }

    /// Whether the daemon serves the mount with this number; none where it cannot tell, as one of an older version cannot. Errors:
    /// it gives no sign of life within [`PATIENCE`], or by [`Control::answer_within`].
    pub fn serves(&mut self, connection: u64) -> Result<Option<bool>> {
        let until = self.patience()?;
        match self.exchange(Request::Serves(connection), Some(until), &mut |_| Ok(())) {
            Ok(()) => Ok(Some(true)),
            Err(Failed::Told(e)) if e.kind == Kind::NotFound => Ok(Some(false)),
            Err(Failed::Told(e)) if e.kind == Kind::Unavailable => Ok(None),
            Err(other) => Err(other.error()),
        }
    }

    /// Sends a request and takes the answer in.
    fn exchange(
        &self,
        request: Request,
        until: Option<Instant>,
        out: &mut dyn FnMut(Response) -> Result<()>,
    ) -> std::result::Result<(), Failed> {
        let pid = self.pid;
        let lost = |e: io::Error| match e.kind() {
            io::ErrorKind::InvalidData => {
                ControlError::new(Kind::Unavailable, "the daemon speaks another version of the protocol")
                    .hint("unmount and mount the volume again with this version")
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                ControlError::new(Kind::Unavailable, format!("the daemon (process {pid}) does not answer"))
                    .hint(if_it_never_will(self.dir.as_deref()))
            }
            _ => gone(),
        };
        let lost = |e| Failed::Lost(lost(e));
        // A request is shorter than the socket's buffer unless earlier ones lie in it unread.
        let left = until.map(|until| until.saturating_duration_since(Instant::now()).max(SHORTEST));
        self.stream.set_write_timeout(left).map_err(lost)?;
        let mut to = &self.stream;
        wire::send(&mut to, &Ask { version: VERSION, request }, MAX_REQUEST).map_err(lost)?;
        let mut from = Bounded { stream: &self.stream, until };
        loop {
            let bytes = wire::receive(&mut from, MAX_PART).map_err(lost)?;
            match wire::decode(&bytes.ok_or_else(|| Failed::Lost(gone()))?).map_err(lost)? {
                // After an error of `out` the rest of the answer is still in the socket: such a
                // connection is of no more use, and its owner ends.
                Part::Item(item) => out(item).map_err(Failed::Lost)?,
                Part::End => return Ok(()),
                Part::Failed(error) => return Err(Failed::Told(error)),
            }
        }
    }
}

/// How an exchange fails.
enum Failed {
    /// The daemon says so.
    Told(ControlError),
    /// There is no whole answer.
    Lost(ControlError),
}

impl Failed {
    fn error(self) -> ControlError {
        match self {
            Failed::Told(e) | Failed::Lost(e) => e,
        }
    }
}

impl Control for RemoteVolume {
    fn call(&mut self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()> {
        // What may take long is given only to a daemon that gives a sign of life.
        if self.until.is_none() || self.silent.is_some() {
            self.is_there()?;
        }
        self.exchange(request, self.until, out).map_err(Failed::error)
    }

    /// None (as at first): it takes what it takes. A request that was not answered in time leaves the
    /// connection of no more use.
    fn answer_within(&mut self, time: Option<Duration>) {
        self.until = time.map(|time| Instant::now() + time);
        if time.is_some_and(|time| time > PATIENCE) {
            self.silent = None;
        }
    }

    fn is_mounted(&self) -> bool {
        true
    }

    fn into_remote(self: Box<Self>) -> Option<RemoteVolume> {
        Some(*self)
    }
}
