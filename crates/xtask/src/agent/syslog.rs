//! A listener in place of a system log: daemons tell their troubles there and nowhere else.

use std::os::unix::net::UnixDatagram;

use anyhow::{Context, Result};

/// The listener.
pub(super) struct Syslog(UnixDatagram);

/// The severity of a message is the lowest three bits of its priority; errors and worse are 0 to 3.
const SEVERITY_ERROR: u32 = 3;

impl Syslog {
    /// Listens from now on.
    pub(super) fn listen() -> Result<Self> {
        let socket = UnixDatagram::bind("/dev/log").context("listening at /dev/log")?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Prints what has come since the last time, and returns what was an error.
    pub(super) fn drain(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok(len) = self.0.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..len]).trim_end_matches(['\0', '\n']).to_owned();
            println!("syslog: {text}");
            let priority = text.strip_prefix('<').and_then(|t| t.split_once('>')).map(|(p, _)| p.parse());
            if matches!(priority, Some(Ok::<u32, _>(priority)) if priority & 7 <= SEVERITY_ERROR) {
                errors.push(text);
            }
        }
        errors
    }
}
