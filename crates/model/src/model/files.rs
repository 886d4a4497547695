//! Bytes of regular files, and the slots that hold files open.

use super::{Id, Kind, Model};
use crate::caps::flag;
use crate::content::Content;
use crate::errno::Errno;
use crate::op::{Allocate, FileRef};
use crate::path::TreePath;
use crate::target::{Outcome, Reply};

impl Model {
    /// A regular file, opened for writing if by name. `append` is whether it would be opened so.
    fn writable(&self, file: &FileRef, append: bool) -> Result<Id, Errno> {
        let id = self.resolve(file)?;
        let node = &self.nodes[id];
        match node.kind {
            Kind::File(_) => {}
            Kind::Dir(..) => return Err(Errno::EISDIR),
            Kind::Symlink(_) => return Err(Errno::ELOOP),
            Kind::Special(_) => return Err(Errno::ENXIO),
        }
        let refused = if append { flag::IMMUTABLE } else { flag::IMMUTABLE | flag::APPEND };
        if node.flags & refused != 0 { Err(Errno::EPERM) } else { Ok(id) }
    }

    /// Changes a file's content, with its time and the count of allocated bytes.
    fn change(&mut self, id: Id, act: impl FnOnce(&mut Content)) {
        let node = &mut self.nodes[id];
        node.mtime = None;
        if let Kind::File(content) = &mut node.kind {
            let before = content.allocated();
            act(content);
            self.deep.extend(content.deep_chunks());
            self.allocated = self.allocated + content.allocated() - before;
        }
    }

    fn size_of(&self, id: Id) -> u64 {
        match &self.nodes[id].kind {
            Kind::File(content) => content.size(),
            _ => 0,
        }
    }

    /// The end of a range within the limit of file sizes.
    fn end_of(&self, offset: u64, len: u64) -> Result<u64, Errno> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > self.caps.file_size_max { Err(Errno::EFBIG) } else { Ok(end) }
    }

    pub(super) fn write(&mut self, file: &FileRef, offset: u64, len: u64, seed: u64) -> Result<(), Errno> {
        let id = self.writable(file, false)?;
        self.end_of(offset, len)?;
        self.change(id, |content| content.write(offset, len, seed));
        Ok(())
    }

    pub(super) fn append(&mut self, path: &TreePath, len: u64, seed: u64) -> Result<(), Errno> {
        let id = self.writable(&FileRef::Path(path.clone()), true)?;
        let offset = self.size_of(id);
        self.end_of(offset, len)?;
        self.change(id, |content| content.write(offset, len, seed));
        Ok(())
    }

    pub(super) fn map_write(
        &mut self,
        path: &TreePath,
        offset: u64,
        len: u64,
        seed: u64,
    ) -> Result<(), Errno> {
        let id = self.writable(&FileRef::Path(path.clone()), false)?;
        if self.end_of(offset, len)? > self.size_of(id) {
            return Err(Errno::EINVAL);
        }
        self.change(id, |content| content.write(offset, len, seed));
        Ok(())
    }

    pub(super) fn truncate(&mut self, file: &FileRef, size: u64) -> Result<(), Errno> {
        let id = self.writable(file, false)?;
        self.end_of(size, 0)?;
        self.change(id, |content| content.truncate(size));
        Ok(())
    }

    pub(super) fn fallocate(
        &mut self,
        file: &FileRef,
        how: Allocate,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let id = self.writable(file, false)?;
        let able = match how {
            Allocate::Punch => self.caps.punch,
            Allocate::Zero | Allocate::ZeroKeep => self.caps.zero_range,
            Allocate::Extend | Allocate::Keep => self.caps.allocate,
        };
        if !able {
            return Err(Errno::EOPNOTSUPP);
        }
        let end = self.end_of(offset, len)?;
        self.change(id, |content| {
            let size = content.size();
            if matches!(how, Allocate::Punch | Allocate::Zero | Allocate::ZeroKeep) {
                content.zero(offset, len);
            }
            if matches!(how, Allocate::Zero | Allocate::Extend) {
                content.truncate(size.max(end));
            }
        });
        Ok(())
    }

    pub(super) fn read(&self, file: &FileRef, offset: u64, len: u64) -> Outcome {
        match &self.nodes[self.resolve(file)?].kind {
            Kind::File(content) => {
                let data = content.read(offset, len);
                Ok(Reply::Data(data.len() as u64, crate::hash::Digest::of(&data)))
            }
            Kind::Dir(..) => Err(Errno::EISDIR),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Special(_) => Err(Errno::ENXIO),
        }
    }

    pub(super) fn list(&self, path: &TreePath) -> Outcome {
        let id = self.lookup(path)?;
        if !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        let mut names: Vec<Vec<u8>> = self.names_in(id).map(|(name, _)| name.to_vec()).collect();
        Ok(Reply::names(&mut names))
    }

    pub(super) fn fsync(&self, file: &FileRef) -> Result<(), Errno> {
        match self.nodes[self.resolve(file)?].kind {
            Kind::File(_) | Kind::Dir(..) => Ok(()),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Special(_) => Err(Errno::EINVAL),
        }
    }

    /// The slot exists and is empty.
    pub(super) fn free_slot(&self, slot: u8) -> Result<(), Errno> {
        match self.slots.get(usize::from(slot)) {
            None => Err(Errno::EBADF),
            Some(Some(_)) => Err(Errno::EBUSY),
            Some(None) => Ok(()),
        }
    }

    pub(super) fn hold(&mut self, slot: u8, id: Id) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(id);
            self.nodes[id].handles += 1;
        }
    }

    pub(super) fn open(&mut self, slot: u8, path: &TreePath) -> Result<(), Errno> {
        self.free_slot(slot)?;
        let id = self.writable(&FileRef::Path(path.clone()), false)?;
        self.hold(slot, id);
        Ok(())
    }

    pub(super) fn close(&mut self, slot: u8) -> Result<(), Errno> {
        let id = self.slots.get_mut(usize::from(slot)).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.nodes[id].handles -= 1;
        self.reap(id);
        Ok(())
    }
}
