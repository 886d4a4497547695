//! A wrapper that takes the time a disk would: a fixed time a request and a flush, bandwidth, and
//! for a spinning disk the movement of its head. One request at a time, no cache, no queue.
//!
//! Locks: one, over the head and the time spent; a throttle that sleeps holds it meanwhile, which
//! is what makes requests wait for each other.

use std::time::Duration;

use parking_lot::Mutex;

use crate::{Capabilities, Device, Result, total};

/// Movement of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seek {
    /// To the next track.
    pub shortest: Duration,
    /// From one end of the disk to the other; between, time grows with the root of the distance.
    pub longest: Duration,
    /// One turn of the disk; half of one is waited for after a seek and in a flush.
    pub turn: Duration,
}

/// What a disk takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// For each request.
    pub request: Duration,
    /// For each flush.
    pub flush: Duration,
    /// Bytes a second; 0 for no limit.
    pub bandwidth: u64,
    /// `None` where seeks cost nothing.
    pub seek: Option<Seek>,
}

impl Disk {
    /// A spinning disk of 7200 turns a minute.
    pub fn spinning() -> Self {
        let seek = Seek {
            shortest: Duration::from_micros(800),
            longest: Duration::from_millis(16),
            turn: Duration::from_micros(8333),
        };
        Disk {
            request: Duration::from_micros(100),
            flush: Duration::ZERO,
            bandwidth: 160_000_000,
            seek: Some(seek),
        }
    }

    /// A solid-state disk on SATA.
    pub fn solid_state() -> Self {
        Disk {
            request: Duration::from_micros(80),
            flush: Duration::from_micros(500),
            bandwidth: 500_000_000,
            seek: None,
        }
    }

    /// Time for moving the head `distance` bytes on a disk of `size` bytes, and for the turn after.
    fn travel(&self, distance: u64, size: u64) -> Duration {
        let Some(seek) = self.seek.filter(|_| distance > 0) else { return Duration::ZERO };
        let share = (distance as f64 / size.max(1) as f64).clamp(0.0, 1.0).sqrt();
        seek.shortest + seek.longest.saturating_sub(seek.shortest).mul_f64(share) + seek.turn / 2
    }

    fn transfer(&self, len: u64) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(len as f64 / self.bandwidth as f64)
    }
}

/// Whether time is taken or only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Requests last as long as on the disk.
    Sleep,
    /// Requests run at once; [`Throttle::spent`] says what they would have taken.
    Account,
}

#[derive(Default)]
struct State {
    head: u64,
    spent: Duration,
}

/// Takes a disk's time for what passes to the inner device.
pub struct Throttle<D> {
    inner: D,
    disk: Disk,
    mode: Mode,
    state: Mutex<State>,
}

impl<D: Device> Throttle<D> {
    /// With the head at the start of the disk.
    pub fn new(inner: D, disk: Disk, mode: Mode) -> Self {
        Throttle { inner, disk, mode, state: Mutex::default() }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Time that all requests together took of the disk.
    pub fn spent(&self) -> Duration {
        self.state.lock().spent
    }

    fn take(&self, state: &mut State, time: Duration) {
        state.spent = state.spent.saturating_add(time);
        if self.mode == Mode::Sleep {
            std::thread::sleep(time);
        }
    }

    fn request(&self, offset: u64, len: u64) {
        let mut state = self.state.lock();
        let travel = self.disk.travel(offset.abs_diff(state.head), self.inner.len());
        state.head = offset.saturating_add(len);
        self.take(&mut state, self.disk.request + travel + self.disk.transfer(len));
    }

    fn flushing(&self) {
        let half_turn = self.disk.seek.map_or(Duration::ZERO, |s| s.turn / 2);
        self.take(&mut self.state.lock(), self.disk.flush + half_turn);
    }
}

impl<D: Device> Device for Throttle<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.request(offset, buf.len() as u64);
        self.inner.read_at(offset, buf)
    }

    // `read_if_cached` stays "not at hand": the disk has no cache.

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.request(offset, total(bufs));
        self.inner.write_at(offset, bufs)
    }

    fn flush(&self) -> Result<()> {
        self.flushing();
        self.inner.flush()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.flushing();
        self.request(offset, buf.len() as u64);
        self.inner.write_durably(offset, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.take(&mut self.state.lock(), self.disk.request);
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { rotational: self.disk.seek.is_some(), ..self.inner.capabilities() }
    }

    fn backing_free(&self) -> Option<u64> {
        self.inner.backing_free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_stream_beats_scattered_writes() {
        let take = |offsets: &mut dyn Iterator<Item = u64>| {
            let d = Throttle::new(MemoryDevice::new(64 * MIB), Disk::spinning(), Mode::Account);
            offsets.for_each(|at| d.write_at(at, &[&[1; 4096]]).unwrap());
            d.spent()
        };
        let stream = take(&mut (0..1000).map(|i| i * 4096));
        let scattered = take(&mut (0..1000).map(|i| (i * 7919 % 1000) * 4096));
        assert!(stream < Duration::from_millis(200), "{stream:?}");
        assert!(scattered > Duration::from_secs(5), "{scattered:?}");
    }

    #[test]
    fn figures() {
        let disk = Disk {
            request: Duration::from_millis(1),
            flush: Duration::from_millis(10),
            bandwidth: 1000,
            seek: Some(Seek {
                shortest: Duration::from_millis(100),
                longest: Duration::from_millis(500),
                turn: Duration::from_millis(40),
            }),
        };
        let d = Throttle::new(MemoryDevice::new(1000), disk, Mode::Account);
        d.read_at(0, &mut [0; 10]).unwrap();
        assert_eq!(d.spent().as_millis(), 1 + 10, "request and transfer");
        d.flush().unwrap();
        assert_eq!(d.spent().as_millis(), 11 + 10 + 20, "half a turn");
        d.read_at(260, &mut [0; 10]).unwrap();
        assert_eq!(d.spent().as_millis(), 41 + 1 + 10 + 100 + 200 + 20, "half of the longest way");
    }

    #[test]
    fn sleeping_takes_the_time() {
        let disk = Disk { request: Duration::from_millis(20), ..Disk::solid_state() };
        let d = Throttle::new(MemoryDevice::new(1000), disk, Mode::Sleep);
        let start = std::time::Instant::now();
        d.read_at(0, &mut [0; 10]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(!d.read_if_cached(0, &mut [0]).unwrap());
    }
}
