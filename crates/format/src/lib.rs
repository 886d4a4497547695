//! On-disk structures of NILFS2: parsing is validating; no I/O and no policy.
//!
//! One file a concept, after `docs/format.md`. Every multi-byte integer is little-endian; every
//! number that comes from a device is checked before it is returned, and what cannot be right is
//! an [`Error`] that says which structure is wrong and how.

pub mod btree;
pub mod checkpoint;
mod checksum;
pub mod dat;
pub mod dir;
pub mod direct;
mod error;
mod geometry;
pub mod inode;
pub mod palloc;
pub mod segment_usage;
pub mod summary;
pub mod super_block;
pub mod super_root;
mod types;

pub use checksum::{Crc, crc32};
pub use error::{Error, Incompatible, Result};
pub use geometry::{Geometry, reserved_segments};
pub use types::{BlockNr, Cno, Ino, LogSeq, SegNr, VBlockNr};
