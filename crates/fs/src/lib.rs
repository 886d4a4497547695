//! POSIX semantics over the engine: inodes and their life, directories, files, attributes.
//!
//! [`Fs`] owns an open [`Volume`] and answers requests the way a good local file system does. It
//! has no threads, no clock and no protocol: who asks and when comes with each request
//! ([`Context`]), and the whole is meant to live under one lock, together with whoever turns what
//! is dirty into logs through [`Fs::volume_mut`].
//!
//! - Reading requests take a [`Tree`]: the live one, or a checkpoint held open with
//!   [`Volume::open_view`]. Writing ones act on the live tree and answer EROFS where the volume
//!   cannot be written.
//! - Inodes are named by [`Ino`]. Whoever hands one out for later use says so with
//!   [`Fs::remember`] and takes it back with [`Fs::forget`], as often: an inode without links is
//!   kept as long as it is remembered, and deleted then. That concerns the live tree only.
//! - Names are bytes without slash and NUL, at most 255. Symbolic links are never followed.
//! - Permission bits are not checked here: the kernel does that, or nobody. Inode flags
//!   (immutable, append-only) are, and so are the rules for set-id bits.
//! - Nothing waits for the device but reads of metadata and of blocks that are changed in part.
//!   Data is read in two steps where waiting under the lock is unwanted: [`Fs::read_plan`].
//! - Access times live in memory and are lost with it.
//!
//! A request that fails changes nothing, except that EIO half-way through a write of many blocks
//! leaves what was written before it, and says so by a short count where it can.
//!
//! Memory is bounded by [`Options`], and by what is remembered.

mod above;
mod appends;
mod attrs;
mod cache;
mod chunks;
mod dirs;
mod error;
mod fallocate;
mod files;
mod gaps;
mod index;
mod life;
mod listing;
mod names;
mod parts;
mod path;
mod read;
mod refused;
mod rename;
mod reserve;
mod space;
mod types;
mod unread;

use std::time::Duration;

use hashbrown::HashMap;
use hashlink::LruCache;
use silt_engine::{Attr, Block, Time, Volume};
use silt_format::inode::LINK_MAX;

pub use error::{FsError, Result};
pub use files::{MAX_READ, Sought};
pub use read::{ReadPiece, Source};
pub use silt_engine::Tree;
pub use silt_format::Ino;
pub use types::{
    Context, DirEntry, Seek, SetAttr, SetTime, Stat, StatFs, WriteFlags, fallocate_mode, rename_flags,
};

use appends::Appends;
use cache::IndexCache;
use error::Of;
use life::{Node, Waiting};
use refused::Refused;
use reserve::Reservations;
pub use space::Reclaimable;
use unread::Unread;

/// Bounds of the memory an [`Fs`] takes besides the volume's.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of directory indexes. A directory needs about 20 bytes an entry; one that needs more
    /// than all of it is searched from its beginning each time.
    pub index_bytes: usize,
    /// Access times kept; beyond it those go that were not used for longest.
    pub access_times: usize,
    /// Key of the hash over names, so that nobody can make names collide.
    pub seed: u64,
    /// Blocks of what is deleted, or cut away, that end with one checkpoint, or so: their entries in the DAT are in memory
    /// meanwhile, 32 bytes each where they lie close together. More go with the next ones.
    pub ends: u64,
    /// How long a device has to come back before a directory that it does not give may be removed with all that is in it.
    pub patience: Duration,
    /// How long a directory that could not be read in whole is not read again, at least: meanwhile names that may be in the rest
    /// are EIO.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            index_bytes: 64 << 20,
            access_times: 100_000,
            seed: 0,
            ends: 1 << 18,
            patience: Duration::from_secs(30),
            pause: Duration::from_secs(1),
        }
    }
}

/// A file system. See the crate's documentation.
pub struct Fs {
    volume: Volume,
    dirs: IndexCache,
    seed: u64,
    /// What is remembered of the live tree's inodes.
    nodes: HashMap<u64, Node>,
    atimes: LruCache<u64, Time>,
    reserved: Reservations,
    appends: Appends,
    /// Where the search for orphans goes on; `None` when it is over.
    orphans: Option<u64>,
    /// Inodes without links that nobody holds any more, and that could not end yet for want of room.
    late: Waiting,
    pause: Duration,
    refused: Refused,
    unread: Unread,
    /// Those that end in parts, one with each checkpoint.
    large: Waiting,
    ends: u64,
    of_the_reserve: bool,
    reclaimable: Option<Reclaimable>,
}

impl Fs {
    /// A file system on an open volume ([`Volume::take_over`] done, if it is to be written).
    pub fn new(volume: Volume, options: &Options) -> Self {
        Fs {
            volume,
            dirs: IndexCache::new(options.index_bytes),
            seed: options.seed,
            nodes: HashMap::new(),
            atimes: LruCache::new(options.access_times),
            reserved: Reservations::default(),
            appends: Appends::default(),
            orphans: Some(0),
            late: Waiting::default(),
            pause: options.pause,
            refused: Refused::new(options.patience),
            unread: Unread::default(),
            large: Waiting::default(),
            ends: options.ends.max(1),
            of_the_reserve: false,
            reclaimable: None,
        }
    }

    /// The volume below.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The volume below, for everything that is not POSIX: constructing logs, checkpoints, views.
    /// Inodes and blocks of the live tree must be changed through [`Fs`] alone.
    pub fn volume_mut(&mut self) -> &mut Volume {
        &mut self.volume
    }

    /// The volume, for closing it.
    pub fn into_volume(self) -> Volume {
        self.volume
    }

    /// Bytes that directory indexes take now.
    pub fn index_bytes(&self) -> usize {
        self.dirs.bytes()
    }

    /// Makes everything durable: a checkpoint and a flush of the device. For callers that have no
    /// log writer of their own.
    pub fn sync_all(&mut self, now: u64) -> Result<u64> {
        let cno = self.volume.checkpoint(now).of(Ino::ROOT)?;
        let device = self.volume.device().clone();
        device.flush().map_err(|e| FsError::damaged(Ino::ROOT, e.to_string()))?;
        self.reap_late(true)?;
        Ok(cno.0)
    }

    fn writable(&self) -> Result<()> {
        if self.volume.is_read_only() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Attributes of an inode of either tree.
    fn attr(&mut self, tree: Tree, ino: Ino) -> Result<Attr> {
        Ok(self.volume.inode(tree, ino).of(ino)?.attr.clone())
    }

    /// Attributes of a live inode that is to be used: one without links must be remembered.
    fn live(&mut self, ino: Ino) -> Result<Attr> {
        let attr = self.attr(Tree::Live, ino)?;
        if attr.links == 0 && !self.nodes.contains_key(&ino.0) { Err(FsError::Stale) } else { Ok(attr) }
    }

    /// Attributes of what must be a directory.
    fn dir_attr(&mut self, tree: Tree, ino: Ino) -> Result<Attr> {
        let attr = self.attr(tree, ino)?;
        if attr.is_dir() { Ok(attr) } else { Err(FsError::NotDir) }
    }

    /// Attributes of a live directory that can take entries.
    fn parent_attr(&mut self, ino: Ino) -> Result<Attr> {
        let attr = self.dir_attr(Tree::Live, ino)?;
        if attr.links == 0 { Err(FsError::NotFound) } else { Ok(attr) }
    }

    /// Writes a block. Whether there is space was asked before ([`Fs::need`]), or need not be: what
    /// deletes may use the volume's reserve (spec 14.1).
    fn put_block(&mut self, ino: Ino, key: u64, block: Block) -> Result<()> {
        self.volume.write_block(ino, key, block).of(ino)
    }
}

/// Whether one link more would be too many.
fn is_at_link_max(attr: &Attr) -> bool {
    attr.links >= u32::from(LINK_MAX)
}
