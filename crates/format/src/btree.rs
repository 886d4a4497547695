//! B-tree nodes and the 56-byte map root in an inode (spec 5.1).
//!
//! ```text
//! root in the inode:  flags(1) level(1) nchildren(2) pad(4)         | 3 keys  | 3 pointers
//! node block:         flags(1) level(1) nchildren(2) pad(4) pad(8)  | NC keys | NC pointers
//! ```
//!
//! Invariants that [`check_node`] and [`check_root`] establish and accessors rely on: the count is
//! within the capacity, keys ascend strictly, no pointer is 0.

use crate::{Error, Result};

/// Bytes of the map in an inode.
pub const ROOT_BYTES: usize = 56;
/// Children of a root.
pub const ROOT_CAPACITY: usize = 3;
/// Levels are below this.
pub const LEVEL_MAX: u8 = 14;
/// Bit 0 of the first byte: a B-tree root (as opposed to a direct map).
pub const FLAG_ROOT: u8 = 1;

const ROOT_HEADER: usize = 8;
const NODE_HEADER: usize = 16;

/// Most children of a node block of `block_size` bytes.
pub fn node_capacity(block_size: usize) -> usize {
    (block_size - NODE_HEADER) / 16
}

/// Fewest children that the deletion algorithm leaves in a node that is not the root.
pub fn node_minimum(block_size: usize) -> usize {
    (node_capacity(block_size) - 1) / 2 + 1
}

fn rd(b: &[u8], off: usize) -> u64 {
    match b.get(off..off + 8).and_then(|s| s.try_into().ok()) {
        Some(a) => u64::from_le_bytes(a),
        None => 0,
    }
}

fn wr(b: &mut [u8], off: usize, v: u64) {
    if let Some(s) = b.get_mut(off..off + 8) {
        s.copy_from_slice(&v.to_le_bytes());
    }
}

/// Read access to a node, block or root alike.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    b: &'a [u8],
    header: usize,
    cap: usize,
}

impl<'a> Node<'a> {
    /// A node block.
    pub fn block(b: &'a [u8]) -> Self {
        Node { b, header: NODE_HEADER, cap: node_capacity(b.len().max(NODE_HEADER)) }
    }

    /// The root in an inode.
    pub fn root(b: &'a [u8; ROOT_BYTES]) -> Self {
        Node { b, header: ROOT_HEADER, cap: ROOT_CAPACITY }
    }

    /// Level: 1 points to data.
    pub fn level(&self) -> u8 {
        self.b.get(1).copied().unwrap_or(0)
    }

    /// Number of children, never above the capacity.
    pub fn len(&self) -> usize {
        let n = match self.b.get(2..4) {
            Some(s) => usize::from(s[0]) | usize::from(s[1]) << 8,
            None => 0,
        };
        n.min(self.cap)
    }

    /// True for a root of an empty map.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Room for children.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Key `i`.
    pub fn key(&self, i: usize) -> u64 {
        rd(self.b, self.header + 8 * i)
    }

    /// Pointer `i`.
    pub fn ptr(&self, i: usize) -> u64 {
        rd(self.b, self.header + 8 * self.cap + 8 * i)
    }

    /// Binary search: `Ok(i)` where key `i` equals, `Err(i)` where it would be inserted.
    pub fn search(&self, key: u64) -> std::result::Result<usize, usize> {
        let (mut lo, mut hi) = (0, self.len());
        while lo < hi {
            let mid = (lo + hi) / 2;
            match self.key(mid).cmp(&key) {
                std::cmp::Ordering::Equal => return Ok(mid),
                std::cmp::Ordering::Less => lo = mid + 1,
                std::cmp::Ordering::Greater => hi = mid,
            }
        }
        Err(lo)
    }

    /// The child to descend into for `key` at levels above 1: the greatest key <= `key`, else 0.
    pub fn child_for(&self, key: u64) -> usize {
        match self.search(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }
}

/// Write access to a node. Callers keep the invariants of the module.
pub struct NodeMut<'a> {
    b: &'a mut [u8],
    header: usize,
    cap: usize,
}

impl<'a> NodeMut<'a> {
    /// A node block.
    pub fn block(b: &'a mut [u8]) -> Self {
        let cap = node_capacity(b.len().max(NODE_HEADER));
        NodeMut { b, header: NODE_HEADER, cap }
    }

    /// The root in an inode.
    pub fn root(b: &'a mut [u8; ROOT_BYTES]) -> Self {
        NodeMut { b, header: ROOT_HEADER, cap: ROOT_CAPACITY }
    }

    /// Read access.
    pub fn as_ref(&self) -> Node<'_> {
        Node { b: self.b, header: self.header, cap: self.cap }
    }

    /// Clears the node and sets its level; marks it a root where it is one.
    pub fn init(&mut self, level: u8) {
        self.b.fill(0);
        if self.header == ROOT_HEADER {
            self.b[0] = FLAG_ROOT;
        }
        self.set_level(level);
    }

    /// Sets the level.
    pub fn set_level(&mut self, level: u8) {
        if let Some(b) = self.b.get_mut(1) {
            *b = level;
        }
    }

    fn set_len(&mut self, n: usize) {
        let n = n.min(self.cap);
        if let Some(s) = self.b.get_mut(2..4) {
            // The capacity is at most 4095.
            s[0] = (n & 0xff) as u8;
            s[1] = ((n >> 8) & 0xff) as u8;
        }
    }

    /// Replaces key `i`.
    pub fn set_key(&mut self, i: usize, key: u64) {
        wr(self.b, self.header + 8 * i, key);
    }

    /// Replaces pointer `i`.
    pub fn set_ptr(&mut self, i: usize, ptr: u64) {
        wr(self.b, self.header + 8 * self.cap + 8 * i, ptr);
    }

    /// Inserts at `i`; the node must not be full.
    pub fn insert(&mut self, i: usize, key: u64, ptr: u64) {
        let n = self.as_ref().len();
        debug_assert!(n < self.cap && i <= n);
        if n >= self.cap || i > n {
            return;
        }
        let (k, p) = (self.header, self.header + 8 * self.cap);
        self.b.copy_within(k + 8 * i..k + 8 * n, k + 8 * (i + 1));
        self.b.copy_within(p + 8 * i..p + 8 * n, p + 8 * (i + 1));
        self.set_key(i, key);
        self.set_ptr(i, ptr);
        self.set_len(n + 1);
    }

    /// Removes entry `i` and returns it.
    pub fn remove(&mut self, i: usize) -> (u64, u64) {
        let n = self.as_ref().len();
        debug_assert!(i < n);
        if i >= n {
            return (0, 0);
        }
        let out = (self.as_ref().key(i), self.as_ref().ptr(i));
        let (k, p) = (self.header, self.header + 8 * self.cap);
        self.b.copy_within(k + 8 * (i + 1)..k + 8 * n, k + 8 * i);
        self.b.copy_within(p + 8 * (i + 1)..p + 8 * n, p + 8 * i);
        self.set_key(n - 1, 0);
        self.set_ptr(n - 1, 0);
        self.set_len(n - 1);
        out
    }

    /// Takes the entries from `at` on out of the node.
    pub fn split_off(&mut self, at: usize) -> Vec<(u64, u64)> {
        let n = self.as_ref().len();
        let out: Vec<_> = (at..n).map(|i| (self.as_ref().key(i), self.as_ref().ptr(i))).collect();
        for i in at..n {
            self.set_key(i, 0);
            self.set_ptr(i, 0);
        }
        self.set_len(at.min(n));
        out
    }

    /// Appends entries; there must be room.
    pub fn extend(&mut self, entries: &[(u64, u64)]) {
        let n = self.as_ref().len();
        debug_assert!(n + entries.len() <= self.cap);
        for (i, (k, p)) in entries.iter().enumerate().take(self.cap - n) {
            self.set_key(n + i, *k);
            self.set_ptr(n + i, *p);
        }
        self.set_len(n + entries.len());
    }
}

fn check_entries(what: &'static str, raw_len: usize, node: Node<'_>) -> Result<()> {
    if raw_len > node.cap {
        return Err(Error::corrupt(what, format!("{raw_len} children, {} fit", node.cap)));
    }
    for i in 0..node.len() {
        if node.ptr(i) == 0 {
            return Err(Error::corrupt(what, format!("pointer {i} is 0")));
        }
        if i > 0 && node.key(i) <= node.key(i - 1) {
            return Err(Error::corrupt(what, format!("keys do not ascend at {i}")));
        }
    }
    Ok(())
}

fn raw_len(b: &[u8]) -> usize {
    match b.get(2..4) {
        Some(s) => usize::from(s[0]) | usize::from(s[1]) << 8,
        None => 0,
    }
}

/// Checks a node block that should be at `level` (where known).
pub fn check_node(b: &[u8], level: Option<u8>) -> Result<()> {
    const WHAT: &str = "B-tree node";
    let node = Node::block(b);
    if b.len() < 1024 {
        return Err(Error::corrupt(WHAT, "short block"));
    }
    if b[0] & FLAG_ROOT != 0 {
        return Err(Error::corrupt(WHAT, "marked as a root"));
    }
    let found = node.level();
    if found == 0 || found >= LEVEL_MAX || level.is_some_and(|l| l != found) {
        let expected = level.map_or_else(|| format!("1 to {}", LEVEL_MAX - 1), |l| l.to_string());
        return Err(Error::corrupt(WHAT, format!("level {found} where {expected} is expected")));
    }
    if raw_len(b) == 0 {
        return Err(Error::corrupt(WHAT, "no children"));
    }
    check_entries(WHAT, raw_len(b), node)
}

/// Checks the B-tree root in an inode.
pub fn check_root(b: &[u8; ROOT_BYTES]) -> Result<()> {
    const WHAT: &str = "B-tree root";
    let node = Node::root(b);
    let level = node.level();
    if level == 0 || level >= LEVEL_MAX {
        return Err(Error::corrupt(WHAT, format!("level {level}")));
    }
    if raw_len(b) == 0 && level > 1 {
        return Err(Error::corrupt(WHAT, "no children"));
    }
    check_entries(WHAT, raw_len(b), node)
}

/// Whether the 56 bytes are a B-tree root (else a direct map).
pub fn is_btree(b: &[u8; ROOT_BYTES]) -> bool {
    b[0] & FLAG_ROOT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_those_of_the_specification() {
        let sizes = [1024, 2048, 4096, 8192, 16384, 32768, 65536];
        assert_eq!(sizes.map(node_capacity), [63, 127, 255, 511, 1023, 2047, 4095]);
        assert_eq!(sizes.map(node_minimum)[..3], [32, 64, 128]);
    }

    #[test]
    fn insert_remove_and_split_keep_order() {
        let mut block = vec![0u8; 1024];
        let mut node = NodeMut::block(&mut block);
        node.init(1);
        for k in [5u64, 1, 9, 3, 7] {
            let i = node.as_ref().search(k).unwrap_err();
            node.insert(i, k, k + 100);
        }
        let keys: Vec<_> = (0..5).map(|i| node.as_ref().key(i)).collect();
        assert_eq!(keys, [1, 3, 5, 7, 9]);
        assert_eq!(node.remove(2), (5, 105));
        assert_eq!(node.as_ref().child_for(6), 1);
        assert_eq!(node.as_ref().child_for(0), 0);
        let tail = node.split_off(2);
        assert_eq!(tail, [(7, 107), (9, 109)]);
        assert!(check_node(&block, Some(1)).is_ok());
    }

    #[test]
    fn bad_nodes_are_refused() {
        let good = || {
            let mut b = vec![0u8; 1024];
            let mut n = NodeMut::block(&mut b);
            n.init(2);
            n.extend(&[(1, 5), (2, 6)]);
            b
        };
        assert!(check_node(&good(), Some(2)).is_ok());
        assert!(check_node(&good(), Some(1)).is_err());
        let changes: [fn(&mut Vec<u8>); 6] =
            [|b| b[0] = 1, |b| b[1] = 14, |b| b[2] = 0, |b| b[2] = 64, |b| b[16] = 2, |b| b[16 + 63 * 8] = 0];
        for (i, c) in changes.iter().enumerate() {
            let mut b = good();
            c(&mut b);
            assert!(check_node(&b, None).is_err(), "case {i}");
        }
    }
}
