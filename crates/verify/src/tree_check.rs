//! The tree of one checkpoint: ifile, inodes, and their counts (spec section 8).
//!
//! Memory: 12 bytes an inode, 16 bytes a block of the ifile and of directories.

use silt_format::checkpoint::CpEntry;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::dirs;
use crate::files::{self, Scope};
use crate::inode::{self, DIRECTORY, SYMLINK};
use crate::invariants as inv;
use crate::palloc;
use crate::report::Place;
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

/// Everything that is known of a tree while it is checked.
#[derive(Default)]
pub(crate) struct Tree {
    pub allocated: SparseBits,
    pub inodes: SparseArray<Known>,
    /// Directories with links: number, and (offset, disk block) of their blocks.
    pub directories: Vec<(u64, Vec<(u64, u64)>)>,
}

/// Checks the tree of a checkpoint that exists. Its blocks are added to `scope`.
pub(crate) fn check(c: &Context<'_>, scope: &mut Scope, cp: &CpEntry) {
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
    let mut tree = Tree::default();
    palloc::check(c, &layout, &blocks, Ino::IFILE.0, Some(cno), &mut tree.allocated);
    if let Some(free) = (0..=10).find(|i| !tree.allocated.contains(*i)) {
        c.out.add(&inv::INODE_RESERVED_BITS, Place::ino(free).at_cno(cno), "is not allocated");
    }
    let mut total = walked.total();
    let numbers: Vec<u64> = tree.allocated.iter().collect();
    let mut in_use = 0u64;
    for ino in numbers {
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
        total = total.saturating_add(check_inode(c, scope, &mut tree, ino, &raw, place));
    }
    dirs::check(c, cno, &mut tree);
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
}

/// One inode of the tree; its number of blocks.
fn check_inode(
    c: &Context<'_>,
    scope: &mut Scope,
    tree: &mut Tree,
    ino: u64,
    raw: &RawInode,
    place: Place,
) -> u64 {
    let links = raw.links_count.get();
    *tree.inodes.slot(ino) = Known { mode: raw.mode.get(), links, ..Known::default() };
    if silt_format::dir::file_type::from_mode(raw.file_type()) == silt_format::dir::file_type::UNKNOWN {
        c.out.add(&inv::INODE_TYPE, place, format!("mode {:o}", raw.mode));
        return 0;
    }
    let kind = raw.file_type();
    let collect = matches!(kind, DIRECTORY | SYMLINK);
    let tally =
        if raw.has_map() { files::walk(c, scope, ino, raw, collect) } else { files::Tally::default() };
    inode::check(c, ino, raw, &tally, place);
    let total = tally.total();
    if kind == DIRECTORY && links != 0 {
        dirs::check_size(c, raw, &tally, place);
        tree.directories.push((ino, tally.blocks));
    }
    total
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
