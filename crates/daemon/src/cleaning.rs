//! Getting space back while mounted: a thread that plans, and the log writer that makes what is planned.
//!
//! ```text
//! little is clean, or somebody waits for space -> count, order, gather (this thread, the lock for moments)
//!     -> Job -> log writer: one checkpoint, durable -> segments may be written -> who waits runs
//! ```
//!
//! Who waits, and for how long, is told by [`crate::space`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::MutexGuard;
use rustix::time::ClockId;
use silt_cleaner::{Access, Cleaned, Mover};
use silt_control::cleaner::Work;
use silt_control::retention::{Effective, PlannedBy};
use silt_engine::clean::{Arranged, Cleaning};
use silt_engine::{Error, Result, Volume};

use crate::core::Core;
use crate::ladder::Came;
use crate::late::end_late;
use crate::space::{Call, kept};
use crate::tuning::Marks;
use crate::writer::Writer;

/// For so long nothing more is tried once nothing more could be gained, and so many times what finding that took.
const REST: Duration = Duration::from_secs(1);
const REST_TIMES: u32 = 10;
/// A run that gains no more than this part of the segments rests afterwards.
const LITTLE: u64 = 256;
/// Pause after a run that was ended by an error, or by those who read.
const AGAIN: Duration = Duration::from_millis(250);
/// After so many runs in a row that failed and gained nothing, who waits for space is told that there is none: whatever
/// the cleaner lacks may never come, and nothing would go on.
const FAILURES: u32 = 12;
/// Where it always cleans and nothing is written, it looks again after this: moments age.
const AGED: Duration = Duration::from_secs(3600);

/// What the cleaner wants of the log writer.
pub enum Job {
    /// Make this a checkpoint, if what it was planned by counts still.
    Clean(Box<Arranged>, Option<PlannedBy>, Sender<Result<Cleaned>>),
    /// Make what waits a checkpoint, and have the super blocks point at it.
    Settle(Sender<Result<()>>),
}

/// The volume of a mount, for whoever cleans it.
pub struct Mounted<'a>(pub &'a Core);

impl Mounted<'_> {
    fn ask<T>(&self, job: impl FnOnce(Sender<Result<T>>) -> Job) -> Result<T> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        {
            let mut queue = self.0.queue.lock();
            // What is not queued is dropped, and with it the other end.
            if queue.stop {
                drop(tx);
            } else {
                queue.jobs.push_back(job(tx));
                self.0.wake.notify_one();
            }
        }
        rx.recv().unwrap_or_else(|_| Err(Error::Failed("the volume is being closed".into())))
    }
}

impl Access for Mounted<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        let beside = worked();
        let mut fs = self.0.fs.lock();
        let begin = Instant::now();
        let result = f(fs.volume_mut());
        // Who waits for it is served before we come again.
        MutexGuard::unlock_fair(fs);
        // What it did under the lock counts for itself.
        worked();
        let now = Instant::now();
        let pause = self.0.pace.pause(begin.elapsed(), beside, now);
        if self.0.space.is_wanted() {
            return Ok(result);
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        } else if self.0.pace.gives_way(now) {
            // To whoever waits for this processor; woken, he does not take it from us by himself.
            std::thread::yield_now();
        }
        Ok(result)
    }
}

impl Mounted<'_> {
    /// Makes a cleaning a checkpoint, durable on return; [`Error::Stale`] where something else counts by then.
    pub fn make(&self, cleaning: Cleaning, by: &PlannedBy) -> Result<Cleaned> {
        // Not under the lock.
        let arranged = Box::new(Arranged::from(cleaning));
        let did = self.ask(|tx| Job::Clean(arranged, Some(by.clone()), tx))?;
        self.0.space.worked(&did);
        Ok(did)
    }

    /// Makes what waits a checkpoint and has both super blocks point at it, durable on return.
    pub fn settle(&self) -> Result<()> {
        self.ask(Job::Settle)
    }
}

/// The same for a cleaning, with what it is planned by.
pub struct Planner<'a>(pub &'a Core, pub &'a PlannedBy);

impl Access for Planner<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        Mounted(self.0).with(f)
    }
}

impl Mover for Planner<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        Mounted(self.0).make(cleaning, self.1)
    }

    fn settle(&self) -> Result<()> {
        Mounted(self.0).settle()
    }
}

/// Processor time that this thread took since it was asked last.
fn worked() -> Duration {
    thread_local!(static BEFORE: Cell<Duration> = const { Cell::new(Duration::ZERO) });
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    let now = Duration::try_from(now).unwrap_or_default();
    now.saturating_sub(BEFORE.replace(now))
}

/// The thread's work, until [`crate::space::Space::stop`].
pub fn run(core: &Arc<Core>) {
    let (space, tuning) = (&core.space, &core.options.cleaner);
    space.enable(true);
    // A wish that makes no sense is told before it matters.
    crate::ladder::effective(core);
    let mut idle: Option<Idle> = None;
    let mut failures = 0u32;
    loop {
        let mut wanted = match space.wait(tuning.look().value) {
            Call::Stop => break,
            Call::Wait => continue,
            Call::Look { wanted } => wanted,
        };
        let (available, marks) = marks(core);
        let due = match marks.low {
            Some(low) => available < low,
            None => available < marks.short || idle.as_ref().is_none_or(|idle| idle.is_over(core)),
        };
        if !wanted && !due && marks.high.is_some_and(|high| available < high) {
            wanted = sweep_if_due(core);
        }
        if wanted || due {
            let begin = Instant::now();
            let (before, rewritten) = {
                let fs = core.fs.lock();
                (fs.volume().given_up_on_disk(), fs.volume().rewritten_blocks())
            };
            let gained = Gained::before(core);
            let came = crate::ladder::clean(core);
            space.swept(rewritten, false);
            failures = match came {
                Came::Failed if gained.is_little(core) => failures.saturating_add(1),
                Came::Unknown => failures,
                _ => 0,
            };
            let came = if failures >= FAILURES { Came::Nothing } else { came };
            // What that gives back nobody has looked for yet.
            let came = if came == Came::Nothing && end_late(core, true) { Came::Unknown } else { came };
            // What is worth it goes on.
            let rest = match gained.is_little(core) {
                true => tuning.look().value.max(REST_TIMES * begin.elapsed()),
                false => Duration::ZERO,
            };
            let due = marks.low.is_none_or(|low| self::marks(core).0 < low);
            // What was taken away meanwhile may not have counted.
            let nothing =
                (came == Came::Nothing).then(|| (before, rewritten, REST.max(REST_TIMES * begin.elapsed())));
            if matches!(came, Came::Unknown | Came::Failed) && !space.is_stopped() {
                // Whatever kept it is not over at once.
                std::thread::sleep(AGAIN);
            }
            wanted |= space.ran(due.then_some(rest), nothing);
            idle = Some(Idle::now(core));
        }
        // Whether there is space or not.
        if wanted || core.fs.lock().has_late() {
            let_run(core);
        }
    }
    space.enable(false);
}

/// Empties what costs next to nothing, before anything is short; whether somebody waits for space by now.
fn sweep_if_due(core: &Arc<Core>) -> bool {
    let rewritten = {
        let fs = core.fs.lock();
        if !core.space.may_be_empty(fs.volume()) {
            return false;
        }
        fs.volume().rewritten_blocks()
    };
    let gained = Gained::before(core);
    crate::ladder::sweep(core);
    core.space.swept(rewritten, gained.is_little(core));
    core.space.ran(None, None)
}

/// Who waited runs.
pub fn let_run(core: &Core) {
    core.queue.lock().write_back = true;
    core.wake.notify_one();
}

/// What a run gains: where nobody else wrote meanwhile, what is clean more than before; else segments emptied, less those that
/// the copies take. What steps write besides their copies the next ones gain back, round and round: as long as that counted as
/// gained, a small volume that was full went on for ever.
struct Gained {
    work: Work,
    clean: u64,
    others: (u64, u64),
}

impl Gained {
    fn before(core: &Core) -> Self {
        let work = core.space.report().work;
        let mut fs = core.fs.lock();
        let volume = fs.volume_mut();
        Gained { work, clean: volume.available_when_read(), others: Self::of_others(volume) }
    }

    /// What others wrote so far.
    fn of_others(volume: &Volume) -> (u64, u64) {
        (volume.data_written(), volume.rewritten_blocks())
    }

    /// Whether that is hardly worth a count of the whole volume.
    fn is_little(&self, core: &Core) -> bool {
        let now = core.space.report().work;
        let mut fs = core.fs.lock();
        let volume = fs.volume_mut();
        let g = *volume.geometry();
        let gained = if Self::of_others(volume) == self.others {
            volume.available_when_read().saturating_sub(self.clean)
        } else {
            let copies = now.moved.saturating_sub(self.work.moved) / u64::from(g.blocks_per_segment);
            now.segments.saturating_sub(self.work.segments).saturating_sub(copies)
        };
        gained <= g.nsegments / LITTLE
    }
}

/// A volume that was cleaned: until something is written, or moments have aged, there is nothing more to gain.
struct Idle {
    newest: u64,
    since: Instant,
}

impl Idle {
    fn now(core: &Core) -> Self {
        Idle { newest: core.fs.lock().volume().last_log().cno, since: Instant::now() }
    }

    fn is_over(&self, core: &Core) -> bool {
        self.since.elapsed() >= AGED || core.fs.lock().volume().last_log().cno != self.newest
    }
}

/// Segments that can be written, and what is gone by.
pub fn marks(core: &Core) -> (u64, Marks) {
    let fs = core.fs.lock();
    (fs.volume().available_segments(), marks_of(core, fs.volume()))
}

fn marks_of(core: &Core, volume: &Volume) -> Marks {
    let marks = core.options.cleaner.marks(volume.geometry(), kept(volume), core.space.room());
    // What the host has no space for is clean all the same: only where users are about to wait is it short.
    let (unbacked, least) = (volume.unbacked_segments(), kept(volume).saturating_add(1));
    if unbacked > 0 { marks.with_fewer(unbacked, least) } else { marks }
}

impl Writer {
    /// A checkpoint was made: there may be little left.
    pub(crate) fn look_for_space(&self) {
        let fs = self.core.fs.lock();
        self.core.space.look(fs.volume(), &marks_of(&self.core, fs.volume()));
        crate::host_space::look_soon(&self.core, fs.volume());
    }

    /// Does what the cleaner wants. `before`: what became of the round that it was part of.
    pub(crate) fn serve_cleaner(
        &mut self,
        job: Job,
        before: std::result::Result<(), i32>,
    ) -> std::result::Result<(), i32> {
        let failed = |e: i32| {
            Error::Failed(format!("the log cannot be written: {}", std::io::Error::from_raw_os_error(e)))
        };
        match job {
            Job::Settle(answer) => {
                let settled = match before {
                    Ok(()) => self.advance_super_blocks(),
                    Err(e) => Err(failed(e)),
                };
                let _ = answer.send(settled);
                before
            }
            Job::Clean(cleaning, by, answer) => {
                if let Err(e) = before {
                    let _ = answer.send(Err(failed(e)));
                    return before;
                }
                let (begin, held);
                let begun = {
                    let mut fs = self.core.fs.lock();
                    begin = Instant::now();
                    // A wish or a floor may have been stored, with an answer, since it was planned.
                    let (given, known) = (&self.core.options.retention, &self.core.retention);
                    let counts = |by: PlannedBy| by.still_counts(&Effective::read(&mut fs, given, known));
                    let begun = match by.is_none_or(counts) {
                        true => fs.volume_mut().begin_cleaning(*cleaning, (self.clock)()),
                        false => Err(Error::Stale),
                    };
                    if begun.is_ok() {
                        self.core.changed.store(false, Ordering::Relaxed);
                        self.core.freeze_changes();
                        self.dirty_since = None;
                    }
                    held = begin.elapsed();
                    begun
                };
                let (made, result) = match begun {
                    Ok(done) => {
                        let made = self.finish().and_then(|()| self.make_durable());
                        let made = made.and_then(|()| self.make_reachable());
                        let made = made.and_then(|()| self.release_freed());
                        // That the host is full is told as that.
                        (made.map(|()| done).map_err(failed), made)
                    }
                    Err(e) => {
                        let result = if matches!(e, Error::Failed(_)) { Err(libc::EIO) } else { Ok(()) };
                        (Err(e), result)
                    }
                };
                if let Ok(did) = &made {
                    let took = begin.elapsed();
                    tracing::debug!(
                        "{} segments emptied, {} blocks copied, {} given back in {took:?}, the lock held {held:?}",
                        did.segments,
                        did.moved,
                        did.dead
                    );
                    self.core.pace.took(took, did.moved, Instant::now());
                }
                let _ = answer.send(made);
                result
            }
        }
    }

    /// Lets segments be written that are free on the medium. `nobarrier` leaves flushes to the device for speed: here
    /// one is needed, or the old state would be overwritten before there is a new one.
    pub(crate) fn release_freed(&mut self) -> std::result::Result<(), i32> {
        if self.core.fs.lock().volume().held_segments() == 0 {
            return Ok(());
        }
        if !self.core.options.barrier {
            self.core.device.flush().map_err(|e| crate::writer::errno(&e.into()))?;
        }
        self.core.fs.lock().volume_mut().freed_are_durable();
        Ok(())
    }

    fn advance_super_blocks(&mut self) -> Result<()> {
        let writes = self.core.fs.lock().volume_mut().advance_super_blocks((self.clock)());
        let mut refused = None;
        for w in &writes {
            match crate::host_space::write_super(&self.core, w) {
                Ok(()) => {}
                Err(e) if w.is_refused(&e) => refused = Some((w.copy(), e)),
                Err(e) => return Err(e),
            }
        }
        // One that can never be written is no reason to reclaim nothing.
        let given_up = self.core.fs.lock().volume().super_block_given_up();
        refused.map_or(Ok(()), |(copy, e)| if Some(copy) == given_up { Ok(()) } else { Err(e) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Fault, MemoryDevice, Times};
    use silt_fs::{Context, WriteFlags};

    use super::*;
    use crate::config::MountOptions;
    use crate::core::Waiter;
    use crate::fault_tests::{check, mkfs_of, open};

    const SIZE: u64 = 32 << 20;

    /// A log writer, without its thread, and a file of so many blocks that waits for it.
    fn prepared() -> (Arc<Fault<MemoryDevice>>, Writer) {
        let device = Arc::new(Fault::new(mkfs_of(SIZE, 64)));
        let core = Core::new(open(device.clone()), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        let mut fs = core.fs.lock();
        let ino = fs.create(&ctx, silt_format::Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.write(&ctx, ino, 0, &[7; 40 * 4096], WriteFlags::default()).unwrap();
        drop(fs);
        (device, Writer::new(core, Duration::from_secs(3600)).without_pauses())
    }

    fn clean(writer: &mut Writer) -> Result<Cleaned> {
        let (tx, rx) = crossbeam_channel::bounded(1);
        writer.serve_job(Job::Clean(Box::new(Cleaning::default().into()), None, tx));
        rx.try_recv().unwrap()
    }

    /// Who waits for the log is told what keeps it: space can be made on the host, a broken device cannot be mended so.
    #[test]
    fn a_full_host_that_a_cleaning_meets_is_told_as_that() {
        let (device, mut writer) = prepared();
        device.set_full(true);
        assert!(matches!(clean(&mut writer), Err(Error::Failed(_))));
        assert_eq!(writer.core.stall(), Some(libc::ENOSPC));
        device.heal();
        assert!(clean(&mut writer).is_ok());
        assert_eq!(writer.core.stall(), None);
        check(device.inner().fork(), &[("f", 7, 40)]);
    }

    /// What was moved is only found once the super blocks say where it is: as long as they do not it is tried again, though a
    /// cleaning that comes between has nothing to write.
    #[test]
    fn a_cleaning_that_comes_to_nothing_does_not_end_the_tries_of_what_went_elsewhere() {
        let (device, mut writer) = prepared();
        // The place of the next log, and both super blocks.
        device.fail_writes(4096..64 * 4096, Times::Always);
        for copy in [1024..2048, SIZE - 4096..SIZE] {
            device.fail_writes(copy, Times::Always);
        }
        let (tx, rx) = crossbeam_channel::bounded(1);
        let answer = Box::new(move |result| tx.send(result).unwrap());
        writer.serve(vec![Waiter { want: crate::core::Want::All, answer }], true);
        assert_eq!(rx.try_recv(), Ok(Err(libc::EIO)));
        // So little is clean that no cleaning can begin.
        let segments = writer.core.fs.lock().volume().geometry().nsegments;
        let fits = (1..segments).any(|n| writer.core.fs.lock().volume_mut().confine(Some(n)).is_ok());
        assert!(fits);
        assert!(clean(&mut writer).is_err());
        assert_eq!(writer.core.stall(), Some(libc::EIO), "nobody would try again");
        device.heal();
        assert!(matches!(clean(&mut writer), Err(Error::NoSpace)));
        assert_eq!(writer.core.stall(), None);
        check(device.inner().fork(), &[("f", 7, 40)]);
    }

    #[test]
    fn work_counts_and_sleep_does_not() {
        worked();
        std::thread::sleep(Duration::from_millis(50));
        assert!(worked() < Duration::from_millis(25));
        let (begin, mut sum) = (Instant::now(), Duration::ZERO);
        while sum < Duration::from_millis(5) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{sum:?}");
            sum += worked();
        }
    }

    /// An idle volume that is full was cleaned for ever.
    #[test]
    fn what_steps_empty_and_write_again_is_no_gain() {
        let kept = crate::ladder_tests::Kept::new();
        let core = &kept.core;
        let steps = |n| {
            (0..n).for_each(|_| core.space.worked(&Cleaned { segments: 2, moved: 4, ..Cleaned::default() }));
        };
        let gained = Gained::before(core);
        steps(20);
        assert!(gained.is_little(core), "nothing is clean that was not");
        // Beside somebody who writes, what is clean does not tell.
        let gained = Gained::before(core);
        let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
        core.fs.lock().create(&ctx, silt_format::Ino::ROOT, b"g", 0o644).unwrap();
        core.fs.lock().sync_all(crate::core::now_secs()).unwrap();
        steps(20);
        assert!(!gained.is_little(core));
        let gained = Gained::before(core);
        crate::ladder::clean(core);
        assert!(!gained.is_little(core), "segments are clean that were not");
    }
}
