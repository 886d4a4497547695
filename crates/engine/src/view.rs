//! Checkpoints held open for reading (spec 10.6). The same code reads them as reads the live
//! tree; only the ifile differs.

use hashbrown::HashMap;
use silt_format::{Cno, Ino};

use crate::ifile::IFile;
use crate::inode::{self, Inode};
use crate::volume::Volume;
use crate::{At, Error, Result};

/// Of the inodes that are known and not in use, one in so many may be one of a past tree.
const SHARE: usize = 4;

/// So many inodes each of them may keep in any case.
const LEAST: usize = 64;

/// One open checkpoint.
pub struct View {
    pub(crate) ifile: IFile,
    pub(crate) inodes: HashMap<u64, Inode>,
    users: u32,
    /// When it was looked into last, by the count of looks.
    used: u64,
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
            used: 0,
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
        self.view_looks += 1;
        view.used = self.view_looks;
        if !view.inodes.contains_key(&ino.0) {
            let raw = view.ifile.get(&self.store, &self.dat, ino)?;
            inode::check(&self.store.geometry, &raw).at(|| format!("inode {ino} of checkpoint {c}"))?;
            if raw.links_count.get() == 0 {
                return Err(Error::NoInode(ino.0));
            }
            self.trim_views();
            let view = self.views.get_mut(&c).ok_or(Error::NoCheckpoint(c))?;
            view.inodes.insert(ino.0, Inode::load(ino, &raw));
        }
        self.views.get(&c).and_then(|view| view.inodes.get(&ino.0)).ok_or(Error::NoInode(ino.0))
    }

    /// Makes room for another inode of a past tree, where all together have too many: of the tree that nobody looked into for the
    /// longest time.
    fn trim_views(&mut self) {
        if self.viewed_inodes() < self.cached_inodes / SHARE {
            return;
        }
        let large = self.views.values_mut().filter(|view| view.inodes.len() >= LEAST);
        if let Some(view) = large.min_by_key(|view| view.used) {
            view.inodes = HashMap::new();
        }
    }

    /// Inodes of all past trees in memory.
    pub fn viewed_inodes(&self) -> usize {
        self.views.values().map(|view| view.inodes.len()).sum()
    }
}
