//! From the bytes of a request to the call of a method.
//!
//! Invariants: whatever the bytes are, nothing panics here; a request that wants an answer gets exactly one,
//! also when a handler panics (then EIO, through its dropped reply object).

mod operations;

use crate::abi::{ForgetIn, InterruptIn, opcode, opcode_name};
use crate::errno::Errno;
use crate::filesystem::{Destroy, Filesystem};
use crate::ops::{Context, Forgets};
use crate::reply::{Raw, ReplyInterrupt, Way};
use crate::request::{Malformed, Request};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file system of a session, and whether it was told the end.
pub(crate) struct Target<F> {
    fs: Arc<F>,
    destroyed: AtomicBool,
}

impl<F: Filesystem> Target<F> {
    pub(crate) fn new(fs: Arc<F>) -> Self {
        Self { fs, destroyed: AtomicBool::new(false) }
    }

    pub(crate) fn fs(&self) -> &F {
        &self.fs
    }

    /// Calls `destroy` unless that has happened.
    pub(crate) fn destroy(&self, how: Destroy) {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.guarded("DESTROY", || self.fs.destroy(how));
        }
    }

    /// Runs a handler; a panic ends there.
    fn guarded(&self, operation: &'static str, handler: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(handler)).is_err() {
            tracing::error!(operation, "a handler panicked");
            if catch_unwind(AssertUnwindSafe(|| self.fs.panicked(operation))).is_err() {
                tracing::error!(operation, "the handler of panics panicked");
            }
        }
    }

    /// Serves one request.
    pub(crate) fn dispatch(&self, way: Way, request: Result<Request<'_>, Malformed>) {
        let Ok(request) = request else {
            tracing::error!("a request without a valid header");
            return;
        };
        let code = request.header.opcode;
        let operation = opcode_name(code);
        tracing::trace!(operation, unique = request.header.unique, node = request.header.nodeid);
        self.guarded(operation, || {
            if self.route(way, request).is_err() {
                tracing::error!(operation, code, "a request that does not fit its operation");
            }
        });
    }

    /// Sorts out what wants no ordinary answer; the rest goes on to `operations`.
    fn route(&self, way: Way, request: Request<'_>) -> Result<(), Malformed> {
        let Request { header, mut body } = request;
        match header.opcode {
            // These three have no answer.
            opcode::FORGET => {
                let forget: ForgetIn = body.take()?;
                self.fs.forget(header.nodeid, forget.nlookup);
                return Ok(());
            }
            opcode::BATCH_FORGET => {
                let head: crate::abi::BatchForgetIn = body.take()?;
                self.fs.batch_forget(Forgets::new(head.count, body.remaining()));
                return Ok(());
            }
            opcode::NOTIFY_REPLY => return Ok(()),
            _ => {}
        }
        let raw = Raw::new(way, header.unique, header.opcode);
        let ctx =
            Context { unique: header.unique, uid: header.uid, gid: header.gid, pid: header.pid, umask: 0 };
        match header.opcode {
            opcode::INTERRUPT => {
                let reply = ReplyInterrupt::new(raw);
                let interrupt: InterruptIn = body.take()?;
                self.fs.interrupt(&ctx, interrupt.unique, reply);
            }
            opcode::DESTROY => {
                self.destroy(Destroy::Asked);
                raw.parts(&[]);
            }
            // Negotiation is over by now.
            opcode::INIT => raw.error(Errno::EIO),
            code => operations::call(self.fs(), code, header.nodeid, ctx, body, raw)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
