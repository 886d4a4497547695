//! FUSE over io_uring (Linux 6.14): a request wakes a thread on the processor it was made on, and one system
//! call hands in an answer and waits for the next request.
//!
//! ```text
//! processor 0: queue 0, 32 entries --- thread "ring-0" \
//! processor 1: queue 1, 32 entries --- thread "ring-1"  +--> handlers --> answers (any thread)
//! not there:   queue n, 1 entry    --- one of them     /
//! /dev/fuse itself: INIT, FORGET, INTERRUPT; notifications
//! ```
//!
//! The kernel wants a queue for every processor that could ever be there, and holds all requests back until it
//! has them: rings are set up before INIT is answered, so that what may fail has failed before.

mod after;
mod cpus;
mod server;

use crate::channel::Channel;
use crate::dispatch::Target;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::init::MAX_WRITE;
use crate::slot::{Answers, Memory};
use server::Server;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};

/// The kernel's switch of FUSE over io_uring: `Y` or `N`, for root to write.
pub const IO_URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// True if this kernel knows FUSE over io_uring and an administrator has switched it on (`Y` in
/// `/sys/module/fuse/parameters/enable_uring`). Then INIT offers [`InitFlags::OVER_IO_URING`].
///
/// [`InitFlags::OVER_IO_URING`]: crate::InitFlags::OVER_IO_URING
pub fn io_uring_is_on() -> bool {
    std::fs::read_to_string(IO_URING_SWITCH).is_ok_and(|text| text.trim() == "Y")
}

/// Requests of one processor under way together; more wait in the kernel.
const ENTRIES: usize = 32;

/// The rings of a session, set up and not yet known to the kernel.
pub(crate) struct Rings<'scope> {
    threads: Vec<Ring<'scope>>,
}

struct Ring<'scope> {
    answers: Arc<Answers>,
    go: mpsc::Sender<()>,
    thread: ScopedJoinHandle<'scope, ()>,
}

impl<'scope> Rings<'scope> {
    /// Starts a thread for every processor we may run on. `failed` is called if one of them cannot go on.
    pub(crate) fn prepare<'env, F: Filesystem>(
        scope: &'scope Scope<'scope, 'env>,
        target: &'env Target<F>,
        device: &'env Arc<Channel>,
        failed: &'env (dyn Fn() + Sync),
    ) -> Result<Self> {
        let mut rings = Self { threads: Vec::new() };
        for share in cpus::shares(ENTRIES).map_err(Error::Ring)? {
            let memory = Memory::new(share.queues.len(), MAX_WRITE as usize);
            let answers = memory.and_then(Answers::new).map_err(|e| Error::Ring(e.into()))?;
            let answers = Arc::new(answers);
            let (go, wait) = mpsc::channel::<()>();
            let (tell, ready) = mpsc::channel();
            let thread = {
                let answers = Arc::clone(&answers);
                let work = move || {
                    cpus::stay_on(share.cpu);
                    let server = Server::new(answers, share.queues);
                    let (server, told) = match server {
                        Ok(server) => (Some(server), Ok(())),
                        Err(error) => (None, Err(error)),
                    };
                    let _ = tell.send(told);
                    // No word means that it has come to nothing.
                    let (Some(server), Ok(())) = (server, wait.recv()) else { return };
                    // Without it what is requested on its processor would wait for ever.
                    match catch_unwind(AssertUnwindSafe(|| server.serve(target, device))) {
                        Ok(Ok(())) => return,
                        Ok(Err(error)) => tracing::error!(%error, "a ring stopped serving"),
                        Err(_) => tracing::error!("a ring stopped serving: internal error"),
                    }
                    failed();
                };
                let name = format!("ring-{}", share.cpu);
                std::thread::Builder::new().name(name).spawn_scoped(scope, work).map_err(Error::Thread)?
            };
            rings.threads.push(Ring { answers, go, thread });
            let died = || std::io::Error::other("its thread died");
            ready.recv().unwrap_or_else(|_| Err(died())).map_err(Error::Ring)?;
        }
        Ok(rings)
    }

    /// The kernel has heard that there are rings: they register.
    pub(crate) fn start(&self) {
        for ring in &self.threads {
            let _ = ring.go.send(());
        }
    }

    /// The connection has ended.
    pub(crate) fn end(self) {
        for Ring { answers, go, thread } in self.threads {
            answers.end();
            drop(go);
            let _ = thread.join();
        }
    }
}
