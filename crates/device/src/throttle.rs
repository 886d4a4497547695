//! A wrapper that takes the time a disk would: for each request and flush, by bandwidth, for the
//! movement of a head, and with a write cache that takes writes at once and puts them into the
//! order of the disk until a flush.
//!
//! One request at a time. Not modelled: several commands queued in the disk (reads are served as they
//! come), zones of different speed, head switches, a cache of what was read before (only reading on in a
//! row), and an interruption of a write that the disk began while idle.
//!
//! Locks: one, over the disk's state; a throttle that sleeps holds it meanwhile, which is what makes
//! requests wait for each other.

mod marks;
mod mechanism;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Capabilities, Device, Result, total};
use mechanism::Mechanism;

/// Movement of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seek {
    /// To the next track.
    pub shortest: Duration,
    /// From one end of the disk to the other; between, time grows with the root of the distance.
    pub longest: Duration,
    /// One turn of the disk. Where on its track a byte lies follows from its offset: after a movement,
    /// or a pause however short, its place must come by again.
    pub turn: Duration,
}

/// What a disk takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// For each request.
    pub request: Duration,
    /// For each flush, beyond writing what the cache holds.
    pub flush: Duration,
    /// Bytes a second to and from the medium; 0 for no limit.
    pub bandwidth: u64,
    /// Bytes a second to and from the cache; 0 for no limit.
    pub interface: u64,
    /// Bytes of writes that the disk holds until it writes them while idle, when they do not fit any more, or
    /// at a flush, ascending from where the head is; 0 for none: each write waits for the medium.
    pub cache: u64,
    /// `None` where seeks cost nothing.
    pub seek: Option<Seek>,
}

impl Disk {
    /// A spinning disk of 7200 turns a minute on SATA, with a write cache of 64 MiB.
    pub fn spinning() -> Self {
        let seek = Seek {
            shortest: Duration::from_micros(800),
            longest: Duration::from_millis(16),
            turn: Duration::from_nanos(8_333_333),
        };
        Disk {
            request: Duration::from_micros(100),
            flush: Duration::ZERO,
            bandwidth: 160_000_000,
            interface: 500_000_000,
            cache: 64 << 20,
            seek: Some(seek),
        }
    }

    /// A solid-state disk on SATA.
    pub fn solid_state() -> Self {
        Disk {
            request: Duration::from_micros(80),
            flush: Duration::from_micros(500),
            bandwidth: 500_000_000,
            interface: 0,
            cache: 0,
            seek: None,
        }
    }

    /// A fast disk whose every flush takes 2 ms, as of many solid-state disks for consumers.
    pub fn slow_flush() -> Self {
        Disk {
            request: Duration::from_micros(20),
            flush: Duration::from_millis(2),
            bandwidth: 2_000_000_000,
            ..Disk::solid_state()
        }
    }

    fn transfer(&self, len: u64) -> Duration {
        passing(len, self.bandwidth)
    }

    fn over_interface(&self, len: u64) -> Duration {
        passing(len, self.interface)
    }
}

/// How long `len` bytes take at so many bytes a second.
fn passing(len: u64, bandwidth: u64) -> Duration {
    if bandwidth == 0 {
        return Duration::ZERO;
    }
    let nanos = u128::from(len) * 1_000_000_000 / u128::from(bandwidth);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Whether time is taken or only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Requests last as long as on the disk.
    Sleep,
    /// Requests run at once, each as if it came when the one before was answered; [`Throttle::spent`]
    /// says what they would have taken.
    Account,
}

/// How much of a sleep that lasted too long is made up for at the next request.
const MOST_LATE: Duration = Duration::from_millis(2);

/// The disk's clock.
enum Clock {
    /// Moves with the requests.
    Told(Duration),
    /// Real time; and by how much the last answer came too late, for the caller could not have asked
    /// earlier: the next request counts as if it had.
    Real { start: Instant, late: Duration, last: Duration },
}

impl Clock {
    /// The arrival of a request.
    fn now(&mut self) -> Duration {
        match self {
            Clock::Told(now) => *now,
            Clock::Real { start, late, last } => {
                *last = start.elapsed().saturating_sub(std::mem::take(late)).max(*last);
                *last
            }
        }
    }

    /// Waits for the end of a request.
    fn wait(&mut self, until: Duration) {
        match self {
            Clock::Told(now) => *now = until,
            Clock::Real { start, late, .. } => {
                if let Some(left) = until.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
                    std::thread::sleep(left);
                }
                *late = start.elapsed().saturating_sub(until).min(MOST_LATE);
            }
        }
    }
}

struct State {
    clock: Clock,
    mechanism: Mechanism,
    spent: Duration,
}

/// Takes a disk's time for what passes to the inner device.
pub struct Throttle<D> {
    inner: D,
    disk: Disk,
    state: Mutex<State>,
}

impl<D: Device> Throttle<D> {
    /// With the head at the start of the disk and nothing in its cache.
    pub fn new(inner: D, disk: Disk, mode: Mode) -> Self {
        let clock = match mode {
            Mode::Sleep => Clock::Real { start: Instant::now(), late: Duration::ZERO, last: Duration::ZERO },
            Mode::Account => Clock::Told(Duration::ZERO),
        };
        let mechanism = Mechanism::new(disk, inner.len());
        Throttle { inner, disk, state: Mutex::new(State { clock, mechanism, spent: Duration::ZERO }) }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Time that callers waited for the disk, all requests together.
    pub fn spent(&self) -> Duration {
        self.state.lock().spent
    }

    /// Takes the time of a request.
    fn take(&self, request: impl FnOnce(&mut Mechanism, Duration) -> Duration) {
        let mut state = self.state.lock();
        let now = state.clock.now();
        let done = request(&mut state.mechanism, now);
        state.spent = state.spent.saturating_add(done.saturating_sub(now));
        state.clock.wait(done);
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
        self.take(|disk, now| disk.read(now, offset, buf.len() as u64));
        self.inner.read_at(offset, buf)
    }

    // `read_if_cached` stays "not at hand": nobody knows what lies in the disk's cache.

    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.take(|disk, now| disk.write(now, offset, total(bufs)));
        self.inner.write_at(offset, bufs)
    }

    fn flush(&self) -> Result<()> {
        self.take(Mechanism::flush);
        self.inner.flush()
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes()
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.take(|disk, now| {
            let flushed = disk.flush(now);
            let written = disk.write(flushed, offset, buf.len() as u64);
            disk.flush(written)
        });
        self.inner.write_durably(offset, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.take(|disk, now| disk.discard(now, offset, len));
        self.inner.discard(offset, len)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { rotational: self.disk.seek.is_some(), ..self.inner.capabilities() }
    }

    crate::space_of_inner!();

    fn backing_free(&self) -> Option<u64> {
        self.inner.backing_free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const MIB: u64 = 1 << 20;
    const BLOCK: [u8; 4096] = [1; 4096];

    fn spinning(size: u64) -> Throttle<MemoryDevice> {
        Throttle::new(MemoryDevice::new(size), Disk::spinning(), Mode::Account)
    }

    /// The time of writes and a flush after each, or one at the end.
    fn take(offsets: impl Iterator<Item = u64>, each: bool) -> Duration {
        let d = spinning(256 * MIB);
        for at in offsets {
            d.write_at(at, &[&BLOCK]).unwrap();
            if each {
                d.flush().unwrap();
            }
        }
        d.flush().unwrap();
        d.spent()
    }

    /// A walk through every `step`th block, scattered.
    fn scattered(step: u64) -> impl Iterator<Item = u64> {
        (0..1000).map(move |i| (i * 7919 % 1000) * 4096 * step)
    }

    #[test]
    fn one_stream_beats_scattered_writes_and_the_cache_orders_them() {
        let stream = take((0..1000).map(|i| i * 4096), false);
        assert!(stream < Duration::from_millis(200), "{stream:?}");
        let neighbours = take(scattered(1), false);
        assert!(neighbours < stream * 2, "the cache makes one run of them: {neighbours:?}");
        let apart = take(scattered(64), false);
        assert!(apart > stream * 4, "{apart:?}");
        let flushed = take(scattered(64), true);
        assert!(flushed > apart * 3, "flushes forbid ordering: {flushed:?}, {apart:?}");
        assert!(flushed > Duration::from_secs(5), "{flushed:?}");
    }

    #[test]
    fn a_flush_after_each_of_a_row_of_writes_waits_for_the_turn() {
        let each = take((0..120).map(|i| i * 4096), true);
        assert!((0.9..1.1).contains(&each.as_secs_f64()), "120 turns are a second: {each:?}");
    }

    #[test]
    fn a_full_cache_waits_for_the_medium() {
        let d = spinning(1024 * MIB);
        let block = vec![1; MIB as usize];
        for i in 0..512 {
            d.write_at(i * MIB, &[&block]).unwrap();
        }
        let before = d.spent();
        let medium = Disk::spinning().transfer((512 - 64) * MIB);
        assert!(before > medium.mul_f64(0.95) && before < medium.mul_f64(1.2), "{before:?}, {medium:?}");
        d.flush().unwrap();
        let rest = d.spent() - before;
        let cache = Disk::spinning().transfer(64 * MIB);
        assert!(rest > cache.mul_f64(0.9) && rest < cache.mul_f64(1.2), "{rest:?}");
        let before = d.spent();
        d.flush().unwrap();
        assert_eq!(d.spent() - before, Disk::spinning().request, "nothing is left to write");
    }

    #[test]
    fn reading_in_a_row_goes_at_the_medium_and_scattered_reads_at_seeks() {
        let mut buf = vec![0; MIB as usize];
        let d = spinning(256 * MIB);
        (0..160).for_each(|i| d.read_at(i * MIB, &mut buf).unwrap());
        let row = d.spent();
        assert!((1.0..1.15).contains(&row.as_secs_f64()), "{row:?}");
        let d = spinning(256 * MIB);
        (0..100).for_each(|i| d.read_at((i * 37 % 100) * 2 * MIB, &mut buf[..4096]).unwrap());
        let mean = d.spent() / 100;
        assert!(mean > Duration::from_millis(6) && mean < Duration::from_millis(20), "{mean:?}");
    }

    #[test]
    fn what_was_written_is_read_from_the_cache_until_it_is_flushed() {
        let d = spinning(256 * MIB);
        d.write_at(100 * MIB, &[&BLOCK]).unwrap();
        let before = d.spent();
        d.read_at(100 * MIB, &mut [0; 4096]).unwrap();
        assert!(d.spent() - before < Duration::from_millis(1));
        d.flush().unwrap();
        let before = d.spent();
        d.read_at(100 * MIB, &mut [0; 4096]).unwrap();
        assert!(d.spent() - before > Duration::from_millis(1));
    }

    #[test]
    fn an_idle_disk_empties_its_cache() {
        let mut disk = Mechanism::new(Disk::spinning(), 256 * MIB);
        let written = disk.write(Duration::ZERO, 100 * MIB, 4096);
        let later = Duration::from_secs(1);
        assert_eq!(disk.flush(later), later + Disk::spinning().request);
        let mut disk = Mechanism::new(Disk::spinning(), 256 * MIB);
        disk.write(Duration::ZERO, 100 * MIB, 4096);
        assert!(disk.flush(written) > written + Duration::from_millis(1), "no time to be idle");
    }

    #[test]
    fn figures_without_a_cache() {
        let disk = Disk {
            request: Duration::from_millis(1),
            flush: Duration::from_millis(10),
            bandwidth: 1000,
            interface: 0,
            cache: 0,
            seek: Some(Seek {
                shortest: Duration::from_millis(100),
                longest: Duration::from_millis(500),
                turn: Duration::from_millis(40),
            }),
        };
        let d = Throttle::new(MemoryDevice::new(1000), disk, Mode::Account);
        // Ready after 1 ms, the place comes by again after 40; 10 bytes pass in 10 ms.
        d.write_at(0, &[&[0; 10]]).unwrap();
        assert_eq!(d.spent().as_millis(), 40 + 10);
        d.flush().unwrap();
        assert_eq!(d.spent().as_millis(), 60, "nothing in a cache: the flush alone");
        // Half of the longest way, 100 + 200, ends at 361 ms; byte 260 comes by at 20 in every turn of 40.
        d.write_at(260, &[&[0; 10]]).unwrap();
        assert_eq!(d.spent().as_millis(), 380 + 10);
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

    #[test]
    fn a_late_answer_is_made_up_for_at_the_next_request_within_limits() {
        let start = Instant::now() - Duration::from_secs(10);
        let mut clock = Clock::Real { start, late: Duration::ZERO, last: Duration::ZERO };
        // An answer was due a millisecond ago.
        let due = start.elapsed() - Duration::from_millis(1);
        clock.wait(due);
        let now = clock.now();
        assert!(now >= due && now < start.elapsed() - Duration::from_micros(900), "as if it came when due");
        assert!(clock.now() > now + Duration::from_micros(900), "only once");
        clock.wait(start.elapsed() - Duration::from_secs(1));
        assert!(start.elapsed() - clock.now() < MOST_LATE + Duration::from_millis(100), "not for ever");
    }
}
