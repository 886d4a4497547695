//! Devices that do not answer, and what waits for them: nobody who asks how things stand, and an unmount only where what
//! comes late would do harm.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};
use silt_control::ControlError;
use silt_control::scrub::{ScrubAction, ScrubStatus};
use silt_device::{Capabilities, Device, MemoryDevice};

use crate::config::MountOptions;
use crate::core::Core;
use crate::fault_tests::{mkfs_of, open};
use crate::scrub::Scrubber;

const SIZE: u64 = 32 << 20;
/// More than anything here takes that does not hang.
const LONG: Duration = Duration::from_secs(30);

/// Holds up who comes to it while it is shut.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU32,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while *shut {
            self.opened.wait(&mut shut);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A device that does not answer at times, and one where it panics.
struct Hanging {
    inner: MemoryDevice,
    reads: Gate,
    discards: Gate,
    panics: AtomicBool,
}

impl Hanging {
    fn new() -> Arc<Self> {
        let inner = mkfs_of(SIZE, 64);
        let panics = AtomicBool::new(false);
        Arc::new(Hanging { inner, reads: Gate::default(), discards: Gate::default(), panics })
    }
}

impl Device for Hanging {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.reads.pass();
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.inner.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "a defect");
        self.discards.pass();
        self.inner.discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

/// Does something in a thread of its own; what came of it is received.
fn beside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tx, rx) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || drop(tx.send(f())));
    rx
}

type Answer = Receiver<Result<ScrubStatus, ControlError>>;

fn start(scrubber: &Arc<Scrubber>, state: &Path) -> Answer {
    let (scrubber, state) = (scrubber.clone(), state.to_owned());
    beside(move || scrubber.act(&ScrubAction::Start { rate: None, live_only: false, restart: false, state }))
}

fn status(scrubber: &Arc<Scrubber>) -> Answer {
    let scrubber = scrubber.clone();
    beside(move || scrubber.act(&ScrubAction::Status))
}

fn stop(scrubber: &Arc<Scrubber>) -> Receiver<()> {
    let scrubber = scrubber.clone();
    beside(move || scrubber.end())
}

#[test]
fn a_scrub_of_a_device_that_does_not_answer_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let device = Hanging::new();
    let core = Core::new(open(device.clone()), MountOptions::default());
    let scrubber = Arc::new(Scrubber::new(core));
    device.reads.shut(true);
    let begun = start(&scrubber, &dir.path().join("pass")).recv_timeout(LONG);
    let told = status(&scrubber).recv_timeout(LONG);
    let stopped = stop(&scrubber).recv_timeout(LONG);
    device.reads.shut(false);
    assert!(begun.is_ok_and(|s| s.unwrap().running), "who begins it waits for the device");
    assert!(told.is_ok_and(|s| s.unwrap().running), "who asks how it stands does");
    assert_eq!(stopped, Ok(()), "who unmounts does");
}

/// The file of the pass may lie on something that does not answer either.
#[test]
fn a_scrub_whose_file_does_not_answer_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("pass");
    // It is open for reading only once somebody writes to it.
    rustix::fs::mkfifoat(rustix::fs::CWD, &state, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let scrubber = Arc::new(Scrubber::new(Core::new(open(Hanging::new()), MountOptions::default())));
    let begun = start(&scrubber, &state);
    std::thread::sleep(Duration::from_millis(200));
    let (told, stopped) = (status(&scrubber), stop(&scrubber));
    let (told, stopped) = (told.recv_timeout(LONG), stopped.recv_timeout(LONG));
    drop(std::fs::File::options().write(true).open(&state));
    assert!(told.is_ok_and(|s| !s.unwrap().running), "who asks how it stands waits for the file");
    assert_eq!(stopped, Ok(()), "who unmounts does");
    assert!(begun.recv_timeout(LONG).unwrap().is_err(), "it is no pass");
}

/// What was asked before an unmount and comes to it later would hold back what that frees.
#[test]
fn no_scrub_begins_once_the_volume_is_about_to_be_closed() {
    let dir = tempfile::tempdir().unwrap();
    let scrubber = Arc::new(Scrubber::new(Core::new(open(Hanging::new()), MountOptions::default())));
    assert_eq!(stop(&scrubber).recv_timeout(LONG), Ok(()));
    let begun = start(&scrubber, &dir.path().join("pass")).recv_timeout(LONG).unwrap();
    assert!(begun.is_err_and(|e| e.kind == silt_control::Kind::Unavailable));
    assert!(status(&scrubber).recv_timeout(LONG).unwrap().is_ok_and(|s| !s.running));
}

/// A core whose thread discards all that is clean, and the end of that thread.
fn discarding(device: &Arc<Hanging>) -> (Arc<Core>, Receiver<()>) {
    let core = Core::new(open(device.clone()), MountOptions::default());
    core.fs.lock().volume_mut().remember_unwanted(true).unwrap();
    let own = core.clone();
    let ended = beside(move || crate::discarder::run(&own, Duration::from_millis(1)));
    (core, ended)
}

fn end(core: &Arc<Core>) -> Receiver<()> {
    let core = core.clone();
    beside(move || crate::discarder::end(&core))
}

/// Who mounts the volume next may write where it is still discarded.
#[test]
fn an_unmount_waits_for_what_is_being_discarded() {
    let device = Hanging::new();
    device.discards.shut(true);
    let (core, thread) = discarding(&device);
    let begin = Instant::now();
    while device.discards.waiting.load(Ordering::Relaxed) == 0 {
        assert!(begin.elapsed() < LONG, "nothing is discarded");
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = end(&core);
    let early = ended.recv_timeout(Duration::from_millis(300));
    device.discards.shut(false);
    assert!(early.is_err(), "it went on without it");
    assert_eq!((ended.recv_timeout(LONG), thread.recv_timeout(LONG)), (Ok(()), Ok(())));
    let mut fs = core.fs.lock();
    assert!(fs.volume().failure().is_none() && fs.volume_mut().end_discards());
}

/// A defect of the thread is not waited for: nothing is under way any more.
#[test]
fn an_unmount_does_not_wait_for_a_discard_that_panicked() {
    let device = Hanging::new();
    device.panics.store(true, Ordering::Relaxed);
    let (core, ended) = discarding(&device);
    assert_eq!(ended.recv_timeout(LONG), Ok(()), "it has no end");
    assert_eq!(end(&core).recv_timeout(LONG), Ok(()), "the end of a mount waits for ever");
    let failure = core.fs.lock().volume().failure().map(str::to_owned);
    assert!(failure.is_some_and(|what| what.contains("discarder")));
}
