//! Random histories on a file system and on the model side by side: every outcome, the live tree,
//! and every old checkpoint must be the same.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

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
fn play(seed: u64, form: Form, options: Options, turns: usize, count: usize) -> u32 {
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
    target.remount().unwrap();
    let live = target.manifest(Tree::Live, Columns::MODEL).unwrap();
    let found = diff(&model.tree(), &live, Columns::MODEL);
    assert!(found.is_empty(), "seed {seed}, remounted: {found:#?}");
    target.compared
}

/// Plays histories from `first` on; some of their checkpoints must have been made in steps.
fn play_all(first: u64, form: Form, options: Options, turns: usize) {
    let compared: u32 = (first..first + histories()).map(|seed| play(seed, form, options, turns, 250)).sum();
    assert!(compared > 0, "no checkpoint made in steps was compared");
}

fn histories() -> u64 {
    std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

#[test]
fn small_blocks() {
    play_all(0, Form::new(1024, 256 << 20), Options::default(), 3);
}

#[test]
fn usual_blocks() {
    play_all(100, Form::new(4096, 512 << 20), Options::default(), 3);
}

#[test]
fn large_blocks() {
    play_all(200, Form::new(65536, 4 << 30), Options::default(), 3);
}

#[test]
fn hardly_any_memory_for_indexes() {
    let options = Options { index_bytes: 2000, access_times: 3, seed: 9 };
    play_all(300, Form::new(1024, 256 << 20), options, 2);
}
