//! Listing directories.
//!
//! A place in a listing is the byte offset of an entry in the directory file. Entries never move,
//! so a listing that goes on from a place gives every entry that was there all the time exactly
//! once, whatever is made and removed meanwhile. Behind a part that could not be read each place says so, so that
//! the end of the listing tells of it, whatever can be read by then.

use std::ops::ControlFlow;

use silt_engine::Tree;
use silt_format::dir::{self, file_type};

use crate::chunks::Chunks;
use crate::dirs::{is_dots, unreadable};
use crate::error::{FsError, Of, Result};
use crate::types::{DirEntry, S_IFMT};
use crate::{Fs, Ino};

/// In a place of a listing: something before it was left out. No directory is that long.
const LEFT_OUT: u64 = 1 << 62;

impl Fs {
    /// Calls `f` for every entry of a directory from place `from` on (0, or the `next` of an
    /// entry), "." and ".." included, until it breaks; with attributes if `stat` says so. What of it could not be
    /// read, if others were listed. EIO at the very end, when nothing is left to list, tells that some of the directory could not be
    /// read: now ([`FsError::Io`]), or on the way to `from` ([`FsError::LeftOut`]).
    pub fn readdir(
        &mut self,
        tree: Tree,
        ino: Ino,
        from: u64,
        stat: bool,
        mut f: impl FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Option<FsError>> {
        let attr = self.dir_attr(tree, ino)?;
        if attr.links == 0 {
            return Ok(None);
        }
        let g = *self.volume.geometry();
        let (left_out, from) = match from ^ LEFT_OUT {
            place if place < LEFT_OUT => (true, place),
            _ => (false, from),
        };
        let first = from >> g.block_bits;
        let skip = (from & (u64::from(g.block_size) - 1)) as usize;
        let end = attr.size.min(LEFT_OUT - u64::from(g.block_size)) >> g.block_bits;
        let mut chunks = Chunks::new(tree, ino, first, end);
        let (mut damaged, mut listed) = (None, false);
        while let Some((key, block)) = chunks.next(&mut self.volume) {
            let block = match block.and_then(|block| dir::check(&block).of(ino).map(|()| block)) {
                Ok(block) => block,
                Err(e) => {
                    damaged.get_or_insert(e);
                    continue;
                }
            };
            let left_out = left_out || damaged.is_some() || chunks.damaged;
            let base = key << g.block_bits;
            for e in dir::entries(&block) {
                let Ok(e) = e else { break };
                if e.ino.0 == 0 || (key == first && e.offset < skip) {
                    continue;
                }
                let said = file_type::to_mode(e.file_type);
                let known = if stat && !is_dots(e.name) { self.getattr(tree, e.ino).ok() } else { None };
                // Where they disagree it is for a look-up to say so.
                let known = known.filter(|s| said == 0 || said == s.mode & S_IFMT);
                let next = base + (e.offset + e.rec_len) as u64;
                let entry = DirEntry {
                    ino: e.ino,
                    file_type: file_type::to_mode(e.file_type),
                    name: e.name,
                    next: if left_out { next | LEFT_OUT } else { next },
                    stat: known,
                };
                listed = true;
                if f(&entry).is_break() {
                    return Ok(damaged);
                }
            }
        }
        if chunks.damaged {
            damaged.get_or_insert(unreadable(ino));
        }
        if damaged.is_none() && from == 0 && tree == Tree::Live {
            self.refused.forget(ino);
        }
        match damaged {
            Some(e) if !listed => Err(e),
            None if !listed && left_out => Err(FsError::LeftOut),
            damaged => Ok(damaged),
        }
    }
}
