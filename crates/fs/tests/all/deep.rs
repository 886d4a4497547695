//! Renames of directories far below the root.

use std::sync::Arc;

use silt_device::{Counter, Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError};

fn ctx() -> Context {
    Context { privileged: true, ..Context::default() }
}

fn open(device: Arc<dyn Device>, cache_bytes: u64) -> Fs {
    let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device, &options).unwrap();
    volume.take_over(2_000).unwrap();
    Fs::new(volume, &silt_fs::Options::default())
}

fn new(size: u64) -> Arc<Counter<MemoryDevice>> {
    let device = Arc::new(Counter::new(MemoryDevice::new(size)));
    let parameters = Parameters { blocks_per_segment: 256, now: 1_000, ..Parameters::default() };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    device
}

/// Makes a directory as the kernel has it: it remembers what it was told.
fn mkdir(fs: &mut Fs, above: Ino, name: &[u8]) -> Ino {
    let made = fs.mkdir(&ctx(), above, name, 0o755).unwrap().ino;
    fs.remember_in(made, above);
    made
}

/// All others wait for who goes up there.
#[test]
fn who_came_there_step_by_step_reads_nothing_on_the_way_up() {
    let device = new(64 << 20);
    let mut fs = open(device.clone(), 4 << 20);
    let mut chain = vec![Ino::ROOT];
    for n in 0..1000 {
        chain.push(mkdir(&mut fs, chain[n], b"d"));
    }
    fs.mkdir(&ctx(), Ino::ROOT, b"a", 0o755).unwrap();
    fs.mkdir(&ctx(), Ino::ROOT, b"b", 0o755).unwrap();
    fs.sync_all(3000).unwrap();
    let last = chain[1000];
    let reads = |fs: &mut Fs, name: &[u8]| {
        let before = device.counts().reads.requests;
        fs.rename(&ctx(), Ino::ROOT, name, last, name, 0).unwrap();
        assert_eq!(fs.rename(&ctx(), Ino::ROOT, b"d", last, b"d", 0), Err(FsError::Invalid));
        device.counts().reads.requests - before
    };
    drop(fs);
    // Hardly anything has room in memory.
    let mut fs = open(device.clone(), 256 << 10);
    for (above, here) in chain.iter().zip(&chain[1..]) {
        let found = fs.lookup(Tree::Live, *above, b"d").unwrap().ino;
        assert_eq!(found, *here);
        fs.remember_in(found, *above);
    }
    let few = reads(&mut fs, b"a");
    assert!(few < 30, "{few} reads");
    // Who comes by a handle knows nothing of the way.
    fs.forget_all().unwrap();
    let all = reads(&mut fs, b"b");
    assert!(all > 500, "{all} reads");
}

/// Whatever moved before, and whoever is remembered.
#[test]
fn no_directory_comes_below_itself() {
    const DIRS: usize = 24;
    let mut fs = open(new(32 << 20), 4 << 20);
    let all: Vec<Ino> = (0..DIRS).map(|n| mkdir(&mut fs, Ino::ROOT, &[b'a' + n as u8])).collect();
    let mut above = [None; DIRS];
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut refused = 0;
    for step in 0..4000 {
        let (this, to) = (next(DIRS), next(DIRS + 1).checked_sub(1));
        let ino = |dir: Option<usize>| dir.map_or(Ino::ROOT, |n| all[n]);
        let name = [b'a' + this as u8];
        let mut up = to;
        while let Some(n) = up.filter(|n| *n != this) {
            up = above[n];
        }
        let (from, into) = (ino(above[this]), ino(to));
        let moved = fs.rename(&ctx(), from, &name, into, &name, 0);
        assert_eq!(moved, if up.is_some() { Err(FsError::Invalid) } else { Ok(None) }, "step {step}");
        refused += usize::from(up.is_some());
        if moved.is_ok() {
            above[this] = to;
        }
        // The kernel forgets some, and comes again.
        if step % 3 == 0 {
            let (n, dir) = (next(DIRS), ino(above[this]));
            fs.forget(all[n], u64::MAX).unwrap();
            if fs.lookup(Tree::Live, dir, &name).is_ok() {
                fs.remember_in(all[this], dir);
            }
        }
        if step % 500 == 0 {
            fs.sync_all(3000 + step).unwrap();
        }
        let here = fs.lookup(Tree::Live, all[this], b"..").unwrap().ino;
        assert_eq!(here, ino(above[this]), "step {step}");
    }
    assert!(refused > 100, "{refused}");
}
