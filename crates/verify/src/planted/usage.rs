//! The sufile.

use silt_format::SegNr;
use silt_format::segment_usage::{self, SuEntry};

use super::Case;
use crate::surgeon::{Surgeon, set_word};

fn header(s: &mut Surgeon, change: impl FnOnce(&mut segment_usage::SuHeader)) {
    let block = s.file(5)[&0];
    s.patch(block, |b| {
        let mut h = segment_usage::header(b).unwrap();
        change(&mut h);
        segment_usage::store_header(b, &h);
    });
}

fn entry_of(s: &Surgeon, segment: u64) -> SuEntry {
    let (offset, byte) = segment_usage::place(&s.g(), SegNr(segment));
    SuEntry::read(&s.read(s.file(5)[&offset]), byte).unwrap()
}

fn entry(s: &mut Surgeon, segment: u64, change: impl FnOnce(&mut SuEntry)) {
    let (offset, byte) = segment_usage::place(&s.g(), SegNr(segment));
    let block = s.file(5)[&offset];
    s.patch(block, |b| {
        let mut e = SuEntry::read(b, byte).unwrap();
        change(&mut e);
        e.store(b, byte);
    });
}

pub const CASES: &[Case] = &[
    ("log-stale", "gc-4k", |s| {
        // A segment that was cleaned, and is in use again with the logs that were in it.
        let (root, g) = (s.latest(), s.g());
        let logs =
            |n: u64| s.logs(n).into_iter().filter(|l| l.header.seq < root.header.seq).collect::<Vec<_>>();
        let live = s.past_blocks();
        let used = |n: u64| live.iter().any(|b| g.segment_of(silt_format::BlockNr(*b)).0 == n);
        let cleaned =
            (0..g.nsegments).find(|n| entry_of(s, *n) == SuEntry::CLEAN && !logs(*n).is_empty() && !used(*n));
        let cleaned = cleaned.unwrap();
        let last = *logs(cleaned).last().unwrap();
        entry(s, cleaned, |e| {
            e.flags = segment_usage::DIRTY.into();
            e.lastmod = last.header.create;
            e.nblocks = u32::try_from(last.end() - g.segment_start(SegNr(cleaned)).0).unwrap().into();
        });
        header(s, |h| {
            h.ncleansegs = (h.ncleansegs.get() - 1).into();
            h.ndirtysegs = (h.ndirtysegs.get() + 1).into();
        });
    }),
    ("sufile-header-block", "btree-1k", |s| {
        s.patch_root(|r| {
            let mut bmap = [0; 56];
            // Only a second block, which is the first one's.
            set_word(&mut bmap, 2, crate::surgeon::word(&r.sufile.bmap, 1));
            r.sufile.bmap = bmap;
        });
    }),
    ("sufile-clean-count", "basic-4k", |s| header(s, |h| h.ncleansegs = (h.ncleansegs.get() + 1).into())),
    ("sufile-clean-count", "basic-4k", |s| entry(s, 200, |e| e.flags = 2.into())),
    ("sufile-dirty-count", "basic-4k", |s| header(s, |h| h.ndirtysegs = (h.ndirtysegs.get() - 1).into())),
    ("sufile-last-alloc", "basic-4k", |s| header(s, |h| h.last_alloc = 255.into())),
    ("sufile-clean-entry", "basic-4k", |s| entry(s, 200, |e| e.lastmod = 1.into())),
    ("sufile-flags", "basic-4k", |s| entry(s, 2, |e| e.flags = 0x12.into())),
    ("sufile-active", "gc-4k", |s| {
        let current = s.g().segment_of(s.latest().pos).0;
        entry(s, current, |e| e.flags = 3.into());
    }),
    ("sufile-error", "basic-4k", |s| entry(s, 200, |e| e.flags = 4.into())),
    ("sufile-nblocks", "basic-4k", |s| entry(s, 5, |e| e.nblocks = 255.into())),
    ("sufile-nblocks", "basic-4k", |s| entry(s, 5, |e| e.nblocks = 257.into())),
    ("sufile-lastmod", "basic-4k", |s| entry(s, 2, |e| e.lastmod = 1.into())),
    ("sufile-current", "basic-4k", |s| entry(s, 6, |e| e.nblocks = 73.into())),
    ("sufile-current", "basic-4k", |s| entry(s, 6, |e| *e = SuEntry::CLEAN)),
    ("sufile-next", "basic-4k", |s| entry(s, 7, |e| *e = SuEntry::CLEAN)),
    ("sufile-next", "basic-4k", |s| entry(s, 7, |e| e.nblocks = 5.into())),
    ("sufile-scrapped", "basic-4k", |s| entry(s, 200, |e| e.flags = 2.into())),
    ("sufile-tail", "gc-4k", |s| entry(s, 127, |e| e.flags = 2.into())),
];
