//! Blocks in memory: shared, copied only when a change meets another holder.

use std::sync::Arc;

/// One block's bytes. A log under way, the cache and a reader may hold the same one; whoever
/// changes it goes through [`writable`].
pub type Block = Arc<[u8]>;

/// A block of zeroes.
pub fn zeroed(block_size: usize) -> Block {
    Arc::from(vec![0u8; block_size])
}

/// Bytes that may be changed; copies them first if somebody else holds the block.
pub fn writable(block: &mut Block) -> &mut [u8] {
    Arc::make_mut(block)
}
