//! Directories: how entries tile blocks, what they name, and how directories hang together
//! (spec section 9).
//!
//! Memory: the names of one directory at a time, and 16 bytes a directory.

use std::collections::{HashMap, HashSet};

use silt_format::dir::{HEADER, file_type, need};
use silt_format::inode::RawInode;
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::files::Tally;
use crate::inode::DIRECTORY;
use crate::invariants as inv;
use crate::report::Place;
use crate::tree_check::Tree;

/// One entry in use.
struct Entry<'a> {
    offset: usize,
    rec_len: usize,
    ino: u64,
    kind: u8,
    name: &'a [u8],
}

/// Splits a block into entries; the error says why the rest cannot be told.
fn split(block: &[u8]) -> (Vec<Entry<'_>>, Option<String>) {
    let mut out = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let Some(head) = block.get(at..at + HEADER) else {
            return (out, Some(format!("an entry at byte {at} crosses the end")));
        };
        let raw = usize::from(u16::from_le_bytes([head[8], head[9]]));
        // 65535 stands for 65536, which only a block of that size can hold.
        let rec_len = if raw == 65535 && block.len() == 65536 { 65536 } else { raw };
        let name_len = usize::from(head[10]);
        if rec_len % 8 != 0 || rec_len < need(name_len.max(1)) || rec_len > block.len() - at {
            let what = format!("an entry at byte {at} has {rec_len} bytes for a name of {name_len}");
            return (out, Some(what));
        }
        let ino = head.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        let name = block.get(at + HEADER..at + HEADER + name_len).unwrap_or_default();
        out.push(Entry { offset: at, rec_len, ino, kind: head[11], name });
        at += rec_len;
    }
    (out, None)
}

/// A directory's size against its blocks.
pub(crate) fn check_size(c: &Context<'_>, inode: &RawInode, tally: &Tally, place: Place) {
    let (size, block_size) = (inode.size.get(), u64::from(c.r.g.block_size));
    let blocks = tally.greatest.map_or(0, |k| k.saturating_add(1));
    if size == 0 || size % block_size != 0 || size / block_size != tally.data || blocks != tally.data {
        let message = format!("{size} bytes in {} blocks, the last of them number {blocks}", tally.data);
        c.out.add(&inv::DIR_SIZE, place, message);
    }
}

/// Checks every directory of a tree and counts the names of every inode.
pub(crate) fn check(c: &Context<'_>, cno: u64, tree: &mut Tree) {
    let directories = std::mem::take(&mut tree.directories);
    // Directory -> the one that names it, and -> what its ".." says.
    let mut parents: HashMap<u64, u64> = HashMap::new();
    let mut dotdots: HashMap<u64, u64> = HashMap::new();
    for (ino, blocks) in &directories {
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        for (offset, block) in blocks {
            let place = Place::ino(*ino).at_offset(*offset).at_block(*block).at_cno(cno);
            let bytes = match c.r.block(BlockNr(*block)) {
                Ok(b) => b,
                Err(e) => {
                    c.out.add(&inv::DEVICE_READ, place, e);
                    continue;
                }
            };
            let (entries, broken) = split(&bytes);
            if let Some(what) = broken {
                c.out.add(&inv::DIR_TILING, place, what);
            }
            if *offset == 0 {
                check_dots(c, *ino, &entries, place, &mut dotdots);
            }
            for (i, e) in entries.iter().enumerate().filter(|(_, e)| e.ino != 0) {
                if *offset == 0 && i < 2 && matches!(e.name, b"." | b"..") {
                    continue;
                }
                check_entry(c, tree, *ino, e, place, &mut parents);
                if !names.insert(e.name.to_vec()) {
                    let message = format!("the name {:?} occurs twice", String::from_utf8_lossy(e.name));
                    c.out.add(&inv::DIR_DUPLICATE, place, message);
                }
            }
        }
    }
    check_ancestry(c, cno, &directories, &parents, &dotdots);
}

fn check_dots(
    c: &Context<'_>,
    ino: u64,
    entries: &[Entry<'_>],
    place: Place,
    dotdots: &mut HashMap<u64, u64>,
) {
    match entries {
        [one, two, ..] if one.name == b"." && two.name == b".." => {
            let types = one.kind == file_type::DIR && two.kind == file_type::DIR;
            if one.ino != ino || one.rec_len != need(1) || !types || one.offset != 0 {
                let message = format!("\".\" names inode {} in {} bytes", one.ino, one.rec_len);
                c.out.add(&inv::DIR_DOTS, place, message);
            }
            dotdots.insert(ino, two.ino);
        }
        _ => c.out.add(&inv::DIR_DOTS, place, "does not begin with \".\" and \"..\""),
    }
}

fn check_entry(
    c: &Context<'_>,
    tree: &mut Tree,
    directory: u64,
    e: &Entry<'_>,
    place: Place,
    parents: &mut HashMap<u64, u64>,
) {
    let name = String::from_utf8_lossy(e.name);
    if e.name.is_empty() || e.name.iter().any(|b| *b == 0 || *b == b'/') {
        c.out.add(&inv::DIR_NAME, place, format!("the name {name:?} at byte {}", e.offset));
    }
    if matches!(e.name, b"." | b"..") {
        c.out.add(&inv::DIR_DOTS, place, format!("{name:?} at byte {}", e.offset));
        return;
    }
    if e.ino < c.r.g.first_ino.min(11) && e.ino != Ino::ROOT.0 && e.ino != 10 {
        c.out.add(&inv::DIR_RESERVED, place, format!("{name:?} names inode {}", e.ino));
        return;
    }
    let known = tree.inodes.get(e.ino);
    if !tree.allocated.contains(e.ino) || known.links == 0 || known.mode == 0 {
        let why = if tree.allocated.contains(e.ino) { "has no links" } else { "is not allocated" };
        c.out.add(&inv::DIR_DANGLING, place, format!("{name:?} names inode {}, which {why}", e.ino));
        if !tree.allocated.contains(e.ino) {
            return;
        }
    }
    let kind = u32::from(known.mode) & 0o170_000;
    if e.kind != file_type::from_mode(kind) {
        let message = format!("{name:?} has type {}, inode {} mode {:o}", e.kind, e.ino, known.mode);
        c.out.add(&inv::DIR_TYPE, place, message);
    }
    let target = tree.inodes.slot(e.ino);
    target.named = target.named.saturating_add(1);
    if kind == DIRECTORY {
        let own = tree.inodes.slot(directory);
        own.subdirectories = own.subdirectories.saturating_add(1);
        if let Some(first) = parents.insert(e.ino, directory) {
            let message = format!("{name:?} names directory {}, which {first} names too", e.ino);
            c.out.add(&inv::DIR_PARENTS, place, message);
        }
    }
}

/// ".." against the directory that names one, and the way up to the root.
fn check_ancestry(
    c: &Context<'_>,
    cno: u64,
    directories: &[(u64, Vec<(u64, u64)>)],
    parents: &HashMap<u64, u64>,
    dotdots: &HashMap<u64, u64>,
) {
    let root = Ino::ROOT.0;
    // Directories whose way is known to end, at the root or at one without a name.
    let mut ends: HashSet<u64> = HashSet::from([root]);
    if let Some(by) = parents.get(&root) {
        let message = format!("directory {by} names the root directory");
        c.out.add(&inv::DIR_LOOP, Place::ino(root).at_cno(cno), message);
    }
    for (ino, _) in directories {
        let place = Place::ino(*ino).at_cno(cno);
        let parent = if *ino == root { Some(&root) } else { parents.get(ino) };
        if let (Some(parent), Some(dotdot)) = (parent, dotdots.get(ino))
            && parent != dotdot
        {
            let message = format!("\"..\" names inode {dotdot}, its parent is {parent}");
            c.out.add(&inv::DIR_DOTS, place.at_offset(0), message);
        }
        let mut way = HashSet::new();
        let mut at = *ino;
        while !ends.contains(&at) {
            if !way.insert(at) {
                c.out.add(&inv::DIR_LOOP, place, "is its own ancestor");
                break;
            }
            match parents.get(&at) {
                Some(up) => at = *up,
                None => break,
            }
        }
        ends.extend(way);
    }
}
