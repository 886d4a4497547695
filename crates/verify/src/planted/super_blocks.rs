//! Super blocks, super roots, and what a mount would roll forward.

use silt_device::Device;
use silt_format::summary::{LOGBGN, LOGEND, SR, SYNDT};

use super::Case;
use crate::surgeon::Sums;

const BOTH: (bool, bool) = (true, true);
const FIRST: (bool, bool) = (true, false);
const SECOND: (bool, bool) = (false, true);

pub const CASES: &[Case] = &[
    ("super-block-copy", "basic-4k", |s| {
        let at = silt_format::super_block::secondary_offset(s.device.len());
        s.device.write_at(at + 170, &[b"x"]).unwrap();
    }),
    ("super-block-copy", "basic-4k", |s| s.device.write_at(1024, &[&[0; 1024]]).unwrap()),
    ("super-block-fields", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.r_segments_percentage = 0.into())),
    ("super-block-fields", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.feature_incompat = 1.into())),
    ("super-block-place", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.nsegments = 256.into())),
    ("super-block-agreement", "basic-4k", |s| s.patch_super(SECOND, |sb| sb.volume_name[0] ^= 1)),
    ("super-block-other-cursor", "basic-4k", |s| {
        s.patch_super(SECOND, |sb| sb.last_pseg = (sb.last_pseg.get() + 1).into());
    }),
    ("super-block-other-chain", "cut-4k", |s| {
        // One copy points at the end of the log, the other one before a log that is torn.
        let (latest, cno) = (s.latest(), s.cno());
        let logs: Vec<_> = s.logs(s.g().segment_of(latest.pos).0);
        let before = *logs.iter().find(|l| l.header.has(SR) && l.header.cno.get() + 3 < cno).unwrap();
        let torn = *logs.iter().find(|l| l.pos.0 == before.end()).unwrap();
        let point = |s: &mut crate::surgeon::Surgeon, which, log: crate::surgeon::Log, cno: u64| {
            s.patch_super(which, |sb| {
                sb.last_cno = cno.into();
                sb.last_pseg = log.pos.0.into();
                sb.last_seq = log.header.seq;
            });
        };
        point(s, FIRST, latest, cno);
        point(s, SECOND, before, before.header.cno.get());
        s.patch_with(torn.end() - 1, Sums::None, |b| b[50] ^= 1);
    }),
    ("super-block-state", "basic-4k", |s| s.patch_super(FIRST, |sb| sb.state = 3.into())),
    ("super-block-features", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.feature_compat_ro = 2.into())),
    ("super-block-device-size", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.dev_size = 4096.into())),
    ("super-block-first-inode", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.first_ino = 14.into())),
    ("super-block-reserved", "basic-4k", |s| s.patch_super(BOTH, |sb| sb.reserved[9] = 1)),
    ("super-root-found", "basic-4k", |s| {
        let at = s.latest().pos.0;
        s.patch_with(at + 1, Sums::None, |b| b[100] ^= 1);
    }),
    ("super-root-newer", "basic-4k", |s| {
        let before = *s.logs(6).iter().find(|l| l.header.cno.get() == 6).unwrap();
        s.patch_super(BOTH, |sb| {
            sb.last_cno = 6.into();
            sb.last_pseg = before.pos.0.into();
            sb.last_seq = before.header.seq;
        });
    }),
    ("super-root-newer", "basic-4k", |s| {
        let (ino, at) = (s.ino("big"), s.latest().end());
        s.append_log(at, LOGBGN | SYNDT | LOGEND, &[(ino, 0, vec![1])]);
    }),
    ("super-root-block", "basic-4k", |s| {
        let old = s.logs(0)[0];
        s.patch_with(old.end() - 1, Sums::Summary, |b| b[40] ^= 1);
    }),
    ("super-root-block", "basic-4k", |s| {
        let latest = s.latest();
        s.patch_with(latest.end() - 1, Sums::Summary, |b| b[40] ^= 1);
    }),
    ("super-root-reserved", "basic-4k", |s| {
        let latest = s.latest();
        s.patch(latest.end() - 1, |b| b[6] = 1);
    }),
    ("super-root-reserved", "basic-4k", |s| {
        let latest = s.latest();
        s.patch(latest.end() - 1, |b| b[4000] = 1);
    }),
    ("super-root-counted-cno", "cut-4k", |s| {
        s.patch_super(BOTH, |sb| sb.last_cno = (sb.last_cno.get() + 1).into())
    }),
    ("super-root-nongc-time", "basic-4k", |s| s.patch_root(|r| r.nongc_ctime += 5)),
    ("recovery-sequence", "cut-4k", |s| {
        let (ino, at) = (s.ino("a0"), s.latest().end());
        let next = s.append_log(at, LOGBGN | SYNDT, &[(ino, 0, vec![1])]);
        s.append_log(next, LOGEND, &[(ino, 1, vec![2])]);
    }),
    ("recovery-inode", "cut-4k", |s| {
        let at = s.latest().end();
        s.append_log(at, LOGBGN | SYNDT | LOGEND, &[(9999, 0, vec![1])]);
    }),
    ("recovery-reached", "cut-4k", |s| {
        let (ino, at) = (s.ino("a0"), s.latest().end());
        let next = s.append_log(at, LOGBGN | SYNDT | LOGEND, &[(ino, 0, vec![1])]);
        s.append_log(next, LOGBGN | SYNDT | LOGEND, &[(ino, 1, vec![2])]);
        s.patch_with(next - 1, Sums::None, |b| b[70] ^= 1);
    }),
];
