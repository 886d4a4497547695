//! Nodes of block maps built anew from the summaries of logs.
//!
//! A node that lives from checkpoint s to e maps exactly those blocks of its file whose offsets are its own and
//! whose lives span s to e: when a child changes, so does the node. Which blocks a file has is in the summaries,
//! and how long they live in the DAT. So a lost node costs nothing as long as these are there.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use silt_format::btree::{Node, NodeMut, check_node, node_capacity};
use silt_format::dat::{DatEntry, LIVE};
use silt_format::summary::BlockInfo;
use silt_format::{Ino, SegNr, VBlockNr};

use super::bits::Bits;
use super::doubts::Unsure;
use super::mapped::Role;
use super::moves::Moved;
use crate::Result;
use crate::block::{self, Block};
use crate::meta::Physical;
use crate::store::Key;
use crate::volume::Volume;

/// Most rounds: a map has no more levels.
const ROUNDS: usize = 16;

/// A block that a log has for a file.
struct Candidate {
    v: u64,
    offset: Option<u64>,
    entry: DatEntry,
}

/// What became of the nodes that cannot be read.
#[derive(Default)]
pub(crate) struct Rebuilt {
    pub moved: Vec<Moved>,
    /// Those that stay lost.
    pub lost: Vec<(Ino, u64, Role)>,
    pub unsure: Unsure,
}

impl Volume {
    /// Builds every node anew that the current tree, the metadata or a checkpoint names and that cannot be read.
    /// They are found in memory from now on, and have to be moved.
    /// Those of `distrust` count as unreadable.
    pub(crate) fn rebuild_nodes(&mut self, mut distrust: Bits, end_of_log: (SegNr, u64)) -> Result<Rebuilt> {
        let mut out = Rebuilt::default();
        for _ in 0..ROUNDS {
            let broken = self.mappers_but(Bits::default(), distrust.clone()).broken;
            out.lost = broken.clone();
            let nodes: Vec<_> =
                broken.iter().filter(|(_, v, r)| *v != 0 && matches!(r, Role::Node(..))).collect();
            if nodes.is_empty() {
                break;
            }
            let mut files: HashMap<Ino, Vec<Candidate>> =
                nodes.iter().map(|(i, ..)| (*i, Vec::new())).collect();
            self.candidates(&mut files, end_of_log);
            let mut any = false;
            for (ino, v, role) in nodes {
                let (Role::Node(level, key, behind), Some(all)) = (*role, files.get(ino)) else { continue };
                let Ok(own) = self.dat.entry(&self.store, VBlockNr(*v)) else { continue };
                if let Some(bytes) = self.node_of(all, &own, level, key, behind) {
                    let node = Node::block(&bytes);
                    for i in (0..node.len()).filter(|_| level == 1) {
                        let current = own.end.get() == LIVE;
                        self.note_unsure(*ino, node.key(i), node.ptr(i), current, &mut out.unsure);
                    }
                    distrust.remove(*v);
                    self.store.forget(Key::Virtual(*v));
                    self.store.launch(Key::Virtual(*v), bytes.clone());
                    out.moved.push(Moved { v: *v, ino: *ino, offset: None, bytes });
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        Ok(out)
    }

    /// Fills in the blocks that logs have for these files, where the DAT agrees.
    fn candidates(&self, files: &mut HashMap<Ino, Vec<Candidate>>, end_of_log: (SegNr, u64)) {
        self.each_record(end_of_log, |_, p, at| {
            let Some(all) = files.get_mut(&p.ino) else { return };
            let (v, offset) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock.0, Some(offset)),
                BlockInfo::Node { vblock } => (vblock.0, None),
                _ => return,
            };
            let taken = self.dat.palloc.layout.check("DAT", v).is_ok()
                && self.dat.palloc.bit(&self.dat.file, &self.store, &Physical, v).unwrap_or(false);
            if taken
                && let Ok(entry) = self.dat.entry(&self.store, VBlockNr(v))
                && entry.blocknr.get() == at
            {
                all.push(Candidate { v, offset, entry });
            }
        });
    }

    fn node_of(
        &self,
        all: &[Candidate],
        own: &DatEntry,
        level: u8,
        key: u64,
        behind: Option<u64>,
    ) -> Option<Block> {
        let spans = |e: &DatEntry| e.start.get() <= own.start.get() && e.end.get() >= own.end.get();
        let inside = |k: u64| k >= key && behind.is_none_or(|b| k < b);
        let mut children: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for c in all.iter().filter(|c| spans(&c.entry)) {
            let first = match (level, c.offset) {
                (1, Some(offset)) => offset,
                (2.., None) => {
                    let Ok(b) = self.bytes_of(c.v) else { continue };
                    if check_node(&b, Some(level - 1)).is_err() {
                        continue;
                    }
                    Node::block(&b).key(0)
                }
                _ => continue,
            };
            if !inside(first) {
                continue;
            }
            let new = (c.entry.start.get(), c.v);
            match children.get(&first) {
                // Two of one place and time cannot both be right.
                Some((start, v)) if *start == new.0 && *v != new.1 => return None,
                // An old version whose end is not known any more seems to live on.
                Some(known) if *known >= new => {}
                _ => {
                    children.insert(first, new);
                }
            }
        }
        let bs = self.store.geometry.bs();
        if children.is_empty() || children.len() > node_capacity(bs) || !children.contains_key(&key) {
            return None;
        }
        let mut bytes = block::zeroed(bs);
        let mut node = NodeMut::block(block::writable(&mut bytes));
        node.init(level);
        for (i, (key, (_, v))) in children.iter().enumerate() {
            node.insert(i, *key, *v);
        }
        Some(bytes)
    }
}
