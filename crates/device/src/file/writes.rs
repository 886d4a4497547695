//! Whether a durable write that failed may tell of other writes.
//!
//! The system tells once of all that it could not bring to the medium, whoever asks. Where a flush went well and nothing was
//! written since, a durable write tells of its own place alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts writes, those under way included.
#[derive(Debug, Default)]
pub(super) struct Writes {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Writes {
    /// Does `write`, which is one.
    pub fn of<R>(&self, write: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let written = write();
        self.ended.fetch_add(1, Ordering::SeqCst);
        written
    }

    /// How many there were; `None` while one is under way.
    pub fn quiet(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{File, write};

    use super::super::{Descriptors, FileDevice, Kind};
    use super::Writes;
    use crate::{Device, Error, Operation};

    #[test]
    fn writes_are_counted_from_their_beginning() {
        let writes = Writes::default();
        assert_eq!(writes.quiet(), Some(0));
        assert_eq!(writes.of(|| writes.quiet()), None);
        assert_eq!(writes.quiet(), Some(1));
    }

    /// A flush before it has told of all others.
    #[test]
    fn a_durable_write_that_fails_alone_is_no_flush_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        write(&path, vec![0; 1 << 20]).unwrap();
        // It can be flushed, and takes no write.
        let main = File::open(&path).unwrap().into();
        let fds = Descriptors { main, direct: None, large: None, claim: None };
        let device = FileDevice::new(&path, Kind::Image, fds, false).unwrap();
        let failed = |result: crate::Result<()>| {
            let e = result.unwrap_err();
            assert!(matches!(e, Error::Io { operation: Operation::Write, .. }), "{e}");
        };
        failed(device.write_durably(0, &[1; 1024]));
        failed(device.write_at(8192, &[&[1; 512]]));
        failed(device.write_durably(0, &[1; 1024]));
        assert_eq!(device.failed_flushes(), 0);
        // What is written meanwhile may be lost with it.
        device.writes.of(|| failed(device.write_durably(0, &[1; 1024])));
        assert_eq!(device.failed_flushes(), 1);
    }
}
