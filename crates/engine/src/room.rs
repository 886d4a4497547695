//! Whether the clean segments hold what is to be written. Estimates from above: a checkpoint that runs out of segments
//! half-way ends writing to the volume.

use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// Whether a checkpoint of all that waits certainly fits. Looked at closely only where little is left.
    pub(crate) fn check_room_for_checkpoint(&self) -> Result<()> {
        let g = &self.store.geometry;
        let available = self.available_segments();
        let per_segment = u64::from(g.blocks_per_segment);
        if available > g.reserved_segments()
            && self.dirty_blocks < (available - g.reserved_segments()) * per_segment / 4
        {
            return Ok(());
        }
        let in_blocks = |units: u64| units / u64::from(g.block_size / 512);
        let dat = in_blocks(self.dat.file.map.blocks);
        let mut ends = self.dirty_blocks;
        for nr in &self.dirty {
            let Some(i) = self.inodes.get(nr) else { continue };
            if i.deleted || !i.current.cuts.is_empty() {
                ends = ends.saturating_add(in_blocks(i.map.blocks));
            }
        }
        let inodes = 4 * self.dirty.len() as u64 / 3;
        let metadata = self.dirty_blocks / 8 + 2 * ends.min(dat) + inodes + 64;
        let needed = (self.dirty_blocks + metadata) * 33 / 32 / per_segment + 2;
        if available < needed { Err(Error::NoSpace) } else { Ok(()) }
    }
}
