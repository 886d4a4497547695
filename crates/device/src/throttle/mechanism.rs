//! What a disk does with its time: when it is free again, where its head is, what its write cache
//! still holds. Times are measured from when it was switched on.

use std::time::Duration;

use super::marks::Marks;
use super::{Disk, Seek};

/// Most that is written to the medium in one go.
const RUN: u64 = 1 << 20;
/// How far the disk reads on by itself where it was read in a row, in bytes.
const READ_ON: u64 = 8 << 20;

/// The moving parts.
pub(super) struct Mechanism {
    disk: Disk,
    size: u64,
    /// When the medium is free; with something in the cache, since when it has been at work on that.
    free_at: Duration,
    /// Where and when the medium last finished something.
    head: u64,
    ended: Duration,
    /// The last thing done was reading, up to the head.
    reading: bool,
    cached: Marks,
}

impl Mechanism {
    pub fn new(disk: Disk, size: u64) -> Self {
        let cached = Marks::new(if disk.cache == 0 { 0 } else { size });
        Mechanism {
            disk,
            size,
            free_at: Duration::ZERO,
            head: 0,
            ended: Duration::ZERO,
            reading: false,
            cached,
        }
    }

    /// A read that arrives at `now`: when it is answered.
    pub fn read(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.idle(now);
        let over = self.disk.request + self.disk.over_interface(len);
        if self.cached.holds(offset, len) {
            return now + over;
        }
        let transfer = self.disk.transfer(len);
        let ahead = self.disk.transfer(READ_ON);
        let row = self.reading && offset == self.head && now.saturating_sub(self.free_at) < ahead;
        if self.disk.seek.is_some() && row {
            // The disk went on reading: what is asked for passes, or has passed, below the head.
            self.free_at += transfer;
        } else {
            let start = self.free_at.max(now) + self.disk.request;
            self.free_at = start + self.travel(start, offset) + transfer;
        }
        self.finished(offset.saturating_add(len), true);
        self.free_at.max(now + over)
    }

    /// A write that arrives at `now`: when it is answered, which may be long before it is on the medium.
    pub fn write(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.idle(now);
        if self.disk.cache == 0 {
            let start = self.free_at.max(now) + self.disk.request;
            self.free_at = start + self.travel(start, offset) + self.disk.transfer(len);
            self.finished(offset.saturating_add(len), false);
            return self.free_at;
        }
        let done = now + self.disk.request + self.disk.over_interface(len);
        if self.cached.bytes() == 0 {
            self.free_at = self.free_at.max(done);
        }
        self.cached.mark(offset, len);
        while self.cached.bytes() > self.disk.cache && self.destage(None) {}
        // Where there was no room it waited for the medium; otherwise the medium is not yet at work.
        let full = self.cached.bytes() + RUN > self.disk.cache;
        if full { done.max(self.free_at) } else { done }
    }

    /// A flush that arrives at `now`: when all that was written is on the medium.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.idle(now);
        while self.destage(None) {}
        self.free_at = self.free_at.max(now) + self.disk.flush;
        self.free_at.max(now + self.disk.request)
    }

    /// A discard that arrives at `now`.
    pub fn discard(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.idle(now);
        self.cached.clear(offset, len);
        now + self.disk.request
    }

    /// What the disk does while nobody asks for anything: it empties its cache. A run that would not
    /// be done by `now` is not begun, so that the request that came does not wait for it.
    fn idle(&mut self, now: Duration) {
        while self.destage(Some(now)) {}
    }

    /// Writes the next run of the cache, in the order of the disk from the head on.
    fn destage(&mut self, by: Option<Duration>) -> bool {
        let Some((offset, len)) = self.cached.next(self.head, RUN) else { return false };
        let done = self.free_at + self.travel(self.free_at, offset) + self.disk.transfer(len);
        if by.is_some_and(|by| done > by) {
            return false;
        }
        self.cached.clear(offset, len);
        self.free_at = done;
        self.finished(offset.saturating_add(len), false);
        true
    }

    /// The medium finished at `free_at` with what ends at `head`.
    fn finished(&mut self, head: u64, reading: bool) {
        (self.head, self.ended, self.reading) = (head, self.free_at, reading);
    }

    /// Time from `start` until `offset` passes below the head: the way there, and the wait for the turn.
    fn travel(&self, start: Duration, offset: u64) -> Duration {
        let Some(seek) = self.disk.seek else { return Duration::ZERO };
        if offset == self.head && start == self.ended {
            return Duration::ZERO;
        }
        let arm = self.arm(&seek, offset.abs_diff(self.head));
        arm + self.turn(&seek, start + arm, offset)
    }

    /// The way of the arm. Within a track there is none; beyond, time grows with the root of the distance.
    fn arm(&self, seek: &Seek, distance: u64) -> Duration {
        if self.disk.transfer(distance) < seek.turn {
            return Duration::ZERO;
        }
        let share = (distance as f64 / self.size.max(1) as f64).clamp(0.0, 1.0).sqrt();
        seek.shortest + seek.longest.saturating_sub(seek.shortest).mul_f64(share)
    }

    /// From `now` until the place of `offset` on its track comes by. A track holds what passes in a turn.
    fn turn(&self, seek: &Seek, now: Duration, offset: u64) -> Duration {
        let turn = seek.turn.as_nanos();
        if turn == 0 {
            return Duration::ZERO;
        }
        let place = self.disk.transfer(offset).as_nanos() % turn;
        let wait = (place + turn - now.as_nanos() % turn) % turn;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(0))
    }
}
