//! Node access of files with virtual pointers: regular files, directories, symlinks, and the
//! ifile, cpfile and sufile.

use hashbrown::HashMap;
use silt_format::{Cno, VBlockNr};

use crate::block::{self, Block};
use crate::bmap::{self, Nodes, ReadNodes, Severed};
use crate::dat::Dat;
use crate::meta::{Map, MetaFile, read_node};
use crate::store::Store;
use crate::{Error, Result};

/// What an error counts as, in blocks of work.
const FAILED: usize = 16;

/// What changing a map needs besides the map. `cno` is the checkpoint under construction.
pub struct Change<'a> {
    pub store: &'a mut Store,
    pub dat: &'a mut Dat,
    pub cno: Cno,
    /// Old versions are garbage at once (cpfile and sufile, spec 7.4).
    pub dead: bool,
    /// Blocks added to or removed from the map, data and nodes.
    pub delta: i64,
    /// What was wrong with the entry of a block that is mapped no more: it stays taken.
    pub damage: Option<Error>,
    /// Whether an entry that cannot be read may be later ([`crate::patience`]), and blocks that are to end then.
    pub patient: bool,
    pub owed: Vec<VBlockNr>,
}

impl<'a> Change<'a> {
    /// One of a map whose old versions stay with their checkpoints.
    pub fn new(store: &'a mut Store, dat: &'a mut Dat, cno: Cno) -> Self {
        Self { store, dat, cno, dead: false, delta: 0, damage: None, patient: false, owed: Vec::new() }
    }

    /// One of cpfile or sufile.
    pub fn dead(store: &'a mut Store, dat: &'a mut Dat, cno: Cno) -> Self {
        Self { dead: true, ..Self::new(store, dat, cno) }
    }
}

struct VirtualNodes<'a, 'b> {
    change: &'a mut Change<'b>,
    nodes: &'a mut HashMap<u64, Block>,
}

impl ReadNodes for VirtualNodes<'_, '_> {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        match self.nodes.get(&ptr) {
            Some(b) => Ok(b.clone()),
            None => read_node(self.change.store, self.change.dat, ptr, level),
        }
    }
}

impl Nodes for VirtualNodes<'_, '_> {
    fn block_size(&self) -> usize {
        self.change.store.geometry.bs()
    }

    fn make_writable(&mut self, ptr: u64, level: u8) -> Result<u64> {
        if self.nodes.contains_key(&ptr) {
            return Ok(ptr);
        }
        let Change { store, dat, cno, dead, .. } = &mut *self.change;
        let b = read_node(store, *dat, ptr, level)?;
        let new = dat.allocate(store)?;
        // What the copy replaces stays taken if its entry makes no sense.
        let ended = dat.end(store, VBlockNr(ptr), *cno, *dead);
        self.nodes.insert(new.0, b);
        self.change.leave(VBlockNr(ptr), ended)?;
        Ok(new.0)
    }

    fn node_mut(&mut self, ptr: u64) -> Result<&mut [u8]> {
        match self.nodes.get_mut(&ptr) {
            Some(b) => Ok(block::writable(b)),
            None => Err(Error::Invalid("a node is not writable".into())),
        }
    }

    fn create(&mut self) -> Result<u64> {
        let new = self.change.dat.allocate(self.change.store)?;
        self.nodes.insert(new.0, block::zeroed(self.block_size()));
        self.change.delta += 1;
        Ok(new.0)
    }

    fn discard(&mut self, ptr: u64, _level: u8) -> Result<()> {
        self.nodes.remove(&ptr);
        self.change.delta -= 1;
        self.change.end_old(ptr)
    }

    fn end(&mut self, ptr: u64, _level: u8) -> Result<()> {
        let Change { store, dat, cno, dead, .. } = &mut *self.change;
        let ended = dat.end(store, VBlockNr(ptr), *cno, *dead);
        if !matches!(ended, Err(Error::Device(_))) {
            self.nodes.remove(&ptr);
            self.change.delta -= 1;
        }
        ended
    }
}

impl Change<'_> {
    /// Gives block `key` a new virtual number, ending the old one's life; the number is returned.
    pub fn replace(&mut self, map: &mut Map, key: u64) -> Result<VBlockNr> {
        let new = self.dat.allocate(self.store)?;
        let before = self.delta;
        let old =
            bmap::set(&mut map.root, &mut VirtualNodes { change: self, nodes: &mut map.nodes }, key, new.0);
        match old {
            Ok(Some(old)) => self.end_old(old)?,
            Ok(None) => self.delta += 1,
            Err(e) => {
                self.dat.end(self.store, new, self.cno, self.dead)?;
                return Err(e);
            }
        }
        self.count(map, before);
        Ok(new)
    }

    /// Maps `key` to a block that has a number and a place already.
    pub fn adopt(&mut self, map: &mut Map, key: u64, v: VBlockNr) -> Result<()> {
        let before = self.delta;
        let nodes = &mut VirtualNodes { change: self, nodes: &mut map.nodes };
        if bmap::set(&mut map.root, nodes, key, v.0)?.is_none() {
            self.delta += 1;
        }
        self.count(map, before);
        Ok(())
    }

    /// Unmaps `key`; tells whether it was mapped.
    pub fn unmap(&mut self, map: &mut Map, key: u64) -> Result<bool> {
        let before = self.delta;
        let old =
            bmap::remove(&mut map.root, &mut VirtualNodes { change: self, nodes: &mut map.nodes }, key)?;
        if let Some(old) = old {
            self.delta -= 1;
            self.end_old(old)?;
        }
        self.count(map, before);
        Ok(old.is_some())
    }

    /// Ends the life of a block that was just unmapped. The map is right whatever its entry says.
    fn end_old(&mut self, old: u64) -> Result<()> {
        let ended = self.dat.end(self.store, VBlockNr(old), self.cno, self.dead);
        self.leave(VBlockNr(old), ended)
    }

    /// Passes over damage of the entry of a block that nothing needs any more: it stays taken.
    fn leave(&mut self, old: VBlockNr, ended: Result<()>) -> Result<()> {
        match self.owe(old, ended) {
            Err(e @ (Error::Format { .. } | Error::Device(_))) => {
                self.damage.get_or_insert(e);
                Ok(())
            }
            other => other,
        }
    }

    /// Remembers a block whose entry cannot be read now.
    fn owe(&mut self, old: VBlockNr, ended: Result<()>) -> Result<()> {
        match ended {
            Err(Error::Device(_)) if self.patient => {
                self.owed.push(old);
                Ok(())
            }
            other => other,
        }
    }

    /// Unmaps every key from `from` on; the pointers that lead there are added to `severed`, for
    /// [`Change::unravel`]. What is damaged stays mapped and is told in `damage`. `wait`: as [`bmap::sever`] has it.
    pub fn sever(&mut self, map: &mut Map, from: u64, severed: &mut Vec<Severed>, wait: bool) -> Result<()> {
        let before = self.delta;
        let mut damage = None;
        let mut nodes = VirtualNodes { change: self, nodes: &mut map.nodes };
        let done = bmap::sever(&mut map.root, &mut nodes, from, severed, &mut damage, wait);
        self.damage = self.damage.take().or(damage);
        self.count(map, before);
        done
    }

    /// Ends the life of about `most` blocks that were severed from `map`, and returns how much work it
    /// was. Damage costs what is below it, which is left for repair; with `wait`, an error of the device ends it, and the same
    /// call goes on.
    pub fn unravel(
        &mut self,
        map: &mut Map,
        severed: &mut Vec<Severed>,
        most: usize,
        wait: bool,
    ) -> Result<usize> {
        let before = self.delta;
        let (mut took, mut failed) = (0, Ok(()));
        while took < most {
            let mut nodes = VirtualNodes { change: self, nodes: &mut map.nodes };
            let met = bmap::unravel(&mut nodes, severed, |n, ptr| {
                n.change.delta -= 1;
                let Change { store, dat, cno, dead, .. } = &mut *n.change;
                let ended = dat.end(store, VBlockNr(ptr), *cno, *dead);
                n.change.owe(VBlockNr(ptr), ended)
            });
            match met {
                Ok(true) => took += 1,
                Ok(false) => break,
                Err(e @ Error::Device(_)) if wait => {
                    failed = Err(e);
                    break;
                }
                Err(e) => {
                    if matches!(e, Error::Device(_)) {
                        severed.pop();
                    }
                    self.damage.get_or_insert(e);
                    // It may have taken the device a while to fail.
                    took += FAILED;
                }
            }
        }
        self.count(map, before);
        failed.map(|()| took)
    }

    /// Carries the change of the block count since `before` over to `i_blocks`, which must not
    /// wrap: mkfs counts in other units (spec 8.4).
    fn count(&self, map: &mut Map, before: i64) {
        let units = (self.delta - before).saturating_mul(i64::from(self.store.geometry.block_size / 512));
        map.blocks = map.blocks.saturating_add_signed(units);
    }

    /// Gives every changed data block of a metadata file a fresh number, once a construction:
    /// `fresh` remembers which have one.
    pub fn propagate(&mut self, file: &mut MetaFile, fresh: &mut HashMap<u64, VBlockNr>) -> Result<()> {
        let MetaFile { map, data, .. } = file;
        for key in data.keys() {
            if !fresh.contains_key(key) {
                fresh.insert(*key, self.replace(map, *key)?);
            }
        }
        Ok(())
    }
}
