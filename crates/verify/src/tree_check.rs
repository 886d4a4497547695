//! The tree of one checkpoint: ifile, inodes, and their counts (spec section 8).
//!
//! Memory: 12 bytes an inode, 24 bytes a block of the ifile and of directories, 8 bytes a directory; of past trees 48 bytes
//! more a block of the ifile, and 24 a directory.

use std::collections::BTreeMap;
use std::rc::Rc;

use silt_format::checkpoint::CpEntry;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::dirs;
use crate::files::{self, Owner, Scope};
use crate::inode::{self, DIRECTORY, REGULAR, SYMLINK};
use crate::invariants as inv;
use crate::palloc;
use crate::past::{self, Past};
use crate::report::Place;
use crate::shared::Part;
use crate::sparse::{SparseArray, SparseBits};

/// What is remembered of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    pub mode: u16,
    pub links: u16,
    /// Directory entries that name it, "." and ".." not counted.
    pub named: u32,
    /// Entries of this directory that name directories.
    pub subdirectories: u32,
}

/// A block of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names {
    pub directory: u64,
    /// Block of the directory.
    pub offset: u64,
    /// Disk block.
    pub block: u64,
}

/// Everything that is known of a tree while it is checked.
#[derive(Default)]
pub(crate) struct Tree {
    pub allocated: Rc<SparseBits>,
    pub inodes: SparseArray<Known>,
    /// Blocks of directories with links, ascending by directory and offset.
    pub names: Vec<Names>,
    /// Directories with links, ascending.
    pub directories: Vec<u64>,
}

impl Tree {
    /// Remembers what an inode says of itself.
    pub fn met(&mut self, ino: u64, raw: &RawInode) {
        let known = self.inodes.slot(ino);
        (known.mode, known.links) = (raw.mode.get(), raw.links_count.get());
    }
}

/// The ifile's blocks by offset, with their number: its map, bitmaps and counts are checked. Its own blocks are added
/// to `scope`, allocated numbers to `allocated`.
fn inode_file(
    c: &Context<'_>,
    scope: &mut Scope,
    cp: &CpEntry,
    allocated: &mut SparseBits,
) -> (BTreeMap<u64, u64>, u64) {
    let g = c.r.g;
    let cno = scope.cno;
    let layout = Layout::ifile(&g);
    let ifile = Place::ino(Ino::IFILE.0).at_cno(cno);
    let walked = files::walk(c, scope, &Owner { ino: Ino::IFILE.0, raw: &cp.ifile_inode, block: None }, true);
    // mkfs.nilfs2: two blocks and those of 11 or 12 inodes.
    let first = 2 + 11u64.div_ceil(layout.entries_per_block());
    let most = 2 + 12u64.div_ceil(layout.entries_per_block());
    inode::check_metadata(c, &cp.ifile_inode, ifile, walked.total(), first..=most);
    let mut blocks = walked.by_offset();
    blocks.retain(|offset, _| {
        let possible = layout.has_block(*offset);
        if !possible {
            c.out.add(&inv::PALLOC_KEY, ifile.at_offset(*offset), "no group reaches this offset");
        }
        possible
    });
    palloc::check(c, &layout, &blocks, Ino::IFILE.0, Some(cno), allocated);
    if let Some(free) = (0..=10).find(|i| !allocated.contains(*i)) {
        c.out.add(&inv::INODE_RESERVED_BITS, Place::ino(free).at_cno(cno), "is not allocated");
    }
    let below = |i: &u64| (Ino::FIRST_USER.0..g.first_ino).contains(i);
    if scope.current
        && g.first_ino > Ino::FIRST_USER.0
        && let Some(hidden) = allocated.iter().skip(11).find(below)
    {
        let message =
            format!("inode {hidden} is in use; files are said to have inodes from {} on", g.first_ino);
        c.out.add(&inv::SUPER_FIRST_INODE, Place::none(), message);
    }
    (blocks, walked.total())
}

/// Checks the ifile of a checkpoint that exists, and nothing of the files in it.
pub(crate) fn check_inode_file(c: &Context<'_>, scope: &mut Scope, cp: &CpEntry) {
    let mut allocated = SparseBits::default();
    inode_file(c, scope, cp, &mut allocated);
    c.out.stats(|s| s.inodes = allocated.len().saturating_sub(10));
}

/// Checks the tree of a checkpoint that exists. Its blocks are added to `scope`. Of a past one, maps of regular files
/// that were found sound with their part of the ifile are not walked again; `latest`, where the latest one's ifile
/// lies, is what its generations are compared with; and `before`, where that is another past one that was found sound,
/// is what it is compared with, so that only differences are looked at. It is the next one's `before` then. Returns
/// where its own ifile lies; none if it was ended early.
pub(crate) fn check(
    c: &Context<'_>,
    scope: &mut Scope,
    cp: &CpEntry,
    latest: Option<&BTreeMap<u64, u64>>,
    before: &mut Option<Past>,
) -> Option<BTreeMap<u64, u64>> {
    let mut allocated = SparseBits::default();
    let (blocks, own) = inode_file(c, scope, cp, &mut allocated);
    let allocated = Rc::new(allocated);
    let now = Now { cp, cno: scope.cno, blocks: &blocks, own, latest };
    // What is wrong somewhere may show in a tree as a whole.
    if let Some(known) = before.take().filter(|_| !c.out.has_errors()) {
        // What is found and not told must be found again.
        *before = c.shared.attempt(|| c.out.attempt(|| past::follow(c, &now, known, &allocated)));
        if before.is_some() {
            c.out.stats(|s| (s.trees_walked, s.trees_compared) = (s.trees_walked + 1, s.trees_compared + 1));
            return Some(blocks);
        }
        if c.stop() {
            return None;
        }
    }
    let layout = Layout::ifile(&c.r.g);
    let mut tree = Tree { allocated: Rc::clone(&allocated), ..Tree::default() };
    let mut slots = Vec::new();
    let mut sum = Sum::default();
    let mut all = allocated.iter().peekable();
    let mut inos = Vec::new();
    while let Some(first) = all.next() {
        let offset = layout.entry(first).block;
        inos.clear();
        inos.push(first);
        inos.extend(std::iter::from_fn(|| all.next_if(|ino| layout.entry(*ino).block == offset)));
        if c.stop() {
            return None;
        }
        let slot = inodes(c, scope, &mut tree, &now, offset, &inos);
        sum.add(&slot);
        if !scope.current {
            slots.push((offset, slot));
        }
    }
    let ways = dirs::check(c, scope.cno, &mut tree);
    if c.stop() {
        return None;
    }
    check_links(c, scope.cno, &tree);
    check_sum(c, &now, sum);
    c.out.stats(|s| {
        s.trees_walked += 1;
        if scope.current {
            s.inodes = sum.in_use;
        }
    });
    if !scope.current && !c.options.each_tree_whole {
        *before = Some(Past { slots, tree, ways });
    }
    Some(blocks)
}

/// The counts of a checkpoint against what its tree holds.
pub(crate) fn check_sum(c: &Context<'_>, now: &Now<'_>, sum: Sum) {
    let place = Place::cno(now.cno);
    let total = now.own.saturating_add(sum.total);
    if now.cp.inodes_count.get() != sum.in_use {
        let message = format!("counts {} inodes, {} are in use", now.cp.inodes_count, sum.in_use);
        c.out.add(&inv::CP_INODES, place, message);
    }
    if now.cp.blocks_count.get() != total {
        let message = format!("counts {} blocks, {total} are mapped", now.cp.blocks_count);
        c.out.add(&inv::CP_BLOCKS, place, message);
    }
}

/// The tree at hand.
pub(crate) struct Now<'c> {
    pub cp: &'c CpEntry,
    pub cno: u64,
    /// Disk blocks of its ifile, by offset.
    pub blocks: &'c BTreeMap<u64, u64>,
    /// How many blocks the ifile has, with its nodes.
    pub own: u64,
    /// Where the latest tree's ifile lies; none: this is it.
    pub latest: Option<&'c BTreeMap<u64, u64>>,
}

/// What the inodes in one block of an ifile hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// The disk block; 0 where it is missing.
    pub block: u64,
    /// Blocks that they map.
    pub total: u64,
    /// How many there are.
    pub in_use: u32,
    /// The checkpoints in which all these blocks live, from the first to before the second; (0, 0) if there was
    /// anything to tell.
    pub lives: (u64, u64),
}

/// Of a whole tree.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub in_use: u64,
    pub total: u64,
}

impl Sum {
    pub fn add(&mut self, slot: &Slot) {
        self.in_use += u64::from(slot.in_use);
        self.total = self.total.saturating_add(slot.total);
    }
}

/// Checks the allocated inodes of a block of the ifile.
pub(crate) fn inodes(
    c: &Context<'_>,
    scope: &mut Scope,
    tree: &mut Tree,
    now: &Now<'_>,
    offset: u64,
    inos: &[u64],
) -> Slot {
    let g = c.r.g;
    let layout = Layout::ifile(&g);
    let place = |ino: u64| Place::ino(ino).at_cno(now.cno);
    let mut slot = Slot { block: 0, total: 0, in_use: 0, lives: (0, 0) };
    let Some(block) = now.blocks.get(&offset).copied() else {
        // The entries of reserved numbers are never read.
        for ino in inos.iter().filter(|ino| **ino == Ino::ROOT.0 || **ino >= Ino::FIRST_USER.0) {
            c.out.add(&inv::INODE_ENTRY_HOLE, place(*ino), "is allocated but its block is missing");
        }
        return slot;
    };
    slot.block = block;
    let bytes = match c.r.block(BlockNr(block)) {
        Ok(bytes) => bytes,
        Err(e) => {
            for ino in inos {
                c.out.add(&inv::DEVICE_READ, place(*ino).at_block(block), e.as_str());
            }
            return slot;
        }
    };
    let later = now.latest.and_then(|l| l.get(&offset)).filter(|later| **later != block);
    let later = later.and_then(|later| c.r.block(BlockNr(*later)).ok());
    let told = c.out.added();
    // What the regular files hold, and whether that was known before; and what the others do.
    let taken =
        inos.iter().fold(0u64, |all, ino| all.rotate_left(7) ^ ino.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let known = if scope.current { None } else { c.shared.get(block, now.cno) };
    let known = known.filter(|part| part.taken == taken);
    let (mut files, mut others) = (known.unwrap_or(Part { taken, ..Part::EMPTY }), Part::EMPTY);
    for ino in inos.iter().copied() {
        let (place, byte) = (place(ino), layout.entry(ino).byte);
        let Some(entry) = bytes.get(byte..byte + g.inode_size as usize) else { continue };
        let Ok(raw) = RawInode::read(entry) else { continue };
        if entry.iter().skip(silt_format::inode::SIZE).any(|b| *b != 0) {
            c.out.add(&inv::INODE_ZERO, place, "bytes behind the inode are not zero");
        }
        if ino != Ino::ROOT.0 && ino < Ino::FIRST_USER.0 {
            if raw.blocks.get() != 0 || raw.bmap.iter().any(|b| *b != 0) {
                c.out.add(&inv::INODE_RESERVED, place, "has a block map");
            }
            continue;
        }
        slot.in_use += 1;
        if let Some(later) = &later {
            check_generation(c, later, byte, &raw, place);
        }
        if raw.links_count.get() == 0 {
            // Told as an orphan in each tree.
            others.spoil();
        }
        if known.is_some() && raw.file_type() == REGULAR {
            tree.met(ino, &raw);
            continue;
        }
        let tally = check_inode(c, scope, tree, &Owner { ino, raw: &raw, block: Some(block) }, place);
        let part = if raw.file_type() == REGULAR { &mut files } else { &mut others };
        part.data = part.data.saturating_add(tally.total());
        part.lives(tally.lives.0, tally.lives.1);
        if scope.current {
            c.watch.done(1);
        }
    }
    if known.is_none() {
        c.shared.put(block, files);
    }
    if c.out.added() != told {
        others.spoil();
    }
    slot.total = files.data.saturating_add(others.data);
    others.lives(files.from, files.to);
    slot.lives = (others.from, others.to);
    slot
}

/// An inode against the same number in the latest tree: with the very same blocks it is the same file. A deleted file's
/// blocks are never mapped again.
fn check_generation(c: &Context<'_>, later: &[u8], byte: usize, raw: &RawInode, place: Place) {
    let Some(Ok(latest)) = later.get(byte..).map(RawInode::read) else { return };
    let same = latest.bmap == raw.bmap && raw.bmap.iter().any(|b| *b != 0) && raw.has_map();
    if same && latest.links_count.get() != 0 && latest.has_map() && latest.generation != raw.generation {
        let message = format!("generation {}, in the latest tree {}", raw.generation, latest.generation);
        c.out.add(&inv::INODE_GENERATION, place, message);
    }
}

/// One inode of the tree; what its map holds.
fn check_inode(
    c: &Context<'_>,
    scope: &mut Scope,
    tree: &mut Tree,
    of: &Owner<'_>,
    place: Place,
) -> files::Tally {
    let (ino, raw) = (of.ino, of.raw);
    let links = raw.links_count.get();
    tree.met(ino, raw);
    if silt_format::dir::file_type::from_mode(raw.file_type()) == silt_format::dir::file_type::UNKNOWN {
        c.out.add(&inv::INODE_TYPE, place, format!("mode {:o}", raw.mode));
        return files::Tally::default();
    }
    let kind = raw.file_type();
    let collect = matches!(kind, DIRECTORY | SYMLINK);
    let mut tally = match raw.has_map() {
        true => files::walk(c, scope, of, collect),
        // Nothing that could end.
        false => files::Tally { lives: (0, u64::MAX), ..files::Tally::default() },
    };
    inode::check(c, ino, raw, &tally, place);
    if kind == DIRECTORY && links != 0 {
        dirs::check_size(c, raw, &tally, place);
        tree.directories.push(ino);
        let blocks = std::mem::take(&mut tally.blocks).into_iter();
        tree.names.extend(blocks.map(|(offset, block)| Names { directory: ino, offset, block }));
    }
    tally
}

fn check_links(c: &Context<'_>, cno: u64, tree: &Tree) {
    for ino in tree.allocated.iter() {
        check_link(c, cno, ino, tree.inodes.get(ino));
    }
}

/// The links of an allocated inode against the names it has.
pub(crate) fn check_link(c: &Context<'_>, cno: u64, ino: u64, known: Known) {
    let place = Place::ino(ino).at_cno(cno);
    let kind = u32::from(known.mode) & 0o170_000;
    if kind == 0 || (ino != Ino::ROOT.0 && ino < Ino::FIRST_USER.0) {
        return;
    }
    if known.links == 0 {
        if known.named == 0 {
            c.out.add(&inv::INODE_ORPHAN, place, "has no name and no link; its space can be freed");
        }
        return;
    }
    if known.named == 0 && ino != Ino::ROOT.0 {
        c.out.add(&inv::INODE_LOST, place, format!("has {} links and no name", known.links));
        return;
    }
    let expected = if kind == DIRECTORY { known.subdirectories.saturating_add(2) } else { known.named };
    if u32::from(known.links) != expected {
        let message = format!("{} links, {expected} are there", known.links);
        c.out.add(&inv::INODE_LINKS, place, message);
    }
}
