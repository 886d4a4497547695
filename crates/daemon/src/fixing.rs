//! Files that were made immutable or append-only lately, and writes of them that are older than that.
//!
//! Before the flag is set the kernel is made to write what is dirty through mappings. Kernels that say a page is
//! written while its request still waits may send it afterwards: for a while such writes are taken.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use silt_fuse::NodeId;

use crate::kernel;

/// For how long older writes may come.
const LATE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Fixing {
    /// `None` where the kernel sends nothing late. The files, and until when something may come.
    until: Option<Mutex<HashMap<NodeId, Instant>>>,
}

impl Default for Fixing {
    fn default() -> Self {
        Fixing { until: kernel::says_written_early().then(Mutex::default) }
    }
}

impl Fixing {
    /// The flag is about to be set.
    pub fn begin(&self, node: NodeId) {
        if let Some(until) = &self.until {
            let now = Instant::now();
            let mut until = until.lock();
            until.retain(|_, end| now < *end);
            until.insert(node, now + LATE);
        }
    }

    /// Whether what the kernel writes out of its cache may be older than the flag.
    pub fn may_be_older(&self, node: NodeId) -> bool {
        let until = self.until.as_ref();
        until.is_some_and(|until| until.lock().get(&node).is_some_and(|end| Instant::now() < *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_the_kernel_needs_it_and_only_the_file_that_was_fixed() {
        let early = Fixing { until: Some(Mutex::default()) };
        assert!(!early.may_be_older(5));
        early.begin(5);
        assert!(early.may_be_older(5) && !early.may_be_older(6));
        let prompt = Fixing { until: None };
        prompt.begin(5);
        assert!(!prompt.may_be_older(5));
    }
}
