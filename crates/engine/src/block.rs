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
pub struct Block {
    place: Place,
    /// See [`Block::to_be_read`].
    to_be_read: bool,
}

#[derive(Clone)]
enum Place {
    Own(Arc<[u8]>),
    Part(Part),
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.place {
            Place::Own(bytes) => bytes,
            Place::Part(part) => part.bytes(),
        }
    }
}

impl Block {
    /// The same, kept in memory once it is on the device, as long as there is room ([`crate::parts`]): whoever wrote it may have
    /// only a part of it, and asks for it to read it.
    #[must_use]
    pub fn to_be_read(self) -> Self {
        Block { to_be_read: true, ..self }
    }

    /// Whether [`Block::to_be_read`] was said of it. Never of a block of a slab, which would keep all of that.
    pub(crate) fn is_to_be_read(&self) -> bool {
        self.to_be_read && matches!(self.place, Place::Own(_))
    }
}

impl From<Place> for Block {
    fn from(place: Place) -> Self {
        Block { place, to_be_read: false }
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Place::Own(bytes.into()).into()
    }
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Self {
        Place::Own(bytes.into()).into()
    }
}

impl From<Part> for Block {
    fn from(part: Part) -> Self {
        Place::Part(part).into()
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
    if let Place::Part(part) = &block.place {
        block.place = Place::Own(part.bytes().into());
    }
    match &mut block.place {
        Place::Own(bytes) => Arc::make_mut(bytes),
        // It is none any more.
        Place::Part(_) => &mut [],
    }
}
