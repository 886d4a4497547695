//! Threads for what takes long beside those that serve requests: few, however much is asked for at once. What they have no
//! turn for yet costs what its request does, and is answered with EIO where it is let go.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::Core;

/// What one of them does.
pub type Job = Box<dyn FnOnce(&Arc<Core>) + Send>;

/// Some threads of one name. They begin with what there is to do, and end when there is no more.
pub struct Workers(Arc<Inner>);

struct Inner {
    name: &'static str,
    /// How many there are at most.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Jobs that wait or are done just now.
    jobs: usize,
}

impl Workers {
    pub fn new(name: &'static str, most: usize) -> Self {
        Workers(Arc::new(Inner { name, most, state: Mutex::default() }))
    }

    /// Jobs that are done or wait for that.
    pub fn pending(&self) -> usize {
        self.0.state.lock().jobs
    }

    /// Whether a job may be given that keeps a request until the kernel has sent others, see [`crate::kept`].
    pub fn may_keep(&self, core: &Core) -> bool {
        !core.has_rings() || self.pending() < ON_RINGS
    }

    /// Has a job done, behind those that came before. Whether it will be: where there can be no thread it is let go.
    pub fn start(&self, core: &Arc<Core>, job: Job) -> bool {
        let begins = {
            let mut state = self.0.state.lock();
            state.waiting.push_back(job);
            state.jobs += 1;
            let begins = state.threads < self.0.most;
            state.threads += usize::from(begins);
            begins
        };
        if !begins {
            return true;
        }
        let (inner, core) = (self.0.clone(), core.clone());
        let run = move || {
            while let Some(job) = inner.next() {
                crate::defects::contain(&core, inner.name, || job(&core));
                inner.state.lock().jobs -= 1;
            }
        };
        match std::thread::Builder::new().name(self.0.name.into()).spawn(run) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!("no thread \"{}\": {e}", self.0.name);
                self.0.has_none()
            }
        }
    }
}

impl Inner {
    /// The next job; none ends the thread.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        let job = state.waiting.pop_front();
        state.threads -= usize::from(job.is_none());
        job
    }

    /// One could not be begun. Others come to what waits, if there are any; whether there are.
    fn has_none(&self) -> bool {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return true;
        }
        let left = std::mem::take(&mut state.waiting);
        state.jobs -= left.len();
        // What is let go answers, which takes locks.
        drop(state);
        drop(left);
        false
    }
}

/// Threads that wait for the kernel, which a program has many requests open to.
const ASKING: usize = 8;

/// Jobs of theirs that there may be where each has one of the few requests that the kernel has open.
pub const ON_RINGS: usize = ASKING / 2;

/// What a mount does beside its requests.
pub struct Beside {
    /// Looks for data and holes.
    pub seek: Workers,
    /// Has the kernel write what it has of a file that is to be fixed.
    pub flags: Workers,
    /// Pieces of long reservations: they need the lock, so one is as good as many.
    pub pieces: Workers,
    /// Reservations that wait for space.
    pub space: Workers,
}

impl Default for Beside {
    fn default() -> Self {
        Beside {
            seek: Workers::new("seek", ASKING),
            flags: Workers::new("flags", ASKING),
            pieces: Workers::new("fallocate", 1),
            space: Workers::new("fallocate", 1),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, open};

    #[test]
    fn they_are_few_and_take_turns() {
        let core = Core::new(open(Arc::new(mkfs_of(16 << 20, 64))), MountOptions::default());
        let workers = Workers::new("some", 3);
        let (tell, told) = channel();
        let at_work = Arc::new(AtomicUsize::new(0));
        for n in 0..100 {
            let (tell, at_work) = (tell.clone(), at_work.clone());
            let job = move |_: &Arc<Core>| {
                let others = at_work.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
                at_work.fetch_sub(1, Ordering::Relaxed);
                tell.send((n, others)).unwrap();
            };
            assert!(workers.start(&core, Box::new(job)));
        }
        let mut all: Vec<(usize, usize)> = (0..100).map(|_| told.recv().unwrap()).collect();
        assert!(all.iter().all(|(_, others)| *others < 3), "{all:?}");
        all.sort_unstable();
        assert!(all.iter().map(|(n, _)| *n).eq(0..100));
        // They end, and begin anew.
        while workers.0.state.lock().threads > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        workers.start(&core, Box::new(move |_| tell.send((7, 0)).unwrap()));
        assert_eq!(told.recv().unwrap(), (7, 0));
    }
}
