//! Names: making, linking, removing and moving them. The order of the checks is that of Linux.

use std::collections::{BTreeMap, BTreeSet};

use super::{Id, Kind, Model, Name, Node};
use crate::caps::flag;
use crate::content::Content;
use crate::errno::Errno;
use crate::op::{RenameHow, Special};
use crate::path::TreePath;

/// Set-group-ID bit.
const S_ISGID: u32 = 0o2000;

impl Model {
    /// A place for a new name: its directory must exist and be open to change, the name must be free.
    fn vacancy(&self, path: &TreePath) -> Result<(Id, Name), Errno> {
        let (dir, name) = self.parent(path)?;
        if self.child(dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may_change(dir)?;
        Ok((dir, Name::from(name)))
    }

    /// Entries may be added to this directory.
    fn may_change(&self, dir: Id) -> Result<(), Errno> {
        if self.nodes[dir].flags & flag::IMMUTABLE != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// This entry may be taken out of this directory.
    fn may_remove(&self, dir: Id, id: Id) -> Result<(), Errno> {
        let fixed = flag::IMMUTABLE | flag::APPEND;
        if (self.nodes[dir].flags | self.nodes[id].flags) & fixed != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// A link more would be too many.
    fn at_link_max(&self, id: Id) -> bool {
        self.caps.link_max.is_some_and(|max| self.nodes[id].nlink >= max)
    }

    pub(super) fn is_dir(&self, id: Id) -> bool {
        matches!(self.nodes[id].kind, Kind::Dir(..))
    }

    /// A new object with what it takes over from `dir`.
    fn birth(&mut self, dir: Id, kind: Kind, mode: u32) -> Id {
        let parent = &self.nodes[dir];
        let by_type = match kind {
            Kind::Dir(..) => u32::MAX,
            Kind::File(_) => !flag::DIRECTORY_ONLY,
            _ => flag::NODUMP | flag::NOATIME,
        };
        let flags = parent.flags & self.caps.flags_inherited & by_type;
        let from_dir = parent.mode & S_ISGID;
        let gid = if from_dir != 0 { parent.gid } else { 0 };
        let is_dir = matches!(kind, Kind::Dir(..));
        self.nodes.push(Node {
            kind,
            mode: if is_dir { mode | from_dir } else { mode },
            uid: 0,
            gid,
            mtime: None,
            flags,
            nlink: if is_dir { 2 } else { 0 },
            rdev: (0, 0),
            handles: 0,
            nameless: false,
            names: BTreeSet::new(),
        });
        self.nodes.len() - 1
    }

    /// Puts a name into a directory; counts links, for a directory those of its parent.
    fn attach(&mut self, dir: Id, name: Name, id: Id) {
        if let Kind::Dir(entries, _) = &mut self.nodes[dir].kind {
            entries.insert(name.clone(), id);
        }
        self.nodes[dir].mtime = None;
        self.nodes[id].names.insert((dir, name));
        if let Kind::Dir(_, parent) = &mut self.nodes[id].kind {
            *parent = dir;
            self.nodes[dir].nlink += 1;
            self.dirs.add(id);
        } else {
            self.nodes[id].nlink += 1;
            self.nodes[id].nameless = false;
            match self.nodes[id].kind {
                Kind::File(_) => self.files.add(id),
                _ => self.others.add(id),
            }
        }
    }

    /// Takes a name out of a directory; the object may be gone afterwards ([`Model::reap`]).
    fn detach(&mut self, dir: Id, name: &[u8], id: Id) {
        if let Kind::Dir(entries, _) = &mut self.nodes[dir].kind {
            entries.remove(name);
        }
        self.nodes[dir].mtime = None;
        self.nodes[id].names.remove(&(dir, Name::from(name)));
        if self.is_dir(id) {
            self.nodes[dir].nlink -= 1;
        } else {
            self.nodes[id].nlink -= 1;
        }
        if self.nodes[id].names.is_empty() {
            self.dirs.remove(id);
            self.files.remove(id);
            self.others.remove(id);
        }
    }

    /// Frees what an object holds once it has neither name nor handle.
    pub(super) fn reap(&mut self, id: Id) {
        let node = &mut self.nodes[id];
        if node.names.is_empty() && node.handles == 0 {
            if let Kind::File(content) = &node.kind {
                self.allocated -= content.allocated();
            }
            node.kind = Kind::Special(Special::Fifo);
        }
    }

    pub(super) fn create(&mut self, path: &TreePath, mode: u32) -> Result<(), Errno> {
        let (dir, name) = self.vacancy(path)?;
        let id = self.birth(dir, Kind::File(Content::default()), mode);
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn mkdir(&mut self, path: &TreePath, mode: u32) -> Result<(), Errno> {
        let (dir, name) = self.vacancy(path)?;
        if self.at_link_max(dir) {
            return Err(Errno::EMLINK);
        }
        // A new directory gets its set-group-ID bit from its parent alone.
        let id = self.birth(dir, Kind::Dir(BTreeMap::new(), dir), mode & 0o1777);
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn symlink(&mut self, path: &TreePath, target: &[u8]) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        // A target that no system call takes is refused before the path is looked at.
        if target.len() > 4095 {
            return Err(Errno::ENAMETOOLONG);
        }
        let (dir, name) = self.vacancy(path)?;
        if target.len() > self.caps.symlink_max {
            return Err(Errno::ENAMETOOLONG);
        }
        let id = self.birth(dir, Kind::Symlink(target.to_vec()), 0o777);
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn mknod(
        &mut self,
        path: &TreePath,
        kind: Special,
        mode: u32,
        rdev: (u32, u32),
    ) -> Result<(), Errno> {
        let (dir, name) = self.vacancy(path)?;
        let id = self.birth(dir, Kind::Special(kind), mode);
        if matches!(kind, Special::Char | Special::Block) {
            self.nodes[id].rdev = rdev;
        }
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn link(&mut self, from: &TreePath, to: &TreePath) -> Result<(), Errno> {
        let id = self.lookup(from)?;
        let (dir, name) = self.vacancy(to)?;
        if self.nodes[id].flags & (flag::IMMUTABLE | flag::APPEND) != 0 || self.is_dir(id) {
            return Err(Errno::EPERM);
        }
        if self.at_link_max(id) {
            return Err(Errno::EMLINK);
        }
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn link_slot(&mut self, slot: u8, to: &TreePath) -> Result<(), Errno> {
        let id = self.slot(slot).ok_or(Errno::EBADF)?;
        let (dir, name) = self.vacancy(to)?;
        if self.nodes[id].flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
            return Err(Errno::EPERM);
        }
        if self.nodes[id].nlink == 0 && !self.nodes[id].nameless {
            return Err(Errno::ENOENT);
        }
        if self.at_link_max(id) {
            return Err(Errno::EMLINK);
        }
        self.attach(dir, name, id);
        Ok(())
    }

    pub(super) fn tmpfile(&mut self, slot: u8, dir: &TreePath, mode: u32) -> Result<(), Errno> {
        self.free_slot(slot)?;
        let dir = self.lookup(dir)?;
        if !self.is_dir(dir) {
            return Err(Errno::ENOTDIR);
        }
        self.may_change(dir)?;
        let id = self.birth(dir, Kind::File(Content::default()), mode);
        self.nodes[id].nameless = true;
        self.hold(slot, id);
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &TreePath) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        let id = self.child(dir, name)?.ok_or(Errno::ENOENT)?;
        self.may_remove(dir, id)?;
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        self.detach(dir, name, id);
        self.reap(id);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, path: &TreePath) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        let id = self.child(dir, name)?.ok_or(Errno::ENOENT)?;
        self.may_remove(dir, id)?;
        if !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        if self.entries_of(id) != 0 {
            return Err(Errno::ENOTEMPTY);
        }
        self.detach(dir, name, id);
        self.reap(id);
        Ok(())
    }

    /// Whether `above` is `below` or a directory that leads to it.
    fn leads_to(&self, above: Id, below: Id) -> bool {
        let mut at = below;
        loop {
            if at == above {
                return true;
            }
            match self.nodes[at].kind {
                Kind::Dir(_, parent) if at != super::ROOT => at = parent,
                _ => return false,
            }
        }
    }

    pub(super) fn rename(&mut self, from: &TreePath, to: &TreePath, how: RenameHow) -> Result<(), Errno> {
        let (old_dir, old_name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        let source = self.child(old_dir, old_name)?.ok_or(Errno::ENOENT)?;
        let target = self.child(new_dir, new_name)?;
        match (how, target) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameHow::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let exchange = how == RenameHow::Exchange;
        if self.is_dir(source) && self.leads_to(source, new_dir) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.is_dir(target) && self.leads_to(target, old_dir)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_remove(old_dir, source)?;
        match target {
            None => self.may_change(new_dir)?,
            Some(target) => {
                self.may_remove(new_dir, target)?;
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) if !exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        let target_is_dir = target.is_some_and(|target| self.is_dir(target));
        if old_dir != new_dir {
            let over = self.is_dir(source) && !target_is_dir && self.at_link_max(new_dir);
            let back = exchange && !self.is_dir(source) && target_is_dir && self.at_link_max(old_dir);
            if over || back {
                return Err(Errno::EMLINK);
            }
        }
        if !exchange && target_is_dir && target.is_some_and(|target| self.entries_of(target) != 0) {
            return Err(Errno::ENOTEMPTY);
        }
        self.detach(old_dir, old_name, source);
        if let Some(target) = target {
            self.detach(new_dir, new_name, target);
            if exchange {
                self.attach(old_dir, Name::from(old_name), target);
                self.forget_dir_time(target);
            } else {
                self.reap(target);
            }
        }
        self.attach(new_dir, Name::from(new_name), source);
        self.forget_dir_time(source);
        Ok(())
    }

    /// A moved directory's own time may or may not change with its `..`.
    fn forget_dir_time(&mut self, id: Id) {
        if self.is_dir(id) {
            self.nodes[id].mtime = None;
        }
    }
}
