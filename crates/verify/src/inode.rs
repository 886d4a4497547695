//! One inode by itself: fields, size and block count against its map (spec section 8).

use silt_format::btree::ROOT_BYTES;
use silt_format::inode::{LINK_MAX, RawInode};
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::files::Tally;
use crate::invariants as inv;
use crate::report::Place;

pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// Fields that are always zero.
pub(crate) fn check_zero(c: &Context<'_>, inode: &RawInode, place: Place) {
    if inode.xattr.get() != 0 || inode.pad.get() != 0 {
        c.out.add(&inv::INODE_ZERO, place, format!("i_xattr {}, i_pad {}", inode.xattr, inode.pad));
    }
}

/// The inode of a metadata file: mode, links, block count. `initial`: the block counts that mkfs
/// may have begun with.
pub(crate) fn check_metadata(
    c: &Context<'_>,
    inode: &RawInode,
    place: Place,
    total: u64,
    initial: std::ops::RangeInclusive<u64>,
) {
    if inode.file_type() != REGULAR || inode.links_count.get() == 0 {
        let message = format!("mode {:o}, {} links", inode.mode, inode.links_count);
        c.out.add(&inv::INODE_META, place, message);
    }
    check_zero(c, inode, place);
    check_blocks(c, inode, place, total, Some(initial));
}

/// `i_blocks` against the number of blocks.
pub(crate) fn check_blocks(
    c: &Context<'_>,
    inode: &RawInode,
    place: Place,
    total: u64,
    initial: Option<std::ops::RangeInclusive<u64>>,
) {
    let unit = u64::from(c.r.g.block_size) / 512;
    let (found, expected) = (inode.blocks.get(), total.saturating_mul(unit));
    if found == expected {
        return;
    }
    let message = format!("i_blocks is {found}, its blocks make {expected}");
    // mkfs.nilfs2 counted file system blocks where 512-byte units belong.
    let off = expected.checked_sub(found).filter(|d| d % (unit - 1) == 0).map(|d| d / (unit - 1));
    if off.zip(initial).is_some_and(|(n, initial)| initial.contains(&n)) {
        c.out.add(&inv::INODE_BLOCKS_MKFS, place, message);
    } else {
        c.out.add(&inv::INODE_BLOCKS, place, message);
    }
}

/// An allocated inode with its map already walked.
pub(crate) fn check(c: &Context<'_>, ino: u64, inode: &RawInode, tally: &Tally, place: Place) {
    check_zero(c, inode, place);
    if inode.mtime_nsec.get() >= 1_000_000_000 || inode.ctime_nsec.get() >= 1_000_000_000 {
        let message = format!("nanoseconds {} and {}", inode.mtime_nsec, inode.ctime_nsec);
        c.out.add(&inv::INODE_TIMES, place, message);
    }
    let links = inode.links_count.get();
    if links > LINK_MAX {
        c.out.add(&inv::INODE_LINK_MAX, place, format!("{links} links"));
    }
    if inode.has_map() {
        let root = ino == Ino::ROOT.0;
        check_blocks(c, inode, place, tally.total(), root.then_some(1..=1));
        // The size of an orphan goes to zero before its blocks do.
        if links != 0 {
            check_size(c, inode, tally, place);
        }
    } else {
        check_special(c, inode, place);
    }
    if inode.file_type() == SYMLINK && links != 0 {
        check_symlink(c, inode, tally, place);
    }
    if ino == Ino::ROOT.0 {
        let zero = inode.blocks.get() == 0 || inode.size.get() == 0 || links == 0;
        if inode.file_type() != DIRECTORY || zero {
            let message = format!(
                "mode {:o}, i_blocks {}, size {}, {links} links",
                inode.mode, inode.blocks, inode.size
            );
            c.out.add(&inv::INODE_ROOT, place, message);
        }
    }
}

fn check_size(c: &Context<'_>, inode: &RawInode, tally: &Tally, place: Place) {
    let size = inode.size.get();
    if size > c.r.g.max_file_size() {
        c.out.add(&inv::INODE_SIZE, place, format!("a size of {size} bytes"));
        return;
    }
    let blocks = size.div_ceil(u64::from(c.r.g.block_size));
    if let Some(last) = tally.greatest.filter(|k| *k >= blocks) {
        let message = format!("{size} bytes end before its block {last}");
        c.out.add(&inv::INODE_SIZE, place, message);
    }
}

fn check_special(c: &Context<'_>, inode: &RawInode, place: Place) {
    let device = matches!(inode.file_type(), 0o020_000 | 0o060_000);
    let rest = if device { 8 } else { 0 };
    if inode.bmap[rest..ROOT_BYTES].iter().any(|b| *b != 0) || inode.blocks.get() != 0 {
        c.out.add(&inv::INODE_SPECIAL, place, "its map is not empty");
    }
}

fn check_symlink(c: &Context<'_>, inode: &RawInode, tally: &Tally, place: Place) {
    let size = inode.size.get();
    let sound = size > 0 && size < u64::from(c.r.g.block_size) && tally.data == 1;
    if !sound || tally.greatest != Some(0) {
        let message = format!("a target of {size} bytes in {} blocks", tally.data);
        c.out.add(&inv::SYMLINK_SIZE, place, message);
        return;
    }
    let Some((_, block)) = tally.blocks.first() else { return };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    match c.r.block(BlockNr(*block)) {
        Err(e) => c.out.add(&inv::DEVICE_READ, place.at_block(*block), e),
        Ok(bytes) => {
            let nul = bytes.iter().take(size).any(|b| *b == 0);
            if nul || bytes.iter().skip(size).any(|b| *b != 0) {
                let message = if nul { "a NUL in its target" } else { "its target does not end" };
                c.out.add(&inv::SYMLINK_TARGET, place.at_block(*block), message);
            }
        }
    }
}
