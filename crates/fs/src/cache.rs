//! The indexes of directories in memory, within a bound.
//!
//! Replacement is by clock: an index in use gets a second chance. A directory whose index alone
//! does not fit is remembered as unfit, so that nobody builds it again and again. Invariant:
//! `bytes` is the sum of what the slots were charged with, at most `limit` after
//! [`IndexCache::settle`].

use std::collections::VecDeque;

use hashbrown::HashMap;
use silt_engine::Tree;

use crate::index::DirIndex;

/// A directory of a tree.
pub type Key = (Tree, u64);

/// Bytes a remembered unfit directory is charged with.
const UNFIT: usize = 96;

/// What is known of a directory.
pub enum Known {
    Index(Box<DirIndex>),
    /// Too large for an index; whether damage was met in it.
    Unfit {
        damaged: bool,
    },
}

struct Slot {
    known: Known,
    charged: usize,
    used: bool,
}

/// See the module.
pub struct IndexCache {
    slots: HashMap<Key, Slot>,
    ring: VecDeque<Key>,
    bytes: usize,
    limit: usize,
}

impl IndexCache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        IndexCache { slots: HashMap::new(), ring: VecDeque::new(), bytes: 0, limit }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is known of a directory; counts as a use.
    pub fn get(&mut self, key: Key) -> Option<&mut Known> {
        let slot = self.slots.get_mut(&key)?;
        slot.used = true;
        Some(&mut slot.known)
    }

    /// Keeps what is known of a directory.
    pub fn put(&mut self, key: Key, known: Known) {
        self.drop(key);
        self.slots.insert(key, Slot { known, charged: 0, used: false });
        // Keys of dropped slots stay in the ring: clear them out before they are most of it.
        if self.ring.len() > 2 * self.slots.len() + 64 {
            self.ring = self.slots.keys().copied().collect();
        } else {
            self.ring.push_back(key);
        }
        self.settle(key);
    }

    /// Forgets a directory.
    pub fn drop(&mut self, key: Key) {
        if let Some(slot) = self.slots.remove(&key) {
            self.bytes -= slot.charged;
        }
    }

    /// Charges an index that has changed and makes room for it.
    pub fn settle(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let now = match &slot.known {
            Known::Index(ix) => ix.bytes(),
            Known::Unfit { .. } => UNFIT,
        };
        if now == slot.charged {
            return;
        }
        self.bytes = self.bytes - slot.charged + now;
        slot.charged = now;
        if now > self.limit
            && let Known::Index(ix) = &slot.known
        {
            let damaged = ix.is_damaged();
            self.bytes = self.bytes - now + UNFIT;
            slot.charged = UNFIT;
            slot.known = Known::Unfit { damaged };
        }
        while self.bytes > self.limit {
            let Some(oldest) = self.ring.pop_front() else { break };
            let Some(slot) = self.slots.get_mut(&oldest) else { continue };
            if oldest == key {
                self.ring.push_back(oldest);
                if self.slots.len() == 1 {
                    break;
                }
            } else if slot.used {
                slot.used = false;
                self.ring.push_back(oldest);
            } else {
                self.drop(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(entries: u32) -> Known {
        let mut ix = DirIndex::new(4096);
        ix.push_chunk(0, 0);
        for i in 0..entries {
            ix.insert(i, 0, 0);
        }
        Known::Index(Box::new(ix))
    }

    #[test]
    fn stays_within_its_bound_and_keeps_what_is_used() {
        let mut cache = IndexCache::new(20_000);
        for i in 0..2000 {
            cache.put((Tree::Live, i), index(20));
            assert!(cache.get((Tree::Live, 0)).is_some(), "used all the time, still gone at {i}");
            assert!(cache.bytes() <= 20_000);
        }
        assert!(cache.get((Tree::Live, 1)).is_none());
        assert!(cache.get((Tree::Live, 1999)).is_some());
    }

    #[test]
    fn what_does_not_fit_is_known_to_be_unfit() {
        let mut cache = IndexCache::new(4000);
        cache.put((Tree::Past(3), 5), index(10_000));
        assert!(matches!(cache.get((Tree::Past(3), 5)), Some(Known::Unfit { damaged: false })));
        assert!(cache.bytes() <= 4000);
    }

    #[test]
    fn dropping_forgets_all_of_it() {
        let mut cache = IndexCache::new(1 << 30);
        for round in 0..1000 {
            cache.put((Tree::Live, round % 7), index(5));
            cache.drop((Tree::Live, round % 7));
        }
        assert_eq!(cache.bytes(), 0);
        assert!(cache.ring.len() < 200);
    }
}
