//! Ends the waiting for requests from our side, where the kernel's way to end a connection cannot be had: its control file
//! system is not there, or not for us, as in many containers. The kernel aborts a connection as well when nobody has its
//! device open any more, for which nobody may wait in it.

use crate::channel::Channel;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often who waits looks where nothing can wake them.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// See the module.
#[derive(Debug)]
pub(crate) struct Stop {
    /// Wakes who waits, where it could be had.
    event: Option<OwnedFd>,
    stopped: AtomicBool,
}

impl Stop {
    pub(crate) fn new() -> Self {
        Self { event: eventfd(0, EventfdFlags::CLOEXEC).ok(), stopped: AtomicBool::new(false) }
    }

    /// Whoever waits stops, for good.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let written = self.event.as_ref().map(|event| rustix::io::write(event, &1u64.to_ne_bytes()));
        if let Some(Err(error)) = written {
            tracing::error!(%error, "who waits for requests cannot be stopped");
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Waits until a request can be read, or the connection has ended; false if this was stopped.
    pub(crate) fn wait(&self, channel: &Channel) -> bool {
        while !self.is_stopped() {
            let mut fds = vec![PollFd::new(channel, PollFlags::IN)];
            fds.extend(self.event.as_ref().map(|event| PollFd::new(event, PollFlags::IN)));
            match poll(&mut fds, self.event.is_none().then_some(&LOOK)) {
                Ok(_) if fds.first().is_some_and(|fd| fd.revents().is_empty()) => {}
                Err(Os::INTR | Os::AGAIN) => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "waiting for requests");
                    break;
                }
            }
        }
        !self.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::testing::pair;
    use std::time::Duration;

    #[test]
    fn who_waits_is_stopped() {
        for wakes in [true, false] {
            let (channel, other) = pair();
            let stop = if wakes { Stop::new() } else { Stop { event: None, ..Stop::new() } };
            rustix::io::write(&other, b"x").unwrap();
            assert!(stop.wait(&channel), "there is a request");
            channel.read(&mut [0; 8]).unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| stop.wait(&channel));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!waits.is_finished());
                stop.stop();
                assert!(!waits.join().unwrap());
            });
            rustix::io::write(&other, b"x").unwrap();
            assert!(!stop.wait(&channel) && stop.is_stopped());
        }
    }

    #[test]
    fn the_end_of_the_connection_is_for_the_read_to_tell() {
        let (channel, other) = pair();
        drop(other);
        assert!(Stop::new().wait(&channel));
    }
}
