//! A name that says another type of a file than its inode: the one that is wrong is mended.

use std::sync::Arc;

use silt_engine::{OpenOptions, Volume};
use silt_format::Ino;
use silt_format::inode::RawInode;
use silt_repair::{Options, errors, plan};
use silt_verify::Moment;
use silt_verify::surgeon::Surgeon;

use crate::common::{mends, options, say, tree};

const FIFO: u16 = 0o010_000;
const REGULAR: u16 = 0o100_000;
const TYPES: [u16; 6] = [FIFO, 0o020_000, 0o040_000, 0o060_000, 0o120_000, 0o140_000];

fn is_file(raw: &RawInode) -> bool {
    raw.mode.get() & 0o170_000 == REGULAR && raw.size.get() > 0
}

fn entry(s: &Surgeon, ino: u64) -> RawInode {
    let (block, byte) = s.inode_place(ino);
    RawInode::read(&s.read(block)[byte..]).unwrap()
}

/// One bit of a mode, or two, make another type of a file with content.
#[test]
fn a_file_of_another_type_is_what_its_name_says() {
    for (volume, path) in [("basic-4k", "hello.txt"), ("btree-1k", "")] {
        let sound = Surgeon::golden(volume);
        let files = tree(&sound.device, Moment::Latest).unwrap();
        let paths = files.keys().map(|p| String::from_utf8_lossy(p).into_owned());
        let path = paths
            .filter(|p| path.is_empty() || p == path)
            .find(|p| is_file(&entry(&sound, sound.ino(p))))
            .unwrap();
        for kind in TYPES {
            let mut s = Surgeon::golden(volume);
            s.patch_inode(s.ino(&path), |raw| raw.mode = (raw.mode.get() & 0o7777 | kind).into());
            let out = mends(&sound.device, &s.device).unwrap_or_else(|e| panic!("{path} {kind:o}: {e}"));
            let said = say(&out.plan);
            assert!(out.missing.is_empty(), "{volume} /{path} {kind:o}: {:?}\n{said}", out.missing);
            assert!(said.contains(&format!("(/{path}) is a regular file again")), "{said}");
        }
    }
}

/// A file is told by its generation: another field that is wrong as well does not cost what was written to it last.
#[test]
fn a_file_of_another_type_and_time_keeps_its_content() {
    let sound = Surgeon::golden("basic-4k");
    let mut s = Surgeon::golden("basic-4k");
    s.patch_inode(s.ino("hello.txt"), |raw| {
        raw.mode = (raw.mode.get() & 0o7777 | FIFO).into();
        raw.mtime_nsec = 2_000_000_000.into();
    });
    let out = mends(&sound.device, &s.device).unwrap();
    let said = say(&out.plan);
    assert!(said.contains(" (/hello.txt) is a regular file again") && !said.contains("put back"), "{said}");
    let content = |device: &silt_device::MemoryDevice| {
        let tree = silt_verify::Tree::open(device, Moment::Latest).unwrap();
        let mut bytes = Vec::new();
        tree.for_each_part(tree.lookup(b"hello.txt").unwrap(), |at, part| bytes.push((at, part.to_vec())))
            .unwrap();
        bytes
    };
    assert_eq!(content(&out.device), content(&sound.device));
}

fn pipe_of_noise() -> Surgeon {
    let mut s = Surgeon::golden("basic-4k");
    noise_like_a_pipe(&mut s);
    s
}

fn noise_like_a_pipe(s: &mut Surgeon) {
    s.patch_inode(s.ino("hello.txt"), |raw| {
        raw.mode = (FIFO | 0o2036).into();
        raw.links_count = 32_329.into();
        raw.generation = 0x8a31_77c0.into();
        raw.size = 0x1234_5678_9abc.into();
        raw.bmap = std::array::from_fn(|i| (i * 37 + 11) as u8);
    });
}

/// Noise that looks like a pipe but for one field is no pipe, where there was a file.
#[test]
fn noise_is_no_pipe() {
    let (sound, s) = (Surgeon::golden("basic-4k"), pipe_of_noise());
    let out = mends(&sound.device, &s.device).unwrap();
    let said = say(&out.plan);
    assert!(out.missing.is_empty(), "{:?}\n{said}", out.missing);
    assert!(said.contains(" (/hello.txt) is put back to its version of checkpoint "), "{said}");
}

#[test]
fn noise_is_cut_out_where_that_is_asked_for() {
    let s = pipe_of_noise();
    let made = plan(Arc::new(s.device.fork()), &Options { cut: true, ..options() }).unwrap();
    let said = say(&made);
    let of_tree: Vec<&str> = said.lines().filter(|line| !line.contains("checkpoint ")).collect();
    assert!(of_tree.iter().any(|line| line.contains(" is cut out")), "{said}");
    assert!(!of_tree.iter().any(|line| line.contains("put back")) && errors(&made.after) == 0, "{said}");
}

/// Of an entry that says nothing, an older version may be another file's that had the number before: where none of its
/// blocks lives, what logs have is the file.
#[test]
fn a_version_that_shares_nothing_is_not_put_back() {
    for rewritten in [false, true] {
        let device = Arc::new(Surgeon::golden("basic-4k").device.fork());
        let mut s = Surgeon { device: device.fork() };
        let ino = s.ino("hello.txt");
        let size = entry(&s, ino).size.get() as usize;
        if rewritten {
            let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
            v.take_over(1_900_000_000).unwrap();
            let mut block = vec![b'N'; size];
            block.resize(4096, 0);
            v.write_block(Ino(ino), 0, block.into()).unwrap();
            v.checkpoint(1_900_000_000).unwrap();
            v.close(1_900_000_001).unwrap();
            s = Surgeon { device: device.fork() };
        }
        let before = s.device.fork();
        noise_like_a_pipe(&mut s);
        let out = mends(&before, &s.device).unwrap();
        let said = say(&out.plan);
        let what = if rewritten { "is put together from the logs" } else { "is put back to its version" };
        assert!(said.contains(&format!("inode {ino} (/hello.txt) {what}")), "{said}");
        let tree = silt_verify::Tree::open(&out.device, Moment::Latest).unwrap();
        let mut first = 0;
        tree.for_each_part(ino, |_, part| first = part[0]).unwrap();
        assert_eq!(first == b'N', rewritten, "{said}");
    }
}
