//! Random histories on a file system and on the model side by side: every outcome, the live tree,
//! and every old checkpoint must be the same.

mod common;

use common::Form;
use common::target::FsTarget;
use silt_fs::Options;
use silt_model::generator::{Generator, Profile};
use silt_model::manifest::{Columns, diff};
use silt_model::model::Model;
use silt_model::run::{compare, run};
use silt_model::target::{Target, Tree};

/// Plays one history in `turns` turns; after each everything is compared, old checkpoints, too.
fn play(seed: u64, form: Form, options: Options, turns: usize, count: usize) {
    let mut target = FsTarget::new(form, options);
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
    }
    if target.every != 0 {
        assert!(target.compared > 0, "seed {seed}: no checkpoint made in steps was compared");
    }
    target.remount().unwrap();
    let live = target.manifest(Tree::Live, Columns::MODEL).unwrap();
    let found = diff(&model.tree(), &live, Columns::MODEL);
    assert!(found.is_empty(), "seed {seed}, remounted: {found:#?}");
}

fn histories() -> u64 {
    std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

#[test]
fn small_blocks() {
    for seed in 0..histories() {
        play(seed, Form::new(1024, 256 << 20), Options::default(), 3, 250);
    }
}

#[test]
fn usual_blocks() {
    for seed in 100..100 + histories() {
        play(seed, Form::new(4096, 512 << 20), Options::default(), 3, 250);
    }
}

#[test]
fn large_blocks() {
    for seed in 200..200 + histories() {
        play(seed, Form::new(65536, 4 << 30), Options::default(), 3, 250);
    }
}

#[test]
fn hardly_any_memory_for_indexes() {
    let options = Options { index_bytes: 2000, access_times: 3, seed: 9 };
    for seed in 300..300 + histories() {
        play(seed, Form::new(1024, 256 << 20), options, 2, 250);
    }
}
