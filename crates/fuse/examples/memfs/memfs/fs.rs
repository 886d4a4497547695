//! The operations of the file system in memory: one lock, no handles, everything cached for long.

use super::tree::{Content, Directory, Tree};
use parking_lot::Mutex;
use silt_fuse::ops::{Create, Open, Read, ReadDir, Rename, Write};
use silt_fuse::{
    Config, Context, Destroy, Errno, FileType, Filesystem, InitFlags, KernelInfo, NodeId, OpenFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, SetAttr, SetTime, Statfs, Timestamp,
};
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How the file system shall be.
#[derive(Clone, Copy)]
pub struct Settings {
    /// How long the kernel may cache.
    pub ttl: Duration,
    /// Let the kernel collect writes.
    pub writeback: bool,
    /// Requests come through io_uring where the kernel can.
    pub rings: bool,
    /// Answer CREATE; otherwise the kernel makes files by MKNOD, which saves it RELEASE.
    pub create: bool,
    /// Owner of the root.
    pub uid: u32,
    /// Group of the root.
    pub gid: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(3600), writeback: false, rings: false, create: true, uid: 0, gid: 0 }
    }
}

pub struct Memfs {
    tree: Mutex<Tree>,
    settings: Settings,
    /// How often SYNCFS arrived.
    pub syncs: AtomicU64,
    /// How often DESTROY arrived or the session ended.
    pub destroys: AtomicU64,
}

impl Memfs {
    pub fn new(settings: Settings) -> Self {
        Self {
            tree: Mutex::new(Tree::new(settings.ttl, settings.uid, settings.gid)),
            settings,
            syncs: AtomicU64::new(0),
            destroys: AtomicU64::new(0),
        }
    }

    /// Changes a file behind the kernel's back, as a daemon with a life of its own does.
    #[allow(dead_code)] // Only tests do.
    pub fn change(&self, name: &[u8], content: &[u8]) -> Option<NodeId> {
        let mut tree = self.tree.lock();
        let node = tree.find(1, name).ok()?;
        tree.get(node).and_then(|file| file.write(0, content)).ok()?;
        Some(node)
    }

    /// Moves a name in the root behind the kernel's back.
    #[allow(dead_code)] // Only tests do.
    pub fn move_name(&self, name: &[u8], new_name: &[u8]) -> Option<NodeId> {
        let mut tree = self.tree.lock();
        let node = tree.remove(1, name).ok()?;
        tree.enter(1, new_name, node).ok()?;
        Some(node)
    }

    fn make(
        &self,
        ctx: &Context,
        (parent, name): (NodeId, &[u8]),
        (mode, rdev): (u32, u32),
        content: Content,
    ) -> Result<silt_fuse::Entry, Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut tree = self.tree.lock();
        match tree.find(parent, name) {
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Errno::EEXIST),
        }
        let parent_attr = tree.get(parent)?.attr;
        let (mut mode, mut gid) = (mode, ctx.gid);
        if parent_attr.mode & libc::S_ISGID != 0 {
            gid = parent_attr.gid;
            if mode & libc::S_IFMT == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            }
        }
        let size = if let Content::Link(target) = &content { target.len() } else { 0 };
        let node = tree.insert(mode, ctx.uid, gid, rdev, content);
        tree.get(node)?.attr.size = size as u64;
        tree.enter(parent, name, node)?;
        tree.entry(node)
    }

    fn take_away(&self, parent: NodeId, name: &[u8], directory: bool) -> Result<(), Errno> {
        let mut tree = self.tree.lock();
        let node = tree.find(parent, name)?;
        match tree.is_empty_directory(node) {
            Ok(_) if !directory => return Err(Errno::EISDIR),
            Ok(false) => return Err(Errno::ENOTEMPTY),
            Err(error) if directory => return Err(error),
            _ => {}
        }
        tree.remove(parent, name)?;
        tree.reap(node);
        Ok(())
    }

    fn move_entry(&self, parent: NodeId, rename: &Rename<'_>) -> Result<(), Errno> {
        let Rename { name, new_parent, new_name, flags } = *rename;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Errno::EINVAL);
        }
        let mut tree = self.tree.lock();
        let node = tree.find(parent, name)?;
        let old = match tree.find(new_parent, new_name) {
            Ok(old) => Some(old),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        if tree.directory(node).is_ok() && tree.is_below(new_parent, node)? {
            return Err(Errno::EINVAL);
        }
        match old {
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if flags & libc::RENAME_EXCHANGE != 0 => return Err(Errno::ENOENT),
            Some(old) if old == node => return Ok(()),
            Some(old) if flags & libc::RENAME_EXCHANGE != 0 => {
                tree.remove(parent, name)?;
                tree.remove(new_parent, new_name)?;
                tree.enter(parent, name, old)?;
                return tree.enter(new_parent, new_name, node);
            }
            Some(old) => {
                match (tree.directory(node).is_ok(), tree.is_empty_directory(old)) {
                    (false, Ok(_)) => return Err(Errno::EISDIR),
                    (true, Ok(false)) => return Err(Errno::ENOTEMPTY),
                    (true, Err(error)) => return Err(error),
                    _ => {}
                }
                tree.remove(new_parent, new_name)?;
                tree.reap(old);
            }
            None => {}
        }
        tree.remove(parent, name)?;
        tree.enter(new_parent, new_name, node)
    }

    fn change_attr(&self, node: NodeId, set: &SetAttr) -> Result<silt_fuse::Attr, Errno> {
        let mut tree = self.tree.lock();
        let found = tree.get(node)?;
        if let Some(size) = set.size {
            found.truncate(size)?;
        }
        let now = Timestamp::now();
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let attr = &mut found.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & libc::S_IFMT | mode & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = set.ctime.unwrap_or(now);
        Ok(*attr)
    }
}

fn answer(reply: ReplyEntry, result: Result<silt_fuse::Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Memfs {
    fn init(&self, _: &KernelInfo, config: &mut Config) -> Result<(), Errno> {
        config.want(
            InitFlags::DO_READDIRPLUS
                | InitFlags::READDIRPLUS_AUTO
                | InitFlags::CACHE_SYMLINKS
                | InitFlags::EXPLICIT_INVAL_DATA,
        );
        if self.settings.writeback {
            config.want(InitFlags::WRITEBACK_CACHE);
        }
        if self.settings.rings {
            config.want(InitFlags::OVER_IO_URING);
        }
        Ok(())
    }

    fn destroy(&self, _: Destroy) {
        self.destroys.fetch_add(1, Ordering::SeqCst);
    }

    fn lookup(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        let mut tree = self.tree.lock();
        match tree.find(parent, name).and_then(|node| tree.entry(node)) {
            Err(Errno::ENOENT) => reply.negative(self.settings.ttl),
            result => answer(reply, result),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut tree = self.tree.lock();
        if let Ok(found) = tree.get(node) {
            found.lookups = found.lookups.saturating_sub(lookups);
        }
        tree.reap(node);
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        match self.tree.lock().get(node) {
            Ok(found) => reply.attr(&found.attr, self.settings.ttl),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(&self, _: &Context, node: NodeId, set: &SetAttr, reply: ReplyAttr) {
        match self.change_attr(node, set) {
            Ok(attr) => reply.attr(&attr, self.settings.ttl),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Context, node: NodeId, reply: ReplyData) {
        match self.tree.lock().get(node).map(|found| &found.content) {
            Ok(Content::Link(target)) => reply.data(target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(error),
        }
    }

    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let content = Content::Link(target.into());
        answer(reply, self.make(ctx, (parent, name), (libc::S_IFLNK | 0o777, 0), content));
    }

    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, rdev: u32, reply: ReplyEntry) {
        let regular = mode & libc::S_IFMT == libc::S_IFREG;
        let content = if regular { Content::File(Default::default()) } else { Content::Special };
        answer(reply, self.make(ctx, (parent, name), (mode, rdev), content));
    }

    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, reply: ReplyEntry) {
        let content = Content::Directory(Directory::new());
        let mode = libc::S_IFDIR | mode & 0o7777;
        answer(reply, self.make(ctx, (parent, name), (mode, 0), content));
    }

    fn unlink(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        reply.result(self.take_away(parent, name, false));
    }

    fn rmdir(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        reply.result(self.take_away(parent, name, true));
    }

    fn rename(&self, _: &Context, parent: NodeId, rename: &Rename<'_>, reply: ReplyEmpty) {
        reply.result(self.move_entry(parent, rename));
    }

    fn link(&self, _: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8], reply: ReplyEntry) {
        let mut tree = self.tree.lock();
        let result = match tree.find(new_parent, new_name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => tree.enter(new_parent, new_name, node).and_then(|()| tree.entry(node)),
            Err(error) => Err(error),
        };
        answer(reply, result);
    }

    fn open(&self, _: &Context, _: NodeId, _: &Open, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8], create: &Create, reply: ReplyCreate) {
        if !self.settings.create {
            return reply.error(Errno::ENOSYS);
        }
        let content = Content::File(Default::default());
        match self.make(ctx, (parent, name), (create.mode, 0), content) {
            Ok(entry) => reply.created(&entry, 0, OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH),
            Err(error) => reply.error(error),
        }
    }

    fn tmpfile(&self, ctx: &Context, _: NodeId, create: &Create, reply: ReplyCreate) {
        let mut tree = self.tree.lock();
        let node = tree.insert(create.mode, ctx.uid, ctx.gid, 0, Content::File(Default::default()));
        match tree.entry(node) {
            Ok(entry) => reply.created(&entry, 0, OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH),
            Err(error) => reply.error(error),
        }
    }

    fn read(&self, _: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        let mut tree = self.tree.lock();
        match tree.get(node).and_then(|found| found.pieces(read.offset, u64::from(read.size))) {
            Ok(pieces) => {
                let pieces: Vec<_> = pieces.into_iter().map(IoSlice::new).collect();
                reply.data_vectored(&pieces);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, _: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        let size = u32::try_from(write.data.len()).unwrap_or(u32::MAX);
        match self.tree.lock().get(node).and_then(|found| found.write(write.offset, write.data)) {
            Ok(()) => reply.written(size),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectory) {
        let mut tree = self.tree.lock();
        let parent = match tree.directory(node) {
            Ok(directory) => directory.parent,
            Err(error) => return reply.error(error),
        };
        if read.offset < 1 && !reply.add(node, 1, FileType::Directory, b".")
            || read.offset < 2 && !reply.add(parent, 2, FileType::Directory, b"..")
        {
            return reply.ok();
        }
        for (cookie, name, child) in entries(&mut tree, node, read.offset) {
            let kind = tree.get(child).map_or(FileType::Unknown, |n| FileType::from_mode(n.attr.mode));
            if !reply.add(child, cookie, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectoryPlus) {
        let mut tree = self.tree.lock();
        let parent = match tree.directory(node) {
            Ok(directory) => directory.parent,
            Err(error) => return reply.error(error),
        };
        if read.offset < 1 && !reply.add_plain(node, 1, FileType::Directory, b".")
            || read.offset < 2 && !reply.add_plain(parent, 2, FileType::Directory, b"..")
        {
            return reply.ok();
        }
        for (cookie, name, child) in entries(&mut tree, node, read.offset) {
            let Ok(entry) = tree.entry(child) else { continue };
            if !reply.add(&entry, cookie, &name) {
                // Not taken: the lookup does not count.
                if let Ok(found) = tree.get(child) {
                    found.lookups -= 1;
                }
                break;
            }
        }
        reply.ok();
    }

    fn fsync(&self, _: &Context, _: NodeId, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Context, _: NodeId, reply: ReplyStatfs) {
        let blocks = 1 << 24;
        reply.statfs(&Statfs { blocks, bfree: blocks, bavail: blocks, ..Statfs::default() });
    }

    fn syncfs(&self, _: &Context, _: NodeId, reply: ReplyEmpty) {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        reply.ok();
    }
}

/// The entries of a directory behind a cookie, as many as one listing can hold.
fn entries(tree: &mut Tree, node: NodeId, after: u64) -> Vec<(u64, Box<[u8]>, NodeId)> {
    let Ok(directory) = tree.directory(node) else { return Vec::new() };
    let after = after.max(2) + 1;
    let entry = |(cookie, (name, child)): (&u64, &(Box<[u8]>, NodeId))| (*cookie, name.clone(), *child);
    directory.order.range(after..).take(1024).map(entry).collect()
}
