//! What a construction, or a pass over the DAT, reads next, told beforehand, so that nobody waits for the medium while it has
//! the volume's lock.
//!
//! Of what is deleted each node of its map is read once, to end the blocks below it. In a tree of files nobody has read before these
//! lie behind the data of the files in groups, and on volumes written otherwise between it, each for itself.

use std::ops::ControlFlow;

use silt_format::btree::{self, Node};
use silt_format::{BlockNr, VBlockNr};

use crate::bmap;
use crate::construct::{Construction, Stage};
use crate::meta::{NodeReader, Physical};
use crate::store::Key;
use crate::volume::Volume;

/// Files that are looked at, and nodes that are told of, at a time.
const AHEAD: usize = 256;
/// So many nodes are remembered as told of.
const REMEMBERED: usize = 4096;

impl Volume {
    /// Where nodes lie that [`Volume::step`] reads before long, ascending, each told of once: whoever calls it may have them
    /// brought into a cache of the device without the lock. Bounded: what is told at once, and the work. What cannot be told
    /// of is left out.
    pub fn reads_ahead(&mut self) -> Vec<BlockNr> {
        let Some(mut k) = self.construction.take() else { return Vec::new() };
        let mut nodes = Vec::new();
        self.of_what_was_severed(&k, &mut nodes);
        self.of_files_to_come(&mut k, &mut nodes);
        if k.told.len() > REMEMBERED {
            k.told.clear();
        }
        nodes.retain(|v| k.told.insert(*v));
        let mut places: Vec<BlockNr> = nodes.into_iter().filter_map(|v| self.place_of_node(v)).collect();
        self.construction = Some(k);
        places.sort_unstable();
        places
    }

    /// Where blocks of the DAT lie that a pass over it reads from its block `from` on, `most` at most, and that are not in
    /// memory, ascending; for the same use. Reads nodes of its map, each of which leads to many.
    pub fn dat_ahead(&self, from: u64, most: usize) -> Vec<BlockNr> {
        let map = &self.dat.file.map;
        let reader = NodeReader { nodes: &map.nodes, store: &self.store, resolve: &Physical };
        let (mut left, mut places) = (most, Vec::new());
        let walked = bmap::for_each(&map.root, &reader, from, |key, ptr| {
            let is_in_memory =
                self.dat.file.data.contains_key(&key) || self.store.cached(Key::Physical(ptr)).is_some();
            if !is_in_memory && self.store.geometry.holds(BlockNr(ptr)) {
                places.push(BlockNr(ptr));
            }
            left = left.saturating_sub(1);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        // Whoever reads it tells what is wrong with it.
        if walked.is_err() {
            return Vec::new();
        }
        places.sort_unstable();
        places
    }

    /// What hangs off the map of the file at work: the last comes first.
    fn of_what_was_severed(&self, k: &Construction, nodes: &mut Vec<u64>) {
        let next = k.severed.iter().rev().take(AHEAD);
        nodes.extend(next.filter(|s| s.level > 0).map(|s| s.ptr));
    }

    /// What hangs off the roots of files that are deleted, or emptied, soon.
    fn of_files_to_come(&self, k: &mut Construction, nodes: &mut Vec<u64>) {
        let begun = usize::from(!matches!(k.stage, Stage::Cuts { from: 0 }));
        let done = k.all.len().saturating_sub(k.files.len()) + begun;
        let end = (done + AHEAD).min(k.all.len());
        let from = k.looked_at.max(done);
        // Many at once, so that those who read them can have them in the order they lie in.
        if from >= end || (end < k.all.len() && end - from < AHEAD / 2) {
            return;
        }
        k.looked_at = from;
        for nr in k.all.get(from..end).unwrap_or_default() {
            if nodes.len() >= 2 * AHEAD {
                return;
            }
            k.looked_at += 1;
            let Some(inode) = self.inodes.get(nr) else { continue };
            let goes = inode.frozen.as_ref().is_some_and(|f| f.deleted || f.over.emptied);
            if goes && btree::is_btree(&inode.map.root) {
                let root = Node::root(&inode.map.root);
                let children = (0..root.len()).map(|i| root.ptr(i));
                nodes.extend(children.filter(|ptr| !inode.map.nodes.contains_key(ptr)));
            }
        }
    }

    /// Where a node lies that is not in memory.
    fn place_of_node(&self, v: u64) -> Option<BlockNr> {
        let is_in_memory = self.store.cached(Key::Virtual(v)).is_some() || self.store.parts.contains(v);
        let entry = (!is_in_memory).then(|| self.dat.entry(&self.store, VBlockNr(v)))?;
        let at = BlockNr(entry.ok()?.blocknr.get());
        self.store.geometry.holds(at).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use silt_device::{Capabilities, Device, Kind, MemoryDevice, Result};
    use silt_format::{BlockNr, Ino};

    use crate::construct::Step;
    use crate::fresh::fresh;
    use crate::{OpenOptions, Tree, Volume};

    /// Tells which nodes were read of it.
    struct Told(Arc<MemoryDevice>, Mutex<BTreeSet<u64>>);

    impl Device for Told {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buf)
        }
        fn read_kind(&self, kind: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
            if kind == Kind::Maps {
                self.1.lock().unwrap().insert(offset / 4096);
            }
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
            self.0.write_at(offset, bufs)
        }
        fn flush(&self) -> Result<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.0.discard(offset, len)
        }
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
    }

    #[test]
    fn every_node_that_deletions_read_is_told_of_before_and_once() {
        let (device, mut v) = fresh(128 << 20, 64);
        let mut attr = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
        attr.mode = 0o100_644;
        // Files with a node each, with none, and one with several levels of them; some stay.
        let files: Vec<Ino> = (0..700).map(|_| v.create_inode(attr.clone()).unwrap()).collect();
        for (n, ino) in files.iter().enumerate() {
            let blocks = if n == 350 { 3000 } else { 10 * (n as u64 % 2) };
            (0..blocks).for_each(|key| v.write_block(*ino, key, vec![7; 4096].into()).unwrap());
        }
        v.checkpoint(3000).unwrap();
        drop(v);
        let told = Arc::new(Told(device, Mutex::default()));
        let options = OpenOptions { now: 4000, cache_bytes: 16 << 20, ..OpenOptions::default() };
        let (mut v, _) = Volume::open(told.clone(), &options).unwrap();
        v.take_over(4000).unwrap();
        assert!(v.reads_ahead().is_empty(), "nothing is made");
        files[..650].iter().for_each(|ino| v.delete_inode(*ino).unwrap());
        v.write_block(files[651], 3, vec![8; 4096].into()).unwrap();
        assert!(v.begin_checkpoint(5000).unwrap());
        told.1.lock().unwrap().clear();
        let (mut known, mut asked) = (BTreeSet::new(), 0);
        loop {
            let ahead = v.reads_ahead();
            assert!(ahead.is_sorted() && ahead.len() <= 1024, "{ahead:?}");
            asked += ahead.len();
            known.extend(ahead.iter().map(|at: &BlockNr| at.0));
            match v.step(50).unwrap() {
                Step::Write(mut log) => {
                    log.seal();
                    log.write(&*told).unwrap();
                    v.log_written();
                }
                Step::Working | Step::Waiting => {}
                Step::Done(_) => break,
            }
        }
        let read = told.1.lock().unwrap();
        let unknown: Vec<_> = read.difference(&known).collect();
        // The map of the file that is written is another matter.
        assert!(unknown.len() <= 1, "{unknown:?} of {}", read.len());
        assert!(known.is_subset(&read), "nothing is told in vain");
        assert_eq!((asked, known.len()), (known.len(), read.len() - unknown.len()));
        assert!(known.len() > 325 + 10, "{}", known.len());
    }
}
