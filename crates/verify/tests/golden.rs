//! The golden volumes check clean and read back as their manifests say.
#![allow(clippy::unwrap_used)] // tests

use md5::{Digest, Md5};
use silt_verify::golden::{self, Content, Line};
use silt_verify::{Moment, Options, Tree, check};
use std::collections::BTreeMap;

fn digest(tree: &Tree<'_>, ino: u64, size: u64) -> String {
    let mut hash = Md5::new();
    let zeroes = vec![0u8; 1 << 20];
    let mut at = 0;
    let pad = |hash: &mut Md5, mut n: u64| {
        while n > 0 {
            let step = n.min(zeroes.len() as u64);
            hash.update(&zeroes[..step as usize]);
            n -= step;
        }
    };
    tree.for_each_part(ino, |offset, bytes| {
        pad(&mut hash, offset - at);
        hash.update(bytes);
        at = offset + bytes.len() as u64;
    })
    .unwrap();
    pad(&mut hash, size - at);
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares a tree with a section.
fn compare(tree: &Tree<'_>, expected: &BTreeMap<String, Line>, label: &str) {
    let walked = tree.walk().unwrap();
    let got: BTreeMap<String, _> = walked
        .into_iter()
        .map(|w| {
            let path = String::from_utf8(w.path).unwrap();
            (if path.is_empty() { ".".into() } else { format!("./{path}") }, w.attributes)
        })
        .collect();
    let names = |m: Vec<&String>| m.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(got.keys().collect()), names(expected.keys().collect()), "{label}: names");
    for (path, line) in expected {
        let a = &got[path];
        // Data-sync logs bring data back, not times.
        let mtime = if label.starts_with("dsync") { line.mtime } else { a.mtime.0 };
        let attributes = (a.mode, a.uid, a.gid, a.size, mtime, a.links, a.blocks);
        let wanted = (line.mode, line.uid, line.gid, line.size, line.mtime, line.links, line.blocks);
        assert_eq!(attributes, wanted, "{label}: {path}");
        match &line.content {
            Content::Md5(md5) => assert_eq!(&digest(tree, a.ino, a.size), md5, "{label}: {path}"),
            Content::Link(target) => {
                assert_eq!(&String::from_utf8(tree.read_link(a.ino).unwrap()).unwrap(), target);
            }
            Content::Device(major, minor) => assert_eq!(a.device, Some((*major, *minor)), "{label}: {path}"),
            Content::Huge | Content::Nothing => {}
        }
    }
}

fn whole(name: &str) {
    let device = golden::open(name);
    let options = Options { all_checkpoints: true, ..Options::default() };
    let report = check(&device, &options);
    for f in &report.findings {
        println!("{name}: {f}");
    }
    println!("{name}: {:?}", report.stats);
    assert!(report.is_clean(), "{name}:\n{}", report.error_text());
    for (section, expected) in golden::manifest(name) {
        let moment = match section.strip_prefix("cp=") {
            Some(n) => Moment::Checkpoint(n.parse().unwrap()),
            None if section == "cur" => Moment::Latest,
            // An earlier moment, kept as the first snapshot.
            None => Moment::Checkpoint(2),
        };
        let tree = Tree::open(&device, moment).unwrap();
        compare(&tree, &expected, &format!("{name} {section}"));
    }
    // Only these were cut off between a data-sync log and the next checkpoint.
    assert_eq!(report.stats.pending_blocks > 0, name.starts_with("dsync"));
}

#[test]
fn basic_4k() {
    whole("basic-4k");
}

#[test]
fn basic_1k() {
    whole("basic-1k");
}

#[test]
fn btree_1k() {
    whole("btree-1k");
}

#[test]
fn gc_4k() {
    whole("gc-4k");
}

#[test]
fn cut_4k() {
    whole("cut-4k");
}

#[test]
fn dsync_4k() {
    whole("dsync-4k");
}

#[test]
fn dsync_1k() {
    whole("dsync-1k");
}

#[test]
fn wrap_4k() {
    whole("wrap-4k");
}

#[test]
fn full_4k() {
    whole("full-4k");
}
