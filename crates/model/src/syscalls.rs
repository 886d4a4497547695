//! A target that works by system calls in a directory: of a local file system, of a FUSE mount, of the kernel's
//! nilfs2.
//!
//! Nothing is cached between operations but the open slots, so what is told is what the file system tells.
//! Names are taken relative to an open directory, symlinks are not followed. Device nodes are never opened.

mod ioctl;
mod probe;
mod read;
mod walk;

pub use probe::probe;

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
};
use rustix::fs::{Uid, openat};
use rustix::io::Errno as Sys;

use crate::caps::Capabilities;
use crate::content::pattern;
use crate::errno::Errno;
use crate::hash::Digest;
use crate::manifest::{Columns, Manifest, Time};
use crate::op::{Allocate, FileRef, Op, RenameHow, SLOTS, Special};
use crate::path::TreePath;
use crate::target::{Outcome, Reply, Target, Tree};

/// Bytes written or read by one call.
const CHUNK: usize = 256 << 10;

/// What a volume can do that system calls in a directory cannot. Every method may refuse with `ENOSYS`.
pub trait Moments {
    /// Makes the state durable as a checkpoint.
    fn checkpoint(&mut self, _root: BorrowedFd<'_>) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a checkpoint and keeps it as snapshot number `id`.
    fn snapshot(&mut self, _root: BorrowedFd<'_>, _id: u32) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Removes snapshot number `id`.
    fn remove_snapshot(&mut self, _root: BorrowedFd<'_>, _id: u32) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Unmounts and mounts again; returns the new root. All descriptors are closed by then.
    fn remount(&mut self) -> Result<OwnedFd, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a tree of the past visible and returns its root.
    fn open_tree(&mut self, _tree: Tree) -> Result<OwnedFd, String> {
        Err("only the live tree can be seen".to_owned())
    }
}

/// No moments at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMoments;

impl Moments for NoMoments {}

/// The target.
#[derive(Debug)]
pub struct PathTarget<M = NoMoments> {
    root: Option<OwnedFd>,
    caps: Capabilities,
    slots: [Option<OwnedFd>; SLOTS as usize],
    moments: M,
    snapshots: u32,
    /// Inodes that were written through mappings, where that must not be done twice.
    mapped: HashSet<u64>,
}

fn sys(error: Sys) -> Errno {
    Errno(error.raw_os_error())
}

/// A process-wide setting: new objects get exactly the permission bits that are asked for.
fn no_umask() {
    rustix::process::umask(Mode::empty());
}

impl<M: Moments> PathTarget<M> {
    /// Works in the directory `root`, which becomes mode 0755 and, for the superuser, the superuser's.
    pub fn new(root: &Path, caps: Capabilities, moments: M) -> Result<Self, Errno> {
        no_umask();
        let fd = Self::open_root(root)?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(sys)?;
        if caps.privileged {
            rustix::fs::fchown(&fd, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(sys)?;
        }
        Ok(Self::continued(fd, caps, moments, 0))
    }

    /// Goes on in a tree as it is; `snapshots` is how many were ever made there.
    pub fn continued(root: OwnedFd, caps: Capabilities, moments: M, snapshots: u32) -> Self {
        no_umask();
        Self { root: Some(root), caps, slots: Default::default(), moments, snapshots, mapped: HashSet::new() }
    }

    /// Opens a directory for [`PathTarget::continued`].
    pub fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).map_err(sys)
    }

    /// What snapshots and remounts are made with.
    pub fn moments(&mut self) -> &mut M {
        &mut self.moments
    }

    /// Closes everything and gives back the means.
    pub fn into_moments(self) -> M {
        self.moments
    }

    fn root(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.root.as_ref().map(AsFd::as_fd).ok_or(Errno::ENODEV)
    }

    /// Makes a file that was written through a mapping before leave memory.
    fn forget_pages(&mut self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let ino = rustix::fs::fstat(fd).map_err(sys)?.st_ino;
        if !self.mapped.insert(ino) {
            rustix::fs::fsync(fd).map_err(sys)?;
            rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed).map_err(sys)?;
        }
        Ok(())
    }

    fn open(&self, path: &TreePath, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(self.root()?, path.for_syscall(), flags, Mode::from_raw_mode(mode)).map_err(sys)
    }

    fn slot(&self, slot: u8) -> Result<BorrowedFd<'_>, Errno> {
        self.slots.get(usize::from(slot)).and_then(Option::as_ref).map(AsFd::as_fd).ok_or(Errno::EBADF)
    }

    fn free_slot(&self, slot: u8) -> Result<(), Errno> {
        match self.slots.get(usize::from(slot)) {
            None => Err(Errno::EBADF),
            Some(Some(_)) => Err(Errno::EBUSY),
            Some(None) => Ok(()),
        }
    }

    fn hold(&mut self, slot: u8, fd: OwnedFd) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(fd);
        }
    }

    /// Runs `act` on a file, opened with `flags` if it is given by name.
    fn with<T>(
        &self,
        file: &FileRef,
        flags: OFlags,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match file {
            FileRef::Path(path) => act(self.open(path, flags, 0)?.as_fd()),
            FileRef::Slot(slot) => act(self.slot(*slot)?),
        }
    }

    fn mknod(&self, path: &TreePath, kind: Special, mode: u32, major: u32, minor: u32) -> Result<(), Errno> {
        let (kind, device) = match kind {
            Special::Fifo => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::Char => (FileType::CharacterDevice, rustix::fs::makedev(major, minor)),
            Special::Block => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        };
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::mknodat(self.root()?, path.for_syscall(), kind, mode, device).map_err(sys)
    }

    fn rename(&self, from: &TreePath, to: &TreePath, how: RenameHow) -> Result<(), Errno> {
        let root = self.root()?;
        let flags = match how {
            RenameHow::Plain => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(root, from.for_syscall(), root, to.for_syscall(), flags).map_err(sys)
    }

    fn utimens(&self, path: &TreePath, mtime: Time) -> Result<(), Errno> {
        let stamp = Timespec { tv_sec: mtime.sec, tv_nsec: i64::from(mtime.nsec) };
        let times = Timestamps { last_access: stamp, last_modification: stamp };
        rustix::fs::utimensat(self.root()?, path.for_syscall(), &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(sys)
    }

    fn unlink(&self, path: &TreePath, flags: AtFlags) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.root()?, path.for_syscall(), flags).map_err(sys)
    }

    fn link_slot(&self, slot: u8, to: &TreePath) -> Result<(), Errno> {
        let fd = self.slot(slot)?;
        rustix::fs::linkat(fd, "", self.root()?, to.for_syscall(), AtFlags::EMPTY_PATH).map_err(sys)
    }

    fn set_flags(&self, path: &TreePath, flags: u32) -> Result<(), Errno> {
        let fd = self.open(path, OFlags::RDONLY, 0)?;
        let able = self.caps.flags;
        let now = ioctl::flags(fd.as_fd()).map_err(sys)?;
        ioctl::set_flags(fd.as_fd(), (now & !able) | (flags & able)).map_err(sys)
    }

    fn list(&self, path: &TreePath) -> Outcome {
        let fd = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        Ok(Reply::names(&mut walk::names(fd.as_fd()).map_err(sys)?))
    }

    fn remount(&mut self) -> Result<(), Errno> {
        self.slots = Default::default();
        self.root = None;
        self.root = Some(self.moments.remount()?);
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Outcome {
        let done = |result: Result<(), Errno>| result.map(|()| Reply::Done);
        match op {
            Op::Create { path, mode } => {
                self.open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, *mode).map(|_| Reply::Done)
            }
            Op::Mkdir { path, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                done(rustix::fs::mkdirat(self.root()?, path.for_syscall(), mode).map_err(sys))
            }
            Op::Symlink { path, target } => {
                done(rustix::fs::symlinkat(&target[..], self.root()?, path.for_syscall()).map_err(sys))
            }
            Op::Mknod { path, kind, mode, major, minor } => {
                done(self.mknod(path, *kind, *mode, *major, *minor))
            }
            Op::Link { from, to } => {
                let root = self.root()?;
                let (from, to) = (from.for_syscall(), to.for_syscall());
                done(rustix::fs::linkat(root, from, root, to, AtFlags::empty()).map_err(sys))
            }
            Op::Unlink { path } => done(self.unlink(path, AtFlags::empty())),
            Op::Rmdir { path } => done(self.unlink(path, AtFlags::REMOVEDIR)),
            Op::Rename { from, to, how } => done(self.rename(from, to, *how)),
            Op::Write { file, offset, len, seed } => {
                done(self.with(file, OFlags::WRONLY, |fd| write(fd, Some(*offset), *len, *seed)))
            }
            Op::Append { path, len, seed } => {
                let fd = self.open(path, OFlags::WRONLY | OFlags::APPEND, 0)?;
                done(write(fd.as_fd(), None, *len, *seed))
            }
            Op::MapWrite { path, offset, len, seed } => {
                let fd = self.open(path, OFlags::RDWR, 0)?;
                if !self.caps.map_again {
                    self.forget_pages(fd.as_fd())?;
                }
                done(map_write(fd.as_fd(), *offset, *len, *seed))
            }
            Op::Truncate { file, size } => {
                done(self.with(file, OFlags::WRONLY, |fd| rustix::fs::ftruncate(fd, *size).map_err(sys)))
            }
            Op::Fallocate { file, how, offset, len } => done(self.with(file, OFlags::WRONLY, |fd| {
                rustix::fs::fallocate(fd, allocate_flags(*how), *offset, *len).map_err(sys)
            })),
            Op::Read { file, offset, len } => {
                self.with(file, OFlags::RDONLY, |fd| read_reply(fd, *offset, *len))
            }
            Op::Stat { path } => self.stat(path),
            Op::List { path } => self.list(path),
            Op::Readlink { path } => {
                let target = rustix::fs::readlinkat(self.root()?, path.for_syscall(), Vec::new());
                Ok(Reply::Target(target.map_err(sys)?.into_bytes()))
            }
            Op::Chmod { path, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                let flags = AtFlags::empty();
                done(rustix::fs::chmodat(self.root()?, path.for_syscall(), mode, flags).map_err(sys))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                done(rustix::fs::chownat(self.root()?, path.for_syscall(), uid, gid, flags).map_err(sys))
            }
            Op::Utimens { path, mtime } => done(self.utimens(path, *mtime)),
            Op::SetFlags { path, flags } => done(self.set_flags(path, *flags)),
            Op::Fsync { file } => {
                done(self.with(file, OFlags::RDONLY, |fd| rustix::fs::fsync(fd).map_err(sys)))
            }
            Op::Fdatasync { file } => {
                done(self.with(file, OFlags::RDONLY, |fd| rustix::fs::fdatasync(fd).map_err(sys)))
            }
            // Of this file system only: others have nothing to do with it.
            Op::Sync => done(rustix::fs::syncfs(self.root()?).map_err(sys)),
            Op::Open { slot, path } => {
                self.free_slot(*slot)?;
                let fd = self.open(path, OFlags::RDWR, 0)?;
                self.hold(*slot, fd);
                Ok(Reply::Done)
            }
            Op::Tmpfile { slot, dir, mode } => {
                self.free_slot(*slot)?;
                let fd = self.open(dir, OFlags::TMPFILE | OFlags::RDWR, *mode)?;
                self.hold(*slot, fd);
                Ok(Reply::Done)
            }
            Op::LinkSlot { slot, to } => done(self.link_slot(*slot, to)),
            Op::Close { slot } => {
                let place = self.slots.get_mut(usize::from(*slot)).and_then(Option::take);
                place.map(|_| Reply::Done).ok_or(Errno::EBADF)
            }
            Op::Many { each, dir, prefix, first, count } => {
                for n in *first..first.saturating_add(*count) {
                    for op in each.ops(dir, prefix, n).into_iter().flatten() {
                        self.call(&op)?;
                    }
                }
                Ok(Reply::Done)
            }
            Op::Checkpoint | Op::Snapshot | Op::RemoveSnapshot { .. } | Op::Remount => done(self.moment(op)),
        }
    }

    fn moment(&mut self, op: &Op) -> Result<(), Errno> {
        let root = self.root.as_ref().ok_or(Errno::ENODEV)?.as_fd();
        match op {
            Op::Checkpoint => self.moments.checkpoint(root),
            Op::Snapshot => {
                self.moments.snapshot(root, self.snapshots)?;
                self.snapshots += 1;
                Ok(())
            }
            Op::RemoveSnapshot { id } => self.moments.remove_snapshot(root, *id),
            _ => self.remount(),
        }
    }
}

impl<M: Moments> Target for PathTarget<M> {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        self.call(op)
    }

    fn manifest(&mut self, tree: Tree, columns: Columns) -> Result<Manifest, String> {
        match tree {
            Tree::Live => {
                let root = self.root().map_err(|e| e.to_string())?;
                tree_manifest(root, &Look { columns, flags: self.caps.flags, probes: None })
            }
            past => {
                let root = self.moments.open_tree(past)?;
                tree_manifest(root.as_fd(), &Look { columns, flags: self.caps.flags, probes: None })
            }
        }
    }
}

/// How a tree is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// What is told.
    pub columns: Columns,
    /// Inode flags that are told.
    pub flags: u32,
    /// Where a file of more than [`DEEP`](crate::content::DEEP) bytes may hold data behind its first `DEEP` bytes, as
    /// (offset, length): nothing else of it is read. `None` asks the file system, which takes nilfs2 in the kernel
    /// for ever when holes are large.
    pub probes: Option<&'a [(u64, u64)]>,
}

/// What the tree under `root` looks like. The error is a sentence.
pub fn tree_manifest(root: BorrowedFd<'_>, look: &Look<'_>) -> Result<Manifest, String> {
    walk::manifest(root, look)
}

fn allocate_flags(how: Allocate) -> FallocateFlags {
    match how {
        Allocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocate::Zero => FallocateFlags::ZERO_RANGE,
        Allocate::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        Allocate::Extend => FallocateFlags::empty(),
        Allocate::Keep => FallocateFlags::KEEP_SIZE,
    }
}

/// Writes `len` bytes of a pattern at `offset`, or wherever the descriptor appends.
fn write(fd: BorrowedFd<'_>, offset: Option<u64>, len: u64, seed: u64) -> Result<(), Errno> {
    // The first part is never longer than the buffer.
    let mut buffer = vec![0; usize::try_from(len.min(CHUNK as u64)).unwrap_or(CHUNK)];
    let mut done: u64 = 0;
    while done < len {
        let part = usize::try_from(len - done).unwrap_or(CHUNK).min(buffer.len());
        pattern(seed, done, &mut buffer[..part]);
        let mut rest = &buffer[..part];
        while !rest.is_empty() {
            let written = match offset {
                Some(offset) => rustix::io::pwrite(fd, rest, offset + done),
                None => rustix::io::write(fd, rest),
            };
            let written = written.map_err(sys)?;
            rest = &rest[written..];
            done += written as u64;
        }
    }
    Ok(())
}

fn map_write(fd: BorrowedFd<'_>, offset: u64, len: u64, seed: u64) -> Result<(), Errno> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let size = u64::try_from(rustix::fs::fstat(fd).map_err(sys)?.st_size).unwrap_or(0);
    if offset.checked_add(len).is_none_or(|end| end > size) || len == 0 {
        return Err(Errno::EINVAL);
    }
    let start = offset & !4095;
    let skip = usize::try_from(offset - start).map_err(|_| Errno::EINVAL)?;
    let bytes = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let whole = skip + bytes;
    let none = std::ptr::null_mut();
    // SAFETY: a fresh mapping that nothing else knows of.
    let map = unsafe { mmap(none, whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, start) };
    let map = map.map_err(sys)?;
    // SAFETY: the mapping has `whole` bytes, all within the file, which no one else changes meanwhile.
    let memory = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), whole) };
    pattern(seed, 0, &mut memory[skip..]);
    // SAFETY: exactly the mapping made above; `memory` is not used any more.
    unsafe { munmap(map, whole) }.map_err(sys)
}

fn read_reply(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Outcome {
    let mut data = vec![0; usize::try_from(len).map_err(|_| Errno::EINVAL)?];
    let got = read::fill(fd, offset, &mut data).map_err(sys)?;
    Ok(Reply::Data(got as u64, Digest::of(&data[..got])))
}
