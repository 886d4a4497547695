//! Random histories on volumes that hold only a part of what is written: segments are emptied and written again all
//! the time, between the steps of other checkpoints, and the live tree and every snapshot must stay what they are.

use crate::common::Form;
use silt_cleaner::Policy;
use silt_fs::Options;
use silt_fs_model::FsTarget;
use silt_model::generator::{Generator, Profile};
use silt_model::manifest::{Columns, diff};
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::run::{compare, run};
use silt_model::target::{Target, Tree};

/// Plays one history; returns segments that were emptied, blocks that were moved, and segments that were emptied for
/// their age alone.
fn play(seed: u64, form: Form, turns: usize) -> (u64, u64, u64) {
    let device = crate::common::device(form);
    let mut target = FsTarget::open(device.clone(), Options::default(), 5000).unwrap();
    target.every = 3 + (seed % 4) as u32;
    target.clean_every = 1 + (seed % 3) as u32;
    let mut model = Model::new(target.capabilities());
    let mut profile = Profile::of_seed(seed);
    profile.write_budget = 8 * form.size;
    profile.live_max = form.size / 8;
    let mut generator = Generator::new(seed, profile);
    let mut turned = 0;
    for turn in 0..turns {
        if let Err(failure) = run(&mut model, &mut target, &mut generator, 400) {
            panic!("seed {seed}, turn {turn}: {failure}");
        }
        let found = compare(&model, &mut target);
        assert!(found.is_empty(), "seed {seed}, turn {turn}: {found:#?}");
        // What gives little goes for its age alone, as if the log had gone round since.
        let least = u64::from(form.blocks_per_segment / 4);
        let policy = Policy::WearLevelling;
        let options = silt_cleaner::Options { policy, least, rounds: 0, ..silt_cleaner::Options::default() };
        turned += target.clean_as(options).unwrap().turned;
        target.apply(&Op::Remount).unwrap();
        model.apply(&Op::Remount).unwrap();
        let live = target.manifest(Tree::Live, Columns::MODEL).unwrap();
        let found = diff(&model.tree(), &live, Columns::MODEL);
        assert!(found.is_empty(), "seed {seed}, turn {turn}, remounted: {found:#?}");
        let report = silt_verify::check(&*device, &silt_verify::Options::default());
        let errors: Vec<String> = report.errors().map(|f| format!("{f:?}")).collect();
        assert!(errors.is_empty(), "seed {seed}, turn {turn}: {errors:#?}");
        let device: std::sync::Arc<dyn silt_device::Device> = device.clone();
        let wrong = silt_cleaner::agree::at_rest(&device, 5000 + turn as u64 * 1000);
        assert!(wrong.is_empty(), "seed {seed}, turn {turn}, the account: {wrong:#?}");
    }
    (target.cleaned.segments, target.cleaned.moved, turned)
}

/// Histories of each test; `SILT_HISTORIES` plays more.
fn histories() -> u64 {
    std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

fn play_all(first: u64, form: Form) {
    let (mut segments, mut moved, mut turned) = (0, 0, 0);
    for seed in first..first + histories() {
        let (s, m, t) = play(seed, form, 3);
        segments += s;
        moved += m;
        turned += t;
    }
    eprintln!("{segments} segments, {turned} of them for their age alone, {moved} blocks");
    assert!(segments > 0 && moved > 0, "nothing was cleaned");
    assert!(turned > 0, "nothing was left alone");
}

#[test]
fn small_blocks() {
    play_all(0, Form { block_size: 1024, blocks_per_segment: 128, size: 48 << 20 });
}

#[test]
fn usual_blocks() {
    play_all(100, Form { block_size: 4096, blocks_per_segment: 64, size: 96 << 20 });
}
