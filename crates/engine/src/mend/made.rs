//! Inodes made anew with a number and attributes that were read elsewhere (format 8).

use silt_format::Ino;

use super::Mender;
use crate::files::Tree;
use crate::inode::{Attr, Inode};
use crate::volume::Volume;
use crate::{Error, Result};

/// Bytes of content that wait in memory before they are written.
const WAITING: u64 = 64 << 20;

impl Mender {
    /// Makes an inode without content; `attr` is taken as it is. It has no name yet. Errors: the number is no user's, or is
    /// taken, or what says so cannot be read.
    pub fn make(&mut self, ino: Ino, attr: Attr) -> Result<()> {
        self.volume.make_inode(ino, attr)
    }

    /// Bytes that wait in memory to be written.
    pub fn waiting(&self) -> u64 {
        let v = &self.volume;
        v.dirty_blocks.saturating_mul(u64::from(v.store.geometry.block_size))
    }

    /// Writes what waits in memory, if it is much. Nothing points at it before [`Mender::finish`]. Errors end the work with
    /// this volume.
    pub fn relieve(&mut self, now: u64) -> Result<()> {
        if self.waiting() > WAITING {
            self.volume.checkpoint_with(std::mem::take(&mut self.moved), now)?;
        }
        Ok(())
    }
}

impl Volume {
    fn make_inode(&mut self, ino: Ino, attr: Attr) -> Result<()> {
        self.writable()?;
        if ino < Ino::FIRST_USER {
            return Err(Error::Invalid(format!("inode {ino} is no file's")));
        }
        self.ifile.palloc.layout.check("ifile", ino.0).map_err(|e| Error::at(format!("inode {ino}"), e))?;
        match self.inode(Tree::Live, ino) {
            Err(Error::NoInode(_)) => {}
            Ok(_) => return Err(Error::Invalid(format!("inode {ino} is there"))),
            Err(e) => return Err(e),
        }
        self.new_numbers.insert(ino.0..ino.0.saturating_add(1));
        self.inodes.insert(ino.0, Box::new(Inode::create(ino, attr)));
        self.dirty.insert(ino.0);
        self.inodes_count = self.inodes_count.saturating_add(1);
        Ok(())
    }
}
