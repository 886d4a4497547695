//! Reading metadata blocks: what is on its way to disk, what is cached, what is on the device.
//!
//! Keys: a block of a virtual file is known by its virtual block number (its content never
//! changes while the number is in use), a block of the DAT by its disk block number.
//! Invariant: a key's cached bytes equal what the newest log wrote under it; whoever hands out a
//! number again removes its key first.

use std::sync::Arc;

use hashbrown::HashMap;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use silt_device::{Device, Kind};
use silt_format::{BlockNr, Geometry};

use crate::block::Block;
use crate::{Error, Result};

/// Identity of a metadata block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// By virtual block number.
    Virtual(u64),
    /// By disk block number.
    Physical(u64),
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Block> for ByBytes {
    fn weight(&self, _: &Key, block: &Block) -> u64 {
        block.len() as u64 + 64
    }
}

/// Shared access to a volume's blocks. Bounded: clean blocks take at most the bytes given to
/// [`Store::new`]; blocks on their way to disk are held besides until they are there.
pub struct Store {
    pub device: Arc<dyn Device>,
    pub geometry: Geometry,
    cache: Cache<Key, Block, ByBytes>,
    in_flight: HashMap<Key, Block>,
}

impl Store {
    /// A store with room for `cache_bytes` of clean metadata.
    pub fn new(device: Arc<dyn Device>, geometry: Geometry, cache_bytes: u64) -> Self {
        let items = (cache_bytes / u64::from(geometry.block_size)).max(16);
        let items = usize::try_from(items).unwrap_or(usize::MAX);
        Store {
            device,
            geometry,
            cache: Cache::with_weighter(items, cache_bytes, ByBytes),
            in_flight: HashMap::new(),
        }
    }

    /// The block if it is in memory.
    pub fn cached(&self, key: Key) -> Option<Block> {
        if let Some(b) = self.in_flight.get(&key) {
            return Some(b.clone());
        }
        self.cache.get(&key)
    }

    /// Keeps a clean block.
    pub fn keep(&self, key: Key, block: Block) {
        self.cache.insert(key, block);
    }

    /// Forgets a key whose number is handed out again.
    pub fn forget(&mut self, key: Key) {
        self.cache.remove(&key);
        self.in_flight.remove(&key);
    }

    /// Forgets every disk block of a range (a segment that is written again).
    pub fn forget_physical(&mut self, blocks: std::ops::Range<u64>) {
        if self.cache.is_empty() {
            return;
        }
        for block in blocks {
            self.cache.remove(&Key::Physical(block));
        }
    }

    /// Holds a block until [`Store::landed`].
    pub fn launch(&mut self, key: Key, block: Block) {
        self.in_flight.insert(key, block);
    }

    /// Takes a launched block back.
    pub fn recall(&mut self, key: Key) {
        self.in_flight.remove(&key);
    }

    /// Everything launched is on the device: it may be evicted from now on.
    pub fn landed(&mut self) {
        for (key, block) in self.in_flight.drain() {
            self.cache.insert(key, block);
        }
    }

    /// Reads one block from the device.
    pub fn read(&self, kind: Kind, at: BlockNr) -> Result<Block> {
        let g = &self.geometry;
        if !g.holds(at) {
            return Err(Error::corrupt(format!("block {at}"), "block pointer", "lies outside the segments"));
        }
        let mut bytes = vec![0u8; g.bs()];
        self.device.read_kind(kind, g.byte_of(at), &mut bytes)?;
        Ok(bytes.into())
    }
}
