//! Messages on the socket: a length (4 bytes, little-endian) and so many bytes of JSON.
//!
//! ```text
//! client: Ask        server: Part::Item* (Part::End | Part::Failed)      then the next Ask
//! ```
//!
//! A message longer than its limit ends the connection before a byte of it is stored.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{ControlError, Request, Response};

/// Version of the messages. Others are refused.
pub const VERSION: u32 = 1;
/// Longest request in bytes.
pub const MAX_REQUEST: usize = 256 << 10;
/// Longest part of an answer in bytes.
pub const MAX_PART: usize = 4 << 20;

/// What a client sends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    pub version: u32,
    pub request: Request,
}

/// What a server sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    Item(Response),
    End,
    Failed(ControlError),
}

/// Sends a message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T, limit: usize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    let stated = u32::try_from(length).ok().filter(|_| length <= limit);
    let stated = stated.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "message too long"))?;
    bytes[..4].copy_from_slice(&stated.to_le_bytes());
    to.write_all(&bytes)
}

/// Waits for bytes of a message, or the end of the other side, so long at most; whether they came. A signal ends it, too.
pub(crate) fn has_come(from: &UnixStream, most: Duration) -> io::Result<bool> {
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&most)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The bytes of the next message; none where the other side is done.
pub fn receive(from: &mut impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut filled = 0;
    while filled < length.len() {
        match from.read(&mut length[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// Reads the JSON of a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_through_and_long_ones_do_not() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Part::Item(Response::Checkpoint(7)), MAX_PART).unwrap();
        send(&mut bytes, &Part::End, MAX_PART).unwrap();
        let mut from = &bytes[..];
        let first: Part = decode(&receive(&mut from, MAX_PART).unwrap().unwrap()).unwrap();
        assert!(matches!(first, Part::Item(Response::Checkpoint(7))));
        let second: Part = decode(&receive(&mut from, MAX_PART).unwrap().unwrap()).unwrap();
        assert!(matches!(second, Part::End));
        assert!(receive(&mut from, MAX_PART).unwrap().is_none());

        assert!(send(&mut Vec::new(), &Part::Item(Response::Notice("x".repeat(100))), 50).is_err());
        assert!(receive(&mut &[255u8, 255, 255, 255, 0][..], MAX_PART).is_err());
        assert!(receive(&mut &[5u8, 0, 0, 0, b'{'][..], MAX_PART).is_err());
        assert!(receive(&mut &[5u8, 0][..], MAX_PART).is_err());
        assert!(decode::<Ask>(b"{\"version\":1,\"request\":\"no-such\"}").is_err());
    }
}
