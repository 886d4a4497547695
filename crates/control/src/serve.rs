//! Serving requests in a daemon: one thread a connection, a bounded number of them, and no
//! connection holds the volume's lock while it reads or writes its socket.
//!
//! Locks: the count of connections, held for moments.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use silt_engine::{Guard, Volume};

use crate::execute::permit;
use crate::host::{Caller, Host, Wanted, with};
use crate::socket::{Listener, peer};
use crate::wire::{self, Ask, MAX_PART, MAX_REQUEST, Part, VERSION};
use crate::{ControlError, Kind, Request, execute};

/// Connections at once, and of one user; root's and the daemon's own user's do not count.
const MOST: usize = 64;
const MOST_OF_ONE: usize = 8;
/// How long a client may keep silent, and how long it may leave an answer unread.
const SILENCE: Duration = Duration::from_secs(300);
const UNREAD: Duration = Duration::from_secs(30);
/// For so long at most the end waits for the answers of those who asked for it.
const LAST: Duration = Duration::from_secs(2);
/// How often it is looked whether space is wanted that a check holds back, and how many times more often it must have been
/// than not until the check is let go.
const LOOK: Duration = Duration::from_millis(250);
const WANTED: u32 = 8;

/// Connections by user.
#[derive(Default)]
struct Guests(Mutex<HashMap<u32, usize>>);

impl Guests {
    fn enter(self: &Arc<Self>, uid: u32) -> Option<Guest> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = uid == 0 || uid == rustix::process::geteuid().as_raw();
        let total: usize = all.values().sum();
        let of_one = all.entry(uid).or_default();
        // Even those that do not count have an end: each is a thread.
        if (!free && (total >= MOST || *of_one >= MOST_OF_ONE)) || *of_one >= 4 * MOST {
            return None;
        }
        *of_one += 1;
        Some(Guest { guests: self.clone(), uid })
    }
}

struct Guest {
    guests: Arc<Guests>,
    uid: u32,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut all = self.guests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = all.get_mut(&self.uid) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

/// Answers to those who unmount: the process may end as soon as that is done, and they are to hear what came of it.
#[derive(Default)]
struct LastAnswers {
    open: Mutex<usize>,
    given: Condvar,
}

impl LastAnswers {
    fn begin(self: &Arc<Self>) -> LastAnswer {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        LastAnswer(self.clone())
    }

    fn wait(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.given.wait_timeout_while(open, LAST, |open| *open > 0));
    }
}

struct LastAnswer(Arc<LastAnswers>);

impl Drop for LastAnswer {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.given.notify_all();
    }
}

/// Serves until the listener's [`crate::socket::Stopper`] says so. Who unmounts has his answer on return, unless that takes long.
pub fn serve(listener: Listener, host: Arc<dyn Host + Send + Sync>) {
    let last = Arc::new(LastAnswers::default());
    accept(&listener, &host, &last);
    // Nobody finds it from here on.
    drop(listener);
    last.wait();
}

fn accept(listener: &Listener, host: &Arc<dyn Host + Send + Sync>, last: &Arc<LastAnswers>) {
    let guests = Arc::new(Guests::default());
    loop {
        let mut fds =
            [PollFd::new(&listener.socket, PollFlags::IN), PollFd::new(&listener.wake, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the control socket is of no more use");
                return;
            }
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.socket.accept() {
            Ok((stream, _)) => begin(stream, host, &guests, last),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                // Too many files are open: wait until some are not.
                tracing::warn!(%error, "a control connection could not be taken");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn begin(
    stream: UnixStream,
    host: &Arc<dyn Host + Send + Sync>,
    guests: &Arc<Guests>,
    last: &Arc<LastAnswers>,
) {
    let Ok((uid, pid)) = peer(&stream.as_fd()) else { return };
    // Accepted sockets do not inherit the listener's mode on Linux; say it all the same.
    let set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(SILENCE)));
    if set.and_then(|()| stream.set_write_timeout(Some(UNREAD))).is_err() {
        return;
    }
    let Some(guest) = guests.enter(uid) else {
        let error =
            ControlError::new(Kind::Busy, "too many commands are talking to the daemon").hint("try again");
        let _ = wire::send(&mut &stream, &Part::Failed(error), MAX_PART);
        return;
    };
    let (host, last) = (host.clone(), last.clone());
    let spawned = std::thread::Builder::new().name("control".into()).spawn(move || {
        let _guest = guest;
        if let Err(error) = converse(&stream, &*host, Caller { uid, pid }, &last) {
            tracing::debug!(%error, "a control connection ended");
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for a control connection");
    }
}

/// What is freed stays for somebody who reads the volume by himself.
struct Held {
    _guard: Guard,
    /// What checkpoints had rewritten when it began.
    since: u64,
    /// When it is looked next whether space is wanted.
    look: Instant,
    wanted: u32,
}

impl Held {
    fn new(volume: &Volume) -> Self {
        Held {
            _guard: volume.guard(),
            since: volume.rewritten_blocks(),
            look: Instant::now() + LOOK,
            wanted: 0,
        }
    }

    /// Looks whether others wait for space, where it is time; whether they have waited long enough.
    fn is_in_the_way(&mut self, host: &dyn Host, now: Instant) -> bool {
        if now >= self.look {
            self.look = now + LOOK;
            self.wanted = match host.wants_space(self.since) {
                Wanted::Not => self.wanted.saturating_sub(1),
                Wanted::Soon => self.wanted + 1,
                Wanted::AtOnce => WANTED,
            };
        }
        self.wanted >= WANTED
    }
}

/// Requests of a connection. While something is held for it, it is not only waited for them: one who is stopped or forgotten
/// must not keep the volume from being written.
struct Requests<'a> {
    stream: &'a UnixStream,
    host: &'a (dyn Host + Send + Sync),
    held: Option<Held>,
}

impl Requests<'_> {
    fn let_go(&mut self) {
        if self.held.take().is_some() {
            self.host.let_go();
        }
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Read for Requests<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some(held) = &mut self.held {
            let now = Instant::now();
            if held.is_in_the_way(self.host, now) {
                self.let_go();
                tracing::info!("a check of the mounted volume was let go: the space that it held was wanted");
                return Err(io::Error::new(io::ErrorKind::TimedOut, "let go"));
            }
            let left = held.look.saturating_duration_since(now);
            if wire::has_come(self.stream, left)? {
                break;
            }
        }
        let mut stream = self.stream;
        stream.read(bytes)
    }
}

/// Answers requests until the client is done.
fn converse(
    mut stream: &UnixStream,
    host: &(dyn Host + Send + Sync),
    caller: Caller,
    last_answers: &Arc<LastAnswers>,
) -> io::Result<()> {
    let mut requests = Requests { stream, host, held: None };
    while let Some(bytes) = wire::receive(&mut requests, MAX_REQUEST)? {
        let mut broken = None;
        // Until it is sent.
        let mut _unmounts = None;
        let result = match wire::decode::<Ask>(&bytes) {
            Ok(ask) if ask.version == VERSION => {
                _unmounts = matches!(ask.request, Request::Unmount(_)).then(|| last_answers.begin());
                // Who wants to know where the log is reads it by himself: what is freed from now on stays till he is gone, or
                // others want its place. It is asked first whether he may: what is freed would stay for anybody else.
                let is_new = requests.held.is_none()
                    && matches!(ask.request, Request::LatestLog)
                    && permit(host, &caller, &ask.request).is_ok();
                if is_new {
                    requests.held = with(host, |volume| Held::new(volume)).ok();
                }
                let result = execute(host, &caller, ask.request, &mut |part| {
                    wire::send(&mut stream, &Part::Item(part), MAX_PART).map_err(|e| {
                        let error = ControlError::io("the answer could not be sent", &e);
                        broken = Some(e);
                        error
                    })
                });
                if is_new && result.is_err() {
                    requests.let_go();
                }
                result
            }
            Ok(_) | Err(_) => Err(ControlError::new(
                Kind::Unavailable,
                "the daemon does not know this request: it is of another version",
            )
            .hint("unmount and mount the volume again with this version")),
        };
        if let Some(e) = broken {
            return Err(e);
        }
        let last = match result {
            Ok(()) => Part::End,
            Err(error) => Part::Failed(error),
        };
        wire::send(&mut stream, &last, MAX_PART)?;
    }
    Ok(())
}
