//! What findings come to: which files, which part of them, and the newest older version that is whole.
//!
//! Works from the places that findings name: a block of a file, what a map node covers, the inodes in a block of the
//! ifile, the files that own blocks of a log. Everything is bounded: [`FILES`] files a finding, [`WANTED`] files in
//! all, [`MOMENTS`] checkpoints a file, [`BLOCKS`] blocks read to see whether versions are whole. Where a bound is
//! met, less is said, and nothing that is not so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use silt_device::Device;
use silt_format::checkpoint::{self, CpEntry};
use silt_format::dat::LIVE;
use silt_format::inode::RawInode;
use silt_format::palloc::{Kind, Layout};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Ino, dir};

use crate::check::Options;
use crate::dat::Dat;
use crate::inode::{DIRECTORY, SYMLINK};
use crate::map::{self, NodeRef, Visitor};
use crate::meanings::{self, Meaning, Reads};
use crate::reader::{Block, Reader};
use crate::records::{self, Record};
use crate::report::{Finding, Report};
use crate::search::{self, Log};
use crate::sparse::SparseBits;
use crate::tree::path_of;
use crate::{Watch, files, invariants};

/// Files that are named for one finding.
pub const FILES: usize = 8;
/// Files that are looked up in all.
const WANTED: usize = 10_000;
/// Checkpoints in which a whole version of a file is looked for.
const MOMENTS: usize = 500;
/// Inodes that are looked up in other checkpoints in all.
const STEPS: u64 = 200_000;
/// Blocks that are read to see whether versions are whole.
const BLOCKS: u64 = 1 << 18;
/// Bytes of blocks to keep in memory.
const CACHE: usize = 16 << 20;

/// What kind of file is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    Directory,
    Symlink,
    /// Something else, or nobody knows.
    Other,
}

/// A file that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    pub ino: u64,
    /// From the root of the latest tree, without the leading "/"; none where no name is found.
    pub path: Option<Vec<u8>>,
    pub what: What,
    /// Bytes concerned, from the first to behind the last; none: all of it.
    pub range: Option<(u64, u64)>,
    /// The newest other version that reads wholly: checkpoint, and when that was made (seconds since 1970).
    pub whole: Option<(u64, u64)>,
    /// Whether that is what the latest tree shows.
    pub whole_is_current: bool,
}

/// What a finding comes to.
#[derive(Debug, Clone)]
pub struct Impact {
    /// Whatever it is about.
    pub meaning: Option<&'static Meaning>,
    /// At most [`FILES`].
    pub files: Vec<Touched>,
    /// Files beyond those.
    pub more: u64,
}

/// A part of a file, in blocks.
type Span = (u64, Option<(u64, u64)>);

/// Says of each finding of a report what it comes to, in their order. `options` are those of the check.
pub fn explain(device: &dyn Device, options: &Options, report: &Report, watch: &dyn Watch) -> Vec<Impact> {
    let past = if report.findings.is_empty() { None } else { Past::open(device, options) };
    let Some(past) = past else {
        let of = |f: &Finding| Impact { meaning: meanings::of(f.id), files: Vec::new(), more: 0 };
        return report.findings.iter().map(of).collect();
    };
    watch.stage("looking up what is concerned", report.findings.len() as u64);
    let mut spans: Vec<(Vec<Span>, u64)> = Vec::new();
    let mut wanted = BTreeSet::new();
    for finding in &report.findings {
        let (all, more) = past.concerned(finding);
        for (ino, _) in &all {
            if wanted.len() < WANTED {
                wanted.insert(*ino);
            }
        }
        spans.push((all, more));
    }
    let paths = past.names_of(&wanted, watch);
    let mut unverified = report.unverified.clone();
    unverified.sort_unstable();
    let mut looked = Looked { unverified: &unverified, left: BLOCKS, steps: STEPS, known: HashMap::new() };
    let mut out = Vec::new();
    for (finding, (all, more)) in report.findings.iter().zip(spans) {
        watch.done(1);
        let meaning = meanings::of(finding.id);
        let reads = meaning.map_or(Reads::Well, |m| m.reads);
        let file = |(ino, blocks): Span| {
            let raw = past.inode(past.cno, ino);
            let size = raw.map(|raw| raw.size.get());
            let touched = Touched {
                ino,
                path: paths.get(&ino).cloned(),
                what: raw.map_or(What::Other, |raw| what(&raw)),
                range: blocks.and_then(|blocks| past.bytes(blocks, size)),
                whole: None,
                whole_is_current: false,
            };
            if reads == Reads::Well || watch.stop() {
                return touched;
            }
            let bad = finding.place.cno.unwrap_or(past.cno);
            let whole = past.newest_whole(bad, ino, touched.path.as_deref(), &mut looked);
            Touched { whole, whole_is_current: whole.is_some_and(|(cno, _)| cno == past.cno), ..touched }
        };
        out.push(Impact { meaning, files: all.into_iter().map(file).collect(), more });
    }
    out
}

fn what(raw: &RawInode) -> What {
    match raw.file_type() {
        0o100_000 => What::File,
        DIRECTORY => What::Directory,
        SYMLINK => What::Symlink,
        _ => What::Other,
    }
}

/// Whether a number is that of a file somebody has.
fn is_user(ino: u64) -> bool {
    ino == Ino::ROOT.0 || ino >= Ino::FIRST_USER.0
}

/// What was found of versions so far.
struct Looked<'a> {
    /// Ascending, and they do not overlap where the volume is not made to.
    unverified: &'a [(u64, u64)],
    /// Blocks that may still be read.
    left: u64,
    /// Inodes that may still be looked up.
    steps: u64,
    known: HashMap<(u64, u64), Option<(u64, u64)>>,
}

/// All checkpoints of a volume, read as far as they can be.
struct Past<'a> {
    r: Reader<'a>,
    dat: Dat,
    layout: Layout,
    cno: u64,
    /// Disk block by offset.
    cpfile: BTreeMap<u64, u64>,
    /// Checkpoints, ascending.
    moments: Vec<u64>,
}

impl<'a> Past<'a> {
    fn open(device: &'a dyn Device, options: &Options) -> Option<Self> {
        let (r, log, cno) = match search::open(device, CACHE) {
            Ok((r, start)) => (r, start.found.latest, start.found.cno),
            Err(_) => search::open_unverified(device, CACHE)?,
        };
        let (log, cno) = match &options.at {
            None => (log, cno),
            Some(at) => (search::validate(&r, BlockNr(at.block), at.sequence).ok()??, at.checkpoint),
        };
        let root = SuperRoot::parse(&r.g, &r.block(BlockNr(log.end().checked_sub(1)?)).ok()?).ok()?;
        let dat = Dat::load(&r, &root.dat, |_, _, _| {});
        let (cpfile, _) = files::plain(&r, &dat, &root.cpfile);
        let mut moments = Vec::new();
        for (offset, block) in &cpfile {
            let Ok(bytes) = r.block(BlockNr(*block)) else { continue };
            for slot in 0..checkpoint::per_block(&r.g) {
                let byte = usize::try_from(slot).unwrap_or(0) * r.g.checkpoint_size as usize;
                let here = checkpoint::entry(&bytes, byte).is_ok_and(|e| !e.is_invalid());
                let number = checkpoint::cno_at(&r.g, *offset, slot);
                moments.extend(number.filter(|n| here && n.0 <= cno).map(|n| n.0));
            }
        }
        let layout = Layout::ifile(&r.g);
        Some(Past { r, dat, layout, cno, cpfile, moments })
    }

    fn checkpoint(&self, cno: u64) -> Option<CpEntry> {
        let (offset, byte) = checkpoint::place(&self.r.g, Cno(cno)).ok()?;
        let bytes = self.r.block(BlockNr(*self.cpfile.get(&offset)?)).ok()?;
        checkpoint::entry(&bytes, byte).ok().filter(|e| !e.is_invalid())
    }

    /// Disk block of a virtual one.
    fn place(&self, v: u64) -> Option<u64> {
        let entry = self.dat.entry(&self.r, v).ok()??;
        let block = entry.blocknr.get();
        (self.r.g.holds(BlockNr(block)) && self.dat.is_allocated(&self.r, v).ok()?).then_some(block)
    }

    fn block_at(&self, raw: &RawInode, key: u64) -> Option<Block> {
        let read = |v: u64| self.r.block(BlockNr(self.place(v)?)).ok();
        read(map::find(&raw.bmap, key, read)?)
    }

    /// An inode with links as a checkpoint has it.
    fn inode(&self, cno: u64, ino: u64) -> Option<RawInode> {
        self.layout.check("ifile", ino).ok()?;
        let ifile = self.checkpoint(cno)?.ifile_inode;
        let bit = self.layout.bit(ino);
        let bits = self.block_at(&ifile, self.layout.bitmap_block(self.layout.group(ino)))?;
        bits.get(bit / 8).filter(|b| **b & (1 << (bit % 8)) != 0)?;
        let at = self.layout.entry(ino);
        let raw = RawInode::read(self.block_at(&ifile, at.block)?.get(at.byte..)?).ok()?;
        (raw.links_count.get() != 0).then_some(raw)
    }

    /// The files a finding is about, and how many there are beyond [`FILES`].
    fn concerned(&self, finding: &Finding) -> (Vec<Span>, u64) {
        let place = &finding.place;
        let mut all: Vec<Span> = Vec::new();
        match (place.ino, place.offset) {
            (Some(ino), offset) if is_user(ino) => {
                let blocks = offset.map(|from| (from, place.end.unwrap_or(from.saturating_add(1))));
                all.push((ino, blocks));
            }
            (Some(6), Some(offset)) => {
                let end = place.end.unwrap_or(offset.saturating_add(1));
                all.extend(self.inodes_in(place.cno.unwrap_or(self.cno), offset, end));
            }
            (None, _) if finding.id == invariants::LOG_DATASUM.id => {
                all.extend(place.block.map(|block| self.owners(block)).unwrap_or_default());
            }
            _ => {}
        }
        let more = all.len().saturating_sub(FILES) as u64;
        all.truncate(FILES);
        (all, more)
    }

    /// Inodes whose entries lie in blocks of the ifile, as far as its bitmaps can be read; no more than [`WANTED`].
    fn inodes_in(&self, cno: u64, from: u64, end: u64) -> Vec<Span> {
        let Some(ifile) = self.checkpoint(cno).map(|cp| cp.ifile_inode) else { return Vec::new() };
        let mut out = Vec::new();
        // Only offsets that are mapped can hold any; a node covers no more than these.
        let most = WANTED as u64;
        for offset in from..end.min(from.saturating_add(most)) {
            let Kind::Entries { first } = self.layout.kind(offset) else { continue };
            let Some(bits) = self.block_at(&ifile, self.layout.bitmap_block(self.layout.group(first))) else {
                continue;
            };
            let numbers = first..first.saturating_add(self.layout.entries_per_block());
            let used = |ino: &u64| {
                let bit = self.layout.bit(*ino);
                bits.get(bit / 8).is_some_and(|b| b & (1 << (bit % 8)) != 0)
            };
            out.extend(numbers.filter(used).filter(|ino| is_user(*ino)).map(|ino| (ino, None)));
            if out.len() >= WANTED {
                break;
            }
        }
        out
    }

    /// Files that the latest tree has in a log: the block it begins with.
    fn owners(&self, pos: u64) -> Vec<Span> {
        let g = &self.r.g;
        let Ok(bytes) = self.r.block(BlockNr(pos)) else { return Vec::new() };
        let Ok(header) = silt_format::summary::Header::parse(g, &bytes) else { return Vec::new() };
        let log = Log { pos: BlockNr(pos), header };
        let Ok(summary) = search::summary_of(&self.r, &log) else { return Vec::new() };
        let first = pos + u64::from(header.summary_blocks(g));
        let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut nodes = BTreeSet::new();
        let note = |ino: u64, _: u64, record: Record, index: u64| {
            if !is_user(ino) || spans.len() + nodes.len() >= WANTED {
                return;
            }
            let (v, offset) = match record {
                Record::Data { vblock, offset } => (vblock, Some(offset)),
                Record::Node { vblock } => (vblock, None),
                _ => return,
            };
            let live = matches!(self.dat.entry(&self.r, v), Ok(Some(e)) if e.end.get() == LIVE);
            if !live || self.place(v) != Some(first + index) {
                return;
            }
            match offset {
                None => {
                    nodes.insert(ino);
                }
                Some(offset) => {
                    let span = spans.entry(ino).or_insert((offset, offset + 1));
                    *span = (span.0.min(offset), span.1.max(offset.saturating_add(1)));
                }
            }
        };
        records::walk(g, &header, &summary, note, |_, _| {});
        // A node says nothing of which part it covers: all of the file.
        let all: BTreeSet<u64> = spans.keys().chain(&nodes).copied().collect();
        all.into_iter().map(|ino| (ino, spans.get(&ino).copied().filter(|_| !nodes.contains(&ino)))).collect()
    }

    /// Bytes of blocks of a file that has `size` of them.
    fn bytes(&self, (from, end): (u64, u64), size: Option<u64>) -> Option<(u64, u64)> {
        let unit = u64::from(self.r.g.block_size);
        let size = size.unwrap_or(u64::MAX);
        let range = (from.saturating_mul(unit), end.saturating_mul(unit).min(size));
        (range.0 < range.1).then_some(range)
    }

    /// The newest checkpoint but `bad` in which a file reads wholly, with its time. It is the same file if it has the
    /// same generation, or where the entry is lost, the same path.
    fn newest_whole(
        &self,
        bad: u64,
        ino: u64,
        path: Option<&[u8]>,
        looked: &mut Looked<'_>,
    ) -> Option<(u64, u64)> {
        if let Some(known) = looked.known.get(&(bad, ino)) {
            return *known;
        }
        let generation = self.inode(bad, ino).map(|raw| raw.generation.get());
        let mut broken = self.inode(bad, ino).map(|raw| raw.bmap);
        let mut found = None;
        for cno in self.moments.iter().rev().filter(|cno| **cno != bad).take(MOMENTS) {
            if looked.steps == 0 {
                break;
            }
            looked.steps -= 1;
            let Some(raw) = self.inode(*cno, ino) else { continue };
            let same = match (generation, path) {
                (Some(generation), _) => generation == raw.generation.get(),
                (None, Some(path)) => self.lookup(*cno, path) == Some(ino),
                (None, None) => true,
            };
            // The same blocks are as broken as they were.
            if !same || broken == Some(raw.bmap) {
                continue;
            }
            if self.is_whole(*cno, &raw, looked) {
                found = self.checkpoint(*cno).map(|cp| (*cno, cp.create.get()));
                break;
            }
            broken = Some(raw.bmap);
        }
        looked.known.insert((bad, ino), found);
        found
    }

    /// Whether every block of a file can be read and lies in a log that verifies, as far as is known.
    fn is_whole(&self, cno: u64, raw: &RawInode, looked: &mut Looked<'_>) -> bool {
        if !raw.has_map() {
            return true;
        }
        let mut walk = Whole { past: self, cno, looked, seen: SparseBits::default(), whole: true };
        map::walk(&raw.bmap, &mut walk);
        walk.whole
    }

    /// Blocks of a directory or symlink that can be found.
    fn blocks(&self, raw: &RawInode) -> BTreeMap<u64, u64> {
        files::plain(&self.r, &self.dat, raw).0
    }

    fn lookup(&self, cno: u64, path: &[u8]) -> Option<u64> {
        let mut at = Ino::ROOT.0;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let raw = self.inode(cno, at).filter(|raw| raw.file_type() == DIRECTORY)?;
            at = self.blocks(&raw).values().find_map(|block| {
                let bytes = self.r.block(BlockNr(*block)).ok()?;
                dir::entries(&bytes)
                    .filter_map(Result::ok)
                    .find(|e| e.ino.0 != 0 && e.name == name)
                    .map(|e| e.ino.0)
            })?;
        }
        Some(at)
    }

    /// Paths of files in the latest tree, as far as its directories can be read.
    fn names_of(&self, wanted: &BTreeSet<u64>, watch: &dyn Watch) -> BTreeMap<u64, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut above = BTreeMap::from([(Ino::ROOT.0, (Ino::ROOT.0, Vec::new()))]);
        let mut todo = vec![Ino::ROOT.0];
        if wanted.contains(&Ino::ROOT.0) {
            found.insert(Ino::ROOT.0, Vec::new());
        }
        while let Some(directory) = todo.pop().filter(|_| found.len() < wanted.len() && !watch.stop()) {
            let raw = self.inode(self.cno, directory).filter(|raw| raw.file_type() == DIRECTORY);
            for block in raw.map(|raw| self.blocks(&raw)).unwrap_or_default().values() {
                let Ok(bytes) = self.r.block(BlockNr(*block)) else { continue };
                for e in dir::entries(&bytes).filter_map(Result::ok).filter(|e| e.ino.0 != 0) {
                    if e.name == b"." || e.name == b".." {
                        continue;
                    }
                    if wanted.contains(&e.ino.0) && !found.contains_key(&e.ino.0) {
                        found.extend(path_of(&above, directory, e.name).map(|path| (e.ino.0, path)));
                    }
                    if e.file_type == dir::file_type::DIR && !above.contains_key(&e.ino.0) {
                        above.insert(e.ino.0, (directory, e.name.to_vec()));
                        todo.push(e.ino.0);
                    }
                }
            }
        }
        found
    }
}

/// Reads a whole file, and ends at the first thing that is wrong.
struct Whole<'w, 'a, 'l> {
    past: &'w Past<'a>,
    cno: u64,
    looked: &'w mut Looked<'l>,
    seen: SparseBits,
    whole: bool,
}

impl Whole<'_, '_, '_> {
    fn read(&mut self, v: u64) -> Option<Block> {
        if !self.whole || self.looked.left == 0 || !self.seen.insert(v) {
            return None;
        }
        self.looked.left -= 1;
        let past = self.past;
        let alive = matches!(past.dat.entry(&past.r, v), Ok(Some(e)) if e.contains(self.cno));
        let block = past.place(v).filter(|_| alive)?;
        let at = self.looked.unverified.partition_point(|(first, _)| *first <= block);
        if at.checked_sub(1).and_then(|i| self.looked.unverified.get(i)).is_some_and(|(_, end)| block < *end)
        {
            return None;
        }
        past.r.block(BlockNr(block)).ok()
    }
}

impl Visitor for Whole<'_, '_, '_> {
    fn node(&mut self, node: NodeRef) -> Option<Block> {
        let block = self.read(node.ptr);
        self.whole &= block.is_some();
        block
    }

    fn data(&mut self, _: u64, ptr: u64) {
        self.whole &= self.whole && self.read(ptr).is_some();
    }

    fn bad(&mut self, invariant: &'static invariants::Invariant, _: Option<NodeRef>, _: String) {
        self.whole &= invariant.severity != crate::Severity::Error;
    }
}
