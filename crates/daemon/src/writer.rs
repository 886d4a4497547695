//! The log writer: one thread that turns what waits into logs, for whoever asked and by the clock.
//!
//! ```text
//! asked for (fsync, sync) ----\
//! interval after a change -----+--> checkpoint or data-sync logs --> flush --> answers
//! 8 MiB unwritten ------------/
//! ```
//!
//! Invariants: an answer of success is given only after every log that holds the caller's changes
//! was written and a flush after it returned; the engine hears of a log only then, too, so that a
//! construction stays open until it is durable. Logs since the last good flush are kept: where a flush
//! fails, none of them counts as written.
//!
//! What becomes of a log that cannot be written: no space below: it is kept and tried again in its place
//! (each second, and whenever somebody asks). EIO, or a flush that fails: the whole construction goes
//! elsewhere. Where the device takes nothing anywhere, it is kept as well. Until it is written callers get
//! the error. What becomes of a checkpoint for which something cannot be read: [`unread`].

mod output;
#[cfg(test)]
mod tests;
mod unread;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use silt_engine::{Error as EngineError, LogWrite, Step, Tree, WriteOrder};
use silt_format::{BlockNr, Ino};

use crate::changing::for_the_last_time;
use crate::cleaning::Job;
use crate::core::{Core, Waiter, Want, now_secs};
use crate::damage::Met;
use crate::freed::Freed;
use crate::late::end_late;
use output::{OnItsWay, Trouble};
use unread::Unread;

/// Blocks composed under the lock at a time.
const BUDGET: usize = 128;
/// Pause before a log that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Checkpoints before writing ends: only what the kernel gives back still changes something then.
const LAST: u32 = 5;
/// How often one construction is moved before callers get the error.
const MOVES: u32 = 16;

/// Tells the seconds since 1970.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// State of the thread.
pub struct Writer {
    pub(crate) core: Arc<Core>,
    interval: Duration,
    /// When the oldest change that no checkpoint holds was noticed.
    pub(crate) dirty_since: Option<Instant>,
    /// The last round failed.
    failing: bool,
    /// Logs that could not be written, in order.
    unwritten: VecDeque<Arc<LogWrite>>,
    on_its_way: Option<OnItsWay>,
    /// Logs of so many bytes are written while the next one is composed.
    large: u64,
    /// Between tries of a log in one place.
    pause: Duration,
    /// Logs of the construction under way since the last good flush.
    logs: Vec<Arc<LogWrite>>,
    /// Logs of the construction under way that the engine has not been told of.
    untold: u32,
    /// Bytes of the construction under way that were written.
    written: u64,
    freed: Freed,
    /// Something was written that no flush has covered.
    unflushed: bool,
    /// A flush failed: the logs since the last good one may not be on the device.
    suspect: bool,
    /// A checkpoint could not take some of a file, and nobody who syncs everything was told yet.
    lost: bool,
    /// Flushes of the device that had failed when that was last looked at.
    failed_flushes: u64,
    unread: Unread,
    order: WriteOrder,
    pub(crate) clock: Clock,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// What there is to do.
struct Task {
    waiters: Vec<Waiter>,
    /// A checkpoint is due whoever asked for what.
    all: bool,
    /// What the cleaner wants.
    job: Option<Job>,
    stop: bool,
}

/// Errno for an error of the engine.
pub fn errno(e: &EngineError) -> i32 {
    match e {
        EngineError::NoSpace => libc::ENOSPC,
        EngineError::Device(d) if d.is_no_space() => libc::ENOSPC,
        EngineError::ReadOnly => libc::EROFS,
        _ => libc::EIO,
    }
}

impl Writer {
    pub fn new(core: Arc<Core>, interval: Duration) -> Self {
        core.fs.lock().volume_mut().be_patient(true);
        let failed_flushes = core.device.failed_flushes();
        Writer {
            core,
            interval,
            dirty_since: None,
            failing: false,
            unwritten: VecDeque::new(),
            on_its_way: None,
            large: output::LARGE,
            pause: output::PAUSE,
            logs: Vec::new(),
            untold: 0,
            written: 0,
            freed: Freed::default(),
            unflushed: false,
            suspect: false,
            lost: false,
            failed_flushes,
            unread: Unread::default(),
            order: WriteOrder::default(),
            clock: Box::new(now_secs),
        }
    }

    /// The same with another clock, in seconds since 1970.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The same, with every log written while the next one is composed.
    pub fn with_overlap(mut self) -> Self {
        self.large = 0;
        self
    }

    /// The same, which tries a log again at once.
    pub fn without_pauses(mut self) -> Self {
        self.pause = Duration::ZERO;
        self
    }

    /// One round for these callers, on this thread; `all`: a checkpoint is due whoever asked for what.
    pub fn serve(&mut self, waiters: Vec<Waiter>, all: bool) {
        self.round(Task { waiters, all, job: None, stop: false });
    }

    /// What the cleaner wants, on this thread.
    pub fn serve_job(&mut self, job: Job) {
        let all = matches!(job, Job::Settle(_));
        self.round(Task { waiters: Vec::new(), all, job: Some(job), stop: false });
    }

    /// Works until told to stop; what waits then is written first.
    pub fn run(self) {
        let core = self.core.clone();
        crate::defects::contain(&core, "log writer", || self.work());
    }

    fn work(mut self) {
        loop {
            let task = self.next();
            let stop = task.stop;
            self.round(task);
            self.let_paced_run();
            self.freed.add(std::mem::take(&mut self.written));
            if stop {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn next(&mut self) -> Task {
        let core = self.core.clone();
        let mut queue = core.queue.lock();
        let retry = Instant::now() + RETRY;
        loop {
            if self.dirty_since.is_none() && core.changed.load(Ordering::Relaxed) {
                self.dirty_since = Some(Instant::now());
            }
            let due = match (self.failing, self.dirty_since) {
                (true, _) => Some(retry),
                (false, Some(since)) => Some(since + self.interval),
                (false, None) => None,
            };
            // Also while somebody asks for a file's data all the time.
            let late = due.is_some_and(|due| due <= Instant::now());
            if queue.stop || late || queue.write_back || !queue.waiters.is_empty() || !queue.jobs.is_empty() {
                let mut all = queue.stop || late || std::mem::take(&mut queue.write_back);
                queue.write_back = false;
                let job = if queue.stop { None } else { queue.jobs.pop_front() };
                if queue.stop {
                    // Who waits for them hears that.
                    queue.jobs.clear();
                }
                all |= matches!(job, Some(Job::Settle(_)));
                return Task { waiters: std::mem::take(&mut queue.waiters), all, job, stop: queue.stop };
            }
            match due {
                None => core.wake.wait(&mut queue),
                Some(due) => drop(core.wake.wait_until(&mut queue, due)),
            }
        }
    }

    /// Makes one checkpoint, or data-sync logs where those are enough, and answers who asked.
    fn round(&mut self, mut task: Task) {
        let job = task.job.take();
        // A cleaning is a checkpoint, too.
        let own = matches!(job, Some(Job::Clean(..))) && !task.all && task.waiters.is_empty();
        let result = if own { self.end_before_cleaning() } else { self.write(&task) };
        // Who asked does not wait for the cleaner as well.
        self.answer(std::mem::take(&mut task.waiters), result.err());
        let result = match job {
            Some(job) => self.serve_cleaner(job, result),
            None => result,
        };
        // A super block that could not be written cost nobody anything yet: who closes the volume would write them again.
        let lost = if self.core.options.barrier { Ok(()) } else { self.look_for_lost_logs() };
        self.note(result.err().or(lost.err().map(|_| libc::EIO)));
        end_late(&self.core, !self.core.space.cleans());
        self.go_on_with_parts();
    }

    /// What is under way comes first, wherever its logs were moved: after it nobody may ask again.
    fn end_before_cleaning(&mut self) -> Result<(), i32> {
        self.finish()?;
        self.make_durable()?;
        self.make_reachable()
    }

    /// Lets go on what was done in part and is written that far.
    fn go_on_with_parts(&self) {
        let parts = std::mem::take(&mut self.core.queue.lock().parts);
        parts.into_iter().for_each(|part| part(&self.core));
    }

    /// Notes what became of a round: an errno where it failed.
    fn note(&mut self, code: Option<i32>) {
        self.failing = code.is_some();
        self.core.stalled.store(code.unwrap_or(0), Ordering::Relaxed);
    }

    fn answer(&mut self, waiters: Vec<Waiter>, code: Option<i32>) {
        self.note(code);
        let mut told = BTreeSet::new();
        // Who hears of a stall does not hear of that: it stays for whoever asks when the stall is over.
        if code.is_none() && !waiters.is_empty() {
            let mut fs = self.core.fs.lock();
            let asked = waiters.iter().filter_map(|waiter| match waiter.want {
                Want::Data(ino) | Want::File(ino) => Some(ino),
                Want::All | Want::Changes => None,
            });
            told.extend(asked.filter(|ino| fs.volume_mut().take_inode_error(*ino).is_some()));
        }
        // Who syncs everything hears of everybody's, what a checkpoint by the clock could not take included.
        let all = code.is_none() && waiters.iter().any(|waiter| matches!(waiter.want, Want::All));
        let any = all && std::mem::take(&mut self.lost);
        for waiter in waiters {
            let is_hurt = match waiter.want {
                Want::Data(ino) | Want::File(ino) => told.contains(&ino),
                Want::All => any,
                Want::Changes => false,
            };
            (waiter.answer)(match code {
                Some(e) => Err(e),
                None if is_hurt => Err(libc::EIO),
                None => Ok(()),
            });
        }
    }

    fn write(&mut self, task: &Task) -> Result<(), i32> {
        // A construction that could not be finished comes first: nothing else can begin.
        self.finish()?;
        let mut data = Vec::new();
        let mut all = task.all;
        // Without flushes a checkpoint may reach the device and synced data before it not; a reader could not tell.
        let data_alone = self.core.options.barrier && !self.core.options.order_strict;
        {
            let fs = self.core.fs.lock();
            for waiter in &task.waiters {
                match waiter.want {
                    Want::Data(ino) if !fs.volume().is_inode_dirty(ino) => {}
                    Want::Data(ino) if data_alone && fs.volume().data_sync_suffices(ino) => data.push(ino),
                    _ => all = true,
                }
            }
        }
        if all {
            self.checkpoint()?
        } else {
            self.data_sync(data)?
        }
        self.make_durable()?;
        self.make_reachable()?;
        self.release_freed()?;
        self.look_for_space();
        self.update_super_block();
        if !self.core.options.barrier && self.look_for_lost_logs().is_err() {
            // The next super block would be pointed at them.
            return Err(libc::EIO);
        }
        if self.core.damage.load(Ordering::Acquire) {
            self.tell_damage()?;
        }
        Ok(())
    }

    /// Where logs were moved, only this makes them reachable.
    pub(crate) fn make_reachable(&mut self) -> Result<(), i32> {
        self.core.fs.lock().volume_mut().settle((self.clock)()).map_err(|e| {
            tracing::error!("{e}");
            errno(&e)
        })
    }

    /// Brings what was written to the medium.
    pub(crate) fn make_durable(&mut self) -> Result<(), i32> {
        match self.flush(None) {
            Ok(()) => Ok(()),
            Err(Trouble::Stays(e)) => Err(e),
            Err(Trouble::Moved) => self.finish(),
        }
    }

    /// Sets the error flag of the super blocks; what is written so far is a checkpoint. Where writing ends, what was
    /// changed while that was made, before the damage was met, is written as well.
    fn tell_damage(&mut self) -> Result<(), i32> {
        let flag = self.core.fs.lock().volume_mut().set_error_flag((self.clock)());
        if let Err(e) = &flag {
            tracing::error!("writing the error flag: {e}");
        }
        if self.core.ending.load(Ordering::Relaxed) {
            for left in (0..LAST).rev() {
                let mut fs = self.core.fs.lock();
                // Nothing comes between the last look and the end.
                if left == 0 || !fs.volume().has_changes() {
                    fs.volume_mut().fail("damage was met, and errors=remount-ro was asked for");
                    break;
                }
                drop(fs);
                self.checkpoint()?;
                self.make_durable()?;
                self.make_reachable()?;
            }
        }
        self.core.damage.store(false, Ordering::Relaxed);
        self.core.damage_told.store(flag.is_ok(), Ordering::Relaxed);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), i32> {
        {
            let mut fs = self.core.fs.lock();
            self.core.changed.store(false, Ordering::Relaxed);
            self.core.freeze_changes();
            self.dirty_since = None;
            match fs.volume_mut().begin_checkpoint((self.clock)()) {
                Ok(true) => {}
                Ok(false) | Err(EngineError::ReadOnly) => {
                    self.core.frozen_changes.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                Err(e) => {
                    // It waits as before, whatever else succeeds meanwhile.
                    self.core.changed.store(true, Ordering::Relaxed);
                    return Err(errno(&e));
                }
            }
        }
        // What waits for the next one is nothing now.
        self.let_paced_run();
        self.finish()
    }

    /// The data of these files in one log: where its place turns out to be bad all of it is still at hand.
    fn data_sync(&mut self, mut inos: Vec<Ino>) -> Result<(), i32> {
        inos.sort_unstable();
        inos.dedup();
        let begun = self.core.fs.lock().volume_mut().begin_data_sync(&inos, (self.clock)());
        match begun {
            Ok(true) => self.finish(),
            Ok(false) => Ok(()),
            // Meanwhile one grew, or is gone: only a checkpoint holds that.
            Err(_) => self.checkpoint(),
        }
    }

    /// Runs the construction under way to its end, and its logs onto the medium.
    pub(crate) fn finish(&mut self) -> Result<(), i32> {
        let mut moves = 0;
        let begin = Instant::now();
        self.written = 0;
        if self.core.fs.lock().volume().is_left_open() {
            // Logs of it, written by somebody else, may not be on the medium.
            let flushed = self.core.device.flush();
            let known = self.core.fs.lock().volume_mut().left_open_is_flushed(flushed);
            known.map_err(|e| errno(&e))?;
        }
        loop {
            {
                let fs = self.core.fs.lock();
                if !fs.volume().is_constructing() && self.unwritten.is_empty() {
                    return Ok(());
                }
                if fs.volume().failure().is_some() {
                    drop(fs);
                    self.end();
                    return Err(libc::EIO);
                }
            }
            let done = match self.unwritten.pop_front() {
                Some(log) => self.write_log(log),
                None => {
                    let (step, ahead) = {
                        let mut fs = self.core.fs.lock();
                        // Nobody waits for the medium while a step reads what was brought here without the lock.
                        let ahead = fs.volume_mut().reads_ahead();
                        let step =
                            if ahead.is_empty() { fs.volume_mut().step(BUDGET) } else { Ok(Step::Working) };
                        // Requests that wait come first.
                        MutexGuard::unlock_fair(fs);
                        (step, ahead)
                    };
                    self.bring(&ahead);
                    match step {
                        Ok(Step::Write(mut log)) => {
                            log.seal();
                            self.write_log(Arc::new(log))
                        }
                        Ok(Step::Working) => Ok(()),
                        Ok(Step::Waiting) => self.flush(None).map(|()| self.tell()),
                        Ok(Step::Done(_)) => {
                            let (met, leftovers) = {
                                let mut fs = self.core.fs.lock();
                                let volume = fs.volume_mut();
                                self.lost |= volume.take_lost_content();
                                (volume.take_damage(), volume.take_leftovers())
                            };
                            // Nobody waits for the lock meanwhile.
                            drop(leftovers);
                            for (ino, what) in met {
                                self.core.met_damage(Met::of(Tree::Live, ino, what));
                            }
                            self.everything_was_read();
                            self.core.burst.wrote(self.written, begin.elapsed());
                            self.core.frozen_changes.store(0, Ordering::Relaxed);
                            return Ok(());
                        }
                        Err(e) if self.is_read_again(&e) => Ok(()),
                        Err(e) => return Err(errno(&e)),
                    }
                }
            };
            match done {
                Ok(()) => {}
                Err(Trouble::Moved) if moves < MOVES => moves += 1,
                Err(Trouble::Moved) => return Err(libc::EIO),
                Err(Trouble::Stays(e)) => return Err(e),
            }
        }
    }

    /// Has blocks at hand that the next steps read.
    fn bring(&self, blocks: &[BlockNr]) {
        if !blocks.is_empty() {
            let size = self.core.block_size;
            let offsets: Vec<u64> = blocks.iter().map(|at| at.0.saturating_mul(size)).collect();
            self.core.device.bring(&offsets, usize::try_from(size).unwrap_or(0));
        }
    }

    /// Brings a super block up to date where that is due. A failure costs time at the next mount
    /// and nothing else: the other copy is whole.
    fn update_super_block(&mut self) {
        let due = self.core.fs.lock().volume_mut().due_super_write((self.clock)());
        let Some(due) = due else { return };
        if let Err(e) = crate::host_space::write_super(&self.core, &due) {
            // That was said when it was given up.
            if self.core.fs.lock().volume().super_block_given_up() != Some(due.copy()) {
                tracing::error!("writing a super block: {e}");
            }
        }
    }

    /// Lets writes that waited for room run while there is some.
    pub(crate) fn let_paced_run(&self) {
        loop {
            // For nobody there need be no room.
            let (takes, blocks_all) = {
                let queue = self.core.queue.lock();
                let Some(takes) = queue.paced.first() else {
                    drop(queue);
                    return self.core.background.none_waits();
                };
                let blocks_all = queue.paced.holds_more_than(self.core.options.dirty)
                    || self.core.background.is_used_up(queue.paced.len());
                (takes, blocks_all)
            };
            let (full, short, waits, refused) = {
                let fs = self.core.fs.lock();
                // Its bytes count once they wait for a log; space for them there must be now. To empty the end of a volume may
                // take long: better that some are refused than that nobody reads.
                let waits = fs.volume().has_changes() || fs.volume().is_constructing();
                let refused = blocks_all && takes.space && fs.volume().is_confined() && !waits;
                let short = !refused && self.core.space.may_come(fs.volume(), takes.blocks(&fs));
                (short || self.core.lacks_room(&fs, 0), short, fs.volume().has_changes(), refused)
            };
            let stalled = self.core.stall().is_some();
            let mut queue = self.core.queue.lock();
            // While the device takes nothing they run too: they are told so.
            if full && !stalled && !queue.stop {
                // Where nothing waits, the cleaner says when there is room.
                queue.write_back |= waits && !queue.paced.is_empty();
                let (kept, left) =
                    (queue.paced.len(), self.core.options.dirty.saturating_sub(queue.paced.bytes()));
                drop(queue);
                if short {
                    self.core.background.wait(kept, left);
                }
                return;
            }
            let Some(paced) = queue.paced.pop() else { return };
            self.core.room.notify_all();
            drop(queue);
            if refused {
                // Put back it would be let run again at once.
                for_the_last_time(|| paced(&self.core));
            } else {
                paced(&self.core);
            }
        }
    }
}
