//! Copies a tree out, with its metadata, and says what could not be read.
//!
//! The destination is a new or empty directory. Everything in it is reached name by name from there, symlinks are
//! never followed, and nothing that is there is overwritten. Holes stay holes, and what is lost becomes one.
//!
//! Where bytes of a file are lost, a whole version of it from an earlier moment is looked for and put beside it as
//! `NAME.checkpoint-N`. What was synced behind the newest checkpoint and no mount puts in place, since a log before it does
//! not verify, is put beside, too: `NAME.synced` is the file with what of that is whole.
//!
//! Memory: the names of directories, and of files with several names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, fchmod, fchown, ftruncate,
    futimens, ioctl_setflags, linkat, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::{Errno, pwrite};
use silt_format::inode::{RawInode, flags};

use super::extents::Extent;
use super::here::set_owner_and_mode;
use super::judge::{Note, Problem, Tally, add_range, examine, examine_directory};
use super::tree::{Content, Directory, Inode, Origin, Tree};
use super::volume::Rescue;
use super::walk::{LOST_AND_FOUND, Sink, walk};
use crate::Watch;

/// Why a copy ended.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The moment cannot be read at all.
    #[error(transparent)]
    Volume(#[from] crate::Error),
    /// The destination holds something.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// No room.
    #[error("there is no space left where {} is copied to", .0.display())]
    NoSpace(PathBuf),
    /// The destination cannot be written.
    #[error("{}: {source}", .path.display())]
    Destination { path: PathBuf, source: io::Error },
}

/// Earlier versions that are looked at for a whole one.
const VERSIONS: usize = 16;

impl Rescue<'_> {
    /// Copies the tree of a checkpoint into `to`, which is made or must be empty. Owners and device nodes are only
    /// kept for root; immutable and append-only flags are left out, since copies could not be moved with them. `watch`
    /// is told in files; what is copied when it ends the work is left as it is then. Errors: the destination fails; what of the volume cannot be read is in the tally.
    pub fn copy_out(&self, cno: u64, to: &Path, watch: &dyn Watch) -> Result<Tally, CopyError> {
        let tree = self.tree(cno)?;
        let fail = |source: io::Error| CopyError::Destination { path: to.to_owned(), source };
        match std::fs::create_dir(to) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(fail)?,
        }
        let root = rustix::fs::open(to, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| fail(e.into()))?;
        // Of what is open, whatever the name leads to by now.
        if !is_empty(&root).map_err(|e| fail(e.into()))? {
            return Err(CopyError::NotEmpty(to.to_owned()));
        }
        let mut copier = Copier {
            rescue: self,
            tree: &tree,
            watch,
            root,
            is_root: rustix::process::geteuid().is_root(),
            at: None,
            finish: Vec::new(),
            names: HashMap::new(),
            here: Here::default(),
            older: None,
            synced: if self.roots().first().is_some_and(|r| r.cno == cno) {
                self.beside()
            } else {
                BTreeMap::new()
            },
            beside: Vec::new(),
            tally: Tally::default(),
        };
        walk(&tree, watch, &mut copier)?;
        copier.put_synced()?;
        copier.finish()?;
        Ok(copier.tally)
    }
}

/// The directory that was met last, and which of the names in it could be those of versions beside files.
#[derive(Default)]
struct Here {
    path: Vec<u8>,
    names: HashSet<Vec<u8>>,
}

/// What comes behind a file's name and before the number of a moment.
const BESIDE: &str = ".checkpoint-";

struct Copier<'t, 'r, 'd> {
    rescue: &'r Rescue<'d>,
    tree: &'t Tree<'r, 'd>,
    watch: &'t dyn Watch,
    root: OwnedFd,
    is_root: bool,
    /// The directory that was used last.
    at: Option<(Vec<u8>, OwnedFd)>,
    /// Attributes of directories, and flags: set when all is there.
    finish: Vec<(Vec<u8>, RawInode)>,
    /// Names of files that have several.
    names: HashMap<u64, Vec<u8>>,
    here: Here,
    /// Trees of earlier moments, newest first, opened at the first use.
    older: Option<Vec<Tree<'r, 'd>>>,
    /// Whole blocks that were synced behind what does not verify, by inode.
    synced: BTreeMap<u64, Vec<Extent>>,
    /// Files that have some, to be put beside when all names are taken.
    beside: Vec<(Vec<u8>, Inode)>,
    tally: Tally,
}

/// The directory and the last name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(i) => (&path[..i], &path[i + 1..]),
        None => (&[], path),
    }
}

fn is_empty(dir: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path))
}

/// Whether an error is the destination's as a whole, not of one name.
fn ends_it(e: Errno) -> bool {
    matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO | Errno::MFILE | Errno::NFILE)
}

fn error(path: &[u8], e: Errno) -> CopyError {
    match e {
        Errno::NOSPC | Errno::DQUOT => CopyError::NoSpace(shown(path)),
        e => CopyError::Destination { path: shown(path), source: e.into() },
    }
}

fn times(raw: &RawInode) -> Timestamps {
    let time = Timespec {
        tv_sec: raw.mtime.get().cast_signed(),
        tv_nsec: i64::from(raw.mtime_nsec.get().min(999_999_999)),
    };
    Timestamps { last_access: time, last_modification: time }
}

impl Copier<'_, '_, '_> {
    /// Opens a directory of the destination name by name.
    fn open_dir(&mut self, path: &[u8]) -> Result<(), Errno> {
        if self.at.as_ref().is_some_and(|(at, _)| at == path) {
            return Ok(());
        }
        let how = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
        let mut fd = openat(&self.root, ".", how, Mode::empty())?;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            fd = openat(&fd, name, how, Mode::empty())?;
        }
        self.at = Some((path.to_vec(), fd));
        Ok(())
    }

    /// Makes something by `make`, called with its directory and its name. `Ok(false)`: it could not be made, and the
    /// problem says so.
    fn make<T>(
        &mut self,
        problem: &mut Problem,
        make: impl FnOnce(&OwnedFd, &[u8]) -> Result<T, Errno>,
    ) -> Result<Option<T>, CopyError> {
        let path = problem.path.clone();
        let (parent, name) = split(&path);
        if parent == LOST_AND_FOUND {
            match mkdirat(&self.root, LOST_AND_FOUND, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(error(&path, e)),
            }
        }
        let made = match self.open_dir(parent) {
            Ok(()) => self.at.as_ref().map_or(Err(Errno::NOENT), |(_, fd)| make(fd, name)),
            Err(e) => Err(e),
        };
        match made {
            Ok(made) => Ok(Some(made)),
            Err(e) if ends_it(e) => Err(error(&path, e)),
            Err(e) => {
                problem.notes.push(Note::NotMade { why: io::Error::from(e).kind() });
                Ok(None)
            }
        }
    }

    fn mode(&self, raw: &RawInode) -> Mode {
        // Where the owner is not kept, who runs the copy must not be whom others become.
        let mask = if self.is_root { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(u32::from(raw.mode.get()) & mask)
    }

    fn owner(raw: &RawInode) -> (Option<Uid>, Option<Gid>) {
        // All bits set would mean "leave as it is".
        let uid = Some(raw.uid.get()).filter(|u| *u != u32::MAX).map(Uid::from_raw);
        let gid = Some(raw.gid.get()).filter(|g| *g != u32::MAX).map(Gid::from_raw);
        (uid, gid)
    }

    fn set_attributes(&self, fd: impl AsFd, raw: &RawInode) -> Result<(), Errno> {
        if self.is_root {
            let (uid, gid) = Self::owner(raw);
            fchown(&fd, uid, gid)?;
        }
        fchmod(&fd, self.mode(raw))?;
        futimens(&fd, &times(raw))
    }

    /// Writes what a file holds; adds to the problem what cannot be read.
    fn write(
        tree: &Tree<'_, '_>,
        fd: &OwnedFd,
        content: &Content,
        problem: &mut Problem,
        watch: &dyn Watch,
    ) -> Result<(), Errno> {
        let bs = tree.block_size();
        let mut result = Ok(());
        for e in &content.mapped.extents {
            let start = e.offset.saturating_mul(bs);
            if start >= content.size {
                break;
            }
            // Nothing behind the end is read.
            let blocks = (content.size - start).div_ceil(bs).min(e.len);
            tree.read_run(&Extent { len: blocks, ..*e }, |at, bytes| {
                let at = start.saturating_add(at);
                let left = usize::try_from(content.size.saturating_sub(at)).unwrap_or(usize::MAX);
                let Some(bytes) = bytes else {
                    add_range(&mut problem.missing, at..at.saturating_add(512).min(content.size));
                    return true;
                };
                let mut bytes = bytes.get(..left.min(bytes.len())).unwrap_or_default();
                let mut at = at;
                if watch.stop() {
                    return false;
                }
                while !bytes.is_empty() {
                    match pwrite(fd, bytes, at) {
                        Ok(0) => result = Err(Errno::NOSPC),
                        Ok(n) => {
                            bytes = bytes.get(n..).unwrap_or_default();
                            at += n as u64;
                            continue;
                        }
                        Err(Errno::INTR) => continue,
                        Err(e) => result = Err(e),
                    }
                    return false;
                }
                true
            });
            result?;
        }
        problem.missing.sort_unstable_by_key(|r| r.start);
        ftruncate(fd, content.size)
    }

    fn regular(
        &mut self,
        problem: &mut Problem,
        tree: &Tree<'_, '_>,
        inode: &Inode,
        content: &Content,
    ) -> Result<bool, CopyError> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(fd) = self.make(problem, |dir, name| openat(dir, name, how, Mode::RUSR | Mode::WUSR))?
        else {
            return Ok(false);
        };
        let path = problem.path.clone();
        // One after the other: a file that is too large for the file system there still has its owner.
        let written = Self::write(tree, &fd, content, problem, self.watch);
        for result in [written, self.set_attributes(&fd, &inode.raw)] {
            match result {
                Ok(()) => {}
                Err(e) if ends_it(e) => return Err(error(&path, e)),
                Err(e) => problem.notes.push(Note::NotMade { why: io::Error::from(e).kind() }),
            }
        }
        Ok(true)
    }

    /// Symlinks, device nodes, FIFOs and sockets.
    fn special(&mut self, problem: &mut Problem, inode: &Inode) -> Result<bool, CopyError> {
        let raw = &inode.raw;
        let kind = FileType::from_raw_mode(raw.file_type());
        let target = if kind == FileType::Symlink { self.tree.link(inode) } else { None };
        if kind == FileType::Symlink && target.is_none() {
            problem.notes.push(Note::Lost { why: "its target is lost" });
            return Ok(false);
        }
        let (owners, (uid, gid), mode) = (self.is_root, Self::owner(raw), self.mode(raw));
        let device = match kind {
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = raw.device();
                rustix::fs::makedev(major, minor)
            }
            _ => 0,
        };
        let made = self.make(problem, |dir, name| {
            match &target {
                Some(target) => symlinkat(target.as_slice(), dir, name)?,
                None => mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device)?,
            }
            let owner = owners.then_some((uid, gid));
            set_owner_and_mode(dir, name, kind, owner, target.is_none().then_some(mode))?;
            utimensat(dir, name, &times(raw), AtFlags::SYMLINK_NOFOLLOW)
        })?;
        Ok(made.is_some())
    }

    /// Looks for a whole version in earlier moments, and puts it beside.
    fn put_older(&mut self, problem: &mut Problem, inode: &Inode) -> Result<(), CopyError> {
        let (rescue, now) = (self.rescue, self.tree.cno());
        let older = self.older.take().unwrap_or_else(|| {
            let moments = rescue.moments().into_iter().filter(|m| m.cno < now && !m.minor);
            let mut last = None;
            moments.take(VERSIONS).filter_map(|m| rescue.tree_with(m.cno, &mut last).ok()).collect()
        });
        for tree in &older {
            let Some(before) = tree.inode(inode.ino, 0) else { break };
            if before.raw.generation != inode.raw.generation
                || before.raw.file_type() != inode.raw.file_type()
            {
                break;
            }
            let content = tree.content(&before);
            let found = examine(tree, &problem.path, &before, &content);
            let readable = content.mapped.extents.iter().all(|e| {
                tree.survey().unreadable_in(e.block..e.block.saturating_add(e.len)).next().is_none()
            });
            if !readable || !found.missing.is_empty() || !found.notes.is_empty() || content.size == 0 {
                continue;
            }
            let path = [&problem.path, format!("{BESIDE}{}", tree.cno()).as_bytes()].concat();
            let (parent, name) = split(&path);
            // A file that has that name comes later, or was there before.
            if parent == self.here.path && self.here.names.contains(name) {
                break;
            }
            let mut beside = Problem { path, ino: inode.ino, missing: Vec::new(), notes: Vec::new() };
            if self.regular(&mut beside, tree, &before, &content)? && beside.notes.is_empty() {
                problem.notes.push(Note::WholeVersionBeside { cno: tree.cno() });
            }
            break;
        }
        self.older = Some(older);
        Ok(())
    }

    /// Puts files with what was synced later beside them.
    fn put_synced(&mut self) -> Result<(), CopyError> {
        for (path, inode) in std::mem::take(&mut self.beside) {
            if self.watch.stop() {
                return Ok(());
            }
            let Some(blocks) = self.synced.remove(&inode.ino) else { continue };
            let mut content = self.tree.content(&inode);
            content.mapped.overlay(&blocks);
            let mut beside = Problem { path, ino: inode.ino, missing: Vec::new(), notes: Vec::new() };
            self.regular(&mut beside, self.tree, &inode, &content)?;
            self.tally.add(beside);
        }
        Ok(())
    }

    /// Attributes of directories, innermost first, and flags.
    fn finish(&mut self) -> Result<(), CopyError> {
        for (path, raw) in std::mem::take(&mut self.finish).into_iter().rev() {
            let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let (parent, name) = split(&path);
            let name = if name.is_empty() { b"." } else { name };
            let Ok(()) = self.open_dir(parent) else { continue };
            let Some(Ok(fd)) = self.at.as_ref().map(|(_, dir)| openat(dir, name, how, Mode::empty())) else {
                continue;
            };
            let wanted = raw.flags.get() & flags::USER_MODIFIABLE & !(flags::IMMUTABLE | flags::APPEND);
            if wanted != 0 {
                // Few file systems know all of them.
                let _ = ioctl_setflags(&fd, IFlags::from_bits_retain(wanted));
            }
            if raw.file_type() == crate::inode::DIRECTORY
                && let Err(e) = self.set_attributes(&fd, &raw)
                && ends_it(e)
            {
                return Err(error(&path, e));
            }
        }
        Ok(())
    }
}

impl Sink for Copier<'_, '_, '_> {
    type Error = CopyError;

    fn directory(&mut self, path: &[u8], inode: &Inode, found: &Directory) -> Result<(), CopyError> {
        let mut problem = examine_directory(self.tree, path, inode, found);
        let names = found.entries.iter().map(|e| &e.name);
        let like_versions = names.filter(|n| n.windows(BESIDE.len()).any(|part| part == BESIDE.as_bytes()));
        self.here = Here { path: path.to_vec(), names: like_versions.cloned().collect() };
        let made =
            path.is_empty() || self.make(&mut problem, |dir, name| mkdirat(dir, name, Mode::RWXU))?.is_some();
        if made {
            self.tally.directories += 1;
            self.finish.push((path.to_vec(), inode.raw));
        }
        self.tally.add(problem);
        Ok(())
    }

    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<(), CopyError> {
        let content = self.tree.content(inode);
        let mut problem = examine(self.tree, path, inode, &content);
        let made = if inode.raw.file_type() == crate::inode::REGULAR {
            let made = self.regular(&mut problem, self.tree, inode, &content)?;
            if let Some(blocks) = self.synced.get(&inode.ino).filter(|_| made) {
                let bs = self.tree.block_size();
                let end = |e: &Extent| e.end().saturating_mul(bs).min(content.size);
                let bytes = blocks.iter().map(|e| end(e).saturating_sub(e.offset.saturating_mul(bs)));
                let bytes = bytes.fold(0, u64::saturating_add);
                if bytes > 0 {
                    problem.notes.push(Note::SyncedBeside { bytes });
                    self.beside.push(([path, b".synced"].concat(), *inode));
                }
            }
            if made && !problem.missing.is_empty() {
                self.put_older(&mut problem, inode)?;
            }
            made
        } else {
            self.special(&mut problem, inode)?
        };
        if made {
            self.tally.files += 1;
            self.tally.bytes = self.tally.bytes.saturating_add(content.size);
            // Attributes of another moment may know of less names.
            if inode.raw.links_count.get() > 1 || inode.origin != Origin::Sound {
                self.names.insert(inode.ino, path.to_vec());
            }
            let regular = inode.raw.file_type() == crate::inode::REGULAR;
            if regular && inode.raw.flags.get() & flags::USER_MODIFIABLE != 0 {
                self.finish.push((path.to_vec(), inode.raw));
            }
        }
        self.tally.add(problem);
        Ok(())
    }

    fn link(&mut self, path: &[u8], inode: &Inode) -> Result<(), CopyError> {
        let Some(first) = self.names.get(&inode.ino).cloned() else {
            return self.lost(path, inode.ino, "its file has another name, or could not be copied under it");
        };
        let mut problem =
            Problem { path: path.to_vec(), ino: inode.ino, missing: Vec::new(), notes: Vec::new() };
        let (parent, name) = split(&first);
        let old = self.open_dir(parent).and_then(|()| match &self.at {
            Some((_, fd)) => {
                openat(fd, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            }
            None => Err(Errno::NOENT),
        });
        let made = self.make(&mut problem, |dir, to| linkat(&old?, name, dir, to, AtFlags::empty()))?;
        self.tally.links += u64::from(made.is_some());
        self.tally.add(problem);
        Ok(())
    }

    fn lost(&mut self, path: &[u8], ino: u64, why: &'static str) -> Result<(), CopyError> {
        let notes = vec![Note::Lost { why }];
        self.tally.add(Problem { path: path.to_vec(), ino, missing: Vec::new(), notes });
        Ok(())
    }
}
