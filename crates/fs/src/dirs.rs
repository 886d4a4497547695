//! Entries of directories: finding, adding, removing and replacing them.
//!
//! A directory is read chunk by chunk, which are its blocks (spec section 9). With an index
//! ([`crate::index`]) every operation touches one or two chunks; a directory whose index does not
//! fit into memory is searched from its beginning, chunk by chunk.
//!
//! A chunk that cannot be parsed is bad. While there is one, or one cannot be read at all, names that
//! are in it answer EIO, and so does every name that is not found elsewhere, because it may be there:
//! nothing is added to the directory. All other chunks work. Changes are prepared on a copy of the chunk, so that
//! an error leaves no trace.

use std::time::{Duration, Instant};

use silt_engine::{Tree, Volume, writable, zeroed};
use silt_format::{Ino, dir};

use crate::Fs;
use crate::cache::Known;
use crate::chunks::{Chunks, read_chunk};
use crate::error::{FsError, Of, Result};
use crate::gaps::Gaps;
use crate::index::{DirIndex, Hint, hash_name};

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub ino: Ino,
    /// As the directory stores it.
    pub file_type: u8,
    /// File block offset of its chunk.
    pub key: u64,
    /// Bytes in the chunk.
    pub offset: usize,
}

/// How long reading a directory may have taken to be tried again at once, because a device may fail once.
const SHORT: Duration = Duration::from_secs(1);

/// Chunks at the end of a directory without an index that a removal looks at.
const LOOKED_BACK: usize = 64;

/// What is asked for may be in the part of a directory that cannot be read.
pub(crate) fn unreadable(dir: Ino) -> FsError {
    FsError::damaged(dir, "part of the directory cannot be read")
}

/// Whether an entry is "." or "..", which no index holds.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Offset of the entry before the one at `offset` in a chunk, `None` for the first.
fn entry_before(chunk: &[u8], offset: usize) -> silt_format::Result<Option<usize>> {
    let mut at = 0;
    let mut before = None;
    while at < offset {
        let rec_len = match chunk.get(at + 8..at + 10) {
            Some([a, b]) => match u16::from_le_bytes([*a, *b]) {
                u16::MAX => 65536,
                n => usize::from(n),
            },
            _ => 0,
        };
        if rec_len < dir::HEADER {
            break;
        }
        before = Some(at);
        at += rec_len;
    }
    if at == offset {
        return Ok(before);
    }
    Err(silt_format::Error::corrupt("directory", format!("no entry at byte {offset}")))
}

/// Frees the entry at `offset` and returns where the free space now begins and its bytes.
fn remove_entry(chunk: &mut [u8], offset: usize) -> silt_format::Result<(usize, usize)> {
    let before = entry_before(chunk, offset)?;
    let end = offset + dir::entry_at(chunk, offset)?.rec_len;
    let start = before.unwrap_or(offset);
    // An entry and the one before it are a small chunk of their own.
    dir::remove(&mut chunk[start..end], offset - start)?;
    let e = dir::entry_at(chunk, start)?;
    let own = if e.ino.0 == 0 { 0 } else { dir::need(e.name.len()) };
    Ok((start, e.rec_len.saturating_sub(own)))
}

/// Adds an entry behind the one at `hint`, if there is room.
fn insert_at(
    chunk: &mut [u8],
    hint: usize,
    name: &[u8],
    ino: Ino,
    file_type: u8,
) -> silt_format::Result<Option<usize>> {
    let end = hint + dir::entry_at(chunk, hint)?.rec_len;
    Ok(dir::insert(&mut chunk[hint..end], name, ino, file_type)?.map(|at| hint + at))
}

/// Reads a directory and makes its index, and whether the device did not give all of it. An error if the index takes more than
/// `limit` bytes: whether damage was met.
fn build(
    volume: &mut Volume,
    seed: u64,
    tree: Tree,
    dir: Ino,
    end: u64,
    limit: usize,
    pause: Duration,
) -> std::result::Result<(DirIndex, bool), bool> {
    let mut ix = DirIndex::new(volume.geometry().block_size);
    let mut chunks = Chunks::new(tree, dir, 0, end);
    let (mut damaged, mut unread) = (false, false);
    let begin = Instant::now();
    while let Some((key, block)) = chunks.next(volume) {
        let Some(position) = ix.push_chunk(key, 0) else { return Err(damaged) };
        let mut room = 0;
        let sound = match block {
            Err(e) => {
                ix.unreadable = true;
                unread |= e.is_of_device();
                false
            }
            Ok(block) => dir::entries(&block)
                .try_for_each(|e| {
                    let e = e.map_err(|_| ())?;
                    let own = if e.ino.0 == 0 { 0 } else { dir::need(e.name.len()) };
                    room = room.max(e.rec_len - own);
                    if e.ino.0 != 0 && !is_dots(e.name) {
                        ix.insert(hash_name(seed, e.name), position, e.offset).then_some(()).ok_or(())?;
                    }
                    Ok::<(), ()>(())
                })
                .is_ok(),
        };
        if sound {
            ix.gaps.set(position, Gaps::class(room));
        } else {
            ix.set_bad(position);
            damaged = true;
        }
        if ix.bytes() > limit {
            return Err(damaged);
        }
    }
    if ix.unreadable || chunks.damaged {
        ix.set_unreadable(begin.elapsed(), pause);
    }
    Ok((ix, unread || chunks.unread.is_some()))
}

impl Fs {
    /// Chunks a directory has by its size; 0 for one that is removed.
    fn chunk_count(&mut self, tree: Tree, dir: Ino) -> Result<u64> {
        let attr = self.dir_attr(tree, dir)?;
        Ok(if attr.links == 0 { 0 } else { attr.size >> self.volume.geometry().block_bits })
    }

    /// The index of a directory, made if need be; `None` if it is unfit for one.
    fn index(&mut self, tree: Tree, dir: Ino) -> Result<Option<(&mut Volume, &mut DirIndex)>> {
        let key = (tree, dir.0);
        if self.dirs.get(key).is_none() {
            let end = self.chunk_count(tree, dir)?;
            let limit = self.dirs.limit();
            let begin = Instant::now();
            let (seed, pause) = (self.seed, self.pause);
            let mut built = build(&mut self.volume, seed, tree, dir, end, limit, pause);
            if matches!(&built, Ok((_, true))) && begin.elapsed() < SHORT {
                built = build(&mut self.volume, seed, tree, dir, end, limit, pause);
            }
            let known = match built {
                Ok((ix, _)) => Known::Index(Box::new(ix)),
                Err(damaged) => Known::Unfit { damaged },
            };
            let is_sound = matches!(&known, Known::Index(ix) if !ix.is_damaged());
            self.dirs.put(key, known);
            if is_sound && tree == Tree::Live {
                self.refused.forget(dir);
                self.looked_into(dir);
            }
        }
        Ok(match self.dirs.get(key) {
            Some(Known::Index(ix)) => Some((&mut self.volume, ix)),
            _ => None,
        })
    }

    /// Finds a name other than "." and "..". EIO: it is in a part that is damaged, or may be.
    pub(crate) fn dir_find(&mut self, tree: Tree, dir: Ino, name: &[u8]) -> Result<Option<Found>> {
        let found = self.dir_find_known(tree, dir, name);
        if found.is_ok() || !matches!(self.dirs.get((tree, dir.0)), Some(Known::Index(ix)) if ix.is_stale()) {
            return found;
        }
        self.dirs.drop((tree, dir.0));
        self.dir_find_known(tree, dir, name)
    }

    /// The same by what is known of the directory.
    fn dir_find_known(&mut self, tree: Tree, dir: Ino, name: &[u8]) -> Result<Option<Found>> {
        let hash = hash_name(self.seed, name);
        let Some((volume, ix)) = self.index(tree, dir)? else {
            return self.dir_scan(tree, dir, |e| e.name == name);
        };
        for (position, offset) in ix.candidates(hash) {
            let Some(key) = ix.key(position) else { continue };
            let block = read_chunk(volume, tree, dir, key)?;
            let e = dir::entry_at(&block, offset).of(dir)?;
            if e.ino.0 == 0 || e.name != name {
                continue;
            }
            if ix.is_bad(position) {
                return Err(FsError::damaged(dir, format!("directory block {key} is damaged")));
            }
            return Ok(Some(Found { ino: e.ino, file_type: e.file_type, key, offset }));
        }
        if ix.is_damaged() { Err(unreadable(dir)) } else { Ok(None) }
    }

    /// The first entry in use for which `wanted` holds, by looking at all of them, "." and ".."
    /// excepted. Damaged chunks are passed over and remembered.
    fn dir_scan(
        &mut self,
        tree: Tree,
        dir: Ino,
        wanted: impl Fn(&dir::Entry<'_>) -> bool,
    ) -> Result<Option<Found>> {
        let end = self.chunk_count(tree, dir)?;
        let mut chunks = Chunks::new(tree, dir, 0, end);
        let (mut damaged, mut unread) = (false, false);
        let mut found = None;
        while let Some((key, block)) = chunks.next(&mut self.volume) {
            let Ok(block) = block else {
                unread = true;
                continue;
            };
            let mut here = None;
            let mut sound = true;
            for e in dir::entries(&block) {
                match e {
                    Ok(e) if e.ino.0 != 0 && here.is_none() && !is_dots(e.name) && wanted(&e) => {
                        let (ino, file_type, offset) = (e.ino, e.file_type, e.offset);
                        here = Some(Found { ino, file_type, key, offset });
                    }
                    Ok(_) => {}
                    Err(_) => sound = false,
                }
            }
            damaged |= !sound;
            if here.is_some() {
                found = Some((here, sound, key));
                break;
            }
        }
        unread |= chunks.damaged;
        if damaged || unread || found.is_none() {
            self.note_damage(tree, dir, damaged || unread);
        }
        match found {
            Some((_, false, key)) => Err(FsError::damaged(dir, format!("directory block {key} is damaged"))),
            Some((here, true, _)) => Ok(here),
            None if unread || damaged => Err(unreadable(dir)),
            None => Ok(None),
        }
    }

    /// Remembers whether a directory that has no index is damaged.
    pub(crate) fn note_damage(&mut self, tree: Tree, dir: Ino, is: bool) {
        if let Some(Known::Unfit { damaged }) = self.dirs.get((tree, dir.0)) {
            *damaged = is;
        }
    }

    /// Whether something in a directory is known to be unreadable.
    pub(crate) fn dir_is_damaged(&mut self, tree: Tree, dir: Ino) -> Result<bool> {
        if let Some((_, ix)) = self.index(tree, dir)? {
            return Ok(ix.is_damaged());
        }
        Ok(matches!(self.dirs.get((tree, dir.0)), Some(Known::Unfit { damaged: true })))
    }

    /// Whether a live directory holds nothing but "." and "..". Damage: EIO, because what cannot
    /// be read may be an entry.
    pub(crate) fn dir_is_empty(&mut self, dir: Ino) -> Result<bool> {
        // What could not be read may be readable now.
        let key = (Tree::Live, dir.0);
        if matches!(self.dirs.get(key), Some(Known::Index(ix)) if ix.unreadable) {
            self.dirs.drop(key);
        }
        if let Some((_, ix)) = self.index(Tree::Live, dir)? {
            if ix.len() > 0 {
                return Ok(false);
            }
        } else if self.dir_scan(Tree::Live, dir, |_| true)?.is_some() {
            return Ok(false);
        }
        if self.dir_is_damaged(Tree::Live, dir)? {
            return Err(unreadable(dir));
        }
        Ok(true)
    }

    /// Whether a live directory may be removed: nothing but "." and ".." is in what can be read of it. EIO: the device does not
    /// give all of it, and has not for less than [`crate::Options::patience`].
    pub(crate) fn dir_is_removable(&mut self, dir: Ino) -> Result<bool> {
        match self.dir_is_empty(dir) {
            Err(FsError::Io { .. }) => {}
            Ok(false) if self.dir_is_damaged(Tree::Live, dir)? => {}
            other => {
                self.refused.forget(dir);
                return other;
            }
        }
        let end = self.chunk_count(Tree::Live, dir)?;
        let mut chunks = Chunks::new(Tree::Live, dir, 0, end);
        let unread = loop {
            match self.a_name_in(&mut chunks) {
                Ok(None) => break None,
                Ok(Some(_)) => return Ok(false),
                Err(e) => {
                    self.count_as_lost(dir, e.clone())?;
                    if !chunks.cut_short {
                        break Some(e);
                    }
                }
            }
            // What lies behind what takes long to fail may be names.
            chunks = Chunks::new(Tree::Live, dir, 0, end).patient();
        };
        if unread.is_none() {
            self.refused.forget(dir);
        }
        Ok(true)
    }

    /// A name in what can be read of a directory, "." and ".." excepted. An error: there is none, and the device did not give all.
    fn a_name_in(&mut self, chunks: &mut Chunks) -> Result<Option<Ino>> {
        let mut unread = None;
        while let Some((key, block)) = chunks.next(&mut self.volume) {
            // Once more: a device may fail once.
            let block = match block.or_else(|_| read_chunk(&mut self.volume, Tree::Live, chunks.dir(), key)) {
                Ok(block) => block,
                Err(e) if e.is_of_device() => {
                    unread = Some(e);
                    continue;
                }
                Err(_) => continue,
            };
            // Names in a chunk that is damaged cannot be removed one by one.
            if dir::check(&block).is_err() {
                continue;
            }
            let name = dir::entries(&block).flatten().find(|e| e.ino.0 != 0 && !is_dots(e.name));
            if let Some(e) = name {
                return Ok(Some(e.ino));
            }
        }
        unread.or(chunks.unread.take()).map_or(Ok(None), Err)
    }

    /// Adds an entry for a name that is not there, growing the directory if need be. The caller
    /// has seen to it that there is space for two blocks.
    pub(crate) fn dir_insert(&mut self, dir: Ino, name: &[u8], ino: Ino, file_type: u8) -> Result<()> {
        let need = Gaps::class(dir::need(name.len()));
        let hash = hash_name(self.seed, name);
        loop {
            let Some((volume, ix)) = self.index(Tree::Live, dir)? else {
                return self.dir_insert_unindexed(dir, name, ino, file_type);
            };
            let Some(position) = ix.gaps.first(need) else { break };
            let Some(key) = ix.key(position) else { break };
            let mut block = match read_chunk(volume, Tree::Live, dir, key) {
                Ok(block) => block,
                // What is in it is known; another chunk takes the name.
                Err(e) if e.is_of_device() => {
                    ix.gaps.set(position, 0);
                    continue;
                }
                Err(_) => {
                    ix.set_bad(position);
                    ix.unreadable = true;
                    continue;
                }
            };
            let bytes = writable(&mut block);
            let hint = ix.hint.filter(|h| h.position == position).map(|h| h.offset);
            let placed = match hint.map(|h| insert_at(bytes, h, name, ino, file_type)) {
                Some(Ok(Some(at))) => Ok(Some(at)),
                _ => dir::insert(bytes, name, ino, file_type),
            };
            match placed {
                Ok(Some(offset)) => {
                    self.put_block(dir, key, block)?;
                    return self.index_new(dir, hash, position, offset);
                }
                Ok(None) => {
                    let room = dir::largest_gap(bytes).map(Gaps::class).unwrap_or(0);
                    ix.gaps.set(position, room.min(need.saturating_sub(1)));
                }
                Err(_) => ix.set_bad(position),
            }
        }
        let (key, offset) = self.dir_append(dir, name, ino, file_type)?;
        let Some(Known::Index(ix)) = self.dirs.get((Tree::Live, dir.0)) else { return Ok(()) };
        let room = self.volume.geometry().bs() - dir::need(name.len());
        match ix.push_chunk(key, Gaps::class(room)) {
            Some(position) => self.index_new(dir, hash, position, offset),
            None => {
                self.dirs.put((Tree::Live, dir.0), Known::Unfit { damaged: false });
                Ok(())
            }
        }
    }

    /// Puts a new entry into the index.
    fn index_new(&mut self, dir: Ino, hash: u32, position: usize, offset: usize) -> Result<()> {
        let key = (Tree::Live, dir.0);
        let Some(Known::Index(ix)) = self.dirs.get(key) else { return Ok(()) };
        ix.hint = Some(Hint { position, offset });
        if ix.insert(hash, position, offset) {
            self.dirs.settle(key);
        } else {
            self.dirs.put(key, Known::Unfit { damaged: false });
        }
        Ok(())
    }

    /// Adds a chunk that holds one entry; its block offset and the entry's place in it.
    fn dir_append(&mut self, dir: Ino, name: &[u8], ino: Ino, file_type: u8) -> Result<(u64, usize)> {
        let g = *self.volume.geometry();
        let size = self.dir_attr(Tree::Live, dir)?.size;
        if size & (u64::from(g.block_size) - 1) != 0 {
            return Err(FsError::damaged(dir, format!("a directory of {size} bytes")));
        }
        let new_size = size.checked_add(g.block_size.into()).filter(|s| *s <= g.max_file_size());
        let new_size = new_size.ok_or(FsError::FileTooBig)?;
        let key = size >> g.block_bits;
        let mut block = zeroed(g.bs());
        let bytes = writable(&mut block);
        dir::init_empty(bytes);
        let offset = dir::insert(bytes, name, ino, file_type).of(dir)?.ok_or(FsError::NameTooLong)?;
        self.put_block(dir, key, block)?;
        self.volume.attr_mut(dir).of(dir)?.size = new_size;
        Ok((key, offset))
    }

    fn dir_insert_unindexed(&mut self, dir: Ino, name: &[u8], ino: Ino, file_type: u8) -> Result<()> {
        let end = self.chunk_count(Tree::Live, dir)?;
        let mut chunks = Chunks::new(Tree::Live, dir, 0, end);
        while let Some((key, block)) = chunks.next(&mut self.volume) {
            let Ok(mut block) = block else { continue };
            // The whole chunk must be sound, not only what lies before the room.
            match dir::largest_gap(&block) {
                Ok(room) if room >= dir::need(name.len()) => {}
                _ => continue,
            }
            if dir::insert(writable(&mut block), name, ino, file_type).of(dir)?.is_some() {
                return self.put_block(dir, key, block);
            }
        }
        self.dir_append(dir, name, ino, file_type).map(|_| ())
    }

    /// Removes an entry that was found.
    pub(crate) fn dir_remove(&mut self, dir: Ino, name: &[u8], found: &Found) -> Result<()> {
        let mut block = read_chunk(&mut self.volume, Tree::Live, dir, found.key)?;
        let (start, room) = remove_entry(writable(&mut block), found.offset).of(dir)?;
        self.put_block(dir, found.key, block)?;
        let hash = hash_name(self.seed, name);
        if let Some(Known::Index(ix)) = self.dirs.get((Tree::Live, dir.0))
            && let Some(position) = ix.position(found.key)
        {
            ix.remove(hash, position, found.offset);
            let class = Gaps::class(room).max(ix.gaps.get(position));
            ix.gaps.set(position, class);
            // The entry may have been the hint: there is none at its place any more.
            if let Some(h) = &mut ix.hint
                && h.position == position
            {
                h.offset = start;
            }
        }
        self.dir_shrink(dir);
        Ok(())
    }

    /// Cuts chunks without entries off the end of a live directory, so that names that are gone take no space. Places of entries
    /// stay what they are. One that cannot be cut, or not now, stays: the next removal tries again.
    fn dir_shrink(&mut self, dir: Ino) {
        let Ok(end) = self.chunk_count(Tree::Live, dir) else { return };
        let n = self.dir_empty_at_end(dir, end).min(self.ends);
        if n == 0 {
            return;
        }
        let from = end - n;
        let together = self.volume.ending_blocks().saturating_add(n);
        if together > silt_engine::ends_of_part(self.ends) || self.volume.check_change(true, n).is_err() {
            return;
        }
        if self.volume.cut(dir, from..u64::MAX).is_err() {
            return;
        }
        let bits = self.volume.geometry().block_bits;
        if let Ok(attr) = self.volume.attr_mut(dir) {
            attr.size = from << bits;
        }
        if let Some(Known::Index(ix)) = self.dirs.get((Tree::Live, dir.0)) {
            ix.pop_chunks(usize::try_from(n).unwrap_or(usize::MAX));
        }
    }

    /// Chunks without entries at the end of a live directory of `end` chunks; without an index, of the last [`LOOKED_BACK`].
    fn dir_empty_at_end(&mut self, dir: Ino, end: u64) -> u64 {
        match self.dirs.get((Tree::Live, dir.0)) {
            Some(Known::Index(ix)) => {
                let n = ix.empty_at_end() as u64;
                // A hole, which only a damaged directory has, is not known to the index.
                let is_whole = ix.position(end.wrapping_sub(1)).is_some_and(|p| p as u64 + 1 == end);
                if is_whole { n } else { 0 }
            }
            Some(Known::Unfit { damaged: true }) => 0,
            _ => {
                let bs = self.volume.geometry().bs();
                let chunks = (1..end).rev().take(LOOKED_BACK);
                chunks
                    .take_while(|key| {
                        read_chunk(&mut self.volume, Tree::Live, dir, *key).is_ok_and(|b| {
                            dir::entry_at(&b, 0).is_ok_and(|e| e.ino.0 == 0 && e.rec_len == bs)
                        })
                    })
                    .count() as u64
            }
        }
    }

    /// Points an entry that was found to another inode.
    pub(crate) fn dir_replace(&mut self, dir: Ino, found: &Found, ino: Ino, file_type: u8) -> Result<()> {
        let mut block = read_chunk(&mut self.volume, Tree::Live, dir, found.key)?;
        dir::replace(writable(&mut block), found.offset, ino, file_type).of(dir)?;
        self.put_block(dir, found.key, block)
    }
}
