//! Makes small volumes that hold every structure: directories, maps of several levels, holes, links, snapshots,
//! deleted files, and with some of them a tail that a mount must recover.
//!
//! The committed bases were made by this once ([`crate::base`]); they are not made anew when the engine changes, so
//! that what was found on them stays a test.

use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_format::{Cno, Ino};
use silt_fs::{Context, Fs, Options, WriteFlags, fallocate_mode};

/// What a base is.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    pub name: &'static str,
    /// Bytes of a block.
    pub block_size: u32,
    pub segments: u64,
    /// Rounds of changes, each ending in a checkpoint.
    pub rounds: u64,
    pub end: End,
}

/// How the volume is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Closed,
    /// As after a power cut, behind a checkpoint.
    Cut,
    /// The same, with data-sync logs behind it.
    Tail,
}

const fn recipe(name: &'static str, block_size: u32, segments: u64, rounds: u64, end: End) -> Recipe {
    Recipe { name, block_size, segments, rounds, end }
}

/// The bases that are made. Segments have 16 blocks, the fewest there can be.
pub const RECIPES: [Recipe; 9] = [
    recipe("small-1k", 1024, 128, 12, End::Closed),
    recipe("small-2k", 2048, 64, 8, End::Closed),
    recipe("small-4k", 4096, 60, 8, End::Closed),
    recipe("small-8k", 8192, 48, 6, End::Closed),
    recipe("small-16k", 16384, 44, 6, End::Closed),
    recipe("small-64k", 65536, 40, 4, End::Closed),
    recipe("many-1k", 1024, 400, 150, End::Closed),
    recipe("cut-1k", 1024, 128, 12, End::Cut),
    recipe("tail-4k", 4096, 64, 6, End::Tail),
];

const START: u64 = 1_700_000_000;

/// Makes a base.
pub fn make(recipe: &Recipe) -> MemoryDevice {
    let size = recipe.segments * 16 * u64::from(recipe.block_size) + 8192;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters {
        block_size: recipe.block_size,
        blocks_per_segment: 16,
        label: recipe.name.into(),
        uuid: [7; 16],
        crc_seed: 0x5117_0001,
        now: START,
        ..Parameters::default()
    };
    Plan::new(parameters, size).and_then(|plan| plan.write(&*device, false)).expect("a plan that fits");
    let options = OpenOptions { cache_bytes: 4 << 20, now: START, seed: 1, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone() as Arc<dyn Device>, &options).expect("a fresh volume");
    volume.take_over(START).expect("a fresh volume");
    let mut fs = Fs::new(volume, &Options { index_bytes: 1 << 20, ..Options::default() });
    for round in 0..recipe.rounds {
        change(&mut fs, recipe, round).unwrap_or_else(|e| panic!("{}, round {round}: {e}", recipe.name));
        let cno = fs.sync_all(START + round * 7).expect("a checkpoint");
        if round % 3 == 1 && round < 40 {
            fs.volume_mut().make_snapshot(Cno(cno)).expect("a snapshot");
        }
    }
    let last = fs.volume().last_log().cno;
    fs.volume_mut().delete_checkpoints(4..last / 3).expect("old checkpoints can be deleted");
    fs.sync_all(START + 5000).expect("a checkpoint");
    match recipe.end {
        End::Closed => fs.into_volume().close(START + 5001).expect("closing"),
        End::Cut => {}
        End::Tail => {
            let ino = fs.resolve(silt_fs::Tree::Live, b"deep").expect("it was made");
            for i in 0..3 {
                let block = vec![0xA0 + i; recipe.block_size as usize];
                let at = u64::from(i) * u64::from(recipe.block_size);
                fs.write(&who(), ino, at, &block, WriteFlags::default()).expect("a write");
                let volume = fs.volume_mut();
                assert!(volume.begin_data_sync(&[ino], START + 6000).expect("a data-sync log"));
                volume.finish_construction(START + 6000).expect("a data-sync log");
            }
        }
    }
    device.fork()
}

fn who() -> Context {
    Context { privileged: true, ..Context::default() }
}

fn change(fs: &mut Fs, recipe: &Recipe, round: u64) -> silt_fs::Result<()> {
    let ctx = who();
    let bs = u64::from(recipe.block_size);
    let root = Ino::ROOT;
    let flags = WriteFlags::default();
    // Content that packs well: the bases are committed.
    let content = |n: u64, seed: u64| vec![seed as u8; n as usize];
    if round == 0 {
        let dir = fs.mkdir(&ctx, root, b"dir", 0o755)?.ino;
        let inner = fs.mkdir(&ctx, dir, b"inner", 0o700)?.ino;
        fs.symlink(&ctx, root, b"link", b"dir/inner/file")?;
        fs.symlink(&ctx, inner, b"long link", &[b'x'; 900])?;
        fs.mknod(&ctx, dir, b"fifo", 0o010_644, (0, 0))?;
        fs.mknod(&ctx, dir, b"device", 0o020_600, (5, 1))?;
        let file = fs.create(&ctx, inner, b"file", 0o644)?.ino;
        fs.write(&ctx, file, 0, &content(3 * bs + 7, 9), flags)?;
        fs.link(&ctx, file, root, b"hard")?;
        // Keys far apart: a map that is deep with few blocks, and a longer run.
        let deep = fs.create(&ctx, root, b"deep", 0o600)?.ino;
        let run = if bs == 1024 { 220 } else { 40 };
        fs.write(&ctx, deep, 0, &content(run.min(recipe.segments * 2) * bs, 3), flags)?;
        for i in 0..12u64 {
            fs.write(&ctx, deep, bs * (1000 + i * i * 7919), &content(10, i), flags)?;
        }
        let names = if bs == 1024 { 60 } else { 24 };
        for i in 0..names {
            fs.create(&ctx, dir, format!("name number {i}").as_bytes(), 0o644)?;
        }
        let sparse = fs.create(&ctx, root, b"sparse", 0o644)?.ino;
        fs.fallocate(&ctx, sparse, fallocate_mode::KEEP_SIZE, 0, bs)?;
        fs.write(&ctx, sparse, 1 << 30, b"end", flags)?;
    }
    let dir = fs.resolve(silt_fs::Tree::Live, b"dir")?;
    let name = format!("round {round}");
    let file = fs.create(&ctx, root, name.as_bytes(), 0o640)?.ino;
    fs.write(&ctx, file, 0, &content(bs / 2 + round, round), flags)?;
    if round % 3 == 2 {
        fs.unlink(&ctx, root, format!("round {}", round - 1).as_bytes())?;
        let deep = fs.resolve(silt_fs::Tree::Live, b"deep")?;
        fs.write(&ctx, deep, bs * round, &content(bs, round), flags)?;
    }
    if round % 4 == 3 && round % 3 != 1 {
        fs.rename(&ctx, root, name.as_bytes(), dir, name.as_bytes(), 0)?;
    }
    Ok(())
}
