//! Inodes and symlinks.

use super::Case;
use super::directories::{drop_name, names_block};
use crate::surgeon::{Surgeon, set_word};

fn patch(s: &mut Surgeon, path: &str, change: impl FnOnce(&mut silt_format::inode::RawInode)) {
    let ino = s.ino(path);
    s.patch_inode(ino, change);
}

/// Changes the only block of a file.
fn content(s: &mut Surgeon, path: &str, change: impl FnOnce(&mut [u8])) {
    let block = s.file(s.ino(path))[&0];
    s.patch(block, change);
}

pub const CASES: &[Case] = &[
    ("inode-reserved-bits", "basic-4k", |s| s.set_bit(6, 5, false)),
    ("inode-entry-missing", "basic-4k", |s| s.set_bit(6, 30_000, true)),
    ("inode-reserved", "basic-4k", |s| s.patch_inode(7, |i| set_word(&mut i.bmap, 1, 1))),
    ("inode-generation", "basic-4k", |s| patch(s, "six", |i| i.generation = 77.into())),
    ("inode-type", "basic-4k", |s| patch(s, "six", |i| i.mode = 0o170_644.into())),
    ("inode-root", "basic-4k", |s| s.patch_inode(2, |i| i.blocks = 0.into())),
    ("inode-zero", "basic-4k", |s| patch(s, "six", |i| i.xattr = 1.into())),
    ("inode-zero", "basic-4k", |s| patch(s, "six", |i| i.pad = 1.into())),
    ("inode-times", "basic-4k", |s| patch(s, "six", |i| i.mtime_nsec = 1_000_000_000.into())),
    ("inode-links", "basic-4k", |s| patch(s, "hard1", |i| i.links_count = 2.into())),
    ("inode-links", "basic-4k", |s| patch(s, "moved", |i| i.links_count = 2.into())),
    ("inode-link-max", "basic-4k", |s| patch(s, "hard1", |i| i.links_count = 32_001.into())),
    ("inode-orphan", "basic-4k", |s| {
        patch(s, "six", |i| i.links_count = 0.into());
        drop_name(s, 2, "six");
    }),
    ("inode-lost", "basic-4k", |s| drop_name(s, 2, "six")),
    ("inode-size", "basic-4k", |s| patch(s, "big", |i| i.size = 4096.into())),
    ("inode-size", "basic-4k", |s| patch(s, "big", |i| i.size = u64::MAX.into())),
    ("inode-blocks", "basic-4k", |s| patch(s, "six", |i| i.blocks = 9.into())),
    ("inode-blocks", "basic-4k", |s| s.patch_root(|r| r.sufile.blocks = 2.into())),
    ("inode-special", "basic-4k", |s| patch(s, "fifo", |i| i.bmap[20] = 1)),
    ("inode-special", "basic-4k", |s| patch(s, "cdev", |i| i.bmap[20] = 1)),
    ("inode-metadata", "basic-4k", |s| s.patch_checkpoint(3, |e| e.ifile_inode.mode = 0o040_000.into())),
    ("symlink-size", "basic-4k", |s| patch(s, "sym", |i| i.size = 4096.into())),
    ("symlink-size", "basic-4k", |s| patch(s, "sym", |i| i.size = 0.into())),
    ("symlink-target", "basic-4k", |s| content(s, "sym", |b| b[2] = 0)),
    ("symlink-target", "basic-4k", |s| content(s, "sym", |b| b[9] = b'x')),
    ("directory-size", "basic-4k", |s| patch(s, "d", |i| i.size = 4097.into())),
    ("directory-size", "basic-4k", |s| patch(s, "d", |i| i.size = 8192.into())),
    ("directory-tiling", "basic-4k", |s| {
        let block = names_block(s, 2, 0);
        s.patch(block, |b| b[8] = 13);
    }),
];
