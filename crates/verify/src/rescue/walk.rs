//! Meets every file of a tree once, by its names from the root, and what has no name any more as `lost+found/#NUMBER`.
//!
//! Names from older versions of lost blocks come after all others: a file that has a name has been renamed since.
//!
//! Bounds: a directory is entered once, whatever names it; paths end at [`PATH_LIMIT`]; memory is a bit an inode, the
//! directories that are still to be read, and older names.

use std::collections::BTreeSet;
use std::rc::Rc;

use silt_format::Ino;
use silt_format::dir::file_type;

use super::tree::{Directory, Entry, Inode, Tree};
use crate::Watch;
use crate::inode::DIRECTORY;
use crate::sparse::SparseBits;

/// Longest path that is followed, in bytes.
pub const PATH_LIMIT: usize = 16 << 10;

/// Where files go that no directory names.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Told of what is met. Paths are names from the root joined by "/", empty for the root. An error ends the walk.
pub trait Sink {
    /// What ends it.
    type Error;
    /// A directory, before what is in it.
    fn directory(&mut self, path: &[u8], inode: &Inode, found: &Directory) -> Result<(), Self::Error>;
    /// Anything else, by the first of its names.
    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<(), Self::Error>;
    /// A further name of what was met.
    fn link(&mut self, path: &[u8], inode: &Inode) -> Result<(), Self::Error>;
    /// A name whose file is lost.
    fn lost(&mut self, path: &[u8], ino: u64, why: &'static str) -> Result<(), Self::Error>;
}

struct Todo {
    parent: Rc<Vec<u8>>,
    name: Vec<u8>,
    inode: Inode,
}

struct Walk<'t, 'r, 'd, S> {
    tree: &'t Tree<'r, 'd>,
    watch: &'t dyn Watch,
    seen: SparseBits,
    todo: Vec<Todo>,
    /// Older names, with the paths of their directories.
    older: Vec<(Rc<Vec<u8>>, Entry)>,
    sink: &'t mut S,
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Walks a tree; `watch` is told in files.
pub(super) fn walk<S: Sink>(tree: &Tree<'_, '_>, watch: &dyn Watch, sink: &mut S) -> Result<(), S::Error> {
    let mut w = Walk { tree, watch, seen: SparseBits::default(), todo: Vec::new(), older: Vec::new(), sink };
    match tree.inode(Ino::ROOT.0, file_type::DIR) {
        Some(root) if root.raw.file_type() == DIRECTORY => w.enter(Rc::default(), Vec::new(), root)?,
        _ => w.sink.lost(b"", Ino::ROOT.0, "the root directory is lost")?,
    }
    w.older()?;
    w.nameless()?;
    w.older()
}

impl Tree<'_, '_> {
    /// Walks the tree by its names, then what has none. `watch` is told in files.
    pub fn walk<S: Sink>(&self, watch: &dyn Watch, sink: &mut S) -> Result<(), S::Error> {
        walk(self, watch, sink)
    }
}

impl<S: Sink> Walk<'_, '_, '_, S> {
    /// A directory and all below it.
    fn enter(&mut self, parent: Rc<Vec<u8>>, name: Vec<u8>, inode: Inode) -> Result<(), S::Error> {
        self.seen.insert(inode.ino);
        self.todo.push(Todo { parent, name, inode });
        self.enter_all()
    }

    fn enter_all(&mut self) -> Result<(), S::Error> {
        while let Some(Todo { parent, name, inode }) = self.todo.pop() {
            if self.watch.stop() {
                return Ok(());
            }
            let path = Rc::new(join(&parent, &name));
            let found = self.tree.directory(&inode);
            self.watch.done(1);
            self.sink.directory(&path, &inode, &found)?;
            for e in found.entries {
                if e.older {
                    self.older.push((path.clone(), e));
                } else {
                    self.meet(&path, e.name, e.ino, e.file_type)?;
                }
            }
        }
        Ok(())
    }

    /// Older names of what has no other, and of files that may have more than one.
    fn older(&mut self) -> Result<(), S::Error> {
        while !self.older.is_empty() {
            let mut names = std::mem::take(&mut self.older);
            // What is in directories that are found this way goes before.
            names.sort_by_key(|(_, e)| e.file_type != file_type::DIR);
            for (parent, e) in names {
                let linked =
                    || self.tree.inode(e.ino, e.file_type).is_some_and(|i| i.raw.links_count.get() > 1);
                if self.seen.contains(e.ino) && (e.file_type == file_type::DIR || !linked()) {
                    continue;
                }
                self.meet(&parent, e.name, e.ino, e.file_type)?;
                self.enter_all()?;
            }
        }
        Ok(())
    }

    fn meet(&mut self, parent: &Rc<Vec<u8>>, name: Vec<u8>, ino: u64, kind: u8) -> Result<(), S::Error> {
        let path = join(parent, &name);
        if path.len() > PATH_LIMIT {
            return self.sink.lost(&path, ino, "its path is too long");
        }
        let Some(inode) = self.tree.inode(ino, kind) else {
            return self.sink.lost(&path, ino, "its inode is lost");
        };
        let new = self.seen.insert(ino);
        if inode.raw.file_type() == DIRECTORY {
            if !new {
                return self.sink.lost(&path, ino, "the directory has another name");
            }
            self.todo.push(Todo { parent: parent.clone(), name, inode });
            return Ok(());
        }
        if !new {
            return self.sink.link(&path, &inode);
        }
        self.watch.done(1);
        self.sink.file(&path, &inode)
    }

    /// What no directory names. A directory among it whose parent is also nameless goes with that.
    fn nameless(&mut self) -> Result<(), S::Error> {
        let mut left = BTreeSet::new();
        self.tree.for_each_inode(|ino| {
            if !self.seen.contains(ino) {
                left.insert(ino);
            }
        });
        let base = Rc::new(LOST_AND_FOUND.to_vec());
        for tops_only in [true, false] {
            for ino in &left {
                if self.seen.contains(*ino) || self.watch.stop() {
                    continue;
                }
                let Some(inode) = self.tree.inode(*ino, file_type::UNKNOWN) else { continue };
                let name = format!("#{ino}").into_bytes();
                if inode.raw.file_type() != DIRECTORY {
                    if !tops_only {
                        self.seen.insert(*ino);
                        self.sink.file(&join(&base, &name), &inode)?;
                    }
                    continue;
                }
                let parent = self.tree.directory(&inode).parent;
                if tops_only && parent.is_some_and(|p| p != *ino && left.contains(&p)) {
                    continue;
                }
                self.enter(base.clone(), name, inode)?;
            }
        }
        Ok(())
    }
}
