//! Entries of the inode file made such that they can be opened (format 8.1, 9.1, 9.4).
//!
//! An entry with a field that no writer ever puts there is not opened. What such a field must be is in the rest of
//! the entry and in the map; where that says nothing, it becomes what harms nothing, and is counted or restored
//! later.

use silt_format::inode::{LINK_MAX, RawInode};
use silt_format::{Ino, SegNr};

use super::mapped::{Role, Seen};
use crate::inode::check;
use crate::volume::Volume;
use crate::{Error, Result};

/// Which is wrong, a name that says of which type an inode is, or that inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistyped {
    /// The inode is right, or of no type at all.
    Name,
    /// The inode was: it has the name's type now.
    Mended,
    /// The inode, and more of it than its type.
    Inode,
}

/// Blocks of a map, and the end of its data.
#[derive(Default)]
struct Extent {
    blocks: u64,
    /// One past the last block of data.
    end: u64,
    broken: bool,
}

impl Seen for Extent {
    fn block(&mut self, _: Ino, _: u64, role: Role) -> bool {
        self.blocks = self.blocks.saturating_add(1);
        if let Role::Data(key) = role {
            self.end = self.end.max(key.saturating_add(1));
        }
        true
    }
    fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {
        self.broken = true;
    }
}

impl Volume {
    /// Makes the fields of an entry possible that keep it from being opened; whether something was changed. An
    /// entry of no known type, or with an impossible map root, stays as it is. Nothing of the inode may wait in
    /// memory.
    pub(crate) fn make_possible(&mut self, ino: Ino) -> Result<bool> {
        let g = self.store.geometry;
        let raw = self.ifile.get(&self.store, &self.dat, ino)?;
        if check(&g, &raw).is_ok() || raw.check().is_err() {
            return Ok(false);
        }
        let possible = self.possible(ino, &raw);
        if check(&g, &possible).is_err() {
            return Ok(false);
        }
        self.ifile.change(&self.store, &self.dat, ino, |entry| {
            possible.store(entry);
        })?;
        self.inodes.remove(&ino.0);
        self.meta_dirty = true;
        Ok(true)
    }

    /// How many fields of an entry have values that no writer writes, of seven.
    pub(crate) fn impossible(&self, raw: &RawInode) -> usize {
        let g = &self.store.geometry;
        let impossible = [
            raw.ctime_nsec.get() >= 1_000_000_000,
            raw.mtime_nsec.get() >= 1_000_000_000,
            raw.links_count.get() > LINK_MAX,
            raw.size.get() > g.max_file_size(),
            raw.xattr.get() != 0,
            raw.pad.get() != 0,
            raw.check().is_err(),
        ];
        impossible.into_iter().filter(|is| *is).count()
    }

    /// Settles of which type an inode is that a name has for one of `named` (bits of a mode; spec 9.1): that of the newest
    /// other checkpoint that has the same file; where there is none, what its first block shows where one of the two is a
    /// directory; else its own if its entry makes sense so. Nothing of the inode may wait in memory.
    pub(crate) fn settle_type(&mut self, ino: Ino, named: u32, end_of_log: (SegNr, u64)) -> Result<Mistyped> {
        let g = self.store.geometry;
        let raw = self.ifile.get(&self.store, &self.dat, ino)?;
        if raw.file_type() == named {
            return Ok(Mistyped::Name);
        }
        // An entry that nothing was ever written to, or that was given back, has nothing of the file.
        if raw.mode.get() == 0 && raw.links_count.get() == 0 {
            return Ok(Mistyped::Inode);
        }
        // The very same entry, which several checkpoints may share, says nothing.
        let same = |other: &RawInode| {
            other.generation == raw.generation && other.links_count.get() > 0 && *other != raw
        };
        let elsewhere = self.other_ifiles().into_iter().find_map(|(_, ifile)| {
            let other = ifile.get(&self.store, &self.dat, ino).ok()?;
            (check(&g, &other).is_ok() && same(&other)).then(|| other.file_type())
        });
        let own = match elsewhere {
            Some(right) => right != named,
            None if check(&g, &raw).is_err() => false,
            None if [named, raw.file_type()].contains(&0o040_000) => {
                let blocks = self.content_of(ino, end_of_log).blocks;
                let is_directory = self.is_directory_by_content(ino, &blocks);
                is_directory.is_none_or(|is| is == (raw.file_type() == 0o040_000))
            }
            None => true,
        };
        if own {
            return Ok(Mistyped::Name);
        }
        let mut other = raw;
        // Bits that no mode has name no type.
        let Ok(mode) = u16::try_from(u32::from(raw.mode.get()) & 0o7777 | named) else {
            return Ok(Mistyped::Name);
        };
        other.mode = mode.into();
        if check(&g, &other).is_err() && elsewhere.is_some() {
            // It is that file: what else is wrong with it need not cost its content.
            other = self.possible(ino, &other);
        }
        if check(&g, &other).is_err() {
            return Ok(Mistyped::Inode);
        }
        self.ifile.change(&self.store, &self.dat, ino, |entry| other.store(entry))?;
        self.inodes.remove(&ino.0);
        self.meta_dirty = true;
        Ok(Mistyped::Mended)
    }

    fn possible(&self, ino: Ino, raw: &RawInode) -> RawInode {
        let g = &self.store.geometry;
        let bs = u64::from(g.block_size);
        let mut new = *raw;
        new.links_count = raw.links_count.get().min(LINK_MAX).into();
        for nanos in [&mut new.mtime_nsec, &mut new.ctime_nsec] {
            *nanos = nanos.get().min(999_999_999).into();
        }
        if !raw.has_map() {
            new.blocks = 0.into();
            new.bmap[8..].fill(0);
            if raw.size.get() > g.end_block().saturating_mul(bs) {
                new.size = 0.into();
            }
        } else {
            let mut extent = Extent::default();
            self.see_map(ino, &raw.bmap, &mut extent);
            if raw.blocks.get() / (bs / 512) > g.end_block() {
                new.blocks = extent.blocks.saturating_mul(bs / 512).into();
            }
            let end = extent.end.max(1).saturating_mul(bs);
            let size = raw.size.get();
            match raw.file_type() {
                0o040_000 if size == 0 || !size.is_multiple_of(bs) || size > g.max_file_size() => {
                    new.size = end.into()
                }
                0o120_000 if size == 0 || size >= bs => new.size = self.link_length(ino, raw).into(),
                // Beside what is impossible, a size that no writer of this volume is likely to have made is not believed.
                _ if size > g.max_file_size() || size > g.end_block().max(extent.end).saturating_mul(bs) => {
                    new.size = extent.end.saturating_mul(bs).into()
                }
                _ => {}
            }
        }
        new
    }

    /// Bytes of a symlink's target: up to the zeroes behind it; 0 if it cannot be read.
    fn link_length(&self, ino: Ino, raw: &RawInode) -> u64 {
        struct First(Option<u64>);
        impl Seen for First {
            fn block(&mut self, _: Ino, v: u64, role: Role) -> bool {
                if role == Role::Data(0) {
                    self.0 = Some(v);
                }
                true
            }
            fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {}
        }
        let mut first = First(None);
        self.see_map(ino, &raw.bmap, &mut first);
        first
            .0
            .and_then(|v| self.bytes_of(v).ok())
            .map_or(0, |b| b.iter().position(|byte| *byte == 0).map_or(0, |n| n as u64))
    }
}
