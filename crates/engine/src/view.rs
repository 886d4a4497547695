//! Checkpoints held open for reading (spec 10.6). The same code reads them as reads the live
//! tree; only the ifile differs.

use hashbrown::HashMap;
use silt_format::{Cno, Ino};

use crate::ifile::IFile;
use crate::inode::{self, Inode};
use crate::volume::Volume;
use crate::{At, Error, Result};

/// Most inodes of one past tree kept in memory.
const CACHED: usize = 20_000;

/// One open checkpoint.
pub struct View {
    pub(crate) ifile: IFile,
    pub(crate) inodes: HashMap<u64, Inode>,
    users: u32,
    /// Inodes in use at that moment.
    pub inodes_count: u64,
    /// Blocks in use at that moment.
    pub blocks_count: u64,
}

impl Volume {
    /// Opens a checkpoint for reading and keeps it from being deleted; call
    /// [`Volume::close_view`] as often.
    pub fn open_view(&mut self, c: Cno) -> Result<()> {
        if let Some(v) = self.views.get_mut(&c.0) {
            v.users += 1;
            return Ok(());
        }
        if c >= self.cno {
            return Err(Error::NoCheckpoint(c.0));
        }
        let entry = self.cpfile.get(&self.store, &self.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
        let ifile = IFile::new(&self.store.geometry, entry.ifile_inode)?;
        let root = ifile.get(&self.store, &self.dat, Ino::ROOT)?;
        root.check().at(|| format!("root directory of checkpoint {c}"))?;
        let view = View {
            ifile,
            inodes: HashMap::new(),
            users: 1,
            inodes_count: entry.inodes_count.get(),
            blocks_count: entry.blocks_count.get(),
        };
        self.views.insert(c.0, view);
        Ok(())
    }

    /// Ends one [`Volume::open_view`].
    pub fn close_view(&mut self, c: Cno) {
        if let Some(v) = self.views.get_mut(&c.0) {
            v.users -= 1;
            if v.users == 0 {
                self.views.remove(&c.0);
                self.gave_up(crate::room::MUCH);
            }
        }
    }

    /// Whether somebody reads this checkpoint.
    pub fn is_viewed(&self, c: Cno) -> bool {
        self.views.contains_key(&c.0)
    }

    /// An open view.
    pub fn view(&self, c: Cno) -> Option<&View> {
        self.views.get(&c.0)
    }

    pub(crate) fn past_inode(&mut self, c: u64, ino: Ino) -> Result<&Inode> {
        let view = self.views.get_mut(&c).ok_or(Error::NoCheckpoint(c))?;
        if !view.inodes.contains_key(&ino.0) {
            let raw = view.ifile.get(&self.store, &self.dat, ino)?;
            inode::check(&self.store.geometry, &raw).at(|| format!("inode {ino} of checkpoint {c}"))?;
            if raw.links_count.get() == 0 {
                return Err(Error::NoInode(ino.0));
            }
            if view.inodes.len() >= CACHED {
                view.inodes.clear();
            }
            view.inodes.insert(ino.0, Inode::load(ino, &raw));
        }
        view.inodes.get(&ino.0).ok_or(Error::NoInode(ino.0))
    }
}
