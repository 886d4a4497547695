//! What waits for a checkpoint, counted as it comes, so that it can be told cheaply what that checkpoint takes.

use std::collections::BTreeSet;

use silt_format::Geometry;

/// Nodes that change with what hangs from one leaf, or from two next to each other: these, and what is above them.
pub(crate) const PATH: u64 = 3;

/// Inodes that changed, and what their changes may bring with them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    inodes: BTreeSet<u64>,
    /// Inodes a block of the inode file holds.
    per_block: u64,
    /// Blocks of the inode file that hold one of `inodes`.
    inode_blocks: u64,
    /// Nodes of block maps that changed data may hang from; from above.
    paths: u64,
    /// Nodes on the ways to the ends of ranges that are cut away inside of files; from above.
    edges: u64,
    /// Nodes of block maps that changed with data that was synced alone.
    nodes: u64,
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

    /// A leaf more than was known, with so many nodes on the way to it, itself included.
    pub fn leaf(&mut self, nodes: u64) {
        self.paths = self.paths.saturating_add(nodes);
    }

    /// So many nodes more on the ways to ends of cuts.
    pub fn edges(&mut self, nodes: u64) {
        self.edges = self.edges.saturating_add(nodes);
    }

    /// So many nodes changed that no checkpoint holds, whatever becomes of the data below them.
    pub fn nodes(&mut self, more: u64) {
        self.nodes = self.nodes.saturating_add(more);
    }

    /// Nodes of block maps that a checkpoint with so many blocks of data, and so many leaves more, writes; from above.
    pub fn nodes_with(&self, data: u64, leaves: u64) -> u64 {
        let paths = self.paths.saturating_add(leaves.saturating_mul(PATH));
        data.saturating_mul(PATH).min(paths).saturating_add(self.edges).saturating_add(self.nodes)
    }

    /// So many blocks more end.
    pub fn ends(&mut self, blocks: u64) {
        self.ending = self.ending.saturating_add(blocks);
    }

    /// Everything is part of a checkpoint from now on; which inodes it were.
    pub fn take(&mut self) -> BTreeSet<u64> {
        (self.inode_blocks, self.paths, self.edges, self.nodes, self.ending) = (0, 0, 0, 0, 0);
        std::mem::take(&mut self.inodes)
    }

    /// The inodes that changed.
    pub fn inodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.inodes.iter().copied()
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
        w.leaf(1);
        w.leaf(2);
        assert_eq!((w.nodes_with(9, 0), w.nodes_with(9, 2), w.nodes_with(0, 2)), (3, 9, 0));
        w.edges(2);
        w.nodes(5);
        assert_eq!((w.nodes_with(9, 0), w.nodes_with(0, 0)), (10, 7));
        assert_eq!(w.take().len(), 2);
        assert_eq!((w.len(), w.inode_blocks(), w.nodes_with(1, 0), w.ending()), (0, 0, 0, 0));
    }
}
