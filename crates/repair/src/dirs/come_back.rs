//! Names that come back: found elsewhere, in directories that are older than the tree, and in older versions.

use std::ops::ControlFlow;

use silt_engine::Tree;
use silt_format::{Cno, Ino, dir};

use super::{Entry, Mend, Name, first_of, named};
use crate::Result;

/// Older versions of a directory that are looked at.
const VERSIONS: usize = 64;

impl Mend<'_> {
    /// Names that were found elsewhere.
    pub(super) fn take_names(&mut self, names: Vec<Name>) -> Result<()> {
        for Name { directory, name, ino, links } in names {
            let Some(k) = self.inodes.get(&ino).copied() else { continue };
            let is_there = self.inodes.get(&directory).is_some_and(|d| d.is_dir() && d.reached);
            let wanted = k.wants_name() || (!k.is_dir() && k.named < links);
            if !is_there || !wanted || self.entries_of(directory)?.taken.contains(&name) {
                continue;
            }
            self.said.push(format!(
                "inode {ino} has its name {:?} in directory {directory} again",
                String::from_utf8_lossy(&name)
            ));
            self.name(directory, ino, name);
            if k.is_dir() {
                self.walk(ino, directory)?;
            }
        }
        Ok(())
    }

    /// Names of files in older directories.
    pub(super) fn take_doubtful(&mut self) -> Result<()> {
        for (directory, e) in std::mem::take(&mut self.doubtful) {
            let Some(k) = self.inodes.get(&e.ino).copied() else { continue };
            let taken = self.entries_of(directory)?.taken.contains(&e.name);
            if taken || !k.wants_name() || k.kind() != e.kind {
                let name = String::from_utf8_lossy(&e.name);
                let why = if k.wants_name() { "the name is another's" } else { "it has another name since" };
                self.said.push(format!("the name {name:?} in directory {directory} is dropped: {why}"));
                continue;
            }
            self.name(directory, e.ino, e.name);
        }
        Ok(())
    }

    /// Names that a directory has lost come back from blocks of it in the place of another's, and from its newest older
    /// version that can be read, where what they name is still there and has lost a name.
    pub(super) fn fill_gaps(&mut self) -> Result<()> {
        let mut past = Vec::new();
        self.v.for_each_checkpoint_back(Cno(u64::MAX), |c| {
            past.push(c.cno);
            if past.len() < VERSIONS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let mut next = 0;
        while let Some(ino) = self.gaps.get(next).copied() {
            next += 1;
            let astray = self.astray.remove(&ino).unwrap_or_default();
            self.come_back(ino, astray, "a block of it in the place of another's")?;
            for c in &past {
                let (found, whole) = self.older_names(ino, *c);
                self.come_back(ino, found, &format!("checkpoint {c}"))?;
                // What cannot be read there an older one may have.
                if whole {
                    break;
                }
            }
            // Nobody knows how old.
            let copies = self.copies.remove(&ino).unwrap_or_default();
            self.come_back(ino, copies, "a block that was its first one once")?;
        }
        Ok(())
    }

    /// Gives what wants a name one of these in a directory.
    fn come_back(&mut self, directory: u64, names: Vec<Entry>, from: &str) -> Result<()> {
        for e in names {
            let Some(k) = self.inodes.get(&e.ino).copied() else { continue };
            let taken = self.entries_of(directory)?.taken.contains(&e.name);
            if taken || !k.wants_name() || k.kind() != e.kind {
                continue;
            }
            self.said.push(format!(
                "the name {:?} in directory {directory} comes back from {from}",
                String::from_utf8_lossy(&e.name)
            ));
            self.name(directory, e.ino, e.name);
            if k.is_dir() {
                self.walk(e.ino, directory)?;
            }
        }
        Ok(())
    }

    /// The names a directory had at a checkpoint, as far as they can be read, and whether these are all.
    fn older_names(&mut self, ino: u64, c: u64) -> (Vec<Entry>, bool) {
        let mut all = Vec::new();
        if self.v.open_view(Cno(c)).is_err() {
            return (all, false);
        }
        let tree = Tree::Past(c);
        let mut keys = Vec::new();
        if self.v.inode(tree, Ino(ino)).is_ok_and(|i| i.attr.is_dir()) {
            let _ = self.v.for_each_data(tree, Ino(ino), 0, |key| {
                keys.push(key);
                ControlFlow::Continue(())
            });
        }
        let mut whole = !keys.is_empty();
        for key in keys {
            let Ok(Some(b)) = self.v.read_block(tree, Ino(ino), key) else {
                whole = false;
                continue;
            };
            // Names in a block that makes no sense may be others.
            let copied = key > 0 && first_of(&b) == Some(ino);
            if copied || dir::check(&b).is_err() || self.owner(&b, ino).is_some() {
                whole = false;
                continue;
            }
            all.extend(named(&b));
        }
        self.v.close_view(Cno(c));
        (all, whole)
    }
}
