//! Keeps what deleting and cleaning take allocated on the host of an image, and where that has little left, what all that
//! waits takes ([`silt_engine::Backing`]).
//!
//! ```text
//! much left:    what the log has begun, and the reserve, once a second
//! little left:  besides, ahead of those who write; what is not allocated does not count as clean
//! nothing left: the cleaner's segments are all there is
//! ```
//!
//! The host is asked without the volume's lock: it may take its time.
//!
//! Lock: [`HostSpace`] has one of its own, held for moments, taken after all others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use silt_engine::{Backing, SuperWrite, Volume};

use crate::cleaning::let_run;
use crate::core::Core;

/// Time between looks.
const LOOK: Duration = Duration::from_secs(1);
/// Much is left with so many bytes besides twice those that may wait; on the host of a small volume with four times its size.
const MUCH: u64 = 512 << 20;
/// Where little is left, so much is allocated ahead of those who write, or this part of a small volume.
const AHEAD: u64 = 64 << 20;
const AHEAD_PART: u64 = 32;
/// New segments that are asked for at a time.
const TOGETHER: u64 = 4;

/// What the thread and those who wait for it share.
#[derive(Default)]
pub struct HostSpace {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// There is a thread.
    on: bool,
    /// Somebody wants a look now, some of them for so many blocks.
    asked: Option<u64>,
    stop: bool,
}

impl HostSpace {
    /// Has it look at once, for somebody who wants so many blocks; whether there is anybody who looks.
    pub fn ask(&self, blocks: u64) -> bool {
        let mut state = self.state.lock();
        if !state.on || state.stop {
            return false;
        }
        state.asked = Some(state.asked.unwrap_or(0).max(blocks));
        self.wake.notify_all();
        true
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// Waits until it is to look, for how many blocks; none at the end.
    fn wait(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.asked.is_none() && !state.stop {
            self.wake.wait_for(&mut state, LOOK);
        }
        if state.stop { None } else { Some(state.asked.take().unwrap_or(0)) }
    }
}

/// Whether the host has little left; none where that is no question.
fn is_near(core: &Core, volume: &Volume) -> Option<bool> {
    let left = core.device.backing_free()?;
    let g = volume.geometry();
    let size = (u64::from(g.blocks_per_segment) << g.block_bits).saturating_mul(g.nsegments);
    let much = core.options.dirty.saturating_mul(2).saturating_add(MUCH).min(size.saturating_mul(4));
    Some(left < much)
}

/// A log was written: where the host has little left by now, or had before, it is looked after that at once. Between two logs no
/// more is written than may wait.
pub fn look_soon(core: &Core, volume: &Volume) {
    if volume.is_backing_counted() && (volume.counts_backed_only() || is_near(core, volume) == Some(true)) {
        core.space.host.ask(0);
    }
}

/// Before anybody writes: looks after it where the host has little left.
pub fn begin(core: &Core) -> silt_engine::Result<()> {
    let near = {
        let fs = core.fs.lock();
        fs.volume().is_backing_counted() && is_near(core, fs.volume()) == Some(true)
    };
    // What is there already is looked for later: that may take a while.
    let mut memory = Memory { was_near: true, ..Memory::default() };
    if near { look(core, 0, &mut memory).map(|_| ()) } else { Ok(()) }
}

/// The thread's work, until [`HostSpace::stop`].
pub fn run(core: &Arc<Core>) {
    let space = &core.space.host;
    {
        let mut state = space.state.lock();
        state.on = true;
        state.asked = Some(0);
    }
    let mut memory = Memory::default();
    while let Some(wanted) = space.wait() {
        match look(core, wanted, &mut memory) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => {
                tracing::warn!("what the host has space for is no longer accounted for: {e}");
                core.fs.lock().volume_mut().forget_backing();
                break;
            }
        }
    }
    space.state.lock().on = false;
    // Nobody else would tell those who wait.
    let_run(core);
}

/// What is remembered from one look to the next.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    was_near: bool,
    /// The host had nothing more, with so many bytes left.
    full_at: Option<u64>,
}

/// What a round of asking the host came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Came {
    /// More segments are ready.
    gained: bool,
    /// The host gave something for them.
    given: bool,
    full: bool,
}

/// Has as much allocated as is to be; whether that is accounted for.
fn look(core: &Core, wanted: u64, memory: &mut Memory) -> silt_engine::Result<bool> {
    let (near, target, segment) = {
        let mut fs = core.fs.lock();
        let volume = fs.volume_mut();
        if !volume.is_backing_counted() {
            return Ok(false);
        }
        // Where nothing of it can grow any more, until some is discarded, that is no question.
        let near = is_near(core, volume).unwrap_or(false);
        let g = volume.geometry();
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        let size = segment.saturating_mul(g.nsegments);
        let ahead = AHEAD.min(size / AHEAD_PART) >> g.block_bits;
        let blocks = if near { ahead.saturating_add(wanted) } else { 0 };
        (near, volume.backing_for(blocks), segment)
    };
    if near && !memory.was_near {
        look_for_data(core)?;
    }
    memory.was_near = near;
    let mut came = fill(core, target, segment)?;
    let mut fs = core.fs.lock();
    if !fs.volume().is_backing_counted() {
        return Ok(false);
    }
    let volume = fs.volume_mut();
    let was_full = volume.is_backing_full();
    // Whoever waits and gains nothing by it waits for something else; and so it stays until the host has more.
    let left = core.device.backing_free().unwrap_or(u64::MAX);
    let still = !came.gained && memory.full_at.is_some_and(|then| left <= then);
    came.full = near && (came.full || still || (wanted > 0 && !came.gained));
    memory.full_at = came.full.then_some(left);
    let only = volume.judge_backing(near, came.full, target);
    if was_full && came.given {
        // Who was refused may have it now. What the cleaner freed is no reason: he is not to see others succeed.
        volume.refuse_nothing();
        core.space.think_again();
    }
    drop(fs);
    if wanted > 0 || (only && came.gained) {
        let_run(core);
    }
    Ok(true)
}

/// Little is left all at once, or was before the volume was mounted: what is clean may be there already.
fn look_for_data(core: &Core) -> silt_engine::Result<()> {
    let g = *core.fs.lock().volume().geometry();
    let mut at = Some(0);
    while let Some(from) = at {
        let (found, next) = Volume::with_data(&*core.device, &g, from);
        core.fs.lock().volume_mut().told_of_data(&found)?;
        at = next;
    }
    Ok(())
}

/// Asks the host for segments until `target` are ready or it has no more.
fn fill(core: &Core, target: u64, segment: u64) -> silt_engine::Result<Came> {
    let mut came = Came::default();
    loop {
        // What somebody else has there is not taken to the last byte.
        let left = core.device.backing_free().map_or(0, |left| left / segment.max(1));
        let new = left.saturating_sub(1).min(TOGETHER);
        let (next, lacks) = {
            let mut fs = core.fs.lock();
            let next = fs.volume_mut().next_backing(target, new)?;
            (next, fs.volume().backed_segments() < target)
        };
        if core.space.host.state.lock().stop {
            return Ok(came);
        }
        let Some(backing) = next else {
            came.full |= lacks;
            return Ok(came);
        };
        let parts = if backing.is_renewed { renew(core, &backing)? } else { vec![backing] };
        if parts.is_empty() {
            // Nothing is discarded at present.
            return Ok(came);
        }
        for part in parts {
            let asked = part.ask(&*core.device);
            core.fs.lock().volume_mut().told_of_backing(&part, asked.as_ref().ok().copied())?;
            match asked {
                Ok(_) => {
                    came.given |= part.is_new;
                    came.gained |= part.is_new || part.is_freed;
                }
                Err(e) if e.is_no_space() && part.is_new => {
                    came.full = true;
                    return Ok(came);
                }
                // Two segments of which a little is missing each make one that can be written.
                Err(e) if e.is_no_space() && part.is_freed && core.options.discard != Some(false) => {
                    renew(core, &part)?;
                }
                Err(e) if e.is_no_space() => {}
                // The end may have been cut off meanwhile.
                Err(e) => {
                    tracing::debug!("{e}");
                    return Ok(came);
                }
            }
        }
    }
}

/// Gives segments back to the host; what it is to be asked for then.
fn renew(core: &Core, backing: &Backing) -> silt_engine::Result<Vec<Backing>> {
    let (discard, parts) = core.fs.lock().volume_mut().begin_renewal(backing)?;
    let done = discard.run(&*core.device);
    let mut fs = core.fs.lock();
    fs.volume_mut().end_discard(discard);
    if !core.device.capabilities().discard {
        // Then nothing is known of what is written over.
        fs.volume_mut().forget_backing();
        return Ok(Vec::new());
    }
    done.map(|()| parts)
}

/// Writes a super block, also where the host has no space for it and writes it elsewhere.
pub fn write_super(core: &Core, write: &SuperWrite) -> silt_engine::Result<()> {
    let known = core.fs.lock().volume().super_block_given_up();
    let written = write_super_or_yield(core, write);
    if written.is_err() && known.is_none() {
        tell_of_super_block(core);
    }
    written
}

/// Warns of a super block that cannot be written, if there is one.
pub fn tell_of_super_block(core: &Core) {
    if let Some(note) = core.fs.lock().volume().super_block_note() {
        tracing::warn!("{note}");
    }
}

fn write_super_or_yield(core: &Core, write: &SuperWrite) -> silt_engine::Result<()> {
    let mut given = core.fs.lock().volume_mut().give_way_below(false);
    let mut written = write.write(&*core.device);
    if given.is_none() && matches!(&written, Err(silt_engine::Error::Device(e)) if e.is_no_space()) {
        given = core.fs.lock().volume_mut().give_way_below(true);
        if given.is_some() {
            written = write.write(&*core.device);
        }
    }
    if let Some(backing) = given {
        let asked = backing.ask(&*core.device).ok();
        let mut fs = core.fs.lock();
        if fs.volume_mut().told_of_backing(&backing, asked).is_err() {
            fs.volume_mut().forget_backing();
        }
    }
    written
}

/// The segments that the log is in are made whole: who mounts it next may find the host full.
pub fn end(core: &Core) {
    loop {
        let next = core.fs.lock().volume_mut().next_backing(0, 0);
        let Ok(Some(backing)) = next else { return };
        if backing.is_renewed {
            return;
        }
        let asked = backing.ask(&*core.device).ok();
        if core.fs.lock().volume_mut().told_of_backing(&backing, asked).is_err() {
            return;
        }
    }
}
