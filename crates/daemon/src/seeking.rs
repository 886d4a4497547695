//! Where data and holes of a file are (`SEEK_DATA`, `SEEK_HOLE`), as programs that map it see it.
//!
//! The kernel asks without having written what is dirty in shared mappings: here that may still be a hole. So where an
//! answer rests on a hole, the kernel is made to write what it has there first, and it is looked again.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use silt_engine::Tree;
use silt_format::Ino;
use silt_fs::{Fs, FsError, Seek};
use silt_fuse::{NodeId, Notifier, ReplyLseek};

use crate::changing::errno;
use crate::convert::ino;
use crate::core::Core;

/// A file may be written as fast as it is looked at: so many holes that were filled meanwhile are enough.
const HOLES: u32 = 16;

/// Looks from `offset` on in a tree and answers.
pub fn seek(core: &Arc<Core>, tree: Tree, node: NodeId, offset: u64, what: Seek, reply: ReplyLseek) {
    let (found, hole) = {
        let mut fs = core.fs.lock();
        let found = fs.seek(tree, ino(node), offset, what);
        let may_be_dirty = tree == Tree::Live && !core.options.read_only;
        let hole = may_be_dirty.then(|| hole(&mut fs, ino(node), offset, what, &found)).flatten();
        (found, hole)
    };
    let (Some(hole), Some(notifier)) = (hole, core.notifier.get().cloned()) else {
        return answer(core, tree, found, reply);
    };
    // On a thread of its own: the kernel writes what is dirty there, which this one has to take.
    let kept = Arc::new(Mutex::new(Some(reply)));
    let (its, shared) = (kept.clone(), core.clone());
    let look = move || {
        let again = after_writing(&shared, &notifier, node, offset, what, hole);
        if let Some(reply) = its.lock().take() {
            answer(&shared, tree, again, reply);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("seek".into()).spawn(look) {
        tracing::warn!("no thread to look for data that is not written: {e}");
        if let Some(reply) = kept.lock().take() {
            answer(core, tree, found, reply);
        }
    }
}

fn answer(core: &Core, tree: Tree, found: Result<u64, FsError>, reply: ReplyLseek) {
    match found {
        Ok(offset) => reply.offset(offset),
        Err(e) => reply.error(errno(core, tree, None, &e)),
    }
}

/// The hole that an answer rests on, in bytes; `None` where it rests on none.
fn hole(fs: &mut Fs, ino: Ino, offset: u64, what: Seek, found: &Result<u64, FsError>) -> Option<Range<u64>> {
    let size = fs.getattr(Tree::Live, ino).ok()?.size;
    let hole = match (what, found) {
        (Seek::Data, Ok(data)) => offset..*data,
        (Seek::Data, Err(FsError::NoData)) => offset..size,
        (Seek::Hole, Ok(hole)) => *hole..fs.seek(Tree::Live, ino, *hole, Seek::Data).unwrap_or(size),
        _ => return None,
    };
    (hole.start < hole.end).then_some(hole)
}

/// Looks again when what the kernel has in the hole found is written. A hole that is found behind it then was not
/// written yet, and the answer rests on that one.
fn after_writing(
    core: &Core,
    notifier: &Notifier,
    node: NodeId,
    offset: u64,
    what: Seek,
    mut rests_on: Range<u64>,
) -> Result<u64, FsError> {
    let mut holes = 0;
    loop {
        let start = i64::try_from(rests_on.start).unwrap_or(i64::MAX);
        let length = i64::try_from(rests_on.end - rests_on.start).unwrap_or(i64::MAX);
        if let Err(e) = notifier.inval_inode(node, start, length) {
            tracing::warn!("{e}");
        }
        holes += 1;
        let mut fs = core.fs.lock();
        let found = fs.seek(Tree::Live, ino(node), offset, what);
        match hole(&mut fs, ino(node), offset, what, &found) {
            Some(next) if next.start >= rests_on.end && holes < HOLES => rests_on = next,
            _ => return found,
        }
    }
}
