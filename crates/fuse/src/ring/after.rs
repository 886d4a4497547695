//! What becomes of an entry that the kernel gives back with an error.
//!
//! ```text
//! it may pass:               the same command again, with the answer that still lies there
//! all else:                  registered anew; the kernel has no request for it any more
//! several times in a row:    it is left out
//! the last one of a queue:   the ring ends, for what is requested on that processor would wait for ever
//! ```

use crate::abi::ring_command;

/// Errors in a row that an entry may meet.
const TRIES: u32 = 3;

/// What to do with the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Submit this command for it.
    Submit(u32),
    /// Go on without it.
    LeaveOut,
    /// The ring cannot go on.
    End,
}

/// Whether an error says that the connection has ended.
pub(super) fn is_end(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECANCELED | libc::ECONNABORTED)
}

/// What to do after `errors` errors in a row, the last of them this one, for `command`; `others` entries of its queue are left.
pub(super) fn after(errno: i32, command: u32, errors: u32, others: usize) -> After {
    if errors > TRIES {
        return if others > 0 { After::LeaveOut } else { After::End };
    }
    match errno {
        libc::EAGAIN | libc::EINTR | libc::EBUSY | libc::ENOMEM => After::Submit(command),
        _ => After::Submit(ring_command::REGISTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring_command::{COMMIT_AND_FETCH, REGISTER};

    #[test]
    fn one_error_ends_nothing() {
        for errno in 1..134 {
            for command in [REGISTER, COMMIT_AND_FETCH] {
                let then = after(errno, command, 1, 0);
                assert!(then == After::Submit(REGISTER) || then == After::Submit(command), "{errno}");
            }
        }
        assert_eq!(after(libc::ENOENT, COMMIT_AND_FETCH, 1, 0), After::Submit(REGISTER));
        // The answer is not lost.
        assert_eq!(after(libc::ENOMEM, COMMIT_AND_FETCH, 1, 0), After::Submit(COMMIT_AND_FETCH));
    }

    #[test]
    fn what_never_succeeds_is_left_out_as_long_as_its_queue_has_another() {
        let last = |others| {
            (1..10).map(|n| after(libc::EINVAL, REGISTER, n, others)).find(|a| *a != After::Submit(REGISTER))
        };
        assert_eq!(last(1), Some(After::LeaveOut));
        assert_eq!(last(0), Some(After::End));
    }
}
