//! Telling the kernel that what it keeps is no longer so: one thread, and a set of what there is to tell.
//!
//! On a thread of its own: the kernel may hold locks of these names and files for a request that waits for us, and
//! writes what is dirty in a file before it drops its content, which the thread that serves requests has to take.
//! A set: a refused write may come for every page of a file, and one notice is enough for all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use silt_fuse::{NodeId, Notifier};

/// Something that the kernel is to ask for again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A name, and the attributes of its directory.
    Name(NodeId, Vec<u8>),
    /// The content of a file and its attributes.
    Content(NodeId),
    /// The attributes of a file alone.
    Attributes(NodeId),
}

/// Has the kernel ask for the attributes of a file again before the request that changed them is answered: it knows of
/// no change of the mode by a write, and would let others run what is no longer set-user-ID as if it were. Not by the
/// thread: the file is in use by that request, and the kernel takes no lock for a notice that leaves content alone.
pub fn attributes_changed(notifier: Option<&Notifier>, node: NodeId) {
    if let Some(Err(e)) = notifier.map(|n| n.inval_inode(node, -1, 0)) {
        tracing::warn!("{e}");
    }
}

#[derive(Default)]
struct State {
    pending: BTreeSet<Notice>,
    running: bool,
}

/// What is to be told.
#[derive(Default)]
pub struct Notices {
    state: Arc<Mutex<State>>,
}

impl Notices {
    /// Tells it soon.
    pub fn tell(&self, notifier: &Notifier, notices: impl IntoIterator<Item = Notice>) {
        let mut state = self.state.lock();
        state.pending.extend(notices);
        if state.running || state.pending.is_empty() {
            return;
        }
        let (shared, notifier) = (self.state.clone(), notifier.clone());
        match std::thread::Builder::new().name("notices".into()).spawn(move || run(&shared, &notifier)) {
            Ok(_) => state.running = true,
            // The next one tries again.
            Err(e) => tracing::warn!("no thread to tell the kernel of what changed: {e}"),
        }
    }
}

fn run(shared: &Mutex<State>, notifier: &Notifier) {
    loop {
        let next = {
            let mut state = shared.lock();
            let next = state.pending.pop_first();
            state.running = next.is_some();
            next
        };
        let told = match next {
            None => return,
            Some(Notice::Content(node)) => notifier.inval_inode(node, 0, 0),
            Some(Notice::Attributes(node)) => notifier.inval_inode(node, -1, 0),
            Some(Notice::Name(dir, name)) => {
                notifier.inval_inode(dir, -1, 0).and_then(|_| notifier.inval_entry(dir, &name))
            }
        };
        if let Err(e) = told {
            tracing::warn!("{e}");
        }
    }
}
