//! Removing keys (spec 5.5, 5.6).

use silt_format::btree::{self, Node, NodeMut, node_minimum};
use silt_format::direct;

use super::change::{Step, descend, first_key_changed, with_mut};
use super::{Nodes, Root, lookup};
use crate::Result;

/// Unmaps `key` and returns the pointer it had. Nothing is touched where the key is absent; where something cannot be read, the
/// key stays mapped.
pub fn remove(root: &mut Root, nodes: &mut impl Nodes, key: u64) -> Result<Option<u64>> {
    if !btree::is_btree(root) {
        let old = direct::get(root, key);
        direct::set(root, key, 0);
        return Ok(Some(old).filter(|p| *p != 0));
    }
    if lookup(root, nodes, key)?.is_none() {
        return Ok(None);
    }
    let (mut steps, found) = descend(root, nodes, key)?;
    if !found {
        return Err(crate::Error::corrupt("block map", "B-tree node", "a key was found and lost"));
    }
    let last = steps[steps.len() - 1];
    let old = with_mut(root, nodes, last.ptr, |n| n.as_ref().ptr(last.index))?;
    have_siblings(root, nodes, &steps)?;
    remove_entry(root, nodes, &mut steps)?;
    shrink(root, nodes)?;
    to_direct(root);
    Ok(Some(old))
}

/// Makes those siblings writable that [`remove_entry`] moves entries from or to: once it has begun, nothing is to be read that
/// may fail.
fn have_siblings(root: &mut Root, nodes: &mut impl Nodes, steps: &[Step]) -> Result<()> {
    let minimum = node_minimum(nodes.block_size());
    for depth in (1..steps.len()).rev() {
        let (level, len) = with_mut(root, nodes, steps[depth].ptr, |n| {
            (n.as_ref().level(), n.as_ref().len().saturating_sub(1))
        })?;
        if len >= minimum {
            return Ok(());
        }
        let parent = steps[depth - 1];
        let siblings = with_mut(root, nodes, parent.ptr, |n| n.as_ref().len())?;
        let beside = match parent.index.checked_sub(1) {
            Some(left) => left,
            None if siblings > 1 => 1,
            None if len == 0 => continue,
            None => return Ok(()),
        };
        let beside = sibling(root, nodes, parent, beside, level)?;
        if with_mut(root, nodes, beside, |n| n.as_ref().len())? > minimum {
            return Ok(());
        }
    }
    Ok(())
}

/// Removes the entry at the end of `steps`, mending nodes that get too small.
fn remove_entry(root: &mut Root, nodes: &mut impl Nodes, steps: &mut [Step]) -> Result<()> {
    let minimum = node_minimum(nodes.block_size());
    let mut depth = steps.len() - 1;
    loop {
        let Step { ptr: here, index } = steps[depth];
        let (level, len, first) = with_mut(root, nodes, here, |n| {
            n.remove(index);
            (n.as_ref().level(), n.as_ref().len(), n.as_ref().key(0))
        })?;
        if depth == 0 {
            if len == 0 {
                NodeMut::root(root).init(1);
            }
            return Ok(());
        }
        if index == 0 && len > 0 {
            first_key_changed(root, nodes, steps, depth, first)?;
        }
        if len >= minimum {
            return Ok(());
        }
        let parent = steps[depth - 1];
        let siblings = with_mut(root, nodes, parent.ptr, |n| n.as_ref().len())?;
        if parent.index > 0 {
            let left = sibling(root, nodes, parent, parent.index - 1, level)?;
            let nl = with_mut(root, nodes, left, |n| n.as_ref().len())?;
            if nl > minimum {
                let keep = nl - ((len + nl) / 2 - len);
                let moved = with_mut(root, nodes, left, |n| n.split_off(keep))?;
                let rest = with_mut(root, nodes, here, |n| n.split_off(0))?;
                with_mut(root, nodes, here, |n| {
                    n.extend(&moved);
                    n.extend(&rest);
                })?;
                with_mut(root, nodes, parent.ptr, |n| n.set_key(parent.index, moved[0].0))?;
                return Ok(());
            }
            let rest = with_mut(root, nodes, here, |n| n.split_off(0))?;
            with_mut(root, nodes, left, |n| n.extend(&rest))?;
            nodes.discard(here, level)?;
        } else if parent.index + 1 < siblings {
            let right = sibling(root, nodes, parent, parent.index + 1, level)?;
            let nr = with_mut(root, nodes, right, |n| n.as_ref().len())?;
            let all = with_mut(root, nodes, right, |n| n.split_off(0))?;
            let take = if nr > minimum { (len + nr) / 2 - len } else { nr };
            let was_empty = len == 0;
            with_mut(root, nodes, here, |n| n.extend(&all[..take]))?;
            if was_empty && take > 0 {
                first_key_changed(root, nodes, steps, depth, all[0].0)?;
            }
            if take < nr {
                with_mut(root, nodes, right, |n| n.extend(&all[take..]))?;
                with_mut(root, nodes, parent.ptr, |n| n.set_key(parent.index + 1, all[take].0))?;
                return Ok(());
            }
            nodes.discard(right, level)?;
            steps[depth - 1].index += 1;
        } else if len == 0 {
            nodes.discard(here, level)?;
        } else {
            return Ok(());
        }
        depth -= 1;
    }
}

/// Makes child `index` of `parent` writable.
pub(super) fn sibling(
    root: &mut Root,
    nodes: &mut impl Nodes,
    parent: Step,
    index: usize,
    level: u8,
) -> Result<u64> {
    let ptr = with_mut(root, nodes, parent.ptr, |n| n.as_ref().ptr(index))?;
    let new = nodes.make_writable(ptr, level)?;
    if new != ptr {
        with_mut(root, nodes, parent.ptr, |n| n.set_ptr(index, new))?;
    }
    Ok(new)
}

/// Takes the only child of the root into the root while it fits there.
pub(super) fn shrink(root: &mut Root, nodes: &mut impl Nodes) -> Result<()> {
    loop {
        let top = Node::root(root);
        let level = top.level();
        if level <= 1 || top.len() != 1 {
            return Ok(());
        }
        let child = top.ptr(0);
        let entries = {
            let block = nodes.read(child, level - 1)?;
            let node = Node::block(&block);
            if node.len() > btree::ROOT_CAPACITY {
                return Ok(());
            }
            (0..node.len()).map(|i| (node.key(i), node.ptr(i))).collect::<Vec<_>>()
        };
        nodes.discard(child, level - 1)?;
        let mut top = NodeMut::root(root);
        top.init(level - 1);
        top.extend(&entries);
    }
}

/// A level-1 root with small keys only becomes a direct map.
pub(super) fn to_direct(root: &mut Root) {
    let top = Node::root(root);
    if top.level() != 1 || (!top.is_empty() && top.key(top.len() - 1) >= 3) {
        return;
    }
    let entries: Vec<_> = (0..top.len()).map(|i| (top.key(i), top.ptr(i))).collect();
    root.fill(0);
    for (key, ptr) in entries {
        direct::set(root, key, ptr);
    }
}
