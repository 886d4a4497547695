//! The super block and the choice between its two copies (spec section 2).
//!
//! ```text
//! byte 1024   primary
//! byte SB2    secondary, the last whole 4 KiB of the device
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Error, Geometry, Incompatible, Result, crc32};

/// Byte offset of the primary copy.
pub const PRIMARY_OFFSET: u64 = 1024;
/// Bytes one copy occupies.
pub const SIZE: usize = 1024;
/// `s_magic`, and the type in statfs.
pub const MAGIC: u16 = 0x3434;
/// Bytes covered by the checksum in what we make.
pub const CHECKED_BYTES: u16 = 280;
/// Smallest device (spec 2.6).
pub const MIN_DEVICE_SIZE: u64 = 16 * 1024 + 4096;

/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: an error was met.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: a resize was under way.
pub const STATE_RESIZE: u16 = 4;

/// `s_feature_compat_ro`: block counts are maintained.
pub const FEATURE_RO_BLOCK_COUNT: u64 = 1;
/// Read-only-compatible features this implementation can write with.
pub const KNOWN_RO_FEATURES: u64 = FEATURE_RO_BLOCK_COUNT;

/// Byte offset of the secondary copy on a device of `device_size` bytes (at least 8192).
pub fn secondary_offset(device_size: u64) -> u64 {
    (device_size >> 12).saturating_sub(1) << 12
}

/// One copy as it lies on disk, 1024 bytes.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuperBlock {
    pub rev_level: U32,
    pub minor_rev_level: U16,
    pub magic: U16,
    pub bytes: U16,
    pub flags: U16,
    pub crc_seed: U32,
    pub sum: U32,
    pub log_block_size: U32,
    pub nsegments: U64,
    pub dev_size: U64,
    pub first_data_block: U64,
    pub blocks_per_segment: U32,
    pub r_segments_percentage: U32,
    pub last_cno: U64,
    pub last_pseg: U64,
    pub last_seq: U64,
    pub free_blocks_count: U64,
    pub ctime: U64,
    pub mtime: U64,
    pub wtime: U64,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub state: U16,
    pub errors: U16,
    pub lastcheck: U64,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub dat_entry_size: U16,
    pub checkpoint_size: U16,
    pub segment_usage_size: U16,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 80],
    pub c_interval: U32,
    pub c_block_max: U32,
    pub feature_compat: U64,
    pub feature_compat_ro: U64,
    pub feature_incompat: U64,
    pub reserved: [u8; 744],
}

impl std::fmt::Debug for SuperBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuperBlock")
            .field("last_cno", &self.last_cno.get())
            .field("last_pseg", &self.last_pseg.get())
            .field("last_seq", &self.last_seq.get())
            .field("state", &self.state.get())
            .field("nsegments", &self.nsegments.get())
            .finish_non_exhaustive()
    }
}

impl SuperBlock {
    /// A copy with every byte zero.
    pub fn zeroed() -> Self {
        <Self as zerocopy::FromZeros>::new_zeroed()
    }

    /// Parses one copy: magic, length of the checksummed part and checksum must be right
    /// (spec 2.5); the fields are not judged here (see [`SuperBlock::geometry`]).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (sb, _) = SuperBlock::read_from_prefix(bytes).map_err(|_| Error::NotNilfs)?;
        if sb.magic.get() != MAGIC {
            return Err(Error::NotNilfs);
        }
        let n = sb.bytes.get();
        if !(20..=1024).contains(&n) {
            return Err(Error::corrupt("super block", format!("claims {n} checksummed bytes")));
        }
        if sb.sum.get() != sb.checksum() {
            return Err(Error::corrupt("super block", "checksum does not match"));
        }
        Ok(sb)
    }

    /// The checksum these fields should carry.
    pub fn checksum(&self) -> u32 {
        let mut copy = self.clone();
        copy.sum = U32::ZERO;
        let n = usize::from(self.bytes.get()).min(SIZE);
        crc32(self.crc_seed.get(), &copy.as_bytes()[..n])
    }

    /// The bytes to write, checksum brought up to date.
    pub fn to_disk(&mut self) -> [u8; SIZE] {
        self.sum = U32::new(self.checksum());
        let mut out = [0; SIZE];
        out.copy_from_slice(self.as_bytes());
        out
    }

    /// The label, up to the first NUL.
    pub fn label(&self) -> &[u8] {
        let end = self.volume_name.iter().position(|b| *b == 0).unwrap_or(80);
        &self.volume_name[..end]
    }

    /// Sets the label; more than 80 bytes are cut off (spec 16.1).
    pub fn set_label(&mut self, label: &[u8]) {
        let n = label.len().min(80);
        self.volume_name = [0; 80];
        self.volume_name[..n].copy_from_slice(&label[..n]);
    }

    /// Checks every limit of spec 2.6 that needs no other block and returns the volume's numbers.
    /// `device_size` in bytes.
    pub fn geometry(&self, device_size: u64) -> Result<Geometry> {
        let bad = |what: String| Err(Error::corrupt("super block", what));
        if self.rev_level.get() < 2 {
            return Err(Incompatible::Revision(self.rev_level.get()).into());
        }
        if self.feature_incompat.get() != 0 {
            return Err(Incompatible::Features(self.feature_incompat.get()).into());
        }
        if device_size < MIN_DEVICE_SIZE {
            return bad(format!("the device is too small ({device_size} bytes)"));
        }
        if self.log_block_size.get() > 6 {
            return Err(Incompatible::BlockSize(self.log_block_size.get().saturating_add(10)).into());
        }
        let block_bits = self.log_block_size.get() + 10;
        let block_size = 1u32 << block_bits;
        let inode_size = u32::from(self.inode_size.get());
        if inode_size < 128 || inode_size > block_size || 16 + 3 * inode_size > block_size {
            return bad(format!("inode size {inode_size}"));
        }
        let first_ino = u64::from(self.first_ino.get());
        if first_ino < 11 {
            return bad(format!("first user inode {first_ino}"));
        }
        let bps = self.blocks_per_segment.get();
        // A segment's size in bytes must stay far inside 32-bit block counts of a log.
        if !(16..=1 << 30).contains(&bps) {
            return bad(format!("{bps} blocks a segment"));
        }
        let percent = self.r_segments_percentage.get();
        if !(1..=99).contains(&percent) {
            return bad(format!("{percent} percent reserved segments"));
        }
        let nsegments = self.nsegments.get();
        match nsegments.checked_mul(u64::from(bps)) {
            Some(blocks) if nsegments > 0 && blocks <= device_size >> block_bits => {}
            _ => return bad(format!("{nsegments} segments do not fit the device of {device_size} bytes")),
        }
        let first_data_block = self.first_data_block.get();
        if first_data_block != 4096u64.div_ceil(u64::from(block_size)) {
            return bad(format!("first data block {first_data_block}"));
        }
        let dat_entry_size = u32::from(self.dat_entry_size.get());
        let checkpoint_size = u32::from(self.checkpoint_size.get());
        let segment_usage_size = u32::from(self.segment_usage_size.get());
        if dat_entry_size < 32 || dat_entry_size > block_size {
            return bad(format!("DAT entry size {dat_entry_size}"));
        }
        if checkpoint_size < 192 || checkpoint_size > block_size {
            return bad(format!("checkpoint size {checkpoint_size}"));
        }
        if segment_usage_size < 16 || segment_usage_size * 3 > block_size {
            return bad(format!("segment usage size {segment_usage_size}"));
        }
        let geometry = Geometry {
            block_size,
            block_bits,
            blocks_per_segment: bps,
            nsegments,
            first_data_block,
            inode_size,
            dat_entry_size,
            checkpoint_size,
            segment_usage_size,
            crc_seed: self.crc_seed.get(),
            first_ino,
            reserved_percent: percent,
        };
        let pseg = crate::BlockNr(self.last_pseg.get());
        geometry.check_block("super block", pseg)?;
        Ok(geometry)
    }

    /// Whether the place of the secondary copy, as computed from the device's size, would lie
    /// inside this copy's segments (spec 2.5, step 4).
    pub fn secondary_is_bogus(&self, device_size: u64) -> bool {
        let bits = self.log_block_size.get().saturating_add(10);
        let bps = u64::from(self.blocks_per_segment.get());
        if bits > 16 || bps < 16 {
            return true;
        }
        (secondary_offset(device_size) >> bits) / bps < self.nsegments.get()
    }
}

/// Which copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    Primary,
    Secondary,
}

/// The copies found on a device, in the order of preference (spec 2.5).
#[derive(Debug, Clone)]
pub struct Copies {
    /// The preferred copy and where it lies.
    pub first: (Copy, SuperBlock),
    /// The other one, where valid.
    pub second: Option<(Copy, SuperBlock)>,
    /// Whether a secondary copy has a place at all on this device.
    pub secondary_usable: bool,
}

/// Chooses between the two copies as spec 2.5 says; pass what parsing each of them gave.
pub fn choose(
    primary: Result<SuperBlock>,
    secondary: Result<SuperBlock>,
    device_size: u64,
) -> Result<Copies> {
    let (p, s) = match (primary, secondary) {
        (Ok(p), Ok(s)) => (Some(p), Some(s)),
        (Ok(p), Err(_)) => (Some(p), None),
        (Err(_), Ok(s)) => (None, Some(s)),
        (Err(Error::NotNilfs), Err(e)) | (Err(e), Err(_)) => return Err(e),
    };
    let prefer_secondary = match (&p, &s) {
        (None, Some(_)) => true,
        (Some(p), Some(s)) => s.last_cno.get() > p.last_cno.get(),
        _ => false,
    };
    let chosen = if prefer_secondary { s.as_ref() } else { p.as_ref() };
    let bogus = chosen.is_none_or(|c| c.secondary_is_bogus(device_size));
    let s = if bogus { None } else { s };
    let (first, second) = match (p, s) {
        (Some(p), Some(s)) if prefer_secondary => ((Copy::Secondary, s), Some((Copy::Primary, p))),
        (Some(p), s) => ((Copy::Primary, p), s.map(|s| (Copy::Secondary, s))),
        (None, Some(s)) => ((Copy::Secondary, s), None),
        (None, None) => return Err(Error::NotNilfs),
    };
    Ok(Copies { first, second, secondary_usable: !bogus })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SuperBlock {
        let mut sb = SuperBlock::zeroed();
        sb.rev_level = 2.into();
        sb.magic = MAGIC.into();
        sb.bytes = CHECKED_BYTES.into();
        sb.crc_seed = 0x1234_5678.into();
        sb.log_block_size = 2.into();
        sb.nsegments = 31.into();
        sb.first_data_block = 1.into();
        sb.blocks_per_segment = 2048.into();
        sb.r_segments_percentage = 5.into();
        sb.last_cno = 1.into();
        sb.last_pseg = 1.into();
        sb.first_ino = 11.into();
        sb.inode_size = 128.into();
        sb.dat_entry_size = 32.into();
        sb.checkpoint_size = 192.into();
        sb.segment_usage_size = 16.into();
        sb
    }

    const SIZE_256M: u64 = 256 << 20;

    #[test]
    fn the_structure_is_1024_bytes_and_fields_lie_where_the_format_says() {
        assert_eq!(size_of::<SuperBlock>(), SIZE);
        assert_eq!(std::mem::offset_of!(SuperBlock, last_cno), 56);
        assert_eq!(std::mem::offset_of!(SuperBlock, state), 116);
        assert_eq!(std::mem::offset_of!(SuperBlock, uuid), 152);
        assert_eq!(std::mem::offset_of!(SuperBlock, feature_incompat), 272);
    }

    #[test]
    fn a_written_copy_parses_and_any_flipped_bit_is_seen() {
        let mut sb = sample();
        let bytes = sb.to_disk();
        assert!(SuperBlock::parse(&bytes).is_ok());
        for bit in 0..280 * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(SuperBlock::parse(&torn).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn limits_are_checked() {
        assert!(sample().geometry(SIZE_256M).is_ok());
        let cases: [fn(&mut SuperBlock); 12] = [
            |s| s.rev_level = 1.into(),
            |s| s.log_block_size = 7.into(),
            |s| s.inode_size = 127.into(),
            |s| s.inode_size = 2000.into(),
            |s| s.first_ino = 10.into(),
            |s| s.blocks_per_segment = 15.into(),
            |s| s.r_segments_percentage = 100.into(),
            |s| s.nsegments = 33.into(),
            |s| s.nsegments = u64::MAX.into(),
            |s| s.last_pseg = (31 * 2048).into(),
            |s| s.feature_incompat = 1.into(),
            |s| s.dat_entry_size = 31.into(),
        ];
        for (i, change) in cases.iter().enumerate() {
            let mut sb = sample();
            change(&mut sb);
            assert!(sb.geometry(SIZE_256M).is_err(), "case {i}");
        }
    }

    #[test]
    fn the_newer_copy_is_preferred_and_a_torn_one_is_not_used() {
        let older = sample();
        let mut newer = sample();
        newer.last_cno = 9.into();
        let c = choose(Ok(older.clone()), Ok(newer.clone()), SIZE_256M).unwrap();
        assert_eq!(c.first.0, Copy::Secondary);
        let c = choose(Ok(newer.clone()), Ok(older.clone()), SIZE_256M).unwrap();
        assert_eq!(c.first.0, Copy::Primary);
        let c = choose(Err(Error::NotNilfs), Ok(older.clone()), SIZE_256M).unwrap();
        assert_eq!(c.first.0, Copy::Secondary);
        assert!(c.second.is_none());
        assert!(choose(Err(Error::NotNilfs), Err(Error::NotNilfs), SIZE_256M).is_err());
        // A device that shrank: the secondary's place lies inside the segments.
        let c = choose(Ok(older), Ok(newer), 100 << 20).map(|c| c.first.0);
        assert!(c.is_err() || c == Ok(Copy::Primary));
    }
}
