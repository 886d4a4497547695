//! Inodes in memory: attributes, map, and what has not been written yet.
//!
//! ```text
//! read order of a block:   current.blocks  >  current.cuts (hole)
//!                       >  frozen.blocks   >  frozen.cuts  (hole)  >  map
//! ```
//!
//! Requests change `current` only. When a checkpoint begins, `current` becomes `frozen` and a new
//! `current` starts; only the log composer touches `map`, from `frozen`. So a request never waits
//! for a log, and a checkpoint never sees half of a later request.

use std::collections::BTreeMap;
use std::ops::Range;

use rangemap::RangeSet;
use silt_format::inode::{LINK_MAX, RawInode};
use silt_format::{Error as FormatError, Geometry, Ino, btree, direct};

use crate::Error;
use crate::block::Block;
use crate::meta::Map;

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    pub secs: i64,
    pub nanos: u32,
}

/// Checks an entry of the ifile that is to be used: what no writer ever puts there (spec 8.1, 9.1, 9.4). Old
/// volumes may hold anything in `i_xattr` and `i_pad`.
pub(crate) fn check(g: &Geometry, raw: &RawInode) -> silt_format::Result<()> {
    raw.check()?;
    let bad = |what: String| Err(FormatError::corrupt("inode", what));
    let (size, links, bs) = (raw.size.get(), raw.links_count.get(), u64::from(g.block_size));
    if links > LINK_MAX {
        return bad(format!("{links} links"));
    }
    if raw.mtime_nsec.get() >= 1_000_000_000 || raw.ctime_nsec.get() >= 1_000_000_000 {
        return bad(format!("times with {} and {} nanoseconds", raw.mtime_nsec, raw.ctime_nsec));
    }
    if size > g.max_file_size() {
        return bad(format!("a size of {size} bytes"));
    }
    if raw.blocks.get() / (bs / 512) > g.end_block() {
        return bad(format!("{} units of 512 bytes, more than the volume has", raw.blocks));
    }
    match raw.file_type() {
        _ if links == 0 => Ok(()),
        0o100_000 => Ok(()),
        0o040_000 if size == 0 || size % bs != 0 => bad(format!("a directory of {size} bytes")),
        0o120_000 if size == 0 || size >= bs => bad(format!("a symbolic link of {size} bytes")),
        0o040_000 | 0o120_000 => Ok(()),
        _ if raw.blocks.get() != 0 || raw.bmap[8..].iter().any(|b| *b != 0) => {
            bad("a map where there is no content".into())
        }
        _ => Ok(()),
    }
}

/// What a stat tells, but for block counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// Bytes.
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
    /// `FS_*_FL` bits.
    pub flags: u32,
    pub generation: u32,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
}

impl Attr {
    /// From an entry of the ifile.
    pub fn of(raw: &RawInode) -> Self {
        let time = |secs: u64, nanos: u32| Time { secs: secs.cast_signed(), nanos: nanos.min(999_999_999) };
        let device = match raw.file_type() {
            0o020_000 | 0o060_000 => raw.device(),
            _ => (0, 0),
        };
        Attr {
            mode: u32::from(raw.mode.get()),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            links: u32::from(raw.links_count.get()),
            size: raw.size.get(),
            mtime: time(raw.mtime.get(), raw.mtime_nsec.get()),
            ctime: time(raw.ctime.get(), raw.ctime_nsec.get()),
            flags: raw.flags.get(),
            generation: raw.generation.get(),
            device,
        }
    }

    /// Puts the attributes into an entry; map, xattr and padding stay as they are.
    pub fn store(&self, raw: &mut RawInode) {
        raw.mode = u16::try_from(self.mode & 0xffff).unwrap_or(0).into();
        raw.uid = self.uid.into();
        raw.gid = self.gid.into();
        raw.links_count = u16::try_from(self.links).unwrap_or(u16::MAX).into();
        raw.size = self.size.into();
        raw.mtime = self.mtime.secs.cast_unsigned().into();
        raw.mtime_nsec = self.mtime.nanos.into();
        raw.ctime = self.ctime.secs.cast_unsigned().into();
        raw.ctime_nsec = self.ctime.nanos.into();
        raw.flags = self.flags.into();
        raw.generation = self.generation.into();
    }

    /// Type bits of the mode.
    pub fn file_type(&self) -> u32 {
        self.mode & 0o170_000
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == 0o040_000
    }

    pub fn is_regular(&self) -> bool {
        self.file_type() == 0o100_000
    }

    /// Whether inodes of this type own blocks.
    pub fn has_map(&self) -> bool {
        matches!(self.file_type(), 0o100_000 | 0o040_000 | 0o120_000)
    }
}

/// Changes of a file's content that no log holds yet.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Written blocks by file block offset.
    pub blocks: BTreeMap<u64, Block>,
    /// Ranges unmapped before `blocks` were written.
    pub cuts: RangeSet<u64>,
    /// Nothing below this layer is left.
    pub emptied: bool,
}

impl Overlay {
    /// What this layer says of a block: its bytes, a hole, or nothing.
    pub fn get(&self, key: u64) -> Option<Option<&Block>> {
        if let Some(b) = self.blocks.get(&key) {
            return Some(Some(b));
        }
        self.cuts.contains(&key).then_some(None)
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.cuts.is_empty()
    }
}

/// What of an inode belongs to the checkpoint under construction.
#[derive(Debug)]
pub struct Frozen {
    pub attr: Attr,
    pub over: Overlay,
    /// The inode dies in this checkpoint.
    pub deleted: bool,
    /// Blocks the overlay adds to the map, as counted or estimated at the requests.
    pub pending: i64,
}

/// An inode in memory.
pub struct Inode {
    pub ino: Ino,
    pub attr: Attr,
    pub map: Map,
    pub current: Overlay,
    /// Most inodes in memory are in no checkpoint under construction: not in place.
    pub frozen: Option<Box<Frozen>>,
    /// Attributes or content differ from what the newest (or frozen) checkpoint holds.
    pub dirty: bool,
    /// A change that a data-sync log cannot carry: anything but overwritten data and times.
    pub needs_checkpoint: bool,
    /// Its number is allocated in the ifile.
    pub on_disk: bool,
    /// Dies with the next checkpoint.
    pub deleted: bool,
    /// Blocks `current` adds to what is below it (to nothing, where that is cut away): exact for
    /// what is written, for large cuts an estimate.
    pub pending: i64,
    /// Users that need it in memory.
    pub pins: u32,
    /// Why a checkpoint could not take its content, until somebody who syncs it was told.
    pub error: Option<String>,
    /// That is so since the last checkpoint it was in.
    pub is_hurt: bool,
    /// And content is lost by it, not just space.
    pub has_lost: bool,
}

impl Inode {
    /// From an entry of the ifile.
    pub fn load(ino: Ino, raw: &RawInode) -> Self {
        let attr = Attr::of(raw);
        let map =
            if attr.has_map() { Map::of(raw) } else { Map { blocks: raw.blocks.get(), ..Map::empty() } };
        Inode {
            ino,
            attr,
            map,
            current: Overlay::default(),
            frozen: None,
            dirty: false,
            needs_checkpoint: false,
            on_disk: true,
            deleted: false,
            pending: 0,
            pins: 0,
            error: None,
            is_hurt: false,
            has_lost: false,
        }
    }

    /// A new one.
    pub fn create(ino: Ino, attr: Attr) -> Self {
        Inode {
            ino,
            attr,
            map: Map::empty(),
            current: Overlay::default(),
            frozen: None,
            dirty: true,
            needs_checkpoint: true,
            on_disk: false,
            deleted: false,
            pending: 0,
            pins: 0,
            error: None,
            is_hurt: false,
            has_lost: false,
        }
    }

    /// 512-byte units it takes: what is on disk and what waits (node blocks of waiting data are
    /// not known before they are written).
    pub fn blocks_512(&self, block_size: u32) -> u64 {
        let mut mapped = self.map.blocks;
        let mut waiting = self.pending;
        if self.current.emptied {
            mapped = 0;
        } else if let Some(f) = &self.frozen {
            waiting = waiting.saturating_add(f.pending);
            if f.over.emptied {
                mapped = 0;
            }
        }
        mapped.saturating_add_signed(waiting.saturating_mul(i64::from(block_size / 512)))
    }

    /// Whether [`Inode::blocks_512`] is exact: nothing waits, or what does takes no node blocks.
    pub fn is_counted(&self, block_size: u32) -> bool {
        let over = &self.current;
        let waits = !over.blocks.is_empty() || !over.cuts.is_empty() || over.emptied || self.frozen.is_some();
        let small = self.attr.size <= direct::KEYS * u64::from(block_size);
        !waits || (small && !btree::is_btree(&self.map.root))
    }

    /// What the layers in memory say of a block; `None`: ask the map.
    pub fn in_memory(&self, key: u64) -> Option<Option<&Block>> {
        if let Some(answer) = self.current.get(key) {
            return Some(answer);
        }
        self.frozen.as_ref().and_then(|f| f.over.get(key))
    }

    /// The range around `key` that some layer cut away, if one did: what the map says there does not
    /// count.
    pub fn hidden(&self, key: u64) -> Option<&Range<u64>> {
        let below = self.frozen.as_ref().and_then(|f| f.over.cuts.get(&key));
        self.current.cuts.get(&key).or(below)
    }

    /// Where the first such range behind `key`, which is in none, begins; `u64::MAX` if none does.
    pub fn next_hidden(&self, key: u64) -> u64 {
        let next = |over: &Overlay| over.cuts.overlapping(key..u64::MAX).next().map_or(u64::MAX, |r| r.start);
        next(&self.current).min(self.frozen.as_ref().map_or(u64::MAX, |f| next(&f.over)))
    }

    /// Whether it can be dropped from memory and loaded again later.
    pub fn is_evictable(&self) -> bool {
        let used = self.pins > 0 || self.dirty || self.frozen.is_some() || self.error.is_some();
        !used && self.map.nodes.is_empty() && !self.deleted
    }

    /// A checkpoint cannot give back some of what it had.
    pub fn hurt(&mut self, e: &Error) {
        self.is_hurt = true;
        self.error.get_or_insert_with(|| e.to_string());
    }

    /// A checkpoint cannot take some of its content.
    pub fn lose(&mut self, e: &Error) {
        self.has_lost |= !self.deleted;
        self.hurt(e);
    }
}
