//! Inodes that come back: what a mender knows of each, and where it takes it from.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::{Cno, Ino};

use super::Mender;
use super::assemble::Assembled;
use super::back::Present;
use super::versions::{Evidence, InDirectory};
use crate::{Error, Result};

impl Mender {
    /// Names of inodes in the tree at hand, for [`Mender::restore`], in the place of those that were told before.
    pub fn know_names(&mut self, names: BTreeMap<u64, InDirectory>) {
        self.names = names;
    }

    /// The same besides those that were told before.
    pub fn know_more_names(&mut self, names: BTreeMap<u64, InDirectory>) {
        for (ino, name) in names {
            self.names.entry(ino).or_insert(name);
        }
    }

    /// Whether an inode of those that [`Mender::look_for_blocks`] was asked for comes back with exactly the blocks that the
    /// tree at hand has of it, if it does.
    pub fn knows_blocks(&self, ino: Ino) -> bool {
        let known = self.written.get(&ino.0).and_then(Option::as_ref);
        self.volume.unsure.is_empty() && known.is_some_and(|content| !content.blocks.is_empty())
    }

    /// Looks once for what logs have of these inodes and lives in the tree at hand, for [`Mender::restore`].
    pub fn look_for_blocks(&mut self, inodes: &BTreeSet<u64>) {
        self.written = self.volume.contents_of(inodes, self.end_of_log);
    }

    /// Puts an inode back to its newest older version that is whole and another than the present; in a past tree,
    /// to the nearest version. The checkpoint that has it, if there is one, and whether that is later than the tree
    /// at hand. Where the present is `doubted`, it says nothing of which file it was: versions are left out that were
    /// another file's, and, where blocks of it are in the logs, those that share none of them, or, if the DAT
    /// is sound, that have any other: [`Mender::assemble`] does better. `kind`: bits of a mode, where the type is known.
    pub fn restore(&mut self, ino: Ino, doubted: bool, kind: Option<u32>) -> Option<(Cno, bool)> {
        if doubted && !self.written.contains_key(&ino.0) {
            self.look_for_blocks(&BTreeSet::from([ino.0]));
        }
        let v = &mut self.volume;
        let present = match v.ifile.get(&v.store, &v.dat, ino) {
            Ok(raw) if !doubted => Present::Known(raw),
            _ => Present::Doubted(self.written.get(&ino.0).filter(|_| doubted)),
        };
        let later = v.dat.past.map_or(v.cno, |(_, to)| to);
        let evidence = Evidence { doubts: &self.doubts, name: self.names.get(&ino.0) };
        v.restore_newest(ino, &present, kind, &evidence).map(|c| (c, c >= later))
    }

    /// Whether there is such an inode, and its entry does not verify, or did not before it was moved.
    pub fn is_doubtful(&self, ino: Ino) -> bool {
        let v = &self.volume;
        let free = matches!(v.ifile.get(&v.store, &v.dat, ino), Err(Error::NoInode(_)));
        (!free || v.inodes.contains_key(&ino.0)) && v.is_doubtful(&v.ifile, ino, &self.doubts)
    }

    /// Whether an inode in a block that is damaged may be, too: its log does not verify, or it has a value that no writer gives it.
    pub fn is_suspect(&self, ino: Ino) -> bool {
        let v = &self.volume;
        let strange = v.ifile.get(&v.store, &v.dat, ino).is_ok_and(|raw| v.impossible(&raw) > 0);
        strange || self.is_doubtful(ino)
    }

    /// Whether there is no such inode, and what says so does not verify, or did not before it was moved.
    pub fn may_be_lost(&self, ino: Ino) -> bool {
        let v = &self.volume;
        let taken = v.inodes.contains_key(&ino.0) || v.ifile.get(&v.store, &v.dat, ino).is_ok();
        !taken && v.is_doubtful(&v.ifile, ino, &self.doubts)
    }

    /// Builds the map of an inode anew from the logs, without loss as long as the DAT is sound; returns the number
    /// of its data blocks.
    pub fn rebuild(&mut self, ino: Ino) -> Result<u64> {
        self.volume.rebuild_inode(ino, self.end_of_log)
    }

    /// Puts an inode together from what logs have of it and what other checkpoints say of it; where its attributes
    /// come from. `None`: nothing is left of it. `kind`: bits of a mode, where the type is known.
    pub fn assemble(&mut self, ino: Ino, kind: Option<u32>) -> Result<Option<Assembled>> {
        let content = match self.written.remove(&ino.0).flatten() {
            Some(content) => content,
            None => self.volume.content_of(ino, self.end_of_log),
        };
        let evidence = Evidence { doubts: &self.doubts, name: self.names.get(&ino.0) };
        self.volume.assemble_inode(ino, kind, content, &evidence)
    }
}
