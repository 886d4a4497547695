//! The model's operations applied to a file system in the same process: for tests and the round trip.
//!
//! A background checkpoint may run in small steps between operations, with its logs written late, as
//! behind a slow device; what it froze is compared with what it became. Errors that only a bug can
//! cause end the program: this is an instrument of tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use silt_cleaner::{Access, Candidate, Cleaned, Gatherer, Limits, Policy, Salvage, Usage};
use silt_device::Device;
use silt_engine::{LogWrite, OpenOptions, Step, Time as EngineTime, Volume};
use silt_format::Cno;
use silt_format::inode::flags;
use silt_fs::{
    Context, Fs, FsError, Ino, Options, SetAttr, SetTime, Stat, Tree, WriteFlags, fallocate_mode,
    rename_flags,
};
use silt_model::caps::Capabilities;
use silt_model::content::pattern_bytes;
use silt_model::errno::Errno;
use silt_model::hash::Digest;
use silt_model::manifest::{Body, Columns, Entry, Manifest, Time, diff};
use silt_model::op::{Allocate, FileRef, Op, RenameHow, SLOTS, Special};
use silt_model::path::TreePath;
use silt_model::target::{Outcome, Reply, Target, Tree as ModelTree};

/// Bytes of one write request.
const PART: u64 = 128 << 10;

/// A file system as a target of the model.
pub struct FsTarget {
    pub fs: Fs,
    pub device: Arc<dyn Device>,
    options: Options,
    caps: Capabilities,
    clock: i64,
    slots: [Option<Ino>; SLOTS as usize],
    checkpoints: BTreeMap<u32, u64>,
    snapshots: BTreeMap<u32, u64>,
    made: (u32, u32),
    /// Somebody else makes the checkpoints: none can be had within an operation.
    is_driven: bool,
    /// Operations between checkpoints that nobody asked for; 0 for none. They are constructed in
    /// small steps, one before each operation.
    pub every: u32,
    since: u32,
    /// Logs handed out, not yet written: they wait for some steps, as behind a slow device.
    late: Vec<LogWrite>,
    /// What the tree was when the construction under way began.
    frozen: Option<Manifest>,
    /// Checkpoints made in steps whose trees were compared.
    pub compared: u32,
    /// Every so many of those checkpoints empties segments; 0 for none.
    pub clean_every: u32,
    turns: u32,
    /// What was cleaned so far.
    pub cleaned: Cleaned,
}

/// The volume for the cleaner.
struct Here<'a>(RefCell<&'a mut Volume>);

impl Access for Here<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> silt_engine::Result<R> {
        Ok(f(&mut self.0.borrow_mut()))
    }
}

/// What must be the same in a checkpoint as in the tree it was made of. Block counts of what
/// waits are estimates.
const FROZEN: Columns = Columns { blocks: false, ..Columns::ALL };

fn errno(e: FsError) -> Errno {
    Errno(e.errno())
}

type Res<T> = Result<T, Errno>;

/// Opens what is on a device for writing.
pub fn open(device: Arc<dyn Device>, options: &Options, now: u64) -> silt_engine::Result<Fs> {
    let (mut volume, _) = Volume::open(device, &OpenOptions { now, ..Default::default() })?;
    volume.take_over(now)?;
    Ok(Fs::new(volume, options))
}

impl FsTarget {
    /// Opens a volume; `now` is the second its clock begins with.
    pub fn open(device: Arc<dyn Device>, options: Options, now: u64) -> silt_engine::Result<Self> {
        let fs = open(device.clone(), &options, now)?;
        Ok(FsTarget { is_driven: false, ..Self::over(fs, device, options, now) })
    }

    /// Over a file system that is open, whose log somebody else writes; `now` is the second its clock begins with.
    pub fn over(fs: Fs, device: Arc<dyn Device>, options: Options, now: u64) -> Self {
        let mut caps = Capabilities::silt(fs.volume().geometry().bs());
        caps.mmap = true;
        FsTarget {
            fs,
            device,
            options,
            caps,
            clock: i64::try_from(now).unwrap_or(0) + 10,
            slots: Default::default(),
            checkpoints: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            made: (0, 0),
            is_driven: true,
            every: 0,
            since: 0,
            late: Vec::new(),
            frozen: None,
            compared: 0,
            clean_every: 0,
            turns: 0,
            cleaned: Cleaned::default(),
        }
    }

    /// After a part of an operation that goes in parts (EAGAIN): what has been done so far, as an operation of its own; none
    /// where nothing has. Bytes of a hole that were zero before may count as done.
    pub fn done_so_far(&mut self, op: &Op) -> Res<Option<Op>> {
        match op {
            Op::Truncate { file, .. } => {
                let ino = self.opened(file, true, false)?;
                Ok(Some(Op::Truncate { file: file.clone(), size: self.stat(ino)?.size }))
            }
            Op::Fallocate { file, offset, len, .. } => {
                use silt_fs::Seek;
                let ino = self.opened(file, true, false)?;
                let bs = u64::from(self.fs.volume().geometry().block_size);
                let end = (offset + len) / bs * bs;
                let mut from = offset.next_multiple_of(bs);
                while let Ok(data) = self.fs.seek(Tree::Live, ino, from, Seek::Data)
                    && data < end
                {
                    from = self.fs.seek(Tree::Live, ino, data, Seek::Hole).map_err(errno)?;
                }
                let hole = |offset| Op::Fallocate {
                    file: file.clone(),
                    how: Allocate::Punch,
                    offset,
                    len: end - offset,
                };
                Ok((from < end).then(|| hole(from)))
            }
            _ => Ok(None),
        }
    }

    /// What a slot holds open.
    pub fn in_slot(&self, slot: u8) -> Option<Ino> {
        self.held(slot).ok()
    }

    /// Takes over the snapshots another side made: their numbers in the model and their checkpoints.
    pub fn set_snapshots(&mut self, snapshots: BTreeMap<u32, u64>, made: u32) {
        self.snapshots = snapshots;
        self.made.1 = made;
    }

    /// Cleans as `silt clean` does with an unmounted volume, to the end; snapshots alone are kept.
    pub fn clean(&mut self) -> silt_engine::Result<()> {
        self.turns += 1;
        let policy = Policy::ALL[self.turns as usize % Policy::ALL.len()];
        self.clean_as(silt_cleaner::Options { policy, ..silt_cleaner::Options::default() }).map(|_| ())
    }

    /// The same as the options say, at the time that it is; what came of it.
    pub fn clean_as(&mut self, options: silt_cleaner::Options) -> silt_engine::Result<silt_cleaner::Outcome> {
        self.step(true);
        self.clock += 1;
        let now = u64::try_from(self.clock).unwrap_or(0);
        let whole = silt_cleaner::Whole::new(self.fs.volume_mut(), now);
        let outcome = silt_cleaner::run(&whole, &silt_cleaner::Options { now, ..options }, |_| true)?;
        assert_eq!(outcome.aside, [], "a segment that should be whole");
        self.count(outcome.cleaned);
        Ok(outcome)
    }

    fn count(&mut self, done: Cleaned) {
        self.cleaned.segments += done.segments;
        self.cleaned.moved += done.moved;
        self.cleaned.dead += done.dead;
        self.cleaned.checkpoints += done.checkpoints;
    }

    /// Snapshots there are, by their number in the model.
    pub fn snapshots(&self) -> &BTreeMap<u32, u64> {
        &self.snapshots
    }

    /// Ends all use and closes the volume, leaving it cleanly unmounted.
    pub fn close_volume(&mut self) -> silt_engine::Result<()> {
        self.step(true);
        self.slots = Default::default();
        let _ = self.fs.forget_all();
        self.clock += 1;
        let now = u64::try_from(self.clock).unwrap_or(0);
        self.fs.volume_mut().close(now)
    }

    /// The superuser at the next second.
    fn now(&mut self) -> Context {
        self.clock += 1;
        Context { now: EngineTime { secs: self.clock, nanos: 5 }, privileged: true, ..Context::default() }
    }

    fn find(&mut self, path: &TreePath) -> Res<Ino> {
        self.fs.resolve(Tree::Live, path.as_bytes()).map_err(errno)
    }

    /// The directory a name lies in, and the name.
    fn place(&mut self, path: &TreePath) -> Res<(Ino, Vec<u8>)> {
        let (dir, name) = path.split().ok_or(Errno::EBUSY)?;
        let name = name.to_vec();
        let dir = self.find(&dir)?;
        if !self.stat(dir)?.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok((dir, name))
    }

    fn stat(&mut self, ino: Ino) -> Res<Stat> {
        self.fs.getattr(Tree::Live, ino).map_err(errno)
    }

    fn held(&self, slot: u8) -> Res<Ino> {
        self.slots.get(usize::from(slot)).copied().flatten().ok_or(Errno::EBADF)
    }

    fn free(&self, slot: u8) -> Res<()> {
        match self.slots.get(usize::from(slot)) {
            None => Err(Errno::EBADF),
            Some(Some(_)) => Err(Errno::EBUSY),
            Some(None) => Ok(()),
        }
    }

    /// What opening a file does: symlinks and special files are refused.
    fn opened(&mut self, file: &FileRef, write: bool, append: bool) -> Res<Ino> {
        let ino = match file {
            FileRef::Slot(slot) => return self.held(*slot),
            FileRef::Path(path) => self.find(path)?,
        };
        match self.stat(ino)?.file_type() {
            0o120_000 => return Err(Errno::ELOOP),
            0o100_000 | 0o040_000 => {}
            _ => return Err(Errno::ENXIO),
        }
        // Other file systems refuse here what ours refuses when it is done.
        let fixed = if append { flags::IMMUTABLE } else { flags::IMMUTABLE | flags::APPEND };
        match self.stat(ino)?.file_type() {
            0o040_000 if write => Err(Errno::EISDIR),
            _ if write && self.fs.flags(Tree::Live, ino).map_err(errno)? & fixed != 0 => Err(Errno::EPERM),
            _ => Ok(ino),
        }
    }

    fn write(&mut self, ino: Ino, offset: u64, len: u64, seed: u64, flags: WriteFlags) -> Res<()> {
        let data = pattern_bytes(seed, len as usize);
        let mut done = 0;
        while done < len {
            let part = &data[done as usize..(done + PART).min(len) as usize];
            let ctx = self.now();
            let n = self.fs.write(&ctx, ino, offset + done, part, flags).map_err(errno)?;
            done += n as u64;
        }
        Ok(())
    }

    fn set(&mut self, path: &TreePath, set: SetAttr) -> Res<()> {
        let ino = self.find(path)?;
        let ctx = self.now();
        self.fs.setattr(&ctx, ino, &set).map_err(errno).map(|_| ())
    }

    /// Does what may go in parts, with a checkpoint after each. Where somebody else makes the checkpoints EAGAIN tells them
    /// that one has to come before the operation goes on, by being applied again.
    fn in_parts<T>(&mut self, mut part: impl FnMut(&mut Fs) -> Result<T, FsError>) -> Res<()> {
        loop {
            match part(&mut self.fs) {
                Err(FsError::InParts) if !self.is_driven => drop(self.checkpoint()?),
                done => return done.map(drop).map_err(errno),
            }
        }
    }

    fn close(&mut self, slot: u8) -> Res<()> {
        let ino = self.held(slot)?;
        self.slots[usize::from(slot)] = None;
        self.fs.forget(ino, 1).map_err(errno)
    }

    fn write_late(&mut self) {
        for mut log in std::mem::take(&mut self.late) {
            log.seal();
            log.write(&*self.device).unwrap();
            self.fs.volume_mut().log_written();
        }
    }

    /// Goes on with the construction under way by a step of a few blocks, to the end if `all`.
    fn step(&mut self, all: bool) {
        while self.fs.volume().is_constructing() {
            match self.fs.volume_mut().step(3).unwrap() {
                Step::Write(log) => {
                    self.late.push(log);
                    if self.late.len() > 2 {
                        self.write_late();
                    }
                }
                Step::Working => {}
                Step::Waiting => self.write_late(),
                Step::Done(cno) => {
                    self.device.flush().unwrap();
                    self.fs.volume_mut().freed_are_durable();
                    assert_eq!(self.fs.volume().underestimated(), None, "checkpoint {cno}");
                    let Some(frozen) = self.frozen.take() else { break };
                    self.fs.volume_mut().open_view(cno).unwrap();
                    let made = self.tree(Tree::Past(cno.0), FROZEN).unwrap();
                    self.fs.volume_mut().close_view(cno);
                    assert_eq!(diff(&frozen, &made, FROZEN), [""; 0], "checkpoint {cno}");
                    self.compared += 1;
                }
            }
            if !all {
                break;
            }
        }
    }

    fn background(&mut self) {
        if self.every == 0 {
            return;
        }
        if self.fs.volume().is_constructing() {
            self.step(false);
            return;
        }
        self.since += 1;
        if self.since >= self.every {
            self.since = 0;
            let now = u64::try_from(self.clock).unwrap();
            self.turns += 1;
            let cleans = self.clean_every > 0 && self.turns.is_multiple_of(self.clean_every);
            let begun =
                (cleans && self.begin_cleaning(now)) || self.fs.volume_mut().begin_checkpoint(now).unwrap();
            if begun && self.clock % 4 == 0 {
                self.frozen = Some(self.tree(Tree::Live, FROZEN).unwrap());
            }
        }
    }

    /// Begins a checkpoint that empties the segments that need most little of their blocks; snapshots alone are kept.
    fn begin_cleaning(&mut self, now: u64) -> bool {
        let volume = self.fs.volume_mut();
        for write in volume.advance_super_blocks(now) {
            write.write(&*self.device).unwrap();
        }
        let keep = volume.keep(None).unwrap();
        let mut usage = Usage::new(volume.geometry(), keep.clone());
        while !usage.is_complete() {
            volume.count_usage(&mut usage, 3).unwrap();
        }
        let mut all = silt_cleaner::candidates(volume, &usage, 0..u64::MAX, 1).unwrap();
        let size = u64::from(volume.geometry().blocks_per_segment);
        let policy = Policy::ALL[self.turns as usize % Policy::ALL.len()];
        Candidate::sort(&mut all, policy, now, size);
        // Some that are hardly worth it as well: what they hold moves.
        let limits = Limits { moves: 300, segments: 6, salvage: Salvage::No, ahead: false };
        let mut gatherer = Gatherer::new(keep, all.iter().map(|c| c.segment), limits);
        let plan = gatherer.next(&Here(RefCell::new(volume))).unwrap();
        assert_eq!(plan.aside, [], "a segment that should be whole");
        if plan.cleaning.is_empty() {
            return false;
        }
        match volume.begin_cleaning(plan.cleaning, now) {
            Ok(done) => {
                self.count(done);
                true
            }
            Err(silt_engine::Error::NoSpace) => false,
            Err(e) => panic!("{e}"),
        }
    }

    fn checkpoint(&mut self) -> Res<u64> {
        self.step(true);
        let now = u64::try_from(self.clock).unwrap();
        self.fs.sync_all(now).map_err(errno)
    }

    /// What fdatasync does: a data-sync log where that is enough.
    fn data_sync(&mut self, ino: Ino) -> Res<()> {
        self.step(true);
        let now = u64::try_from(self.clock).unwrap_or(0);
        let volume = self.fs.volume_mut();
        if !volume.data_sync_suffices(ino) {
            return self.checkpoint().map(|_| ());
        }
        if volume.begin_data_sync(&[ino], now).map_err(|_| Errno::EIO)? {
            volume.finish_construction(now).map_err(|_| Errno::EIO)?;
        }
        Ok(())
    }

    /// Closes, judges, and opens again.
    pub fn remount(&mut self) -> Res<()> {
        self.step(true);
        self.slots = Default::default();
        self.fs.forget_all().map_err(errno)?;
        let now = u64::try_from(self.clock).unwrap();
        self.fs.volume_mut().close(now).map_err(|_| Errno::EIO)?;
        let report = silt_verify::check(&*self.device, &silt_verify::Options::default());
        let errors: Vec<String> = report.errors().map(|f| format!("{f:?}")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        self.fs = open(self.device.clone(), &self.options, now).map_err(|_| Errno::EIO)?;
        while self.fs.collect_orphans(50).map_err(errno)? {}
        Ok(())
    }

    fn entry(&mut self, tree: Tree, path: TreePath, stat: &Stat, columns: Columns) -> Result<Entry, FsError> {
        let body = match stat.file_type() {
            0o100_000 if columns.data => Body::Data(self.digest(tree, stat)?),
            0o100_000 => Body::Data(Digest::default()),
            0o120_000 => Body::Target(self.fs.readlink(tree, stat.ino)?),
            _ => Body::Nothing,
        };
        let flagged = matches!(stat.file_type(), 0o100_000 | 0o040_000);
        Ok(Entry {
            path,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            size: Some(stat.size).filter(|_| !stat.is_dir()),
            mtime: Some(Time { sec: stat.mtime.secs, nsec: stat.mtime.nanos }),
            ctime: Some(Time { sec: stat.ctime.secs, nsec: stat.ctime.nanos }),
            nlink: stat.links,
            rdev: stat.device,
            blocks: Some(stat.blocks),
            flags: flagged.then_some(stat.flags),
            ino: Some(stat.ino.0),
            generation: flagged.then_some(stat.generation),
            same_as: None,
            body,
        })
    }

    /// Holes are found by seeking, so that far offsets cost nothing.
    fn digest(&mut self, tree: Tree, stat: &Stat) -> Result<Digest, FsError> {
        use silt_fs::Seek;
        let mut digest = Digest::default();
        let mut at = 0;
        loop {
            at = match self.fs.seek(tree, stat.ino, at, Seek::Data) {
                Ok(at) => at,
                Err(FsError::NoData) => return Ok(digest),
                Err(e) => return Err(e),
            };
            let end = self.fs.seek(tree, stat.ino, at, Seek::Hole)?;
            while at < end {
                // Parts end at round offsets: what the digest asks for.
                let n = (end - at).min((1 << 20) - at % (1 << 20));
                let data = self.fs.read(tree, stat.ino, at, n as usize)?;
                digest.add(at, &data);
                at += n;
            }
        }
    }

    /// Lists a whole tree.
    pub fn tree(&mut self, tree: Tree, columns: Columns) -> Result<Manifest, FsError> {
        let mut manifest = Manifest::new();
        let root = self.fs.getattr(tree, Ino::ROOT)?;
        let mut todo = vec![(TreePath::root(), root)];
        let mut inodes = BTreeMap::new();
        while let Some((path, stat)) = todo.pop() {
            if stat.is_dir() {
                let mut children = Vec::new();
                self.fs.readdir(tree, stat.ino, 0, true, |e| {
                    if e.name != b"." && e.name != b".." {
                        children.push((e.name.to_vec(), e.file_type, e.stat));
                    }
                    std::ops::ControlFlow::Continue(())
                })?;
                for (name, file_type, listed) in children {
                    let found = self.fs.lookup(tree, stat.ino, &name)?;
                    assert_eq!(Some(found), listed, "lookup and listing agree");
                    assert_eq!(found.file_type(), file_type);
                    todo.push((path.join(&name), found));
                }
                assert_eq!(self.fs.lookup(tree, stat.ino, b".")?.ino, stat.ino);
            }
            let entry = self.entry(tree, path.clone(), &stat, columns)?;
            inodes.insert(path, stat.ino);
            manifest.insert(entry);
        }
        manifest.link_names(|e| inodes.get(&e.path).map(|i| i.0));
        Ok(manifest)
    }

    fn one(&mut self, op: &Op) -> Outcome {
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

impl Target for FsTarget {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        self.background();
        self.one(op)
    }

    fn manifest(&mut self, tree: ModelTree, columns: Columns) -> Result<Manifest, String> {
        let cno = match tree {
            ModelTree::Live => return self.tree(Tree::Live, columns).map_err(|e| e.to_string()),
            ModelTree::Checkpoint(n) => self.checkpoints.get(&n),
            ModelTree::Snapshot(n) => self.snapshots.get(&n),
        };
        let cno = *cno.ok_or("there is no such checkpoint")?;
        self.fs.volume_mut().open_view(silt_format::Cno(cno)).map_err(|e| e.to_string())?;
        let result = self.tree(Tree::Past(cno), columns);
        self.fs.volume_mut().close_view(silt_format::Cno(cno));
        result.map_err(|e| e.to_string())
    }
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
