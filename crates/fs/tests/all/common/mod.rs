//! A file system in memory for tests.

use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Time, Volume};
use silt_fs::{Context, Fs, FsError, Ino, Options, SetAttr, Stat, Tree, WriteFlags};

/// The volume's form.
#[derive(Clone, Copy)]
pub struct Form {
    pub block_size: u32,
    pub blocks_per_segment: u32,
    pub size: u64,
}

impl Form {
    pub fn new(block_size: u32, size: u64) -> Self {
        Form { block_size, blocks_per_segment: 256, size }
    }
}

/// A fresh volume on a device in memory.
pub fn device(form: Form) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(form.size));
    let parameters = Parameters {
        block_size: form.block_size,
        blocks_per_segment: form.blocks_per_segment,
        uuid: [7; 16],
        crc_seed: 77,
        now: 1000,
        ..Parameters::default()
    };
    Plan::new(parameters, form.size).unwrap().write(&*device, false).unwrap();
    device
}

/// Opens what is on a device for writing.
pub fn open(device: Arc<dyn Device>, options: &Options) -> Fs {
    let (mut volume, _) = Volume::open(device, &OpenOptions { now: 2000, ..Default::default() }).unwrap();
    volume.take_over(2000).unwrap();
    Fs::new(volume, options)
}

/// A fresh file system with blocks of `block_size` bytes.
pub fn fresh(block_size: u32) -> Fs {
    let size = u64::from(block_size) * 256 * 256;
    open(device(Form::new(block_size, size)), &Options::default())
}

/// Block sizes that every test of behaviour runs on.
pub const SIZES: [u32; 3] = [1024, 4096, 65536];

/// The superuser at second `secs`.
pub fn root_at(secs: i64) -> Context {
    Context { now: Time { secs, nanos: 5 }, privileged: true, ..Context::default() }
}

/// An ordinary user with known groups.
pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Context {
    Context {
        uid,
        gid,
        groups: Some(groups.into()),
        now: Time { secs: 9000, nanos: 1 },
        ..Context::default()
    }
}

/// All names in a directory, "." and ".." included, in the order of the listing, a few at a time.
pub fn names(fs: &mut Fs, tree: Tree, dir: Ino) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let mut n = 0;
        fs.readdir(tree, dir, from, false, |e| {
            all.push(e.name.to_vec());
            from = e.next;
            n += 1;
            if n == 7 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        })
        .unwrap();
        if n == 0 {
            return all;
        }
    }
}

/// What an operation finds by path.
pub fn stat(fs: &mut Fs, path: &str) -> Stat {
    let ino = fs.resolve(Tree::Live, path.as_bytes()).unwrap();
    fs.getattr(Tree::Live, ino).unwrap()
}

pub const ROOT: Ino = Ino::ROOT;
pub const PLAIN: WriteFlags = WriteFlags { append: false, cached: false, late: false, kill_suidgid: false };

pub fn t(secs: i64) -> Time {
    Time { secs, nanos: 5 }
}

pub fn file(fs: &mut Fs, name: &str) -> Ino {
    fs.create(&root_at(10), ROOT, name.as_bytes(), 0o644).unwrap().ino
}

pub fn dir(fs: &mut Fs, parent: Ino, name: &str) -> Ino {
    fs.mkdir(&root_at(10), parent, name.as_bytes(), 0o755).unwrap().ino
}

pub fn set(fs: &mut Fs, ctx: &Context, ino: Ino, set: SetAttr) -> Result<silt_fs::Stat, FsError> {
    fs.setattr(ctx, ino, &set)
}

pub fn content(fs: &mut Fs, ino: Ino) -> Vec<u8> {
    fs.read(Tree::Live, ino, 0, 1 << 22).unwrap()
}
