//! Every damage that the tests of the check plant is mended: a check finds nothing more, what could be read is
//! still there, and a second repair has nothing to do.

use crate::common;

/// (identifier, golden volume, what to do to it).
type Case = (&'static str, &'static str, fn(&mut Surgeon));

#[path = "../../../verify/src/planted/checkpoints.rs"]
mod checkpoints;
#[path = "../../../verify/src/planted/dat.rs"]
mod dat;
#[path = "../../../verify/src/planted/directories.rs"]
mod directories;
#[path = "../../../verify/src/planted/inodes.rs"]
mod inodes;
#[path = "../../../verify/src/planted/logs.rs"]
mod logs;
#[path = "../../../verify/src/planted/maps.rs"]
mod maps;
#[path = "../../../verify/src/planted/super_blocks.rs"]
mod super_blocks;
#[path = "../../../verify/src/planted/usage.rs"]
mod usage;

use crate::surgeon::Surgeon;

/// Whether the volume has a feature that nobody knows: it is left alone.
fn checked_features(s: &Surgeon) -> bool {
    let left = silt_repair::plan(std::sync::Arc::new(s.device.fork()), &common::options()).unwrap();
    left.is_empty() && left.before.errors().any(|f| f.message.contains("unknown incompatible features"))
}

fn run(cases: &[Case]) {
    let mut failed = Vec::new();
    for (n, (id, volume, plant)) in cases.iter().enumerate() {
        let mut s = Surgeon::golden(volume);
        plant(&mut s);
        if *id == "super-block-fields" && checked_features(&s) {
            continue;
        }
        let name = format!("{id} (case {n}) on {volume}");
        if let Err(why) = common::mends(&Surgeon::golden(volume).device, &s.device) {
            failed.push(format!("{name}: {why}"));
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

#[test]
fn super_blocks_are_mended() {
    run(super_blocks::CASES);
}

#[test]
fn logs_are_mended() {
    run(logs::CASES);
}

#[test]
fn segment_usage_is_mended() {
    run(usage::CASES);
}

#[test]
fn translation_is_mended() {
    run(dat::CASES);
}

#[test]
fn maps_are_mended() {
    run(maps::CASES);
}

#[test]
fn checkpoints_are_mended() {
    run(checkpoints::CASES);
}

#[test]
fn inodes_are_mended() {
    run(inodes::CASES);
}

#[test]
fn directories_are_mended() {
    run(directories::CASES);
}
