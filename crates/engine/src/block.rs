//! Blocks in memory: shared, copied only when a change meets another holder.
//!
//! Most lie in memory of their own. What a large request brings lies in one slab, aligned so that it can go to a device as
//! it is: see [`crate::slabs`].

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::slabs::Part;

/// One block's bytes. A log under way, the cache and a reader may hold the same one; whoever
/// changes it goes through [`writable`].
#[derive(Clone)]
pub struct Block(Place);

#[derive(Clone)]
enum Place {
    Own(Arc<[u8]>),
    Part(Part),
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Own(bytes) => bytes,
            Place::Part(part) => part.bytes(),
        }
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Block(Place::Own(bytes.into()))
    }
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Self {
        Block(Place::Own(bytes.into()))
    }
}

impl From<Part> for Block {
    fn from(part: Part) -> Self {
        Block(Place::Part(part))
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Block {}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A block of zeroes.
pub fn zeroed(block_size: usize) -> Block {
    vec![0u8; block_size].into()
}

/// Bytes that may be changed; copies them first if somebody else holds the block.
pub fn writable(block: &mut Block) -> &mut [u8] {
    if let Place::Part(part) = &block.0 {
        block.0 = Place::Own(part.bytes().into());
    }
    match &mut block.0 {
        Place::Own(bytes) => Arc::make_mut(bytes),
        // It is none any more.
        Place::Part(_) => &mut [],
    }
}
