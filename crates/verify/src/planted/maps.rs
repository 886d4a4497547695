//! Direct maps and B-trees.

use silt_format::btree::NodeMut;

use super::Case;
use crate::surgeon::{Surgeon, set_word, word};

/// Disk block of node `i` below the root of a file's B-tree, and its virtual block.
fn node(s: &Surgeon, path: &str, i: usize) -> (u64, u64) {
    let inode = s.inode(s.ino(path));
    assert_eq!(inode.bmap[0], 1, "{path} has a B-tree");
    assert!(inode.bmap[1] >= 2, "{path} has nodes");
    let v = word(&inode.bmap, 4 + i);
    (s.place_of(v), v)
}

fn root_map(s: &mut Surgeon, path: &str, change: impl FnOnce(&mut [u8; 56])) {
    let ino = s.ino(path);
    s.patch_inode(ino, |i| change(&mut i.bmap));
}

const DEEP: &str = "big";

pub const CASES: &[Case] = &[
    ("direct-map-flags", "basic-4k", |s| root_map(s, "six", |m| m[0] = 2)),
    ("direct-map-header", "basic-4k", |s| root_map(s, "six", |m| m[5] = 2)),
    ("btree-root", "basic-4k", |s| root_map(s, DEEP, |m| m[1] = 14)),
    ("btree-root", "basic-4k", |s| root_map(s, DEEP, |m| m[2] = 4)),
    ("btree-root", "basic-4k", |s| root_map(s, DEEP, |m| m[2] = 0)),
    ("btree-node-flags", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| b[0] = 2);
    }),
    ("btree-level", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| b[1] += 1);
    }),
    ("btree-count", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| b[2..4].copy_from_slice(&[0, 0]));
    }),
    ("btree-count", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| b[2..4].copy_from_slice(&[0, 1]));
    }),
    ("btree-only-child", "basic-4k", |s| {
        // One level higher than it is, the first of several nodes has one child.
        let (block, _) = node(s, DEEP, 0);
        root_map(s, DEEP, |m| m[1] += 1);
        s.patch(block, |b| {
            b[1] += 1;
            b[2..4].copy_from_slice(&[1, 0]);
        });
    }),
    ("btree-order", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| NodeMut::block(b).set_key(3, 2));
    }),
    ("btree-bound", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| {
            let last = NodeMut::block(b).as_ref().len() - 1;
            NodeMut::block(b).set_key(last, 1 << 40);
        });
    }),
    ("btree-parent-key", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 1);
        s.patch(block, |b| {
            let first = NodeMut::block(b).as_ref().key(0);
            NodeMut::block(b).set_key(0, first - 1);
        });
    }),
    ("btree-pointer-zero", "basic-4k", |s| {
        let (block, _) = node(s, DEEP, 0);
        s.patch(block, |b| NodeMut::block(b).set_ptr(3, 0));
    }),
    ("map-vblock", "basic-4k", |s| {
        let free = s.free_vblock();
        root_map(s, "six", |m| set_word(m, 1, free));
    }),
    ("map-vblock", "basic-4k", |s| root_map(s, "six", |m| set_word(m, 1, u64::MAX))),
    ("map-unwritten", "basic-4k", |s| {
        let v = word(&s.inode(s.ino("six")).bmap, 1);
        s.patch_dat(v, |e| e.blocknr = 0.into());
    }),
    ("map-dead", "basic-4k", |s| {
        let (v, cno) = (word(&s.inode(s.ino("six")).bmap, 1), s.cno());
        s.patch_dat(v, |e| e.end = cno.into());
    }),
    ("map-lifetime", "basic-4k", |s| {
        let v = word(&s.checkpoint(2).ifile_inode.bmap, 4);
        s.patch_dat(v, |e| e.end = e.start);
    }),
    ("map-twice", "basic-4k", |s| {
        let v = word(&s.inode(s.ino("hello.txt")).bmap, 1);
        root_map(s, "six", |m| set_word(m, 1, v));
    }),
    ("map-twice", "basic-4k", |s| {
        // A node that is its own child.
        let (block, v) = node(s, DEEP, 0);
        s.patch(block, |b| NodeMut::block(b).set_ptr(0, v));
    }),
    ("map-owner", "basic-4k", |s| {
        let v = word(&s.inode(s.ino("six")).bmap, 1);
        root_map(s, "six", |m| {
            set_word(m, 1, 0);
            set_word(m, 2, v);
        });
    }),
    ("map-key", "basic-4k", |s| {
        let v = word(&s.inode(s.ino("six")).bmap, 1);
        root_map(s, "six", |m| {
            *m = [0; 56];
            m[..4].copy_from_slice(&[1, 1, 1, 0]);
            set_word(m, 1, u64::MAX);
            set_word(m, 4, v);
        });
    }),
];
