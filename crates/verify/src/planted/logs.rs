//! Logs: headers, checksums, records, and their order.

use super::Case;
use crate::surgeon::Sums;

pub const CASES: &[Case] = &[
    ("log-header", "basic-4k", |s| {
        let at = s.logs(2)[0].pos.0;
        s.patch_with(at, Sums::None, |b| b[8] ^= 1);
    }),
    ("log-header", "basic-4k", |s| {
        let at = s.logs(5)[1].pos.0;
        s.patch_with(at, Sums::None, |b| b[8] ^= 1);
    }),
    ("log-summary-checksum", "basic-4k", |s| {
        let at = s.logs(5)[1].pos.0;
        s.patch_with(at, Sums::Log, |b| b[4] ^= 1);
    }),
    ("log-checksum", "basic-4k", |s| {
        let log = s.logs(3)[0];
        s.patch_with(log.end() - 1, Sums::None, |b| b[4000] ^= 1);
    }),
    ("log-in-segment", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.nblocks = 200.into());
    }),
    ("log-records", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.nfinfo = (h.nfinfo.get() + 1).into());
    }),
    ("log-records", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.nfinfo = (h.nfinfo.get() - 1).into());
    }),
    ("log-sumbytes", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.sumbytes = (h.sumbytes.get() + 8).into());
    }),
    ("log-gaps", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch(log.pos.0, |b| b[4095] = 1);
    }),
    ("log-gaps", "basic-4k", |s| {
        // A record that did not fit the first block of a summary left a gap behind it.
        let log = s.logs(4)[0];
        assert!(log.header.sumbytes.get() > 4096);
        let gap = s.read(log.pos.0);
        assert_eq!(gap[4095], 0);
        s.patch(log.pos.0, |b| b[4095] = 1);
    }),
    ("log-flags", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.flags = (h.flags.get() | 0x100).into());
    }),
    ("log-flags", "basic-4k", |s| {
        let log = s.logs(2)[0];
        s.patch_header(log, |h| h.flags = silt_format::summary::SYNDT.into());
    }),
    ("log-seq", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.seq = 77.into());
    }),
    ("log-seq", "basic-4k", |s| {
        let log = s.logs(2)[0];
        s.patch_header(log, |h| h.seq = 3.into());
    }),
    ("log-next", "basic-4k", |s| {
        let log = s.logs(5)[1];
        s.patch_header(log, |h| h.next = 256.into());
    }),
    ("log-next", "basic-4k", |s| {
        let log = s.logs(2)[0];
        s.patch_header(log, |h| h.next = 1024.into());
    }),
    ("log-cno", "basic-4k", |s| {
        let log = s.logs(5)[2];
        s.patch_header(log, |h| h.cno = 2.into());
    }),
    ("log-cno", "basic-4k", |s| {
        let log = s.logs(5)[2];
        s.patch_header(log, |h| h.cno = 99.into());
    }),
    ("log-payload-metadata", "basic-4k", |s| {
        let log = s.logs(0)[0];
        s.patch(log.pos.0, |b| b[64..72].copy_from_slice(&1u64.to_le_bytes()));
    }),
    ("log-create", "basic-4k", |s| {
        let log = s.logs(2)[0];
        s.patch_header(log, |h| h.create = 5.into());
    }),
];
