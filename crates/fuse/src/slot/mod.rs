//! Requests that rings brought, and their answers on the way to the thread that hands them to the kernel.
//!
//! Any thread may answer; only the thread of the ring submits. Where another thread answers, it wakes that one
//! through an eventfd, once for all answers that wait.

mod memory;

pub(crate) use memory::Memory;

use crate::errno::Errno;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// It lies in the entry, this many bytes.
    InPlace(u32),
    /// It is put there by the ring's thread: the request's own data lies there, and may be in use.
    Apart(Vec<u8>),
}

/// An answer that the kernel has not got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) entry: usize,
    pub(crate) error: i32,
    pub(crate) unique: u64,
    pub(crate) body: Body,
}

/// What a ring's thread shares with those who answer.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) memory: Memory,
    waiting: Mutex<Vec<Answer>>,
    thread: OnceLock<ThreadId>,
    /// The ring's thread has been woken and has not looked yet.
    woken: AtomicBool,
    ended: AtomicBool,
    event: OwnedFd,
}

impl Answers {
    pub(crate) fn new(memory: Memory) -> rustix::io::Result<Self> {
        Ok(Self {
            memory,
            waiting: Mutex::default(),
            thread: OnceLock::new(),
            woken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// The caller is the ring's thread.
    pub(crate) fn claim(&self) {
        let _ = self.thread.set(std::thread::current().id());
    }

    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Exchanges the answers that wait for an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Answer>) {
        // Before looking: who comes after that wakes anew.
        self.woken.store(false, Ordering::SeqCst);
        std::mem::swap(&mut *self.waiting.lock(), into);
    }

    /// The thread is to end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn push(&self, answer: Answer) {
        self.waiting.lock().push(answer);
        if self.thread.get() != Some(&std::thread::current().id()) {
            self.wake();
        }
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst)
            && let Err(error) = rustix::io::write(&self.event, &1u64.to_ne_bytes())
        {
            tracing::error!(%error, "a thread cannot be woken");
        }
    }
}

/// An entry whose request waits for its answer. Dropped, it answers EIO.
#[derive(Debug)]
pub(crate) struct Slot {
    /// None once answered.
    answers: Option<Arc<Answers>>,
    entry: usize,
    unique: u64,
    /// The request has no data that somebody could be reading.
    empty: bool,
}

impl Slot {
    pub(crate) fn new(answers: Arc<Answers>, entry: usize, unique: u64, empty: bool) -> Self {
        Self { answers: Some(answers), entry, unique, empty }
    }

    /// Answers: an error (negative) or 0, and the parts of the body.
    pub(crate) fn answer(mut self, error: i32, unique: u64, body: &[IoSlice<'_>]) -> Result<(), Os> {
        let length: usize = body.iter().map(|part| part.len()).sum();
        let Some(answers) = self.answers.as_ref() else { return Ok(()) };
        let fits = u32::try_from(length).ok().filter(|_| length <= answers.memory.room());
        // Not answered: dropping does that.
        let Some(in_place) = fits else { return Err(Os::MSGSIZE) };
        let Some(answers) = self.answers.take() else { return Ok(()) };
        let body = if self.empty {
            // SAFETY: the entry is ours until it is submitted with this answer, there is one slot for it, and the
            // request has no data.
            unsafe { answers.memory.put(self.entry, body) };
            Body::InPlace(in_place)
        } else {
            let mut whole = Vec::with_capacity(length);
            body.iter().for_each(|part| whole.extend_from_slice(part));
            Body::Apart(whole)
        };
        answers.push(Answer { entry: self.entry, error, unique, body });
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(answers) = self.answers.take() {
            let (entry, unique) = (self.entry, self.unique);
            answers.push(Answer { entry, error: -Errno::EIO.raw(), unique, body: Body::InPlace(0) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Arc<Answers> {
        Arc::new(Answers::new(Memory::new(2, 4096).unwrap()).unwrap())
    }

    fn waiting(answers: &Answers) -> Vec<Answer> {
        let mut list = Vec::new();
        answers.take(&mut list);
        list
    }

    /// True if the ring's thread was woken since the last time.
    fn woken(answers: &Answers) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(answers.event(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0;
        if ready {
            rustix::io::read(answers.event(), &mut [0; 8]).unwrap();
        }
        ready
    }

    #[test]
    fn what_a_handler_may_be_reading_is_not_written_over() {
        let answers = answers();
        let body = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
        Slot::new(answers.clone(), 0, 7, true).answer(0, 7, &body).unwrap();
        Slot::new(answers.clone(), 1, 8, false).answer(0, 8, &body).unwrap();
        let list = waiting(&answers);
        assert!(matches!(list[0], Answer { entry: 0, unique: 7, error: 0, body: Body::InPlace(3) }));
        assert!(matches!(&list[1], Answer { entry: 1, body: Body::Apart(bytes), .. } if bytes == b"abc"));
        // SAFETY: no kernel knows of this memory, and there is one thread.
        let (first, second) =
            unsafe { (answers.memory.request_data(0, 3), answers.memory.request_data(1, 3)) };
        assert_eq!((first, second), (&b"abc"[..], &[0; 3][..]));
    }

    #[test]
    fn every_slot_is_answered_once() {
        let answers = answers();
        drop(Slot::new(answers.clone(), 1, 9, true));
        let long = vec![0; 4097];
        let refused = Slot::new(answers.clone(), 0, 10, true).answer(0, 10, &[IoSlice::new(&long)]);
        assert_eq!(refused, Err(Os::MSGSIZE));
        let list: Vec<_> = waiting(&answers).iter().map(|a| (a.entry, a.error, a.unique)).collect();
        assert_eq!(list, [(1, -libc::EIO, 9), (0, -libc::EIO, 10)]);
    }

    #[test]
    fn others_wake_the_thread_of_the_ring() {
        let answers = answers();
        answers.claim();
        drop(Slot::new(answers.clone(), 0, 1, true));
        assert!(!woken(&answers), "it looks by itself");
        let answer = || {
            let slot = Slot::new(answers.clone(), 0, 1, true);
            std::thread::scope(|scope| drop(scope.spawn(move || drop(slot)).join()));
        };
        answer();
        assert!(woken(&answers));
        answer();
        assert!(!woken(&answers), "it has not looked since");
        assert_eq!(waiting(&answers).len(), 3);
        answer();
        assert!(woken(&answers));
        answers.end();
        assert!(answers.has_ended());
    }
}
