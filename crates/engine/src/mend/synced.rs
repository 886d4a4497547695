//! Synced data behind the newest checkpoint (format 4.4): set aside while what it belongs to is mended, then put in place.

use std::collections::{BTreeMap, BTreeSet};

use silt_device::Device;
use silt_format::{BlockNr, Geometry, Ino, SegNr};

use crate::files::Tree;
use crate::recover::each_synced;
use crate::search::Tail;
use crate::volume::{OpenOptions, Volume};
use crate::{Error, Result};

use super::{Mender, count};

/// A block of a data-sync log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Synced {
    ino: Ino,
    /// Where in the file, in blocks.
    offset: u64,
    /// Where it lies on the disk.
    block: BlockNr,
}

/// What lies behind a super root, in its order. Memory: 24 bytes for each block that is there.
pub(super) fn behind(device: &dyn Device, g: &Geometry, tail: &Tail) -> Result<Vec<Synced>> {
    let mut all = Vec::new();
    each_synced(device, g, tail, |ino, offset, block| {
        all.push(Synced { ino, offset, block });
        Ok(())
    })?;
    Ok(all)
}

/// Synced data that waits till its files are mended. The segments in which it lies are not written till then.
#[derive(Debug, Clone, Default)]
pub struct SetAside {
    pub(super) blocks: Vec<Synced>,
    /// Of its segments, those in which nothing else is wanted any more.
    pub(super) emptied: BTreeSet<u64>,
}

impl SetAside {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The files it is of.
    pub fn inodes(&self) -> BTreeSet<u64> {
        self.blocks.iter().map(|s| s.ino.0).collect()
    }

    /// Segments in which it lies.
    pub(super) fn segments(&self, g: &Geometry) -> BTreeSet<u64> {
        self.blocks.iter().filter(|s| g.holds(s.block)).map(|s| g.segment_of(s.block).0).collect()
    }
}

impl Mender {
    /// Synced data that waits, for the next mender.
    pub(super) fn set_aside(&mut self) -> SetAside {
        let segments = self.aside.segments(&self.volume.store.geometry);
        self.aside.emptied.extend(self.empty.extract_if(.., |s| segments.contains(s)));
        std::mem::take(&mut self.aside)
    }

    /// Puts what was set aside into its files, and gives back the segments in which nothing else is.
    pub(super) fn take_in(&mut self, options: &OpenOptions) -> Result<()> {
        let aside = std::mem::take(&mut self.aside);
        let v = &mut self.volume;
        self.said.extend(v.take_in(&aside.blocks, options)?);
        self.empty.extend(v.only_synced(&aside.segments(&v.store.geometry))?);
        self.empty.extend(aside.emptied);
        Ok(())
    }
}

impl Volume {
    /// Puts synced data into the files it belongs to; what became of it, in words. Memory: the data that `options` allow;
    /// what is more becomes a checkpoint.
    fn take_in(&mut self, all: &[Synced], options: &OpenOptions) -> Result<Vec<String>> {
        let most = options.cache_bytes / u64::from(self.store.geometry.block_size);
        let mut lost: BTreeMap<u64, usize> = BTreeMap::new();
        for s in all {
            let taken = match self.belongs(s) {
                true => self.recover(s.ino, s.offset, s.block),
                false => Ok(false),
            };
            match taken {
                Ok(true) => {}
                Ok(false) | Err(Error::Format { .. } | Error::Device(_) | Error::NoInode(_)) => {
                    *lost.entry(s.ino.0).or_default() += 1;
                }
                Err(e) => return Err(e),
            }
            if self.dirty_blocks > most {
                self.checkpoint(options.now)?;
            }
        }
        let taken = all.len() - lost.values().sum::<usize>();
        let mut said = Vec::new();
        if taken > 0 {
            said.push(format!(
                "{} of synced data behind the newest checkpoint taken in",
                count(taken, "block")
            ));
        }
        said.extend(lost.iter().map(|(ino, n)| {
            format!("inode {ino}: {} of synced data behind the newest checkpoint lost", count(*n, "block"))
        }));
        Ok(said)
    }

    /// Whether a file reaches as far: one that was put back to an older version may not.
    fn belongs(&mut self, s: &Synced) -> bool {
        let size = self.inode(Tree::Live, s.ino).map_or(0, |i| i.attr.size);
        s.offset < size.div_ceil(u64::from(self.store.geometry.block_size))
    }

    /// Of segments in which it lay, those that hold nothing else.
    fn only_synced(&mut self, segments: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let mut out = BTreeSet::new();
        for s in segments {
            let e = self.sufile.entry(&self.store, &self.dat, SegNr(*s))?;
            if e.is_dirty() && e.nblocks.get() == 0 {
                out.insert(*s);
            }
        }
        Ok(out)
    }
}
