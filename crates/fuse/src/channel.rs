//! One descriptor of `/dev/fuse`: requests are read from it whole, replies are written to it whole.
//!
//! The kernel answers a read with exactly one request and wants exactly one reply a write. A reply goes to
//! the descriptor its request came from. No locks: both calls are atomic in the kernel, from any thread.

use crate::abi::OutHeader;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno as Os;
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// Slices that one `writev` takes (the kernel's IOV_MAX).
const IOV_MAX: usize = 1024;
/// Slices that are put together on the stack.
const INLINE: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Channel {
    fd: OwnedFd,
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Reads one request; its length.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Os> {
        rustix::io::read(&self.fd, buffer)
    }

    /// Writes one message: a header (error or notification code, request) and the parts of its body.
    pub(crate) fn write(&self, error: i32, unique: u64, body: &[IoSlice<'_>]) -> Result<(), Os> {
        let length = body.iter().map(|part| part.len()).sum::<usize>() + size_of::<OutHeader>();
        let Ok(len) = u32::try_from(length) else { return Err(Os::MSGSIZE) };
        let header = OutHeader { len, error, unique };
        let header = IoSlice::new(header.as_bytes());
        let written = if body.len() < INLINE {
            let mut parts = [IoSlice::new(&[]); INLINE];
            let parts = fill(&mut parts, header, body);
            rustix::io::writev(&self.fd, parts)?
        } else if body.len() < IOV_MAX {
            let parts: Vec<_> = std::iter::once(header).chain(body.iter().copied()).collect();
            rustix::io::writev(&self.fd, &parts)?
        } else {
            // More parts than the kernel takes at once: the message must stay one write, so it is copied.
            let mut whole = Vec::with_capacity(length);
            whole.extend_from_slice(&header);
            body.iter().for_each(|part| whole.extend_from_slice(part));
            rustix::io::write(&self.fd, &whole)?
        };
        if written == length { Ok(()) } else { Err(Os::IO) }
    }

    /// True once the kernel has ended the connection (unmounted or aborted).
    pub(crate) fn is_closed(&self) -> bool {
        is_unconnected(&self.fd)
    }

    /// From now on reading returns at once, with EAGAIN where there is no request.
    pub(crate) fn never_block(&self) -> Result<(), Os> {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        fcntl_setfl(&self.fd, fcntl_getfl(&self.fd)? | OFlags::NONBLOCK)
    }

    /// Waits until a request can be read, for descriptors that were made non-blocking.
    pub(crate) fn wait_readable(&self) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if let Err(error) = poll(&mut fds, None) {
            tracing::debug!(%error, "waiting for requests");
        }
    }

    /// A further descriptor of the same connection, with its own queue of requests under way.
    pub(crate) fn try_clone(&self) -> Result<Self, Os> {
        use rustix::fs::{Mode, OFlags};
        use rustix::ioctl::{Setter, ioctl, opcode};
        use std::os::fd::AsRawFd;

        /// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`.
        const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
        let fd = rustix::fs::open(super::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let source = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: the ioctl reads one u32 behind the pointer, which is what `Setter<_, u32>` hands over, and
        // touches no other memory.
        unsafe { ioctl(&fd, Setter::<CLONE, u32>::new(source))? };
        Ok(Self::new(fd))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// True if a descriptor of the device belongs to no living connection.
pub(crate) fn is_unconnected(fd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|ready| ready > 0 && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

/// Puts the header and the body into `parts`, which has room for both; the filled part.
fn fill<'s, 'a>(
    parts: &'s mut [IoSlice<'a>; INLINE],
    header: IoSlice<'a>,
    body: &[IoSlice<'a>],
) -> &'s [IoSlice<'a>] {
    let sources = std::iter::once(&header).chain(body);
    let mut count = 0;
    for (part, source) in parts.iter_mut().zip(sources) {
        *part = *source;
        count += 1;
    }
    parts.get(..count).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A channel that leads to a socket, which keeps the borders of messages as the device does.
    pub(crate) fn pair() -> (Channel, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::new(ours), theirs)
    }

    /// The next message: header error, unique and body.
    pub(crate) fn receive(fd: &OwnedFd) -> (i32, u64, Vec<u8>) {
        let mut buffer = vec![0; 1 << 20];
        let length = rustix::io::read(fd, &mut buffer).unwrap();
        buffer.truncate(length);
        let body = buffer.split_off(size_of::<OutHeader>());
        let header = zerocopy::FromBytes::read_from_bytes(&buffer[..]).map(|h: OutHeader| h).unwrap();
        assert_eq!(header.len as usize, length);
        (header.error, header.unique, body)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{pair, receive};
    use super::*;

    #[test]
    fn messages_arrive_whole_whatever_the_number_of_parts() {
        for parts in [0, 1, INLINE - 1, INLINE, IOV_MAX - 1, IOV_MAX, 2 * IOV_MAX] {
            let (channel, other) = pair();
            let body: Vec<_> = (0..parts).map(|_| IoSlice::new(b"ab")).collect();
            channel.write(-5, 77, &body).unwrap();
            let (error, unique, got) = receive(&other);
            assert_eq!((error, unique), (-5, 77));
            assert_eq!(got, b"ab".repeat(parts), "{parts} parts");
        }
    }

    #[test]
    fn a_closed_peer_is_seen() {
        let (channel, other) = pair();
        assert!(!channel.is_closed());
        drop(other);
        assert!(channel.is_closed());
    }
}
