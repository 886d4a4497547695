//! Block maps: file block offset ("key") to pointer (spec section 5).
//!
//! ```text
//! root in the inode --(level L)--> node --> ... --> node (level 1) --> pointers of data blocks
//! ```
//!
//! A map is changed top down and copy on write: whoever descends to change something first makes
//! every node on the way writable, and a node that is made writable gets a new pointer, which
//! goes into its parent at once. So the tree is consistent after every step, also after an error
//! half-way, and what the kernel calls propagation has happened by the time a change is made.

mod change;
mod lookup;
mod remove;
mod sever;
#[cfg(test)]
mod tests;

pub use change::set;
pub use lookup::{
    Seen, for_each, for_each_sound, key_at, last_key, last_key_to, lookup, node_at, part_below,
};
pub use remove::remove;
pub use sever::{Severed, sever, unravel};

use silt_format::btree::ROOT_BYTES;

use crate::Result;
use crate::block::Block;

/// The 56 bytes in an inode.
pub type Root = [u8; ROOT_BYTES];

/// Read access to nodes by pointer.
pub trait ReadNodes {
    /// The node `ptr` points to, checked to be one of `level`.
    fn read(&self, ptr: u64, level: u8) -> Result<Block>;
}

/// Write access to nodes.
pub trait Nodes: ReadNodes {
    /// Block size in bytes.
    fn block_size(&self) -> usize;
    /// Makes a node writable and returns its pointer, which is another one if it was clean.
    fn make_writable(&mut self, ptr: u64, level: u8) -> Result<u64>;
    /// A node that `make_writable` or `create` returned.
    fn node_mut(&mut self, ptr: u64) -> Result<&mut [u8]>;
    /// A new writable node, all zero.
    fn create(&mut self) -> Result<u64>;
    /// Ends the life of a node that was made writable, or that a writable one takes the place of. What cannot be told of it
    /// on disk is no error: the map is right without.
    fn discard(&mut self, ptr: u64, level: u8) -> Result<()>;
    /// Ends the life of a node that no map holds any more; an error where it is not known to have had one.
    fn end(&mut self, ptr: u64, level: u8) -> Result<()> {
        self.discard(ptr, level)
    }
}
