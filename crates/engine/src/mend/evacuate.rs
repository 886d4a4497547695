//! Segments whose logs do not verify are emptied: what is wanted of them goes elsewhere as it is.

use std::collections::BTreeSet;

use silt_format::btree::Node;
use silt_format::{BlockNr, Ino, SegNr};

use super::bits::Bits;
use super::mapped::{Mappers, Role};
use super::moves::Moved;
use crate::Result;
use crate::meta::Physical;
use crate::volume::Volume;

impl Volume {
    /// Makes everything that is wanted of these segments part of the next logs. Returns what has to be moved,
    /// those segments that nothing holds back, and the inodes whose blocks are moved unverified.
    pub(crate) fn evacuate(
        &mut self,
        segments: &BTreeSet<u64>,
        already: &Bits,
    ) -> Result<(Vec<Moved>, BTreeSet<u64>, BTreeSet<u64>)> {
        let g = self.store.geometry;
        let segment = |block: u64| g.segment_of(BlockNr(block)).0;
        let inside = |block: u64| g.holds(BlockNr(block)) && segments.contains(&segment(block));
        let mut free: BTreeSet<u64> =
            segments.iter().copied().filter(|s| *s < g.nsegments && *s != self.cursor.next.0).collect();
        let mut wanted = Bits::default();
        let mut places = Vec::new();
        let unknown = self.each_entry(|v, e| {
            if v != 0 && inside(e.blocknr.get()) {
                wanted.insert(v);
                places.push((v, e.blocknr.get()));
            }
        })?;
        let mappers = self.mappers(wanted);
        let (mut moved, mut suspects) = (Vec::new(), BTreeSet::new());
        for (v, block) in places {
            if already.contains(v) {
                continue;
            }
            if !self.evacuate_one(v, block, &mappers, &mut moved, &mut suspects)? {
                free.remove(&segment(block));
            }
        }
        self.evacuate_table(inside, segment, &mut free)?;
        if unknown > 0 {
            // What is not seen cannot be moved.
            free.clear();
        }
        Ok((moved, free, suspects))
    }

    /// Whether the block will be gone from its place.
    fn evacuate_one(
        &mut self,
        v: u64,
        block: u64,
        mappers: &Mappers,
        moved: &mut Vec<Moved>,
        suspects: &mut BTreeSet<u64>,
    ) -> Result<bool> {
        let Some((_, ino, role)) = mappers.newest.get(&v).copied() else {
            if !mappers.broken.is_empty() {
                return Ok(false);
            }
            // No checkpoint has it: garbage that a cleaner would have taken.
            self.dat.palloc.unset(&mut self.dat.file, &self.store, &Physical, v)?;
            return Ok(true);
        };
        let key = match role {
            Role::Data(key) | Role::Node(_, key, _) => key,
        };
        let file = match ino {
            Ino::CPFILE => &mut self.cpfile.file,
            Ino::SUFILE => &mut self.sufile.file,
            _ => {
                let Ok(bytes) = self.store.read(silt_device::Kind::Data, BlockNr(block)) else {
                    return Ok(false);
                };
                let offset = if let Role::Data(key) = role { Some(key) } else { None };
                moved.push(Moved { v, ino, offset, bytes });
                if ino != Ino::IFILE {
                    suspects.insert(ino.0);
                }
                return Ok(true);
            }
        };
        // Of these only the newest version counts: writing a block anew writes the nodes above it, too.
        Ok(file.block_mut(&self.store, &self.dat, key, |_| {}).is_ok())
    }

    fn evacuate_table(
        &mut self,
        inside: impl Fn(u64) -> bool,
        segment: impl Fn(u64) -> u64,
        free: &mut BTreeSet<u64>,
    ) -> Result<()> {
        let mut own = Vec::new();
        self.each_dat_block(|block, key| {
            if inside(block) {
                own.push((block, key));
            }
        })?;
        for (block, key) in own {
            let key = match key {
                Some(key) => key,
                None => match self.store.read(silt_device::Kind::Tables, BlockNr(block)) {
                    Ok(b) => Node::block(&b).key(0),
                    Err(_) => {
                        free.remove(&segment(block));
                        continue;
                    }
                },
            };
            if self.dat.file.block_mut(&self.store, &Physical, key, |_| {}).is_err() {
                free.remove(&segment(block));
            }
        }
        Ok(())
    }

    /// Gives segments back that nothing is wanted of any more. Only when the state that no longer needs them is
    /// durable.
    pub(crate) fn give_back(&mut self, segments: &BTreeSet<u64>) -> Result<()> {
        for s in segments {
            let bad = self.sufile.entry(&self.store, &self.dat, SegNr(*s))?.is_error();
            if SegNr(*s) != self.cursor.segment && SegNr(*s) != self.cursor.next && !bad {
                self.sufile.free(&self.store, &self.dat, SegNr(*s))?;
                self.meta_dirty = true;
            }
        }
        Ok(())
    }
}
