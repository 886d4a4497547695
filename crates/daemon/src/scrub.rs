//! Scrubbing while mounted: one pass at a time, in a thread of its own that gives way to everything else.
//!
//! The thread reads the device past the engine and holds no lock of the volume: segments that somebody needs are not
//! overwritten, and what was written after the pass began is left to the next one. It reads at a rate, rests while
//! requests or syncs wait, and asks the operating system to serve it last.
//!
//! Locks: one over what the thread and requests share, held for moments and with no other. Another one who begins a pass
//! holds while its file is read, which nobody else waits for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use silt_control::scrub::{ScrubAction, ScrubStatus, forget_pass, load_pass, save_pass};
use silt_control::{ControlError, Kind};
use silt_engine::Guard;
use silt_verify::LogPosition;
use silt_verify::scrub::{Conduct, Options, Outcome, Rate, State, scrub, uuid_text};

use crate::core::{Core, now_secs};

/// Bytes a second where nobody says otherwise.
const RATE: u64 = 32 << 20;
/// How often the pass is kept, and shown to those who ask.
const KEEP: Duration = Duration::from_secs(30);
const SHOW: Duration = Duration::from_millis(200);
/// How long one read waits for others to be done, and how long at a time. It goes on then: a pass has an end.
const GIVE_WAY: Duration = Duration::from_millis(500);
const NAP: Duration = Duration::from_millis(5);
/// How long who ends it waits for the thread.
const PATIENCE: Duration = Duration::from_secs(5);

/// What requests tell the thread, and what it tells them.
#[derive(Default)]
struct Shared {
    status: ScrubStatus,
    /// End at once.
    stop: bool,
    /// Forget the pass.
    cancel: bool,
}

/// Scrubs one mounted volume.
pub struct Scrubber {
    core: Arc<Core>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    /// Held by who begins a pass.
    beginning: Mutex<()>,
    /// The volume is about to be closed: no pass begins. Looked at under the lock of `shared`.
    ended: AtomicBool,
}

impl Scrubber {
    pub fn new(core: Arc<Core>) -> Self {
        Scrubber { core, shared: Arc::default(), beginning: Mutex::default(), ended: AtomicBool::default() }
    }

    /// Does what is asked; how it stands then.
    pub fn act(&self, action: &ScrubAction) -> Result<ScrubStatus, ControlError> {
        match action {
            ScrubAction::Start { rate, live_only, restart, state } => {
                self.start(*rate, *live_only, *restart, state)?;
            }
            ScrubAction::Pause => self.running(|shared| shared.status.paused = true)?,
            ScrubAction::Resume => self.running(|shared| shared.status.paused = false)?,
            ScrubAction::Cancel => {
                self.running(|shared| (shared.stop, shared.cancel) = (true, true))?;
                self.wait();
            }
            ScrubAction::Status => {}
        }
        Ok(self.shared.0.lock().status.clone())
    }

    /// Ends the pass, which is kept.
    pub fn stop(&self) {
        if self.running(|shared| shared.stop = true).is_ok() {
            self.wait();
        }
    }

    /// Ends the pass, which is kept, and lets none begin any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Waits for the thread to end, but not for a device that does not answer: it only reads.
    fn wait(&self) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && self.shared.0.lock().status.running {
            std::thread::sleep(NAP);
        }
    }

    fn running(&self, f: impl FnOnce(&mut Shared)) -> Result<(), ControlError> {
        let (shared, changed) = &*self.shared;
        let mut shared = shared.lock();
        if !shared.status.running {
            return Err(ControlError::new(Kind::Unavailable, "no scrub is running")
                .hint("begin one with: silt scrub VOLUME"));
        }
        f(&mut shared);
        changed.notify_all();
        Ok(())
    }

    fn start(
        &self,
        rate: Option<u64>,
        live_only: bool,
        restart: bool,
        path: &Path,
    ) -> Result<(), ControlError> {
        if !path.is_absolute() {
            return Err(ControlError::new(Kind::Invalid, "the file of the pass is not an absolute path"));
        }
        // Only who begins one as well waits for the file, and nobody here for the device: who asks how it stands, or unmounts,
        // is answered whatever becomes of either.
        let Some(_alone) = self.beginning.try_lock_for(PATIENCE) else {
            return Err(ControlError::new(Kind::Busy, "another scrub is being begun").hint("try again"));
        };
        {
            let shared = self.shared.0.lock();
            if shared.stop && shared.status.running {
                return Err(
                    ControlError::new(Kind::Busy, "the scrub before is being ended").hint("try again")
                );
            }
            if shared.status.running {
                return Ok(());
            }
        }
        let begun = if restart { None } else { load_pass(path)? };
        let (guard, uuid) = {
            let fs = self.core.fs.lock();
            (fs.volume().guard(), uuid_text(&fs.volume().super_block().uuid))
        };
        let begun = begun.filter(|pass| !pass.finished && pass.uuid == uuid && pass.live_only == live_only);
        let pass = begun.unwrap_or_else(State::new);
        let rate = rate.unwrap_or(RATE).max(1);
        let mut shared = self.shared.0.lock();
        if self.ended.load(Ordering::Relaxed) {
            return Err(ControlError::new(Kind::Unavailable, "the volume is being unmounted"));
        }
        *shared = Shared::default();
        shared.status = ScrubStatus {
            running: true,
            rate,
            since: now_secs(),
            pass: Some(pass.clone()),
            ..ScrubStatus::default()
        };
        let conductor = Conductor {
            _guard: guard,
            core: self.core.clone(),
            shared: self.shared.clone(),
            path: path.to_owned(),
            own: Mutex::new(Own {
                rate: Rate::new(rate, Instant::now()),
                shown: None,
                kept: Instant::now(),
                told: 0,
            }),
        };
        let options = Options { live_only, changing: !self.core.options.read_only };
        let spawned =
            std::thread::Builder::new().name("scrub".into()).spawn(move || conductor.run(pass, options));
        if let Err(e) = spawned {
            shared.status.running = false;
            return Err(ControlError::io("no thread for the scrub", &e));
        }
        Ok(())
    }
}

/// What the thread keeps for itself.
struct Own {
    rate: Rate,
    shown: Option<Instant>,
    kept: Instant,
    /// Findings that have been logged.
    told: usize,
}

struct Conductor {
    /// Segments that are freed meanwhile are not written again.
    _guard: Guard,
    core: Arc<Core>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    path: PathBuf,
    own: Mutex<Own>,
}

impl Conductor {
    fn run(self, mut pass: State, options: Options) {
        be_last();
        let device = self.core.device.clone();
        let result = scrub(&*device, &options, &mut pass, &self);
        let cancelled = self.shared.0.lock().cancel;
        let kept = if cancelled { forget_pass(&self.path) } else { save_pass(&self.path, &pass) };
        self.tell(&pass);
        let mut shared = self.shared.0.lock();
        let trouble = match (result, kept) {
            (Err(e), _) => Some(e.to_string()),
            (Ok(_), Err(e)) => Some(format!("what was found is not kept: {e}")),
            (Ok(Outcome::Paused), Ok(())) if !shared.stop => {
                Some("it ended because space is short; silt scrub goes on with it later".to_owned())
            }
            (Ok(Outcome::Finished | Outcome::Paused), Ok(())) => None,
        };
        if let Some(trouble) = &trouble {
            tracing::warn!("scrub: {trouble}");
        }
        (shared.status.running, shared.status.paused) = (false, false);
        shared.status.trouble = trouble;
        shared.status.pass = (!cancelled).then_some(pass);
    }

    /// Logs findings that have not been.
    fn tell(&self, pass: &State) {
        let mut own = self.own.lock();
        for finding in pass.findings.iter().skip(own.told) {
            tracing::error!("scrub: {}", finding.lines(pass.block_size).join("\n"));
        }
        own.told = pass.findings.len();
    }

    /// Waits while others do: requests for the volume's lock, syncs for the log.
    fn give_way(&self) {
        let until = Instant::now() + GIVE_WAY;
        while Instant::now() < until && !self.stop() {
            let free = self.core.fs.try_lock().is_some() && self.core.queue.lock().waiters.is_empty();
            if free {
                return;
            }
            std::thread::sleep(NAP);
        }
    }
}

impl Conduct for Conductor {
    fn pace(&self, bytes: u64) {
        let rest = self.own.lock().rate.take(bytes, Instant::now());
        let (shared, changed) = &*self.shared;
        let mut shared = shared.lock();
        let until = Instant::now().checked_add(rest);
        while !shared.stop && !self.core.space.is_wanted() {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() && !shared.status.paused {
                break;
            }
            // Nobody who wants space tells this one.
            let nap = if shared.status.paused { GIVE_WAY } else { left.min(GIVE_WAY) };
            changed.wait_for(&mut shared, nap);
        }
        drop(shared);
        self.give_way();
    }

    fn stop(&self) -> bool {
        // What it holds back somebody needs now.
        self.shared.0.lock().stop || self.core.space.is_wanted()
    }

    fn newest(&self) -> Option<LogPosition> {
        let last = self.core.fs.lock().volume().last_log();
        Some(LogPosition { block: last.pseg, sequence: last.seq, checkpoint: last.cno })
    }

    fn progress(&self, pass: &State) {
        let now = Instant::now();
        let (show, keep) = {
            let mut own = self.own.lock();
            let show = own.shown.is_none_or(|last| now - last >= SHOW) || own.told < pass.findings.len();
            let keep = now - own.kept >= KEEP;
            if show {
                own.shown = Some(now);
            }
            if keep {
                own.kept = now;
            }
            (show, keep)
        };
        if show {
            self.tell(pass);
            self.shared.0.lock().status.pass = Some(pass.clone());
        }
        if keep && let Err(e) = save_pass(&self.path, pass) {
            tracing::debug!("scrub: {e}");
        }
    }
}

/// Has this thread served last: by the processor, and by the device where its scheduler knows of it.
fn be_last() {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: numbers only; 0 is the calling thread in both. Whether it helps or not, the work is the same.
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE);
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}
