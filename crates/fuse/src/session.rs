//! A mounted file system and the loop that serves it.
//!
//! ```text
//! mount -> Session -> run: INIT, then n threads: read a request, call the handler -> unmounted -> destroy
//! ```
//!
//! Invariants: INIT is answered before any other request is looked at; `destroy` is called exactly once at
//! the end, also where the two sides did not agree; a request never ends the loop, only the end of the connection does. Each thread has
//! its own descriptor (where the kernel allows it) and one buffer. No locks.

use crate::abi::{InHeader, InitFlags, MIN_READ_BUFFER, WriteIn, opcode};
use crate::channel::Channel;
use crate::dispatch::Target;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::filesystem::{Destroy, Filesystem};
use crate::init::{self, MAX_WRITE, Negotiation};
use crate::mount::{self, MountOptions, Mounted, Place, Unmount, control};
use crate::notify::Notifier;
use crate::patience::Patience;
use crate::reply::{Raw, Way};
use crate::request::Request;
use crate::ring::Rings;
use crate::stop::Stop;
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was unmounted.
    Unmounted,
    /// Its connection was aborted. (An abort before the kernel and we agreed on the protocol looks like an
    /// unmount.)
    Aborted,
}

/// A mounted file system that is not served yet. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    // Before `mount`: the descriptor goes first, so that an unmount waits for nobody.
    channel: Arc<Channel>,
    mount: Option<MountGuard>,
}

impl Session {
    /// Mounts on a directory. Accesses to the mount wait until [`Self::run`].
    pub fn mount(path: &Path, options: &MountOptions) -> Result<Self> {
        let Mounted { fd, place } = mount::mount(path, options)?;
        let channel = Arc::new(Channel::new(fd));
        Ok(Self { channel, mount: Some(MountGuard { place }) })
    }

    /// A session on a descriptor that someone else mounted and will unmount.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { channel: Arc::new(Channel::new(fd)), mount: None }
    }

    /// Where it is mounted, absolute and without symbolic links.
    pub fn mount_point(&self) -> Option<&Path> {
        self.place().map(|place| place.path.as_path())
    }

    /// That, and what it is told from other mounts by.
    pub fn place(&self) -> Option<&Place> {
        self.mount.as_ref().map(|mount| &mount.place)
    }

    /// The kernel's number of what is mounted ([`crate::MountEntry::connection`]), where it could be found out.
    pub fn connection(&self) -> Option<u64> {
        self.place()?.connection
    }

    /// Sends notifications to the kernel, also while [`Self::run`] runs.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.channel)
    }

    /// Serves until unmounted or aborted, with `threads` threads of which the caller's is one (0 counts as
    /// 1). What is still mounted after an abort or an error is unmounted lazily.
    pub fn run<F: Filesystem>(self, fs: Arc<F>, threads: usize) -> Result<Ended> {
        self.run_until(fs, threads, Arc::new(Stop::new()), false)
    }

    /// With rings, and else where `may_stop`, it can be stopped.
    fn run_until<F: Filesystem>(
        mut self,
        fs: Arc<F>,
        threads: usize,
        stop: Arc<Stop>,
        may_stop: bool,
    ) -> Result<Ended> {
        let target = Target::new(fs);
        let mut buffer = Buffer::new();
        let failed = || {
            self.abort();
            // That may not have been possible.
            stop.stop();
        };
        let ended = std::thread::scope(|scope| {
            let prepare = || Rings::prepare(scope, &target, &self.channel, &failed);
            let rings = match self.negotiate(&target, &mut buffer, prepare)? {
                Agreed::Serve(rings) => rings,
                Agreed::End(ended) => return Ok(ended),
            };
            let stop = (may_stop || rings.is_some()).then_some(&*stop);
            let ended = self.serve(&target, &mut buffer, threads, stop);
            if let Some(rings) = rings {
                rings.end();
            }
            ended
        });
        if matches!(ended, Ok(Ended::Unmounted)) {
            self.disarm();
        }
        if !stop.is_stopped() {
            target.destroy(Destroy::Unasked);
            return ended;
        }
        // What no ring answers waits until nobody has `/dev/fuse` open. A block device stays the mount's until all is written.
        let mount = self.mount.take();
        drop(self);
        target.destroy(Destroy::Unasked);
        drop(mount);
        ended
    }

    /// As [`Self::run`] on a thread of its own.
    pub fn spawn<F: Filesystem>(self, fs: Arc<F>, threads: usize) -> Result<Running> {
        let place = self.place().cloned();
        let notifier = self.notifier();
        let thread = std::thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(move || self.run(fs, threads))
            .map_err(Error::Thread)?;
        Ok(Running { place, notifier, thread })
    }

    /// Answers INIT. `prepare` sets up rings.
    fn negotiate<'scope, F: Filesystem>(
        &self,
        target: &Target<F>,
        buffer: &mut Buffer,
        prepare: impl Fn() -> Result<Rings<'scope>>,
    ) -> Result<Agreed<'scope>> {
        loop {
            let bytes = match next(&self.channel, buffer, None)? {
                Next::Request(bytes) => bytes,
                Next::End(ended) => return Ok(Agreed::End(ended)),
            };
            let Ok(Request { header, body }) = Request::parse(bytes) else { continue };
            let raw = Raw::new(Way::Device(Arc::clone(&self.channel)), header.unique, header.opcode);
            if header.opcode != opcode::INIT {
                raw.error(Errno::EIO);
                continue;
            }
            match init::read(body) {
                Err(_) => raw.error(Errno::EPROTO),
                Ok(Negotiation::Again(out)) => raw.value(&out),
                Ok(Negotiation::TooOld { major, minor }) => {
                    raw.error(Errno::EPROTO);
                    return Err(Error::Version { major, minor });
                }
                Ok(Negotiation::Agreed(kernel)) => {
                    let mut config = init::propose(&kernel);
                    if let Err(errno) = target.fs().init(&kernel, &mut config) {
                        raw.error(errno);
                        return Err(Error::Init(errno));
                    }
                    let rings = config.wants_rings().then(&prepare).transpose().unwrap_or_else(|error| {
                        tracing::warn!("{error}; they go through /dev/fuse");
                        None
                    });
                    if rings.is_none() {
                        config.flags.remove(InitFlags::OVER_IO_URING);
                    }
                    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
                    let out = init::answer(&kernel, &config, page);
                    tracing::debug!(?kernel, ?out, "negotiated");
                    raw.value(&out);
                    if let Some(rings) = &rings {
                        target.fs().rings_begin();
                        rings.start();
                    }
                    return Ok(Agreed::Serve(rings));
                }
            }
        }
    }

    /// With `stop` where that may end it.
    fn serve<F: Filesystem>(
        &self,
        target: &Target<F>,
        buffer: &mut Buffer,
        threads: usize,
        stop: Option<&Stop>,
    ) -> Result<Ended> {
        let further = threads.max(1) - 1;
        std::thread::scope(|scope| {
            for number in 0..further {
                let channel = self.further_channel();
                let serve = move || {
                    if let Err(error) = serve(target, &channel, &mut Buffer::new(), stop) {
                        tracing::error!(%error, "a thread stopped serving");
                    }
                };
                let name = format!("fuse-{}", number + 1);
                if let Err(error) = std::thread::Builder::new().name(name).spawn_scoped(scope, serve) {
                    tracing::warn!(%error, "serving with fewer threads");
                }
            }
            let ended = serve(target, &self.channel, buffer, stop);
            if ended.is_err() {
                // The other threads wait in the kernel: only the end of the connection gets them out.
                self.abort();
                stop.iter().for_each(|stop| stop.stop());
            }
            ended
        })
    }

    /// A channel for a further thread: an own descriptor, or the common one where that is not allowed.
    fn further_channel(&self) -> Arc<Channel> {
        match self.channel.try_clone() {
            Ok(channel) => Arc::new(channel),
            Err(error) => {
                tracing::debug!(%error, "threads share a descriptor");
                Arc::clone(&self.channel)
            }
        }
    }

    /// The mount is gone. What is mounted in its place by now is another one, to which the kernel may have given
    /// the device number that this one had.
    fn disarm(&mut self) {
        if let Some(mount) = &mut self.mount {
            mount.place.connection = None;
        }
    }

    fn abort(&self) {
        if let Some(connection) = self.connection()
            && let Err(error) = control::abort(connection)
        {
            tracing::warn!(%error, "the connection could not be aborted");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Unmounting a connection that nobody serves would wait for an answer to DESTROY.
        if !self.channel.is_closed() && self.mount.as_ref().is_some_and(MountGuard::is_mounted) {
            self.abort();
        }
    }
}

/// Unmounts when dropped, if it is still the same mount.
#[derive(Debug)]
struct MountGuard {
    place: Place,
}

impl MountGuard {
    fn is_mounted(&self) -> bool {
        self.place.connection.is_some() && self.place.is_mounted()
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if self.is_mounted()
            && let Err(error) = self.place.unmount(Unmount::Lazy)
        {
            tracing::warn!(%error, "a mount was left behind");
        }
    }
}

/// A session that is served on a thread of its own.
#[derive(Debug)]
pub struct Running {
    place: Option<Place>,
    notifier: Notifier,
    thread: JoinHandle<Result<Ended>>,
}

impl Running {
    /// Where it is mounted.
    pub fn mount_point(&self) -> Option<&Path> {
        Some(&self.place.as_ref()?.path)
    }

    /// As [`Session::connection`].
    pub fn connection(&self) -> Option<u64> {
        self.place.as_ref()?.connection
    }

    /// Sends notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Unmounts; [`Self::join`] returns then. Where it was to be seen; what else is mounted there by now stays.
    pub fn unmount(&self, how: Unmount) -> Result<Option<PathBuf>> {
        let Some(place) = &self.place else { return Ok(None) };
        if self.is_finished() {
            // The kernel may have given its number to another one.
            return Err(Error::NotMounted(place.path.clone()));
        }
        place.unmount(how).map(Some)
    }

    /// True once it is no longer served.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it is unmounted and `destroy` has returned.
    pub fn join(self) -> Result<Ended> {
        let panicked = |_| Err(Error::Thread(std::io::Error::other("the serving thread panicked")));
        self.thread.join().unwrap_or_else(panicked)
    }
}

/// The buffer of a thread. Data of a WRITE begins on a page border in it.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    const ALIGNMENT: usize = 4096;
    /// Bytes before the data of a WRITE.
    const HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();
    /// What the kernel needs: the head and the largest write; some more for extensions.
    const LENGTH: usize = Self::HEAD + MAX_WRITE as usize + MIN_READ_BUFFER;

    fn new() -> Self {
        // Untouched pages of it take no memory.
        let bytes = vec![0; Self::LENGTH + 2 * Self::ALIGNMENT];
        let off = bytes.as_ptr().addr().wrapping_add(Self::HEAD) % Self::ALIGNMENT;
        Self { bytes, start: (Self::ALIGNMENT - off) % Self::ALIGNMENT }
    }

    fn space(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }
}

/// What came of INIT.
enum Agreed<'scope> {
    Serve(Option<Rings<'scope>>),
    End(Ended),
}

/// What reading the device brought.
enum Next<'a> {
    Request(&'a [u8]),
    End(Ended),
}

/// Waits for the next request, until stopped.
fn next<'a>(channel: &Channel, buffer: &'a mut Buffer, stop: Option<&Stop>) -> Result<Next<'a>> {
    let mut aborted = false;
    let length = loop {
        if stop.is_some_and(|stop| !stop.wait(channel)) {
            return Ok(Next::End(Ended::Aborted));
        }
        match channel.read(buffer.space()) {
            Ok(length) => break length,
            // A signal, or the request was taken back before we saw it.
            Err(Os::INTR | Os::NOENT) => {}
            Err(Os::AGAIN) if stop.is_some() => {}
            Err(Os::AGAIN) => channel.wait_readable(),
            Err(Os::NODEV) => return Ok(Next::End(Ended::Unmounted)),
            // An unmount that takes a request away while it is being read says this as well, but only once.
            Err(Os::CONNABORTED) if !aborted => aborted = true,
            Err(Os::CONNABORTED) => return Ok(Next::End(Ended::Aborted)),
            Err(error) => return Err(Error::Read(error.into())),
        }
    };
    Ok(Next::Request(buffer.space().get(..length).unwrap_or_default()))
}

/// Looks for the next request as long as there is patience; its length. Of all else it is not the place to judge.
fn look(channel: &Channel, buffer: &mut Buffer, patience: &mut Patience) -> Option<usize> {
    while patience.look(Instant::now()) {
        match channel.read(buffer.space()) {
            Ok(length) => return Some(length),
            Err(Os::AGAIN) => std::thread::yield_now(),
            Err(_) => return None,
        }
        patience.yielded(Instant::now());
    }
    None
}

/// Serves one channel to the end, or until stopped.
fn serve<F: Filesystem>(
    target: &Target<F>,
    channel: &Arc<Channel>,
    buffer: &mut Buffer,
    stop: Option<&Stop>,
) -> Result<Ended> {
    if stop.is_some()
        && let Err(error) = channel.never_block()
    {
        // Another thread may take what this one is woken for.
        tracing::warn!(%error, "a failing ring may not end the session");
    }
    let dispatch = |by: &Arc<Channel>, bytes: &[u8]| {
        target.dispatch(Way::Device(Arc::clone(by)), Request::parse(bytes));
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let quick = if processors > 1 { quick(channel) } else { None };
    let mut patience = Patience::new(quick.is_some(), processors);
    loop {
        if stop.is_some_and(Stop::is_stopped) {
            return Ok(Ended::Aborted);
        }
        patience.begin(Instant::now());
        let looked = quick.as_ref().and_then(|quick| Some((quick, look(quick, buffer, &mut patience)?)));
        if let Some((quick, length)) = looked {
            patience.came(Instant::now());
            dispatch(quick, buffer.space().get(..length).unwrap_or_default());
            continue;
        }
        match next(channel, buffer, stop)? {
            Next::Request(bytes) => {
                patience.came(Instant::now());
                dispatch(channel, bytes);
            }
            Next::End(ended) => return Ok(ended),
        }
    }
}

/// A further descriptor to look for requests with, where another processor can make them.
fn quick(channel: &Channel) -> Option<Arc<Channel>> {
    let quick = channel.try_clone().and_then(|quick| quick.never_block().map(|()| quick));
    quick.map(Arc::new).inspect_err(|error| tracing::debug!(%error, "requests are slept for")).ok()
}

#[cfg(test)]
mod tests;
