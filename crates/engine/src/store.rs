//! Reading metadata blocks: what is on its way to disk, what is cached, what is on the device.
//!
//! Keys: a block of a virtual file is known by its virtual block number (its content never
//! changes while the number is in use), a block of the DAT by its disk block number.
//! Invariant: a key's cached bytes equal what the newest log wrote under it; whoever hands out a
//! number again removes its key first.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use silt_device::{Device, Kind};
use silt_format::{BlockNr, Geometry};

use crate::block::Block;
use crate::held::Held;
use crate::parts::{Parts, for_metadata};
use crate::slabs::Slabs;
use crate::watched::Watched;
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

/// After so many blocks of metadata were read, what is kept of files makes room for them.
const OFTEN: u32 = 64;

/// Shared access to a volume's blocks. Bounded: what is kept that is on the device takes at most the bytes given to
/// [`Store::new`], metadata 15/16 of them at most; blocks on their way to disk are held besides until they are there.
pub struct Store {
    pub device: Arc<dyn Device>,
    pub geometry: Geometry,
    cache: Cache<Key, Block, ByBytes>,
    /// How many blocks were cached that were read.
    kept: AtomicU32,
    in_flight: HashMap<Key, Block>,
    /// What the log being made replaces, as far as it is cached.
    replaced: Mutex<Vec<Key>>,
    /// Blocks of files that whoever wrote them asks for again.
    pub parts: Parts,
    /// Blocks of files that are being moved, by virtual number: their new places may not hold them yet.
    moving: HashMap<u64, Block>,
    /// Memory for what large requests bring.
    pub slabs: Slabs,
    /// Clean segments that may not be written yet.
    pub held: Held,
    /// Told of segments that are written again, and of metadata that was read.
    pub verifier: Option<Arc<Watched>>,
}

impl Store {
    /// A store with room for `cache_bytes` of what is on the device.
    pub fn new(device: Arc<dyn Device>, geometry: Geometry, cache_bytes: u64) -> Self {
        let parts = Parts::new(cache_bytes, geometry.bs());
        let cache_bytes = for_metadata(cache_bytes);
        let items = (cache_bytes / u64::from(geometry.block_size)).max(16);
        let items = usize::try_from(items).unwrap_or(usize::MAX);
        Store {
            device,
            geometry,
            cache: Cache::with_weighter(items, cache_bytes, ByBytes),
            kept: AtomicU32::new(0),
            in_flight: HashMap::new(),
            replaced: Mutex::default(),
            parts,
            moving: HashMap::new(),
            slabs: Slabs::default(),
            held: Held::default(),
            verifier: None,
        }
    }

    /// The block if it is in memory.
    pub fn cached(&self, key: Key) -> Option<Block> {
        if let Some(b) = self.in_flight.get(&key) {
            return Some(b.clone());
        }
        if let Key::Virtual(v) = key
            && let Some(b) = self.moving(v)
        {
            return Some(b.clone());
        }
        self.cache.get(&key)
    }

    /// A block of a file by its virtual number, if it is in memory.
    pub fn part(&self, v: u64) -> Option<Block> {
        let on_the_way = self.in_flight.get(&Key::Virtual(v)).or_else(|| self.moving(v));
        on_the_way.cloned().or_else(|| self.parts.get(v))
    }

    /// A block that was kept as long as there was room, and is in use: from now on like others.
    pub fn wanted_after_all(&self, key: Key) -> Option<Block> {
        let Key::Virtual(v) = key else { return None };
        let block = self.parts.get(v)?;
        self.parts.forget(v);
        self.keep(key, block.clone());
        Some(block)
    }

    /// Keeps a clean block.
    pub fn keep(&self, key: Key, block: Block) {
        self.cache.insert(key, block);
        if self.kept.fetch_add(1, Ordering::Relaxed).is_multiple_of(OFTEN) {
            self.parts.make_room(self.cache.weight());
        }
    }

    /// Keeps a clean block no longer: whoever changes it has it alone then.
    pub fn uncache(&self, key: Key) {
        self.cache.remove(&key);
    }

    /// The log being made has something else in the place of this block: once it is on the device, nobody but who looks at
    /// the past asks for it, and it takes no room from what is asked for.
    pub fn replaces(&self, key: Key) {
        if self.cache.contains_key(&key) || matches!(key, Key::Virtual(v) if self.parts.contains(v)) {
            self.replaced.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        }
    }

    /// Forgets a key whose number is handed out again.
    pub fn forget(&mut self, key: Key) {
        self.cache.remove(&key);
        self.in_flight.remove(&key);
        if let Key::Virtual(v) = key {
            self.moving.remove(&v);
            self.parts.forget(v);
        }
    }

    /// Forgets every disk block of a range (a segment that is written again).
    pub fn forget_physical(&mut self, blocks: std::ops::Range<u64>) {
        if let Some(w) = &self.verifier {
            w.verifier.forget(self.geometry.segment_of(BlockNr(blocks.start)));
        }
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

    /// Holds blocks that are moved until [`Store::landed`], by their numbers; they are not cached then.
    pub fn launch_moved(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        self.moving.extend(blocks);
    }

    /// A block on its way to another place.
    pub fn moving(&self, v: u64) -> Option<&Block> {
        if self.moving.is_empty() { None } else { self.moving.get(&v) }
    }

    /// Takes a launched block back.
    pub fn recall(&mut self, key: Key) {
        self.in_flight.remove(&key);
    }

    /// Everything launched is on the device: it may be evicted from now on. Returns what was moved, for nobody any more.
    #[must_use]
    pub fn landed(&mut self) -> HashMap<u64, Block> {
        self.parts.make_room(self.cache.weight());
        for (key, block) in self.in_flight.drain() {
            match key {
                Key::Virtual(v) if block.is_to_be_read() => self.parts.keep(v, &block),
                _ => self.cache.insert(key, block),
            }
        }
        for key in std::mem::take(self.replaced.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            self.cache.remove(&key);
            if let Key::Virtual(v) = key {
                self.parts.forget(v);
            }
        }
        std::mem::take(&mut self.moving)
    }

    /// Reads one block from the device.
    pub fn read(&self, kind: Kind, at: BlockNr) -> Result<Block> {
        let g = &self.geometry;
        if !g.holds(at) {
            return Err(Error::corrupt(format!("block {at}"), "block pointer", "lies outside the segments"));
        }
        let mut bytes = vec![0u8; g.bs()];
        self.device.read_kind(kind, g.byte_of(at), &mut bytes)?;
        if let Some(w) = self.verifier.as_ref().filter(|_| kind != Kind::Data) {
            w.saw(at, self.held.freed());
        }
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_format::Ino;

    use crate::Tree;
    use crate::fresh::fresh;

    /// Directories and tables that change with every checkpoint: their older versions are of use to nobody but the past.
    #[test]
    fn what_was_replaced_takes_no_room() {
        let (_, mut v) = fresh(64 << 20, 64);
        let attr = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
        let dirs: Vec<_> = (0..40).map(|_| v.create_inode(attr.clone()).unwrap()).collect();
        let mut cached = Vec::new();
        for round in 0..30 {
            for dir in &dirs {
                v.write_block(*dir, 0, vec![round; 4096].into()).unwrap();
            }
            v.checkpoint(3000).unwrap();
            cached.push(v.store.cache.len());
            // What is there now is not read again.
            for dir in &dirs {
                assert_eq!(v.read_block(Tree::Live, *dir, 0).unwrap().unwrap()[0], round);
            }
        }
        assert!(cached[29] >= 40 && cached[29] < cached[5] + 20, "{cached:?}");
        assert!(v.store.replaced.lock().unwrap().is_empty());
    }
}
