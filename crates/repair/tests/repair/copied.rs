//! A directory's first block in the place of another of its own: what it says may be older than what the rest does.

use std::sync::Arc;

use silt_engine::{writable, zeroed};
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

#[test]
fn an_older_name_is_taken_only_by_what_has_no_other() {
    let mut s = Surgeon::golden("basic-1k");
    // There it has a directory of many blocks.
    let back = Options { to_checkpoint: Some(2), ..options() };
    plan(Arc::new(s.device.fork()), &back).unwrap().apply(&s.device).unwrap();
    let sound = s.device.fork();
    let tree = Tree::open(&sound, Moment::Latest).unwrap();
    let renamed = tree.lookup(b"six").unwrap();
    assert_eq!(tree.attributes(renamed).unwrap().links, 1);
    let all = tree.walk().unwrap();
    let directory = all
        .iter()
        .filter(|f| f.attributes.is_directory() && f.attributes.ino != Ino::ROOT.0)
        .find(|f| s.file(f.attributes.ino).len() > 1)
        .unwrap();
    let at = s.file(directory.attributes.ino);
    let (first, second) = (s.read(at[&0]), s.read(at[&1]));
    let parent = dir::entries(&first).nth(1).unwrap().unwrap().ino;
    // Of a file that is in the block which goes.
    let lost = names(&second).into_iter().find(|(_, _, kind)| *kind == file_type::REG).unwrap();
    let mut older = zeroed(s.g().bs());
    dir::init_first(writable(&mut older), Ino(directory.attributes.ino), parent);
    let few = names(&first).into_iter().take(3);
    let old = [(b"renamed".to_vec(), renamed, file_type::REG), (b"old".to_vec(), lost.1, file_type::REG)];
    for (name, ino, kind) in few.chain(old) {
        dir::insert(writable(&mut older), &name, Ino(ino), kind).unwrap().unwrap();
    }
    s.patch(at[&1], |block| block.copy_from_slice(&older));
    let mended = mends(&sound, &s.device).unwrap();
    let said = say(&mended.plan);
    let after = Tree::open(&mended.device, Moment::Latest).unwrap();
    assert_eq!(after.attributes(renamed).unwrap().links, 1, "{said}");
    let path = |name: &[u8]| [&directory.path, b"/".as_slice(), name].concat();
    assert!(after.lookup(&path(b"renamed")).is_err(), "{said}");
    assert_eq!(after.lookup(&path(b"old")).unwrap(), lost.1, "{said}");
    for (name, ino, _) in names(&first) {
        assert_eq!(after.lookup(&path(&name)).unwrap(), ino, "{said}");
    }
    assert!(checked(&mended.device).is_clean());
}
