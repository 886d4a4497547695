//! Directories and how they hang together.

use silt_format::dir::{self, file_type};

use super::Case;
use crate::surgeon::Surgeon;

/// Disk block of a directory's block.
pub fn names_block(s: &Surgeon, directory: u64, offset: u64) -> u64 {
    s.file(directory)[&offset]
}

/// Calls `change` with the bytes of an entry from its head on.
fn entry(s: &mut Surgeon, directory: &str, name: &str, change: impl FnOnce(&mut [u8])) {
    let ino = if directory.is_empty() { 2 } else { s.ino(directory) };
    for block in s.file(ino).into_values() {
        let bytes = s.read(block);
        let found =
            dir::entries(&bytes).map(|e| e.unwrap()).find(|e| e.ino.0 != 0 && e.name == name.as_bytes());
        if let Some(at) = found.map(|e| e.offset) {
            s.patch(block, |b| change(&mut b[at..]));
            return;
        }
    }
    panic!("no entry {name}");
}

/// Frees the entry of a name.
pub fn drop_name(s: &mut Surgeon, directory: u64, name: &str) {
    assert_eq!(directory, 2);
    entry(s, "", name, |e| e[..8].fill(0));
}

fn point(s: &mut Surgeon, directory: &str, name: &str, ino: u64, kind: u8) {
    entry(s, directory, name, |e| {
        e[..8].copy_from_slice(&ino.to_le_bytes());
        e[11] = kind;
    });
}

pub const CASES: &[Case] = &[
    ("directory-tiling", "basic-4k", |s| entry(s, "", "six", |e| e[8..10].copy_from_slice(&[0, 0]))),
    ("directory-tiling", "basic-4k", |s| entry(s, "", "six", |e| e[8..10].copy_from_slice(&[0, 0xf0]))),
    ("directory-tiling", "basic-4k", |s| entry(s, "", "six", |e| e[10] = 200)),
    ("directory-dots", "basic-4k", |s| entry(s, "d", ".", |e| e[0] ^= 1)),
    ("directory-dots", "basic-4k", |s| entry(s, "moved/f", "..", |e| e[0] ^= 1)),
    ("directory-dots", "basic-4k", |s| entry(s, "d", "..", |e| e[12] = b'x')),
    ("directory-name", "basic-4k", |s| entry(s, "", "six", |e| e[13] = b'/')),
    ("directory-name", "basic-4k", |s| entry(s, "", "six", |e| e[13] = 0)),
    ("directory-duplicate", "basic-4k", |s| entry(s, "", "hard1", |e| e[12..17].copy_from_slice(b"empty"))),
    ("directory-reserved-inode", "basic-4k", |s| point(s, "", "six", 5, file_type::REG)),
    ("directory-dangling", "basic-4k", |s| point(s, "", "six", 900, file_type::REG)),
    ("directory-dangling", "basic-4k", |s| {
        let ino = s.ino("six");
        s.patch_inode(ino, |i| i.links_count = 0.into());
    }),
    ("directory-type", "basic-4k", |s| entry(s, "", "six", |e| e[11] = file_type::SYMLINK)),
    ("directory-parents", "basic-4k", |s| {
        let ino = s.ino("moved/f");
        point(s, "", "six", ino, file_type::DIR);
    }),
    ("directory-loop", "basic-4k", |s| {
        let f = s.ino("moved/f");
        point(s, "moved/f/g/h", "deep", f, file_type::DIR);
        entry(s, "moved", "f", |e| e[..8].fill(0));
    }),
    ("directory-loop", "basic-4k", |s| point(s, "moved/f/g/h", "deep", 2, file_type::DIR)),
];
