//! Finding keys.

use std::ops::ControlFlow;

use silt_format::btree::{self, Node};
use silt_format::direct;

use super::{ReadNodes, Root};
use crate::{Error, Result};

/// The pointer of `key`.
pub fn lookup(root: &Root, nodes: &impl ReadNodes, key: u64) -> Result<Option<u64>> {
    if !btree::is_btree(root) {
        return Ok(Some(direct::get(root, key)).filter(|p| *p != 0));
    }
    let top = Node::root(root);
    if top.level() == 1 {
        return Ok(top.search(key).ok().map(|i| top.ptr(i)));
    }
    if top.is_empty() {
        return Ok(None);
    }
    let mut ptr = top.ptr(top.child_for(key));
    let mut level = top.level() - 1;
    loop {
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        if level <= 1 {
            return Ok(node.search(key).ok().map(|i| node.ptr(i)));
        }
        ptr = node.ptr(node.child_for(key));
        level -= 1;
    }
}

/// The pointer to the node of `level` that holds `key`, where there is one with that level.
pub fn node_at(root: &Root, nodes: &impl ReadNodes, key: u64, level: u8) -> Result<Option<u64>> {
    let top = Node::root(root);
    if !btree::is_btree(root) || level == 0 || top.level() <= level || top.is_empty() {
        return Ok(None);
    }
    let mut ptr = top.ptr(top.child_for(key));
    for here in (level + 1..top.level()).rev() {
        let block = nodes.read(ptr, here)?;
        let node = Node::block(&block);
        ptr = node.ptr(node.child_for(key));
    }
    Ok(Some(ptr))
}

/// Calls `f` for every key from `from` on, ascending, until it breaks.
pub fn for_each(
    root: &Root,
    nodes: &impl ReadNodes,
    from: u64,
    mut f: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    if !btree::is_btree(root) {
        for key in from..direct::KEYS {
            let ptr = direct::get(root, key);
            if ptr != 0 && f(key, ptr).is_break() {
                break;
            }
        }
        return Ok(());
    }
    walk(Node::root(root), nodes, from, &mut f).map(|_| ())
}

fn walk(
    node: Node<'_>,
    nodes: &impl ReadNodes,
    from: u64,
    f: &mut impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let level = node.level();
    if level <= 1 {
        let start = node.search(from).unwrap_or_else(|i| i);
        for i in start..node.len() {
            if f(node.key(i), node.ptr(i)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        return Ok(ControlFlow::Continue(()));
    }
    if node.is_empty() {
        return Ok(ControlFlow::Continue(()));
    }
    for i in node.child_for(from)..node.len() {
        let block = nodes.read(node.ptr(i), level - 1)?;
        check_first_key(&block, node.key(i))?;
        if walk(Node::block(&block), nodes, from, f)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// A child begins with the key its parent knows it by (spec 5.2). Checked where whole trees are
/// walked: nodes that share children could otherwise be walked without end.
pub(super) fn check_first_key(child: &[u8], key: u64) -> Result<()> {
    let first = Node::block(child).key(0);
    if first == key {
        return Ok(());
    }
    Err(Error::corrupt("block map", "B-tree node", format!("begins with key {first}, its parent says {key}")))
}

/// The greatest key.
pub fn last_key(root: &Root, nodes: &impl ReadNodes) -> Result<Option<u64>> {
    if !btree::is_btree(root) {
        return Ok((0..direct::KEYS).rev().find(|k| direct::get(root, *k) != 0));
    }
    let top = Node::root(root);
    if top.is_empty() {
        return Ok(None);
    }
    let mut level = top.level();
    if level == 1 {
        return Ok(Some(top.key(top.len() - 1)));
    }
    let mut ptr = top.ptr(top.len() - 1);
    loop {
        level -= 1;
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        let last = node.len().saturating_sub(1);
        if level <= 1 {
            return Ok((!node.is_empty()).then(|| node.key(last)));
        }
        ptr = node.ptr(last);
    }
}
