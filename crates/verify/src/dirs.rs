//! Directories: how entries tile blocks, what they name, and how directories hang together
//! (spec section 9).
//!
//! Memory: 8 bytes a name of one directory at a time, and 28 bytes a directory; where trees are compared, those names
//! twice.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use silt_format::dir::{HEADER, file_type, need};
use silt_format::inode::RawInode;
use silt_format::{BlockNr, Ino};

use crate::context::Context;
use crate::files::Tally;
use crate::inode::DIRECTORY;
use crate::invariants as inv;
use crate::report::Place;
use crate::tree_check::{Names, Tree};

/// One entry in use.
pub(crate) struct Entry<'a> {
    offset: usize,
    rec_len: usize,
    pub ino: u64,
    pub kind: u8,
    name: &'a [u8],
}

impl Entry<'_> {
    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.name)
    }
}

/// Splits a block into entries; the error says why the rest cannot be told.
pub(crate) fn split(block: &[u8]) -> (Vec<Entry<'_>>, Option<String>) {
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

/// Digests of the names of one directory, in the order they were met.
///
/// Names that have the same digest are read again and compared: a digest alone accuses nobody.
#[derive(Default)]
struct Digests {
    seed: RandomState,
    all: Vec<u64>,
}

impl Digests {
    fn add(&mut self, name: &[u8]) {
        self.all.push(self.seed.hash_one(name));
    }

    /// Those that occur more than once, and none after.
    fn twice(&mut self) -> HashSet<u64> {
        self.all.sort_unstable();
        let twice = self.all.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
        self.all.clear();
        twice
    }
}

/// How directories hang together: where each is named, and what its ".." says; 0: nothing known.
#[derive(Default)]
pub(crate) struct Ways {
    /// Ascending; `parent` and `dotdot` are in the same order.
    directories: Vec<u64>,
    parent: Vec<u64>,
    dotdot: Vec<u64>,
}

impl Ways {
    fn new(directories: Vec<u64>) -> Self {
        let n = directories.len();
        Ways { directories, parent: vec![0; n], dotdot: vec![0; n] }
    }

    fn index(&self, directory: u64) -> Option<usize> {
        self.directories.binary_search(&directory).ok()
    }

    /// Remembers where a directory is named; where it was named before.
    fn named(&mut self, directory: u64, by: u64) -> Option<u64> {
        let i = self.index(directory)?;
        let before = std::mem::replace(&mut self.parent[i], by);
        Some(before).filter(|b| *b != 0)
    }

    /// Remembers what a directory's ".." says.
    pub fn says(&mut self, directory: u64, dotdot: u64) {
        if let Some(i) = self.index(directory) {
            self.dotdot[i] = dotdot;
        }
    }
}

impl Ways {
    /// A directory has no name in `by` any more.
    pub fn forget(&mut self, directory: u64, by: u64) {
        if let Some(i) = self.index(directory).filter(|i| self.parent[*i] == by) {
            self.parent[i] = 0;
        }
    }

    /// Replaces some directories (ascending) by others; of those that are among both, what is known stays. Whether that
    /// changed anything.
    pub fn change(&mut self, before: &[u64], after: &[u64]) -> bool {
        if before == after {
            return false;
        }
        let old = std::mem::take(self);
        let mut all = old.directories.clone();
        all.retain(|d| before.binary_search(d).is_err());
        all.extend(after);
        all.sort();
        all.dedup();
        *self = Ways::new(all);
        for (i, directory) in self.directories.iter().enumerate() {
            if let Some(was) = old.index(*directory) {
                (self.parent[i], self.dotdot[i]) = (old.parent[was], old.dotdot[was]);
            }
        }
        true
    }
}

/// Whether a name may occur twice in a directory of which all blocks are given; none where one cannot be read.
pub(crate) fn names_twice(c: &Context<'_>, directory: &[Names]) -> Option<bool> {
    let mut digests = Digests::default();
    for at in directory {
        let bytes = c.r.block(BlockNr(at.block)).ok()?;
        named(&split(&bytes).0, at.offset).for_each(|e| digests.add(e.name));
    }
    Some(!digests.twice().is_empty())
}

/// Checks every directory of a tree and counts the names of every inode.
pub(crate) fn check(c: &Context<'_>, cno: u64, tree: &mut Tree) -> Ways {
    let names = std::mem::take(&mut tree.names);
    let mut ways = Ways::new(std::mem::take(&mut tree.directories));
    let mut digests = Digests::default();
    for directory in names.chunk_by(|a, b| a.directory == b.directory) {
        if c.stop() {
            return ways;
        }
        check_blocks(c, cno, tree, directory, &mut ways, |e| digests.add(e.name));
        let twice = digests.twice();
        if !twice.is_empty() {
            find_twice(c, cno, directory, &digests.seed, &twice);
        }
    }
    check_ancestry(c, cno, &ways);
    tree.names = names;
    ways
}

/// Checks blocks of directories and counts whom they name; calls `each` for each entry.
pub(crate) fn check_blocks(
    c: &Context<'_>,
    cno: u64,
    tree: &mut Tree,
    blocks: &[Names],
    ways: &mut Ways,
    mut each: impl FnMut(&Entry<'_>),
) {
    for at in blocks {
        let place = place(at, cno);
        let bytes = match c.r.block(BlockNr(at.block)) {
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
        if at.offset == 0 {
            check_dots(c, at.directory, &entries, place, ways);
        }
        for e in named(&entries, at.offset) {
            check_entry(c, tree, at.directory, e, place, ways);
            each(e);
        }
    }
}

fn place(at: &Names, cno: u64) -> Place {
    Place::ino(at.directory).at_offset(at.offset).at_block(at.block).at_cno(cno)
}

/// Entries in use of a block, without the leading "." and "..".
pub(crate) fn named<'e, 'a>(entries: &'e [Entry<'a>], offset: u64) -> impl Iterator<Item = &'e Entry<'a>> {
    entries
        .iter()
        .enumerate()
        .filter(move |(i, e)| e.ino != 0 && !(offset == 0 && *i < 2 && matches!(e.name, b"." | b"..")))
        .map(|(_, e)| e)
}

/// Names of which the digest occurs twice.
fn find_twice(c: &Context<'_>, cno: u64, directory: &[Names], seed: &RandomState, twice: &HashSet<u64>) {
    let mut names: HashSet<Vec<u8>> = HashSet::new();
    for at in directory {
        let Ok(bytes) = c.r.block(BlockNr(at.block)) else { continue };
        for e in named(&split(&bytes).0, at.offset).filter(|e| twice.contains(&seed.hash_one(e.name))) {
            if !names.insert(e.name.to_vec()) {
                let message = format!("the name {:?} occurs twice", String::from_utf8_lossy(e.name));
                c.out.add(&inv::DIR_DUPLICATE, place(at, cno), message);
            }
        }
    }
}

fn check_dots(c: &Context<'_>, ino: u64, entries: &[Entry<'_>], place: Place, ways: &mut Ways) {
    match entries {
        [one, two, ..] if one.name == b"." && two.name == b".." => {
            let types = one.kind == file_type::DIR && two.kind == file_type::DIR;
            if one.ino != ino || one.rec_len != need(1) || !types || one.offset != 0 {
                let message = format!("\".\" names inode {} in {} bytes", one.ino, one.rec_len);
                c.out.add(&inv::DIR_DOTS, place, message);
            }
            ways.says(ino, two.ino);
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
    ways: &mut Ways,
) {
    if e.name.is_empty() || e.name.iter().any(|b| *b == 0 || *b == b'/') {
        c.out.add(&inv::DIR_NAME, place, format!("the name {:?} at byte {}", e.text(), e.offset));
    }
    if matches!(e.name, b"." | b"..") {
        c.out.add(&inv::DIR_DOTS, place, format!("{:?} at byte {}", e.text(), e.offset));
        return;
    }
    if e.ino < c.r.g.first_ino.min(11) && e.ino != Ino::ROOT.0 && e.ino != 10 {
        c.out.add(&inv::DIR_RESERVED, place, format!("{:?} names inode {}", e.text(), e.ino));
        return;
    }
    let known = tree.inodes.get(e.ino);
    if !tree.allocated.contains(e.ino) || known.links == 0 || known.mode == 0 {
        let why = if tree.allocated.contains(e.ino) { "has no links" } else { "is not allocated" };
        c.out.add(&inv::DIR_DANGLING, place, format!("{:?} names inode {}, which {why}", e.text(), e.ino));
        if !tree.allocated.contains(e.ino) {
            return;
        }
    }
    let kind = u32::from(known.mode) & 0o170_000;
    if e.kind != file_type::from_mode(kind) {
        let message = format!("{:?} has type {}, inode {} mode {:o}", e.text(), e.kind, e.ino, known.mode);
        c.out.add(&inv::DIR_TYPE, place, message);
    }
    let target = tree.inodes.slot(e.ino);
    target.named = target.named.saturating_add(1);
    if kind == DIRECTORY {
        let own = tree.inodes.slot(directory);
        own.subdirectories = own.subdirectories.saturating_add(1);
        if let Some(first) = ways.named(e.ino, directory) {
            let message = format!("{:?} names directory {}, which {first} names too", e.text(), e.ino);
            c.out.add(&inv::DIR_PARENTS, place, message);
        }
    }
}

/// ".." against the directory that names one, and the way up to the root.
pub(crate) fn check_ancestry(c: &Context<'_>, cno: u64, ways: &Ways) {
    let root = Ino::ROOT.0;
    // Directories whose way is known to end, at the root or at one without a name; and that of the way at hand.
    const ENDS: u32 = u32::MAX;
    let mut met = vec![0u32; ways.directories.len()];
    for (i, ino) in ways.directories.iter().enumerate() {
        let place = Place::ino(*ino).at_cno(cno);
        if *ino == root {
            if ways.parent[i] != 0 {
                let message = format!("directory {} names the root directory", ways.parent[i]);
                c.out.add(&inv::DIR_LOOP, place, message);
            }
            met[i] = ENDS;
        }
        let parent = if *ino == root { root } else { ways.parent[i] };
        let dotdot = ways.dotdot[i];
        if parent != 0 && dotdot != 0 && parent != dotdot {
            let message = format!("\"..\" names inode {dotdot}, its parent is {parent}");
            c.out.add(&inv::DIR_DOTS, place.at_offset(0), message);
        }
    }
    for (i, ino) in ways.directories.iter().enumerate() {
        let mark = u32::try_from(i).unwrap_or(ENDS - 2) + 1;
        let mut at = i;
        while met[at] != ENDS {
            if met[at] == mark {
                c.out.add(&inv::DIR_LOOP, Place::ino(*ino).at_cno(cno), "is its own ancestor");
                break;
            }
            met[at] = mark;
            match ways.index(ways.parent[at]) {
                Some(up) => at = up,
                None => break,
            }
        }
        // Once more, to say that the way is known.
        let mut at = Some(i);
        while let Some(here) = at.filter(|here| met[*here] != ENDS) {
            met[here] = ENDS;
            at = ways.index(ways.parent[here]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_that_occur_twice_are_told() {
        let mut digests = Digests::default();
        for name in [b"a", b"b", b"c", b"b"] {
            digests.add(name);
        }
        assert_eq!(digests.twice(), HashSet::from([digests.seed.hash_one(b"b".as_slice())]));
        digests.add(b"a");
        assert!(digests.twice().is_empty(), "of another directory");
    }
}
