//! Runs the paths over an image and says which promise was broken.
//!
//! Time is bounded in two ways that do not depend on the machine's load: requests and bytes read from the device, and
//! the processor time of the thread. A hang is ended by [`Watchdog`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use silt_device::{Device, MemoryDevice};

use crate::paths::{CACHE, PATHS, Path, Seen};
use crate::watched::{Budget, Watched};
use crate::{Base, memory};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path that broke it.
    pub path: &'static str,
    pub what: Broken,
}

/// Which promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// It panicked: the message and where.
    Panic(String),
    /// It read more than the size of the image allows.
    Reads { requests: u64, bytes: u64 },
    /// It computed longer than the size of the image allows.
    Time(Duration),
    /// It held more memory than the size of the image allows, in bytes.
    Memory(u64),
    /// It wrote, flushed or discarded although nothing may be written.
    Wrote,
}

impl Finding {
    /// Whether both break the same promise in the same place.
    pub fn is_like(&self, other: &Finding) -> bool {
        let place = |b: &Broken| match b {
            Broken::Panic(what) => what.rsplit(" at ").next().unwrap_or("").to_owned(),
            Broken::Reads { .. } => "reads".into(),
            Broken::Time(_) => "time".into(),
            Broken::Memory(_) => "memory".into(),
            Broken::Wrote => "wrote".into(),
        };
        self.path == other.path && place(&self.what) == place(&other.what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.what {
            Broken::Panic(what) => write!(f, "panicked: {what}"),
            Broken::Reads { requests, bytes } => write!(f, "read {bytes} bytes in {requests} requests"),
            Broken::Time(time) => write!(f, "computed for {time:?}"),
            Broken::Memory(bytes) => write!(f, "held {bytes} bytes"),
            Broken::Wrote => write!(f, "wrote to a volume that was opened read-only"),
        }
    }
}

/// What the paths did with an image.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub seen: Seen,
    pub findings: Vec<Finding>,
    /// The largest figures of any path.
    pub most: Cost,
    /// What each path took that was run, by its place in [`PATHS`].
    pub costs: Vec<(usize, Cost)>,
}

/// What a path took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub requests: u64,
    pub bytes: u64,
    pub time: Duration,
    /// Bytes held at most; 0 where the program does not count ([`memory::Meter`]).
    pub memory: u64,
}

impl Cost {
    /// The larger of each.
    pub fn max(self, other: Cost) -> Cost {
        Cost {
            requests: self.requests.max(other.requests),
            bytes: self.bytes.max(other.bytes),
            time: self.time.max(other.time),
            memory: self.memory.max(other.memory),
        }
    }

    /// So many times as much, but for memory.
    pub fn times(self, n: u32) -> Cost {
        Cost {
            requests: self.requests * u64::from(n),
            bytes: self.bytes * u64::from(n),
            time: self.time * n,
            memory: self.memory,
        }
    }
}

/// What an image of this size may cost one path: a multiple of its size and a constant.
pub fn limit(base: &Base) -> Cost {
    let (blocks, size) = (base.blocks(), base.device.len());
    // Builds with checks of arithmetic and little optimisation take their time.
    let factor = if cfg!(debug_assertions) { 8 } else { 1 };
    Cost {
        requests: 4 * blocks + 4000,
        bytes: 8 * size + (8 << 20),
        time: factor * (Duration::from_millis(150) + Duration::from_millis(20) * (size >> 20) as u32),
        memory: 4 * CACHE + size + (4 << 20),
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

fn hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.with(|q| *q.borrow()) {
                return before(info);
            }
            let what = info.payload_as_str().unwrap_or("?");
            let place =
                info.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
            PANIC.with(|p| *p.borrow_mut() = Some(format!("{what}{place}")));
        }));
    });
}

/// Runs `f`; what it panicked with and where.
fn guarded(f: impl FnOnce()) -> Option<String> {
    hook();
    QUIET.with(|q| *q.borrow_mut() = true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.with(|q| *q.borrow_mut() = false);
    result.err().map(|_| PANIC.with(|p| p.borrow_mut().take()).unwrap_or_default())
}

/// Processor time of this thread.
fn clock() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Runs one path over an image.
pub fn run(path: &Path, base: &Base, image: &MemoryDevice, verdict: &mut Verdict) -> Cost {
    let limit = limit(base).times(path.dear);
    let budget = Budget { requests: limit.requests, bytes: limit.bytes };
    let device = Arc::new(Watched::new(image.fork(), path.writes, budget));
    let mut seen = verdict.seen;
    let begun = memory::begin();
    let started = clock();
    let panicked = guarded(|| (path.run)(&device, &mut seen));
    let time = clock().saturating_sub(started);
    let memory = memory::peak(begun);
    let (requests, bytes) = device.reads();
    verdict.seen = seen;
    let cost = Cost { requests, bytes, time, memory };
    verdict.most = verdict.most.max(cost);
    let mut found = |what| verdict.findings.push(Finding { path: path.name, what });
    if let Some(what) = panicked {
        found(Broken::Panic(what));
    }
    if device.is_exceeded() {
        found(Broken::Reads { requests, bytes });
    }
    if device.is_touched() {
        found(Broken::Wrote);
    }
    if time > limit.time {
        found(Broken::Time(time));
    }
    // What was written is held in memory too.
    if memory > limit.memory + path.copies * device.len() + 2 * device.written().min(device.len()) {
        found(Broken::Memory(memory));
    }
    cost
}

/// Runs all paths over an image.
pub fn judge(base: &Base, image: &MemoryDevice) -> Verdict {
    judge_those(base, image, |_| true)
}

/// Runs those paths over an image that are the turn of this number: of each, one image in [`Path::every`].
pub fn judge_some(base: &Base, image: &MemoryDevice, number: u64) -> Verdict {
    judge_those(base, image, |i| {
        // Numbers are mixed, since bases follow one another in turn, too.
        let mixed = (number ^ ((i as u64) << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed.is_multiple_of(PATHS[i].every)
    })
}

/// Runs the path of this name.
pub fn judge_by(base: &Base, image: &MemoryDevice, path: &str) -> Verdict {
    judge_those(base, image, |i| PATHS[i].name == path)
}

fn judge_those(base: &Base, image: &MemoryDevice, wanted: impl Fn(usize) -> bool) -> Verdict {
    let mut verdict = Verdict::default();
    for (i, path) in PATHS.iter().enumerate().filter(|(i, _)| wanted(*i)) {
        let cost = run(path, base, image, &mut verdict);
        verdict.costs.push((i, cost));
    }
    verdict
}

/// Ends the program when a case takes for ever, and says which it was.
pub struct Watchdog {
    running: Mutex<HashMap<std::thread::ThreadId, (Instant, String)>>,
}

impl Watchdog {
    /// Starts watching: cases may take `most` by the clock on the wall.
    pub fn start(most: Duration) -> Arc<Self> {
        let dog = Arc::new(Self { running: Mutex::default() });
        let watching = Arc::downgrade(&dog);
        std::thread::spawn(move || {
            while let Some(dog) = watching.upgrade() {
                for (begun, case) in dog.running.lock().values() {
                    if begun.elapsed() > most {
                        eprintln!("hangs: {case}");
                        std::process::exit(3);
                    }
                }
                drop(dog);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        dog
    }

    /// This thread begins a case.
    pub fn begin(&self, case: String) {
        self.running.lock().insert(std::thread::current().id(), (Instant::now(), case));
    }

    /// This thread has no case any more.
    pub fn end(&self) {
        self.running.lock().remove(&std::thread::current().id());
    }
}
