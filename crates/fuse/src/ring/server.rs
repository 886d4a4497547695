//! The thread of a ring: hands answers in, waits, and serves what comes.
//!
//! ```text
//! REGISTER (every entry once) -> completion: a request -> handler -> answer -> COMMIT_AND_FETCH -> completion ...
//! ```
//!
//! An entry that completes with an error is tried again, or left out ([`after`](super::after)).

use super::after::{After, after, is_end};
use crate::abi::{InHeader, RingCommand, ring_command};
use crate::channel::Channel;
use crate::dispatch::Target;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::reply::Way;
use crate::request::Request;
use crate::slot::{Answer, Answers, Body, Slot};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

type Uring = IoUring<Entry128, cqueue::Entry>;

/// What a completion of the eventfd carries; entries carry their number.
const WOKEN: u64 = u64::MAX;
/// Bytes of an entry's data that stay in memory after a large request.
const KEPT: usize = 128 << 10;
/// Entries whose data stays in memory whole once it was used.
const RESIDENT: usize = 4;

/// A ring that is set up, before the kernel knows what it is for.
pub(super) struct Server {
    uring: Uring,
    answers: Arc<Answers>,
    entries: Vec<Entry>,
    /// How many entries are [`Entry::resident`].
    resident: usize,
    count: Box<[u8; 8]>,
}

/// One of the entries.
#[derive(Clone, Copy)]
struct Entry {
    /// The queue it belongs to.
    qid: u16,
    /// What the kernel wants to hear with the answer.
    commit_id: u64,
    /// Bytes of its data that may take memory.
    used: usize,
    /// All of its data may.
    resident: bool,
    /// The command that was submitted last.
    command: u32,
    /// Errors in a row.
    errors: u32,
    /// It is not left out, and the connection has not ended for it.
    alive: bool,
}

/// What became of an entry that completed.
struct Completed {
    result: i32,
    data: u64,
}

impl Server {
    /// On the thread that will serve.
    pub(super) fn new(answers: Arc<Answers>, queues: Vec<u16>) -> std::io::Result<Self> {
        let entries = u32::try_from(queues.len() + 1).unwrap_or(u32::MAX).next_power_of_two();
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_no_sqarray()
            .setup_cqsize(entries.saturating_mul(2))
            .build(entries)?;
        answers.claim();
        let command = ring_command::REGISTER;
        let entry =
            |qid| Entry { qid, commit_id: 0, used: 0, resident: false, command, errors: 0, alive: true };
        let entries = queues.into_iter().map(entry).collect();
        Ok(Self { uring, answers, entries, resident: 0, count: Box::new([0; 8]) })
    }

    /// Serves until the connection ends.
    pub(super) fn serve<F: Filesystem>(mut self, target: &Target<F>, device: &Channel) -> Result<()> {
        let fd = types::Fd(device.as_fd().as_raw_fd());
        for entry in 0..self.entries.len() {
            self.submit(fd, ring_command::REGISTER, entry)?;
        }
        self.listen()?;
        let mut list: Vec<Answer> = Vec::new();
        let mut completed: Vec<Completed> = Vec::new();
        loop {
            self.answers.take(&mut list);
            for answer in list.drain(..) {
                let entry = answer.entry;
                self.hand_in(answer);
                self.submit(fd, ring_command::COMMIT_AND_FETCH, entry)?;
            }
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return Err(Error::Ring(error)),
                },
            }
            let come = self.uring.completion();
            completed.extend(come.map(|c| Completed { result: c.result(), data: c.user_data() }));
            for Completed { result, data } in completed.drain(..) {
                match usize::try_from(data) {
                    _ if data == WOKEN => self.listen()?,
                    Ok(entry) if result >= 0 => self.request(target, entry),
                    Ok(entry) => self.fail(fd, entry, -result)?,
                    Err(_) => {}
                }
            }
            if !self.entries.iter().any(|entry| entry.alive) || self.answers.has_ended() {
                return Ok(());
            }
        }
    }

    /// An entry completed without a request.
    fn fail(&mut self, fd: types::Fd, entry: usize, errno: i32) -> Result<()> {
        let Some(&Entry { qid, .. }) = self.entries.get(entry) else { return Ok(()) };
        let alive = self.entries.iter().filter(|other| other.alive && other.qid == qid).count();
        let Some(state) = self.entries.get_mut(entry) else { return Ok(()) };
        if is_end(errno) {
            state.alive = false;
            return Ok(());
        }
        state.errors += 1;
        let error = std::io::Error::from_raw_os_error(errno);
        match after(errno, state.command, state.errors, alive.saturating_sub(1)) {
            After::Submit(command) => {
                tracing::debug!(%error, queue = qid, entry, "an entry of a ring is tried again");
                self.submit(fd, command, entry)
            }
            After::LeaveOut => {
                state.alive = false;
                tracing::warn!(%error, queue = qid, entry, "a ring goes on without one of its entries");
                Ok(())
            }
            After::End => Err(Error::Ring(error)),
        }
    }

    /// Serves the request that an entry holds.
    fn request<F: Filesystem>(&mut self, target: &Target<F>, entry: usize) {
        let answers = Arc::clone(&self.answers);
        // SAFETY: the entry completed, so that it is our turn, and nothing is written before it is answered.
        let head = unsafe { answers.memory.request_head(entry) };
        let length = usize::try_from(head.entry.payload_sz).unwrap_or(usize::MAX);
        if let Some(state) = self.entries.get_mut(entry) {
            state.commit_id = head.entry.commit_id;
            state.errors = 0;
            if state.used > KEPT && !state.resident {
                // The answer before was large.
                // SAFETY: as above; the request's own data is kept.
                unsafe { answers.memory.give_back(entry, length) };
                state.used = 0;
            }
            state.used = state.used.max(length);
        }
        // SAFETY: as above; a slot that is not empty writes nothing, `hand_in` is called when this has returned.
        let data = unsafe { answers.memory.request_data(entry, length) };
        let unique =
            InHeader::read_from_prefix(head.in_out.as_bytes()).map_or(0, |(header, _)| header.unique);
        let slot = Slot::new(Arc::clone(&self.answers), entry, unique, data.is_empty());
        let (header, fixed) = (head.in_out.as_bytes(), head.op_in.as_bytes());
        target.dispatch(Way::Ring(slot), Request::parse_parts(header, fixed, data));
    }

    /// Writes an answer into its entry.
    fn hand_in(&mut self, answer: Answer) {
        let Answer { entry, error, unique, body } = answer;
        let memory = &self.answers.memory;
        let length = match body {
            Body::InPlace(length) => length,
            Body::Apart(bytes) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                // SAFETY: the request's handler has returned, for it ran on this thread; it is our turn until the
                // submission that follows. That it fits was checked by the slot.
                unsafe { memory.put(entry, &[std::io::IoSlice::new(&bytes)]) };
                length
            }
        };
        // SAFETY: as above; only this thread uses heads.
        unsafe { memory.answer_head(entry, error, unique, length) };
        let Some(state) = self.entries.get_mut(entry) else { return };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if state.used > KEPT && !state.resident {
            if self.resident < RESIDENT {
                self.resident += 1;
                state.resident = true;
            } else {
                // SAFETY: as above; the answer is kept.
                unsafe { memory.give_back(entry, length) };
                state.used = 0;
            }
        }
        state.used = state.used.max(length);
    }

    /// Queues a command for an entry.
    fn submit(&mut self, fd: types::Fd, command: u32, entry: usize) -> Result<()> {
        let Some(state) = self.entries.get_mut(entry) else { return Ok(()) };
        state.command = command;
        let Entry { qid, commit_id, .. } = *state;
        let Some(vector) = self.answers.memory.vector(entry) else { return Ok(()) };
        let mut bytes = [0; 80];
        let wire = RingCommand { flags: 0, commit_id, qid, padding: [0; 6] };
        if let Some(space) = bytes.get_mut(..size_of::<RingCommand>()) {
            space.copy_from_slice(wire.as_bytes());
        }
        let address = vector.expose_provenance() as u64;
        let sqe = opcode::UringCmd80::new(fd, command).cmd(bytes).addr(Some(address)).build();
        self.push(with_length(sqe.user_data(entry as u64), 2))
    }

    /// Waits for other threads' answers.
    fn listen(&mut self) -> Result<()> {
        let event = types::Fd(self.answers.event().as_raw_fd());
        let read = opcode::Read::new(event, self.count.as_mut_ptr(), 8).build().user_data(WOKEN);
        self.push(read.into())
    }

    fn push(&mut self, sqe: Entry128) -> Result<()> {
        // SAFETY: what the submission points at (the entry's buffers and their addresses, the descriptors, the
        // count) lives as long as the ring.
        let pushed = unsafe { self.uring.submission().push(&sqe) };
        pushed.map_err(|_| Error::Ring(std::io::Error::other("its queue is full")))
    }
}

/// The submission with its length field set, for which the crate has no setter in commands.
fn with_length(mut sqe: Entry128, length: u32) -> Entry128 {
    /// Where `io_uring_sqe` has it.
    const AT: usize = 24;
    // SAFETY: an entry is the kernel's structure of 128 plain bytes (`repr(C)`), in which the length is an aligned
    // u32 at 24.
    unsafe { (&raw mut sqe).cast::<u8>().add(AT).cast::<u32>().write(length) };
    sqe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Memory;

    #[test]
    fn an_unexpected_completion_costs_no_more_than_its_entry() {
        let answers = Answers::new(Memory::new(3, 4096).unwrap()).unwrap();
        let mut server = match Server::new(Arc::new(answers), vec![0, 0, 1]) {
            Ok(server) => server,
            Err(error) => return println!("skipped: no io_uring: {error}"),
        };
        // Nothing is handed to the kernel.
        let fd = types::Fd(-1);
        let queued = |server: &mut Server| {
            server.uring = IoUring::builder().build(4).unwrap();
        };
        server.submit(fd, ring_command::COMMIT_AND_FETCH, 0).unwrap();
        server.fail(fd, 0, libc::ENOENT).unwrap();
        assert_eq!((server.entries[0].command, server.uring.submission().len()), (ring_command::REGISTER, 2));
        for _ in 0..3 {
            queued(&mut server);
            server.fail(fd, 0, libc::EINVAL).unwrap();
        }
        assert_eq!(server.uring.submission().len(), 0, "it is left out");
        let alive: Vec<_> = server.entries.iter().map(|entry| entry.alive).collect();
        assert_eq!(alive, [false, true, true]);
        // What is requested on the processor of the last one would wait for ever.
        server.fail(fd, 1, libc::EINVAL).unwrap();
        queued(&mut server);
        let ends = (0..4).find_map(|_| server.fail(fd, 1, libc::EINVAL).err());
        assert!(matches!(ends, Some(Error::Ring(_))));
        server.fail(fd, 2, libc::ENOTCONN).unwrap();
        assert!(!server.entries[2].alive);
    }
}
