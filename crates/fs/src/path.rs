//! The path of an inode, for people: by the directories through which it was last reached.

use std::ops::ControlFlow;

use silt_engine::Tree;

use crate::{Fs, Ino};

/// Entries of a directory that are looked at for a name.
const LOOKED_AT: usize = 20_000;
/// Directories above one another.
const DEPTH: usize = 256;

impl Fs {
    /// As [`Fs::remember`], and that the inode was reached through a name in `parent`.
    pub fn remember_in(&mut self, ino: Ino, parent: Ino) {
        self.remember(ino);
        self.note_parent(ino, parent);
    }

    /// Notes through which directory a remembered inode was reached.
    pub(crate) fn note_parent(&mut self, ino: Ino, parent: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino.0) {
            node.agrees &= node.parent == parent.0;
            node.parent = parent.0;
        }
    }

    /// A path that leads to an inode, from the root of its tree, such as `/a/b`; `None` where it is not known any
    /// more: nobody remembers it, or a directory on the way cannot be read. Looks through the directories above.
    pub fn path_of(&mut self, tree: Tree, ino: Ino) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            if names.len() == DEPTH {
                return None;
            }
            let known = self.nodes.get(&at.0).map(|n| n.parent).filter(|p| *p != 0);
            let named = known.and_then(|p| self.name_in(tree, Ino(p), at).map(|name| (Ino(p), name)));
            let (above, name) = match named {
                Some(found) => found,
                None => {
                    let above = self.dir_parent(tree, at).ok()?;
                    (above, self.name_in(tree, above, at)?)
                }
            };
            names.push(name);
            at = above;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// A name that a directory has for an inode.
    fn name_in(&mut self, tree: Tree, dir: Ino, ino: Ino) -> Option<Vec<u8>> {
        let mut found = None;
        let mut left = LOOKED_AT;
        let _ = self.readdir(tree, dir, 0, false, |e| {
            left -= 1;
            if e.ino == ino && e.name != b"." && e.name != b".." {
                found = Some(e.name.to_vec());
            }
            if found.is_some() || left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }
}
