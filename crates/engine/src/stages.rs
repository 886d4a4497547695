//! The work on one file of a construction: cuts, data, nodes, the inode's entry (spec section 12).

use silt_format::inode::RawInode;
use silt_format::summary::BlockInfo;
use silt_format::{Ino, VBlockNr};

use crate::block::Block;
use crate::construct::{Construction, FIRST, Kind, Stage};
use crate::inode::{Frozen, Inode};
use crate::log::sorted_nodes;
use crate::patience::is_of_map;
use crate::store::Key;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// Maps of files up to this size, in units of 512 bytes, are kept as long as there is room ([`crate::parts`]), those of larger
/// ones like other metadata.
const SMALL_FILE: u64 = (1 << 20) / 512;

impl Volume {
    /// Works on one file; what is wrong with it stays with it.
    pub(crate) fn advance_file(&mut self, k: &mut Construction, nr: u64, left: usize) -> Result<usize> {
        let Some(mut inode) = self.inodes.remove(&nr) else {
            k.files.pop_front();
            return Ok(left);
        };
        let worked = self.file_stage(k, &mut inode, left);
        let result = match worked {
            Ok(left) => Ok(left),
            Err(e) if self.may_pass(k, nr, &e) => {
                k.waited += u32::from(is_of_map(k));
                Err(e)
            }
            Err(e @ (Error::Format { .. } | Error::Device(_) | Error::NoInode(_))) => {
                inode.lose(&e);
                if matches!(e, Error::Device(_)) && !is_of_map(k) {
                    self.give_up(Ino::IFILE, self.ifile.palloc.layout.entry(nr).block);
                }
                // What is mapped so far must be written, or its parents would point to nothing.
                if matches!(k.stage, Stage::Nodes) || k.kind == Kind::DataSync {
                    k.stage = FIRST;
                    k.files.pop_front();
                } else if k.files.front() == Some(&nr) {
                    k.stage = Stage::Nodes;
                }
                Ok(left.saturating_sub(1))
            }
            Err(e) => Err(e),
        };
        self.inodes.insert(nr, inode);
        result
    }

    pub(crate) fn change(&mut self) -> Change<'_> {
        Change { patient: self.patient, ..Change::new(&mut self.store, &mut self.dat, self.cno) }
    }

    fn file_stage(&mut self, k: &mut Construction, inode: &mut Inode, mut left: usize) -> Result<usize> {
        let Some(mut frozen) = inode.frozen.take() else {
            k.files.pop_front();
            return Ok(left);
        };
        let result = (|| {
            match k.stage {
                Stage::Cuts { from } => {
                    k.tree_changed = true;
                    if frozen.deleted {
                        k.stage = Stage::Number;
                        return Ok(left);
                    }
                    left = left.saturating_sub(self.apply_cuts(k, inode, &mut frozen, from, left)?);
                }
                Stage::Number => {
                    // Before its blocks: an entry that cannot be changed keeps them.
                    self.free_number(k, inode)?;
                    // Nobody else's before all is done.
                    self.new_numbers.insert(inode.ino.0..inode.ino.0 + 1);
                    k.stage = Stage::Sever { from: 0 };
                }
                Stage::Sever { from } => {
                    self.sever(k, inode, &mut frozen, from)?;
                    k.stage = Stage::Severed;
                    left = left.saturating_sub(1);
                }
                Stage::Severed => {
                    left = left.saturating_sub(self.end_severed(k, inode, &mut frozen, left)?);
                    if k.severed.is_empty() {
                        k.stage = Stage::Data { from: 0 };
                        if frozen.deleted {
                            k.stage = FIRST;
                            k.files.pop_front();
                            left = left.saturating_sub(1);
                        }
                    }
                }
                Stage::Data { from } => {
                    let batch: Vec<(u64, Block)> = frozen
                        .over
                        .blocks
                        .range(from..)
                        .take(left)
                        .map(|(key, b)| (*key, b.clone()))
                        .collect();
                    let is_regular = frozen.attr.is_regular();
                    for (key, b) in &batch {
                        k.stage = Stage::Data { from: key.saturating_add(1) };
                        left = left.saturating_sub(1);
                        let nodes = inode.map.nodes.len();
                        let mut change = self.change();
                        let v = change.replace(&mut inode.map, *key);
                        let (delta, damage) = (change.delta, change.damage.take());
                        k.owe(inode.ino, &mut change.owed);
                        if k.kind == Kind::DataSync {
                            // They stay until a checkpoint takes them.
                            self.dirty.nodes(inode.map.nodes.len().saturating_sub(nodes) as u64);
                        }
                        self.count_tree(delta);
                        frozen.pending -= delta.clamp(0, 1);
                        if let Some(e) = damage {
                            inode.hurt(&e);
                        }
                        let vblock = match v {
                            Ok(v) => v,
                            Err(e) if self.may_pass(k, inode.ino.0, &e) => {
                                k.stage = Stage::Data { from: *key };
                                return Err(e);
                            }
                            // What is damaged costs this block and none of the others.
                            Err(e @ (Error::Format { .. } | Error::Device(_))) => {
                                inode.lose(&e);
                                continue;
                            }
                            Err(e) => return Err(e),
                        };
                        if !is_regular || b.is_to_be_read() {
                            self.store.launch(Key::Virtual(vblock.0), b.clone());
                        }
                        let info = BlockInfo::Data { vblock, offset: *key };
                        self.data_written += 1;
                        self.add_new(k, inode.ino, info, b.clone())?;
                    }
                    let next = match k.stage {
                        Stage::Data { from } => from,
                        _ => 0,
                    };
                    if frozen.over.blocks.range(next..).next().is_none() {
                        frozen.pending = 0;
                        if k.kind == Kind::DataSync {
                            k.stage = FIRST;
                            k.files.pop_front();
                        } else {
                            k.stage = Stage::Nodes;
                        }
                    }
                }
                Stage::Nodes => {
                    let small = frozen.attr.is_regular() && inode.map.blocks <= SMALL_FILE;
                    for (ptr, b) in sorted_nodes(&inode.map.nodes) {
                        let info = BlockInfo::Node { vblock: VBlockNr(ptr) };
                        let kept = if small { b.clone().to_be_read() } else { b.clone() };
                        self.store.launch(Key::Virtual(ptr), kept);
                        // Each is added once, also where this is gone on with later.
                        inode.map.nodes.remove(&ptr);
                        if frozen.attr.is_regular() {
                            let item = self.new_item(inode.ino, info, b);
                            k.nodes.push(item);
                        } else {
                            self.add_new(k, inode.ino, info, b)?;
                        }
                    }
                    frozen.pending = 0;
                    self.store_entry(inode, &frozen)?;
                    k.stage = FIRST;
                    k.files.pop_front();
                    left = left.saturating_sub(1);
                }
            }
            Ok(left)
        })();
        inode.frozen = Some(frozen);
        result
    }

    pub(crate) fn count_tree(&mut self, delta: i64) {
        self.tree_blocks = self.tree_blocks.saturating_add_signed(delta);
    }

    /// Puts an inode's entry into the ifile, allocating its number if it is new.
    fn store_entry(&mut self, inode: &mut Inode, frozen: &Frozen) -> Result<()> {
        let (ino, new) = (inode.ino, !inode.on_disk);
        if new {
            // Its entry is at hand before its number counts as taken.
            self.ifile.change(&self.store, &self.dat, ino, |_| {})?;
            self.ifile.palloc.set(&mut self.ifile.file, &self.store, &self.dat, ino.0)?;
            self.new_numbers.remove(ino.0..ino.0 + 1);
            inode.on_disk = true;
        }
        let map = &inode.map;
        self.ifile.change(&self.store, &self.dat, ino, |entry| {
            if new {
                entry.fill(0);
            }
            let mut r = RawInode::read(entry).unwrap_or_else(|_| RawInode::zeroed());
            frozen.attr.store(&mut r);
            r.blocks = map.blocks.into();
            if frozen.attr.has_map() {
                r.bmap = map.root;
            } else {
                r.bmap = [0; 56];
                if matches!(frozen.attr.file_type(), 0o020_000 | 0o060_000) {
                    r.set_device(frozen.attr.device.0, frozen.attr.device.1);
                }
            }
            r.store(entry);
        })
    }

    /// Frees a deleted inode's number (spec 8.3). Where the device does not say whether it is taken, it stays so in the end.
    fn free_number(&mut self, k: &Construction, inode: &mut Inode) -> Result<()> {
        if !inode.on_disk {
            self.new_numbers.remove(inode.ino.0..inode.ino.0 + 1);
            return Ok(());
        }
        self.ifile.change(&self.store, &self.dat, inode.ino, |entry| {
            let mut r = RawInode::read(entry).unwrap_or_else(|_| RawInode::zeroed());
            r.flags = 0.into();
            r.links_count = 0.into();
            r.size = 0.into();
            r.blocks = 0.into();
            r.bmap = [0; 56];
            r.store(entry);
        })?;
        match self.ifile.palloc.clear(&mut self.ifile.file, &self.store, &self.dat, inode.ino.0) {
            Err(e @ Error::Device(_)) if !self.may_pass(k, inode.ino.0, &e) => {
                self.give_up(Ino::IFILE, self.ifile.palloc.layout.entry(inode.ino.0).block);
                inode.hurt(&e);
            }
            cleared => _ = cleared?,
        }
        inode.on_disk = false;
        Ok(())
    }
}
