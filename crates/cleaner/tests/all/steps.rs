//! What a step of the cleaner leaves on a volume where nothing else happens

use std::sync::Arc;

use crate::common::{self, file};
use silt_cleaner::{Options, Policy, Whole, run};
use silt_device::MemoryDevice;
use silt_engine::mkfs::Parameters;
use silt_engine::{Tree, Volume};
use silt_format::Ino;

const SIZE: u64 = 64 << 20;

fn volume(blocks_per_segment: u32) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let v =
        common::volume(&device, Parameters { block_size: 1024, blocks_per_segment, ..Parameters::default() });
    (device, v)
}

fn errors(device: &MemoryDevice) -> String {
    let options = silt_verify::Options { all_checkpoints: true, ..silt_verify::Options::default() };
    silt_verify::check(device, &options).error_text()
}

/// What is wrong with the volume, but that the file has no name and no size.
fn errors_besides(device: &MemoryDevice) -> Vec<String> {
    let known = ["error [inode-size]", "error [inode-lost]"];
    let all = errors(device);
    all.lines().filter(|l| !known.iter().any(|k| l.starts_with(k))).map(str::to_owned).collect()
}

/// Blocks of the checkpoint file that move are followed by those that the cleaning changes: its data comes after nodes
/// in one log.
#[test]
fn a_large_checkpoint_file_moves() {
    let (device, mut v) = volume(16);
    for now in 0..400 {
        v.attr_mut(Ino::ROOT).unwrap().mtime.secs = now;
        v.checkpoint(3000 + now.cast_unsigned()).unwrap();
    }
    let mut moved = 0;
    for round in 0..4 {
        for policy in Policy::ALL {
            let options = Options { policy, oldest: Some(1), now: 9000, ..Options::default() };
            let whole = Whole::new(&mut v, 9000 + round);
            let outcome = run(&whole, &options, |_| true).unwrap();
            assert_eq!(outcome.aside, []);
            moved += outcome.cleaned.moved;
            assert_eq!(errors(&device), "");
        }
        // Something dies, so that there is something to gain.
        for now in 0..20 {
            v.attr_mut(Ino::ROOT).unwrap().mtime.secs = now;
            v.checkpoint(9500 + round * 100 + now.cast_unsigned()).unwrap();
        }
    }
    assert!(moved > 100, "{moved} blocks");
}

/// A segment of which more is needed than a step moves goes as a whole: no record of it is left behind.
#[test]
fn large_segments_go_as_a_whole() {
    let (device, mut v) = volume(2048);
    let ino = file(&mut v);
    for key in 0..9000u64 {
        v.write_block(ino, key, vec![1; 1024].into()).unwrap();
    }
    v.checkpoint(3000).unwrap();
    for key in (0..9000u64).filter(|k| k % 4 == 0) {
        v.write_block(ino, key, vec![2; 1024].into()).unwrap();
    }
    v.checkpoint(4000).unwrap();
    let mut options = Options { now: 5000, ..Options::default() };
    options.limits.moves = 100;
    let whole = Whole::new(&mut v, 5000);
    let mut steps = Vec::new();
    let outcome = run(&whole, &options, |p| {
        steps.push(p.cleaned);
        true
    })
    .unwrap();
    assert_eq!(outcome.aside, []);
    assert!(outcome.cleaned.segments >= 3, "{:?}", outcome.cleaned);
    assert_eq!(errors_besides(&device), [""; 0]);
    assert!(steps.iter().all(|s| s.segments > 0), "a step that freed nothing: {steps:?}");
    for key in 0..9000u64 {
        let byte = if key % 4 == 0 { 2 } else { 1 };
        let block = v.read_block(Tree::Live, ino, key).unwrap().expect("data");
        assert!(block.iter().all(|b| *b == byte), "block {key}");
    }
}
