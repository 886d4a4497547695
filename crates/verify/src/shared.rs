//! Parts of maps that were found sound, so that what checkpoints share is walked once.
//!
//! A disk block says the same in whichever checkpoint it is met. What does depend on the checkpoint is whether the
//! blocks below it are alive in it: so each part comes with the checkpoints for which all of them are. Met again
//! within those it is left out; outside of them it is walked again, and the walk finds what is wrong.
//!
//! Memory: at most [`LIMIT`] parts of some 60 bytes, one a map node and one a block of the ifile.

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Parts that are remembered; more are walked again.
const LIMIT: usize = 1 << 21;

/// What lies below a block of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Data blocks.
    pub data: u64,
    /// Node blocks, without the one it begins with.
    pub nodes: u64,
    /// Greatest offset.
    pub greatest: Option<u64>,
    /// Of a block of the ifile, which of its inodes were in use: bitmaps tell, and damaged ones may differ.
    pub taken: u64,
    /// All blocks live in the checkpoints from `from` on,
    pub from: u64,
    /// up to but not including this one.
    pub to: u64,
}

impl Part {
    /// Nothing yet: lives always.
    pub const EMPTY: Part = Part { data: 0, nodes: 0, greatest: None, taken: 0, from: 0, to: u64::MAX };

    /// Adds a block with its lifetime.
    pub fn lives(&mut self, start: u64, end: u64) {
        self.from = self.from.max(start);
        self.to = self.to.min(end);
    }

    /// Something below is wrong: it must be walked, and told, wherever it is met.
    pub fn spoil(&mut self) {
        self.to = 0;
    }

    /// Whether it need not be walked in a checkpoint.
    fn holds_in(&self, cno: u64) -> bool {
        self.from <= cno && cno < self.to
    }

    /// Adds another part that lies in this one.
    pub fn add(&mut self, inner: &Part) {
        self.data = self.data.saturating_add(inner.data);
        self.nodes = self.nodes.saturating_add(inner.nodes);
        self.greatest = self.greatest.max(inner.greatest);
        self.lives(inner.from, inner.to);
    }
}

/// The parts, by the disk block they begin with. Locks are held only to look up and to store.
#[derive(Default)]
pub(crate) struct Shared {
    parts: Mutex<HashMap<u64, Part>>,
    /// What is found while something is tried that may come to nothing.
    held: Mutex<Option<Vec<(u64, Part)>>>,
}

impl Shared {
    /// What lies below a block, if it was found sound for this checkpoint.
    pub fn get(&self, block: u64, cno: u64) -> Option<Part> {
        self.parts.lock().get(&block).copied().filter(|part| part.holds_in(cno))
    }

    /// Tries something: parts are remembered only where it comes to something.
    pub fn attempt<T>(&self, f: impl FnOnce() -> Option<T>) -> Option<T> {
        *self.held.lock() = Some(Vec::new());
        let result = f();
        let held = self.held.lock().take().unwrap_or_default();
        if result.is_some() {
            held.into_iter().for_each(|(block, part)| self.put(block, part));
        }
        result
    }

    /// Remembers a part.
    pub fn put(&self, block: u64, part: Part) {
        if let Some(held) = &mut *self.held.lock() {
            if held.len() < LIMIT {
                held.push((block, part));
            }
            return;
        }
        let mut parts = self.parts.lock();
        if part.to != 0 && parts.len() < LIMIT {
            parts.insert(block, part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_holds_where_all_of_it_lives() {
        let shared = Shared::default();
        let mut part = Part::EMPTY;
        part.lives(3, 9);
        let mut inner = Part { data: 2, greatest: Some(7), ..Part::EMPTY };
        inner.lives(5, u64::MAX);
        part.add(&inner);
        shared.put(77, part);
        assert_eq!([4, 5, 8, 9].map(|cno| shared.get(77, cno).is_some()), [false, true, true, false]);
        assert_eq!(shared.get(77, 5).map(|p| (p.data, p.greatest)), Some((2, Some(7))));
        let put = |good: bool| {
            shared.put(79, part);
            good.then_some(())
        };
        assert_eq!(shared.attempt(|| put(false)), None);
        assert_eq!(shared.get(79, 5), None);
        assert_eq!(shared.attempt(|| put(true)), Some(()));
        assert!(shared.get(79, 5).is_some());
        part.spoil();
        shared.put(78, part);
        assert_eq!(shared.get(78, 5), None);
    }
}
