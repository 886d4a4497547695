//! What the kernel asks of one mounted tree: the live one, or a moment beside it.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use silt_engine::Tree;
use silt_format::Ino;
use silt_format::inode::flags;
use silt_fs::{Fs, FsError, Seek, SetAttr, Stat, WriteFlags};
use silt_fuse::ops::{Create, Fallocate, Ioctl, Lseek, Read, ReadDir, Rename, Write};
use silt_fuse::{
    Config, Context, Destroy, Errno, FileType, Filesystem, InitFlags, KernelInfo, NodeId, OpenFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyStatfs, ReplyWrite, Statfs,
};

use crate::changing::{Change, Takes, errno};
use crate::cleaning::let_run;
use crate::convert::{
    TTL, attr, attr_ttl, context, damaged_entry, decode_rdev, entry, ino, nothing, set_time, time,
};
use crate::core::{Core, Want};
use crate::damage::Met;
use crate::fixing::Fixing;
use crate::notices::attributes_changed;
use crate::reading::{Readers, Wanted};
use crate::reserving::Range;

/// How files without a name are opened: what the kernel has cached stays valid, and closing needs no word.
const KEEP: OpenFlags = OpenFlags::KEEP_CACHE.union(OpenFlags::NOFLUSH);

/// Of [`Filesystem::access`]: to run.
const X_OK: u32 = libc::X_OK as u32;

/// Most directories that are kept in mind as damaged.
const BROKEN_DIRS: usize = 10_000;

/// One mount.
pub struct Mount {
    core: Arc<Core>,
    tree: Tree,
    readers: Arc<Readers>,
    fixing: Arc<Fixing>,
    /// Directories whose inodes cannot be used, which the kernel knows: shown as empty and closed to all.
    broken_dirs: Mutex<HashSet<NodeId>>,
    /// Runs when the kernel lets go of the mount.
    on_destroy: Box<dyn Fn(Destroy) + Send + Sync>,
}

impl Mount {
    pub fn new(
        core: Arc<Core>,
        tree: Tree,
        readers: Arc<Readers>,
        on_destroy: impl Fn(Destroy) + Send + Sync + 'static,
    ) -> Self {
        Mount {
            core,
            tree,
            readers,
            fixing: Arc::default(),
            broken_dirs: Mutex::default(),
            on_destroy: Box::new(on_destroy),
        }
    }

    fn errno(&self, e: &FsError) -> Errno {
        errno(&self.core, self.tree, None, e)
    }

    /// What a listing comes to; damage that it passed over is noted as well.
    fn listed(&self, result: silt_fs::Result<Option<FsError>>) -> Result<(), Errno> {
        match result {
            Ok(passed_over) => {
                passed_over.iter().for_each(|e| _ = self.errno(e));
                Ok(())
            }
            Err(e) => Err(self.errno(&e)),
        }
    }

    fn remember(&self, fs: &mut Fs, ino: Ino, parent: Ino) {
        if self.tree == Tree::Live {
            fs.remember_in(ino, parent);
        }
    }

    /// Notes that something is read.
    fn accessed(&self, fs: &mut Fs, node: NodeId) {
        if self.tree == Tree::Live && !self.core.options.read_only {
            fs.accessed(ino(node), crate::core::now());
        }
    }

    fn live(&self) -> Result<(), FsError> {
        if self.tree == Tree::Live { Ok(()) } else { Err(FsError::ReadOnly) }
    }

    /// Changes the names `name` of a directory and `more`, if the tree can be changed.
    fn change_names<T: Send + 'static>(
        &self,
        name: (NodeId, &[u8]),
        more: Option<(NodeId, &[u8])>,
        takes: Takes,
        run: impl FnMut(&mut Fs) -> Result<(T, Option<Ino>), FsError> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        if let Err(e) = self.live() {
            return answer(Err(self.errno(&e)));
        }
        let names =
            [Some(name), more].into_iter().flatten().map(|(dir, name)| (dir, name.to_vec())).collect();
        Change { names, node: None, takes, run, answer, begun: false }.start(&self.core);
    }

    /// Changes an inode, if the tree can be changed.
    fn change_inode<T: Send + 'static>(
        &self,
        node: NodeId,
        takes: Takes,
        mut run: impl FnMut(&mut Fs) -> Result<T, FsError> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        if let Err(e) = self.live() {
            return answer(Err(self.errno(&e)));
        }
        let run = move |fs: &mut Fs| run(fs).map(|done| (done, None));
        Change { names: Vec::new(), node: Some(node), takes, run, answer, begun: false }.start(&self.core);
    }

    /// Makes a name of something and answers with its entry, which the kernel remembers from now on.
    fn make(
        &self,
        parent: NodeId,
        name: &[u8],
        mut run: impl FnMut(&mut Fs, &[u8]) -> Result<Stat, FsError> + Send + 'static,
        answer: impl FnOnce(Result<Stat, Errno>) + Send + 'static,
    ) {
        let own = name.to_vec();
        let run = move |fs: &mut Fs| {
            let s = run(fs, &own)?;
            fs.remember_in(s.ino, ino(parent));
            Ok((s, Some(s.ino)))
        };
        self.change_names((parent, name), None, Takes::NAMES, run, answer);
    }

    /// `chattr`. What was written through mappings before a file is fixed arrives before.
    fn set_flags(&self, ctx: silt_fs::Context, node: NodeId, wanted: u32, reply: ReplyIoctl) {
        if let Err(e) = self.live() {
            return reply.error(self.errno(&e));
        }
        let flags = self.core.fs.lock().flags_after(&ctx, ino(node), wanted);
        let fixes = match flags {
            Ok((before, after)) => after & !before & (flags::IMMUTABLE | flags::APPEND) != 0,
            Err(e) => return reply.error(self.errno(&e)),
        };
        let notifier = self.core.notifier.get().cloned();
        let told = notifier.clone();
        let set = move |core: &Arc<Core>, reply: ReplyIoctl| {
            let run = move |fs: &mut Fs| fs.set_flags(&ctx, ino(node), wanted).map(|()| ((), None));
            let answer = move |result| match result {
                Ok(()) => {
                    // The kernel does not know that this changes attributes, and would keep the old ctime.
                    attributes_changed(told.as_ref(), node);
                    reply.ioctl(0, &[]);
                }
                Err(e) => reply.error(e),
            };
            Change { names: Vec::new(), node: Some(node), takes: Takes::NOTHING, run, answer, begun: false }
                .start(core);
        };
        let Some(notifier) = notifier.filter(|_| fixes) else { return set(&self.core, reply) };
        if !self.core.beside.flags.may_keep(&self.core) {
            return reply.error(Errno::EAGAIN);
        }
        let fixing = self.fixing.clone();
        // Not on this thread: the kernel writes what is dirty first, which this one has to take.
        let fix = move |core: &Arc<Core>| {
            if let Err(e) = notifier.inval_inode(node, 0, 0) {
                tracing::warn!("{e}");
            }
            // Now, and not before: there may be others to wait for.
            fixing.begin(node);
            set(core, reply);
        };
        // Where there is no thread its answer is EIO.
        self.core.beside.flags.start(&self.core, Box::new(fix));
    }

    fn sync(&self, want: Want, reply: ReplyEmpty) {
        if self.tree != Tree::Live || self.core.options.read_only {
            return reply.ok();
        }
        self.core.sync(
            want,
            Box::new(move |result| match result {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(Errno::from_raw(e)),
            }),
        );
    }
}

/// Answers with an entry that the kernel remembers from now on.
fn reply_entry(result: Result<Stat, Errno>, reply: ReplyEntry) {
    match result {
        Ok(s) => reply.entry(&entry(&s)),
        Err(e) => reply.error(e),
    }
}

/// Whether a listing goes on.
fn flow(took: bool) -> ControlFlow<()> {
    if took { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

impl Filesystem for Mount {
    fn init(&self, _: &KernelInfo, config: &mut Config) -> Result<(), Errno> {
        config.want(
            InitFlags::DO_READDIRPLUS
                | InitFlags::READDIRPLUS_AUTO
                | InitFlags::EXPORT_SUPPORT
                | InitFlags::HANDLE_KILLPRIV_V2
                | InitFlags::CACHE_SYMLINKS
                | InitFlags::EXPLICIT_INVAL_DATA,
        );
        if self.core.options.io_uring {
            config.want(InitFlags::OVER_IO_URING);
        }
        Ok(())
    }

    fn rings_begin(&self) {
        self.core.rings.store(true, Ordering::Relaxed);
    }

    fn destroy(&self, how: Destroy) {
        (self.on_destroy)(how);
    }

    fn panicked(&self, operation: &'static str) {
        // Half a change may be in memory: nothing of it may reach the disk.
        tracing::error!("internal error in {operation}; nothing more is written");
        self.core.fs.lock().volume_mut().fail(format!("internal error in {operation}"));
    }

    fn lookup(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        let mut fs = self.core.fs.lock();
        match fs.lookup(self.tree, ino(parent), name) {
            Ok(s) => {
                match name {
                    // A file handle is looked up so, and what lies above it is another directory.
                    b"." | b".." if self.tree == Tree::Live => fs.remember(s.ino),
                    _ => self.remember(&mut fs, s.ino, ino(parent)),
                }
                drop(fs);
                reply.entry(&entry(&s));
            }
            Err(FsError::NotFound) => reply.negative(TTL),
            Err(e @ FsError::Io { .. }) => {
                // Of an inode that cannot be used the directory still tells enough to remove its name.
                let named = fs.entry(self.tree, ino(parent), name);
                // An inode that is sound by itself is something else: what the kernel knows of it must not change.
                let sound = named.as_ref().is_ok_and(|(ino, _)| fs.getattr(self.tree, *ino).is_ok());
                // Nor what it knows of one that the device does not give now: it may be open, and be there again.
                let held = self.tree == Tree::Live
                    && named.as_ref().is_ok_and(|(ino, _)| fs.is_remembered(*ino))
                    && matches!(e, FsError::Io { device: true, .. });
                let apart = sound || held;
                if let Ok((ino, _)) = named
                    && !apart
                    && matches!(fs.getattr(self.tree, ino), Err(FsError::Io { .. }))
                {
                    self.remember(&mut fs, ino, crate::convert::ino(parent));
                }
                drop(fs);
                let errno = errno(&self.core, self.tree, Some((parent, name)), &e);
                match named {
                    Ok((ino, kind)) => {
                        let entry = if apart { nothing(kind) } else { damaged_entry(ino, kind) };
                        if kind == libc::S_IFDIR {
                            let mut broken = self.broken_dirs.lock();
                            if broken.len() < BROKEN_DIRS {
                                broken.insert(entry.node);
                            }
                        }
                        reply.entry(&entry);
                    }
                    Err(_) => reply.error(errno),
                }
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if self.tree != Tree::Live {
            return;
        }
        self.broken_dirs.lock().remove(&node);
        let mut fs = self.core.fs.lock();
        if let Err(e) = fs.forget(ino(node), lookups) {
            tracing::warn!("{e}");
        }
        let (changed, late) = (fs.volume().has_changes(), fs.has_late());
        drop(fs);
        if changed {
            self.core.touched();
        }
        // The log writer ends it when there is room.
        if late {
            let_run(&self.core);
        }
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        let result = self.core.fs.lock().getattr(self.tree, ino(node));
        match result {
            Ok(s) => reply.attr(&attr(&s), attr_ttl(&s)),
            Err(e) => {
                let errno = self.errno(&e);
                // Who removes a tree looks at a directory before it opens it.
                if self.broken_dirs.lock().contains(&node) {
                    reply.attr(&damaged_entry(ino(node), libc::S_IFDIR).attr, Duration::ZERO);
                } else {
                    reply.error(errno);
                }
            }
        }
    }

    /// Asked only where nobody but root gets in, who may do everything but run what nobody may run.
    fn access(&self, _: &Context, node: NodeId, mask: u32, reply: ReplyEmpty) {
        let result = self.core.fs.lock().getattr(self.tree, ino(node));
        match result {
            Ok(s) if mask & X_OK != 0 && s.mode & libc::S_IFMT == libc::S_IFREG && s.mode & 0o111 == 0 => {
                reply.error(Errno::EACCES);
            }
            Ok(_) => reply.ok(),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn setattr(&self, ctx: &Context, node: NodeId, set: &silt_fuse::SetAttr, reply: ReplyAttr) {
        let change = SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            ctime: set.ctime.map(time),
            kill_suidgid: set.kill_suidgid,
        };
        let ctx = context(ctx);
        let run = move |fs: &mut Fs| fs.setattr(&ctx, ino(node), &change);
        self.change_inode(node, Takes::NOTHING, run, |result| match result {
            Ok(s) => reply.attr(&attr(&s), attr_ttl(&s)),
            Err(e) => reply.error(e),
        });
    }

    fn readlink(&self, _: &Context, node: NodeId, reply: ReplyData) {
        let mut fs = self.core.fs.lock();
        self.accessed(&mut fs, node);
        let result = fs.readlink(self.tree, ino(node));
        drop(fs);
        match result {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let (ctx, target) = (context(ctx), target.to_vec());
        let run = move |fs: &mut Fs, name: &[u8]| fs.symlink(&ctx, ino(parent), name, &target);
        self.make(parent, name, run, |made| reply_entry(made, reply));
    }

    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, rdev: u32, reply: ReplyEntry) {
        let ctx = context(ctx);
        let run = move |fs: &mut Fs, name: &[u8]| fs.mknod(&ctx, ino(parent), name, mode, decode_rdev(rdev));
        self.make(parent, name, run, |made| reply_entry(made, reply));
    }

    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, reply: ReplyEntry) {
        let ctx = context(ctx);
        let run = move |fs: &mut Fs, name: &[u8]| fs.mkdir(&ctx, ino(parent), name, mode);
        self.make(parent, name, run, |made| reply_entry(made, reply));
    }

    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        let (ctx, own) = (context(ctx), name.to_vec());
        let run = move |fs: &mut Fs| fs.unlink(&ctx, ino(parent), &own).map(|_| ((), None));
        self.change_names((parent, name), None, Takes::NOTHING, run, |result| reply.result(result));
    }

    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        let (ctx, own) = (context(ctx), name.to_vec());
        let run = move |fs: &mut Fs| fs.rmdir(&ctx, ino(parent), &own).map(|_| ((), None));
        self.change_names((parent, name), None, Takes::NOTHING, run, |result| reply.result(result));
    }

    fn rename(&self, ctx: &Context, parent: NodeId, r: &Rename<'_>, reply: ReplyEmpty) {
        let (ctx, name, new_name) = (context(ctx), r.name.to_vec(), r.new_name.to_vec());
        let (new_parent, flags) = (r.new_parent, r.flags);
        let run = move |fs: &mut Fs| {
            fs.rename(&ctx, ino(parent), &name, ino(new_parent), &new_name, flags).map(|_| ((), None))
        };
        let (from, to) = ((parent, r.name), (r.new_parent, r.new_name));
        self.change_names(from, Some(to), Takes::NAMES, run, |result| reply.result(result));
    }

    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8], reply: ReplyEntry) {
        let ctx = context(ctx);
        let run = move |fs: &mut Fs, name: &[u8]| fs.link(&ctx, ino(node), ino(new_parent), name);
        self.make(new_parent, new_name, run, |made| reply_entry(made, reply));
    }

    // Opening needs no word: `open` and `create` stay unanswered (ENOSYS), the kernel makes files with `mknod`, and
    // what the flags of a file forbid is refused where it is done. At each close the kernel writes what is dirty
    // through mappings.

    fn tmpfile(&self, ctx: &Context, parent: NodeId, create: &Create, reply: ReplyCreate) {
        let (ctx, mode) = (context(ctx), create.mode);
        if let Err(e) = self.live() {
            return reply.error(self.errno(&e));
        }
        // It comes remembered: without a name nothing else would keep it.
        let run = move |fs: &mut Fs| {
            let s = fs.tmpfile(&ctx, ino(parent), mode)?;
            Ok((s, Some(s.ino)))
        };
        let answer = move |made: Result<Stat, Errno>| match made {
            Ok(s) => reply.created(&entry(&s), 0, KEEP),
            Err(e) => reply.error(e),
        };
        Change { names: Vec::new(), node: None, takes: Takes::NAMES, run, answer, begun: false }
            .start(&self.core);
    }

    fn read(&self, _: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        let plan = {
            let mut fs = self.core.fs.lock();
            self.accessed(&mut fs, node);
            let guard = fs.volume().guard();
            fs.read_plan(self.tree, ino(node), read.offset, read.size as usize).map(|plan| (plan, guard))
        };
        match plan {
            Ok((plan, guard)) => self.readers.read(
                Wanted { tree: self.tree, ino: ino(node), offset: read.offset, plan, _guard: guard },
                reply,
            ),
            Err(FsError::Io { ino: of, what, .. }) => {
                let bytes = Some(read.offset..read.offset.saturating_add(u64::from(read.size)));
                self.core.met_damage(Met { bytes, ..Met::of(self.tree, Ino(of), what) });
                reply.error(Errno::EIO);
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn write(&self, ctx: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        if let Err(e) = self.live() {
            return reply.error(self.errno(&e));
        }
        let flags = WriteFlags {
            append: write.flags & libc::O_APPEND.cast_unsigned() != 0,
            cached: write.cached,
            late: write.cached && self.fixing.may_be_older(node),
            kill_suidgid: write.kill_suidgid,
        };
        crate::writing::write(&self.core, context(ctx), node, write, flags, reply);
    }

    fn fsync(&self, _: &Context, node: NodeId, _: u64, datasync: bool, reply: ReplyEmpty) {
        self.sync(if datasync { Want::Data(ino(node)) } else { Want::File(ino(node)) }, reply);
    }

    fn fsyncdir(&self, _: &Context, node: NodeId, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(Want::File(ino(node)), reply);
    }

    fn syncfs(&self, _: &Context, _: NodeId, reply: ReplyEmpty) {
        self.core.sync_arrives.store(true, Ordering::Relaxed);
        self.sync(Want::All, reply);
    }

    fn readdir(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectory) {
        let mut fs = self.core.fs.lock();
        self.accessed(&mut fs, node);
        let result = fs.readdir(self.tree, ino(node), read.offset, false, |e| {
            flow(reply.add(e.ino.0, e.next, FileType::from_mode(e.file_type), e.name))
        });
        drop(fs);
        match self.listed(result) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectoryPlus) {
        let mut fs = self.core.fs.lock();
        self.accessed(&mut fs, node);
        let mut seen = Vec::new();
        let result = fs.readdir(self.tree, ino(node), read.offset, true, |e| match &e.stat {
            Some(s) => {
                let took = reply.add(&entry(s), e.next, e.name);
                if took {
                    seen.push(e.ino);
                }
                flow(took)
            }
            None => flow(reply.add_plain(e.ino.0, e.next, FileType::from_mode(e.file_type), e.name)),
        });
        for found in seen {
            self.remember(&mut fs, found, ino(node));
        }
        drop(fs);
        match self.listed(result) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Context, _: NodeId, reply: ReplyStatfs) {
        let result = self.core.fs.lock().statfs(self.tree);
        match result {
            Ok(s) => reply.statfs(&Statfs {
                blocks: s.blocks,
                bfree: s.blocks_free,
                bavail: s.blocks_available,
                files: s.files,
                ffree: s.files_free,
                bsize: s.block_size,
                namelen: s.name_max,
                frsize: s.block_size,
            }),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn ioctl(&self, ctx: &Context, node: NodeId, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        const GETFLAGS: u32 = 0x8008_6601;
        const SETFLAGS: u32 = 0x4008_6602;
        const GETVERSION: u32 = 0x8008_7601;
        const FSGETXATTR: u32 = 0x801c_581f;
        const FSSETXATTR: u32 = 0x401c_5820;
        if ioctl.cmd == SETFLAGS {
            let Some(bytes) = ioctl.input.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()) else {
                return reply.error(Errno::EINVAL);
            };
            return self.set_flags(context(ctx), node, u32::from_ne_bytes(bytes), reply);
        }
        if ioctl.cmd == FSSETXATTR {
            let Some(asked) = ioctl.input.first_chunk() else { return reply.error(Errno::EINVAL) };
            let before = self.core.fs.lock().flags(self.tree, ino(node));
            return match before.map(|before| crate::xflags::wanted(asked, before)) {
                Ok(Some(wanted)) => self.set_flags(context(ctx), node, wanted, reply),
                Ok(None) => reply.error(Errno::EOPNOTSUPP),
                Err(e) => reply.error(self.errno(&e)),
            };
        }
        let mut fs = self.core.fs.lock();
        let result = match ioctl.cmd {
            GETFLAGS | FSGETXATTR => fs.flags(self.tree, ino(node)),
            GETVERSION => fs.generation(self.tree, ino(node)),
            _ => return reply.error(Errno::ENOTTY),
        };
        drop(fs);
        match result {
            Ok(flags) if ioctl.cmd == FSGETXATTR => {
                let mut out = [0u8; crate::xflags::BYTES];
                out[..4].copy_from_slice(&crate::xflags::of(flags).to_ne_bytes());
                reply.ioctl(0, &out);
            }
            Ok(value) => {
                // An int, whatever the codes say of its size: behind it is what callers keep there.
                reply.ioctl(0, &value.to_ne_bytes());
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn fallocate(&self, ctx: &Context, node: NodeId, f: &Fallocate, reply: ReplyEmpty) {
        if let Err(e) = self.live() {
            return reply.error(self.errno(&e));
        }
        let range = Range { node, mode: f.mode, offset: f.offset, length: f.length };
        crate::pieces::fallocate(&self.core, context(ctx), range, |result| reply.result(result));
    }

    fn lseek(&self, _: &Context, node: NodeId, lseek: &Lseek, reply: ReplyLseek) {
        let what = match i32::try_from(lseek.whence) {
            Ok(libc::SEEK_DATA) => Seek::Data,
            Ok(libc::SEEK_HOLE) => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        crate::seeking::seek(&self.core, self.tree, node, lseek.offset, what, reply);
    }
}
