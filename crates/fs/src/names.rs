//! Names: looking up, making, linking and removing them. Checks come in the order of Linux.

use silt_engine::{Attr, Tree, writable, zeroed};
use silt_format::dir::{self, NAME_MAX, file_type};
use silt_format::inode::flags;

use crate::dirs::{Found, is_dots};
use crate::error::{FsError, Of, Result};
use crate::life::Node;
use crate::types::{
    Context, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_IXGRP, Stat, is_fixed, is_immutable,
};
use crate::{Fs, Ino, is_at_link_max};

/// Blocks a request on names may take at most: chunks of two directories, a first block, and the
/// growth of maps.
pub(crate) const NAME_BLOCKS: u64 = 6;

/// Checks the form of a name.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.iter().any(|b| *b == 0 || *b == b'/') {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// Whether an inode is what its directory says. Where it is not, one of them is damaged or the entry names the
/// inode of something else.
pub(crate) fn check_type(found: &Found, mode: u32) -> Result<()> {
    let said = file_type::to_mode(found.file_type);
    if said == 0 || said == mode & S_IFMT {
        return Ok(());
    }
    let what = format!("an entry of type {said:#o} names an inode of type {:#o}", mode & S_IFMT);
    Err(FsError::damaged(found.ino, what))
}

impl Fs {
    /// Finds a name, "." and ".." included; "." is the inode itself, whatever its type. EIO: its inode is damaged or missing.
    pub fn lookup(&mut self, tree: Tree, parent: Ino, name: &[u8]) -> Result<Stat> {
        if name == b"." {
            // Of whatever it is: file handles are looked up so.
            return self.getattr(tree, parent);
        }
        let dir = self.dir_attr(tree, parent)?;
        if name == b".." {
            // What was above a directory that is gone may be gone as well.
            if dir.links == 0 {
                return Err(FsError::Stale);
            }
            let ino = self.dir_parent(tree, parent)?;
            return self.entry_stat(tree, ino);
        }
        check_name(name)?;
        let found = self.dir_find(tree, parent, name)?.ok_or(FsError::NotFound)?;
        if found.ino == Ino::ROOT {
            return Err(FsError::damaged(found.ino, "an entry names the root directory"));
        }
        let stat = self.entry_stat(tree, found.ino)?;
        check_type(&found, stat.mode)?;
        Ok(stat)
    }

    /// Attributes of what an entry names: there an inode that is gone is damage.
    pub(crate) fn entry_stat(&mut self, tree: Tree, ino: Ino) -> Result<Stat> {
        match self.getattr(tree, ino) {
            Err(FsError::Stale) => Err(FsError::damaged(ino, "an entry names an inode that is not in use")),
            Ok(stat) if stat.links == 0 => {
                Err(FsError::damaged(ino, "an entry names an inode without links"))
            }
            other => other,
        }
    }

    /// What a directory says of a name other than "." and "..": the inode it leads to, and type bits of a
    /// mode (0 where unknown). Answers also where that inode cannot be used.
    pub fn entry(&mut self, tree: Tree, parent: Ino, name: &[u8]) -> Result<(Ino, u32)> {
        self.dir_attr(tree, parent)?;
        check_name(name)?;
        let found = self.dir_find(tree, parent, name)?.ok_or(FsError::NotFound)?;
        Ok((found.ino, file_type::to_mode(found.file_type)))
    }

    /// Finds an object by path from the root; empty components and "." stay where they are,
    /// symbolic links are not followed.
    pub fn resolve(&mut self, tree: Tree, path: &[u8]) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
            at = self.lookup(tree, at, name)?.ino;
        }
        Ok(at)
    }

    /// Checks that a name can be made in a directory: not there yet, the directory open to it.
    fn vacancy(&mut self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.writable()?;
        let attr = self.parent_attr(parent)?;
        check_name(name)?;
        if is_dots(name) || self.dir_find(Tree::Live, parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        if is_immutable(&attr) {
            return Err(FsError::NotPermitted);
        }
        Ok(attr)
    }

    /// Attributes of a new object in a directory; `mode` with type bits.
    fn newborn(ctx: &Context, parent: &Attr, mode: u32) -> Attr {
        let kind = mode & S_IFMT;
        let mut perm = mode & 0o7777;
        if kind != S_IFLNK {
            perm &= !(ctx.umask & 0o777);
        }
        let mut gid = ctx.gid;
        if kind == S_IFDIR {
            // A directory gets its set-group-ID bit from the one above alone.
            perm &= 0o1777;
        }
        if parent.mode & S_ISGID != 0 {
            gid = parent.gid;
            if kind == S_IFDIR {
                perm |= S_ISGID;
            } else if perm & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && !ctx.is_inside(gid) {
                // Kernels before 6.0 leave that to the file system.
                perm &= !S_ISGID;
            }
        }
        Attr {
            mode: kind | perm,
            uid: ctx.uid,
            gid,
            links: 1,
            size: 0,
            mtime: ctx.now,
            ctime: ctx.now,
            flags: flags::mask(kind, parent.flags & flags::INHERITED),
            generation: 0,
            device: (0, 0),
        }
    }

    /// Makes an object with an optional first block and names it.
    fn make(
        &mut self,
        ctx: &Context,
        parent: Ino,
        name: &[u8],
        attr: Attr,
        first_block: impl FnOnce(Ino, &mut [u8]) -> bool,
    ) -> Result<Stat> {
        self.need(NAME_BLOCKS)?;
        let kind = file_type::from_mode(attr.mode);
        let is_dir = attr.is_dir();
        let ino = self.volume.create_inode(attr).of(parent)?;
        let result = (|| {
            let mut block = zeroed(self.volume.geometry().bs());
            if first_block(ino, writable(&mut block)) {
                self.put_block(ino, 0, block)?;
            }
            self.dir_insert(parent, name, ino, kind)
        })();
        if let Err(e) = result {
            // Nothing refers to it: whatever hinders its deletion leaves an orphan at worst.
            let _ = self.volume.delete_inode(ino);
            return Err(e);
        }
        let above = self.volume.attr_mut(parent).of(parent)?;
        above.mtime = ctx.now;
        above.ctime = ctx.now;
        if is_dir {
            above.links = above.links.saturating_add(1);
        }
        self.getattr(Tree::Live, ino)
    }

    /// Makes a regular file. `mode`: permission bits.
    pub fn create(&mut self, ctx: &Context, parent: Ino, name: &[u8], mode: u32) -> Result<Stat> {
        self.mknod(ctx, parent, name, S_IFREG | (mode & 0o7777), (0, 0))
    }

    /// Makes a regular file, FIFO, socket or device, as the type bits of `mode` say (none: a
    /// regular file). EINVAL: other types, device numbers beyond 12 and 20 bits.
    pub fn mknod(
        &mut self,
        ctx: &Context,
        parent: Ino,
        name: &[u8],
        mode: u32,
        device: (u32, u32),
    ) -> Result<Stat> {
        let kind = if mode & S_IFMT == 0 { S_IFREG } else { mode & S_IFMT };
        let is_device = matches!(kind, 0o020_000 | 0o060_000);
        if !(is_device || matches!(kind, S_IFREG | 0o010_000 | 0o140_000)) {
            return Err(FsError::Invalid);
        }
        if is_device && (device.0 > 0xfff || device.1 > 0xf_ffff) {
            return Err(FsError::Invalid);
        }
        let above = self.vacancy(parent, name)?;
        let mut attr = Self::newborn(ctx, &above, kind | (mode & 0o7777));
        if is_device {
            attr.device = device;
        }
        self.make(ctx, parent, name, attr, |_, _| false)
    }

    /// Makes a directory. `mode`: permission bits.
    pub fn mkdir(&mut self, ctx: &Context, parent: Ino, name: &[u8], mode: u32) -> Result<Stat> {
        let above = self.vacancy(parent, name)?;
        if is_at_link_max(&above) {
            return Err(FsError::TooManyLinks);
        }
        let mut attr = Self::newborn(ctx, &above, S_IFDIR | (mode & 0o7777));
        attr.links = 2;
        attr.size = u64::from(self.volume.geometry().block_size);
        self.make(ctx, parent, name, attr, |ino, chunk| {
            dir::init_first(chunk, ino, parent);
            true
        })
    }

    /// Makes a symbolic link. ENAMETOOLONG: a target of a block or more.
    pub fn symlink(&mut self, ctx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid);
        }
        let above = self.vacancy(parent, name)?;
        if target.len() >= self.volume.geometry().bs() {
            return Err(FsError::NameTooLong);
        }
        let mut attr = Self::newborn(ctx, &above, S_IFLNK | 0o777);
        attr.size = target.len() as u64;
        self.make(ctx, parent, name, attr, |_, block| {
            block[..target.len()].copy_from_slice(target);
            true
        })
    }

    /// Makes a regular file without a name, as in `parent`. Nothing but being remembered keeps
    /// it, so it comes remembered once: the caller does not [`Fs::remember`] it for its answer.
    pub fn tmpfile(&mut self, ctx: &Context, parent: Ino, mode: u32) -> Result<Stat> {
        self.writable()?;
        let above = self.parent_attr(parent)?;
        if is_immutable(&above) {
            return Err(FsError::NotPermitted);
        }
        self.need(1)?;
        let mut attr = Self::newborn(ctx, &above, S_IFREG | (mode & 0o7777));
        attr.links = 0;
        let ino = self.volume.create_inode(attr).of(parent)?;
        self.nodes.insert(ino.0, Node { lookups: 1, nameless: true, unlinked: true, ..Node::default() });
        self.getattr(Tree::Live, ino)
    }

    /// Gives an object that is not a directory another name.
    pub fn link(&mut self, ctx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Stat> {
        self.writable()?;
        let attr = self.live(ino)?;
        self.vacancy(parent, name)?;
        if is_fixed(&attr) || attr.is_dir() {
            return Err(FsError::NotPermitted);
        }
        let nameless = self.nodes.get(&ino.0).is_some_and(|n| n.nameless);
        if attr.links == 0 && !nameless {
            return Err(FsError::NotFound);
        }
        if is_at_link_max(&attr) {
            return Err(FsError::TooManyLinks);
        }
        self.need(NAME_BLOCKS)?;
        self.dir_insert(parent, name, ino, file_type::from_mode(attr.mode))?;
        if let Some(node) = self.nodes.get_mut(&ino.0) {
            node.nameless = false;
        }
        let a = self.volume.attr_mut(ino).of(ino)?;
        a.links = a.links.saturating_add(1);
        a.ctime = ctx.now;
        self.touch_dir(ctx, parent, 0)?;
        self.getattr(Tree::Live, ino)
    }

    /// Notes a change of a directory's entries; `links` is what its subdirectories' number
    /// changed by.
    pub(crate) fn touch_dir(&mut self, ctx: &Context, dir: Ino, links: i32) -> Result<()> {
        let a = self.volume.attr_mut(dir).of(dir)?;
        a.mtime = ctx.now;
        a.ctime = ctx.now;
        a.links = a.links.saturating_add_signed(links);
        Ok(())
    }

    /// Checks that an entry may be taken out of a directory; the attributes of its inode.
    pub(crate) fn may_remove(&mut self, parent: &Attr, found: &Found) -> Result<Attr> {
        if is_fixed(parent) {
            return Err(FsError::NotPermitted);
        }
        let attr = self.entry_attr(found)?;
        if is_fixed(&attr) { Err(FsError::NotPermitted) } else { Ok(attr) }
    }

    /// Attributes of what an entry names. EIO: they cannot be those of the entry's inode.
    pub(crate) fn entry_attr(&mut self, found: &Found) -> Result<Attr> {
        let attr = self.attr(Tree::Live, found.ino);
        let attr = match attr {
            // A device may fail once, and what it has is not to be taken for lost: a directory for empty.
            Err(FsError::Io { .. }) => self.attr(Tree::Live, found.ino),
            attr => attr,
        };
        let attr = match attr {
            Err(FsError::Stale) => {
                return Err(FsError::damaged(found.ino, "an entry names an inode that is not in use"));
            }
            other => other?,
        };
        check_type(found, attr.mode)?;
        Ok(attr)
    }

    /// The entry that is to be removed.
    fn removable(&mut self, parent: Ino, name: &[u8]) -> Result<(Attr, Found)> {
        self.writable()?;
        let above = self.parent_attr(parent)?;
        check_name(name)?;
        let found = self.dir_find(Tree::Live, parent, name)?.ok_or(FsError::NotFound)?;
        Ok((above, found))
    }

    /// Removes a name of something that is not a directory; the inode it had. Works also where
    /// that inode is damaged.
    pub fn unlink(&mut self, ctx: &Context, parent: Ino, name: &[u8]) -> Result<Ino> {
        if is_dots(name) {
            return Err(FsError::IsDir);
        }
        let (above, found) = self.removable(parent, name)?;
        self.need_for_change(Some(found.ino))?;
        match self.may_remove(&above, &found) {
            Ok(attr) if attr.is_dir() => return Err(FsError::IsDir),
            Ok(_) => {}
            Err(FsError::Io { .. }) if found.file_type == file_type::DIR => return Err(FsError::IsDir),
            Err(FsError::Io { .. }) => {
                self.dir_remove(parent, name, &found)?;
                self.touch_dir(ctx, parent, 0)?;
                self.drop_unread(ctx, &found, 1)?;
                return Ok(found.ino);
            }
            Err(e) => return Err(e),
        }
        self.dir_remove(parent, name, &found)?;
        self.touch_dir(ctx, parent, 0)?;
        self.drop_link(ctx, found.ino)?;
        Ok(found.ino)
    }

    /// Takes one link away, and the inode with the last if nobody holds it.
    pub(crate) fn drop_link(&mut self, ctx: &Context, ino: Ino) -> Result<()> {
        let a = self.volume.attr_mut(ino).of(ino)?;
        a.links = a.links.saturating_sub(1);
        a.ctime = ctx.now;
        if a.links == 0 { self.reap(ino) } else { Ok(()) }
    }

    /// An entry of an inode that could not be loaded is gone. It may be there after all: a device that failed once, or that comes
    /// back.
    pub(crate) fn drop_unread(&mut self, ctx: &Context, found: &Found, most: u16) -> Result<()> {
        match self.entry_attr(found) {
            Ok(attr) if !attr.is_dir() && found.ino != Ino::ROOT && attr.links > 0 => {
                self.drop_link(ctx, found.ino)
            }
            Err(e) if e.is_of_device() && found.file_type != file_type::DIR && self.unread.note(found) => {
                Ok(())
            }
            _ => {
                self.drop_damaged(found.ino, most);
                Ok(())
            }
        }
    }

    /// An entry of an inode that cannot be loaded is gone: frees its number if those were all of its
    /// links, `most` of them. Its blocks stay taken: a map that cannot be right may name those of others.
    pub(crate) fn drop_damaged(&mut self, ino: Ino, most: u16) {
        // One that makes sense by itself is somebody else's: its blocks and its number are not this entry's.
        if self.volume.inode(Tree::Live, ino).is_ok() {
            return;
        }
        self.dirs.drop((Tree::Live, ino.0));
        self.refused.forget(ino);
        self.atimes.remove(&ino.0);
        self.reserved.release_all(ino.0);
        let links = self.volume.raw_inode(ino).map(|raw| raw.links_count.get());
        if links.is_ok_and(|n| n <= most) {
            // The name is gone, which was asked for; a number that stays taken harms nobody.
            let _ = self.volume.delete_inode(ino);
        }
    }

    /// Removes an empty directory; the inode it had. What of it cannot be read counts as empty, and one
    /// whose inode is damaged goes, too: otherwise nothing could ever remove it.
    pub fn rmdir(&mut self, ctx: &Context, parent: Ino, name: &[u8]) -> Result<Ino> {
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let (above, found) = self.removable(parent, name)?;
        self.need_for_change(Some(found.ino))?;
        let is_usable = match self.may_remove(&above, &found) {
            Ok(attr) if !attr.is_dir() => return Err(FsError::NotDir),
            Ok(_) => true,
            Err(FsError::Io { .. }) if found.file_type != file_type::DIR => return Err(FsError::NotDir),
            Err(e @ FsError::Io { .. }) => {
                self.count_as_lost(found.ino, e)?;
                false
            }
            Err(e) => return Err(e),
        };
        // A directory has one name: an entry that leads back up is damage, and all that goes is the entry.
        let astray = found.ino == Ino::ROOT || found.ino == parent;
        if !is_usable || astray {
            self.dir_remove(parent, name, &found)?;
            self.touch_dir(ctx, parent, -1)?;
            self.drop_damaged(found.ino, 2);
            return Ok(found.ino);
        }
        if !self.dir_is_removable(found.ino)? {
            return Err(FsError::NotEmpty);
        }
        self.dir_remove(parent, name, &found)?;
        self.touch_dir(ctx, parent, -1)?;
        self.drop_dir(ctx, found.ino)?;
        Ok(found.ino)
    }

    /// An empty directory has lost its name.
    pub(crate) fn drop_dir(&mut self, ctx: &Context, dir: Ino) -> Result<()> {
        let a = self.volume.attr_mut(dir).of(dir)?;
        a.links = 0;
        a.size = 0;
        a.ctime = ctx.now;
        self.dirs.drop((Tree::Live, dir.0));
        self.reap(dir)
    }
}
