//! Short slices of the processor for the daemon's threads.
//!
//! Where other programs keep all processors busy, each thread on the way of a request waits for its turn: the one that takes it,
//! the log writer, whoever holds the lock. Linux gives a thread that asks for short slices its turn sooner, and no more of the
//! processor (6.12 and later; older ones take no notice). With it the slowest in a hundred syncs beside two such programs and the
//! cleaner waits a third as long (docs/cleaner-foreground.md).

/// The least that Linux grants, in nanoseconds.
const SLICE: u64 = 100_000;

/// Asks for them for this thread and those it will start. Only of the ordinary scheduler: who chose another one knows why.
pub fn ask() {
    let Some(mut attributes) = attributes() else { return };
    if !libc::c_int::try_from(attributes.sched_policy).is_ok_and(|p| p == libc::SCHED_OTHER) {
        return;
    }
    attributes.sched_runtime = SLICE;
    let this_thread: libc::c_long = 0;
    let flags: libc::c_long = 0;
    // SAFETY: the kernel only reads the struct, which says its own size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, flags) };
}

/// Those of this thread.
fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    let this_thread: libc::c_long = 0;
    let flags: libc::c_long = 0;
    // SAFETY: the kernel writes at most `size` bytes to a struct of that size.
    let got =
        unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, &raw mut attributes, size, flags) };
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_begun_later_have_them_too() {
        let of = |ask: bool| {
            let look = move || {
                if ask {
                    super::ask();
                }
                std::thread::spawn(attributes).join().unwrap()
            };
            std::thread::spawn(look).join().unwrap().map(|a| a.sched_runtime)
        };
        // Linux before 6.12 knows of none, and says 0.
        let known = of(false).is_some_and(|slice| slice > 0);
        assert_eq!(of(true).is_some_and(|slice| slice == SLICE), known);
    }
}
