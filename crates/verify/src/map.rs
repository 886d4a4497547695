//! Walks the block map of an inode, direct or B-tree (spec 5.1, 5.2), tolerant of what is wrong.
//!
//! Invariant of the walk: depth is bounded by the root's level; whether a node is read at all is
//! the visitor's decision, which must refuse a node it has seen before (that bounds the time).

use silt_format::btree::{self, LEVEL_MAX, Node, ROOT_BYTES, ROOT_CAPACITY};
use silt_format::direct;

use crate::invariants::{self as inv, Invariant};
use crate::reader::Block;

/// A node below the root, as its parent names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeRef {
    /// First key according to the parent.
    pub key: u64,
    /// Keys in it are below this; none: whatever can be.
    pub bound: Option<u64>,
    pub level: u8,
    pub ptr: u64,
}

/// What the walk calls.
pub(crate) trait Visitor {
    /// A node is reached: its bytes, or `None` to leave it out (the visitor has said why).
    fn node(&mut self, node: NodeRef) -> Option<Block>;
    /// Whether a sound node that was opened need not be walked: what is below it is known.
    fn known(&mut self, _node: NodeRef) -> bool {
        false
    }
    /// A node that was opened has been walked to its end.
    fn leave(&mut self, _node: NodeRef) {}
    /// A data block is reached; keys ascend over the whole walk.
    fn data(&mut self, key: u64, ptr: u64);
    /// Something is wrong in the root (`None`) or a node.
    fn bad(&mut self, invariant: &'static Invariant, node: Option<NodeRef>, what: String);
}

struct Level {
    block: Block,
    next: usize,
    len: usize,
    node: NodeRef,
}

/// Walks a whole map in the order of keys.
pub(crate) fn walk(root: &[u8; ROOT_BYTES], v: &mut impl Visitor) {
    if !btree::is_btree(root) {
        if root[0] != 0 {
            v.bad(&inv::DIRECT_MAP_FLAGS, None, format!("flags {:#x}", root[0]));
        }
        if root[1..8].iter().any(|b| *b != 0) {
            v.bad(&inv::DIRECT_MAP_HEADER, None, format!("header bytes {:?} are not zero", &root[1..8]));
        }
        for key in 0..direct::KEYS {
            match direct::get(root, key) {
                0 => {}
                ptr => v.data(key, ptr),
            }
        }
        return;
    }
    let node = Node::root(root);
    let level = node.level();
    if level == 0 || level >= LEVEL_MAX || root[0] != btree::FLAG_ROOT {
        v.bad(&inv::BTREE_ROOT, None, format!("flags {:#x}, level {level}", root[0]));
        if level == 0 || level >= LEVEL_MAX {
            return;
        }
    }
    let raw = usize::from(u16::from_le_bytes([root[2], root[3]]));
    if raw > ROOT_CAPACITY || (raw == 0 && level > 1) {
        v.bad(&inv::BTREE_ROOT, None, format!("{raw} children at level {level}"));
    }
    let mut last = None;
    for i in 0..node.len() {
        let bound = (i + 1 < node.len()).then(|| node.key(i + 1));
        let (key, ptr) = (node.key(i), node.ptr(i));
        if !entry_is_sound(v, None, &mut last, None, key, ptr) {
            continue;
        }
        if level == 1 {
            v.data(key, ptr);
        } else {
            descend(NodeRef { key, bound, level: level - 1, ptr }, node.len() == 1, v);
        }
    }
}

/// The pointer of one key; `read` gives a node's bytes. None where there is none, or the way to it makes no sense.
pub(crate) fn find(
    root: &[u8; ROOT_BYTES],
    key: u64,
    mut read: impl FnMut(u64) -> Option<Block>,
) -> Option<u64> {
    if !btree::is_btree(root) {
        return (key < direct::KEYS).then(|| direct::get(root, key)).filter(|ptr| *ptr != 0);
    }
    let step = |node: &Node<'_>| -> Option<u64> {
        let i = match node.search(key) {
            Ok(i) => i,
            Err(i) if node.level() > 1 => i.checked_sub(1)?,
            Err(_) => return None,
        };
        (i < node.len()).then(|| node.ptr(i)).filter(|ptr| *ptr != 0)
    };
    let node = Node::root(root);
    let mut level = node.level();
    if level == 0 || level >= LEVEL_MAX {
        return None;
    }
    let mut ptr = step(&node)?;
    while level > 1 {
        level -= 1;
        let block = read(ptr)?;
        let node = Node::block(&block);
        if node.level() != level {
            return None;
        }
        ptr = step(&node)?;
    }
    Some(ptr)
}

/// Order, bound and pointer of one entry.
fn entry_is_sound(
    v: &mut impl Visitor,
    at: Option<NodeRef>,
    last: &mut Option<u64>,
    bound: Option<u64>,
    key: u64,
    ptr: u64,
) -> bool {
    if last.is_some_and(|l| key <= l) {
        v.bad(&inv::BTREE_ORDER, at, format!("key {key} follows key {}", last.unwrap_or(0)));
        return false;
    }
    if bound.is_some_and(|b| key >= b) {
        let b = bound.unwrap_or(0);
        v.bad(&inv::BTREE_BOUND, at, format!("key {key} belongs to the node after, which begins at {b}"));
        return false;
    }
    *last = Some(key);
    if ptr == 0 {
        v.bad(&inv::BTREE_POINTER_ZERO, at, format!("key {key} has pointer 0"));
        return false;
    }
    true
}

/// Opens a node and checks its header; `None` if it cannot be walked.
fn open(node: NodeRef, only: bool, v: &mut impl Visitor) -> Option<Level> {
    let block = v.node(node)?;
    let level = look(node, block, only, v).filter(|_| !v.known(node));
    if level.is_none() {
        v.leave(node);
    }
    level
}

/// Checks the header of a node that was opened.
fn look(node: NodeRef, block: Block, only: bool, v: &mut impl Visitor) -> Option<Level> {
    let n = Node::block(&block);
    let raw = usize::from(u16::from_le_bytes([*block.get(2)?, *block.get(3)?]));
    if block.first().is_some_and(|f| *f != 0) {
        v.bad(&inv::BTREE_NODE_FLAGS, Some(node), format!("flags {:#x} are not 0", block[0]));
    }
    if n.level() != node.level {
        let found = n.level();
        v.bad(&inv::BTREE_LEVEL, Some(node), format!("level {found} where {} is expected", node.level));
        return None;
    }
    if raw == 0 || raw > n.capacity() {
        v.bad(&inv::BTREE_COUNT, Some(node), format!("{raw} children, 1 to {} fit", n.capacity()));
    }
    if n.is_empty() {
        return None;
    }
    if n.level() > 1 && raw == 1 && !only {
        v.bad(&inv::BTREE_ONLY_CHILD, Some(node), format!("level {} with one child", n.level()));
    }
    if n.key(0) != node.key {
        let found = n.key(0);
        v.bad(
            &inv::BTREE_PARENT_KEY,
            Some(node),
            format!("begins at key {found}, its parent says {}", node.key),
        );
    }
    let len = n.len();
    Some(Level { next: 0, len, node, block })
}

/// Walks a child of the root; `only`: it has no siblings.
fn descend(node: NodeRef, only: bool, v: &mut impl Visitor) {
    let mut stack: Vec<Level> = Vec::new();
    stack.extend(open(node, only, v));
    let mut lasts: Vec<Option<u64>> = vec![None];
    while let Some(top) = stack.last_mut() {
        let i = top.next;
        if i >= top.len {
            v.leave(top.node);
            stack.pop();
            lasts.pop();
            continue;
        }
        top.next += 1;
        let n = Node::block(&top.block);
        let (key, ptr) = (n.key(i), n.ptr(i));
        let bound = if i + 1 < top.len { Some(n.key(i + 1)) } else { top.node.bound };
        let (at, own_bound, level) = (top.node, top.node.bound, top.node.level);
        let mut last = lasts.pop().flatten();
        let sound = entry_is_sound(v, Some(at), &mut last, own_bound, key, ptr);
        lasts.push(last);
        if !sound {
            continue;
        }
        if level == 1 {
            v.data(key, ptr);
        } else if let Some(child) = open(NodeRef { key, bound, level: level - 1, ptr }, false, v) {
            stack.push(child);
            lasts.push(None);
        }
    }
}
