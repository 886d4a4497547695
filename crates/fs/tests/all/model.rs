//! Random histories on a file system and on the model side by side: every outcome, the live tree,
//! and every old checkpoint must be the same; and what a crash leaves must be sound and hold what
//! was synced.

use std::sync::Arc;

use crate::common::Form;
use silt_device::MemoryDevice;
use silt_fs::Options;
use silt_fs_model::FsTarget;
use silt_model::generator::{Generator, Profile};
use silt_model::manifest::{Columns, diff};
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::run::{compare, run};
use silt_model::target::{Target, Tree};

/// What must be the same after a crash. Block counts of what waits are estimates.
const SYNCED: Columns = Columns { blocks: false, ..Columns::ALL };

/// Whoever opens the device as it is now must find a sound volume, and on it what was synced.
fn check_crash(target: &mut FsTarget, device: &MemoryDevice, options: Options) {
    target.apply(&Op::Sync).unwrap();
    let device = Arc::new(device.fork());
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    let errors: Vec<String> = report.errors().map(|f| format!("{f:?}")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let mut other = FsTarget::open(device, options, 1_000_000).unwrap();
    while other.fs.collect_orphans(10).unwrap() {}
    let found = other.manifest(Tree::Live, SYNCED).unwrap();
    assert_eq!(diff(&target.manifest(Tree::Live, SYNCED).unwrap(), &found, SYNCED), [""; 0]);
    other.close_volume().unwrap();
}

/// Plays one history in `turns` turns; after each everything is compared, old checkpoints, too.
/// Returns how many checkpoints were made in steps between operations.
fn play(seed: u64, form: Form, options: Options, turns: usize, count: usize) -> u32 {
    let device = crate::common::device(form);
    let mut target = FsTarget::open(device.clone(), options, 5000).unwrap();
    target.every = (seed % 5) as u32 * 5;
    let mut model = Model::new(target.capabilities());
    model.remember_checkpoints();
    let mut profile = Profile::of_seed(seed);
    // Nothing is cleaned here: what is written stays.
    profile.write_budget = profile.write_budget.min(form.size / 16);
    profile.live_max = profile.live_max.min(form.size / 32);
    let mut generator = Generator::new(seed, profile);
    for turn in 0..turns {
        if let Err(failure) = run(&mut model, &mut target, &mut generator, count) {
            panic!("seed {seed}, turn {turn}: {failure}");
        }
        let found = compare(&model, &mut target);
        assert!(found.is_empty(), "seed {seed}, turn {turn}: {found:#?}");
        check_crash(&mut target, &device, options);
    }
    // Checks the volume after it was closed, too.
    target.apply(&Op::Remount).unwrap();
    model.apply(&Op::Remount).unwrap();
    let live = target.manifest(Tree::Live, Columns::MODEL).unwrap();
    let found = diff(&model.tree(), &live, Columns::MODEL);
    assert!(found.is_empty(), "seed {seed}, remounted: {found:#?}");
    target.compared
}

/// Histories of each test; `SILT_HISTORIES` plays more.
fn histories() -> u64 {
    std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// Plays histories from `first` on; some of their checkpoints must have been made in steps.
fn play_all(first: u64, form: Form, options: Options, turns: usize) {
    let compared: u32 = (first..first + histories()).map(|seed| play(seed, form, options, turns, 250)).sum();
    assert!(compared > 0, "no checkpoint made in steps was compared");
}

#[test]
fn small_blocks() {
    play_all(0, Form::new(1024, 256 << 20), Options::default(), 3);
}

#[test]
fn usual_blocks() {
    play_all(1000, Form::new(4096, 512 << 20), Options::default(), 3);
}

#[test]
fn large_blocks() {
    play_all(2000, Form::new(65536, 4 << 30), Options::default(), 3);
}

#[test]
fn hardly_any_memory_for_indexes() {
    let options = Options { index_bytes: 2000, access_times: 3, seed: 9, ends: 20, ..Options::default() };
    play_all(3000, Form::new(1024, 256 << 20), options, 2);
}
