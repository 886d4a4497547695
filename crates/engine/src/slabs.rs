//! Memory for what large requests bring: one aligned slab for all blocks of one.
//!
//! A slab is filled once, shared by its blocks, and used again when the last of them is gone: the allocator is not asked for
//! each block, the system not for pages all the time, and a device takes the blocks as they lie.
//!
//! A block that stays keeps all of its slab. So slabs hold at most [`MOST`] bytes together, which may be more than
//! their blocks; beyond that, blocks get memory of their own.
//!
//! Locks: one for what is free, held for moments.

use std::sync::{Arc, Mutex, PoisonError};

use crate::block::Block;

/// Bytes of all slabs, in use or free, at most.
const MOST: usize = 32 << 20;
/// Requests of fewer bytes are not worth one, and of more than the other get several.
const LEAST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
/// Alignment of memory that every device takes.
const ALIGN: usize = 4096;

/// Where slabs come from, and what was given back.
#[derive(Debug, Clone, Default)]
pub struct Slabs(Arc<Mutex<Pool>>);

#[derive(Debug, Default)]
struct Pool {
    free: Vec<Memory>,
    /// Bytes of all slabs, those in use as well.
    held: usize,
}

/// Bytes from `start` on are aligned, and a power of two.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new(size: usize) -> Self {
        let bytes = vec![0; size + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Memory { bytes, start }
    }

    fn size(&self) -> usize {
        self.bytes.len() - ALIGN
    }
}

#[derive(Debug)]
struct Slab {
    memory: Memory,
    from: Slabs,
}

impl Drop for Slab {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory { bytes: Vec::new(), start: 0 });
        self.from.pool(|pool| pool.free.push(memory));
    }
}

/// A block that lies in a slab.
#[derive(Debug, Clone)]
pub struct Part {
    slab: Arc<Slab>,
    from: u32,
    len: u32,
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        let from = self.slab.memory.start + self.from as usize;
        &self.slab.memory.bytes[from..from + self.len as usize]
    }
}

impl Slabs {
    fn pool<T>(&self, f: impl FnOnce(&mut Pool) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Copies data into blocks of so many bytes; what is behind the last whole one is left.
    pub fn cut(&self, data: &[u8], block_size: usize) -> Vec<Block> {
        let mut blocks = Vec::with_capacity(data.len() / block_size.max(1));
        for data in data.chunks(LARGEST.max(block_size)) {
            match self.take(data.len()) {
                Some(memory) => blocks.extend(self.fill(memory, data, block_size)),
                None => blocks.extend(data.chunks_exact(block_size).map(Block::from)),
            }
        }
        blocks
    }

    /// Memory for so many bytes, if that is worth it and there may be more.
    fn take(&self, bytes: usize) -> Option<Memory> {
        if !(LEAST..=LARGEST).contains(&bytes) {
            return None;
        }
        let size = bytes.next_power_of_two();
        self.pool(|pool| {
            if let Some(at) = pool.free.iter().rposition(|m| m.size() == size) {
                return Some(pool.free.swap_remove(at));
            }
            // Those of other sizes make room.
            while pool.held + size > MOST {
                pool.held -= pool.free.pop()?.size();
            }
            pool.held += size;
            Some(Memory::new(size))
        })
    }

    fn fill(&self, mut memory: Memory, data: &[u8], block_size: usize) -> impl Iterator<Item = Block> {
        memory.bytes[memory.start..memory.start + data.len()].copy_from_slice(data);
        let slab = Arc::new(Slab { memory, from: self.clone() });
        // A slab is far smaller than what these can hold.
        let part = move |n: usize| Part {
            slab: slab.clone(),
            from: u32::try_from(n * block_size).unwrap_or(0),
            len: u32::try_from(block_size).unwrap_or(0),
        };
        (0..data.len() / block_size).map(part).map(Block::from)
    }

    /// What is free, which goes back to the allocator.
    pub fn shrink(&self) -> impl Send + Sync + use<> {
        self.pool(|pool| {
            pool.held -= pool.free.iter().map(Memory::size).sum::<usize>();
            std::mem::take(&mut pool.free)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::writable;

    fn data(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i / 7 % 251) as u8).collect()
    }

    #[test]
    fn blocks_are_what_was_cut() {
        for block_size in [1024, 4096, 65_536] {
            for bytes in [block_size, 100 << 10, 256 << 10, LARGEST, LARGEST + 3 * block_size, 3 << 20] {
                let (slabs, data) = (Slabs::default(), data(bytes));
                let blocks = slabs.cut(&data, block_size);
                assert_eq!(blocks.len(), bytes / block_size);
                assert!(
                    blocks.iter().zip(data.chunks(block_size)).all(|(b, d)| **b == *d),
                    "{block_size} {bytes}"
                );
                if block_size >= ALIGN && bytes == LARGEST {
                    assert!(blocks.iter().all(|b| (b.as_ptr() as usize).is_multiple_of(ALIGN)));
                }
            }
        }
    }

    /// Whoever changes a block changes his own.
    #[test]
    fn a_change_is_seen_by_nobody_else() {
        let slabs = Slabs::default();
        let mut blocks = slabs.cut(&data(LARGEST), 4096);
        let (mut changed, before) = (blocks[3].clone(), blocks[3].to_vec());
        writable(&mut changed).fill(0xee);
        assert!(*blocks[3] == before && changed.iter().all(|b| *b == 0xee));
        writable(&mut blocks[4]).fill(0xdd);
        assert!(blocks[4].iter().all(|b| *b == 0xdd) && *blocks[3] == before);
    }

    #[test]
    fn a_block_of_each_slab_keeps_no_more_than_the_bound() {
        let (slabs, data) = (Slabs::default(), data(LARGEST));
        let held = |slabs: &Slabs| slabs.pool(|pool| pool.held);
        let mut kept = Vec::new();
        for _ in 0..100 {
            kept.push(slabs.cut(&data, 4096).pop());
            assert!(held(&slabs) <= MOST);
        }
        assert_eq!(held(&slabs), MOST);
        kept.clear();
        // Free ones of one size make room for others.
        let small = slabs.cut(&data[..LEAST], 4096);
        assert!(held(&slabs) <= MOST && small.iter().zip(data.chunks(4096)).all(|(b, d)| **b == *d));
        drop(slabs.shrink());
        assert_eq!(held(&slabs), LEAST);
        drop(small);
        assert_eq!(held(&slabs), LEAST, "free, and kept for the next one");
        drop(slabs.shrink());
        assert_eq!(held(&slabs), 0);
    }
}
