//! What logs have of files and lives in the tree at hand: exact, as far as summaries can be read and the DAT is sound
//! (format 5.3, 7.2).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use silt_format::dat::LIVE;
use silt_format::summary::BlockInfo;
use silt_format::{Ino, SegNr, VBlockNr};

use super::bits::Bits;
use crate::volume::Volume;

/// Blocks of several files that are kept in memory at most, some 64 bytes each.
const MOST: usize = 1 << 20;

/// Checkpoint that wrote a block, and where: of two the greater is the newer.
type Age = (u64, u64, u64);

/// Blocks of a file that live in the tree at hand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    /// By offset.
    pub blocks: BTreeMap<u64, VBlockNr>,
    /// Of its map.
    pub nodes: Bits,
}

/// Contents while records are read.
#[derive(Default)]
struct Gathered {
    blocks: BTreeMap<u64, (Age, VBlockNr)>,
    nodes: Bits,
}

impl From<Gathered> for Content {
    fn from(all: Gathered) -> Self {
        let blocks = all.blocks.into_iter().map(|(offset, (_, v))| (offset, v)).collect();
        Content { blocks, nodes: all.nodes }
    }
}

impl Volume {
    /// Whether a block is part of the tree at hand, by its lifetime.
    pub(crate) fn is_of_tree(&self, start: u64, end: u64) -> bool {
        match self.dat.past {
            Some((from, to)) => start <= from.0 && end >= to.0,
            None => end == LIVE,
        }
    }

    /// What logs have of a file and lives in the tree at hand.
    pub(crate) fn content_of(&self, ino: Ino, end_of_log: (SegNr, u64)) -> Content {
        let mut all = HashMap::from([(ino.0, Gathered::default())]);
        self.gather(&mut all, end_of_log, usize::MAX);
        all.remove(&ino.0).map(Content::from).unwrap_or_default()
    }

    /// The same of several files at once; `None` where there is no memory for all of them.
    pub(crate) fn contents_of(
        &self,
        inodes: &BTreeSet<u64>,
        end_of_log: (SegNr, u64),
    ) -> BTreeMap<u64, Option<Content>> {
        let mut all: HashMap<u64, Gathered> = inodes.iter().map(|ino| (*ino, Gathered::default())).collect();
        if !all.is_empty() {
            self.gather(&mut all, end_of_log, MOST);
        }
        inodes.iter().map(|ino| (*ino, all.remove(ino).map(Content::from))).collect()
    }

    /// Gathers up to `most` blocks of files; the largest are left out where there are more.
    fn gather(&self, all: &mut HashMap<u64, Gathered>, end_of_log: (SegNr, u64), most: usize) {
        let mut kept = 0usize;
        self.each_record(end_of_log, |log, p, at| {
            let (v, offset) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock, Some(offset)),
                BlockInfo::Node { vblock } => (vblock, None),
                _ => return,
            };
            let Some(file) = all.get_mut(&p.ino.0) else { return };
            let Ok(e) = self.dat.entry(&self.store, v) else { return };
            if e.blocknr.get() != at || !self.is_of_tree(e.start.get(), e.end.get()) {
                return;
            }
            let Some(offset) = offset else {
                file.nodes.insert(v.0);
                return;
            };
            // An old version whose end could not be noted passes for current, too.
            let new = ((e.start.get(), log.header.seq.get(), at), v);
            let before = file.blocks.len();
            let known = file.blocks.entry(offset).or_insert(new);
            if known.0 < new.0 {
                *known = new;
            }
            kept += file.blocks.len() - before;
            if kept > most {
                let largest = all.iter().max_by_key(|(ino, f)| (f.blocks.len(), **ino)).map(|(ino, _)| *ino);
                let gone = largest.and_then(|ino| all.remove(&ino));
                kept -= gone.map_or(0, |f| f.blocks.len());
            }
        });
    }
}
