//! Where the log of a server goes: the system's log, a file, or standard error.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use silt_control::ControlError;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::overwrite;

/// A place for the log.
pub enum To {
    Stderr,
    File(Arc<File>),
    System(Arc<UnixDatagram>),
    /// There is no system log here.
    Nowhere,
}

impl To {
    /// The file named, else the system's log.
    pub fn of(file: Option<&Path>) -> std::result::Result<Self, ControlError> {
        if let Some(path) = file {
            let file = overwrite::open(path, true).map_err(|e| overwrite::not_made(path, &e))?;
            return Ok(To::File(Arc::new(file)));
        }
        let socket = UnixDatagram::unbound().and_then(|s| s.connect("/dev/log").map(|()| s));
        // A log that nobody reads must not hold up writes.
        Ok(match socket.and_then(|s| s.set_nonblocking(true).map(|()| s)) {
            Ok(socket) => To::System(Arc::new(socket)),
            Err(_) => To::Nowhere,
        })
    }
}

/// Starts logging; of a panic, too, which otherwise nobody would hear of.
pub fn start(to: To, verbose: bool) {
    let level = if verbose { Level::DEBUG } else { Level::INFO };
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(verbose);
    // A second start is a start of the first.
    let _ = match &to {
        To::Stderr | To::File(_) => log.with_writer(Writers(to)).try_init(),
        To::System(_) | To::Nowhere => {
            log.without_time().with_level(false).with_writer(Writers(to)).try_init()
        }
    };
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        tracing::error!("an internal error{place}: {}", info.payload_as_str().unwrap_or("no more is known"));
    }));
}

struct Writers(To);

/// Writes one message.
enum Writer<'a> {
    Stderr(io::Stderr),
    File(&'a File),
    System { socket: &'a UnixDatagram, priority: u8 },
    Nowhere,
}

impl<'a> MakeWriter<'a> for Writers {
    type Writer = Writer<'a>;

    fn make_writer(&'a self) -> Writer<'a> {
        self.with_priority(6)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Writer<'a> {
        self.with_priority(match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        })
    }
}

impl Writers {
    fn with_priority(&self, priority: u8) -> Writer<'_> {
        match &self.0 {
            To::Stderr => Writer::Stderr(io::stderr()),
            To::File(file) => Writer::File(file),
            To::System(socket) => Writer::System { socket, priority },
            To::Nowhere => Writer::Nowhere,
        }
    }
}

/// A message as one line. A name in it may hold the end of one, and what comes after that would pass for a message of ours.
fn one_line(message: &[u8]) -> Vec<u8> {
    let (text, end) = match message.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        _ => (message, &b""[..]),
    };
    let mut line: Vec<u8> = text.iter().map(|b| if b.is_ascii_control() { b'?' } else { *b }).collect();
    line.extend_from_slice(end);
    line
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Writer::Stderr(to) => to.write_all(&one_line(bytes))?,
            Writer::File(to) => to.write_all(&one_line(bytes))?,
            Writer::System { socket, priority } => {
                /// The facility of daemons.
                const DAEMON: u8 = 3 << 3;
                let head = format!("<{}>silt[{}]: ", DAEMON | *priority, std::process::id());
                let mut message = head.into_bytes();
                message.extend_from_slice(one_line(bytes).trim_ascii_end());
                // What the system's log does not take is lost: there is nowhere to say so.
                let _ = socket.send(&message);
            }
            Writer::Nowhere => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_make_a_message_of_its_own() {
        let mut file = tempfile::tempfile().unwrap();
        let writers = Writers(To::File(Arc::new(file.try_clone().unwrap())));
        writers.make_writer().write_all(b"damage: /a\n\rERROR b\xc3\xa4: lost\n").unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(text, "damage: /a??ERROR b\u{e4}: lost\n");
    }

    #[test]
    fn a_message_to_the_system_is_one_datagram_with_its_priority() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let writers = Writers(To::System(Arc::new(ours)));
        writers.with_priority(4).write_all(b"something is wrong\n").unwrap();
        let mut bytes = [0; 100];
        let n = theirs.recv(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes[..n]);
        assert_eq!(text, format!("<28>silt[{}]: something is wrong", std::process::id()));
    }
}
