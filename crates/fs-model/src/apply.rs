//! What each operation of the model does to the file system.

use silt_engine::Time as EngineTime;
use silt_format::Cno;
use silt_fs::{Fs, Ino, SetAttr, SetTime, Stat, Tree, WriteFlags, fallocate_mode, rename_flags};
use silt_model::errno::Errno;
use silt_model::hash::Digest;
use silt_model::manifest::Columns;
use silt_model::op::{Allocate, FileRef, Op, RenameHow, Special};
use silt_model::target::{Outcome, Reply};

use crate::{FsTarget, Res, errno};

impl FsTarget {
    /// Applies one operation.
    pub(crate) fn one(&mut self, op: &Op) -> Outcome {
        let done = |r: Res<()>| r.map(|()| Reply::Done);
        let fail = |r: silt_fs::Result<Stat>| r.map(|_| Reply::Done).map_err(errno);
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = self.place(path)?;
                let ctx = self.now();
                fail(self.fs.create(&ctx, dir, &name, *mode))
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.place(path)?;
                let ctx = self.now();
                fail(self.fs.mkdir(&ctx, dir, &name, *mode))
            }
            Op::Symlink { path, target } => {
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                if target.len() > 4095 {
                    return Err(Errno::ENAMETOOLONG);
                }
                let (dir, name) = self.place(path)?;
                let ctx = self.now();
                fail(self.fs.symlink(&ctx, dir, &name, target))
            }
            Op::Mknod { path, kind, mode, major, minor } => {
                let (dir, name) = self.place(path)?;
                let kind = match kind {
                    Special::Fifo => 0o010_000,
                    Special::Socket => 0o140_000,
                    Special::Char => 0o020_000,
                    Special::Block => 0o060_000,
                };
                let ctx = self.now();
                fail(self.fs.mknod(&ctx, dir, &name, kind | mode, (*major, *minor)))
            }
            Op::Link { from, to } => {
                let ino = self.find(from)?;
                let (dir, name) = self.place(to)?;
                let ctx = self.now();
                fail(self.fs.link(&ctx, ino, dir, &name))
            }
            Op::LinkSlot { slot, to } => {
                let ino = self.held(*slot)?;
                let (dir, name) = self.place(to)?;
                let ctx = self.now();
                fail(self.fs.link(&ctx, ino, dir, &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                let ctx = self.now();
                done(self.fs.unlink(&ctx, dir, &name).map(|_| ()).map_err(errno))
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                let ctx = self.now();
                done(self.fs.rmdir(&ctx, dir, &name).map(|_| ()).map_err(errno))
            }
            Op::Rename { from, to, how } => {
                let (old_dir, old) = self.place(from)?;
                let (new_dir, new) = self.place(to)?;
                let flags = match how {
                    RenameHow::Plain => 0,
                    RenameHow::NoReplace => rename_flags::NOREPLACE,
                    RenameHow::Exchange => rename_flags::EXCHANGE,
                };
                let ctx = self.now();
                done(self.fs.rename(&ctx, old_dir, &old, new_dir, &new, flags).map(|_| ()).map_err(errno))
            }
            Op::Write { file, offset, len, seed } => {
                let ino = self.opened(file, true, false)?;
                done(self.write(ino, *offset, *len, *seed, WriteFlags::default()))
            }
            Op::Append { path, len, seed } => {
                let ino = self.opened(&FileRef::Path(path.clone()), true, true)?;
                let flags = WriteFlags { append: true, ..WriteFlags::default() };
                let end = self.stat(ino)?.size;
                done(self.write(ino, end, *len, *seed, flags))
            }
            Op::MapWrite { path, offset, len, seed } => {
                let ino = self.opened(&FileRef::Path(path.clone()), true, false)?;
                if offset + len > self.stat(ino)?.size {
                    return Err(Errno::EINVAL);
                }
                let flags = WriteFlags { cached: true, append: true, ..WriteFlags::default() };
                done(self.write(ino, *offset, *len, *seed, flags))
            }
            Op::Truncate { file, size } => {
                let ino = self.opened(file, true, false)?;
                let ctx = self.now();
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                done(self.in_parts(|fs| fs.setattr(&ctx, ino, &set)))
            }
            Op::Fallocate { file, how, offset, len } => {
                use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
                let ino = self.opened(file, true, false)?;
                let mode = match how {
                    Allocate::Punch => PUNCH_HOLE | KEEP_SIZE,
                    Allocate::Zero => ZERO_RANGE,
                    Allocate::ZeroKeep => ZERO_RANGE | KEEP_SIZE,
                    Allocate::Extend => 0,
                    Allocate::Keep => KEEP_SIZE,
                };
                let ctx = self.now();
                done(self.in_parts(|fs| fs.fallocate(&ctx, ino, mode, *offset, *len)))
            }
            Op::Read { file, offset, len } => {
                let ino = self.opened(file, false, false)?;
                let data = self.fs.read(Tree::Live, ino, *offset, *len as usize).map_err(errno)?;
                Ok(Reply::Data(data.len() as u64, Digest::of(&data)))
            }
            Op::Stat { path } => {
                let ino = self.find(path)?;
                let stat = self.stat(ino)?;
                let columns = Columns { data: false, ..Columns::MODEL };
                let entry = self.entry(Tree::Live, path.clone(), &stat, columns).map_err(errno)?;
                Ok(Reply::Stat(Box::new(entry)))
            }
            Op::List { path } => {
                let ino = self.find(path)?;
                if !self.stat(ino)?.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                let mut names = names(&mut self.fs, ino).map_err(errno)?;
                assert_eq!(names[..2], [b".".to_vec(), b"..".to_vec()]);
                names.drain(..2);
                Ok(Reply::names(&mut names))
            }
            Op::Readlink { path } => {
                let ino = self.find(path)?;
                self.fs.readlink(Tree::Live, ino).map(Reply::Target).map_err(errno)
            }
            Op::Chmod { path, mode } => {
                done(self.set(path, SetAttr { mode: Some(*mode), ..Default::default() }))
            }
            Op::Chown { path, uid, gid } => {
                let kill = SetAttr { uid: *uid, gid: *gid, kill_suidgid: true, ..Default::default() };
                let ino = self.find(path)?;
                if self.stat(ino)?.flags & 0x30 != 0 {
                    return Err(Errno::EPERM);
                }
                done(self.set(path, kill))
            }
            Op::Utimens { path, mtime } => {
                let t = SetTime::At(EngineTime { secs: mtime.sec, nanos: mtime.nsec });
                done(self.set(path, SetAttr { mtime: Some(t), atime: Some(t), ..Default::default() }))
            }
            Op::SetFlags { path, flags } => {
                let ino = self
                    .opened(&FileRef::Path(path.clone()), false, false)
                    .map_err(|e| if e == Errno::ENXIO { Errno::ENOTTY } else { e })?;
                let ctx = self.now();
                let able = self.caps.flags;
                let now = self.fs.flags(Tree::Live, ino).map_err(errno)?;
                let wanted = (now & !able) | (flags & able);
                done(self.fs.set_flags(&ctx, ino, wanted).map_err(errno))
            }
            Op::Fdatasync { file } => {
                let ino = self
                    .opened(file, false, false)
                    .map_err(|e| if e == Errno::ENXIO { Errno::EINVAL } else { e })?;
                done(self.data_sync(ino))
            }
            Op::Fsync { file } => {
                self.opened(file, false, false)
                    .map_err(|e| if e == Errno::ENXIO { Errno::EINVAL } else { e })?;
                done(self.checkpoint().map(|_| ()))
            }
            Op::Sync => done(self.checkpoint().map(|_| ())),
            Op::Open { slot, path } => {
                self.free(*slot)?;
                let ino = self.opened(&FileRef::Path(path.clone()), true, false)?;
                self.fs.remember(ino);
                self.slots[usize::from(*slot)] = Some(ino);
                Ok(Reply::Done)
            }
            Op::Tmpfile { slot, dir, mode } => {
                self.free(*slot)?;
                let dir = self.find(dir)?;
                let ctx = self.now();
                let stat = self.fs.tmpfile(&ctx, dir, *mode).map_err(errno)?;
                self.slots[usize::from(*slot)] = Some(stat.ino);
                Ok(Reply::Done)
            }
            Op::Close { slot } => done(self.close(*slot)),
            Op::Many { each, dir, prefix, first, count } => {
                for n in *first..first.saturating_add(*count) {
                    for op in each.ops(dir, prefix, n).into_iter().flatten() {
                        self.one(&op)?;
                    }
                }
                Ok(Reply::Done)
            }
            Op::Checkpoint => {
                let cno = self.checkpoint()?;
                self.checkpoints.insert(self.made.0, cno);
                self.made.0 += 1;
                Ok(Reply::Done)
            }
            Op::Snapshot => {
                let cno = self.checkpoint()?;
                self.fs.volume_mut().make_snapshot(silt_format::Cno(cno)).map_err(|e| refused(&e))?;
                self.snapshots.insert(self.made.1, cno);
                self.made.1 += 1;
                Ok(Reply::Done)
            }
            Op::RemoveSnapshot { id } => {
                let cno = self.snapshots.remove(id).ok_or(Errno::ENOENT)?;
                // One checkpoint may serve several snapshots of the model.
                if !self.snapshots.values().any(|c| *c == cno) {
                    // The newest one cannot be unmade: with what waits there is a newer one.
                    self.checkpoint()?;
                    self.fs.volume_mut().unmake_snapshot(Cno(cno)).map_err(|e| refused(&e))?;
                }
                Ok(Reply::Done)
            }
            Op::Remount => done(self.remount()),
        }
    }
}

/// What a program would hear.
fn refused(e: &silt_engine::Error) -> Errno {
    if matches!(e, silt_engine::Error::NoSpace) { Errno::ENOSPC } else { Errno::EIO }
}

/// All names in a directory, "." and ".." included, in the order of the listing, a few at a time.
fn names(fs: &mut Fs, dir: Ino) -> silt_fs::Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let mut n = 0;
        fs.readdir(Tree::Live, dir, from, false, |e| {
            all.push(e.name.to_vec());
            from = e.next;
            n += 1;
            if n == 7 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        })?;
        if n == 0 {
            return Ok(all);
        }
    }
}
