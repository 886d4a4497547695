//! What the campaign found once, as short as it was made.
#![allow(clippy::unwrap_used)]

use silt_device::CrashOptions;
use silt_lab::campaign::examine;
use silt_lab::workload::{Step, Workload, ops};

/// As many cuts as there are.
fn survives(mut workload: Workload, setup: &str, steps: &str) {
    workload.setup = ops(setup).unwrap();
    workload.steps = ops(steps).unwrap().into_iter().map(Step::Op).collect();
    let options = CrashOptions { seed: 1, max_states: 2000, per_flush: 100 };
    let mut states = 0;
    let result = examine(&workload, options, &mut |_, _, _| {
        states += 1;
        true
    });
    assert!(result.is_ok(), "{}", result.unwrap_err());
    assert!(states > 20, "{states}");
}

/// The kernel does not mount a volume whose synced data is that of an inode without links.
#[test]
fn data_of_a_file_without_a_name_is_not_synced_alone() {
    survives(
        Workload::new("nameless", 1, 4096),
        "create a 644\nwrite :a 0 13000 1",
        "open 1 a\nunlink a\nsync\nwrite #1 8192 4096 2\nfdatasync #1\nwrite #1 0 4096 3\nfdatasync #1",
    );
}

/// Without flushes synced data may be missing before a checkpoint that is there, in the next segment.
#[test]
fn without_barriers_no_checkpoint_stands_on_missing_data() {
    for first in 1..12 {
        let workload = Workload { barrier: false, ..Workload::new("nobarrier", first, 4096) };
        // The log of the data ends a segment in one of these.
        let fill = format!("write :b 0 {} 3\nsync\n", first * 4096);
        survives(
            workload,
            "create a 644\nwrite :a 0 4096 1\ncreate b 644",
            &format!("{fill}write :a 0 4096 2\nfdatasync :a\nsync\nwrite :a 0 4096 4\nfdatasync :a\nsync"),
        );
    }
}

/// An old volume's super blocks go before anything they point at.
#[test]
fn mkfs_over_a_volume_leaves_none_or_a_good_one() {
    let mut states = 0;
    for seed in 0..12 {
        let result = silt_lab::bare::examine(seed, &mut |_, _| {
            states += 1;
            true
        });
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
    assert!(states > 100, "{states}");
}

/// The same record each time: what a seed names can be looked at again.
#[test]
fn a_workload_gives_the_same_record_each_time() {
    for kind in silt_lab::random::KINDS {
        let workload = silt_lab::random::random(kind, 5);
        let record = || silt_lab::driver::play(&workload).unwrap().events;
        assert!(record() == record(), "{}", workload.name);
    }
}

/// What a repair that was cut off leaves, the next one mends.
#[test]
fn a_repair_that_was_cut_off_is_finished_by_the_next() {
    let (mut states, mut mended) = (0, 0);
    for seed in 0..6 {
        let result = silt_lab::mending::examine(seed, &mut |_, _| {
            states += 1;
            true
        });
        mended += u32::from(result.unwrap());
    }
    assert!(mended >= 4 && states > 50, "{mended} volumes, {states} states");
}
