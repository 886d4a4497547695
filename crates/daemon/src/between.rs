//! Changes that can only be made between two checkpoints: where one begins as the last one ends, whoever comes with such a
//! change would never be in time.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The log writer waits for them so long at most, once after each of its rounds: some may not come back.
const MOST: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct Between {
    waiting: Mutex<u32>,
    done: Condvar,
}

impl Between {
    /// One more waits, or is done.
    pub fn waits(&self, waits: bool) {
        let mut waiting = self.waiting.lock();
        *waiting = if waits { waiting.saturating_add(1) } else { waiting.saturating_sub(1) };
        self.done.notify_all();
    }

    /// For the log writer between two rounds: waits until nobody waits any more, or for [`MOST`]; whether nobody does.
    pub fn let_in(&self) -> bool {
        let until = Instant::now() + MOST;
        let mut waiting = self.waiting.lock();
        while *waiting > 0 && !self.done.wait_until(&mut waiting, until).timed_out() {}
        *waiting == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;

    #[test]
    fn who_waits_is_let_in_and_nobody_else_is_waited_for() {
        let between = Arc::new(Between::default());
        assert!(between.let_in(), "nobody waits");
        between.waits(true);
        between.waits(true);
        let begin = Instant::now();
        assert!(!between.let_in() && begin.elapsed() >= MOST, "two who do not come back");
        between.waits(false);
        assert!(!between.let_in(), "one is left");
        let other = between.clone();
        let comes = std::thread::spawn(move || {
            std::thread::sleep(3 * MOST);
            other.waits(false);
        });
        while !between.let_in() {}
        assert!(begin.elapsed() >= 3 * MOST, "before it came");
        comes.join().unwrap();
        assert!(between.let_in(), "all are done");
    }
}
