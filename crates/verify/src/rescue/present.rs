//! A super block for a moment that was found, so that it can be mounted: the volume's numbers, and the cursor at the
//! log that completes the moment.

use silt_format::super_block::{self, MAGIC, STATE_VALID, SuperBlock};

use super::volume::{Rescue, Root};
use crate::Error;

impl Rescue<'_> {
    /// A super block that leads to the log at block `log`, as if the volume had been unmounted right behind it. It is
    /// to be shown to a reader in place of those on the device, never to be written. Errors: no log in use that ends
    /// with a super root begins there, or it does not verify, which a mount would refuse.
    pub fn super_block_for(&self, log: u64) -> Result<SuperBlock, Error> {
        let root = self
            .roots()
            .iter()
            .find(|r| r.log == Some(log))
            .ok_or_else(|| Error::Damaged(format!("no log with a super root begins at block {log}")))?;
        if !root.whole {
            let what = format!("the log at block {log} does not verify: it can be copied out, not mounted");
            return Err(Error::Damaged(what));
        }
        Ok(self.super_block_of(log, root))
    }

    /// The same for a log at block `log` that need not verify, as the way to a copy of which the damage is mended.
    pub fn super_block_of(&self, log: u64, root: &Root) -> SuperBlock {
        let g = self.geometry();
        let mut sb = self.shape.super_block.clone().unwrap_or_else(SuperBlock::zeroed);
        // Numbers that fit are not always numbers that are there: from a broken copy only those are taken.
        sb.rev_level = 2.into();
        sb.magic = MAGIC.into();
        sb.bytes = super_block::CHECKED_BYTES.into();
        sb.crc_seed = g.crc_seed.into();
        sb.log_block_size = (g.block_bits - 10).into();
        // Of a volume that was cut short what lies in whole segments can be shown.
        let segment = u64::from(g.blocks_per_segment) << g.block_bits;
        sb.nsegments = g.nsegments.min(self.r.device.len() / segment.max(1)).into();
        sb.dev_size = self.r.device.len().into();
        sb.first_data_block = g.first_data_block.into();
        sb.blocks_per_segment = g.blocks_per_segment.into();
        sb.r_segments_percentage = g.reserved_percent.into();
        let size = |n: u32| u16::try_from(n).unwrap_or(u16::MAX).into();
        sb.inode_size = size(g.inode_size);
        sb.dat_entry_size = size(g.dat_entry_size);
        sb.checkpoint_size = size(g.checkpoint_size);
        sb.segment_usage_size = size(g.segment_usage_size);
        sb.first_ino = u32::try_from(g.first_ino).unwrap_or(u32::MAX).into();
        sb.state = STATE_VALID.into();
        sb.last_pseg = log.into();
        sb.last_seq = root.order.0.into();
        sb.last_cno = root.cno.into();
        sb.sum = sb.checksum().into();
        sb
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::Device;
    use silt_format::super_block::{PRIMARY_OFFSET, SIZE, secondary_offset};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::surgeon::Surgeon;
    use crate::{Moment, Tree, Unwatched};

    #[test]
    fn a_volume_without_super_blocks_is_read_through_one_made_up() {
        let s = Surgeon::golden("basic-4k");
        let latest = s.latest().pos.0;
        for at in [PRIMARY_OFFSET, secondary_offset(s.device.len())] {
            s.device.write_at(at, &[&[0; SIZE]]).unwrap();
        }
        let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
        let sb = rescue.super_block_for(latest).unwrap();
        assert!(rescue.super_block_for(latest + 1).is_err());
        let copy = s.device.fork();
        copy.write_at(PRIMARY_OFFSET, &[sb.as_bytes()]).unwrap();
        let tree = Tree::open(&copy, Moment::Latest).unwrap();
        assert!(tree.walk().unwrap().len() > 10);
    }
}
