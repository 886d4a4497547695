//! What files hold of the past, as it is asked for, answered and printed. Sizes in bytes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

use crate::paths;

/// Which files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastQuery {
    /// At or below this path in the volume, as it is today or was last; empty: all.
    #[serde(with = "paths")]
    pub below: PathBuf,
    /// At most so many, those that hold most; none: all.
    pub top: Option<u64>,
}

/// A file, past or present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastFile {
    /// From the root of the volume, today's, or the last that it is known to have had; none where it is not known.
    #[serde(flatten, with = "silt_names::path")]
    pub path: Option<ByteName>,
    pub inode: u64,
    /// Tells the users of an inode number apart.
    pub generation: Option<u32>,
    /// What it holds of the past, and how much of that snapshots alone do.
    pub bytes: u64,
    pub snapshots: u64,
    /// Numbers of the first and the last moment that are known to have it.
    pub first: u64,
    pub last: u64,
    /// It is not there any more.
    pub gone: bool,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastTotal {
    /// Files that hold something of the past, and what they hold: those asked for.
    pub files: u64,
    pub bytes: u64,
    /// Those of them that were not listed.
    pub unlisted: u64,
    /// What old inode tables hold.
    pub tables: u64,
    /// Files with little of the past each that were not told one by one, and what they hold.
    pub others: u64,
    pub others_bytes: u64,
    /// Files that are gone, of which it could not be told where they were, and what they hold.
    pub unplaced: u64,
    pub unplaced_bytes: u64,
    /// Segments whose logs cannot be read to their end: what they hold is in no figure.
    pub cut: u64,
}
