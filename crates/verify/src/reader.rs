//! Blocks of a device by number, with a bounded cache.
//!
//! Locks: one over the cache and one over the window, not held while the device is read, and never both.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use silt_device::Device;
use silt_format::{BlockNr, Geometry};

/// A block's bytes.
pub(crate) type Block = Arc<[u8]>;

/// Two generations: what was not used since the last turn is forgotten.
#[derive(Default)]
struct Cache {
    hot: HashMap<u64, Block>,
    cold: HashMap<u64, Block>,
}

/// Reads blocks.
pub(crate) struct Reader<'a> {
    pub device: &'a dyn Device,
    pub g: Geometry,
    cache: Mutex<Cache>,
    /// Blocks a generation may hold.
    limit: usize,
    /// Blocks that were read ahead: the first one's number, and the bytes.
    window: RwLock<(u64, Vec<u8>)>,
    /// First blocks of the logs that verify, where all were read before: none is read again for that.
    pub whole: Option<HashSet<u64>>,
}

impl<'a> Reader<'a> {
    /// `cache_bytes` bounds what is kept.
    pub fn new(device: &'a dyn Device, g: Geometry, cache_bytes: usize) -> Self {
        Reader {
            device,
            g,
            cache: Mutex::default(),
            limit: (cache_bytes / g.bs() / 2).max(8),
            window: RwLock::default(),
            whole: None,
        }
    }

    /// Whole blocks from `first` on that were read already, to be taken from here until the next call; empty: none.
    /// Returns the buffer of the window before.
    pub fn set_window(&self, first: u64, bytes: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut *self.window.write(), (first, bytes)).1
    }

    /// Fills `buf` from the window, if it lies in it wholly.
    fn windowed(&self, nr: BlockNr, buf: &mut [u8]) -> bool {
        let window = self.window.read();
        let at = nr.0.checked_sub(window.0).and_then(|n| usize::try_from(n).ok());
        let at = at.and_then(|n| n.checked_mul(self.g.bs()));
        let bytes = at.and_then(|at| window.1.get(at..at.checked_add(buf.len())?));
        bytes.map(|bytes| buf.copy_from_slice(bytes)).is_some()
    }

    /// The bytes of a block; a reason in words if there are none.
    pub fn block(&self, nr: BlockNr) -> Result<Block, String> {
        {
            let mut cache = self.cache.lock();
            if let Some(b) = cache.hot.get(&nr.0) {
                return Ok(b.clone());
            }
            if let Some(b) = cache.cold.remove(&nr.0) {
                cache.hot.insert(nr.0, b.clone());
                return Ok(b);
            }
        }
        let mut bytes = vec![0; self.g.bs()];
        self.read(nr, &mut bytes)?;
        let block: Block = bytes.into();
        let mut cache = self.cache.lock();
        if cache.hot.len() >= self.limit {
            cache.cold = std::mem::take(&mut cache.hot);
        }
        cache.hot.insert(nr.0, block.clone());
        Ok(block)
    }

    /// Forgets what was read: the next look is at the device.
    pub fn forget(&self) {
        *self.cache.lock() = Cache::default();
    }

    /// Fills `buf` (whole blocks) from `nr` on, past the cache.
    pub fn read(&self, nr: BlockNr, buf: &mut [u8]) -> Result<(), String> {
        if nr.0 >= self.g.end_block() {
            return Err(format!("block {nr} lies outside the segments"));
        }
        if self.windowed(nr, buf) {
            return Ok(());
        }
        let at = self.g.byte_of(nr);
        if at.saturating_add(buf.len() as u64) > self.device.len() {
            return Err(format!("block {nr} lies behind the end of the device"));
        }
        self.device.read_at(at, buf).map_err(|e| e.to_string())
    }
}
