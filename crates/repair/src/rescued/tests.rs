use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Device, MemoryDevice, Overlay};
use silt_engine::mend::{Known, Mender, Wounds};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{Attr, OpenOptions, Time, Tree, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, WriteFlags};
use silt_verify::Unwatched;

use super::{Wanted, bring};

const NOW: u64 = 1_900_000_000;
/// Bytes of the large file.
const LARGE: u64 = 24 << 20;
/// Numbers of the files: the large one is between small ones.
const FILES: [(u64, u64); 3] = [(11, 9000), (12, LARGE), (13, 5000)];

fn opened() -> OpenOptions {
    OpenOptions { now: NOW, seed: 3, ..OpenOptions::default() }
}

/// A volume of so many MiB with a large file between two small ones.
fn volume(mebibytes: u64) -> Arc<dyn Device> {
    let size = mebibytes << 20;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters {
        blocks_per_segment: 256,
        uuid: [8; 16],
        crc_seed: 78,
        now: 1000,
        ..Parameters::default()
    };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    let (mut volume, _) = Volume::open(device.clone(), &opened()).unwrap();
    volume.take_over(2000).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { now: Time { secs: 3000, nanos: 0 }, privileged: true, ..Context::default() };
    for (nr, len) in FILES {
        let ino = fs.create(&ctx, Ino::ROOT, format!("{nr}").as_bytes(), 0o100_644).unwrap().ino;
        assert_eq!(ino, Ino(nr));
        let bytes: Vec<u8> = (0..len).map(|at| (at / 7 + nr) as u8).collect();
        for (n, part) in bytes.chunks(1 << 20).enumerate() {
            fs.write(&ctx, ino, (n as u64) << 20, part, WriteFlags::default()).unwrap();
        }
    }
    fs.sync_all(9000).unwrap();
    fs.into_volume().close(9001).unwrap();
    device
}

/// All files are gone in the mended tree: what it has of each when it got back what a rescue reads, and what was said. And how
/// much memory that took.
fn brought(mebibytes: u64, memory: u64, what_fits: bool) -> (Vec<Option<Attr>>, Vec<String>, u64) {
    let device = volume(mebibytes);
    let trial = Arc::new(Overlay::new(device.clone()));
    let wounds = Wounds { known: Known::of(&device), ..Wounds::default() };
    let mut mender = Mender::open(trial.clone(), &opened(), &wounds).unwrap();
    for (nr, _) in FILES {
        mender.volume().delete_inode(Ino(nr)).unwrap();
    }
    let checkpoint = silt_engine::mend::checkpoints(device.clone()).unwrap().into_keys().next_back().unwrap();
    let none = BTreeSet::new();
    let wanted = Wanted {
        original: &*device,
        checkpoint,
        told: &none,
        put_back: &none,
        whole_only: false,
        memory,
        what_fits,
        now: NOW,
    };
    let (mut said, mut doubts) = (Vec::new(), Vec::new());
    assert!(bring(&mut mender, &trial, &wanted, &Unwatched, &mut said, &mut doubts).unwrap());
    let attr = |nr| mender.volume().inode(Tree::Live, Ino(nr)).ok().map(|i| i.attr.clone());
    let there = FILES.map(|(nr, _)| nr).map(attr).to_vec();
    mender.finish(NOW).unwrap();
    (there, said, trial.memory())
}

/// Whether each has all its bytes again.
fn whole(there: &[Option<Attr>]) -> Vec<bool> {
    let same = |((_, len), attr): (&(u64, u64), &Option<Attr>)| attr.as_ref().is_some_and(|a| a.size == *len);
    FILES.iter().zip(there).map(same).collect()
}

#[test]
fn a_file_that_is_too_large_for_memory_is_left_and_others_are_taken() {
    let (there, said, all) = brought(128, 1 << 30, false);
    assert_eq!(whole(&there), [true; 3], "{said:?}");
    assert!(all > 2 * LARGE, "{all}");
    let (there, said, some) = brought(128, 2 * LARGE, false);
    assert_eq!(whole(&there), [true, false, true], "{said:?}");
    let left = "inode 12: a rescue reads what is not in it now, and there is too little memory for it: silt rescue copies it out: do \
                that first";
    assert!(said.iter().any(|line| line == left), "{said:?}");
    assert!(some < 8 << 20, "{some}");
}

#[test]
fn a_file_that_does_not_fit_into_the_free_space_is_left_and_others_are_taken() {
    let (there, said, _) = brought(40, 1 << 30, true);
    assert_eq!(whole(&there), [true, false, true], "{said:?}");
    assert!(said.iter().any(|line| line.contains("it does not fit into the free space")), "{said:?}");
}
