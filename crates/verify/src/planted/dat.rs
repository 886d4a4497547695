//! The DAT: entries, bitmaps, and what logs say of them.

use silt_format::dat::{DatEntry, LIVE};

use super::Case;
use crate::surgeon::{Surgeon, set_word, word};

/// A superseded block of the tree that lived for a while.
fn past(s: &Surgeon) -> u64 {
    s.find_dat(|_, e| e.end.get() != LIVE && e.end.get() > e.start.get())
}

fn current(s: &Surgeon) -> u64 {
    s.find_dat(|_, e| e.end.get() == LIVE && e.start.get() > 1)
}

pub const CASES: &[Case] = &[
    ("dat-blocknr", "basic-4k", |s| {
        let v = past(s);
        s.patch_dat(v, |e| e.blocknr = 60_000.into());
    }),
    ("dat-blocknr", "basic-4k", |s| {
        let v = past(s);
        s.patch_dat(v, |e| e.blocknr = u64::MAX.into());
    }),
    ("dat-lifetime", "basic-4k", |s| {
        let v = past(s);
        s.patch_dat(v, |e| e.end = (e.start.get() - 1).into());
    }),
    ("dat-lifetime", "basic-4k", |s| {
        let (v, cno) = (current(s), s.cno());
        s.patch_dat(v, |e| e.start = (cno + 1).into());
    }),
    ("dat-shared-block", "basic-4k", |s| {
        let (v, w) = (past(s), current(s));
        let block = s.place_of(w);
        s.patch_dat(v, |e| e.blocknr = block.into());
    }),
    ("dat-shared-block", "basic-4k", |s| {
        let (v, own) = (past(s), *s.dat().blocks.values().next().unwrap());
        s.patch_dat(v, |e| e.blocknr = own.into());
    }),
    ("dat-entry-missing", "basic-4k", |s| s.set_bit(3, 32_000, true)),
    ("dat-entry-zero", "basic-4k", |s| s.set_bit(3, 0, false)),
    ("dat-entry-zero", "basic-4k", |s| s.patch_dat(0, |e| e.blocknr = 5.into())),
    ("dat-unwritten", "basic-4k", |s| {
        let v = s.free_vblock();
        s.set_bit(3, v, true);
        s.patch_dat(v, |e| *e = DatEntry::allocated(0));
    }),
    ("dat-reserved", "basic-4k", |s| {
        let v = current(s);
        s.patch_dat(v, |e| e.rsv = 1.into());
    }),
    ("dat-attribution", "basic-4k", |s| {
        let v = past(s);
        let summary = s.logs(3)[0].pos.0;
        s.patch_dat(v, |e| e.blocknr = summary.into());
    }),
    ("dat-record-cno", "basic-4k", |s| {
        let v = current(s);
        s.patch_dat(v, |e| e.start = (e.start.get() - 1).into());
    }),
    ("dat-single-version", "basic-4k", |s| {
        let v = s.find_dat(|_, e| e.end == e.start && s.owner(e.blocknr.get()) == Some(5));
        s.patch_dat(v, |e| e.end = (e.start.get() + 1).into());
    }),
    ("dat-live-unmapped", "basic-4k", |s| {
        let v = past(s);
        s.patch_dat(v, |e| e.end = LIVE.into());
    }),
    ("dat-own-block", "basic-4k", |s| {
        // Two blocks of the DAT change places: the record of each names the other's offset.
        let (log, g) = (s.latest(), s.g());
        let dat = s.dat();
        let inside: Vec<u64> =
            dat.blocks.iter().filter(|(_, b)| log.pos.0 <= **b && **b < log.end()).map(|(o, _)| *o).collect();
        assert!(inside.len() >= 2);
        let offset = inside[0].to_le_bytes();
        let bytes = s.read(log.pos.0);
        let header = 64..g.bs();
        let at = bytes[header.clone()]
            .windows(24 + 8)
            .position(|w| w[..8] == 3u64.to_le_bytes() && w[24..] == offset)
            .unwrap();
        s.patch(log.pos.0, |b| b[64 + at + 24] ^= 0x40);
    }),
    ("dat-own-place", "basic-4k", |s| {
        // The last block of the log is the super root, the one before it belongs to the DAT.
        let (offset, byte) = silt_format::segment_usage::place(&s.g(), silt_format::SegNr(6));
        let block = s.file(5)[&offset];
        s.patch(block, |b| b[byte + 8] = 60);
    }),
    ("dat-own-place", "cut-4k", |s| {
        let map = s.root().dat.bmap;
        assert_eq!(map[0], 1);
        s.patch_root(|r| set_word(&mut r.dat.bmap, 4, word(&map, 4) + (1 << 40)));
    }),
    ("palloc-free-count", "basic-4k", |s| {
        let block = s.dat().blocks[&0];
        s.patch(block, |b| b[0] ^= 1);
    }),
    ("palloc-free-count", "basic-4k", |s| {
        let block = s.file(6)[&0];
        s.patch(block, |b| b[4] ^= 1);
    }),
    ("palloc-descriptor", "basic-4k", |s| {
        s.patch_checkpoint(1, |e| set_word(&mut e.ifile_inode.bmap, 1, 0));
    }),
    ("palloc-key", "basic-4k", |s| {
        s.patch_checkpoint(1, |e| {
            let v = word(&e.ifile_inode.bmap, 1);
            let map = &mut e.ifile_inode.bmap;
            *map = [0; 56];
            map[..4].copy_from_slice(&[1, 1, 1, 0]);
            set_word(map, 1, (1 << 51) - 1);
            set_word(map, 4, v);
        });
    }),
];
