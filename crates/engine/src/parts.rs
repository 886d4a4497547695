//! Blocks of files that were written in part, and maps of small files, kept in memory once they are on the device.
//!
//! The kernel keeps whole pages of a file, and of what was appended or changed within a page only the bytes themselves: it
//! asks for the page when somebody reads the file or appends to it again, which without this waits for the device.
//!
//! A small file of more than six blocks has a node of its map, and of a tree that is unpacked most are asked for no more, where its
//! directories and tables are. So they do not take the room of those: who asks for one after all has it cached like any other
//! metadata ([`crate::store::Store::wanted_after_all`]).
//!
//! Kept is what the metadata leaves of the cache, a sixteenth of that at least. Blocks are cut off behind their last bytes
//! that are not zero: most are the ends of small files.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::block::Block;

/// Of the cache as a whole, what metadata does not get.
const SHARE: u64 = 16;
/// Zeroes are cut off by so many bytes.
const UNIT: usize = 64;

#[derive(Clone)]
struct ByBytes;

impl Weighter<u64, Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &u64, bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + 64
    }
}

/// See the module. By virtual number: what a number stands for does not change while it is in use.
pub struct Parts {
    kept: Cache<u64, Arc<[u8]>, ByBytes>,
    block_size: usize,
    /// Bytes of metadata and parts together.
    all: u64,
}

/// What metadata may take where it and the parts take `all` bytes.
pub fn for_metadata(all: u64) -> u64 {
    all - all / SHARE
}

impl Parts {
    /// With the least room where it and the metadata take `all` bytes.
    pub fn new(all: u64, block_size: usize) -> Self {
        let items = (all / block_size.max(1) as u64).max(16);
        let kept = Cache::with_weighter(usize::try_from(items).unwrap_or(usize::MAX), all / SHARE, ByBytes);
        Parts { kept, block_size, all }
    }

    /// Takes the room that metadata of so many bytes leaves.
    pub fn make_room(&self, metadata: u64) {
        self.kept.set_capacity(self.all.saturating_sub(metadata).max(self.all / SHARE));
    }

    /// Keeps a block.
    pub fn keep(&self, v: u64, block: &Block) {
        let zeroes = block.rchunks(UNIT).take_while(|unit| unit.iter().fold(0, |all, b| all | b) == 0);
        let used = block.len() - zeroes.map(<[u8]>::len).sum::<usize>();
        self.kept.insert(v, block.get(..used).unwrap_or(block).into());
    }

    /// The block, if it is kept.
    pub fn get(&self, v: u64) -> Option<Block> {
        let bytes = self.kept.get(&v)?;
        let mut block = Vec::with_capacity(self.block_size);
        block.extend_from_slice(&bytes);
        block.resize(self.block_size, 0);
        Some(block.into())
    }

    pub fn contains(&self, v: u64) -> bool {
        self.kept.contains_key(&v)
    }

    /// Its number is used no more, or for another block.
    pub fn forget(&self, v: u64) {
        self.kept.remove(&v);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_format::Ino;

    use super::*;
    use crate::fresh::fresh;
    use crate::{Piece, Tree};

    fn written(end: usize) -> Block {
        let mut bytes = vec![0; 4096];
        bytes[..end].fill(7);
        bytes.into()
    }

    #[test]
    fn blocks_come_back_as_they_were() {
        let parts = Parts::new(8 << 20, 4096);
        for end in [0, 1, 63, 64, 65, 4000, 4096] {
            parts.keep(end as u64, &written(end));
            assert!(parts.get(end as u64).unwrap() == written(end), "{end}");
        }
        assert_eq!(parts.kept.weight(), 64 * 7 + (64 + 64 + 64 + 128 + 4032 + 4096));
        parts.forget(63);
        assert!(parts.get(63).is_none() && !parts.contains(63) && parts.contains(64));
    }

    /// Else the next block of that number would be read as the one before.
    #[test]
    fn a_number_that_is_handed_out_again_has_no_part() {
        let (_, mut v) = fresh(64 << 20, 64);
        let number = v.dat.allocate(&mut v.store).unwrap();
        v.store.parts.keep(number.0, &written(904));
        v.dat.release_all(&mut v.store, &[number]).unwrap();
        assert!(!v.store.parts.contains(number.0));
        // Whoever gave it back, it is forgotten at the latest when it is handed out again.
        v.store.parts.keep(number.0 + 1, &written(904));
        assert_eq!(v.dat.allocate(&mut v.store).unwrap().0, number.0 + 1);
        assert!(!v.store.parts.contains(number.0 + 1));
    }

    #[test]
    fn metadata_leaves_room() {
        let parts = Parts::new(16 << 20, 4096);
        assert_eq!(for_metadata(16 << 20), 15 << 20);
        for (metadata, room) in [(0, 16 << 20), (15 << 20, 1 << 20), (17 << 20, 1 << 20), (12 << 20, 4 << 20)]
        {
            parts.make_room(metadata);
            (0..8000).for_each(|v| parts.keep(v, &written(4096)));
            let kept = parts.kept.weight();
            assert!(kept <= room && kept >= room / 2, "{kept} of {room}");
        }
    }

    /// Of a tree that is unpacked the maps are not read again, the directories are.
    #[test]
    fn maps_of_small_files_take_no_room_from_others_before_they_are_asked_for() {
        let (_, mut v) = fresh(64 << 20, 64);
        let mut attr = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
        attr.mode = 0o100_644;
        let files: Vec<Ino> = (0..20).map(|_| v.create_inode(attr.clone()).unwrap()).collect();
        for ino in &files {
            (0..10).for_each(|key| v.write_block(*ino, key, written(4096)).unwrap());
        }
        let large = v.create_inode(attr).unwrap();
        (0..1000).for_each(|key| v.write_block(large, key, written(4096)).unwrap());
        v.checkpoint(3000).unwrap();
        assert_eq!(v.store.parts.kept.len(), 20, "a node each, and none of the large file");
        for ino in &files {
            assert!(matches!(v.locate(Tree::Live, *ino, 7).unwrap(), Piece::Disk(_)));
        }
        assert_eq!(v.store.parts.kept.len(), 0, "now they are like others");
        // What replaces a node lets it go, wherever it was.
        v.write_block(files[0], 3, written(4096)).unwrap();
        v.checkpoint(3001).unwrap();
        assert_eq!(v.store.parts.kept.len(), 1);
        v.write_block(files[0], 3, written(4096)).unwrap();
        v.checkpoint(3002).unwrap();
        assert_eq!(v.store.parts.kept.len(), 1);
        assert!(v.read_block(Tree::Live, files[0], 3).unwrap().unwrap() == written(4096));
    }

    /// Of the blocks of files those are in memory that were written in part, as long as their numbers are in use.
    #[test]
    fn what_was_written_in_part_is_read_without_the_device() {
        let (_, mut v) = fresh(64 << 20, 64);
        let mut attr = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
        (attr.mode, attr.size) = (0o100_644, 5000);
        let ino = v.create_inode(attr).unwrap();
        v.write_block(ino, 0, written(4096)).unwrap();
        v.write_block(ino, 1, written(904).to_be_read()).unwrap();
        v.checkpoint(3000).unwrap();
        let [Piece::Disk(_), Piece::Memory(part)] = &v.locate_range(Tree::Live, ino, 0..2).unwrap()[..]
        else {
            panic!("{:?}", v.locate_range(Tree::Live, ino, 0..2));
        };
        assert_eq!(*part, written(904));
        assert_eq!(v.read_block(Tree::Live, ino, 1).unwrap().unwrap(), written(904));
        assert_eq!(v.store.parts.kept.len(), 1);
        // Another content, a whole block: the part is of no use to anybody.
        v.write_block(ino, 1, written(4096)).unwrap();
        v.checkpoint(3001).unwrap();
        assert!(matches!(v.locate(Tree::Live, ino, 1).unwrap(), Piece::Disk(_)));
        assert_eq!(v.store.parts.kept.len(), 0);
    }
}
