//! What waits for a checkpoint, counted as it comes, so that it can be told cheaply what that checkpoint takes.

use std::collections::BTreeSet;

use silt_format::Geometry;

/// Inodes that changed, and what their changes may bring with them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    inodes: BTreeSet<u64>,
    /// Inodes a block of the inode file holds.
    per_block: u64,
    /// Blocks of the inode file that hold one of `inodes`.
    inode_blocks: u64,
    /// Leaves of block maps that changed data may hang from; from above.
    leaves: u64,
    /// Blocks whose life ends by cuts and deletions; from above.
    ending: u64,
}

impl Waiting {
    pub fn new(g: &Geometry) -> Self {
        Waiting { per_block: u64::from(g.block_size / g.inode_size.max(1)).max(1), ..Waiting::default() }
    }

    fn shares_block(&self, nr: u64) -> bool {
        let first = nr - nr % self.per_block;
        self.inodes.range(first..=first.saturating_add(self.per_block - 1)).next().is_some()
    }

    pub fn insert(&mut self, nr: u64) {
        let shares = self.shares_block(nr);
        if self.inodes.insert(nr) && !shares {
            self.inode_blocks += 1;
        }
    }

    pub fn remove(&mut self, nr: u64) {
        if self.inodes.remove(&nr) && !self.shares_block(nr) {
            self.inode_blocks -= 1;
        }
    }

    /// A leaf more than was known.
    pub fn leaf(&mut self) {
        self.leaves += 1;
    }

    /// So many blocks more end.
    pub fn ends(&mut self, blocks: u64) {
        self.ending = self.ending.saturating_add(blocks);
    }

    /// Everything is part of a checkpoint from now on; which inodes it were.
    pub fn take(&mut self) -> BTreeSet<u64> {
        (self.inode_blocks, self.leaves, self.ending) = (0, 0, 0);
        std::mem::take(&mut self.inodes)
    }

    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    pub fn inode_blocks(&self) -> u64 {
        self.inode_blocks
    }

    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    pub fn ending(&self) -> u64 {
        self.ending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_inodes_are_counted_once() {
        let mut w = Waiting { per_block: 32, ..Waiting::default() };
        for nr in [12, 31, 32, 33, 95, 96, 12] {
            w.insert(nr);
        }
        assert_eq!((w.len(), w.inode_blocks()), (6, 4));
        for (nr, left) in [(33, 4), (32, 3), (7, 3), (12, 3), (31, 2)] {
            w.remove(nr);
            assert_eq!(w.inode_blocks(), left, "{nr}");
        }
        w.ends(3);
        w.leaf();
        assert_eq!(w.take().len(), 2);
        assert_eq!((w.len(), w.inode_blocks(), w.leaves(), w.ending()), (0, 0, 0, 0));
    }
}
