//! What all threads of a mount share.
//!
//! Locks, in the order they may be taken: `fs`, then `queue`. Nobody waits for the device while
//! holding either, but for metadata that a request needs. Requests never wait for a log: those
//! that asked for durability leave a [`Waiter`] behind, those over the limit of unwritten data
//! are put in the queue and run when there is room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use silt_device::Device;
use silt_engine::Time;
use silt_format::Ino;
use silt_fs::Fs;

use crate::config::MountOptions;

/// What a caller wants durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Everything.
    All,
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

/// What waits for the log writer.
#[derive(Default)]
pub struct Queue {
    pub waiters: Vec<Waiter>,
    pub paced: VecDeque<Paced>,
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
    /// Something changed since the last checkpoint began.
    pub changed: AtomicBool,
    /// Errno of a log that cannot be written at present; 0 if all is well.
    pub stalled: AtomicI32,
    /// Block size in bytes.
    pub block_size: u64,
    /// Whether sync(2) was seen to arrive.
    pub sync_arrives: AtomicBool,
    /// Damage was met that the super blocks do not tell of yet.
    pub damage: AtomicBool,
}

/// Unwritten data that starts write-back, in bytes.
pub const WRITE_BACK: u64 = 16 << 20;

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
            changed: AtomicBool::new(false),
            stalled: AtomicI32::new(0),
            block_size,
            sync_arrives: AtomicBool::new(false),
            damage: AtomicBool::new(false),
        })
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
            let mut queue = self.queue.lock();
            if !queue.write_back {
                queue.write_back = true;
                self.wake.notify_one();
            }
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

    /// Damage of the volume was met. The log writer tells it in the super blocks, and ends writing if
    /// the mount says so (`errors=remount-ro`). May be called with `fs` locked.
    pub fn met_damage(&self, what: &str) {
        tracing::error!("{what}");
        if !self.damage.swap(true, Ordering::Relaxed) {
            self.queue.lock().write_back = true;
            self.wake.notify_one();
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
