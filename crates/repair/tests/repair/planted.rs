//! Every damage that the tests of the check plant is mended: a check finds nothing more, what could be read is
//! still there, and a second repair has nothing to do.

use silt_repair::Error;
use silt_verify::planted::{Case, checkpoints, dat, directories, inodes, logs, maps, super_blocks, usage};
use silt_verify::surgeon::Surgeon;

use crate::common;

/// Whether the volume has a feature that nobody knows: it is left alone.
fn checked_features(s: &Surgeon) -> bool {
    let made = silt_repair::plan(std::sync::Arc::new(s.device.fork()), &common::options());
    made.is_err_and(|e| {
        matches!(e, Error::Engine(silt_engine::Error::Unusable(silt_format::Error::Incompatible(_))))
    })
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
