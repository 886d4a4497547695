//! Where data and holes of a file are (`SEEK_DATA`, `SEEK_HOLE`), as programs that map it see it.
//!
//! The kernel asks without having written what is dirty in shared mappings: here that may still be a hole. So where an
//! answer rests on a hole, the kernel is made to write what it has there first, and it is looked again.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use silt_engine::Tree;
use silt_format::Ino;
use silt_fs::{Fs, FsError, Seek, Sought};
use silt_fuse::{NodeId, Notifier, ReplyLseek};

use crate::changing::errno;
use crate::convert::ino;
use crate::core::Core;

/// A file may be written as fast as it is looked at: so many holes that were filled meanwhile are enough.
const HOLES: u32 = 16;

/// Blocks that are looked at under one hold of the lock: some 500 nodes, which may have to be read.
const LOOKED_AT: u64 = 1 << 16;

/// Looks from `offset` on, letting others go on meanwhile.
fn sought(core: &Core, tree: Tree, node: NodeId, offset: u64, what: Seek) -> Result<u64, FsError> {
    let mut from = offset;
    loop {
        let mut fs = core.fs.lock();
        let found = fs.seek_within(tree, ino(node), from, what, LOOKED_AT);
        MutexGuard::unlock_fair(fs);
        match found {
            Ok(Sought::At(found)) => return Ok(found),
            Ok(Sought::More(on)) => from = on,
            // It was cut meanwhile. Its end is a hole.
            Err(FsError::NoData) if from > offset => {
                let size = core.fs.lock().getattr(tree, ino(node))?.size;
                return if offset < size { Ok(size) } else { Err(FsError::NoData) };
            }
            Err(e) => return Err(e),
        }
    }
}

/// Looks from `offset` on in a tree and answers.
pub fn seek(core: &Arc<Core>, tree: Tree, node: NodeId, offset: u64, what: Seek, reply: ReplyLseek) {
    let (found, hole, data) = {
        let mut fs = core.fs.lock();
        let found = match fs.seek_within(tree, ino(node), offset, what, LOOKED_AT) {
            Ok(Sought::At(found)) => Ok(found),
            Ok(Sought::More(on)) => {
                let data = all_data(&mut fs, tree, node, offset, what);
                drop(fs);
                return seek_on(core, tree, node, on, what, data, reply);
            }
            Err(e) => Err(e),
        };
        let may_be_dirty = tree == Tree::Live && !core.options.read_only;
        let hole = may_be_dirty.then(|| hole(&mut fs, ino(node), offset, what, &found)).flatten();
        let data = if hole.is_some() { all_data(&mut fs, tree, node, offset, what) } else { Ok(offset) };
        (found, hole, data)
    };
    let (Some(hole), Some(notifier)) = (hole, core.notifier.get().cloned()) else {
        return answer(core, tree, found, reply);
    };
    // The kernel writes what is dirty there, which this thread has to take.
    apart(core, tree, reply, data, move |core| after_writing(core, &notifier, node, offset, what, hole));
}

/// What is true of any file: that all of it is data, up to the hole behind its end. Whoever copies it reads more, and misses
/// nothing.
fn all_data(fs: &mut Fs, tree: Tree, node: NodeId, offset: u64, what: Seek) -> Result<u64, FsError> {
    let size = fs.getattr(tree, ino(node))?.size;
    match what {
        _ if offset >= size => Err(FsError::NoData),
        Seek::Data => Ok(offset),
        Seek::Hole => Ok(size),
    }
}

/// Goes on looking from `offset` on, where all before is data; `or`: what is answered where nobody looks.
fn seek_on(
    core: &Arc<Core>,
    tree: Tree,
    node: NodeId,
    offset: u64,
    what: Seek,
    or: Result<u64, FsError>,
    reply: ReplyLseek,
) {
    let look = move |core: &Core| {
        let found = sought(core, tree, node, offset, what);
        let may_be_dirty = tree == Tree::Live && !core.options.read_only;
        let rests_on =
            may_be_dirty.then(|| hole(&mut core.fs.lock(), ino(node), offset, what, &found)).flatten();
        match (rests_on, core.notifier.get()) {
            (Some(rests_on), Some(notifier)) => after_writing(core, notifier, node, offset, what, rests_on),
            _ => found,
        }
    };
    apart(core, tree, reply, or, look);
}

/// Looks on another thread and answers; `or`: what is answered where there can be none, or no more requests may be kept.
fn apart(
    core: &Arc<Core>,
    tree: Tree,
    reply: ReplyLseek,
    or: Result<u64, FsError>,
    look: impl FnOnce(&Core) -> Result<u64, FsError> + Send + 'static,
) {
    if !core.beside.seek.may_keep(core) {
        return answer(core, tree, or, reply);
    }
    let kept = Arc::new(Mutex::new(Some(reply)));
    let its = kept.clone();
    let job = move |core: &Arc<Core>| {
        let found = look(core);
        if let Some(reply) = its.lock().take() {
            answer(core, tree, found, reply);
        }
    };
    if !core.beside.seek.start(core, Box::new(job))
        && let Some(reply) = kept.lock().take()
    {
        answer(core, tree, or, reply);
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
        let found = sought(core, Tree::Live, node, offset, what);
        match hole(&mut core.fs.lock(), ino(node), offset, what, &found) {
            Some(next) if next.start >= rests_on.end && holes < HOLES => rests_on = next,
            _ => return found,
        }
    }
}
