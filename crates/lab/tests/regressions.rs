//! What the campaign found once, as short as it was made.
#![allow(clippy::unwrap_used, clippy::panic)]

use silt_device::{Content, CrashOptions, Device as _, Event, MemoryDevice};
use silt_lab::campaign::examine;
use silt_lab::history::Progress;
use silt_lab::random::{Kind, random};
use silt_lab::workload::{Fails, Step, Workload, ops};
use silt_lab::{driver, oracle};
use silt_model::rng::mix;

/// As many cuts as there are.
fn survives(mut workload: Workload, setup: &str, steps: &str) {
    workload.setup = ops(setup).unwrap();
    workload.steps = ops(steps).unwrap().into_iter().map(Step::Op).collect();
    survives_cuts(&workload);
}

fn survives_cuts(workload: &Workload) {
    let options = CrashOptions { seed: 1, max_states: 2000, per_flush: 100 };
    let mut states = 0;
    let result = examine(workload, options, &mut |_, _, _| {
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

/// What is cut off in parts has a checkpoint after each: a cut leaves the file so far as the parts came, in a file that
/// grows again and in one that is synced in between, too.
#[test]
fn what_goes_in_parts_is_there_as_far_as_it_came() {
    for (name, barrier) in [("parts", true), ("parts-nobarrier", false)] {
        let mut workload = Workload { barrier, ..Workload::new(name, 3, 1024) };
        workload.size = 8 << 20;
        workload.device_size = workload.size;
        workload.setup =
            ops("create a 644\nwrite :a 0 60000 1\ncreate b 644\nwrite :b 0 40000 2\ncreate c 644").unwrap();
        let steps = "truncate :a 3000\nwrite :a 8000 9000 3\nfdatasync :a\nfallocate :b punch 5000 30001\n\
                     write :b 9000 2000 4\nfdatasync :b\nwrite :c 0 50000 5\nfallocate :c zero 1000 90000\n\
                     truncate :c 0\nsync";
        workload.steps = ops(steps).unwrap().into_iter().map(Step::Op).collect();
        let history = driver::play(&workload).unwrap();
        assert!(history.parts > 30, "{}", history.parts);
        survives_cuts(&workload);
    }
}

/// An fsync that finds no space leaves a checkpoint to be written; when there is space an fdatasync writes that first, and
/// its data behind it.
fn synced_behind_a_late_checkpoint() -> Workload {
    let op = |text: &str| Step::Op(ops(text).unwrap().remove(0));
    let mut workload = Workload::new("late checkpoint", 1, 4096);
    workload.setup = ops("create a 644\nwrite :a 0 9000 1\ncreate b 644").unwrap();
    workload.steps = vec![
        Step::Full(true),
        op("truncate :a 5000"),
        op("fsync :a"),
        op("chown b 7 8"),
        Step::Full(false),
        op("write :a 0 4096 2"),
        op("fdatasync :a"),
    ];
    workload
}

#[test]
fn data_is_synced_behind_a_checkpoint_that_was_late() {
    survives_cuts(&synced_behind_a_late_checkpoint());
}

/// The judge asks for that data once its caller was answered.
#[test]
fn data_behind_a_late_checkpoint_is_asked_for() {
    let workload = synced_behind_a_late_checkpoint();
    let history = driver::play(&workload).unwrap();
    let last = history.end(1).unwrap().unwrap();
    let progress = Progress::of(&last.acknowledged);
    assert_eq!(progress.answered, workload.steps.len());
    assert!(history.done.last().unwrap().answered && !history.done[3].answered);
    let mut seen = oracle::look(oracle::disk(&last.device), oracle::ALL).unwrap();
    oracle::judge(&history, progress, &seen, true).unwrap();
    // The checkpoint alone.
    seen.live = history.checkpoints.last(seen.cno).unwrap().state.tree.clone();
    let lost = oracle::judge(&history, progress, &seen, true).unwrap_err();
    assert!(lost.0.contains("with 1 files' synced data"), "{lost}");
}

/// fdatasync promises the size, too: a log of data alone behind the checkpoint before is not enough where it changed.
#[test]
fn a_size_that_was_synced_is_asked_for() {
    let mut workload = Workload::new("size", 1, 4096);
    workload.setup = ops("create a 644\nwrite :a 0 9000 1").unwrap();
    workload.steps = ops("append a 3000 2\nfdatasync :a").unwrap().into_iter().map(Step::Op).collect();
    let mut history = driver::play(&workload).unwrap();
    let before = history.done[0].cno;
    assert!(history.done[2].answered && history.done[2].cno > before);
    let seen = oracle::look(oracle::disk(&history.lives[0].base), oracle::ALL).unwrap();
    assert_eq!(seen.cno, before);
    // As if no checkpoint had been made.
    history.done[2].cno = before;
    let lost = oracle::judge(&history, Progress { begun: 2, answered: 2 }, &seen, true).unwrap_err();
    assert!(lost.0.contains("with 1 files' synced data"), "{lost}");
}

/// Many files are made until there is no space: those that were made are there.
#[test]
fn what_was_done_before_there_was_no_space_stays() {
    let mut workload = Workload::new("many", 1, 4096);
    (workload.size, workload.device_size) = (2 << 20, 2 << 20);
    survives(workload, "mkdir A 755", "many A =b 0 400 fill 8000 1\nsync\nfsync :A");
}

/// Files that cannot be written are there when a volume is left with synced data.
#[test]
fn a_volume_with_immutable_files_is_left_unclean() {
    let mut workload = Workload { unclean: true, with_mount: true, ..Workload::new("immutable", 1, 4096) };
    workload.setup =
        ops("create a 644\nwrite :a 0 9000 1\nset-flags a 0x10\ncreate b 644\nwrite :b 0 9000 2").unwrap();
    workload.steps = vec![Step::Op(ops("sync").unwrap().remove(0))];
    survives_cuts(&workload);
}

/// Who asks for no file's data is no caller to whom what failed before could be promised.
#[test]
fn nothing_is_promised_to_nobody() {
    let op = |text: &str| Step::Op(ops(text).unwrap().remove(0));
    let mut workload = Workload::new("nobody", 1, 4096);
    workload.setup = ops("create a 644\nwrite :a 0 9000 1").unwrap();
    workload.steps = vec![
        Step::Full(true),
        op("write :a 0 4096 2"),
        op("fdatasync :a"),
        Step::DataSyncs(Vec::new()),
        op("write :a 0 4096 3"),
        Step::Full(false),
        op("sync"),
    ];
    survives_cuts(&workload);
}

/// However little of the reserve is left: what a checkpoint that was cut off took is there for who mounts the volume then, which needs
/// no more than that had, and nothing that was promised is missing.
#[test]
fn a_volume_that_was_left_with_hardly_a_clean_segment_can_be_written() {
    for seed in 0..100 {
        let mut workload = random(Kind::Churn, seed);
        workload.steps.retain(|step| *step != Step::Clean);
        let history = driver::play(&workload).unwrap();
        let last = history.end(1).unwrap().unwrap();
        let seen = oracle::look(oracle::disk(&last.device), oracle::ALL).unwrap();
        oracle::judge(&history, Progress::of(&last.acknowledged), &seen, true).unwrap();
        assert!(!seen.full, "seed {seed}");
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
        let workload = random(kind, 5);
        let record = || {
            silt_lab::driver::play(&workload)
                .unwrap()
                .lives
                .into_iter()
                .map(|life| life.events)
                .collect::<Vec<_>>()
        };
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

/// Logs of a repair that was cut off lie in free segments, some of them, and the next one writes its first log before them:
/// they are not taken for what follows it.
#[test]
fn what_a_repair_left_is_not_taken_for_the_next_one_s() {
    let (mut states, seed) = (0, mix(9191 ^ 6939));
    let result = silt_lab::mending::examine(seed, &mut |_, _| {
        states += 1;
        true
    });
    assert!(result.unwrap() && states > 20, "{states} states");
}

/// A super block and a log in the midst of the last checkpoint are damaged: with the super block alone put right Linux would go on
/// with the rest of that checkpoint, as its real driver did, and Silt with the one before.
#[test]
fn after_a_repair_nobody_goes_on_behind_a_damaged_log() {
    for seed in [mix(64 ^ 39), mix(20_261_127 ^ 5939)] {
        let mut states = 0;
        let result = silt_lab::mending::examine(seed, &mut |_, _| {
            states += 1;
            true
        });
        assert!(result.unwrap() && states > 10, "{states} states");
    }
}

/// Symlinks side by side lose their targets: that is no damage of the block with their inodes, nor is what a repair could
/// not bring back of them. What shares the block with them stays.
#[test]
fn nothing_goes_with_symlinks_that_lost_their_targets() {
    let mut workload = Workload::new("symlinks", 1, 4096);
    let mut setup = String::new();
    for n in 0..5 {
        setup += &format!("create f{n} 644\nwrite :f{n} 0 9000 {n}\nsymlink l{n} =target-of-{n}\n");
    }
    (workload.setup, workload.steps) = (ops(&setup).unwrap(), vec![Step::Op(ops("sync").unwrap().remove(0))]);
    let device = driver::play(&workload).unwrap().end(1).unwrap().unwrap().device;
    let sound = oracle::look(oracle::disk(&device), oracle::ALL).unwrap().live;
    let mut targets = Vec::new();
    device.for_each_chunk(|at, bytes| {
        let blocks = bytes.chunks(4096).enumerate().filter(|(_, b)| b.starts_with(b"target-of-"));
        targets.extend(blocks.map(|(n, b)| (at + n as u64 * 4096, b.len())));
    });
    assert_eq!(targets.len(), 5);
    for (at, len) in targets {
        device.write_at(at, &[&vec![0xff; len]]).unwrap();
    }
    let options = silt_repair::Options { now: 2_000_000_000, cache_bytes: 8 << 20, ..Default::default() };
    let plan = silt_repair::plan(oracle::disk(&device), &options).unwrap();
    let said: Vec<_> = plan.rounds.iter().flat_map(|r| &r.done).collect();
    let left: Vec<_> = plan.after.errors().map(ToString::to_string).collect();
    assert!(left.is_empty(), "{left:#?}\n{said:#?}");
    plan.apply(&device).unwrap();
    let mended = oracle::look(oracle::disk(&device), oracle::ALL).unwrap().live;
    let files: Vec<_> = sound.entries().filter(|e| e.mode & 0o170_000 == 0o100_000).collect();
    assert_eq!(files.len(), 5);
    for file in files {
        assert_eq!(mended.get(&file.path), Some(file), "{said:#?}");
    }
}

/// A volume of 64 segments with files all over it, which shrinks, is written on, and grows again.
fn shrinking(segment: u32) -> Workload {
    let segments = u64::from(segment) * 4096;
    let mut workload = Workload { segment, ..Workload::new("shrinking", 1, 4096) };
    (workload.size, workload.device_size) = (64 * segments, 64 * segments);
    let mut setup = String::new();
    for n in 0..20 {
        setup += &format!("create f{n} 644\nwrite :f{n} 0 {} {n}\n", segments / 2);
    }
    workload.setup = ops(&setup).unwrap();
    let op = |text: &str| Step::Op(ops(text).unwrap().remove(0));
    for n in 0..12 {
        workload.steps.push(op(&format!("unlink f{n}")));
        workload.steps.push(op("sync"));
    }
    workload.steps.extend([
        op("snapshot"),
        op("write :f19 0 9000 77"),
        Step::Shrink(44 * segments),
        op("write :f18 0 9000 78"),
        op("sync"),
        Step::Discard,
        Step::Grow,
        op("write :f17 0 9000 79"),
        op("fsync :f17"),
    ]);
    workload
}

#[test]
fn a_volume_that_shrinks_has_one_size_or_the_other() {
    for segment in [16, 32] {
        survives_cuts(&shrinking(segment));
    }
}

/// It did shrink, and the device may be cut off there at once.
#[test]
fn the_end_of_a_volume_that_shrank_holds_nothing() {
    let mut workload = shrinking(16);
    let at = workload.steps.iter().position(|s| matches!(s, Step::Shrink(_))).unwrap();
    workload.steps.truncate(at + 1);
    let history = driver::play(&workload).unwrap();
    let last = history.end(1).unwrap().unwrap();
    let Step::Shrink(size) = workload.steps[at] else { panic!("no shrinking") };
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    last.device.read_at(0, &mut bytes).unwrap();
    let cut = MemoryDevice::from_bytes(&bytes);
    for device in [oracle::disk(&last.device), oracle::disk(&cut)] {
        let sb = silt_engine::read_super_block(&*device).unwrap();
        assert_eq!((sb.nsegments.get(), sb.dev_size.get()), (43, size), "the last one is the super block's");
        let seen = oracle::look(device, oracle::ALL).unwrap();
        oracle::judge(&history, Progress::of(&last.acknowledged), &seen, true).unwrap();
    }
}

/// What is clean is discarded while the log goes on: old data, zeroes, or any mix of both lie there after a cut.
#[test]
fn nothing_that_is_needed_is_discarded() {
    for seed in 0..3 {
        let workload = random(Kind::Discards, seed);
        let options = CrashOptions { seed, max_states: 400, per_flush: 16 };
        let result = examine(&workload, options, &mut |_, _, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
        let discards =
            driver::play(&workload).unwrap().lives[0].events.iter().filter(|e| is_discard(e)).count();
        assert!(discards > 5, "{discards}");
    }
}

fn is_discard(event: &Event) -> bool {
    matches!(event, Event::Change(c) if matches!(c.content, Content::Discarded(_)))
}

/// A device dies while a volume shrinks, and the power fails after the next mount.
#[test]
fn a_mount_stands_on_nothing_that_a_failed_write_left() {
    let seed = 0x75a5_3edc_6d49_a5e6;
    let mut workload = Workload::new("dies", seed, 4096);
    (workload.size, workload.device_size) = (2624 << 10, 2624 << 10);
    workload.steps = vec![
        Step::Fails(Fails::Dies { after: 3, keep: 25_600 }),
        Step::Shrink(2_445_079),
        Step::Works,
        Step::Restart,
        Step::PowerCut,
    ];
    survives_cuts(&workload);
}
