//! A file system in memory that does exactly what a good local one does, and no more.
//!
//! Objects are numbered by [`Id`] and never renumbered; an object lives while it has a name or is held open.
//! Invariants: `nlink` of a directory is 2 plus its subdirectories, of anything else its number of names; the
//! pools hold exactly the objects that have a name; the root is [`ROOT`]. The caller is the superuser, so
//! permission bits never refuse anything, but inode flags do. Space never runs out. No locks: one owner.

mod attrs;
mod files;
mod names;
mod pool;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::caps::Capabilities;
use crate::content::{Content, chunk_ranges};
use crate::errno::Errno;
use crate::hash::Digest;
use crate::manifest::{Body, Columns, Entry, Manifest, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};
use crate::manifest::{S_IFSOCK, Time};
use crate::op::{FileRef, Op, SLOTS, Special};
use crate::path::TreePath;
use crate::target::{Outcome, Reply, Target, Tree};
pub use pool::Pool;

/// The number of an object in a [`Model`].
pub type Id = usize;
/// The root directory.
pub const ROOT: Id = 0;

/// A name in a directory, shared between the directory and the object.
pub(crate) type Name = Arc<[u8]>;

/// What an object is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Regular file.
    File(Content),
    /// Directory with its entries and its parent.
    Dir(BTreeMap<Name, Id>, Id),
    /// Symlink and its target.
    Symlink(Vec<u8>),
    /// FIFO, socket, device.
    Special(Special),
}

/// An object.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is and holds.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time if it was set explicitly and nothing changed it since.
    pub mtime: Option<Time>,
    /// Inode flags.
    pub flags: u32,
    /// Links.
    pub nlink: u32,
    /// Device numbers.
    pub rdev: (u32, u32),
    /// How many slots hold it.
    pub handles: u32,
    /// Made without a name and never linked: may still get its first one.
    nameless: bool,
    /// Its names: directory and name.
    names: BTreeSet<(Id, Name)>,
}

/// The in-memory file system.
#[derive(Clone, Debug)]
pub struct Model {
    caps: Capabilities,
    nodes: Vec<Node>,
    slots: [Option<Id>; SLOTS as usize],
    dirs: Pool,
    files: Pool,
    others: Pool,
    allocated: u64,
    deep: BTreeSet<u64>,
    snapshots: BTreeMap<u32, Manifest>,
    next_snapshot: u32,
    checkpoints: BTreeMap<u32, Manifest>,
    next_checkpoint: u32,
    remember_checkpoints: bool,
}

impl Model {
    /// An empty tree: a root directory of mode 0755 that belongs to the superuser.
    pub fn new(caps: Capabilities) -> Self {
        let root = Node {
            kind: Kind::Dir(BTreeMap::new(), ROOT),
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: None,
            flags: 0,
            nlink: 2,
            rdev: (0, 0),
            handles: 0,
            nameless: false,
            names: BTreeSet::new(),
        };
        let mut dirs = Pool::default();
        dirs.add(ROOT);
        Self {
            caps,
            nodes: vec![root],
            slots: [None; SLOTS as usize],
            dirs,
            files: Pool::default(),
            others: Pool::default(),
            allocated: 0,
            deep: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            next_snapshot: 0,
            checkpoints: BTreeMap::new(),
            next_checkpoint: 0,
            remember_checkpoints: false,
        }
    }

    /// Adds the empty file `.nilfs` that older tools put into the root of a new volume. It is no prey of the
    /// generator, because those tools need it.
    pub fn with_nilfs_file(mut self) -> Self {
        let path = TreePath::new(b".nilfs");
        if self.create(&path, 0o644).is_ok()
            && let Ok(id) = self.lookup(&path)
        {
            self.files.remove(id);
        }
        self
    }

    /// Remembers the tree at each [`Op::Checkpoint`] from now on.
    pub fn remember_checkpoints(&mut self) {
        self.remember_checkpoints = true;
    }

    /// Hands the tree over to another target: slots are closed, limits are those of `caps` from now on.
    pub fn hand_over(&mut self, caps: Capabilities) {
        self.close_all();
        self.caps = caps;
    }

    /// What the current target can do.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// An object. `id` must come from this model.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// All directories.
    pub fn dirs(&self) -> &Pool {
        &self.dirs
    }

    /// All regular files that have a name, `.nilfs` left out.
    pub fn files(&self) -> &Pool {
        &self.files
    }

    /// All symlinks and special files.
    pub fn others(&self) -> &Pool {
        &self.others
    }

    /// What a slot holds.
    pub fn slot(&self, slot: u8) -> Option<Id> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }

    /// Bytes of 4 KiB chunks that hold something, over all files.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// What the snapshots hold, by number.
    pub fn snapshots(&self) -> &BTreeMap<u32, Manifest> {
        &self.snapshots
    }

    /// Everywhere that any file ever held data behind its first [`DEEP`](crate::content::DEEP) bytes, as (offset,
    /// length): what `syscalls::Look::probes` wants. Snapshots may still hold what the live
    /// tree does not.
    pub fn deep_ranges(&self) -> Vec<(u64, u64)> {
        chunk_ranges(self.deep.iter().copied())
    }

    /// How many snapshots were ever made: the number of the next one.
    pub fn snapshots_made(&self) -> u32 {
        self.next_snapshot
    }

    /// What the remembered checkpoints hold, by number.
    pub fn checkpoints(&self) -> &BTreeMap<u32, Manifest> {
        &self.checkpoints
    }

    /// Finds an object; symlinks are never followed, and in the middle of a path they are no directories.
    pub fn lookup(&self, path: &TreePath) -> Result<Id, Errno> {
        path.components().try_fold(ROOT, |dir, name| self.child(dir, name)?.ok_or(Errno::ENOENT))
    }

    /// The entry `name` of the directory `dir`.
    fn child(&self, dir: Id, name: &[u8]) -> Result<Option<Id>, Errno> {
        let Kind::Dir(entries, _) = &self.nodes[dir].kind else { return Err(Errno::ENOTDIR) };
        if name.len() > self.caps.name_max {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(entries.get(name).copied())
    }

    /// The directory that `path` lies in, which must exist, and the last name, which need not.
    fn parent<'a>(&self, path: &'a TreePath) -> Result<(Id, &'a [u8]), Errno> {
        let (dir, name) = path.split().ok_or(Errno::EBUSY)?;
        let dir = self.lookup(&dir)?;
        match self.nodes[dir].kind {
            // `name` is the tail of `path`, whatever borrow `split` gave it.
            Kind::Dir(..) => Ok((dir, &path.as_bytes()[path.as_bytes().len() - name.len()..])),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The `nth` name (counted round) of an object, as a path; `None` if it has none.
    pub fn path_of(&self, id: Id, nth: usize) -> Option<TreePath> {
        let mut parts: Vec<&Name> = Vec::new();
        let mut at = id;
        while at != ROOT {
            let names = &self.nodes[at].names;
            if names.is_empty() {
                return None;
            }
            let skip = if at == id { nth % names.len() } else { 0 };
            let (dir, name) = names.iter().nth(skip)?;
            parts.push(name);
            at = *dir;
        }
        Some(parts.iter().rev().fold(TreePath::root(), |path, name| path.join(name)))
    }

    /// Number of entries of a directory, 0 for anything else.
    pub fn entries_of(&self, id: Id) -> usize {
        match &self.nodes[id].kind {
            Kind::Dir(entries, _) => entries.len(),
            _ => 0,
        }
    }

    /// The names in a directory, in byte order; none for anything else.
    pub fn names_in(&self, id: Id) -> impl Iterator<Item = (&[u8], Id)> {
        let entries = match &self.nodes[id].kind {
            Kind::Dir(entries, _) => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten().map(|(name, &id)| (&name[..], id))
    }

    /// Gives a file the content that it had in an earlier or later state of this model; nothing where either has none.
    pub fn take_content(&mut self, id: Id, from: &Model) {
        let theirs = from.nodes.get(id).map(|node| &node.kind);
        if let (Some(Node { kind: Kind::File(own), .. }), Some(Kind::File(theirs))) =
            (self.nodes.get_mut(id), theirs)
        {
            *own = theirs.clone();
        }
    }

    /// The whole live tree.
    pub fn tree(&self) -> Manifest {
        let mut manifest = Manifest::new();
        let mut ids = BTreeMap::new();
        let mut todo = vec![(TreePath::root(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            if let Kind::Dir(entries, _) = &self.nodes[id].kind {
                todo.extend(entries.iter().map(|(name, &child)| (path.join(name), child)));
            }
            ids.insert(path.clone(), id);
            manifest.insert(self.entry(path, id, true));
        }
        manifest.link_names(|entry| ids.get(&entry.path).copied());
        manifest
    }

    fn entry(&self, path: TreePath, id: Id, content: bool) -> Entry {
        let node = &self.nodes[id];
        let (kind, size, body) = match &node.kind {
            Kind::File(data) => {
                let digest = if content { data.digest() } else { Digest::default() };
                (S_IFREG, Some(data.size()), Body::Data(digest))
            }
            Kind::Dir(..) => (S_IFDIR, None, Body::Nothing),
            Kind::Symlink(target) => (S_IFLNK, Some(target.len() as u64), Body::Target(target.clone())),
            Kind::Special(special) => {
                let kind = match special {
                    Special::Fifo => S_IFIFO,
                    Special::Socket => S_IFSOCK,
                    Special::Char => S_IFCHR,
                    Special::Block => S_IFBLK,
                };
                (kind, Some(0), Body::Nothing)
            }
        };
        Entry {
            path,
            mode: kind | node.mode,
            uid: node.uid,
            gid: node.gid,
            size,
            mtime: node.mtime,
            ctime: None,
            nlink: node.nlink,
            rdev: node.rdev,
            blocks: None,
            flags: matches!(node.kind, Kind::File(_) | Kind::Dir(..)).then_some(node.flags),
            ino: None,
            generation: None,
            same_as: None,
            body,
        }
    }

    /// The object a [`FileRef`] means.
    fn resolve(&self, file: &FileRef) -> Result<Id, Errno> {
        match file {
            FileRef::Path(path) => self.lookup(path),
            FileRef::Slot(slot) => self.slot(*slot).ok_or(Errno::EBADF),
        }
    }

    fn close_all(&mut self) {
        for slot in 0..SLOTS {
            // An empty slot is no error here.
            let _ = self.close(slot);
        }
    }

    /// Applies one operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        let done = |result: Result<(), Errno>| result.map(|()| Reply::Done);
        match op {
            Op::Create { path, mode } => done(self.create(path, *mode)),
            Op::Mkdir { path, mode } => done(self.mkdir(path, *mode)),
            Op::Symlink { path, target } => done(self.symlink(path, target)),
            Op::Mknod { path, kind, mode, major, minor } => {
                done(self.mknod(path, *kind, *mode, (*major, *minor)))
            }
            Op::Link { from, to } => done(self.link(from, to)),
            Op::Unlink { path } => done(self.unlink(path)),
            Op::Rmdir { path } => done(self.rmdir(path)),
            Op::Rename { from, to, how } => done(self.rename(from, to, *how)),
            Op::Write { file, offset, len, seed } => done(self.write(file, *offset, *len, *seed)),
            Op::Append { path, len, seed } => done(self.append(path, *len, *seed)),
            Op::MapWrite { path, offset, len, seed } => done(self.map_write(path, *offset, *len, *seed)),
            Op::Truncate { file, size } => done(self.truncate(file, *size)),
            Op::Fallocate { file, how, offset, len } => done(self.fallocate(file, *how, *offset, *len)),
            Op::Read { file, offset, len } => self.read(file, *offset, *len),
            Op::Stat { path } => {
                let id = self.lookup(path)?;
                Ok(Reply::Stat(Box::new(self.entry(path.clone(), id, false))))
            }
            Op::List { path } => self.list(path),
            Op::Readlink { path } => match &self.nodes[self.lookup(path)?].kind {
                Kind::Symlink(target) => Ok(Reply::Target(target.clone())),
                _ => Err(Errno::EINVAL),
            },
            Op::Chmod { path, mode } => done(self.chmod(path, *mode)),
            Op::Chown { path, uid, gid } => done(self.chown(path, *uid, *gid)),
            Op::Utimens { path, mtime } => done(self.utimens(path, *mtime)),
            Op::SetFlags { path, flags } => done(self.set_flags(path, *flags)),
            Op::Fsync { file } | Op::Fdatasync { file } => done(self.fsync(file)),
            Op::Sync => Ok(Reply::Done),
            Op::Open { slot, path } => done(self.open(*slot, path)),
            Op::Tmpfile { slot, dir, mode } => done(self.tmpfile(*slot, dir, *mode)),
            Op::LinkSlot { slot, to } => done(self.link_slot(*slot, to)),
            Op::Close { slot } => done(self.close(*slot)),
            Op::Many { each, dir, prefix, first, count } => {
                for n in *first..first.saturating_add(*count) {
                    for op in each.ops(dir, prefix, n).into_iter().flatten() {
                        self.apply(&op)?;
                    }
                }
                Ok(Reply::Done)
            }
            Op::Checkpoint => {
                if self.remember_checkpoints {
                    self.checkpoints.insert(self.next_checkpoint, self.tree());
                }
                self.next_checkpoint += 1;
                Ok(Reply::Done)
            }
            Op::Snapshot => {
                self.snapshots.insert(self.next_snapshot, self.tree());
                self.next_snapshot += 1;
                Ok(Reply::Done)
            }
            Op::RemoveSnapshot { id } => self.snapshots.remove(id).map(|_| Reply::Done).ok_or(Errno::ENOENT),
            Op::Remount => {
                self.close_all();
                Ok(Reply::Done)
            }
        }
    }
}

impl Target for Model {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        Model::apply(self, op)
    }

    fn manifest(&mut self, tree: Tree, _columns: Columns) -> Result<Manifest, String> {
        match tree {
            Tree::Live => Ok(self.tree()),
            Tree::Checkpoint(n) => {
                self.checkpoints.get(&n).cloned().ok_or_else(|| format!("checkpoint {n} was not remembered"))
            }
            Tree::Snapshot(n) => {
                self.snapshots.get(&n).cloned().ok_or_else(|| format!("there is no snapshot {n}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
