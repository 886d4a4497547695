//! Power cuts at and between flushes while the log writer serves fsync and fdatasync: every state
//! the disk can be left in must mount, be sound, and hold what was acknowledged.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use silt_device::{CrashOptions, CrashStates, Device, MemoryDevice, Recorder};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, WriteFlags};

use crate::config::MountOptions;
use crate::core::{Core, Want};
use crate::writer::Writer;

const FILES: u64 = 12;
const BLOCKS: usize = 5;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What was acknowledged of one name when a mark was set: at least this version, or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    AtLeast(u8),
    Gone(u8),
}

/// Everything written to the names, and what each mark promises.
#[derive(Default)]
struct History {
    promises: Vec<BTreeMap<u64, Promise>>,
    /// Every deletion: name and last version.
    deletions: Vec<(u64, u8)>,
}

fn mkfs(block_size: u32) -> MemoryDevice {
    let device = MemoryDevice::new(48 << 20);
    let parameters = Parameters {
        block_size,
        blocks_per_segment: 64,
        uuid: [1; 16],
        crc_seed: 77,
        now: 1000,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, 48 << 20).unwrap().write(&device, false).unwrap();
    device
}

fn open(device: Arc<dyn Device>) -> Fs {
    let (mut volume, _) = Volume::open(device, &OpenOptions { now: 2000, ..OpenOptions::default() }).unwrap();
    volume.take_over(2000).unwrap();
    Fs::new(volume, &silt_fs::Options::default())
}

fn name(file: u64) -> Vec<u8> {
    format!("file{file}").into_bytes()
}

/// Runs `steps` random changes, each acknowledged by fsync or fdatasync, and marks every answer.
fn work(device: &Arc<Recorder<MemoryDevice>>, block_size: usize, seed: u64, steps: u64) -> History {
    let core = Core::new(open(device.clone() as Arc<dyn Device>), MountOptions::default());
    let writer = {
        let writer = Writer::new(core.clone(), Duration::from_millis(20));
        std::thread::spawn(move || writer.run())
    };
    let ctx = Context { privileged: true, ..Context::default() };
    let mut random = Random(seed);
    let mut history = History::default();
    let mut now: BTreeMap<u64, Promise> = BTreeMap::new();
    let mut versions: BTreeMap<u64, u8> = BTreeMap::new();
    for _ in 0..steps {
        let file = random.below(FILES);
        let version = versions.entry(file).or_insert(0);
        let mut fs = core.fs.lock();
        let found = fs.lookup(Tree::Live, Ino::ROOT, &name(file)).ok();
        let want = match (found, random.below(10)) {
            (Some(_), 0) => {
                fs.unlink(&ctx, Ino::ROOT, &name(file)).unwrap();
                now.insert(file, Promise::Gone(*version));
                history.deletions.push((file, *version));
                Want::All
            }
            (found, how) => {
                *version = version.wrapping_add(1).max(1);
                let ino = match found {
                    Some(s) => s.ino,
                    None => fs.create(&ctx, Ino::ROOT, &name(file), 0o100_644).unwrap().ino,
                };
                let data = vec![*version; BLOCKS * block_size];
                fs.write(&ctx, ino, 0, &data, WriteFlags::default()).unwrap();
                now.insert(file, Promise::AtLeast(*version));
                if how < 7 { Want::Data(ino) } else { Want::All }
            }
        };
        drop(fs);
        core.touched();
        if random.below(4) == 0 {
            // Not asked for: may or may not be there, until something else makes it durable.
            continue;
        }
        core.sync_and_wait(want).unwrap();
        // fdatasync promises one file, everything else all of them.
        let mut promised = history.promises.last().cloned().unwrap_or_default();
        match want {
            Want::All | Want::Changes | Want::File(_) => promised = now.clone(),
            Want::Data(_) => {
                promised.insert(file, now[&file]);
            }
        }
        device.mark(history.promises.len() as u64);
        history.promises.push(promised);
    }
    core.queue.lock().stop = true;
    core.wake.notify_all();
    writer.join().unwrap();
    history
}

/// Versions only grow (and wrap far away from here), so "at least" is a comparison.
fn check(
    state: MemoryDevice,
    promised: &BTreeMap<u64, Promise>,
    deletions: &[(u64, u8)],
    block_size: usize,
    what: &str,
) {
    let device = Arc::new(state);
    let before = silt_verify::check(&*device, &silt_verify::Options::default());
    assert!(before.is_clean(), "{what}: {}", before.error_text());
    let mut fs = open(device.clone());
    for file in 0..FILES {
        let found = fs.lookup(Tree::Live, Ino::ROOT, &name(file)).ok();
        let version = found.map(|s| {
            let data = fs.read(Tree::Live, s.ino, 0, usize::MAX).unwrap();
            let first = data.first().copied().unwrap_or(0);
            assert!(data.iter().all(|b| *b == first), "{what}: file {file} is mixed");
            assert!(data.is_empty() || data.len() == BLOCKS * block_size, "{what}: {} bytes", data.len());
            first
        });
        match (promised.get(&file), version) {
            (Some(Promise::AtLeast(v)), Some(found)) => {
                assert!(found >= *v, "{what}: file {file} has version {found}, {v} was promised");
            }
            (Some(Promise::AtLeast(v)), None) => {
                // Gone only if it was deleted later, without anybody asking for that to last.
                let deleted = deletions.iter().any(|(f, last)| *f == file && last >= v);
                assert!(deleted, "{what}: file {file} is lost, version {v} was promised");
            }
            (Some(Promise::Gone(v)), Some(found)) => {
                assert!(found > *v || found == 0, "{what}: file {file} came back with version {found}");
            }
            _ => {}
        }
    }
    fs.volume_mut().close(3000).unwrap();
    drop(fs);
    let after = silt_verify::check(&*device, &silt_verify::Options::default());
    assert!(after.is_clean(), "{what}, after recovery: {}", after.error_text());
}

fn campaign(block_size: u32, seed: u64, steps: u64, max_states: usize) -> usize {
    let base = mkfs(block_size);
    let device = Arc::new(Recorder::new(base.fork()));
    let history = work(&device, block_size as usize, seed, steps);
    let options = CrashOptions { seed, max_states, per_flush: 6 };
    let mut states = 0;
    for state in CrashStates::new(&base, device.record().events(), options) {
        let state = state.unwrap();
        let promised = state
            .acknowledged
            .iter()
            .max()
            .and_then(|m| history.promises.get(*m as usize))
            .cloned()
            .unwrap_or_default();
        let what = format!("seed {seed}, {}", state.cut);
        check(state.device, &promised, &history.deletions, block_size as usize, &what);
        states += 1;
    }
    states
}

/// 500 and more states in all; `SILT_CRASH_SEEDS` runs as many more seeds.
#[test]
fn every_cut_leaves_what_was_promised() {
    let seeds = std::env::var("SILT_CRASH_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let mut states = 0;
    for seed in 0..seeds {
        states += campaign(4096, seed, 120, 220);
        states += campaign(1024, seed + 1000, 60, 120);
    }
    println!("{states} states");
    assert!(states >= 500, "{states} states");
}

/// Between the request for durability and its answer there is a log write and then a flush.
#[test]
fn an_answer_comes_after_its_log_and_a_flush() {
    use silt_device::Event;
    let base = mkfs(4096);
    let device = Arc::new(Recorder::new(base));
    work(&device, 4096, 5, 60);
    let mut written = false;
    let mut marks = 0;
    for event in device.record().events() {
        match event {
            Event::Change(_) => written = true,
            Event::Flush { .. } | Event::Durable { .. } => written = false,
            Event::Mark(_) => {
                assert!(!written, "acknowledged with writes that no flush covers");
                marks += 1;
            }
            Event::FlushFailed { .. } => panic!("no flush fails here"),
        }
    }
    assert!(marks > 20);
}
