//! Giving clean segments back to the device while mounted, a few at a time.
//!
//! ```text
//! freed -> durably free, unread -> waits a period -> waits another one at most -> discarded, unless written first
//! ```
//!
//! A segment that is written again soon is not worth it: the host would have to find space for it once more. So it
//! waits, what lies just ahead of the log is left out, and a busy volume that writes its clean segments faster than
//! that discards none. One batch at a time is under way, and rests are longer than batches.
//!
//! Lock: [`Discarder`] has one of its own, held for moments, taken after all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use silt_control::Discarding;
use silt_device::{Device as _, FileDevice};
use silt_engine::Result;

use crate::config::MountOptions;
use crate::core::Core;

/// Bytes discarded at a time.
const BATCH: u64 = 32 << 20;
/// Rest after a batch, and at least so many times what it took: others want the device, too.
const REST: Duration = Duration::from_millis(5);
const REST_TIMES: u32 = 4;
/// For so long the end of a mount goes on with what waits.
const AT_THE_END: Duration = Duration::from_secs(1);
/// After that it is said what the end of a mount waits for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the thread and those who ask about it share.
#[derive(Default)]
pub struct Discarder {
    state: Mutex<State>,
    wake: Condvar,
    /// Bytes.
    discarded: AtomicU64,
}

#[derive(Default)]
struct State {
    on: bool,
    stop: bool,
}

impl Discarder {
    /// Whether it is on, and bytes discarded since the volume was mounted.
    pub fn report(&self) -> Discarding {
        let on = self.state.lock().on;
        Discarding {
            on: Some(on),
            discarded: self.discarded.load(Ordering::Relaxed),
            ..Discarding::default()
        }
    }

    /// Notes bytes that were discarded.
    pub fn count(&self, bytes: u64) {
        self.discarded.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits; whether it is to go on.
    fn rest(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.stop {
            if self.wake.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        !state.stop
    }
}

/// Whether segments are to be discarded by themselves: of an image unless it was said, of a device if it was.
pub fn is_wanted(options: &MountOptions, device: &FileDevice) -> bool {
    options.discard.unwrap_or(!device.is_block_device())
        && device.capabilities().discard
        && !options.read_only
        && options.moment.is_none()
        && options.super_block.is_none()
}

/// The thread's work, until [`end`]. `period`: what waits ripens so often.
pub fn run(core: &Arc<Core>, period: Duration) {
    crate::defects::contain(core, "discarder", || work(core, period));
}

fn work(core: &Core, period: Duration) {
    core.discarder.state.lock().on = true;
    while core.discarder.rest(period) {
        loop {
            let begin = Instant::now();
            match some(core) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    tracing::warn!("segments are no longer discarded: {e}");
                    core.discarder.state.lock().on = false;
                    return;
                }
            }
            if !core.device.capabilities().discard {
                tracing::info!("what holds the volume cannot discard");
                core.discarder.state.lock().on = false;
                return;
            }
            if !core.discarder.rest(REST.max(begin.elapsed() * REST_TIMES)) {
                return;
            }
        }
        core.fs.lock().volume_mut().ripen();
    }
}

/// Discards the next ripe segments; false where there are none.
pub fn some(core: &Core) -> Result<bool> {
    let Some(discard) = core.fs.lock().volume_mut().next_discard(BATCH)? else { return Ok(false) };
    let done = discard.run(&*core.device);
    if done.is_ok() {
        core.discarder.count(discard.len());
    }
    core.fs.lock().volume_mut().end_discard(discard);
    done.map(|()| true)
}

/// The volume is about to be closed: what waits is discarded for a moment, and then nothing more is. One that is under way
/// is waited for however long the device takes, as a write is: who opens the volume next may write there, and what is
/// discarded after that would be lost.
pub fn end(core: &Core) {
    let on = {
        let mut state = core.discarder.state.lock();
        state.stop = true;
        core.discarder.wake.notify_all();
        state.on
    };
    if on && core.fs.lock().volume().failure().is_none() {
        let begin = Instant::now();
        core.fs.lock().volume_mut().ripen();
        while begin.elapsed() < AT_THE_END && matches!(some(core), Ok(true)) {}
    }
    let (begin, mut told) = (Instant::now(), false);
    while !core.fs.lock().volume_mut().end_discards() {
        if !told && begin.elapsed() >= PATIENCE {
            tracing::warn!(
                "unmounting waits: what holds the volume has not yet discarded what it was told to"
            );
            told = true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
