//! Directory chunks: entries that tile one block (spec section 9).
//!
//! ```text
//! inode(8) rec_len(2) name_len(1) type(1) name(name_len) padding to 8
//! ```
//!
//! Invariants of a sound chunk: entries tile it exactly, every `rec_len` is a multiple of 4, at
//! least what its name needs, and an inode of 0 marks a free entry.

use crate::{Error, Ino, Result};

/// Bytes of an entry before its name.
pub const HEADER: usize = 12;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;

/// File types as directories store them.
pub mod file_type {
    pub const UNKNOWN: u8 = 0;
    pub const REG: u8 = 1;
    pub const DIR: u8 = 2;
    pub const CHR: u8 = 3;
    pub const BLK: u8 = 4;
    pub const FIFO: u8 = 5;
    pub const SOCK: u8 = 6;
    pub const SYMLINK: u8 = 7;

    /// From the type bits of a mode.
    pub fn from_mode(mode: u32) -> u8 {
        match mode & 0o170_000 {
            0o100_000 => REG,
            0o040_000 => DIR,
            0o020_000 => CHR,
            0o060_000 => BLK,
            0o010_000 => FIFO,
            0o140_000 => SOCK,
            0o120_000 => SYMLINK,
            _ => UNKNOWN,
        }
    }

    /// To the type bits of a mode; 0 where unknown.
    pub fn to_mode(t: u8) -> u32 {
        match t {
            REG => 0o100_000,
            DIR => 0o040_000,
            CHR => 0o020_000,
            BLK => 0o060_000,
            FIFO => 0o010_000,
            SOCK => 0o140_000,
            SYMLINK => 0o120_000,
            _ => 0,
        }
    }
}

/// One entry of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Byte offset in the chunk.
    pub offset: usize,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// 0 = unused.
    pub ino: Ino,
    pub file_type: u8,
    pub name: &'a [u8],
}

/// Bytes an entry with a name of `n` bytes needs.
pub fn need(n: usize) -> usize {
    (HEADER + n + 7) & !7
}

fn bad(what: impl Into<String>) -> Error {
    Error::corrupt("directory", what)
}

/// Parses the entry at `offset`, checking its bounds.
pub fn entry_at(chunk: &[u8], offset: usize) -> Result<Entry<'_>> {
    let head = chunk.get(offset..).and_then(|rest| rest.get(..HEADER));
    let head = head.ok_or_else(|| bad("entry crosses the end of its block"))?;
    let mut ino = [0; 8];
    ino.copy_from_slice(&head[..8]);
    let raw = u16::from_le_bytes([head[8], head[9]]);
    let rec_len = if raw == u16::MAX { 65536 } else { usize::from(raw) };
    let name_len = usize::from(head[10]);
    let ino = Ino(u64::from_le_bytes(ino));
    if rec_len % 4 != 0 || rec_len < need(1) || offset + rec_len > chunk.len() {
        return Err(bad(format!("entry of {rec_len} bytes at byte {offset}")));
    }
    if ino.0 != 0 && rec_len < need(name_len) {
        return Err(bad(format!("name of {name_len} bytes in an entry of {rec_len}")));
    }
    let name = if ino.0 == 0 { &[][..] } else { &chunk[offset + HEADER..offset + HEADER + name_len] };
    if ino.0 != 0 {
        if name.is_empty() || name.iter().any(|b| *b == 0 || *b == b'/') {
            return Err(bad(format!("impossible name at byte {offset}")));
        }
        if ino.0 == 1 || (3..=9).contains(&ino.0) {
            return Err(bad(format!("entry for the reserved inode {ino}")));
        }
    }
    Ok(Entry { offset, rec_len, ino, file_type: head[11], name })
}

/// Iterates over all entries, unused ones included; stops after the first error.
pub fn entries(chunk: &[u8]) -> impl Iterator<Item = Result<Entry<'_>>> {
    let mut offset = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || offset >= chunk.len() {
            return None;
        }
        let e = entry_at(chunk, offset);
        match &e {
            Ok(e) => offset += e.rec_len,
            Err(_) => failed = true,
        }
        Some(e)
    })
}

/// Checks that entries tile a whole chunk.
pub fn check(chunk: &[u8]) -> Result<()> {
    entries(chunk).try_for_each(|e| e.map(|_| ()))
}

fn store(chunk: &mut [u8], offset: usize, ino: Ino, rec_len: usize, name: &[u8], file_type: u8) {
    let raw = u16::try_from(rec_len).unwrap_or(u16::MAX);
    chunk[offset..offset + 8].copy_from_slice(&ino.0.to_le_bytes());
    chunk[offset + 8..offset + 10].copy_from_slice(&raw.to_le_bytes());
    // Names are at most 255 bytes: callers check.
    chunk[offset + 10] = u8::try_from(name.len()).unwrap_or(u8::MAX);
    chunk[offset + 11] = file_type;
    chunk[offset + HEADER..offset + HEADER + name.len()].copy_from_slice(name);
    let padded = need(name.len()).min(rec_len);
    chunk[offset + HEADER + name.len()..offset + padded].fill(0);
}

fn set_rec_len(chunk: &mut [u8], offset: usize, rec_len: usize) {
    let raw = u16::try_from(rec_len).unwrap_or(u16::MAX);
    chunk[offset + 8..offset + 10].copy_from_slice(&raw.to_le_bytes());
}

/// Fills a fresh first chunk: "." and "..".
pub fn init_first(chunk: &mut [u8], own: Ino, parent: Ino) {
    chunk.fill(0);
    let len = chunk.len();
    store(chunk, 0, own, need(1), b".", file_type::DIR);
    store(chunk, need(1), parent, len - need(1), b"..", file_type::DIR);
}

/// Fills a fresh further chunk with one free entry.
pub fn init_empty(chunk: &mut [u8]) {
    chunk.fill(0);
    let len = chunk.len();
    set_rec_len(chunk, 0, len);
}

/// Greatest number of bytes an entry could get in this chunk, checking the chunk on the way.
pub fn largest_gap(chunk: &[u8]) -> Result<usize> {
    let mut best = 0;
    for e in entries(chunk) {
        let e = e?;
        let free = if e.ino.0 == 0 { e.rec_len } else { e.rec_len - need(e.name.len()) };
        best = best.max(free);
    }
    Ok(best)
}

/// Adds an entry by first fit and returns its byte offset; `None` if the chunk has no room.
pub fn insert(chunk: &mut [u8], name: &[u8], ino: Ino, file_type: u8) -> Result<Option<usize>> {
    let want = need(name.len());
    let mut found = None;
    for e in entries(chunk) {
        let e = e?;
        let own = if e.ino.0 == 0 { 0 } else { need(e.name.len()) };
        if e.rec_len >= own + want {
            found = Some((e.offset, e.rec_len, own));
            break;
        }
    }
    let Some((offset, rec_len, own)) = found else { return Ok(None) };
    if own > 0 {
        set_rec_len(chunk, offset, own);
    }
    store(chunk, offset + own, ino, rec_len - own, name, file_type);
    Ok(Some(offset + own))
}

/// Frees the entry at `offset`, merging it into the one before it.
pub fn remove(chunk: &mut [u8], offset: usize) -> Result<()> {
    let mut before = None;
    let mut target = None;
    for e in entries(chunk) {
        let e = e?;
        if e.offset == offset {
            target = Some(e.rec_len);
            break;
        }
        before = Some((e.offset, e.rec_len));
    }
    let Some(rec_len) = target else { return Err(bad(format!("no entry at byte {offset}"))) };
    chunk[offset..offset + 8].fill(0);
    if let Some((at, len)) = before {
        set_rec_len(chunk, at, len + rec_len);
    }
    Ok(())
}

/// Points the entry at `offset` to another inode.
pub fn replace(chunk: &mut [u8], offset: usize, ino: Ino, file_type: u8) -> Result<()> {
    let e = entry_at(chunk, offset)?;
    if e.ino.0 == 0 {
        return Err(bad(format!("no entry at byte {offset}")));
    }
    chunk[offset..offset + 8].copy_from_slice(&ino.0.to_le_bytes());
    chunk[offset + 11] = file_type;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn no_offset_is_too_large_to_be_refused() {
        let mut c = vec![0; 1024];
        init_first(&mut c, Ino(12), Ino(2));
        for offset in [1013, 1024, usize::MAX - 5, usize::MAX] {
            assert!(entry_at(&c, offset).is_err());
        }
    }

    #[test]
    fn a_fresh_directory_is_dot_and_dotdot() {
        for size in [1024, 4096, 65536] {
            let mut c = vec![0; size];
            init_first(&mut c, Ino(12), Ino(2));
            let all: Vec<_> = entries(&c).map(|e| e.unwrap()).collect();
            assert_eq!(all.len(), 2);
            assert_eq!((all[0].name, all[0].ino, all[0].rec_len), (&b"."[..], Ino(12), 16));
            assert_eq!((all[1].name, all[1].ino, all[1].rec_len), (&b".."[..], Ino(2), size - 16));
        }
    }

    #[test]
    fn bad_chunks_are_refused() {
        let mut c = vec![0; 1024];
        init_first(&mut c, Ino(12), Ino(2));
        let changes: [fn(&mut Vec<u8>); 6] =
            [|c| c[8] = 0, |c| c[8] = 18, |c| c[24] = 0xff, |c| c[10] = 200, |c| c[12] = b'/', |c| c[0] = 3];
        for (i, change) in changes.iter().enumerate() {
            let mut c = c.clone();
            change(&mut c);
            assert!(check(&c).is_err(), "case {i}");
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(ops in prop::collection::vec((any::<bool>(), "[a-z]{1,40}"), 1..200)) {
            let mut c = vec![0; 1024];
            init_empty(&mut c);
            let mut model = BTreeMap::new();
            for (i, (add, name)) in ops.iter().enumerate() {
                let name = name.as_bytes().to_vec();
                if *add && !model.contains_key(&name) {
                    let room = largest_gap(&c).unwrap() >= need(name.len());
                    let put = insert(&mut c, &name, Ino(100 + i as u64), 1).unwrap();
                    prop_assert_eq!(room, put.is_some());
                    if put.is_some() { model.insert(name, 100 + i as u64); }
                } else if !*add && model.remove(&name).is_some() {
                    let at = entries(&c).map(|e| e.unwrap()).find(|e| e.name == name).unwrap().offset;
                    remove(&mut c, at).unwrap();
                }
                let got: BTreeMap<_, _> = entries(&c).map(|e| e.unwrap()).filter(|e| e.ino.0 != 0)
                    .map(|e| (e.name.to_vec(), e.ino.0)).collect();
                prop_assert_eq!(&got, &model);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(mut c in prop::collection::vec(any::<u8>(), 1024), name in "[a-z]{1,255}") {
            let _ = check(&c);
            let _ = insert(&mut c, name.as_bytes(), Ino(11), 1);
            let _ = remove(&mut c, 16);
            let _ = replace(&mut c, 32, Ino(12), 2);
        }
    }
}
