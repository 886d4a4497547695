//! Volumes that the real kernel wrote, read through engine and file system: the live tree, every
//! snapshot, and what recovery must find; read-only first, which writes not one byte.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use md5::{Digest, Md5};
use silt_device::{Counter, Device, MemoryDevice};
use silt_engine::{OpenOptions, Volume};
use silt_format::Cno;
use silt_fs::{Fs, Ino, Seek, Stat, Tree};
use silt_verify::golden::{self, Content, Line};

fn walk(fs: &mut Fs, tree: Tree) -> BTreeMap<String, Stat> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(".".to_owned(), fs.getattr(tree, Ino::ROOT).unwrap())];
    while let Some((path, stat)) = todo.pop() {
        if stat.is_dir() {
            let mut found = Vec::new();
            fs.readdir(tree, stat.ino, 0, true, |e| {
                if let Some(s) = e.stat {
                    found.push((format!("{path}/{}", String::from_utf8(e.name.to_vec()).unwrap()), s));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
            todo.extend(found);
        }
        all.insert(path, stat);
    }
    all
}

fn digest(fs: &mut Fs, tree: Tree, stat: &Stat) -> String {
    let mut hash = Md5::new();
    let zeroes = vec![0u8; 1 << 20];
    let pad = |hash: &mut Md5, mut n: u64| {
        while n > 0 {
            let step = n.min(zeroes.len() as u64);
            hash.update(&zeroes[..step as usize]);
            n -= step;
        }
    };
    let mut at = 0;
    while at < stat.size {
        let Ok(data) = fs.seek(tree, stat.ino, at, Seek::Data) else { break };
        pad(&mut hash, data - at);
        let bytes = fs.read(tree, stat.ino, data, 1 << 20).unwrap();
        hash.update(&bytes);
        at = data + bytes.len() as u64;
    }
    pad(&mut hash, stat.size - at);
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn compare(fs: &mut Fs, tree: Tree, expected: &BTreeMap<String, Line>, what: &str) {
    let got = walk(fs, tree);
    assert!(got.keys().eq(expected.keys()), "{what}: names");
    for (path, line) in expected {
        let s = &got[path];
        // Data-sync logs bring data back, not times.
        let mtime = if what.starts_with("dsync") { line.mtime } else { s.mtime.secs };
        let attributes = (s.mode, s.uid, s.gid, s.size, mtime, s.links, s.blocks);
        let wanted = (line.mode, line.uid, line.gid, line.size, line.mtime, line.links, line.blocks);
        assert_eq!(attributes, wanted, "{what}: {path}");
        match &line.content {
            Content::Md5(md5) => assert_eq!(&digest(fs, tree, s), md5, "{what}: {path}"),
            Content::Link(target) => {
                assert_eq!(&String::from_utf8(fs.readlink(tree, s.ino).unwrap()).unwrap(), target);
            }
            Content::Device(major, minor) => assert_eq!(s.device, (*major, *minor), "{what}: {path}"),
            Content::Huge | Content::Nothing => {}
        }
    }
}

fn sections(fs: &mut Fs, name: &str) {
    for (section, expected) in golden::manifest(name) {
        let cno = match section.strip_prefix("cp=") {
            Some(n) => Some(n.parse().unwrap()),
            // An earlier moment, kept as the first snapshot.
            None => (section != "cur").then_some(2),
        };
        if let Some(c) = cno {
            fs.volume_mut().open_view(Cno(c)).unwrap();
        }
        compare(fs, cno.map_or(Tree::Live, Tree::Past), &expected, &format!("{name} {section}"));
    }
}

fn whole(name: &str) {
    let device: Arc<Counter<MemoryDevice>> = Arc::new(Counter::new(golden::open(name)));
    let shared: Arc<dyn Device> = device.clone();
    let options = OpenOptions { read_only: true, now: 1_800_000_000, ..OpenOptions::default() };
    let (volume, _) = Volume::open(shared.clone(), &options).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    sections(&mut fs, name);
    drop(fs);
    assert_eq!(device.counts().writes.requests, 0, "{name}: opened read-only, and written to");

    let options = OpenOptions { read_only: false, ..options };
    let (mut volume, _) = Volume::open(shared.clone(), &options).unwrap();
    volume.take_over(1_800_000_000).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    sections(&mut fs, name);
    fs.volume_mut().close(1_800_000_100).unwrap();
    let report = silt_verify::check(&*shared, &silt_verify::Options::default());
    assert!(report.is_clean(), "{name}: {}", report.error_text());
}

macro_rules! volumes {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            whole($name);
        })*

        #[test]
        fn none_is_left_out() {
            assert_eq!([$($name),*].len(), golden::NAMES.len());
        }
    };
}

volumes! {
    basic_4k "basic-4k"
    basic_1k "basic-1k"
    btree_1k "btree-1k"
    gc_4k "gc-4k"
    cut_4k "cut-4k"
    full_4k "full-4k"
    dsync_4k "dsync-4k"
    dsync_1k "dsync-1k"
    wrap_4k "wrap-4k"
}
