//! The disk address translation file: where each virtual block is, and which checkpoints it
//! belongs to (spec section 7).
//!
//! Entries are changed only while a log is composed. Invariant: every block that a log's
//! assignment will touch was made dirty when its entry was allocated, so assigning places never
//! enlarges the log.

use hashbrown::HashMap;
use silt_device::Kind;
use silt_format::dat::{DatEntry, LIVE};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Cno, Geometry, Ino, VBlockNr};

use crate::block::{self, Block};
use crate::bmap::{self, Nodes, ReadNodes};
use crate::meta::{MetaFile, Physical, Resolve, read_node};
use crate::palloc::{Palloc, Search};
use crate::store::{Key, Store};
use crate::{Error, Result};

/// Blocks of entries that cannot be changed, beyond which no more are looked for.
const DAMAGED_BLOCKS: usize = 256;
/// Numbers that are handed out, as a part of the volume's blocks more than these.
const NUMBERS_MORE: u64 = 4;
/// Pointers of changed DAT nodes that have no place yet carry this bit.
const TEMPORARY: u64 = 1 << 63;

/// The DAT of a volume.
#[derive(Clone)]
pub struct Dat {
    pub file: MetaFile,
    pub palloc: Palloc,
    /// Where the search for a free number goes on.
    hint: u64,
    /// Groups that may be searched before the file is enlarged.
    groups: u64,
    /// The group the last number came from: found sound, and changed only here since.
    trusted: Option<u64>,
    /// Blocks of entries that could not be changed: no number of theirs is handed out.
    damaged: Vec<u64>,
    /// The checkpoint under construction, or the next one: no entry says anything of later ones.
    pub now: Cno,
    /// Lifetimes that cannot be do not matter: they are being mended.
    pub lenient: bool,
    /// The tree under construction is that of these past checkpoints, from the first to before the second: what is
    /// written lives in them alone, and nothing ends (mending).
    pub(crate) past: Option<(Cno, Cno)>,
    next_temporary: u64,
}

impl Resolve for Dat {
    const NODES: Kind = Kind::Maps;

    fn key(&self, ptr: u64) -> Key {
        Key::Virtual(ptr)
    }
    fn locate(&self, store: &Store, ptr: u64) -> Result<BlockNr> {
        self.translate(store, VBlockNr(ptr))
    }
}

impl Dat {
    /// From its inode in the super root.
    pub fn new(geometry: &Geometry, raw: RawInode, now: Cno) -> Self {
        let layout = Layout::dat(geometry);
        Dat {
            file: MetaFile::new(Ino::DAT, raw),
            palloc: Palloc { layout, name: "DAT" },
            hint: 1,
            groups: 0,
            trusted: None,
            damaged: Vec::new(),
            now,
            lenient: false,
            past: None,
            next_temporary: TEMPORARY,
        }
    }

    /// The entry of `v`; an error where it cannot be.
    pub fn entry(&self, store: &Store, v: VBlockNr) -> Result<DatEntry> {
        let bad = |what: &str| Error::corrupt(format!("virtual block {v}"), "DAT", what);
        if v.0 == 0 {
            return Err(bad("number 0"));
        }
        self.palloc.layout.check("DAT", v.0).map_err(|e| Error::at(format!("virtual block {v}"), e))?;
        let place = self.palloc.layout.entry(v.0);
        let block = self
            .file
            .block(store, &Physical, place.block)?
            .ok_or_else(|| bad("no entry for a number in use"))?;
        DatEntry::read(&block, place.byte).map_err(|e| Error::at(format!("virtual block {v}"), e))
    }

    /// The entries of some numbers that ascend, each with what was given with it; looks blocks up once.
    pub fn entries<T>(
        &self,
        store: &Store,
        numbers: impl IntoIterator<Item = (VBlockNr, T)>,
        mut f: impl FnMut(T, DatEntry) -> Result<()>,
    ) -> Result<()> {
        let mut known: Option<(u64, Block)> = None;
        for (v, with) in numbers {
            let place = self.palloc.layout.entry(v.0);
            let entry = match &known {
                Some((nr, block)) if *nr == place.block => DatEntry::read(block, place.byte)
                    .map_err(|e| Error::at(format!("virtual block {v}"), e))?,
                _ => {
                    let entry = self.entry(store, v)?;
                    known = self.file.block(store, &Physical, place.block)?.map(|b| (place.block, b));
                    entry
                }
            };
            f(with, entry)?;
        }
        Ok(())
    }

    /// Where the block is on disk.
    pub fn translate(&self, store: &Store, v: VBlockNr) -> Result<BlockNr> {
        self.checked(store, v, &self.entry(store, v)?)
    }

    /// The same for what checkpoint `c` needs: the block must be part of it (spec 7.1).
    pub fn translate_at(&self, store: &Store, v: VBlockNr, c: Cno) -> Result<BlockNr> {
        let e = self.entry(store, v)?;
        if !e.contains(c.0) {
            return Err(Error::corrupt(
                format!("virtual block {v}"),
                "DAT",
                format!("lives from {} to {}, and checkpoint {c} needs it", e.start, e.end),
            ));
        }
        self.checked(store, v, &e)
    }

    /// The place an entry names, if the entry makes sense.
    fn checked(&self, store: &Store, v: VBlockNr, e: &DatEntry) -> Result<BlockNr> {
        let bad = |what: String| Error::corrupt(format!("virtual block {v}"), "DAT", what);
        let at = BlockNr(e.blocknr.get());
        if !store.geometry.holds(at) {
            return Err(bad(format!("translates to block {at}")));
        }
        let (start, end) = (e.start.get(), e.end.get());
        if self.lenient {
            return Ok(at);
        }
        if start > self.now.0 || end < start || (end != LIVE && end > self.now.0) {
            return Err(bad(format!("lives from {start} to {end}, before checkpoint {}", self.now)));
        }
        Ok(at)
    }

    pub(crate) fn entry_mut(
        &mut self,
        store: &Store,
        v: VBlockNr,
        f: impl FnOnce(&mut DatEntry) -> Result<()>,
    ) -> Result<()> {
        let place = self.palloc.layout.entry(v.0);
        let b = self.file.block_mut(store, &Physical, place.block, |_| {})?;
        let mut e = DatEntry::read(b, place.byte).map_err(|e| Error::at(format!("virtual block {v}"), e))?;
        f(&mut e)?;
        if e.store(b, place.byte) {
            Ok(())
        } else {
            Err(Error::corrupt(format!("virtual block {v}"), "DAT", "entry outside its block"))
        }
    }

    /// Looks at the group again that the last number came from.
    #[cfg(test)]
    pub fn forget_trust(&mut self) {
        self.trusted = None;
    }

    /// Hands out a free number (spec 7.3). Next fit, so that one log's numbers share few blocks.
    pub fn allocate(&mut self, store: &mut Store) -> Result<VBlockNr> {
        if self.groups == 0 {
            // Where the map cannot tell, the search begins with the first group. The kernel may have used one of
            // the last groups there can be (spec 5.7): those between are none to be enlarged into.
            let used = self.palloc.used_groups(&self.file, store, &Physical).unwrap_or(1);
            let blocks = store.geometry.end_block();
            self.groups = used.min(blocks / self.palloc.layout.entries_per_group() + 1);
        }
        loop {
            let nr = self.find_free(store)?;
            // Its entry can be changed before it counts as taken.
            let taken = self
                .entry_mut(store, VBlockNr(nr), |e| {
                    *e = DatEntry::allocated(e.rsv.get());
                    Ok(())
                })
                .and_then(|()| self.palloc.set(&mut self.file, store, &Physical, nr));
            match taken {
                Ok(()) => {
                    self.hint = nr + 1;
                    self.trusted = Some(self.palloc.layout.group(nr));
                    store.forget(Key::Virtual(nr));
                    return Ok(VBlockNr(nr));
                }
                // A block of entries that cannot be read: elsewhere there are others.
                Err(Error::Format { .. } | Error::Device(_)) if self.damaged.len() < DAMAGED_BLOCKS => {
                    self.damaged.push(self.palloc.layout.entry(nr).block);
                    self.trusted = None;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether a free number is not to be handed out: the next one that may be.
    fn passed_over(&self, nr: u64) -> Option<u64> {
        if nr == 0 {
            return Some(1);
        }
        let layout = &self.palloc.layout;
        if self.damaged.is_empty() || !self.damaged.contains(&layout.entry(nr).block) {
            return None;
        }
        Some(layout.last_of_block(nr).saturating_add(1))
    }

    /// As many numbers as are enough: each block of the volume has one at most, and some are left so that those of one log
    /// share few blocks. On volumes much smaller than a group is for, the table would take a large part of them otherwise,
    /// and what is kept back for a change of all of it grew while a full volume was emptied.
    fn numbers(&self, g: &Geometry) -> u64 {
        let blocks = g.end_block();
        blocks.saturating_add(blocks / NUMBERS_MORE).next_multiple_of(self.palloc.layout.entries_per_block())
    }

    /// A free number, in a group more than there are if need be. Damaged groups are left alone.
    fn find_free(&mut self, store: &Store) -> Result<u64> {
        let find = |dat: &Self, from: u64, groups: u64| {
            let skip = |nr| dat.passed_over(nr);
            let search = Search { from, end_group: groups, trusted: dat.trusted };
            dat.palloc.find_free(&dat.file, store, &Physical, search, skip)
        };
        let most = self.numbers(&store.geometry);
        let next = find(self, self.hint, self.groups)?;
        if let Some(nr) = next.filter(|nr| *nr < most) {
            return Ok(nr);
        }
        let first = find(self, 1, self.groups.min(self.palloc.layout.group(self.hint) + 1))?;
        if let Some(nr) = first.filter(|nr| *nr < most).or(next).or(first) {
            return Ok(nr);
        }
        let layout = self.palloc.layout;
        // A damaged descriptor spoils all the groups it is for.
        for _ in 0..2 * layout.groups_per_desc() {
            self.groups += 1;
            if let Some(nr) = find(self, (self.groups - 1) * layout.entries_per_group(), self.groups)? {
                return Ok(nr);
            }
        }
        Err(Error::Invalid("the DAT is full".into()))
    }

    /// Ends the life of `v` while checkpoint `c` is made; `dead` for files of which only the
    /// newest version counts (spec 7.4).
    pub fn end(&mut self, store: &mut Store, v: VBlockNr, c: Cno, dead: bool) -> Result<()> {
        let mut never_written = false;
        let past = self.past.is_some() && !dead;
        self.entry(store, v)?;
        self.entry_mut(store, v, |e| {
            if e.blocknr.get() == 0 {
                // Anything but a fresh entry (spec 7.2) has lost its place: checkpoints may need it.
                if (e.start.get(), e.end.get()) != (1, LIVE) {
                    return Err(Error::corrupt(
                        format!("virtual block {v}"),
                        "DAT",
                        format!("has no place, and lives from {} to {}", e.start, e.end),
                    ));
                }
                never_written = true;
                *e = DatEntry { blocknr: 0.into(), start: 1.into(), end: 1.into(), rsv: e.rsv };
            } else {
                if past {
                    return Ok(());
                }
                if e.start.get() > c.0 || e.end.get() != LIVE {
                    return Err(Error::corrupt(
                        format!("virtual block {v}"),
                        "DAT",
                        format!("ends at checkpoint {c} but lives from {} to {}", e.start, e.end),
                    ));
                }
                e.end = if dead { e.start } else { c.0.into() };
            }
            Ok(())
        })?;
        if never_written {
            self.palloc.clear(&mut self.file, store, &Physical, v.0)?;
            store.forget(Key::Virtual(v.0));
            self.hint = self.hint.min(v.0);
        } else {
            store.replaces(Key::Virtual(v.0));
        }
        Ok(())
    }

    /// Gives the numbers of dead blocks back, which ascend (spec 13.5, step 4); their entries stay as they are. How many:
    /// not those that are free already, nor those of a damaged group.
    pub fn release_all(&mut self, store: &mut Store, numbers: &[VBlockNr]) -> Result<u64> {
        let mut freed = 0;
        let layout = self.palloc.layout;
        for of_group in numbers.chunk_by(|a, b| layout.group(a.0) == layout.group(b.0)) {
            freed += self.palloc.clear_all(&mut self.file, store, &Physical, of_group.iter().map(|v| v.0))?;
        }
        for v in numbers {
            store.forget(Key::Virtual(v.0));
        }
        Ok(freed)
    }

    /// Gives `v` its place in a log: with the first one its life begins, at checkpoint `start` (spec 7.5); without
    /// it is moved (spec 7.6).
    pub fn assign(&mut self, store: &Store, v: VBlockNr, at: BlockNr, start: Option<Cno>) -> Result<()> {
        let past = self.past;
        self.entry_mut(store, v, |e| {
            e.blocknr = at.0.into();
            if let Some(c) = start {
                e.start = c.0.into();
                if let Some((from, to)) = past {
                    (e.start, e.end) = (from.0.into(), to.0.into());
                }
            }
            Ok(())
        })
    }

    /// Takes the place of `v` back: as if it had never been written.
    pub fn unassign(&mut self, store: &Store, v: VBlockNr) -> Result<()> {
        self.entry_mut(store, v, |e| {
            *e = DatEntry::allocated(e.rsv.get());
            Ok(())
        })
    }

    /// Makes every ancestor of every changed data block writable: the set of blocks the log must
    /// hold is complete afterwards.
    pub fn mark_ancestors(&mut self, store: &Store) -> Result<()> {
        let offsets: Vec<u64> = self.file.data.keys().copied().collect();
        let MetaFile { map, .. } = &mut self.file;
        for offset in offsets {
            let mut nodes = DatNodes {
                store,
                nodes: &mut map.nodes,
                blocks: &mut map.blocks,
                next: &mut self.next_temporary,
            };
            // Any value will do: assignment puts the place there.
            let placeholder = bmap::lookup(&map.root, &nodes, offset)?.unwrap_or(TEMPORARY);
            if bmap::set(&mut map.root, &mut nodes, offset, placeholder)?.is_none() {
                map.blocks += u64::from(store.geometry.block_size / 512);
            }
        }
        Ok(())
    }

    /// Maps a block of the file to where it lies already.
    pub fn adopt(&mut self, store: &Store, offset: u64, at: BlockNr) -> Result<()> {
        if self.set_place(store, offset, at)?.is_none() {
            self.file.map.blocks += u64::from(store.geometry.block_size / 512);
        }
        Ok(())
    }

    /// Maps a block of the file; what was there before.
    fn set_place(&mut self, store: &Store, offset: u64, at: BlockNr) -> Result<Option<u64>> {
        let MetaFile { map, .. } = &mut self.file;
        let mut nodes = DatNodes {
            store,
            nodes: &mut map.nodes,
            blocks: &mut map.blocks,
            next: &mut self.next_temporary,
        };
        bmap::set(&mut map.root, &mut nodes, offset, at.0)
    }

    /// Puts the place of a data block into its parent.
    pub fn assign_data(&mut self, store: &Store, offset: u64, at: BlockNr) -> Result<()> {
        if let Some(old) = self.set_place(store, offset, at)? {
            store.replaces(Key::Physical(old));
        }
        Ok(())
    }

    /// Puts the place of a changed node into its parent and knows the node by it from now on.
    pub fn assign_node(&mut self, ptr: u64, key: u64, level: u8, at: BlockNr) -> Result<()> {
        let map = &mut self.file.map;
        set_child(&mut map.root, &mut map.nodes, key, level, ptr, at.0)?;
        match map.nodes.remove(&ptr) {
            Some(b) => {
                map.nodes.insert(at.0, b);
                Ok(())
            }
            None => Err(Error::Invalid("a DAT node vanished while it was placed".into())),
        }
    }
}

/// Replaces pointer `old` to the node of `level` with first key `key` by `new`.
fn set_child(
    root: &mut bmap::Root,
    nodes: &mut HashMap<u64, Block>,
    key: u64,
    level: u8,
    old: u64,
    new: u64,
) -> Result<()> {
    use silt_format::btree::{Node, NodeMut};
    let lost = || Error::Invalid("a DAT node has no parent".into());
    let top = Node::root(root);
    let mut here = top.level();
    let mut index = top.child_for(key);
    if here == level + 1 {
        if top.ptr(index) != old {
            return Err(lost());
        }
        NodeMut::root(root).set_ptr(index, new);
        return Ok(());
    }
    let mut ptr = top.ptr(index);
    while here > level + 1 {
        here -= 1;
        let b = nodes.get_mut(&ptr).ok_or_else(lost)?;
        let node = Node::block(b);
        index = node.child_for(key);
        if here == level + 1 {
            if node.ptr(index) != old {
                return Err(lost());
            }
            NodeMut::block(block::writable(b)).set_ptr(index, new);
            return Ok(());
        }
        ptr = node.ptr(index);
    }
    Err(lost())
}

/// Node access of the DAT's own map: pointers are places, changed nodes have temporary ones.
struct DatNodes<'a> {
    store: &'a Store,
    nodes: &'a mut HashMap<u64, Block>,
    blocks: &'a mut u64,
    next: &'a mut u64,
}

impl ReadNodes for DatNodes<'_> {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        match self.nodes.get(&ptr) {
            Some(b) => Ok(b.clone()),
            None => read_node(self.store, &Physical, ptr, level),
        }
    }
}

impl Nodes for DatNodes<'_> {
    fn block_size(&self) -> usize {
        self.store.geometry.bs()
    }

    fn make_writable(&mut self, ptr: u64, level: u8) -> Result<u64> {
        if self.nodes.contains_key(&ptr) {
            return Ok(ptr);
        }
        let b = read_node(self.store, &Physical, ptr, level)?;
        self.store.replaces(Key::Physical(ptr));
        *self.next += 1;
        self.nodes.insert(*self.next, b);
        Ok(*self.next)
    }

    fn node_mut(&mut self, ptr: u64) -> Result<&mut [u8]> {
        match self.nodes.get_mut(&ptr) {
            Some(b) => Ok(block::writable(b)),
            None => Err(Error::Invalid("a DAT node is not writable".into())),
        }
    }

    fn create(&mut self) -> Result<u64> {
        *self.next += 1;
        self.nodes.insert(*self.next, block::zeroed(self.block_size()));
        *self.blocks += u64::from(self.store.geometry.block_size / 512);
        Ok(*self.next)
    }

    fn discard(&mut self, ptr: u64, _level: u8) -> Result<()> {
        self.nodes.remove(&ptr);
        *self.blocks = self.blocks.saturating_sub(u64::from(self.store.geometry.block_size / 512));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fresh::fresh;

    /// On a volume of 4096 blocks, a group has 32,768 numbers; going round all of them, 256 blocks were for the table.
    #[test]
    fn numbers_go_round_in_little_more_than_the_volume_has_blocks() {
        let (_, mut v) = fresh(16 << 20, 64);
        let (dat, store) = (&mut v.dat, &mut v.store);
        let (mut greatest, mut again) = (0, 0);
        let first = dat.allocate(store).unwrap();
        for _ in 0..12_000 {
            let nr = dat.allocate(store).unwrap();
            again += u64::from(nr.0 < greatest);
            greatest = greatest.max(nr.0);
            dat.assign(store, nr, BlockNr(100), Some(Cno(1))).unwrap();
            assert_eq!(dat.release_all(store, &[nr]).unwrap(), 1);
        }
        assert!((4096..=5248).contains(&greatest) && again > 1, "{greatest}, {again}");
        // Where they are all in use there are others.
        let more: Vec<u64> = (0..6000).map(|_| dat.allocate(store).unwrap().0).collect();
        let all: std::collections::BTreeSet<u64> = more.iter().copied().chain([first.0]).collect();
        assert!(all.len() == more.len() + 1 && more.iter().any(|nr| *nr > 5248));
    }
}
