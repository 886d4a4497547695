//! What the kernel asks of one mounted tree: the live one, or a moment beside it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_engine::Tree;
use silt_format::Ino;
use silt_fs::{FsError, Seek, SetAttr, Stat, WriteFlags};
use silt_fuse::ops::{Create, Fallocate, Ioctl, Lseek, Open, Read, ReadDir, Rename, Write};
use silt_fuse::{
    Config, Context, Errno, FileType, Filesystem, InitFlags, KernelInfo, NodeId, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Statfs,
};

use crate::convert::{TTL, attr, context, decode_rdev, entry, ino, set_time, time};
use crate::core::{Core, Want};
use crate::reading::Readers;

/// Answers of opens: what the kernel has cached stays valid, and closing needs no word.
const KEEP: OpenFlags = OpenFlags::KEEP_CACHE.union(OpenFlags::NOFLUSH);

/// One mount.
pub struct Mount {
    core: Arc<Core>,
    tree: Tree,
    readers: Readers,
    /// Runs when the kernel lets go of the mount.
    on_destroy: Box<dyn Fn() + Send + Sync>,
}

impl Mount {
    pub fn new(
        core: Arc<Core>,
        tree: Tree,
        readers: Readers,
        on_destroy: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Mount { core, tree, readers, on_destroy: Box::new(on_destroy) }
    }

    fn errno(&self, e: &FsError) -> Errno {
        errno(&self.core, e)
    }

    fn remember(&self, fs: &mut silt_fs::Fs, ino: Ino) {
        if self.tree == Tree::Live {
            fs.remember(ino);
        }
    }

    fn live(&self) -> Result<(), FsError> {
        if self.tree == Tree::Live { Ok(()) } else { Err(FsError::ReadOnly) }
    }

    /// Answers with an entry that the kernel remembers from now on.
    fn reply_entry(&self, result: Result<Stat, FsError>, reply: ReplyEntry) {
        match result {
            Ok(s) => reply.entry(&entry(&s)),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn reply_done(&self, result: Result<(), FsError>, reply: ReplyEmpty) {
        match result {
            Ok(()) => {
                self.core.touched();
                reply.ok();
            }
            Err(e) => reply.error(self.errno(&e)),
        }
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

/// A write over the limit of unwritten data, kept until there is room.
struct LateWrite {
    ctx: silt_fs::Context,
    ino: Ino,
    offset: u64,
    data: Vec<u8>,
    flags: WriteFlags,
    reply: ReplyWrite,
}

impl LateWrite {
    fn run(self, core: &Arc<Core>) {
        if let Some(e) = core.stall() {
            let full = {
                let fs = core.fs.lock();
                fs.volume().waiting_blocks() * core.block_size >= core.options.dirty
            };
            if full {
                return self.reply.error(Errno::from_raw(e));
            }
        }
        let result = core.fs.lock().write(&self.ctx, self.ino, self.offset, &self.data, self.flags);
        core.touched();
        match result {
            Ok(n) => self.reply.written(u32::try_from(n).unwrap_or(u32::MAX)),
            Err(e) => self.reply.error(errno(core, &e)),
        }
    }
}

/// The error number for the kernel; damage goes to the log and the super blocks.
fn errno(core: &Core, e: &FsError) -> Errno {
    if let FsError::Io { .. } = e {
        core.met_damage(&e.to_string());
    }
    Errno::from_raw(e.errno())
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
        Ok(())
    }

    fn destroy(&self) {
        (self.on_destroy)();
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
                self.remember(&mut fs, s.ino);
                drop(fs);
                reply.entry(&entry(&s));
            }
            Err(FsError::NotFound) => reply.negative(TTL),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if self.tree != Tree::Live {
            return;
        }
        let mut fs = self.core.fs.lock();
        if let Err(e) = fs.forget(ino(node), lookups) {
            tracing::warn!("{e}");
        }
        let changed = fs.volume().has_changes();
        drop(fs);
        if changed {
            self.core.touched();
        }
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        let result = self.core.fs.lock().getattr(self.tree, ino(node));
        match result {
            Ok(s) => reply.attr(&attr(&s), TTL),
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
        let result =
            self.live().and_then(|()| self.core.fs.lock().setattr(&context(ctx), ino(node), &change));
        match result {
            Ok(s) => {
                self.core.touched();
                reply.attr(&attr(&s), TTL);
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn readlink(&self, _: &Context, node: NodeId, reply: ReplyData) {
        let result = self.core.fs.lock().readlink(self.tree, ino(node));
        match result {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let result = self.made(|fs| fs.symlink(&context(ctx), ino(parent), name, target));
        self.reply_entry(result, reply);
    }

    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, rdev: u32, reply: ReplyEntry) {
        let result = self.made(|fs| fs.mknod(&context(ctx), ino(parent), name, mode, decode_rdev(rdev)));
        self.reply_entry(result, reply);
    }

    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, reply: ReplyEntry) {
        let result = self.made(|fs| fs.mkdir(&context(ctx), ino(parent), name, mode));
        self.reply_entry(result, reply);
    }

    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        let result =
            self.live().and_then(|()| self.core.fs.lock().unlink(&context(ctx), ino(parent), name)).map(drop);
        self.reply_done(result, reply);
    }

    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEmpty) {
        let result =
            self.live().and_then(|()| self.core.fs.lock().rmdir(&context(ctx), ino(parent), name)).map(drop);
        self.reply_done(result, reply);
    }

    fn rename(&self, ctx: &Context, parent: NodeId, r: &Rename<'_>, reply: ReplyEmpty) {
        let result = self.live().and_then(|()| {
            let mut fs = self.core.fs.lock();
            fs.rename(&context(ctx), ino(parent), r.name, ino(r.new_parent), r.new_name, r.flags)
        });
        self.reply_done(result.map(drop), reply);
    }

    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8], reply: ReplyEntry) {
        let result = self.made(|fs| fs.link(&context(ctx), ino(node), ino(new_parent), new_name));
        self.reply_entry(result, reply);
    }

    fn open(&self, _: &Context, node: NodeId, open: &Open, reply: ReplyOpen) {
        let has = |flag: i32| open.flags & flag.cast_unsigned() != 0;
        let (write, append) = (has(libc::O_WRONLY) || has(libc::O_RDWR), has(libc::O_APPEND));
        let result = self.core.fs.lock().may_open(self.tree, ino(node), write, append, has(libc::O_TRUNC));
        if let Err(e) = result {
            return reply.error(self.errno(&e));
        }
        reply.opened(0, KEEP);
    }

    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8], create: &Create, reply: ReplyCreate) {
        match self.made(|fs| fs.create(&context(ctx), ino(parent), name, create.mode)) {
            Ok(s) => reply.created(&entry(&s), 0, KEEP),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn tmpfile(&self, ctx: &Context, parent: NodeId, create: &Create, reply: ReplyCreate) {
        // It comes remembered: without a name nothing else would keep it.
        let made =
            self.live().and_then(|()| self.core.fs.lock().tmpfile(&context(ctx), ino(parent), create.mode));
        self.core.touched();
        match made {
            Ok(s) => reply.created(&entry(&s), 0, KEEP),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn read(&self, _: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        let plan = {
            let mut fs = self.core.fs.lock();
            if self.tree == Tree::Live {
                fs.accessed(ino(node), crate::core::now());
            }
            fs.read_plan(self.tree, ino(node), read.offset, read.size as usize)
        };
        match plan {
            Ok(plan) => self.readers.read(plan, reply),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn write(&self, ctx: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        if let Err(e) = self.live() {
            return reply.error(self.errno(&e));
        }
        let flags = WriteFlags {
            append: write.flags & libc::O_APPEND.cast_unsigned() != 0 && !write.cached,
            cached: write.cached,
            kill_suidgid: write.kill_suidgid,
        };
        let core = &self.core;
        let ctx = context(ctx);
        let mut fs = core.fs.lock();
        let waiting = (fs.volume().waiting_blocks() + 1) * core.block_size + write.data.len() as u64;
        if waiting > core.options.dirty || !core.queue.lock().paced.is_empty() {
            drop(fs);
            let late = LateWrite {
                ctx,
                ino: ino(node),
                offset: write.offset,
                data: write.data.to_vec(),
                flags,
                reply,
            };
            let mut queue = core.queue.lock();
            queue.paced.push_back(Box::new(move |core| late.run(core)));
            queue.write_back = true;
            core.wake.notify_one();
            return;
        }
        let result = fs.write(&ctx, ino(node), write.offset, write.data, flags);
        let unfrozen = fs.volume().unfrozen_blocks();
        drop(fs);
        match result {
            Ok(n) => reply.written(u32::try_from(n).unwrap_or(u32::MAX)),
            Err(e) => reply.error(self.errno(&e)),
        }
        core.touched();
        core.maybe_write_back(unfrozen);
    }

    fn fsync(&self, _: &Context, node: NodeId, _: u64, datasync: bool, reply: ReplyEmpty) {
        self.sync(if datasync { Want::Data(ino(node)) } else { Want::All }, reply);
    }

    fn fsyncdir(&self, _: &Context, _: NodeId, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(Want::All, reply);
    }

    fn syncfs(&self, _: &Context, _: NodeId, reply: ReplyEmpty) {
        self.core.sync_arrives.store(true, Ordering::Relaxed);
        self.sync(Want::All, reply);
    }

    fn readdir(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectory) {
        let result = self.core.fs.lock().readdir(self.tree, ino(node), read.offset, false, |e| {
            flow(reply.add(e.ino.0, e.next, FileType::from_mode(e.file_type), e.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn readdirplus(&self, _: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectoryPlus) {
        let mut fs = self.core.fs.lock();
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
        for ino in seen {
            self.remember(&mut fs, ino);
        }
        drop(fs);
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.errno(&e)),
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
        let mut fs = self.core.fs.lock();
        let result = match ioctl.cmd {
            GETFLAGS | FSGETXATTR => fs.flags(self.tree, ino(node)),
            GETVERSION => fs.generation(self.tree, ino(node)),
            SETFLAGS => {
                let Some(bytes) = ioctl.input.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()) else {
                    return reply.error(Errno::EINVAL);
                };
                self.live()
                    .and_then(|()| fs.set_flags(&context(ctx), ino(node), u32::from_ne_bytes(bytes)))
                    .map(|()| 0)
            }
            _ => return reply.error(Errno::ENOTTY),
        };
        drop(fs);
        match result {
            Ok(_) if ioctl.cmd == SETFLAGS => {
                self.core.touched();
                reply.ioctl(0, &[]);
            }
            Ok(flags) if ioctl.cmd == FSGETXATTR => {
                let mut out = [0u8; 28];
                out[..4].copy_from_slice(&crate::xflags::of(flags).to_ne_bytes());
                reply.ioctl(0, &out);
            }
            Ok(value) => {
                let long = u64::from(value).to_ne_bytes();
                reply.ioctl(0, &long);
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn fallocate(&self, ctx: &Context, node: NodeId, f: &Fallocate, reply: ReplyEmpty) {
        let result = self.live().and_then(|()| {
            self.core.fs.lock().fallocate(&context(ctx), ino(node), f.mode, f.offset, f.length)
        });
        self.reply_done(result, reply);
    }

    fn lseek(&self, _: &Context, node: NodeId, lseek: &Lseek, reply: ReplyLseek) {
        let what = match i32::try_from(lseek.whence) {
            Ok(libc::SEEK_DATA) => Seek::Data,
            Ok(libc::SEEK_HOLE) => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let result = self.core.fs.lock().seek(self.tree, ino(node), lseek.offset, what);
        match result {
            Ok(offset) => reply.offset(offset),
            Err(e) => reply.error(self.errno(&e)),
        }
    }
}

impl Mount {
    /// Makes something and remembers it for the kernel.
    fn made(&self, f: impl FnOnce(&mut silt_fs::Fs) -> Result<Stat, FsError>) -> Result<Stat, FsError> {
        self.live()?;
        let mut fs = self.core.fs.lock();
        let s = f(&mut fs)?;
        self.remember(&mut fs, s.ino);
        drop(fs);
        self.core.touched();
        Ok(s)
    }
}
