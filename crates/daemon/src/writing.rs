//! Writes of the live tree.

use std::sync::Arc;

use silt_fs::{Context, Fs, WriteFlags};
use silt_fuse::ops::Write;
use silt_fuse::{Errno, NodeId, ReplyWrite};

use crate::changing::{Change, Takes, must_wait};
use crate::convert::ino;
use crate::core::Core;
use crate::notices::{Notice, attributes_changed};

/// Writes, now or when there is room, and answers.
pub fn write(
    core: &Arc<Core>,
    ctx: Context,
    node: NodeId,
    write: &Write<'_>,
    flags: WriteFlags,
    reply: ReplyWrite,
) {
    let (offset, mut takes) = (write.offset, Takes::data(write.data.len()));
    // What comes out of the page cache was answered long ago.
    let whose = (!write.cached).then_some(node);
    let shared = core.clone();
    let answer = move |result| match result {
        Ok((n, loses)) => {
            if loses {
                attributes_changed(shared.notifier.get(), node);
            }
            reply.written(u32::try_from(n).unwrap_or(u32::MAX));
        }
        Err(e) => {
            reply.error(e);
            // The kernel has it in its pages already, and would go on showing it.
            if matches!(e, Errno::EPERM | Errno::EROFS) {
                shared.tell([Notice::Content(node)]);
            }
        }
    };
    let put = move |fs: &mut Fs, data: &[u8]| {
        let loses = flags.kill_suidgid && fs.is_set_id(ino(node));
        fs.write(&ctx, ino(node), offset, data, flags).map(|n| ((n, loses), None))
    };
    let fs = core.fs.lock();
    takes.promised = fs.is_promised(ino(node), offset, write.data.len() as u64);
    if must_wait(core, &fs, takes) {
        drop(fs);
        let data = write.data.to_vec();
        let run = move |fs: &mut Fs| put(fs, &data);
        return Change { names: Vec::new(), node: whose, takes, run, answer, begun: false }.wait(core);
    }
    let run = |fs: &mut Fs| put(fs, write.data);
    let change = Change { names: Vec::new(), node: whose, takes, run, answer, begun: false };
    if let Some(undone) = change.attempt(core, fs) {
        // A write is done as a whole, and takes space.
        let Change { answer, .. } = undone.into_change();
        let data = write.data.to_vec();
        let run = move |fs: &mut Fs| put(fs, &data);
        Change { names: Vec::new(), node: whose, takes, run, answer, begun: false }.wait(core);
    }
}
