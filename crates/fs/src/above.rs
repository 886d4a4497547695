//! The directory above: what a directory says of it (".."), and what is known of that without asking.
//!
//! Invariant: where a remembered directory `agrees`, its ".." is what is noted as its parent.

use silt_engine::{Block, Tree, writable};
use silt_format::{Ino, dir};

use crate::Fs;
use crate::chunks::read_chunk;
use crate::error::{FsError, Of, Result};

impl Fs {
    /// The entry ".." of a directory.
    fn dotdot(&mut self, tree: Tree, dir: Ino) -> Result<(Block, dir::Entry<'static>)> {
        let block = read_chunk(&mut self.volume, tree, dir, 0)?;
        let (offset, rec_len, ino, file_type) = {
            let second = dir::entries(&block).nth(1).transpose().of(dir)?;
            match second {
                Some(e) if e.name == b".." && e.ino.0 != 0 => (e.offset, e.rec_len, e.ino, e.file_type),
                _ => return Err(FsError::damaged(dir, "the directory has no \"..\"")),
            }
        };
        Ok((block, dir::Entry { offset, rec_len, ino, file_type, name: b".." }))
    }

    /// The directory above.
    pub(crate) fn dir_parent(&mut self, tree: Tree, dir: Ino) -> Result<Ino> {
        if dir == Ino::ROOT { Ok(dir) } else { self.dotdot(tree, dir).map(|(_, e)| e.ino) }
    }

    /// Checks that [`Fs::dir_set_parent`] can do its work.
    pub(crate) fn dir_check_parent(&mut self, dir: Ino) -> Result<()> {
        self.dotdot(Tree::Live, dir).map(|_| ())
    }

    /// Rewrites "..".
    pub(crate) fn dir_set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        let (mut block, e) = self.dotdot(Tree::Live, dir)?;
        if e.ino == parent {
            return Ok(());
        }
        dir::replace(writable(&mut block), e.offset, parent, e.file_type).of(dir)?;
        self.put_block(dir, 0, block)?;
        // The name is in the other one already.
        if let Some(node) = self.nodes.get_mut(&dir.0) {
            (node.parent, node.agrees) = (parent.0, true);
        }
        Ok(())
    }

    /// The directory above a live one, without a read where it is remembered and somebody looked into it: how deep a directory
    /// lies is for anybody to say, and others wait for who goes up from there.
    pub(crate) fn live_parent(&mut self, dir: Ino) -> Result<Ino> {
        if let Some(node) = self.nodes.get(&dir.0).filter(|node| node.agrees) {
            return Ok(Ino(node.parent));
        }
        let above = self.dir_parent(Tree::Live, dir)?;
        if let Some(node) = self.nodes.get_mut(&dir.0) {
            if node.parent == 0 {
                node.parent = above.0;
            }
            // Else that is damage, and it is asked each time.
            node.agrees = node.parent == above.0;
        }
        Ok(above)
    }

    /// The first block of a live directory is at hand: what is above it is known from now on.
    pub(crate) fn looked_into(&mut self, dir: Ino) {
        if self.nodes.get(&dir.0).is_some_and(|node| !node.agrees) {
            // Whoever needs it hears of errors.
            let _ = self.live_parent(dir);
        }
    }
}
