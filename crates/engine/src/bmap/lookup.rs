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
    let mut way = Way::from(top, key);
    let mut level = top.level() - 1;
    loop {
        let block = nodes.read(way.ptr, level)?;
        way.check(&block)?;
        let node = Node::block(&block);
        if level <= 1 {
            return Ok(node.search(key).ok().map(|i| node.ptr(i)));
        }
        way.step(node, key);
        level -= 1;
    }
}

/// One step down a map: the child taken, and which keys its parents leave to it.
pub(super) struct Way {
    pub ptr: u64,
    first: u64,
    behind: Option<u64>,
}

impl Way {
    /// From the root, which has children.
    pub fn from(top: Node<'_>, key: u64) -> Self {
        let mut way = Way { ptr: 0, first: 0, behind: None };
        way.step(top, key);
        way
    }

    /// To the child of `node` that `key` belongs to.
    pub fn step(&mut self, node: Node<'_>, key: u64) {
        let i = node.child_for(key);
        self.ptr = node.ptr(i);
        self.first = node.key(i);
        if i + 1 < node.len() {
            self.behind = Some(node.key(i + 1));
        }
    }

    /// Whether the child's keys are those its parents say (spec 5.2): a node of another place, or one that
    /// was changed, is not taken for this one.
    pub fn check(&self, child: &[u8]) -> Result<()> {
        check_first_key(child, self.first)?;
        let node = Node::block(child);
        let last = node.key(node.len().saturating_sub(1));
        match self.behind {
            Some(behind) if last >= behind => {
                let what = format!("ends with key {last}, the next one begins with {behind}");
                Err(Error::corrupt("block map", "B-tree node", what))
            }
            _ => Ok(()),
        }
    }
}

/// The pointer to the node of `level` that holds `key`, where there is one with that level.
pub fn node_at(root: &Root, nodes: &impl ReadNodes, key: u64, level: u8) -> Result<Option<u64>> {
    let top = Node::root(root);
    if !btree::is_btree(root) || level == 0 || top.level() <= level || top.is_empty() {
        return Ok(None);
    }
    let mut way = Way::from(top, key);
    for here in (level + 1..top.level()).rev() {
        let block = nodes.read(way.ptr, here)?;
        way.check(&block)?;
        way.step(Node::block(&block), key);
    }
    Ok(Some(way.ptr))
}

/// Calls `f` for every key from `from` on, ascending, until it breaks.
pub fn for_each(
    root: &Root,
    nodes: &impl ReadNodes,
    from: u64,
    mut f: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    let mut wrong = None;
    for_each_sound(root, nodes, from, |seen| match seen {
        Seen::Entry(key, ptr) => f(key, ptr),
        Seen::Damage { error, .. } => {
            wrong = Some(error);
            ControlFlow::Break(())
        }
    });
    wrong.map_or(Ok(()), Err)
}

/// What [`for_each_sound`] meets.
#[derive(Debug)]
pub enum Seen {
    /// A key and its pointer.
    Entry(u64, u64),
    /// A node that cannot be read, and the first key that is known to be behind it, if any is.
    Damage { error: Error, behind: Option<u64> },
}

/// Calls `f` for every key from `from` on that can be read, ascending, and for every node that cannot,
/// until it breaks.
pub fn for_each_sound(
    root: &Root,
    nodes: &impl ReadNodes,
    from: u64,
    mut f: impl FnMut(Seen) -> ControlFlow<()>,
) {
    if !btree::is_btree(root) {
        for key in from..direct::KEYS {
            let ptr = direct::get(root, key);
            if ptr != 0 && f(Seen::Entry(key, ptr)).is_break() {
                break;
            }
        }
        return;
    }
    let _ = walk(Node::root(root), nodes, from, None, &mut f);
}

fn walk(
    node: Node<'_>,
    nodes: &impl ReadNodes,
    from: u64,
    behind: Option<u64>,
    f: &mut impl FnMut(Seen) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let level = node.level();
    if level <= 1 {
        let start = node.search(from).unwrap_or_else(|i| i);
        return (start..node.len()).try_for_each(|i| f(Seen::Entry(node.key(i), node.ptr(i))));
    }
    if node.is_empty() {
        return ControlFlow::Continue(());
    }
    let len = node.len();
    (node.child_for(from)..len).try_for_each(|i| {
        let behind = if i + 1 < len { Some(node.key(i + 1)) } else { behind };
        let read = nodes.read(node.ptr(i), level - 1);
        match read.and_then(|b| check_first_key(&b, node.key(i)).map(|()| b)) {
            Ok(block) => walk(Node::block(&block), nodes, from, behind, f),
            Err(error) => f(Seen::Damage { error, behind }),
        }
    })
}

/// About which part of the keys (0 to 1) is below `key`, told from the nodes on the way to it.
pub fn part_below(root: &Root, nodes: &impl ReadNodes, key: u64) -> Result<f64> {
    if !btree::is_btree(root) {
        let used = |end: u64| (0..end.min(direct::KEYS)).filter(|k| direct::get(root, *k) != 0).count();
        return Ok(used(key) as f64 / used(direct::KEYS).max(1) as f64);
    }
    let top = Node::root(root);
    let mut level = top.level();
    // The few children of the root may be filled very differently, those further down hardly.
    let weight = |i: usize| match level {
        0 | 1 => 1,
        _ => nodes.read(top.ptr(i), level - 1).map_or(1, |b| Node::block(&b).len()),
    };
    let weights: Vec<usize> = (0..top.len()).map(weight).collect();
    let all = weights.iter().sum::<usize>().max(1) as f64;
    let mut begun = top.search(key).unwrap_or_else(|i| i);
    let Some(mut index) = begun.checked_sub(1) else { return Ok(0.0) };
    let before: usize = weights.iter().take(index).sum();
    let (mut low, mut width) = (before as f64 / all, weights.get(index).map_or(0.0, |w| *w as f64 / all));
    let mut ptr = top.ptr(index);
    while level > 1 {
        level -= 1;
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        begun = node.search(key).unwrap_or_else(|i| i);
        let Some(last) = begun.checked_sub(1) else { return Ok(low) };
        index = last;
        // The last child is often filled less than the others: the first stands for those.
        let weigh = |i| if level > 1 { nodes.read(node.ptr(i), level - 1).ok() } else { None };
        let weigh = |i| weigh(i).map_or(1, |b| Node::block(&b).len()) as f64;
        let end = node.len().saturating_sub(1);
        let (each, least) = (weigh(0), weigh(end));
        let all = (each * end as f64 + least).max(1.0);
        low += width * each * index as f64 / all;
        width *= if index == end { least } else { each } / all;
        ptr = node.ptr(index);
    }
    Ok(low + width)
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
    last_key_to(root, nodes, u64::MAX)
}

/// The greatest key up to this one.
pub fn last_key_to(root: &Root, nodes: &impl ReadNodes, key: u64) -> Result<Option<u64>> {
    if !btree::is_btree(root) {
        let keys = 0..direct::KEYS.min(key.saturating_add(1));
        return Ok(keys.rev().find(|k| direct::get(root, *k) != 0));
    }
    // Behind the last entry that is not greater.
    let upto = |node: Node<'_>| node.search(key).map_or_else(|i| i, |i| i + 1).min(node.len());
    let top = Node::root(root);
    let mut level = top.level();
    let Some(mut last) = upto(top).checked_sub(1) else { return Ok(None) };
    if level <= 1 {
        return Ok(Some(top.key(last)));
    }
    let mut ptr = top.ptr(last);
    loop {
        level -= 1;
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        let Some(found) = upto(node).checked_sub(1) else { return Ok(None) };
        last = found;
        if level <= 1 {
            return Ok(Some(node.key(last)));
        }
        ptr = node.ptr(last);
    }
}
