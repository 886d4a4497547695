//! A wrapper that holds writing up while it is not known whose the device is, and ends it where it is somebody else's.

use std::io;
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};

use crate::{Allocation, Capabilities, Device, Error, Kind, Operation, Result, total};

/// Between two looks of who waits.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Held,
    Shut,
}

/// Passes everything on to the inner device while it is open. Whatever changes what is on it waits while it is held, and
/// is refused once it was shut.
pub struct Gate<D> {
    inner: D,
    /// Shared by requests under way.
    state: RwLock<State>,
}

impl<D: Device> Gate<D> {
    /// An open one.
    pub fn new(inner: D) -> Self {
        Gate { inner, state: RwLock::new(State::Open) }
    }

    /// Holds writing up. What is under way has ended when it returns.
    pub fn hold(&self) {
        self.set(State::Held);
    }

    /// Lets it go on, unless it was shut.
    pub fn open(&self) {
        self.set(State::Open);
    }

    /// Nothing is written any more. What is under way has ended when it returns.
    pub fn shut(&self) {
        self.set(State::Shut);
    }

    fn set(&self, state: State) {
        let mut now = self.state.write();
        if *now != State::Shut {
            *now = state;
        }
    }

    fn pass(&self, operation: Operation, offset: u64, len: u64) -> Result<RwLockReadGuard<'_, State>> {
        loop {
            let state = self.state.read();
            match *state {
                State::Open => return Ok(state),
                State::Held => drop(state),
                State::Shut => {
                    let source = io::Error::other("somebody else has the device");
                    return Err(Error::Io { operation, offset, len, source });
                }
            }
            sleep(PAUSE);
        }
    }
}

impl<D: Device> Device for Gate<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn read_kind(&self, kind: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_kind(kind, offset, buf)
    }

    fn read_if_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.inner.read_if_cached(offset, buf)
    }

    fn read_first(&self, offset: u64, buf: &mut [u8]) -> Result<Option<Range<u64>>> {
        self.inner.read_first(offset, buf)
    }

    fn fetch(&self, range: Range<u64>) {
        self.inner.fetch(range);
    }

    fn bring(&self, offsets: &[u64], len: usize) {
        self.inner.bring(offsets, len);
    }

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let _open = self.pass(Operation::Write, offset, total(bufs))?;
        self.inner.write_at(offset, bufs)
    }

    fn write_cached(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let _open = self.pass(Operation::Write, offset, total(bufs))?;
        self.inner.write_cached(offset, bufs)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let _open = self.pass(Operation::Write, offset, buf.len() as u64)?;
        self.inner.write_durably(offset, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _open = self.pass(Operation::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn backing_free(&self) -> Option<u64> {
        self.inner.backing_free()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<Allocation> {
        let _open = self.pass(Operation::Allocate, offset, len)?;
        self.inner.allocate(offset, len)
    }

    fn reclaim(&self) {
        self.inner.reclaim();
    }

    fn forget_cached(&self) {
        self.inner.forget_cached();
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        self.inner.next_data(offset)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::thread::spawn;

    use super::*;
    use crate::MemoryDevice;

    type Change = fn(&Gate<Arc<MemoryDevice>>) -> Result<()>;

    #[test]
    fn writes_wait_until_it_is_open_or_shut() {
        for opens in [true, false] {
            let inner = Arc::new(MemoryDevice::new(8192));
            let gate = Arc::new(Gate::new(inner.clone()));
            gate.write_at(0, &[&[1; 512]]).unwrap();
            gate.hold();
            let changes: [Change; 4] = [
                |g| g.write_at(0, &[&[2; 512]]),
                |g| g.write_cached(512, &[&[2; 512]]),
                |g| g.write_durably(1024, &[2; 512]),
                |g| g.discard(4096, 512),
            ];
            let waiting: Vec<_> = changes
                .into_iter()
                .map(|change| {
                    let gate = gate.clone();
                    spawn(move || change(&gate))
                })
                .collect();
            sleep(20 * PAUSE);
            assert!(waiting.iter().all(|w| !w.is_finished()));
            let mut buf = [0; 1536];
            gate.read_at(0, &mut buf).unwrap();
            assert_eq!((buf[0], buf[512], buf[1024]), (1, 0, 0));
            if opens {
                gate.open()
            } else {
                gate.shut()
            }
            let ended: Vec<bool> = waiting.into_iter().map(|w| w.join().unwrap().is_ok()).collect();
            assert_eq!(ended, [opens; 4]);
            inner.read_at(0, &mut buf).unwrap();
            assert_eq!(buf[0], if opens { 2 } else { 1 });
            // What is shut stays so.
            gate.open();
            assert_eq!(gate.write_at(0, &[&[3; 512]]).is_ok(), opens);
        }
    }
}
