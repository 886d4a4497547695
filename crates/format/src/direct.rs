//! The direct map: pointers for keys 0 to 5 in the inode (spec 5.1).

use crate::btree::ROOT_BYTES;
use crate::{Error, Result};

/// Keys 0 to `KEYS` - 1 have a pointer.
pub const KEYS: u64 = 6;

fn at(key: u64) -> Option<usize> {
    (key < KEYS).then_some(8 + 8 * (key as usize))
}

/// Pointer of `key`; 0 where there is none.
pub fn get(b: &[u8; ROOT_BYTES], key: u64) -> u64 {
    match at(key).and_then(|o| b.get(o..o + 8)).and_then(|s| s.try_into().ok()) {
        Some(a) => u64::from_le_bytes(a),
        None => 0,
    }
}

/// Sets the pointer of `key` (below [`KEYS`]).
pub fn set(b: &mut [u8; ROOT_BYTES], key: u64, ptr: u64) {
    if let Some(s) = at(key).and_then(|o| b.get_mut(o..o + 8)) {
        s.copy_from_slice(&ptr.to_le_bytes());
    }
}

/// Checks the header of a direct map.
pub fn check(b: &[u8; ROOT_BYTES]) -> Result<()> {
    if b[0] & 1 != 0 { Err(Error::corrupt("direct map", "marked as a B-tree")) } else { Ok(()) }
}
