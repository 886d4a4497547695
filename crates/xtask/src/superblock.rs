//! The few numbers of a super block that judge a volume, read by the offsets of the format document alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

const MAGIC: u16 = 0x3434;
/// Bytes of a super block.
const SIZE: usize = 1024;

// Byte offsets in a copy (docs/format.md, section 2.2).
const OFFSET_MAGIC: usize = 6;
const OFFSET_LOG_BLOCK_SIZE: usize = 20;
const OFFSET_DEVICE_SIZE: usize = 32;
const OFFSET_LAST_CNO: usize = 56;
const OFFSET_STATE: usize = 116;

/// What one copy says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuperBlock {
    /// Bytes of a block.
    pub block_size: usize,
    /// Bytes of the volume.
    pub device_size: u64,
    /// State bits: 1 is "valid" (cleanly unmounted), 2 is "error".
    pub state: u16,
    /// Last checkpoint.
    pub last_cno: u64,
}

/// State bit: cleanly unmounted.
pub const VALID: u16 = 1;
/// State bit: an error was seen.
pub const ERROR: u16 = 2;

fn parse(bytes: &[u8; SIZE]) -> Option<SuperBlock> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if u16_at(OFFSET_MAGIC)? != MAGIC {
        return None;
    }
    let shift = u32_at(OFFSET_LOG_BLOCK_SIZE)?.checked_add(10)?;
    Some(SuperBlock {
        block_size: 1usize.checked_shl(shift)?,
        device_size: u64_at(OFFSET_DEVICE_SIZE)?,
        state: u16_at(OFFSET_STATE)?,
        last_cno: u64_at(OFFSET_LAST_CNO)?,
    })
}

/// Both copies, the primary first; a copy that is not there is left out.
pub fn read(image: &Path) -> Result<Vec<SuperBlock>> {
    let file = File::open(image).with_context(|| format!("opening {}", image.display()))?;
    let len = file.metadata()?.len();
    let second = (len >> 12).checked_sub(1).map(|block| block << 12);
    let mut found = Vec::new();
    for offset in [Some(1024), second].into_iter().flatten() {
        let mut bytes = [0; SIZE];
        file.read_exact_at(&mut bytes, offset)?;
        found.extend(parse(&bytes));
    }
    if found.is_empty() {
        bail!("{} holds no super block", image.display());
    }
    Ok(found)
}
