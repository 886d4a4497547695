//! Inodes, directories and content at one moment, with older versions and summaries in place of what is lost.
//!
//! An inode whose block of the ifile is lost is taken from an older version of that block; what was written to the
//! file since, summaries and the DAT still tell, so its content is that of the moment and its attributes are older.
//! Where there is no older version, the type is what its directory says, and the size is told by its last block.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use silt_format::checkpoint::{self, CpEntry};
use silt_format::inode::{LINK_MAX, RawInode};
use silt_format::palloc::{Kind, Layout};
use silt_format::{BlockNr, Cno, Ino, dir};

use super::extents::{Extent, Mapped};
use super::state::{Spot, State, Version};
use super::survey::Survey;
use super::volume::Root;
use crate::error::Error;
use crate::inode::{DIRECTORY, REGULAR};

/// Where an inode's attributes are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From a block that verifies.
    Sound,
    /// From a block that does not verify, but they make sense.
    Doubtful,
    /// From a version of the block that this checkpoint wrote: the one of the moment is lost.
    Older { cno: u64 },
    /// Lost; made up of what is known.
    Made,
}

/// An inode of the moment.
#[derive(Debug, Clone, Copy)]
pub struct Inode {
    pub ino: u64,
    pub raw: RawInode,
    pub origin: Origin,
}

/// What is in a file.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pub mapped: Mapped,
    /// Bytes.
    pub size: u64,
    /// Whether the size is told by the last block alone, zeros at the end not counted, or by what it was before a hole
    /// at the end.
    pub guessed: bool,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: u64,
    /// As the directory stores it (`silt_format::dir::file_type`).
    pub file_type: u8,
    /// From an older version of a block that is lost: it may have been removed or renamed since.
    pub older: bool,
}

/// What is in a directory.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// Without "." and "..".
    pub entries: Vec<Entry>,
    /// Its blocks that are lost; names may be missing, others may be from an older version.
    pub lost: u64,
    /// What ".." says.
    pub parent: Option<u64>,
    /// Where its blocks lie.
    pub content: Content,
}

/// The tree at one moment.
pub struct Tree<'r, 'd> {
    state: Arc<State<'r, 'd>>,
    cno: u64,
    layout: Layout,
    ifile: Mapped,
    /// What data-sync logs behind the newest checkpoint add, by inode.
    synced: Arc<BTreeMap<u64, Vec<Extent>>>,
    /// Whether the checkpoint's own entry was found.
    pub listed: bool,
}

/// Whether an inode of a block that does not verify can be right. Noise passes once in 2^96.
fn plausible(raw: &RawInode) -> bool {
    raw.xattr.get() == 0
        && raw.pad.get() == 0
        && raw.ctime_nsec.get() < 1_000_000_000
        && raw.mtime_nsec.get() < 1_000_000_000
        && (1..=LINK_MAX).contains(&raw.links_count.get())
        && i64::try_from(raw.size.get()).is_ok()
        && raw.check().is_ok()
}

impl<'r, 'd> Tree<'r, 'd> {
    /// Opens a checkpoint through a super root's state. At the newest super root what data-sync logs behind it hold is
    /// added, as a mount would. Errors: there is no such checkpoint.
    pub fn open(state: Arc<State<'r, 'd>>, root: &Root, cno: u64) -> Result<Self, Error> {
        let rescue = state.rescue;
        let g = rescue.geometry();
        let (block, byte) = checkpoint::place(g, Cno(cno)).map_err(|_| Error::NoCheckpoint(cno))?;
        let cpfile = state.map(&state.root.cpfile.bmap, Ino::CPFILE.0, u64::MAX, true);
        let found = cpfile.at(block).and_then(|(nr, sound)| {
            let entry = checkpoint::entry(&rescue.block(nr).ok()?, byte).ok()?;
            Some((entry, sound))
        });
        let right = |e: &CpEntry| {
            !e.is_invalid() && e.cno.get() == cno && e.ifile_inode.check_metadata("ifile").is_ok()
        };
        let known = root.cno == cno || rescue.roots().iter().any(|r| r.cno == cno);
        let (ifile, listed) = match found {
            Some((e, sound)) if right(&e) => (state.map(&e.ifile_inode.bmap, Ino::IFILE.0, cno, sound), true),
            Some((_, true)) if root.cno != cno => return Err(Error::NoCheckpoint(cno)),
            None if !cpfile.is_lost(block) && !cpfile.doubtful && !known => {
                return Err(Error::NoCheckpoint(cno));
            }
            _ => (state.map_from_records(Ino::IFILE.0, cno), false),
        };
        let layout = Layout::ifile(g);
        let mut tree = Tree { state, cno, layout, ifile, synced: Arc::default(), listed };
        if rescue.roots().first() == Some(root) && root.cno == cno {
            tree.synced = rescue.synced();
        }
        Ok(tree)
    }

    /// Number of the checkpoint.
    pub fn cno(&self) -> u64 {
        self.cno
    }

    /// The survey of the volume.
    pub(super) fn survey(&self) -> &Survey {
        &self.state.rescue.survey
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u64 {
        u64::from(self.state.rescue.geometry().block_size)
    }

    /// An inode; `None` where it was deleted, or nothing is known of it. `file_type` is what the directory says that
    /// names it.
    pub fn inode(&self, ino: u64, file_type: u8) -> Option<Inode> {
        if (ino != Ino::ROOT.0 && ino < Ino::FIRST_USER.0) || self.layout.check("ifile", ino).is_err() {
            return None;
        }
        let rescue = self.state.rescue;
        let place = self.layout.entry(ino);
        let read = |block: u64| {
            let bytes = rescue.block(block).ok()?;
            RawInode::read(bytes.get(place.byte..)?).ok()
        };
        let current = self.ifile.at(place.block);
        if let Some((block, sound)) = current
            && let Some(raw) = read(block)
        {
            if sound && raw.links_count.get() == 0 {
                return None;
            }
            if sound && raw.check().is_ok() {
                let origin = self.origin(place.block, block);
                return Some(Inode { ino, raw, origin });
            }
            if plausible(&raw) {
                return Some(Inode { ino, raw, origin: Origin::Doubtful });
            }
            // Deleted: all but the count of links makes sense (spec 8.3).
            let linked = RawInode { links_count: 1.into(), ..raw };
            if raw.links_count.get() == 0 && raw.file_type() != 0 && plausible(&linked) {
                return None;
            }
        } else if current.is_none() && !self.ifile.is_lost(place.block) && !self.ifile.doubtful {
            return None;
        }
        let range = place.block..place.block.saturating_add(1);
        let mut versions: Vec<_> = rescue
            .records()
            .blocks_of(Ino::IFILE.0, range, self.cno)
            .filter(|c| current.is_none_or(|(block, _)| block != c.block))
            .take(64)
            .collect();
        versions.sort_by_key(|c| std::cmp::Reverse((c.cno, c.order)));
        for c in versions {
            let Some(raw) = read(c.block) else { continue };
            if plausible(&raw) {
                let kind = dir::file_type::from_mode(raw.file_type());
                if file_type != dir::file_type::UNKNOWN && file_type != kind {
                    // Another file had the number.
                    break;
                }
                return Some(Inode { ino, raw, origin: Origin::Older { cno: c.cno } });
            }
            if c.whole {
                // The file is younger than this version.
                break;
            }
        }
        self.made(ino, file_type)
    }

    /// Where the attributes in a block of the ifile are from, which verifies: nothing may tell whether it is the moment's
    /// version or an earlier one.
    fn origin(&self, offset: u64, block: u64) -> Origin {
        if !self.ifile.is_by_offset(offset) {
            return Origin::Sound;
        }
        let found = self.state.rescue.records().at(block).filter(|c| c.cno < self.cno);
        match found.filter(|c| self.state.lives(c, self.cno) != Some(true)) {
            Some(c) if self.state.maybe_older(c.vblock) => Origin::Doubtful,
            Some(c) => Origin::Older { cno: c.cno },
            None => Origin::Sound,
        }
    }

    /// An inode of which only the type is known.
    fn made(&self, ino: u64, file_type: u8) -> Option<Inode> {
        use dir::file_type as t;
        let mode = match file_type {
            t::REG => 0o600,
            t::DIR => 0o700,
            t::SYMLINK => 0o777,
            t::FIFO | t::SOCK => 0o600,
            _ => return None,
        };
        let mut raw = RawInode::zeroed();
        raw.mode = u16::try_from(dir::file_type::to_mode(file_type) | mode).unwrap_or(0).into();
        raw.links_count = 1.into();
        Some(Inode { ino, raw, origin: Origin::Made })
    }

    /// What is in a file, and how much of that is known.
    pub fn content(&self, inode: &Inode) -> Content {
        let raw = &inode.raw;
        if !raw.has_map() {
            return Content { size: 0, ..Content::default() };
        }
        let mut content = match inode.origin {
            Origin::Sound => self.plain(inode, true),
            Origin::Doubtful => self.plain(inode, false),
            Origin::Older { cno } => self.of_older(inode, cno),
            Origin::Made => self.of_records(inode, None),
        };
        // As a mount does it.
        if let Some(synced) = self.synced.get(&inode.ino).filter(|_| inode.raw.file_type() == REGULAR) {
            content.mapped.overlay(synced);
        }
        content
    }

    fn plain(&self, inode: &Inode, trusted: bool) -> Content {
        let mapped = self.state.map(&inode.raw.bmap, inode.ino, self.cno, trusted);
        Content { mapped, size: inode.raw.size.get(), guessed: false }
    }

    /// The content of the moment under attributes of an older checkpoint.
    fn of_older(&self, inode: &Inode, older: u64) -> Content {
        let plain = self.plain(inode, false);
        let now: BTreeMap<u64, Version> =
            self.state.fill(inode.ino, 0..u64::MAX, self.cno).into_iter().collect();
        let unchanged = now.values().all(|version| match version {
            Version::At(c) => c.cno <= older,
            Version::Lost { newest } => *newest <= older,
        }) && plain.mapped.blocks().all(|(offset, block, _)| match now.get(&offset) {
            Some(Version::At(c)) => c.block == block,
            Some(Version::Lost { .. }) => true,
            None => false,
        });
        if unchanged {
            return plain;
        }
        self.of_records(inode, Some((plain.size, older)))
    }

    /// The content by what summaries say; `before`: size at an older checkpoint, and its number.
    fn of_records(&self, inode: &Inode, before: Option<(u64, u64)>) -> Content {
        let mut mapped = Mapped { doubtful: true, ..Mapped::default() };
        let mut last = None;
        for (offset, c) in self.state.fill(inode.ino, 0..u64::MAX, self.cno) {
            match &c {
                Version::At(c) => {
                    mapped.push(self.state.extent(offset, Spot { block: c.block, by_offset: true }));
                }
                Version::Lost { .. } => mapped.push_lost(offset..offset.saturating_add(1)),
            }
            last = Some((offset, c));
        }
        let bs = self.block_size();
        let Some((offset, c)) = last else { return Content { mapped, size: 0, guessed: true } };
        let start = offset.saturating_mul(bs);
        if inode.raw.file_type() == DIRECTORY {
            return Content { mapped, size: start.saturating_add(bs), guessed: false };
        }
        let Version::At(c) = c else {
            let size = before.map_or(0, |(size, _)| size).max(start.saturating_add(bs));
            return Content { mapped, size, guessed: true };
        };
        // A cut within a block writes it anew, so the last one was as full then as it is now.
        if let Some((size, older)) = before
            && c.cno <= older
            && size > start
        {
            // A cut in the hole behind it writes nothing.
            return Content { mapped, size, guessed: size > start.saturating_add(bs) };
        }
        let used = match self.state.rescue.block(c.block) {
            Ok(bytes) => bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1) as u64,
            Err(_) => bs,
        };
        Content { mapped, size: start.saturating_add(used), guessed: true }
    }

    /// Target of a symlink; `None` where it is lost.
    pub fn link(&self, inode: &Inode) -> Option<Vec<u8>> {
        let content = self.content(inode);
        let size = usize::try_from(content.size).ok().filter(|n| (1..=4096).contains(n))?;
        let mut out = Vec::new();
        while out.len() < size {
            let (block, _) = content.mapped.at((out.len() as u64) / self.block_size())?;
            out.extend_from_slice(&self.state.rescue.block(block).ok()?);
        }
        out.truncate(size);
        // Noise is no target.
        let end = if content.guessed { out.iter().position(|b| *b == 0).unwrap_or(size) } else { size };
        out.truncate(end);
        (!out.is_empty() && !out.contains(&0)).then_some(out)
    }

    /// What a directory holds.
    pub fn directory(&self, inode: &Inode) -> Directory {
        let content = self.content(inode);
        let mut out = Directory::default();
        let mut names = HashSet::new();
        let mut broken: Vec<Range<u64>> = content.mapped.lost.clone();
        if inode.origin != Origin::Sound {
            // A directory has no holes and never becomes shorter.
            let versions = self.state.rescue.records().blocks_of(inode.ino, 0..u64::MAX, self.cno);
            let end = versions.filter_map(|c| c.offset()).max().map_or(0, |last| last.saturating_add(1));
            broken.extend(content.mapped.holes(end));
        }
        for (offset, block, _) in content.mapped.blocks() {
            let whole = match self.state.rescue.block(block) {
                Ok(bytes) if self.is_of_other(&bytes, inode.ino) => false,
                Ok(bytes) => self.take_names(&bytes, &mut out, &mut names, false),
                Err(_) => false,
            };
            if !whole {
                broken.push(offset..offset.saturating_add(1));
            }
        }
        for range in broken {
            out.lost = out.lost.saturating_add(range.end - range.start);
            self.older_names(inode.ino, range, &mut out, &mut names);
        }
        if matches!(inode.origin, Origin::Older { .. } | Origin::Made) {
            // Its blocks may be older ones, too: the summary of the log that has its inode is likely to be lost with that.
            out.entries.iter_mut().for_each(|e| e.older = true);
        }
        out.content = content;
        out
    }

    /// Whether a block is another directory's, by its first entry.
    fn is_of_other(&self, chunk: &[u8], ino: u64) -> bool {
        let first = dir::entries(chunk).next().and_then(Result::ok).filter(|e| e.name == b".");
        first.is_some_and(|e| {
            let other = e.ino.0;
            other != ino
                && self.inode(other, dir::file_type::UNKNOWN).is_some_and(|i| i.raw.file_type() == DIRECTORY)
        })
    }

    /// Names in a block; false if it makes no sense to its end. `check`: only names of what is there.
    fn take_names(
        &self,
        chunk: &[u8],
        out: &mut Directory,
        names: &mut HashSet<Vec<u8>>,
        check: bool,
    ) -> bool {
        for entry in dir::entries(chunk) {
            let Ok(e) = entry else { return false };
            match e.name {
                _ if e.ino.0 == 0 => {}
                b"." => {}
                b".." => out.parent = Some(e.ino.0),
                name if names.contains(name) => {}
                name => {
                    let there = || {
                        self.inode(e.ino.0, dir::file_type::UNKNOWN)
                            .is_some_and(|i| dir::file_type::from_mode(i.raw.file_type()) == e.file_type)
                    };
                    if !check || there() {
                        names.insert(name.to_vec());
                        let (name, file_type) = (name.to_vec(), e.file_type);
                        out.entries.push(Entry { name, ino: e.ino.0, file_type, older: check });
                    }
                }
            }
        }
        true
    }

    /// Names that older versions of lost blocks hold, of files that are still there.
    fn older_names(&self, ino: u64, range: Range<u64>, out: &mut Directory, names: &mut HashSet<Vec<u8>>) {
        let rescue = self.state.rescue;
        let mut versions: Vec<_> = rescue.records().blocks_of(ino, range, self.cno).take(4096).collect();
        versions.sort_by_key(|c| (c.offset(), std::cmp::Reverse((c.cno, c.order))));
        let mut done = None;
        for c in versions {
            if done == c.offset() {
                continue;
            }
            let Ok(bytes) = rescue.block(c.block) else { continue };
            if dir::check(&bytes).is_ok() && !self.is_of_other(&bytes, ino) {
                done = c.offset();
                self.take_names(&bytes, out, names, true);
            }
        }
    }

    /// Every inode in use that the ifile holds.
    pub fn for_each_inode(&self, mut f: impl FnMut(u64)) {
        let isz = self.state.rescue.geometry().inode_size as usize;
        for (offset, block, sound) in self.ifile.blocks() {
            let Kind::Entries { first } = self.layout.kind(offset) else { continue };
            let Ok(bytes) = self.state.rescue.block(block) else { continue };
            for (slot, entry) in bytes.chunks_exact(isz).enumerate() {
                let ino = first.saturating_add(slot as u64);
                let Ok(raw) = RawInode::read(entry) else { continue };
                let used =
                    if sound { raw.links_count.get() > 0 && raw.check().is_ok() } else { plausible(&raw) };
                if used && ino >= Ino::FIRST_USER.0 {
                    f(ino);
                }
            }
        }
    }

    /// Blocks of the ifile that are lost.
    pub fn lost_inode_blocks(&self) -> u64 {
        self.ifile.lost.iter().map(|r| r.end - r.start).fold(0, u64::saturating_add)
    }

    /// Reads a run of a file block by block from the device, 1 MiB at a time, and what cannot be read sector by sector:
    /// calls `f` with (byte offset in the run, bytes), `None` for 512 bytes that cannot be read. `f` ends it by `false`.
    pub fn read_run(&self, e: &Extent, mut f: impl FnMut(u64, Option<&[u8]>) -> bool) {
        const STEP: u64 = 1 << 20;
        const SECTOR: usize = 512;
        let r = &self.state.rescue.r;
        let (start, len) = (r.g.byte_of(BlockNr(e.block)), e.len << r.g.block_bits);
        let mut done = 0;
        let mut buf = vec![0; usize::try_from(len.min(STEP)).unwrap_or(0)];
        while done < len {
            let n = usize::try_from((len - done).min(STEP)).unwrap_or(0);
            let part = &mut buf[..n];
            if r.device.read_at(start + done, part).is_ok() {
                if !f(done, Some(part)) {
                    return;
                }
            } else {
                for (i, block) in part.chunks_mut(r.g.bs()).enumerate() {
                    let at = done + (i * r.g.bs()) as u64;
                    if r.device.read_at(start + at, block).is_ok() {
                        if !f(at, Some(block)) {
                            return;
                        }
                        continue;
                    }
                    for (j, sector) in block.chunks_mut(SECTOR).enumerate() {
                        let at = at + (j * SECTOR) as u64;
                        let read = r.device.read_at(start + at, sector).is_ok();
                        if !f(at, read.then_some(&*sector)) {
                            return;
                        }
                    }
                }
            }
            done += n as u64;
        }
    }
}
