//! Inserting and replacing keys (spec 5.4, 5.6).

use silt_format::btree::{self, Node, NodeMut, node_capacity};
use silt_format::direct;

use super::lookup::Way;
use super::{Nodes, Root};
use crate::Result;

/// One level of a path from the root: the node there (0 = the root) and the index taken in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub ptr: u64,
    pub index: usize,
}

/// Makes every node on the way to `key` writable. The last step is the level-1 node, its index
/// where `key` is or would be; the flag tells which.
pub(super) fn descend(root: &mut Root, nodes: &mut impl Nodes, key: u64) -> Result<(Vec<Step>, bool)> {
    let mut steps = Vec::with_capacity(4);
    let top = Node::root(root);
    let mut level = top.level();
    if level <= 1 || top.is_empty() {
        let (index, found) = found(top.search(key));
        steps.push(Step { ptr: 0, index });
        return Ok((steps, found));
    }
    let mut index = top.child_for(key);
    let mut child = top.ptr(index);
    let mut way = Way::from(top, key);
    steps.push(Step { ptr: 0, index });
    loop {
        level -= 1;
        way.check(&nodes.read(child, level)?)?;
        let new = nodes.make_writable(child, level)?;
        if new != child {
            let parent = steps.last().map_or(0, |s: &Step| s.ptr);
            with_mut(root, nodes, parent, |n| n.set_ptr(index, new))?;
        }
        let node = Node::block(nodes.node_mut(new)?);
        if level <= 1 {
            let (index, found) = found(node.search(key));
            steps.push(Step { ptr: new, index });
            return Ok((steps, found));
        }
        index = node.child_for(key);
        child = node.ptr(index);
        way.step(node, key);
        steps.push(Step { ptr: new, index });
    }
}

fn found(r: std::result::Result<usize, usize>) -> (usize, bool) {
    match r {
        Ok(i) => (i, true),
        Err(i) => (i, false),
    }
}

/// Runs `f` on the node `ptr` (0 = the root), which must be writable.
pub(super) fn with_mut<T>(
    root: &mut Root,
    nodes: &mut impl Nodes,
    ptr: u64,
    f: impl FnOnce(&mut NodeMut<'_>) -> T,
) -> Result<T> {
    if ptr == 0 { Ok(f(&mut NodeMut::root(root))) } else { Ok(f(&mut NodeMut::block(nodes.node_mut(ptr)?))) }
}

/// Tells the ancestors of level `depth` that its first key is now `key`.
pub(super) fn first_key_changed(
    root: &mut Root,
    nodes: &mut impl Nodes,
    steps: &[Step],
    depth: usize,
    key: u64,
) -> Result<()> {
    for step in steps[..depth].iter().rev() {
        with_mut(root, nodes, step.ptr, |n| n.set_key(step.index, key))?;
        if step.index != 0 {
            break;
        }
    }
    Ok(())
}

/// Maps `key` to `ptr` (not 0) and returns the pointer it had before.
pub fn set(root: &mut Root, nodes: &mut impl Nodes, key: u64, ptr: u64) -> Result<Option<u64>> {
    if !btree::is_btree(root) {
        if key < direct::KEYS {
            let old = direct::get(root, key);
            direct::set(root, key, ptr);
            return Ok(Some(old).filter(|p| *p != 0));
        }
        to_btree(root, nodes)?;
    }
    let (mut steps, found) = descend(root, nodes, key)?;
    let last = steps[steps.len() - 1];
    if found {
        return with_mut(root, nodes, last.ptr, |n| {
            let old = n.as_ref().ptr(last.index);
            n.set_ptr(last.index, ptr);
            Some(old)
        });
    }
    insert(root, nodes, &mut steps, key, ptr)?;
    Ok(None)
}

/// The nodes that an insertion at the end of `steps` needs, made before anything is split, so that one that cannot be made leaves
/// the map as it was. The first is for the leaves.
fn new_nodes(root: &mut Root, nodes: &mut impl Nodes, steps: &[Step]) -> Result<Vec<u64>> {
    let capacity = node_capacity(nodes.block_size());
    let mut full = 0;
    for step in steps[1..].iter().rev() {
        if with_mut(root, nodes, step.ptr, |n| n.as_ref().len())? < capacity {
            break;
        }
        full += 1;
    }
    let top = Node::root(root);
    if full + 1 == steps.len() && top.len() == top.capacity() {
        if top.level() + 1 >= btree::LEVEL_MAX {
            return Err(crate::Error::Invalid("the block map cannot grow any higher".into()));
        }
        full += 1;
    }
    let mut new = Vec::with_capacity(full);
    for _ in 0..full {
        match nodes.create() {
            Ok(ptr) => new.push(ptr),
            Err(e) => {
                new.into_iter().try_for_each(|ptr| nodes.discard(ptr, 1))?;
                return Err(e);
            }
        }
    }
    Ok(new)
}

/// Inserts an entry at the end of `steps`, splitting upwards.
fn insert(root: &mut Root, nodes: &mut impl Nodes, steps: &mut [Step], key: u64, ptr: u64) -> Result<()> {
    let capacity = node_capacity(nodes.block_size());
    let (mut key, mut ptr) = (key, ptr);
    let mut depth = steps.len() - 1;
    // Whether everything right of the path is empty: then a file is being appended to, and a
    // split that moves next to nothing leaves full nodes behind.
    let mut rightmost = true;
    for s in &steps[..depth] {
        let len = with_mut(root, nodes, s.ptr, |n| n.as_ref().len())?;
        rightmost &= s.index + 1 == len;
    }
    let mut fresh = new_nodes(root, nodes, steps)?.into_iter();
    let lacks = || crate::Error::Invalid("a node is split that was not full".into());
    loop {
        let Step { ptr: here, index } = steps[depth];
        if depth == 0 {
            return insert_in_root(root, nodes, fresh.next(), index, key, ptr);
        }
        let len = with_mut(root, nodes, here, |n| n.as_ref().len())?;
        if len < capacity {
            with_mut(root, nodes, here, |n| n.insert(index, key, ptr))?;
            if index == 0 {
                first_key_changed(root, nodes, steps, depth, key)?;
            }
            return Ok(());
        }
        let new = fresh.next().ok_or_else(lacks)?;
        let level = with_mut(root, nodes, here, |n| n.as_ref().level())?;
        let keep = match level {
            _ if !rightmost || index < len => len / 2,
            // A leaf with one entry is fine; a node above with one child is not (spec 5.2).
            1 => len,
            _ => len - 1,
        };
        let tail = with_mut(root, nodes, here, |n| n.split_off(keep))?;
        with_mut(root, nodes, new, |n| {
            n.init(level);
            n.extend(&tail);
        })?;
        if index < keep || (index == keep && keep < len && keep > 0) {
            with_mut(root, nodes, here, |n| n.insert(index, key, ptr))?;
            if index == 0 {
                first_key_changed(root, nodes, steps, depth, key)?;
            }
        } else {
            with_mut(root, nodes, new, |n| n.insert(index - keep, key, ptr))?;
        }
        key = with_mut(root, nodes, new, |n| n.as_ref().key(0))?;
        ptr = new;
        depth -= 1;
        steps[depth].index += 1;
    }
}

/// `new`: a node for what the root holds, where that is full.
fn insert_in_root(
    root: &mut Root,
    nodes: &mut impl Nodes,
    new: Option<u64>,
    index: usize,
    key: u64,
    ptr: u64,
) -> Result<()> {
    let level = Node::root(root).level();
    let Some(new) = new else {
        NodeMut::root(root).insert(index, key, ptr);
        return Ok(());
    };
    let entries = NodeMut::root(root).split_off(0);
    let first = with_mut(root, nodes, new, |n| {
        n.init(level);
        n.extend(&entries);
        n.insert(index, key, ptr);
        n.as_ref().key(0)
    })?;
    let mut top = NodeMut::root(root);
    top.init(level + 1);
    top.insert(0, first, new);
    Ok(())
}

/// Turns a direct map into a B-tree with the same pointers.
fn to_btree(root: &mut Root, nodes: &mut impl Nodes) -> Result<()> {
    let entries: Vec<(u64, u64)> =
        (0..direct::KEYS).map(|k| (k, direct::get(root, k))).filter(|(_, p)| *p != 0).collect();
    // Room is left for the key that is about to be inserted.
    if entries.len() < btree::ROOT_CAPACITY {
        let mut top = NodeMut::root(root);
        top.init(1);
        top.extend(&entries);
        return Ok(());
    }
    let new = nodes.create()?;
    let mut node = NodeMut::block(nodes.node_mut(new)?);
    node.init(1);
    node.extend(&entries);
    let mut top = NodeMut::root(root);
    top.init(2);
    top.insert(0, entries[0].0, new);
    Ok(())
}
