//! The model against a real local file system: every outcome and the whole tree must be the same.

#![allow(clippy::unwrap_used, clippy::panic)] // A test: both are how it fails.

use silt_model::generator::{Flavour, Generator, Profile};
use silt_model::model::Model;
use silt_model::run::{compare, run};
use silt_model::syscalls::{NoMoments, PathTarget, probe};

/// A directory of its own, with what the file system there can do.
fn play(base: &std::path::Path, seed: u64, profile: Profile, count: usize) {
    let place = tempfile::tempdir_in(base).unwrap();
    let caps = probe(place.path()).unwrap();
    let mut target = PathTarget::new(place.path(), caps.clone(), NoMoments).unwrap();
    let mut model = Model::new(caps);
    let mut generator = Generator::new(seed, profile);
    for _ in 0..3 {
        let history = format!("seed {seed} in {}", base.display());
        run(&mut model, &mut target, &mut generator, count / 3).unwrap_or_else(|e| panic!("{history}, {e}"));
        let found = compare(&model, &mut target);
        assert!(found.is_empty(), "{history}: {}", found.join("\n"));
    }
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    0..count
}

#[test]
fn the_model_is_what_a_local_file_system_is() {
    for seed in seeds() {
        play(&std::env::temp_dir(), seed, Profile::of_seed(seed), 600);
    }
}

#[test]
fn the_model_is_what_tmpfs_is() {
    let base = std::path::Path::new("/dev/shm");
    if !base.is_dir() {
        return;
    }
    for seed in seeds() {
        play(base, seed, Profile::of_seed(seed), 600);
    }
}

#[test]
fn large_directories() {
    let mut profile = Profile::new(Flavour::Names);
    profile.entries_max = 12_000;
    profile.burst_max = 6000;
    play(&std::env::temp_dir(), 4711, profile, 300);
}
