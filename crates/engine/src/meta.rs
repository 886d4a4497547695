//! Metadata files: DAT, cpfile, sufile, ifile, each a map, its changed blocks and its counters.
//!
//! Changed data blocks wait in `data` until a log takes them; changed nodes wait in the map's
//! `nodes`. Invariant: a block that is neither changed nor on its way is on disk where the map
//! says.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use hashbrown::HashMap;
use silt_device::Kind;
use silt_format::btree::{self, Node};
use silt_format::inode::RawInode;
use silt_format::{BlockNr, Ino};

use crate::block::{self, Block};
use crate::bmap::{self, ReadNodes, Root};
use crate::store::{Key, Store};
use crate::{Error, Result};

/// How a file's pointers become places.
pub trait Resolve {
    /// What nodes with such pointers are.
    const NODES: Kind;
    /// Identity of the block a pointer names.
    fn key(&self, ptr: u64) -> Key;
    /// Its place on disk.
    fn locate(&self, store: &Store, ptr: u64) -> Result<BlockNr>;
}

/// Pointers of the DAT are disk blocks.
pub struct Physical;

impl Resolve for Physical {
    const NODES: Kind = Kind::Tables;

    fn key(&self, ptr: u64) -> Key {
        Key::Physical(ptr)
    }
    fn locate(&self, store: &Store, ptr: u64) -> Result<BlockNr> {
        if store.geometry.holds(BlockNr(ptr)) {
            Ok(BlockNr(ptr))
        } else {
            Err(Error::corrupt(format!("block {ptr}"), "DAT", "pointer outside the segments"))
        }
    }
}

/// A block map with its changed nodes.
#[derive(Clone)]
pub struct Map {
    pub root: Root,
    /// Changed nodes by pointer: for virtual files the new virtual number, for the DAT a
    /// temporary number with bit 63 set.
    pub nodes: HashMap<u64, Block>,
    /// `i_blocks` as it goes to disk, 512-byte units.
    pub blocks: u64,
}

impl Map {
    /// The map of an inode.
    pub fn of(raw: &RawInode) -> Self {
        Map { root: raw.bmap, nodes: HashMap::new(), blocks: raw.blocks.get() }
    }

    /// Whether nothing is mapped and nothing waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.root.iter().all(|b| *b == 0)
    }

    /// An empty direct map.
    pub fn empty() -> Self {
        Map { root: [0; btree::ROOT_BYTES], nodes: HashMap::new(), blocks: 0 }
    }
}

/// Reads nodes through the changed ones, the cache and the device.
pub struct NodeReader<'a, R> {
    pub nodes: &'a HashMap<u64, Block>,
    pub store: &'a Store,
    pub resolve: &'a R,
}

impl<R: Resolve> ReadNodes for NodeReader<'_, R> {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        if let Some(b) = self.nodes.get(&ptr) {
            return Ok(b.clone());
        }
        read_node(self.store, self.resolve, ptr, level)
    }
}

/// A node that is not among the changed ones.
pub fn read_node<R: Resolve>(store: &Store, resolve: &R, ptr: u64, level: u8) -> Result<Block> {
    let key = resolve.key(ptr);
    if let Some(b) = store.cached(key).or_else(|| store.wanted_after_all(key)) {
        // A damaged volume may name one block as node and as data: the cheap half of the check
        // is enough to keep every descent finite.
        if Node::block(&b).level() == level && b[0] & btree::FLAG_ROOT == 0 {
            return Ok(b);
        }
        return Err(Error::corrupt(format!("node {ptr}"), "B-tree node", format!("not of level {level}")));
    }
    let at = resolve.locate(store, ptr)?;
    let b = store.read(R::NODES, at)?;
    btree::check_node(&b, Some(level)).map_err(|e| Error::at(format!("block {at}"), e))?;
    store.keep(key, b.clone());
    Ok(b)
}

/// A data block of a metadata file or directory behind pointer `ptr`, cached.
pub fn read_data<R: Resolve>(store: &Store, resolve: &R, kind: Kind, ptr: u64) -> Result<Block> {
    let key = resolve.key(ptr);
    if let Some(b) = store.cached(key) {
        return Ok(b);
    }
    let b = store.read(kind, resolve.locate(store, ptr)?)?;
    store.keep(key, b.clone());
    Ok(b)
}

/// One metadata file.
#[derive(Clone)]
pub struct MetaFile {
    pub ino: Ino,
    pub map: Map,
    /// Changed data blocks by file block offset.
    pub data: BTreeMap<u64, Block>,
    /// The inode as found; map and block count live in `map`.
    raw: RawInode,
}

impl MetaFile {
    /// From its inode.
    pub fn new(ino: Ino, raw: RawInode) -> Self {
        MetaFile { ino, map: Map::of(&raw), data: BTreeMap::new(), raw }
    }

    /// The inode to store.
    pub fn inode(&self) -> RawInode {
        let mut raw = self.raw;
        raw.bmap = self.map.root;
        raw.blocks = self.map.blocks.into();
        raw.xattr = 0.into();
        raw.pad = 0.into();
        raw
    }

    /// Whether anything waits for a log.
    pub fn is_dirty(&self) -> bool {
        !self.data.is_empty() || !self.map.nodes.is_empty()
    }

    /// Block `offset`; `None` for a hole.
    pub fn block<R: Resolve>(&self, store: &Store, resolve: &R, offset: u64) -> Result<Option<Block>> {
        if let Some(b) = self.data.get(&offset) {
            return Ok(Some(b.clone()));
        }
        let reader = NodeReader { nodes: &self.map.nodes, store, resolve };
        match bmap::lookup(&self.map.root, &reader, offset)? {
            Some(ptr) => read_data(store, resolve, Kind::Tables, ptr).map(Some),
            None => Ok(None),
        }
    }

    /// Where block `offset` lies, as it is on the disk; `None` for a hole.
    pub fn place<R: Resolve>(&self, store: &Store, resolve: &R, offset: u64) -> Result<Option<BlockNr>> {
        let reader = NodeReader { nodes: &self.map.nodes, store, resolve };
        let ptr = bmap::lookup(&self.map.root, &reader, offset)?;
        ptr.map(|ptr| resolve.locate(store, ptr)).transpose()
    }

    /// Makes block `offset` part of the next log, to be changed without a copy: it is cached no longer. False for a hole.
    pub fn take<R: Resolve>(&mut self, store: &Store, resolve: &R, offset: u64) -> Result<bool> {
        if self.data.contains_key(&offset) {
            return Ok(true);
        }
        let reader = NodeReader { nodes: &self.map.nodes, store, resolve };
        let Some(ptr) = bmap::lookup(&self.map.root, &reader, offset)? else { return Ok(false) };
        let block = read_data(store, resolve, Kind::Tables, ptr)?;
        store.uncache(resolve.key(ptr));
        self.data.insert(offset, block);
        Ok(true)
    }

    /// Block `offset` for changing; a hole is filled with `init` first.
    pub fn block_mut<R: Resolve>(
        &mut self,
        store: &Store,
        resolve: &R,
        offset: u64,
        init: impl FnOnce(&mut [u8]),
    ) -> Result<&mut [u8]> {
        if !self.data.contains_key(&offset) {
            let b = match self.block(store, resolve, offset)? {
                Some(b) => b,
                None => {
                    let mut b = block::zeroed(store.geometry.bs());
                    init(block::writable(&mut b));
                    b
                }
            };
            self.data.insert(offset, b);
        }
        match self.data.get_mut(&offset) {
            Some(b) => Ok(block::writable(b)),
            None => Err(Error::Invalid("a block vanished while it was changed".into())),
        }
    }

    /// The first mapped or changed block from `offset` on.
    pub fn next_block<R: Resolve>(&self, store: &Store, resolve: &R, offset: u64) -> Result<Option<u64>> {
        let reader = NodeReader { nodes: &self.map.nodes, store, resolve };
        let mut mapped = None;
        bmap::for_each(&self.map.root, &reader, offset, |key, _| {
            mapped = Some(key);
            ControlFlow::Break(())
        })?;
        let changed = self.data.range(offset..).next().map(|(key, _)| *key);
        Ok(mapped.into_iter().chain(changed).min())
    }

    /// Greatest mapped or changed block offset.
    pub fn last_block<R: Resolve>(&self, store: &Store, resolve: &R) -> Result<Option<u64>> {
        let reader = NodeReader { nodes: &self.map.nodes, store, resolve };
        let mapped = bmap::last_key(&self.map.root, &reader)?;
        Ok(mapped.max(self.data.keys().next_back().copied()))
    }
}
