//! Reading file data without holding the lock: the map was looked up, the device is read here.
//!
//! What is small and in the host's page cache is read at once by the thread that serves requests; what has
//! to wait for the medium, or is large and read past that cache, goes to a few reader threads, and its answer
//! comes when it comes.

use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use silt_device::Device;
use silt_fs::{ReadPiece, Source};
use silt_fuse::{Errno, ReplyData};

/// Reader threads.
const THREADS: usize = 4;

/// Alignment of memory that is read into.
const PAGE: usize = 4096;

/// Bytes that stand for holes.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

thread_local! {
    /// What the thread reads into: as large as its largest read and a page, and made only once. A new one for each
    /// would be zeroed, and given back to the system, each time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A read whose places are known.
struct Job {
    plan: Vec<ReadPiece>,
    reply: ReplyData,
}

/// Hands reads out.
pub struct Readers {
    device: Arc<dyn Device>,
    jobs: Sender<Job>,
}

impl Readers {
    /// Starts the threads; they end when this is dropped.
    pub fn start(device: &Arc<dyn Device>) -> std::io::Result<Self> {
        let (jobs, todo): (Sender<Job>, Receiver<Job>) = crossbeam_channel::unbounded();
        for i in 0..THREADS {
            let (todo, device) = (todo.clone(), device.clone());
            std::thread::Builder::new().name(format!("reader {i}")).spawn(move || {
                for job in todo {
                    let _ = serve(&*device, job, true);
                }
            })?;
        }
        Ok(Readers { device: device.clone(), jobs })
    }

    /// Answers at once if nothing has to be waited for, later otherwise.
    pub fn read(&self, plan: Vec<ReadPiece>, reply: ReplyData) {
        if let Some(job) = serve(&*self.device, Job { plan, reply }, false)
            && let Err(back) = self.jobs.send(job)
        {
            back.into_inner().reply.error(Errno::EIO);
        }
    }
}

/// Reads what the job wants and answers it; gives it back where it would have to wait and may not.
fn serve(device: &dyn Device, job: Job, wait: bool) -> Option<Job> {
    BUFFER.with_borrow_mut(|buffer| {
        let total: usize =
            job.plan.iter().filter(|p| matches!(p.source, Source::Device(_))).map(|p| p.len).sum();
        if buffer.len() < total + PAGE {
            buffer.resize(total + PAGE, 0);
        }
        // Whole pages are read in place where the page cache is bypassed.
        let start = buffer.as_ptr().align_offset(PAGE).min(PAGE);
        let bytes = &mut buffer[start..];
        match fetch(device, &job.plan, bytes, wait) {
            Ok(true) => answer(job, bytes),
            Ok(false) => return Some(job),
            Err(e) => job.reply.error(e),
        }
        None
    })
}

/// Reads what the plan wants from the device into `rest`, one piece after the other; `false`: it would have to
/// wait and may not.
fn fetch(device: &dyn Device, plan: &[ReadPiece], mut rest: &mut [u8], wait: bool) -> Result<bool, Errno> {
    for piece in plan {
        let Source::Device(from) = piece.source else { continue };
        let (to, after) = rest.split_at_mut(piece.len);
        rest = after;
        let done =
            if wait { device.read_at(from, to).map(|()| true) } else { device.read_if_cached(from, to) };
        match done {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(e) => {
                tracing::error!("{e}");
                return Err(Errno::EIO);
            }
        }
    }
    Ok(true)
}

fn answer(job: Job, bytes: &[u8]) {
    let mut rest = bytes;
    let mut slices = Vec::with_capacity(job.plan.len());
    for piece in &job.plan {
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
