//! Reading file data without holding the lock: the map was looked up, the device is read here.
//!
//! What is small and in the host's page cache is read at once by the thread that serves requests; what has
//! to wait for the medium, or is large and read past that cache, goes to a few reader threads, and its answer
//! comes when it comes.

use std::cell::RefCell;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use silt_device::Buffer;
use silt_engine::{Guard, LogState, Tree, Watched};
use silt_format::{BlockNr, Geometry, Ino};
use silt_fs::{ReadPiece, Source};
use silt_fuse::{Errno, ReplyData};

use crate::core::Core;
use crate::damage::Met;

/// Reader threads.
const THREADS: usize = 4;

/// Bytes that stand for holes.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

thread_local! {
    /// What the thread reads into.
    static BUFFER: RefCell<Buffer> = RefCell::default();
}

/// A read whose places are known.
pub struct Wanted {
    pub tree: Tree,
    pub ino: Ino,
    /// Byte of the file that the plan begins with.
    pub offset: u64,
    pub plan: Vec<ReadPiece>,
    /// Keeps the places of the plan from being written again.
    pub _guard: Guard,
}

struct Job {
    wanted: Wanted,
    reply: ReplyData,
}

/// Hands reads out.
pub struct Readers {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

/// What the threads need.
struct Shared {
    core: Arc<Core>,
    /// Verifies what is read, if that was asked for.
    verifier: Option<Arc<Watched>>,
    geometry: Geometry,
}

impl Readers {
    /// Starts the threads; they end when this is dropped.
    pub fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let (jobs, todo): (Sender<Job>, Receiver<Job>) = crossbeam_channel::unbounded();
        let (verifier, geometry) = {
            let fs = core.fs.lock();
            (fs.volume().verifier(), *fs.volume().geometry())
        };
        let shared = Arc::new(Shared { core: core.clone(), verifier, geometry });
        for i in 0..THREADS {
            let (todo, shared) = (todo.clone(), shared.clone());
            std::thread::Builder::new().name(format!("reader {i}")).spawn(move || {
                for job in todo {
                    let _ = shared.serve(job, true);
                }
            })?;
        }
        Ok(Readers { shared, jobs })
    }

    /// Answers at once if nothing has to be waited for, later otherwise.
    pub fn read(&self, wanted: Wanted, reply: ReplyData) {
        if let Some(job) = self.shared.serve(Job { wanted, reply }, false)
            && let Err(back) = self.jobs.send(job)
        {
            back.into_inner().reply.error(Errno::EIO);
        }
    }
}

impl Shared {
    /// Reads what the job wants and answers it; gives it back where it would have to wait and may not.
    fn serve(&self, job: Job, wait: bool) -> Option<Job> {
        BUFFER.with_borrow_mut(|buffer| {
            let plan = &job.wanted.plan;
            let total: usize =
                plan.iter().filter(|p| matches!(p.source, Source::Device(_))).map(|p| p.len).sum();
            // Whole pages are read in place where the page cache is bypassed.
            let bytes = buffer.of(total);
            let mut around = Vec::new();
            match self.fetch(&job.wanted, bytes, wait.then_some(&mut around)) {
                Ok(true) => answer(job, bytes),
                Ok(false) => return Some(job),
                Err(e) => job.reply.error(e),
            }
            around.into_iter().for_each(|range| self.core.device.fetch(range));
            None
        })
    }

    /// Reads what the plan wants from the device into `rest`, one piece after the other; `false`: it would have to
    /// wait and may not. It may where there is an `around`, for what is worth being read when that is answered.
    fn fetch(
        &self,
        wanted: &Wanted,
        mut rest: &mut [u8],
        mut around: Option<&mut Vec<Range<u64>>>,
    ) -> Result<bool, Errno> {
        let device = &*self.core.device;
        let mut offset = wanted.offset;
        for piece in &wanted.plan {
            let bytes = offset..offset + piece.len as u64;
            offset = bytes.end;
            let Source::Device(from) = piece.source else { continue };
            let (to, after) = rest.split_at_mut(piece.len);
            rest = after;
            let damaged = |bytes: Range<u64>, what: String| {
                let met = Met { bytes: Some(bytes), ..Met::of(wanted.tree, wanted.ino, what) };
                self.core.met_damage(met);
                Err(Errno::EIO)
            };
            match self.verify(from..from + piece.len as u64, around.is_some()) {
                Verified::Whole => {}
                Verified::Unknown => return Ok(false),
                Verified::Bad { byte, log } => {
                    let at = bytes.start + byte.saturating_sub(from);
                    let what =
                        format!("the log at block {log} does not match its checksum, or cannot be read");
                    return damaged(at..bytes.end, what);
                }
            }
            let done = match &mut around {
                Some(around) => device.read_first(from, to).map(|more| {
                    around.extend(more);
                    true
                }),
                None => device.read_if_cached(from, to),
            };
            match done {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(e) => return damaged(bytes, e.to_string()),
            }
        }
        Ok(true)
    }

    /// Whether the logs that hold a range of the device's bytes are whole; reads them if it may wait for that.
    fn verify(&self, bytes: Range<u64>, wait: bool) -> Verified {
        let Some(watched) = &self.verifier else { return Verified::Whole };
        let verifier = &watched.verifier;
        let mut block = bytes.start >> self.geometry.block_bits;
        let end = bytes.end.div_ceil(u64::from(self.geometry.block_size));
        while block < end {
            let (log, state) = match verifier.state(BlockNr(block)) {
                Some(known) => known,
                None if wait => verifier.verify(BlockNr(block)),
                None => return Verified::Unknown,
            };
            if state == LogState::Bad {
                return Verified::Bad { byte: block << self.geometry.block_bits, log: log.start };
            }
            block = log.end.max(block + 1);
        }
        Verified::Whole
    }
}

/// What is known of a range's logs.
enum Verified {
    Whole,
    /// Not before they are read.
    Unknown,
    /// From this byte on; the first block of the log.
    Bad {
        byte: u64,
        log: u64,
    },
}

/// Verifies the logs of metadata that was read, until the volume is closed. What is in them was served already, by
/// its own checks.
pub fn verify_metadata(core: &Core, watched: &Watched) {
    loop {
        let blocks = watched.next();
        if blocks.is_empty() {
            return;
        }
        for (block, freed) in blocks {
            if watched.stopped() {
                return;
            }
            if watched.verifier.state(block).is_some() {
                continue;
            }
            let (log, state) = watched.verifier.verify(block);
            if state != LogState::Bad {
                continue;
            }
            // A segment that is written again meanwhile, or was, says nothing of what was read.
            let says_something = {
                let fs = core.fs.lock();
                let segment = fs.volume().geometry().segment_of(block);
                fs.volume().is_settled(segment) && !fs.volume().was_freed_since(segment, freed)
            };
            if says_something {
                let what = format!(
                    "it holds metadata (block {block}) and does not match its checksum, or cannot be read"
                );
                core.met_damage(Met { log: Some(log.start), ..Met::of(Tree::Live, Ino(0), what) });
            }
        }
    }
}

fn answer(job: Job, bytes: &[u8]) {
    let mut rest = bytes;
    let mut slices = Vec::with_capacity(job.wanted.plan.len());
    for piece in &job.wanted.plan {
        match &piece.source {
            Source::Zeroes => {
                let mut left = piece.len;
                while left > 0 {
                    let n = left.min(ZEROES.len());
                    slices.push(IoSlice::new(&ZEROES[..n]));
                    left -= n;
                }
            }
            Source::Memory(block, range) => {
                slices.push(IoSlice::new(block.get(range.clone()).unwrap_or_default()));
            }
            Source::Device(_) => {
                let (here, after) = rest.split_at(piece.len.min(rest.len()));
                slices.push(IoSlice::new(here));
                rest = after;
            }
        }
    }
    job.reply.data_vectored(&slices);
}
