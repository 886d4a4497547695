//! The cpfile.

use silt_format::checkpoint::{self, CpHeader, INVALID, SNAPSHOT};

use super::Case;
use crate::surgeon::{Surgeon, set_word, word};

fn header(s: &mut Surgeon, change: impl FnOnce(&mut CpHeader)) {
    let block = s.file(4)[&0];
    s.patch(block, |b| {
        let mut h = checkpoint::header(b).unwrap();
        change(&mut h);
        checkpoint::store_header(b, &h);
    });
}

pub const CASES: &[Case] = &[
    ("cpfile-header-block", "btree-1k", |s| {
        s.patch_root(|r| {
            let second = word(&r.cpfile.bmap, 2);
            r.cpfile.bmap = [0; 56];
            set_word(&mut r.cpfile.bmap, 2, second);
        });
    }),
    ("cpfile-count", "basic-4k", |s| header(s, |h| h.ncheckpoints = 6.into())),
    ("cpfile-block-count", "btree-1k", |s| {
        s.patch_checkpoint(5, |e| {
            let n = e.checkpoints_count.get();
            assert_eq!(n, 4);
            e.checkpoints_count = (n - 1).into();
        });
    }),
    ("cpfile-cno", "basic-4k", |s| s.patch_checkpoint(3, |e| e.cno = 4.into())),
    ("cpfile-cno", "basic-4k", |s| {
        let copy = s.checkpoint(3);
        s.patch_checkpoint(9, |e| {
            *e = copy;
            e.cno = 9.into();
        });
    }),
    ("cpfile-flags", "basic-4k", |s| s.patch_checkpoint(3, |e| e.flags = 0x10.into())),
    ("cpfile-latest", "basic-4k", |s| {
        let cno = s.cno();
        s.patch_checkpoint(cno, |e| e.flags = INVALID.into());
    }),
    ("cpfile-empty-block", "btree-1k", |s| {
        for cno in 5..=8 {
            s.patch_checkpoint(cno, |e| e.flags = INVALID.into());
        }
    }),
    ("cpfile-snapshot-list", "basic-4k", |s| s.patch_checkpoint(4, |e| e.list_prev = 3.into())),
    ("cpfile-snapshot-list", "basic-4k", |s| s.patch_checkpoint(4, |e| e.list_next = 2.into())),
    ("cpfile-snapshot-list", "basic-4k", |s| header(s, |h| h.list_prev = 4.into())),
    ("cpfile-snapshot-list", "basic-4k", |s| header(s, |h| h.list_next = 1000.into())),
    ("cpfile-snapshot-flags", "basic-4k", |s| s.patch_checkpoint(3, |e| e.flags = SNAPSHOT.into())),
    ("cpfile-snapshot-flags", "basic-4k", |s| s.patch_checkpoint(4, |e| e.flags = 0.into())),
    ("cpfile-snapshot-count", "basic-4k", |s| header(s, |h| h.nsnapshots = 2.into())),
    ("cpfile-inodes-count", "basic-4k", |s| s.patch_checkpoint(2, |e| e.inodes_count = 5.into())),
    ("cpfile-blocks-count", "basic-4k", |s| {
        s.patch_checkpoint(2, |e| e.blocks_count = (e.blocks_count.get() + 1).into());
    }),
    ("cpfile-nblk-inc", "basic-4k", |s| s.patch_checkpoint(2, |e| e.nblk_inc = 1.into())),
    ("cpfile-create", "basic-4k", |s| s.patch_checkpoint(2, |e| e.create = 1.into())),
    ("cpfile-minor", "basic-4k", |s| {
        s.patch_checkpoint(2, |e| e.flags = (e.flags.get() | silt_format::checkpoint::MINOR).into());
    }),
    ("cpfile-ifile", "basic-4k", |s| s.patch_checkpoint(3, |e| e.ifile_inode.links_count = 0.into())),
];
