//! A plain reader of files at one moment, for comparing what two implementations see.
//!
//! It reads the latest state as a mount would (with data-sync logs behind the super root applied
//! in memory, spec 4.4) or a checkpoint. It stops at the first thing that is wrong.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use silt_device::Device;
use silt_format::checkpoint;
use silt_format::dir;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Ino};

use crate::dat::Dat;
use crate::error::Error;
use crate::files;
use crate::inode::{DIRECTORY, REGULAR, SYMLINK};
use crate::reader::Reader;
use crate::report::Severity;
use crate::search;

type Result<T> = std::result::Result<T, Error>;

/// Bytes of blocks a tree keeps in memory.
const CACHE: usize = 16 << 20;

/// Longest path a walk follows, in bytes: what bounds its memory on a hostile volume.
const PATH_LIMIT: usize = 64 << 10;

/// Which state to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// What a mount shows: the latest checkpoint and what data-sync logs add to it.
    Latest,
    /// A checkpoint.
    Checkpoint(u64),
}

/// Attributes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    pub links: u32,
    /// 512-byte units, as recorded.
    pub blocks: u64,
    /// (Seconds since 1970, nanoseconds).
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    /// `FS_*_FL` flags.
    pub flags: u32,
    pub generation: u32,
    /// (Major, minor) of device nodes.
    pub device: Option<(u32, u32)>,
}

/// The path of a name in a directory, of which `above` has the parent and the name, up to the root. None where it is
/// longer than [`PATH_LIMIT`].
pub(crate) fn path_of(above: &BTreeMap<u64, (u64, Vec<u8>)>, directory: u64, name: &[u8]) -> Option<Vec<u8>> {
    let mut names = vec![name];
    let (mut at, mut length) = (directory, name.len());
    while at != Ino::ROOT.0 {
        let (parent, name) = above.get(&at)?;
        length += name.len() + 1;
        if length > PATH_LIMIT {
            return None;
        }
        names.push(name);
        at = *parent;
    }
    names.reverse();
    Some(names.join(&b'/'))
}

impl Attributes {
    fn of(ino: u64, raw: &RawInode) -> Self {
        let special = matches!(raw.file_type(), 0o020_000 | 0o060_000);
        Attributes {
            ino,
            mode: raw.mode.get().into(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            size: raw.size.get(),
            links: raw.links_count.get().into(),
            blocks: raw.blocks.get(),
            mtime: (raw.mtime.get().cast_signed(), raw.mtime_nsec.get()),
            ctime: (raw.ctime.get().cast_signed(), raw.ctime_nsec.get()),
            flags: raw.flags.get(),
            generation: raw.generation.get(),
            device: special.then(|| raw.device()),
        }
    }

    /// Type bits of the mode.
    pub fn file_type(&self) -> u32 {
        self.mode & 0o170_000
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type() == DIRECTORY
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.file_type() == REGULAR
    }

    /// Whether it is a symlink.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == SYMLINK
    }
}

/// One name in a directory, "." and ".." included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    /// As the directory stores it (`silt_format::dir::file_type`).
    pub file_type: u8,
}

/// A file met on a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// Names from the root on, joined by "/"; empty for the root.
    pub path: Vec<u8>,
    pub attributes: Attributes,
}

/// The tree at one moment. Reads the device when asked; the volume must not change meanwhile.
pub struct Tree<'a> {
    pub(crate) r: Reader<'a>,
    pub(crate) dat: Dat,
    pub(crate) layout: Layout,
    pub(crate) cno: u64,
    pub(crate) ifile: BTreeMap<u64, u64>,
    /// Disk block by (inode, offset), of data-sync logs.
    pub(crate) overlay: BTreeMap<(u64, u64), u64>,
}

impl<'a> Tree<'a> {
    /// Opens a moment. Errors: no volume, no such checkpoint, damage on the way there.
    pub fn open(device: &'a dyn Device, moment: Moment) -> Result<Self> {
        let (r, start) = search::open(device, CACHE)?;
        let at = start.found.latest.end() - 1;
        let root = SuperRoot::parse(&r.g, &r.block(BlockNr(at)).map_err(Error::Damaged)?)?;
        let mut wrong = None;
        let dat = Dat::load(&r, &root.dat, |invariant, place, what| {
            if invariant.severity == Severity::Error {
                wrong.get_or_insert_with(|| format!("DAT: {} at {place}: {what}", invariant.id));
            }
        });
        if let Some(wrong) = wrong {
            return Err(Error::Damaged(wrong));
        }
        let latest = start.found.cno;
        let cno = match moment {
            Moment::Latest => latest,
            Moment::Checkpoint(n) if n > latest => return Err(Error::NoCheckpoint(n)),
            Moment::Checkpoint(n) => n,
        };
        let (cpfile, wrong) = files::plain(&r, &dat, &root.cpfile);
        let (block, byte) = checkpoint::place(&r.g, Cno(cno)).map_err(|_| Error::NoCheckpoint(cno))?;
        let entry = match (cpfile.get(&block), wrong) {
            (Some(at), _) => checkpoint::entry(&r.block(BlockNr(*at)).map_err(Error::Damaged)?, byte)?,
            (None, Some(wrong)) => return Err(Error::Damaged(wrong)),
            (None, None) => return Err(Error::NoCheckpoint(cno)),
        };
        if entry.is_invalid() || entry.cno.get() != cno {
            return Err(Error::NoCheckpoint(cno));
        }
        entry.ifile_inode.check_metadata("ifile")?;
        let (ifile, wrong) = files::plain(&r, &dat, &entry.ifile_inode);
        if let Some(wrong) = wrong {
            return Err(Error::Damaged(wrong));
        }
        let layout = Layout::ifile(&r.g);
        let mut tree = Tree { r, dat, layout, cno, ifile, overlay: BTreeMap::new() };
        if moment == Moment::Latest && !start.clean {
            tree.roll_forward(&start.found)?;
        }
        Ok(tree)
    }

    fn roll_forward(&mut self, found: &search::Found) -> Result<()> {
        let pending = search::pending(&self.r, found).map_err(Error::Damaged)?;
        if let Some((pos, what)) = pending.broken {
            return Err(Error::Damaged(format!("block {pos}: {what}")));
        }
        for (ino, offset, block) in pending.blocks {
            self.inode(ino)?;
            self.overlay.insert((ino, offset), block);
        }
        Ok(())
    }

    /// Number of the checkpoint that is read.
    pub fn cno(&self) -> u64 {
        self.cno
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.r.g.bs()
    }

    /// An inode as it lies on disk. Errors: not allocated, without links.
    pub fn inode(&self, ino: u64) -> Result<RawInode> {
        let missing = || Error::NoInode(ino);
        if ino != Ino::ROOT.0 && ino < Ino::FIRST_USER.0 {
            return Err(missing());
        }
        self.layout.check("ifile", ino).map_err(|_| missing())?;
        let bitmap = self.ifile.get(&self.layout.bitmap_block(self.layout.group(ino))).ok_or_else(missing)?;
        let bits = self.block(*bitmap)?;
        let bit = self.layout.bit(ino);
        if bits.get(bit / 8).is_none_or(|b| b & (1 << (bit % 8)) == 0) {
            return Err(missing());
        }
        let at = self.layout.entry(ino);
        let block = self.block(*self.ifile.get(&at.block).ok_or_else(missing)?)?;
        let raw = RawInode::read(block.get(at.byte..).unwrap_or_default())?;
        if raw.links_count.get() == 0 {
            return Err(missing());
        }
        raw.check()?;
        Ok(raw)
    }

    fn block(&self, nr: u64) -> Result<crate::reader::Block> {
        self.r.block(BlockNr(nr)).map_err(Error::Damaged)
    }

    /// Attributes of an inode.
    pub fn attributes(&self, ino: u64) -> Result<Attributes> {
        Ok(Attributes::of(ino, &self.inode(ino)?))
    }

    /// Disk block of every mapped block of a file, by offset; empty for files without a map.
    fn blocks(&self, ino: u64, raw: &RawInode) -> Result<BTreeMap<u64, u64>> {
        if !raw.has_map() {
            return Ok(BTreeMap::new());
        }
        let (mut blocks, wrong) = files::plain(&self.r, &self.dat, raw);
        if let Some(wrong) = wrong {
            return Err(Error::Damaged(format!("inode {ino}: {wrong}")));
        }
        blocks.extend(self.overlay.range((ino, 0)..=(ino, u64::MAX)).map(|((_, o), b)| (*o, *b)));
        Ok(blocks)
    }

    /// Disk block of a file's block; none for a hole.
    pub fn block_of(&self, ino: u64, offset: u64) -> Result<Option<u64>> {
        Ok(self.blocks(ino, &self.inode(ino)?)?.get(&offset).copied())
    }

    /// Where a file has data: (first block, number of blocks), ascending, offsets in blocks.
    pub fn extents(&self, ino: u64) -> Result<Vec<(u64, u64)>> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for offset in self.blocks(ino, &self.inode(ino)?)?.keys() {
            match out.last_mut() {
                Some((first, n)) if *first + *n == *offset => *n += 1,
                _ => out.push((*offset, 1)),
            }
        }
        Ok(out)
    }

    /// Calls `f` with (byte offset, bytes) for every part of a file that has data, ascending, cut
    /// off at its size. What lies between is zero.
    pub fn for_each_part(&self, ino: u64, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let raw = self.inode(ino)?;
        let size = raw.size.get();
        for (offset, block) in self.blocks(ino, &raw)? {
            let at = offset << self.r.g.block_bits;
            if at >= size {
                break;
            }
            let bytes = self.block(block)?;
            let n = usize::try_from(size - at).unwrap_or(usize::MAX).min(bytes.len());
            f(at, &bytes[..n]);
        }
        Ok(())
    }

    /// Fills `buf` from byte `offset` of a file; returns how many bytes lie before its end.
    pub fn read_at(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let raw = self.inode(ino)?;
        let len = raw.size.get().saturating_sub(offset).min(buf.len() as u64);
        let bits = self.r.g.block_bits;
        buf.fill(0);
        let Some(last) = offset.checked_add(len).and_then(|end| end.checked_sub(1)).filter(|_| len > 0)
        else {
            return Ok(0);
        };
        for (key, block) in self.blocks(ino, &raw)?.range(offset >> bits..=last >> bits) {
            let start = key << bits;
            let bytes = self.block(*block)?;
            let (from, to) = (offset.max(start), (offset + len).min(start + bytes.len() as u64));
            // Both lie within one block, and what is asked for within `buf`.
            let (a, b) = ((from - start) as usize, (to - start) as usize);
            let (at, n) = ((from - offset) as usize, (to - from) as usize);
            if let (Some(to), Some(from)) = (buf.get_mut(at..at + n), bytes.get(a..b)) {
                to.copy_from_slice(from);
            }
        }
        Ok(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Whole content of a file of at most `limit` bytes. Errors: larger than that.
    pub fn read(&self, ino: u64, limit: u64) -> Result<Vec<u8>> {
        let size = self.inode(ino)?.size.get();
        if size > limit {
            return Err(Error::Damaged(format!("inode {ino} has {size} bytes, more than {limit}")));
        }
        let mut out = vec![0; usize::try_from(size).unwrap_or(0)];
        self.for_each_part(ino, |at, bytes| {
            let to = usize::try_from(at).ok().and_then(|at| out.get_mut(at..at + bytes.len()));
            if let Some(to) = to {
                to.copy_from_slice(bytes);
            }
        })?;
        Ok(out)
    }

    /// Target of a symlink.
    pub fn read_link(&self, ino: u64) -> Result<Vec<u8>> {
        if self.inode(ino)?.file_type() != SYMLINK {
            return Err(Error::Damaged(format!("inode {ino} is no symlink")));
        }
        self.read(ino, u64::from(self.r.g.block_size))
    }

    /// All names of a directory in their order on disk, "." and ".." included.
    pub fn entries(&self, ino: u64) -> Result<Vec<DirEntry>> {
        let raw = self.inode(ino)?;
        if raw.file_type() != DIRECTORY {
            return Err(Error::Damaged(format!("inode {ino} is no directory")));
        }
        let mut out = Vec::new();
        for block in self.blocks(ino, &raw)?.values() {
            for entry in dir::entries(&self.block(*block)?) {
                let e = entry?;
                if e.ino.0 != 0 {
                    out.push(DirEntry { name: e.name.to_vec(), ino: e.ino.0, file_type: e.file_type });
                }
            }
        }
        Ok(out)
    }

    /// The inode a path of names joined by "/" leads to; the empty path is the root.
    pub fn lookup(&self, path: &[u8]) -> Result<u64> {
        let mut at = Ino::ROOT.0;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let found = self.entries(at)?.into_iter().find(|e| e.name == name);
            at = found.ok_or_else(|| Error::NotFound(String::from_utf8_lossy(path).into_owned()))?.ino;
        }
        Ok(at)
    }

    /// Where inodes are found from the root, as far as directories can be read: a path of each that has one, names
    /// joined by "/". What is damaged is passed over. Memory is in proportion to the directories' blocks.
    pub fn names_of(&self, wanted: &BTreeSet<u64>) -> BTreeMap<u64, Vec<u8>> {
        let mut found = BTreeMap::new();
        // Paths are put together for what is wanted alone: entries may name more directories than there are.
        let mut above = BTreeMap::from([(Ino::ROOT.0, (Ino::ROOT.0, Vec::new()))]);
        let mut todo = vec![Ino::ROOT.0];
        if wanted.contains(&Ino::ROOT.0) {
            found.insert(Ino::ROOT.0, Vec::new());
        }
        while let Some(directory) = todo.pop() {
            if found.len() == wanted.len() {
                break;
            }
            for e in self.entries(directory).unwrap_or_default() {
                if e.name == b"." || e.name == b".." {
                    continue;
                }
                if wanted.contains(&e.ino) && !found.contains_key(&e.ino) {
                    found.extend(path_of(&above, directory, &e.name).map(|path| (e.ino, path)));
                }
                if e.file_type == dir::file_type::DIR && !above.contains_key(&e.ino) {
                    above.insert(e.ino, (directory, e.name));
                    todo.push(e.ino);
                }
            }
        }
        found
    }

    /// Every file that can be reached from the root, sorted by path. A directory met twice is an
    /// error.
    pub fn walk(&self) -> Result<Vec<Walked>> {
        let root = self.attributes(Ino::ROOT.0)?;
        let mut out = vec![Walked { path: Vec::new(), attributes: root }];
        let mut seen = HashSet::from([Ino::ROOT.0]);
        let mut todo = vec![(Ino::ROOT.0, Vec::new())];
        while let Some((directory, prefix)) = todo.pop() {
            for e in self.entries(directory)? {
                if e.name == b"." || e.name == b".." {
                    continue;
                }
                let mut path = prefix.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&e.name);
                if path.len() > PATH_LIMIT {
                    return Err(Error::Damaged(format!("a path of more than {PATH_LIMIT} bytes")));
                }
                let attributes = self.attributes(e.ino)?;
                if attributes.is_directory() {
                    if !seen.insert(e.ino) {
                        return Err(Error::Damaged(format!("directory {} has two names", e.ino)));
                    }
                    todo.push((e.ino, path.clone()));
                }
                out.push(Walked { path, attributes });
            }
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn inodes_are_found_by_their_paths() {
        let device = crate::golden::open("basic-4k");
        let tree = Tree::open(&device, Moment::Latest).unwrap();
        let walked = tree.walk().unwrap();
        let wanted = walked.iter().map(|w| w.attributes.ino).chain([999_999]).collect();
        let found = tree.names_of(&wanted);
        assert!(found.len() > 10 && found.values().any(|path| path.contains(&b'/')), "{found:?}");
        for (ino, path) in &found {
            assert!(walked.iter().any(|w| w.attributes.ino == *ino && w.path == *path), "{ino}: {path:?}");
        }
        assert!(
            walked.iter().all(|w| found.contains_key(&w.attributes.ino)) && !found.contains_key(&999_999)
        );
    }

    #[test]
    fn paths_end_at_a_length() {
        let deep = |depth: u64| -> BTreeMap<u64, (u64, Vec<u8>)> {
            (3..depth + 3).map(|ino| (ino, (if ino == 3 { 2 } else { ino - 1 }, vec![b'n'; 255]))).collect()
        };
        assert_eq!(path_of(&deep(2), 4, b"f").unwrap().len(), 2 * 256 + 1);
        assert_eq!(path_of(&deep(300), 302, b"f"), None);
        assert_eq!(path_of(&deep(2), 77, b"f"), None, "leads nowhere");
    }
}
