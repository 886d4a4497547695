//! Requests that are answered late, where the kernel has few open.
//!
//! Through `/dev/fuse` it has as many open as there are. With io_uring it puts what is asked on a processor into one of 32 entries
//! until that is answered, and all else that is asked there waits for one. The writes that come before an answer that rests on them
//! would wait for ever where such answers have all entries: so of those that wait for the kernel there are two times
//! [`crate::workers::ON_RINGS`] at most. Who waits for space keeps others of his processor waiting, but not for ever.

use std::sync::atomic::Ordering;

use crate::core::Core;

impl Core {
    /// Whether the kernel has few requests open at a time.
    pub fn has_rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, open};

    #[test]
    fn who_waits_for_the_kernel_is_one_of_few_on_rings() {
        let core = Core::new(open(Arc::new(mkfs_of(16 << 20, 64))), MountOptions::default());
        let seek = &core.beside.seek;
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let begin = || {
            let wait = wait.clone();
            seek.start(&core, Box::new(move |_| _ = wait.lock().recv()))
        };
        for rings in [true, false] {
            core.rings.store(rings, Ordering::Relaxed);
            let kept = (0..20).take_while(|_| seek.may_keep(&core) && begin()).count();
            assert_eq!(kept, if rings { crate::workers::ON_RINGS } else { 20 });
        }
        drop(go);
    }
}
