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
    pub newest: Option<u64>,
    /// What the volume was.
    pub original: Option<Original>,
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
        Known {
            own: true,
            newest: self.volume.mended_from.map(|c| c.0),
            original: self.original.clone(),
            aside: self.set_aside(),
            inode_blocks: self.doubts.moved.clone(),
            unsure: self.volume.unsure.clone(),
        }
    }
}
