//! What becomes of damage that requests meet: one entry a file, its path, a bounded list.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError};

use crate::changing::errno;
use crate::config::MountOptions;
use crate::convert::node;
use crate::core::Core;
use crate::damage::Met;

fn core() -> Arc<Core> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
    Plan::new(parameters, 16 << 20).unwrap().write(&*device, false).unwrap();
    let (mut volume, _) = Volume::open(device, &OpenOptions::default()).unwrap();
    volume.take_over(2000).unwrap();
    Core::new(Fs::new(volume, &silt_fs::Options::default()), MountOptions::default())
}

fn met(ino: Ino, start: u64) -> Met<'static> {
    Met { bytes: Some(start..start + 4096), ..Met::of(Tree::Live, ino, "broken") }
}

#[test]
fn a_file_is_listed_once_with_its_newest_path_and_all_that_was_asked_for() {
    let core = core();
    let ctx = Context { privileged: true, ..Context::default() };
    let file = {
        let mut fs = core.fs.lock();
        let a = fs.mkdir(&ctx, Ino::ROOT, b"a", 0o755).unwrap().ino;
        let b = fs.mkdir(&ctx, a, b"b", 0o755).unwrap().ino;
        let file = fs.create(&ctx, a, b"old", 0o644).unwrap().ino;
        fs.remember_in(file, a);
        fs.rename(&ctx, a, b"old", b, b"new", 0).unwrap();
        file
    };
    core.met_damage(met(file, 8192));
    core.met_damage(met(file, 0));
    core.met_damage(met(file, 4096));
    core.damages.name_all(&core.fs);
    let (all, more) = core.damages.all();
    assert_eq!((all.len(), more), (1, 0));
    let d = &all[0];
    assert_eq!((&d.path, d.inode, d.checkpoint), (&Some("/a/b/new".into()), file.0, None));
    assert_eq!((d.start, d.end, d.times), (Some(0), Some(12_288), 3));
    assert_eq!(d.what, "broken");
}

/// The same inode of a past moment is another one.
#[test]
fn moments_are_told_apart() {
    let core = core();
    core.met_damage(Met::of(Tree::Live, Ino::ROOT, "x"));
    core.met_damage(Met::of(Tree::Past(1), Ino::ROOT, "x"));
    let all = core.damages.all().0;
    assert_eq!(all.iter().map(|d| d.checkpoint).collect::<Vec<_>>(), [None, Some(1)]);
}

#[test]
fn the_list_is_bounded_and_says_so() {
    let core = core();
    for i in 0..1500 {
        core.met_damage(met(Ino(100 + i), 0));
        core.met_damage(met(Ino(100 + i), 0));
    }
    core.damages.name_all(&core.fs);
    let (all, more) = core.damages.all();
    assert_eq!((all.len(), more), (1000, 1000));
    assert!(all.iter().all(|d| d.times == 2 && d.path.is_none()));
}

/// Of an inode that nobody could use, the name it was asked for by is known.
#[test]
fn a_look_up_that_fails_gives_the_name() {
    let core = core();
    let ctx = Context { privileged: true, ..Context::default() };
    let dir = core.fs.lock().mkdir(&ctx, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let e = FsError::Io { ino: 77, what: "nonsense".into(), device: false };
    assert_eq!(errno(&core, Tree::Live, Some((node(dir), b"f")), &e), silt_fuse::Errno::EIO);
    let table = FsError::Io { ino: 6, what: "nonsense".into(), device: false };
    errno(&core, Tree::Live, None, &table);
    core.damages.name_all(&core.fs);
    let paths: Vec<_> = core.damages.all().0.into_iter().map(|d| d.path).collect();
    assert_eq!(paths, [Some("/d/f".into()), Some("(table of inodes)".into())]);
}
