//! What menders of one repair tell each other: each opens the volume anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::Device;

use super::bits::Bits;
use super::{Mender, SetAside};

/// A volume as it was before anything was mended.
#[derive(Clone)]
pub struct Original(pub Arc<dyn Device>);

impl std::fmt::Debug for Original {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a volume of {} bytes", self.0.len())
    }
}

/// What the menders before know.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The newest log is theirs, and nothing was written since: the log goes on behind it, and not in a fresh segment.
    pub own: bool,
    /// The newest checkpoint that is not theirs: files are not put back to what later ones have.
    pub mended_from: Option<u64>,
    /// Sequence number of the newest log before theirs.
    pub(super) since: Option<u64>,
    /// What the volume was.
    pub original: Option<Original>,
    /// Segments that are not to be written over, though they pass for free.
    pub spared: BTreeSet<u64>,
    /// Segments that were free before the first of them: nothing of the volume as it was lies there.
    pub free: Option<BTreeSet<u64>>,
    /// Synced data that was set aside.
    pub aside: SetAside,
    /// Blocks of inode files, by offset, that were moved out of logs that do not verify.
    pub(super) inode_blocks: BTreeSet<u64>,
    /// Virtual blocks of which nothing says when they died.
    pub(super) unsure: Bits,
}

impl Known {
    /// Nothing yet of a volume that is still what it was.
    pub fn of(device: &Arc<dyn Device>) -> Self {
        Known { original: Some(Original(device.clone())), ..Known::default() }
    }
}

impl Mender {
    /// Whether blocks of inode files were moved out of logs that do not verify.
    pub fn moved_doubtful(&self) -> bool {
        !self.doubts.moved.is_empty()
    }

    /// What the next mender is to know; to be asked before [`Mender::finish`].
    pub fn leave(&mut self) -> Known {
        self.note_rewritten();
        Known {
            own: true,
            mended_from: self.volume.mended_from.map(|c| c.0),
            since: Some(self.since),
            original: self.original.clone(),
            spared: self.spared.clone(),
            free: Some(self.free.clone()),
            aside: self.set_aside(),
            inode_blocks: self.doubts.moved.clone(),
            unsure: self.volume.unsure.clone(),
        }
    }

    /// Notes blocks of the inode file that are about to be written elsewhere out of logs that do not verify: what is not
    /// changed of them stays doubtful.
    fn note_rewritten(&mut self) {
        let v = &self.volume;
        let layout = v.ifile.palloc.layout;
        let changed = v.inodes.values().filter(|i| i.dirty).map(|i| layout.entry(i.ino.0).block);
        let offsets: BTreeSet<u64> = v.ifile.file.data.keys().copied().chain(changed).collect();
        let is_bad = |offset: &u64| match v.ifile.file.place(&v.store, &v.dat, *offset) {
            Ok(Some(at)) => self.doubts.is_bad(&v.store.geometry, at),
            Ok(None) | Err(_) => false,
        };
        let bad: Vec<u64> = offsets.into_iter().filter(is_bad).collect();
        self.doubts.moved.extend(bad);
    }
}
