//! Ctrl-C during long work: the first one ends it at the next good place, the second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use silt_verify::{Unwatched, Watch};

use crate::{exit, own};

/// Passes on what a watcher is told, and asks for an end after Ctrl-C or SIGTERM.
pub struct Interruptible<W> {
    watch: W,
    stop: Arc<AtomicBool>,
}

impl<W: Watch> Interruptible<W> {
    /// From here on the signals are kept from ending the program, once.
    pub fn new(watch: W) -> Self {
        Self::with_code(watch, exit::INTERRUPTED)
    }

    /// The same; the second signal ends it with this exit code.
    pub fn with_code(watch: W, code: u8) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // Who had them ignored when the program began wants that: a shell does so with what runs in the background.
        let ignored = ignored();
        for signal in [SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            // Where a handler cannot be set the signal does what it always does.
            let code = i32::from(code);
            let _ = signal_hook::flag::register_conditional_shutdown(signal, code, stop.clone());
            let _ = signal_hook::flag::register(signal, stop.clone());
        }
        Interruptible { watch, stop }
    }
}

/// Signals that are ignored, the first in the lowest bit; none where the system does not tell.
fn ignored() -> u64 {
    own::status("SigIgn").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}

impl<W> Interruptible<W> {
    /// The watcher.
    pub fn inner(&self) -> &W {
        &self.watch
    }

    /// The same without the watcher.
    pub fn quiet(self) -> Interruptible<Unwatched> {
        Interruptible { watch: Unwatched, stop: self.stop }
    }
}

impl<W: Watch> Watch for Interruptible<W> {
    fn stage(&self, what: &'static str, total: u64) {
        self.watch.stage(what, total);
    }
    fn done(&self, units: u64) {
        self.watch.done(units);
    }
    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.watch.stop()
    }
}
