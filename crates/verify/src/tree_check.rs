//! The tree of one checkpoint: ifile, inodes, and their counts (spec section 8).
//!
//! Memory: 12 bytes an inode, 24 bytes a block of the ifile and of directories, 8 bytes a directory.

use std::collections::BTreeMap;

use silt_format::checkpoint::CpEntry;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::dirs;
use crate::files::{self, Scope};
use crate::inode::{self, DIRECTORY, REGULAR, SYMLINK};
use crate::invariants as inv;
use crate::palloc;
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
#[derive(Debug, Clone, Copy)]
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
    pub allocated: SparseBits,
    pub inodes: SparseArray<Known>,
    /// Blocks of directories with links, ascending by directory and offset.
    pub names: Vec<Names>,
    /// Directories with links, ascending.
    pub directories: Vec<u64>,
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
    let layout = Layout::new(&g, g.inode_size);
    let ifile = Place::ino(Ino::IFILE.0).at_cno(cno);
    let walked = files::walk(c, scope, Ino::IFILE.0, &cp.ifile_inode, true);
    // mkfs.nilfs2: two blocks and those of 11 or 12 inodes.
    let first = 2 + 11u64.div_ceil(layout.entries_per_block());
    let most = 2 + 12u64.div_ceil(layout.entries_per_block());
    inode::check_metadata(c, &cp.ifile_inode, ifile, walked.total(), first..=most);
    let mut blocks = walked.by_offset();
    blocks.retain(|offset, _| {
        let possible = palloc::key_is_possible(&layout, *offset);
        if !possible {
            c.out.add(&inv::PALLOC_KEY, ifile.at_offset(*offset), "no group reaches this offset");
        }
        possible
    });
    palloc::check(c, &layout, &blocks, Ino::IFILE.0, Some(cno), allocated);
    if let Some(free) = (0..=10).find(|i| !allocated.contains(*i)) {
        c.out.add(&inv::INODE_RESERVED_BITS, Place::ino(free).at_cno(cno), "is not allocated");
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
/// that were found sound with their part of the ifile are not walked again; and `latest`, where the latest one's ifile
/// lies, is what its generations are compared with. Returns where its own ifile lies; none if it was ended early.
pub(crate) fn check(
    c: &Context<'_>,
    scope: &mut Scope,
    cp: &CpEntry,
    latest: Option<&BTreeMap<u64, u64>>,
) -> Option<BTreeMap<u64, u64>> {
    let g = c.r.g;
    let cno = scope.cno;
    let layout = Layout::new(&g, g.inode_size);
    let mut tree = Tree::default();
    let mut allocated = SparseBits::default();
    let (blocks, mut total) = inode_file(c, scope, cp, &mut allocated);
    let mut in_use = 0u64;
    // The block of the ifile at hand, what its regular files hold, and whether that was known before.
    let mut at_hand: Option<(u64, Part, bool)> = None;
    for (i, ino) in allocated.iter().enumerate() {
        if i % 1024 == 0 && c.stop() {
            return None;
        }
        let place = Place::ino(ino).at_cno(cno);
        let at = layout.entry(ino);
        let Some(block) = blocks.get(&at.block) else {
            // The entries of reserved numbers are never read.
            if ino == Ino::ROOT.0 || ino >= Ino::FIRST_USER.0 {
                c.out.add(&inv::INODE_ENTRY_HOLE, place, "is allocated but its block is missing");
            }
            continue;
        };
        let bytes = match c.r.block(BlockNr(*block)) {
            Ok(b) => b,
            Err(e) => {
                c.out.add(&inv::DEVICE_READ, place.at_block(*block), e);
                continue;
            }
        };
        let Some(entry) = bytes.get(at.byte..at.byte + g.inode_size as usize) else { continue };
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
        in_use += 1;
        if let Some(now) = latest.and_then(|l| l.get(&at.block)).filter(|now| *now != block) {
            check_generation(c, *now, at.byte, &raw, place);
        }
        if at_hand.is_none_or(|(b, ..)| b != *block) {
            total = total.saturating_add(put(c, at_hand));
            let known = if scope.current { None } else { c.shared.get(*block, cno) };
            at_hand = Some((*block, known.unwrap_or(Part::EMPTY), known.is_some()));
        }
        let Some((_, part, known)) = &mut at_hand else { continue };
        if *known && raw.file_type() == REGULAR {
            let (mode, links) = (raw.mode.get(), raw.links_count.get());
            *tree.inodes.slot(ino) = Known { mode, links, ..Known::default() };
            continue;
        }
        let tally = check_inode(c, scope, &mut tree, ino, &raw, place);
        if raw.file_type() == REGULAR {
            part.data = part.data.saturating_add(tally.total());
            part.lives(tally.lives.0, tally.lives.1);
        } else {
            total = total.saturating_add(tally.total());
        }
        if scope.current {
            c.watch.done(1);
        }
    }
    total = total.saturating_add(put(c, at_hand));
    tree.allocated = allocated;
    dirs::check(c, cno, &mut tree);
    if c.stop() {
        return None;
    }
    check_links(c, cno, &tree);
    let place = Place::cno(cno);
    if cp.inodes_count.get() != in_use {
        let message = format!("counts {} inodes, {in_use} are in use", cp.inodes_count);
        c.out.add(&inv::CP_INODES, place, message);
    }
    if cp.blocks_count.get() != total {
        let message = format!("counts {} blocks, {total} are mapped", cp.blocks_count);
        c.out.add(&inv::CP_BLOCKS, place, message);
    }
    c.out.stats(|s| {
        s.trees_walked += 1;
        if scope.current {
            s.inodes = in_use;
        }
    });
    Some(blocks)
}

/// An inode against the same number in the latest tree: with the very same blocks it is the same file. A deleted file's
/// blocks are never mapped again.
fn check_generation(c: &Context<'_>, now: u64, byte: usize, raw: &RawInode, place: Place) {
    let Ok(bytes) = c.r.block(BlockNr(now)) else { return };
    let Some(Ok(latest)) = bytes.get(byte..).map(RawInode::read) else { return };
    let same = latest.bmap == raw.bmap && raw.bmap.iter().any(|b| *b != 0) && raw.has_map();
    if same && latest.links_count.get() != 0 && latest.has_map() && latest.generation != raw.generation {
        let message = format!("generation {}, in the latest tree {}", raw.generation, latest.generation);
        c.out.add(&inv::INODE_GENERATION, place, message);
    }
}

/// Remembers what a block of the ifile holds, and tells how many blocks that is.
fn put(c: &Context<'_>, at_hand: Option<(u64, Part, bool)>) -> u64 {
    let Some((block, part, known)) = at_hand else { return 0 };
    if !known {
        c.shared.put(block, part);
    }
    part.data
}

/// One inode of the tree; what its map holds.
fn check_inode(
    c: &Context<'_>,
    scope: &mut Scope,
    tree: &mut Tree,
    ino: u64,
    raw: &RawInode,
    place: Place,
) -> files::Tally {
    let links = raw.links_count.get();
    *tree.inodes.slot(ino) = Known { mode: raw.mode.get(), links, ..Known::default() };
    if silt_format::dir::file_type::from_mode(raw.file_type()) == silt_format::dir::file_type::UNKNOWN {
        c.out.add(&inv::INODE_TYPE, place, format!("mode {:o}", raw.mode));
        return files::Tally::default();
    }
    let kind = raw.file_type();
    let collect = matches!(kind, DIRECTORY | SYMLINK);
    let mut tally =
        if raw.has_map() { files::walk(c, scope, ino, raw, collect) } else { files::Tally::default() };
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
    for ino in tree.allocated.iter().filter(|i| *i == Ino::ROOT.0 || *i >= Ino::FIRST_USER.0) {
        let known = tree.inodes.get(ino);
        let place = Place::ino(ino).at_cno(cno);
        let kind = u32::from(known.mode) & 0o170_000;
        if kind == 0 {
            continue;
        }
        if known.links == 0 {
            if known.named == 0 {
                c.out.add(&inv::INODE_ORPHAN, place, "has no name and no link; its space can be freed");
            }
            continue;
        }
        if known.named == 0 && ino != Ino::ROOT.0 {
            c.out.add(&inv::INODE_LOST, place, format!("has {} links and no name", known.links));
            continue;
        }
        let expected = if kind == DIRECTORY { known.subdirectories.saturating_add(2) } else { known.named };
        if u32::from(known.links) != expected {
            let message = format!("{} links, {expected} are there", known.links);
            c.out.add(&inv::INODE_LINKS, place, message);
        }
    }
}
