//! The model's operations applied to a file system in the same process: for tests and the round trip.
//!
//! A background checkpoint may run in small steps between operations, with its logs written late, as
//! behind a slow device; what it froze is compared with what it became. Errors that only a bug can
//! cause end the program: this is an instrument of tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod apply;
mod background;
mod listing;

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_cleaner::{Cleaned, Policy};
use silt_device::Device;
use silt_engine::{LogWrite, OpenOptions, Volume};
use silt_format::inode::flags;
use silt_fs::{Context, Fs, FsError, Ino, Options, SetAttr, Stat, Tree, WriteFlags};
use silt_model::caps::Capabilities;
use silt_model::content::pattern_bytes;
use silt_model::errno::Errno;
use silt_model::manifest::{Columns, Manifest};
use silt_model::op::{Allocate, FileRef, Op, SLOTS};
use silt_model::path::TreePath;
use silt_model::target::{Outcome, Target, Tree as ModelTree};

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
        Context {
            now: silt_engine::Time { secs: self.clock, nanos: 5 },
            privileged: true,
            ..Context::default()
        }
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
        match volume.begin_data_sync(&[ino], now) {
            Ok(true) => volume.finish_construction(now).map_err(|_| Errno::EIO),
            Ok(false) => Ok(()),
            // Too little is clean for more that a recovery has to write.
            Err(silt_engine::Error::NoSpace) => self.checkpoint().map(|_| ()),
            Err(_) => Err(Errno::EIO),
        }
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
