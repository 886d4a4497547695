//! The super root: the block that completes a checkpoint (spec 3.6).
//!
//! ```text
//! sr_sum(4) sr_bytes(2) sr_flags(2) nongc_ctime(8) | DAT inode | cpfile inode | sufile inode
//! ```

use crate::inode::RawInode;
use crate::{Error, Geometry, Result, crc32};

/// A super root's content.
#[derive(Debug, Clone)]
pub struct SuperRoot {
    /// `ss_create` of the newest log not written by the cleaner, seconds.
    pub nongc_ctime: u64,
    pub dat: RawInode,
    pub cpfile: RawInode,
    pub sufile: RawInode,
}

fn bytes_of(g: &Geometry) -> usize {
    16 + 3 * g.inode_size as usize
}

impl SuperRoot {
    /// Parses and verifies a super root block.
    pub fn parse(g: &Geometry, block: &[u8]) -> Result<Self> {
        const WHAT: &str = "super root";
        let head = block.get(..16).ok_or_else(|| Error::corrupt(WHAT, "short block"))?;
        let sum = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let n = usize::from(u16::from_le_bytes([head[4], head[5]]));
        if n < bytes_of(g) || n > block.len() {
            return Err(Error::corrupt(WHAT, format!("claims {n} bytes")));
        }
        if crc32(g.crc_seed, &block[4..n]) != sum {
            return Err(Error::corrupt(WHAT, "checksum does not match"));
        }
        let mut time = [0; 8];
        time.copy_from_slice(&head[8..16]);
        let isz = g.inode_size as usize;
        let inode = |i: usize| RawInode::read(&block[16 + i * isz..16 + (i + 1) * isz]);
        let root = SuperRoot {
            nongc_ctime: u64::from_le_bytes(time),
            dat: inode(0)?,
            cpfile: inode(1)?,
            sufile: inode(2)?,
        };
        root.dat.check_metadata("DAT")?;
        root.cpfile.check_metadata("cpfile")?;
        root.sufile.check_metadata("sufile")?;
        Ok(root)
    }

    /// Fills a whole block, checksum included.
    pub fn store(&self, g: &Geometry, block: &mut [u8]) {
        block.fill(0);
        let n = bytes_of(g);
        let isz = g.inode_size as usize;
        // At most 16 + 3 * (65536 / 3): the geometry has checked it against the block size.
        block[4..6].copy_from_slice(&u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes());
        block[8..16].copy_from_slice(&self.nongc_ctime.to_le_bytes());
        for (i, inode) in [&self.dat, &self.cpfile, &self.sufile].into_iter().enumerate() {
            inode.store(&mut block[16 + i * isz..16 + (i + 1) * isz]);
        }
        let sum = crc32(g.crc_seed, &block[4..n]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
    }
}
