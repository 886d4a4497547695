//! The instrument must agree with a kernel that is right and must notice what is not.
//! Needs the packages of `cargo xtask rig`.

#![allow(clippy::unwrap_used, clippy::panic)] // A test: both are how it fails.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use silt_model::caps::Capabilities;
use silt_model::content::pattern_bytes;
use silt_model::errno::Errno;
use silt_model::manifest::Columns;
use silt_model::model::Model;
use silt_model::op::Op;
use silt_model::target::Outcome;
use xtask::guest::Options;
use xtask::prove::{Geometry, Plan, mkfs, prove};
use xtask::rig::Rig;
use xtask::turn::{KernelTurn, Trees, TurnReport, kernel_turns};

const SMALL: Geometry = Geometry { block_size: 1024, segment: 16, size: 16 << 20 };

#[test]
fn the_kernel_agrees_with_itself() {
    let work = Plan {
        seeds: 0..3,
        ops: 200,
        turns: 2,
        guests: 2,
        cut: true,
        thorough: true,
        clean: true,
        keep: None,
    };
    prove(&Rig::find().unwrap(), &work).unwrap();
}

/// The lines of operations as the kernel's turn on a new volume.
fn turn(rig: &Rig, image: &Path, lines: &str) -> KernelTurn {
    mkfs(rig, image, SMALL).unwrap();
    let mut model = Model::new(Capabilities::kernel(SMALL.block_size)).with_nilfs_file();
    let ops: Vec<(Op, Outcome)> = Op::parse_all(lines)
        .unwrap()
        .into_iter()
        .map(|op| {
            let outcome = model.apply(&op);
            (op, outcome)
        })
        .collect();
    KernelTurn {
        read_only: false,
        ops,
        after: Some(Trees::of_model(&model)),
        probes: model.deep_ranges(),
        ..KernelTurn::look(image, SMALL.block_size)
    }
}

fn go(rig: &Rig, turn: &KernelTurn) -> TurnReport {
    kernel_turns(rig, std::slice::from_ref(turn), 1, &Options::default()).unwrap().remove(0)
}

fn complains(report: &TurnReport, what: &str) {
    assert!(report.complaints.iter().any(|line| line.contains(what)), "{what}: {:#?}", report.complaints);
}

const LINES: &str = "create f 644\nwrite :f 0 3000 77\nutimens f 5.5\nsnapshot\nmkdir d 755\nwrite :f 5 5 1";

#[test]
fn what_is_wrong_is_noticed() {
    let rig = Rig::find().unwrap();
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    let good = turn(&rig, &image, LINES);

    // A kernel that answers and does other than the model says.
    let mut wrong = good.clone();
    wrong.ops[4].1 = Err(Errno::EEXIST);
    let mut other = Model::new(Capabilities::kernel(SMALL.block_size)).with_nilfs_file();
    Op::parse_all(&LINES.replace("5.5", "5.6")).unwrap().iter().for_each(|op| drop(other.apply(op)));
    wrong.after = Some(Trees::of_model(&other));
    let report = go(&rig, &wrong);
    complains(&report, "mkdir d 755: expected error 17, got done");
    complains(&report, "snapshot 0: f: mtime 5.000000006 / 5.000000005");

    // All is well, and the next turn sees the same again.
    mkfs(&rig, &image, SMALL).unwrap();
    let report = go(&rig, &good);
    assert!(report.complaints.is_empty(), "{:#?}", report.complaints);
    let trees = report.trees.clone().unwrap();
    let look = KernelTurn {
        before: vec![(trees, Columns::ALL)],
        snapshots: report.snapshots.clone(),
        ..KernelTurn::look(&image, SMALL.block_size)
    };
    let again = go(&rig, &look);
    assert!(again.complaints.is_empty(), "{:#?}", again.complaints);

    // A snapshot that is none, and a volume that is none.
    let missing = KernelTurn { snapshots: BTreeMap::from([(0, 1)]), ..look.clone() };
    complains(&go(&rig, &missing), "the turn was not finished");

    // A byte of the snapshot's data, which no checksum is looked at for when reading.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let mut bytes = vec![0; 16 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let wanted = &pattern_bytes(77, 1024)[..];
    let at = bytes.windows(1024).position(|window| window == wanted).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    complains(&go(&rig, &look), "snapshot 0: f: content");
}

#[test]
fn a_cut_keeps_what_was_synced_and_a_volume_grows() {
    let rig = Rig::find().unwrap();
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    let lines = "create f 644\nwrite :f 0 9000 7\nsync\nwrite :f 4000 100 9\nfdatasync :f";
    let cut = KernelTurn { cut: true, ..turn(&rig, &image, lines) };
    let report = go(&rig, &cut);
    assert!(report.complaints.is_empty(), "{:#?}", report.complaints);
    let look = KernelTurn {
        read_only: false,
        before: vec![(cut.after.clone().unwrap(), Columns::MODEL)],
        after: cut.after.clone(),
        grow_to: Some(32 << 20),
        tools: true,
        ..KernelTurn::look(&image, SMALL.block_size)
    };
    let report = go(&rig, &look);
    assert!(report.complaints.is_empty(), "{:#?}", report.complaints);

    // Without the last sync the last write must be missing.
    let lines = "create f 644\nwrite :f 0 9000 7\nsync\nwrite :f 4000 100 9";
    let cut = KernelTurn { cut: true, ..turn(&rig, &image, lines) };
    go(&rig, &cut);
    let look = KernelTurn {
        before: vec![(cut.after.clone().unwrap(), Columns::MODEL)],
        read_only: false,
        ..KernelTurn::look(&image, SMALL.block_size)
    };
    complains(&go(&rig, &look), "f: content");
}
