//! Attributes: permission bits, owners, times, inode flags.

use super::{Id, Kind, Model};
use crate::caps::flag;
use crate::errno::Errno;
use crate::manifest::Time;
use crate::path::TreePath;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

impl Model {
    /// An object whose attributes may be changed.
    fn settable(&self, path: &TreePath) -> Result<Id, Errno> {
        let id = self.lookup(path)?;
        let fixed = self.nodes[id].flags & (flag::IMMUTABLE | flag::APPEND) != 0;
        if fixed { Err(Errno::EPERM) } else { Ok(id) }
    }

    pub(super) fn chmod(&mut self, path: &TreePath, mode: u32) -> Result<(), Errno> {
        let id = self.settable(path)?;
        self.nodes[id].mode = mode & 0o7777;
        Ok(())
    }

    pub(super) fn chown(&mut self, path: &TreePath, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let id = self.settable(path)?;
        if uid.is_none() && gid.is_none() && !self.caps.chown_of_nothing {
            return Ok(());
        }
        let is_dir = self.is_dir(id);
        let node = &mut self.nodes[id];
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        // Even the superuser takes the set-id bits away with it; without group execution S_ISGID means
        // something else (mandatory locking) and stays.
        if !is_dir {
            node.mode &= !S_ISUID;
            if node.mode & S_IXGRP != 0 {
                node.mode &= !S_ISGID;
            }
        }
        Ok(())
    }

    pub(super) fn utimens(&mut self, path: &TreePath, mtime: Time) -> Result<(), Errno> {
        let id = self.settable(path)?;
        self.nodes[id].mtime = Some(mtime);
        Ok(())
    }

    pub(super) fn set_flags(&mut self, path: &TreePath, flags: u32) -> Result<(), Errno> {
        let id = self.lookup(path)?;
        let able = match self.nodes[id].kind {
            Kind::Dir(..) => self.caps.flags,
            Kind::File(_) => self.caps.flags & !flag::DIRECTORY_ONLY,
            Kind::Symlink(_) => return Err(Errno::ELOOP),
            Kind::Special(_) => return Err(Errno::ENOTTY),
        };
        self.nodes[id].flags = flags & able;
        Ok(())
    }
}
