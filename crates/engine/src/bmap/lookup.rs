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

/// Entries of the children of the root: those few may be filled very differently, nodes further down hardly.
fn weights_of_root(top: Node<'_>, nodes: &impl ReadNodes) -> Vec<f64> {
    let level = top.level();
    let weight = |i: usize| match level {
        0 | 1 => 1,
        _ => nodes.read(top.ptr(i), level - 1).map_or(1, |b| Node::block(&b).len()),
    };
    (0..top.len()).map(|i| weight(i).max(1) as f64).collect()
}

/// How much of a node below the root lies in each of its children, in any unit: the last one is often filled less than the
/// others, for which the first stands.
struct Spread {
    each: f64,
    last: f64,
    end: usize,
}

impl Spread {
    fn of(node: Node<'_>, nodes: &impl ReadNodes) -> Self {
        let level = node.level();
        let read = |i| if level > 1 { nodes.read(node.ptr(i), level - 1).ok() } else { None };
        let weigh = |i| read(i).map_or(1, |b| Node::block(&b).len()).max(1) as f64;
        let end = node.len().saturating_sub(1);
        Spread { each: weigh(0), last: weigh(end), end }
    }

    fn all(&self) -> f64 {
        self.each * self.end as f64 + self.last
    }

    fn at(&self, index: usize) -> f64 {
        if index == self.end { self.last } else { self.each }
    }
}

/// About which part of the keys (0 to 1) is below `key`, told from the nodes on the way to it.
pub fn part_below(root: &Root, nodes: &impl ReadNodes, key: u64) -> Result<f64> {
    if !btree::is_btree(root) {
        let used = |end: u64| (0..end.min(direct::KEYS)).filter(|k| direct::get(root, *k) != 0).count();
        return Ok(used(key) as f64 / used(direct::KEYS).max(1) as f64);
    }
    let top = Node::root(root);
    let mut level = top.level();
    let weights = weights_of_root(top, nodes);
    let all = weights.iter().sum::<f64>().max(1.0);
    let begun = top.search(key).unwrap_or_else(|i| i);
    let Some(index) = begun.checked_sub(1) else { return Ok(0.0) };
    let before: f64 = weights.iter().take(index).sum();
    let (mut low, mut width) = (before / all, weights.get(index).map_or(0.0, |w| *w / all));
    let mut ptr = top.ptr(index);
    while level > 1 {
        level -= 1;
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        let begun = node.search(key).unwrap_or_else(|i| i);
        let Some(index) = begun.checked_sub(1) else { return Ok(low) };
        let spread = Spread::of(node, nodes);
        low += width * spread.each * index as f64 / spread.all();
        width *= spread.at(index) / spread.all();
        ptr = node.ptr(index);
    }
    Ok(low + width)
}

/// A key below which about this part of the keys (0 to 1) is, told from the nodes on the way to it. The inverse of [`part_below`].
pub fn key_at(root: &Root, nodes: &impl ReadNodes, part: f64) -> Result<u64> {
    let part = part.clamp(0.0, 1.0);
    if !btree::is_btree(root) {
        let used: Vec<u64> = (0..direct::KEYS).filter(|k| direct::get(root, *k) != 0).collect();
        let index = (part * used.len() as f64) as usize;
        return Ok(used.get(index).or(used.last()).copied().unwrap_or(0));
    }
    let top = Node::root(root);
    let mut level = top.level();
    if top.is_empty() {
        return Ok(0);
    }
    let weights = weights_of_root(top, nodes);
    let mut inside = part * weights.iter().sum::<f64>();
    let mut index = 0;
    for (i, weight) in weights.iter().enumerate() {
        index = i;
        if inside < *weight || i + 1 == weights.len() {
            inside = (inside / weight).min(1.0);
            break;
        }
        inside -= weight;
    }
    let (mut key, mut ptr) = (top.key(index), top.ptr(index));
    while level > 1 {
        level -= 1;
        let block = nodes.read(ptr, level)?;
        let node = Node::block(&block);
        if node.is_empty() {
            break;
        }
        let spread = Spread::of(node, nodes);
        let at = inside * spread.all();
        let index = ((at / spread.each) as usize).min(spread.end);
        inside = ((at - index as f64 * spread.each) / spread.at(index)).clamp(0.0, 1.0);
        (key, ptr) = (node.key(index), node.ptr(index));
    }
    Ok(key)
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
