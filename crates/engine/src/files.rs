//! Requests on the live tree's inodes and blocks.

use std::ops::{ControlFlow, Range};

use silt_device::Kind;
use silt_format::inode::RawInode;
use silt_format::palloc::Kind as Part;
use silt_format::{BlockNr, Cno, Ino, VBlockNr, btree, direct};

use crate::block::Block;
use crate::bmap;
use crate::inode::{self, Attr, Inode};
use crate::meta::{NodeReader, read_data};
use crate::volume::Volume;
use crate::waiting::PATH;
use crate::{At, Error, Result};

/// A tree that can be read: the live one or a checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tree {
    Live,
    /// A checkpoint held open by [`Volume::open_view`].
    Past(u64),
}

/// Where a run of a file's blocks is.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Nothing there: zeroes.
    Hole,
    /// In memory.
    Memory(Block),
    /// On the device.
    Disk(BlockNr),
}

/// Keys that hang from one leaf of a tree, or from two next to each other, half full.
fn leaf_of(key: u64, block_size: usize) -> Range<u64> {
    let half = (block_size / 32) as u64;
    key - key % half..key - key % half + half
}

/// Nodes that a file's map has on the way to a leaf, from above; `has_tree`: the map is one already, or may be before long.
pub(crate) fn path_to(i: &Inode, end: u64, block_size: usize) -> (bool, u64) {
    let has_tree = btree::is_btree(&i.map.root) || i.frozen.is_some();
    let half = (block_size / 32) as u64;
    let mapped = i.map.blocks / (block_size as u64 / 512);
    // So few hang from one node, right below the root.
    let is_small = end <= half && mapped <= half && i.frozen.is_none();
    (has_tree, if is_small { 1 } else { PATH })
}

/// Nodes on the way to a block that waits from now on, from above, if none waits yet below the same leaf.
fn new_leaf(i: &Inode, key: u64, block_size: usize) -> Option<u64> {
    let mut leaf = leaf_of(key, block_size);
    let (has_tree, nodes) = path_to(i, leaf.end, block_size);
    if !has_tree {
        // The first ones have none.
        leaf.start = leaf.start.max(direct::KEYS);
    }
    (leaf.contains(&key) && i.current.blocks.range(leaf).next().is_none()).then_some(nodes)
}

/// Who reads more blocks at once does not find them among those that were written in part.
const FEW: usize = 32;

impl Volume {
    /// The inode, loaded if need be. Past trees give the inode as it was. Those that the format keeps for itself are no files,
    /// though some look like one.
    pub fn inode(&mut self, tree: Tree, ino: Ino) -> Result<&Inode> {
        if !self.store.geometry.is_for_files(ino) {
            return Err(Error::NoInode(ino.0));
        }
        if let Tree::Past(c) = tree {
            return self.past_inode(c, ino);
        }
        self.load(ino)?;
        match self.inodes.get(&ino.0) {
            Some(i) if !i.deleted => Ok(i),
            _ => Err(Error::NoInode(ino.0)),
        }
    }

    pub(crate) fn load(&mut self, ino: Ino) -> Result<()> {
        if self.inodes.contains_key(&ino.0) {
            return Ok(());
        }
        let raw = self.ifile.get(&self.store, &self.dat, ino)?;
        inode::check(&self.store.geometry, &raw).at(|| format!("inode {ino}"))?;
        self.trim_inodes();
        self.inodes.insert(ino.0, Box::new(Inode::load(ino, &raw)));
        Ok(())
    }

    /// Drops inodes that nobody needs in memory when there are too many.
    fn trim_inodes(&mut self) {
        if self.inodes.len() < self.trim_at {
            return;
        }
        // Half of them at once, so that the cost of looking at all is spread over many loads.
        let mut drop = self.inodes.len() / 2;
        self.inodes.retain(|_, i| {
            if drop > 0 && i.is_evictable() {
                drop -= 1;
                false
            } else {
                true
            }
        });
        // Where most are in use, looking again soon would find the same.
        self.trim_at = self.cached_inodes.max(self.inodes.len() * 2);
    }

    /// The raw entry of an inode as the newest checkpoint holds it, whatever is wrong with it:
    /// for deleting what cannot be opened.
    pub fn raw_inode(&self, ino: Ino) -> Result<RawInode> {
        self.ifile.get(&self.store, &self.dat, ino)
    }

    pub(crate) fn writable(&mut self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    pub(crate) fn live_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.writable()?;
        self.load(ino)?;
        match self.inodes.get_mut(&ino.0) {
            Some(i) if !i.deleted => {
                i.dirty = true;
                self.dirty.insert(ino.0);
                Ok(i)
            }
            _ => Err(Error::NoInode(ino.0)),
        }
    }

    /// Attributes for changing; the change needs a checkpoint to be durable.
    pub fn attr_mut(&mut self, ino: Ino) -> Result<&mut Attr> {
        let i = self.live_mut(ino)?;
        i.needs_checkpoint = true;
        Ok(&mut i.attr)
    }

    /// Attributes for changing times only: a data-sync log may leave them for later.
    pub fn times_mut(&mut self, ino: Ino) -> Result<&mut Attr> {
        Ok(&mut self.live_mut(ino)?.attr)
    }

    /// Keeps an inode in memory until [`Volume::unpin`] (open files, orphans).
    pub fn pin(&mut self, ino: Ino) -> Result<()> {
        self.load(ino)?;
        if let Some(i) = self.inodes.get_mut(&ino.0) {
            i.pins += 1;
        }
        Ok(())
    }

    /// Ends one [`Volume::pin`].
    pub fn unpin(&mut self, ino: Ino) {
        if let Some(i) = self.inodes.get_mut(&ino.0) {
            i.pins = i.pins.saturating_sub(1);
        }
    }

    /// A new inode; its generation is set here.
    pub fn create_inode(&mut self, mut attr: Attr) -> Result<Ino> {
        self.writable()?;
        attr.generation = self.next_generation();
        let taken = &self.new_numbers;
        let nr = self
            .ifile
            .find_free(&self.store, &self.dat, self.next_ino, |nr| taken.get(&nr).map(|r| r.end))?;
        self.next_ino = nr + 1;
        let ino = Ino(nr);
        self.new_numbers.insert(nr..nr + 1);
        self.trim_inodes();
        self.inodes.insert(nr, Box::new(Inode::create(ino, attr)));
        self.dirty.insert(nr);
        self.inodes_count = self.inodes_count.saturating_add(1);
        Ok(ino)
    }

    /// As [`Volume::create_inode`], with a number above this one if there is one.
    pub fn create_inode_behind(&mut self, ino: Ino, attr: Attr) -> Result<Ino> {
        let before = std::mem::replace(&mut self.next_ino, ino.0.saturating_add(1));
        let made = self.create_inode(attr);
        self.next_ino = before;
        made
    }

    /// Deletes an inode that nobody uses any more: with the next checkpoint its blocks end and
    /// its number is free. Works on inodes that cannot be opened, too.
    pub fn delete_inode(&mut self, ino: Ino) -> Result<()> {
        self.writable()?;
        let loaded = self.load(ino);
        let damaged = loaded.is_err();
        if let Err(e) = loaded {
            // Damaged: what can be freed is its number; its blocks are for repair.
            let raw = self.raw_inode(ino).map_err(|_| e)?;
            let mut broken = Inode::load(ino, &RawInode { bmap: [0; 56], ..raw });
            broken.attr.mode = 0o100_000;
            self.inodes.insert(ino.0, Box::new(broken));
        }
        let bs = self.store.geometry.block_size;
        let i = self.live_mut(ino)?;
        i.deleted = true;
        let blocks = i.map.blocks / u64::from(bs / 512);
        if !damaged {
            // None of another ends, whatever number it has there.
            self.dirty.ends(blocks);
        }
        self.gave_up(blocks);
        let Some(i) = self.inodes.get_mut(&ino.0) else { return Err(Error::NoInode(ino.0)) };
        i.needs_checkpoint = true;
        i.attr.links = 0;
        let dropped = i.current.blocks.len() as u64;
        i.current = Default::default();
        i.pending = 0;
        let forget = !i.on_disk && i.frozen.is_none();
        self.dirty_blocks -= dropped;
        self.inodes_count = self.inodes_count.saturating_sub(1);
        if forget {
            self.inodes.remove(&ino.0);
            self.dirty.remove(ino.0);
            self.new_numbers.remove(ino.0..ino.0 + 1);
            self.next_ino = self.next_ino.min(ino.0);
        }
        Ok(())
    }

    /// Calls `f` for every allocated inode number of users from `from` on, until it breaks.
    pub fn for_each_inode(
        &self,
        from: u64,
        mut f: impl FnMut(Ino, &RawInode) -> ControlFlow<()>,
    ) -> Result<()> {
        let palloc = self.ifile.palloc;
        let per_group = palloc.layout.entries_per_group();
        let mut nr = from.max(self.store.geometry.first_ino);
        // Along the blocks that exist, not along the numbers there could be.
        while let Some(group) = self.next_bitmap(palloc.layout.group(nr))? {
            nr = nr.max(group * per_group);
            // Of a group that cannot be read nothing is known.
            let bitmap = self.ifile.file.block(&self.store, &self.dat, palloc.layout.bitmap_block(group));
            let bitmap = bitmap.ok().flatten();
            while palloc.layout.group(nr) == group {
                let bit = palloc.layout.bit(nr);
                let taken =
                    bitmap.as_ref().and_then(|b| b.get(bit / 8)).is_some_and(|b| b >> (bit % 8) & 1 == 1);
                if taken
                    && let Ok(raw) = self.ifile.get(&self.store, &self.dat, Ino(nr))
                    && f(Ino(nr), &raw).is_break()
                {
                    return Ok(());
                }
                nr += 1;
            }
        }
        Ok(())
    }

    /// The first group from `group` on whose bitmap exists.
    fn next_bitmap(&self, group: u64) -> Result<Option<u64>> {
        let layout = self.ifile.palloc.layout;
        let file = &self.ifile.file;
        let first = layout.bitmap_block(group);
        let is_bitmap = |block: u64| match layout.kind(block) {
            Part::Bitmap { group } if group < layout.ngroups() => Some(group),
            _ => None,
        };
        let mut found = file.data.range(first..).find_map(|(block, _)| is_bitmap(*block));
        let reader = NodeReader { nodes: &file.map.nodes, store: &self.store, resolve: &self.dat };
        bmap::for_each(&file.map.root, &reader, first, |block, _| match is_bitmap(block) {
            Some(group) => {
                found = Some(found.map_or(group, |f| f.min(group)));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        })?;
        Ok(found)
    }

    /// Where block `key` of a file is.
    pub fn locate(&mut self, tree: Tree, ino: Ino, key: u64) -> Result<Piece> {
        self.inode(tree, ino)?;
        let i = self.loaded(tree, ino)?;
        match i.in_memory(key) {
            Some(Some(b)) => return Ok(Piece::Memory(b.clone())),
            Some(None) => return Ok(Piece::Hole),
            None => {}
        }
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        match bmap::lookup(&i.map.root, &reader, key)? {
            Some(ptr) => self.piece_of(tree, ptr, true),
            None => Ok(Piece::Hole),
        }
    }

    /// Where the blocks `keys` of a file are, in order.
    pub fn locate_range(&mut self, tree: Tree, ino: Ino, keys: Range<u64>) -> Result<Vec<Piece>> {
        self.inode(tree, ino)?;
        let i = self.loaded(tree, ino)?;
        let n = usize::try_from(keys.end.saturating_sub(keys.start)).unwrap_or(0);
        let mut pieces: Vec<Option<Piece>> = keys
            .clone()
            .map(|key| {
                i.in_memory(key).map(|b| match b {
                    Some(b) => Piece::Memory(b.clone()),
                    None => Piece::Hole,
                })
            })
            .collect();
        if pieces.iter().any(Option::is_none) {
            let mut mapped = Vec::with_capacity(n);
            let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
            bmap::for_each(&i.map.root, &reader, keys.start, |key, ptr| {
                if key >= keys.end {
                    return ControlFlow::Break(());
                }
                mapped.push((key, ptr));
                ControlFlow::Continue(())
            })?;
            for (key, ptr) in mapped {
                if let Some(slot @ None) = pieces.get_mut((key - keys.start) as usize) {
                    *slot = Some(self.piece_of(tree, ptr, n <= FEW)?);
                }
            }
        }
        Ok(pieces.into_iter().map(|p| p.unwrap_or(Piece::Hole)).collect())
    }

    /// A data block of a tree's file: one that is being moved is in memory, and those that were asked for may be.
    fn piece_of(&self, tree: Tree, ptr: u64, look: bool) -> Result<Piece> {
        let at = self.place_in(tree, ptr)?;
        let kept = if look { self.store.part(ptr) } else { self.store.moving(ptr).cloned() };
        Ok(kept.map_or(Piece::Disk(at), Piece::Memory))
    }

    /// Where a data block of a tree's file is.
    fn place_in(&self, tree: Tree, ptr: u64) -> Result<BlockNr> {
        match tree {
            Tree::Live => self.dat.translate(&self.store, VBlockNr(ptr)),
            Tree::Past(c) => self.dat.translate_at(&self.store, VBlockNr(ptr), Cno(c)),
        }
    }

    pub(crate) fn loaded(&self, tree: Tree, ino: Ino) -> Result<&Inode> {
        let found = match tree {
            Tree::Live => self.inodes.get(&ino.0).map(|i| &**i),
            Tree::Past(c) => self.views.get(&c).and_then(|v| v.inodes.get(&ino.0)),
        };
        found.ok_or(Error::NoInode(ino.0))
    }

    /// Reads block `key`, waiting for the device if need be; `None` for a hole. Blocks of
    /// directories and symlinks are cached; those of files are the kernel's to cache, but for [`Block::to_be_read`].
    pub fn read_block(&mut self, tree: Tree, ino: Ino, key: u64) -> Result<Option<Block>> {
        self.inode(tree, ino)?;
        let i = self.loaded(tree, ino)?;
        if let Some(b) = i.in_memory(key) {
            return Ok(b.cloned());
        }
        let cache = !i.attr.is_regular();
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        match bmap::lookup(&i.map.root, &reader, key)? {
            None => Ok(None),
            Some(ptr) if cache => read_data(&self.store, &self.dat, Kind::Names, ptr).map(Some),
            Some(ptr) => match self.piece_of(tree, ptr, true)? {
                Piece::Memory(b) => Ok(Some(b)),
                Piece::Disk(at) => self.store.read(Kind::Data, at).map(Some),
                Piece::Hole => Ok(None),
            },
        }
    }

    /// Whether block `key` of a live file holds data.
    fn is_mapped(&self, i: &Inode, key: u64) -> Result<bool> {
        if let Some(b) = i.in_memory(key) {
            return Ok(b.is_some());
        }
        if i.map.is_empty() {
            return Ok(false);
        }
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        Ok(bmap::lookup(&i.map.root, &reader, key)?.is_some())
    }

    /// Copies data into blocks for [`Volume::write_block`]; what is behind the last whole one is left.
    pub fn cut_into_blocks(&self, data: &[u8]) -> Vec<Block> {
        self.store.slabs.cut(data, self.store.geometry.bs())
    }

    /// Writes a whole block. Whether there is space is for the caller to ask first
    /// ([`Volume::check_space`]); what is needed to delete goes without asking. Errors: key past the
    /// limit.
    pub fn write_block(&mut self, ino: Ino, key: u64, block: Block) -> Result<()> {
        if key > self.store.geometry.max_key() || block.len() != self.store.geometry.bs() {
            return Err(Error::Invalid(format!("block {key} cannot be written")));
        }
        self.writable()?;
        self.load(ino)?;
        let i = self.loaded(Tree::Live, ino)?;
        let replaced = i.current.blocks.contains_key(&key);
        let fresh = !replaced && !self.is_mapped(i, key)?;
        let new_leaf = new_leaf(i, key, self.store.geometry.bs());
        let i = self.live_mut(ino)?;
        i.current.blocks.insert(key, block);
        if fresh {
            i.pending += 1;
        }
        if !replaced {
            self.dirty_blocks += 1;
        }
        if let Some(nodes) = new_leaf {
            self.dirty.leaf(nodes);
        }
        Ok(())
    }

    /// Puts a recovered block into a file.
    pub(crate) fn recover_block(&mut self, ino: Ino, key: u64, block: Block) -> Result<()> {
        self.load(ino)?;
        let i = self.loaded(Tree::Live, ino)?;
        // Of a damaged map the checkpoint will tell.
        let fresh = !self.is_mapped(i, key).unwrap_or(true);
        let new_leaf = new_leaf(i, key, self.store.geometry.bs());
        let Some(i) = self.inodes.get_mut(&ino.0) else { return Err(Error::NoInode(ino.0)) };
        i.dirty = true;
        self.dirty.insert(ino.0);
        i.pending += i64::from(fresh);
        if i.current.blocks.insert(key, block).is_none() {
            self.dirty_blocks += 1;
            if let Some(nodes) = new_leaf {
                self.dirty.leaf(nodes);
            }
        }
        Ok(())
    }

    /// Calls `f` for every block offset from `from` on that holds data, ascending.
    pub fn for_each_data(
        &mut self,
        tree: Tree,
        ino: Ino,
        from: u64,
        mut f: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inode(tree, ino)?;
        let i = self.loaded(tree, ino)?;
        self.walk_data(i, from, |key| key.map_or(ControlFlow::Continue(()), &mut f))
    }

    /// As [`Volume::for_each_data`]; `f` is also told, by `None`, of every key of the map and every
    /// range that was passed over because it is overwritten or cut away.
    pub(crate) fn walk_data(
        &self,
        i: &Inode,
        from: u64,
        mut f: impl FnMut(Option<u64>) -> ControlFlow<()>,
    ) -> Result<()> {
        // Keys in memory, ascending: the current layer hides the frozen one.
        let mut current = i.current.blocks.range(from..).map(|(k, _)| *k).peekable();
        let mut below = i
            .frozen
            .iter()
            .flat_map(|f| f.over.blocks.range(from..))
            .map(|(k, _)| *k)
            .filter(|k| i.current.get(*k).is_none())
            .peekable();
        let mut memory = std::iter::from_fn(move || match (current.peek(), below.peek()) {
            (Some(c), Some(b)) if b < c => below.next(),
            (Some(_), _) => current.next(),
            (None, _) => below.next(),
        })
        .peekable();
        let reader = NodeReader { nodes: &i.map.nodes, store: &self.store, resolve: &self.dat };
        let mut next = Some(from);
        while let Some(at) = next {
            if let Some(hidden) = i.hidden(at) {
                next = (hidden.end < u64::MAX).then_some(hidden.end);
                if f(None).is_break() {
                    return Ok(());
                }
                continue;
            }
            let stop = i.next_hidden(at);
            next = None;
            let mut stopped = false;
            bmap::for_each(&i.map.root, &reader, at, |key, _| {
                if key >= stop {
                    // No file reaches the greatest key: only damage has it, and nothing is behind it.
                    next = (key < u64::MAX).then_some(key);
                    return ControlFlow::Break(());
                }
                let seen = std::iter::from_fn(|| memory.next_if(|m| *m < key)).map(Some);
                let here = i.in_memory(key).is_none().then_some(key);
                let told = seen.chain([here]).try_for_each(&mut f);
                stopped |= told.is_break();
                told
            })?;
            if stopped {
                return Ok(());
            }
        }
        let _ = memory.map(Some).try_for_each(f);
        Ok(())
    }

    /// Blocks waiting for a log, those of a checkpoint under construction included.
    pub fn waiting_blocks(&self) -> u64 {
        self.dirty_blocks + self.frozen_blocks
    }

    /// Blocks that no checkpoint, begun or made, holds.
    pub fn unfrozen_blocks(&self) -> u64 {
        self.dirty_blocks
    }

    /// Whether syncing this inode's data alone is enough: nothing but overwritten data and times
    /// waits (spec 12.5). Never for a file without a name: the kernel does not mount a volume whose
    /// synced data is that of an inode without links (spec 4.4).
    pub fn data_sync_suffices(&self, ino: Ino) -> bool {
        self.store.geometry.block_size >= 4096
            && self.inodes.get(&ino.0).is_some_and(|i| {
                let plain = i.attr.is_regular() && i.attr.links > 0;
                plain && i.on_disk && !i.needs_checkpoint && i.current.cuts.is_empty()
            })
    }

    /// Whether anything of this inode waits for a log.
    pub fn is_inode_dirty(&self, ino: Ino) -> bool {
        self.inodes.get(&ino.0).is_some_and(|i| i.dirty || i.frozen.is_some())
    }

    /// Takes the error that kept an inode's content out of a checkpoint.
    pub fn take_inode_error(&mut self, ino: Ino) -> Option<String> {
        self.inodes.get_mut(&ino.0).and_then(|i| i.error.take())
    }
}
