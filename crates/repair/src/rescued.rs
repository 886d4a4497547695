//! What a rescue reads of the damaged volume and the mended tree has not: it is taken from there.
//!
//! A repair trusts the tables and mends them; a rescue trusts nothing and reads each file by itself. Where tables are lost in
//! large parts the second brings more. So when all is mended both trees are compared: files that are not there are made
//! anew with what a rescue reads of them, names come back, and files that the rounds before had to touch get the content
//! that verifies in every block.
//!
//! Memory: that of a rescue, the names of one directory, 100 bytes for each file or name that is missing, content up to
//! 64 MiB before it is written, and twice what is written, up to a limit: files that do not fit into it are left to a rescue.

mod compare;
mod take;

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_engine::mend::Mender;
use silt_verify::rescue::Rescue;
use silt_verify::{Unwatched, Watch};

use crate::dirs;
use crate::{Error, Result};
use compare::Compare;
use take::{Left, Take};

/// What is wanted of a rescue.
pub(crate) struct Wanted<'a> {
    /// The damaged volume.
    pub original: &'a dyn Device,
    /// The checkpoint of which the mended tree is.
    pub checkpoint: u64,
    /// Inodes that were not as they were when they were mended, or may not be.
    pub told: &'a BTreeSet<u64>,
    /// Of those, the ones that were put back to an older version or put together.
    pub put_back: &'a BTreeSet<u64>,
    /// Only what verifies.
    pub whole_only: bool,
    /// Bytes of memory that what is taken may have.
    pub memory: u64,
    /// Leave out what does not fit into the free space, where that of everything was too little.
    pub what_fits: bool,
    pub now: u64,
}

/// How a file of the mended tree differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It is not there. Its type by the directory that names it, and the directory.
    Inode(u8, u64),
    /// It has other content or attributes than the rescue reads, which verify; or older ones, and those of the rescue are not
    /// known to be wrong.
    Content,
}

/// Takes from a rescue what is not there. Whether there was anything. `doubts` gets what holds also where nothing is taken.
pub(crate) fn bring(
    mender: &mut Mender,
    trial: &Arc<Overlay>,
    wanted: &Wanted<'_>,
    watch: &dyn Watch,
    said: &mut Vec<String>,
    doubts: &mut Vec<String>,
) -> Result<bool> {
    watch.stage("reading what a rescue reads", 0);
    let Ok(rescue) = Rescue::open(wanted.original, &Unwatched) else { return Ok(false) };
    if rescue.moments().first().is_none_or(|m| m.cno != wanted.checkpoint) {
        return Ok(false);
    }
    let Ok(tree) = rescue.tree(wanted.checkpoint) else { return Ok(false) };
    let mut compare = Compare::new(mender.volume(), &tree, wanted);
    tree.walk(watch, &mut compare)?;
    if watch.stop() {
        return Err(Error::Stopped);
    }
    let Compare { lacks, names, gone, unsure, .. } = compare;
    doubts.extend(unsure.difference(&lacks.keys().copied().collect()).map(|ino| {
        format!("inode {ino}: not all that a rescue reads of it verifies: it may be wrong, and nothing tells of that from now on")
    }));
    if lacks.is_empty() && names.is_empty() && gone.is_empty() {
        return Ok(false);
    }
    let mut made = BTreeSet::new();
    let mut take = Take { mender, trial, tree: &tree, wanted, said };
    for (ino, lack) in &lacks {
        if watch.stop() {
            return Err(Error::Stopped);
        }
        let why = match take.file(*ino, *lack)? {
            None => {
                if let Lack::Inode(..) = lack {
                    made.insert(*ino);
                }
                continue;
            }
            Some(Left::Memory) => "there is too little memory for it",
            Some(Left::Space) => "it does not fit into the free space",
        };
        take.said.push(format!("inode {ino}: a rescue reads what is not in it now, and {why}: {FIRST}"));
    }
    let told = dirs::Told { revived: made, gone, names, ..dirs::Told::default() };
    dirs::mend(mender.volume(), told, said)?;
    Ok(true)
}

/// What is said where not all is taken.
pub(crate) const FIRST: &str = "silt rescue copies it out: do that first";

/// What is said of a file that is whole again.
pub(crate) const AS_IT_WAS: &str = "is as it was: a rescue reads all of it, and all of it verifies";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
