//! What lies where and for which checkpoints, some of it at a time: for whoever accounts for space.
//!
//! Nothing here keeps anything: what changes between two calls may be told as it was or as it is.

use std::cell::RefCell;
use std::ops::ControlFlow;

use silt_format::btree::Node;
use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::Kind;
use silt_format::summary::{BlockInfo, Header};
use silt_format::{BlockNr, Cno, Ino, SegNr, VBlockNr};

use crate::block::Block;
use crate::bmap::{self, ReadNodes};
use crate::ifile::IFile;
use crate::live::LogBlock;
use crate::meta::{MetaFile, NodeReader, Physical, Resolve};
use crate::volume::Volume;
use crate::{Error, Result};

/// A block on disk that has an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owned {
    /// The newest state of the DAT lies there.
    Table(BlockNr),
    /// It has a number: the checkpoints from `start` to before `end` see it; all from `start` on where `end` is the
    /// greatest number (spec 7.1).
    Numbered { at: BlockNr, start: u64, end: u64 },
    /// A block of the DAT whose entries cannot be read.
    Unknown,
}

/// A file whose newest state belongs to the volume rather than to its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Inodes,
    Checkpoints,
    Segments,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 3] = [Table::Inodes, Table::Checkpoints, Table::Segments];
}

/// Where the newest log with a super root lies, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewestLog {
    pub at: BlockNr,
    /// Blocks of its summary, with which it begins.
    pub summary: u64,
    /// Its last block.
    pub super_root: BlockNr,
}

/// Notes the nodes that are read and were not met by an earlier part of the same walk: those that begin behind the
/// key it goes on with.
struct Noting<'a, R> {
    reader: NodeReader<'a, R>,
    from: u64,
    met: RefCell<Vec<u64>>,
}

impl<R: Resolve> ReadNodes for Noting<'_, R> {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        let block = self.reader.read(ptr, level)?;
        if self.from == 0 || Node::block(&block).key(0) > self.from {
            self.met.borrow_mut().push(ptr);
        }
        Ok(block)
    }
}

/// A part of a map: the pointers to its data, by key, and those to its nodes.
struct Part {
    data: Vec<(u64, u64)>,
    nodes: Vec<u64>,
    next: Option<u64>,
}

impl Volume {
    fn part<R: Resolve>(&self, file: &MetaFile, resolve: &R, from: u64, most: usize) -> Result<Part> {
        let reader = NodeReader { nodes: &file.map.nodes, store: &self.store, resolve };
        let noting = Noting { reader, from, met: RefCell::default() };
        let mut part = Part { data: Vec::new(), nodes: Vec::new(), next: None };
        bmap::for_each(&file.map.root, &noting, from, |key, ptr| {
            if part.data.len() >= most.max(1) {
                part.next = Some(key);
                return ControlFlow::Break(());
            }
            part.data.push((key, ptr));
            ControlFlow::Continue(())
        })?;
        part.nodes = noting.met.into_inner();
        Ok(part)
    }

    /// Calls `f` for every block that the DAT names, from its own block `from` on, over at most about `most` blocks of
    /// it. Where to go on; none at the end. An error where the DAT's map cannot be read.
    pub fn for_each_owned(&self, from: u64, most: usize, mut f: impl FnMut(Owned)) -> Result<Option<u64>> {
        let dat = &self.dat;
        let part = self.part(&dat.file, &Physical, from, most)?;
        // What waits for its first log has no place yet.
        let placed = |ptr: &u64| self.store.geometry.holds(BlockNr(*ptr));
        part.nodes.iter().filter(|p| placed(p)).for_each(|p| f(Owned::Table(BlockNr(*p))));
        for (key, ptr) in &part.data {
            if placed(ptr) {
                f(Owned::Table(BlockNr(*ptr)));
            }
            if let Kind::Entries { first } = dat.palloc.layout.kind(*key)
                && self.for_each_entry(*key, first, &mut f).is_err()
            {
                f(Owned::Unknown);
            }
        }
        Ok(part.next)
    }

    fn for_each_entry(&self, key: u64, first: u64, f: &mut impl FnMut(Owned)) -> Result<()> {
        let dat = &self.dat;
        let layout = dat.palloc.layout;
        let Some(entries) = dat.file.block(&self.store, &Physical, key)? else { return Ok(()) };
        let bitmap = dat.file.block(&self.store, &Physical, layout.bitmap_block(layout.group(first)))?;
        for nr in first..=layout.last_of_block(first) {
            let bit = layout.bit(nr);
            let taken = bitmap.as_ref().and_then(|b| b.get(bit / 8)).is_some_and(|b| b >> (bit % 8) & 1 == 1);
            let Ok(e) = DatEntry::read(&entries, layout.entry(nr).byte) else { continue };
            let at = BlockNr(e.blocknr.get());
            if taken && self.store.geometry.holds(at) {
                f(Owned::Numbered { at, start: e.start.get(), end: e.end.get() });
            }
        }
        Ok(())
    }

    /// How many blocks the newest state of a table takes on disk, data and nodes, from its block `from` on, over at most
    /// about `most` of them. Where to go on; none at the end.
    pub fn count_table(&self, table: Table, from: u64, most: usize) -> Result<(u64, Option<u64>)> {
        let file = match table {
            Table::Inodes => &self.ifile.file,
            Table::Checkpoints => &self.cpfile.file,
            Table::Segments => &self.sufile.file,
        };
        let part = self.part(file, &self.dat, from, most)?;
        let numbers = part.data.iter().map(|(_, ptr)| *ptr).chain(part.nodes);
        let lies = |v: &u64| {
            let e = self.dat.entry(&self.store, VBlockNr(*v));
            e.is_ok_and(|e| e.end.get() == LIVE && self.store.geometry.holds(BlockNr(e.blocknr.get())))
        };
        Ok((numbers.filter(lies).count() as u64, part.next))
    }

    /// About which part of the DAT (0 to 1) lies below its block `from`.
    pub fn table_part(&self, from: u64) -> f64 {
        let map = &self.dat.file.map;
        let reader = NodeReader { nodes: &map.nodes, store: &self.store, resolve: &Physical };
        bmap::part_below(&map.root, &reader, from).unwrap_or(0.0)
    }

    /// The newest log with a super root; an error where its header cannot be read.
    pub fn newest_log(&self) -> Result<NewestLog> {
        let g = &self.store.geometry;
        let at = BlockNr(self.last.pseg);
        let bytes = self.store.read(silt_device::Kind::Data, at)?;
        let header = Header::parse(g, &bytes).map_err(|e| Error::at(format!("log at block {at}"), e))?;
        let last = at.0.saturating_add(u64::from(header.nblocks.get())).saturating_sub(1);
        Ok(NewestLog { at, summary: u64::from(header.summary_blocks(g)), super_root: BlockNr(last) })
    }

    /// Checkpoints that somebody looks at, ascending.
    pub fn viewed(&self) -> Vec<Cno> {
        let mut viewed: Vec<Cno> = self.views.keys().map(|c| Cno(*c)).collect();
        viewed.sort_unstable();
        viewed
    }

    /// Of blocks of a segment those that lie where the DAT says: which checkpoints see each, from the first number to
    /// before the second. None for others, and for those that have no number.
    pub fn lifetimes(&self, blocks: &[LogBlock]) -> Vec<Option<(u64, u64)>> {
        let dat = &self.dat;
        let of = |b: &LogBlock| {
            let (BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock }) = b.payload.info else {
                return None;
            };
            if !dat.palloc.bit(&dat.file, &self.store, &Physical, vblock.0).unwrap_or(false) {
                return None;
            }
            let e = dat.entry(&self.store, vblock).ok()?;
            (e.blocknr.get() == b.at.0).then(|| (e.start.get(), e.end.get()))
        };
        blocks.iter().map(of).collect()
    }

    /// The generation of an inode as a checkpoint has it, which tells the users of a number apart.
    pub fn generation_at(&self, c: Cno, ino: Ino) -> Result<u32> {
        let entry = self.cpfile.get(&self.store, &self.dat, c)?.ok_or(Error::NoCheckpoint(c.0))?;
        let ifile = IFile::new(&self.store.geometry, entry.ifile_inode)?;
        Ok(ifile.get(&self.store, &self.dat, ino)?.generation.get())
    }

    /// Whether somebody was refused space, and nothing was given up since ([`Volume::refuse_from`]).
    pub fn is_refusing(&self) -> bool {
        self.full.is_some_and(|(given, _)| given == self.given_up.times)
    }

    /// The segment that is written, and the next one.
    pub fn writing(&self) -> [SegNr; 2] {
        [self.cursor.segment, self.cursor.next]
    }
}
