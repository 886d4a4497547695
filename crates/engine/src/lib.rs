//! A NILFS2 volume: block maps, DAT, checkpoints, log writer, recovery.

mod block;
pub mod bmap;
mod construct;
mod cpfile;
mod dat;
mod error;
mod files;
mod ifile;
mod inode;
mod log;
mod meta;
pub mod mkfs;
mod palloc;
mod recover;
mod search;
mod settings;
mod snapshots;
mod store;
mod sufile;
mod supers;
mod view;
mod virt;
mod volume;

pub use block::{Block, writable, zeroed};
pub use construct::Step;
pub use error::{At, Error, Result};
pub use files::{Piece, Tree};
pub use inode::{Attr, Inode, Time};
pub use log::{LogWrite, WriteOrder};
pub use settings::{Tune, read_super_block, tune};
pub use snapshots::{CheckpointInfo, SegmentInfo};
pub use supers::{LastLog, SuperWrite};
pub use volume::{OpenOptions, OpenReport, Stat, Volume};
