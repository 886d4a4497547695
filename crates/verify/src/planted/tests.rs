//! The proof that the check finds what is planted.

use std::collections::HashSet;

use super::{Case, checkpoints, dat, directories, inodes, logs, maps, super_blocks, usage};
use silt_format::super_block::STATE_RESIZE;

use crate::invariants;
use crate::surgeon::Surgeon;
use crate::{Options, Report, check};

fn options() -> Options {
    Options { all_checkpoints: true, ..Options::default() }
}

fn count(report: &Report, id: &str) -> u64 {
    report.counts.get(id).copied().unwrap_or(0)
}

fn run(cases: &[Case]) {
    for (id, volume, plant) in cases {
        let mut s = Surgeon::golden(volume);
        let before = count(&check(&s.device, &options()), id);
        plant(&mut s);
        let report = check(&s.device, &options());
        let after = count(&report, id);
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(after > before, "{id} on {volume} was not found; found were:\n{}", found.join("\n"));
        assert!(invariants::ALL.iter().any(|i| i.id == *id), "{id} is not in the table");
    }
}

#[test]
fn super_blocks_are_checked() {
    run(super_blocks::CASES);
}

#[test]
fn logs_are_checked() {
    run(logs::CASES);
}

#[test]
fn the_sufile_is_checked() {
    run(usage::CASES);
}

#[test]
fn the_dat_is_checked() {
    run(dat::CASES);
}

#[test]
fn maps_are_checked() {
    run(maps::CASES);
}

#[test]
fn checkpoints_are_checked() {
    run(checkpoints::CASES);
}

#[test]
fn inodes_are_checked() {
    run(inodes::CASES);
}

#[test]
fn directories_are_checked() {
    run(directories::CASES);
}

#[test]
fn every_invariant_has_a_case() {
    let all = [
        super_blocks::CASES,
        logs::CASES,
        usage::CASES,
        dat::CASES,
        maps::CASES,
        checkpoints::CASES,
        inodes::CASES,
        directories::CASES,
    ];
    let planted: HashSet<&str> = all.iter().flat_map(|c| c.iter().map(|(id, ..)| *id)).collect();
    // Found by tests of their own.
    let apart = ["device-read", "inode-blocks-mkfs"];
    let missing: Vec<&str> = invariants::ALL
        .iter()
        .map(|i| i.id)
        .filter(|id| !planted.contains(id) && !apart.contains(id))
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[test]
fn strict_checks_take_notes_for_errors() {
    let device = Surgeon::golden("gc-4k").device;
    assert!(check(&device, &options()).is_clean());
    let mut s = Surgeon { device };
    s.patch_inode(2, |i| i.xattr = 1.into());
    assert!(check(&s.device, &options()).is_clean());
    let strict = check(&s.device, &Options { strict: true, ..options() });
    assert!(strict.errors().any(|f| f.id == "inode-zero"));
}

#[test]
fn a_resize_that_was_cut_off_is_no_damage() {
    for finished in [false, true] {
        let mut s = Surgeon::golden("basic-4k");
        let (_, _, miscount) = usage::CASES.iter().find(|c| c.0 == "sufile-clean-count").unwrap();
        miscount(&mut s);
        s.patch_super((false, true), |sb| {
            sb.nsegments = (sb.nsegments.get() - 1).into();
            sb.dev_size = (sb.dev_size.get() - 4096).into();
        });
        if !finished {
            s.patch_super((true, false), |sb| sb.state = (sb.state.get() | STATE_RESIZE).into());
        }
        let report = check(&s.device, &options());
        let errors: Vec<&str> = report.errors().map(|f| f.id).collect();
        let both = ["super-block-agreement", "super-block-agreement", "sufile-clean-count"];
        assert_eq!(errors, if finished { &both[..] } else { &[] });
        assert_eq!(count(&report, "super-block-state"), if finished { 0 } else { 4 });
    }
}

#[test]
fn findings_are_counted_behind_the_limit() {
    let mut s = Surgeon::golden("basic-4k");
    // The root of the inode file: every inode is gone.
    let cno = s.cno();
    s.patch_checkpoint(cno, |e| e.ifile_inode.bmap = [0; 56]);
    let options = Options { findings_per_invariant: 3, ..Options::default() };
    let report = check(&s.device, &options);
    assert!(count(&report, "dat-live-unmapped") > 3);
    assert_eq!(report.findings.iter().filter(|f| f.id == "dat-live-unmapped").count(), 3);
}

/// Wherever a check is ended, what it says until then is true.
#[test]
fn a_check_ends_when_it_is_asked_to() {
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Patience(AtomicU32, AtomicU32);
    impl crate::Watch for Patience {
        fn stop(&self) -> bool {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err()
        }
    }
    let device = Surgeon::golden("basic-4k").device;
    let mut ended = 0;
    for patience in 0.. {
        let watch = Patience(AtomicU32::new(patience), AtomicU32::new(0));
        let report = crate::check_watched(&device, &options(), &watch);
        assert!(report.is_clean(), "after {patience}: {}", report.error_text());
        if !report.stopped {
            assert_eq!(report.stats.trees_walked, check(&device, &options()).stats.trees_walked);
            break;
        }
        let asked = watch.1.load(Ordering::Relaxed);
        assert!(asked < patience + 8, "asked {asked} times, told to end after {patience}");
        ended += 1;
    }
    assert!(ended > 20, "{ended}");
}

#[test]
fn what_checkpoints_share_is_walked_once() {
    // A block of a file that was whole when the latest tree was walked, and is not alive in an older checkpoint.
    let mut s = Surgeon::golden("basic-4k");
    let before = check(&s.device, &options());
    assert!(before.is_clean() && before.stats.trees_walked > 3);
    let inode = s.inode(s.ino("big"));
    let leaf = crate::surgeon::word(&inode.bmap, 4);
    let block = s.place_of(leaf);
    let v = silt_format::btree::Node::block(&s.read(block)).ptr(3);
    let cno = s.cno();
    let start = s.dat_entry(v).start.get();
    assert!(start < cno - 1, "{start}");
    s.patch_dat(v, |e| e.start = cno.into());
    let report = check(&s.device, &options());
    let places: Vec<u64> =
        report.findings.iter().filter(|f| f.id == "map-lifetime").filter_map(|f| f.place.cno).collect();
    assert!(places.contains(&(cno - 1)) && !places.contains(&cno), "{places:?}");
}

#[test]
fn block_counts_of_mkfs_are_told_apart() {
    let id = "inode-blocks-mkfs";
    let mut s = Surgeon::golden("basic-4k");
    let before = count(&check(&s.device, &options()), id);
    s.patch_inode(2, |i| i.blocks = 8.into());
    let report = check(&s.device, &options());
    assert_eq!(count(&report, id), before - 1);
    assert!(!report.has("inode-blocks"));
    // Neither what the blocks make nor that with one block counted as a unit.
    s.patch_inode(2, |i| i.blocks = 2.into());
    let report = check(&s.device, &options());
    assert_eq!(count(&report, id), before - 1);
    assert!(report.has("inode-blocks"));
}

#[test]
fn unreadable_blocks_are_findings() {
    use silt_device::Fault;
    let s = Surgeon::golden("basic-4k");
    // Every block of the inode file, of one file and of the DAT in turn.
    let mut blocks: Vec<u64> = s.file(6).into_values().chain(s.file(2).into_values()).collect();
    blocks.extend(s.dat().blocks.values().chain(s.dat().nodes.keys()));
    blocks.push(s.latest().pos.0);
    for block in blocks {
        let device = Fault::new(s.device.fork());
        let at = block << s.g().block_bits;
        device.fail_reads(at..at + 4096, silt_device::Times::Always);
        let report = check(&device, &options());
        let cursor = block == s.latest().pos.0;
        assert!(report.has("device-read") || (cursor && !report.is_clean()), "block {block}");
    }
}
