//! The direct map: pointers for keys 0 to 5 in the inode (spec 5.1).

use crate::btree::ROOT_BYTES;
use crate::{Error, Result};

/// Keys 0 to `KEYS` - 1 have a pointer.
pub const KEYS: u64 = 6;

fn at(key: u64) -> Option<usize> {
    // Not computed for keys that are none: any number may be looked for.
    (key < KEYS).then(|| 8 + 8 * (key as usize))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_can_be_looked_for() {
        let mut b = [0; ROOT_BYTES];
        for key in 0..KEYS {
            set(&mut b, key, key + 100);
            assert_eq!(get(&b, key), key + 100);
        }
        for key in [KEYS, 1 << 61, u64::MAX] {
            assert_eq!(get(&b, key), 0);
            let before = b;
            set(&mut b, key, 1);
            assert_eq!(b, before);
        }
    }
}
