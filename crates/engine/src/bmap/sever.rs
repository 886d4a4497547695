//! Taking the end of a map off, as a truncation does (spec 5.5).
//!
//! ```text
//!            root  [ a | b ]                 root  [ a ]          severed: b, d, f and what
//!                    /  \                            /            is below them
//!            [ c | d ]  ..        --->          [ c ]
//!              /  \                               /
//!        [ e | f ]  ..                        [ e ]               then mended: no only children
//! ```
//!
//! Only the nodes on the way to the cut are read and changed. What hangs below is no part of the map
//! any more and is walked later, in as many steps as one likes, with a stack of a node an entry deep:
//! damage there costs what is behind it and nothing else.

use silt_format::btree::{self, Node, node_capacity};
use silt_format::direct;

use super::change::{Step, with_mut};
use super::lookup::check_first_key;
use super::remove::{shrink, sibling, to_direct};
use super::{Nodes, Root};
use crate::block::Block;
use crate::{Error, Result};

/// A pointer that no map holds any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Severed {
    /// Level of the node it names; 0 for a data block.
    pub level: u8,
    /// The first key there.
    pub key: u64,
    pub ptr: u64,
}

/// Unmaps every key from `from` on. Pointers that lead there are added to `severed`, the first key
/// last, for [`unravel`]. Of what is damaged on the way only the part that cannot be read stays
/// mapped, and `damage` tells; other errors end it between two nodes. With `wait`, errors of the device do so, too: the same call
/// again goes on with it.
pub fn sever(
    root: &mut Root,
    nodes: &mut impl Nodes,
    from: u64,
    severed: &mut Vec<Severed>,
    damage: &mut Option<Error>,
    wait: bool,
) -> Result<()> {
    if !btree::is_btree(root) {
        for key in (from..direct::KEYS).rev() {
            let ptr = direct::get(root, key);
            if ptr != 0 {
                severed.push(Severed { level: 0, key, ptr });
                direct::set(root, key, 0);
            }
        }
        return Ok(());
    }
    for (ptr, keep) in path(root, nodes, from, damage, wait)? {
        let (level, tail) = with_mut(root, nodes, ptr, |n| (n.as_ref().level(), n.split_off(keep)))?;
        let level = level.saturating_sub(1);
        severed.extend(tail.into_iter().rev().map(|(key, ptr)| Severed { level, key, ptr }));
    }
    if Node::root(root).is_empty() {
        root.fill(0);
        return Ok(());
    }
    note(mend(root, nodes), damage, wait)?;
    to_direct(root);
    Ok(())
}

/// Keeps what is wrong on disk for telling; other errors are passed on, and those of the device where somebody waits.
fn note(result: Result<()>, damage: &mut Option<Error>, wait: bool) -> Result<()> {
    match result {
        Err(e @ Error::Device(_)) if wait => Err(e),
        Err(e @ (Error::Format { .. } | Error::Device(_))) => {
            damage.get_or_insert(e);
            Ok(())
        }
        other => other,
    }
}

/// The nodes on the way to `from` from the root (0) down, made writable, each with the number of its
/// entries that begin before `from`. Ends early at a node that cannot be read.
fn path(
    root: &mut Root,
    nodes: &mut impl Nodes,
    from: u64,
    damage: &mut Option<Error>,
    wait: bool,
) -> Result<Vec<(u64, usize)>> {
    let mut path = Vec::with_capacity(4);
    let mut here = 0;
    loop {
        let (level, keep, last) = with_mut(root, nodes, here, |n| {
            let n = n.as_ref();
            let keep = n.search(from).unwrap_or_else(|i| i);
            (n.level(), keep, keep.checked_sub(1).map(|i| (n.key(i), n.ptr(i))))
        })?;
        path.push((here, keep));
        let Some((key, child)) = last.filter(|_| level > 1) else { return Ok(path) };
        let readable = nodes.read(child, level - 1).and_then(|b| check_first_key(&b, key));
        let writable = readable
            .and_then(|()| sibling(root, nodes, Step { ptr: here, index: keep - 1 }, keep - 1, level - 1));
        match writable {
            Ok(new) => here = new,
            Err(e) => {
                note(Err(e), damage, wait)?;
                return Ok(path);
            }
        }
    }
}

/// Sees to it that no node above the leaves on the right edge has one child only, unless it is the
/// root's only one (spec 5.2).
fn mend(root: &mut Root, nodes: &mut impl Nodes) -> Result<()> {
    let capacity = node_capacity(nodes.block_size());
    'again: loop {
        shrink(root, nodes)?;
        let top = Node::root(root);
        let (mut here, mut level, mut len) = (0, top.level(), top.len());
        let Some(mut index) = len.checked_sub(1) else { return Ok(()) };
        while level > 2 {
            level -= 1;
            let child = with_mut(root, nodes, here, |n| n.as_ref().ptr(index))?;
            let children = Node::block(&nodes.read(child, level)?).len();
            let parent = Step { ptr: here, index };
            if children > 1 || len == 1 {
                here = sibling(root, nodes, parent, index, level)?;
                len = children;
                index = children.saturating_sub(1);
                continue;
            }
            let left = sibling(root, nodes, parent, index - 1, level)?;
            let only = sibling(root, nodes, parent, index, level)?;
            let rest = with_mut(root, nodes, only, |n| n.split_off(0))?;
            let full = with_mut(root, nodes, left, |n| n.as_ref().len())?;
            if full < capacity {
                with_mut(root, nodes, left, |n| n.extend(&rest))?;
                with_mut(root, nodes, here, |n| n.remove(index))?;
                nodes.discard(only, level)?;
            } else {
                let moved = with_mut(root, nodes, left, |n| n.split_off(full - 1))?;
                with_mut(root, nodes, only, |n| {
                    n.extend(&moved);
                    n.extend(&rest);
                })?;
                with_mut(root, nodes, here, |n| n.set_key(index, moved[0].0))?;
            }
            continue 'again;
        }
        return Ok(());
    }
}

/// Takes the next pointer from the stack that [`sever`] filled. A node ends, and what it points to
/// goes onto the stack; a data block is handed to `data`. `false` when nothing is left. After an
/// error of one pointer, which costs what is below it, go on; where that is of the device, the pointer is the next one again, and
/// who does not want to try it once more takes it off.
pub fn unravel<N: Nodes>(
    nodes: &mut N,
    severed: &mut Vec<Severed>,
    data: impl FnOnce(&mut N, u64) -> Result<()>,
) -> Result<bool> {
    let Some(next) = severed.pop() else { return Ok(false) };
    let Severed { level, ptr, .. } = next;
    let ended = if level == 0 { data(nodes, ptr).map(|()| None) } else { end(nodes, next).map(Some) };
    let block = match ended {
        Ok(Some(block)) => block,
        Ok(None) => return Ok(true),
        Err(e) => {
            if matches!(e, Error::Device(_)) {
                severed.push(next);
            }
            return Err(e);
        }
    };
    let node = Node::block(&block);
    let children = (0..node.len()).rev();
    severed.extend(children.map(|i| Severed { level: level - 1, key: node.key(i), ptr: node.ptr(i) }));
    Ok(true)
}

/// Ends a node that was severed; what it held. It ends before anything below it: on a damaged volume many may point here, and
/// only the first gets any further.
fn end(nodes: &mut impl Nodes, node: Severed) -> Result<Block> {
    let block = nodes.read(node.ptr, node.level)?;
    check_first_key(&block, node.key)?;
    nodes.end(node.ptr, node.level)?;
    Ok(block)
}
