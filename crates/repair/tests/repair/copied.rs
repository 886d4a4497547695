//! A directory's first block in the place of another of its own: what it says may be older than what the rest does.

use std::sync::Arc;

use silt_device::Device;
use silt_engine::{OpenOptions, Volume, writable, zeroed};
use silt_format::Ino;
use silt_format::dir::{self, file_type};
use silt_repair::{Options, plan};
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Tree};

use crate::common::{checked, mends, options, say};

/// Names of a block but "." and "..", with the numbers of what they name.
fn names(block: &[u8]) -> Vec<(Vec<u8>, u64, u8)> {
    let all = dir::entries(block).map(|e| e.unwrap()).filter(|e| e.ino.0 != 0 && !e.name.starts_with(b"."));
    all.map(|e| (e.name.to_vec(), e.ino.0, e.file_type)).collect()
}

/// A volume with a directory of many blocks, and that directory.
fn volume() -> (Surgeon, Vec<u8>, u64) {
    let s = Surgeon::golden("basic-1k");
    let back = Options { to_checkpoint: Some(2), ..options() };
    plan(Arc::new(s.device.fork()), &back).unwrap().apply(&s.device).unwrap();
    let tree = Tree::open(&s.device, Moment::Latest).unwrap();
    let all = tree.walk().unwrap();
    let directory = all
        .into_iter()
        .filter(|f| f.attributes.is_directory() && f.attributes.ino != Ino::ROOT.0)
        .find(|f| s.file(f.attributes.ino).len() > 1)
        .unwrap();
    (s, directory.path, directory.attributes.ino)
}

/// A first block of a directory as it may have been once.
fn older(s: &Surgeon, directory: u64, names: impl Iterator<Item = (Vec<u8>, u64, u8)>) -> Vec<u8> {
    let first = s.read(s.file(directory)[&0]);
    let parent = dir::entries(&first).nth(1).unwrap().unwrap().ino;
    let mut older = zeroed(s.g().bs());
    dir::init_first(writable(&mut older), Ino(directory), parent);
    for (name, ino, kind) in names {
        dir::insert(writable(&mut older), &name, Ino(ino), kind).unwrap().unwrap();
    }
    older.to_vec()
}

#[test]
fn an_older_name_is_taken_only_by_what_has_no_other() {
    let (mut s, path, directory) = volume();
    let sound = s.device.fork();
    let tree = Tree::open(&sound, Moment::Latest).unwrap();
    let renamed = tree.lookup(b"six").unwrap();
    assert_eq!(tree.attributes(renamed).unwrap().links, 1);
    let at = s.file(directory);
    let (first, second) = (s.read(at[&0]), s.read(at[&1]));
    // Of a file that is in the block which goes.
    let lost = names(&second).into_iter().find(|(_, _, kind)| *kind == file_type::REG).unwrap();
    let few = names(&first).into_iter().take(3);
    let old = [(b"renamed".to_vec(), renamed, file_type::REG), (b"old".to_vec(), lost.1, file_type::REG)];
    let copy = older(&s, directory, few.chain(old));
    s.patch(at[&1], |block| block.copy_from_slice(&copy));
    let mended = mends(&sound, &s.device).unwrap();
    let said = say(&mended.plan);
    let after = Tree::open(&mended.device, Moment::Latest).unwrap();
    assert_eq!(after.attributes(renamed).unwrap().links, 1, "{said}");
    let path = |name: &[u8]| [&path, b"/".as_slice(), name].concat();
    assert!(after.lookup(&path(b"renamed")).is_err(), "{said}");
    assert_eq!(after.lookup(&path(b"old")).unwrap(), lost.1, "{said}");
    for (name, ino, _) in names(&first) {
        assert_eq!(after.lookup(&path(&name)).unwrap(), ino, "{said}");
    }
    assert!(checked(&mended.device).is_clean());
}

/// Checkpoints that have the copy have nothing to say of the block that was there.
#[test]
fn names_come_back_from_before_the_copy() {
    let (mut s, path, directory) = volume();
    let second = s.read(s.file(directory)[&1]);
    let before = s.file(directory)[&1];
    let (mut v, _) = Volume::open(Arc::new(s.device.fork()), &OpenOptions::default()).unwrap();
    v.take_over(1_900_000_000).unwrap();
    for n in 0..2 {
        v.write_block(Ino(directory), 1, second.clone().into()).unwrap();
        v.checkpoint(1_900_000_001 + n).unwrap();
    }
    v.close(1_900_000_003).unwrap();
    let written = v.device().clone();
    let mut bytes = vec![0; usize::try_from(s.device.len()).unwrap()];
    written.read_at(0, &mut bytes).unwrap();
    s.device.write_at(0, &[&bytes]).unwrap();
    let sound = s.device.fork();
    let now = s.file(directory)[&1];
    assert_ne!(now, before, "it lies elsewhere now");
    // Names that two files of it had once.
    let renamed = names(&second).into_iter().take(2).map(|(_, ino, kind)| {
        let name = format!("old{ino}").into_bytes();
        (name, ino, kind)
    });
    let copy = older(&s, directory, renamed);
    s.patch(now, |block| block.copy_from_slice(&copy));
    let mended = mends(&sound, &s.device).unwrap();
    let said = say(&mended.plan);
    let after = Tree::open(&mended.device, Moment::Latest).unwrap();
    for (name, ino, _) in names(&second) {
        assert_eq!(after.lookup(&[&path, b"/".as_slice(), &name].concat()).ok(), Some(ino), "{said}");
    }
}
