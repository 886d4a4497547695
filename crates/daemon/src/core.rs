//! What all threads of a mount share.
//!
//! Locks, in the order they may be taken: `fs`, then `queue`. Nobody waits for the device while
//! holding either, but for metadata that a request needs. Requests never wait for a log: those
//! that asked for durability leave a [`Waiter`] behind, those over the limit of unwritten data
//! are put in the queue and run when there is room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};
use silt_control::retention::Known;
use silt_device::Device;
use silt_engine::Time;
use silt_format::Ino;
use silt_fs::Fs;
use silt_fuse::Notifier;

use crate::account::Keeper;
use crate::background::Background;
use crate::burst::Burst;
use crate::changing::Takes;
use crate::cleaning::Job;
use crate::config::{MountOptions, OnError};
use crate::damage::{DamageLog, Met};
use crate::discarder::Discarder;
use crate::notices::{Notice, Notices};
use crate::pace::Pace;
use crate::space::Space;
use crate::workers::Beside;

/// What a caller wants durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Everything.
    All,
    /// Everything, and to hear of nobody's content: for a change of names that waits until it is durable.
    Changes,
    /// Everything, and to hear of what kept content of this file or directory out, as fsync asks.
    File(Ino),
    /// One file's data, as fdatasync asks.
    Data(Ino),
}

/// Answers a sync: 0 or an errno.
pub type Answer = Box<dyn FnOnce(Result<(), i32>) + Send>;

/// Somebody who waits for durability.
pub struct Waiter {
    pub want: Want,
    pub answer: Answer,
}

/// A request that waits for room.
pub type Paced = Box<dyn FnOnce(&Arc<Core>) + Send>;

/// One of them, and what it takes.
type Waiting = (Takes, Paced);

/// Requests that wait for room, and the bytes of data they hold. Those that take no space come first: who deletes does
/// not wait for somebody who waits for space.
#[derive(Default)]
pub struct PacedQueue {
    freeing: VecDeque<Waiting>,
    taking: VecDeque<Waiting>,
    bytes: u64,
}

impl PacedQueue {
    pub fn is_empty(&self) -> bool {
        self.freeing.is_empty() && self.taking.is_empty()
    }

    pub fn len(&self) -> usize {
        self.freeing.len() + self.taking.len()
    }

    /// Whether some wait that come before one that takes this.
    pub fn is_ahead_of(&self, takes: Takes) -> bool {
        !self.freeing.is_empty() || (takes.space && !self.taking.is_empty())
    }

    /// What the first one takes.
    pub fn first(&self) -> Option<Takes> {
        self.freeing.front().or(self.taking.front()).map(|(takes, _)| *takes)
    }

    /// Whether they hold more than this many bytes, so that whoever brings another one waits, and all requests behind it.
    pub fn holds_more_than(&self, bytes: u64) -> bool {
        self.bytes > bytes
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn pop(&mut self) -> Option<Paced> {
        let (takes, request) = self.freeing.pop_front().or_else(|| self.taking.pop_front())?;
        self.bytes = self.bytes.saturating_sub(takes.bytes as u64);
        Some(request)
    }
}

/// Puts a request among those that wait, at the end that `push` is for; `None` where the log writer ends: then its answer
/// is EIO, given without the lock.
fn keep(
    mut queue: MutexGuard<'_, Queue>,
    takes: Takes,
    request: Paced,
    push: fn(&mut VecDeque<Waiting>, Waiting),
) -> Option<MutexGuard<'_, Queue>> {
    if queue.stop {
        drop(queue);
        drop(request);
        return None;
    }
    queue.paced.bytes += takes.bytes as u64;
    let paced = &mut queue.paced;
    push(if takes.space { &mut paced.taking } else { &mut paced.freeing }, (takes, request));
    Some(queue)
}

/// What waits for the log writer.
#[derive(Default)]
pub struct Queue {
    pub waiters: Vec<Waiter>,
    pub paced: PacedQueue,
    /// What goes on when something was written.
    pub parts: Vec<Paced>,
    /// What the cleaner wants written.
    pub jobs: VecDeque<Job>,
    /// Enough has been written for a checkpoint without being asked.
    pub write_back: bool,
    pub stop: bool,
}

/// Shared state of a mount.
pub struct Core {
    pub fs: Mutex<Fs>,
    pub device: Arc<dyn Device>,
    pub options: MountOptions,
    pub queue: Mutex<Queue>,
    pub wake: Condvar,
    /// Requests that waited for room have run.
    pub room: Condvar,
    /// Something changed since the last checkpoint began.
    pub changed: AtomicBool,
    /// Changes since the last checkpoint began, and those in one that is not complete.
    pub changes: AtomicU64,
    pub frozen_changes: AtomicU64,
    /// Errno of a log that cannot be written at present; 0 if all is well.
    pub stalled: AtomicI32,
    /// Block size in bytes.
    pub block_size: u64,
    /// Whether sync(2) was seen to arrive.
    pub sync_arrives: AtomicBool,
    /// Damage was met that the super blocks do not tell of yet.
    pub damage: AtomicBool,
    /// The super blocks tell that there was some: more adds nothing.
    pub damage_told: AtomicBool,
    /// Writing ends (`errors=remount-ro`): nothing is changed any more, and what waits is written.
    pub ending: AtomicBool,
    /// What damage was met.
    pub damages: DamageLog,
    /// Tells the kernel that what it cached is no longer so.
    pub notifier: OnceLock<Notifier>,
    notices: Notices,
    /// How much may wait for the next log while somebody syncs.
    pub burst: Burst,
    /// What the volume said last of what is kept.
    pub retention: Known,
    /// Whether there is space, and what is done to get some.
    pub space: Space,
    /// How much of the log writer's time that may take.
    pub pace: Pace,
    /// Where the space is, counted in the background.
    pub account: Keeper,
    /// What gives clean segments back to the device.
    pub discarder: Discarder,
    /// What takes long beside the threads that serve requests.
    pub beside: Beside,
    /// How many requests the kernel sends without waiting for their answers.
    pub background: Background,
    /// Requests come through io_uring ([`crate::kept`]).
    pub rings: AtomicBool,
}

/// Unwritten data that starts write-back, in bytes. More would leave the disk idle for longer and a longer rest for
/// whoever syncs at the end; less would cost more flushes.
pub const WRITE_BACK: u64 = 8 << 20;
/// Most bytes of requests that the kernel sends without waiting for an answer: they have to lie somewhere when there is
/// no room for them.
const ON_THE_WAY: u64 = 64 << 20;
/// Memory of one change besides data: the inodes it leaves waiting, about 700 bytes each.
const CHANGE: u64 = 2048;

impl Core {
    pub fn new(fs: Fs, options: MountOptions) -> Arc<Self> {
        let device = fs.volume().device().clone();
        let block_size = u64::from(fs.volume().geometry().block_size);
        Arc::new(Core {
            fs: Mutex::new(fs),
            device,
            options,
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            room: Condvar::new(),
            changed: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            frozen_changes: AtomicU64::new(0),
            stalled: AtomicI32::new(0),
            block_size,
            sync_arrives: AtomicBool::new(false),
            damage: AtomicBool::new(false),
            damage_told: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            damages: DamageLog::default(),
            notifier: OnceLock::new(),
            notices: Notices::default(),
            burst: Burst::default(),
            retention: Known::default(),
            space: Space::default(),
            pace: Pace::default(),
            account: Keeper::default(),
            discarder: Discarder::default(),
            beside: Beside::default(),
            background: Background::default(),
            rings: AtomicBool::new(false),
        })
    }

    /// Bytes that wait for a log besides data: inodes that changed.
    fn waiting_changes(&self) -> u64 {
        let changes = self.changes.load(Ordering::Relaxed) + self.frozen_changes.load(Ordering::Relaxed);
        changes * CHANGE
    }

    /// Whether as much waits for a log as may wait, with `more` bytes on top: the requests that then wait for room
    /// are unwritten data, too.
    pub fn is_full(&self, fs: &Fs, more: u64) -> bool {
        let dirty = self.options.dirty;
        let limit = dirty - ON_THE_WAY.min(dirty / 4);
        fs.volume().waiting_blocks() * self.block_size + self.waiting_changes() + more > limit
    }

    /// Whether a change has to wait: for space, for room, or so that those who sync do not wait long.
    pub fn must_wait(&self, fs: &Fs, takes: Takes) -> bool {
        let data = if takes.space { self.block_size + takes.bytes as u64 } else { 0 };
        self.lacks_room(fs, data) || self.space.may_come(fs.volume(), takes.blocks(fs))
    }

    /// Whether a change with `more` bytes has to wait for room, or so that those who sync do not wait long for
    /// what others write, since a checkpoint takes all of it.
    pub fn lacks_room(&self, fs: &Fs, more: u64) -> bool {
        if self.is_full(fs, more) {
            return true;
        }
        let changes = self.changes.load(Ordering::Relaxed) * CHANGE;
        let next = fs.volume().unfrozen_blocks() * self.block_size + changes + more;
        self.stall().is_none() && next > self.burst.limit(Instant::now())
    }

    /// Counts a change of names or attributes, and asks for write-back if many wait.
    pub fn count_change(&self) {
        let waiting = (self.changes.fetch_add(1, Ordering::Relaxed) + 1) * CHANGE;
        if waiting >= self.options.dirty / 4 {
            self.write_back();
        }
    }

    /// A checkpoint begins: it takes all changes up to now. Called with `fs` locked.
    pub fn freeze_changes(&self) {
        let taken = self.changes.swap(0, Ordering::Relaxed);
        self.frozen_changes.fetch_add(taken, Ordering::Relaxed);
    }

    /// Keeps a request until there is room. Where as much waits already as may
    /// wait in memory, so does the caller: nothing else bounds what the kernel sends.
    pub fn pace(&self, takes: Takes, request: Paced) {
        let mut queue = self.queue.lock();
        queue.write_back = true;
        self.wake.notify_one();
        while queue.paced.holds_more_than(self.options.dirty) && !queue.stop {
            self.room.wait(&mut queue);
        }
        if let Some(mut queue) = keep(queue, takes, request, VecDeque::push_back) {
            queue.write_back = true;
            self.wake.notify_one();
        }
    }

    /// Keeps a request that was let run and is to wait again, before all others. Nobody waits for room here, least of all the
    /// log writer, who makes it.
    pub fn put_back(&self, takes: Takes, request: Paced) {
        keep(self.queue.lock(), takes, request, VecDeque::push_front);
    }

    /// Keeps a request that can go on when something was written: the part of it that is done, for which that `is_due`, or whatever
    /// those in its way write.
    pub fn go_on(&self, is_due: bool, request: Paced) {
        let mut queue = self.queue.lock();
        if queue.stop {
            // Its answer is EIO, given without the lock.
            drop(queue);
            drop(request);
            return;
        }
        queue.parts.push(request);
        queue.write_back |= is_due;
        self.wake.notify_one();
    }

    /// Says that a request changed something: the timer starts.
    pub fn touched(&self) {
        if !self.changed.swap(true, Ordering::Relaxed) {
            // Taken so that the log writer is either before its check or asleep.
            let _queue = self.queue.lock();
            self.wake.notify_one();
        }
    }

    /// Asks for write-back if enough waits. `waiting` is what no checkpoint holds, in blocks.
    pub fn maybe_write_back(&self, waiting: u64) {
        let threshold = WRITE_BACK.min(self.options.dirty / 4);
        if waiting * self.block_size >= threshold {
            self.write_back();
        }
    }

    fn write_back(&self) {
        let mut queue = self.queue.lock();
        if !queue.write_back {
            queue.write_back = true;
            self.wake.notify_one();
        }
    }

    /// Leaves a wish for durability with the log writer.
    pub fn sync(&self, want: Want, answer: Answer) {
        let mut queue = self.queue.lock();
        if queue.stop {
            drop(queue);
            answer(Err(libc::EIO));
            return;
        }
        queue.waiters.push(Waiter { want, answer });
        let now = Instant::now();
        self.burst.synced(now);
        self.pace.synced(now);
        self.wake.notify_one();
    }

    /// The same, waiting for it. Not for threads that serve requests.
    pub fn sync_and_wait(&self, want: Want) -> Result<(), i32> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        self.sync(
            want,
            Box::new(move |r| {
                let _ = tx.send(r);
            }),
        );
        rx.recv().unwrap_or(Err(libc::EIO))
    }

    /// Damage of the volume was met. It is noted ([`crate::damage`]); the log writer tells it in the super blocks,
    /// and ends writing if the mount says so (`errors=remount-ro`). May be called with `fs` locked.
    pub fn met_damage(&self, met: Met<'_>) {
        self.damages.note(met);
        if self.options.on_error == OnError::RemountReadOnly {
            self.ending.store(true, Ordering::Relaxed);
        }
        if self.damage_told.load(Ordering::Relaxed) {
            return;
        }
        // Whoever sees that there was damage sees that writing ends.
        if !self.damage.swap(true, Ordering::AcqRel) {
            self.queue.lock().write_back = true;
            self.wake.notify_one();
        }
    }

    /// Has the kernel ask again for what it may believe wrongly.
    pub fn tell(&self, notices: impl IntoIterator<Item = Notice>) {
        if let Some(notifier) = self.notifier.get() {
            self.notices.tell(notifier, notices);
        }
    }

    /// Errno of a log that cannot be written, if there is one.
    pub fn stall(&self) -> Option<i32> {
        match self.stalled.load(Ordering::Relaxed) {
            0 => None,
            e => Some(e),
        }
    }
}

/// The time of day.
pub fn now() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(d) => Time { secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nanos: d.subsec_nanos() },
        Err(_) => Time::default(),
    }
}

/// The time of day in whole seconds, as logs carry it.
pub fn now_secs() -> u64 {
    u64::try_from(now().secs).unwrap_or(0)
}
